"""The exercises of notebook 04: blocks, retiring, admission, the victim, the binding limit, and a chunk plan."""
from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

from labs.checks.answers import LONGEST, SHOWN, Args, Odd, read, show
from labs.checks.guard import outcomes
from labs.checks.marking import (
    ARGUMENTS,
    CALL_IT,
    CHANGES,
    NO_FUNCTION,
    NOT_ATTEMPTED,
    NOT_YET,
    PASSED,
    RANDOM_CASES,
    SLOW,
    SPELLING,
    WORK_IT_OUT,
    Exercise,
    Finding,
    Mistake,
    _takes,
    nothing,
)
from labs.words import many

Plain = float | str | list
LIMIT_S = 1.0  # a plan that never ends grows all the while: in 5 s it could fill a small machine's memory


# ---- answers that hold texts, or lists of lists ---------------------------------------------------------------------

def plain(answer: Any) -> Plain | Odd:
    """A number as float, a text as it is, anything with an order as a list of those, the rest as `Odd`."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, bytes):
        return Odd("gave bytes where a text or a number belongs")
    if isinstance(answer, (Mapping, Set)) or getattr(answer, "ndim", 1) == 0 or not isinstance(answer, Iterable):
        return read(answer)
    items = []
    for item in islice(answer, LONGEST):
        items.append(plain(item))
        if isinstance(items[-1], Odd):
            return Odd(f"gave a list that holds {'None' if item is None else f'something of type {_type(item)}'}")
    return items


def alike(one: Plain | Odd, other: Plain | Odd) -> bool:
    """Equal answers; two that are none are equal if both are missing, or neither is. Tokens are whole: no tolerance."""
    if isinstance(one, Odd) or isinstance(other, Odd):
        return isinstance(one, Odd) and isinstance(other, Odd) and one.empty == other.empty
    return one == other


def literal(value: Any) -> str:
    """A value as it would be typed, cut short: a set in order, whole numbers without a point."""
    if isinstance(value, str):
        return json.dumps(value[:60], ensure_ascii=False)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(map(literal, sorted(value)))}}}" if value else "set()"
    if isinstance(value, (list, tuple)):
        more = [f"... {len(value) - SHOWN} more"] if len(value) > SHOWN else []
        inside = ", ".join([*map(literal, value[:SHOWN]), *more])
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    return show(value)


def contrast(right: Plain, got: Plain | Odd, returns: str) -> str:
    """How `got` differs from `right`, to finish the sentence "f(...) should give ..."."""
    if isinstance(got, Odd):
        return f"{literal(right)}, but {got.words}"
    text = f"{literal(right)}, but gave {literal(got)}"
    misspelled = isinstance(right, str) and literal(got) not in returns
    if misspelled or type(right) is not type(got) or _depth(right) < _depth(got):
        return f"{text} (wanted: {returns})"
    if isinstance(right, list) and len(right) != len(got):
        return f"{text} ({len(right)} wanted, there are {len(got)})"
    return text


def weight(value: Any) -> tuple[int, float]:
    """How much there is to read in a case: its count of numbers and texts, then the sum of the numbers."""
    leaves = list(_leaves(value))
    return len(leaves), sum(abs(leaf) for leaf in leaves if not isinstance(leaf, str))


def _type(item: Any) -> str:
    return type(item).__name__


def _depth(value: Plain) -> int:
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def _leaves(value: Any) -> Iterator[float | str]:
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, str) or not isinstance(value, Iterable):
        yield value
    else:
        for item in value:
            yield from _leaves(item)


@dataclass(frozen=True)
class Structured(Exercise):
    """An exercise whose arguments or answer hold texts, tables or lists of lists: it marks itself."""

    def cases(self) -> list[tuple[Args, Plain]]:
        """(arguments, right answer) of every case: the hand-worked ones, then the seeded random ones."""
        rng = random.Random(self.id)
        drawn = [self.draw(rng) for _ in range(RANDOM_CASES)]
        return [(args, plain(right)) for args, right in
                [*self.worked, *((args, self.oracle(*copy.deepcopy(args))) for args in drawn)]]

    def mark(self, answer: Any, limit_s: float = 5.0) -> Finding:
        """Try `answer` on every case. Nothing that the learner's code does escapes from here, save an interrupt."""
        if answer is None or answer is ...:
            return Finding(NOT_ATTEMPTED)
        if not callable(answer):
            return Finding(NOT_YET, f"{self.id} should be a function, but its type is {_type(answer)}.", NO_FUNCTION)
        cases, limit_s = self.cases(), min(limit_s, LIMIT_S)
        inputs = [args for args, _ in cases]
        if not _takes(answer, inputs[0]):
            return Finding(NOT_YET, f"{self.id} should be called as {self.signature}.", ARGUMENTS)
        got, printed = answers(answer, inputs, limit_s)
        if len(got) < len(cases):
            return Finding(NOT_YET, f"{self._call(inputs[len(got)])} took over {limit_s:g} s.", SLOW)
        if all(isinstance(out, Odd) and out.empty for out in got):
            return nothing(answer, got, printed, self._call(inputs[0]))
        wrong = [(args, right, out) for (args, right), out in zip(cases, got, strict=True) if not alike(right, out)]
        if not wrong:
            return Finding(PASSED)
        args, right, out = min(wrong, key=lambda case: weight(case[0]))
        mistake = self.recognise(got)
        if mistake is None:
            again, _ = answers(answer, [args], limit_s)
            mistake = CHANGES if not again or not alike(again[0], out) else None
        return Finding(NOT_YET, f"{self._call(args)} should give {contrast(right, out, self.returns)}.", mistake,
                       CALL_IT if isinstance(out, Odd) else WORK_IT_OUT, self.explain(*copy.deepcopy(args)))

    def recognise(self, got: Sequence[Plain | Odd]) -> Mistake | None:
        """The first mistake that gives what the learner's function gave, on every case."""
        cases = self.cases()
        if found := next((mistake for mistake in self.mistakes
                          if all(map(alike, answers(mistake.wrong, [args for args, _ in cases])[0], got))), None):
            return found
        wrong = [out for (_, right), out in zip(cases, got, strict=True) if not alike(right, out)]
        texts = {right for _, right in cases if isinstance(right, str)}
        return SPELLING if texts and all(isinstance(out, str) and out not in texts for out in wrong) else None

    def _call(self, args: Args) -> str:
        return f"{self.id}({', '.join(map(literal, args))})"


