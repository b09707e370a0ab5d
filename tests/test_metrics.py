"""What is measured on a schedule: counted apart, and held to the laws that it must obey."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import count_by_step, expected_max_by_enumeration, one_sentence

from labs import metrics, workload
from labs.slots import SCHEDULERS, Schedule, arrival_rate, continuous_batching, static_batching

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=30)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A schedule by either scheduler, returning early or not, with or without arrivals."""
    lengths, slots = draw(LENGTHS), draw(st.integers(1, 8))
    gaps = draw(st.none() | st.lists(st.integers(0, 6), min_size=len(lengths), max_size=len(lengths)))
    arrivals = None if gaps is None else np.cumsum(gaps)
    if draw(st.booleans()):
        return continuous_batching(lengths, slots, arrivals)
    return static_batching(lengths, slots, arrivals, return_early=draw(st.booleans()))


@pytest.fixture
def hand_made() -> Schedule:
    """Static batching of lengths 3, 1, 2 in 2 slots, arriving at 1, 1, 2: the groups run [1, 4) and [4, 6)."""
    return static_batching([3, 1, 2], 2, [1, 1, 2])


# ---- one number a request -------------------------------------------------------------------------------------------

def test_each_number_by_hand(hand_made: Schedule) -> None:
    assert metrics.latency(hand_made).tolist() == [3, 3, 4]
    assert metrics.normalised_latency(hand_made).tolist() == [1, 3, 2]
    assert metrics.queueing(hand_made).tolist() == [0, 0, 1]
    assert metrics.service(hand_made).tolist() == [1, 3, 1]
    assert metrics.head_of_line_wait(hand_made).tolist() == [0, 2, 0]
    assert metrics.occupancy(hand_made).tolist() == [0, 2, 1, 1, 1, 1]
    assert metrics.occupancy(hand_made, "held").tolist() == [0, 2, 2, 2, 1, 1]
    assert metrics.waiting(hand_made).tolist() == [0, 0, 1, 1, 0, 0]
    assert metrics.drain(hand_made) == 2
    assert metrics.window_utilisation(hand_made, 0, 6) == 6 / 12
    assert metrics.window_utilisation(hand_made, 2, 5) == 3 / 6
    assert metrics.window_utilisation(hand_made, 0, 1) == 0


@given(schedule=schedules())
def test_normalised_latency_is_queueing_plus_service(schedule: Schedule) -> None:
    total = metrics.normalised_latency(schedule)
    assert metrics.queueing(schedule) + metrics.service(schedule) == pytest.approx(total)
    assert (total * schedule.lengths).round().tolist() == metrics.latency(schedule).tolist()
    assert (metrics.queueing(schedule) >= 0).all()
    assert (metrics.service(schedule) >= 1).all()
    if schedule.scheduler == "continuous":
        assert (metrics.service(schedule) == 1).all()
        assert (metrics.head_of_line_wait(schedule) == 0).all()


@given(schedule=schedules())
def test_head_of_line_waits_are_the_slot_steps_held_for_nothing(schedule: Schedule) -> None:
    held = metrics.occupancy(schedule, "held").sum()
    assert metrics.head_of_line_wait(schedule).sum() == held - schedule.useful


# ---- percentiles ----------------------------------------------------------------------------------------------------

@given(values=st.lists(st.integers(-50, 50), min_size=1, max_size=120), q=st.floats(0, 1))
def test_nearest_rank_is_the_pages(values: list[int], q: float) -> None:
    assert metrics.percentile(values, q) == sorted(values)[min(int(q * len(values)), len(values) - 1)]


def test_percentile_methods_differ_and_are_named() -> None:
    hundred = list(range(1, 101))
    assert metrics.percentile(hundred, 0.99) == 100
    assert metrics.percentile(hundred, 0.5) == 51
    assert metrics.percentile(hundred, 0) == 1
    assert metrics.percentile(hundred, 1) == 100
    assert metrics.percentile(hundred, 0.99, "linear") == pytest.approx(99.01)
    assert metrics.percentile(hundred, 0.5, "linear") == 50.5
    assert metrics.percentile(hundred, 0.99, "inverted_cdf") == 99
    assert metrics.percentile([7], 0.99) == metrics.percentile([7], 0.99, "linear") == 7
    assert isinstance(metrics.percentile(hundred, 0.5), float)


