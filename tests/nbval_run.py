"""Run nbval, strictly, over a notebook: every output must be what is stored in the file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(path for folder in ("notebooks", "solutions") for path in (ROOT / folder).glob("*.ipynb"))


def needs_a_server(notebook: Path) -> bool:
    """Whether its stored outputs can only be had from a real vLLM."""
    return notebook.stem.startswith("05")


def nbval(notebook: Path, seconds: float = 1200) -> tuple[bool, str]:
    """Whether the notebook gives its stored outputs, and what nbval said."""
    command = [
        *(sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout=300"),
        *("--nbval-sanitize-with", str(ROOT / "tests/nbval_sanitize.cfg")),
        # Jupyter's own warnings, in the process that drives the kernel, are not the notebook's.
        *("-p", "no:cacheprovider", "-W", "ignore", "--color=no", "-q", str(notebook)),
    ]
    environment = {key: value for key, value in os.environ.items() if key not in ("MPLBACKEND", "PYTEST_ADDOPTS")}
    environment |= {"LABS_PROGRESS": "off", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        return False, f"{notebook.name} took more than {error.timeout:.0f} s"
    return done.returncode == 0, done.stdout + done.stderr
