"""Looking for the smallest or the largest number at which something holds, with as few tries as can be."""
from __future__ import annotations

from collections.abc import Callable


def largest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low` to `high` at which `holds`: it does at `low`, and up to some number."""
    step = 1
    while low + step <= high and holds(low + step):
        low, step = low + step, 2 * step
    return low + _bisect(lambda x: not holds(low + 1 + x), 0, min(high - low, step - 1))


def smallest(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number from `low` to `high` at which `holds`, as it does from some number on."""
    if holds(low):
        return low
    step = 1
    while low + step < high and not holds(low + step):
        low, step = low + step, 2 * step
    if low + step >= high and not holds(high):
        raise ValueError(f"{high:,} are still too few: loosen a target, or bring less load")
    return low + 1 + _bisect(lambda x: holds(low + 1 + x), 0, min(step - 1, high - low - 1))


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The first number from `low` on at which `holds`; `high` if it is none before."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
