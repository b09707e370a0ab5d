"""The step loop around the scheduler: `step()` runs one step and records it, `run()` only loops.

Time is counted in steps, or in seconds if a `StepTime` says how long a step takes.
"""
from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from operator import eq
from typing import Any

import numpy as np

from labs import fast
from labs.fast import Series, Trace
from labs.scheduler import LIMITS, Scheduler, SchedulerConfig
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


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of one request; times are when a step began or ended, NaN if it never came to that.

    Two are equal if all their values are, NaN with NaN (which Python 3.13's own comparison of dataclasses denies).

    `reason` is "length", "stop", "abort" or "refused: ..." (never queued).
    """

    request: Request
    reason: str
    output_tokens: int = 0
    scheduled: float = math.nan
    first_token: float = math.nan
    finish: float = math.nan
    preemptions: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    @property
    def _known(self) -> tuple[Any, ...]:
        """All values, None for NaN."""
        return tuple(None if value != value else value for value in vars(self).values())

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
        parts = self.base, self.per_sequence, self.per_prefill_token
        if not all(isinstance(part, (int, float)) and 0 <= part < math.inf for part in parts) or self.base == 0:
            raise ValueError("a step time needs a base above 0 and two further parts of at least 0, all in seconds, "
                             f"got {parts}")

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

    A term that never varied can't be told apart and is left at 0, and so is one that noise makes negative; a fixed
    cost that is lost in the noise is taken as a microsecond. Raises ValueError for fewer than 3 steps, and for times
    that aren't numbers.
    """
    if not 3 <= len(seconds) == len(decode) == len(prefill):
        raise ValueError("a fit needs at least 3 steps, each with its sequences, prefill tokens and seconds")
    columns = np.array([np.ones(len(seconds)), decode, prefill], dtype=float).T
    seconds = np.asarray(seconds, dtype=float)
    if not (np.isfinite(columns).all() and np.isfinite(seconds).all()):
        raise ValueError("a fit needs numbers: leave out steps whose tokens or seconds are NaN or infinite")
    used, coefficients = np.ptp(columns, axis=0) > 0, np.zeros(3)
    used[0] = True
    while used.any():
        coefficients[:] = 0
        coefficients[used] = np.linalg.lstsq(columns[:, used], seconds, rcond=None)[0]
        if not (coefficients < 0).any():
            break
        used &= coefficients >= 0
    coefficients = np.maximum(coefficients, (1e-6, 0, 0))
    residual = float(np.sqrt(np.mean((columns @ coefficients - seconds) ** 2)))
    return Fit(StepTime(*map(float, coefficients)), residual)


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """All steps in order, and what became of each request, in the order in which they were given.

    `series` has a step's numbers as arrays, whatever the size of the run. `records` has the steps in full: made when
    asked for, and kept once asked for by number, so go through a long run with a `for`.
    """

    records: Sequence[StepRecord]
    _outcomes: Callable[[], dict[str, Outcome]]
    _series: Callable[[], Series]

    def __repr__(self) -> str:
        return f"<Run of {len(self.outcomes):,} requests in {self.steps:,} steps>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.outcomes == other.outcomes and self.records == other.records

    __hash__ = None

    @cached_property
    def outcomes(self) -> dict[str, Outcome]:
        """What became of each request, by its id."""
        return self._outcomes()

    @cached_property
    def series(self) -> Series:
        """The numbers of each step, as arrays."""
        return self._series()

    @property
    def steps(self) -> int:
        """Steps run; a server without work takes none."""
        return len(self.series.time)

    @property
    def preemptions(self) -> int:
        """Sequences that lost their blocks, each time counted."""
        return int(self.series.preempted.sum())

    @property
    def seconds(self) -> float:
        """When the last step ended."""
        return float(self.series.time[-1] + self.series.seconds[-1]) if self.steps else 0.0


def step(scheduler: Scheduler, number: int = 0, time: float = 0.0, stopped: Collection[str] = (),
         step_time: StepTime | None = None, tables: bool = False) -> StepRecord:
    """Schedule, run one forward pass, retire, record. Who is in `stopped` draws a stop token if it makes one."""
    # Nobody behind the first max_num_seqs can be scheduled in this step, however long the queue.
    before = {s.id: (s.computed, s.tokens, s.output) for s in scheduler.sequences[:scheduler.config.max_num_seqs]}
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
        max_steps: int = 1_000_000, readable: bool = False) -> Run:
    """Run `requests` until all are done.

    `stops[id]` is the output token at which a request draws a stop token, unknown to the scheduler; `aborts[id]` is
    when it is taken out from outside, on arrival if that is later. Arrivals and aborts are in seconds with a
    `step_time`, in steps without. `labs.fast` finds the same steps by events; `readable`, or block `tables` in the
    records, asks for one `step()` after the other. Raises ValueError for ids that two requests share or that no
    request has, RuntimeError after `max_steps`.
    """
    requests = list(requests)
    arrival = {r.request_id: r.arrival for r in requests}
    if len(arrival) < len(requests):
        raise ValueError("two requests have the same request_id: give each one its own")
    _known("stops", stops or {}, arrival, 1)
    _known("aborts", aborts or {}, arrival, 0)
    coming, stops = sorted(requests, key=lambda r: r.arrival), stops or {}
    going = sorted((max(when, arrival[name]), name) for name, when in (aborts or {}).items())
    if tables or readable or type(step_time) not in (StepTime, type(None)):  # any other might change from step to step
        return _run_step_by_step(coming, config, step_time, stops, going, tables, max_steps, list(arrival))
    trace = fast.trace(coming, config, step_time, stops, going, max_steps)
    return Run(_Replay(trace), partial(_outcomes, trace, list(arrival)), partial(getattr, trace, "series"))


