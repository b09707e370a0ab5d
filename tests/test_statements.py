"""Every statement of the page has its place in the course: a cell, an exercise, a drill or a question."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from html import unescape
from pathlib import Path

import nbformat
import pytest
from statements import HEADINGS, ROWS, Row

from labs import checks, drills, quiz

ROOT = Path(__file__).resolve().parent.parent
Book = dict[str, str]  # a notebook's cells: id -> source and stored output


@cache
def book(number: str) -> Book | None:
    """The cells of a master, or None if there is no such notebook."""
    found = sorted((ROOT / "solutions").glob(f"{number}_*.ipynb"))
    return cells(nbformat.read(found[0], 4)) if found else None


def cells(notebook: nbformat.NotebookNode) -> Book:
    """The text of each cell: what is written, and what a reader sees below it."""
    return {cell.id: f"{cell.source}\n{output_text(cell)}" for cell in notebook.cells}


def output_text(cell: nbformat.NotebookNode) -> str:
    """All that is stored below a cell, pictures' bytes aside."""
    parts = []
    for output in cell.get("outputs", []):
        parts += [output.get("text", ""), *(str(value) for value in output.get("data", {}).values())]
    return unescape(unescape(re.sub(r"base64,[\w+/=]+", "", "\n".join(parts))))


def missing(row: Row, books: dict[str, Book | None]) -> list[str]:
    """The places of a row that aren't there, or don't hold what they must."""
    return [place for place, text in row.places if not there(place, text, books)]


def there(place: str, text: str, books: dict[str, Book | None]) -> bool:
    """Whether a place exists and holds the text."""
    kind, _, name = place.partition("/")
    if kind == "question":
        return any(q.id == name and text in f"{q.answer} {' '.join(o.why for o in q.options)}" for q in quiz.QUESTIONS)
    if kind == "exercise":
        return name in checks.EXERCISES
    if kind == "drill":
        return any(d.id == name for d in drills.DRILLS)
    return text in ((books.get(kind) or {}).get(name) or "\0") if text else name in (books.get(kind) or {})


def all_books() -> dict[str, Book | None]:
    return {f"{n:02}": book(f"{n:02}") for n in range(8)}


RowParam = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@RowParam
def test_a_statement_is_shown_where_the_table_says(row):
    assert missing(row, all_books()) == []


@RowParam
def test_without_one_of_its_cells_its_row_is_red(row):
    for place, _ in row.places:
        kind, _, name = place.partition("/")
        if kind.isdigit():
            books = all_books()
            assert books[kind] is not None
            books[kind] = {cell: text for cell, text in books[kind].items() if cell != name}
            assert place in missing(row, books)


@RowParam
def test_the_learner_has_those_cells_too(row):
    for place, _ in row.places:
        kind, _, name = place.partition("/")
        if kind.isdigit():
            [path] = (ROOT / "notebooks").glob(f"{kind}_*.ipynb")
            assert name in {cell.id for cell in nbformat.read(path, 4).cells}


def test_a_question_exercise_or_drill_that_isnt_there_is_seen():
    row = Row("x", "y", (("question/none", ""), ("exercise/none", ""), ("drill/none", ""), ("01/none", ""),
                         ("01/static", "no such text"), ("99/static", "")))
    assert missing(row, all_books()) == [place for place, _ in row.places]


def test_every_heading_of_the_page_has_its_rows():
    counted = Counter(row.heading for row in ROWS)
    assert set(counted) == set(HEADINGS)
    assert all(counted[heading] >= 3 for heading in HEADINGS if not heading.startswith("Checklist"))
    assert all(counted[heading] >= 2 for heading in HEADINGS)


def test_no_statement_stands_twice_and_each_has_a_place():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.places for row in ROWS)
    assert sum(row.corrected for row in ROWS) >= 15  # the facts that the course corrects


def test_every_drill_and_each_of_the_pages_questions_is_named():
    named = {place for row in ROWS for place, _ in row.places}
    unnamed = {d.id for d in drills.DRILLS} - {place.partition("/")[2] for place in named if place.startswith("drill/")}
    assert unnamed <= {"prefix_flattery"}  # not the page's: the course adds it
    assert {f"question/{q.id}" for q in quiz.of_the_page()} <= named
