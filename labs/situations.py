"""The situations of notebook 06: what comes, what is done about it, and a run seen over time."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from labs.engine import StepTime
from labs.metrics import percentile, weighted_percentiles
from labs.scheduler import SchedulerConfig
from labs.serving import Served, serve
from labs.workload import Request, lognormal_lengths, poisson_arrivals

StepSeconds = Callable[[int, int], float]
GPU_LIKE = StepTime(base=8e-3, per_sequence=1e-4, per_prefill_token=4e-5)  # made up, of the size of a small GPU's


def chat(n: int, rate: float, seed: int = 0, mu: float = 4.2, sigma: float = 1.1, name: str = "r") -> list[Request]:
    """`n` requests arriving at `rate` a second: prompts lognormal(5.3, 0.8) up to 3,000 tokens, outputs up to 2,000."""
    prompts = np.clip(lognormal_lengths(n, 5.3, 0.8, seed + 1), 1, 3000).tolist()
    outputs = np.clip(lognormal_lengths(n, mu, sigma, seed), 1, 2000).tolist()
    rows = zip(prompts, outputs, poisson_arrivals(n, rate, seed).tolist(), strict=True)
    return [Request(f"{name}{i}", *row) for i, row in enumerate(rows)]


def rising(seconds: float, low: float, high: float, seed: int = 0, mu: float = 5.2,
           sigma: float = 1.0) -> list[Request]:
    """Chat whose rate grows in a straight line from `low` to `high` requests a second."""
    if not 0 <= low < high:
        raise ValueError(f"the rate must rise from 0 or more, got {low} to {high}")
    n, slope = round((low + high) / 2 * seconds), (high - low) / seconds
    share = np.sort(np.random.default_rng([seed, 3]).random(n))
    arrivals = (np.sqrt(low**2 + slope * share * (low + high) * seconds) - low) / slope
    return [replace(request, arrival=float(at)) for request, at in zip(chat(n, 1.0, seed, mu, sigma), arrivals,
                                                                       strict=True)]


def burst(n: int = 50, output: int = 4000, prompt: int = 500, at: float = 5.0, priority: int = 0) -> list[Request]:
    """One tenant's long requests, all at once."""
    return [Request(f"tenant{i}", prompt, output, at, priority) for i in range(n)]


def behind_gateway(others: Sequence[Request], tenant: Sequence[Request], limit: int, config: SchedulerConfig,
                   step_time: StepSeconds) -> Served:
    """Both, with at most `limit` of the tenant's requests under way: each next one is let through when one has ended.

    When they end depends on when they are let through, so run, let through at the ends seen, and run again until
    nothing changes: each round settles at least one request more.
    """
    starts = [r.arrival for r in tenant]
    for _ in range(len(tenant) + 1):
        served = serve([*others, *(replace(r, arrival=at) for r, at in zip(tenant, starts, strict=True))], config,
                       step_time)
        finish = {r.request_id: float(end) for r, end in zip(served.requests, served.finish, strict=True)}
        ends = [finish[r.request_id] for r in tenant]
        then = [r.arrival if i < limit else max(r.arrival, sorted(ends[:i])[i - limit]) for i, r in enumerate(tenant)]
        if then == starts:
            return served
        starts = then
    raise RuntimeError("the gateway's times never settle")


def collected(requests: Sequence[Request], seconds: float) -> list[Request]:
    """The same requests as a client sends them that collects for `seconds`: each when its window closes.

    The first opens a window, and who comes at the very moment when it closes is still in it; the next opens another.
    """
    if not seconds >= 0:
        raise ValueError(f"a window lasts 0 seconds or more, got {seconds}")
    closes, sent = -math.inf, []
    for request in sorted(requests, key=lambda r: r.arrival):
        closes = request.arrival + seconds if request.arrival > closes else closes
        sent.append(replace(request, arrival=closes))
    return sent


def in_groups(requests: Sequence[Request], size: int, config: SchedulerConfig, step_time: StepSeconds) -> list[Served]:
    """Static batching on the engine: groups of `size` in order of arrival, each begun when the one before is done."""
    waiting, free, runs = sorted(requests, key=lambda r: r.arrival), 0.0, []
    while waiting:
        begin = max(free, waiting[0].arrival)
        n = max(1, min(size, sum(r.arrival <= begin for r in waiting)))
        runs.append(serve([replace(r, arrival=begin) for r in waiting[:n]], config, step_time))
        free, waiting = runs[-1].seconds, waiting[n:]
    return runs


@dataclass(frozen=True, eq=False)
class OverTime:
    """A run as a monitor sees it: one entry a window of `every` seconds, NaN where nothing was measured.

    Queues and KV usage are the highest in the window, preemptions are counted, latencies are p95 in seconds.
    """

    time: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    kv_usage: np.ndarray
    preemptions: np.ndarray
    ttft: np.ndarray
    itl: np.ndarray


def over_time(served: Served, every: float = 5.0, until: float | None = None) -> OverTime:
    """`served` in windows; a request's TTFT falls into the window of its first token."""
    series, edges = served.series, np.arange(0.0, (until or served.seconds) + every, every)
    place = np.digitize(series.time, edges) - 1
    first = np.digitize(np.nan_to_num(served.first, nan=-1.0), edges) - 1
    ended = np.digitize(served.gap_times, edges) - 1
    rows = []
    for i in range(len(edges) - 1):
        here, gaps, begun = place == i, ended == i, served.ttft[first == i]
        rows.append((edges[i], *(column[here].max(initial=0) for column in (series.running, series.waiting,
                                                                            series.kv_usage)),
                     series.preempted[here].sum(), percentile(begun, 0.95) if begun.size else np.nan,
                     *weighted_percentiles(served.gap_seconds[gaps], served.gap_counts[gaps], 0.95)))
    return OverTime(*np.array(rows, dtype=float).reshape(-1, 7).T)


def first_time(over: OverTime, name: str, threshold: float, hold: int = 2) -> float:
    """When `name` has been above `threshold` in `hold` windows in a row; infinite if it never is."""
    count = 0
    for time, value in zip(over.time, getattr(over, name), strict=True):
        count = count + 1 if value > threshold else 0
        if count == hold:
            return float(time)
    return float("inf")
