"""The scheduler without vLLM: golden traces of the real one, what its rules promise, and plans worked out by hand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import one_sentence

from labs import engine
from labs.blocks import BlockPool, blocks_for
from labs.knobs import POLICIES
from labs.scheduler import LIMITS, Scheduler, SchedulerConfig
from labs.workload import Request
from tests.conformance.broken import BROKEN
from tests.conformance.replay import DONE, LIVELOCK, Ours, Step, difference, replay
from tests.conformance.traces import digest, load
from tests.conformance.workloads import REFUSED, Workload, by_hand, draw

ROOT = Path(__file__).resolve().parent.parent
TRACES = {workload.name: (workload, steps) for workload, steps in load(ROOT / "tests/golden/traces")}
WORKLOADS = st.integers(0, 10**6).map(draw)
MANY = settings(max_examples=60)

# ---------------------------------------------------------------- golden traces


@pytest.mark.parametrize("name", TRACES)
def test_a_golden_trace_of_vllm_is_followed_step_for_step(name: str) -> None:
    workload, steps = TRACES[name]
    assert difference(map(digest, replay(Ours(workload.config), workload)), steps) is None


def test_the_golden_traces_are_some_dozens_and_small() -> None:
    assert len(TRACES) >= 90
    assert sum(path.stat().st_size for path in (ROOT / "tests/golden/traces").iterdir()) < 1_000_000
    assert {steps[-1] for _, steps in TRACES.values()} == {DONE, LIVELOCK}


@pytest.mark.parametrize("broken", BROKEN, ids=[f"{b.rule}: {b.how}" for b in BROKEN])
def test_the_golden_traces_tell_a_broken_rule(broken: object) -> None:
    scheduler = broken.scheduler()
    assert any(
        difference(map(digest, replay(Ours(workload.config, scheduler), workload)), steps)
        for workload, steps in TRACES.values()
    )


def test_the_table_of_broken_rules_has_every_rule() -> None:
    assert {broken.rule for broken in BROKEN} == {str(rule) for rule in range(1, 11)}


# ---------------------------------------------------------------- what holds at every step


def watched(workload: Workload) -> Iterator[tuple[Ours, Step | str]]:
    """Each step, with the scheduler as it is after it."""
    driver = Ours(workload.config)
    for step in replay(driver, workload):
        yield driver, step


@MANY
@given(WORKLOADS)
def test_no_block_is_lost_given_twice_or_the_null_block(workload: Workload) -> None:
    usable = set(range(1, workload.config.num_gpu_blocks))
    for driver, step in watched(workload):
        pool = driver.scheduler.pool
        held = [block for table in pool.tables.values() for block in table]
        assert sorted(held + list(pool._free)) == sorted(usable)
        if isinstance(step, Step):
            given_out = [block for table in step.tables.values() for block in table]
            assert len(given_out) == len(set(given_out))
            assert set(given_out) <= usable
            assert step.kv_usage == pytest.approx(len(given_out) / len(usable))
    if step == DONE:
        assert driver.scheduler.pool.tables == {}


@MANY
@given(WORKLOADS)
def test_a_table_has_room_for_what_is_computed_and_no_more(workload: Workload) -> None:
    for driver, step in watched(workload):
        if isinstance(step, Step):
            here = {s.id: s for s in driver.scheduler.sequences}
            for request_id in set(step.running) & set(here):
                needed = blocks_for(here[request_id].computed, workload.config.block_size)
                assert len(step.tables[request_id]) == needed


@MANY
@given(WORKLOADS)
def test_the_budget_and_the_caps_are_never_exceeded(workload: Workload) -> None:
    config = workload.config
    for _, step in watched(workload):
        if isinstance(step, Step):
            assert sum(n for _, n in step.scheduled) <= config.max_num_batched_tokens
            assert all(n >= 1 for _, n in step.scheduled)
            assert len(step.running) <= (config.max_num_active_seqs or config.max_num_seqs)
            assert {i for i, _ in step.scheduled} <= set(step.running)
            assert not set(step.running) & set(step.waiting)


@MANY
@given(WORKLOADS)
def test_every_request_finishes_or_is_refused(workload: Workload) -> None:
    steps = [step for _, step in watched(workload)]
    if steps[-1] == LIVELOCK:  # known in vLLM too: without the gate, requests can preempt each other for ever
        assert not workload.config.scheduler_reserve_full_isl
        return
    assert steps[-1] == DONE
    finished = [i for step in steps[:-1] for i in step.finished]
    assert len(finished) == len(set(finished))
    refused = {r.request_id for _, r in workload.requests if workload.config.refusal(r)}
    aborted = {abort.request_id for abort in workload.aborts}
    assert {r.request_id for _, r in workload.requests} - refused - aborted <= set(finished)
    assert not refused & set(finished)


def outputs_at_the_end(workload: Workload, request: Request) -> int:
    """Output tokens of a request that nobody aborts: the first of its stop token, max_tokens and max_model_len."""
    room = workload.config.max_model_len - request.prompt_tokens
    return min(request.output_tokens, room, workload.stops.get(request.request_id, request.output_tokens))


@MANY
@given(WORKLOADS)
def test_work_is_conserved(workload: Workload) -> None:
    # Tokens computed = prompt + output - 1 of each request (its last token is never fed back) + tokens recomputed.
    requests = [replace(r, arrival=float(step)) for step, r in workload.requests]
    try:
        done = engine.run(requests, workload.config, stops=workload.stops, max_steps=20_000)
    except RuntimeError:
        assert not workload.config.scheduler_reserve_full_isl
        return
    computed = sum(r.prefill_tokens + r.decode_tokens for r in done.records)
    served = [r for r in requests if workload.config.refusal(r) is None]
    once = sum(r.prompt_tokens + outputs_at_the_end(workload, r) - 1 for r in served)
    assert computed == once + sum(r.lost for r in done.records)
    assert sum(len(r.made) for r in done.records) == sum(outputs_at_the_end(workload, r) for r in served)


@MANY
@given(WORKLOADS)
def test_the_queue_is_served_in_order(workload: Workload) -> None:
    arrived = [r for _, r in workload.requests if workload.config.refusal(r) is None]
    rank = {r.request_id: (r.priority, r.arrival, r.request_id) for r in arrived}
    if workload.config.policy == "fcfs":
        rank = {r.request_id: place for place, r in enumerate(arrived)}
    first_time: list[str] = []
    for _, step in watched(workload):
        if not isinstance(step, Step):
            break
        if workload.config.policy == "priority":
            assert list(step.waiting) == sorted(step.waiting, key=rank.get)
        admitted = [i for i, _ in step.scheduled if i not in first_time]
        first_time += admitted
        never_ran = [i for i in step.waiting if i not in first_time]
        # Whoever gets its first turn was ahead of all those who still wait for theirs.
        assert all(rank[i] < rank[j] for i in admitted for j in never_ran)
    if workload.config.policy == "fcfs":
        assert first_time == sorted(first_time, key=rank.get)


@MANY
@given(st.integers(0, 10**6))
def test_the_same_seed_gives_the_same_steps(seed: int) -> None:
    first, second = (list(replay(Ours(w.config), w)) for w in (draw(seed), draw(seed)))
    assert first == second


UNCAPPED = {"max_num_active_seqs": None, "max_num_seqs": 1000, "max_num_batched_tokens": 1_000_000}
LIFTED = {  # the settings that change when a limit is lifted; for the KV blocks, the pool
    "sequence cap": UNCAPPED,
    "token budget": {"max_num_batched_tokens": 1_000_000},
    "KV blocks": {},
    "full-prompt gate": {"scheduler_reserve_full_isl": False},
    "none": UNCAPPED,
}


def relieved(scheduler: Scheduler, limit: str) -> Scheduler:
    """A copy of a scheduler with one limit lifted."""
    copy, now = deepcopy(scheduler), scheduler._threshold()
    # The threshold follows the budget: if there is one, pin it to what it is, so that only the named limit moves.
    none = not scheduler.config.long_prefill_token_threshold or len(scheduler.sequences) <= 1
    copy._threshold = lambda: 10**9 if none else now
    copy.config = replace(scheduler.config, **LIFTED[limit])
    if limit in ("KV blocks", "none"):
        copy.pool._free.extend(range(10_000, 20_000))
    return copy


@MANY
@given(WORKLOADS)
def test_the_binding_limit_is_what_holds_the_step_back(workload: Workload) -> None:
    scheduler, coming = Scheduler(workload.config), list(workload.requests)
    for now in range(120):
        while coming and coming[0][0] <= now:
            request = coming.pop(0)[1]
            if workload.config.refusal(request) is None:
                scheduler.add(request)
        if now % 3:  # a sample of the steps: copying is slow
            scheduler.update(scheduler.schedule())
            continue
        before = deepcopy(scheduler)
        plan = scheduler.schedule()
        assert plan.binding_limit in LIMITS
        freer = relieved(before, plan.binding_limit).schedule()
        got, more = sum(plan.num_scheduled_tokens.values()), sum(freer.num_scheduled_tokens.values())
        if plan.binding_limit == "none":
            assert freer.num_scheduled_tokens == plan.num_scheduled_tokens
        elif plan.preempted:
            assert freer.preempted == ()
        else:  # where several bind at once, the first that admission meets is named: then the next one shows
            assert more > got or freer.binding_limit != plan.binding_limit
        scheduler.update(plan)


# ---------------------------------------------------------------- plans by hand


def plans(workload: Workload, upto: int) -> list[dict[str, int]]:
    """What the first steps schedule."""
    steps = [step for step in replay(Ours(workload.config), workload) if isinstance(step, Step)]
    return [dict(step.scheduled) for step in steps[:upto]]


@pytest.mark.parametrize(
    ("budget", "chunks"),
    [(2048, [{"x": 1868}, {"x": 132, "y": 1736}, {"y": 264}]), (8192, [{"x": 2000, "y": 2000}])],
)
def test_the_pages_step_two_arrivals_beside_180_decoding(budget: int, chunks: list[dict[str, int]]) -> None:
    decoding = ", ".join(f"d{i:03d} 1+20" for i in range(180))
    workload = by_hand("page", f"{decoding}, x 2000+5 @3, y 2000+5 @3", max_num_seqs=256, block_size=16,
                       max_num_batched_tokens=budget, num_gpu_blocks=2000, max_model_len=4096)  # fmt: skip
    found = [{i: n for i, n in plan.items() if n > 1} for plan in plans(workload, 9)[3:]]
    assert found[: len(chunks)] == chunks
    assert not any(found[len(chunks) :])
    first = plans(workload, 4)[3]
    assert sum(first.values()) == min(budget, 4180)
    assert sum(n == 1 for n in first.values()) == 180


def test_a_self_preemption_ends_the_scan() -> None:
    workload = by_hand("scan", "a 1+9, b 7+9 @1 p3, c 1+9 @2", num_gpu_blocks=5, policy="priority")
    steps = [s for s in replay(Ours(workload.config), workload) if isinstance(s, Step)]
    step = next(s for s in steps if s.preempted)
    assert (step.preempted, [i for i, _ in step.scheduled], step.running) == (("b",), ["a"], ("a", "c"))


def test_a_refund_goes_to_those_behind_and_n_is_not_recomputed() -> None:
    config = SchedulerConfig(4, 8, 100, block_size=4, max_model_len=64, policy="priority")
    scheduler = Scheduler(config)
    scheduler.add(Request("a", 3, 9, 1.0, 5))
    scheduler.update(scheduler.schedule())
    for name in "bc":
        scheduler.add(Request(name, 20, 9, 2.0, 0))
    assert scheduler.schedule().num_scheduled_tokens == {"a": 1, "b": 7}
    scheduler.update(scheduler.schedule())
    scheduler.pool._free.clear()  # no block is left: b, in need of one, takes those of a, which had its turn
    plan = scheduler.schedule()
    assert plan.preempted == ("a",)
    assert plan.num_scheduled_tokens == {"b": 5}  # 20 - 15; and c is not admitted in a step that preempted


def test_a_victim_keeps_its_output_and_computes_it_again() -> None:
    workload = by_hand("again", "a 7+9, b 7+9", num_gpu_blocks=6)
    steps = [s for s in replay(Ours(workload.config), workload) if isinstance(s, Step)]
    lost = next(i for i, s in enumerate(steps) if s.preempted == ("b",))
    back = next(dict(s.scheduled)["b"] for s in steps[lost:] if "b" in dict(s.scheduled))
    assert back == 7 + sum("b" in s.made for s in steps[:lost])


# ---------------------------------------------------------------- the blocks


def test_a_sequence_gets_blocks_only_when_it_needs_one_more() -> None:
    pool = BlockPool(6, 4)
    assert pool.grow("a", 4)
    assert pool.tables == {"a": [1]}
    assert pool.grow("a", 4)
    assert pool.grow("a", 5)
    assert (pool.tables, pool.free, pool.usage) == ({"a": [1, 2]}, 3, 0.4)
    assert pool.missing("a", 8) == 0
    assert pool.missing("b", 9) == 3


def test_all_blocks_or_none_are_given() -> None:
    pool = BlockPool(4, 4)
    pool.grow("a", 5)
    assert not pool.grow("b", 5)
    assert (pool.tables, pool.free) == ({"a": [1, 2]}, 1)


def test_freed_blocks_are_reused_first_the_last_of_them_first() -> None:
    pool = BlockPool(9, 1)
    pool.grow("a", 3)
    pool.grow("b", 1)
    pool.release("a")
    pool.release("nobody")
    pool.grow("c", 4)
    assert pool.tables == {"b": [4], "c": [3, 2, 1, 5]}


# ---------------------------------------------------------------- what is refused

GOOD = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "num_gpu_blocks": 10}


@pytest.mark.parametrize(
    "bad", [*REFUSED, {"num_gpu_blocks": 1}, {"block_size": 0}, {"max_model_len": 1}], ids=str
)
def test_settings_that_vllm_refuses_are_refused_in_one_sentence(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError) as caught:
        SchedulerConfig(**GOOD | bad)
    one_sentence(caught.value, next(iter(bad)))


def test_a_pool_without_a_block_to_give_is_refused() -> None:
    for blocks, size in ((1, 4), (4, 0)):
        with pytest.raises(ValueError) as caught:
            BlockPool(blocks, size)
        one_sentence(caught.value)


def test_a_request_that_can_never_fit_is_refused_and_the_largest_that_can_is_served() -> None:
    config = SchedulerConfig(4, 64, 4, block_size=4, max_model_len=32)
    for request, word in ((Request("a", 32, 1), "max_model_len"), (Request("b", 9, 5), "4 KV blocks")):
        with pytest.raises(ValueError, match=word) as caught:
            Scheduler(config).add(request)
        one_sentence(caught.value)
    largest = Workload("largest", config, ((0, Request("c", 9, 4)),))
    assert list(replay(Ours(config), largest))[-1] == DONE


def test_an_id_is_used_once_at_a_time() -> None:
    scheduler = Scheduler(SchedulerConfig(**GOOD))
    scheduler.add(Request("a", 1, 1))
    with pytest.raises(ValueError, match="'a' is already here") as caught:
        scheduler.add(Request("a", 2, 2))
    one_sentence(caught.value)
    scheduler.update(scheduler.schedule())
    scheduler.add(Request("a", 2, 2))  # it has gone, so the id is free


def test_an_abort_of_nobody_changes_nothing() -> None:
    scheduler = Scheduler(SchedulerConfig(**GOOD))
    scheduler.add(Request("a", 5, 5))
    scheduler.schedule()
    scheduler.abort("z")
    assert (scheduler.running, scheduler.kv_usage > 0) == (["a"], True)
    scheduler.abort("a")
    assert (scheduler.running, scheduler.waiting, scheduler.kv_usage) == ([], [], 0.0)


def test_the_policies_are_two() -> None:
    assert POLICIES == ("fcfs", "priority")


# ---------------------------------------------------------------- a scheduler that one can read


@cache
def parsed() -> tuple[str, ast.Module]:
    """The source of the scheduler."""
    text = (ROOT / "labs/scheduler.py").read_text(encoding="utf-8")
    return text, ast.parse(text)


def test_the_scheduler_fits_on_a_few_screens() -> None:
    text, tree = parsed()
    assert len(text.splitlines()) < 200
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno + 1 > 40} == {}


def test_each_rule_is_named_where_it_is() -> None:
    text, _ = parsed()
    named = {int(n) for line in re.findall(r"[Rr]ules? [\d, and]+", text) for n in re.findall(r"\d+", line)}
    assert named == set(range(1, 11))
