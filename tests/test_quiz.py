"""The questions: complete, marked fairly, and every number in them computed here from the labs modules."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import engine, metrics
from labs.blocks import blocks_for
from labs.live.measurement import chunk_gaps, itl_from_chunks
from labs.progress import Progress
from labs.quiz import QUESTIONS, Marked, _number, for_notebook, question
from labs.scheduler import Scheduler, SchedulerConfig
from labs.slots import arrival_rate, continuous_batching, static_batching
from labs.sweep import compare
from labs.workload import EIGHT_LENGTHS, EIGHT_NAMES, Request, fixed_lengths, lognormal_lengths

IDS = [q.id for q in QUESTIONS]
every = pytest.mark.parametrize("q", QUESTIONS, ids=IDS)
with_options = [q for q in QUESTIONS if q.options]
with_value = [q for q in QUESTIONS if not q.options]


# ---------------------------------------------------------------- the numbers, computed

LENGTHS = lognormal_lengths(500, 4.2, 1.1, seed=0)
STATIC, CONTINUOUS = static_batching(LENGTHS, 32), continuous_batching(LENGTHS, 32)
EIGHT = static_batching(EIGHT_LENGTHS, 8)
NAMED = dict(zip(EIGHT_NAMES, range(8), strict=True))


def ratio(schedule, q=0.99):
    """p99 / p50 of normalised latency."""
    normalised = metrics.normalised_latency(schedule)
    return metrics.percentile(normalised, q) / metrics.percentile(normalised, 0.5)


def p99(schedule):
    return metrics.percentile(metrics.normalised_latency(schedule), 0.99)


def gain(lengths, slots):
    return static_batching(lengths, slots).steps / continuous_batching(lengths, slots).steps


def one_batch(lengths):
    """Percentages of a static batch's slot-steps: useful, wasted."""
    schedule = static_batching(lengths, len(lengths))
    return 100 * schedule.utilisation, 100 * (1 - schedule.utilisation)


def half_load(lengths):
    """p50 and p99, static and continuous, with Poisson arrivals at half of continuous batching's capacity."""
    row = compare(lengths, 32, load=0.5, seed=0)
    return [f"{row[f'{name}_{q}']:.1f}" for name in ("static", "continuous") for q in ("p50", "p99")]


def ninth():
    """Where a ninth request begins, and where it would under static batching."""
    nine = [*EIGHT_LENGTHS, 1]
    return int(continuous_batching(nine, 8).start[8]), int(static_batching(nine, 8).start[8])


THREE = static_batching([10, 20, 90], 3)
PAIRS = [static_batching(pair, 2) for pair in itertools.product((10, 90), repeat=2)]
EMPTY = CONTINUOUS.slots * CONTINUOUS.steps - CONTINUOUS.useful


def next_in_line():
    """A request of 8 tokens ends in step 7 of a full batch: the step in which the one that waits runs first."""
    requests = [Request("ends", 3, 8), Request("long", 3, 50), Request("waits", 3, 4)]
    run = engine.run(requests, SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=64, num_gpu_blocks=99))
    assert [r.step for r in run.records if "ends" in r.finished] == [7]
    return int(run.outcomes["waits"].scheduled)


def preemption():
    """Blocks of 1 token run out when both have made 41: tokens thrown away, and tokens computed when it resumes."""
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=1024, num_gpu_blocks=1 + 341 + 340, block_size=1)
    run = engine.run([Request("stays", 300, 60), Request("victim", 300, 60)], config)
    [lost] = [r for r in run.records if r.preempted]
    assert lost.preempted == ("victim",)
    assert sum("victim" in r.made for r in run.records[: lost.step]) == 41
    return lost.lost, sum(r.prefill.get("victim", 0) for r in run.records[lost.step :])


def two_arrivals(budget, blocks=9999):
    """The records from where two prompts arrive beside 180 that decode, to the step that computes the last of them."""
    requests = [Request(f"d{i}", 1, 99) for i in range(180)]
    requests += [Request(f"p{i}", 2000, 40, arrival=1) for i in range(2)]
    config = SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=budget, num_gpu_blocks=blocks)
    records = engine.run(requests, config).records
    return records[1 : 1 + max(r.step for r in records if r.prefill)]


def chunks(budget):
    """Prefill tokens of each of the two prompts in each of those steps."""
    return [[r.prefill.get("p0", 0), r.prefill.get("p1", 0)] for r in two_arrivals(budget)]


