"""The two slot schedulers, static and continuous: output lengths (and arrivals) in, `Schedule` out.

One token per occupied slot per step. What this model leaves out, on purpose: prefill, KV memory, the time
that a step takes, and the order in which a real scheduler looks at its queues. `labs.scheduler` models those.
"""
from __future__ import annotations

import reprlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

Ints = Sequence[int] | np.ndarray
_CHUNK = 2048  # requests turned into Python's whole numbers at a time, to stay within a processor's cache


@dataclass(frozen=True)
class Schedule:
    """What happened to each request. Arrays hold one entry a request, in arrival order; times are in steps.

    A request computes during steps [start, done); its slot is held until `release`, and its answer is returned
    at `finish`. Under continuous batching done = release = finish.
    """

    scheduler: str
    slots: int
    lengths: np.ndarray
    arrivals: np.ndarray
    start: np.ndarray
    done: np.ndarray
    release: np.ndarray
    finish: np.ndarray
    slot: np.ndarray

    @property
    def steps(self) -> int:
        """Steps from step 0 until the last slot is released."""
        return int(self.release.max())

    @property
    def useful(self) -> int:
        """Slot-steps that produced a token."""
        return int(self.lengths.sum())

    @property
    def utilisation(self) -> float:
        """Useful slot-steps as a share of all `slots * steps`."""
        return self.useful / (self.slots * self.steps)


def static_batching(lengths: Ints, slots: int, arrivals: Ints | None = None, return_early: bool = False) -> Schedule:
    """Request-level batching: take up to `slots` waiting requests, run until the longest is done, then take more.

    `return_early` hands each answer over when its last token is made instead of when its group ends; the slot
    is held all the same. Raises ValueError for slots or lengths below 1, no requests, or arrivals out of order.
    """
    lengths, slots, arrivals = check_workload(lengths, slots, arrivals)
    first, begin = _static_groups(lengths, slots, arrivals)
    size = np.diff(np.append(first, len(lengths)))
    end = begin + np.maximum.reduceat(lengths, first)
    start, release = np.repeat(begin, size), np.repeat(end, size)
    slot = np.arange(len(lengths)) - np.repeat(first, size)
    done = start + lengths
    return Schedule("static", slots, lengths, arrivals, start, done, release, done if return_early else release, slot)


def continuous_batching(lengths: Ints, slots: int, arrivals: Ints | None = None) -> Schedule:
    """Token-level batching, first come first served: each request takes the slot that is free earliest.

    Raises ValueError for slots or lengths below 1, no requests, or arrivals out of order.
    """
    lengths, slots, arrivals = check_workload(lengths, slots, arrivals)
    # One heap of whole numbers holds both facts about a slot: when it is free, and which one it is. Smallest first.
    heap = list(range(min(slots, len(lengths))))
    held, key, backlog = lengths * slots, np.empty(len(lengths), dtype=np.int64), not arrivals.any()
    for i in range(0, len(lengths), _CHUNK):
        part = held[i:i + _CHUNK].tolist()
        if backlog:
            key[i:i + _CHUNK] = [heapreplace(heap, heap[0] + steps) for steps in part]
        else:
            key[i:i + _CHUNK] = _admit_with_arrivals(heap, part, (arrivals[i:i + _CHUNK] * slots).tolist(), slots)
    start, slot = np.divmod(key, slots)
    done = start + lengths
    return Schedule("continuous", slots, lengths, arrivals, start, done, done, done, slot)


SCHEDULERS = {"static": static_batching, "continuous": continuous_batching}


def arrival_rate(load: float, lengths: Ints, slots: int) -> float:
    """Requests per step that offer `load` (1 = all that continuous batching can serve: `slots / mean length`)."""
    if not 0 < load < float("inf"):
        raise ValueError(f"load must be a number above 0, got {load}: 1 is all that continuous batching can do")
    lengths, slots, _ = check_workload(lengths, slots)
    return load * slots / float(lengths.mean())


