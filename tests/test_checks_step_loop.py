"""Notebook 04's checks: as in test_checks.py, and each oracle beside the engine on whole runs."""

from __future__ import annotations

import html
import itertools
import math
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked import assert_complete, assert_hinted, assert_not_attempted, assert_passes, hints, rows

from labs import engine
from labs.blocks import BlockPool
from labs.checks import EXERCISES, check, for_notebook
from labs.checks.marking import NOT_ATTEMPTED, NOT_YET, PASSED
from labs.checks.step_loop import BUDGET, CAP, GATE, NONE, Structured, alike, answers, literal, plain
from labs.progress import Progress
from labs.scheduler import Scheduler, SchedulerConfig
from labs.workload import Request

ROOT = Path(__file__).resolve().parent.parent
OURS = {exercise.id: exercise for exercise in for_notebook("04")}
every = pytest.mark.parametrize("exercise", OURS.values(), ids=list(OURS))


# ---------------------------------------------------------------- right answers, written differently


def blocks_by_slicing(tokens, held, block_size):
    return len(range(held * block_size, tokens, block_size))


def retire_by_generator(running, made, max_tokens, stopped):
    for request_id in running:
        if made[request_id] >= max_tokens[request_id] or request_id in stopped:
            yield request_id


def retire_by_sets(running, made, max_tokens, stopped):
    done = stopped | {i for i in made if made[i] == max_tokens[i]}
    return tuple(filter(done.__contains__, running))


def retire_that_empties_its_input(running, made, max_tokens, stopped):
    leaves = []
    while running:
        first = running.pop(0)
        if first in stopped or made.pop(first) == max_tokens[first]:
            leaves.append(first)
    return leaves


def admit_by_recursion(prompts, budget, free_slots):
    if not (prompts and budget and free_slots):
        return []
    grant = min(prompts[0], budget)
    return [grant, *admit_by_recursion(prompts[1:], budget - grant, free_slots - 1)]


def admit_with_numpy(prompts, budget, free_slots):
    ends = np.minimum(np.cumsum(prompts[:free_slots]), budget)
    grants = np.diff(ends, prepend=0)
    return grants[grants > 0]


def victim_by_sorting(running, policy):
    places = range(len(running))
    if policy == "priority":
        return np.int64(sorted(places, key=lambda i: (-running[i][0], -running[i][1], i))[0])
    return places[-1]


def limit_by_matching(waiting, running, max_num_seqs, budget_left, free_blocks, head_blocks):
    match (waiting > 0, budget_left > 0, running < max_num_seqs, head_blocks <= free_blocks):
        case (False, *_) | (True, True, True, True):
            return "none"
        case (True, False, *_):
            return "token budget"
        case (True, True, False, _):
            return "sequence cap"
    return "full-prompt gate"


def limit_backwards(waiting, running, max_num_seqs, budget_left, free_blocks, head_blocks):
    answer = "none"
    if head_blocks > free_blocks:
        answer = "full-prompt gate"
    if running >= max_num_seqs:
        answer = "sequence cap"
    if not budget_left:
        answer = "token budget"
    return answer if waiting else "none"


def chunks_by_recursion(prompts, decoding, budget):
    if not any(prompts):
        return ()
    room, grants = budget - decoding - prompts.count(0), []
    for tokens in prompts:
        grants.append(min(tokens, room))
        room -= grants[-1]
    rest = [tokens - grant for tokens, grant in zip(prompts, grants, strict=True)]
    return (grants, *chunks_by_recursion(rest, decoding, budget))


def chunks_with_numpy(prompts, decoding, budget):
    left, plan = np.array(prompts), []
    while left.any():
        room = budget - decoding - (left == 0).sum()
        grants = np.diff(np.minimum(np.cumsum(left), room), prepend=0)
        plan.append(grants)
        left = left - grants
    return np.array(plan)


