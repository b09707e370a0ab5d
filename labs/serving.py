"""What users see of an engine's run: TTFT, every gap between tokens (ITL), goodput, and all of it over time."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from labs import fast
from labs.fast import Series
from labs.gaps import token_gaps
from labs.metrics import percentile, weighted_percentiles
from labs.scheduler import SchedulerConfig
from labs.workload import Request


@dataclass(frozen=True, eq=False)
class Served:
    """A run in seconds. Arrays have an entry a request, in order of arrival; NaN for one that was refused.

    `gap_seconds` and `gap_counts` are the gaps between tokens, pooled over all requests: so many of each length.
    `gap_times` is when each ended.
    """

    requests: tuple[Request, ...]
    series: Series
    arrival: np.ndarray
    scheduled: np.ndarray
    first: np.ndarray
    finish: np.ndarray
    tokens: np.ndarray
    preemptions: np.ndarray
    gap_seconds: np.ndarray
    gap_counts: np.ndarray
    gap_times: np.ndarray

    @property
    def ttft(self) -> np.ndarray:
        """Time to first token, from arrival."""
        return self.first - self.arrival

    @property
    def queueing(self) -> np.ndarray:
        """From arrival to the first step that computed any of the prompt."""
        return self.scheduled - self.arrival

    @property
    def tpot(self) -> np.ndarray:
        """Time per output token after the first: each request's mean ITL; NaN for a single token."""
        return (self.finish - self.first) / np.where(self.tokens > 1, self.tokens - 1, np.nan)

    @property
    def normalised_latency(self) -> np.ndarray:
        """From arrival to the last token, per output token."""
        return (self.finish - self.arrival) / self.tokens

    @property
    def seconds(self) -> float:
        """When the last step ended."""
        return float(self.series.time[-1] + self.series.seconds[-1]) if len(self.series.time) else 0.0

    def itl(self, q: float) -> float:
        """The percentile `q` (0 to 1) of all gaps between tokens, by nearest rank; NaN if there are none."""
        return weighted_percentiles(self.gap_seconds, self.gap_counts, q)[0]

    def ttft_at(self, q: float, warm_up: float = 0.1) -> float:
        """The percentile `q` of TTFT, leaving out the first share `warm_up` of the arrivals, who find nobody here."""
        values = self.ttft[int(warm_up * len(self.ttft)):]
        values = values[~np.isnan(values)]
        return percentile(values, q) if values.size else math.nan

    def goodput(self, ttft: float, tpot: float) -> float:
        """Requests a second that got their first token within `ttft` seconds and the others at `tpot` or faster."""
        good = (self.ttft <= ttft) & ~(self.tpot > tpot)
        return float(good.sum()) / self.seconds if self.seconds else 0.0


def serve(requests: Sequence[Request], config: SchedulerConfig, step_time: Callable[[int, int], float],
          max_steps: int = 1_000_000) -> Served:
    """Run `requests` (arrivals in seconds) until all are done. Raises RuntimeError after `max_steps`."""
    trace = fast.trace(sorted(requests, key=lambda r: r.arrival), config, step_time, max_steps=max_steps)
    series = trace.series
    end = series.time + series.seconds
    times, seconds, counts = token_gaps(trace)

    def when(steps: Sequence[int], clock: np.ndarray) -> np.ndarray:
        steps = np.asarray(steps, dtype=np.int64)
        return np.where(steps == fast.NEVER, np.nan, np.append(clock, np.nan)[steps])

    tokens = np.array(trace.output, dtype=float)
    return Served(tuple(trace.requests), series, np.array([r.arrival for r in trace.requests], dtype=float),
                  when(trace.scheduled, series.time), when(trace.first_token, end), when(trace.ended, end),
                  np.where(tokens > 0, tokens, np.nan), np.array(trace.preemptions, dtype=np.int64),
                  seconds, counts, times)