def fewest_free(prompt, budget):
    """The smallest pool from which a prompt is admitted, one token being left to others."""
    def admitted(free):
        scheduler = Scheduler(SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=budget, num_gpu_blocks=1 + 99))
        scheduler.add(Request("head", prompt, 5))
        assert scheduler.pool.grow("others", 16 * (99 - free))
        return scheduler.schedule().num_scheduled_tokens == {"head": budget}

    return next(free for free in range(99) if admitted(free))


PAGE_STEP = chunks(2048)
CHUNKS = ((100, 1), (400, 3), (600, 2))
ROOM = 1024 - 180

# question -> the value that is marked as right
VALUES = {
    "granularity": ninth()[0],
    "head_of_line": one_batch([10, 20, 90])[1],
    "normalised": metrics.normalised_latency(EIGHT)[NAMED["F"]],
    "drain": EMPTY,
    "percentile": sum(v > metrics.percentile(range(60), 0.99) for v in range(60)),
    "where_from": 100 * metrics.expected_static_utilisation([10, 90], 2),
    "when_static": gain(fixed_lengths(64, 256), 16),
    "load": arrival_rate(0.5, [100] * 7, 32),
    "page_order": next_in_line(),
    "preempted": preemption()[1],
    "chunks": len(chunks(1024)),
    "gate": fewest_free(1000, 100),
    "exact_start": static_batching([40] * 4, 4, arrivals=[0, 1, 1, 1]).steps,
    "chunk_itl": statistics.mean(itl_from_chunks(CHUNKS)),
    "itl_target": math.ceil(100 / 24),
}

