"""The exercises of notebook 01: waste, head-of-line blocking, normalised latency, groups, and the next free slot."""
from __future__ import annotations

import random

from labs.checks.marking import Exercise, Mistake
from labs.slots import continuous_batching
from labs.words import many
from labs.workload import EIGHT_LENGTHS

EIGHT = list(EIGHT_LENGTHS)


def _batch(rng: random.Random) -> tuple:
    """One batch: 2 to 7 lengths, in no order."""
    return ([rng.randint(1, 40) for _ in range(rng.randint(2, 7))],)


def _backlog(rng: random.Random) -> tuple:
    """3 to 8 lengths and 2 or 3 slots, so that there is more than one group."""
    slots = rng.randint(2, 3)
    return [rng.randint(1, 30) for _ in range(rng.randint(slots + 1, 8))], slots


def groups(lengths: list, slots: int) -> list[list]:
    """The requests in groups of `slots`, in order; the last may be smaller."""
    return [lengths[i:i + slots] for i in range(0, len(lengths), slots)]


# ---- slot_steps_wasted ----------------------------------------------------------------------------------------------

def _wasted(lengths: list) -> int:
    """One slot at a time, one step at a time: is there still a token to make?"""
    return sum(1 for length in lengths for step in range(max(lengths)) if step >= length)


SLOT_STEPS_WASTED = Exercise(
    id="slot_steps_wasted", notebook="01", title="Count the wasted slot-steps", minutes=3, difficulty=1,
    signature="slot_steps_wasted(lengths)", returns="one number",
    task="return how many slot-steps of one static batch, a slot for each request, are spent on finished requests.",
    shows="a static batch costs slots x longest, whatever its short requests needed; the eight waste 5,668 of 7,600.",
    oracle=_wasted,
    explain=lambda lengths: f"{many(max(lengths), 'step')} x {many(len(lengths), 'slot')} = "
                            f"{many(max(lengths) * len(lengths), 'slot-step')}; {sum(lengths)} of them made a token.",
    worked=((([5, 5],), 0), (([1, 3],), 2), (([7],), 0), (([9, 2, 2],), 14), ((EIGHT,), 5668)), draw=_batch,
    mistakes=(
        Mistake("available", lambda ls: len(ls) * max(ls),
                "That is every slot-step of the batch: some of them did make a token.",
                "Subtract the useful slot-steps, one for each token: sum(lengths)."),
        Mistake("useful", sum, "Those are the slot-steps that made a token: which ones did not?",
                "Subtract them from all slot-steps of the batch: slots x longest."),
        Mistake("share", lambda ls: 1 - sum(ls) / (len(ls) * max(ls)),
                "That is the wasted share: count slot-steps instead.",
                "Leave out the division by the slot-steps of the whole batch."),
        Mistake("percent_share", lambda ls: 100 - 100 * sum(ls) / (len(ls) * max(ls)),
                "That is the wasted share in percent: count slot-steps instead.",
                "Leave out both the factor 100 and the division by all slot-steps."),
        Mistake("shortest_only", lambda ls: max(ls) - min(ls),
                "That is the waste in one slot, the shortest request's: every other slot waits too.",
                "Add max(lengths) - length over all the requests."),
        Mistake("mean_slot", lambda ls: max(ls) - sum(ls) / len(ls),
                "That is the average waste of one slot: the batch has more than one.",
                "Multiply by the number of slots, len(lengths)."),
        Mistake("last_is_longest", lambda ls: len(ls) * ls[-1] - sum(ls),
                "The last request isn't always the longest: the eight only happen to be sorted.",
                "Use max(lengths) instead of lengths[-1]."),
        Mistake("first_is_longest", lambda ls: len(ls) * ls[0] - sum(ls),
                "The first request isn't always the longest.", "Use max(lengths) instead of lengths[0]."),
        Mistake("eight_slots", lambda ls: 8 * max(ls) - sum(ls),
                "This batch doesn't have 8 slots: it has one for each request.", "Use len(lengths) instead of 8."),
        Mistake("constant", lambda ls: 5668, "5,668 is right for the eight requests: compute it, for any batch.",
                "Write the answer in terms of len(lengths), max(lengths) and sum(lengths)."),
    ))


# ---- head_of_line_wait ----------------------------------------------------------------------------------------------

def _waits(lengths: list) -> list[int]:
    """For each request, the steps in which it holds a slot and has no token left to make."""
    return [sum(1 for step in range(max(lengths)) if step >= length) for length in lengths]


