"""The exercises of notebook 02: both schedulers, percentiles, latency in two parts, steady-state utilisation."""
from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from labs.checks.eight_requests import EIGHT, groups
from labs.checks.marking import Exercise, Mistake
from labs.slots import continuous_batching, static_batching
from labs.words import many


def _backlog(rng: random.Random) -> tuple:
    """4 to 8 lengths and 2 or 3 slots, so that somebody has to wait."""
    slots = rng.randint(2, 3)
    return [rng.randint(1, 20) for _ in range(rng.randint(slots + 1, 8))], slots


def _in_order(lengths: list, order: list, finish: list) -> list:
    """Put `finish`, given for the requests in `order`, back into the requests' own order."""
    return [when for _, when in sorted(zip(order, finish, strict=True))]


# ---- static_finish --------------------------------------------------------------------------------------------------

def _static_finish(lengths: list, slots: int) -> list[int]:
    """Step by step: a group's members make tokens until none has any left; then all of them are returned."""
    finish: list[int] = []
    step = 0
    for group in groups(lengths, slots):
        left = list(group)
        while any(tokens > 0 for tokens in left):
            left = [tokens - 1 for tokens in left]
            step += 1
        finish += [step] * len(group)
    return finish


def _begins(lengths: list, slots: int) -> list[int]:
    return static_batching(lengths, slots).start.tolist()


def _sorted_groups(lengths: list, slots: int) -> list:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return _in_order(lengths, order, _static_finish([lengths[i] for i in order], slots))


