"""A JupyterLab of its own, with a headless Chromium looking at it, for tests and benchmarks that need real events."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from playwright.sync_api import Browser, Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM_FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                  "--disable-component-update", "--disable-sync")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
READY, RUN = 120, 180  # seconds
# Texts of the picture that lie over each other, or outside of it. A halo of 1 unit is not yet an overlap.
CLASHES = """svg => {
    const view = svg.viewBox.baseVal, found = [];
    const all = [...svg.querySelectorAll('text')].map(e => [e.textContent, e.getBBox()]);
    all.forEach(([words, a], i) => {
        const inside = a.x >= 0 && a.y >= 0 && a.x + a.width <= view.width && a.y + a.height <= view.height;
        if (!inside) found.push(words + ' | cut');
        all.slice(i + 1).forEach(([others, b]) => {
            const wide = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
            const high = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
            if (wide > 1 && high > 3) found.push(words + ' | ' + others);
        });
    });
    return found;
}"""


def chromium_path() -> str | None:
    """The browser that LABS_CHROMIUM names, or the first on the path."""
    return os.environ.get("LABS_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, the secret that opens it, and the folder that it serves."""

    url: str
    token: str
    folder: Path

    def notebook(self, name: str, *cells: str) -> str:
        """Write a notebook with these code cells; its path in the folder."""
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        write_notebook(book, self.folder / name)
        return name


@dataclass
class Session:
    """A page with a notebook in it, and what went wrong in the browser so far."""

    page: Page
    problems: list[str] = field(default_factory=list)


def write_notebook(book: nbformat.NotebookNode, path: Path) -> None:
    """Write it with a kernel named, or JupyterLab would ask for one."""
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, path)


@contextmanager
def jupyter_lab(folder: Path, dark: bool = False) -> Iterator[Lab]:
    """Serve `folder` on a free port of this machine; everything that was started is gone afterwards."""
    state, port, token = folder / ".jupyter", _free_port(), secrets.token_hex(16)
    _settings(state / "settings", dark)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
               "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
               f"--ServerApp.root_dir={folder}", "--LabApp.extension_manager=readonly"]
    places = {"CONFIG": "JUPYTER_CONFIG_DIR", "run": "JUPYTER_RUNTIME_DIR", "settings": "JUPYTERLAB_SETTINGS_DIR",
              "workspaces": "JUPYTERLAB_WORKSPACES_DIR", "ipython": "IPYTHONDIR"}
    env = os.environ | {name: str(state / place) for place, name in places.items()}
    env |= {"JUPYTER_TOKEN": token, "PYTHONPATH": str(ROOT), "LABS_PROGRESS": "off"}
    # A file, not a pipe: a pipe that nobody reads stops the server after 64 KB.
    with open(state / "log.txt", "w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
        try:
            lab = Lab(f"http://127.0.0.1:{port}", token, folder)
            _wait_until_ready(lab, server, state / "log.txt")
            yield lab
        finally:
            _stop(server)


@contextmanager
def browser(chromium: str) -> Iterator[Browser]:
    """A headless browser."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM_FLAGS))
        try:
            yield started
        finally:
            started.close()


@contextmanager
def opened(browser: Browser, lab: Lab, notebook: str, width: int = 1300, height: int = 1200,
           run: bool = True, zoom: float = 1) -> Iterator[Session]:
    """`notebook` open and, if `run`, run from top to bottom. Zoomed, the window holds fewer, larger pixels."""
    viewport = {"width": round(width / zoom), "height": round(height / zoom)}
    page = browser.new_page(viewport=viewport, device_scale_factor=zoom)
    session = Session(page)
    page.on("pageerror", lambda error: session.problems.append(f"error in the page: {error}"))
    page.on("console", lambda said: session.problems.append(f"console: {said.text}") if said.type == "error" else None)
    try:
        page.goto(f"{lab.url}/lab/tree/{notebook}?token={lab.token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=READY * 1000)
        page.wait_for_function("window.jupyterapp && window.jupyterapp.shell.currentWidget?.sessionContext?.isReady",
                               timeout=READY * 1000)
        session.problems.clear()
        if run:
            run_all(page)
        yield session
    finally:
        page.close()


def run_all(page: Page) -> None:
    """Run all cells, and wait until each has run."""
    page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_function(
        """() => {
            const cells = [...window.jupyterapp.shell.currentWidget.content.model.cells];
            const code = cells.filter(c => c.type === 'code' && c.sharedModel.source.trim());
            return code.every(c => c.executionCount !== null && c.executionState !== 'running');
        }""", timeout=RUN * 1000)


def outputs(page: Page) -> list[dict]:
    """All outputs of the notebook as they would be saved."""
    return page.evaluate(
        """() => [...window.jupyterapp.shell.currentWidget.content.model.cells].filter(c => c.type === 'code')
               .flatMap(c => c.outputs.toJSON())""")


def numbers(panel: Locator) -> list[str]:
    """The large numbers that a panel shows."""
    return panel.locator(".number").all_inner_texts()


def _settings(folder: Path, dark: bool) -> None:
    """No question about news, the theme that was asked for, and nothing saved behind the test's back."""
    extension = folder / "@jupyterlab" / "apputils-extension"
    extension.mkdir(parents=True)
    news = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
    (extension / "notification.jupyterlab-settings").write_text(json.dumps(news))
    theme = {"theme": "JupyterLab Dark" if dark else "JupyterLab Light"}
    (extension / "themes.jupyterlab-settings").write_text(json.dumps(theme))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_ready(lab: Lab, server: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + READY
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"{lab.url}/api/status?token={lab.token}", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError("JupyterLab did not start:\n" + log.read_text()[-3000:])


def _stop(server: subprocess.Popen) -> None:
    """Ask first, so that the server ends its kernels; then make sure."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if server.poll() is None:
            os.killpg(server.pid, sign)
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                continue
