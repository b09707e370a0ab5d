"""Notebook 06's checks: as in test_checks.py, and each oracle beside the engine or the workload that it speaks of."""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np
import pytest
from marked import assert_complete, assert_hinted, assert_not_attempted, assert_passes, rows

from labs.checks import check, for_notebook
from labs.checks.answers import copied, read, same
from labs.checks.guard import outcome
from labs.checks.marking import PASSED, recognise
from labs.engine import StepTime, run
from labs.scheduler import SchedulerConfig
from labs.workload import Request

OURS = {exercise.id: exercise for exercise in for_notebook("06")}
every = pytest.mark.parametrize("exercise", OURS.values(), ids=list(OURS))


def test_the_level_that_crosses_is_the_last_one_if_none_does():
    crossing = next(mistake for mistake in OURS["cap_below"].mistakes if mistake.key == "crossing")
    assert [crossing.wrong([2, 4, 8], itl, 40) for itl in ([50, 60, 70], [10, 50, 70], [10, 20, 30])] == [2, 4, 8]


# ---------------------------------------------------------------- right answers, written differently


def cap_by_takewhile(levels, itl, target):
    good = list(itertools.takewhile(lambda pair: pair[1] <= target, zip(levels, itl, strict=True)))
    return np.int64(good[-1][0]) if good else 0


def cap_by_counting(levels, itl, target):
    above = [i for i, value in enumerate(itl) if value > target]
    return ([0, *levels])[above[0] if above else len(levels)]


def gateway_by_heap(arrivals, seconds, limit):
    ends = []
    for arrival, length in zip(arrivals, seconds, strict=True):
        start = arrival if len(ends) < limit else max(arrival, heapq.heappop(ends))
        heapq.heappush(ends, start + length)
        yield start


def gateway_by_places(arrivals, seconds, limit):
    places, starts = [0] * limit, []
    while arrivals:
        first = places.index(min(places))
        starts.append(max(arrivals.pop(0), places[first]))
        places[first] = starts[-1] + seconds.pop(0)
    return starts


def sent_by_recursion(arrivals, window):
    if not arrivals:
        return []
    closes = arrivals[0] + window
    n = sum(arrival <= closes for arrival in arrivals)
    return [closes] * n + sent_by_recursion(arrivals[n:], window)


def sent_with_numpy(arrivals, window):
    arrivals, sent = np.array(arrivals), np.full(len(arrivals), -1)
    while (sent < 0).any():
        closes = arrivals[sent < 0][0] + window
        sent[(sent < 0) & (arrivals <= closes)] = closes
    return sent


def fires_by_text(values, threshold, hold):
    at = "".join("x" if value > threshold else "." for value in values).find("x" * hold)
    return -1 if at < 0 else at + hold - 1


def fires_by_counting(values, threshold, hold):
    count = 0
    for i, value in enumerate(values):
        count = count + 1 if value > threshold else 0
        if count == hold:
            return float(i)
    return -1


