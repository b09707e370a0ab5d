"""A short soak of each explorer: it stays as small as it was and draws the last value (tests/soak.py runs for long)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from soak import EXPLORERS, GROWTH, SETTLED, values  # noqa: E402


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc, which this system lacks")
@pytest.mark.parametrize("name", EXPLORERS)
def test_it_stays_small_and_draws_the_last_value(name: str) -> None:
    events = SETTLED + (100 if name == "step_player" else 700)
    command = [sys.executable, str(HERE / "soak.py"), name, str(events)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert row["events"] == events
    assert row["grown_mb"] <= GROWTH, row
    assert row["last_drawn"]
    assert (row["figures"], row["error"]) == (0, "")


def test_the_walk_reaches_both_ends_and_turns() -> None:
    class Slider:
        min, max, step = 1, 4, 1

    assert [values(Slider, i) for i in range(8)] == [1, 2, 3, 4, 3, 2, 1, 2]
