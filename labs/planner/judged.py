"""What simulations say of a candidate: how one step less fares, and what a replica does when it is full."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labs.serving import Served

MISSES, ALIKE, REFUSED, FEWEST = "misses", "alike", "refused", "fewest"


@dataclass(frozen=True)
class Margin:
    """What one step less of a resource does: `missed` of `runs` runs miss a target, of the answer's own `answer`.

    `verdict` is MISSES; ALIKE, if too few more miss to tell it from the answer within noise; REFUSED, if vLLM would
    not start for max_model_len no longer fits; or FEWEST, if there is none to take away. Where it is ALIKE, `clear` is
    how many of the resource are clearly too few, if half as many are, and `clearly` the runs that then miss.
    """

    verdict: str
    missed: int = 0
    answer: int = 0
    runs: int = 0
    clear: int | None = None
    clearly: int = 0

    def __str__(self) -> str:
        if self.verdict in (REFUSED, FEWEST):
            return ("vLLM would not start: max_model_len no longer fits" if self.verdict == REFUSED
                    else "there is none to take away")
        if self.verdict == MISSES:
            return f"misses a target in {self.missed} of {self.runs} runs"
        clear = f"; with {self.clear:,}, {self.clearly} of {self.runs} miss" if self.clear is not None else ""
        return f"can't be told apart within noise ({self.missed} of {self.runs} runs miss){clear}"


@dataclass(frozen=True)
class Full:
    """One replica with every slot taken all the time: p95 ITL in seconds, and the requests a second that it does."""

    itl_p95: float
    capacity: float


def while_full(served: Served, seqs: int) -> Full:
    """From the moment when the first `seqs` have their first token until nobody waits: no start, no drain."""
    waits = served.series.time[served.series.waiting > 0]
    begin, end = float(np.sort(served.first)[min(seqs, len(served.first)) - 1]), float(waits[-1])
    kept = (served.gap_times > begin) & (served.gap_times <= end)
    part = replace(served, gap_seconds=served.gap_seconds[kept], gap_counts=served.gap_counts[kept],
                   gap_times=served.gap_times[kept])
    done = int(((served.finish > begin) & (served.finish <= end)).sum())
    return Full(part.itl(0.95), done / (end - begin))
