"""What the learner has passed, predicted and answered, in a small file beside the notebooks.

The file is a convenience: whatever is wrong with it, a cell runs on, and `note` says in one sentence what happened.
"""
from __future__ import annotations

import errno
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labs.words import many

try:
    import fcntl
except ImportError:  # Windows; Python in a browser
    fcntl = None

FILE_NAME = ".progress.json"
COURSE = "continuous-batching"  # a file without this name in it is somebody else's
VERSION = 1
SPACING = (3, 10, 30)  # replies to other questions before a question comes back: missed, right once, right twice
_REPLY = ("correct", "missed", "streak", "due")
LEARNT = 3  # right answers in a row after which a question doesn't come back


@dataclass(frozen=True)
class Summary:
    """What has been done so far. `attempts` counts tries per exercise, passed or not."""

    passed: tuple[str, ...]
    attempts: dict[str, int]
    predictions: dict[str, float]
    correct: tuple[str, ...]
    missed: tuple[str, ...]

    def __str__(self) -> str:
        tried = len(set(self.attempts) - set(self.passed))
        return (f"{many(len(self.passed), 'exercise')} passed, {tried} tried; "
                f"{many(len(self.predictions), 'prediction')}; "
                f"{many(len(self.correct), 'question')} right, {len(self.missed)} to come back to")