STATIC_FINISH = Exercise(
    id="static_finish", notebook="02", title="Write the static scheduler", minutes=7, difficulty=2,
    signature="static_finish(lengths, slots)", returns="a list with one number for each request",
    task="return the step at which static batching returns each request's answer; all wait from step 0, groups of "
         "`slots` run in order.",
    shows="a request waits twice: for the groups before its own, then for the longest of its own.",
    oracle=_static_finish,
    explain=lambda ls, k: f"The groups are {', then '.join(map(str, groups(ls, k)))}: they begin at steps "
                          f"{sorted(set(_begins(ls, k)))}, and all of a group comes back when its longest is done.",
    worked=((([4, 4], 2), [4, 4]), (([3, 1, 2], 2), [3, 3, 5]), (([1, 2, 3], 1), [1, 3, 6]),
            (([9, 1, 1, 9, 1, 1], 3), [9, 9, 9, 18, 18, 18]), ((EIGHT, 4), [31] * 4 + [981] * 4),
            ((EIGHT, 8), [950] * 8)), draw=_backlog,
    mistakes=(
        Mistake("returned_early", lambda ls, k: static_batching(ls, k).done,
                "That is each request's own last token: a static batch returns all its answers together.",
                "Give every member of a group the same finish: where the group began + max(group)."),
        Mistake("own_group_only", lambda ls, k: [max(g) for g in groups(ls, k) for _ in g],
                "A group can't begin before those ahead of it are done: add the steps they took.",
                "Keep a running total: step += max(group), and give each member that step."),
        Mistake("start", _begins, "That is where each group begins: its answers come back when it ends.",
                "Add max(group) to the running total before you hand it to the members."),
        Mistake("one_group", lambda ls, k: [max(ls)] * len(ls),
                "That is one group of everything: there are only `slots` slots.",
                "Loop over range(0, len(lengths), slots) and take lengths[i:i + slots]."),
        Mistake("no_groups", lambda ls, k: ls, "That is every request alone on the machine, with no batch and no wait.",
                "Cut lengths into groups of `slots`; each group takes max(group) steps."),
        Mistake("one_by_one", lambda ls, k: np.cumsum(ls),
                "That runs one request after another: the members of a group run at the same time.",
                "Add max(group) once for each group, not every length."),
        Mistake("last_group_lost", lambda ls, k: static_batching(ls, k).finish[:len(ls) // k * k],
                "The last group is missing when it isn't full: it runs all the same.",
                "range(0, len(lengths), slots) starts every group, the last one too."),
        Mistake("one_per_group", lambda ls, k: np.cumsum([max(g) for g in groups(ls, k)]),
                "That is one number for each group: every member needs one.",
                "Append the group's finish once for each member: finish += [step] * len(group)."),
        Mistake("padded", lambda ls, k: [f for f in np.cumsum([max(g) for g in groups(ls, k)]) for _ in range(k)],
                "The last group may be smaller than `slots`: it can't return answers that nobody asked for.",
                "Repeat a group's finish len(group) times, not `slots` times."),
        Mistake("longest_of_all", lambda ls, k: [(i // k + 1) * max(ls) for i in range(len(ls))],
                "A group waits for its own longest, not for the longest of all requests.",
                "Take max() of each group on its own."),
        Mistake("continuous", lambda ls, k: continuous_batching(ls, k).finish,
                "That is continuous batching: here nobody joins before the whole group is done.",
                "Slots don't matter inside a group: all its members begin together and end together."),
        Mistake("sorted_first", _sorted_groups,
                "Those groups are sorted by length: requests are taken in the order in which they came.",
                "Leave out the sort: a scheduler doesn't know lengths before they are generated."),
    ))


# ---- continuous_finish ----------------------------------------------------------------------------------------------

def _continuous_finish(lengths: list, slots: int) -> list[int]:
    """Step by step: fill free slots from the queue, make a token in each, let go of those that are done."""
    left: dict[int, int] = {}  # request -> tokens it still has to make
    finish = [0] * len(lengths)
    step, queue = 0, list(range(len(lengths)))
    while queue or left:
        while queue and len(left) < slots:
            request = queue.pop(0)
            left[request] = lengths[request]
        step += 1
        left = {request: tokens - 1 for request, tokens in left.items()}
        for request in [request for request, tokens in left.items() if tokens == 0]:
            finish[request] = step
            del left[request]
    return finish


def _take_slot(lengths: list, slots: int, choose: Callable, pause: int = 0,
               keeps: Callable = operator.add) -> list[int]:
    """Finish of each request in slot `choose(free_at, i)`, which is then free at `keeps(start, length)` + `pause`."""
    free_at, finish = [0] * slots, []
    for i, length in enumerate(lengths):
        slot = choose(free_at, i)
        finish.append(free_at[slot] + length)
        free_at[slot] = keeps(free_at[slot], length) + pause
    return finish


def _earliest(free_at: list, i: int) -> int:
    return free_at.index(min(free_at))


def _shortest_first(lengths: list, slots: int) -> list:
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return _in_order(lengths, order, _continuous_finish([lengths[i] for i in order], slots))


def _free_slots(lengths: list, slots: int) -> list:
    """When each slot is free at the end, instead of when each request finished."""
    schedule = continuous_batching(lengths, slots)
    return [int(schedule.finish[schedule.slot == slot].max(initial=0)) for slot in range(slots)]


CONTINUOUS_FINISH = Exercise(
    id="continuous_finish", notebook="02", title="Write the continuous scheduler", minutes=8, difficulty=2,
    signature="continuous_finish(lengths, slots)", returns="a list with one number for each request",
    task="return the step at which each request finishes when each, in order, takes the slot that is free earliest; "
         "all wait from step 0.",
    shows="a slot that frees is taken at once: the same work, no faster per token, and far fewer steps.",
    oracle=_continuous_finish,
    explain=lambda ls, k: f"Requests 0 to {min(k, len(ls)) - 1} begin at step 0, and the first slot is free at step "
                          f"{min(ls[:k])}; the requests begin at steps {continuous_batching(ls, k).start.tolist()}.",
    worked=((([4, 4], 2), [4, 4]), (([3, 1, 2], 2), [3, 1, 3]), (([1, 2, 3], 1), [1, 3, 6]),
            (([5, 1, 1, 1, 4], 2), [5, 1, 2, 3, 7]), ((EIGHT, 4), [12, 15, 20, 31, 56, 75, 820, 981]),
            ((EIGHT, 8), EIGHT)), draw=_backlog,
    mistakes=(
        Mistake("no_waiting", lambda ls, k: ls, "Nobody waits here, but there are only `slots` slots: later requests "
                                                "begin when one is free.",
                "A request begins when its slot is free: finish = free_at[slot] + length."),
        Mistake("static", lambda ls, k: static_batching(ls, k).finish,
                "That is static batching: a request need not wait for the rest of a group.",
                "Keep free_at, one number for each slot, and let each request take the smallest."),
        Mistake("static_early", lambda ls, k: static_batching(ls, k).done,
                "Answers come back early, but the next group still waits for the whole one before it.",
                "Keep free_at, one number for each slot, and let each request take the smallest."),
        Mistake("start", lambda ls, k: continuous_batching(ls, k).start,
                "That is when each request begins: it finishes its own length later.",
                "Append free_at[slot] after you have added the length, not before."),
        Mistake("round_robin", lambda ls, k: _take_slot(ls, k, lambda free_at, i: i % k),
                "That deals requests to slots in turn: the earliest-free slot may be another one.",
                "slot = free_at.index(min(free_at)), for every request."),
        Mistake("first_slot", lambda ls, k: np.cumsum(ls),
                "All requests go through one slot, one after another.", "Choose the slot anew for every request."),
        Mistake("slot_forgets", lambda ls, k: _take_slot(ls, k, _earliest, keeps=lambda start, length: length),
                "A slot's time starts again with each request: it has to go on from where it was.",
                "Write free_at[slot] = start + length, not free_at[slot] = length."),
        Mistake("a_step_late", lambda ls, k: _take_slot(ls, k, _earliest, pause=1),
                "A step is lost between two requests: a slot free at step s can be used in step s.",
                "finish = free_at[slot] + length, with nothing added."),
        Mistake("one_off", lambda ls, k: [f - 1 for f in _continuous_finish(ls, k)],
                "One too low: a request of 3 tokens that begins at step 0 is done at step 3.",
                "Finish is the number of steps that have gone by: start + length."),
        Mistake("finish_order", lambda ls, k: sorted(_continuous_finish(ls, k)),
                "The right numbers, in the order of finishing: keep the order of the requests.",
                "Put each finish at its request's own index, or append in the order of lengths."),
        Mistake("shortest_first", _shortest_first,
                "That serves the shortest first: requests are taken in the order in which they came.",
                "Leave out the sort: a scheduler doesn't know lengths before they are generated."),
        Mistake("slots_not_requests", _free_slots,
                "That is when each slot is free at the end: return one number for each request.",
                "Append free_at[slot] to a second list inside the loop, and return that list."),
        Mistake("total", lambda ls, k: max(_continuous_finish(ls, k)),
                "That is when everything is done: return one number for each request.",
                "Return the list, not its max()."),
    ))


# ---- nearest_rank ------------------------------------------------------------------------------------------------

def _nearest_rank(values: list, q: float) -> float:
    """Take the smallest away until int(q n) are gone; what is then the smallest is the answer."""
    left = list(values)
    for _ in range(min(int(q * len(values)), len(values) - 1)):
        left.remove(min(left))
    return min(left)


def _values(rng: random.Random) -> tuple:
    values = [rng.randint(1, 6) + rng.choice((0, 0.5)) for _ in range(rng.randint(2, 8))]
    return values, rng.choice((0, 0.25, 0.5, 0.9, 1))


PAGE_PERCENTILE = Exercise(
    id="nearest_rank", notebook="02", title="Which value is p99?", minutes=3, difficulty=1,
    signature="nearest_rank(values, q)", returns="one number",
    task="return sorted(values)[int(q * n)] for n values, and the largest at q = 1; q runs from 0 to 1.",
    shows="a percentile needs its method beside it: this one is always a value that occurred, and needs many of them.",
    oracle=_nearest_rank,
    explain=lambda v, q: f"Sorted: {sorted(v)}; int({q} x {len(v)}) = {int(q * len(v))}, and the last index is "
                         f"{len(v) - 1}.",
    worked=((([3, 1, 2], 0.5), 2), (([3, 1, 2], 0), 1), (([3, 1, 2], 1), 3), (([1, 4, 1, 1], 0.5), 1), (([7], 0.99), 7),
            (([10, 20, 30, 40], 0.9), 40), ((list(range(100)), 1), 99),
            (([950, 12, 15, 20, 31, 44, 60, 800], 0.5), 44)), draw=_values,
    mistakes=(
        Mistake("past_the_end", lambda v, q: sorted(v)[int(q * len(v))],
                "At q = 1 the index is n, one past the end: take the last value there.",
                "Use min(int(q * n), n - 1) as the index."),
        Mistake("unsorted", lambda v, q: v[min(int(q * len(v)), len(v) - 1)],
                "The values are not in order: sort them first.", "Index sorted(values), not values."),
        Mistake("descending", lambda v, q: sorted(v, reverse=True)[min(int(q * len(v)), len(v) - 1)],
                "Sorted from the largest down: q = 0 should give the smallest.", "Leave out reverse=True."),
        Mistake("interpolated", lambda v, q: float(np.quantile(v, q)),
                "That is numpy's default, which interpolates between two values: another method, another number.",
                "Use sorted(values) and an index: none of the methods that numpy offers is this one."),
        Mistake("n_minus_1", lambda v, q: sorted(v)[int(q * (len(v) - 1))],
                "The index is int(q * n), and yours is int(q * (n - 1)): a little too low.",
                "Multiply q by n, then limit the index to n - 1."),
        Mistake("nearest_rank_ceil", lambda v, q: sorted(v)[max(math.ceil(q * len(v)) - 1, 0)],
                "That is another definition of the nearest rank, ceil(q n) - 1: where q n is whole it is one lower.",
                "Use int(q * n), without the - 1."),
        Mistake("rounded_index", lambda v, q: sorted(v)[min(round(q * len(v)), len(v) - 1)],
                "The index is cut off, not rounded.", "Use int(), not round()."),
        Mistake("q_in_percent", lambda v, q: sorted(v)[min(int(q / 100 * len(v)), len(v) - 1)],
                "q is a share here: the 99th percentile is q = 0.99.", "Leave out the division by 100."),
        Mistake("index", lambda v, q: min(int(q * len(v)), len(v) - 1),
                "That is the index: which value stands there?", "Return sorted(values)[index]."),
        Mistake("distinct", lambda v, q: sorted(set(v))[min(int(q * len(set(v))), len(set(v)) - 1)],
                "A value that occurs twice counts twice.", "Use sorted(values) without set()."),
        Mistake("share_of_max", lambda v, q: q * max(v), "That is a share of the largest: a percentile counts values.",
                "Sort the values and take the one at index int(q * n)."),
    ))


# ---- split_latency --------------------------------------------------------------------------------------------------

def _split_latency(arrival: float, start: float, finish: float, length: int) -> tuple[Fraction, Fraction]:
    """Waiting for a slot, then holding it until the answer is returned."""
    return Fraction(start - arrival) / length, Fraction(finish - start) / length


def _times(rng: random.Random) -> tuple:
    """Arrival, start, finish and length of one request that waits for a slot, and may hold it beyond its own length."""
    arrival, length = rng.randint(1, 9), rng.randint(2, 9)
    start = arrival + rng.randint(1, 30)
    return arrival, start, start + length + rng.choice((0, rng.randint(1, 30))), length


SPLIT_LATENCY = Exercise(
    id="split_latency", notebook="02", title="Queueing and service", minutes=5, difficulty=2,
    signature="split_latency(arrival, start, finish, length)", returns="two numbers, queueing and service",
    task="return (queueing, service) of one request, each in steps per output token: from arrival to start, and from "
         "start until its answer comes back.",
    shows="the two parts add up to normalised latency, and have different cures: capacity for one, the scheduler for "
          "the other.",
    oracle=_split_latency,
    explain=lambda a, s, f, n: f"It waits for {s} - {a} = {many(s - a, 'step')}, and is served for {f} - {s} = "
                               f"{f - s}; each is divided by its {many(n, 'token')}.",
    worked=(((0, 0, 5, 5), (0, 1)), ((0, 10, 15, 5), (2, 1)), ((3, 13, 53, 10), (1, 4)),
            ((2, 2, 952, 12), (0, 950 / 12))),
    draw=_times,
    mistakes=(
        Mistake("steps", lambda a, s, f, n: (s - a, f - s), "Those are steps: divide each by the output tokens.",
                "Divide both by `length`."),
        Mistake("from_step_0", lambda a, s, f, n: (s / n, (f - s) / n),
                "Queueing begins when the request arrives, not at step 0.", "Use start - arrival."),
        Mistake("swapped", lambda a, s, f, n: ((f - s) / n, (s - a) / n),
                "The right numbers in the wrong order: queueing comes first.", "Return queueing, service."),
        Mistake("service_is_1", lambda a, s, f, n: ((s - a) / n, 1),
                "Service is 1 only if the answer comes back with its last token: here it may be held.",
                "Service is (finish - start) / length."),
        Mistake("whole_latency", lambda a, s, f, n: ((s - a) / n, (f - a) / n),
                "The second is the whole latency: it counts the queueing again.",
                "Service begins at start: finish - start."),
        Mistake("finish_as_duration", lambda a, s, f, n: ((s - a) / n, f / n),
                "finish is a step on the clock, not how long the service took.",
                "Service is (finish - start) / length."),
        Mistake("total", lambda a, s, f, n: (f - a) / n, "That is the sum, normalised latency: return its two parts.",
                "Return two numbers: (start - arrival) / length, (finish - start) / length."),
        Mistake("shares", lambda a, s, f, n: ((s - a) / (f - a), (f - s) / (f - a)),
                "Those are shares of the latency: divide by the output tokens.", "Divide both by `length`."),
        Mistake("per_served_step", lambda a, s, f, n: ((s - a) / (f - s), 1),
                "That divides by the steps of service: divide by the output tokens.", "Divide both by `length`."),
        Mistake("only_queueing_divided", lambda a, s, f, n: ((s - a) / n, f - s),
                "Service is still in steps: divide it by the output tokens, too.", "Divide both by `length`."),
        Mistake("only_service_divided", lambda a, s, f, n: (s - a, (f - s) / n),
                "Queueing is still in steps: divide it by the output tokens, too.", "Divide both by `length`."),
        Mistake("tokens_per_step", lambda a, s, f, n: (n / (s - a), n / (f - s)),
                "Upside down: that is tokens per step.", "Divide steps by tokens."),
    ))


# ---- steady_utilisation ---------------------------------------------------------------------------------------------

def _steady_utilisation(start: list, done: list, slots: int, until: int) -> Fraction:
    """Look at each step before `until`, and count the requests that make a token in it."""
    useful = sum(1 for step in range(until) for s, d in zip(start, done, strict=True) if s <= step < d)
    return Fraction(useful, slots * until)


def _runs(rng: random.Random) -> tuple:
    """A continuous run of a backlog, cut off before its last request begins: some run across the cut."""
    lengths, slots = _backlog(rng)
    schedule = continuous_batching([n + 1 for n in lengths], slots)
    return schedule.start.tolist(), schedule.done.tolist(), slots, rng.randint(2, int(schedule.steps) - 1)


def _run_lengths(start: list, done: list, keep) -> int:
    return sum(d - s for s, d in zip(start, done, strict=True) if keep(s, d))


STEADY_UTILISATION = Exercise(
    id="steady_utilisation", notebook="02", title="Utilisation without the drain", minutes=7, difficulty=2,
    signature="steady_utilisation(start, done, slots, until)", returns="one number, a share from 0 to 1",
    task="return the useful share of the slot-steps in steps 0 to until - 1; request i makes tokens in steps start[i] "
         "to done[i] - 1.",
    shows="83.7 % was the drain, not a ceiling: while requests are waiting, every slot works.",
    oracle=_steady_utilisation,
    explain=lambda start, done, k, until: f"The window holds {k} x {until} = {k * until} slot-steps; inside it the "
                                          f"requests "
            f"make {[max(min(d, until) - s, 0) for s, d in zip(start, done, strict=True)]} tokens.",
    worked=((([0, 0], [4, 4], 2, 4), 1), (([0, 0], [2, 4], 2, 4), 0.75), (([0, 0, 2], [2, 6, 5], 2, 4), 1),
            (([0, 3], [2, 9], 1, 3), 2 / 3), (([0, 5], [3, 9], 1, 4), 0.75)), draw=_runs,
    mistakes=(
        Mistake("not_clipped", lambda s, d, k, u: _run_lengths(s, d, lambda a, b: a < u) / (k * u),
                "A request that runs across the end of the window counts only up to there.",
                "Count min(done, until) - start."),
        Mistake("all_counted", lambda s, d, k, u: (sum(d) - sum(s)) / (k * u),
                "All the work of the run is divided by the slot-steps of the window: count what lies inside it.",
                "Count min(done, until) - start for requests that begin before `until`."),
        Mistake("finished_only", lambda s, d, k, u: _run_lengths(s, d, lambda a, b: b <= u) / (k * u),
                "A request that is cut by the end of the window worked in it, too.",
                "Count min(done, until) - start instead of leaving such requests out."),
        Mistake("negative_runs", lambda s, d, k, u: sum(min(b, u) - a for a, b in zip(s, d, strict=True)) / (k * u),
                "A request that begins after the window counts as less than nothing.",
                "Use max(0, min(done, until) - start)."),
        Mistake("whole_run", lambda s, d, k, u: (sum(d) - sum(s)) / (k * max(d)),
                "That is the utilisation of the whole run, the drain included.",
                "Clip each run at `until`, and divide by slots x until."),
        Mistake("whole_run_below", lambda s, d, k, u: sum(max(min(b, u) - a, 0) for a, b in zip(s, d, strict=True))
                / (k * max(d)), "The work is counted up to `until`, but divided by the slot-steps of the whole run.",
                "Divide by slots x until."),
        Mistake("no_slots", lambda s, d, k, u: sum(max(min(b, u) - a, 0) for a, b in zip(s, d, strict=True)) / u,
                "That is the mean number of busy slots: what share of all slots is it?", "Divide by `slots`, too."),
        Mistake("no_steps", lambda s, d, k, u: sum(max(min(b, u) - a, 0) for a, b in zip(s, d, strict=True)) / k,
                "Each slot has `until` steps in the window: divide by those, too.", "Divide by slots x until."),
        Mistake("idle", lambda s, d, k, u: 1 - sum(max(min(b, u) - a, 0) for a, b in zip(s, d, strict=True)) / (k * u),
                "That is the idle share.", "Return the useful share: leave out the 1 - ..."),
        Mistake("slot_steps", lambda s, d, k, u: sum(max(min(b, u) - a, 0) for a, b in zip(s, d, strict=True)),
                "Those are the useful slot-steps: what share of all is it?", "Divide by slots x until."),
    ))

EXERCISES = (STATIC_FINISH, CONTINUOUS_FINISH, PAGE_PERCENTILE, SPLIT_LATENCY, STEADY_UTILISATION)
