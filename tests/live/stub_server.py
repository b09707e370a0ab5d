"""A scripted HTTP server on 127.0.0.1 that answers completions with whatever stream a test wants, faults included.

    with Stub(lambda body, i: answer([1, 3, 2])) as stub: measure(stub, asks)

It retries nothing and hides nothing: `requests` holds the body of every completion asked for, `connections` counts
the connections opened. `python tests/live/stub_server.py --help` runs it as a process of its own, for benchmarks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

PIECE = "data: {}\n\n"


@dataclass
class Answer:
    """One HTTP answer: `events` are (seconds to wait, what to send); how it ends is `end`.

    end: "done" sends [DONE] and ends cleanly; "silent" ends cleanly with no [DONE]; "cut" drops the connection in
    mid-stream; "hang" sends nothing more until the client goes away.
    """

    events: Sequence[tuple[float, dict | bytes]] = ()
    end: str = "done"
    status: int = 200
    before: Callable[[], Awaitable[None]] | None = None


Script = Callable[[dict, int], Answer]


def chunk(text: str, ids: Sequence[int] | None = None, finish: str | None = None, usage: dict | None = None) -> dict:
    """A completion's chunk."""
    choice = {"index": 0, "text": text, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = list(ids)
    return _body("text_completion", [choice], usage)


def delta(content: str | None = None, ids: Sequence[int] | None = None, finish: str | None = None, **more) -> dict:
    """A chat's chunk; `role="assistant"` makes it the role chunk."""
    said = more if content is None else {"content": content, **more}
    choice = {"index": 0, "delta": said, "finish_reason": finish}
    if ids is not None:
        choice["token_ids"] = list(ids)
    return _body("chat.completion.chunk", [choice])


def usage(completion: int, prompt: int = 5) -> dict:
    """The counts of a usage."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def usage_chunk(completion: int, prompt: int = 5) -> dict:
    """The chunk that `include_usage` asks for: it has no choices."""
    return _body("text_completion", [], usage(completion, prompt))


def error_event(message: str = "EngineCore encountered an issue") -> dict:
    """What vLLM sends once a stream has begun and the engine is gone."""
    return {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}


def _body(kind: str, choices: list, counts: dict | None = None) -> dict:
    body = {"id": "stub-1", "object": kind, "created": 1, "model": "stub", "choices": choices}
    return body | ({"usage": counts} if counts else {})


def answer(tokens: Sequence[int], gap: float = 0.0, finish: str = "length", ids: bool = True, said: int | None = None,
           end: str = "done", wait: float = 0.0) -> Answer:  # fmt: skip
    """A whole answer: chunks of so many tokens, `gap` seconds apart, and the usage (of `said` tokens)."""
    events = []
    for i, n in enumerate(tokens):
        last = i == len(tokens) - 1
        piece = chunk("x " * n, range(n) if ids else None, finish if last else None)
        events.append((gap if i else wait, piece))
    return Answer([*events, (0.0, usage_chunk(sum(tokens) if said is None else said))], end)


def barrier(n: int, limit: float = 20.0) -> Callable[[], Awaitable[None]]:
    """Something that comes back when `n` requests wait at it at the same time."""
    inside, opened = [0], []

    async def wait() -> None:
        if not opened:
            opened.append(asyncio.Event())
        inside[0] += 1
        if inside[0] >= n:
            opened[0].set()
        await asyncio.wait_for(opened[0].wait(), limit)

    return wait


@dataclass
class Stub:
    """The server: a context manager, and what `measure` wants of a server."""

    script: Script
    port: int = 0
    model: str = "stub"
    api_key: str = "secret"
    engine: str = "stub"
    simulated: bool = False
    requests: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    connections: int = 0
    greeted: int = 0
    peak: int = 0
    _inside: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Stub:
        ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.die)
        self._thread.join(10)

    def die(self) -> None:
        """Drop all connections and listen no more; to be called by a script, in the stub's own thread."""
        self._leave.set()

    def _run(self, ready: threading.Event) -> None:
        self._loop.run_until_complete(self.serve(ready.set))
        self._loop.close()

    async def serve(self, ready: Callable[[], None]) -> None:
        """Serve until told to leave."""
        self._leave = asyncio.Event()
        self._open: set[asyncio.Task] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        ready()
        await self._leave.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(task := asyncio.current_task())
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection may be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if "/completions" not in head[0]:
            self.greeted += 1
            return self._plain(writer, 200, {"object": "list", "data": [{"id": self.model, "object": "model"}]})
        index = len(self.requests)
        self.requests.append(json.loads(body))
        self.headers.append(headers)
        self._inside += 1
        self.peak = max(self.peak, self._inside)
        try:
            return await self._stream(reader, writer, self.script(self.requests[-1], index))
        finally:
            self._inside -= 1

    def _plain(self, writer: asyncio.StreamWriter, status: int, what: dict) -> bool:
        body = json.dumps(what).encode()
        head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        return True

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: Answer) -> bool:
        if said.before:
            await said.before()
        if said.status != 200:
            return self._plain(writer, said.status, error_event("the queue is full"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for wait, what in said.events:
            if wait:
                await writer.drain()
                await asyncio.sleep(wait)
            _write(writer, what if isinstance(what, bytes) else PIECE.format(json.dumps(what)).encode())
        if said.end == "done":
            _write(writer, PIECE.format("[DONE]").encode())
        await writer.drain()
        if said.end == "hang":
            await reader.read()
        if said.end in ("cut", "hang"):
            return False
        writer.write(b"0\r\n\r\n")
        return True


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """One piece of a chunked body."""
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


# ---- as a process of its own: many streams in step, each token stamped with the time at which it was sent ------------


class Stamped(Stub):
    """Streams of `tokens` tokens, one every `itl` seconds; in step with each other, as an engine's are, or apart."""

    def __init__(self, port: int, itl: float, in_step: bool) -> None:
        super().__init__(lambda body, i: Answer(), port)
        self.itl, self.in_step = itl, in_step

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, said: Answer) -> bool:
        tokens, now = self.requests[-1]["max_tokens"], time.perf_counter()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        start = (now // self.itl + 2) * self.itl if self.in_step else now
        for i in range(tokens):
            await asyncio.sleep(max(0.0, start + i * self.itl - time.perf_counter()))
            piece = chunk(f"{time.perf_counter():.6f} ", [7], "length" if i == tokens - 1 else None)
            _write(writer, PIECE.format(json.dumps(piece)).encode())
        _write(writer, PIECE.format(json.dumps(usage_chunk(tokens))).encode())
        _write(writer, PIECE.format("[DONE]").encode())
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def main() -> None:
    """Serve stamped streams until killed; the first line printed is the port."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--itl", type=float, default=0.25, help="seconds between two tokens of a stream")
    parser.add_argument("--in-step", action="store_true", help="all streams send at the same moments")
    wanted = parser.parse_args()
    stub = Stamped(wanted.port, wanted.itl, wanted.in_step)
    asyncio.run(stub.serve(lambda: print(stub.port, flush=True)))


if __name__ == "__main__":
    main()
