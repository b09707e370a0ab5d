"""Sending requests and timing what comes back: the part of the client that talks to a server.

Nothing is retried, nothing waits without a deadline, and every request leaves a record however it ends.
"""
from __future__ import annotations

import asyncio
import contextvars
import importlib
import ipaddress
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from labs.live.measurement import NAN, Ask, Measurement, Row, hold_groups, peak_in_flight

# openai 2 speaks through httpx, openai 3 through httpx2: this is the one that the package itself uses.
http = importlib.import_module(type(openai.DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])

MODES = ("all-at-once", "closed-loop", "open-loop")
COUNTS = ("ids", "usage", "none")
CONNECT = 10.0  # seconds for a connection: a machine that does not answer should not take the whole deadline
LAG_EVERY = 0.05
CLEAN_UP = 5.0  # seconds that cancelled requests get to close their connections
_sending: contextvars.ContextVar[Record | None] = contextvars.ContextVar("sending", default=None)


class StreamError(Exception):
    """The server said in the middle of a stream, or at its end, that the answer failed."""


# ---- what is kept of each request while it runs ---------------------------------------------------------------------

@dataclass
class Record:
    """A row in the making."""

    ask: Ask
    clock: Callable[[], float]
    scheduled: float = NAN
    warm_up: bool = False
    begun: float = NAN
    sent: float = NAN
    done: float = NAN
    answered: bool = False
    chunks: list[tuple[float, int | None]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    usage: Any = None
    running_usage: bool | None = None
    finish_reason: str | None = None
    status: str = ""
    error: str = ""

    def take(self, event: Any) -> None:
        """Note a chunk: its time first, since all that follows takes time of its own."""
        now = self.clock()
        before, usage = self.usage, getattr(event, "usage", None)
        self.usage = usage or before
        choices = getattr(event, "choices", None)
        if choices is None and not usage:
            raise StreamError(str(getattr(event, "message", None) or event))
        for choice in choices or ():  # none in the chunk that carries the usage
            self.finish_reason = choice.finish_reason or self.finish_reason
            text = _text(choice)
            self.text.append(text)
            count = self._count(choice, before, usage, bool(text))
            if count or (count is None and text):
                self.chunks.append((now, count))

    def _count(self, choice: Any, before: Any, usage: Any, text: bool) -> int | None:
        """Tokens in this chunk: its ids, or the growth of a usage that comes with every chunk; else unknown."""
        ids = getattr(choice, "token_ids", None)
        if ids is not None:
            return len(ids)
        if self.running_usage is None and (text or usage):
            self.running_usage = bool(usage) and choice.finish_reason is None
        if not (self.running_usage and usage):
            return None
        return usage.completion_tokens - (before.completion_tokens if before else 0)

    def end(self, status: str, error: str = "") -> None:
        """Close the record, once: what was said first stands."""
        if not self.status:
            self.status, self.error = status, error
            self.done = NAN if math.isnan(self.begun) else self.clock()

    def finish(self) -> None:
        """The stream ended by itself: decide whether the answer is whole."""
        came, known = sum(count or 0 for _, count in self.chunks), None not in [count for _, count in self.chunks]
        said = self.usage.completion_tokens if self.usage else None
        if self.finish_reason is None:
            self.end("cut", "the stream ended with no finish reason")
        elif self.finish_reason in ("abort", "error"):
            self.end("error", f"the server ended it: finish reason {self.finish_reason}")
        elif known and said is not None and came < said:
            self.end("cut", f"{came} tokens came, and the server's usage says {said}")
        else:
            self.end("ok")

    def shift(self, by: float) -> None:
        """Move every time onto another clock."""
        self.scheduled, self.sent, self.done = self.scheduled + by, self.sent + by, self.done + by
        self.chunks = [(time + by, count) for time, count in self.chunks]

    def row(self) -> Row:
        """The record as it stands."""
        counts = [count for _, count in self.chunks]
        counted = sum(counts) if counts and None not in counts else None
        first, last = (self.chunks[0][0], self.chunks[-1][0]) if self.chunks else (NAN, NAN)
        return Row(
            self.ask, self.scheduled, self.sent, first, last, self.done, tuple(self.chunks),
            self.usage.completion_tokens if self.usage else counted, getattr(self.usage, "prompt_tokens", None),
            self.finish_reason, self.status or "cut", self.error, "".join(self.text), self.warm_up,
        )  # fmt: skip


def _text(choice: Any) -> str:
    """The text of a completion's or a chat's chunk, reasoning and tool calls included; "" for the role chunk."""
    delta = getattr(choice, "delta", None)
    if delta is None:
        return getattr(choice, "text", None) or ""
    parts = [getattr(delta, name, None) for name in ("reasoning_content", "reasoning", "content", "refusal")]
    parts += [call.function.arguments for call in delta.tool_calls or () if call.function]
    return "".join(part for part in parts if part)


# ---- a run ----------------------------------------------------------------------------------------------------------

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

    def __post_init__(self) -> None:
        _check(self)
        self.asks = tuple(self.asks)
        self.zero = time.perf_counter()
        self.records = [Record(ask, self.clock) for ask in self.asks]
        self.warm_ups = [Record(ask, self.clock, warm_up=True) for ask in warm_up_asks(self.asks, self.warm_up)]

    def clock(self) -> float:
        """Seconds since the run's start."""
        return time.perf_counter() - self.zero

    async def go(self, stop: asyncio.Event | None = None) -> None:
        """Send everything; come back when all has ended, at the deadline, or as soon as `stop` is set."""
        begun = time.perf_counter()
        async with self._client() as client:
            work = asyncio.create_task(self._work(client))
            stopper = asyncio.create_task(stop.wait() if stop else asyncio.Event().wait())
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
        if fault := await _greet(client):
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
        if self.mode == "closed-loop":
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
        _sending.set(record)
        try:
            async with await _open(client, self.server.model, record.ask, self.counts) as stream:
                record.answered = True
                async for event in stream:
                    record.take(event)
            record.finish()
        except Exception as fault:  # one strange answer must not lose the others
            record.end(*classify(fault, record.answered))
        self._progress(record)

    def _progress(self, record: Record) -> None:
        if not record.warm_up:
            self.finished += 1
            if self.on_progress:
                self.on_progress(self.finished, len(self.records))

    async def _sample_lag(self) -> None:
        """How late this loop wakes: the delay that the client may add to any time it notes."""
        while True:
            due = time.perf_counter() + LAG_EVERY
            await asyncio.sleep(LAG_EVERY)
            self.lag.append(max(0.0, time.perf_counter() - due))

    def _client(self) -> AsyncOpenAI:
        """An openai client that retries nothing, and whose connections are as many as the load needs."""
        most = self.max_connections or max(self.concurrency or len(self.asks), 1)
        _allow_files(most)
        limits = http.Limits(max_connections=most, max_keepalive_connections=most)
        timeout = http.Timeout(self.timeout, connect=min(CONNECT, self.timeout))
        transport = DefaultAsyncHttpxClient(
            limits=limits, timeout=timeout, event_hooks={"request": [_note_sending]},
            trust_env=not _loopback(self.server.base_url),  # a proxy from the environment can't reach this machine
        )  # fmt: skip
        key = getattr(self.server, "api_key", None) or "none"
        return AsyncOpenAI(base_url=self.server.base_url, api_key=key, max_retries=0, timeout=timeout,
                           http_client=transport)  # fmt: skip

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


# ---- details --------------------------------------------------------------------------------------------------------

async def _greet(client: AsyncOpenAI) -> str:
    """Ask for the models once before the clock starts: the client's own first-time costs, some 0.1 s, are paid here.

    Returns why there is no server to measure, or "".
    """
    try:
        await client.models.list(timeout=http.Timeout(CONNECT))
    except openai.APIConnectionError as fault:
        return classify(fault, False)[1] if _no_connection(fault) else ""
    except openai.OpenAIError:
        return ""  # it may have no list of models, or be busy: the requests themselves will tell
    return ""


async def _open(client: AsyncOpenAI, model: str, ask: Ask, counts: str) -> AsyncIterator[Any]:
    """Start the stream. What only vLLM knows goes into the extra body."""
    options = {"include_usage": True} | ({"continuous_usage_stats": True} if counts == "usage" else {})
    extra = {"return_token_ids": True} if counts == "ids" else {}
    extra |= {"ignore_eos": True} if ask.ignore_eos else {}
    extra |= {} if ask.priority is None else {"priority": ask.priority}
    known = {"stop": ask.stop if isinstance(ask.stop, str) else list(ask.stop)} if ask.stop else {}
    known |= dict(model=model, max_tokens=ask.max_tokens, temperature=ask.temperature, stream=True,
                  stream_options=options, extra_body=extra | dict(ask.extra))  # fmt: skip
    if ask.chat:
        return await client.chat.completions.create(messages=[{"role": "user", "content": ask.prompt}], **known)
    prompt = ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt)
    return await client.completions.create(prompt=prompt, **known)


