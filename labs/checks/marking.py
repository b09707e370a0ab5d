"""How an exercise is marked: call the learner's function on cases, compare with an oracle, name the mistake.

Only behaviour counts: what comes back for what goes in. An exercise and its mistakes are data.
"""
from __future__ import annotations

import html
import inspect
import math
import random
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labs.checks.answers import NOTHING, Args, Odd, Outcome, Value, call, copied, difference, read, same, size
from labs.checks.guard import outcome, outcomes

NOT_ATTEMPTED, PASSED, NOT_YET = "not attempted", "passed", "not yet"
RANDOM_CASES = 30


@dataclass(frozen=True)
class Mistake:
    """A misconception: what someone who holds it computes, a first hint, and a stronger one for the next try.

    `within` widens the match: an answer within this relative error of `wrong` on every case.
    """

    key: str
    wrong: Callable[..., Any] | None = field(repr=False)
    hint: str = field(repr=False)
    stronger: str = field(repr=False)
    within: float = 1e-9


@dataclass(frozen=True)
class Exercise:
    """A function to write, and all that is needed to mark it.

    `worked` holds hand-worked cases as (arguments, answer); `draw` makes one more from a seeded generator;
    `oracle` is slow and obvious; `explain` works one case out in words. `minutes` is at most 10, `difficulty` 1 to 3.
    """

    id: str
    notebook: str
    title: str
    minutes: int
    difficulty: int
    signature: str
    task: str
    returns: str
    shows: str
    oracle: Callable[..., Any] = field(repr=False)
    explain: Callable[..., str] = field(repr=False)
    worked: tuple[tuple[Args, Any], ...] = field(repr=False)
    draw: Callable[[random.Random], Args] = field(repr=False)
    mistakes: tuple[Mistake, ...] = field(repr=False)
    tolerance: float = 1e-9

    def cases(self) -> list[tuple[Args, Value]]:
        """(arguments, right answer) of every case: the hand-worked ones, then the seeded random ones."""
        rng = random.Random(self.id)
        drawn = [self.draw(rng) for _ in range(RANDOM_CASES)]
        return [(args, read(right)) for args, right in
                [*self.worked, *((args, self.oracle(*copied(args))) for args in drawn)]]


@dataclass(frozen=True)
class Finding:
    """What marking found: the status, the failing case in words, and the mistake behind it.

    Where no mistake is recognised, `nudge` says what to do first, and `explanation` works the case out.
    """

    status: str
    fault: str = ""
    mistake: Mistake | None = None
    nudge: str = ""
    explanation: str = ""


@dataclass(frozen=True, repr=False)
class Result:
    """What a check says: a `message` that begins "Not attempted yet:", "Passed:" or "Not yet:".

    `mistake` is the key of the mistake that was recognised, or "".
    """

    exercise: str
    status: str
    message: str
    mistake: str = ""

    def __repr__(self) -> str:
        return self.message

    def _repr_html_(self) -> str:
        """A box with a symbol and a word beside its colour. It sets its text's colour, too, for dark themes."""
        symbol, edge, ground = _LOOK[self.status]
        word, _, rest = self.message.partition(":")
        return (f'<div style="border-left:5px solid {edge};background:{ground};color:#1a1a1a;padding:6px 10px;'
                f'max-width:52em;line-height:1.4"><b>{symbol} {html.escape(word)}:</b>{_code(html.escape(rest))}</div>')


