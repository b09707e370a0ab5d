"""Notebook 07's check: right answers written differently, wrong ones with their hints, and the drills beside it."""

from __future__ import annotations

import pytest
from marked import assert_hinted, assert_not_attempted, assert_passes

from labs.checks import EXERCISES, check, for_notebook
from labs.checks.check_yourself import CAP, HEADROOM, MEMORY, OTHER
from labs.drills import DRILLS, simulate
from labs.progress import Progress

DIAGNOSIS = EXERCISES["diagnosis"]


def by_elif(running, waiting, max_num_seqs, kv_usage, preemptions):
    if preemptions > 0:
        return "memory"
    if waiting == 0:
        return "headroom"
    if running == max_num_seqs:
        return "sequence cap"
    if kv_usage >= 0.9:
        return "memory"
    return "budget or head"


def by_table(running, waiting, max_num_seqs, kv_usage, preemptions):
    rules = [(preemptions, "memory"), (not waiting, "headroom"), (running >= max_num_seqs, "sequence cap"),
             (not kv_usage < 0.9, "memory")]
    return next((name for holds, name in rules if holds), "budget or head")


@pytest.mark.parametrize("respell", [str.title, str.upper, lambda text: text.replace(" ", "_"),
                                     lambda text: f" {text.replace(' ', '-')}\n"])
def test_the_right_text_spelled_otherwise_is_named(respell):
    def respelled(*seen):
        return respell(by_elif(*seen))

    assert_hinted("diagnosis", respelled, "spelling")
    assert "(wanted: one of the texts" in check("diagnosis", respelled).message


def test_another_text_than_those_that_are_asked_for_is_shown_them():
    said = check("diagnosis", lambda *seen: "out of memory").message
    assert 'but gave "out of memory" (wanted: one of the texts "memory", "headroom"' in said
    assert "but gave bytes where a text or a number belongs" in check("diagnosis", lambda *seen: b"memory").message
    said = check("diagnosis", lambda *seen: "memory").message
    assert "wanted" not in said, "memory is one of the texts"


def three_rows(running, waiting, max_num_seqs, kv_usage, preemptions):
    if running >= max_num_seqs and waiting > 0:
        return "sequence cap"
    return "memory" if waiting > 0 else "headroom"


def cap_before_preemptions(running, waiting, max_num_seqs, kv_usage, preemptions):
    if waiting and running >= max_num_seqs:
        return "sequence cap"
    return by_elif(running, waiting, max_num_seqs, kv_usage, preemptions)


def without_preemptions(running, waiting, max_num_seqs, kv_usage, preemptions):
    return by_elif(running, waiting, max_num_seqs, kv_usage, 0)


def full_before_all(running, waiting, max_num_seqs, kv_usage, preemptions):
    return "memory" if preemptions or kv_usage >= 0.9 else by_elif(running, waiting, max_num_seqs, kv_usage, 0)


def waits_always(running, waiting, max_num_seqs, kv_usage, preemptions):
    if preemptions:
        return "memory"
    if running >= max_num_seqs:
        return "sequence cap"
    return "memory" if kv_usage >= 0.9 else "budget or head"


def above(running, waiting, max_num_seqs, kv_usage, preemptions):
    return by_elif(running if running > max_num_seqs else 0, waiting, max_num_seqs, kv_usage, preemptions)


def over_nine_tenths(running, waiting, max_num_seqs, kv_usage, preemptions):
    return by_elif(running, waiting, max_num_seqs, 0 if kv_usage == 0.9 else kv_usage, preemptions)


def headroom_below_the_cap(running, waiting, max_num_seqs, kv_usage, preemptions):
    return "headroom" if running < max_num_seqs else by_elif(running, waiting, max_num_seqs, kv_usage, preemptions)


def nobody_waits_first(running, waiting, max_num_seqs, kv_usage, preemptions):
    return by_table(running, waiting, max_num_seqs, kv_usage, preemptions) if waiting > 0 else "headroom"


def cap_whoever_waits(running, waiting, max_num_seqs, kv_usage, preemptions):
    if running == max_num_seqs:
        return "sequence cap"
    return by_table(running, waiting, max_num_seqs, kv_usage, preemptions)


def memory_before_the_cap(running, waiting, max_num_seqs, kv_usage, preemptions):
    rules = [(preemptions, "memory"), (not waiting, "headroom"), (kv_usage >= 0.9, "memory"),
             (running >= max_num_seqs, "sequence cap")]
    return next((name for holds, name in rules if holds), "budget or head")


def in_per_cent(running, waiting, max_num_seqs, kv_usage, preemptions):
    return by_table(running, waiting, max_num_seqs, 0.9 if kv_usage >= 90 else 0, preemptions)


WRONG = [(nobody_waits_first, "waiting_first"), (cap_whoever_waits, "cap_before_all"),
         (memory_before_the_cap, "kv_before_cap"), (in_per_cent, "percent"), (three_rows, "three_rows"),
         (cap_before_preemptions, "cap_first"), (without_preemptions, "no_preemptions"),
         (full_before_all, "full_is_memory"), (waits_always, "nobody_waits"), (above, "above_the_cap"),
         (over_nine_tenths, "nearly_full"), (headroom_below_the_cap, "")]


@pytest.mark.parametrize("answer", [by_elif, by_table], ids=lambda f: f.__name__)
def test_a_right_answer_written_differently_passes(answer):
    assert_passes("diagnosis", answer)


@pytest.mark.parametrize(("answer", "key"), WRONG, ids=lambda x: getattr(x, "__name__", x))
def test_a_wrong_answer_gets_its_hint_and_then_the_stronger_one(answer, key):
    assert_hinted("diagnosis", answer, key)


def test_each_mistake_is_made_by_a_wrong_answer():
    assert {m.key for m in DIAGNOSIS.mistakes} == {key for _, key in WRONG if key}
    assert [e.id for e in for_notebook("07")] == ["diagnosis"]


def test_a_stub_is_not_attempted():
    assert_not_attempted("diagnosis")


def test_a_pass_is_remembered():
    progress = Progress(None)
    check("diagnosis", by_table, progress=progress)
    assert progress.passed("diagnosis")


def test_every_answer_occurs_among_the_cases_and_on_the_drills_dashboards():
    assert {right for _, right in DIAGNOSIS.cases()} == {HEADROOM, CAP, MEMORY, OTHER}
    seen = {}
    for d in DRILLS:
        s, series = simulate(d.scenario).summary, d.series
        seen[d.id] = by_table(s.running_max if s.running > 0.95 * d.dashboard.cap else s.running, round(s.waiting),
                              d.dashboard.cap, s.kv_usage, int(series["preemptions"][-15:].sum()))
    assert seen["sequence_cap"] == CAP
    assert seen["thrashing"] == MEMORY
    assert seen["token_budget"] == OTHER
    assert seen["under_load"] == seen["misread_benchmark"] == seen["full_batch"] == HEADROOM
