"""What is said: numbers in sentences, and errors of which a notebook shows the sentence alone."""
from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from numbers import Integral
from typing import Any


def many(n: float, what: str) -> str:
    """"1 slot", "3 slots", "1,200 slots", "0.25 slots"."""
    number = f"{n:,}" if isinstance(n, Integral) else f"{n:.6g}"
    return f"{number} {what}{'s' * (n != 1)}"


class Refused(ValueError):
    """A call that can't be taken as it was written: a notebook shows what to change, and no traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"ValueError: {self}"]


class Stopped(KeyboardInterrupt):
    """An interrupt, and what has come of it: a notebook shows one sentence, and no traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose ValueErrors are `Refused`: what a reader calls on a file of theirs needs no traceback."""
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            raise Refused(str(error)) from None
    return call
