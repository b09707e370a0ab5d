"""A certificate of what was passed, from the progress file, as a page to print. It says what wasn't attempted, too.

It proves no more than the file does, which lies on the reader's own disk: that is said on it.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from labs import checks, drills, quiz
from labs.progress import Progress
from labs.standing import Part, Standing, everything

FILE_NAME = "certificate.html"
LONGEST_NAME = 80
STYLE = """
@page { size: A4; margin: 14mm }
body { font: 13px/1.45 Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif; color: #222; background: #fff;
       max-width: 180mm; margin: 0 auto; padding: 6px }
h1 { font-size: 24px; margin: 0 } h2 { font-size: 15px; margin: 14px 0 4px; border-bottom: 1px solid #0072B2 }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: 3px 8px 3px 0;
border-bottom: 1px solid #ddd; vertical-align: top } .name { font-size: 18px; font-weight: bold }
.small { color: #555; font-size: 11px }
"""


@dataclass(frozen=True)
class Certificate:
    """What one reader has passed, tried and left, notebook by notebook."""

    name: str
    standings: tuple[Standing, ...]
    missed_before: int
    note: str = ""

    @property
    def parts(self) -> list[tuple[str, Part]]:
        """(notebook, exercises or questions or drills), all of them."""
        return [(standing.notebook, part) for standing in self.standings for part in standing.parts]

    def counts(self, kind: str) -> tuple[int, int, int]:
        """(passed, tried and not passed, not attempted) of one kind; what two notebooks ask counts once."""
        passed, tried, every = (set().union(*(getattr(part, which) for _, part in self.parts if part.kind == kind))
                                for which in ("passed", "tried", "all"))
        return len(passed), len(tried), len(every - passed - tried)

    def __repr__(self) -> str:
        return "; ".join(f"{kind}s: {_words(*self.counts(kind))}" for kind in ("exercise", "question", "drill"))

    def _repr_html_(self) -> str:
        # In a frame of its own, so that its style stays with it.
        return (f'<iframe title="certificate" srcdoc="{escape(self.html)}" width="100%" height="620" '
                'style="border:1px solid #ccc;background:#fff;max-width:780px"></iframe>')

    @property
    def html(self) -> str:
        """The page."""
        who = f'<p class="name">{escape(self.name)}</p>' if self.name else '<p class="name">(no name given)</p>'
        total = sum(sum(self.counts(kind)) for kind in ("exercise", "question", "drill"))
        passed = sum(self.counts(kind)[0] for kind in ("exercise", "question", "drill"))
        rows = "".join(f"<tr><td>{escape(kind)}s</td>" + "".join(f"<td>{n}</td>" for n in self.counts(kind)) + "</tr>"
                       for kind in ("exercise", "question", "drill"))
        head = "<tr><th></th><th>passed</th><th>tried, not passed</th><th>not attempted</th></tr>"
        again = (f"<p>{self.missed_before} of the questions and drills passed were missed at least once before.</p>"
                 if self.missed_before else "")
        return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Continuous batching: certificate'
                f"</title><style>{STYLE}</style></head><body><h1>Continuous batching, by hand</h1>{who}"
                f"<p>Passed <b>{passed} of {total}</b> exercises, questions and drills.</p>"
                f"<table>{head}{rows}</table>{again}{self._details()}"
                '<p class="small">Made from the progress file on the reader\'s own disk, which anyone could edit: it '
                f"vouches for nothing that its owner doesn't. {escape(self.note)}</p></body></html>\n")

    def _details(self) -> str:
        """Each notebook's items by what became of them."""
        found = ""
        for label, which in (("Passed", "passed"), ("Tried, not passed", "tried"), ("Not attempted", "untouched")):
            rows = "".join(f"<tr><td>{notebook}</td><td>{escape(part.kind)}s</td><td>"
                           f"{escape(' · '.join(map(_title(part.kind), getattr(part, which))))}</td></tr>"
                           for notebook, part in self.parts if getattr(part, which))
            found += f"<h2>{label}</h2>" + (f"<table>{rows}</table>" if rows else "<p>Nothing.</p>")
        return found

    def save(self, path: str | os.PathLike[str] = FILE_NAME) -> Path:
        """Write the page, and return where. Raises ValueError, with what to do, if that can't be."""
        path = Path(path)
        try:
            path.write_text(self.html, encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ValueError(f"{path.name} can't be written here ({reason}): give another path.") from None
        return path.resolve()


def certificate(name: str = "", progress: Progress | None = None) -> Certificate:
    """The certificate for `name` (which may be empty) from the progress file beside the notebooks.

    Raises ValueError for a name of more than 80 characters, or one that is no text.
    """
    if not isinstance(name, str) or len(name.strip()) > LONGEST_NAME:
        raise ValueError(f"give a name of at most {LONGEST_NAME} characters")
    progress = Progress.beside_notebook() if progress is None else progress
    standings = tuple(standing for standing in everything(progress) if standing.parts)
    right = progress.summary().correct
    return Certificate("".join(c for c in name.strip() if c.isprintable()), standings,
                       sum(progress.replies(reply)[1] > 0 for reply in right), progress.note)


def _title(kind: str) -> Callable[[str], str]:
    """How an id of this kind reads on a page."""
    if kind == "exercise":
        return lambda name: checks.EXERCISES[name].title
    if kind == "question":
        return lambda name: quiz.question(name).recall
    titles = {drills.reply_id(drill.id): f"incident {number}" for number, drill in enumerate(drills.EVERY, 1)}
    return titles.__getitem__


def _words(passed: int, tried: int, left: int) -> str:
    return f"{passed} passed, {tried} tried and not passed, {left} not attempted"
