"""How numbers are written."""
from __future__ import annotations

import math
import re


def spaced(text: str) -> str:
    """Percentages as everywhere in the course: 74 %."""
    return re.sub(r"(?<=\d)%", " %", text)


def share(value: float) -> str:
    """A share as a percentage, or that there is none."""
    return "not recorded" if math.isnan(value) else f"{value:.0%}"