def answers(function: Callable[..., Any], inputs: Sequence[Args], limit_s: float = 5.0) -> tuple[list, str]:
    """What `function` gives on each input, fewer if the time ran out, and the beginning of what it printed."""
    kept: list[Plain | Odd] = []

    def keep(*args: Any) -> int:
        """The guard reads numbers only, so it gets the place at which the answer is kept."""
        try:
            kept.append(plain(function(*args)))
        except NotImplementedError as error:
            if error.__traceback__.tb_next is not None and error.__traceback__.tb_next.tb_next is not None:
                raise  # from another function, which the guard will name
            kept.append(Odd("isn't written yet", empty=True))
        return len(kept) - 1

    places, printed = outcomes(keep, [copy.deepcopy(args) for args in inputs], limit_s)
    return [place if isinstance(place, Odd) else kept[int(place)] for place in places], printed


# ---- blocks_needed --------------------------------------------------------------------------------------------------

def _blocks_needed(tokens: int, held: int, block_size: int) -> int:
    """Add one block after another until there is room."""
    added = 0
    while (held + added) * block_size < tokens:
        added += 1
    return added


def _table(rng: random.Random) -> tuple:
    """Often a whole number of blocks, and often more of them held than needed."""
    block_size = rng.choice((2, 4, 16))
    tokens = rng.choice((rng.randint(1, 60), block_size * rng.randint(1, 6)))
    return tokens, rng.randint(0, 6), block_size


