"""How fast the slot schedulers are beside the page's own loops: python tests/bench_slots.py.

Both sides get the same lengths and give each request's finish and (continuous) slot; the results are compared first.
They take turns, so that a busy moment hits both; each figure is the best turn, as in timeit: what is slower was slowed
by something else. Takes about 2 minutes.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from oracles import PEAK_MEMORY

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labs.slots import continuous_batching, static_batching  # noqa: E402
from labs.workload import lognormal_lengths  # noqa: E402

SIZES = (10_000, 100_000, 1_000_000)
PEAK = PEAK_MEMORY + """
import sys
from labs.slots import continuous_batching, static_batching
from labs.workload import lognormal_lengths, poisson_arrivals
lengths = lognormal_lengths(int(sys.argv[2]), 4.2, 1.1, 0)
arrivals = poisson_arrivals(len(lengths), 0.2, 0) if sys.argv[3] == "arrivals" else None
{"static": static_batching, "continuous": continuous_batching}[sys.argv[1]](lengths, 32, arrivals)
print(peak_memory())
"""


def page_continuous(lengths: list[int], slots: int) -> tuple[dict[int, int], dict[int, int]]:
    """The page's loop as it stands, (finish, slot) by request: look through all slots for the one free first."""
    free, finish, chosen = [0] * slots, {}, {}
    for i, length in enumerate(lengths):
        slot = free.index(min(free))
        start = free[slot]
        finish[i] = start + length
        chosen[i] = slot
        free[slot] = start + length
    return finish, chosen


def page_static(lengths: list[int], slots: int) -> tuple[dict[int, int]]:
    """The page's loop as it stands, finish by request: group by group."""
    steps, finish = 0, {}
    for i in range(0, len(lengths), slots):
        group = lengths[i:i + slots]
        duration = max(group)
        for j, _ in enumerate(group):
            finish[i + j] = steps + duration
        steps += duration
    return (finish,)


def seconds(function: Callable, *args: object) -> float:
    """How long one call takes."""
    begun = time.process_time()
    function(*args)
    return time.process_time() - begun


def side_by_side(ours: Callable, page: Callable, n: int, slots: int, repeats: int) -> list[float]:
    """Seconds of each on the same `n` lengths, once their results are found equal."""
    array = lognormal_lengths(n, 4.2, 1.1, 0)
    lengths = array.tolist()
    schedule = ours(array, slots)
    for mine, theirs in zip((schedule.finish, schedule.slot), page(lengths, slots), strict=False):
        assert mine.tolist() == list(theirs.values())
    del schedule, mine, theirs
    turns = [(seconds(ours, array, slots), seconds(page, lengths, slots)) for _ in range(repeats)]
    return [min(column) for column in zip(*turns, strict=True)]


def costs(sizes: tuple[int, ...], slots: int, repeats: int) -> list[float]:
    """Microseconds that continuous batching takes for each request of so many, the sizes taking turns."""
    workloads = [lognormal_lengths(n, 4.2, 1.1, 0) for n in sizes]
    turns = [[seconds(continuous_batching, lengths, slots) / len(lengths) * 1e6 for lengths in workloads]
             for _ in range(2 * repeats)]
    return [min(column) for column in zip(*turns, strict=True)]


def peak_memory(scheduler: str, n: int, kind: str) -> float:
    """The most memory in MB that a process of its own takes to schedule `n` requests, Python and numpy included."""
    command = [sys.executable, "-c", PEAK, scheduler, str(n), kind]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(ran.stdout)


def main() -> int:
    """Print the table; 1 if a figure misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    n, missed = args.requests, 0
    print(f"Python {platform.python_version()}, numpy {np.__version__}, {n:,} requests, best of {args.repeats} turns\n")
    print("| scheduler | slots | labs, s | the page's loop, s | ratio | at least |\n|---|---|---|---|---|---|")
    for name, ours, page, slots, least in (
            ("continuous", continuous_batching, page_continuous, 32, 5),
            ("continuous", continuous_batching, page_continuous, 256, 20),
            ("static", static_batching, page_static, 32, 5),
            ("static", static_batching, page_static, 256, 5)):
        fast, slow = side_by_side(ours, page, n, slots, args.repeats)
        missed += slow / fast < least
        print(f"| {name} | {slots} | {fast:.3f} | {slow:.3f} | {slow / fast:.1f}x | {least}x |", flush=True)
    print("\n| requests | continuous, 32 slots, us each | 256 slots |\n|---|---|---|")
    few, many = (costs(SIZES, slots, args.repeats) for slots in (32, 256))
    for row in zip(SIZES, few, many, strict=True):
        print("| {:,} | {:.3f} | {:.3f} |".format(*row))
    growth = max(few[-1] / few[0], many[-1] / many[0])
    missed += growth > 1.5
    print(f"\ncost a request, 1,000,000 beside 10,000: {growth:.2f}x (at most 1.5x)")
    for scheduler in ("continuous", "static"):
        for kind in ("backlog", "arrivals"):
            peak = peak_memory(scheduler, n, kind)
            missed += peak >= 400
            print(f"peak memory, {scheduler}, {kind}: {peak:.0f} MB (under 400)")
    print("all targets met" if not missed else f"{missed} targets missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
