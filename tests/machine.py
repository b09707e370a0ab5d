"""The machine that a figure was measured on, for reports and recordings."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def machine() -> str:
    """Processor, cores, memory and system, as far as they matter to a reader of times; not the machine's name."""
    processor = ""
    try:
        processor = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)[1] + ", "
        memory = int(re.search(r"^MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text(), re.M)[1]) / 2**20
    except (OSError, TypeError):
        memory = float("nan")
    return f"{processor}{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}"