@pytest.mark.parametrize(("values", "q", "named"), [
    ([], 0.5, "at least one value"), ([1.0, math.nan], 0.5, "NaN"), ([1], 99, "q=0.99"), ([1], -0.1, "between 0 and 1"),
    ([1], math.nan, "between 0 and 1"),
])
def test_percentile_refuses_in_one_sentence(values: list, q: float, named: str) -> None:
    with pytest.raises(ValueError) as caught:
        metrics.percentile(values, q)
    one_sentence(caught.value, named)


# ---- over time ------------------------------------------------------------------------------------------------------

@given(schedule=schedules())
def test_occupancy_and_waiting_equal_a_count_step_by_step(schedule: Schedule) -> None:
    useful, held = metrics.occupancy(schedule), metrics.occupancy(schedule, "held")
    assert useful.tolist() == count_by_step(schedule.start, schedule.done, schedule.steps)
    assert held.tolist() == count_by_step(schedule.start, schedule.release, schedule.steps)
    assert metrics.waiting(schedule).tolist() == count_by_step(schedule.arrivals, schedule.start, schedule.steps)


@given(schedule=schedules())
def test_occupancy_adds_up_to_useful_work_and_never_exceeds_what_is_held(schedule: Schedule) -> None:
    useful, held = metrics.occupancy(schedule), metrics.occupancy(schedule, "held")
    assert len(useful) == schedule.steps
    assert useful.sum() == schedule.useful
    assert (useful <= held).all()
    assert held.max() <= schedule.slots
    assert useful.min() >= 0
    assert metrics.window_utilisation(schedule, 0, schedule.steps) == pytest.approx(schedule.utilisation)


@given(schedule=schedules(), bounds=st.lists(st.integers(0, 150), min_size=2, max_size=2, unique=True).map(sorted))
def test_a_windows_utilisation_is_its_mean_occupancy(schedule: Schedule, bounds: list[int]) -> None:
    first, last = bounds
    share = metrics.occupancy(schedule)[first:last].sum() / (schedule.slots * (last - first))
    assert metrics.window_utilisation(schedule, first, last) == pytest.approx(share)


@given(schedule=schedules())
def test_drain_begins_at_the_last_admission(schedule: Schedule) -> None:
    begun = schedule.steps - metrics.drain(schedule)
    assert begun == max(schedule.start)
    assert (metrics.waiting(schedule)[begun:] == 0).all()


@given(lengths=LENGTHS, slots=st.integers(1, 8))
def test_continuous_batching_of_a_backlog_is_full_until_it_drains(lengths: list[int], slots: int) -> None:
    steady = metrics.steady_utilisation(continuous_batching(lengths, slots))
    assert math.isnan(steady) if len(lengths) <= slots else steady == 1.0


def test_steady_utilisation_leaves_out_warm_up_and_drain() -> None:
    lengths = workload.lognormal_lengths(5_000, 4.2, 1.1, 0)
    static = static_batching(lengths, 32)
    assert metrics.steady_utilisation(static) == metrics.window_utilisation(static, 0, static.start.max())
    arrivals = workload.poisson_arrivals(5_000, arrival_rate(0.6, lengths, 32), 0)
    busy = continuous_batching(lengths, 32, arrivals)
    assert metrics.steady_utilisation(busy) == metrics.window_utilisation(busy, busy.start[500], busy.start[-1])
    assert metrics.steady_utilisation(busy, 0.5) == metrics.window_utilisation(busy, busy.start[2500], busy.start[-1])
    assert metrics.steady_utilisation(busy) == pytest.approx(0.6, abs=0.04)
    assert metrics.steady_utilisation(busy) > busy.utilisation


def test_a_window_may_begin_at_step_0_but_not_hold_nothing(hand_made: Schedule) -> None:
    for first, last in ((-1, 4), (3, 3), (4, 2)):
        with pytest.raises(ValueError) as caught:
            metrics.window_utilisation(hand_made, first, last)
        one_sentence(caught.value, "window", str(first), str(last))
    for warm_up in (-0.1, 1, 1.5, math.nan):
        with pytest.raises(ValueError) as caught:
            metrics.steady_utilisation(hand_made, warm_up)
        one_sentence(caught.value, "warm_up")
    assert metrics.steady_utilisation(hand_made, 0.0) == metrics.window_utilisation(hand_made, 1, 4)


