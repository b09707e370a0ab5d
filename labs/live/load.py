"""Load: when each request is sent, and how a run ends.

Nothing is retried, nothing waits without a deadline, and every request leaves a record however it ends.
"""
from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from openai import AsyncOpenAI

from labs.live import wire
from labs.live.answers import Record
from labs.live.measurement import NAN, Ask, Measurement, hold_groups, peak_in_flight

MODES = ("all-at-once", "closed-loop", "open-loop", "held")
COUNTS = ("ids", "usage", "none")
TICK = 0.05  # seconds between two looks at the loop's own lateness, and at whether to stop
CLEAN_UP = 5.0  # seconds that cancelled requests get to close their connections
IN_ORDER = 0.01  # seconds between two requests that must reach the engine's queue in their order


@dataclass
class Run:
    """One measurement in the making. `records` may be read at any time, from another thread too."""

    server: Any
    asks: Sequence[Ask]
    mode: str = "all-at-once"
    concurrency: int | None = None
    warm_up: int = 0
    timeout: float = 600.0
    max_connections: int | None = None
    hold_groups: int | None = None
    counts: str = "ids"
    records: list[Record] = field(default_factory=list)
    warm_ups: list[Record] = field(default_factory=list)
    lag: list[float] = field(default_factory=list)
    zero: float = 0.0
    started_at: str = ""
    finished: int = 0
    interrupted: bool = False
    on_progress: Callable[[int, int], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        _check(self)
        self.asks = tuple(self.asks)
        self.zero = time.perf_counter()
        self.records = [Record(ask, self.clock) for ask in self.asks]
        self.warm_ups = [Record(ask, self.clock, warm_up=True) for ask in warm_up_asks(self.asks, self.warm_up)]

    def clock(self) -> float:
        """Seconds since the run's start."""
        return time.perf_counter() - self.zero

    async def go(self) -> None:
        """Send everything; come back when all has ended, at the deadline, or soon after `stop` is set."""
        begun = time.perf_counter()
        most = self.max_connections or max(self.concurrency or len(self.asks), self.warm_up)
        async with wire.open_client(self.server, most, self.timeout, self.max_connections is not None) as client:
            work = asyncio.create_task(self._work(client))
            stopper = asyncio.create_task(self._stopped())
            try:
                await asyncio.wait({work, stopper}, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
                self._close_records(stopper.done(), time.perf_counter() - begun)
            finally:
                for task in (work, stopper):
                    task.cancel()
                await asyncio.wait({work, stopper}, timeout=CLEAN_UP)
        if work.done() and not work.cancelled():
            work.result()  # a fault of the client's own is not a measurement

    def _close_records(self, interrupted: bool, spent: float) -> None:
        """Give what is still open its end, before its task is cancelled and so without a word from it."""
        ending = ("cut", "interrupted") if interrupted else ("timeout", f"not done after {spent:.1f} s, the deadline")
        for record in (*self.warm_ups, *self.records):
            if not record.status:
                self.interrupted = self.interrupted or interrupted
                record.end(ending[0], ending[1] + (" (it was never sent)" if math.isnan(record.sent) else ""))

    async def _work(self, client: AsyncOpenAI) -> None:
        """Warm-up, then the load, on a clock that starts in between."""
        if fault := await wire.greet(client):
            for record in self.records:
                record.end("error", f"never sent: {fault}")
            return
        await self._closed_loop(client, self.warm_ups, self.concurrency or self.warm_up)
        shift = self.clock()
        self.zero += shift
        for record in self.warm_ups:
            record.shift(-shift)
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        sampler = asyncio.create_task(self._sample_lag())
        try:
            await self._load(client)
        finally:
            sampler.cancel()

    async def _load(self, client: AsyncOpenAI) -> None:
        if self.mode == "held":
            await self._held(client)
        elif self.mode == "closed-loop":
            await self._closed_loop(client, self.records, self.concurrency, self.hold_groups or 1)
        else:
            await self._by_schedule(client, self.mode == "open-loop")

    async def _by_schedule(self, client: AsyncOpenAI, arrivals: bool) -> None:
        """Each request when it is due, on an absolute schedule: being late once makes nothing else late."""
        for record in self.records:
            record.scheduled = record.ask.arrival if arrivals else 0.0
        async with asyncio.TaskGroup() as group:
            for record in sorted(self.records, key=lambda record: record.scheduled):
                if (wait := record.scheduled - self.clock()) > 0:
                    await asyncio.sleep(wait)
                group.create_task(self._one(client, record))

    async def _held(self, client: AsyncOpenAI) -> None:
        """Queue all of them, in order, at a server that is paused; let it go, and begin to count there."""
        await asyncio.to_thread(self.server.pause)
        held = True
        try:
            async with asyncio.TaskGroup() as group:
                for record in self.records:
                    group.create_task(self._one(client, record))
                    while not (record.answered or record.status):
                        await asyncio.sleep(0.001)
                    await asyncio.sleep(IN_ORDER)
                self.zero += self.clock()  # before it is let go: the first tokens may come before the answer to that
                for record in self.records:  # for whoever measures, they were sent when they could begin
                    record.scheduled = record.begun = record.sent = 0.0
                await asyncio.to_thread(self.server.resume)
                held = False
        finally:
            if held:  # interrupted: a server must not stay paused
                with contextlib.suppress(Exception):
                    self.server.resume()

    async def _closed_loop(self, client: AsyncOpenAI, records: list[Record], concurrency: int,
                           size: int = 1) -> None:  # fmt: skip
        """`concurrency` users, each of whom asks again when the last answer is returned."""
        groups, turn = _Groups(len(records), size), iter(enumerate(records))

        async def user() -> None:
            for index, record in turn:
                record.scheduled = self.clock()
                await self._one(client, record)
                await groups.returned(index)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(records))):
                group.create_task(user())

    async def _one(self, client: AsyncOpenAI, record: Record) -> None:
        """Send one request and note what comes; whatever the server does, end the record and return."""
        record.begun = self.clock()
        wire.sending.set(record)
        try:
            async with wire.open_stream(client, self.server.model, record.ask, self.counts) as stream:
                record.answered = True
                async for event in stream:
                    record.take(event)
                record.finish()
        except Exception as fault:  # one strange answer must not lose the others
            record.end(*wire.classify(fault, record.answered))
        self._progress(record)

    def _progress(self, record: Record) -> None:
        if not record.warm_up:
            self.finished += 1
            if self.on_progress:
                self.on_progress(self.finished, len(self.records))

    async def _stopped(self) -> None:
        """Come back once somebody, in whatever thread, has asked to stop."""
        while not self.stop.is_set():
            await asyncio.sleep(TICK)

    async def _sample_lag(self) -> None:
        """How late this loop wakes: the delay that the client may add to any time it notes."""
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            self.lag.append(max(0.0, time.perf_counter() - due))

    def measurement(self) -> Measurement:
        """What is known now."""
        rows = tuple(record.row() for record in (*self.warm_ups, *self.records))
        counted = [row for row in rows if not row.warm_up]
        peak = peak_in_flight(counted)
        wall = max((row.done for row in counted if not math.isnan(row.done)), default=NAN)
        if self.hold_groups:
            rows = hold_groups(rows, self.hold_groups)
        return Measurement(
            rows, peak, wall, self.started_at, self.mode, getattr(self.server, "engine", ""),
            self.server.model, bool(getattr(self.server, "simulated", False)), self.interrupted, self.hold_groups,
            tuple(self.lag),
        )  # fmt: skip


