"""The workloads on which a prediction is held against a real server: output lengths and slots."""

from __future__ import annotations

from collections.abc import Sequence

from labs.live.client import Ask, asks_from
from labs.workload import Request, geometric_lengths, lognormal_lengths, measured_lengths, uniform_lengths

PAGE = [min(512, int(n)) for n in lognormal_lengths(64, 4.2, 1.1, seed=0)]
CHATS = measured_lengths("azure_conv_2023", 48, seed=3)
OTHERS = {
    "uniform": ([int(n) for n in uniform_lengths(40, 20, 100, seed=1)], 8),
    "geometric, 5 slots": ([min(256, int(n)) for n in geometric_lengths(32, 50, seed=2)], 5),
    "measured chats, a quarter": ([max(1, min(256, int(n) // 4)) for n in CHATS], 8),
}
WORKLOADS = {"lognormal": (PAGE, 8), **OTHERS}
# Fitted on these, which are none of the above, but as spread: a static run of them has steps of every size.
CALIBRATION = [min(200, int(n)) for n in lognormal_lengths(24, 4.2, 1.1, seed=5)]


def asks(lengths: Sequence[int], seed: int = 0) -> list[Ask]:
    """Requests with answers of exactly these lengths, and prompts of 4 to 63 tokens, no two alike."""
    return asks_from([Request(str(i), 4 + 7 * i % 60, n) for i, n in enumerate(lengths)], seed=seed)
