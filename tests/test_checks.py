"""Every check against its stub, right answers written differently, wrong ones with their hints, and misbehaviour."""

from __future__ import annotations

import builtins
import functools
import heapq
import html
import itertools
import math
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marked import assert_complete, assert_hinted, assert_not_attempted, assert_passes, hints, rows

from labs import checks, metrics, slots, workload
from labs.checks import check, for_notebook
from labs.checks.answers import copied, failed, read, same, show
from labs.checks.guard import outcome, time_limit
from labs.checks.marking import NOT_ATTEMPTED, NOT_YET, PASSED, SLIPS, recognise
from labs.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
# Later notebooks' have the same tests in files of their own, such as test_checks_step_loop.py.
EXERCISES = {name: exercise for name, exercise in checks.EXERCISES.items() if exercise.notebook in ("01", "02", "03")}


# ---------------------------------------------------------------- right answers, written differently


def wasted_by_loop(lengths):
    total = 0
    for length in lengths:
        total += np.max(lengths) - length
    return np.int64(total)


def wait_by_generator(lengths):
    longest = sorted(lengths)[-1]
    for length in lengths:
        yield longest - length


def steps_by_recursion(lengths, slots):
    return 0 if not lengths else float(max(lengths[:slots])) + steps_by_recursion(lengths[slots:], slots)


def slot_that_pops_its_input(free_at):
    best = len(free_at) - 1
    earliest = free_at.pop()
    while free_at:
        if (when := free_at.pop()) <= earliest:
            best, earliest = len(free_at), when
    return best


def static_finish_with_numpy(lengths, slots):
    lengths = np.array(lengths, dtype=float)
    padded = np.append(lengths, np.zeros(-len(lengths) % slots)).reshape(-1, slots)
    return np.repeat(np.cumsum(padded.max(axis=1)), slots)[: len(lengths)]


def static_finish_by_counting(lengths, slots):
    ends, clock = {}, 0
    while len(ends) < len(lengths):
        at = len(ends)
        members = range(at, min(at + slots, len(lengths)))
        clock += max(lengths[i] for i in members)
        ends.update(dict.fromkeys(members, clock))
    return ends.values()


def continuous_with_a_heap(lengths, slots):
    heap = [(0, slot) for slot in range(slots)]
    for length in lengths:
        when, slot = heapq.heappop(heap)
        heapq.heappush(heap, (when + length, slot))
        yield float(when + length)


def continuous_by_recursion(lengths, slots, free=None):
    free = sorted(free or [0] * slots)
    if not lengths:
        return ()
    done = free[0] + lengths[0]
    return (done, *continuous_by_recursion(lengths[1:], slots, [done, *free[1:]]))


def percentile_in_place(values, q):
    values.sort()
    return values[-1] if q == 1 else values[math.floor(len(values) * q)]


def utilisation_on_a_grid(start, done, slots, until):
    grid = np.zeros((len(start), until))
    for row, first, last in zip(grid, start, done, strict=True):
        row[first:last] = 1
    return grid.sum() / (slots * grid.shape[1])


def expected_max_by_layers(lengths, draws):
    """E[max] is the sum over steps of P(max > step)."""
    n = len(lengths)
    return sum(1 - (sum(x <= step for x in lengths) / n) ** draws for step in range(int(max(lengths))))


def expected_max_by_recursion(lengths, draws, floor=0):
    if draws == 0:
        return Fraction(floor)
    return sum(expected_max_by_recursion(lengths, draws - 1, max(floor, x)) for x in lengths) / len(lengths)


def gain_step_by_step(lengths, slots):
    def run(refill):
        queue, left, step = list(lengths), [], 0
        while queue or left:
            if refill or not left:
                while queue and len(left) < slots:
                    left.append(queue.pop(0))
            left = [tokens - 1 for tokens in left if tokens > 1]
            step += 1
        return step

    return run(False) / run(True)


RIGHT = {
    "slot_steps_wasted": [
        wasted_by_loop, lambda ls: float(sum(max(ls) - n for n in ls)),
        lambda ls: Fraction(len(ls) * max(ls) - sum(ls)),
        lambda ls: np.array(len(ls) * max(ls) - sum(ls))],
    "head_of_line_wait": [wait_by_generator, lambda ls: np.max(ls) - np.array(ls), lambda ls: map(max(ls).__sub__, ls)],
    "normalised_latency": [
        lambda ls: tuple(max(ls) / n for n in ls), lambda ls: np.max(ls) / np.asarray(ls),
        lambda ls: [Decimal(max(ls)) / n for n in ls],
        lambda ls: metrics.normalised_latency(slots.static_batching(ls, len(ls)))],
    "static_steps": [
        steps_by_recursion, lambda ls, slots: max(static_finish_with_numpy(ls, slots)),
        lambda ls, k: slots.static_batching(ls, k).steps],
    "next_slot": [
        slot_that_pops_its_input, lambda free_at: np.argmin(free_at), lambda f: min(range(len(f)), key=f.__getitem__),
        lambda f: float(min((free, i) for i, free in enumerate(f))[1])],
    "static_finish": [
        static_finish_with_numpy, static_finish_by_counting, lambda ls, k: slots.static_batching(ls, k).finish],
    "continuous_finish": [
        continuous_with_a_heap, continuous_by_recursion, lambda ls, k: slots.continuous_batching(ls, k).finish],
    "nearest_rank": [
        percentile_in_place, metrics.percentile, lambda v, q: (np.sort(v)[min(int(q * len(v)), len(v) - 1)])],
    "split_latency": [
        lambda a, s, f, n: [(s - a) / n, f / n - s / n], lambda a, s, f, n: np.array([s - a, f - s]) / n,
        lambda arrival, start, finish, length: (Fraction(start - arrival, length), Fraction(finish - start, length))],
    "steady_utilisation": [
        utilisation_on_a_grid,
        lambda s, d, k, u: sum(max(0, min(b, u) - a) for a, b in zip(s, d, strict=True)) / u / k,
        lambda s, d, k, u: (np.clip(d, 0, u) - np.clip(s, 0, u)).sum() / (k * u)],
    "expected_max": [
        metrics.expected_max, expected_max_by_layers, expected_max_by_recursion,
        lambda ls, k: np.mean([max(way) for way in itertools.product(ls, repeat=k)])],
    "predicted_static_utilisation": [
        metrics.expected_static_utilisation, lambda ls, k: np.mean(ls) / expected_max_by_layers(ls, k),
        lambda ls, k: sum(ls) * len(ls) ** (k - 1) / sum(map(max, itertools.product(ls, repeat=k)))],
    "arrival_rate": [
        slots.arrival_rate, lambda load, ls, k: load * k * len(ls) / sum(ls),
        lambda load, ls, k: load / np.mean(ls) * k],
    "coefficient_of_variation": [
        lambda ls: np.std(ls) / np.mean(ls), lambda ls: statistics.pstdev(ls) / statistics.mean(ls),
        lambda ls: math.sqrt(len(ls) * sum(x * x for x in ls) / sum(ls) ** 2 - 1)],
    "gain": [
        gain_step_by_step, lambda ls, k: slots.static_batching(ls, k).steps / slots.continuous_batching(ls, k).steps,
        lambda ls, k: Fraction(int(max(static_finish_with_numpy(ls, k))), int(max(continuous_with_a_heap(ls, k))))],
    "fit_lognormal": [
        workload.fit_lognormal, lambda ls: [np.log(ls).mean(), np.log(ls).std()],
        lambda ls: (math.log(math.prod(ls)) / len(ls), statistics.pstdev(map(math.log, ls)))],
}


