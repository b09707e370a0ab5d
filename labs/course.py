"""What the notebooks' own cells call: predictions, checks, the quiz, tables. It holds the reader's progress."""
from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from labs import checks, quiz
from labs.progress import Progress


class Course:
    """One notebook's session. `notebook` is its basename, such as "01_eight_requests".

    `progress` is where predictions and passes go; by default a file beside the notebook.
    """

    def __init__(self, notebook: str, progress: Progress | None = None) -> None:
        self.notebook = notebook
        self.progress = Progress.beside_notebook() if progress is None else progress
        self._noted = ""

    def predict(self, name: str, question: str, low: float, high: float, unit: str = "") -> Any:
        """A panel that asks for a number from `low` to `high` before the cell that reveals it; stored under `name`."""
        from labs import explorers  # ipywidgets loads only where a panel is wanted

        return explorers.prediction(question, low, high, unit, lambda value: self.progress.predict(name, value),
                                    self.progress.prediction(name))

    def reveal(self, name: str, actual: float | None, unit: str = "", digits: int = 0) -> Reveal:
        """The prediction stored under `name` beside what happened; None: nothing has yet."""
        actual = None if actual is None else float(actual)
        return Reveal(self.progress.prediction(name), actual, unit, digits, self._note())

    def _note(self) -> str:
        """What is the matter with the progress file, if anything is and it was not said yet."""
        news, self._noted = self.progress.note if self.progress.note != self._noted else "", self.progress.note
        return news

    def check(self, exercise: str, answer: Any) -> checks.Result:
        """Mark the reader's function; a pass is remembered, and a hint grows stronger if the mistake is made again."""
        result = checks.check(exercise, answer, progress=self.progress)
        return replace(result, message=f"{result.message} {self._note()}".rstrip())

    def quiz(self) -> Any:
        """This notebook's check-yourself questions, the ones missed before first; the last one's are the page's."""
        from labs import explorers

        last = self.notebook[:2] == "07"
        questions = {q.id: q for q in (quiz.of_the_page() if last else quiz.for_notebook(self.notebook[:2]))}
        due = [questions[name] for name in self.progress.due(questions)] or list(questions.values())
        some = f"{len(due)} of {len(questions)} questions now: what you had right is left out for a while."
        return explorers.quiz(due, lambda question, marked: self.progress.record_reply(question.id, marked.passed),
                              own_words=last, note=some if len(due) < len(questions) else "")

    def drills(self, incidents: Sequence[Any] | None = None) -> Any:
        """The on-call drills, those missed before first: the simulated ones, or these `incidents`."""
        from labs import drills, explorers

        by_reply = {drills.reply_id(drill.id): drill for drill in incidents or drills.DRILLS}
        due = self.progress.due(by_reply) or list(by_reply)
        order = [by_reply[name] for name in [*due, *(name for name in by_reply if name not in due)]]
        return explorers.drills(order, lambda drill, passed: self.progress.record_reply(
            drills.reply_id(drill.id), passed))

    def certificate(self) -> Any:
        """A panel with the certificate, of what is passed by now."""
        from labs import explorers
        from labs.certificate import certificate

        return explorers.certificate(lambda name: certificate(name, self.progress))


@dataclass(frozen=True)
class Reveal:
    """A prediction (None if there was none) beside the number that came out (None if none has yet)."""

    predicted: float | None
    actual: float | None
    unit: str = ""
    digits: int = 0
    note: str = ""

    def __repr__(self) -> str:
        return f"{self._guess}{self._what} {self.note}".rstrip()

    def _repr_html_(self) -> str:
        return (f'<div style="border-left:4px solid #0072B2;padding:.2em .8em">{escape(self._guess)}'
                f'<b>{escape(self._what)}</b> {escape(self.note)}</div>')

    def _number(self, value: float) -> str:
        number = f"{value:,.{self.digits}f}"
        unit = self.unit.removesuffix("s") if number == "1" else self.unit
        return f"{number} {unit}".rstrip()

    @property
    def _guess(self) -> str:
        if self.predicted is None:
            return "No prediction committed: make one above and run this cell again. "
        return f"You predicted {self._number(self.predicted)}. "

    @property
    def _what(self) -> str:
        if self.actual is None:
            return "There is no result yet: answer above, then run this cell again."
        if self.predicted is None:
            return f"It is {self._number(self.actual)}."
        difference = self.predicted - self.actual
        if abs(difference) < 0.5 * 10**-self.digits:
            return f"It is {self._number(self.actual)}: exactly that."
        side = "high" if difference > 0 else "low"
        off = replace(self, unit="points") if self.unit == "%" else self
        return f"It is {self._number(self.actual)}: you were {off._number(abs(difference))} too {side}."


@dataclass(frozen=True)
class Table:
    """Rows of text under a header, shown as HTML where that is possible and as aligned text elsewhere."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        width = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = (self.header, *self.rows)
        return "\n".join("  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in
                                   enumerate(zip(line, width, strict=True))).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        def line(tag: str, cells: tuple[str, ...]) -> str:
            style = ["text-align:left"] + ["text-align:right"] * (len(cells) - 1)
            return "<tr>" + "".join(f'<{tag} style="{s};padding:.15em .8em">{escape(c)}</{tag}>'
                                    for s, c in zip(style, cells, strict=True)) + "</tr>"

        body = "".join(line("td", row) for row in self.rows)
        return f'<table><thead>{line("th", self.header)}</thead><tbody>{body}</tbody></table>'


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], formats: Sequence[str] = ()) -> Table:
    """Rows of values as a `Table`; `formats` gives a format spec a column ("" = as it is, NaN shows as a dash)."""
    specs = [*formats, *[""] * (len(header) - len(formats))]
    return Table(tuple(header), tuple(tuple(_cell(v, f) for v, f in zip(row, specs, strict=True)) for row in rows))


def _cell(value: Any, spec: str) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "–"
    return value if isinstance(value, str) else format(value, spec)


def try_out(function: Any, *inputs: Any) -> Any:
    """What the reader's `function` gives on data of their own, or a sentence where it isn't written yet, or fails."""
    try:
        answer = function(*inputs)
    except NotImplementedError:
        return f"{function.__name__} isn't written yet"
    except Exception as error:
        return f"{function.__name__} raised {type(error).__name__}: {error}"
    return f"{function.__name__} gives nothing" if answer is None else answer


def where_am_i() -> Table:
    """This machine in a few lines: what to put into a bug report."""
    place = ("Colab" if "COLAB_RELEASE_TAG" in os.environ else "Binder" if "BINDER_SERVICE_HOST" in os.environ else
             "a browser (JupyterLite)" if platform.system() == "Emscripten" else "your own Jupyter")
    rows = [("running in", place), ("Python", platform.python_version())]
    for package in ("numpy", "matplotlib", "ipywidgets", "jupyterlab"):
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    return table(("what", "which"), [*rows, ("labs found in", Path(__file__).parent.parent.name)])
