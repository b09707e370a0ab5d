"""What simulations say of a candidate: how one step less fares, and what a replica does when it is full."""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labs.serving import Served

MISSES, ALIKE, REFUSED, FEWEST = "misses", "alike", "refused", "fewest"


@dataclass(frozen=True)
class Margin:
    """What one step less of a resource does: `missed` of `runs` other runs miss a target.

    `verdict` is MISSES; ALIKE, if too few miss to tell it from the answer within noise; REFUSED, if vLLM would not
    start for max_model_len no longer fits; or FEWEST, if there is none to take away.
    """

    verdict: str
    missed: int = 0
    runs: int = 0

    def __str__(self) -> str:
        words = {MISSES: f"misses a target in {self.missed} of {self.runs} runs",
                 ALIKE: f"can't be told apart within noise ({self.missed} of {self.runs} runs miss)",
                 REFUSED: "vLLM would not start: max_model_len no longer fits", FEWEST: "there is none to take away"}
        return words[self.verdict]


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
