"""Start the simulated server: python -m labs.live.simulated --help."""
from labs.live.simulated.command import main

main()
