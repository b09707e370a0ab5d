"""Numbers in sentences."""
from __future__ import annotations

from numbers import Integral


def many(n: float, what: str) -> str:
    """"1 slot", "3 slots", "1,200 slots", "0.25 slots"."""
    number = f"{n:,}" if isinstance(n, Integral) else f"{n:.6g}"
    return f"{number} {what}{'s' * (n != 1)}"