def classify(fault: Exception, begun: bool) -> tuple[str, str]:
    """(status, words) for what went wrong; `begun` = the server had started to answer with HTTP 200."""
    said = " ".join(str(fault).split())[:300] or type(fault).__name__
    if isinstance(fault, openai.APIStatusError):
        return "refused", f"HTTP {fault.status_code}: {said}"
    if _no_connection(fault):
        return "error", f"no connection: {said}"
    if isinstance(fault, openai.APITimeoutError | http.TimeoutException):
        return "timeout", "no answer within the deadline"
    if isinstance(fault, openai.APIConnectionError | http.HTTPError | http.StreamError | OSError):
        return ("cut", f"the stream was cut: {said}") if begun else ("error", f"no answer: {said}")
    return "error", said if isinstance(fault, openai.OpenAIError | StreamError) else f"{type(fault).__name__}: {said}"


def _no_connection(fault: BaseException | None) -> bool:
    """Whether nothing could be reached at all."""
    return isinstance(fault, http.ConnectError | http.ConnectTimeout) or (
        isinstance(fault, openai.APIConnectionError) and _no_connection(fault.__cause__)
    )


async def _note_sending(request: Any) -> None:
    """Ask the transport to say when the request's last byte is on its way: only that is `sent`."""
    record = _sending.get()
    if record is None:
        return

    async def trace(event: str, _info: Any) -> None:
        if event.endswith("send_request_body.complete"):
            record.sent = record.clock()

    request.extensions["trace"] = trace


def _loopback(url: str) -> bool:
    """Whether a URL leads to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _allow_files(n: int) -> None:
    """Each stream is an open file, and some systems allow 256: raise the limit as far as it takes, where one may."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = n + 256
    if soft != resource.RLIM_INFINITY and soft < wanted and (hard == resource.RLIM_INFINITY or soft < hard):
        with suppress(OSError, ValueError):
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
    if any(ask.chat and not isinstance(ask.prompt, str) for ask in run.asks):
        raise ValueError("a chat's prompt is text: token ids go to completions only")
