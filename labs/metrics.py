"""What to measure on a `Schedule`: utilisation, waste, latency, normalised latency and its parts, the law."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labs.slots import Ints, Schedule, check_workload, continuous_batching, static_batching
from labs.words import many

FEW = 10  # requests, below which lengths aren't called uniform
MOST_STEPS = 20_000_000  # that are counted one by one: the arrays over time take about 0.5 GB

# ---- one number a request -------------------------------------------------------------------------------------------

def latency(schedule: Schedule) -> np.ndarray:
    """Steps from arrival until the answer is returned."""
    return schedule.finish - schedule.arrivals


def normalised_latency(schedule: Schedule) -> np.ndarray:
    """Latency per output token, in steps (1 = it never waited). Source: Orca, section 6; vLLM paper, section 6.1."""
    return latency(schedule) / schedule.lengths


def queueing(schedule: Schedule) -> np.ndarray:
    """The part of normalised latency spent waiting for a slot, in steps per output token."""
    return (schedule.start - schedule.arrivals) / schedule.lengths


def service(schedule: Schedule) -> np.ndarray:
    """The part of normalised latency spent in a slot until the answer is returned; 1 unless the answer is held back."""
    return (schedule.finish - schedule.start) / schedule.lengths


def head_of_line_wait(schedule: Schedule) -> np.ndarray:
    """Steps that each request holds its slot after its own last token (what the longest of its group costs it)."""
    return schedule.release - schedule.done


def percentile(values: Ints, q: float, method: str = "nearest_rank") -> float:
    """The value below which a share `q` (0 to 1) of `values` lies.

    `nearest_rank` is `sorted(values)[int(q * n)]`, the last one at q = 1: always a value that occurred. Any other
    `method` is one of numpy's, such as "linear", which interpolates between two values.
    Raises ValueError for no values, values that are not numbers, or q outside 0 to 1.
    """
    values = np.asarray(values, dtype=float)
    if values.size == 0 or np.isnan(values).any():
        raise ValueError("a percentile needs at least one value, and no NaN among them")
    if not 0 <= q <= 1:
        raise ValueError(f"q must lie between 0 and 1, got {q}: the 99th percentile is q=0.99")
    if method != "nearest_rank":
        return float(np.quantile(values, q, method=method))
    rank = min(int(q * values.size), values.size - 1)
    return float(np.partition(values, rank)[rank])


def weighted_percentiles(values: np.ndarray, counts: np.ndarray, *shares: float) -> list[float]:
    """`percentile`, by nearest rank, of values that each occur so many times; NaN for each share if there are none."""
    total = int(counts.sum())
    if not total:
        return [math.nan] * len(shares)
    order = np.argsort(values, kind="stable")
    upto = np.cumsum(counts[order])
    ranks = [min(int(q * total), total - 1) for q in shares]
    return values[order][np.searchsorted(upto, ranks, side="right")].astype(float).tolist()


# ---- over time ------------------------------------------------------------------------------------------------------

def occupancy(schedule: Schedule, which: str = "useful") -> np.ndarray:
    """Slots in use at each step: those making a token (`useful`), or also those held by a finished request (`held`)."""
    if which not in ("useful", "held"):
        raise ValueError(f"which must be 'useful' or 'held', got {which!r}")
    end = schedule.done if which == "useful" else schedule.release
    return _balance(schedule, schedule.start, end)


def waiting(schedule: Schedule) -> np.ndarray:
    """Requests that have arrived and have no slot yet, at each step."""
    return _balance(schedule, schedule.arrivals, schedule.start)


def _balance(schedule: Schedule, come: np.ndarray, go: np.ndarray) -> np.ndarray:
    """How many have come and not yet gone, at each step."""
    if schedule.steps > MOST_STEPS:
        raise ValueError(f"{schedule.steps:,} steps are too many to count one by one: use shorter lengths or earlier "
                         f"arrivals, {MOST_STEPS:,} steps at most")
    size = schedule.steps + 1
    return np.cumsum(np.bincount(come, minlength=size) - np.bincount(go, minlength=size))[:-1]


def drain(schedule: Schedule) -> int:
    """Steps from the last admission to the end: with nobody left to admit, a slot that empties stays empty."""
    return schedule.steps - int(schedule.start.max())


def window_utilisation(schedule: Schedule, first: int, last: int) -> float:
    """Useful share of the slot-steps in steps [first, last). Raises ValueError if the window is empty."""
    if not 0 <= first < last:
        raise ValueError(f"the window must begin at 0 or later and end after it begins, got {first} to {last}")
    inside = np.minimum(schedule.done, last) - np.maximum(schedule.start, first)
    return float(np.maximum(inside, 0).sum() / (schedule.slots * (last - first)))


def steady_utilisation(schedule: Schedule, warm_up: float = 0.1) -> float:
    """Utilisation without warm-up and drain: from a share `warm_up` of the arrivals to the last admission.

    For a backlog there is no warm-up (all slots fill at step 0), so the window begins at 0.
    NaN if everything was admitted at once, so that there is no such window.
    """
    if not 0 <= warm_up < 1:
        raise ValueError(f"warm_up must be a share from 0 up to 1, got {warm_up}")
    first = int(schedule.start[int(warm_up * len(schedule.start))]) if schedule.arrivals.any() else 0
    last = int(schedule.start.max())
    return window_utilisation(schedule, first, last) if first < last else float("nan")


# ---- what the lengths alone tell ------------------------------------------------------------------------------------

def expected_max(lengths: Ints, draws: int) -> float:
    """The mean of the longest of `draws` requests, each drawn at random from `lengths`. Exact, no sampling.

    The longest is at most the i-th smallest of n values with probability (i/n)**draws.
    """
    lengths, draws, _ = check_workload(lengths, draws)
    share = np.arange(len(lengths) + 1) / len(lengths)
    return float(np.sort(lengths) @ np.diff(share**draws))


def expected_static_utilisation(lengths: Ints, slots: int) -> float:
    """E[length] / E[longest of `slots` lengths]: static batching's utilisation of full groups, before any run.

    It is also the highest load that static batching can sustain, as a share of what continuous batching can.
    """
    longest = expected_max(lengths, slots)
    return float(np.mean(lengths)) / longest


def overloaded(scheduler: str, load: float, lengths: Ints, slots: int) -> bool:
    """True if work arrives as fast as `scheduler` can do it or faster: its queue has no steady state.

    A percentile would then measure only how long the run was. `load` is relative to continuous batching's capacity.
    """
    if scheduler not in ("static", "continuous"):
        raise ValueError(f"scheduler must be 'static' or 'continuous', got {scheduler!r}")
    if not 0 < load < float("inf"):
        raise ValueError(f"load must be a number above 0, got {load}: 1 is as much work as continuous batching can do")
    return load >= (1.0 if scheduler == "continuous" else expected_static_utilisation(lengths, slots))


@dataclass(frozen=True)
class Shape:
    """A workload's output lengths in a few numbers, and what continuous batching gains on a backlog of it."""

    n: int
    mean: float
    p50: float
    p99: float
    cv: float
    slots: int
    law_gain: float
    gain: float

    @property
    def spread(self) -> float:
        """p99 / p50."""
        return self.p99 / self.p50

    @property
    def verdict(self) -> str:
        """Which of the two workloads this is: lengths that vary, or (nearly) uniform ones."""
        if self.slots == 1:
            return f"with one slot both schedulers do the same: a gain of {self.gain:.1f}x, whatever the lengths"
        steps = f"static batching takes {self.gain:.1f}x the steps of continuous batching"
        if self.law_gain < 1.25 and self.n < FEW:
            return f"{many(self.n, 'request')}: too few to tell how lengths vary, so give at least {FEW}; here {steps}"
        if self.law_gain < 1.25:
            return f"nearly uniform lengths: {steps}, so the choice matters little"
        if self.gain < 0.75 * self.law_gain:
            return (f"these lengths vary, and {self.law_gain:.1f}x is to be expected of them: here it is "
                    f"{self.gain:.1f}x, because they are few or come in a kind order")
        if self.law_gain < 2:
            return f"lengths vary somewhat: {steps}"
        return f"lengths vary widely: {steps}, so the choice matters a lot"


def shape(lengths: Ints, slots: int = 32) -> Shape:
    """Describe `lengths` and simulate both schedulers on them as a backlog, in the order given.

    `gain` is static steps / continuous steps in that run; `law_gain` is E[longest of `slots`] / E[length], which
    leaves out drain and any order in the log.
    """
    lengths, slots, _ = check_workload(lengths, slots)
    gain = static_batching(lengths, slots).steps / continuous_batching(lengths, slots).steps
    return Shape(len(lengths), float(lengths.mean()), percentile(lengths, 0.5), percentile(lengths, 0.99),
                 float(lengths.std() / lengths.mean()), slots, 1 / expected_static_utilisation(lengths, slots), gain)