def _until_next(lengths: list) -> list[int]:
    return [min((other - length for other in lengths if other > length), default=0) for length in lengths]


HEAD_OF_LINE_WAIT = Exercise(
    id="head_of_line_wait", notebook="01", title="What does each request wait for?", minutes=4, difficulty=1,
    signature="head_of_line_wait(lengths)", returns="a list with one number for each request",
    task="return, for each request of one static batch, the steps for which it holds its slot after its last token.",
    shows="a request waits for the longest of its batch: A is done after 12 steps and waits another 938.",
    oracle=_waits,
    explain=lambda lengths: f"The batch ends at step {max(lengths)}; the first request is done at step {lengths[0]}, "
                            f"so it waits for {max(lengths) - lengths[0]}.",
    worked=((([4, 4],), [0, 0]), (([1, 3],), [2, 0]), (([5, 2, 1],), [0, 3, 4]),
            ((EIGHT,), [938, 935, 930, 919, 906, 890, 150, 0])), draw=_batch,
    mistakes=(
        Mistake("batch_length", lambda ls: [max(ls)] * len(ls),
                "That is how long each request stays in the batch: part of it made tokens.",
                "Take each request's own length away from max(lengths)."),
        Mistake("own_length", lambda ls: ls, "Those are the steps that made a token: the wait comes after them.",
                "The wait lasts from step `length` to the end of the batch."),
        Mistake("next_longer", _until_next, "A slot isn't free when the next request finishes: the whole batch has to.",
                "Every request waits for max(lengths), not for the one after it."),
        Mistake("last_is_longest", lambda ls: [ls[-1] - n for n in ls],
                "The last request isn't always the longest: the eight only happen to be sorted.",
                "Use max(lengths) instead of lengths[-1]."),
        Mistake("total", lambda ls: sum(max(ls) - n for n in ls),
                "That is the wait of all requests together: return one number for each.",
                "Drop the sum and keep the list: [... for length in lengths]."),
        Mistake("mean", lambda ls: max(ls) - sum(ls) / len(ls),
                "That is the mean wait: return one number for each request.",
                "Drop the mean and keep the list: [... for length in lengths]."),
        Mistake("share", lambda ls: [(max(ls) - n) / max(ls) for n in ls],
                "That is the wait as a share of the batch: count steps.", "Leave out the division by max(lengths)."),
        Mistake("per_token", lambda ls: [(max(ls) - n) / n for n in ls],
                "That is the wait for each token: count steps.", "Leave out the division by the request's length."),
        Mistake("sorted", lambda ls: sorted((max(ls) - n for n in ls), reverse=True),
                "The right waits, but out of order: keep the order of the requests.",
                "Don't sort: walk through lengths as it came."),
    ))


# ---- normalised_latency ---------------------------------------------------------------------------------------------

def _normalised(lengths: list) -> list[float]:
    """Each request's answer comes back when the batch ends."""
    batch_ends = max(lengths)
    return [batch_ends / length for length in lengths]