def check_workload(lengths: Ints, slots: int, arrivals: Ints | None = None) -> tuple[np.ndarray, int, np.ndarray]:
    """Return (lengths, slots, arrivals) as whole numbers, or raise a ValueError that says what to change.

    Arrivals are rounded up: a request that comes in the middle of a step can join at the next one.
    """
    slots = _whole("slots", slots)
    if slots.ndim:
        raise ValueError("slots must be one number")
    if slots < 1:
        raise ValueError(f"slots must be at least 1, got {slots}")
    slots, lengths = int(slots), _whole("lengths", lengths)
    if lengths.ndim != 1 or len(lengths) == 0:
        raise ValueError("lengths must be a list with at least one request in it")
    if lengths.min() < 1:
        raise ValueError(f"lengths must be at least 1 token, but request {lengths.argmin()} has {lengths.min()}")
    if float(lengths.sum(dtype=float)) * slots > 2**62:
        raise ValueError("lengths add up to more steps than this model counts: use shorter ones")
    if arrivals is None:
        return lengths, slots, np.zeros(len(lengths), dtype=np.int64)
    try:
        arrivals = np.asarray(arrivals, dtype=float)
    except (TypeError, ValueError):
        raise ValueError("arrivals must be a list of numbers, one step for each request") from None
    if arrivals.shape != lengths.shape:
        raise ValueError(f"arrivals must give one step for each request: {len(lengths)} needed, got {arrivals.size}")
    if not np.isfinite(arrivals).all() or arrivals.min() < 0:
        raise ValueError("arrivals must be steps of 0 or later, without gaps (no NaN)")
    if (np.diff(arrivals) < 0).any():
        raise ValueError(f"arrivals must be in order, but request {int((np.diff(arrivals) < 0).argmax()) + 1} comes "
                         "before the one ahead of it: sort requests by arrival")
    if float(arrivals[-1]) * slots > 2**61:
        raise ValueError("arrivals are too far in the future for this model: use smaller steps")
    return lengths, slots, np.ceil(arrivals).astype(np.int64)


def _whole(name: str, values: Ints) -> np.ndarray:
    """Return `values` as int64, or raise ValueError if one is not a whole number."""
    try:
        values = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must be whole numbers, not lists within a list") from None
    if values.size and values.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be whole numbers, got {reprlib.repr(values.ravel()[:1].tolist()[0])}")
    bad = values[(values != np.floor(values)) | ~(np.abs(values) < 2.0**62)]
    if bad.size:
        raise ValueError(f"{name} must be whole numbers (and below 2**62), got {bad.flat[0]}")
    return values.astype(np.int64)


def _static_groups(lengths: np.ndarray, slots: int, arrivals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each group's first request and the step at which the group begins."""
    if not arrivals.any():  # a backlog: every group is full except perhaps the last
        first = np.arange(0, len(lengths), slots)
        longest = np.maximum.reduceat(lengths, first)
        return first, np.cumsum(longest) - longest
    length, arrival, n = lengths.tolist(), arrivals.tolist(), len(lengths)
    first, begin, i, free = [], [], 0, 0
    while i < n:
        now = max(free, arrival[i])
        end = bisect_right(arrival, now, i, min(i + slots, n))  # those that wait by now, `slots` at most
        first.append(i)
        begin.append(now)
        free, i = now + max(length[i:end]), end
    return np.array(first), np.array(begin)


def _admit_with_arrivals(heap: list[int], held: list[int], arrival: list[int], slots: int) -> list[int]:
    """Return start * slots + slot for each request; `held` and `arrival` are in the same units."""
    key = []
    for steps, arrived in zip(held, arrival, strict=True):
        earliest = heap[0]
        if earliest < arrived:  # the slot stands empty until the request comes
            earliest = arrived + earliest % slots
        key.append(earliest)
        heapreplace(heap, earliest + steps)
    return key
