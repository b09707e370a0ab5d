"""A histogram as Prometheus has it: how often a value was at most each of a few bounds."""
from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Histogram:
    """How often a value was at most each of `bounds`, the last of which is infinite; `counts` are cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    count: float

    @property
    def mean(self) -> float:
        """Exact, unlike a quantile; NaN without values."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """Within the bucket that holds it a straight line, as Prometheus has it; NaN without values.

        No finer than the bucket: see `bracket`. Beyond the last finite bound it is that bound.
        """
        low, high = self.bracket(q)
        if not math.isfinite(high):
            return low
        i = self.bounds.index(high)
        below = self.counts[i - 1] if i else 0.0
        return low + (high - low) * max(0.0, q * self.counts[-1] - below) / (self.counts[i] - below)

    def bracket(self, q: float) -> tuple[float, float]:
        """Between which two bounds the quantile lies: all that the histogram knows for certain."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must lie between 0 and 1, got {q}: the 99th percentile is q=0.99")
        if not self.count or not self.counts:
            return math.nan, math.nan
        rank = q * self.counts[-1]
        i = next(i for i, count in enumerate(self.counts) if count >= rank and count > 0)
        return (self.bounds[i - 1] if i else min(0.0, self.bounds[0])), self.bounds[i]
