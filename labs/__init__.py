"""Small reusable modules behind the continuous batching notebooks; import the one you need."""
