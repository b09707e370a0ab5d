"""The step loop around the scheduler: `step()` runs one step and records it, `run()` only loops.

Time is counted in steps, or in seconds if a `StepTime` says how long a step takes.
"""
from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from labs.scheduler import Scheduler, SchedulerConfig
from labs.workload import Request


@dataclass(frozen=True)
class StepRecord:
    """One step, as it ran. Queues and blocks are those after scheduling, before anyone retires.

    `prefill` and `decode` give tokens by request id; a recomputed sequence is in `prefill`. `lost` counts the
    computed tokens that preemption threw away in this step, to be computed again. `made` made one output token.
    """

    step: int
    time: float
    prefill: dict[str, int]
    decode: dict[str, int]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    preempted: tuple[str, ...]
    lost: int
    made: tuple[str, ...]
    finished: tuple[str, ...]
    free_blocks: int
    kv_usage: float
    binding_limit: str
    seconds: float = 1.0
    tables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens computed, and tokens computed again after a preemption."""
        return sum(self.prefill.values())

    @property
    def decode_tokens(self) -> int:
        """Decoding sequences: each computes one token."""
        return len(self.decode)


@dataclass(frozen=True)
class Outcome:
    """What became of one request; times are when a step began or ended, NaN if it never came to that.

    `reason` is "length", "stop", "abort" or "refused: ..." (never queued).
    """

    request: Request
    reason: str
    output_tokens: int = 0
    scheduled: float = math.nan
    first_token: float = math.nan
    finish: float = math.nan
    preemptions: int = 0

    @property
    def ttft(self) -> float:
        """Time to first token, from arrival."""
        return self.first_token - self.request.arrival

    @property
    def tpot(self) -> float:
        """Time per output token after the first: the mean ITL; NaN for a single token."""
        return (self.finish - self.first_token) / (self.output_tokens - 1) if self.output_tokens > 1 else math.nan

    @property
    def normalised_latency(self) -> float:
        """Time from arrival to the last token, per output token."""
        return (self.finish - self.request.arrival) / self.output_tokens if self.output_tokens else math.nan


@dataclass(frozen=True)
class StepTime:
    """Seconds a step takes: `base + per_sequence * decoding sequences + per_prefill_token * prefill tokens`.

    A straight line, so it knows nothing of how long a sequence's context is, nor of steps that pad to a fixed size.
    """

    base: float
    per_sequence: float = 0.0
    per_prefill_token: float = 0.0

    def __post_init__(self) -> None:
        if not (self.base > 0 and math.isfinite(self.base + self.per_sequence + self.per_prefill_token)):
            raise ValueError(f"a step must take more than 0 seconds, got base {self.base}")

    def __call__(self, decode: int, prefill: int) -> float:
        """Seconds of one step with so many decoding sequences and prefill tokens."""
        return self.base + self.per_sequence * decode + self.per_prefill_token * prefill


@dataclass(frozen=True)
class Fit:
    """A fitted `StepTime` and the root mean square of what it leaves unexplained, in seconds."""

    step_time: StepTime
    residual: float


def fit_step_time(decode: Sequence[int], prefill: Sequence[int], seconds: Sequence[float]) -> Fit:
    """Least squares over measured steps: decoding sequences, prefill tokens and seconds of each.

    A term that never varied can't be told apart and is left at 0. Raises ValueError for fewer than 3 steps.
    """
    columns = np.array([np.ones(len(seconds)), decode, prefill], dtype=float).T
    seconds = np.asarray(seconds, dtype=float)
    if len(seconds) < 3 or columns.shape[0] != len(seconds):
        raise ValueError("a fit needs at least 3 steps, each with its sequences, prefill tokens and seconds")
    varies = np.array([True, np.ptp(columns[:, 1]) > 0, np.ptp(columns[:, 2]) > 0])
    coefficients = np.zeros(3)
    coefficients[varies] = np.linalg.lstsq(columns[:, varies], seconds, rcond=None)[0]
    residual = float(np.sqrt(np.mean((columns @ coefficients - seconds) ** 2)))
    return Fit(StepTime(*map(float, coefficients)), residual)


@dataclass(frozen=True)
class Run:
    """All steps in order, and what became of each request, in the order in which they were given."""

    records: list[StepRecord]
    outcomes: dict[str, Outcome]

    @property
    def steps(self) -> int:
        """Steps run; a server without work takes none."""
        return len(self.records)

    @property
    def preemptions(self) -> int:
        """Sequences that lost their blocks, each time counted."""
        return sum(len(r.preempted) for r in self.records)

    @property
    def seconds(self) -> float:
        """When the last step ended."""
        return self.records[-1].time + self.records[-1].seconds if self.records else 0.0


def step(scheduler: Scheduler, number: int = 0, time: float = 0.0, stopped: Collection[str] = (),
         step_time: StepTime | None = None, tables: bool = False) -> StepRecord:
    """Schedule, run one forward pass, retire, record. Who is in `stopped` draws a stop token if it makes one."""
    before = {s.id: (s.computed, s.tokens, s.output) for s in scheduler.sequences}
    plan, pool = scheduler.schedule(), scheduler.pool
    decode, prefill = {}, {}
    for request_id, n in plan.num_scheduled_tokens.items():
        computed, tokens, output = before[request_id]
        (decode if output and tokens - computed == 1 else prefill)[request_id] = n
    # A victim is never in the plan of its own step, so computed + n is where each one gets to.
    made = tuple(i for i, n in plan.num_scheduled_tokens.items() if before[i][0] + n == before[i][1])
    running, waiting, free = tuple(scheduler.running), tuple(scheduler.waiting), pool.free
    usage, held = pool.usage, {i: tuple(t) for i, t in pool.tables.items()} if tables else {}
    finished = tuple(scheduler.update(plan, stopped))
    seconds = step_time(len(decode), sum(prefill.values())) if step_time else 1.0
    return StepRecord(number, time, prefill, decode, running, waiting, plan.preempted,
                      sum(before[i][0] for i in plan.preempted), made, finished, free, usage, plan.binding_limit,
                      seconds, held)


def run(requests: Iterable[Request], config: SchedulerConfig, step_time: StepTime | None = None,
        stops: Mapping[str, int] | None = None, aborts: Mapping[str, float] | None = None, tables: bool = False,
        max_steps: int = 1_000_000) -> Run:
    """Run `requests` until all are done.

    `stops[id]` is the output token at which a request draws a stop token, unknown to the scheduler; `aborts[id]` is
    when it is taken out from outside. Arrivals and aborts are in seconds with a `step_time`, in steps without.
    Raises RuntimeError after `max_steps`.
    """
    world = _World(Scheduler(config), sorted(requests, key=lambda r: r.arrival), stops or {},
                   sorted((when, request_id) for request_id, when in (aborts or {}).items()))
    records: list[StepRecord] = []
    time = 0.0
    while True:
        world.happen(time)
        if not world.scheduler.sequences:
            if not world.coming:
                return Run(records, world.outcomes)
            time = world.coming[0].arrival if step_time else float(math.ceil(world.coming[0].arrival))
            continue
        if len(records) == max_steps:
            raise RuntimeError(f"not done after {max_steps:,} steps: give it more KV blocks, or raise max_steps")
        record = step(world.scheduler, len(records), time, world.stopping(), step_time, tables)
        records.append(record)
        time += record.seconds
        world.note(record, time)


class _World:
    """What the scheduler doesn't know: who comes, who goes, who will draw a stop token, and what became of each."""

    def __init__(self, scheduler: Scheduler, coming: list[Request], stops: Mapping[str, int],
                 aborts: list[tuple[float, str]]) -> None:
        self.scheduler, self.stops = scheduler, stops
        self.coming, self.aborts = deque(coming), deque(aborts)
        self.outcomes = {r.request_id: Outcome(r, "") for r in coming}
        if len(self.outcomes) < len(coming):
            raise ValueError("two requests have the same request_id: give each one its own")

    def happen(self, time: float) -> None:
        """Let in those who have arrived by `time`, then take out those whose abort is due."""
        while self.coming and self.coming[0].arrival <= time:
            request = self.coming.popleft()
            try:
                self.scheduler.add(request)
            except ValueError as error:
                self.outcomes[request.request_id] = Outcome(request, f"refused: {error}")
        while self.aborts and self.aborts[0][0] <= time:
            _, request_id = self.aborts.popleft()
            if request_id in self.outcomes and not self.outcomes[request_id].reason:
                self.scheduler.abort(request_id)
                self._change(request_id, reason="abort", finish=time)

    def stopping(self) -> set[str]:
        """Those whose next token will be a stop token."""
        return {s.id for s in self.scheduler.sequences if self.stops.get(s.id) == s.output + 1}

    def note(self, record: StepRecord, end: float) -> None:
        """Bring the outcomes up to the end of a step."""
        for request_id in (*record.prefill, *record.decode):
            if math.isnan(self.outcomes[request_id].scheduled):
                self._change(request_id, scheduled=record.time)
        for request_id in record.preempted:
            self._change(request_id, preemptions=self.outcomes[request_id].preemptions + 1)
        for request_id in record.made:
            made = self.outcomes[request_id].output_tokens + 1
            self._change(request_id, output_tokens=made, **({"first_token": end} if made == 1 else {}))
        for request_id in record.finished:
            stopped = self.stops.get(request_id) == self.outcomes[request_id].output_tokens
            self._change(request_id, reason="stop" if stopped else "length", finish=end)

    def _change(self, request_id: str, **news: Any) -> None:
        self.outcomes[request_id] = replace(self.outcomes[request_id], **news)
