"""A real server beside the simulator: start it, load it, watch it, and stop it so that nothing is left."""
