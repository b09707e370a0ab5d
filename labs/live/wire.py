"""The openai client as a measuring instrument: no retries, explicit limits, the true time of sending, faults named."""
from __future__ import annotations

import contextvars
import importlib
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import anyio  # comes with openai, whose httpx runs on it
import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from labs.live.answers import Record, StreamError
from labs.live.measurement import Ask

# openai 2 speaks through httpx, openai 3 through httpx2: this is the one that the package itself uses.
http = importlib.import_module(type(openai.DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])

CONNECT = 10.0  # seconds for a connection: a machine that does not answer should not take the whole deadline
REST = 0.5  # seconds that the end of a whole answer may take, after its [DONE]
POOL = 32  # connections in one pool
sending: contextvars.ContextVar[Record | None] = contextvars.ContextVar("sending", default=None)


class Pools(http.AsyncBaseTransport):
    """Several connection pools, used in turn.

    A pool looks at each of its connections for every request: at 500 streams one pool costs the client seconds.
    """

    def __init__(self, n: int, limits: Any) -> None:
        trusted = http.create_ssl_context()  # reading the certificates takes a while: once will do
        self.pools = [http.AsyncHTTPTransport(verify=trusted, limits=limits) for _ in range(n)]
        self.turn = cycle(self.pools)

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request through the pool whose turn it is."""
        return await next(self.turn).handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self.pools:
            await pool.aclose()


def open_client(server: Any, most: int, timeout: float, capped: bool = False) -> AsyncOpenAI:
    """A client of `server` that retries nothing. `most` connections are needed at a time, or allowed if `capped`."""
    _allow_files(most)
    # vLLM closes an idle connection after 5 s: one that is used again must not race with that, as nothing is retried.
    limits = http.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=2.0)
    deadline = http.Timeout(timeout, connect=min(CONNECT, timeout))
    # A proxy from the environment can't reach this machine; pools of our own would pass by one that is needed.
    direct = _loopback(server.base_url) or not getproxies()
    pools = {"transport": Pools(-(-most // POOL), limits)} if direct and not capped else {"limits": limits}
    transport = DefaultAsyncHttpxClient(
        timeout=deadline, event_hooks={"request": [_note_sending]}, trust_env=not direct, **pools
    )
    key = getattr(server, "api_key", None) or "none"
    return AsyncOpenAI(base_url=server.base_url, api_key=key, max_retries=0, timeout=deadline, http_client=transport)


async def greet(client: AsyncOpenAI) -> str:
    """Ask for the models once before the clock starts: the client's own first-time costs, some 0.1 s, are paid here.

    Returns why there is no server to measure, or "".
    """
    _ = client.completions, client.chat.completions  # imported on first use
    try:
        await client.models.list(timeout=http.Timeout(CONNECT))
    except openai.APIConnectionError as fault:
        return classify(fault, False)[1] if _no_connection(fault) else ""
    except openai.OpenAIError:
        return ""  # it may have no list of models, or be busy: the requests themselves will tell
    return ""


@asynccontextmanager
async def open_stream(client: AsyncOpenAI, model: str, ask: Ask, counts: str) -> AsyncIterator[AsyncIterator[Any]]:
    """Start the stream, and close it. What only vLLM knows goes into the extra body."""
    options = {"include_usage": True} | ({"continuous_usage_stats": True} if counts == "usage" else {})
    extra = {"return_token_ids": True} if counts == "ids" else {}
    extra |= {"ignore_eos": True} if ask.ignore_eos else {}
    extra |= {} if ask.priority is None else {"priority": ask.priority}
    known = {"stop": ask.stop if isinstance(ask.stop, str) else list(ask.stop)} if ask.stop else {}
    known |= dict(model=model, max_tokens=ask.max_tokens, temperature=ask.temperature, stream=True,
                  stream_options=options, extra_body=extra | dict(ask.extra))  # fmt: skip
    if ask.chat:
        kind, known = client.chat.completions, known | {"messages": [{"role": "user", "content": ask.prompt}]}
    else:
        kind, known = client.completions, known | {"prompt": ask.prompt if isinstance(ask.prompt, str)
                                                   else list(ask.prompt)}
    async with kind.with_streaming_response.create(**known) as answer:
        parts = answer.iter_bytes()
        yield events(parts)
        # A connection can be used again once its answer has been read to the end. Reading that may also close others,
        # idle for too long, from which asyncio's own timeout would cut it off: httpx shields it from anyio's only.
        with suppress(Exception), anyio.move_on_after(REST):
            async for _ in parts:
                pass


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """The events of a stream as plain objects, until [DONE]. Raises StreamError for one that reports an error.

    The openai package would make a checked model of each. That takes several times as long, and a client on the
    server's own machine takes that time from the server. Lines end where bytes say so: a text may hold characters that
    `str.splitlines` takes for ends.
    """
    rest, data = b"", []
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line and data:
                if data == [b"[DONE]"]:
                    return
                event, data = json.loads(b"\n".join(data), object_hook=_plain), []
                if error := getattr(event, "error", None):
                    raise StreamError(str(getattr(error, "message", None) or error))
                yield event


def _plain(fields: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**fields)


async def _note_sending(request: Any) -> None:
    """Ask the transport to say when the request's last byte is on its way: only that is `sent`."""
    record = sending.get()
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


# ---- faults ----------------------------------------------------------------------------------------------------------

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