def _known(what: str, given: Mapping[str, float], requests: Collection[str], least: float) -> None:
    """Raise ValueError if `given` names a request that isn't there, or a number below `least`."""
    for name, number in given.items():
        if name not in requests:
            raise ValueError(f"{what} names {name!r}, which is no request's id")
        if not number >= least:
            raise ValueError(f"{what}[{name!r}] must be at least {least}, got {number}")


def _run_step_by_step(coming: list[Request], config: SchedulerConfig, step_time: StepTime | None,
                      stops: Mapping[str, int], going: list[tuple[float, str]], tables: bool, max_steps: int,
                      order: list[str]) -> Run:
    """The loop as one reads it."""
    world = _World(Scheduler(config), coming, stops, going)
    records: list[StepRecord] = []
    time = 0.0
    while True:
        world.happen(time)
        if not world.scheduler.sequences:
            if not world.coming:
                outcomes = {i: world.fates[i].outcome() for i in order}
                return Run(records, partial(dict, outcomes), partial(_series, records))
            time = world.coming[0].arrival if step_time else float(math.ceil(world.coming[0].arrival))
            continue
        if len(records) == max_steps:
            raise RuntimeError(f"not done after {max_steps:,} steps: give it more KV blocks, or raise max_steps")
        record = step(world.scheduler, len(records), time, world.stopping(), step_time, tables)
        records.append(record)
        time += record.seconds
        world.note(record, time)


@dataclass
class _Fate:
    """An `Outcome` in the making."""

    request: Request
    reason: str = ""
    output_tokens: int = 0
    scheduled: float = math.nan
    first_token: float = math.nan
    finish: float = math.nan
    preemptions: int = 0

    def outcome(self) -> Outcome:
        """What it came to."""
        return Outcome(**vars(self))


