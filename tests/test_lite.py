"""The site that runs the course in a browser: what goes into it, and that nothing in it wants threads or sockets."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
spec = importlib.util.spec_from_file_location("lite_build", ROOT / "lite" / "build.py")
lite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lite)
RUNNER = ROOT / "tests" / "in_browser.py"
BOTH = [p for folder in ("notebooks", "solutions") for p in lite.notebooks(ROOT)
        for p in [ROOT / folder / p.name]]


def run(*names: Path | str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    command = [sys.executable, str(RUNNER), *map(str, names)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)


@pytest.mark.notebook
@pytest.mark.slow
@pytest.mark.parametrize("path", BOTH, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_the_notebook_runs_without_threads_processes_or_sockets(path: Path) -> None:
    done = run(path)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "nothing is amiss" in done.stdout


@pytest.mark.parametrize(("code", "said"), [
    ("import threading; threading.Thread(target=print).start()", "can't start new thread"),
    ("import subprocess; subprocess.run(['true'])", "processes"),
    ("import multiprocessing as m; m.Process(target=print).start()", "processes"),
    ("from concurrent.futures import ThreadPoolExecutor as T; T().submit(print)", "can't start new thread"),
    ("import socket; socket.create_connection(('127.0.0.1', 9), 1)", "sockets"),
    ("import openai", "openai"),
    ("import sys; print('x', file=sys.stderr)", "stderr: x"),
])
def test_the_runner_refuses_what_a_browser_refuses(tmp_path: Path, code: str, said: str) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    nbformat.write(book, tmp_path / "a.ipynb")
    done = run(tmp_path / "a.ipynb")
    assert done.returncode == 1
    assert said in done.stdout


def test_the_site_holds_the_notebooks_that_need_no_server_and_labs(tmp_path: Path) -> None:
    names = lite.contents(tmp_path)
    assert names == sorted(names)
    assert not [name for name in names if name.startswith("05")]
    assert {name[:2] for name in names} == {p.name[:2] for p in (ROOT / "notebooks").glob("[0-9]*.ipynb")} - {"05"}
    assert (tmp_path / "labs/explorers/panel.py").is_file()
    assert (tmp_path / "labs/data").is_dir()
    assert not list(tmp_path.rglob("__pycache__"))


def test_each_notebook_gets_one_cell_that_installs_before_any_other_code(tmp_path: Path) -> None:
    for name in lite.contents(tmp_path):
        book = nbformat.read(tmp_path / "notebooks" / name, as_version=4)
        nbformat.validate(book)
        code = [cell for cell in book.cells if cell.cell_type == "code"]
        assert "piplite.install" in code[0].source
        assert sum("piplite" in cell.source for cell in code) == 1
        assert "emscripten" not in code[0].source


def test_links_between_notebooks_hold_on_the_site(tmp_path: Path) -> None:
    lite.contents(tmp_path)
    assert (tmp_path / "notebooks/cheat_sheet.html").is_file()
    for path in (tmp_path / "notebooks").glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"]) if cell["cell_type"] == "markdown" else ""
            for link in re.findall(r"\]\((?!https?:|#|attachment:|data:)([^)\s#]+)", source):
                there = (tmp_path / "notebooks" / link).resolve()
                page = there.with_suffix(".md")  # instead of a notebook that needs a server
                assert there.is_file() or page.is_file(), f"{path.name}: {link}"


def test_a_notebook_that_needs_a_server_has_a_page_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "root/notebooks").mkdir(parents=True)
    (tmp_path / "root/labs").mkdir()
    book = nbformat.v4.new_notebook(cells=[
        nbformat.v4.new_markdown_cell("See [5](05_live_server.ipynb#start) and [1](01_a.ipynb)"),
        nbformat.v4.new_code_cell("1")])
    nbformat.write(book, tmp_path / "root/notebooks/01_a.ipynb")
    nbformat.write(book, tmp_path / "root/notebooks/05_live_server.ipynb")
    assert lite.contents(tmp_path / "site", tmp_path / "root") == ["01_a.ipynb"]
    text = (tmp_path / "site/notebooks/01_a.ipynb").read_text()
    assert "(05_live_server.md#start)" in text
    assert "(01_a.ipynb)" in text
    assert "can start none" in (tmp_path / "site/notebooks/05_live_server.md").read_text()


def test_the_workflow_builds_the_site_with_the_readmes_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    workflow = (ROOT / ".github/workflows/site.yml").read_text()
    for piece in ("lite/requirements.txt", "lite/build.py site"):
        assert piece in readme
        assert piece in workflow
    assert "has not been tried by us" in readme
