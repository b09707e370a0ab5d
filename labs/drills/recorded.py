"""Dashboards of a real vLLM, recorded under loads like the drills'; tests/record_dashboards.py makes them.

Nothing here is simulated. Where a series can't be had from the server or the client, it says so in `of_run`.
"""
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from labs.drills.asked import Requests
from labs.drills.telemetry import SCRAPE, Dashboard, Summary, percentiles, summarise
from labs.drills.traffic import HORIZON
from labs.scheduler import SchedulerConfig

FILE = Path(__file__).parent.parent / "data/recordings/dashboards.json"
SETTINGS = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "block_size", "max_model_len")


def of_run(config: SchedulerConfig, rows: Sequence[Any], pages: Sequence[tuple[float, Any]]) -> Dashboard:
    """A dashboard from the client's `rows` and the scraped `pages` (seconds, Metrics) of a server with this `config`.

    TTFT and ITL are the client's, so the server's own TTFT is not told apart; the prefix cache is off. There are no
    tenants, and tokens computed again aren't exported: NaN.
    """
    time = np.arange(SCRAPE, HORIZON + SCRAPE / 2, SCRAPE)
    series = _gauges(pages, len(time))
    seen = _seen(rows)
    gaps = [(row.first + np.cumsum(row.itl_gaps), row.itl_gaps) for row in rows if row.ok and len(row.itl_gaps)]
    when, gap = (np.concatenate(column) for column in zip(*gaps, strict=True))
    order = np.argsort(when, kind="stable")
    pooled = when[order], gap[order], np.ones(len(gap), dtype=np.int64)
    series |= percentiles(seen, pooled, time)
    series["largest_tenant"] = np.full(len(time), math.nan)
    series["cache_hits"] = np.zeros(len(time))
    return Dashboard(time, series, config, 1, summarise(series, time, pooled, seen))


def _seen(rows: Sequence[Any]) -> Requests:
    """What the client saw of each request; all weigh alike, for nobody counts tokens in flight."""
    created, first, done = (np.array([getattr(row, name) for row in rows]) for name in ("scheduled", "first", "done"))
    alike = np.ones(len(rows))
    return Requests(created, created, first, done, alike, alike, np.zeros(len(rows), dtype=int), alike, alike)


def _gauges(pages: Sequence[tuple[float, Any]], n: int) -> dict[str, np.ndarray]:
    """What the scrapes found, and what the counters gained from one to the next."""
    before, after = [page for _, page in pages[:n]], [page for _, page in pages[1:n + 1]]
    steps = np.array([b.iteration_tokens.count - a.iteration_tokens.count for a, b in zip(before, after, strict=True)])
    tokens = np.array([b.iteration_tokens.sum - a.iteration_tokens.sum for a, b in zip(before, after, strict=True)])
    return {"running": np.array([page.running for page in after], dtype=float),
            "waiting": np.array([page.waiting for page in after], dtype=float),
            "kv_usage": np.array([page.kv_usage for page in after], dtype=float),
            "preemptions": np.array([b.preemptions - a.preemptions for a, b in zip(before, after, strict=True)],
                                    dtype=float),
            "steps": steps.astype(float), "tokens_per_step": tokens / np.maximum(steps, 1)}


def as_dict(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as JSON can hold it: numbers to six digits, NaN as None."""
    def tidy(value: float) -> float | None:
        return None if math.isnan(value) else float(f"{value:.6g}")

    return {"config": {name: getattr(dashboard.config, name) for name in SETTINGS},
            "series": {name: [tidy(float(v)) for v in values] for name, values in dashboard.series.items()},
            "summary": {name: tidy(float(v)) for name, v in asdict(dashboard.summary).items()}}


@cache
def recorded(name: str) -> tuple[Dashboard, dict[str, Any]]:
    """(dashboard, where and how it was recorded) by its name in `labs.drills.real`. Raises ValueError for any other."""
    kept = _file()
    if name not in kept:
        raise ValueError(f"there is no recording {name!r}: choose from {', '.join(kept)}")

    def number(value: float | None) -> float:
        return math.nan if value is None else value

    series = {key: np.array([number(v) for v in values]) for key, values in kept[name]["series"].items()}
    time = np.arange(SCRAPE, HORIZON + SCRAPE / 2, SCRAPE)
    summary = {key: number(value) for key, value in kept[name]["summary"].items()}
    summary |= {key: int(summary[key]) for key in ("preemptions", "unanswered")}
    config = SchedulerConfig(**kept[name]["config"])
    return Dashboard(time, series, config, 1, Summary(**summary)), kept[name]["about"]


@cache
def _file() -> dict[str, Any]:
    """What was recorded, by name."""
    return json.loads(FILE.read_text(encoding="utf-8"))
