"""The application: vLLM's routes over the simulated engine, and saying so in every answer."""
from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labs.engine import StepRecord, StepTime
from labs.live.simulated import text
from labs.live.simulated.answer import Answer, list_of_models, new_id
from labs.live.simulated.asked import Asked, read_body, read_request
from labs.live.simulated.engine import Engine, Job
from labs.live.simulated.metrics import Statistics
from labs.live.simulated.problems import ApiError, invalid
from labs.scheduler import SchedulerConfig
from labs.workload import Request as Work

VERSION = "0.32.0-simulated"  # whose rules and answers it copies
_LATER = "Please try again later or on a different instance."
_BUSY = f"The engine is currently busy and cannot accept new requests. {_LATER}"
_BACKLOG = f"The engine has reached its prefill token backlog limit. {_LATER}"


@dataclass(frozen=True)
class Front:
    """What the routes need: the engine, and the settings that are the server's own."""

    engine: Engine
    model: str
    seed: int = 0
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    created: int = 0

    @property
    def config(self) -> SchedulerConfig:
        """The scheduler's settings."""
        return self.engine.scheduler.config

    def admit(self, asked: Asked) -> Job:
        """Queue a request, or say why not."""
        limit, statistics = self.max_num_queued_reqs, self.engine.statistics
        if limit is not None and len(self.engine.jobs) + 1 > limit:
            statistics.rejected("max_num_queued_reqs")
            raise ApiError(_BUSY, None, "Service Unavailable", 503)
        limit = self.max_num_queued_tokens
        if limit is not None and self.engine.queued_tokens >= limit:
            statistics.rejected("max_num_queued_tokens")
            raise ApiError(_BACKLOG, None, "Service Unavailable", 503)
        # The order of arrival stands for its time, so that no two requests tie.
        work = Work(new_id(asked.chat), len(asked.prompt), asked.max_tokens, self.engine.next_number(),
                    asked.priority)
        natural = None
        if not asked.ignore_eos:
            natural = max(text.natural_length(asked.prompt, self.seed + asked.seed), asked.min_tokens + 1)
        job = Job(work, natural, asked.stops, asked.include_stop)
        try:
            self.engine.submit(job)
        except ValueError as error:
            # vLLM would let it wait for ever.
            raise ApiError(f"The simulated server could never serve this: {error}.") from None
        return job


def create_app(config: SchedulerConfig, step_time: StepTime, model: str = "simulated", api_key: str | None = None,
               speed: float = 1.0, *, static: bool = False, seed: int = 0, max_num_queued_reqs: int | None = None,
               max_num_queued_tokens: int | None = None,
               on_step: Callable[[StepRecord], None] = lambda record: None) -> Starlette:
    """The simulated server as a Starlette application.

    `speed` makes simulated time pass faster. `static` starts with static batching, which POST /labs/static switches.
    `seed` decides where answers end by themselves. `on_step` gets the record of each step.
    """
    engine = Engine(config, step_time, Statistics(model, config), speed, static, on_step)
    front = Front(engine, model, seed, max_num_queued_reqs, max_num_queued_tokens, int(time.time()))

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        app.state.loop = asyncio.create_task(engine.serve())
        try:
            yield
        finally:
            app.state.loop.cancel()
            with suppress(asyncio.CancelledError):
                await app.state.loop

    app = Starlette(routes=_routes(front), lifespan=life,
                    exception_handlers={HTTPException: _http_error, ApiError: _api_error})
    app.state.front = front
    app.add_middleware(Marked, api_key=api_key)
    return app


class Marked:
    """Around everything: the header that says simulated, and the key, which guards /v1 as in vLLM."""

    def __init__(self, app: ASGIApp, api_key: str | None) -> None:
        self.app, self.expected = app, f"Bearer {api_key}".encode() if api_key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-simulated", b"true")]
            await send(message)

        if self.expected and scope["path"].startswith("/v1") and not self._known(scope):
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, marked)
        else:
            # Only the end of the server cancels a request: its stream is cut, and there is nobody to tell.
            with suppress(asyncio.CancelledError):
                await self.app(scope, receive, marked)

    def _known(self, scope: Scope) -> bool:
        """Whether the request brings the key."""
        given = dict(scope["headers"]).get(b"authorization", b"")
        return secrets.compare_digest(given, self.expected)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """No such path or method."""
    return JSONResponse({"detail": error.detail}, error.status_code, headers=error.headers)


async def _api_error(request: Request, error: ApiError) -> Response:
    """Anything that a request got wrong."""
    return JSONResponse(error.body(), error.status)


# ---- completions and chat -------------------------------------------------------------------------------------------