class _World:
    """What the scheduler doesn't know: who comes, who goes, who will draw a stop token, and what becomes of each."""

    def __init__(self, scheduler: Scheduler, coming: list[Request], stops: Mapping[str, int],
                 going: list[tuple[float, str]]) -> None:
        self.scheduler, self.stops = scheduler, stops
        self.coming, self.going = deque(coming), deque(going)
        self.fates = {r.request_id: _Fate(r) for r in coming}

    def happen(self, time: float) -> None:
        """Let in those who have arrived by `time`, then take out those whose abort is due."""
        while self.coming and self.coming[0].arrival <= time:
            request = self.coming.popleft()
            try:
                self.scheduler.add(request)
            except ValueError as error:
                self.fates[request.request_id].reason = f"refused: {error}"
        while self.going and self.going[0][0] <= time:
            fate = self.fates[self.going.popleft()[1]]
            if not fate.reason:
                self.scheduler.abort(fate.request.request_id)
                fate.reason, fate.finish = "abort", time

    def stopping(self) -> set[str]:
        """Those whose next token will be a stop token."""
        ahead = self.scheduler.sequences[:self.scheduler.config.max_num_seqs] if self.stops else ()
        return {s.id for s in ahead if self.stops.get(s.id) == s.output + 1}

    def note(self, record: StepRecord, end: float) -> None:
        """Bring the fates up to the end of a step."""
        for request_id in (*record.prefill, *record.decode):
            if math.isnan(self.fates[request_id].scheduled):
                self.fates[request_id].scheduled = record.time
        for request_id in record.preempted:
            self.fates[request_id].preemptions += 1
        for request_id in record.made:
            fate = self.fates[request_id]
            fate.output_tokens += 1
            if fate.output_tokens == 1:
                fate.first_token = end
        for request_id in record.finished:
            fate = self.fates[request_id]
            fate.reason, fate.finish = "stop" if self.stops.get(request_id) == fate.output_tokens else "length", end


def _series(records: Sequence[StepRecord]) -> Series:
    """The numbers of `records`."""
    def column(number: Callable[[StepRecord], float], kind: type) -> np.ndarray:
        return np.array([number(r) for r in records], dtype=kind)

    return Series(column(lambda r: r.time, float), column(lambda r: r.seconds, float),
                  column(lambda r: r.prefill_tokens, int), column(lambda r: r.decode_tokens, int),
                  column(lambda r: len(r.running), int), column(lambda r: len(r.waiting), int),
                  column(lambda r: len(r.preempted), int), column(lambda r: r.lost, int),
                  column(lambda r: r.free_blocks, int), column(lambda r: r.kv_usage, float),
                  column(lambda r: LIMITS.index(r.binding_limit), int))


def _outcomes(trace: Trace, order: list[str]) -> dict[str, Outcome]:
    """What became of each request of `trace`, in the given order of ids."""
    start, end = trace.series.time.tolist(), (trace.series.time + trace.series.seconds).tolist()
    start.append(math.nan)
    end.append(math.nan)  # where -1 finds it: the time of a step that never came
    outcomes = {}
    for i, request in enumerate(trace.requests):
        if i in trace.refused:
            outcomes[request.request_id] = Outcome(request, f"refused: {trace.refused[i]}")
            continue
        reason, finish = "stop" if i in trace.stopped else "length", end[trace.ended[i]]
        if i in trace.aborted:
            reason, finish = "abort", trace.aborted[i][1]
        outcomes[request.request_id] = Outcome(request, reason, trace.output[i], start[trace.scheduled[i]],
                                               end[trace.first_token[i]], finish, trace.preemptions[i])
    return {i: outcomes[i] for i in order}


class _Replay(Sequence):
    """The records of a trace, made when asked for: anew for each `for`, kept once asked for by number."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._kept: list[StepRecord] = []

    def __len__(self) -> int:
        return len(self._trace.series.time)

    def __iter__(self) -> Iterator[StepRecord]:
        s = self._trace.series
        columns = (c.tolist() for c in (s.time, s.lost, s.free_blocks, s.kv_usage, s.binding_limit, s.seconds))
        for number, (who, time, lost, free, usage, limit, seconds) in enumerate(
                zip(fast.replay(self._trace), *columns, strict=True)):
            yield StepRecord(number, time, who.prefill, who.decode, who.running, who.waiting, who.preempted, lost,
                             who.made, who.finished, free, usage, limit, seconds)

    def __getitem__(self, number: int | slice) -> StepRecord | list[StepRecord]:
        asked = range(len(self))[number]
        upto = asked + 1 if isinstance(asked, int) else max(asked, default=-1) + 1
        if upto > len(self._kept):
            self._kept = list(islice(self, max(upto, 2 * len(self._kept))))  # doubled, so that a scrub stays cheap
        return self._kept[asked] if isinstance(asked, int) else [self._kept[i] for i in asked]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None
