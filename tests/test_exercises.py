"""Exercises in the notebooks agree with the checks that mark them."""
from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest

from labs.checks import EXERCISES, for_notebook
from labs.checks.answers import show
from labs.explorers.asking import _reply_control
from labs.quiz import QUESTIONS

ROOT = Path(__file__).resolve().parent.parent
MASTERS = sorted((ROOT / "solutions").glob("*.ipynb"))


def stated(path: Path) -> dict[str, tuple[int, int]]:
    """(stars, minutes) by exercise, from the text above each exercise cell."""
    found, text = {}, ""
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            text = cell.source
        elif "exercise" in cell.metadata.get("tags", []):
            name = re.search(r'course\.check\("(\w+)"', cell.source)[1]
            stars, minutes = re.search(r"(★+)☆* · (\d+) minutes", text).groups()
            found[name] = len(stars), int(minutes)
    return found


@pytest.mark.parametrize("path", MASTERS, ids=lambda p: p.stem)
def test_stars_and_minutes_are_the_same_in_text_and_check(path: Path) -> None:
    exercises = {e.id: (e.difficulty, e.minutes) for e in for_notebook(path.stem[:2])}
    assert stated(path) == exercises


@pytest.mark.parametrize("path", MASTERS, ids=lambda p: p.stem)
def test_a_notebook_takes_as_long_as_its_exercises_and_some_reading(path: Path) -> None:
    minutes = int(re.search(r"(\d+) minutes · Builds on", "\n".join(c.source for c in nbformat.read(path, 4).cells))[1])
    assert sum(m for _, m in stated(path).values()) + 10 <= minutes <= 60


def test_every_exercise_stands_in_a_notebook() -> None:
    assert sorted(name for path in MASTERS for name in stated(path)) == sorted(EXERCISES)
    assert all(1 <= e.minutes <= 10 for e in EXERCISES.values())


@pytest.mark.parametrize("question", [q for q in QUESTIONS if not q.choices], ids=lambda q: q.id)
def test_a_number_is_asked_for_in_its_unit(question) -> None:
    assert _reply_control(question).description == (question.unit or "")


def test_numbers_in_messages_stay_readable() -> None:
    assert [show(value) for value in (7, 7.0, 1 / 3, 999_999_999_999_999.0, 1e15, -2e15, math.inf)] == [
        "7", "7", "0.333333", "999999999999999", "1e+15", "-2e+15", "inf"]
    assert show(tuple(range(3))) == "[0, 1, 2]"