# question -> every number that its texts may state, as they state it: the settings, then what was computed from them
NUMBERS = {
    "granularity": {"settings": "0", "computed": [ninth()[0], ninth()[0] - 1, max(EIGHT_LENGTHS)]},
    "head_of_line": {
        "settings": "10 20 90 3",
        "computed": [f"{metrics.head_of_line_wait(EIGHT).sum():,}", f"{8 * EIGHT.steps:,}",
                     f"{one_batch(EIGHT_LENGTHS)[1]:.1f}", EIGHT.done[NAMED["A"]], metrics.head_of_line_wait(EIGHT)[0],
                     THREE.slots * THREE.steps, THREE.useful, THREE.steps]},
    "normalised": {
        "settings": "60 12", "computed": [EIGHT.steps, f"{metrics.normalised_latency(EIGHT)[NAMED['A']]:.1f}",
                                          f"{metrics.normalised_latency(EIGHT)[NAMED['H']]:.0f}"]},
    "two_failures": {
        "settings": "12",
        "computed": [EIGHT.steps, static_batching(EIGHT_LENGTHS, 8, return_early=True).finish[0],
                     f"{ratio(static_batching(EIGHT_LENGTHS, 8, return_early=True)):.0f}"]},
    "faster": {"settings": "", "computed": []},
    "drain": {
        "settings": "500 32",
        "computed": [f"{100 * CONTINUOUS.utilisation:.1f}", f"{CONTINUOUS.steps:,}", f"{32 * CONTINUOUS.steps:,}",
                     f"{CONTINUOUS.useful:,}", f"{100 * metrics.steady_utilisation(CONTINUOUS):.0f}"]},
    "all_at_once": {
        "settings": "500 0",
        "computed": [f"{ratio(CONTINUOUS):.1f}", f"{ratio(STATIC):.1f}", f"{p99(STATIC) / p99(CONTINUOUS):.1f}",
                     *half_load(LENGTHS)[2:]]},
    "percentile": {
        "settings": "0.99 500 100 60 0",
        "computed": [int(0.99 * 500), 500 - 1 - int(0.99 * 500), int(0.99 * 60), f"{0.99 * 60:.1f}"]},
    "where_from": {
        "settings": "0 10 90 2",
        "computed": [f"{100 * metrics.expected_static_utilisation([7, 7], 3):.0f}", *half_load(fixed_lengths(2000, 66)),
                     statistics.mean([10, 90]), f"{metrics.expected_max([10, 90], 2):.0f}"]},
    "benchmark": {
        "settings": "32 500 256 1.1 0.1",
        "computed": [32 - 1, f"{gain(fixed_lengths(500, 256), 32):.0f}", f"{gain(LENGTHS, 32):.1f}",
                     f"{gain(lognormal_lengths(500, 4.2, 0.1, seed=0), 32):.1f}"]},
    "when_static": {"settings": "64 256 16", "computed": [64 // 16, f"{gain(fixed_lengths(64, 256), 16):.0f}"]},
    "load": {
        "settings": "0.5 500 32 100 1",
        "computed": [f"{arrival_rate(0.5, LENGTHS, 32):.3f}", f"{metrics.expected_static_utilisation(LENGTHS, 32):.2f}",
                     f"{arrival_rate(1, [100], 32):.2f}"]},
    "which_workload": {"settings": "0", "computed": []},
    "one_step": {"settings": "", "computed": []},
    "paging": {"settings": "", "computed": []},
    "ragged": {"settings": "12 803", "computed": []},
    "page_order": {"settings": "0 7", "computed": []},
    "preempted": {"settings": "300 41", "computed": []},
    "chunks": {
        "settings": "180 2,000 2,048 8,192 1,024",
        "computed": [f"{PAGE_STEP[0][0]:,}", PAGE_STEP[1][0], f"{PAGE_STEP[1][1]:,}", PAGE_STEP[2][1],
                     two_arrivals(2048)[2].decode_tokens, chunks(1024)[0][0]]},
    "not_memory": {
        "settings": "256 2,048 180 2,000 1,000 16",
        "computed": [len(two_arrivals(2048)[0].running), blocks_for(2000, 16), f"{PAGE_STEP[0][0]:,}"]},
    "gate": {"settings": "1,000 100 16", "computed": [1000 / 16, 1000 - 1000 // 16 * 16]},
    "exact_start": {"settings": "0 4 40", "computed": []},
    "chunk_itl": {"settings": "0 100 400 600 1 3 2", "computed": [600 - 100, len(itl_from_chunks(CHUNKS))]},
    "honest_row": {"settings": "", "computed": []},
    "colleague": {"settings": "", "computed": []},
    "itl_target": {"settings": "40 24 100", "computed": [f"{100 / 24:.2f}", 4, 4 * 24]},
    "greedy_tenant": {"settings": "50 4,000", "computed": [f"{50 * 4000:,}"]},
}


def texts(q):
    return [q.recall, q.ask, q.answer, q.because, *(why for _, why in q.slips),
            *(text for option in q.options for text in (option.text, option.why))]


@every
def test_every_number_stated_is_computed(q):
    stated = {number for text in texts(q) for number in re.findall(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?", text)}
    known = NUMBERS[q.id]
    assert stated <= {*known["settings"].split(), *map(str, known["computed"])}
    assert set(map(str, known["computed"])) <= stated  # and nothing is computed that no longer occurs


def test_every_value_is_computed():
    assert set(VALUES) == {q.id for q in with_value}
    for q in with_value:
        assert q.value == pytest.approx(VALUES[q.id], rel=1e-12), q.id


def test_slips_are_what_their_words_say():
    slips = {q.id: [value for value, _ in q.slips] for q in with_value}
    assert slips["granularity"] == [ninth()[1], 0, ninth()[0] + 1, ninth()[0] - 1, metrics.head_of_line_wait(EIGHT)[0]]
    assert slips["head_of_line"] == pytest.approx([
        one_batch([10, 20, 90])[0], THREE.slots * THREE.steps - THREE.useful, 100 * (90 - 10) / 90,
        100 * (270 - THREE.useful) / THREE.useful])
    assert slips["normalised"] == pytest.approx([1, 60 / 950, metrics.head_of_line_wait(EIGHT)[NAMED["F"]] / 60, 950])
    idle = 32 * STATIC.steps - STATIC.useful
    assert slips["drain"] == [CONTINUOUS.useful, 32 * CONTINUOUS.steps, CONTINUOUS.steps, idle]
    assert slips["percentile"] == pytest.approx([1, 60 - 0.99 * 60, 59])
    assert slips["where_from"] == pytest.approx([
        100 * 50 / 90, 100 - VALUES["where_from"], 100 * statistics.mean(pair.utilisation for pair in PAIRS),
        statistics.mean(pair.steps for pair in PAIRS)])
    assert slips["when_static"] == [64 / 16, 0, 16]
    assert slips["load"] == pytest.approx([
        arrival_rate(1, [100], 32), 1 / arrival_rate(0.5, [100], 32), 0.5 * 32, arrival_rate(0.5, [100], 1)])
    assert slips["page_order"] == [7, VALUES["page_order"] + 1]
    assert slips["preempted"] == [300, 41, preemption()[0], 1]
    assert slips["chunks"] == [len(PAGE_STEP), math.ceil(2 * 2000 / 1024), 2 * math.ceil(2000 / ROOM)]
    assert slips["gate"] == [blocks_for(100, 16), 1000 // 16, 1000 / 16, 1000]
    assert slips["exact_start"] == [40, 4 * 40, continuous_batching([40] * 4, 4, arrivals=[0, 1, 1, 1]).steps]
    assert slips["chunk_itl"] == pytest.approx([statistics.mean(chunk_gaps(CHUNKS)), 500 / 6, 600 / 5])
    assert slips["itl_target"] == pytest.approx([100 // 24, 100 / 24])


def test_choices_about_numbers_are_right():
    benchmarks = [gain(fixed_lengths(500, 256), 32), gain(LENGTHS, 32), gain(LENGTHS[:32], 32),
                  gain(lognormal_lengths(500, 4.2, 0.1, seed=0), 32)]
    assert question("benchmark").options[int(np.argmax(benchmarks))].right
    assert benchmarks[2] == 1
    doubled = gain(2 * LENGTHS, 32)
    assert doubled == gain(LENGTHS, 32)  # "Which says least: the mean"
    late, early = (static_batching(EIGHT_LENGTHS, 8, return_early=early) for early in (False, True))
    assert late.utilisation == early.utilisation  # "Which number stays the same: the wasted slot-steps"
    assert metrics.overloaded("static", 0.5, LENGTHS, 32)


def test_what_the_step_loop_questions_say_is_what_the_engine_does():
    assert PAGE_STEP == [[1868, 0], [132, 1736], [0, 264]]
    assert chunks(8192) == [[2000, 2000]]
    assert [row[0] + row[1] for row in chunks(1024)] == [ROOM, ROOM, ROOM, ROOM - 1, 4000 - 4 * ROOM + 1]
    used = 9998 - two_arrivals(2048)[0].free_blocks
    first = two_arrivals(2048, blocks=1 + used + 1000)[0]
    assert (len(first.running), len(first.waiting), first.free_blocks) == (181, 1, 1000)
    right = {"token budget": "The token budget"}[first.binding_limit]
    assert [option.right for option in question("not_memory").options if option.text == right] == [True]


# ---------------------------------------------------------------- complete


def test_there_is_one_for_each_of_the_pages_twelve_and_enough_for_each_notebook():
    assert len(set(IDS)) == len(QUESTIONS) >= 12
    assert sorted(q.page for q in QUESTIONS if q.page) == list(range(1, 13))
    count = Counter(q.notebook for q in QUESTIONS)
    assert all(count[notebook] >= 3 for notebook in ("01", "02", "03"))
    assert [q for notebook in sorted(count) for q in for_notebook(notebook)] == list(QUESTIONS)
    assert for_notebook("99") == []


@every
def test_a_question_is_complete(q):
    assert bool(q.options) != (q.value is not None)
    assert q.prompt == f"{q.recall} Say it to yourself, then answer: {q.ask}"
    for text in texts(q):
        assert text == text.strip()
    for text in (q.recall, q.ask):
        assert text[-1] in "?.", text
    for text in (q.answer, *(option.why for option in q.options), *(why for _, why in q.slips)):
        assert text[-1] in ".?", text
    assert 60 < len(q.answer) < 800
    assert question(q.id) is q


@pytest.mark.parametrize("q", with_options, ids=lambda q: q.id)
def test_options_differ_and_one_is_right(q):
    assert len(q.options) >= 3
    assert len({text.lower() for text in q.choices}) == len(q.options)
    assert sum(option.right for option in q.options) == 1


def test_the_right_option_is_not_always_in_the_same_place():
    places = Counter([option.right for option in q.options].index(True) for q in with_options)
    assert max(places.values()) <= len(with_options) / 2


@pytest.mark.parametrize("q", with_value, ids=lambda q: q.id)
def test_slips_lie_apart_from_the_value_and_from_each_other(q):
    assert q.because.endswith(".")
    for one, other in itertools.combinations([q.value, *(value for value, _ in q.slips)], 2):
        assert abs(one - other) > 2 * q.tolerance


def test_an_unknown_question():
    with pytest.raises(ValueError, match="there is no question 'nope'"):
        question("nope")


# ---------------------------------------------------------------- marking


@pytest.mark.parametrize("q", with_options, ids=lambda q: q.id)
def test_a_choice_is_marked_by_text_letter_or_index_with_its_reason(q):
    for i, option in enumerate(q.options):
        for reply in (option.text, f"  {option.text.upper()} ", "abcdef"[i], "ABCDEF"[i], i):
            marked = q.mark(reply)
            assert marked.passed == option.right
            assert marked.message.lower() == option.why.lower()
            assert marked.message[0] == option.why[0].upper()


@pytest.mark.parametrize("q", with_value, ids=lambda q: q.id)
def test_a_number_is_marked_with_its_tolerance(q):
    written = [f" {q.value:,} {q.unit} ", str(q.value), np.float64(q.value)]
    for right in (q.value, q.value - q.tolerance, q.value + q.tolerance, *written):
        assert q.mark(right) == Marked(True, q.because[0].upper() + q.because[1:])
    for off in (q.value + 2.5 * q.tolerance + 0.004, q.value - 2.5 * q.tolerance - 0.004):
        assert not q.mark(off).passed
    for value, why in q.slips:
        assert q.mark(value) == Marked(False, why[0].upper() + why[1:])


@pytest.mark.parametrize(("reply", "passed"), [
    ("11,500", True), ("11500", True), ("11_500", None), (" +11500 slot-steps", True), ("11500.0", True),
    ("1,15,00", None), ("11500 x", True), ("11 500", None), ("eleven", None), ("", None), ("-11500", False),
    (".5", False)])
def test_texts_of_numbers(reply, passed):
    drain = question("drain")
    if passed is None:
        with pytest.raises(ValueError, match="slot-steps"):
            drain.mark(reply)
    else:
        assert drain.mark(reply).passed is passed


@pytest.mark.parametrize(("reply", "passed"), [
    ("55.6 %", True), (55.6, True), ("55.6", True), (0.556, True), ("0.556", True), ("0.556 %", False), (0.5, False)])
def test_a_share_is_as_good_as_a_percentage(reply, passed):
    assert question("head_of_line").mark(reply).passed is passed


@pytest.mark.parametrize("reply", ["55,6 %", "55,6", " 55,60%", "0,556", "0,5556"])
def test_a_decimal_comma_is_a_point(reply):
    assert question("head_of_line").mark(reply).passed


@pytest.mark.parametrize("reply", ["5,668", "5668", "5668,0"])
def test_a_comma_before_three_digits_stands_for_thousands(reply):
    assert _number(reply) == 5668


def test_a_percentage_where_none_is_asked_for_is_refused_and_not_marked():
    plain = next(q for q in QUESTIONS if not q.options and q.unit not in ("%", ""))
    with pytest.raises(ValueError, match=rf"^Reply with a plain number \({plain.unit}\), not in per cent\.$"):
        plain.mark("16 %")


def test_a_wrong_number_is_told_which_way_to_go():
    assert question("drain").mark(20_000) == Marked(False, "It is less than that.")
    assert question("drain").mark(500) == Marked(False, "It is more than that.")


@pytest.mark.parametrize("q", QUESTIONS, ids=IDS)
@pytest.mark.parametrize("reply", [
    None, True, False, "", "what?", [], {}, len, float("nan"), float("inf"), "inf", 99j, b"12", 10**400, -(10**400)])
def test_a_reply_that_cant_be_read_says_what_to_reply(q, reply):
    with pytest.raises(ValueError, match=r"(Choose one of the replies, a to [a-f]|Reply with a number( \(.+\))?)\.$"):
        q.mark(reply)


REPLIES = st.none() | st.text() | st.floats() | st.integers() | st.binary() | st.booleans()


@given(q=st.sampled_from(QUESTIONS), reply=REPLIES)
def test_any_reply_is_marked_or_refused_in_a_sentence(q, reply):
    try:
        said = q.mark(reply).message
    except ValueError as error:
        said = str(error)
    assert re.fullmatch(r"[A-Z0-9][^\n]*[.?]", said)


def test_a_mark_reads_as_a_sentence():
    assert repr(question("drain").mark(2206)) == "Not quite. Those are steps, and each has 32 slots."
    assert repr(question("ragged").mark("The weights")).startswith("Right. They are read once")


def test_missed_questions_come_back():
    progress = Progress(None)
    asked = [q.id for q in for_notebook("03")]
    for name in progress.due(asked):
        progress.record_reply(name, name != "load")
    assert progress.due(asked) == ["load"]
    progress.record_reply("load", True)
    assert progress.due(asked) == []
