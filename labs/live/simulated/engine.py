"""The engine: `labs.engine.step` in real time, on an asyncio loop, until it is told to stop.

Time is kept on an absolute clock: a step that ends late doesn't put off the ones after it, unless the machine is
so far behind that catching up would be a burst that no engine could make.
"""
from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic

from labs.engine import StepRecord, StepTime, step
from labs.live.simulated.metrics import Statistics
from labs.live.simulated.text import COUNTING
from labs.scheduler import Scheduler, SchedulerConfig
from labs.workload import Request

MOST_BEHIND = 2.0  # seconds; when the machine has lost more than that, the schedule moves and `seconds_lost` says so


class SwitchableScheduler(Scheduler):
    """The scheduler with a switch for static batching: while it is on, nobody is admitted as long as anybody runs.

    `slots` lowers the cap on running requests below the config's; None leaves it.
    """

    static = False
    slots: int | None = None

    def _admit(self, plan: dict[str, int], budget: int, threshold: int) -> str:
        """Rules 6 to 8, unless static batching forbids it."""
        if self.static and self._running:
            return "sequence cap" if self._waiting else "none"
        as_started = self.config
        if self.slots is not None:
            self.config = replace(as_started, max_num_active_seqs=min(self.slots, as_started.active_cap))
        try:
            return super()._admit(plan, budget, threshold)
        finally:
            self.config = as_started


@dataclass(eq=False)
class Job:
    """One request in flight, and how far it has got. Times are of the monotonic clock.

    `stop_at` is the token at which the model stops by itself; `stops` are searched in the text once it is made.
    """

    request: Request
    stop_at: int | None = None
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    tokens: int = 0
    characters: int = 0
    finish_reason: str | None = None
    stop_reason: str | None = None
    preemptions: int = 0
    arrived: float = field(default_factory=monotonic)
    scheduled: float = math.nan
    first_token: float = math.nan
    last_token: float = math.nan
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def shown(self) -> int:
        """Characters that may be sent: while a stop string could still be completed, its beginning is held back."""
        held = 0 if self.finish_reason or self.include_stop else max(map(len, self.stops), default=1) - 1
        return max(0, self.characters - held)

    def take_token(self, now: float) -> None:
        """One more token, and with it perhaps the end of a stop string; the token at `stop_at` has no text."""
        self.tokens += 1
        self.characters = self.tokens - (self.tokens == self.stop_at)
        self.last_token = now
        if self.tokens == 1:
            self.first_token = now
        for stop in self.stops:
            at = COUNTING.first(self.characters).find(stop, max(0, self.characters - len(stop)))
            if at >= 0:
                self.finish_reason, self.stop_reason = "stop", stop
                self.characters = at + len(stop) * self.include_stop
                return


async def sleep_until(end: float) -> None:
    """Let others have their turn, at least once, until `end`."""
    await asyncio.sleep(max(0.0, end - monotonic()))


class Engine:
    """A scheduler, its step times, and the jobs that are in it."""

    def __init__(self, config: SchedulerConfig, step_time: StepTime, statistics: Statistics, speed: float = 1.0,
                 static: bool = False, on_step: Callable[[StepRecord], None] = lambda record: None) -> None:
        if not (speed > 0 and math.isfinite(speed)):
            raise ValueError(f"speed must be above 0, got {speed}")
        self.scheduler = SwitchableScheduler(config)
        self.scheduler.static = static
        self.step_time, self.statistics, self.speed = step_time, statistics, speed
        self.jobs: dict[str, Job] = {}
        self.steps = self.preemptions = 0
        self.paused, self.seconds_lost = False, 0.0
        self._on_step = on_step
        self._step: StepRecord | None = None  # the one that is being computed
        self._too_late: list[str] = []  # stop strings are seen when the next step has already been scheduled
        self._wake, self._number = asyncio.Event(), 0

    # ---- what the server asks of it

    @property
    def running(self) -> int:
        """Requests in the step that is being computed."""
        return len(self._step.running if self._step else self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.scheduler.waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use in the step that is being computed."""
        return self._step.kv_usage if self._step else self.scheduler.kv_usage

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens of the requests that have made no token yet."""
        return sum(job.request.prompt_tokens for job in self.jobs.values() if job.tokens == 0)

    def next_number(self) -> int:
        """Requests are told apart, and come first or later, by the order in which they arrive."""
        self._number += 1
        return self._number

    def submit(self, job: Job) -> None:
        """Queue `job`; ValueError if it could never be served."""
        self.scheduler.add(job.request)
        self.jobs[job.request.request_id] = job
        self._wake.set()

    def abort(self, job: Job) -> None:
        """Take `job` out and free its blocks, for nobody listens any more; nothing happens if it is done."""
        if self.jobs.pop(job.request.request_id, None):
            self.scheduler.abort(job.request.request_id)

    def abort_all(self) -> None:
        """End every job where it is, and say so to whoever listens."""
        for job in list(self.jobs.values()):
            self.abort(job)
            job.finish_reason = "abort"
            job.news.set()

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        self._wake.set()

    # ---- the loop

    async def serve(self) -> None:
        """Run step after step, each ending when it should; wait while there is nothing to do."""
        end = monotonic()
        while True:
            while self.paused or not self.scheduler.sequences:
                self._wake.clear()
                await self._wake.wait()
                end = monotonic()
            record = self._begin()
            end += record.seconds / self.speed
            behind = monotonic() - end
            if behind > MOST_BEHIND:
                self.seconds_lost += behind
                end += behind
            await sleep_until(end)
            self._finish(record)

    def _begin(self) -> StepRecord:
        """Schedule a step; only then do the aborts that stop strings caused in the last one reach the scheduler."""
        late, self._too_late = self._too_late, []
        ending = {i for i, job in self.jobs.items() if job.stop_at == job.tokens + 1}
        record = self._step = step(self.scheduler, self.steps, stopped=ending, step_time=self.step_time)
        for request_id in late:
            self.scheduler.abort(request_id)
        now = monotonic()
        for request_id in (*record.prefill, *record.decode):
            job = self.jobs.get(request_id)
            if job and math.isnan(job.scheduled):
                job.scheduled = now
        return record

    def _finish(self, record: StepRecord) -> None:
        """Hand out the tokens of a step that has been computed."""
        now, self._step = monotonic(), None
        self.steps += 1
        self.preemptions += len(record.preempted)
        self._on_step(record)
        for request_id in record.preempted:
            if job := self.jobs.get(request_id):
                job.preemptions += 1
        made = [(job, job.last_token) for i in record.made if (job := self.jobs.get(i))]
        finished = set(record.finished)
        for job, _ in made:
            job.take_token(now)
            self._retire(job, job.request.request_id in finished)
            job.news.set()
        self.statistics.step(len(record.preempted), made, now)

    def _retire(self, job: Job, finished: bool) -> None:
        """If `job` has ended, let go of it; the scheduler has yet to hear of a stop string."""
        if job.finish_reason:
            self._too_late.append(job.request.request_id)
        elif finished:
            job.finish_reason = "stop" if job.stop_at == job.tokens else "length"
        if job.finish_reason:
            del self.jobs[job.request.request_id]