BLOCKS_NEEDED = Exercise(
    id="blocks_needed", notebook="04", title="How many blocks must be added?", minutes=3, difficulty=1,
    signature="blocks_needed(tokens, held, block_size)", returns="one number",
    task="return how many KV blocks a sequence that holds `held` blocks must be given, so that it can hold `tokens` "
         "tokens.",
    shows="a decoding sequence needs a new block only once in block_size steps; most steps take no memory at all.",
    oracle=_blocks_needed,
    explain=lambda tokens, held, size: f"It has room for {held} x {size} = {held * size} tokens, and is to hold "
                                       f"{tokens}.",
    worked=(((16, 0, 16), 1), ((17, 1, 16), 1), ((32, 2, 16), 0), ((5, 3, 16), 0), ((200, 0, 16), 13), ((7, 0, 1), 7),
            ((40, 1, 16), 2)),
    draw=_table,
    mistakes=(
        Mistake("cut_off", lambda t, h, b: max(0, t // b - h),
                "The last block may be part empty, and is a block all the same: round up.",
                "Use -(-tokens // block_size), or math.ceil(tokens / block_size)."),
        Mistake("one_more", lambda t, h, b: max(0, t // b + 1 - h),
                "One too many where the tokens fill their blocks exactly: none is kept for the next token.",
                "Round up instead of adding 1: -(-tokens // block_size)."),
        Mistake("rounded_blocks", lambda t, h, b: max(0, round(t / b) - h),
                "Half a block or less is a block, too: round up, not to the nearest.",
                "Use -(-tokens // block_size), or math.ceil(tokens / block_size)."),
        Mistake("fraction", lambda t, h, b: max(0, t / b - h), "Blocks are given whole: round up.",
                "Use -(-tokens // block_size), or math.ceil(tokens / block_size)."),
        Mistake("held_forgotten", lambda t, h, b: -(-t // b), "That is for a sequence that holds nothing yet.",
                "Take `held` away, and don't go below 0."),
        Mistake("below_0", lambda t, h, b: -(-t // b) - h,
                "A sequence that holds more than it needs gives nothing back here: the answer is 0.",
                "Wrap it in max(0, ...)."),
        Mistake("at_least_1", lambda t, h, b: max(1, -(-t // b) - h),
                "Where there is enough room, nothing is added: the answer is 0.", "Use max(0, ...), not max(1, ...)."),
        Mistake("held_as_tokens", lambda t, h, b: max(0, -(-(t - h) // b)),
                "`held` counts blocks, not tokens.", "Round tokens / block_size up first, then take `held` away."),
        Mistake("tokens", lambda t, h, b: max(0, t - h * b), "That is how many tokens lack room: in how many blocks?",
                "Divide by block_size, rounding up."),
        Mistake("total", lambda t, h, b: max(h, -(-t // b)), "That is how many it holds afterwards: how many are new?",
                "Take `held` away."),
        Mistake("all_again", lambda t, h, b: 0 if h * b >= t else -(-t // b),
                "Its blocks stay: it is given the missing ones only.", "Take `held` away where room is short, too."),
    ))


# ---- retire ---------------------------------------------------------------------------------------------------------

def _done(i: str, made: dict, cap: dict, stopped: set) -> bool:
    return i in stopped or made[i] == cap[i]


def _retire(running: list, made: dict, max_tokens: dict, stopped: set) -> list:
    """Cross out whoever can go on; the others leave."""
    leaves = list(running)
    for i in running:
        if made[i] < max_tokens[i] and i not in stopped:
            leaves.remove(i)
    return leaves


def _remove_while_looping(running: list, made: dict, max_tokens: dict, stopped: set) -> list:
    leaves = []
    for i in running:
        if _done(i, made, max_tokens, stopped):
            leaves.append(i)
            running.remove(i)  # the mistake itself: the next one is passed over
    return leaves


def _after_a_step(rng: random.Random) -> tuple:
    """2 to 6 running in any order; the tables are in order of id, and know one more, which waits."""
    ids = "ABCDEFGH"[:rng.randint(3, 7)]
    running = rng.sample(ids, len(ids) - 1)
    cap = {i: rng.randint(1, 6) for i in ids}
    made = {i: rng.choice((cap[i], rng.randint(0, cap[i]))) if i in running else rng.randint(0, cap[i] - 1)
            for i in ids}
    return running, made, cap, {i for i in running if made[i] > 0 and rng.random() < 0.3}


RETIRE = Structured(
    id="retire", notebook="04", title="Who leaves?", minutes=4, difficulty=1,
    signature="retire(running, made, max_tokens, stopped)", returns="a list of ids",
    task="return, in running order, the ids that leave after this step: made[id] is max_tokens[id], or id is in "
         "`stopped`.",
    shows="one pass over running after each forward pass: the blocks are free before the next step is scheduled.",
    oracle=_retire,
    explain=lambda running, made, cap, stopped: f"Running: {', '.join(running)}; at max_tokens: "
        f"{', '.join(i for i in running if made[i] == cap[i]) or 'nobody'}; drew a stop token: "
        f"{', '.join(i for i in running if i in stopped) or 'nobody'}.",
    worked=(
        ((["A", "B"], {"A": 3, "B": 5}, {"A": 9, "B": 5}, set()), ["B"]),
        ((["A", "B"], {"A": 3, "B": 2}, {"A": 9, "B": 5}, set()), []),
        ((["A", "B"], {"A": 3, "B": 2}, {"A": 9, "B": 5}, {"A"}), ["A"]),
        ((["A", "B"], {"A": 0, "B": 4}, {"A": 4, "B": 5}, set()), []),
        ((["C", "A", "B"], {"A": 2, "B": 4, "C": 6}, {"A": 2, "B": 9, "C": 6}, {"B"}), ["C", "A", "B"]),
        ((["B", "A", "C"], {"A": 4, "B": 7, "C": 1}, {"A": 4, "B": 7, "C": 8}, {"B"}), ["B", "A"])),
    draw=_after_a_step,
    mistakes=(
        Mistake("cap_only", lambda run, made, cap, stop: [i for i in run if made[i] == cap[i]],
                "Whoever drew a stop token leaves too, before max_tokens.", "Add: or id in stopped."),
        Mistake("stop_only", lambda run, made, cap, stop: [i for i in run if i in stop],
                "Whoever has made max_tokens tokens leaves too, and at that very token: not one later.",
                "The second condition is made[id] >= max_tokens[id], not a bare > and not left out."),
        Mistake("both", lambda run, made, cap, stop: [i for i in run if i in stop and made[i] == cap[i]],
                "One reason is enough.", "Write or between the two conditions, not and."),
        Mistake("stay", lambda run, made, cap, stop: [i for i in run if not _done(i, made, cap, stop)],
                "Those are the ones that stay.", "Turn the condition round: return those that are done."),
        Mistake("one_early", lambda run, made, cap, stop: [i for i in run if i in stop or made[i] + 1 >= cap[i]],
                "One token too early: `made` already counts the token of this step.",
                "Compare made[id] itself with max_tokens[id]."),
        Mistake("prefill", lambda run, made, cap, stop: [i for i in run if i in stop or made[i] in (0, cap[i])],
                "Whoever has made 0 tokens is still in its prefill: it hasn't finished, it hasn't begun.",
                "Compare with max_tokens only: made[id] == max_tokens[id]."),
        Mistake("skips", _remove_while_looping,
                "`running` changes while you loop over it, so the one after each leaver is passed over.",
                "Build a new list, and leave `running` alone."),
        Mistake("table_order", lambda run, made, cap, stop: [i for i in made if i in run and _done(i, made, cap, stop)],
                "The right ids, in another order: keep that of `running`.", "Loop over running: for id in running."),
        Mistake("stopped_first", lambda run, made, cap, stop: [i for i in run if i in stop]
                + [i for i in run if i not in stop and made[i] == cap[i]],
                "The right ids, grouped by reason: keep the order of `running`.",
                "One loop over running, with both conditions in one if."),
        Mistake("twice", lambda run, made, cap, stop: [i for i in run if i in stop]
                + [i for i in run if made[i] == cap[i]],
                "Whoever has both reasons leaves once: your list names it twice.",
                "One loop over running, with both conditions in one if."),
        Mistake("first_only", lambda run, made, cap, stop: [i for i in run if _done(i, made, cap, stop)][:1],
                "Several may leave after one step.", "Don't return inside the loop: gather them all first."),
        Mistake("places", lambda run, made, cap, stop: [k for k, i in enumerate(run) if _done(i, made, cap, stop)],
                "Those are places in the list: return the ids that stand there.", "Return running[k] instead of k."),
        Mistake("count", lambda run, made, cap, stop: sum(_done(i, made, cap, stop) for i in run),
                "That is how many leave: return their ids.", "Build a list of ids."),
    ))


# ---- admit ----------------------------------------------------------------------------------------------------------

def _admit(prompts: list, budget: int, free_slots: int) -> list[int]:
    """Hand the budget out one token at a time."""
    granted: list[int] = []
    for prompt in prompts:
        if budget == 0 or len(granted) == free_slots:
            break
        granted.append(0)
        while granted[-1] < prompt and budget > 0:
            granted[-1] += 1
            budget -= 1
    return granted


def _admit_whole(prompts: list, budget: int, free_slots: int, skip: bool) -> list[int]:
    """Without chunks: stop at a prompt that doesn't fit whole, or `skip` it."""
    granted: list[int] = []
    for prompt in prompts:
        if len(granted) == free_slots or (prompt > budget and not skip):
            break
        if prompt <= budget:
            granted.append(prompt)
            budget -= prompt
    return granted


def _admit_overspending(prompts: list, budget: int, free_slots: int) -> list[int]:
    granted: list[int] = []
    for prompt in prompts[:free_slots]:
        if budget <= 0:
            break
        granted.append(prompt)
        budget -= prompt
    return granted


def _one_zero(prompts: list, budget: int, free_slots: int) -> list[int]:
    """Look at the budget after granting, not before."""
    granted = _admit(prompts, budget, free_slots)
    spent = sum(granted) == budget
    return [*granted, 0] if spent and len(granted) < min(free_slots, len(prompts)) else granted


def _padded(granted: list, prompts: list) -> list[int]:
    return [*granted, *[0] * (len(prompts) - len(granted))]


def _queue(rng: random.Random) -> tuple:
    """Up to 5 prompts; the budget or the slots may run out, the budget at times exactly at a prompt's end."""
    prompts = [rng.randint(1, 12) for _ in range(rng.randint(1, 5))]
    budget = rng.choice((rng.randint(0, 30), sum(prompts[:rng.randint(1, len(prompts))])))
    return prompts, budget, rng.choice((0, 1, 2, 3, 8))


ADMIT = Exercise(
    id="admit", notebook="04", title="Who is admitted, and with how many tokens?", minutes=6, difficulty=2,
    signature="admit(prompts, budget, free_slots)", returns="a list with one number for each admitted request",
    task="return the prefill tokens that each admitted request gets in this step, from the head of the queue on, while "
         "budget and slots last; the last prompt may be cut.",
    shows="chunked prefill fills the budget to its last token, so one long prompt doesn't need a step of its own.",
    oracle=_admit,
    explain=lambda prompts, budget, slots: f"The budget is {budget} for at most {many(slots, 'request')}: "
        + (f"the head asks for {prompts[0]} and gets {_admit(prompts, budget, slots)[0]}." if budget and slots else
           "nobody is admitted, and the list is empty."),
    worked=((([4, 3], 10, 8), [4, 3]), (([5], 3, 2), [3]), (([5, 5], 12, 1), [5]), (([6], 0, 4), []),
            (([4, 4, 4], 8, 8), [4, 4]), (([3, 3], 9, 0), []), (([9, 2, 2], 5, 8), [5]),
            (([100, 50, 30], 120, 8), [100, 20])),
    draw=_queue,
    mistakes=(
        Mistake("whole_only", lambda p, b, k: _admit_whole(p, b, k, skip=False),
                "A prompt that doesn't fit whole gets what is left: that is chunked prefill.",
                "Grant min(prompt, budget)."),
        Mistake("skips_long", lambda p, b, k: _admit_whole(p, b, k, skip=True),
                "A long prompt is passed over, and those behind it go first: only the head of the queue is tried.",
                "Grant min(prompt, budget) to each in turn, and stop at a budget of 0."),
        Mistake("zeros", lambda p, b, k: _padded(_admit(p, b, k), p),
                "Whoever gets no token isn't admitted: leave it out instead of listing 0.",
                "Stop the loop once the budget is 0 or no slot is free."),
        Mistake("zeros_in_slots", lambda p, b, k: _padded(_admit(p, b, k), p[:k]),
                "Whoever gets no token isn't admitted: leave it out instead of listing 0.",
                "Stop the loop once the budget is 0, before you grant."),
        Mistake("one_zero", _one_zero, "With a budget of 0 nobody is admitted: your last one gets 0 tokens.",
                "Ask whether budget is left before you grant, not after."),
        Mistake("not_spent", lambda p, b, k: [min(n, b) for n in p[:k]] if b else [],
                "What one is granted is no longer there for the next.", "Subtract each grant from the budget."),
        Mistake("no_slots", lambda p, b, k: _admit(p, b, len(p)), "Each admitted request takes a slot.",
                "Stop once len(granted) is free_slots."),
        Mistake("one_slot_more", lambda p, b, k: _admit(p, b, k + 1), "One more than there are slots.",
                "Stop once len(granted) == free_slots, before you grant."),
        Mistake("no_budget", lambda p, b, k: p[:k], "That takes no notice of the token budget.",
                "Grant min(prompt, budget), and subtract it."),
        Mistake("overspent", _admit_overspending,
                "The last prompt gets all its tokens, which is more than the budget has left.",
                "Grant min(prompt, budget)."),
        Mistake("shortest_first", lambda p, b, k: _admit(sorted(p), b, k),
                "That serves the shortest prompts first: the queue has an order.", "Leave out the sort."),
        Mistake("equal_shares", lambda p, b, k: [min(n, b // len(p)) for n in p[:k]],
                "The budget isn't shared out evenly: the head takes all it can use.",
                "Grant min(prompt, budget), and subtract it."),
        Mistake("left", lambda p, b, k: b - sum(_admit(p, b, k)), "That is the budget left over: return the grants.",
                "Gather the grants in a list, and return it."),
        Mistake("total", lambda p, b, k: sum(_admit(p, b, k)), "That is all the prefill of the step: one number each.",
                "Return the list, not its sum."),
    ))


# ---- victim ---------------------------------------------------------------------------------------------------------

def _victim(running: list, policy: str) -> int:
    """Walk along the list; under priority, move on only for one that is less urgent."""
    at = 0
    for i, pair in enumerate(running):
        if policy == "fcfs" or tuple(pair) > tuple(running[at]):
            at = i
    return at


def _by(policy_of: str, key: Callable[[tuple], Any], pick: Callable[..., int] = max) -> Callable[[list, str], int]:
    """A victim chosen by another `key` under one policy: the first of the largest; else the right one."""
    def choose(running: list, policy: str) -> int:
        if policy != policy_of:
            return _victim(running, policy)
        return pick(range(len(running)), key=lambda i: key(running[i]))
    return choose


def _last_max(running: list, key: Callable[[tuple], Any]) -> int:
    return max(range(len(running)), key=lambda i: (key(running[i]), i))


def _other(policy: str) -> str:
    return "priority" if policy == "fcfs" else "fcfs"


def _batch_of_pairs(rng: random.Random) -> tuple:
    """2 to 6 pairs in any order, as after preemptions; ties are common."""
    return ([(rng.randint(-1, 2), rng.randint(0, 4)) for _ in range(rng.randint(2, 6))],
            rng.choice(("fcfs", "priority", "priority")))


VICTIM = Structured(
    id="victim", notebook="04", title="Who is preempted?", minutes=5, difficulty=2,
    signature="victim(running, policy)", returns="one number, a place in running",
    task="return the index of the request to preempt: the last under \"fcfs\"; under \"priority\" the first that has "
         "the largest (priority, arrival).",
    shows="the least urgent loses its blocks, so that those before it keep theirs; it computes its tokens again later.",
    oracle=_victim,
    explain=lambda running, policy: f"Under {policy}, "
        + ("the last of the list goes, whatever its numbers." if policy == "fcfs" else
           f"the largest (priority, arrival) is {max(map(tuple, running))}, and the first that has it goes."),
    worked=((([(0, 0), (0, 1)], "fcfs"), 1), (([(0, 0), (5, 1), (0, 2)], "fcfs"), 2), (([(2, 0), (0, 1)], "fcfs"), 1),
            (([(0, 0), (5, 1), (0, 2)], "priority"), 1), (([(1, 3), (1, 0)], "priority"), 0),
            (([(1, 2), (3, 0), (3, 4), (3, 4), (0, 9)], "priority"), 2), (([(0, 7)], "fcfs"), 0),
            (([(0, 4), (0, 2)], "fcfs"), 1)),
    draw=_batch_of_pairs,
    mistakes=(
        Mistake("always_last", lambda run, policy: len(run) - 1,
                "That is the rule of fcfs: under priority the least urgent goes, wherever it stands.",
                "Ask for policy == \"priority\", and take the first with max(running) there."),
        Mistake("always_priority", lambda run, policy: _victim(run, "priority"),
                "Under fcfs priorities are ignored: the last of running goes.",
                "Ask for policy == \"fcfs\", and return len(running) - 1 there."),
        Mistake("swapped", lambda run, policy: _victim(run, _other(policy)), "The two policies are swapped.",
                "\"fcfs\" takes the last; \"priority\" compares the pairs."),
        Mistake("last_tie", lambda run, policy: len(run) - 1 if policy == "fcfs" else _last_max(run, tuple),
                "Of two equal pairs the first goes.", "Use > and not >= where you compare, or running.index(...)."),
        Mistake("most_urgent", _by("priority", tuple, min),
                "That is the most urgent: a larger number is less urgent.", "Use max, not min."),
        Mistake("priority_alone", _by("priority", lambda pair: pair[0]),
                "Of equal priority the one that arrived last goes: compare the arrivals as well.",
                "Compare the whole pairs: Python looks at the priority first, then at the arrival."),
        Mistake("priority_then_place",
                lambda run, policy: len(run) - 1 if policy == "fcfs" else _last_max(run, lambda pair: pair[0]),
                "Of equal priority the one that arrived last goes, which needn't be the last in the list.",
                "Compare the whole pairs: Python looks at the priority first, then at the arrival."),
        Mistake("oldest", _by("priority", lambda pair: (pair[0], -pair[1])),
                "Of equal priority the one that arrived last goes, not the one that came first.",
                "Compare the pairs as they are, without turning the arrival round."),
        Mistake("arrival_alone", _by("priority", lambda pair: pair[1]),
                "Under priority the priority comes first, and the arrival only settles ties.",
                "Compare the whole pairs: Python looks at the priority first, then at the arrival."),
        Mistake("latest_arrival", _by("fcfs", lambda pair: pair[1]),
                "Under fcfs the last of running goes: after a preemption it needn't be the last to arrive.",
                "Return len(running) - 1, whatever the arrivals."),
        Mistake("first", lambda run, policy: 0 if policy == "fcfs" else _victim(run, policy),
                "Under fcfs the first in running has the oldest claim: the last one goes.",
                "Return len(running) - 1 under \"fcfs\"."),
        Mistake("minus_1", lambda run, policy: -1 if policy == "fcfs" else _victim(run, policy),
                "-1 finds the last one in Python, but return its place, counted from 0.",
                "Return len(running) - 1 under \"fcfs\"."),
        Mistake("past_the_end", lambda run, policy: len(run) if policy == "fcfs" else _victim(run, policy),
                "One past the end: places are counted from 0.", "Return len(running) - 1 under \"fcfs\"."),
        Mistake("pair", lambda run, policy: run[_victim(run, policy)],
                "That is the request itself: return its place in the list.", "running.index(pair) gives the place."),
    ))


# ---- binding_limit --------------------------------------------------------------------------------------------------

NONE, BUDGET, CAP, GATE = "none", "token budget", "sequence cap", "full-prompt gate"


def _forbids(waiting: int, running: int, cap: int, left: int, free: int, need: int) -> list[str]:
    """Every limit that forbids admitting the head, in the order in which vLLM looks."""
    found = {BUDGET: left == 0, CAP: running >= cap, GATE: need > free}
    return [name for name, forbids in found.items() if forbids] if waiting else []


def _binding_limit(waiting: int, running: int, max_num_seqs: int, budget_left: int, free_blocks: int,
                   head_blocks: int) -> str:
    """The first of those that forbid it."""
    return [*_forbids(waiting, running, max_num_seqs, budget_left, free_blocks, head_blocks), NONE][0]


def _in_order(*order: str) -> Callable[..., str]:
    """Look at the limits in another order, or at fewer of them."""
    def choose(*args: int) -> str:
        found = _forbids(*args)
        return next((name for name in order if name in found), NONE)
    return choose


def _page_rule(waiting: int, running: int, cap: int, left: int, free: int, need: int) -> str:
    """Below the cap, with somebody waiting, it must be memory."""
    if waiting == 0:
        return NONE
    return CAP if running >= cap else GATE


def _end_of_step(rng: random.Random) -> tuple:
    """The end of a step; each limit is at its edge about as often as it is beyond, or far."""
    cap, free = rng.randint(2, 9), rng.randint(0, 12)
    return (rng.choice((0, 1, 1, 2, 5)), rng.choice((cap, cap - 1, rng.randint(1, cap))), cap,
            rng.choice((0, 1, rng.randint(1, 90))), free, max(1, free + rng.choice((-3, 0, 1, 4))))


BINDING_LIMIT = Structured(
    id="binding_limit", notebook="04", title="What holds the head of the queue back?", minutes=5, difficulty=2,
    signature="binding_limit(waiting, running, max_num_seqs, budget_left, free_blocks, head_blocks)",
    returns="one of the texts \"none\", \"token budget\", \"sequence cap\", \"full-prompt gate\"",
    task="return the first that forbids admitting the head: \"token budget\" (none left), \"sequence cap\" (no slot), "
         "\"full-prompt gate\" (its prompt needs more blocks than are free); else \"none\".",
    shows="running below the cap with somebody waiting needn't be memory: look at what was left of each limit.",
    oracle=_binding_limit,
    explain=lambda w, r, cap, left, free, need: f"{w} waiting; {many(left, 'token')} of budget left; {r} running of "
                                                f"{cap}; the head needs {many(need, 'block')} and {free} are free.",
    worked=(((0, 3, 8, 50, 9, 1), NONE), ((1, 3, 8, 50, 9, 4), NONE), ((1, 8, 8, 50, 9, 4), CAP),
            ((1, 3, 8, 0, 9, 4), BUDGET), ((1, 3, 8, 50, 9, 10), GATE), ((1, 3, 8, 50, 9, 9), NONE),
            ((2, 8, 8, 0, 9, 10), BUDGET), ((2, 8, 8, 7, 0, 3), CAP), ((0, 8, 8, 0, 0, 1), NONE),
            ((1, 181, 256, 0, 900, 125), BUDGET)),
    draw=_end_of_step,
    mistakes=(
        Mistake("below_cap_is_memory", _page_rule,
                "Running below the cap with somebody waiting isn't always memory: the budget may be used up.",
                "Ask for budget_left == 0 first, and compare head_blocks with free_blocks last."),
        Mistake("cap_first", _in_order(CAP, BUDGET, GATE), "vLLM looks at the token budget before the sequence cap.",
                "Ask for budget_left == 0 first."),
        Mistake("gate_first", _in_order(GATE, BUDGET, CAP), "vLLM looks at memory last.",
                "Ask in this order: token budget, sequence cap, full-prompt gate."),
        Mistake("cap_last", _in_order(BUDGET, GATE, CAP), "vLLM looks at the sequence cap before memory.",
                "Ask in this order: token budget, sequence cap, full-prompt gate."),
        Mistake("last_one", _in_order(GATE, CAP, BUDGET),
                "Where several forbid it, return the first: yours gives the last.",
                "Return at once at the first that forbids it, or use elif."),
        Mistake("nobody_waits", lambda w, *rest: _binding_limit(1, *rest),
                "Where nobody waits, nobody is held back.", "Begin with: if waiting == 0: return \"none\"."),
        Mistake("gate_at_equal", lambda w, r, cap, left, free, need: _binding_limit(w, r, cap, left, free, need + 1),
                "A prompt that needs exactly the free blocks fits.", "Compare with >: head_blocks > free_blocks."),
        Mistake("cap_one_early", lambda w, r, cap, *rest: _binding_limit(w, r + 1, cap, *rest),
                "With one fewer than max_num_seqs running, one slot is left.", "Compare running >= max_num_seqs."),
        Mistake("no_budget", _in_order(CAP, GATE), "That takes no notice of the token budget.",
                "Ask for budget_left == 0 first."),
        Mistake("no_cap", _in_order(BUDGET, GATE), "With max_num_seqs running, no slot is left for the head.",
                "Ask for running >= max_num_seqs, between the other two: running never gets larger than it."),
        Mistake("no_gate", _in_order(BUDGET, CAP), "That takes no notice of memory.",
                "At last, ask for head_blocks > free_blocks."),
        Mistake("no_block_free", lambda w, r, cap, left, free, _: _binding_limit(w, r, cap, left, free, int(free == 0)),
                "A few free blocks aren't enough: the head's whole prompt must fit, though a chunk is computed now.",
                "Compare head_blocks > free_blocks."),
        Mistake("all", _forbids, "Those are all that forbid it: return the first as a text.",
                "Return at once at the first that forbids it, and \"none\" at the end."),
        Mistake("no_text", lambda *args: None if _binding_limit(*args) == NONE else _binding_limit(*args),
                "Where nothing forbids it, the answer is the text \"none\", not Python's None.",
                "End with: return \"none\"."),
    ))


# ---- chunk_plan -----------------------------------------------------------------------------------------------------

def _chunk_plan(prompts: list, decoding: int, budget: int) -> list[list[int]]:
    """Each step hands its tokens out one at a time: to those who decode, then to the first unfinished prompt."""
    left, plan = list(prompts), []
    while any(left):
        room = budget - decoding - left.count(0)
        plan.append([0] * len(prompts))
        while room > 0 and any(left):
            first = next(i for i, tokens in enumerate(left) if tokens)
            left[first] -= 1
            plan[-1][first] += 1
            room -= 1
    return plan


def _plan(prompts: list, room: Callable[[list], int], order: Callable[[list], list] = lambda left: [*range(len(left))],
          at_most: int = 99, spend: Callable[[int, int], int] = lambda grant, left: grant) -> list[list[int]]:
    """Steps by a changed rule: `room(left)` for prefill, the `order` served, how many `at_most`, what a grant costs."""
    left, plan = list(prompts), []
    while any(left):
        budget, grants = room(left), [0] * len(left)
        for i in [i for i in order(left) if left[i]][:at_most]:
            grants[i] = max(0, min(left[i], budget))
            budget -= spend(grants[i], left[i])
        left = [tokens - grant for tokens, grant in zip(left, grants, strict=True)]
        plan.append(grants)
    return plan


def _beside(decoding: int, budget: int) -> Callable[[list], int]:
    """What is left for prefill: the budget without those who decode, finished prompts among them."""
    return lambda left: budget - decoding - left.count(0)


def _even_shares(prompts: list, decoding: int, budget: int) -> list[list[int]]:
    left, plan = list(prompts), []
    while any(left):
        room, unfinished = budget - decoding - left.count(0), len(left) - left.count(0)
        grants = [min(tokens, max(1, room // unfinished)) for tokens in left]
        left = [tokens - grant for tokens, grant in zip(left, grants, strict=True)]
        plan.append(grants)
    return plan


def _columns(prompts: list, decoding: int, budget: int) -> list[list[int]]:
    return [list(column) for column in zip(*_chunk_plan(prompts, decoding, budget), strict=True)]


def _computed(prompts: list, decoding: int, budget: int) -> list[list[int]]:
    """What each prompt has computed after each step."""
    return [list(row) for row in zip(*map(accumulate, _columns(prompts, decoding, budget)), strict=True)]


def _arrivals(rng: random.Random) -> tuple:
    """1 to 3 prompts beside a few that decode; the budget leaves room when all of them decode."""
    prompts, decoding = [rng.randint(1, 20) for _ in range(rng.randint(1, 3))], rng.randint(0, 5)
    return prompts, decoding, decoding + len(prompts) + rng.randint(1, 9)


CHUNK_PLAN = Structured(
    id="chunk_plan", notebook="04", title="Predict the chunks", minutes=10, difficulty=3,
    signature="chunk_plan(prompts, decoding, budget)", returns="a list of steps, each a list with one number a prompt",
    task="return, step by step until all are computed, the prefill tokens of each prompt; those who decode take 1 "
         "token each first, and so does a prompt that finished in an earlier step.",
    shows="a long prompt is spread over steps and nobody who decodes waits for it; you predicted what vLLM does.",
    oracle=_chunk_plan,
    explain=lambda prompts, decoding, budget: f"In the first step {decoding} of {budget} tokens decode, which leaves "
                                              f"{budget - decoding}: "
                                              f"{literal(_chunk_plan(prompts, decoding, budget)[0])}.",
    worked=((([5], 0, 8), [[5]]), (([6], 3, 8), [[5], [1]]), (([5, 5], 3, 8), [[5, 0], [0, 4], [0, 1]]),
            (([2, 2], 1, 9), [[2, 2]]), (([7, 2, 9], 2, 10), [[7, 1, 0], [0, 1, 6], [0, 0, 3]]),
            (([2000, 2000], 180, 2048), [[1868, 0], [132, 1736], [0, 264]]),
            (([2000, 2000], 180, 8192), [[2000, 2000]])),
    draw=_arrivals,
    mistakes=(
        Mistake("no_decode", lambda p, d, b: _plan(p, lambda left: b),
                "The whole budget goes to prefill: those who decode take theirs first.",
                "Take `decoding` away from the budget at the start of each step, and finished prompts as well."),
        Mistake("finished_rest", lambda p, d, b: _plan(p, lambda left: b - d),
                "A prompt that is finished decodes from the next step on, and takes a token as well.",
                "Take away one token for each prompt that has nothing left at the start of the step."),
        Mistake("finished_only", lambda p, d, b: _plan(p, lambda left: b - left.count(0)),
                "Finished prompts take a token each, and the `decoding` sequences do, too.",
                "Take `decoding` away from the budget at the start of each step as well."),
        Mistake("decode_at_once", lambda p, d, b: _plan(
                    p, _beside(d, b), spend=lambda grant, left: grant + (grant == left)),
                "A prompt that finishes in this step makes its first token out of that pass: it takes no extra one.",
                "Count the finished prompts before you hand out this step's tokens."),
        Mistake("one_a_step", lambda p, d, b: _plan(p, _beside(d, b), at_most=1),
                "What the first prompt leaves over goes to the next one, in the same step.",
                "Go on to the next prompt while budget is left."),
        Mistake("not_spent", lambda p, d, b: _plan(p, _beside(d, b), spend=lambda grant, left: 0),
                "Each prompt is given the whole budget: what one takes is gone for the next.",
                "Subtract each grant before you go on to the next prompt."),
        Mistake("even_shares", _even_shares, "The budget isn't shared out evenly: prompts are served in order.",
                "Give the first unfinished prompt min(left, budget), then the next what remains."),
        Mistake("newest_first", lambda p, d, b: _plan(p, _beside(d, b), lambda left: [*range(len(left))][::-1]),
                "That serves the last prompt first.", "Go through the prompts from the first to the last."),
        Mistake("shortest_first", lambda p, d, b: _plan(
                    p, _beside(d, b), lambda left: sorted(range(len(left)), key=left.__getitem__)),
                "That serves the shortest first: prompts are served in order.",
                "Go through the prompts from the first to the last."),
        Mistake("no_zeros", lambda p, d, b: [[grant for grant in row if grant] for row in _chunk_plan(p, d, b)],
                "A prompt that gets nothing in a step is listed with 0 there.",
                "Begin each step with [0] * len(prompts), and fill in the grants."),
        Mistake("by_prompt", _columns, "That is one list for each prompt: return one for each step.",
                "Append one list a step; zip(*plan) would turn yours round."),
        Mistake("totals", lambda p, d, b: [sum(row) for row in _chunk_plan(p, d, b)],
                "That is all the prefill of each step: split it by prompt.",
                "Append a list with one number a prompt for each step."),
        Mistake("computed", _computed, "That is what each prompt has computed so far: return what it gets in a step.",
                "Append the grants of this step alone."),
        Mistake("empty_last_step", lambda p, d, b: [*_chunk_plan(p, d, b), [0] * len(p)],
                "One step too many: the plan ends with the step that computes the last prompt token.",
                "Ask at the top of the loop whether any prompt has tokens left."),
        Mistake("steps", lambda p, d, b: len(_chunk_plan(p, d, b)), "That is how many steps it takes: list them.",
                "Append a list with one number a prompt for each step."),
    ))

EXERCISES = (BLOCKS_NEEDED, RETIRE, ADMIT, VICTIM, BINDING_LIMIT, CHUNK_PLAN)
