"""The notebooks as Binder runs them: Python 3.12, its base packages and what binder/ names, one core, under 2 GB.

`python tests/binder_like.py [--python python3.12]` makes the environment as repo2docker would, in a temporary folder,
runs each notebook on one core in a copy of the repository, and prints seconds and the most memory that the kernel took
beside the size of the environment and the time until JupyterLab answers. Ends with status 1 if a cell failed or wrote
to stderr, or if a kernel and JupyterLab together took more than 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BASE = ("jupyterlab==4.4.*", "ipywidgets==8.1.*", "nbconvert")  # of repo2docker's base image, what matters here
LIMIT_MB = 2048
LABS = {"LABS_PROGRESS": "off", "BINDER_SERVICE_HOST": "mybinder.org", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def tree_mb(pid: int) -> float:
    """Memory of a process and all below it, now, in MB; shared pages count for each."""
    total, todo = 0.0, [pid]
    while todo:
        one = todo.pop()
        try:
            status = Path(f"/proc/{one}/status").read_text()
            total += next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0) / 1024
            for task in Path(f"/proc/{one}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def environment(folder: Path, python: str, root: Path) -> tuple[Path, float]:
    """Make it; its Python, and its size in MB."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    install = [folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, *BASE], check=True)
    subprocess.run([*install, "-r", "binder/requirements.txt"], cwd=root, check=True)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink()) / 1e6
    return folder / "bin/python", size


def start_up(python: Path, root: Path) -> tuple[float, float]:
    """(seconds until JupyterLab answers, its memory in MB)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*one_core(), python, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
               f"--ServerApp.port={port}", "--IdentityProvider.token="]
    began = time.monotonic()
    with open(root / "lab.log", "w") as log:
        lab = subprocess.Popen(command, cwd=root, stdout=log, stderr=log, env=os.environ | LABS)
        try:
            while time.monotonic() - began < 180:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/lab", timeout=5).close()
                    return time.monotonic() - began, tree_mb(lab.pid)
                except (urllib.error.URLError, OSError):
                    time.sleep(0.2)
            raise RuntimeError(f"JupyterLab did not answer:\n{(root / 'lab.log').read_text()[-2000:]}")
        finally:
            lab.terminate()
            lab.wait(30)


def one_core() -> list[str]:
    """A prefix that keeps a command on one core, where that can be done."""
    return ["taskset", "-c", "0"] if shutil.which("taskset") else []


def run(python: Path, notebook: Path) -> tuple[float, float, list[str]]:
    """(seconds, the most memory in MB, what went wrong) of one notebook."""
    executed = notebook.with_suffix(".executed")
    command = [*one_core(), python, ROOT / "tests/execute.py", notebook, notebook.parent, executed]
    began, most = time.monotonic(), 0.0
    running = subprocess.Popen(list(map(str, command)), env=os.environ | LABS)
    while running.poll() is None:
        most = max(most, tree_mb(running.pid))
        time.sleep(0.1)
    if running.returncode:
        return time.monotonic() - began, most, [f"{notebook.name} was not run"]
    outputs = [(cell["id"], out) for cell in json.loads(executed.read_text())["cells"]
               for out in cell.get("outputs", [])]
    troubles = [f"{notebook.name}, cell {where}: {out.get('evalue') or ''.join(out.get('text', ''))}"
                for where, out in outputs if out["output_type"] == "error" or out.get("name") == "stderr"]
    return time.monotonic() - began, most, troubles


def main(python: str, names: list[str]) -> int:
    """Print the table; how much went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "home"
        shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__", "site", ".*_cache"))
        there, size = environment(Path(folder) / "env", python, root)
        subprocess.run([there, "-c", "import matplotlib.font_manager"], check=True, capture_output=True)
        seconds, lab = start_up(there, root)
        print(f"environment {size:,.0f} MB; JupyterLab answers after {seconds:.1f} s, takes {lab:,.0f} MB", flush=True)
        print(f"{'notebook':28}{'seconds':>9}{'most MB':>9}")
        troubles = []
        for path in sorted((root / "notebooks").glob("[0-9]*.ipynb")):
            if names and path.stem[:2] not in names:
                continue
            took, most, found = run(there, path)
            if most + lab > LIMIT_MB:
                found.append(f"{path.name} and JupyterLab took {most + lab:,.0f} MB, more than {LIMIT_MB:,}")
            troubles += found
            print(f"{path.stem:28}{took:9.1f}{most:9.0f}", flush=True)
    print("\n".join(troubles) or "no cell failed, nothing on stderr")
    return len(troubles)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3.12")
    parser.add_argument("numbers", nargs="*", help="such as 00 01; all by default")
    options = parser.parse_args()
    sys.exit(main(options.python, options.numbers) > 0)
