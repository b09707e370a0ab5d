"""The real vLLM on a CPU: a token, pause and resume, exact step counts by both schedulers, a clean end."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from labs.live.server import Server, ServerError, start
from labs.slots import continuous_batching, static_batching
from labs.workload import lognormal_lengths
from tests.conformance.environment import vllm_python

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
SLOTS = 8
LENGTHS = [min(512, int(length)) for length in lognormal_lengths(64, 4.2, 1.1, seed=0)]
MARK = uuid.uuid4().hex


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tiny model on eight slots, with the switch between static and continuous batching."""
    python = vllm_python()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("LABS_TEST_MARK", MARK)
        with start("vllm-cpu", python=python, static=True, max_num_seqs=SLOTS, timeout=420) as server:
            yield server


def marked() -> list[str]:
    """Every process that a server of this module started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and MARK.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def count(server: Server, name: str) -> float:
    """One of the server's counters, once it has come to rest."""
    last = -1.0
    while (now := sum(map(float, re.findall(rf"^{name}{{[^}}]*}} (\S+)$", server.metrics(), re.M)))) != last:
        last = now
        time.sleep(0.3)
    return last


def send(server: Server, number: int, tokens: int) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A stream of exactly `tokens` tokens, with a prompt like no other; the engine has it once this returns."""
    connection = http.client.HTTPConnection(server.root_url.removeprefix("http://"), timeout=120)
    body = {"model": server.model, "prompt": [1 + number, 2, 3, 4], "max_tokens": tokens, "ignore_eos": True,
            "temperature": 0, "stream": True}  # fmt: skip
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.api_key}"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection, connection.getresponse()


def steps(server: Server, lengths: Sequence[int]) -> float:
    """Engine steps for all of these, queued while it is held and then let go together."""
    before = count(server, "vllm:iteration_tokens_total_count")
    server.pause()
    streams = []
    try:
        for number, length in enumerate(lengths):
            streams.append(send(server, number, length))
            time.sleep(0.01)
    finally:
        server.resume()
    for connection, answer in streams:
        assert answer.status == 200
        assert "data: [DONE]" in answer.read().decode()
        connection.close()
    return count(server, "vllm:iteration_tokens_total_count") - before


def test_it_is_ready_and_ours(server: Server) -> None:
    assert server.alive()
    assert (server.engine, server.model, server.simulated) == ("vllm-cpu", "tiny", False)
    assert re.match(r"\d+\.\d+", server.version)
    assert "Application startup complete" in server.log_path.read_text()
    assert len(marked()) >= 3


@pytest.mark.parametrize(
    ("static", "lengths", "predicted"),
    [(True, LENGTHS, 2646), (False, LENGTHS, 1169), (True, LENGTHS[:20], None), (False, LENGTHS[:20], None)],
    ids=["static", "continuous", "static, fewer", "continuous, fewer"],
)
def test_steps_equal_the_slot_simulation(server: Server, static: bool, lengths, predicted: int | None) -> None:
    schedule = (static_batching if static else continuous_batching)(lengths, SLOTS)
    assert predicted in (None, schedule.steps)
    server.set_static(static)
    assert steps(server, lengths) == schedule.steps


def test_stopping_it_in_mid_stream_leaves_nothing(server: Server) -> None:
    streams = [send(server, number, 1500) for number in range(4)]
    began_all = [answer.readline().startswith(b"data: ") for _, answer in streams]
    began = time.monotonic()
    server.stop()
    assert all(began_all)
    assert time.monotonic() - began < 30
    assert marked() == []
    assert not server.alive()
    for connection, _ in streams:
        connection.close()


def test_too_few_blocks_are_diagnosed_from_its_own_log(server: Server) -> None:
    with pytest.raises(ServerError, match="too few blocks for even one request of max_model_len=2048") as caught:
        start("vllm-cpu", python=vllm_python(), num_gpu_blocks_override=20, timeout=300)
    assert str(caught.value.log) in str(caught.value)
    assert marked() == []