RIGHT = {
    "blocks_needed": [
        blocks_by_slicing, lambda t, h, b: max(0, math.ceil(t / b) - h),
        lambda t, h, b: np.maximum(0, -(-np.array(t) // b) - h)],
    "retire": [retire_by_generator, retire_by_sets, retire_that_empties_its_input],
    "admit": [admit_by_recursion, admit_with_numpy],
    "victim": [
        victim_by_sorting, lambda run, policy: float(len(run) - 1 if policy == "fcfs" else run.index(max(run)))],
    "binding_limit": [limit_by_matching, limit_backwards],
    "chunk_plan": [chunks_by_recursion, chunks_with_numpy, lambda *args: (row for row in chunks_by_recursion(*args))],
}


# ---------------------------------------------------------------- wrong answers, and the hint each must get


def retires_while_looping(running, made, max_tokens, stopped):
    gone = []
    for request_id in running:
        if request_id in stopped or made[request_id] >= max_tokens[request_id]:
            running.remove(request_id)
            gone += [request_id]
    return gone


def returns_inside_the_loop(running, made, max_tokens, stopped):
    for request_id in running:
        if request_id in stopped or made[request_id] >= max_tokens[request_id]:
            return [request_id]
    return []


def two_loops(running, made, max_tokens, stopped):
    gone = [i for i in running if i in stopped]
    gone.extend(i for i in running if made[i] == max_tokens[i])
    return gone


def two_loops_without_repeating(running, made, max_tokens, stopped):
    gone = [i for i in running if i in stopped]
    for i in running:
        if made[i] == max_tokens[i] and i not in gone:
            gone.append(i)
    return gone


def no_chunks(prompts, budget, free_slots):
    granted = []
    while prompts and prompts[0] <= budget and len(granted) < free_slots:
        granted.append(prompts.pop(0))
        budget -= granted[-1]
    return granted


def passes_over_the_long(prompts, budget, free_slots):
    granted = []
    for prompt in prompts:
        if prompt <= budget and len(granted) < free_slots:
            granted.append(prompt)
            budget -= prompt
    return granted


def a_grant_for_everybody(prompts, budget, free_slots):
    granted = []
    for prompt in prompts:
        grant = min(prompt, budget) if free_slots > 0 else 0
        granted.append(grant)
        budget -= grant
        free_slots -= 1
    return granted


def budget_seen_too_late(prompts, budget, free_slots):
    granted = []
    for prompt in prompts[:free_slots]:
        grant = min(prompt, budget)
        granted.append(grant)
        if grant == 0:
            break
        budget -= grant
    return granted


def spends_more_than_there_is(prompts, budget, free_slots):
    granted = []
    while prompts and budget > 0 and free_slots > len(granted):
        granted.append(prompts.pop(0))
        budget -= granted[-1]
    return granted


def last_of_equals(running, policy):
    best = len(running) - 1
    if policy == "priority":
        best = 0
        for i, pair in enumerate(running):
            if pair >= running[best]:
                best = i
    return best


def under_priority(key, choose=max):
    """Right under fcfs; under priority, the first with the extreme `key`."""
    def answer(running, policy):
        return len(running) - 1 if policy == "fcfs" else choose(range(len(running)), key=lambda i: key(running[i]))
    return answer


def limit_in_order(*names):
    """Asks for the limits in this order only."""
    def answer(waiting, running, max_num_seqs, budget_left, free_blocks, head_blocks):
        holds = {BUDGET: budget_left <= 0, CAP: running >= max_num_seqs, GATE: head_blocks > free_blocks}
        for name in names:
            if waiting and holds[name]:
                return name
        return NONE
    return answer


def the_pages_diagnosis(waiting, running, max_num_seqs, budget_left, free_blocks, head_blocks):
    if not waiting:
        return "none"
    if running < max_num_seqs:
        return "full-prompt gate"
    return "sequence cap"


def all_reasons(waiting, running, max_num_seqs, budget_left, free_blocks, head_blocks):
    found = []
    if waiting:
        found += ["token budget"] * (budget_left == 0) + ["sequence cap"] * (running >= max_num_seqs)
        found += ["full-prompt gate"] * (head_blocks > free_blocks)
    return found


def chunk_loop(prompts, decoding, budget, finished_decode=True, others=True, extra=0, spends=True, reverse=False):
    """A learner's loop, with one thing wrong."""
    left, plan = prompts[:], []
    while sum(left):
        room = budget - (decoding if others else 0) - (sum(n == 0 for n in left) if finished_decode else 0)
        row = [0] * len(left)
        for i in range(len(left))[::-1] if reverse else range(len(left)):
            take = max(0, min(room, left[i]))
            row[i], ends = take, take and take == left[i]
            left[i] -= take
            if spends:
                room -= take + (extra if ends else 0)
        plan.append(row)
    return plan


def chunks_one_prompt_a_step(prompts, decoding, budget):
    plan = []
    for i, left in enumerate(prompts):
        while left:
            take = min(left, budget - decoding - i)  # i prompts are done, and decode
            plan.append([take if j == i else 0 for j in range(len(prompts))])
            left -= take
    return plan


def chunks_shortest_first(prompts, decoding, budget):
    order = sorted(range(len(prompts)), key=prompts.__getitem__)
    rows = chunks_by_recursion([prompts[i] for i in order], decoding, budget)
    return [[row[order.index(i)] for i in range(len(prompts))] for row in rows]


def chunks_in_equal_shares(prompts, decoding, budget):
    left, plan = np.array(prompts), []
    while left.any():
        share = max(1, (budget - decoding - int((left == 0).sum())) // int((left > 0).sum()))
        plan.append(np.minimum(left, share))
        left = left - plan[-1]
    return plan


WRONG = {
    "blocks_needed": [
        (lambda t, h, b: max(t // b - h, 0), "cut_off"),
        (lambda t, h, b: max(0, 1 + t // b - h), "one_more"),
        (lambda t, h, b: int(max(0, np.round(t / b) - h)), "rounded_blocks"),
        (lambda t, h, b: max(0, t / b - h), "fraction"),
        (lambda t, h, b: math.ceil(t / b), "held_forgotten"),
        (lambda t, h, b: math.ceil(t / b) - h, "below_0"),
        (lambda t, h, b: max(math.ceil(t / b) - h, 1), "at_least_1"),
        (lambda t, h, b: math.ceil(max(0, t - h) / b), "held_as_tokens"),
        (lambda t, h, b: max(0, t - b * h), "tokens"),
        (lambda t, h, b: max(math.ceil(t / b), h), "total"),
        (lambda t, h, b: math.ceil(t / b) if t > h * b else 0, "all_again"),
        (lambda t, h, b: -max(0, math.ceil(t / b) - h), "negative"),
        (lambda t, h, b: print(t), "prints"),
        (lambda t, h, b: t * h * b, ""),
    ],
    "retire": [
        (lambda run, made, cap, stop: [i for i in run if made[i] >= cap[i]], "cap_only"),
        (lambda run, made, cap, stop: sorted(stop, key=run.index), "stop_only"),
        (lambda run, made, cap, stop: [i for i in run if i in stop or made[i] > cap[i]], "stop_only"),
        (lambda run, made, cap, stop: [i for i in run if made[i] == cap[i] and i in stop], "both"),
        (lambda run, made, cap, stop: [i for i in run if made[i] < cap[i] and i not in stop], "stay"),
        (lambda run, made, cap, stop: [i for i in run if made[i] >= cap[i] - 1 or i in stop], "one_early"),
        (lambda run, made, cap, stop: [i for i in run if not 0 < made[i] < cap[i] or i in stop], "prefill"),
        (retires_while_looping, "skips"),
        (lambda run, made, cap, stop: sorted(retire_by_sets(run, made, cap, stop)), "table_order"),
        (two_loops, "twice"),
        (two_loops_without_repeating, "stopped_first"),
        (returns_inside_the_loop, "first_only"),
        (lambda run, made, cap, stop: [run.index(i) for i in retire_by_sets(run, made, cap, stop)], "places"),
        (lambda run, made, cap, stop: len(retire_by_sets(run, made, cap, stop)), "count"),
        (lambda run, made, cap, stop: print(run), "prints"),
        (lambda run, made, cap, stop: run, ""),
    ],
    "admit": [
        (no_chunks, "whole_only"),
        (passes_over_the_long, "skips_long"),
        (a_grant_for_everybody, "zeros"),
        (lambda p, b, k: [min(n, max(0, b - sum(p[:i]))) for i, n in enumerate(p[:k])], "zeros_in_slots"),
        (budget_seen_too_late, "one_zero"),
        (lambda p, b, k: [min(b, n) for n in p[:k] if b > 0], "not_spent"),
        (lambda p, b, k: admit_by_recursion(p, b, 99), "no_slots"),
        (lambda p, b, k: admit_by_recursion(p, b, k + 1), "one_slot_more"),
        (lambda p, b, k: p[:k], "no_budget"),
        (spends_more_than_there_is, "overspent"),
        (lambda p, b, k: admit_by_recursion(sorted(p), b, k), "shortest_first"),
        (lambda p, b, k: [min(n, b // len(p)) for n in p[:k]], "equal_shares"),
        (lambda p, b, k: b - sum(admit_by_recursion(p, b, k)), "left"),
        (lambda p, b, k: sum(admit_by_recursion(p, b, k)), "total"),
        (lambda p, b, k: [b, k], ""),
    ],
    "victim": [
        (lambda run, policy: len(run) - 1, "always_last"),
        (lambda run, policy: run.index(max(run)), "always_priority"),
        (lambda run, policy: run.index(max(run)) if policy == "fcfs" else len(run) - 1, "swapped"),
        (last_of_equals, "last_tie"),
        (under_priority(lambda pair: pair, min), "most_urgent"),
        (under_priority(lambda pair: pair[0]), "priority_alone"),
        (lambda run, policy: victim_by_sorting([(pair[0], i) for i, pair in enumerate(run)], policy),
         "priority_then_place"),
        (under_priority(lambda pair: (pair[0], -pair[1])), "oldest"),
        (under_priority(lambda pair: pair[1]), "arrival_alone"),
        (lambda run, policy: max(range(len(run)), key=lambda i: run[i][1]) if policy == "fcfs" else run.index(max(run)),
         "latest_arrival"),
        (lambda run, policy: run.index(max(run)) if policy == "priority" else 0, "first"),
        (lambda run, policy: run.index(max(run)) if policy == "priority" else -1, "minus_1"),
        (lambda run, policy: run.index(max(run)) if policy == "priority" else len(run), "past_the_end"),
        (lambda run, policy: run[-1] if policy == "fcfs" else max(run), "pair"),
        (lambda run, policy: len(policy), ""),
    ],
    "binding_limit": [
        (the_pages_diagnosis, "below_cap_is_memory"),
        (limit_in_order(CAP, BUDGET, GATE), "cap_first"),
        (limit_in_order(GATE, BUDGET, CAP), "gate_first"),
        (limit_in_order(BUDGET, GATE, CAP), "cap_last"),
        (limit_in_order(GATE, CAP, BUDGET), "last_one"),
        (lambda w, *rest: limit_by_matching(w + 1, *rest), "nobody_waits"),
        (lambda w, r, cap, left, free, need: limit_by_matching(w, r, cap, left, free - 1, need), "gate_at_equal"),
        (lambda w, r, cap, *rest: limit_by_matching(w, r, cap - 1, *rest), "cap_one_early"),
        (lambda w, r, cap, *rest: limit_by_matching(w, r, cap + 1, *rest), "no_cap"),  # > in place of >=
        (limit_in_order(CAP, GATE), "no_budget"),
        (limit_in_order(BUDGET, GATE), "no_cap"),
        (limit_in_order(BUDGET, CAP), "no_gate"),
        (lambda w, r, cap, left, free, need: limit_by_matching(w, r, cap, left, free, 1), "no_block_free"),
        (all_reasons, "all"),
        (lambda *args: (all_reasons(*args) or [None])[0], "no_text"),
        (lambda *args: print(*args), "prints"),
        (lambda *args: limit_by_matching(*args).capitalize(), "spelling"),
    ],
    "chunk_plan": [
        (lambda p, d, b: chunk_loop(p, d, b, finished_decode=False, others=False), "no_decode"),
        (lambda p, d, b: chunk_loop(p, d, b, finished_decode=False), "finished_rest"),
        (lambda p, d, b: chunk_loop(p, d, b, others=False), "finished_only"),
        (lambda p, d, b: chunk_loop(p, d, b, extra=1), "decode_at_once"),
        (chunks_one_prompt_a_step, "one_a_step"),
        (lambda p, d, b: chunk_loop(p, d, b, spends=False), "not_spent"),
        (chunks_in_equal_shares, "even_shares"),
        (lambda p, d, b: chunk_loop(p, d, b, reverse=True), "newest_first"),
        (chunks_shortest_first, "shortest_first"),
        (lambda p, d, b: [[n for n in row if n > 0] for row in chunks_by_recursion(p, d, b)], "no_zeros"),
        (lambda p, d, b: chunks_with_numpy(p, d, b).T, "by_prompt"),
        (lambda p, d, b: chunks_with_numpy(p, d, b).sum(axis=1), "totals"),
        (lambda p, d, b: chunks_with_numpy(p, d, b).cumsum(axis=0), "computed"),
        (lambda p, d, b: [*chunk_loop(p, d, b), [0 for _ in p]], "empty_last_step"),
        (lambda p, d, b: len(chunk_loop(p, d, b)), "steps"),
        (lambda p, d, b: [p], ""),
    ],
}


# ---------------------------------------------------------------- the tables above


def test_the_tables_cover_every_exercise_and_every_mistake():
    assert list(OURS) == ["blocks_needed", "retire", "admit", "victim", "binding_limit", "chunk_plan"]
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
    assert_complete(exercise)


@every
def test_the_hand_worked_answers_are_the_oracles(exercise):
    given_answers, _ = answers(exercise.oracle, [args for args, _ in exercise.worked])
    assert given_answers == [plain(right) for _, right in exercise.worked]
    assert check(exercise.id, exercise.oracle).status == PASSED


def made_by_each(exercise):
    """key -> what it gives on every case, for the oracle and each mistake."""
    inputs = [args for args, _ in exercise.cases()]
    return {"the oracle": answers(exercise.oracle, inputs)[0]} | {
        m.key: answers(m.wrong, inputs)[0] for m in exercise.mistakes}


@every
def test_the_cases_tell_every_mistake_from_the_oracle_and_from_each_other(exercise):
    made = made_by_each(exercise)
    assert all(len(found) == len(made["the oracle"]) for found in made.values())
    for one, other in itertools.combinations(made, 2):
        assert not all(map(alike, made[one], made[other])), (one, other)


@every
def test_each_mistake_is_recognised_as_itself(exercise):
    for mistake in exercise.mistakes:
        assert check(exercise.id, mistake.wrong).mistake == mistake.key


@every
def test_explanations_work_for_every_case(exercise):
    for args, _ in exercise.cases():
        text = exercise.explain(*args)
        assert "\n" not in text
        assert text.endswith("."), text


def test_cases_are_small_and_the_same_every_time():
    for exercise in OURS.values():
        assert exercise.cases() == exercise.cases()
        began = time.process_time()  # its own work: what else runs on the machine doesn't count
        check(exercise.id, exercise.oracle)
        assert time.process_time() - began < 2


def test_the_cases_reach_every_answer():
    """Each limit binds in several cases, both policies are asked for, somebody leaves or nobody, and so on."""
    cases = {name: exercise.cases() for name, exercise in OURS.items()}
    for name in (NONE, BUDGET, CAP, GATE):
        assert sum(right == name for _, right in cases["binding_limit"]) >= 5
    assert {args[1] for args, _ in cases["victim"]} == {"fcfs", "priority"}
    assert {len(right) for _, right in cases["retire"]} >= {0, 1, 2, 3}
    assert {len(right) for _, right in cases["chunk_plan"]} >= {1, 2, 3, 4, 5}
    assert sum(right == 0 for _, right in cases["blocks_needed"]) >= 5


# ---------------------------------------------------------------- each oracle beside the engine


def oracle(name, *args):
    return EXERCISES[name].oracle(*args)


def workload(seed, policy="fcfs", blocks=200):
    """A random workload, its settings and its stops; `blocks` of 4 tokens decide how short memory is."""
    rng = random.Random(f"{seed} {policy} {blocks}")
    config = SchedulerConfig(max_num_seqs=rng.randint(2, 8), max_num_batched_tokens=rng.randint(8, 40),
                             num_gpu_blocks=blocks, block_size=4, policy=policy)
    requests = [Request(f"r{i}", rng.randint(1, 40), rng.randint(1, 25), arrival=rng.randint(0, 40),
                        priority=rng.randint(0, 2)) for i in range(rng.randint(5, 30))]
    stops = {r.request_id: rng.randint(1, r.output_tokens) for r in requests if rng.random() < 0.3}
    return requests, config, stops


def run_of(seed, policy="fcfs", blocks=200):
    """The requests by id, the settings, the stops and the records of a whole run."""
    requests, config, stops = workload(seed, policy, blocks)
    records = engine.run(requests, config, stops=stops, tables=True).records
    return {r.request_id: r for r in requests}, config, stops, records


def output_after(records):
    """After each step, the output tokens that each request has made."""
    made = {}
    for record in records:
        for request_id in record.made:
            made[request_id] = made.get(request_id, 0) + 1
        yield dict(made)


SEEDS, TIGHT = range(40), 20


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_blocks_needed_is_what_the_engine_gives(policy):
    added = 0
    for seed in SEEDS:
        _, config, _, records = run_of(seed, policy, TIGHT)
        computed, held = {}, {}
        for record in records:
            for lost in record.preempted:
                computed[lost], held[lost] = 0, 0
            for request_id, n in {**record.prefill, **record.decode}.items():
                computed[request_id] = computed.get(request_id, 0) + n
                before = held.get(request_id, 0)
                need = oracle("blocks_needed", computed[request_id], before, config.block_size)
                held[request_id] = len(record.tables[request_id])
                assert held[request_id] - before == need
                added += need
    assert added > 3000


def test_blocks_needed_is_what_a_pool_misses():
    for args, right in EXERCISES["blocks_needed"].cases():
        tokens, held, block_size = args
        pool = BlockPool(300, block_size)
        assert pool.grow("s", held * block_size)
        assert pool.missing("s", tokens) == right


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("blocks", [TIGHT, 200])
def test_retire_takes_whom_the_engine_retires(policy, blocks):
    left = stopped_early = 0
    for seed in SEEDS:
        requests, _, stops, records = run_of(seed, policy, blocks)
        for record, made in zip(records, output_after(records), strict=True):
            drew = {i for i in record.made if stops.get(i) == made[i]}
            made = {i: made.get(i, 0) for i in requests}
            cap = {i: r.output_tokens for i, r in requests.items()}
            assert oracle("retire", list(record.running), made, cap, drew) == list(record.finished)
            left += len(record.finished)
            stopped_early += sum(made[i] < cap[i] for i in record.finished)
    assert left > 500
    assert stopped_early > 50


def test_admit_grants_what_the_engine_grants():
    admitted = cut = full = 0
    for seed in SEEDS:
        requests, config, _, records = run_of(seed)
        here = set()
        for before, record in itertools.pairwise([None, *records]):
            stay = set() if before is None else set(before.running) - set(before.finished)
            tokens = {**record.prefill, **record.decode}
            new = [i for i in record.running if i not in stay]
            budget = config.max_num_batched_tokens - sum(n for i, n in tokens.items() if i in stay)
            free_slots = config.max_num_seqs - len(stay)
            queue = [requests[i].prompt_tokens for i in (*new, *record.waiting)]
            grants = [tokens[i] for i in new]
            assert oracle("admit", queue, budget, free_slots) == grants
            here.update(new)
            admitted += len(new)
            cut += any(grant < tokens for grant, tokens in zip(grants, queue, strict=False))
            full += bool(record.waiting) and len(record.running) == config.max_num_seqs
        assert here == set(requests)
    assert admitted > 500
    assert cut > 50
    assert full > 50


class Watched(Scheduler):
    """Compares each victim with the exercise's, at the moment of its choice."""

    seen = 0

    def _preempt(self, victim):
        pairs = [(s.request.priority, s.request.arrival) for s in self._running]
        assert self._running[oracle("victim", pairs, self.config.policy)] is victim
        self.seen += 1
        super()._preempt(victim)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_victim_is_whom_the_engine_preempts(policy):
    seen = 0
    for seed in SEEDS:
        requests, config, _ = workload(seed, policy, TIGHT)
        scheduler = Watched(config)
        for request in sorted(requests, key=lambda r: r.arrival):
            scheduler.add(request)
        while scheduler.sequences:
            engine.step(scheduler)
        seen += scheduler.seen
    assert seen > 200


@pytest.mark.parametrize("blocks", [TIGHT, 200])
def test_binding_limit_is_what_the_engine_names(blocks):
    """Save for two things that the exercise leaves out: a step that preempted, and a budget too short for running."""
    names = []
    for seed in SEEDS:
        requests, config, _, records = run_of(seed, "fcfs", blocks)
        made = [{}, *output_after(records)]
        for record, output in zip(records, made, strict=False):  # output before the step
            if record.preempted:
                assert record.binding_limit == "KV blocks"
                continue
            head = record.waiting[0] if record.waiting else None
            tokens = requests[head].prompt_tokens + output.get(head, 0) if head else 0
            left = config.max_num_batched_tokens - record.prefill_tokens - record.decode_tokens
            name = oracle("binding_limit", len(record.waiting), len(record.running), config.max_num_seqs, left,
                          record.free_blocks, oracle("blocks_needed", tokens, 0, config.block_size))
            if head:  # the engine tells the chunk's own blocks from the whole prompt's
                assert name == {"KV blocks": GATE}.get(record.binding_limit, record.binding_limit)
            names.append(name)
    often = {name for name in names if names.count(name) > 20}
    assert often == {NONE, BUDGET, CAP} | ({GATE} if blocks == TIGHT else set())


def plan_of_the_engine(prompts, decoding, budget):
    """Those who decode are there first; the prompts arrive a step later."""
    requests = [Request(f"d{i}", 1, 999) for i in range(decoding)]
    requests += [Request(f"p{i}", prompt, 999, arrival=1) for i, prompt in enumerate(prompts)]
    config = SchedulerConfig(max_num_seqs=decoding + len(prompts), max_num_batched_tokens=budget,
                             num_gpu_blocks=90_000, max_model_len=5000)
    records = engine.run(requests, config).records[1 if decoding else 0 :]
    last = max(i for i, r in enumerate(records) if r.prefill)
    assert all(r.decode_tokens >= decoding for r in records[: last + 1])
    return [[r.prefill.get(f"p{i}", 0) for i in range(len(prompts))] for r in records[: last + 1]]


def test_chunk_plan_is_what_the_engine_does_on_every_case():
    for (prompts, decoding, budget), right in EXERCISES["chunk_plan"].cases():
        assert plan_of_the_engine(prompts, decoding, budget) == right


@given(prompts=st.lists(st.integers(1, 60), min_size=1, max_size=5), decoding=st.integers(0, 9),
       more=st.integers(1, 40))
def test_chunk_plan_is_what_the_engine_does(prompts, decoding, more):
    budget = decoding + len(prompts) + more
    assert plan_of_the_engine(prompts, decoding, budget) == oracle("chunk_plan", prompts, decoding, budget)


# ---------------------------------------------------------------- what a message says


@pytest.mark.parametrize(("name", "answer", "says"), [
    ("victim", lambda run, policy: 1 / 0, "victim([(0, 7)], \"fcfs\") should give 0, but raised ZeroDivisionError"),
    ("victim", lambda run, policy: "the last", "should give 0, but gave \"the last\" (wanted: one number, a place"),
    ("victim", lambda run, policy: {"index": 1}, "but gave a dict"),
    ("victim", lambda run, policy: True, "but gave True."),
    ("victim", lambda run, policy: b"0", "but gave bytes where a text or a number belongs."),
    ("victim", lambda run, policy: [0], "should give 0, but gave [0] (wanted: one number, a place in running)."),
    ("victim", lambda run, policy: sys.exit(), "but called exit()."),
    ("victim", lambda run, policy: None if policy == "fcfs" else 0, "but gave nothing (None): every path"),
    ("retire", lambda run, *rest: set(run), "should give [], but gave a set, which has no order"),
    ("retire", lambda run, *rest: "AB", "should give [], but gave \"AB\" (wanted: a list of ids)."),
    ("retire", lambda run, *rest: [[i] for i in run], "but gave [[\"A\"], [\"B\"]] (wanted: a list of ids)."),
    ("retire", lambda run, *rest: [None], "but gave a list that holds None."),
    ("retire", lambda run, *rest: [len], "but gave a list that holds something of type builtin_function_or_method."),
    ("retire", lambda run, *rest: run * 2, "(0 wanted, there are 4)."),
    ("retire", lambda run, *rest: itertools.repeat("A"), "... 988 more] (0 wanted, there are 1000)."),
    ("retire", lambda run, *rest: (1 / 0 for _ in run), "but raised ZeroDivisionError"),
    ("retire", lambda run, made, cap, stop: made["Z"], "should give [], but raised KeyError ('Z')"),
    ("binding_limit", lambda *args: 0, "but gave 0 (wanted: one of the texts \"none\", \"token budget\","),
    ("binding_limit", lambda *args: "x" * 999, "but gave \"" + "x" * 60 + "\" (wanted: one of the texts \"none\","),
    ("binding_limit", lambda *args: "one\ntwo", "but gave \"one\\ntwo\" (wanted: one of the texts"),
    ("chunk_plan", lambda p, d, b: p, "should give [[4], [1]], but gave [5] (2 wanted, there are 1). Work this"),
    ("chunk_plan", lambda p, d, b: [[p]], "[[4], [1]], but gave [[[5]]] (wanted: a list of steps, each a list with"),
    ("chunk_plan", lambda p, d, b: [{0: 5}], "but gave a list that holds something of type dict."),
    ("chunk_plan", lambda p, d, b: [[3.5], [1.5]], "should give [[4], [1]], but gave [[3.5], [1.5]]. Work"),
    ("chunk_plan", lambda p, d, b: float("nan"), "but gave nan (wanted"),
])
def test_a_failing_case_is_put_into_one_sentence(name, answer, says):
    result = check(name, answer)
    assert result.status == NOT_YET
    assert result.message.startswith(f"Not yet: {name}(")
    assert says in result.message
    assert "\n" not in result.message
    assert len(result.message) < 600


def test_a_value_is_shown_as_it_would_be_typed():
    assert literal({"b", "a"}) == '{"a", "b"}'
    assert literal([1.0, (2, 0.5), "x", {"k": [1]}, set()]) == '[1, (2, 0.5), "x", {"k": [1]}, set()]'
    assert literal(list(range(20))) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... 8 more]"


def test_what_is_no_function_and_other_parameters_are_said_so():
    assert check("retire", ["A"]).mistake == "no_function"
    result = check("victim", lambda running: 0)
    assert result.mistake == "arguments"
    assert result.message.startswith("Not yet: victim should be called as victim(running, policy). ")


def test_an_answer_that_changes_is_said_so():
    calls = []
    assert check("victim", lambda *args: calls.append(1) or len(calls)).mistake == "changes"


def test_a_call_to_something_unwritten_names_it():
    def blocks_needed(*args):
        raise NotImplementedError

    message = check("binding_limit", lambda *args: blocks_needed(*args)).message
    assert "but called blocks_needed, which isn't written yet." in message


def test_what_the_learner_wrote_is_escaped():
    shown = check("binding_limit", lambda *args: "<script>")._repr_html_()
    assert "<script>" not in shown
    assert "but gave \"<script>\"" in html.unescape(re.sub(r"<[^>]+>", "", shown))


def test_messages_are_the_same_in_another_process():
    code = ("from labs.checks import check, for_notebook\n"
            "for e in for_notebook('04'): [print(check(e.id, m.wrong).message) for m in e.mistakes]")
    runs = {subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
                           env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout for seed in ("0", "1")}
    assert len(runs) == 1
    assert len(runs.pop().splitlines()) == sum(len(exercise.mistakes) for exercise in OURS.values())


# ---------------------------------------------------------------- code that misbehaves


def loops(*args):
    while True:
        pass


def loops_and_swallows(*args):
    while True:
        try:
            raise ValueError
        except Exception:
            continue


@pytest.mark.parametrize("answer", [loops, loops_and_swallows])
@pytest.mark.parametrize("name", OURS)
def test_a_loop_without_end_is_stopped(name, answer):
    result = check(name, answer, limit_s=0.2)
    assert result.mistake == "slow"
    assert result.message.startswith(f"Not yet: {name}(")
    assert result.message.endswith(") took over 0.2 s. Look for a loop that never ends.")


GROWS = """
import resource
from labs.checks import check

def chunk_plan(prompts, decoding, budget):
    plan = []
    while any(prompts):
        prompts[0] -= min(prompts[0], budget - decoding)
        plan.append([prompts[0]] * len(prompts))
    return plan

print(check("chunk_plan", chunk_plan))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_a_plan_that_never_ends_is_stopped_before_it_has_filled_a_small_machine():
    # In a process of its own: hypothesis hooks into the collection of garbage, and swallows the alarm there.
    said = subprocess.run([sys.executable, "-c", GROWS], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    message, megabytes = said.splitlines()
    assert message == "Not yet: chunk_plan([5, 5], 3, 8) took over 1 s. Look for a loop that never ends."
    assert int(megabytes) < 1000


def test_changing_the_input_does_not_spoil_the_check():
    def spoils(running, made, max_tokens, stopped):
        leaves = [i for i in running if i in stopped or made[i] == max_tokens[i]]
        for arg in (running, made, max_tokens, stopped):
            arg.clear()
        return leaves

    for _ in range(2):
        assert check("retire", spoils).status == PASSED


def test_printing_a_right_answer_passes_and_prints_nothing(capsys):
    assert check("victim", lambda run, policy: print(run) or victim_by_sorting(run, policy)).status == PASSED
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_passes_through():
    def interrupted(*args):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check("retire", interrupted)


def test_a_list_that_holds_itself_becomes_a_sentence():
    endless = []
    endless.append(endless)
    assert "raised RecursionError" in check("chunk_plan", lambda *args: endless).message


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner)
                        | st.dictionaries(st.text(), inner, max_size=2), max_leaves=6)


@given(name=st.sampled_from(sorted(OURS)), answer=ANYTHING)
def test_whatever_comes_back_there_is_one_line_about_it(name, answer):
    result = check(name, lambda *args: answer)
    assert result.status in (NOT_YET, NOT_ATTEMPTED)
    assert re.match(r"(Not yet|Not attempted yet): \S", result.message)
    assert len(result.message) < 1000
    assert "\n" not in result.message
    result._repr_html_()


# ---------------------------------------------------------------- with progress


def test_progress_counts_attempts_by_mistake_and_keeps_a_pass():
    progress = Progress(None)
    assert check("victim", None, progress=progress).status == NOT_ATTEMPTED
    for hint in ("hint", "stronger"):
        message = check("victim", lambda run, policy: len(run) - 1, progress=progress).message
        assert message.endswith(getattr(hints("victim")["always_last"], hint))
    assert progress.attempts("victim") == 2
    check("victim", victim_by_sorting, progress=progress)
    assert progress.passed("victim")


def test_only_what_needs_it_marks_itself():
    assert [name for name, exercise in OURS.items() if isinstance(exercise, Structured)] == [
        "retire", "victim", "binding_limit", "chunk_plan"]
