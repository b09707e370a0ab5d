"""What all tests share: fixed seeds, no progress file, a browser if there is one, and no skipping where asked."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

settings.register_profile("course", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("course")
pytest.register_assert_rewrite("marked")
os.environ["LABS_PROGRESS"] = "off"  # child processes inherit it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job, whose children couldn't be interrupted
    signal.signal(signal.SIGINT, signal.default_int_handler)


def no_skipping(report) -> None:
    """Turn a skip into a failure where LABS_NO_SKIP=1 promises that everything needed is there."""
    if os.environ.get("LABS_NO_SKIP") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"LABS_NO_SKIP=1 lets nothing skip, but this did: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """No skipping inside tests and fixtures."""
    report = yield
    no_skipping(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """No skipping of whole files."""
    report = yield
    no_skipping(report)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """How `pytest -n 2` shares the tests out: a file's together, since they share its fixtures.

    What starts a real vLLM is one row, so that never two of them run at once. It begins first, as tests/live does.
    """
    from nbval_run import NOTEBOOKS, needs_a_server
    from xdist.scheduler import LoadScopeScheduling

    real = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")
            if "mark.vllm" in path.read_text(encoding="utf-8")}
    without = {f"[{path.parent.name}/{path.stem}]" for path in NOTEBOOKS if not needs_a_server(path)}

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, test = nodeid.partition("::")
            alone = file in real and not any(test.endswith(notebook) for notebook in without)
            return "a real vLLM" if alone else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture(autouse=True)
def fixed_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seeds for each test, and no file with a learner's progress."""
    monkeypatch.setenv("LABS_PROGRESS", "off")
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (for code under test that uses the old generator)


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium-like browser; LABS_CHROMIUM names one that is not on the path."""
    named = os.environ.get("LABS_CHROMIUM")
    found = named or next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the path, and LABS_CHROMIUM names none")
    return found


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A JupyterLab that serves copies of labs/ and notebooks/, so that nothing is saved over the course."""
    from browser_lab import jupyter_lab  # not everyone who runs a test has Playwright

    folder = tmp_path_factory.mktemp("lab")
    left_out = shutil.ignore_patterns("__pycache__", ".*", "*.html")
    for name in ("labs", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)
    with jupyter_lab(folder) as running:
        yield running


@pytest.fixture(scope="module")
def chrome(chromium: str) -> Iterator[Any]:
    """A headless browser. Not one for the whole session: while it runs, no other test can use asyncio."""
    from browser_lab import browser

    with browser(chromium) as started:
        yield started


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where screenshots go: the folder that BROWSER_SHOTS names, to look at them, or one that is thrown away."""
    folder = Path(os.environ.get("BROWSER_SHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def font_cache() -> None:
    """Let matplotlib build its font cache here: while it does, it writes to stderr, which no notebook may."""
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=True, capture_output=True)