# ---------------------------------------------------------------- wrong answers, and the hint each must get


def unsorted_last(lengths):
    """Learner's first try at 01: the eight are sorted, so the last is the longest."""
    waste = 0
    for length in lengths:
        waste += lengths[len(lengths) - 1] - length
    return waste


def waits_for_the_next(lengths):
    ordered = sorted(lengths)
    waits = []
    for length in lengths:
        longer = [x for x in ordered if x > length]
        waits.append(longer[0] - length if longer else 0)
    return waits


def total_is_overwritten(lengths, slots):
    total = 0
    for i in range(0, len(lengths), slots):
        total = max(lengths[i : i + slots])
    return total


def full_groups_only(lengths, slots):
    return sum(max(lengths[g * slots : (g + 1) * slots]) for g in range(len(lengths) // slots))


def a_queue_for_each_slot(lengths, slots):
    lanes = [0] * slots
    for i, length in enumerate(lengths):
        lanes[i % slots] += length
    return max(lanes)


def less_or_equal(free_at):
    best = 0
    for slot in range(len(free_at)):
        if free_at[slot] <= free_at[best]:
            best = slot
    return best


def forgets_the_clock(lengths, slots):
    finish = []
    for i in range(0, len(lengths), slots):
        group = lengths[i : i + slots]
        finish += [max(group)] * len(group)
    return finish


def answers_at_the_start(lengths, slots):
    finish, clock = [], 0
    for i in range(0, len(lengths), slots):
        group = lengths[i : i + slots]
        finish += [clock] * len(group)
        clock += max(group)
    return finish


def answers_when_each_is_done(lengths, slots):
    finish, clock = [], 0
    for i in range(0, len(lengths), slots):
        group = lengths[i : i + slots]
        finish += [clock + length for length in group]
        clock += max(group)
    return finish


def one_answer_a_group(lengths, slots):
    clock, finish = 0, []
    for i in range(0, len(lengths), slots):
        clock += max(lengths[i : i + slots])
        finish.append(clock)
    return finish


def pads_the_last_group(lengths, slots):
    return [clock for clock in one_answer_a_group(lengths, slots) for _ in range(slots)]


def dealt_in_turn(lengths, slots):
    free_at, finish = [0] * slots, []
    for i, length in enumerate(lengths):
        free_at[i % slots] += length
        finish.append(free_at[i % slots])
    return finish


def one_step_between(lengths, slots):
    free_at, finish = [0] * slots, []
    for length in lengths:
        slot = free_at.index(min(free_at))
        finish.append(free_at[slot] + length)
        free_at[slot] += length + 1
    return finish


def sets_instead_of_adding(lengths, slots):
    free_at, finish = [0] * slots, []
    for length in lengths:
        slot = free_at.index(min(free_at))
        start = free_at[slot]
        free_at[slot] = length
        finish.append(start + length)
    return finish


def appends_the_start(lengths, slots):
    free_at, finish = [0] * slots, []
    for length in lengths:
        slot = free_at.index(min(free_at))
        finish.append(free_at[slot])
        free_at[slot] += length
    return finish


def returns_the_slots(lengths, slots):
    free_at = [0] * slots
    for length in lengths:
        free_at[free_at.index(min(free_at))] += length
    return free_at


def shortest_job_first(lengths, slots):
    free_at, finish = [0] * slots, [0] * len(lengths)
    for i in np.argsort(lengths, kind="stable"):
        slot = int(np.argmin(free_at))
        free_at[slot] += lengths[i]
        finish[i] = free_at[slot]
    return finish


def no_groups_reopened(lengths, slots):
    """Early return: the answers leave, the group still holds everybody else up."""
    begin, finish = 0, []
    while lengths:
        finish += [begin + n for n in lengths[:slots]]
        begin += max(lengths[:slots])
        lengths = lengths[slots:]
    return finish


def draws_at_random(lengths, draws):
    rng = random.Random(1)
    return sum(max(rng.choices(lengths, k=draws)) for _ in range(3000)) / 3000


def draws_rarely(lengths, draws):
    return max(random.choices(lengths, k=draws))


def counts_from_zero(lengths, draws):
    n, total = len(lengths), 0
    for i, x in enumerate(sorted(lengths)):
        total += x * ((i / n) ** draws - ((i - 1) / n) ** draws)
    return total


def moments_of_the_lengths(lengths):
    mean, var = np.mean(lengths), np.var(lengths)
    sigma2 = math.log(1 + var / mean**2)
    return math.log(mean) - sigma2 / 2, sigma2**0.5


def static_over_ideal(lengths, slots):
    return total_of_groups(lengths, slots) / (sum(lengths) / slots)


def total_of_groups(lengths, slots):
    return sum(max(lengths[i : i + slots]) for i in range(0, len(lengths), slots))


def earliest_slot(lengths, slots):
    free_at = [0] * slots
    for length in lengths:
        heapq.heapreplace(free_at, free_at[0] + length)
    return free_at[0]


def continuous_total(lengths, slots):
    return max(continuous_with_a_heap(lengths, slots))


WRONG = {
    "slot_steps_wasted": [
        (lambda ls: max(ls) * len(ls), "available"),
        (lambda ls: np.sum(ls), "useful"),
        (lambda ls: (max(ls) * len(ls) - sum(ls)) / (max(ls) * len(ls)), "share"),
        (lambda ls: 100 * (1 - np.mean(ls) / np.max(ls)), "percent_share"),
        (lambda ls: sorted(ls)[-1] - sorted(ls)[0], "shortest_only"),
        (lambda ls: np.mean([max(ls) - n for n in ls]), "mean_slot"),
        (unsorted_last, "last_is_longest"),
        (lambda ls: ls[0] * len(ls) - sum(ls), "first_is_longest"),
        (lambda ls: max(ls) * 8 - sum(ls), "eight_slots"),
        (lambda ls: 7600 - 1932, "constant"),
        (lambda ls: sum(n - max(ls) for n in ls), "negative"),
        (lambda ls: print(len(ls) * max(ls) - sum(ls)), "prints"),
    ],
    "head_of_line_wait": [
        (lambda ls: [max(ls) for _ in ls], "batch_length"),
        (lambda ls: list(ls), "own_length"),
        (waits_for_the_next, "next_longer"),
        (lambda ls: [ls[-1] - n for n in ls], "last_is_longest"),
        (lambda ls: len(ls) * max(ls) - sum(ls), "total"),
        (lambda ls: np.mean(np.max(ls) - np.array(ls)), "mean"),
        (lambda ls: 1 - np.array(ls) / max(ls), "share"),
        (lambda ls: [max(ls) / n - 1 for n in ls], "per_token"),
        (lambda ls: [n - max(ls) for n in ls], "negative"),
        (lambda ls: [max(ls) - n for n in sorted(ls)], "sorted"),
    ],
    "normalised_latency": [
        (lambda ls: np.full(len(ls), max(ls)), "latency"),
        (lambda ls: [n / n for n in ls], "own_done"),
        (lambda ls: np.array(ls) / max(ls), "inverted"),
        (lambda ls: [(max(ls) - n) / n for n in ls], "wait_only"),
        (lambda ls: [ls[len(ls) - 1] / n for n in ls], "last_is_longest"),
        (lambda ls: statistics.mean(max(ls) / n for n in ls), "mean"),
        (lambda ls: [max(ls) / np.mean(ls)] * len(ls), "mean_tokens"),
        (lambda ls: [len(ls) * max(ls) / n for n in ls], "slot_steps"),
        (lambda ls: [max(ls) // n for n in ls], "floored"),
        (lambda ls: [round(max(ls) / n, 1) for n in ls], "rounded"),
        (lambda ls: [float(f"{max(ls) / n:.2f}") for n in ls], "rounded"),
        (lambda ls: [max(ls) / n for n in sorted(ls)], "sorted"),
    ],
    "static_steps": [
        (lambda ls, k: np.cumsum(ls)[-1], "one_by_one"),
        (lambda ls, k: np.max(ls), "one_group"),
        (full_groups_only, "last_group_lost"),
        (lambda ls, k: total_of_groups(sorted(ls), k), "sorted_first"),
        (continuous_total, "continuous"),
        (lambda ls, k: math.ceil(sum(ls) / k), "no_waste"),
        (lambda ls, k: sum(ls) / k, "no_waste_fraction"),
        (lambda ls, k: sum(k * max(ls[i : i + k]) for i in range(0, len(ls), k)), "slot_steps"),
        (lambda ls, k: sum(ls[i : i + k][-1] for i in range(0, len(ls), k)), "last_of_group"),
        (lambda ls, k: sum(ls[::k]), "first_of_group"),
        (a_queue_for_each_slot, "lanes"),
        (lambda ls, k: math.ceil(len(ls) / k) * max(ls), "longest_of_all"),
        (total_is_overwritten, "last_only"),
    ],
    "next_slot": [
        (lambda f: sorted(f)[0], "step"),
        (less_or_equal, "last_tie"),
        (lambda f: max(range(len(f)), key=lambda i: (f[i], -i)), "latest"),
        (lambda f: [i for i in range(len(f)) if f[i] == 0][0], "free_now"),
        (lambda f: next((i for i, free in enumerate(f) if free == 0), 0), "free_now_or_first"),
        (lambda f: 0, "first_slot"),
        (lambda f: np.argmin(f) + 1, "from_one"),
        (lambda f: np.flatnonzero(np.array(f) == min(f)), "all_ties"),
        (lambda f: np.argsort(f, kind="stable"), "order"),
    ],
    "static_finish": [
        (answers_when_each_is_done, "returned_early"),
        (forgets_the_clock, "own_group_only"),
        (answers_at_the_start, "start"),
        (lambda ls, k: [max(ls) for _ in ls], "one_group"),
        (lambda ls, k: ls, "no_groups"),
        (lambda ls, k: list(itertools.accumulate(ls)), "one_by_one"),
        (lambda ls, k: static_finish_with_numpy(ls[: len(ls) // k * k], k), "last_group_lost"),
        (one_answer_a_group, "one_per_group"),
        (pads_the_last_group, "padded"),
        (lambda ls, k: [max(ls) * (1 + i // k) for i in range(len(ls))], "longest_of_all"),
        (continuous_with_a_heap, "continuous"),
    ],
    "continuous_finish": [
        (lambda ls, k: np.array(ls), "no_waiting"),
        (static_finish_with_numpy, "static"),
        (no_groups_reopened, "static_early"),
        (appends_the_start, "start"),
        (dealt_in_turn, "round_robin"),
        (lambda ls, k: list(itertools.accumulate(ls)), "first_slot"),
        (sets_instead_of_adding, "slot_forgets"),
        (one_step_between, "a_step_late"),
        (lambda ls, k: [n - 1 for n in continuous_by_recursion(ls, k)], "one_off"),
        (lambda ls, k: sorted(continuous_by_recursion(ls, k)), "finish_order"),
        (shortest_job_first, "shortest_first"),
        (returns_the_slots, "slots_not_requests"),
        (continuous_total, "total"),
    ],
    "nearest_rank": [
        (lambda v, q: sorted(v)[int(len(v) * q)], "past_the_end"),
        (lambda v, q: v[-1] if q == 1 else v[int(q * len(v))], "unsorted"),
        (lambda v, q: sorted(v)[::-1][min(int(q * len(v)), len(v) - 1)], "descending"),
        (np.quantile, "interpolated"),
        (lambda v, q: np.percentile(v, 100 * q), "interpolated"),
        (lambda v, q: sorted(v)[int((len(v) - 1) * q)], "n_minus_1"),
        (lambda v, q: sorted(v)[max(0, math.ceil(len(v) * q) - 1)], "nearest_rank_ceil"),
        (lambda v, q: sorted(v)[min(len(v) - 1, int(np.round(q * len(v))))], "rounded_index"),
        (lambda v, q: sorted(v)[int(len(v) * q / 100)], "q_in_percent"),
        (lambda v, q: min(int(q * len(v)), len(v) - 1), "index"),
        (lambda v, q: metrics.percentile(list(set(v)), q), "distinct"),
        (lambda v, q: max(v) * q, "share_of_max"),
        (lambda v, q: sorted(v)[0], ""),
    ],
    "split_latency": [
        (lambda a, s, f, n: (s - a, f - s), "steps"),
        (lambda a, s, f, n: (s / n, (f - s) / n), "from_step_0"),
        (lambda a, s, f, n: ((f - s) / n, (s - a) / n), "swapped"),
        (lambda a, s, f, n: ((s - a) / n, n / n), "service_is_1"),
        (lambda a, s, f, n: np.array([s - a, f - a]) / n, "whole_latency"),
        (lambda a, s, f, n: ((s - a) / n, f / n), "finish_as_duration"),
        (lambda a, s, f, n: (f - a) / n, "total"),
        (lambda a, s, f, n: ((s - a) / (f - a), 1 - (s - a) / (f - a)), "shares"),
        (lambda a, s, f, n: ((s - a) / (f - s), (f - s) / (f - s)), "per_served_step"),
        (lambda a, s, f, n: ((s - a) // n, (f - s) // n), "floored"),
        (lambda a, s, f, n: (s - a / n, f - s / n), ""),
    ],
    "steady_utilisation": [
        (lambda s, d, k, u: sum(b - a for a, b in zip(s, d, strict=True) if a < u) / (k * u), "not_clipped"),
        (lambda s, d, k, u: sum(b - a for a, b in zip(s, d, strict=True)) / (k * u), "all_counted"),
        (lambda s, d, k, u: sum(b - a for a, b in zip(s, d, strict=True) if b <= u) / (k * u), "finished_only"),
        (lambda s, d, k, u: (np.minimum(d, u) - s).sum() / (k * u), "negative_runs"),
        (lambda s, d, k, u: (sum(d) - sum(s)) / k / max(d), "whole_run"),
        (lambda s, d, k, u: utilisation_on_a_grid(s, d, 1, u), "no_slots"),
        (lambda s, d, k, u: utilisation_on_a_grid(s, d, k, u) * u, "no_steps"),
        (lambda s, d, k, u: 1 - utilisation_on_a_grid(s, d, k, u), "idle"),
        (lambda s, d, k, u: 100 * utilisation_on_a_grid(s, d, k, u), "percent"),
        (lambda s, d, k, u: utilisation_on_a_grid(s, d, 1, u) * u, "slot_steps"),
    ],
    "expected_max": [
        (lambda ls, k: np.max(ls), "longest"),
        (lambda ls, k: np.mean(ls), "mean"),
        (lambda ls, k: k * np.mean(ls), "mean_times_draws"),
        (lambda ls, k: np.mean(ls) * np.log(k), "mean_log"),
        (lambda ls, k: np.mean(ls) * (1 / np.arange(1, k + 1)).sum(), "harmonic"),
        (lambda ls, k: np.mean([max(way) for way in itertools.permutations(ls, k)]), "without_replacement"),
        (lambda ls, k: np.mean([min(way) for way in itertools.product(ls, repeat=k)]), "shortest"),
        (lambda ls, k: np.mean([max(ls[i : i + k]) for i in range(0, len(ls), k)]), "these_groups"),
        (lambda ls, k: max(ls[:k]), "first_draws"),
        (lambda ls, k: expected_max_by_layers(set(ls), k), "distinct"),
        (counts_from_zero, "index_from_0"),
        (lambda ls, k: sum(sorted(ls)[i] * ((i + 1) / len(ls)) ** k for i in range(len(ls))), "at_most"),
        (lambda ls, k: sum(ls[i] * (((i + 1) / len(ls)) ** k - (i / len(ls)) ** k) for i in range(len(ls))),
         "unsorted"),
        (lambda ls, k: expected_max_by_layers(ls, k + 1), "one_draw_more"),
        (lambda ls, k: expected_max_by_layers(ls, k - 1), "one_draw_less"),
        (draws_at_random, "sampled"),
        (draws_rarely, "changes"),
    ],
    "predicted_static_utilisation": [
        (lambda ls, k: sum(ls) / (len(ls) * max(ls)), "longest_of_all"),
        (lambda ls, k: sum(ls) / (k * total_of_groups(ls, k)), "simulated"),
        (lambda ls, k: expected_max_by_layers(ls, k) / np.mean(ls), "inverted"),
        (lambda ls, k: 1 - np.mean(ls) / expected_max_by_layers(ls, k), "waste"),
        (lambda ls, k: np.mean(ls) / (k * expected_max_by_layers(ls, k)), "per_slot"),
        (lambda ls, k: sum(ls) / expected_max_by_layers(ls, k), "total"),
        (lambda ls, k: np.mean([np.mean(w) / max(w) for w in itertools.product(ls, repeat=k)]), "mean_of_ratios"),
        (lambda ls, k: sum(ls) / (k * continuous_total(ls, k)), "continuous"),
        (lambda ls, k: np.median(ls) / expected_max_by_layers(ls, k), "median"),
        (lambda ls, k: np.mean(ls) / np.mean([max(w) for w in itertools.combinations(ls, k)]), "without_replacement"),
        (lambda ls, k: round(np.mean(ls) / expected_max_by_layers(ls, k), 3), "rounded"),
        (lambda ls, k: np.mean(ls) / draws_at_random(ls, k), "sampled"),
        (lambda ls, k: 100 * np.mean(ls) / expected_max_by_layers(ls, k), "percent"),
    ],
    "arrival_rate": [
        (lambda load, ls, k: np.mean(ls) / k / load, "gap"),
        (lambda load, ls, k: load / np.mean(ls), "one_slot"),
        (lambda load, ls, k: k / np.mean(ls), "full_load"),
        (lambda load, ls, k: k * load, "tokens"),
        (lambda load, ls, k: load * k * np.mean(ls), "times_mean"),
        (lambda load, ls, k: load * k / np.sum(ls), "total"),
        (lambda load, ls, k: load * k / max(ls), "longest"),
        (lambda load, ls, k: load * k / np.median(ls), "median"),
        (lambda load, ls, k: load * k / expected_max_by_layers(ls, k), "static_capacity"),
        (lambda load, ls, k: load / 100 * k / np.mean(ls), "load_in_percent"),
    ],
    "coefficient_of_variation": [
        (lambda ls: np.std(ls, ddof=1) / np.mean(ls), "sample"),
        (np.std, "std"),
        (np.var, "variance"),
        (lambda ls: np.var(ls) / np.mean(ls), "variance_over_mean"),
        (lambda ls: np.var(ls) / np.mean(ls) ** 2, "squared"),
        (lambda ls: np.mean(ls) / np.std(ls), "inverted"),
        (lambda ls: statistics.mean(ls) / statistics.pstdev(ls), "inverted"),  # raises where numpy gives inf
        (lambda ls: np.abs(np.array(ls) - np.mean(ls)).mean() / np.mean(ls), "mean_distance"),
        (lambda ls: np.ptp(ls) / np.mean(ls), "range"),
        (lambda ls: np.std(ls) / np.median(ls), "over_median"),
        (lambda ls: max(ls) / np.mean(ls), "longest_over_mean"),
        (lambda ls: 100 * np.std(ls) / np.mean(ls), "percent"),
    ],
    "gain": [
        (lambda ls, k: continuous_total(ls, k) / total_of_groups(ls, k), "inverted"),
        (lambda ls, k: total_of_groups(ls, k) - continuous_total(ls, k), "difference"),
        (lambda ls, k: 1 - continuous_total(ls, k) / total_of_groups(ls, k), "saved_share"),
        (lambda ls, k: total_of_groups(ls, k) / continuous_total(ls, k) - 1, "excess"),
        (lambda ls, k: expected_max_by_layers(ls, k) / np.mean(ls), "law"),
        (static_over_ideal, "no_drain"),
        (lambda ls, k: total_of_groups(ls, k) / math.ceil(sum(ls) / k), "no_drain_whole"),
        (lambda ls, k: total_of_groups(ls, k) / a_queue_for_each_slot(ls, k), "round_robin"),
        (lambda ls, k: sum(ls) / continuous_total(ls, k), "against_one_by_one"),
        (lambda ls, k: max(ls) / continuous_total(ls, k), "one_group"),
        (lambda ls, k: np.mean(static_finish_with_numpy(ls, k)) / np.mean(continuous_by_recursion(ls, k)), "latency"),
        (lambda ls, k: static_finish_with_numpy(ls, k)[-1] / continuous_by_recursion(ls, k)[-1], "last_request"),
        (lambda ls, k: total_of_groups(ls, k) / earliest_slot(ls, k), "first_slot"),
        (lambda ls, k: total_of_groups(ls, k) // continuous_total(ls, k), "floored"),
        (lambda ls, k: 1, ""),
    ],
    "fit_lognormal": [
        (lambda ls: (np.mean(ls), np.std(ls)), "no_log"),
        (lambda ls: (np.log(np.mean(ls)), np.log(np.std(ls))), "log_last"),
        (lambda ls: (math.log(sum(ls) / len(ls)), np.std(np.log(ls))), "log_of_mean"),
        (lambda ls: (np.log10(ls).mean(), np.log10(ls).std()), "log10"),
        (lambda ls: (np.log2(ls).mean(), np.log2(ls).std()), "log2"),
        (lambda ls: (np.log1p(ls).mean(), np.log1p(ls).std()), "log1p"),
        (lambda ls: (np.log(ls).mean(), np.log(ls).std(ddof=1)), "sample"),
        (lambda ls: (np.log(ls).mean(), np.log(ls).var()), "variance"),
        (lambda ls: (np.log(ls).std(), np.log(ls).mean()), "swapped"),
        (lambda ls: (np.median(np.log(ls)), np.log(ls).std()), "median"),
        (moments_of_the_lengths, "moments"),
        (lambda ls: (statistics.geometric_mean(ls), np.log(ls).std()), "back_in_tokens"),
        (lambda ls: np.log(ls).mean(), "mu_only"),
    ],
}


# ---------------------------------------------------------------- the tables above


def test_the_tables_cover_every_exercise():
    assert set(RIGHT) == set(WRONG) == set(EXERCISES)
    assert min(len(answers) for answers in RIGHT.values()) >= 2
    assert min(len({key for _, key in answers if key}) for answers in WRONG.values()) >= 5


@pytest.mark.parametrize(("name", "answer"), rows(RIGHT))
def test_a_right_answer_written_differently_passes(name, answer):
    assert_passes(name, answer)


@pytest.mark.parametrize(("name", "answer", "key"), rows(WRONG))
def test_a_wrong_answer_gets_its_hint_and_then_the_stronger_one(name, answer, key):
    assert_hinted(name, answer, key)


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_is_not_attempted(name):
    assert_not_attempted(name)


# ---------------------------------------------------------------- the exercises as data


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_an_exercise_is_complete(exercise):
    assert_complete(exercise)


def test_each_notebook_has_its_exercises():
    assert [len(for_notebook(n)) for n in ("01", "02", "03")] == [5, 5, 6]


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_the_hand_worked_answers_are_the_oracles(exercise):
    for args, right in exercise.worked:
        assert same(read(right), read(exercise.oracle(*copied(args))), exercise.tolerance), args
    assert check(exercise.id, exercise.oracle).status == PASSED


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_the_cases_tell_every_mistake_from_the_oracle_and_from_each_other(exercise):
    cases = exercise.cases()
    made = {m.key: [outcome(m.wrong, copied(args)) for args, _ in cases] for m in exercise.mistakes if m.within < 1e-3}
    made["the oracle"] = [right for _, right in cases]
    for mistake, slip in SLIPS:
        slipped = [tuple(map(slip, right)) if isinstance(right, tuple) else slip(right) for _, right in cases]
        if not all(map(same, slipped, made["the oracle"])):  # cutting off the fraction of a whole number does nothing
            made[mistake.key, slip] = slipped
    alike = [pair for pair in itertools.combinations(made, 2) if all(map(same, made[pair[0]], made[pair[1]]))]
    assert alike == []


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_each_mistake_is_recognised_as_itself(exercise):
    cases = exercise.cases()
    for mistake in exercise.mistakes:
        if mistake.within < 1e-3:
            got = [outcome(mistake.wrong, copied(args)) for args, _ in cases]
        else:  # nearly right on every case
            got = [right * (1 + mistake.within / 2) for _, right in cases]
        assert recognise(exercise, cases, got).key == mistake.key


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_explanations_work_for_every_case(exercise):
    for args, _ in exercise.cases():
        text = exercise.explain(*copied(args))
        assert "\n" not in text
        assert text.endswith((".", "longest", "steps", "spread.")), text


@pytest.mark.parametrize("exercise", EXERCISES.values(), ids=list(EXERCISES))
def test_an_answer_cut_to_float32_is_told_so(exercise):
    def cut(*args):
        right = exercise.oracle(*args)
        return np.float32(right) if np.ndim(right) == 0 else np.asarray(right, dtype=np.float32)

    exact = all(same(outcome(cut, copied(args)), right, exercise.tolerance) for args, right in exercise.cases())
    result = check(exercise.id, cut)
    assert (result.status, result.mistake) == ((PASSED, "") if exact else (NOT_YET, "single"))


ONE_OF_MANY = re.compile(r"(?<![\d.,])(?<!/ )1 (?!is\b|has\b|as\b|was\b|takes\b)[a-z-]+s\b")


@pytest.mark.parametrize("exercise", checks.EXERCISES.values(), ids=list(checks.EXERCISES))
def test_no_explanation_counts_one_in_the_plural(exercise):
    said = [exercise.explain(*copied(args)) for args, _ in exercise.cases()]
    assert [text for text in said if ONE_OF_MANY.search(text)] == []


def test_cases_are_small_and_the_same_every_time():
    for exercise in EXERCISES.values():
        assert exercise.cases() == exercise.cases()
        began = time.process_time()  # its own work: what else runs on the machine doesn't count
        check(exercise.id, exercise.oracle)
        assert time.process_time() - began < 2


# ---------------------------------------------------------------- what a message says


def test_the_failing_case_shown_is_the_smallest():
    message = check("slot_steps_wasted", lambda ls: 0 if len(ls) == 3 else len(ls) * max(ls) - sum(ls)).message
    assert message.startswith("Not yet: slot_steps_wasted([9, 2, 2]) should give 14, but gave 0.")


@pytest.mark.parametrize(("name", "answer", "says"), [
    ("static_steps", lambda ls, k: 1 / 0, "should give 4, but raised ZeroDivisionError (division by zero). Call it"),
    ("static_steps", lambda ls, k: ls[k * 9], "but raised IndexError (list index out of range)."),
    ("static_steps", lambda ls, k: "many", "but gave a text where numbers belong."),
    ("static_steps", lambda ls, k: True, "but gave True."),
    ("static_steps", lambda ls, k: {"steps": 8}, "but gave a dict"),
    ("static_steps", lambda ls, k: {1, 2}, "but gave a set"),
    ("static_steps", lambda ls, k: [8], "but gave [8] (wanted: one number)."),
    ("static_steps", lambda ls, k: 3j, "but gave something of type complex where numbers belong."),
    ("static_steps", lambda ls, k: object, "but gave something of type type where numbers belong."),
    ("static_steps", lambda ls, k: float("nan"), "but gave nan (nan and inf come from"),
    ("static_steps", lambda ls, k: 10**400, "but gave inf (nan and inf come from"),
    ("static_steps", lambda ls, k: sys.exit(), "but called exit()."),
    ("static_steps", lambda ls, k: None if len(ls) > 2 else 4, "but gave nothing (None): every path through it must"),
    ("static_finish", lambda ls, k: 4, "(wanted: a list with one number for each request)."),
    ("static_finish", lambda ls, k: [4], "but gave [4] (wanted: 2 numbers, not 1)."),
    ("static_finish", lambda ls, k: [], "but gave [] (wanted: 2 numbers, not 0)."),
    ("static_finish", lambda ls, k: [[n] for n in ls], "but gave a list that holds something of type list"),
    ("static_finish", lambda ls, k: [None] * len(ls), "but gave a list that holds None where a number belongs."),
    ("static_finish", lambda ls, k: ["4"] * len(ls), "but gave a list that holds a text where a number belongs."),
    ("static_finish", lambda ls, k: np.ones((1, len(ls))), "but gave a list that holds something of type ndarray"),
    ("static_finish", lambda ls, k: itertools.count(), "(wanted: 2 numbers, not 1000)."),
    ("static_finish", lambda ls, k: (1 / 0 for _ in ls), "but raised ZeroDivisionError"),
    ("static_finish", lambda ls, k: np.array(ls) / 0, "but gave [inf, inf] (nan and inf come from"),
    ("static_finish", lambda ls, k: static_finish_with_numpy(ls, k).mean(axis=0), "but gave 4 (wanted: a list with"),
    ("split_latency", lambda a, s, f, n: [0, 1, 2], "but gave [0, 1, 2] (wanted: 2 numbers, not 3)."),
])
def test_a_failing_case_is_put_into_one_sentence(name, answer, says):
    result = check(name, answer)
    assert result.status == NOT_YET
    assert result.message.startswith(f"Not yet: {name}(")
    assert says in result.message
    assert "\n" not in result.message
    assert len(result.message) < 500


def test_what_is_not_a_function_is_said_so():
    result = check("next_slot", [5, 3].index(3))
    assert result.mistake == "no_function"
    assert result.message.startswith("Not yet: next_slot should be a function, but its type is int. Hand over")


def test_an_unrecognised_answer_gets_a_nudge_and_then_the_case_worked_out():
    first, again = (check("static_steps", lambda ls, k: 1, attempt=n).message for n in (1, 2))
    assert first == ("Not yet: static_steps([4, 4], 2) should give 4, but gave 1. "
                     "Work this case out on paper, then compare step by step.")
    assert again == ("Not yet: static_steps([4, 4], 2) should give 4, but gave 1. "
                     "The groups are [4, 4]; each takes as many steps as its longest.")


def test_other_parameters_are_said_so():
    result = check("static_steps", lambda lengths: 1)
    assert result.mistake == "arguments"
    assert result.message == "Not yet: static_steps should be called as static_steps(lengths, slots). " + \
        hints("static_steps")["arguments"].hint


def test_a_call_to_something_unwritten_names_it():
    def expected_max_stub(lengths, draws):
        raise NotImplementedError

    result = check("predicted_static_utilisation", lambda ls, k: sum(ls) / len(ls) / expected_max_stub(ls, k))
    assert result.status == NOT_YET
    assert "but called expected_max_stub, which isn't written yet." in result.message


def test_numbers_that_look_alike_are_shown_in_full():
    message = check("arrival_rate", lambda load, ls, k: load * k * len(ls) / sum(ls) * (1 + 1e-7)).message
    assert re.search(r"should give \S+, but gave \S+\.", message)
    right, got = re.search(r"give (\S+), but gave (\S+)\. ", message).groups()
    assert right != got


def test_tolerance():
    def shifted(by):
        return lambda load, ls, k: load * k * len(ls) / sum(ls) * (1 + by)

    assert check("arrival_rate", shifted(5e-10)).status == PASSED
    assert check("arrival_rate", shifted(5e-9)).status == NOT_YET
    assert check("expected_max", lambda ls, k: metrics.expected_max(ls, k) * (1 + 5e-7)).status == PASSED
    assert check("expected_max", lambda ls, k: metrics.expected_max(ls, k) * (1 + 5e-6)).status == NOT_YET


def test_an_answer_that_changes_is_said_so():
    calls = []
    message = check("slot_steps_wasted", lambda ls: calls.append(1) or len(calls)).message
    assert message.endswith(hints("slot_steps_wasted")["changes"].hint)


def test_messages_are_the_same_in_another_process():
    code = ("from labs.checks import EXERCISES, check\n"
            "for name in EXERCISES: print(check(name, lambda *args: 1).message)")
    runs = {subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
                           env={"PYTHONHASHSEED": seed, "PATH": ""}).stdout for seed in ("0", "1")}
    assert len(runs) == 1
    assert len(runs.pop().splitlines()) == len(checks.EXERCISES)


def test_an_unknown_exercise_is_the_callers_error():
    with pytest.raises(ValueError, match="no exercise 'next_slots': did you mean 'next_slot'"):
        check("next_slots", None)
    with pytest.raises(ValueError, match="no exercise None"):
        check(None, None)
    with pytest.raises(ValueError, match="did you mean 'next_slot'"):
        check("Next slot", None)
    with pytest.raises(ValueError, match="'qqq': choose from .*, gain, "):
        check("qqq", None)


def test_an_answer_that_gives_pythons_names_another_meaning_spoils_only_itself():
    before = dict(vars(builtins))

    def spoil():
        builtins.len = builtins.type = builtins.str = builtins.isinstance = builtins.next = None
        builtins.surplus = 1

    def one_that_fails(lengths):
        spoil()
        return {}["no such key"]

    def one_step_at_a_time(lengths):
        spoil()
        yield 1.0

    def right(lengths):
        wasted = len(lengths) * max(lengths) - sum(lengths)
        spoil()
        return wasted

    messages, afters = [], []
    for answer in (one_that_fails, one_step_at_a_time, right):
        try:
            messages.append(check("slot_steps_wasted", answer).message)
            afters.append(dict(vars(builtins)))
        finally:
            vars(builtins).update(before)
            vars(builtins).pop("surplus", None)
    assert afters == [before] * 3
    assert "KeyError" in messages[0]
    assert messages[2].startswith("Passed")


# ---------------------------------------------------------------- how it is shown


def luminance(colour):
    """Relative luminance of a "#rrggbb" colour."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize(("answer", "symbol", "word"), [
    (None, "○", "Not attempted yet:"), (min, "✗", "Not yet:"), (lambda f: f.index(min(f)), "✓", "Passed:")])
def test_the_box_says_it_in_a_symbol_a_word_and_readable_colours(answer, symbol, word):
    result = check("next_slot", answer)
    shown = result._repr_html_()
    assert f"<b>{symbol} {word}</b>" in shown
    text, ground = (re.search(rf"[;\"]{name}:(#\w+)", shown)[1] for name in ("color", "background"))
    assert (luminance(ground) + 0.05) / (luminance(text) + 0.05) > 7
    assert html.unescape(re.sub(r"<[^>]+>", "", shown)) == f"{symbol} {result.message}"
    assert repr(result) == result.message


def test_what_the_learner_wrote_is_escaped():
    def hostile(free_at):
        raise ValueError("<script>alert('x')</script>")

    result = check("next_slot", hostile)
    assert "<script>" in result.message
    assert "<script>" not in result._repr_html_()


# ---------------------------------------------------------------- code that misbehaves


def _no_return(lengths):
    wasted = len(lengths) * max(lengths) - sum(lengths)  # noqa: F841


def _begun(lengths):
    wasted = len(lengths)  # noqa: F841
    raise NotImplementedError


def _documented(lengths):
    """How many slot-steps are wasted."""


@pytest.mark.parametrize(("answer", "said"), [
    (_no_return, "Not yet: slot_steps_wasted([10]) gave nothing. It works something out and returns nothing"),
    (_begun, "Not attempted yet: "), (_documented, "Not attempted yet: "), (lambda **named: None, "Not yet: "),
    (lambda lengths: None, "Not attempted yet: "),
])
def test_a_forgotten_return_is_no_stub(answer, said: str) -> None:
    message = check("slot_steps_wasted", answer).message
    assert re.sub(r"\(\[.*?\]\)", "([10])", message).startswith(said), message


def test_printing_a_right_answer_passes_and_prints_nothing(capsys):
    assert check("next_slot", lambda f: print("trying", f) or f.index(min(f))).status == PASSED
    assert capsys.readouterr() == ("", "")


def test_warnings_of_the_learners_code_stay_inside():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check("coefficient_of_variation", lambda ls: warnings.warn("careful", stacklevel=1) or np.mean(ls) / np.std(ls))
    assert seen == []


def test_changing_the_input_does_not_spoil_the_check():
    def static_steps(lengths, slots):
        total = 0
        while lengths:
            total += max(lengths[:slots])
            del lengths[:slots]
        return total

    assert check("static_steps", static_steps).status == PASSED
    assert check("static_steps", static_steps).status == PASSED
    assert EXERCISES["static_steps"].worked[0][0] == ([4, 4], 2)


def helped(lengths):
    return sum(
        lengths) / helper(lengths)


def helper(lengths):

    return lengths["one"]


def by_generator(lengths):
    return (length / 0 for length in lengths)


def by_lambda(lengths):
    return (lambda: lengths.none)()


@pytest.mark.parametrize(("answer", "says"), [
    (helped, "in line 3 of helper."), (by_lambda, "'none')."), (lambda lengths: 1 / 0, "(division by zero)."),
    (by_generator, "(division by zero)."), (lambda lengths: sorted(lengths, key=int.bit_count, nokey=1), "argument"),
])
def test_the_line_that_raised_is_named_where_it_is_in_a_function_of_the_learners(answer, says):
    result = check("slot_steps_wasted", answer)
    assert says in result.message
    assert "line" not in result.message or answer is helped
    assert "Call it with this input" in result.message  # and not what has nothing to do with it, on the second try too
    assert "Call it with this input" in check("slot_steps_wasted", answer, attempt=2).message


class Unspeakable(Exception):
    """An exception that can't even say what it is."""

    def __str__(self):
        raise RuntimeError


class NotEvenAnException(BaseException):
    """What `except Exception` doesn't catch."""


def deep(lengths):
    return deep(lengths)


@pytest.mark.parametrize(("error", "says"), [
    (Unspeakable, "raised Unspeakable"), (NotEvenAnException, "raised NotEvenAnException"),
    (MemoryError, "raised MemoryError"), (KeyError("slot"), "raised KeyError ('slot')"),
    (GeneratorExit, "raised GeneratorExit"), (ValueError("one\ntwo"), "raised ValueError (one)"),
    (ValueError("x" * 5000), "raised ValueError (" + "x" * 100 + ")"),
])
def test_any_exception_becomes_a_sentence(error, says):
    def raising(lengths):
        raise error

    assert f"{says} in line 2 of raising." in check("slot_steps_wasted", raising).message


def test_endless_recursion_becomes_a_sentence():
    assert "raised RecursionError" in check("slot_steps_wasted", deep).message


def test_a_function_that_rests_on_another_is_told_to_look_there():
    def expected_max(lengths, draws):
        return max(lengths)

    def law(lengths, slots):
        return sum(lengths) / len(lengths) / (expected_max(lengths, slots) + 1)

    namespace = {"expected_max": expected_max}
    exec("def law(lengths, slots):\n"
         "    return sum(lengths) / len(lengths) / (expected_max(lengths, slots) + 1)", namespace)
    said = check("predicted_static_utilisation", namespace["law"]).message
    assert "(It calls expected_max: is that right?) Work this case out" in said
    assert "It calls" not in check("predicted_static_utilisation", law).message, "a local one is its own affair"
    assert "It calls" not in check("predicted_static_utilisation", lambda lengths, slots: -7.25).message


def test_an_interrupt_passes_through():
    def interrupted(lengths):
        raise KeyboardInterrupt

    for name in ("slot_steps_wasted", "diagnosis"):
        progress = Progress()
        with pytest.raises(KeyboardInterrupt) as raised:
            check(name, lambda *args: interrupted(args), progress=progress)
        says, = raised.value._render_traceback_()
        assert says.startswith(f"Interrupted: {name} was not marked") and raised.value.__suppress_context__
        assert progress.attempts(name) == 0


needs_timer = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer on this system")


def loops(lengths):
    while True:
        pass


def loops_and_swallows(lengths):
    while True:
        try:
            raise ValueError
        except Exception:
            continue


def sleeps(lengths):
    time.sleep(60)


def counts_for_ever(lengths):
    return sum(0 for _ in itertools.count())


@needs_timer
@pytest.mark.parametrize("answer", [loops, loops_and_swallows, sleeps, counts_for_ever])
def test_a_loop_without_end_is_stopped(answer):
    began = time.monotonic()
    result = check("slot_steps_wasted", answer, limit_s=0.2)
    assert time.monotonic() - began < 5
    assert result.mistake == "slow"
    assert result.message == "Not yet: slot_steps_wasted([5, 5]) took over 0.2 s. Look for a loop that never ends."


@needs_timer
def test_a_loop_that_ends_only_sometimes_names_its_input():
    message = check("next_slot", lambda f: f.index(min(f)) if len(f) > 1 else loops(f), limit_s=0.3).message
    assert message.startswith("Not yet: next_slot([9]) took over 0.3 s.")


@needs_timer
def test_the_timer_is_put_back():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.4)
        check("slot_steps_wasted", loops, limit_s=0.1)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.4
        time.sleep(0.6)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@needs_timer
def test_no_timer_is_left_behind():
    before = signal.getsignal(signal.SIGALRM)
    check("slot_steps_wasted", loops, limit_s=0.1)
    check("slot_steps_wasted", lambda ls: 0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == before


def test_it_marks_outside_the_main_thread_and_where_there_is_no_timer(monkeypatch):
    found = []
    thread = threading.Thread(target=lambda: found.append(check("next_slot", lambda f: f.index(min(f))).status))
    thread.start()
    thread.join()
    monkeypatch.delattr(signal, "setitimer", raising=False)
    found.append(check("next_slot", lambda f: f.index(min(f))).status)
    assert found == [PASSED, PASSED]


@needs_timer
def test_the_limit_leaves_what_is_fast_alone():
    with time_limit(5):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
    | st.complex_numbers() | st.decimals() | st.fractions() | st.just(...) | st.just(NotImplemented) | st.just(int),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.lists(inner, max_size=3).map(iter)
    | st.dictionaries(st.text(max_size=2), inner, max_size=2) | st.lists(st.floats(), max_size=3).map(np.array),
    max_leaves=5)


@given(name=st.sampled_from(sorted(EXERCISES)), answer=ANYTHING)
def test_whatever_comes_back_there_is_one_line_about_it(name, answer):
    result = check(name, lambda *args: answer)
    assert result.status in (NOT_YET, NOT_ATTEMPTED)
    assert re.match(r"(Not yet|Not attempted yet): \S", result.message)
    assert len(result.message) < 700
    assert "\n" not in result.message
    result._repr_html_()


@given(st.one_of(st.floats(), st.integers(), st.lists(st.floats(), max_size=30).map(tuple)))
def test_reading_and_showing_numbers(value):
    got = read(value)
    assert not failed(got) or not all(map(math.isfinite, got if isinstance(got, tuple) else (got,)))
    assert "\n" not in show(got)


# ---------------------------------------------------------------- with progress


def test_progress_counts_attempts_by_mistake_and_keeps_a_pass():
    progress = Progress(None)
    say = functools.partial(check, "next_slot", progress=progress)
    own = hints("next_slot")
    assert say(None).status == NOT_ATTEMPTED
    assert progress.attempts("next_slot") == 0
    assert say(min).message.endswith(own["step"].hint)
    assert say(less_or_equal).message.endswith(own["last_tie"].hint)  # a new mistake gets its first hint
    assert say(min).message.endswith(own["step"].stronger)
    assert say(less_or_equal).message.endswith(own["last_tie"].stronger)
    assert not progress.passed("next_slot")
    assert say(lambda f: f.index(min(f))).status == PASSED
    assert progress.passed("next_slot")
    assert progress.attempts("next_slot") == 5
    say(min)
    assert progress.passed("next_slot")


def test_what_an_answer_prints_is_named_where_it_is_wrong():
    def loud(lengths):
        print("waste:", len(lengths))
        return 3

    said = check("slot_steps_wasted", loud).message
    assert "(Its prints are not shown here: the first is 'waste: " in said
