"""The line at each notebook's top: what is passed of it, whatever state the progress file is in."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import IPython
import nbformat
import pytest

from labs import checks, quiz
from labs.course import Course
from labs.progress import FILE_NAME, Progress
from labs.standing import NOTEBOOKS, everything, standing

ROOT = Path(__file__).resolve().parent.parent
STORED = sorted(path for folder in ("solutions", "notebooks") for path in (ROOT / folder).glob("*.ipynb"))


def test_a_fresh_reader_has_passed_nothing_of_all_there_is():
    for number in NOTEBOOKS:
        for part in standing(number, Progress(None)).parts:
            assert part.passed == part.tried == ()
            assert part.untouched == part.all


def test_each_exercise_and_question_is_counted_in_one_notebook_at_least():
    counted = {(part.kind, name) for each in everything(Progress(None)) for part in each.parts for name in part.all}
    assert {name for kind, name in counted if kind == "exercise"} == set(checks.EXERCISES)
    assert {name for kind, name in counted if kind == "question"} == {q.id for q in quiz.QUESTIONS}


def test_what_was_passed_tried_and_left_is_told_apart():
    progress = Progress(None)
    names = [exercise.id for exercise in checks.for_notebook("04")]
    progress.record_attempt(names[0])
    progress.record_pass(names[0])
    progress.record_attempt(names[1], "slip")
    asked = [q.id for q in quiz.for_notebook("04")]
    progress.record_reply(asked[0], True)
    progress.record_reply(asked[1], True)
    progress.record_reply(asked[1], False)
    exercises, questions = standing("04_step_loop", progress).parts
    assert (exercises.passed, exercises.tried, exercises.untouched) == ((names[0],), (names[1],), tuple(names[2:]))
    assert (questions.passed, questions.tried) == ((asked[0],), (asked[1],))
    assert repr(standing("04", progress)) == (f"Passed in this notebook so far: 1 of {len(names)} exercises, "
                                              f"1 of {len(asked)} questions.")


def test_the_last_notebook_asks_the_pages_twelve_questions():
    asked = next(part for part in standing("07", Progress(None)).parts if part.kind == "question")
    assert [quiz.question(name).page for name in asked.all] == list(range(1, 13))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"name": "package"}', b"[" * 50_000])
def test_a_broken_or_foreign_file_costs_a_note_and_nothing_else(content, tmp_path, monkeypatch):
    (tmp_path / FILE_NAME).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABS_PROGRESS")
    said = repr(standing("01_eight_requests"))
    assert said.startswith("Passed in this notebook so far: 0 of ")
    assert "could not be understood" in said
    assert "could not" not in repr(standing("01_eight_requests"))  # set aside: said once


def test_on_colab_it_says_how_long_the_file_is_kept(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_20260901")
    assert "Colab forgets it with its runtime" in repr(standing("01", Progress(None)))


def test_an_unknown_notebook_is_named():
    with pytest.raises(ValueError, match="there is no notebook '99_x': choose from 00, 01"):
        standing("99_x", Progress(None))


@pytest.mark.parametrize("path", STORED, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_it_stands_right_below_the_first_code_cell_and_shows_a_fresh_readers_line(path):
    cells = nbformat.read(path, 4).cells
    place = next(i for i, cell in enumerate(cells) if cell.id == "setup")
    assert cells[place + 1].id == "progress"
    assert sum("standing(" in cell.source for cell in cells) == 1
    [output] = cells[place + 1].outputs
    assert output.data["text/plain"] == repr(standing(path.stem, Progress(None)))
    assert re.sub("<[^>]*>", "", unescape(output.data["text/html"])) == output.data["text/plain"]


def test_what_is_passed_in_a_notebook_is_shown_the_next_time_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LABS_PROGRESS")
    course = Course("01_eight_requests")
    course.check("slot_steps_wasted", lambda lengths: len(lengths) * max(lengths) - sum(lengths))
    course.check("head_of_line_wait", lambda lengths: lengths)
    quiz_panel = course.quiz()
    quiz_panel.reply.value = "12"
    quiz_panel.press()
    said = repr(standing("01_eight_requests"))
    assert said.startswith("Passed in this notebook so far: 1 of ")
    assert ", 1 of " in said
    assert (tmp_path / FILE_NAME).exists()
    (tmp_path / FILE_NAME).write_text("not ours")
    assert repr(standing("01_eight_requests")).startswith("Passed in this notebook so far: 0 of ")
    course.check("slot_steps_wasted", lambda lengths: len(lengths) * max(lengths) - sum(lengths))  # runs on
    assert repr(standing("01_eight_requests")).startswith("Passed in this notebook so far: 1 of ")


def test_a_notebook_that_runs_is_told_what_it_remembers(tmp_path, monkeypatch):
    """As where the file can't be written: what was passed is in memory only."""
    course = Course("01_eight_requests", Progress(None))
    course.progress.record_pass("static_steps")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(user_ns={"course": course}))
    assert repr(standing("01_eight_requests")).startswith("Passed in this notebook so far: 1 of 5 exercises")
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(user_ns={"course": 5}))
    assert repr(standing("01_eight_requests")).startswith("Passed in this notebook so far: 0 of 5 exercises")
