"""Slow, obvious versions of what labs/ computes fast, written from the page's description, to hold it against.

Nothing here is shared with labs/: a mistake would have to be made twice to go unseen.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from itertools import product

import numpy as np


@dataclass
class Life:
    """One request: the steps at which it took a slot, had made its last token, was returned; and which slot."""

    start: int = -1
    done: int = -1
    finish: int = -1
    slot: int = -1
    left: int = field(default=0, repr=False)


def static_by_steps(lengths: list[int], slots: int, arrivals: list[int] | None = None) -> list[Life]:
    """One step at a time: when the running group has ended, take up to `slots` of those waiting as the next one."""
    arrivals = arrivals or [0] * len(lengths)
    lives = [Life(left=length) for length in lengths]
    group: list[int] = []
    now = taken = 0
    while taken < len(lengths) or group:
        if group and all(lives[i].left == 0 for i in group):
            for i in group:
                lives[i].finish = now
            group = []
        while not group and taken < len(lengths) and arrivals[taken] <= now:
            group = [i for i in range(taken, min(taken + slots, len(lengths))) if arrivals[i] <= now]
            for place, i in enumerate(group):
                lives[i].start, lives[i].slot = now, place
            taken += len(group)
        _one_token_each([i for i in group if lives[i].left > 0], lives, now)
        now += 1
    return lives


def continuous_by_steps(lengths: list[int], slots: int, arrivals: list[int] | None = None) -> list[Life]:
    """One step at a time: whoever is done leaves; those waiting take free slots, the longest free one first."""
    arrivals = arrivals or [0] * len(lengths)
    lives = [Life(left=length) for length in lengths]
    in_slot: list[int | None] = [None] * slots
    freed_at = [0] * slots
    now = taken = 0
    while taken < len(lengths) or any(i is not None for i in in_slot):
        for place, i in enumerate(in_slot):
            if i is not None and lives[i].left == 0:
                in_slot[place], freed_at[place], lives[i].finish = None, now, now
        while taken < len(lengths) and arrivals[taken] <= now and None in in_slot:
            free = [place for place, i in enumerate(in_slot) if i is None]
            place = min(free, key=lambda place: (freed_at[place], place))
            in_slot[place], lives[taken].start, lives[taken].slot = taken, now, place
            taken += 1
        _one_token_each([i for i in in_slot if i is not None], lives, now)
        now += 1
    return lives


def _one_token_each(running: list[int], lives: list[Life], now: int) -> None:
    """Every running request makes one token during step `now`."""
    for i in running:
        lives[i].left -= 1
        if lives[i].left == 0:
            lives[i].done = now + 1


def lognormal_by_loop(n: int, mu: float, sigma: float, seed: int) -> list[int]:
    """The page's own way to draw lengths, with a generator of its own instead of the global one."""
    generator = random.Random(seed)
    return [max(1, int(generator.lognormvariate(mu, sigma))) for _ in range(n)]


def expected_max_by_enumeration(lengths: list[int], draws: int) -> float:
    """The mean of the longest over every way to draw `draws` of the lengths, each way as likely as the next."""
    return float(np.mean([max(drawn) for drawn in product(lengths, repeat=draws)]))


def count_by_step(begins: np.ndarray, ends: np.ndarray, steps: int) -> list[int]:
    """How many of the intervals [begin, end) cover each step."""
    return [sum(begin <= step < end for begin, end in zip(begins, ends, strict=True)) for step in range(steps)]


PEAK_MEMORY = """
def peak_memory():
    try:  # a process started by a large one would be given that one's peak by getrusage
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
    except OSError:
        import resource, sys
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
"""  # for code that runs in a process of its own: the most memory that it took, in MB


def one_sentence(error: BaseException | str, *names: str) -> None:
    """Fail unless an error's text is one short sentence that names every one of `names`."""
    text = str(error)
    assert 10 < len(text) < 200, f"{len(text)} characters: {text}"
    assert "\n" not in text and "\0" not in text and not re.search(r"[.!?] [A-Z]", text), f"not one sentence: {text!r}"
    assert "Error" not in text and "Traceback" not in text, f"not for a reader: {text!r}"
    missing = [name for name in names if name not in text]
    assert not missing, f"{text!r} does not name {missing}"
