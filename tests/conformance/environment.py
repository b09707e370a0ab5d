"""Where vLLM is: an environment of its own, named by LABS_VLLM_PYTHON (see tests/requirements-vllm.txt)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def vllm_python() -> str:
    """The Python of the environment with vLLM; the test skips if none is named."""
    named = os.environ.get("LABS_VLLM_PYTHON")
    if not named:
        pytest.skip("LABS_VLLM_PYTHON names no Python with vLLM: see tests/requirements-vllm.txt")
    return str((ROOT / named).absolute())  # a path that begins at the root stays as it is


def run_in_vllm(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a module of tests/ with that Python, from the root of the repository; its output is kept apart."""
    command = [vllm_python(), "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