async def _answer(front: Front, chat: bool, request: Request) -> Response:
    """Read, queue, and answer, in one piece or as a stream."""
    body = read_body(await request.body(), request.headers.get("content-type", ""))
    asked = read_request(body, chat, front.model, front.config.max_model_len)
    job = front.admit(asked)
    answer = Answer(asked, job)
    if asked.stream:
        return StreamingResponse(_stream(front.engine, answer), media_type="text/event-stream")
    gone = asyncio.create_task(_until_gone(request))
    done = asyncio.create_task(_until_done(job))
    try:
        await asyncio.wait((gone, done), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        done.cancel()
        front.engine.abort(job)
    return JSONResponse(answer.whole()) if job.finish_reason else Response(status_code=499)


async def _until_gone(request: Request) -> None:
    """Return when the client hangs up."""
    with suppress(ClientDisconnect):
        while (await request.receive())["type"] != "http.disconnect":
            pass


async def _until_done(job: Job) -> None:
    """Return when the last token is there."""
    while not job.finish_reason:
        job.news.clear()
        await job.news.wait()


async def _stream(engine: Engine, answer: Answer) -> AsyncIterator[str]:
    """Send what is new as it comes: to a slow reader several tokens at once. Abort if the client hangs up."""
    job = answer.job
    try:
        while True:
            await job.news.wait()
            job.news.clear()
            for event in answer.events():
                yield event
            if job.finish_reason:
                return
    finally:
        engine.abort(job)


# ---- everything else ------------------------------------------------------------------------------------------------

def _routes(front: Front) -> list[Route]:
    """All paths."""
    engine = front.engine

    async def health(request: Request) -> Response:
        return Response(status_code=503 if request.app.state.loop.done() else 200)

    async def models(request: Request) -> Response:
        return JSONResponse(list_of_models(front.model, front.config.max_model_len, front.created))

    async def version(request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def metrics(request: Request) -> Response:
        return Response(engine.statistics.page(engine), media_type="text/plain; version=1.0.0")

    async def load(request: Request) -> Response:
        return JSONResponse({"server_load": 0})

    async def is_paused(request: Request) -> Response:
        return JSONResponse({"is_paused": engine.paused})

    async def resume(request: Request) -> Response:
        engine.resume()
        return JSONResponse({"status": "resumed"})

    async def state(request: Request) -> Response:
        return JSONResponse(_state(engine))

    post: list[tuple[str, Callable[[Request], Awaitable[Response]]]] = [
        ("/v1/completions", partial(_answer, front, False)), ("/v1/chat/completions", partial(_answer, front, True)),
        ("/pause", partial(_pause, engine)), ("/resume", resume), ("/labs/static", partial(_switch, engine))]
    get = [("/health", health), ("/ping", health), ("/v1/models", models), ("/version", version), ("/load", load),
           ("/metrics", metrics), ("/is_paused", is_paused), ("/labs/state", state)]
    return [*(Route(path, f, methods=["POST"]) for path, f in post),
            *(Route(path, f, methods=["GET"]) for path, f in get)]


async def _pause(engine: Engine, request: Request) -> Response:
    """Stop after the current step: "keep" what is in flight, "abort" it, or "wait" for it first."""
    mode = request.query_params.get("mode", "abort")
    if mode not in ("abort", "wait", "keep"):
        modes = "'abort', 'wait' or 'keep'"
        raise invalid("literal_error", "query.mode", f"Input should be {modes}", mode, {"expected": modes})
    while mode == "wait" and engine.jobs:
        await asyncio.sleep(0.01)
    if mode == "abort":
        engine.abort_all()
    engine.paused = True
    return JSONResponse({"status": "paused"})


async def _switch(engine: Engine, request: Request) -> Response:
    """Turn static batching on or off, and lower the cap or (null) raise it again: the simulated server's own."""
    body = read_body(await request.body(), request.headers.get("content-type", ""))
    on, slots = body.get("on"), body.get("slots", engine.scheduler.slots)
    if not isinstance(on, bool):
        raise invalid("bool_type", "body.on", "Input should be a valid boolean", on)
    if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
        raise invalid("int_type", "body.slots", "Input should be a valid integer, 1 or more", slots)
    engine.scheduler.static, engine.scheduler.slots = on, slots
    return JSONResponse({"static": on} | ({} if slots is None else {"slots": slots}))


def _state(engine: Engine) -> dict[str, object]:
    """What the engine has done, which a real server doesn't tell: the simulated server's own."""
    return {"simulated": True, "static": engine.scheduler.static, "steps": engine.steps,
            "preemptions": engine.preemptions, "running": engine.running, "waiting": engine.waiting,
            "free_blocks": engine.scheduler.pool.free, "seconds_lost": engine.seconds_lost}
