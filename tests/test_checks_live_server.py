"""Notebook 05's checks: right answers, each wrong one with its hint, and each oracle beside what labs/live computes."""

from __future__ import annotations

import itertools
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked import assert_complete, assert_hinted, assert_not_attempted, assert_passes, rows

from labs.checks import for_notebook
from labs.checks.live_server import FAIR, ORDER
from labs.checks.step_loop import Structured, alike, answers, plain
from labs.engine import fit_step_time
from labs.live.measurement import itl_from_chunks

OURS = {exercise.id: exercise for exercise in for_notebook("05")}
every = pytest.mark.parametrize("exercise", OURS.values(), ids=list(OURS))


# ---------------------------------------------------------------- right answers, written differently


def itl_with_numpy(times, counts):
    after = np.array(counts[1:], dtype=int)
    return np.repeat(np.diff(times) / after, after) if len(times) > 1 else []


def itl_by_generator(times, counts):
    for before, now, n in zip(times, times[1:], counts[1:], strict=False):
        yield from [(now - before) / n] * n


def tokens_by_loop(rows):
    total = 0
    while rows:
        row = rows.pop()
        if row["status"] not in ("cut", "error"):
            total += row["usage"]
    return total


def fit_by_polyfit(batch, seconds):
    return tuple(np.polyfit(batch, seconds, 1)[::-1])


def fit_by_lstsq(batch, seconds):
    return np.linalg.lstsq(np.column_stack([np.ones(len(batch)), batch]), np.array(seconds), rcond=None)[0]


def fair_by_table(concurrency, lengths, warm_up, cache_hits, failed):
    wrong = (failed, not warm_up, cache_hits, concurrency < 2, len(set(lengths)) == 1)
    return next((name for name, bad in zip(ORDER, wrong, strict=True) if bad), "fair")


def fair_backwards(concurrency, lengths, warm_up, cache_hits, failed):
    answer = "fair"
    if len({*lengths}) < 2:
        answer = "equal lengths"
    if concurrency == 1:
        answer = "concurrency 1"
    if cache_hits > 0:
        answer = "cached prompts"
    if not warm_up:
        answer = "cold start"
    return "failures left out" if failed else answer


RIGHT = {
    "itl": [itl_with_numpy, itl_by_generator, lambda t, c: tuple(itl_by_generator(t, c))],
    "output_tokens": [tokens_by_loop, lambda rows: np.int64(sum(r["usage"] * (r["status"] == "ok") for r in rows))],
    "step_time": [fit_by_polyfit, fit_by_lstsq],
    "fair": [fair_by_table, fair_backwards],
}


# ---------------------------------------------------------------- wrong answers, and the hint each must get


def one_gap_a_chunk(times, counts):
    return [(b - a) / n for a, b, n in zip(times, times[1:], counts[1:], strict=False)]


def through_zero(batch, seconds):
    return [0, float(np.dot(batch, seconds) / np.dot(batch, batch))]


def two_points(batch, seconds):
    slope = (seconds[-1] - seconds[0]) / (batch[-1] - batch[0])
    return [seconds[0] - batch[0] * slope, slope]


def the_wrong_way(batch, seconds):
    slope, base = np.polyfit(seconds, batch, 1)
    return [-base / slope, 1 / slope]


def look(*names):
    """Looks for these only, in this order."""
    def answer(concurrency, lengths, warm_up, cache_hits, failed):
        holds = {"failures left out": failed > 0, "cold start": warm_up < 1, "cached prompts": cache_hits > 0,
                 "concurrency 1": concurrency < 2, "equal lengths": max(lengths) - min(lengths) == 0}
        for name in names:
            if holds[name]:
                return name
        return "fair"
    return answer


def everything(*benchmark):
    return [name for name in ORDER if look(name)(*benchmark) == name]


