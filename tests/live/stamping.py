"""The simulated server in a process of its own, which notes when it handed each chunk of each stream to the network.

    python -m tests.live.stamping PORT SECONDS_PER_STEP     GET /stamps gives the times, by prompt

The times are of the clock that `time.perf_counter` reads, which on Linux all processes share: so the part of a gap
that comes after the server is (gap seen) - (gap sent).
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labs.engine import StepTime
from labs.live.simulated import create_app
from labs.scheduler import SchedulerConfig

CONFIG = SchedulerConfig(max_num_seqs=1024, max_num_batched_tokens=8192, num_gpu_blocks=65_536)


class Stamped:
    """Around the application: reads the prompt, and notes the time of each chunk with tokens that goes out."""

    def __init__(self, app: ASGIApp) -> None:
        self.app, self.stamps = app, defaultdict(list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await (self._show(send) if scope.get("path") == "/stamps" else self.app(scope, receive, send))
            return
        body, prompt = b"", None

        async def reading() -> Message:
            nonlocal body, prompt
            message = await receive()
            body += message.get("body", b"")
            if prompt is None and message["type"] == "http.request" and not message.get("more_body"):
                prompt = json.loads(body)["prompt"]
                self.stamps[prompt] = []
            return message

        async def sending(message: Message) -> None:
            if b'"choices":[{' in message.get("body", b""):
                self.stamps[prompt].append(time.perf_counter())
            await send(message)

        await self.app(scope, reading, sending)

    async def _show(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(self.stamps).encode()})


def main(port: str, seconds: str) -> None:
    """Serve until told to end."""
    app = Stamped(create_app(CONFIG, StepTime(float(seconds)), model="simulated"))
    settings = uvicorn.Config(app, "127.0.0.1", int(port), log_level="warning", access_log=False, backlog=2048)
    uvicorn.Server(settings).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
