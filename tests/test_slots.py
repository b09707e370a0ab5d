"""The slot schedulers against step-by-step oracles, and what must hold of any schedule."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import Life, continuous_by_steps, one_sentence, static_by_steps

from labs.slots import SCHEDULERS, Schedule, arrival_rate, check_workload, continuous_batching, static_batching
from labs.workload import lognormal_lengths, poisson_arrivals

ORACLES = {"static": static_by_steps, "continuous": continuous_by_steps}


@st.composite
def workloads(draw: st.DrawFn, backlog: bool | None = None) -> tuple[list[int], int, list[int] | None]:
    """(lengths, slots, arrivals in order or None): small enough for the oracles, with ties, bursts and gaps."""
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=30))
    slots = draw(st.integers(1, 8))
    if backlog if backlog is not None else draw(st.booleans()):
        return lengths, slots, None
    gaps = draw(st.lists(st.integers(0, 6), min_size=len(lengths), max_size=len(lengths)))
    return lengths, slots, np.cumsum(gaps).tolist()


def both(workload: tuple) -> list[Schedule]:
    return [scheduler(*workload) for scheduler in SCHEDULERS.values()]


# ---- equal to the oracles -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", SCHEDULERS)
@given(workload=workloads())
def test_equals_the_step_by_step_oracle(name: str, workload: tuple) -> None:
    schedule = SCHEDULERS[name](*workload)
    expected: list[Life] = ORACLES[name](*workload)
    for what in ("start", "done", "finish", "slot"):
        assert getattr(schedule, what).tolist() == [getattr(life, what) for life in expected], what
    assert schedule.steps == max(life.finish for life in expected)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_equals_the_oracle_on_the_pages_lengths_with_arrivals(name: str) -> None:
    lengths = lognormal_lengths(300, 4.2, 1.1, seed=3)
    arrivals = np.ceil(poisson_arrivals(300, 0.1, seed=3)).astype(int)
    schedule = SCHEDULERS[name](lengths, 16, arrivals)
    expected = ORACLES[name](lengths.tolist(), 16, arrivals.tolist())
    assert schedule.finish.tolist() == [life.finish for life in expected]
    assert schedule.slot.tolist() == [life.slot for life in expected]


@pytest.mark.parametrize(("lengths", "slots", "arrivals", "start", "finish", "slot"), [
    ([3, 1, 2], 2, None, [0, 0, 3], [3, 3, 5], [0, 1, 0]),
    ([3, 1, 2], 3, None, [0, 0, 0], [3, 3, 3], [0, 1, 2]),
    ([2, 2, 2, 2], 2, [0, 1, 1, 1], [0, 2, 2, 4], [2, 4, 4, 6], [0, 0, 1, 0]),  # the first forms a group alone
    ([2, 5], 2, [4, 20], [4, 20], [6, 25], [0, 0]),  # idle until the first, and between the two
])
def test_static_groups_by_hand(lengths: list, slots: int, arrivals: list, start: list, finish: list,
                               slot: list) -> None:
    schedule = static_batching(lengths, slots, arrivals)
    assert (schedule.start.tolist(), schedule.finish.tolist(), schedule.slot.tolist()) == (start, finish, slot)


@pytest.mark.parametrize(("lengths", "slots", "arrivals", "start", "slot"), [
    ([3, 1, 2], 2, None, [0, 0, 1], [0, 1, 1]),
    ([2, 2, 1], 2, None, [0, 0, 2], [0, 1, 0]),  # both free at step 2: the lower one
    ([5, 1, 1], 2, [0, 0, 3], [0, 0, 3], [0, 1, 1]),
    ([1, 2, 4], 2, [0, 0, 9], [0, 0, 9], [0, 1, 0]),  # both stand empty: the one that freed first
])
def test_continuous_batching_by_hand(lengths: list, slots: int, arrivals: list, start: list, slot: list) -> None:
    schedule = continuous_batching(lengths, slots, arrivals)
    assert (schedule.start.tolist(), schedule.slot.tolist()) == (start, slot)
    assert schedule.finish.tolist() == [begin + length for begin, length in zip(start, lengths, strict=True)]


# ---- what must hold of any schedule ---------------------------------------------------------------------------------

@given(workload=workloads())
def test_no_slot_holds_two_requests_at_once(workload: tuple) -> None:
    for schedule in both(workload):
        for slot in range(schedule.slots):
            here = schedule.slot == slot
            mine = sorted(zip(schedule.start[here], schedule.release[here], strict=True))
            assert all(before[1] <= after[0] for before, after in pairwise(mine))
        assert schedule.slot.min() >= 0
        assert schedule.slot.max() < schedule.slots


@given(workload=workloads())
def test_work_is_conserved_and_nobody_starts_before_arriving(workload: tuple) -> None:
    lengths, slots, arrivals = workload
    for schedule in both(workload):
        assert (schedule.done - schedule.start).tolist() == lengths
        assert schedule.lengths.tolist() == lengths
        assert schedule.arrivals.tolist() == (arrivals or [0] * len(lengths))
        assert (schedule.start >= schedule.arrivals).all()
        assert (schedule.release >= schedule.done).all()
        assert schedule.useful == sum(lengths)
        assert schedule.slots == slots
        assert 0 < schedule.utilisation <= 1
        assert schedule.utilisation == pytest.approx(sum(lengths) / (slots * schedule.steps))


@given(workload=workloads())
def test_first_come_is_first_served(workload: tuple) -> None:
    for schedule in both(workload):
        assert (np.diff(schedule.start) >= 0).all()


@given(workload=workloads())
def test_continuous_batching_leaves_no_slot_empty_while_someone_waits(workload: tuple) -> None:
    schedule = continuous_batching(*workload)
    for i, (arrived, begun) in enumerate(zip(schedule.arrivals, schedule.start, strict=True)):
        for step in range(arrived, begun):
            assert ((schedule.start[:i] <= step) & (schedule.done[:i] > step)).sum() == schedule.slots


@given(workload=workloads())
def test_no_request_is_later_under_continuous_batching(workload: tuple) -> None:
    """When a static group begins, continuous batching is done with all earlier ones and has a slot for each member."""
    static, continuous = both(workload)
    assert (continuous.start <= static.start).all()
    assert (continuous.finish <= static.done).all()
    assert continuous.steps <= static.steps


@given(workload=workloads(), rnd=st.randoms(use_true_random=False))
def test_equal_lengths_in_a_backlog_leave_nothing_to_gain(workload: tuple, rnd) -> None:
    lengths = [rnd.randint(1, 12)] * len(workload[0])
    static, continuous = both((lengths, workload[1], None))
    assert static.finish.tolist() == continuous.finish.tolist()


@given(workload=workloads(), later=st.integers(0, 50))
def test_both_ways_through_the_code_agree(workload: tuple, later: int) -> None:
    """All arrivals at one later step (the way for arrivals) is the backlog (the short way), moved."""
    lengths, slots, _ = workload
    for scheduler in SCHEDULERS.values():
        backlog = scheduler(lengths, slots)
        moved = scheduler(lengths, slots, [later] * len(lengths))
        assert (moved.start - later).tolist() == backlog.start.tolist()
        assert (moved.finish - later).tolist() == backlog.finish.tolist()
        assert moved.slot.tolist() == backlog.slot.tolist()


# ---- static groups --------------------------------------------------------------------------------------------------

@given(workload=workloads())
def test_a_static_group_is_those_that_wait_when_the_last_one_ends(workload: tuple) -> None:
    schedule = static_batching(*workload)
    free = 0
    for begin in np.unique(schedule.start):
        members = np.flatnonzero(schedule.start == begin)
        assert begin == max(free, schedule.arrivals[members[0]])
        assert len(members) <= schedule.slots
        assert schedule.slot[members].tolist() == list(range(len(members)))
        left_out = members[-1] + 1
        if len(members) < schedule.slots and left_out < len(schedule.lengths):
            assert schedule.arrivals[left_out] > begin
        free = begin + schedule.lengths[members].max()
        assert set(schedule.release[members]) == set(schedule.finish[members]) == {free}


@given(workload=workloads())
def test_return_early_hands_answers_over_and_holds_slots_all_the_same(workload: tuple) -> None:
    late = static_batching(*workload)
    early = static_batching(*workload, return_early=True)
    assert early.finish.tolist() == early.done.tolist() == late.done.tolist()
    for what in ("start", "release", "slot"):
        assert getattr(early, what).tolist() == getattr(late, what).tolist()
    assert early.steps == late.steps
    assert early.scheduler == late.scheduler == "static"


def test_a_schedule_cannot_be_changed_by_accident() -> None:
    schedule = continuous_batching([3, 1], 2)
    with pytest.raises(FrozenInstanceError):
        schedule.slots = 3


def test_the_schedules_name_their_schedulers() -> None:
    assert [scheduler([1], 1).scheduler for scheduler in SCHEDULERS.values()] == list(SCHEDULERS)
    assert list(SCHEDULERS) == ["static", "continuous"]


# ---- arrivals, load -------------------------------------------------------------------------------------------------

def test_a_request_that_comes_within_a_step_joins_at_the_next() -> None:
    for scheduler in SCHEDULERS.values():
        schedule = scheduler([4, 4], 2, [0.01, 1.5])
        assert schedule.arrivals.tolist() == [1, 2]
        assert schedule.start[0] == 1


def test_load_is_a_share_of_what_continuous_batching_can_serve() -> None:
    assert arrival_rate(1.0, [10, 30], 4) == 4 / 20
    assert arrival_rate(0.5, [10, 30], 4) == 2 / 20
    lengths = lognormal_lengths(20_000, 4.2, 1.1, 0)
    schedule = continuous_batching(lengths, 32, poisson_arrivals(20_000, arrival_rate(0.7, lengths, 32), 0))
    assert schedule.utilisation == pytest.approx(0.7, rel=0.02)


def test_golden_schedule() -> None:
    """The same workload gives the same schedule on every machine and version."""
    lengths = lognormal_lengths(20_000, 4.2, 1.1, 7)
    arrivals = poisson_arrivals(20_000, arrival_rate(0.9, lengths, 32), 7)
    got = {schedule.scheduler: (schedule.steps, int(schedule.start.sum()), int(schedule.slot.sum()))
           for schedule in both((lengths, 32, arrivals))}
    assert got == {"static": (473_241, 4_583_735_161, 309_731), "continuous": (85_644, 850_107_541, 308_301)}


def test_more_slots_than_requests_cost_nothing() -> None:
    lengths = [5, 1, 3]
    for scheduler in SCHEDULERS.values():
        schedule = scheduler(lengths, 10**9)
        assert schedule.start.tolist() == [0, 0, 0]
        assert schedule.slot.tolist() == [0, 1, 2]
        assert schedule.slots == 10**9


def test_lengths_of_any_whole_kind_are_taken() -> None:
    for lengths in ([3, 1], (3, 1), np.array([3, 1], dtype=np.uint8), np.array([3.0, 1.0])):
        for scheduler in SCHEDULERS.values():
            assert scheduler(lengths, np.int32(1)).start.tolist() == [0, 3]


# ---- bad input ------------------------------------------------------------------------------------------------------

BAD = [
    ("slots", [5, 3], 0, None),
    ("slots", [5, 3], -4, None),
    ("slots", [5, 3], 2.5, None),
    ("slots", [5, 3], float("nan"), None),
    ("slots", [5, 3], float("inf"), None),
    ("slots", [5, 3], 1e300, None),
    ("slots", [5, 3], "8", None),
    ("slots", [5, 3], None, None),
    ("slots", [5, 3], [4], None),
    ("slots", [5, 3], [], None),
    ("slots", [5, 3], True, None),
    ("lengths", [], 4, None),
    ("lengths", 7, 4, None),
    ("lengths", [[5, 3], [2, 2]], 4, None),
    ("lengths", [[5, 3], [2]], 4, None),
    ("lengths", [5, 0], 4, None),
    ("lengths", [5, -3], 4, None),
    ("lengths", [5, 2.5], 4, None),
    ("lengths", [5, float("nan")], 4, None),
    ("lengths", [5, float("inf")], 4, None),
    ("lengths", [5, 1e300], 4, None),
    ("lengths", [2**61, 2**61], 4, None),
    ("lengths", np.array([2**63 + 1], dtype=np.uint64), 4, None),
    ("lengths", ["5", "3"], 4, None),
    ("lengths", [5, None], 4, None),
    ("lengths", "53", 4, None),
    ("arrivals", [5, 3], 4, [0]),
    ("arrivals", [5, 3], 4, [0, 1, 2]),
    ("arrivals", [5, 3], 4, 0),
    ("arrivals", [5, 3], 4, [3, 1]),
    ("arrivals", [5, 3], 4, [-1, 1]),
    ("arrivals", [5, 3], 4, [0, float("nan")]),
    ("arrivals", [5, 3], 4, [0, float("inf")]),
    ("arrivals", [5, 3], 4, [0, 1e18]),
    ("arrivals", [5, 3], 4, ["now", "later"]),
    ("arrivals", [5, 3], 4, [0, [1]]),
]


@pytest.mark.parametrize(("names", "lengths", "slots", "arrivals"), BAD)
def test_bad_input_is_refused_in_one_sentence(names: str, lengths, slots, arrivals) -> None:
    for function in (*SCHEDULERS.values(), check_workload):
        with pytest.raises(ValueError) as caught:
            function(lengths, slots, arrivals)
        one_sentence(caught.value, names)


def test_the_sentence_says_which_request_is_wrong() -> None:
    with pytest.raises(ValueError, match="request 2 has -7"):
        continuous_batching([5, 3, -7, 4], 2)
    with pytest.raises(ValueError, match="request 3 comes before"):
        continuous_batching([5, 3, 7, 4], 2, [2, 2, 5, 4])
    with pytest.raises(ValueError, match="got 2.5$"):
        continuous_batching([5, 2.5, 3, 1.5], 2)
    with pytest.raises(ValueError, match="got '7'$"):
        continuous_batching(["7", "8", "9"], 2)
    with pytest.raises(ValueError, match="2 needed, got 3"):
        continuous_batching([5, 3], 2, [0, 2, 5])


@pytest.mark.parametrize("load", [0, -0.5, float("nan"), float("inf")])
def test_a_load_that_is_none_is_refused(load: float) -> None:
    with pytest.raises(ValueError) as caught:
        arrival_rate(load, [5, 3], 4)
    one_sentence(caught.value, "load")


def test_one_request_and_the_longest_ones_that_fit_are_fine() -> None:
    for scheduler in SCHEDULERS.values():
        assert scheduler([1], 1).steps == 1
        assert scheduler([950], 32).utilisation == 1 / 32
        assert scheduler([2**50], 4, [2**50]).finish.tolist() == [2**51]
        assert scheduler([2**59], 8).finish.tolist() == [2**59]
        assert scheduler([2**60], 4).finish.tolist() == [2**60]
        assert scheduler([1], 4, [2**59]).start.tolist() == [2**59]
        for lengths, slots, arrivals, named in (([2**60, 2**10], 4, None, "this model"), ([2**62], 1, None, "2**62"),
                                                ([1], 4, [2**59 + 2**10], "this model")):
            with pytest.raises(ValueError) as caught:
                scheduler(lengths, slots, arrivals)
            one_sentence(caught.value, named)