NORMALISED_LATENCY = Exercise(
    id="normalised_latency", notebook="01", title="Steps per output token", minutes=3, difficulty=1,
    signature="normalised_latency(lengths)", returns="a list with one number for each request",
    task="return each request's normalised latency: steps until its answer comes back, when the one static batch ends, "
         "divided by its output tokens.",
    shows="A pays 79.2 steps for each of its tokens, H pays 1: who you are batched with decides, not what you asked "
          "for.",
    oracle=_normalised,
    explain=lambda lengths: f"All answers come back at step {max(lengths)}; the first request made "
                            f"{many(lengths[0], 'token')}: that is {max(lengths)} / {lengths[0]} steps a token.",
    worked=((([6, 6],), [1, 1]), (([1, 4],), [4, 1]), (([8, 2, 5],), [1, 4, 1.6]),
            ((EIGHT,), [950 / 12, 950 / 15, 47.5, 950 / 31, 950 / 44, 950 / 60, 1.1875, 1])), draw=_batch,
    mistakes=(
        Mistake("latency", lambda ls: [max(ls)] * len(ls),
                "That is latency, in steps: normalised latency is per output token.",
                "Divide by the request's own length."),
        Mistake("own_done", lambda ls: [1] * len(ls),
                "1 is what a request pays that never waits: here each waits for the batch to end.",
                "The numerator is when the batch ends, max(lengths), for every request."),
        Mistake("inverted", lambda ls: [n / max(ls) for n in ls],
                "Upside down: that is tokens per step.", "Divide steps by tokens: max(lengths) / length."),
        Mistake("wait_only", lambda ls: [(max(ls) - n) / n for n in ls],
                "That counts the wait alone: latency includes the steps that made the tokens.",
                "Latency runs from step 0 to the end of the batch: nothing is subtracted."),
        Mistake("last_is_longest", lambda ls: [ls[-1] / n for n in ls],
                "The last request isn't always the longest: the eight only happen to be sorted.",
                "Use max(lengths) instead of lengths[-1]."),
        Mistake("mean", lambda ls: sum(max(ls) / n for n in ls) / len(ls),
                "That is the mean over the batch, which hides the spread: return one number for each request.",
                "Drop the mean and keep the list: [... for length in lengths]."),
        Mistake("mean_tokens", lambda ls: [max(ls) * len(ls) / sum(ls)] * len(ls),
                "That divides by the mean length: each request pays for its own tokens.",
                "Divide by `length` inside the loop."),
        Mistake("slot_steps", lambda ls: [max(ls) * len(ls) / n for n in ls],
                "Latency is time: the other slots run at the same time and don't make it longer.",
                "Leave out the factor len(lengths)."),
        Mistake("sorted", lambda ls: sorted((max(ls) / n for n in ls), reverse=True),
                "The right numbers, but out of order: keep the order of the requests.",
                "Don't sort: walk through lengths as it came."),
    ))


# ---- static_steps ---------------------------------------------------------------------------------------------------

def _static_steps(lengths: list, slots: int) -> int:
    """Take a group, run until all of it is done, take the next."""
    steps, waiting = 0, list(lengths)
    while waiting:
        group, waiting = waiting[:slots], waiting[slots:]
        while any(length > 0 for length in group):
            group = [length - 1 for length in group]
            steps += 1
    return steps


def _lanes(lengths: list, slots: int) -> int:
    return max(sum(lengths[lane::slots]) for lane in range(slots))


