"""Measure a server's ITL at one concurrency after the other: labs/crossing.py says what a level is."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from labs.crossing import GRID, Level, interleaved
from labs.live.client import Measurement, asks_from, measure
from labs.live.measurement import itl_from_chunks
from labs.workload import Request


def steady_gaps(measurement: Measurement) -> np.ndarray:
    """Gaps between tokens, in seconds, while all requests of the run were decoding: a chunk may hold several.

    Raises ValueError if one of them failed, if tokens can't be counted, or if they never all decoded at once.
    """
    if measurement.failed:
        raise ValueError(f"{len(measurement.failed)} of {len(measurement.measured)} requests failed: "
                         f"{measurement.failed[0].error or measurement.failed[0].status}")
    begin, end = max(r.first for r in measurement.ok), min(r.last for r in measurement.ok)
    inside = [[chunk for chunk in row.chunks if begin <= chunk[0] <= end] for row in measurement.ok]
    # The tokens of the first chunk inside came before: only its time counts.
    together = np.concatenate([itl_from_chunks([(at, 1), *later]) for (at, _), *later in filter(None, inside)]
                              or [np.empty(0)])
    if together.size == 0:
        raise ValueError("the requests never all decoded at once: ask for longer answers")
    return together


def measure_level(server: Any, concurrency: int, prompt_tokens: int = 16, output_tokens: int = 160,
                  seed: int = 0) -> Level:
    """Send `concurrency` requests at once to `server` (anything with base_url, api_key, model) and wait for them.

    Sending many takes a while, so the answers grow with the concurrency: 5 tokens a request, `output_tokens` at least.
    """
    output_tokens = max(output_tokens, 5 * concurrency)
    requests = [Request(f"r{i}", prompt_tokens, output_tokens) for i in range(concurrency)]
    gaps = 1e3 * steady_gaps(measure(server, asks_from(requests, seed)))
    return Level(concurrency, gaps.size, *(float(np.quantile(gaps, q)) for q in (0.5, 0.95)), float(gaps.mean()))


def measure_levels(server: Any, levels: Sequence[int] = GRID, repeats: int = 5, output_tokens: int = 160,
                   prompt_tokens: int = 16, progress: Callable[[int, int], None] | None = None,
                   one: Callable[..., Level] = measure_level) -> list[dict]:
    """One row a run, as a `Level` with its `repeat`; the server is warmed up first by a run that isn't kept.

    `one` measures a level: give your own to look after each run, and repeat one that was disturbed.
    """
    measure_level(server, max(levels), prompt_tokens, output_tokens, seed=999)
    rows = []
    for repeat, level in interleaved(levels, repeats):
        found = one(server, level, prompt_tokens, output_tokens, seed=len(rows))
        rows.append({"repeat": repeat} | asdict(found))
        if progress:
            progress(len(rows), repeats * len(levels))
    return rows
