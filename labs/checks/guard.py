"""Calling code that may raise, print, warn, or never end."""
from __future__ import annotations

import builtins
import io
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from labs.checks.answers import Odd, Outcome, read


class TooSlow(BaseException):
    """The time is up. Not an Exception, so that a learner's `except Exception` can't swallow it."""


class _Head(io.TextIOBase):
    """A place to print to that keeps the first characters only."""

    text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + text)[:200]
        return len(text)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the block after `seconds`, then put the signal's handler and timer back as they were.

    Works in the main thread of Linux and macOS. Elsewhere (Windows, Python in a browser) there is no limit, and none
    inside one long call to compiled code, or in a loop whose bare `except:` swallows everything.
    """
    rings = hasattr(signal, "setitimer") and sys.platform != "emscripten"
    if not rings or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: Any) -> None:
        raise TooSlow

    began, handler = time.monotonic(), signal.signal(signal.SIGALRM, stop)
    # It rings again each second, in case the first ring fell where it was swallowed.
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
        if left:  # somebody else's timer was running: let it ring when it would have
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001), interval)


def apart(action: Callable[..., Any], *args: Any) -> Any:
    """`action(*args)`; then Python's own names are as before: an answer that renames `sum` spoils only itself."""
    names = vars(builtins)
    before = names.copy()
    try:
        return action(*args)
    finally:
        names.update(before)
        for added in names.keys() - before.keys():
            del names[added]


def outcome(function: Callable[..., Any], args: tuple) -> Outcome:
    """What `function(*args)` gives, as an `Outcome`; an exception becomes words. An interrupt passes through."""
    try:
        return apart(read, apart(function, *args))
    except (KeyboardInterrupt, TooSlow):
        raise
    except NotImplementedError as error:
        return _unwritten(error)
    except SystemExit:
        return Odd("called exit()")
    except BaseException as error:
        return Odd(f"raised {_named(error)}{_line(error)}")


def outcomes(function: Callable[..., Any], inputs: list[tuple], limit_s: float) -> tuple[list[Outcome], str]:
    """The outcome on each input, fewer if the time ran out, and the beginning of what was printed meanwhile."""
    found: list[Outcome] = []
    printed = _Head()
    try:
        with time_limit(limit_s), redirect_stdout(printed), redirect_stderr(_Head()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for args in inputs:
                found.append(outcome(function, args))
    except TooSlow:
        pass
    return found[:len(inputs)], printed.text


def _unwritten(error: NotImplementedError) -> Odd:
    """Nothing is written yet, or what is written calls another function in which nothing is."""
    frames = []
    trace = error.__traceback__.tb_next.tb_next  # the first are `outcome` and `apart`
    while trace:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return Odd(f"called {frames[-1]}, which isn't written yet") if len(frames) > 1 else Odd("isn't written "
                                                                                            "yet", empty=True)


def _line(error: BaseException) -> str:
    """Where in the learner's code it was raised: the innermost line of it that was reached."""
    frames = list(traceback.walk_tb(error.__traceback__))[2:]  # the first are `outcome` and `apart`
    if not frames:
        return ""
    code = frames[0][0].f_code
    line, name = next((line - frame.f_code.co_firstlineno + 1, frame.f_code.co_name)
                      for frame, line in reversed(frames) if frame.f_code.co_filename == code.co_filename)
    return f" in line {line} of {name}" if name.isidentifier() and code.co_filename != read.__code__.co_filename else ""


def _named(error: BaseException) -> str:
    """The exception's name and the first line of its message, cut short."""
    try:
        text = str(error).strip().splitlines()
    except Exception:  # a learner's exception may fail to describe itself
        text = []
    return type(error).__name__ + (f" ({text[0][:100]})" if text else "")
