"""How numbers are written."""
from __future__ import annotations

import re


def spaced(text: str) -> str:
    """Percentages as everywhere in the course: 74 %."""
    return re.sub(r"(?<=\d)%", " %", text)
