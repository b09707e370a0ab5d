"""The notebooks as Colab runs them: alone in an empty folder, with its old IPython and ipywidgets.

LABS_COLAB_PYTHON names a Python with the versions of tests/requirements-colab.txt (README, For developers).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from solutions import build

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
COURSE = build.read_course(ROOT)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SETUP = build.setup_source(COURSE)
SHOW_PATH = "import labs, sys; print(sys.path.count(str(root)), labs.__file__)"
pytestmark = [pytest.mark.notebook, pytest.mark.slow]


@pytest.fixture(scope="session")
def colab() -> str:
    """The Python with Colab's versions, its font cache built (building it writes to stderr)."""
    named = os.environ.get("LABS_COLAB_PYTHON")
    if not named:
        pytest.skip("LABS_COLAB_PYTHON names no Python with the versions of tests/requirements-colab.txt")
    path = str((ROOT / named).absolute())  # not resolved: a virtual environment is known by its link
    subprocess.run([path, "-c", "import matplotlib.font_manager"], check=True, capture_output=True)
    return path


@pytest.fixture(params=["this environment", "Colab's versions"])
def python(request) -> str:
    """Each Python that the first cell must work in."""
    return sys.executable if request.param == "this environment" else request.getfixturevalue("colab")


def git(*arguments: str, folder: Path) -> str:
    """Run git, whoever owns the folder."""
    command = ["git", "-c", "safe.directory=*", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """A folder that stands in for the web site: it holds OWNER/REPO, with the files as they are now."""
    folder = tmp_path_factory.mktemp("site")
    copy = folder / COURSE.repository
    for name in git("ls-files", "-co", "--exclude-standard", "-z", folder=ROOT).split("\0"):
        if name and (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    git("init", "--quiet", "-b", COURSE.branch, folder=copy)
    git("add", "--all", folder=copy)
    git("commit", "--quiet", "-m", "as it is", folder=copy)
    return folder


def environment(site: Path | None) -> dict[str, str]:
    """Colab's environment; what is asked of github.com goes to this folder instead (None: nobody answers)."""
    own = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "PYTHONPATH")}
    return own | {
        "PYTHONPATH": str(HERE / "colab_stub"),
        "COLAB_RELEASE_TAG": "release-colab_20260901",
        "LABS_PROGRESS": "off",
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": f"url.{site.as_uri() if site else 'file:///nobody'}/.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://github.com/",
        "GIT_CONFIG_KEY_1": "safe.directory",
        "GIT_CONFIG_VALUE_1": "*",
    }


def execute(python: str, notebook: Path, folder: Path, site: Path | None, **extra: str) -> nbformat.NotebookNode:
    """Run the notebook in this folder with this Python."""
    executed = folder.parent / f"executed-{notebook.name}"
    command = [python, str(HERE / "execute.py"), str(notebook), str(folder), str(executed)]
    done = subprocess.run(
        command, env=environment(site) | extra, cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return nbformat.read(executed, as_version=4)


def run_cells(python: str, sources: list[str], folder: Path, site: Path | None, **extra: str) -> list:
    """Run these cells in this folder; gives their outputs."""
    path = folder.parent / "cells.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source) for source in sources]), path)
    return [cell.outputs for cell in execute(python, path, folder, site, **extra).cells]


def troubles(notebook: nbformat.NotebookNode) -> list[str]:
    """Errors and anything on stderr, with the cell it came from."""
    outputs = [(cell.id, output) for cell in notebook.cells for output in cell.get("outputs", [])]
    errors = [f"{where}: {o.ename}: {o.evalue}" for where, o in outputs if o.output_type == "error"]
    return errors + [f"{where}: {o.text}" for where, o in outputs if o.get("name") == "stderr"]


@pytest.fixture
def content(tmp_path: Path) -> Path:
    """An empty folder, as Colab's /content."""
    folder = tmp_path / "content"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_the_notebook_runs_alone_in_an_empty_folder(colab: str, site: Path, content: Path, notebook: Path) -> None:
    assert troubles(execute(colab, notebook, content, site)) == []
    assert (content / COURSE.name / "labs/__init__.py").is_file()


def test_the_first_cell_fetches_the_course_once(python: str, site: Path, content: Path) -> None:
    first, again, shown = run_cells(python, [SETUP, SETUP, SHOW_PATH], content, site)
    assert (first, again) == ([], [])
    assert shown[0].text.split() == ["1", str(content / COURSE.name / "labs/__init__.py")]


def test_the_first_cell_uses_an_earlier_copy_without_the_network(python: str, site: Path, content: Path) -> None:
    run_cells(python, [SETUP], content, site)
    assert run_cells(python, [SETUP], content, None) == [[]]


def test_the_first_cell_finds_the_course_above_it(python: str, content: Path) -> None:
    (content / "notebooks").mkdir()
    (content / "labs").mkdir()
    (content / "labs/__init__.py").touch()
    first, shown = run_cells(python, [SETUP, SHOW_PATH], content / "notebooks", None)
    assert first == []
    assert shown[0].text.split() == ["1", str(content / "labs/__init__.py")]


def only_sentence(outputs: list) -> str:
    """The one sentence that the cell shows."""
    assert [output.output_type for output in outputs] == ["error"]
    assert len(outputs[0].traceback) == 1
    sentence = outputs[0].traceback[0]
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_the_first_cell_says_what_to_do_when_nobody_answers(python: str, content: Path) -> None:
    sentence = only_sentence(run_cells(python, [SETUP], content, None)[0])
    assert f"https://github.com/{COURSE.repository}" in sentence
    assert "open the notebook there" in sentence  # a copy elsewhere on a laptop
    assert "internet connection" in sentence
    assert "run this cell again" in sentence


@pytest.mark.skipif(os.name == "nt", reason="the stand-in for git is a shell script")
def test_the_first_cell_does_not_wait_for_ever(python: str, content: Path, tmp_path: Path) -> None:
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    assert "timeout=120," in SETUP
    impatient = SETUP.replace("timeout=120,", "timeout=1,")
    path = f"{slow.parent}{os.pathsep}{os.environ['PATH']}"
    assert "open the notebook there" in only_sentence(run_cells(python, [impatient], content, None, PATH=path)[0])


def test_the_environment_has_the_versions_that_are_pinned(colab: str) -> None:
    pins = [line.strip() for line in (HERE / "requirements-colab.txt").read_text().splitlines() if "==" in line]
    code = "import sys; from importlib.metadata import version as v; print(*(f'{n}=={v(n)}' for n in sys.argv[1:]))"
    names = [pin.split("==")[0] for pin in pins]
    done = subprocess.run([colab, "-c", code, *names], check=True, capture_output=True, text=True)
    assert done.stdout.split() == pins


if (HERE / "run_explorers.py").exists():

    def test_each_explorers_callbacks_work(colab: str) -> None:
        own = environment(None)
        own["PYTHONPATH"] = os.pathsep.join([str(ROOT), own["PYTHONPATH"]])
        command = [colab, str(HERE / "run_explorers.py")]
        done = subprocess.run(command, env=own, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