RIGHT = {
    "cap_below": [cap_by_takewhile, cap_by_counting],
    "replicas_needed": [lambda r, m, i, c: math.ceil(r * m * i / 1000 / c),
                        lambda r, m, i, c: np.ceil(r * m / (1000 / i) / c),
                        lambda r, m, i, c: -(-r * m * i // (1000 * c))],
    "longest_step": [lambda p, d, b, t, s, k: t + s * d + k * min(p, b - d),
                     lambda p, d, b, t, s, k: sum((t, s * d, k * sorted((p, b - d))[0]))],
    "sent_at": [sent_by_recursion, sent_with_numpy],
    "let_through": [gateway_by_heap, gateway_by_places],
    "fires_at": [fires_by_text, fires_by_counting],
}  # fmt: skip


# ---------------------------------------------------------------- wrong answers, and the hint each must get


def place_of(levels, itl, target):
    return max(0, levels.index(cap_by_counting(levels, itl, target))) if itl[0] <= target else 0


def groups_of(arrivals, seconds, limit):
    starts, free = [], 0
    for i in range(0, len(arrivals), limit):
        begun = [max(a, free) for a in arrivals[i:i + limit]]
        free = max(b + s for b, s in zip(begun, seconds[i:i + limit], strict=True))
        starts += begun
    return starts


def in_turn(arrivals, seconds, limit):
    starts = []
    for i, arrival in enumerate(arrivals):
        starts.append(max(arrival, starts[i - limit] + seconds[i - limit]) if i >= limit else arrival)
    return starts


def held_open(arrivals, window):
    sent = []
    for i, arrival in enumerate(arrivals):
        last = arrival
        for later in arrivals[i + 1:]:
            if later > last + window:
                break
            last = later
        sent.append(last + window)
    return sent


def opens_at_equal(arrivals, window):
    sent, closes = [], -1
    for arrival in arrivals:
        closes = arrival + window if arrival >= closes else closes
        sent.append(closes)
    return sent


def heap(arrivals, seconds, limit):
    return list(gateway_by_heap(arrivals, seconds, limit))


def windows_without_gaps(arrivals, window):
    sent, closes = [], arrivals[0] + window
    for arrival in arrivals:
        while arrival > closes:
            closes += window
        sent.append(closes)
    return sent


def test_every_window_of_the_case_is_worked_out():
    said = OURS["sent_at"].explain([0, 10, 60], 50)
    assert said == "Windows close at 0 + 50 = 50, then 60 + 50 = 110."


def test_where_no_level_keeps_the_target_the_case_is_worked_out_so():
    said = OURS["cap_below"].explain([1, 2], [50, 60], 40)
    assert said == "Level 1 has 50 already, above 40: no level keeps the target, so it is 0."
    assert OURS["cap_below"].explain([1, 2], [30, 60], 40).startswith("The levels up to 1 are at or below 40")


WRONG = {
    "cap_below": [
        (lambda lv, itl, t: max([0, *(a for a, b in zip(lv, itl, strict=True) if b <= t)]), "beyond"),
        (lambda lv, itl, t: next((a for a, b in zip(lv, itl, strict=True) if b > t), lv[-1]), "crossing"),
        (lambda lv, itl, t: next(a for a, b in zip(lv, itl, strict=True) if b > t), "crossing_alone"),
        (lambda lv, itl, t: cap_by_counting(lv, itl, t - 0.5), "strict"),
        (place_of, "place"),
        (lambda lv, itl, t: len(list(itertools.takewhile(lambda b: b <= t, itl))), "count"),
        (lambda lv, itl, t: cap_by_counting(lv, itl, t) or lv[0], "first_anyway"),
        (lambda lv, itl, t: cap_by_counting(itl, itl, t), "its_itl"),
        (lambda lv, itl, t: print(lv), "prints"),
        (lambda lv, itl, t: t, ""),
    ],
    "replicas_needed": [
        (lambda r, m, i, c: r * m * i // 1000 // c, "cut_off"),
        (lambda r, m, i, c: round(r * m * i / 1000 / c), "nearest"),
        (lambda r, m, i, c: r * m * i / (1000 * c), "fraction"),
        (lambda r, m, i, c: r * m * i // (1000 * c) + 1, "one_more"),
        (lambda r, m, i, c: -(-r // c), "rate_only"),
        (lambda r, m, i, c: math.ceil(r * m * i / c), "milliseconds"),
        (lambda r, m, i, c: math.ceil(r * m * i / 1000), "sequences"),
        (lambda r, m, i, c: math.ceil(r * i / (1000 * c)), "one_token"),
        (lambda r, m, i, c: math.ceil(r * m / c), "tokens_a_second"),
        (lambda r, m, i, c: c, ""),
    ],
    "longest_step": [
        (lambda p, d, b, t, s, k: t + s * d + k * p, "whole_prompt"),
        (lambda p, d, b, t, s, k: t + d * s + min(b, p) * k, "no_decoders"),
        (lambda p, d, b, t, s, k: t + d * s + (b - d) * k, "always_full"),
        (lambda p, d, b, t, s, k: t + d * s + (p % (b - d) or min(p, b - d)) * k, "last_chunk"),
        (lambda p, d, b, t, s, k: -(-p // (b - d)) * (t + s * d) + k * p, "all_steps"),
        (lambda p, d, b, t, s, k: k * min(p, b - d), "prefill_only"),
        (lambda p, d, b, t, s, k: t + k * min(p, b - d), "no_sequences"),
        (lambda p, d, b, t, s, k: s * d + k * min(p, b - d), "no_base"),
        (lambda p, d, b, t, s, k: p + d + b, ""),
    ],
    "sent_at": [
        (windows_without_gaps, "back_to_back"),
        (lambda a, w: [x + w for x in a], "each_alone"),
        (lambda a, w: a, "unchanged"),
        (lambda a, w: [-(-x // w) * w for x in a], "grid"),
        (held_open, "held_open"),
        (opens_at_equal, "excluded"),
        (lambda a, w: [x - w for x in sent_by_recursion(a, w)], "opening"),
        (lambda a, w: [x - y for x, y in zip(sent_by_recursion(a, w), a, strict=True)], "delays"),
        (lambda a, w: list(dict.fromkeys(sent_by_recursion(a, w))), "one_each"),
        (lambda a, w: [w for _ in a], ""),
    ],
    "let_through": [
        (lambda a, s, k: a, "no_limit"),
        (groups_of, "groups"),
        (in_turn, "by_turn"),
        (lambda a, s, k: heap([0] * len(a), s, k), "too_early"),
        (lambda a, s, k: heap(a, s, k + 1), "one_more"),
        (lambda a, s, k: heap(a, s, max(k - 1, 1)), "one_fewer"),
        (lambda a, s, k: heap(a, s, 1), "one_by_one"),
        (lambda a, s, k: [x + y for x, y in zip(heap(a, s, k), s, strict=True)], "ends"),
        (lambda a, s, k: [x - y for x, y in zip(heap(a, s, k), a, strict=True)], "waits"),
        (lambda a, s, k: s, ""),
    ],
    "fires_at": [
        (lambda v, t, h: next((i for i, x in enumerate(v) if x > t), -1), "first"),
        (lambda v, t, h: "".join("x" if x > t else "." for x in v).find("x" * h), "start"),
        (lambda v, t, h: ([i for i, x in enumerate(v) if x > t] + [-1] * h)[h - 1], "not_in_a_row"),
        (lambda v, t, h: fires_by_text(v, t - 1, h), "at_equal"),
        (lambda v, t, h: fires_by_text(v, t, h + 1), "one_late"),
        (lambda v, t, h: fires_by_text(v, t, h) + (fires_by_text(v, t, h) >= 0), "counted"),
        (lambda v, t, h: max(0, fires_by_text(v, t, h)), "never_is_0"),
        (lambda v, t, h: next((i for i in range(h - 1, len(v)) if np.mean(v[i - h + 1:i + 1]) > t), -1), "mean"),
        (lambda v, t, h: fires_by_text([2 * t - x for x in v], t, h), "below"),
        (lambda v, t, h: h, ""),
    ],
}


def test_the_tables_cover_every_exercise() -> None:
    assert list(OURS) == list(RIGHT) == list(WRONG)
    for name, exercise in OURS.items():
        seen = {key for _, key in WRONG[name] if key}
        assert len(seen) >= 5
        assert {m.key for m in exercise.mistakes} - seen <= {"interpolated"}


@pytest.mark.parametrize(("name", "answer"), rows(RIGHT))
def test_a_right_answer_written_differently_passes(name, answer) -> None:
    assert_passes(name, answer)


@pytest.mark.parametrize(("name", "answer", "key"), rows(WRONG))
def test_a_wrong_answer_gets_its_hint_and_then_the_stronger_one(name, answer, key) -> None:
    assert_hinted(name, answer, key)


@pytest.mark.parametrize("name", OURS)
def test_a_stub_is_not_attempted(name) -> None:
    assert_not_attempted(name)


@every
def test_an_exercise_is_complete(exercise) -> None:
    assert_complete(exercise)


@every
def test_the_hand_worked_answers_are_the_oracles(exercise) -> None:
    for args, right in exercise.worked:
        assert same(read(right), read(exercise.oracle(*copied(args))), exercise.tolerance), args
    assert check(exercise.id, exercise.oracle).status == PASSED


@every
def test_the_cases_tell_every_mistake_from_the_oracle_and_from_each_other(exercise) -> None:
    cases = exercise.cases()
    made = {m.key: [outcome(m.wrong, copied(args)) for args, _ in cases] for m in exercise.mistakes}
    made["the oracle"] = [right for _, right in cases]
    alike = [pair for pair in itertools.combinations(made, 2) if all(map(same, made[pair[0]], made[pair[1]]))]
    assert alike == []


@every
def test_each_mistake_is_recognised_as_itself(exercise) -> None:
    cases = exercise.cases()
    for mistake in exercise.mistakes:
        got = [outcome(mistake.wrong, copied(args)) for args, _ in cases]
        assert recognise(exercise, cases, got).key == mistake.key


@every
def test_explanations_work_for_every_case(exercise) -> None:
    for args, _ in exercise.cases():
        assert len(exercise.explain(*copied(args))) < 300


def test_the_longest_step_is_the_engines() -> None:
    for args, right in OURS["longest_step"].cases():
        prompt, decoding, budget, base, per_sequence, per_token = args
        requests = [Request(f"d{i}", 1, 60) for i in range(decoding)] + [Request("long", prompt, 1, arrival=1.0)]
        config = SchedulerConfig(decoding + 1, budget, num_gpu_blocks=10_000, max_model_len=4096)
        series = run(requests, config, StepTime(base, per_sequence, per_token)).series
        beside = (series.prefill_tokens > 0) & (series.decode_tokens == decoding)
        assert series.seconds[beside].max() == pytest.approx(right)
