"""Each recipe of COOKBOOK.md runs as it is printed, on fewer points."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "COOKBOOK.md").read_text(encoding="utf-8")
RECIPES = dict(zip(re.findall(r"^## (.+)$", TEXT, re.M),
                   re.split(r"^## .+$", TEXT, flags=re.M)[1:], strict=True))
PYTHON = {title: re.search(r"```python\n(.*?)```", body, re.S) for title, body in RECIPES.items()}
FEWER = {"seed=range(100)": "seed=range(2)", "seed=range(1250)": "seed=range(10)"}
SAID = {
    "A sweep of 10,000 points on all cores": "200 points; the largest gain is",
    "The same on a Dask cluster": "80 points; the largest gain is",
    "Where your own traffic lies": "continuous batching",
}


@pytest.mark.slow
@pytest.mark.parametrize("title", SAID)
def test_the_recipe_runs(title: str, tmp_path: Path) -> None:
    code = PYTHON[title][1]
    for many, few in FEWER.items():
        code = code.replace(many, few)
    (tmp_path / "labs").symlink_to(ROOT / "labs", target_is_directory=True)
    (tmp_path / "recipe.py").write_text(code)
    done = subprocess.run([sys.executable, "recipe.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                          env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr[-3000:]
    assert SAID[title] in done.stdout
    assert "Traceback" not in done.stderr, "a recipe that worked must not end in what looks like a fault"
    assert {path.name for path in tmp_path.iterdir()} <= {"labs", "recipe.py", "__pycache__"}, "it leaves nothing"


def test_every_recipe_with_code_is_run_and_ten_thousand_points_are_meant() -> None:
    assert {title for title, code in PYTHON.items() if code} == set(SAID)
    assert all(many in TEXT for many in FEWER)
    assert 20 * 5 * 100 == 4 * 2 * 1250 == 10_000