def test_what_to_count_over_time_is_checked(hand_made: Schedule) -> None:
    with pytest.raises(ValueError) as caught:
        metrics.occupancy(hand_made, "all")
    one_sentence(caught.value, "useful", "held")
    for far in (static_batching([1, 1], 1, [0, 1_700_000_000]), static_batching([metrics.MOST_STEPS + 1], 1)):
        for count in (metrics.occupancy, metrics.waiting):
            with pytest.raises(ValueError) as caught:
                count(far)
            one_sentence(caught.value, "steps", f"{metrics.MOST_STEPS:,}")


def test_the_most_steps_that_can_be_counted_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert metrics.MOST_STEPS == 20_000_000
    monkeypatch.setattr(metrics, "MOST_STEPS", 5)
    assert len(metrics.occupancy(static_batching([5], 1))) == 5


# ---- the law --------------------------------------------------------------------------------------------------------

@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), draws=st.integers(1, 4))
def test_the_expected_longest_is_exact(lengths: list[int], draws: int) -> None:
    longest = metrics.expected_max(lengths, draws)
    assert longest == pytest.approx(expected_max_by_enumeration(lengths, draws))
    assert metrics.expected_static_utilisation(lengths, draws) == pytest.approx(np.mean(lengths) / longest)


def test_the_expected_longest_of_many_is_the_longest_and_of_one_the_mean() -> None:
    assert metrics.expected_max([3, 9, 6], 1) == 6
    assert metrics.expected_max([3, 9, 6], 500) == pytest.approx(9)
    assert metrics.expected_max([4, 4, 4], 7) == 4


@pytest.mark.parametrize("sigma", [1.1, 0.6, 0.3, 0.1, 0.0])
@pytest.mark.parametrize("slots", [4, 32])
def test_the_law_agrees_with_a_long_run(sigma: float, slots: int) -> None:
    lengths = workload.lognormal_lengths(320_000, 4.2, sigma, 5)
    law = metrics.expected_static_utilisation(lengths, slots)
    assert static_batching(lengths, slots).utilisation == pytest.approx(law, rel=0.02)


@pytest.mark.parametrize("name", workload.MEASURED)
def test_the_law_agrees_with_a_long_run_on_measured_lengths(name: str) -> None:
    lengths = workload.measured_lengths(name, 320_000, 5)
    law = metrics.expected_static_utilisation(lengths, 32)
    assert static_batching(lengths, 32).utilisation == pytest.approx(law, rel=0.02)


# ---- overload -------------------------------------------------------------------------------------------------------

def test_each_scheduler_is_overloaded_from_its_own_capacity_on() -> None:
    lengths = [10, 30]  # in 2 slots: mean 20, expected longest 25
    assert metrics.expected_static_utilisation(lengths, 2) == 0.8
    assert [metrics.overloaded("static", load, lengths, 2) for load in (0.79, 0.8, 0.81)] == [False, True, True]
    assert [metrics.overloaded("continuous", load, lengths, 2) for load in (0.99, 1.0, 1.01)] == [False, True, True]
    assert metrics.overloaded("static", 0.9, lengths, 2) and not metrics.overloaded("continuous", 0.9, lengths, 2)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_just_below_capacity_the_queue_settles_and_above_it_grows(name: str) -> None:
    lengths = workload.uniform_lengths(40_000, 1, 200, 2)
    capacity = 1.0 if name == "continuous" else metrics.expected_static_utilisation(lengths, 16)
    ends = {}
    for load in (0.8 * capacity, 1.2 * capacity):
        arrivals = workload.poisson_arrivals(len(lengths), arrival_rate(load, lengths, 16), 3)
        waited = SCHEDULERS[name](lengths, 16, arrivals)
        wait = waited.start - waited.arrivals
        ends[load] = (metrics.overloaded(name, load, lengths, 16), wait[-4000:].mean() / wait[4000:8000].mean())
    (calm, settled), (over, grown) = ends.values()
    assert (calm, over) == (False, True)
    assert settled < 3
    assert grown > 4


@pytest.mark.parametrize(("scheduler", "load", "named"), [
    ("dynamic", 0.5, "dynamic"), ("static", 0, "load"), ("continuous", -1, "load"), ("continuous", math.nan, "load"),
    ("static", math.inf, "load"),
])
def test_overload_refuses_in_one_sentence(scheduler: str, load: float, named: str) -> None:
    with pytest.raises(ValueError) as caught:
        metrics.overloaded(scheduler, load, [1, 2], 2)
    one_sentence(caught.value, named)


