"""A scenario simulated, and what a dashboard shows of it: gauges as scraped every two seconds, percentiles, sums.

Nothing here knows the cause: whatever a reader is to find out must be in the `Dashboard`.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from labs.drills.asked import Requests
from labs.drills.running import Part
from labs.drills.running import parts as run_parts
from labs.drills.traffic import HORIZON, Scenario
from labs.gaps import token_gaps
from labs.metrics import percentile, weighted_percentiles
from labs.scheduler import SchedulerConfig

SCRAPE, WINDOW, WARM_UP = 2.0, 10.0, 20.0  # seconds: between two scrapes, behind a percentile, left out of the summary
SERIES = ("running", "waiting", "kv_usage", "preemptions", "ttft_p50", "ttft_p99", "client_ttft_p99", "itl_p50",
          "itl_p95", "tokens_per_step", "steps", "largest_tenant", "cache_hits")


@dataclass(frozen=True)
class Summary:
    """The dashboard in numbers, without its first 20 seconds. Times in seconds, shares from 0 to 1.

    TTFT counts who has no token yet as long as they have waited. `tokens_per_second` is per replica.
    """

    ttft_p50: float
    ttft_p99: float
    client_ttft_p99: float
    itl_p50: float
    itl_p95: float
    tokens_per_second: float
    running: float
    running_max: float
    waiting: float
    kv_usage: float
    kv_max: float
    preemptions: int
    computed_again: float
    tokens_per_step: float
    largest_tenant: float
    cache_hits_first: float
    cache_hits_last: float
    unanswered: int
    last_token: float
    elsewhere_ttft_p99: float


@dataclass(frozen=True, eq=False)
class Dashboard:
    """What an operator sees: `series` by name, one value a scrape at `time`; the settings; a `summary`.

    `config` is one replica's. Percentiles are NaN where nothing was measured in the last 10 seconds.
    """

    time: np.ndarray
    series: dict[str, np.ndarray]
    config: SchedulerConfig
    replicas: int
    summary: Summary

    @property
    def cap(self) -> int:
        """How many may run, on all replicas."""
        return self.config.max_num_seqs * self.replicas


_Gaps = tuple[np.ndarray, np.ndarray, np.ndarray]  # when a token came, seconds since the last, how many such


@lru_cache(maxsize=256)
def simulate(scenario: Scenario) -> Dashboard:
    """What the dashboard shows of `scenario`; the same each time, since all seeds are in it."""
    every = scenario.sent()
    here = [sent for sent in every if not sent.stream.elsewhere]
    parts = [part for r in range(scenario.replicas) for part in run_parts(scenario, here[r::scenario.replicas], r)]
    time = np.arange(SCRAPE, HORIZON + SCRAPE / 2, SCRAPE)
    seen = Requests.of(scenario, here, parts)
    gaps = _gaps(parts)
    series = _gauges(scenario, parts, seen, time) | percentiles(seen, gaps, time)
    away = [sent for sent in every if sent.stream.elsewhere]
    other = simulate(replace(scenario, streams=tuple(replace(s, elsewhere=False) for s in scenario.streams
                                                     if s.elsewhere), replicas=1)) if away else None
    summary = _summary(seen, parts, gaps, series, time, scenario.replicas,
                       other.summary.ttft_p99 if other else math.nan)
    return Dashboard(time, series, scenario.config, scenario.replicas, summary)


# ---- series ---------------------------------------------------------------------------------------------------------

def _gauges(scenario: Scenario, parts: list[Part], seen: Requests, time: np.ndarray) -> dict[str, np.ndarray]:
    """What a scrape finds, and sums since the scrape before."""
    frozen = np.where((time >= scenario.hang_at) & (time < scenario.restart_at), scenario.hang_at, time)
    series = {name: np.zeros(len(time)) for name in ("running", "waiting", "kv_usage", "preemptions", "steps")}
    tokens = np.zeros(len(time))
    for part in parts:
        s = part.trace.series
        mine = (frozen >= part.begin) & (frozen <= part.end)
        place = np.searchsorted(s.time, frozen - 1e-9, side="right") - 1
        busy = mine & (place >= 0) & (s.time[place] + s.seconds[place] + 1e-6 >= frozen)
        for name in ("running", "waiting", "kv_usage"):
            series[name] += np.where(busy, getattr(s, name)[place], 0)
        edges = [0.0, *time]
        series["preemptions"] += np.histogram(s.time, edges, weights=s.preempted)[0]
        series["steps"] += np.histogram(s.time, edges)[0]
        tokens += np.histogram(s.time, edges, weights=s.prefill_tokens + s.decode_tokens)[0]
    series["kv_usage"] /= scenario.replicas
    series["waiting"] = _waiting(scenario, series["waiting"], seen, time)
    series["tokens_per_step"] = tokens / np.maximum(series["steps"], 1)
    series["largest_tenant"] = np.array([largest_tenant(seen, t) for t in time])
    series["cache_hits"] = np.array([_hits(seen, t) for t in time])
    return series


def _waiting(scenario: Scenario, waiting: np.ndarray, seen: Requests, time: np.ndarray) -> np.ndarray:
    """With those behind a head that never fits, and the head itself; in a closed loop nobody waits at the server."""
    if any(stream.in_flight for stream in scenario.streams):
        return np.zeros(len(time))
    if scenario.oversized_at == math.inf:
        return waiting
    there = (time >= scenario.oversized_at) & (time < scenario.oversized_gone)
    behind = [np.sum((seen.arrival >= scenario.oversized_at) & (seen.arrival <= t)) for t in time]
    return np.where(there, waiting + 1 + behind, waiting)


def largest_tenant(seen: Requests, now: float) -> float:
    """The largest tenant's share of the tokens asked for by the requests in flight."""
    flying = (seen.arrival <= now) & ~(seen.finish <= now)
    if not flying.any():
        return 0.0
    held = np.bincount(seen.tenant[flying].astype(int), weights=(seen.tokens * seen.share)[flying])
    return float(held.max() / seen.tokens[flying].sum())