WRONG = {
    "itl": [
        (lambda t, c: [b - a for a, b in pairwise(t)], "chunk_gaps"),
        (one_gap_a_chunk, "once"),
        (lambda t, c: np.repeat(np.diff(t), c[1:]), "not_shared"),
        (lambda t, c: [(b - a) / n for a, b, n in zip(t, t[1:], c, strict=False) for _ in range(n)], "count_before"),
        (lambda t, c: [x for a, b, n in zip(t, t[1:], c[1:], strict=False) for x in [b - a] + [0] * (n - 1)], "zeros"),
        (lambda t, c: [t[0], *itl_with_numpy(t, c)], "with_ttft"),
        (lambda t, c: (t[-1] - t[0]) / (sum(c) - 1) if sum(c) > 1 else 0.0, "tpot"),
        (lambda t, c: [1e3 * gap for gap in itl_by_generator(t, c)], "milliseconds"),
        (lambda t, c: [round(gap, 3) for gap in itl_by_generator(t, c)], "rounded"),
        (lambda t, c: print(t), "prints"),
        (lambda t, c: t, ""),
    ],
    "output_tokens": [
        (lambda rows: sum(len(r["text"].split()) for r in rows if r["status"] == "ok"), "words"),
        (lambda rows: sum(len(r["text"]) for r in rows if r["status"] == "ok"), "characters"),
        (lambda rows: sum(r["chunks"] for r in rows if r["status"] == "ok"), "chunks"),
        (lambda rows: sum(r["max_tokens"] for r in rows if r["status"] == "ok"), "max_tokens"),
        (lambda rows: sum(r["usage"] for r in rows), "failures_too"),
        (lambda rows: sum(len(r["text"].split(" ")) for r in rows), "words_of_all"),
        (lambda rows: sum(r["chunks"] for r in rows), "chunks_of_all"),
        (lambda rows: sum(r["max_tokens"] for r in rows), "caps_of_all"),
        (lambda rows: len([r for r in rows if r["status"] == "ok"]), "answers"),
        (lambda rows: [r["usage"] for r in rows if r["status"] == "ok"], "list"),
        (lambda rows: print(rows), "prints"),
        (lambda rows: 7, ""),
    ],
    "step_time": [
        (lambda b, s: np.polyfit(b, s, 1), "swapped"),
        (through_zero, "through_origin"),
        (two_points, "two_ends"),
        (the_wrong_way, "sideways"),
        (lambda b, s: [min(s), fit_by_polyfit(b, s)[1]], "smallest_as_base"),
        (lambda b, s: [1000 * value for value in fit_by_polyfit(b, s)], "milliseconds"),
        (lambda b, s: fit_by_polyfit(b, s)[0], "base_only"),
        (lambda b, s: fit_by_polyfit(b, s)[1], "slope_only"),
        (lambda b, s: [float(np.mean(s)), fit_by_polyfit(b, s)[1]], "mean_and_slope"),
        (lambda b, s: [0, sum(s) / sum(b)], "shares"),
        (lambda b, s: print(b), "prints"),
        (lambda b, s: [1, 2], ""),
    ],
    "fair": [
        (look(*ORDER[1:]), "no_failures"),
        (look(ORDER[0], *ORDER[2:]), "no_cold"),
        (look(*ORDER[:2], *ORDER[3:]), "no_cache"),
        (look(*ORDER[:3], ORDER[4]), "no_alone"),
        (look(*ORDER[:4]), "no_equal"),
        (look(*ORDER[:3], ORDER[4], ORDER[3]), "equal_first"),
        (look(ORDER[3], *ORDER[:3], ORDER[4]), "alone_first"),
        (look(ORDER[1], ORDER[0], *ORDER[2:]), "cold_first"),
        (look(ORDER[2], *ORDER[:2], *ORDER[3:]), "cached_first"),
        (look(*ORDER[::-1]), "last_one"),
        (lambda c, *rest: fair_by_table(c - 1, *rest), "few"),
        (everything, "all"),
        (lambda *b: (everything(*b) or [None])[0], "nothing"),
        (lambda *b: everything(*b) == [], "truth"),
        (lambda *b: print(b), "prints"),
        (lambda *b: fair_by_table(*b).upper(), "spelling"),
    ],
}