# ---- the shape of a workload ----------------------------------------------------------------------------------------

def test_shape_by_hand() -> None:
    shape = metrics.shape([2, 2, 2, 10], 2)
    assert (shape.n, shape.mean, shape.p50, shape.p99, shape.slots) == (4, 4.0, 2.0, 10.0, 2)
    assert shape.cv == pytest.approx(math.sqrt(12) / 4)
    assert shape.spread == 5
    assert shape.gain == 12 / 12
    assert shape.law_gain == pytest.approx((2 * 9 / 16 + 10 * 7 / 16) / 4)


def test_shape_of_the_pages_workload() -> None:
    shape = metrics.shape(workload.lognormal_lengths(500, 4.2, 1.1, 0))
    assert (shape.n, shape.slots) == (500, 32)
    assert shape.gain == 8942 / 2206
    assert shape.law_gain == pytest.approx(1 / 0.2024, rel=1e-3)
    assert shape.mean == pytest.approx(118.184)
    lengths = sorted(workload.lognormal_lengths(500, 4.2, 1.1, 0))
    assert (shape.p50, shape.p99) == (lengths[250], lengths[495]) == (74, 718)
    assert shape.spread == pytest.approx(718 / 74)
    with pytest.raises(FrozenInstanceError):
        shape.gain = 9.0


@pytest.mark.parametrize(("lengths", "words"), [
    (workload.fixed_lengths(100, 64), "nearly uniform"),
    (workload.uniform_lengths(5_000, 1, 100, 0), "vary somewhat"),
    (workload.lognormal_lengths(500, 4.2, 1.1, 0), "vary widely"),
])
def test_the_verdict_says_which_of_the_workloads_this_is(lengths: np.ndarray, words: str) -> None:
    shape = metrics.shape(lengths)
    assert words in shape.verdict
    assert f"{shape.gain:.1f}x" in shape.verdict
    one_sentence(shape.verdict)


@pytest.mark.parametrize(("gain", "words"), [
    (1.0, "nearly uniform"), (1.249, "nearly uniform"), (1.25, "somewhat"), (1.99, "somewhat"), (2.0, "widely"),
])
def test_where_the_verdict_changes(gain: float, words: str) -> None:
    assert words in metrics.Shape(100, 1.0, 1.0, 1.0, 0.0, 2, gain, gain).verdict


@pytest.mark.parametrize("lengths", [
    workload.EIGHT_LENGTHS, [10, 20, 300], np.sort(workload.measured_lengths("azure_conv_2023", 5_000, 0)),
])
def test_a_small_or_sorted_log_is_not_called_uniform(lengths: np.ndarray) -> None:
    shape = metrics.shape(lengths)
    assert shape.gain < 1.5 < shape.law_gain
    assert f"{shape.law_gain:.1f}x is to be expected" in shape.verdict and "uniform" not in shape.verdict
    one_sentence(shape.verdict)


def test_just_below_three_quarters_of_the_law_is_named() -> None:
    assert "to be expected" in metrics.Shape(90, 1.0, 1.0, 1.0, 0.0, 2, 4.0, 2.99).verdict
    assert "widely" in metrics.Shape(90, 1.0, 1.0, 1.0, 0.0, 2, 4.0, 3.0).verdict


def test_one_slot_is_no_batch() -> None:
    assert "one slot" in metrics.shape(workload.lognormal_lengths(500, 4.2, 1.1, 0), 1).verdict


def test_one_request_and_equal_lengths_have_a_shape() -> None:
    for lengths in ([7], [7] * 50):
        shape = metrics.shape(lengths, 4)
        assert (shape.cv, shape.spread, shape.gain, shape.law_gain) == pytest.approx((0, 1, 1, 1))


def test_a_workload_without_requests_has_none() -> None:
    for lengths in ([], [0], [math.nan]):
        for function in (metrics.shape, metrics.expected_static_utilisation, metrics.expected_max):
            with pytest.raises(ValueError) as caught:
                function(lengths, 4)
            one_sentence(caught.value, "lengths")


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11])
def test_a_handful_of_requests_gets_no_verdict(n: int) -> None:
    shape = metrics.shape([5] * n, 4)
    assert ("too few to tell" in shape.verdict) == (n < 10)
    one_sentence(shape.verdict)
