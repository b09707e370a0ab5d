"""A sweep over a Dask cluster whose worker dies gives the same rows as one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "dask_sweep.py"


@pytest.mark.slow
def test_a_worker_killed_in_mid_sweep_costs_no_row() -> None:
    pytest.importorskip("distributed", reason="distributed is not installed: pip install -r tests/requirements.txt")
    done = subprocess.run([sys.executable, str(SCRIPT), "160"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found == {"points": 160, "workers": 3, "killed": True, "every call of progress": True, "same rows": True}