class Progress:
    """Reads its file once, and writes it after every change. With `path` None it lives in memory only.

    Another notebook may write the same file: each change is made to the newest version on disk.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.note = ""
        self._unsaved = False
        self._state = _empty()
        self._refresh()

    @classmethod
    def beside_notebook(cls) -> Progress:
        """The file in the working directory, or what LABS_PROGRESS names: a file, a folder, or "off" (memory only)."""
        where = os.environ.get("LABS_PROGRESS", "")
        if where.lower() == "off":
            return cls(None)
        try:
            path = Path(where).expanduser() if where else Path.cwd()
            return cls(path / FILE_NAME if path.is_dir() else path)
        except (OSError, RuntimeError, ValueError) as error:  # the folder is gone, or there is no home folder
            progress = cls(None)
            progress.note = _sentence(f"there is nowhere to keep it ({_reason(error)})")
            return progress

    # ---- exercises and predictions ----

    def passed(self, exercise: str) -> bool:
        """True once the exercise has been passed, whatever was tried since."""
        return exercise in self._state["passed"]

    def attempts(self, exercise: str, mistake: str = "") -> int:
        """Tries at the exercise so far, or those that made this `mistake`."""
        return self._state["attempts"].get(_attempt_key(exercise, mistake), 0)

    def record_attempt(self, exercise: str, mistake: str = "") -> int:
        """Count a try; return how many there have been, or how many made this `mistake` if one is named."""
        def change(state: dict) -> None:
            for key in {_attempt_key(exercise, ""), _attempt_key(exercise, mistake)}:
                state["attempts"][key] = state["attempts"].get(key, 0) + 1
        self._change(change)
        return self.attempts(exercise, mistake)

    def record_pass(self, exercise: str) -> None:
        """Remember that the exercise is passed."""
        self._change(lambda state: None if exercise in state["passed"] else state["passed"].append(exercise))

    def predict(self, name: str, value: float) -> None:
        """Commit to a prediction; a later one takes its place. Raises ValueError if it isn't a finite number."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"a prediction must be a number, got {value!r}") from None
        if not math.isfinite(number):
            raise ValueError(f"a prediction must be a finite number, got {value!r}")
        self._change(lambda state: state["predictions"].update({name: number}))

    def prediction(self, name: str) -> float | None:
        """What was predicted, or None."""
        return self._state["predictions"].get(name)

    # ---- quiz ----

    def record_reply(self, question: str, passed: bool) -> None:
        """Remember a reply. A missed question comes back soon, one answered right later, and at last not at all."""
        def change(state: dict) -> None:
            state["turn"] += 1
            old = state["quiz"].get(question, {"correct": 0, "missed": 0, "streak": 0})
            streak = old["streak"] + 1 if passed else 0
            state["quiz"][question] = {
                "correct": old["correct"] + bool(passed), "missed": old["missed"] + (not passed), "streak": streak,
                "due": state["turn"] + SPACING[min(streak, len(SPACING) - 1)]}
        self._change(change)

    def replies(self, question: str) -> tuple[int, int]:
        """(right, missed) replies to a question."""
        reply = self._state["quiz"].get(question, {})
        return reply.get("correct", 0), reply.get("missed", 0)

    def due(self, questions: Iterable[str]) -> list[str]:
        """The questions to ask now: missed ones whose turn has come, new ones, other missed ones, those to repeat.

        Whatever was missed is among them; empty means that nothing is left to ask.
        """
        quiz, turn = self._state["quiz"], self._state["turn"]
        questions = list(questions)
        missed = sorted((q for q in questions if q in quiz and not quiz[q]["streak"]), key=lambda q: quiz[q]["due"])
        now = [q for q in missed if quiz[q]["due"] <= turn + 1]
        new = [q for q in questions if q not in quiz]
        repeat = [q for q in questions if q in quiz and 0 < quiz[q]["streak"] < LEARNT and quiz[q]["due"] <= turn + 1]
        repeat.sort(key=lambda q: not quiz[q]["missed"])  # those that were missed once come before the others
        return [*now, *new, *(q for q in missed if q not in now), *repeat]

    def summary(self) -> Summary:
        """Everything so far, in the order in which it was first done."""
        state = self._state
        right = [q for q, reply in state["quiz"].items() if reply["streak"] > 0]
        tries = {key: n for key, n in state["attempts"].items() if "/" not in key}
        return Summary(tuple(state["passed"]), tries, dict(state["predictions"]), tuple(right),
                       tuple(q for q in state["quiz"] if q not in right))

    # ---- the file ----

    def _change(self, change: Callable[[dict], Any]) -> None:
        """Apply `change` to the newest state, and write it. What can't be written stays in memory."""
        with _alone(self.path):
            if not self._unsaved:  # else the file is older than what is in memory
                self._refresh()
            change(self._state)
            self._save()

    def _save(self) -> None:
        if self.path is None:
            return
        try:
            _write(self.path, json.dumps({"course": COURSE, "version": VERSION, **self._state}, indent=1))
            if self._unsaved:
                self._unsaved, self.note = False, ""
        except (OSError, ValueError) as error:
            self._unsaved = True
            self.note = _sentence(f"{self.path.name} can't be written ({_reason(error)})")

    def _refresh(self) -> None:
        """Read the file if there is one. A damaged one is set aside, one that can't be read or is newer left alone."""
        if self.path is None:
            return
        name = self.path.name
        try:
            data = _parse(self.path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            return
        except OSError as error:
            self.note, self.path = _sentence(f"{name} can't be read ({_reason(error)})"), None
        except _NewerError:
            self.path = None
            self.note = _sentence(f"{name} was written by a newer version of the course, so fetch that")
        except (ValueError, RecursionError):
            self._set_aside(f"{name} could not be understood", "your progress starts again")
        else:
            self._state = _sound(data)
            damaged = any(value != data.get(key) for key, value in self._state.items())
            fault, outcome = f"part of {name} could not be understood", "the rest of your progress is kept"
            if damaged and self._set_aside(fault, outcome):
                self._save()

    def _set_aside(self, fault: str, outcome: str) -> bool:
        """Rename the file, so that whatever is in it stays; False if it can't be, and memory alone is left."""
        try:
            names = (self.path.with_name(f"{self.path.name}.broken-{n}") for n in range(1, 1000))
            aside = next(path for path in names if not path.exists())
            self.path.rename(aside)
        except (OSError, ValueError, StopIteration):
            self.path, self.note = None, _sentence(f"{fault}, nor renamed")
            return False
        self.note = f"{fault[0].upper()}{fault[1:]}: the file is now {aside.name}, and {outcome}."
        return True


def _empty() -> dict[str, Any]:
    return {"passed": [], "attempts": {}, "predictions": {}, "quiz": {}, "turn": 0}


def _attempt_key(exercise: str, mistake: str) -> str:
    return f"{exercise}/{mistake}" if mistake else exercise


@contextmanager
def _alone(path: Path | None) -> Iterator[None]:
    """Keep other notebooks from changing the file meanwhile, for a second at most (Windows and browsers can't)."""
    folder = None
    if path is not None and fcntl is not None:
        with suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
    until = time.monotonic() + 1
    try:
        while folder is not None:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() > until:
                    break  # a folder that can't be locked
                time.sleep(0.002)
        yield
    finally:
        if folder is not None:
            os.close(folder)


class _NewerError(ValueError):
    """The file is of a later version, whose meaning isn't known here."""


def _parse(text: str) -> dict[str, Any]:
    """What is in a file's text. Raises ValueError if it isn't this course's, or of another version."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("course") != COURSE:
        raise ValueError("not this course's")
    if _is_count(data.get("version")) and data["version"] > VERSION:
        raise _NewerError
    if data.get("version") != VERSION:
        raise ValueError("no version")
    return data


def _sound(data: dict[str, Any]) -> dict[str, Any]:
    """The state in a file's data, without whatever in it makes no sense."""
    def kept(key: str, is_sound: Callable[[Any], bool]) -> dict[str, Any]:
        found = data.get(key)
        return {name: value for name, value in found.items() if is_sound(value)} if isinstance(found, dict) else {}

    passed, turn = data.get("passed"), data.get("turn")
    quiz = kept("quiz", lambda reply: isinstance(reply, dict) and all(_is_count(reply.get(key)) for key in _REPLY))
    return {"passed": [name for name in passed if isinstance(name, str)] if isinstance(passed, list) else [],
            "attempts": kept("attempts", _is_count), "predictions": kept("predictions", _is_number), "quiz": quiz,
            "turn": turn if _is_count(turn) else max((reply["due"] for reply in quiz.values()), default=0)}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _write(path: Path, text: str) -> None:
    """Write the whole file or nothing: into a new file beside it, which then takes its name."""
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(13, "the file is read-only")
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _sentence(what: str) -> str:
    return f"Your progress is kept only until the kernel stops: {what}."
