"""What the notebooks' cells call: predictions set beside what happened, checks that are remembered, tables."""
from __future__ import annotations

import json
from pathlib import Path

from labs.course import Course, Reveal, table, where_am_i
from labs.progress import Progress


def test_a_prediction_is_set_beside_what_happened(tmp_path: Path) -> None:
    course = Course("01_eight_requests", Progress(tmp_path / "p.json"))
    panel = course.predict("waste", "How much?", 0, 100, "%")
    panel.slider.value = 40
    panel.commit()
    assert repr(course.reveal("waste", 74.6, "%", 1)) == ("You predicted 40.0 %. It is 74.6 %: "
                                                          "you were 34.6 points too low.")
    again = Course("02_batching_simulator", Progress(tmp_path / "p.json"))
    assert again.reveal("waste", 40, "%").predicted == 40


def test_reveals_in_words() -> None:
    assert repr(Reveal(None, 950, "steps")).endswith("run this cell again. It is 950 steps.")
    assert repr(Reveal(950, 950.4, "steps")) == "You predicted 950 steps. It is 950 steps: exactly that."
    assert repr(Reveal(3, 2, "steps")) == "You predicted 3 steps. It is 2 steps: you were 1 step too high."
    assert repr(Reveal(1000, 950, "steps")) == "You predicted 1,000 steps. It is 950 steps: you were 50 steps too high."
    for predicted in (None, 3):
        assert repr(Reveal(predicted, None, "drills")).endswith("There is no result yet: answer above, then run this "
                                                                "cell again.")
    assert "<b>" in Reveal(1, 2, "<b>")._repr_html_() and "&lt;b&gt;" in Reveal(1, 2, "<b>")._repr_html_()


def test_trouble_with_the_progress_file_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text("{{{corrupt")
    course = Course("01_eight_requests", Progress(path))
    first, second = course.reveal("x", 1), course.reveal("x", 1)
    assert first.note and first.note in repr(first) and first.note in first._repr_html_()
    assert not second.note


def test_a_pass_that_cannot_be_kept_says_so_at_once(tmp_path) -> None:
    course = Course("01_eight_requests", Progress(tmp_path / "no such folder" / "p.json"))
    first, second = (course.check("slot_steps_wasted", lambda ls: len(ls) * max(ls) - sum(ls)) for _ in range(2))
    assert (first.status, second.status) == ("passed", "passed")
    assert "kept only until the kernel stops" in first.message and first.message.startswith(second.message)
    assert "kept only" not in second.message


def test_a_pass_is_remembered_and_a_hint_grows(tmp_path: Path) -> None:
    course = Course("01_eight_requests", Progress(tmp_path / "p.json"))
    hints = [course.check("slot_steps_wasted", sum).message for _ in range(2)]
    assert hints[0] != hints[1]
    assert course.check("slot_steps_wasted", lambda ls: len(ls) * max(ls) - sum(ls)).status == "passed"
    assert "slot_steps_wasted" in json.loads((tmp_path / "p.json").read_text())["passed"]


def test_the_quiz_asks_what_was_missed_first() -> None:
    course = Course("01_eight_requests", Progress(None))
    asked = [question.id for question in course.quiz().questions]
    course.progress.record_reply(asked[-1], False)
    for name in asked[:-1]:
        course.progress.record_reply(name, True)
    assert course.quiz().questions[0].id == asked[-1]


def test_tables_line_up_and_escape() -> None:
    shown = table(("name", "value"), [("a<b", 1234.5), ("c", float("nan"))], ["", ",.1f"])
    assert repr(shown) == "name    value\na<b   1,234.5\nc           –"
    assert "a&lt;b" in shown._repr_html_() and "<td" in shown._repr_html_()


def test_where_am_i_names_what_a_report_needs() -> None:
    names = [row[0] for row in where_am_i().rows]
    assert {"running in", "Python", "numpy", "ipywidgets", "labs found in"} <= set(names)
