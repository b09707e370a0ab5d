"""A real vLLM server on the CPU, for counting its steps: started, paused, fed in a fixed order, resumed, ended."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from labs.scheduler import SchedulerConfig
from labs.workload import Request
from tests.conformance.environment import ROOT, vllm_python

# vLLM spins on sched_yield, which on few cores starves every other process: sleep for no time instead.
YIELDING = "import os, time\nos.sched_yield = lambda: time.sleep(0)\n"
COUNTS = ("vllm:iteration_tokens_total_count", "vllm:num_preemptions_total", "vllm:generation_tokens_total",
          "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:request_success_total")  # fmt: skip


def flags(config: SchedulerConfig) -> list[str]:
    """The server's flags for our settings."""
    return [
        "--max-num-seqs", str(config.max_num_seqs), "--max-num-batched-tokens", str(config.max_num_batched_tokens),
        "--num-gpu-blocks-override", str(config.num_gpu_blocks), "--block-size", str(config.block_size),
        "--max-model-len", str(config.max_model_len), "--scheduling-policy", config.policy,
        "--no-enable-prefix-caching", "--enforce-eager", "--load-format", "dummy", "--host", "127.0.0.1",
    ]  # fmt: skip


class Server:
    """The server's process group and its port; a context manager that leaves nothing running."""

    def __init__(self, folder: Path, config: SchedulerConfig) -> None:
        model, site = folder / "model", folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(YIELDING)
        maker = [vllm_python(), "-m", "tests.conformance.tiny_model", str(model), str(config.max_model_len)]
        subprocess.run(maker, cwd=ROOT, check=True, capture_output=True, timeout=120)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder / "server.log"
        command = [vllm_python(), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
                   "--served-model-name", "tiny", "--port", str(self.port), *flags(config)]  # fmt: skip
        environment = os.environ | {
            "PYTHONPATH": str(site), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1",
        }  # fmt: skip
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self, seconds: float = 420) -> None:
        """Return once it answers. Raises RuntimeError with the end of its log if it ends or takes too long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError("the server did not get ready:\n" + self.log.read_text()[-3000:])

    def stop(self) -> None:
        """End the server: asked, then the whole group killed, for its engine outlives it; at once or not at all."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                print("the server did not stop when asked", file=sys.stderr)
        for _ in range(50):
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                break
            self.process.poll()
            time.sleep(0.1)
        self.process.wait(timeout=10)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """One HTTP request: status and text."""
        connection = self._send(method, path, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def counts(self, ended: float = 0.0) -> dict[str, float]:
        """The counters and gauges of COUNTS, once `ended` requests have ended and nothing changes."""
        last: dict[str, float] = {}
        until = time.monotonic() + 60
        while True:
            text = self.ask("GET", "/metrics")[1]
            now = {name: sum(map(float, re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M))) for name in COUNTS}
            if now == last and now[COUNTS[-1]] >= ended:
                return now
            assert time.monotonic() < until, f"{ended} requests should have ended: {now}"
            last = now
            time.sleep(0.3)

    def run(self, requests: Iterable[Request]) -> dict[str, float]:
        """Pause, queue `requests` in order, resume, wait for all, and give what each count rose by."""
        before, sent = self.counts(), list(requests)
        assert self.ask("POST", "/pause?mode=keep")[0] == 200
        streams = []
        for number, request in enumerate(sent):
            stream = self._send("POST", "/v1/completions", _completion(number, request))
            streams.append((stream, stream.getresponse()))  # the headers come once the engine has been handed it
            time.sleep(0.01)
        assert self.ask("POST", "/resume")[0] == 200
        for stream, answer in streams:
            assert answer.status == 200
            assert "data: [DONE]" in answer.read().decode()
            stream.close()
        after = self.counts(before[COUNTS[-1]] + len(sent))
        return {name: after[name] - before[name] for name in COUNTS}

    def _send(self, method: str, path: str, body: object = None) -> http.client.HTTPConnection:
        """A connection on which a request has been sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        return connection


def _completion(number: int, request: Request) -> dict[str, object]:
    """A request with exactly these lengths, and a prompt like no other."""
    prompt = [1 + number % 200, *[1 + (number + i) % 200 for i in range(request.prompt_tokens - 1)]]
    return {"model": "tiny", "prompt": prompt, "max_tokens": request.output_tokens, "ignore_eos": True,
            "temperature": 0, "stream": True, "priority": request.priority}  # fmt: skip