STATIC_STEPS = Exercise(
    id="static_steps", notebook="01", title="Group after group", minutes=5, difficulty=2,
    signature="static_steps(lengths, slots)", returns="one number",
    task="return the steps that static batching takes to finish all requests, in groups of `slots`, in order.",
    shows="a group takes as long as its longest member, and groups follow one another: one long request in each is "
          "enough to spoil them all.",
    oracle=_static_steps,
    explain=lambda lengths, slots: "The groups are " + ", then ".join(map(str, groups(lengths, slots)))
                                   + "; each takes as many steps as its longest.",
    worked=((([4, 4], 2), 4), (([3, 1, 2], 2), 5), (([1, 2, 3], 1), 6), (([9, 1, 1, 9, 1, 1], 3), 18),
            ((EIGHT, 4), 981), ((EIGHT, 8), 950)), draw=_backlog,
    mistakes=(
        Mistake("one_by_one", lambda ls, k: sum(ls),
                "That runs one request after another: a group runs at the same time.",
                "Add up the longest of each group, not the sum of it."),
        Mistake("one_group", lambda ls, k: max(ls), "That is one group of everything: there are only `slots` slots.",
                "Cut lengths into groups of `slots`, and add up the longest of each."),
        Mistake("last_group_lost", lambda ls, k: sum(max(g) for g in groups(ls, k) if len(g) == k),
                "The last group is missing when it isn't full: it runs all the same.",
                "range(0, len(lengths), slots) starts every group, the last one too."),
        Mistake("sorted_first", lambda ls, k: sum(max(g) for g in groups(sorted(ls), k)),
                "Those groups are sorted by length: requests are taken in the order in which they came.",
                "Leave out the sort: a scheduler doesn't know lengths before they are generated."),
        Mistake("continuous", lambda ls, k: continuous_batching(ls, k).steps,
                "That is continuous batching: here nobody joins before the whole group is done.",
                "Cut lengths into groups of `slots`, and add up the longest of each."),
        Mistake("no_waste", lambda ls, k: -(-sum(ls) // k),
                "That would be right if no slot ever stood idle: static batching's slots do.",
                "A group takes as long as its longest, not as long as its average."),
        Mistake("no_waste_fraction", lambda ls, k: sum(ls) / k,
                "That would be right if no slot ever stood idle: static batching's slots do.",
                "A group takes as long as its longest, not as long as its average."),
        Mistake("slot_steps", lambda ls, k: k * sum(max(g) for g in groups(ls, k)),
                "Those are slot-steps: the slots of a group run at the same time.", "Leave out the factor `slots`."),
        Mistake("last_of_group", lambda ls, k: sum(g[-1] for g in groups(ls, k)),
                "The last of a group isn't always its longest.", "Use max(group) instead of group[-1]."),
        Mistake("first_of_group", lambda ls, k: sum(g[0] for g in groups(ls, k)),
                "The first of a group isn't always its longest.", "Use max(group) instead of group[0]."),
        Mistake("lanes", _lanes, "That gives each slot a queue of its own: a group starts together, on all slots.",
                "Take lengths[i:i + slots] as the group that starts at request i."),
        Mistake("longest_of_all", lambda ls, k: len(groups(ls, k)) * max(ls),
                "A group waits for its own longest, not for the longest of all requests.",
                "Take max() of each group on its own."),
        Mistake("last_only", lambda ls, k: max(groups(ls, k)[-1]),
                "That is the last group alone: is the total set again on each turn instead of added to?",
                "Start with total = 0, and write total += max(group)."),
    ))


# ---- next_slot ------------------------------------------------------------------------------------------------------

def _next_slot(free_at: list) -> int:
    """Wait step by step until a slot is free; look at slot 0 first."""
    step = min(0, *free_at)
    while True:
        for slot, free in enumerate(free_at):
            if free <= step:
                return slot
        step += 1


def _free_at(rng: random.Random) -> tuple:
    return ([rng.randint(0, 12) for _ in range(rng.randint(2, 7))],)


NEXT_SLOT = Exercise(
    id="next_slot", notebook="01", title="Who is free first?", minutes=4, difficulty=1,
    signature="next_slot(free_at)", returns="one whole number, the index of a slot",
    task="return the index of the slot that the next waiting request takes: the one free earliest, the lowest index on "
         "a tie.",
    shows="this one line is continuous batching: the next request joins where a slot frees first, and waits for no "
          "group.",
    oracle=_next_slot,
    explain=lambda free_at: f"The earliest that a slot is free is step {min(free_at)}; the first slot with that value, "
                            "counted from 0, is the answer.",
    worked=((([5, 3],), 1), (([3, 5],), 0), (([4, 2, 2],), 1), (([0, 0, 0],), 0), (([12, 15, 20, 31],), 0),
            (([9],), 0)), draw=_free_at,
    mistakes=(
        Mistake("step", min, "That is the step at which the slot is free: which slot is it?",
                "free_at.index(step) gives the first slot that is free at that step."),
        Mistake("last_tie", lambda f: len(f) - 1 - f[::-1].index(min(f)),
                "When slots are free at the same step, take the lowest index.",
                "Walk from slot 0 up and replace the best only by one that is strictly earlier: <, not <=."),
        Mistake("latest", lambda f: f.index(max(f)), "That slot is free last: the request wants the earliest.",
                "Use min instead of max."),
        Mistake("free_now", lambda f: f.index(0), "Often no slot is free at step 0: the request then waits for the "
                                                  "earliest.",
                "Look for min(free_at) instead of 0."),
        Mistake("free_now_or_first", lambda f: f.index(0) if 0 in f else 0,
                "With no slot free at step 0, the request takes the one that is free earliest, not slot 0.",
                "Look for min(free_at) instead of 0."),
        Mistake("first_slot", lambda f: 0, "Slot 0 isn't always the earliest: look at the others.",
                "free_at.index(min(free_at)) finds where the smallest value stands."),
        Mistake("from_one", lambda f: f.index(min(f)) + 1, "One too high: slots are counted from 0.",
                "Leave out the + 1."),
        Mistake("all_ties", lambda f: [i for i, free in enumerate(f) if free == min(f)],
                "A request takes one slot: return the lowest index, as a number.",
                "Return the first of that list: [0]."),
        Mistake("order", lambda f: sorted(range(len(f)), key=f.__getitem__),
                "That is the order in which all the slots become free: return only the first.",
                "Return the first of that list: [0]."),
    ))

EXERCISES = (SLOT_STEPS_WASTED, HEAD_OF_LINE_WAIT, NORMALISED_LATENCY, STATIC_STEPS, NEXT_SLOT)
