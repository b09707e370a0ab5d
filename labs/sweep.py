"""A grid of settings, one row of results each, over any `concurrent.futures.Executor`."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from itertools import product
from typing import Any

import numpy as np

from labs import metrics, workload
from labs.slots import SCHEDULERS, Ints, Schedule, arrival_rate

Row = dict[str, Any]


def grid(**axes: Iterable | Any) -> list[Row]:
    """Every combination of the axes' values, the last axis fastest. A value that is not a list stays fixed."""
    listed = {name: list(v) if isinstance(v, (list, tuple, range, np.ndarray)) else [v] for name, v in axes.items()}
    if empty := [name for name, values in listed.items() if not values]:
        raise ValueError(f"the axis {empty[0]!r} has no values: give it at least one")
    return [dict(zip(listed, values, strict=True)) for values in product(*listed.values())]


def sweep(function: Callable[..., Mapping], settings: Iterable[Row], executor: Executor | None = None,
          progress: Callable[[int, int], None] | None = None) -> list[Row]:
    """One row, `{**setting, **function(**setting)}`, for each setting, in their order whichever executor ran them.

    `progress(done, total)` is called after each. If a setting fails, the rest are cancelled and an error names it.
    """
    settings = list(settings)
    futures = [executor.submit(function, **setting) for setting in settings] if executor else []
    rows: list[Row] = []
    try:
        for i, setting in enumerate(settings):
            try:
                result = futures[i].result() if futures else function(**setting)
            except Exception as error:
                raise RuntimeError(f"the sweep stopped at {setting}: {error}") from error
            rows.append({**setting, **result})
            if progress:
                progress(i + 1, len(settings))
    finally:  # whatever ended it: a setting that failed, a callback that raised, the reader's stop button
        for future in futures:
            future.cancel()
    return rows


def run_both(lengths: Ints, slots: int, arrivals: Ints | None = None) -> dict[str, Schedule]:
    """Both schedulers on the same workload."""
    return {name: scheduler(lengths, slots, arrivals) for name, scheduler in SCHEDULERS.items()}


def compare(lengths: Ints, slots: int, load: float | None = None, seed: int = 0) -> Row:
    """Both schedulers on one workload, as a row of numbers: a backlog if `load` is None, else Poisson arrivals.

    Percentiles of an overloaded scheduler are NaN: they would only say how long the run was.
    """
    rate = None if load is None else arrival_rate(load, lengths, slots)
    arrivals = None if rate is None else workload.poisson_arrivals(len(lengths), rate, seed)
    row: Row = {"law": metrics.expected_static_utilisation(lengths, slots)}
    for name, schedule in run_both(lengths, slots, arrivals).items():
        normalised = metrics.normalised_latency(schedule)
        row[f"{name}_steps"], row[f"{name}_utilisation"] = schedule.steps, schedule.utilisation
        row[f"{name}_overloaded"] = load is not None and metrics.overloaded(name, load, lengths, slots)
        for label, q in (("p50", 0.5), ("p99", 0.99)):
            value = metrics.percentile(normalised, q)
            row[f"{name}_{label}"] = float("nan") if row[f"{name}_overloaded"] else value
    row["gain"] = row["static_steps"] / row["continuous_steps"]
    row["p99_ratio"] = row["static_p99"] / row["continuous_p99"]
    return row


def compare_lognormal(sigma: float, slots: int = 32, n: int = 500, mu: float = 4.2, seed: int = 0,
                      load: float | None = None) -> Row:
    """`compare` on `n` lognormal lengths: one point of the sigma sweep."""
    return compare(workload.lognormal_lengths(n, mu, sigma, seed), slots, load, seed)


def compare_measured(name: str, slots: int = 32, n: int = 5000, seed: int = 0, load: float | None = None) -> Row:
    """`compare` on `n` lengths drawn from a measured workload."""
    return compare(workload.measured_lengths(name, n, seed), slots, load, seed)
