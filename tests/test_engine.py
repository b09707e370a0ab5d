"""The step loop: what `step` records and what `run` says became of each request, in steps and in seconds."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import one_sentence

from labs.blocks import BlockPool
from labs.engine import Outcome, Run, StepTime, fit_step_time, run, step
from labs.scheduler import Scheduler, SchedulerConfig
from labs.workload import Request
from tests.conformance.replay import DONE, Ours, Step, replay
from tests.conformance.workloads import Workload, by_hand, draw

AMPLE = SchedulerConfig(4, 64, 1000, block_size=4, max_model_len=256)
PATHS = pytest.mark.parametrize("readable", [False, True], ids=["by events", "step by step"])
WORKLOADS = st.integers(0, 10**6).map(draw)


def requests_of(workload: Workload) -> list[Request]:
    """The requests of a workload, arriving at the step before which it queues them."""
    return [replace(r, arrival=float(now)) for now, r in workload.requests]


# ---------------------------------------------------------------- one request alone


@PATHS
def test_a_request_alone_takes_a_step_for_each_token(readable: bool) -> None:
    done = run([Request("a", 10, 5)], AMPLE, readable=readable)
    outcome = done.outcomes["a"]
    assert (done.steps, outcome.reason, outcome.output_tokens) == (5, "length", 5)
    assert (outcome.scheduled, outcome.first_token, outcome.finish) == (0, 1, 5)
    assert (outcome.ttft, outcome.tpot, outcome.normalised_latency) == (1, 1, 1)
    assert [(r.prefill, r.decode) for r in done.records] == [({"a": 10}, {})] + [({}, {"a": 1})] * 4
    assert [r.finished for r in done.records] == [()] * 4 + [("a",)]


@PATHS
def test_the_last_prefill_chunk_makes_the_first_token(readable: bool) -> None:
    done = run([Request("a", 150, 3)], AMPLE, readable=readable)
    assert [r.prefill_tokens for r in done.records] == [64, 64, 22, 0, 0]
    assert [r.made for r in done.records] == [(), (), ("a",), ("a",), ("a",)]
    assert (done.outcomes["a"].scheduled, done.outcomes["a"].first_token, done.outcomes["a"].finish) == (0, 3, 5)


@PATHS
def test_a_single_token_has_no_time_per_output_token(readable: bool) -> None:
    outcome = run([Request("a", 4, 1)], AMPLE, readable=readable).outcomes["a"]
    assert math.isnan(outcome.tpot)
    assert (outcome.ttft, outcome.normalised_latency) == (1, 1)


@PATHS
def test_nobody_takes_no_step(readable: bool) -> None:
    done = run([], AMPLE, readable=readable)
    assert (done.steps, list(done.records), done.outcomes, done.seconds, done.preemptions) == (0, [], {}, 0.0, 0)


# ---------------------------------------------------------------- how a request ends


@PATHS
def test_ends_by_each_cause(readable: bool) -> None:
    sent = [Request("length", 4, 6), Request("stop", 4, 6), Request("late stop", 4, 6), Request("model", 253, 9),
            Request("refused", 256, 1)]  # fmt: skip
    stops = {"stop": 2, "late stop": 7}
    outcomes = run(sent, AMPLE, stops=stops, readable=readable).outcomes
    found = {name: (o.reason.split(":")[0], o.output_tokens) for name, o in outcomes.items()}
    assert found == {
        "length": ("length", 6), "stop": ("stop", 2), "late stop": ("length", 6), "model": ("length", 3),
        "refused": ("refused", 0),
    }  # fmt: skip


@PATHS
def test_a_stop_token_as_the_last_one_allowed_is_a_stop_as_in_vllm(readable: bool) -> None:
    outcome = run([Request("a", 4, 3)], AMPLE, stops={"a": 3}, readable=readable).outcomes["a"]
    assert (outcome.reason, outcome.output_tokens) == ("stop", 3)


@PATHS
def test_a_refused_request_has_the_reason_and_no_times(readable: bool) -> None:
    small = replace(AMPLE, num_gpu_blocks=4)
    outcome = run([Request("a", 9, 9), Request("b", 3, 2)], small, readable=readable).outcomes["a"]
    assert outcome.reason.startswith("refused: ")
    one_sentence(outcome.reason, "5 KV blocks", "3")
    assert all(map(math.isnan, (outcome.scheduled, outcome.first_token, outcome.finish, outcome.ttft, outcome.tpot)))
    assert math.isnan(outcome.normalised_latency)


def test_outcomes_are_equal_if_all_is_whatever_python_thinks_of_nan() -> None:
    one, other = (Outcome(Request("a", 4, 2), "abort", scheduled=float("nan")) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert {one: 1}[other] == 1
    assert one != replace(one, preemptions=1) and one != replace(one, finish=3.0) and one != "abort"


@PATHS
def test_an_abort_takes_out_a_running_a_waiting_and_a_coming_request(readable: bool) -> None:
    one = replace(AMPLE, max_num_seqs=1)
    sent = [Request("runs", 4, 50), Request("waits", 4, 50), Request("next", 4, 2), Request("comes", 4, 9, 6.0)]
    aborts = {"runs": 3, "waits": 2, "comes": 1}
    done = run(sent, one, aborts=aborts, readable=readable)
    runs, waits, after, comes = (done.outcomes[name] for name in ("runs", "waits", "next", "comes"))
    assert (runs.reason, runs.output_tokens, runs.first_token, runs.finish) == ("abort", 3, 1, 3)
    assert (waits.reason, waits.output_tokens, waits.finish) == ("abort", 0, 2)
    assert math.isnan(waits.scheduled)
    assert (after.reason, after.scheduled, after.finish) == ("length", 3, 5)
    assert (comes.reason, comes.output_tokens, comes.finish) == ("abort", 0, 6)


@PATHS
def test_an_abort_of_one_that_is_done_changes_nothing(readable: bool) -> None:
    sent = [Request("a", 4, 3)]
    assert run(sent, AMPLE, aborts={"a": 3}, readable=readable) == run(sent, AMPLE, readable=readable)


# ---------------------------------------------------------------- when a request comes


@PATHS
def test_an_arrival_between_two_steps_waits_for_the_next(readable: bool) -> None:
    done = run([Request("a", 4, 6), Request("b", 4, 2, 2.5)], AMPLE, readable=readable)
    outcome = done.outcomes["b"]
    assert (outcome.scheduled, outcome.first_token, outcome.ttft) == (3, 4, 1.5)


@PATHS
def test_an_idle_gap_takes_time_but_no_step(readable: bool) -> None:
    done = run([Request("a", 4, 2), Request("b", 4, 2, 100.5)], AMPLE, readable=readable)
    assert (done.steps, [r.time for r in done.records], done.seconds) == (4, [0, 1, 101, 102], 103)
    assert [r.step for r in done.records] == [0, 1, 2, 3]


@PATHS
def test_in_seconds_a_step_takes_what_the_model_says(readable: bool) -> None:
    model = StepTime(0.010, 0.001, 0.0001)
    sent = [Request("a", 20, 3), Request("b", 30, 2, 0.5)]
    done = run(sent, AMPLE, step_time=model, readable=readable)
    expected = [0.010 + 20 * 0.0001, 0.011, 0.011, 0.010 + 30 * 0.0001, 0.011]
    assert [r.seconds for r in done.records] == pytest.approx(expected)
    assert done.outcomes["a"].ttft == pytest.approx(expected[0])
    assert done.outcomes["a"].tpot == pytest.approx(0.011)
    assert done.records[3].time == 0.5
    assert done.outcomes["b"].normalised_latency == pytest.approx((expected[3] + expected[4]) / 2)
    assert done.seconds == pytest.approx(0.5 + expected[3] + expected[4])


@PATHS
def test_in_seconds_an_abort_comes_with_the_first_step_after_it(readable: bool) -> None:
    done = run([Request("a", 4, 50)], AMPLE, step_time=StepTime(0.1), aborts={"a": 0.25}, readable=readable)
    outcome = done.outcomes["a"]
    assert (outcome.reason, outcome.output_tokens) == ("abort", 3)
    assert outcome.finish == pytest.approx(0.3)


@PATHS
def test_requests_may_be_given_in_any_order_and_come_out_in_that_order(readable: bool) -> None:
    sent = [Request("late", 4, 2, 9.0), Request("early", 4, 2, 1.0), Request("first", 4, 2)]
    done = run(iter(sent), AMPLE, readable=readable)
    assert list(done.outcomes) == ["late", "early", "first"]
    assert [done.outcomes[name].scheduled for name in done.outcomes] == [9, 1, 0]


# ---------------------------------------------------------------- what a record says


@PATHS
def test_the_pages_step(readable: bool) -> None:
    decoding = [Request(f"d{i:03d}", 1, 20) for i in range(180)]
    arrivals = [Request("x", 2000, 5, 3.0), Request("y", 2000, 5, 3.0)]
    for budget, chunks in ((2048, [{"x": 1868}, {"x": 132, "y": 1736}, {"y": 264}]), (8192, [{"x": 2000, "y": 2000}])):
        config = SchedulerConfig(256, budget, 2000, max_model_len=4096)
        records = run(decoding + arrivals, config, readable=readable).records
        assert [r.prefill for r in records[3 : 3 + len(chunks)]] == chunks
        assert [r.prefill_tokens for r in records[3 + len(chunks) :]] == [0] * (len(records) - 3 - len(chunks))
        assert records[3].decode_tokens == 180
        limits = [r.binding_limit for r in records[3 : 3 + len(chunks)]]
        assert limits == ["token budget"] * (len(chunks) - 1) + ["none"]


@PATHS
def test_a_preemption_is_counted_and_its_work_lost_is_computed_again(readable: bool) -> None:
    config = SchedulerConfig(4, 64, 6, block_size=4, max_model_len=64)
    done = run([Request("a", 7, 9), Request("b", 7, 9)], config, readable=readable)
    victims = [r for r in done.records if r.preempted]
    assert [r.preempted for r in victims] == [("b",)]
    assert done.preemptions == done.outcomes["b"].preemptions == 1
    assert done.outcomes["a"].preemptions == 0
    assert {r.binding_limit for r in victims} == {"KV blocks"}
    again = next(r.prefill["b"] for r in done.records[victims[0].step :] if "b" in r.prefill)
    assert again == victims[0].lost + 1  # what it lost, and the token that it had made but not yet fed


@PATHS
@pytest.mark.parametrize(
    ("limit", "words", "settings"),
    [
        ("sequence cap", "a 3+3, b 3+3", {"max_num_seqs": 1}),
        ("sequence cap", "a 3+3, b 3+3", {"max_num_active_seqs": 1}),
        ("token budget", "a 20+3", {}),
        ("token budget", "a 16+3, b 1+1", {}),
        ("token budget", "a 40+3, b 30+3", {"enable_chunked_prefill": False, "max_num_batched_tokens": 64}),
        ("KV blocks", "a 12+3, b 12+3", {"num_gpu_blocks": 6, "max_num_batched_tokens": 64}),
        ("KV blocks", "a 4+9, b 10+3", {"num_gpu_blocks": 6, "watermark": 0.4}),
        ("full-prompt gate", "a 8+3, b 30+2", {"num_gpu_blocks": 10}),
        ("none", "a 3+3, b 3+3", {}),
        ("none", "a 40+3, b 9+3", {"long_prefill_token_threshold": 5}),
    ],
)
def test_the_first_step_names_what_held_it_back(
    limit: str, words: str, settings: dict[str, object], readable: bool
) -> None:
    workload = by_hand("", words, **settings)
    assert run(requests_of(workload), workload.config, readable=readable).records[0].binding_limit == limit


def test_tables_are_recorded_when_asked_for() -> None:
    done = run([Request("a", 6, 4), Request("b", 3, 2)], AMPLE, tables=True)
    assert [r.tables for r in done.records[:2]] == [{"a": (1, 2), "b": (3,)}, {"a": (1, 2), "b": (3,)}]
    assert done.records[2].tables == {"a": (1, 2)}
    assert run([Request("a", 6, 4)], AMPLE).records[0].tables == {}


def test_step_is_what_run_loops_over() -> None:
    sent = [Request("a", 70, 4), Request("b", 3, 9)]
    scheduler = Scheduler(AMPLE)
    for request in sent:
        scheduler.add(request)
    records = []
    while scheduler.sequences:
        records.append(step(scheduler, len(records), float(len(records))))
    assert records == list(run(sent, AMPLE).records)


@settings(max_examples=40)
@given(WORKLOADS)
def test_a_run_has_the_steps_that_the_scheduler_has(workload: Workload) -> None:
    # Arrivals that only rank ties are as good as none, so take the steps at which the requests are queued.
    sent = requests_of(workload)
    alike = Workload("", workload.config, tuple((int(r.arrival), r) for r in sent), workload.stops)
    steps = list(replay(Ours(workload.config), alike))
    if steps[-1] != DONE:
        with pytest.raises(RuntimeError, match="not done after 5,000 steps"):
            run(sent, workload.config, stops=workload.stops, max_steps=5000)
        return
    busy = [s for s in steps if isinstance(s, Step) and (s.running or s.waiting)]
    done = run(sent, workload.config, stops=workload.stops)
    assert [(r.running, r.waiting, r.preempted, r.made, r.finished, r.kv_usage) for r in done.records] == [
        (s.running, s.waiting, s.preempted, s.made, s.finished, s.kv_usage) for s in busy
    ]
    assert [r.prefill | r.decode for r in done.records] == [dict(s.scheduled) for s in busy]


@settings(max_examples=40)
@given(WORKLOADS)
def test_outcomes_agree_with_the_records(workload: Workload) -> None:
    aborts = {a.request_id: float(a.step) for a in workload.aborts}
    try:
        done = run(requests_of(workload), workload.config, stops=workload.stops, aborts=aborts, max_steps=5000)
    except RuntimeError:
        return
    makes, preempted = defaultdict(list), Counter()
    for record in done.records:
        preempted.update(record.preempted)
        for name in record.made:
            makes[name].append(record)
    for name, outcome in done.outcomes.items():
        made = makes[name]
        assert outcome.output_tokens == len(made)
        assert outcome.preemptions == preempted[name]
        assert outcome.reason.split(":")[0] in ("length", "stop", "abort", "refused")
        if made:
            assert outcome.first_token == made[0].time + 1
        if outcome.reason in ("length", "stop"):
            assert outcome.finish == made[-1].time + 1
            assert name in made[-1].finished
            assert outcome.request.arrival <= outcome.scheduled < outcome.first_token <= outcome.finish
            assert outcome.tpot >= 1 or outcome.output_tokens == 1


def test_the_same_requests_give_the_same_run() -> None:
    def once(readable: bool) -> Run:
        rng = random.Random(3)
        sent = [Request(f"r{i}", rng.randint(1, 40), rng.randint(1, 40), float(i // 3)) for i in range(40)]
        return run(sent, replace(AMPLE, num_gpu_blocks=40), readable=readable)

    assert once(False) == once(False) == once(True) == once(True)


# ---------------------------------------------------------------- the step-time model


def steps_measured(model: StepTime, noise: float = 0.0) -> tuple[list[int], list[int], list[float]]:
    """Steps as a server might have measured them."""
    rng = random.Random(1)
    decode = [rng.randint(0, 64) for _ in range(200)]
    prefill = [rng.choice((0, 0, 0, 100, 512)) for _ in range(200)]
    return decode, prefill, [model(d, p) + rng.gauss(0, noise) for d, p in zip(decode, prefill, strict=True)]


def test_a_fit_finds_the_coefficients_that_made_the_data() -> None:
    model = StepTime(0.008, 0.00012, 0.00003)
    fit = fit_step_time(*steps_measured(model))
    assert fit.step_time.base == pytest.approx(model.base)
    assert fit.step_time.per_sequence == pytest.approx(model.per_sequence)
    assert fit.step_time.per_prefill_token == pytest.approx(model.per_prefill_token)
    assert fit.residual < 1e-9


def test_a_fit_through_noise_says_how_much_it_leaves() -> None:
    model = StepTime(0.008, 0.00012, 0.00003)
    fit = fit_step_time(*steps_measured(model, noise=0.0005))
    assert fit.residual == pytest.approx(0.0005, rel=0.15)
    assert fit.step_time.per_sequence == pytest.approx(model.per_sequence, rel=0.1)
    assert fit.step_time.per_prefill_token == pytest.approx(model.per_prefill_token, rel=0.1)


def test_a_fit_on_one_run_predicts_another() -> None:
    model = StepTime(0.01, 0.0005, 0.00002)
    rng = random.Random(2)
    seen, unseen = (
        [Request(f"r{i}", rng.randint(1, 100), rng.randint(1, 60), i * gap) for i in range(60)] for gap in (0.03, 0.09)
    )
    measured = run(seen, AMPLE, step_time=model).records
    columns = ([f(r) for r in measured] for f in (lambda r: r.decode_tokens, lambda r: r.prefill_tokens,
                                                  lambda r: r.seconds))  # fmt: skip
    predicted = run(unseen, AMPLE, step_time=fit_step_time(*columns).step_time)
    assert predicted.seconds == pytest.approx(run(unseen, AMPLE, step_time=model).seconds)


@pytest.mark.parametrize(
    ("decode", "seconds", "found"),
    [([1, 2, 3, 4], [0.011, 0.012, 0.013, 0.014], (0.01, 0.001, 0)), ([4, 4, 4], [0.02, 0.02, 0.02], (0.02, 0, 0))],
)
def test_a_term_that_never_varies_is_left_out(
    decode: list[int], seconds: list[float], found: tuple[float, float, float]
) -> None:
    model = fit_step_time(decode, [0] * len(decode), seconds).step_time
    assert (model.base, model.per_sequence, model.per_prefill_token) == pytest.approx(found)


# ---------------------------------------------------------------- what is refused


def test_too_few_steps_for_a_fit_and_a_step_without_time_are_refused() -> None:
    for bad in (lambda: fit_step_time([1, 2], [0, 0], [0.1, 0.2]), lambda: fit_step_time([], [], []),
                lambda: StepTime(0.0), lambda: StepTime(-0.1), lambda: StepTime(math.nan),
                lambda: StepTime(0.1, math.inf), lambda: StepTime(0.1, -5), lambda: StepTime(1, math.nan),
                lambda: StepTime("1"), lambda: fit_step_time([1, 2, 3], [0, 0], [1, 1, 1]),
                lambda: fit_step_time([1, 2, 3], [0, 0, 0], [0.1, math.nan, 0.3]),
                lambda: run([Request("a", 4, 5)], AMPLE, stops={"b": 1}),
                lambda: run([Request("a", 4, 5)], AMPLE, stops={"a": 0}),
                lambda: run([Request("a", 4, 5)], AMPLE, aborts={"b": 1.0}),
                lambda: run([Request("a", 4, 5)], AMPLE, aborts={"a": math.nan})):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            bad()
        one_sentence(caught.value)


@PATHS
def test_two_requests_with_one_id_are_refused(readable: bool) -> None:
    with pytest.raises(ValueError) as caught:
        run([Request("a", 1, 1), Request("a", 2, 2)], AMPLE, readable=readable)
    one_sentence(caught.value, "request_id")


@PATHS
def test_a_run_that_does_not_end_says_what_to_change(readable: bool) -> None:
    with pytest.raises(RuntimeError) as caught:
        run([Request("a", 4, 50)], AMPLE, max_steps=10, readable=readable)
    one_sentence(caught.value, "10 steps", "KV blocks", "max_steps")


def test_noise_never_makes_a_part_negative() -> None:
    time = fit_step_time([1, 2, 3, 4], [7, 7, 7, 7], [0.10, 0.09, 0.08, 0.07]).step_time
    assert (time.per_sequence, time.per_prefill_token) == (0, 0) and time.base == pytest.approx(0.085)
    time = fit_step_time([1, 2, 3, 4], [1, 2, 3, 5], [0.11, 0.12, 0.13, 0.12]).step_time  # alone: -0.02 a prefill token
    assert time.per_prefill_token == 0 and time.per_sequence == pytest.approx(0.004)


@pytest.mark.parametrize("settings", [(2.5, 16, 100), ("4", 16, 100), (4, 10.5, 100), (4, 16, 100.5)])
def test_settings_are_whole_numbers(settings: tuple) -> None:
    with pytest.raises(ValueError, match="must be a whole number of at least"):
        SchedulerConfig(*settings)


def test_a_pool_that_no_machine_has() -> None:
    with pytest.raises(ValueError, match="to 10,000,000 blocks"):
        BlockPool(10**9, 1)


def test_a_fixed_cost_lost_in_the_noise_is_a_microsecond() -> None:
    for seconds in ([0.1, 0.2, 0.3], [0.1, 0.3, 0.5]):
        time = fit_step_time([1, 2, 3], [0, 0, 0], seconds).step_time
        assert time.base == 1e-6 and time.per_sequence == pytest.approx(sum(s * n for s, n in zip(
            seconds, (1, 2, 3), strict=True)) / 14, rel=1e-3)
