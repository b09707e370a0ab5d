"""Reading what a learner's function gave back, comparing it, and putting it into words."""
from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any

from labs.words import many

LONGEST = 1000  # numbers read from an answer, so that a generator without an end stops here
SHOWN = 12  # numbers of a list that a message shows

Args = tuple[Any, ...]
Value = float | tuple[float, ...]


@dataclass(frozen=True)
class Odd:
    """An answer that is neither a number nor a list of them; `words` finish the sentence "should give 3, but ..."."""

    words: str
    empty: bool = False  # None, ... or NotImplementedError: nothing has been written yet


Outcome = Value | Odd
NOTHING = Odd("gave nothing (None): every path through it must end in return", empty=True)


def read(answer: Any) -> Outcome:
    """A number as float, a list, tuple, array or generator of numbers as a tuple, anything else as `Odd`."""
    if answer is None or answer is ...:
        return NOTHING
    if (number := _number(answer)) is not None:
        return number
    if isinstance(answer, (str, bytes)):
        return Odd("gave a text where numbers belong")
    if isinstance(answer, bool):
        return Odd(f"gave {answer}")
    if isinstance(answer, Mapping):
        return Odd("gave a dict: return its values as a list, in the order that is asked for")
    if isinstance(answer, Set):
        return Odd("gave a set, which has no order and drops equal numbers: return a list")
    if getattr(answer, "ndim", 1) == 0 or not isinstance(answer, Iterable):
        return Odd(f"gave something of type {type(answer).__name__} where numbers belong")
    items = list(islice(answer, LONGEST))
    values = [_number(item) for item in items]
    for item, value in zip(items, values, strict=True):
        if value is None:
            return Odd(f"gave a list that holds {_kind(item)} where a number belongs")
    return tuple(values)


def same(one: Outcome, other: Outcome, tolerance: float = 1e-9) -> bool:
    """Equal within a relative `tolerance`. Two answers that are no numbers count as equal: both failed."""
    if failed(one) or failed(other):
        return failed(one) and failed(other)
    if isinstance(one, tuple) != isinstance(other, tuple):
        return False
    one, other = as_tuple(one), as_tuple(other)
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=tolerance, abs_tol=min(tolerance, 1e-9))
                                          for a, b in zip(one, other, strict=True))


def failed(outcome: Outcome) -> bool:
    """True for an `Odd` answer, NaN or infinity."""
    return isinstance(outcome, Odd) or not all(map(math.isfinite, as_tuple(outcome)))


def as_tuple(value: Value) -> tuple[float, ...]:
    """The numbers in `value`: one, or many."""
    return value if isinstance(value, tuple) else (value,)


def copied(args: Args) -> Args:
    """The arguments with every list copied, so that a function that sorts its input can't spoil the next call."""
    return tuple(list(arg) if isinstance(arg, (list, tuple)) else arg for arg in args)


def size(args: Args) -> tuple[int, float]:
    """How much there is to read in a case: its count of numbers, then their sum."""
    flat = [number for arg in args for number in (arg if isinstance(arg, Sequence) else (arg,))]
    return len(flat), sum(map(abs, flat))


# ---- words ----------------------------------------------------------------------------------------------------------

def call(name: str, args: Args) -> str:
    """The call as the learner would type it."""
    return f"{name}({', '.join(show(tuple(arg) if isinstance(arg, (list, tuple)) else arg) for arg in args)})"


def show(value: Value, digits: int = 6) -> str:
    """A number to `digits` figures, or a list of them in brackets, cut short."""
    if not isinstance(value, tuple):
        whole = math.isfinite(value) and value == int(value) and abs(value) < 1e15
        return str(int(value)) if whole else f"{float(value):.{digits}g}"
    more = [f"... {len(value) - SHOWN} more"] if len(value) > SHOWN else []
    return f"[{', '.join([*(show(x, digits) for x in value[:SHOWN]), *more])}]"


def difference(right: Value, got: Outcome, returns: str) -> str:
    """How `got` differs from `right`, to finish the sentence "f([1, 2]) should give ..."."""
    if isinstance(got, Odd):
        return f"{show(right)}, but {got.words}"
    digits = 6 if show(right) != show(got) else 17
    text = f"{show(right, digits)}, but gave {show(got, digits)}"
    if isinstance(right, tuple) != isinstance(got, tuple):
        return f"{text} (wanted: {returns})"
    if len(as_tuple(right)) != len(as_tuple(got)):
        return f"{text} (wanted: {many(len(as_tuple(right)), 'number')}, not {len(as_tuple(got))})"
    if not all(map(math.isfinite, as_tuple(got))):
        return f"{text} (nan and inf come from a division by 0, the logarithm of 0, or a number too large)"
    return text


def _number(item: Any) -> float | None:
    """`item` as a float if it is one real number (Python's, numpy's, a Fraction or a Decimal), else None."""
    if isinstance(item, (bool, str, bytes, complex)) or type(item).__name__ in ("bool_", "bool"):
        return None
    if not isinstance(item, numbers.Real) and getattr(item, "shape", None) != () and type(item).__name__ != "Decimal":
        return None
    try:
        return float(item)
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def _kind(item: Any) -> str:
    """What a wrong item of a list is, in words."""
    if item is None:
        return "None"
    return "a text" if isinstance(item, str) else f"something of type {type(item).__name__}"
