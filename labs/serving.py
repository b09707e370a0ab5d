"""What users see of an engine's run: TTFT, every gap between tokens (ITL), goodput, and all of it over time."""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from labs import fast
from labs.fast import Series, Trace
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

    @cached_property
    def _by_length(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.gap_seconds, kind="stable")
        return self.gap_seconds[order], np.cumsum(self.gap_counts[order])

    def itl(self, q: float) -> float:
        """The percentile `q` (0 to 1) of all gaps between tokens, by nearest rank; NaN if there are none."""
        seconds, upto = self._by_length
        if not len(upto) or not upto[-1]:
            return math.nan
        return float(seconds[np.searchsorted(upto, min(int(q * upto[-1]), upto[-1] - 1), side="right")])

    def ttft_at(self, q: float, warm_up: float = 0.1) -> float:
        """The percentile `q` of TTFT, leaving out the first share `warm_up` of the arrivals, who find nobody here."""
        values = np.sort(self.ttft[int(warm_up * len(self.ttft)):])
        values = values[~np.isnan(values)]
        return float(values[min(int(q * values.size), values.size - 1)]) if values.size else math.nan

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
    seconds, counts, times = pooled_gaps(trace)

    def when(steps: Sequence[int], clock: np.ndarray) -> np.ndarray:
        steps = np.asarray(steps, dtype=np.int64)
        return np.where(steps == fast.NEVER, np.nan, np.append(clock, np.nan)[steps])

    tokens = np.array(trace.output, dtype=float)
    return Served(tuple(trace.requests), series, np.array([r.arrival for r in trace.requests], dtype=float),
                  when(trace.scheduled, series.time), when(trace.first_token, end), when(trace.ended, end),
                  np.where(tokens > 0, tokens, np.nan), np.array(trace.preemptions, dtype=np.int64),
                  seconds, counts, times)


def pooled_gaps(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(seconds, how many, when it ended) of the gaps between tokens of all requests. Exact, also where some lose time.

    Who decodes made its last token in the step before, so the gap is the length of the step. Only who was preempted
    or went without its token is looked at one by one.
    """
    series = trace.series
    end, counts = series.time + series.seconds, series.decode_tokens.copy()
    own_gaps, own_ends = [], []
    for steps, decoded in _interrupted(trace):
        np.subtract.at(counts, decoded, 1)
        own_gaps.append(np.diff(end[steps]))
        own_ends.append(end[steps][1:])
    gaps = np.concatenate([series.seconds, *own_gaps])
    return (gaps, np.concatenate([counts, np.ones(len(gaps) - len(counts), dtype=counts.dtype)]),
            np.concatenate([end, *own_ends]))


def _interrupted(trace: Trace) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(the steps in which it made a token, those of them in which it decoded) of all who lost time."""
    late, victims, chunks = defaultdict(set), defaultdict(list), defaultdict(list)
    for step, i in trace.late:
        late[i].add(step)
    for step, i in trace.victims:
        victims[i].append(step)
    for step, i, n in trace.chunks if victims else ():
        if i in victims:
            chunks[i].append((step, n))
    for i in sorted({*late, *victims}):
        if trace.first_token[i] == fast.NEVER:
            continue
        prompt, last = trace.requests[i].prompt_tokens, trace.ended[i]
        made, decoded, at = [trace.first_token[i]], [], trace.first_token[i] + 1
        for stop in [*(v for v in victims[i] if v >= at), last + 1]:
            # It decodes from `at` on until it is stopped, but for the steps in which it was late.
            here = [s for s in range(at, stop) if s not in late[i]]
            made += here
            decoded += here
            following = next((v for v in victims[i] if v > stop), last + 1)
            again = [(s, n) for s, n in chunks[i] if stop < s < following]
            short = prompt + len(made) - sum(n for _, n in again)
            at = following  # it was stopped again before it had caught up
            if again and short == 0:  # the last chunk makes a token
                made.append(again[-1][0])
                at = again[-1][0] + 1
            elif again and short == 1:  # the last token of all is computed as a decode
                at = again[-1][0] + 1
        yield np.array(made), np.array(decoded, dtype=np.int64)
