"""Every fault that a live server can have, each with the test that asserts its outcome; here are those that need more
than one part: a load under way while a server dies, and a notebook's kernel that is interrupted and restarted.

Never a hang beyond a deadline, an orphan, a failure taken for a success, or a result lost that had arrived.
"""

from __future__ import annotations

import ast
import os
import signal
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labs.live.client import Ask, measure
from labs.live.server import Server, ServerError, start
from labs.live.simulated.command import STEP_TIME

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in Linux's /proc")

TESTED = {
    "port taken by nothing of ours": "test_server.py::test_a_port_that_is_taken",
    "port taken by another model's server": "test_server.py::test_a_port_that_is_taken",
    "port taken while it starts": "test_server.py::test_another_server_that_takes_the_port_meanwhile",
    "model missing": "test_server.py::test_c3_a_server_that_ends_while_it_starts",
    "model missing, real": "test_real_server.py::test_what_a_real_start_fails_of_is_diagnosed_from_its_own_log",
    "context too long for the model": "test_server.py::test_c3_a_server_that_ends_while_it_starts",
    "context too long for the server": "test_faults.py::test_a_prompt_that_is_too_long_is_refused_and_the_rest_served",
    "unknown flag": "test_server.py::test_c3_a_server_that_ends_while_it_starts",
    "no memory": "test_server.py::test_c3_a_server_that_ends_while_it_starts",
    "no memory, real": "test_real_server.py::test_what_a_real_start_fails_of_is_diagnosed_from_its_own_log",
    "exit during start": "test_server.py::test_c3_a_server_that_ends_while_it_starts",
    "never ready": "test_server.py::test_c3_a_server_that_is_never_ready",
    "a dead engine behind a healthy endpoint": "test_server.py::test_a_healthy_endpoint_with_a_dead_engine",
    "1 MB of log before ready": "test_server.py::test_c2_a_megabyte_of_log_before_it_is_ready",
    "engine killed in mid-stream, real": "test_real_server.py::test_the_engine_killed_in_mid_stream",
    "API server killed with SIGKILL": "test_faults.py::test_a_server_killed_in_mid_run",
    "API server killed with SIGKILL, real": "test_real_server.py::test_the_api_server_killed_in_mid_stream",
    "its children": "test_server.py::test_c1_whichever_is_killed_takes_the_others_along",
    "200 followed by an error event": "test_client.py::test_d11_an_error_event_after_200_is_an_error",
    "a stream cut short": "test_client.py::test_d11_a_stream_cut_short_is_never_a_success",
    "20 % of answers 503": "test_client.py::test_d10_a_fifth_of_503s_is_counted_beside_latency_and_not_sent_again",
    "a slow server": "test_client.py::test_a_slow_server_meets_the_deadline",
    "a cell interrupted while it starts": "test_server.py::test_an_interrupt_while_it_starts",
    "a cell interrupted while it measures": "test_faults.py::test_a_cell_interrupted_and_its_kernel_restarted",
    "the kernel restarted": "test_faults.py::test_a_cell_interrupted_and_its_kernel_restarted",
    "the kernel killed": "test_server.py::test_a_kernel_that_dies_takes_its_server_along",
}  # fmt: skip
CASES = ("c1", "c2", "c3", "c6", "c7", "d1", "d2", "d4", "d5", "d6", "d7", "d8", "d10", "d11", "d12")


def functions(file: str) -> dict[str, ast.FunctionDef]:
    """The tests of a file of this folder, by name."""
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[:5] == "test_"}


def asserts(test: ast.FunctionDef) -> int:
    """How many outcomes it asserts: by assert, by pytest.raises, or by `says`."""
    calls = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    names = [getattr(call, "attr", getattr(call, "id", "")) for call in calls]
    return sum(isinstance(node, ast.Assert) for node in ast.walk(test)) + names.count("raises") + names.count("says")


@pytest.mark.parametrize("fault", TESTED)
def test_each_fault_has_a_test_that_asserts_its_outcome(fault: str) -> None:
    file, name = TESTED[fault].split("::")
    assert asserts(functions(file)[name])


@pytest.mark.parametrize("case", CASES)
def test_each_field_case_has_a_test_by_its_name(case: str) -> None:
    named = [name for path in HERE.glob("test_*.py") for name in functions(path.name) if f"_{case}_" in name]
    assert named


