"""A dashboard of a real vLLM, recorded under a load like the drills'; tests/record_dashboards.py makes it.

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

from labs.drills.telemetry import SCRAPE, WARM_UP, WINDOW, Dashboard, Summary
from labs.drills.traffic import HORIZON, Scenario, Stream
from labs.metrics import percentile
from labs.scheduler import SchedulerConfig

FILE = Path(__file__).parent.parent / "data/recordings/dashboards.json"
# Load and settings, by name: a small random model on two cores makes a token in about 10 ms.
REAL: dict[str, Scenario] = {
    "real_sequence_cap": Scenario((Stream("chat", rate=6, prompt=100, output=60, seed=21),),
                                  SchedulerConfig(4, 2048, 601, block_size=32, max_model_len=2048)),
}


def of_run(scenario: Scenario, rows: Sequence[Any], pages: Sequence[tuple[float, Any]]) -> Dashboard:
    """A dashboard from the client's `rows` and the scraped `pages` (seconds, Metrics).

    TTFT and ITL are the client's, so the server's own TTFT is not told apart; requests are dealt to 40 tenants in
    turn; the prefix cache is off. Tokens computed again aren't exported: NaN.
    """
    time = np.arange(SCRAPE, HORIZON + SCRAPE / 2, SCRAPE)
    series = _gauges(pages, len(time))
    created = np.array([row.scheduled for row in rows])
    first, last = (np.array([getattr(row, name) for row in rows]) for name in ("first", "done"))
    gaps = [(row.first + np.cumsum(row.itl_gaps), row.itl_gaps) for row in rows if row.ok and len(row.itl_gaps)]
    when, gap = (np.concatenate(column) for column in zip(*gaps, strict=True))
    ttft = first - created
    for name in ("ttft_p50", "ttft_p99", "client_ttft_p99", "itl_p50", "itl_p95"):
        at, of = (first, ttft) if "ttft" in name else (when, gap)
        series[name] = np.array([_of_window(at, of, now, float(name[-2:]) / 100) for now in time])
    series["largest_tenant"] = np.array([_largest(created, last, now) for now in time])
    series["cache_hits"] = np.zeros(len(time))
    return Dashboard(time, series, scenario.config, 1, _summary(series, time, created, first, last, when, gap))


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


def _of_window(at: np.ndarray, values: np.ndarray, now: float, q: float) -> float:
    """The percentile of what came in the last 10 seconds."""
    lately = values[(at > now - WINDOW) & (at <= now)]
    return percentile(lately, q) if len(lately) else math.nan


def _largest(created: np.ndarray, done: np.ndarray, now: float) -> float:
    """The largest tenant's share of the requests in flight; number i is tenant i % 40's."""
    flying = np.flatnonzero((created <= now) & ~(done <= now))
    return float(np.bincount(flying % 40).max() / len(flying)) if len(flying) else 0.0


def _summary(series: dict[str, np.ndarray], time: np.ndarray, created: np.ndarray, first: np.ndarray,
             done: np.ndarray, when: np.ndarray, gap: np.ndarray) -> Summary:
    """The dashboard in numbers, as of the drills."""
    late, counted = time > WARM_UP, (created >= WARM_UP) & (created < HORIZON)
    waits = (np.where(first <= HORIZON, first, HORIZON) - created)[counted]
    inside = (when > WARM_UP) & (when <= HORIZON)
    begun = (first > WARM_UP) & (first <= HORIZON)
    steps = series["steps"][late]
    return Summary(
        ttft_p50=percentile(waits, 0.5), ttft_p99=percentile(waits, 0.99), client_ttft_p99=percentile(waits, 0.99),
        itl_p50=percentile(gap[inside], 0.5), itl_p95=percentile(gap[inside], 0.95),
        tokens_per_second=float((inside.sum() + begun.sum()) / (HORIZON - WARM_UP)),
        running=float(series["running"][late].mean()), running_max=float(series["running"][late].max()),
        waiting=float(series["waiting"][late].mean()), kv_usage=float(series["kv_usage"][late].mean()),
        kv_max=float(series["kv_usage"][late].max()), preemptions=int(series["preemptions"][late].sum()),
        computed_again=math.nan,
        tokens_per_step=float((series["tokens_per_step"][late] * steps).sum() / max(steps.sum(), 1)),
        largest_tenant=float(series["largest_tenant"][late].max()), cache_hits_first=0.0, cache_hits_last=0.0,
        unanswered=int((counted & ~(done <= HORIZON)).sum()), last_token=float(when[when <= HORIZON].max()),
        elsewhere_ttft_p99=math.nan)


def as_dict(dashboard: Dashboard) -> dict[str, Any]:
    """The dashboard as JSON can hold it: numbers to six digits, NaN as None."""
    def tidy(value: float) -> float | None:
        return None if math.isnan(value) else float(f"{value:.6g}")

    return {"series": {name: [tidy(float(v)) for v in values] for name, values in dashboard.series.items()},
            "summary": {name: tidy(float(v)) for name, v in asdict(dashboard.summary).items()}}


@cache
def recorded(name: str) -> tuple[Dashboard, dict[str, Any]]:
    """(dashboard, where and how it was recorded) by the name in `REAL`. Raises ValueError for any other."""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    if name not in kept:
        raise ValueError(f"there is no recording {name!r}: choose from {', '.join(kept)}")

    def number(value: float | None) -> float:
        return math.nan if value is None else value

    series = {key: np.array([number(v) for v in values]) for key, values in kept[name]["series"].items()}
    time = np.arange(SCRAPE, HORIZON + SCRAPE / 2, SCRAPE)
    summary = {key: number(value) for key, value in kept[name]["summary"].items()}
    summary |= {key: int(summary[key]) for key in ("preemptions", "unanswered")}
    return Dashboard(time, series, REAL[name].config, 1, Summary(**summary)), kept[name]["about"]
