"""The grid and the sweep: the same rows in the same order whichever executor ran them."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
from oracles import one_sentence

from labs import metrics, sweep, workload
from labs.slots import arrival_rate, continuous_batching, static_batching

SETTINGS = sweep.grid(sigma=[1.1, 0.6, 0.1], slots=[8, 32], n=200)


class Recording(Executor):
    """Hands out futures that finish only when told to, and remembers them."""

    def __init__(self) -> None:
        self.futures: list[Future] = []

    def submit(self, function, /, *args, **kwargs) -> Future:
        self.futures.append(Future())
        return self.futures[-1]


def slower_first(i: int) -> dict[str, int]:
    time.sleep(0.03 if i == 0 else 0)
    return {"square": i * i}


def fails_at_2(i: int) -> dict[str, int]:
    if i == 2:
        raise ValueError("two is not to be had")
    return {"square": i * i}


# ---- the grid -------------------------------------------------------------------------------------------------------

def test_the_last_axis_is_fastest_and_single_values_stay_fixed() -> None:
    assert sweep.grid(a=[1, 2], b=("x", "y"), c=5) == [
        {"a": 1, "b": "x", "c": 5}, {"a": 1, "b": "y", "c": 5}, {"a": 2, "b": "x", "c": 5}, {"a": 2, "b": "y", "c": 5}]


def test_ranges_and_arrays_are_axes_and_words_are_values() -> None:
    assert sweep.grid(a=range(2), b=np.array([0.5]), c="word", d=None) == [
        {"a": 0, "b": 0.5, "c": "word", "d": None}, {"a": 1, "b": 0.5, "c": "word", "d": None}]
    assert sweep.grid() == [{}]


@pytest.mark.parametrize("nothing", [[], (), range(0), np.array([])])
def test_an_axis_without_values_is_refused(nothing) -> None:
    with pytest.raises(ValueError) as caught:
        sweep.grid(sigma=[1.1], slots=nothing)
    one_sentence(caught.value, "slots")
    with pytest.raises(ValueError, match="the axis 'slots' has no values"):
        sweep.grid(sigma=[1.1], slots=nothing, seed=nothing)


# ---- the sweep ------------------------------------------------------------------------------------------------------

def test_the_same_rows_in_the_same_order_whichever_executor_ran_them() -> None:
    alone = sweep.sweep(sweep.compare_lognormal, SETTINGS)
    assert [{key: row[key] for key in ("sigma", "slots", "n")} for row in alone] == SETTINGS
    assert alone[1]["gain"] == sweep.compare_lognormal(sigma=1.1, slots=32, n=200)["gain"]
    with ThreadPoolExecutor(3) as threads:
        assert sweep.sweep(sweep.compare_lognormal, SETTINGS, threads) == alone
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        assert sweep.sweep(sweep.compare_lognormal, SETTINGS, processes) == alone


def test_rows_are_in_order_even_if_the_first_setting_takes_longest() -> None:
    with ThreadPoolExecutor(4) as threads:
        rows = sweep.sweep(slower_first, sweep.grid(i=range(6)), threads)
    assert rows == [{"i": i, "square": i * i} for i in range(6)]


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_is_told_after_each(workers: int) -> None:
    told: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as threads:
        sweep.sweep(slower_first, sweep.grid(i=range(4)), threads if workers else None, lambda *done: told.append(done))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_settings_may_be_a_generator_or_none_at_all() -> None:
    assert sweep.sweep(slower_first, ({"i": i} for i in (3, 1))) == [{"i": 3, "square": 9}, {"i": 1, "square": 1}]
    assert sweep.sweep(slower_first, []) == []
    with ThreadPoolExecutor(1) as threads:
        assert sweep.sweep(slower_first, [], threads, progress=lambda *_: pytest.fail("nothing was done")) == []


def test_a_failure_names_its_setting_and_keeps_its_cause() -> None:
    with ThreadPoolExecutor(2) as threads:
        for executor in (None, threads):
            with pytest.raises(RuntimeError) as caught:
                sweep.sweep(fails_at_2, sweep.grid(i=range(4)), executor)
            one_sentence(caught.value, "{'i': 2}", "two is not to be had")
            assert isinstance(caught.value.__cause__, ValueError)


def test_without_an_executor_nothing_runs_after_a_failure() -> None:
    ran: list[int] = []

    def note(i: int) -> dict:
        ran.append(i)
        return fails_at_2(i)

    with pytest.raises(RuntimeError):
        sweep.sweep(note, sweep.grid(i=range(6)))
    assert ran == [0, 1, 2]


def test_a_failure_cancels_what_has_not_begun() -> None:
    executor = Recording()
    begin = threading.Timer(0.05, lambda: executor.futures[0].set_exception(ValueError("the first one broke")))
    begin.start()
    with pytest.raises(RuntimeError, match="the first one broke"):
        sweep.sweep(slower_first, sweep.grid(i=range(5)), executor)
    begin.join()
    assert [future.cancelled() for future in executor.futures] == [False, True, True, True, True]


def test_a_progress_callback_that_raises_ends_the_sweep_with_its_own_error() -> None:
    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stopped

    executor = Recording()
    begin = threading.Timer(0.05, lambda: executor.futures[0].set_result({}))
    begin.start()
    with pytest.raises(Stopped):
        sweep.sweep(slower_first, sweep.grid(i=range(3)), executor, stop)
    begin.join()
    assert [future.cancelled() for future in executor.futures] == [False, True, True]


# ---- what is compared -----------------------------------------------------------------------------------------------

def test_a_backlogs_row_holds_what_the_metrics_give() -> None:
    lengths = workload.lognormal_lengths(400, 4.2, 0.9, 2)
    row = sweep.compare(lengths, 16)
    assert row["law"] == metrics.expected_static_utilisation(lengths, 16)
    for name, schedule in (("static", static_batching(lengths, 16)), ("continuous", continuous_batching(lengths, 16))):
        normalised = metrics.normalised_latency(schedule)
        assert row[f"{name}_steps"] == schedule.steps
        assert row[f"{name}_utilisation"] == schedule.utilisation
        assert row[f"{name}_p50"] == metrics.percentile(normalised, 0.5)
        assert row[f"{name}_p99"] == metrics.percentile(normalised, 0.99)
        assert row[f"{name}_overloaded"] is False
    assert row["gain"] == row["static_steps"] / row["continuous_steps"]


def test_with_a_load_requests_arrive_and_an_overloaded_scheduler_gets_no_percentile() -> None:
    lengths = workload.lognormal_lengths(4_000, 4.2, 1.1, 2)
    row = sweep.compare(lengths, 16, load=0.5, seed=9)
    arrivals = workload.poisson_arrivals(4_000, arrival_rate(0.5, lengths, 16), 9)
    assert row["static_overloaded"] and not row["continuous_overloaded"]
    assert all(math.isnan(row[key]) for key in ("static_p50", "static_p99", "p99_ratio"))
    continuous = continuous_batching(lengths, 16, arrivals)
    assert row["continuous_p99"] == metrics.percentile(metrics.normalised_latency(continuous), 0.99)
    assert row["static_steps"] == static_batching(lengths, 16, arrivals).steps
    assert not sweep.compare(lengths, 16, load=0.1)["static_overloaded"]


def test_the_pages_numbers_are_the_defaults() -> None:
    assert sweep.compare_lognormal(1.1) == sweep.compare_lognormal(1.1, slots=32, n=500, mu=4.2, seed=0, load=None)
    assert sweep.compare_lognormal(1.1)["static_steps"] == 8942
    lengths = workload.lognormal_lengths(300, 3.0, 0.5, 4)
    assert sweep.compare(lengths, 8, 0.1) == sweep.compare(lengths, 8, load=0.1, seed=0)
    assert sweep.compare_lognormal(0.5, 8, 300, 3.0, 4, 0.2) == sweep.compare(lengths, 8, 0.2, 4)


def test_a_measured_workload_is_compared_on_its_own_lengths() -> None:
    name = "azure_conv_2023"
    assert sweep.compare_measured(name) == sweep.compare(workload.measured_lengths(name, 5000, 0), 32)
    expected = sweep.compare(workload.measured_lengths(name, 900, 3), 8, 0.25, 3)
    assert sweep.compare_measured(name, 8, 900, 3, 0.25) == expected


def test_the_same_seed_gives_the_same_row_and_another_one_another() -> None:
    row = sweep.compare_lognormal(0.8, load=0.1, seed=5)
    assert row == sweep.compare_lognormal(0.8, load=0.1, seed=5)
    assert row["continuous_steps"] != sweep.compare_lognormal(0.8, load=0.1, seed=6)["continuous_steps"]


@pytest.mark.parametrize("load", [0, -1, math.nan])
def test_a_load_of_nothing_is_refused(load: float) -> None:
    with pytest.raises(ValueError) as caught:
        sweep.compare_lognormal(1.1, load=load)
    one_sentence(caught.value, "load")