def test_the_tables_cover_every_exercise_and_every_mistake():
    assert set(RIGHT) == set(WRONG) == set(OURS)
    assert min(len(found) for found in RIGHT.values()) >= 2
    for name, exercise in OURS.items():
        assert {m.key for m in exercise.mistakes} <= {key for _, key in WRONG[name]}


@pytest.mark.parametrize(("name", "answer"), rows(RIGHT))
def test_a_right_answer_written_differently_passes(name, answer):
    assert_passes(name, answer)


@pytest.mark.parametrize(("name", "answer", "key"), rows(WRONG))
def test_a_wrong_answer_gets_its_hint_and_then_the_stronger_one(name, answer, key):
    assert_hinted(name, answer, key)


@pytest.mark.parametrize("name", OURS)
def test_a_stub_is_not_attempted(name):
    assert_not_attempted(name)


# ---------------------------------------------------------------- the exercises as data


@every
def test_an_exercise_is_complete(exercise):
    assert_complete(exercise, longest=220)


def given_by(function, exercise):
    """What it gives on every case."""
    return answers(function, [args for args, _ in exercise.cases()])[0]


@every
def test_the_cases_tell_every_mistake_from_the_oracle_and_from_each_other(exercise):
    made = {"the oracle": given_by(exercise.oracle, exercise)}
    made |= {mistake.key: given_by(mistake.wrong, exercise) for mistake in exercise.mistakes}
    for one, other in itertools.combinations(made, 2):
        assert not all(map(alike, made[one], made[other])), (one, other)


@every
def test_the_hand_worked_answers_are_the_oracles(exercise):
    found, _ = answers(exercise.oracle, [args for args, _ in exercise.worked])
    wanted = [plain(right) for _, right in exercise.worked]
    if isinstance(exercise, Structured):
        assert found == wanted
    else:
        assert all(a == pytest.approx(b) for a, b in zip(found, wanted, strict=True))


@every
def test_explanations_work_for_every_case(exercise):
    for args, _ in exercise.cases():
        text = exercise.explain(*args)
        assert "\n" not in text
        assert text.endswith("."), text


def test_the_cases_reach_every_answer():
    found = [right for _, right in OURS["fair"].cases()]
    assert all(found.count(name) >= 3 for name in (*ORDER, FAIR))


# ---------------------------------------------------------------- each oracle beside what the course computes


@given(st.lists(st.tuples(st.floats(0.001, 1), st.integers(1, 5)), min_size=1, max_size=20))
def test_itl_is_what_the_client_computes(waits):
    times = np.cumsum([wait for wait, _ in waits]).tolist()
    counts = [1, *(n for _, n in waits[1:])]
    ours = list(itl_from_chunks(list(zip(times, counts, strict=True))))
    assert OURS["itl"].oracle(times, counts) == pytest.approx(ours)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 90)), min_size=3, max_size=40))
def test_step_time_is_what_the_fit_finds(points):
    batch, ticks = zip(*points, strict=True)
    if len(set(batch)) < 2:
        return
    seconds = [0.01 + 0.0005 * n + tick / 1e5 for n, tick in zip(batch, ticks, strict=True)]
    base, slope = OURS["step_time"].oracle(batch, seconds)
    if base > 1e-6 and slope > 0:  # the course's own fit never goes below that
        fitted = fit_step_time(batch, [0] * len(batch), seconds).step_time
        assert (fitted.base, fitted.per_sequence) == pytest.approx((base, slope), rel=1e-6)


def test_the_task_of_fair_names_every_answer_in_its_order():
    task = OURS["fair"].task
    named = re.findall(r'"([^"]+)"', task)
    assert named == [*ORDER, FAIR]
