"""Where ITL crosses a target as more requests run together: recorded on a real server, and predicted from other runs.

A level is one concurrency: so many requests sent together, all of the same length. Its gaps are those between the last
request's first token and the first request's end, so that exactly that many sequences decode in each of them.
labs/live/crossing.py measures; what is here needs no server.
"""
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from labs.engine import Fit, StepTime, fit_step_time, run
from labs.metrics import percentile
from labs.scheduler import SchedulerConfig
from labs.workload import Request

RECORDINGS = Path(__file__).parent / "data/recordings/dial"
GRID = (1, 2, 4, 8, 16, 32, 64)
FITTED_ON = (1, 3, 6, 12, 24, 48)  # levels of other runs, with other prompts and lengths
LONG_PROMPT = 1800  # tokens of the prompt in the budget recording
TARGET = 1.5  # times the ITL at concurrency 1


@dataclass(frozen=True)
class Level:
    """What one run at one concurrency gave; times in milliseconds, `n` gaps."""

    concurrency: int
    n: int
    p50: float
    p95: float
    mean: float


def interleaved(levels: Sequence[int], repeats: int, seed: int = 0) -> Iterator[tuple[int, int]]:
    """(repeat, concurrency): every level once before any comes again, in a new order each time.

    A machine that grows slower for a while then slows all levels, and not one of them.
    """
    rng = np.random.default_rng(seed)
    for repeat in range(repeats):
        for i in rng.permutation(len(levels)).tolist():
            yield repeat, levels[i]


@dataclass(frozen=True)
class Point:
    """A level's ITL over its repeats: the median of their means, and the lowest and highest; in milliseconds."""

    concurrency: int
    itl: float
    low: float
    high: float
    p95: float


def points(rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """One point a concurrency, by rising concurrency."""
    by_level = defaultdict(list)
    for row in rows:
        by_level[row["concurrency"]].append(row)
    return [Point(c, median(r["mean"] for r in of_it), min(r["mean"] for r in of_it), max(r["mean"] for r in of_it),
                  median(r["p95"] for r in of_it)) for c, of_it in sorted(by_level.items())]


def crossing(levels: Sequence[int], itl: Sequence[float], target: float) -> int | None:
    """The first of `levels` at which the ITL lies above `target`; None if it never does."""
    return next((level for level, value in zip(levels, itl, strict=True) if value > target), None)


def grid_points_apart(one: int | None, other: int | None, grid: Sequence[int] = GRID) -> int:
    """How far apart two crossings lie on the grid; None lies one beyond its end."""
    place = {level: i for i, level in enumerate(grid)} | {None: len(grid)}
    return abs(place[one] - place[other])


def fit_levels(rows: Sequence[Mapping[str, Any]]) -> Fit:
    """A step time from runs at several concurrencies: each run's mean gap is a step of that many sequences."""
    return fit_step_time([r["concurrency"] for r in rows], [0] * len(rows), [r["mean"] / 1e3 for r in rows])


def predicted(step_time: StepTime, levels: Sequence[int] = GRID, output_tokens: int = 160,
              prompt_tokens: int = 16) -> list[float]:
    """The ITL at each level by the engine, in milliseconds: the same requests, all at once."""
    found = []
    for level in levels:
        requests = [Request(f"r{i}", prompt_tokens, output_tokens) for i in range(level)]
        config = SchedulerConfig(max(level, 1), max(2048, level), num_gpu_blocks=100_000)
        series = run(requests, config, step_time).series
        found.append(1e3 * percentile(series.seconds[series.decode_tokens == level], 0.5))
    return found


# ---- recordings -----------------------------------------------------------------------------------------------------

def recorded(name: str) -> dict[str, Any]:
    """A recording of notebook 06: "crossing", "budget", "cap", "limit" or "pages". Made by tests/crossing.py."""
    path = RECORDINGS / f"{name}.json"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in RECORDINGS.glob("*.json"))) or "none"
        raise ValueError(f"there is no recording {name!r}: there is {there}")
    return json.loads(path.read_text(encoding="utf-8"))


def provenance(recording: Mapping[str, Any]) -> str:
    """Where a recording comes from, in a line."""
    return (f"Recorded {recording['date']}: {recording['engine']} {recording['version']}, {recording['model']}; "
            f"{recording['machine']}; {recording['command']}")


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float, float]]:
    """(median, lowest, highest) of each figure over the repeats."""
    names = [name for name in runs[0] if name != "repeat"]
    return {name: (median(r[name] for r in runs), min(r[name] for r in runs), max(r[name] for r in runs))
            for name in names}


def recorded_step_time() -> StepTime:
    """The server's step time as notebook 06 recorded it: the fitted line, and what a token of a long prompt adds."""
    whole = medians(recorded("budget")["runs"]["2048"])["longest_gap"][0] / 1e3  # eight decode beside it
    line = fit_levels(recorded("crossing")["fit"]).step_time
    return replace(line, per_prefill_token=(whole - line(8, 0)) / LONG_PROMPT)