class _Groups:
    """Who waits for whom when answers are held until their group has ended."""

    def __init__(self, n: int, size: int) -> None:
        self.size = size
        self.left = [min(size, n - first) for first in range(0, n, size)]
        self.ended = [asyncio.Event() for _ in self.left]

    async def returned(self, index: int) -> None:
        """Come back when the whole group of request `index` has ended."""
        group = index // self.size
        self.left[group] -= 1
        if self.left[group] == 0:
            self.ended[group].set()
        await self.ended[group].wait()


# ---- before a run ----------------------------------------------------------------------------------------------------

def warm_up_asks(asks: Sequence[Ask], n: int) -> list[Ask]:
    """`n` requests of the workload's own sizes, with other prompts, so that no prefix cache knows the real ones."""
    return [_other(asks[i % len(asks)], i, len(asks)) for i in range(n)]


def _other(ask: Ask, i: int, n: int) -> Ask:
    if isinstance(ask.prompt, str):
        prompt: str | tuple[int, ...] = f"Warm-up {i}. {ask.prompt}"
    else:
        turn = (i // n) % max(len(ask.prompt), 1)
        backwards = tuple(ask.prompt)[::-1]
        prompt = backwards[turn:] + backwards[:turn]
    return replace(ask, request_id=f"warm-up-{i}", prompt=prompt)


def _check(run: Run) -> None:
    """Refuse what can't be measured, or not honestly."""
    if run.mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, got {run.mode!r}")
    if run.counts not in COUNTS:
        raise ValueError(f"counts must be one of {', '.join(COUNTS)}, got {run.counts!r}")
    if not run.asks:
        raise ValueError("there is nothing to send: asks is empty")
    if (run.mode == "closed-loop") != (run.concurrency is not None):
        raise ValueError("concurrency belongs to closed-loop load, and only to it: a cap on open-loop load would hide "
                         "how late its requests are")
    for name in ("concurrency", "max_connections", "hold_groups"):
        if getattr(run, name) is not None and getattr(run, name) < 1:
            raise ValueError(f"{name} must be 1 or more, got {getattr(run, name)}")
    if run.concurrency and run.hold_groups and run.concurrency < min(run.hold_groups, len(run.asks)):
        raise ValueError(f"{run.concurrency} users can't fill a group of {run.hold_groups}: each waits for the others")
    if run.warm_up < 0 or not 0 < run.timeout < math.inf:
        raise ValueError("warm_up must be 0 or more, and timeout a number of seconds above 0")
    if not all(0 <= ask.arrival < math.inf for ask in run.asks):
        raise ValueError("an arrival is a number of seconds, 0 or more")
    if any(ask.chat and not isinstance(ask.prompt, str) for ask in run.asks):
        raise ValueError("a chat's prompt is text: token ids go to completions only")