# ---------------------------------------------------------------- a load under way


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Folders of its own, and a mark by which every process of a test is known; none may be left."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv("LABS_TEST_MARK", mark)
    monkeypatch.setenv("LABS_CACHE", str(tmp_path))
    yield mark
    until = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def marked(mark: str) -> list[int]:
    """Processes that carry the mark, this one aside."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def simulated(step: float = 0.02, **flags: object) -> Server:
    """A simulated server in a process of its own, with steps of so many seconds."""
    return start("simulated", "tiny", max_num_seqs=4, step_time=[step, 0, 0], timeout=60, **flags)


def asks(*lengths: int) -> list[Ask]:
    """Prompts of tokens with answers of exactly these lengths."""
    return [Ask(str(i), (300 + i, 2, 3), n) for i, n in enumerate(lengths)]


def when(done: int, act: Callable[[], object]) -> Callable[[int, int], None]:
    """A progress callback that acts once, when so many answers have come."""
    acted: list[bool] = []

    def watch(finished: int, total: int) -> None:
        if finished >= done and not acted:
            acted.append(True)
            act()

    return watch


def test_a_server_killed_in_mid_run(mark: str) -> None:
    with simulated() as server:
        began = time.monotonic()
        kill = when(2, lambda: os.kill(server._process.pid, signal.SIGKILL))
        seen = measure(server, asks(5, 5, 1900, 1900, 1900), timeout=60, progress=kill)
        assert time.monotonic() - began < 20
        assert seen.statuses == {"ok": 2, "cut": 3}, [row.error for row in seen.rows]
        assert [row.completion_tokens for row in seen.ok] == [5, 5]
        assert all(row.chunks for row in seen.rows[2:4]), "what had arrived is kept"
        assert not server.alive()
        with pytest.raises(ServerError, match="exit code 137"):
            server.metrics()


def test_a_server_stopped_in_mid_run(mark: str) -> None:
    with simulated() as server:
        stop = when(1, lambda: threading.Thread(target=server.stop).start())
        seen = measure(server, asks(5, 1900, 1900), timeout=60, progress=stop)
        assert seen.statuses["ok"] == 1
        assert len(seen.failed) == 2
        assert {row.status for row in seen.failed} <= {"cut", "error"}
        assert marked(mark) == [] or server._process.exit_code() is None


def test_a_prompt_that_is_too_long_is_refused_and_the_rest_served(mark: str) -> None:
    with simulated(max_model_len=64) as server:
        seen = measure(server, [Ask("long", (7,) * 65, 5), *asks(5, 5)], timeout=60)
    assert [row.status for row in seen.rows] == ["refused", "ok", "ok"]
    assert "HTTP 400" in seen.rows[0].error
    assert "maximum context length is 64 tokens" in seen.rows[0].error


# ---------------------------------------------------------------- a notebook


def test_a_cell_interrupted_and_its_kernel_restarted(mark: str) -> None:
    """A real kernel: the stop button while it measures, then a restart."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(ROOT))
    said: list[str] = []

    def run(code: str) -> str:
        """One cell: how it ended."""

        def hear(message: dict) -> None:
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])

        reply = client.execute_interactive(textwrap.dedent(code), timeout=90, output_hook=hear)
        return reply["content"]["status"]

    try:
        assert run(f"""
            from labs.live.server import start
            from labs.live.client import Ask, measure
            server = start("simulated", "tiny", step_time=[{STEP_TIME.base}, 0, 0], timeout=60)
            asks = [Ask(str(i), (300 + i, 2), 3 if i < 2 else 1900) for i in range(5)]
        """) == "ok"
        assert len(marked(mark)) >= 3, "the kernel, the supervisor, the server"
        threading.Timer(3.0, os.kill, (manager.provisioner.process.pid, signal.SIGINT)).start()  # the stop button
        began = time.monotonic()
        run("seen = measure(server, asks, timeout=80)")
        assert time.monotonic() - began < 15
        assert run("print(seen.interrupted, seen.statuses, server.alive(), len(seen.rows))") == "ok"
        assert said[-1] == "True {'ok': 2, 'cut': 3} True 5\n"
        assert run("print(measure(server, asks[:2], timeout=30).statuses)") == "ok"
        assert said[-1] == "{'ok': 2}\n", "the server is as good as before"
        children = set(marked(mark)) - {manager.provisioner.process.pid}
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=60)
        until = time.monotonic() + 10
        while children & set(marked(mark)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not children & set(marked(mark)), "nothing of the old kernel's is left"
        assert run("from labs.live.server import running; print(running())") == "ok"
        assert said[-1] == "[]\n"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
