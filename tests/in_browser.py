"""Run notebooks as a browser's Python would: with no threads, no processes, no sockets, no signals.

`python tests/in_browser.py 01_eight_requests.ipynb ...` runs each from the folder that it lies in, cell by cell, in
one process each, and ends with status 1 if a cell failed or wrote to stderr. Pyodide refuses what is refused here;
the packages blocked are those that it has not.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import multiprocessing.process
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

ABSENT = ("fcntl", "resource", "termios", "openai", "httpx", "starlette", "uvicorn", "prometheus_client", "distributed")
HERE = "a browser has none of this: "


def refuse(what: str):
    """A function that fails as Pyodide does."""
    def refused(*_, **__):
        raise OSError(138, HERE + what)
    return refused


def become_a_browser() -> None:
    """From here on this process is as poor as a page. There is no way back."""
    def no_thread(*_, **__):
        raise RuntimeError("can't start new thread")

    threading.Thread.start = no_thread
    subprocess.Popen.__init__ = refuse("processes")
    multiprocessing.process.BaseProcess.start = refuse("processes")
    os.fork = os.system = refuse("processes")
    socket.socket.connect = socket.socket.bind = refuse("sockets")
    for name in ABSENT:
        sys.modules[name] = None
    sys.platform = "emscripten"
    asyncio.run = refuse("a second event loop")


def run(path: Path) -> list[str]:
    """What went wrong in the notebook's cells."""
    book = json.loads(path.read_text(encoding="utf-8"))
    os.chdir(path.parent)
    shell = InteractiveShell.instance(colors="NoColor", history_length=0)
    shell.history_manager.enabled = False
    troubles = []
    for cell in book["cells"]:
        if cell["cell_type"] != "code" or cell.get("id") == "in-the-browser":
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            result = shell.run_cell("".join(cell["source"]), store_history=False)
        if not result.success:
            error = result.error_in_exec or result.error_before_exec
            troubles.append(f"{path.name}, cell {cell.get('id')}: {type(error).__name__}: {error}")
        elif said.getvalue():
            troubles.append(f"{path.name}, cell {cell.get('id')}: stderr: {said.getvalue()[:200]}")
    return troubles


if __name__ == "__main__":
    os.environ["LABS_PROGRESS"] = "off"
    InteractiveShell.instance(colors="NoColor").history_manager.enabled = False
    import matplotlib.pyplot  # noqa: F401  (its font cache may want a timer, which the browser's own build does not)

    become_a_browser()
    began, found = time.perf_counter(), []
    for name in sys.argv[1:]:
        found += run(Path(name).resolve())
    print("\n".join(found) or f"{len(sys.argv) - 1} notebooks, {time.perf_counter() - began:.1f} s: nothing is amiss")
    sys.exit(bool(found))
