"""What a newcomer waits for: from a clone to the first slider, the notebooks, the import, the size of the installation.

`python tests/timings.py` clones the repository into a temporary folder, installs as the README says, opens the first
notebook in headless Chromium, runs every notebook and with `--suite` the tests, and prints a table with date and
machine. With `--readme` the table also takes the place of the one in README.md. Times depend on the machine and on how
near the package index is.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from statistics import median

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
README = re.compile(r"(<!-- generated: times -->\n).*?(<!-- end: times -->)", re.S)
SLIDER = """
import sys, tempfile, time
sys.path[:0] = ["tests", "."]
from pathlib import Path
from browser_lab import browser, chromium_path, jupyter_lab, opened
with tempfile.TemporaryDirectory() as folder, jupyter_lab(Path(folder)) as lab, browser(chromium_path()) as chrome:
    book = lab.notebook("a.ipynb", "from labs import explorers\\nexplorers.eight_requests()")
    with opened(chrome, lab, book, run=False) as session:
        began = time.monotonic()
        session.page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')")
        session.page.wait_for_selector("svg[role=img]", timeout=60000)
        print(time.monotonic() - began)
"""


def timed(command: list, cwd: Path, **more) -> tuple[float, str]:
    """(seconds, what it printed) of a command. Raises CalledProcessError if it fails."""
    began = time.monotonic()
    done = subprocess.run(list(map(str, command)), cwd=cwd, check=True, capture_output=True, text=True, **more)
    return time.monotonic() - began, done.stdout


def size_mb(folder: Path) -> float:
    """The files below a folder, in MB."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()) / 1e6


def import_seconds(python: Path, code: str, cwd: Path) -> float:
    """What an import adds to starting Python: the median of five, in processes of their own."""
    inner = f"import time; t = time.perf_counter(); {code}; print(time.perf_counter() - t)"
    return median(float(timed([python, "-c", inner], cwd)[1]) for _ in range(5))


def measure(folder: Path, python: str, suite: bool) -> list[tuple[str, str]]:
    """The rows of the table."""
    clone = folder / "clone"
    fetch, _ = timed(["git", "clone", "--quiet", ROOT, clone], folder)
    make, _ = timed([python, "-m", "venv", ".venv"], clone)
    there = clone / ".venv/bin/python"
    bare = size_mb(clone / ".venv")
    install, _ = timed([there, "-m", "pip", "install", "-q", "-r", "requirements.txt"], clone)
    size = size_mb(clone / ".venv") - bare
    rows = [("clone, make an environment, install", f"{fetch + make + install:.0f} s"),
            ("size of what is installed", f"{size:,.0f} MB"),
            ("import labs", f"{import_seconds(there, 'import labs', clone):.3f} s"),
            ("from labs import explorers", f"{import_seconds(there, 'from labs import explorers', clone):.2f} s")]
    timed([there, "-m", "pip", "install", "-q", "-r", "tests/requirements.txt"], clone)
    timed([there, "-c", "import matplotlib.font_manager"], clone)
    rows.append(("from running the first cell to its slider", f"{float(timed([there, '-c', SLIDER], clone)[1]):.1f} s"))
    for path in sorted((clone / "notebooks").glob("[0-9]*.ipynb")):
        if path.stem.startswith("05"):
            continue  # it waits for a server, on purpose
        command = [there, "tests/execute.py", path, path.parent, folder / "executed.ipynb"]
        rows.append((f"notebook {int(path.stem[:2])}, all cells", f"{timed(command, clone)[0]:.1f} s"))
    if suite:
        own = {key: value for key, value in os.environ.items() if not key.startswith("LABS_")}
        tests = [there, "-m", "pytest", "-q", "-m", "not browser and not vllm", "-n", "2"]
        rows.append(("the tests that need neither a browser nor vLLM, two at a time",
                     f"{timed(tests, clone, env=own)[0] / 60:.0f} min"))
    return rows


def main() -> None:
    """Print the table, and keep it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="put the table into README.md")
    parser.add_argument("--suite", action="store_true", help="run the tests too")
    parser.add_argument("--python", default="python3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.python, options.suite)
    measured_on = f"{machine()}, Python {platform.python_version()}"
    table = "\n".join([f"Measured on {date.today():%d %B %Y}, {measured_on}.", "", "| what | measured |", "|---|---|",
                       *(f"| {what} | {how} |" for what, how in rows), ""])
    print(table)
    if options.readme:
        path = ROOT / "README.md"
        path.write_text(README.sub(lambda m: m[1] + table + m[2], path.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