def _hits(seen: Requests, now: float) -> float:
    """Share of the prompt tokens of the last seconds that the prefix cache had."""
    recent = (seen.arrival > now - WINDOW) & (seen.arrival <= now)
    return float(1 - seen.computed[recent].sum() / seen.prompt[recent].sum()) if recent.any() else math.nan


def percentiles(seen: Requests, gaps: _Gaps, time: np.ndarray) -> dict[str, np.ndarray]:
    """TTFT of those whose first token came in the last 10 seconds, and ITL of the tokens of these seconds."""
    when, gap, many = gaps
    series: dict[str, list[float]] = {name: [] for name in SERIES if "ttft" in name or "itl" in name}
    for now in time:
        lately = (seen.first > now - WINDOW) & (seen.first <= now)
        served, asked = (seen.first - seen.arrival)[lately], (seen.first - seen.created)[lately]
        series["ttft_p50"].append(percentile(served, 0.5) if len(served) else math.nan)
        series["ttft_p99"].append(percentile(served, 0.99) if len(served) else math.nan)
        series["client_ttft_p99"].append(percentile(asked, 0.99) if len(asked) else math.nan)
        few = slice(*np.searchsorted(when, [now - WINDOW, now], side="right"))
        for name, q in (("itl_p50", 0.5), ("itl_p95", 0.95)):
            series[name] += weighted_percentiles(gap[few], many[few], q)
    return {name: np.array(values) for name, values in series.items()}


def _gaps(parts: list[Part]) -> _Gaps:
    """The gaps between tokens on all engines, in order of time."""
    found = [token_gaps(part.trace) for part in parts]
    when, gap, many = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(when, kind="stable")
    return when[order], gap[order], many[order]


# ---- the numbers beside it ------------------------------------------------------------------------------------------

def _summary(seen: Requests, parts: list[Part], gaps: _Gaps, series: dict[str, np.ndarray], time: np.ndarray,
             replicas: int, elsewhere: float) -> Summary:
    """The numbers of what was simulated."""
    lost = computed = 0
    for part in parts:
        s = part.trace.series
        here = (s.time > WARM_UP) & (s.time <= HORIZON)
        lost += int(s.lost[here].sum())
        computed += int((s.prefill_tokens + s.decode_tokens)[here].sum())
    return summarise(series, time, gaps, seen, replicas, lost / max(computed, 1), elsewhere)


def summarise(series: dict[str, np.ndarray], time: np.ndarray, gaps: _Gaps, seen: Requests, replicas: int = 1,
              computed_again: float = math.nan, elsewhere: float = math.nan) -> Summary:
    """Everything after the warm-up, of a simulated run as of a recorded one."""
    late, counted = time > WARM_UP, (seen.created >= WARM_UP) & (seen.created < HORIZON)
    when, gap, many = gaps
    inside = (when > WARM_UP) & (when <= HORIZON)
    first = (seen.first > WARM_UP) & (seen.first <= HORIZON)
    served, asked = seen.waits(seen.arrival)[counted], seen.waits(seen.created)[counted]

    def mean(name: str) -> float:
        return float(series[name][late].mean())

    itl = weighted_percentiles(gap[inside], many[inside], 0.5, 0.95)
    steps = series["steps"][late]
    hits = series["cache_hits"]
    return Summary(
        ttft_p50=percentile(served, 0.5), ttft_p99=percentile(served, 0.99), client_ttft_p99=percentile(asked, 0.99),
        itl_p50=itl[0], itl_p95=itl[1],
        tokens_per_second=float((many[inside].sum() + first.sum()) / (HORIZON - WARM_UP) / replicas),
        running=mean("running"), running_max=float(series["running"][late].max()), waiting=mean("waiting"),
        kv_usage=mean("kv_usage"), kv_max=float(series["kv_usage"][late].max()),
        preemptions=int(series["preemptions"][late].sum()), computed_again=computed_again,
        tokens_per_step=float((series["tokens_per_step"][late] * steps).sum() / max(steps.sum(), 1)),
        largest_tenant=float(series["largest_tenant"][late].max()),
        cache_hits_first=_mean(hits[:10]), cache_hits_last=_mean(hits[-10:]),
        unanswered=int((counted & ~(seen.finish <= HORIZON)).sum()),
        last_token=float(max(when[when <= HORIZON].max(initial=0), seen.first[seen.first <= HORIZON].max(initial=0))),
        elsewhere_ttft_p99=elsewhere)


def _mean(values: np.ndarray) -> float:
    """The mean of what was measured; NaN if nothing was."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan
