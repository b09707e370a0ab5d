"""The teaching notes: their timing, what they name, and the wrong answers, which are the checks' own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest

from labs import checks, quiz, teaching
from solutions import build

ROOT = Path(__file__).resolve().parent.parent
NOTES = (ROOT / "TEACHING.md").read_text(encoding="utf-8")


def generated(text: str) -> str:
    return text.split("<!-- generated: wrong answers -->\n")[1].split("<!-- end: wrong answers -->")[0]


def test_the_wrong_answers_are_the_checks_own():
    assert generated(NOTES) == teaching.wrong_answers() + "\n"
    for name in teaching.WORKSHOP:
        exercise = checks.EXERCISES[name]
        for mistake in teaching.distinct(exercise.mistakes)[:teaching.SHOWN]:
            assert f"- {mistake.hint} *Then:* {mistake.stronger}\n" in NOTES
    for question in quiz.of_the_page():
        if question.slips:
            assert question.slips[0][1] in NOTES


def test_nothing_is_listed_twice():
    listed = re.findall(r"^- (.*) \*Then:\* (.*)$", NOTES, re.MULTILINE)
    assert len(listed) == len(teaching.WORKSHOP) * teaching.SHOWN
    for said in zip(*listed, strict=True):
        assert len(set(said)) == len(said)


def test_a_changed_hint_turns_the_check_red(tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns(".git", "__pycache__", ".venv*", "*.ipynb"))
    course = build.read_course(root)
    assert build.pages(course)[root / "TEACHING.md"] == NOTES
    path = root / "labs/checks/eight_requests.py"
    path.write_text(path.read_text().replace("That is every slot-step of the batch", "Those are all slot-steps"))
    assert "Those are all slot-steps" in build.pages(course)[root / "TEACHING.md"]
    assert any(said.startswith("TEACHING.md: it is not what labs/ gives") for said in build.check(course, []))


def rows() -> list[list[str]]:
    """The rows of the timetable."""
    table = NOTES.split("## Two hours")[1].split("## What to skip")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
            if re.match(r"\| *\d", line)]


def test_the_timetable_is_two_hours_and_each_row_has_time_for_its_exercises():
    assert sum(int(row[0]) for row in rows()) == 120
    for minutes, _, what, _ in rows():
        named = [name for name in re.findall(r"`(\w+)`", what) if name in checks.EXERCISES]
        assert sum(checks.EXERCISES[name].minutes for name in named) < int(minutes)


def test_the_exercises_of_the_timetable_are_those_whose_mistakes_are_listed():
    named = [name for row in rows() for name in re.findall(r"`(\w+)`", row[2])]
    assert named == list(teaching.WORKSHOP)
    for minutes_row in rows():
        for name in re.findall(r"`(\w+)`", minutes_row[2]):
            assert int(checks.EXERCISES[name].notebook) == int(minutes_row[1])


@pytest.mark.parametrize("heading", ["Before", "Two hours", "What to skip", "Questions for discussion",
                                     "Common wrong answers"])
def test_what_somebody_who_gives_it_needs_is_there(heading):
    assert f"\n## {heading}\n" in NOTES


def test_the_readme_leads_to_it_and_its_notebooks_exist():
    assert "(TEACHING.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    numbers = {int(row[1]) for row in rows() if row[1]}
    there = {int(path.stem[:2]) for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    assert numbers <= there
    assert NOTES.count("?") >= 12


def test_its_questions_can_be_answered_from_the_course():
    """Words of the discussion that a notebook must have taught."""
    text = "\n".join(cell.source for path in sorted((ROOT / "solutions").glob("*.ipynb"))
                     for cell in nbformat.read(path, 4).cells)
    for word in ("p99", "max_num_seqs", "ITL", "benchmark"):
        assert word in text
