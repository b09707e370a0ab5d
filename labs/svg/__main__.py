"""Write the picture of the eight requests in 8 slots, with the steps that A waits: `python -m labs.svg OUT.svg`."""

import sys
from pathlib import Path

from labs.slots import SCHEDULERS
from labs.svg import Picture, timelines
from labs.workload import EIGHT_LENGTHS


def eight_requests() -> Picture:
    """Static above continuous batching."""
    return timelines({name: scheduler(EIGHT_LENGTHS, 8) for name, scheduler in SCHEDULERS.items()}, waits="A")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m labs.svg OUT.svg")
    Path(sys.argv[1]).write_text(eight_requests().svg + "\n", encoding="utf-8")
