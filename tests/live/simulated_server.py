"""A simulated server in this process, on a thread of its own, so that a test sees both its answers and its engine."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn

from labs.engine import StepRecord, StepTime
from labs.live.simulated import create_app
from labs.live.simulated.engine import Engine
from labs.scheduler import SchedulerConfig
from labs.workload import Request

CONFIG = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=512, num_gpu_blocks=129, max_model_len=512)
FAST = StepTime(0.001)


class Simulated:
    """A context manager: the application served on a free port; `records` are the steps that it ran."""

    def __init__(self, config: SchedulerConfig = CONFIG, step_time: StepTime = FAST, **settings: object) -> None:
        self.records: list[StepRecord] = []
        self.opened: list[http.client.HTTPConnection] = []
        self.key = settings.get("api_key")
        app = create_app(config, step_time, on_step=self.records.append, **{"model": "tiny", **settings})
        self.engine: Engine = app.state.front.engine
        self.arrivals: list[Request] = []  # what the scheduler was given, in order
        self._note_arrivals()
        self.server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def _note_arrivals(self) -> None:
        add = self.engine.scheduler.add

        def noting(request: Request) -> None:
            add(request)
            self.arrivals.append(request)

        self.engine.scheduler.add = noting

    def __enter__(self) -> Simulated:
        self.thread.start()
        wait_for(lambda: self.server.started)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]
        self.root = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.close()

    def close(self) -> None:
        """Close every connection that was opened here."""
        for connection in self.opened:
            connection.close()

    def send(self, method: str, path: str, body: object = None, **headers: str) -> http.client.HTTPConnection:
        """A connection on which a request has been sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self.opened.append(connection)
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        keyed = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        connection.request(method, path, raw, {"Content-Type": "application/json", **keyed, **headers})
        return connection

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """One request: status, and what came back: JSON where it is JSON."""
        connection = self.send(method, path, body, **headers)
        answer = connection.getresponse()
        self.headers, text = dict(answer.getheaders()), answer.read().decode()
        connection.close()
        return answer.status, json.loads(text) if "json" in self.headers.get("content-type", "") else text

    def complete(self, prompt: object = "hello there", **asked: object) -> tuple[int, Any]:
        """One completion."""
        return self.ask("POST", "/v1/completions", {"model": "tiny", "prompt": prompt, **asked})

    def chat(self, content: object = "hello", **asked: object) -> tuple[int, Any]:
        """One answer in a chat."""
        messages = [{"role": "user", "content": content}]
        return self.ask("POST", "/v1/chat/completions", {"model": "tiny", "messages": messages, **asked})


def events(text: str) -> list[Any]:
    """The server-sent events in `text`."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") for part in parts)
    return [part if part == "data: [DONE]" else json.loads(part[6:]) for part in parts]


def wait_for(there: Callable[[], object], seconds: float = 15) -> None:
    """Return once `there()` is true."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.002)
