"""Run one workload through one scheduler, ours or vLLM's, and say what happened at each step; compare two such runs.

The two sides never see each other: each keeps its own counts and decides by itself when a request draws its stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Protocol

from labs.scheduler import Scheduler, SchedulerConfig
from labs.workload import Request
from tests.conformance.workloads import Workload

LONGEST = 20_000  # steps; the workloads here end, or repeat themselves, long before
DONE, LIVELOCK, UNENDED = "done", "livelock", f"not done after {LONGEST} steps"


@dataclass(frozen=True)
class Step:
    """What one step did. Queues, usage and block tables are those after scheduling, before anyone retires."""

    scheduled: tuple[tuple[str, int], ...]
    preempted: tuple[str, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    kv_usage: float
    tables: Mapping[str, tuple[int, ...]]
    made: tuple[str, ...]
    finished: tuple[str, ...]


class Driver(Protocol):
    """A scheduler behind the few calls that a workload needs."""

    def add(self, request: Request) -> None:
        """Queue a request, or refuse it."""

    def abort(self, request_id: str) -> None:
        """Take a request out, if it is here."""

    def step(self, stops: Mapping[str, int], aborts: Iterable[str]) -> Step:
        """Schedule, abort those named while the forward pass runs, and apply it."""

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """All that decides what comes next: each request in queue order, its computed and its output tokens."""


class Ours:
    """labs.scheduler, or a variant of it with a rule broken."""

    def __init__(self, config: SchedulerConfig, scheduler: type[Scheduler] = Scheduler) -> None:
        self.scheduler = scheduler(config)

    def add(self, request: Request) -> None:
        """Queue a request, unless it could never be served."""
        if self.scheduler.config.refusal(request) is None:
            self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """Take a request out."""
        self.scheduler.abort(request_id)

    def step(self, stops: Mapping[str, int], aborts: Iterable[str]) -> Step:
        """One step of ours."""
        s = self.scheduler
        plan = s.schedule()
        running, waiting, usage = tuple(s.running), tuple(s.waiting), s.kv_usage
        tables = {i: tuple(s.pool.tables.get(i, ())) for i in running}
        for request_id in aborts:
            s.abort(request_id)
        here = {q.id: q for q in s.sequences}
        made = tuple(i for i in plan.num_scheduled_tokens if i in here and here[i].computed == here[i].tokens)
        stopped = {i for i in made if stops.get(i) == here[i].output + 1}
        finished = tuple(s.update(plan, stopped))
        scheduled = tuple(plan.num_scheduled_tokens.items())
        return Step(scheduled, plan.preempted, running, waiting, usage, tables, made, finished)

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Each request in queue order, its computed and its output tokens."""
        return tuple((q.id, q.computed, q.output) for q in self.scheduler.sequences)


def replay(driver: Driver, workload: Workload) -> Iterator[Step | str]:
    """Each step of `workload`, then how it ended: done, or in a livelock, proved by a state that comes back."""
    before = {(a.step, a.request_id) for a in workload.aborts if not a.during}
    during = {(a.step, a.request_id) for a in workload.aborts if a.during}
    coming, seen = list(workload.requests), set()
    last = max([step for step, _ in coming] + [a.step for a in workload.aborts], default=0)
    for now in range(LONGEST):
        while coming and coming[0][0] <= now:
            driver.add(coming.pop(0)[1])
        for _, request_id in sorted(a for a in before if a[0] == now):
            driver.abort(request_id)
        state = driver.state()
        if not coming and not state:
            yield DONE
            return
        if now > last and state in seen:
            yield LIVELOCK
            return
        step = driver.step(workload.stops, [i for _, i in sorted(a for a in during if a[0] == now)])
        seen.add(state) if now > last and not step.made else seen.clear()
        yield step
    yield UNENDED


def difference(ours: Iterator[Step | str], theirs: Iterable[Step | str]) -> str | None:
    """Where two replays first differ, in words; None if they never do. Ours may fail: that differs too."""
    pairs = zip_longest(_until_it_fails(ours), theirs)
    for now, (mine, real) in enumerate(pairs):
        if mine == real:
            continue
        if not (isinstance(mine, Step) and isinstance(real, Step)):
            return f"step {now}: ours {_short(mine)}, vLLM {_short(real)}"
        for name in (f.name for f in fields(Step)):
            a, b = getattr(mine, name), getattr(real, name)
            if a != b:
                return f"step {now}, {name}: ours {_short(a)}, vLLM {_short(b)}"
    return None


def _until_it_fails(steps: Iterator[Step | str]) -> Iterator[Step | str]:
    """The same steps, and the kind of error if one is raised."""
    try:
        yield from steps
    except Exception as error:  # a broken variant may fail in any way: that is a difference
        yield f"{type(error).__name__}: {error}"


def _short(what: object) -> str:
    """At most a line of it."""
    text = "a step" if isinstance(what, Step) else "nothing" if what is None else str(what)
    return text if len(text) <= 110 else text[:107] + "..."
