"""What every exercise's check is held to, whichever notebook it belongs to: used by tests/test_check*.py."""

from __future__ import annotations

import pytest

from labs.checks import EXERCISES, check
from labs.checks.answers import copied
from labs.checks.marking import ANYWHERE, NOT_ATTEMPTED, NOT_YET, PASSED, SLIPS

ON_PAPER = "Work this case out on paper, then compare step by step."


def rows(table):
    """One pytest case for each answer of a table, named after its exercise."""
    listed = [(name, i, row if isinstance(row, tuple) else (row,))
              for name, found in table.items() for i, row in enumerate(found)]
    return [pytest.param(name, *row, id=f"{name}-{i}-{(*row, '')[1]}") for name, i, row in listed]


def hints(name):
    """key -> mistake, for everything that the check of this exercise can recognise."""
    return {m.key: m for m in (*ANYWHERE, *(m for m, _ in SLIPS), *EXERCISES[name].mistakes)}


def assert_passes(name, answer):
    """A right answer, and what it shows."""
    result = check(name, answer)
    assert (result.status, result.message) == (PASSED, f"Passed: {EXERCISES[name].shows}")


def assert_hinted(name, answer, key):
    """A wrong answer gets this mistake's hint and then the stronger one; one that nobody knows gets a case worked."""
    first, again = check(name, answer), check(name, answer, attempt=2)
    assert (first.status, first.mistake) == (again.status, again.mistake) == (NOT_YET, key)
    assert first.message.startswith(f"Not yet: {name}(")
    if key:
        assert first.message.endswith(hints(name)[key].hint)
        assert again.message.endswith(hints(name)[key].stronger)
        return
    case = first.message.removesuffix(ON_PAPER)
    assert case != first.message
    assert again.message.startswith(case)  # and then the case, worked out
    assert len(again.message) > len(case) + 20
    worked_out = [EXERCISES[name].explain(*copied(args)) for args, _ in EXERCISES[name].cases()]
    assert again.message.endswith(tuple(worked_out))


def assert_not_attempted(name):
    """A stub, and what stands for nothing at all."""
    def stub(*args):
        raise NotImplementedError

    for answer in (stub, lambda *args: None, lambda *args: ..., None, ...):
        result = check(name, answer)
        assert (result.status, result.message) == (NOT_ATTEMPTED, f"Not attempted yet: {EXERCISES[name].task}")


def assert_complete(exercise, longest=200):
    """The exercise as data: texts that end, hints that differ, a signature that fits its cases."""
    assert 1 <= exercise.minutes <= 10
    assert exercise.difficulty in (1, 2, 3)
    assert exercise.signature.startswith(f"{exercise.id}(")
    assert len(exercise.mistakes) >= 5
    assert len({m.key for m in exercise.mistakes}) == len(exercise.mistakes)
    for text in (exercise.task, exercise.shows, *(t for m in exercise.mistakes for t in (m.hint, m.stronger))):
        assert text.strip() == text
        assert text[-1] in ".]?", text
        assert len(text) < longest, text
    assert all(m.hint != m.stronger for m in exercise.mistakes)
    assert len(exercise.signature.split(",")) == len(exercise.worked[0][0])