def _code(text: str) -> str:
    """Names between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)


_LOOK = {NOT_ATTEMPTED: ("○", "#767676", "#f2f2f2"), PASSED: ("✓", "#009e73", "#e6f5f0"),
         NOT_YET: ("✗", "#d55e00", "#fdf0e6")}


# ---- mistakes that can be made at any exercise ----------------------------------------------------------------------

PRINTS = Mistake("prints", None, "It prints the answer but returns nothing: write return instead of print.",
                 "Its last line should be `return ...`: a printed number can't be used by the code that called it.")
NO_RETURN = Mistake("no_return", None, "It works something out and returns nothing: hand the result back with return.",
                    "Its last line should be `return ...`: without it, Python gives None to the code that called it.")
CHANGES = Mistake("changes", None, "Asked again with the same input, it gave another answer: does it draw at random, "
                                   "or keep something between calls?",
                  "Create every list inside the function, not above it or as a default value, and draw nothing at "
                  "random.")
SLOW = Mistake("slow", None, "Look for a loop that never ends.",
               "Something in the loop's condition has to change on every turn: which line brings the end nearer?")
ARGUMENTS = Mistake("arguments", None, "Keep the first line as it was given.",
                    "Copy the `def` line from the exercise again, and write your code below it.")
NO_FUNCTION = Mistake("no_function", None, "Hand over the function by its name, without brackets after it.",
                      "The check calls your function on inputs of its own, so it needs the function, not one answer.")
SINGLE = Mistake("single", None, "Right to six digits or so, and no further: was a number cut to float32 on the way?",
                  "Compute in Python's own numbers or in numpy's float64, and round nothing before the end.")
SPELLING = Mistake("spelling", None, "That is none of the texts that are asked for: look at how it is spelled.",
                   "Copy the texts from the exercise, letter by letter.")
WORK_IT_OUT = "Work this case out on paper, then compare step by step."
CALL_IT = "Call it with this input in a cell of its own, to see where it goes wrong."
ANYWHERE = (PRINTS, NO_RETURN, CHANGES, SLOW, ARGUMENTS, NO_FUNCTION, SINGLE, SPELLING)

_FLOORED = Mistake("floored", None, "The fraction is cut off: / divides, // drops the remainder.",
                   "Replace // by /, and don't wrap the result in int().")
_ROUNDED = Mistake("rounded", None, "The right number, but rounded: return every digit.",
                   "Leave out round(): how many digits to show is decided where a number is printed.")
_PERCENT = Mistake("percent", None, "That is 100 times too large: it is asked for as a plain number, not in per cent.",
                   "Leave out the factor 100.")
_NEGATIVE = Mistake("negative", None, "The size is right and the sign is not: which of the two is larger?",
                    "Swap the two sides of the subtraction.")
# What each slip does to a right answer. Tried after an exercise's own mistakes, which know more.
SLIPS: tuple[tuple[Mistake, Callable[[float], float]], ...] = (
    (_FLOORED, math.floor), *((_ROUNDED, lambda x, places=places: round(x, places)) for places in range(5)),
    (_PERCENT, lambda x: 100 * x), (_NEGATIVE, lambda x: -x))


# ---- marking --------------------------------------------------------------------------------------------------------

def mark(exercise: Exercise, answer: Any, limit_s: float = 5.0) -> Finding:
    """Try `answer` on every case. Nothing that the learner's code does escapes from here, save an interrupt."""
    if answer is None or answer is ...:
        return Finding(NOT_ATTEMPTED)
    if not callable(answer):
        return Finding(NOT_YET, f"{exercise.id} should be a function, but its type is {type(answer).__name__}.",
                       NO_FUNCTION)
    cases = exercise.cases()
    if not _takes(answer, cases[0][0]):
        return Finding(NOT_YET, f"{exercise.id} should be called as {exercise.signature}.", ARGUMENTS)
    got, printed = outcomes(answer, [copied(args) for args, _ in cases], limit_s)
    if len(got) < len(cases):
        late = cases[len(got)][0]
        return Finding(NOT_YET, f"{call(exercise.id, late)} took over {limit_s:g} s.", SLOW)
    if all(isinstance(out, Odd) and out.empty for out in got):
        return nothing(answer, got, printed, call(exercise.id, cases[0][0]))
    wrong = [(args, right, out) for (args, right), out in zip(cases, got, strict=True)
             if not same(out, right, exercise.tolerance)]
    if not wrong:
        return Finding(PASSED)
    args, right, out = min(wrong, key=lambda case: size(case[0]))
    mistake = recognise(exercise, cases, got)
    if mistake is None:
        again, _ = outcomes(answer, [copied(args)], limit_s)
        mistake = CHANGES if not again or not same(again[0], out) else None
    fault = f"{call(exercise.id, args)} should give {difference(right, out, exercise.returns)}."
    if printed.strip():
        fault += f" (Its prints are not shown here: the first is {reprlib.repr(printed.strip().splitlines()[0])}.)"
    nudge = CALL_IT if isinstance(out, Odd) else WORK_IT_OUT
    return Finding(NOT_YET, fault, mistake, nudge, exercise.explain(*copied(args)))


def nothing(answer: Callable, got: Sequence[Any], printed: str, called: str) -> Finding:
    """What to say where no call gave anything: nothing is written yet, or it is and `return` is missing."""
    if printed:
        return Finding(NOT_YET, f"{called} gave nothing.", PRINTS)
    if all(out == NOTHING for out in got) and _does_something(answer):
        return Finding(NOT_YET, f"{called} gave nothing.", NO_RETURN)
    return Finding(NOT_ATTEMPTED)


def _does_something(function: Callable) -> bool:
    """Whether its body uses a name: `pass`, `...` or a docstring alone does not."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    stars = sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    arguments = code.co_argcount + code.co_kwonlyargcount + stars
    return bool({*code.co_names, *code.co_varnames[arguments:]} - {"NotImplementedError"})


def recognise(exercise: Exercise, cases: Sequence[tuple[Args, Value]], got: Sequence[Outcome]) -> Mistake | None:
    """The first mistake that gives what the learner's function gave, on every case.

    The exercise's own come first, then slips that can be made anywhere, and at last those that are only nearly so.
    """
    def gives(mistake: Mistake) -> bool:
        return all(same(outcome(mistake.wrong, copied(args)), out, mistake.within)
                   for (args, _), out in zip(cases, got, strict=True))

    exact = [mistake for mistake in exercise.mistakes if mistake.within < 1e-3]
    if found := next(filter(gives, exact), None):
        return found
    for mistake, slip in SLIPS:
        if all(same(_slipped(right, slip), out) for (_, right), out in zip(cases, got, strict=True)):
            return mistake
    if found := next((mistake for mistake in exercise.mistakes if mistake not in exact and gives(mistake)), None):
        return found
    return SINGLE if all(same(right, out, 1e-5) for (_, right), out in zip(cases, got, strict=True)) else None


def report(exercise: Exercise, finding: Finding, attempt: int = 1) -> Result:
    """Put a finding into words: from the second attempt on, the stronger hint, or the case worked out."""
    if finding.status == NOT_ATTEMPTED:
        return Result(exercise.id, NOT_ATTEMPTED, f"Not attempted yet: {exercise.task}")
    if finding.status == PASSED:
        return Result(exercise.id, PASSED, f"Passed: {exercise.shows}")
    mistake, again = finding.mistake, attempt >= 2
    if mistake is None:
        hint = finding.explanation if again and finding.nudge != CALL_IT else finding.nudge
    else:
        hint = mistake.stronger if again else mistake.hint
    return Result(exercise.id, NOT_YET, f"Not yet: {finding.fault} {hint}", mistake.key if mistake else "")


def _slipped(right: Value, slip: Callable[[float], float]) -> Value:
    """The right answer with `slip` applied to each number."""
    return tuple(map(slip, right)) if isinstance(right, tuple) else slip(right)


def _takes(function: Callable[..., Any], args: Args) -> bool:
    """True if `function` can be called with these arguments, or doesn't tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True
