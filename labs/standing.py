"""What has been passed of a notebook, and of all of them: the line at each notebook's top, and the certificate's rows.

Only what the progress file holds, compared with what there is to pass; nothing here writes it.
"""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from labs import checks, quiz
from labs.progress import Progress
from labs.words import many

NOTEBOOKS = ("00", "01", "02", "03", "04", "05", "06", "07")


@dataclass(frozen=True)
class Part:
    """The exercises, questions or drills (`kind`, in the singular) of a notebook, by id."""

    kind: str
    all: tuple[str, ...]
    passed: tuple[str, ...]
    tried: tuple[str, ...]

    @property
    def untouched(self) -> tuple[str, ...]:
        """Those that were never attempted."""
        return tuple(name for name in self.all if name not in self.passed and name not in self.tried)

    def __str__(self) -> str:
        return f"{len(self.passed)} of {many(len(self.all), self.kind)}"


@dataclass(frozen=True, repr=False)
class Standing:
    """What is passed in a notebook; shows itself as one line."""

    notebook: str
    parts: tuple[Part, ...]
    note: str = ""

    def __repr__(self) -> str:
        done = ", ".join(map(str, self.parts))
        said = f"Passed in this notebook so far: {done}." if done else "Nothing to pass here: this notebook shows how."
        if "COLAB_RELEASE_TAG" in os.environ:
            said += " Colab forgets it with its runtime: download .progress.json to keep it."
        return f"{said} {self.note}".rstrip()

    def _repr_html_(self) -> str:
        return f'<div style="font-size:14px;line-height:20px">{escape(repr(self))}</div>'


def standing(notebook: str, progress: Progress | None = None) -> Standing:
    """What is passed of a notebook ("01", or a basename such as "01_eight_requests"), by the reader's progress file.

    In a notebook that runs already it is what its `course` remembers, also where the file can't be written. A file
    that is missing, broken or somebody else's counts as empty, and the note says so. Raises ValueError for a notebook
    that isn't one of the course's.
    """
    number = notebook[:2]
    if number not in NOTEBOOKS:
        raise ValueError(f"there is no notebook {notebook!r}: choose from {', '.join(NOTEBOOKS)}")
    progress = _remembered() if progress is None else progress
    parts = (_exercises(number, progress), _questions("question", _asked(number), progress),
             _questions("drill", _played(number), progress))
    return Standing(number, tuple(part for part in parts if part.all), progress.note)


def _remembered() -> Progress:
    """The progress of the notebook that asks, once its cell with `course = Course(...)` has run; else the file's."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    found = getattr(shell.user_ns.get("course"), "progress", None) if shell else None
    return found if isinstance(found, Progress) else Progress.beside_notebook()


def everything(progress: Progress | None = None) -> list[Standing]:
    """The standing in each notebook, in order."""
    progress = Progress.beside_notebook() if progress is None else progress
    return [standing(number, progress) for number in NOTEBOOKS]


def _asked(number: str) -> list[str]:
    """Ids of the questions that a notebook asks: the last one asks the page's twelve again."""
    return [q.id for q in (quiz.of_the_page() if number == "07" else quiz.for_notebook(number))]


def _played(number: str) -> list[str]:
    """Ids of the drills that a notebook plays: the last one all of them."""
    if number != "07":
        return []
    from labs import drills  # every notebook begins with its standing, and only one of them needs the drills

    return [drills.reply_id(d.id) for d in drills.EVERY]


def _exercises(number: str, progress: Progress) -> Part:
    names = tuple(exercise.id for exercise in checks.for_notebook(number))
    return Part("exercise", names, tuple(n for n in names if progress.passed(n)),
                tuple(n for n in names if progress.attempts(n) and not progress.passed(n)))


def _questions(kind: str, names: Sequence[str], progress: Progress) -> Part:
    """Those whose last reply was right, and those that were answered, but not so the last time."""
    right = set(progress.summary().correct)
    return Part(kind, tuple(names), tuple(n for n in names if n in right),
                tuple(n for n in names if n not in right and any(progress.replies(n))))
