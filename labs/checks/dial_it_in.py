"""The exercises of notebook 06: a cap from a measurement, replicas, the longest step, two gateways, an alert."""
from __future__ import annotations

import math
import random
from collections.abc import Sequence

from labs.checks.marking import Exercise, Mistake

# ---- cap_below ------------------------------------------------------------------------------------------------------


def _cap_below(levels: Sequence, itl: Sequence, target: float) -> float:
    """Go up the levels until one is above the target."""
    cap = 0
    for level, value in zip(levels, itl, strict=True):
        if value > target:
            return cap
        cap = level
    return cap


def _first_above(levels: Sequence, itl: Sequence, target: float) -> int | None:
    return next((i for i, value in enumerate(itl) if value > target), None)


def _crossing(levels: Sequence, itl: Sequence, target: float) -> float:
    place = _first_above(levels, itl, target)
    return levels[-1] if place is None else levels[place]


def _interpolated(levels: Sequence, itl: Sequence, target: float) -> float:
    place = _first_above(levels, itl, target)
    if place is None:
        return levels[-1]
    if place == 0:
        return 0
    low, high = levels[place - 1], levels[place]
    return low + (high - low) * (target - itl[place - 1]) / (itl[place] - itl[place - 1])


def _strictly_below(levels: Sequence, itl: Sequence, target: float) -> float:
    return _cap_below(levels, [value + 1e-6 for value in itl], target)


def _measurement(rng: random.Random) -> tuple:
    """A rising ITL with noise, so that it may dip below the target again beyond the crossing."""
    levels = [1, 2, 4, 8, 16, 32, 64][:rng.randint(4, 7)]
    itl = [10 + 3 * i + rng.randint(0, 9) for i in range(len(levels))]
    return levels, itl, rng.choice((*itl, rng.randint(8, 34), rng.randint(14, 26)))


CAP_BELOW = Exercise(
    id="cap_below", notebook="06", title="Cap below the crossing", minutes=4, difficulty=1,
    signature="cap_below(levels, itl, target)", returns="one of the levels, or 0",
    task="return the largest of the rising `levels` before the first one whose `itl` lies above `target`; 0 if the "
         "first already does.",
    shows="the cap comes from a measurement, and from the first crossing: a dip beyond it is noise, not room.",
    oracle=_cap_below,
    explain=lambda levels, itl, target: (
        f"The levels up to {cap} are at or below {target}, one after the other."
        if (cap := _cap_below(levels, itl, target)) else
        f"Level {levels[0]} has {itl[0]} already, above {target}: no level keeps the target, so it is 0."),
    worked=((([1, 2, 4, 8], [10, 20, 30, 50], 40), 4), (([1, 2, 4], [10, 20, 30], 40), 4),
            (([1, 2, 4, 8], [10, 20, 45, 39], 40), 2), (([1, 2], [50, 60], 40), 0),
            (([1, 2, 4], [10, 40, 50], 40), 2)),
    draw=_measurement,
    mistakes=(
        Mistake("beyond", lambda levels, itl, target: max(
            (level for level, value in zip(levels, itl, strict=True) if value <= target), default=0),
                "A level beyond the crossing is taken because its ITL dips again: stop at the first crossing.",
                "Leave the loop at the first ITL above the target."),
        Mistake("crossing", _crossing, "That is the level that crosses the target: the cap lies below it.",
                "Remember the level before, and return that one."),
        Mistake("crossing_alone", lambda levels, itl, target: levels[_first_above(levels, itl, target)],
                "That is the first level above the target: return the one before it.",
                "Keep the level before in a variable; where none is above the target, return the last level."),
        Mistake("strict", _strictly_below, "An ITL of exactly the target still keeps it.",
                "Stop where value > target, not where value >= target."),
        Mistake("place", lambda levels, itl, target: max(0, (_first_above(levels, itl, target) or len(levels)) - 1)
                if _first_above(levels, itl, target) != 0 else 0,
                "That is a position in the list: return the level that stands there.",
                "Go through zip(levels, itl), and keep the level."),
        Mistake("count", lambda levels, itl, target: len(levels) if _first_above(levels, itl, target) is None
                else _first_above(levels, itl, target),
                "That counts the levels before the crossing: return the last of them.",
                "Keep the level itself in a variable while you go up."),
        Mistake("first_anyway", lambda levels, itl, target: _cap_below(levels, itl, target) or levels[0],
                "Where even the first level is above the target there is no cap: return 0.",
                "Begin with cap = 0, not with levels[0]."),
        Mistake("its_itl", lambda levels, itl, target: ([0, *itl])[
            len(itl) if _first_above(levels, itl, target) is None else _first_above(levels, itl, target)],
                "That is an ITL: return the level at which it was measured.", "Return the level, not the value."),
        Mistake("interpolated", _interpolated,
                "That lies between two levels, where nothing was measured: return a level that was.",
                "Return the last level at or below the target, as it stands in the list."),
    ))


# ---- replicas_needed ------------------------------------------------------------------------------------------------


def _replicas_needed(rate: int, mean_tokens: int, itl_ms: int, cap: int) -> int:
    """Take a replica more until there are slots enough: in whole numbers."""
    replicas = 1
    while replicas * cap * 1000 < rate * mean_tokens * itl_ms:
        replicas += 1
    return replicas


def _together(rate: float, mean_tokens: float, itl_ms: float, cap: float) -> float:
    return rate * mean_tokens * itl_ms / 1000


def _deployment(rng: random.Random) -> tuple:
    """A load of 1.1 to 12 caps whose fraction is not near 0, so that no rounding of floats matters."""
    while True:
        case = rng.randint(2, 60), rng.randint(20, 400), rng.randint(8, 60), rng.choice((4, 8, 16, 24, 32))
        caps = _together(*case) / case[3]
        if 1.1 <= caps <= 12 and 0.05 < caps % 1 < 0.95:
            return case


REPLICAS_NEEDED = Exercise(
    id="replicas_needed", notebook="06", title="How many replicas does this load need?", minutes=6, difficulty=2,
    signature="replicas_needed(rate, mean_tokens, itl_ms, cap)", returns="one whole number",
    task="return the fewest replicas whose slots, `cap` each, hold all that decode at once: `rate` requests a second, "
         "`mean_tokens` output tokens each, one every `itl_ms`.",
    shows="rate x time in the system = how many are there (Little's law); the cap turns that into replicas.",
    oracle=_replicas_needed,
    explain=lambda rate, mean, ms, cap: f"A request decodes for {mean} x {ms} ms = {mean * ms / 1000:g} s, so "
                                        f"{rate * mean * ms / 1000:g} decode at once; {cap} fit into a replica.",
    worked=(((10, 100, 20, 20), 1), ((40, 118, 30, 24), 6), ((3, 50, 10, 8), 1), ((10, 100, 21, 20), 2)),
    draw=_deployment,
    mistakes=(
        Mistake("cut_off", lambda r, m, i, c: int(_together(r, m, i, c) / c),
                "Cut off: the rest of the load needs a replica as well.", "Round up, with math.ceil."),
        Mistake("nearest", lambda r, m, i, c: round(_together(r, m, i, c) / c),
                "Rounded to the nearest: below a half, some of the load finds no slot.", "Round up, with math.ceil."),
        Mistake("fraction", lambda r, m, i, c: _together(r, m, i, c) / c,
                "There is no part of a replica.", "Round up, with math.ceil."),
        Mistake("one_more", lambda r, m, i, c: int(_together(r, m, i, c) / c) + 1,
                "Where the load fills the slots exactly, that is one replica too many.",
                "math.ceil leaves a whole number as it is; int(...) + 1 doesn't."),
        Mistake("rate_only", lambda r, m, i, c: math.ceil(r / c),
                "A request holds its slot for longer than a second, or shorter: for mean_tokens x itl_ms.",
                "Multiply the rate by the seconds that a request decodes."),
        Mistake("milliseconds", lambda r, m, i, c: math.ceil(1000 * _together(r, m, i, c) / c),
                "The rate is per second and the ITL in milliseconds: divide by 1,000.",
                "A request decodes for mean_tokens * itl_ms / 1000 seconds."),
        Mistake("sequences", lambda r, m, i, c: math.ceil(_together(r, m, i, c)),
                "That is how many decode at once: how many replicas hold them?", "Divide by `cap` before rounding up."),
        Mistake("one_token", lambda r, m, i, c: math.ceil(r * i / 1000 / c),
                "That is the time of one token: an answer has `mean_tokens` of them.",
                "Multiply by mean_tokens: a request decodes for mean_tokens * itl_ms / 1000 seconds."),
        Mistake("tokens_a_second", lambda r, m, i, c: math.ceil(r * m / c),
                "Tokens a second over slots: a slot makes 1000 / itl_ms tokens a second, not one.",
                "Divide the tokens a second by what a replica makes: cap * 1000 / itl_ms."),
    ))


# ---- longest_step ---------------------------------------------------------------------------------------------------


def _chunks(prompt: int, decoding: int, budget: int) -> list[int]:
    room, left, chunks = budget - decoding, prompt, []
    while left:
        chunks.append(min(room, left))
        left -= chunks[-1]
    return chunks


def _longest_step(prompt: int, decoding: int, budget: int, base: float, per_sequence: float, per_token: float) -> float:
    """Go through the steps, and keep the longest."""
    return max(base + per_sequence * decoding + per_token * chunk for chunk in _chunks(prompt, decoding, budget))


def _arrival(rng: random.Random) -> tuple:
    """Prompts of several chunks, or of one, whole milliseconds."""
    decoding = rng.randint(4, 60)
    budget = decoding + rng.randint(20, 200)
    prompt = (budget - decoding) * rng.randint(2, 5) + rng.randint(1, 15) if rng.random() < 0.8 else rng.randint(5, 19)
    return prompt, decoding, budget, rng.randint(5, 20), rng.randint(1, 4), rng.randint(1, 5)


LONGEST_STEP = Exercise(
    id="longest_step", notebook="06", title="The longest gap that a long prompt makes", minutes=5, difficulty=2,
    signature="longest_step(prompt, decoding, budget, base, per_sequence, per_token)", returns="one number",
    task="return the longest step while a prompt of `prompt` tokens is computed beside `decoding` sequences: `base` + "
         "`per_sequence` for each + `per_token` for each token of the chunk.",
    shows="the budget, not the prompt, bounds the longest gap: that is how a smaller budget makes ITL smoother.",
    oracle=_longest_step,
    explain=lambda prompt, d, b, *times: f"The chunks are {_chunks(prompt, d, b)} tokens, each beside {d} sequences.",
    worked=(((2000, 180, 2048, 8, 0.1, 0.04), 8 + 18 + 0.04 * 1868), ((100, 4, 64, 10, 1, 1), 10 + 4 + 60),
            ((30, 4, 64, 10, 1, 1), 44), ((60, 4, 64, 10, 1, 1), 74)),
    draw=_arrival, tolerance=1e-6,
    mistakes=(
        Mistake("whole_prompt", lambda p, d, b, t, s, k: t + s * d + k * p,
                "The whole prompt in one step: with chunked prefill, no step is longer than the budget.",
                "A chunk has at most budget - decoding tokens."),
        Mistake("no_decoders", lambda p, d, b, t, s, k: t + s * d + k * min(p, b),
                "The chunk takes the whole budget: the sequences that decode take a token each, first.",
                "A chunk has at most budget - decoding tokens."),
        Mistake("always_full", lambda p, d, b, t, s, k: t + s * d + k * (b - d),
                "A short prompt doesn't fill the budget.", "The chunk is the smaller of prompt and budget - decoding."),
        Mistake("last_chunk", lambda p, d, b, t, s, k: t + s * d + k * _chunks(p, d, b)[-1],
                "That is the last chunk's step: an earlier one may be longer.",
                "Take the first chunk: it is the largest."),
        Mistake("all_steps", lambda p, d, b, t, s, k: sum(t + s * d + k * c for c in _chunks(p, d, b)),
                "That is the time of all the steps: a gap lasts for one of them.", "Take the largest, not the sum."),
        Mistake("prefill_only", lambda p, d, b, t, s, k: k * _chunks(p, d, b)[0],
                "The chunk's tokens alone: the step has its fixed cost and the decoding sequences, too.",
                "Add base and per_sequence * decoding."),
        Mistake("no_sequences", lambda p, d, b, t, s, k: t + k * _chunks(p, d, b)[0],
                "The sequences that decode in the same step cost time as well.", "Add per_sequence * decoding."),
        Mistake("no_base", lambda p, d, b, t, s, k: s * d + k * _chunks(p, d, b)[0],
                "Every step has a fixed cost.", "Add base."),
    ))


# ---- sent_at --------------------------------------------------------------------------------------------------------


def _sent_at(arrivals: Sequence, window: float) -> list:
    """Open a window for whoever finds none open."""
    sent, closes = [], None
    for arrival in arrivals:
        if closes is None or arrival > closes:
            closes = arrival + window
        sent.append(closes)
    return sent


def _debounced(arrivals: Sequence, window: float) -> list:
    """A window that each new arrival holds open."""
    groups: list[list] = []
    for arrival in arrivals:
        if groups and arrival <= groups[-1][-1] + window:
            groups[-1].append(arrival)
        else:
            groups.append([arrival])
    return [group[-1] + window for group in groups for _ in group]


def _exclusive(arrivals: Sequence, window: float) -> list:
    sent, closes = [], None
    for arrival in arrivals:
        if closes is None or arrival >= closes:
            closes = arrival + window
        sent.append(closes)
    return sent


def _trickle(rng: random.Random) -> tuple:
    """Whole milliseconds; often somebody comes exactly when the window closes."""
    window, time, arrivals = rng.choice((20, 50)), rng.randint(1, 30), []
    for _ in range(rng.randint(4, 8)):
        arrivals.append(time)
        time += rng.choice((rng.randint(1, 20), rng.randint(20, 90), window))
    return arrivals, window


SENT_AT = Exercise(
    id="sent_at", notebook="06", title="A client that collects requests", minutes=5, difficulty=2,
    signature="sent_at(arrivals, window)", returns="a list, one time a request",
    task="return when each request is sent by a client that collects: the first opens a window of `window` ms, all who "
         "come until it closes are sent then, and the next opens another.",
    shows="nobody gains and everybody waits: the first of each window longest, and they hit the server together.",
    oracle=_sent_at,
    explain=lambda arrivals, window: "Windows close at " + ", then ".join(
        f"{closes - window} + {window} = {closes}" for closes in sorted(set(_sent_at(arrivals, window)))) + ".",
    worked=((([0, 10, 60], 50), [50, 50, 110]), (([5], 50), [55]), (([0, 50, 51], 50), [50, 50, 101]),
            (([0, 30, 60, 90], 50), [50, 50, 110, 110])),
    draw=_trickle,
    mistakes=(
        Mistake("each_alone", lambda arrivals, window: [a + window for a in arrivals],
                "Everybody waits a whole window: those who come later leave with the one that is open.",
                "Keep the time at which the open window closes; open a new one only for who comes after it."),
        Mistake("unchanged", lambda arrivals, window: list(arrivals),
                "That sends each at once, which is the better client: this one collects.",
                "Give everyone in a window the time at which it closes."),
        Mistake("grid", lambda arrivals, window: [window * math.ceil(a / window) for a in arrivals],
                "Those windows stand at fixed times: here the first request opens one.",
                "A window closes at the arrival that opened it, plus `window`."),
        Mistake("back_to_back", lambda arrivals, window: [
            arrivals[0] + window * max(1, math.ceil((a - arrivals[0]) / window)) for a in arrivals],
                "Those windows follow each other without a gap: the next opens only when somebody comes.",
                "A window closes at the arrival that opened it, plus `window`: not at the one before plus `window`."),
        Mistake("held_open", _debounced, "Each new request holds the window open: it closes a window after the first.",
                "Set the closing time only when a window opens."),
        Mistake("excluded", _exclusive, "Who comes exactly when it closes is still sent with it.",
                "Open a new window where arrival > closes, not where arrival >= closes."),
        Mistake("opening", lambda arrivals, window: [t - window for t in _sent_at(arrivals, window)],
                "That is when the window opened: they are sent when it closes.", "Add `window`."),
        Mistake("delays", lambda arrivals, window: [t - a for t, a in
                                                    zip(_sent_at(arrivals, window), arrivals, strict=True)],
                "Those are the delays: return the times at which they are sent.", "Don't subtract the arrivals."),
        Mistake("one_each", lambda arrivals, window: sorted(set(_sent_at(arrivals, window))),
                "One time a window: one a request is wanted.", "Append a time for every arrival."),
    ))


# ---- let_through ----------------------------------------------------------------------------------------------------


def _let_through(arrivals: Sequence, seconds: Sequence, limit: int) -> list:
    """Let each through at the first moment when fewer than `limit` of those before it are under way."""
    let: list[float] = []
    for i, arrival in enumerate(arrivals):
        ends = [let[j] + seconds[j] for j in range(i)]
        moments = [m for m in sorted({arrival, *ends}) if m >= max([arrival, *let])]
        let.append(next(m for m in moments if sum(end > m for end in ends) < limit))
    return let


def _in_groups(arrivals: Sequence, seconds: Sequence, limit: int) -> list:
    let, free = [], 0.0
    for first in range(0, len(arrivals), limit):
        part = range(first, min(first + limit, len(arrivals)))
        starts = [max(arrivals[i], free) for i in part]
        let += starts
        free = max(s + seconds[i] for s, i in zip(starts, part, strict=True))
    return let


def _by_turn(arrivals: Sequence, seconds: Sequence, limit: int) -> list:
    free, let = [0] * limit, []
    for i, arrival in enumerate(arrivals):
        let.append(max(arrival, free[i % limit]))
        free[i % limit] = let[-1] + seconds[i]
    return let


def _without_arrivals(arrivals: Sequence, seconds: Sequence, limit: int) -> list:
    return _let_through([0] * len(arrivals), seconds, limit)


def _burst(rng: random.Random) -> tuple:
    """A tenant's requests, most of them at once, of different lengths."""
    n, time, arrivals = rng.randint(5, 8), rng.randint(0, 3), []
    for _ in range(n):
        arrivals.append(time)
        time += rng.choice((0, 0, 1, 2, 12))
    return arrivals, [rng.randint(1, 9) for _ in range(n)], rng.randint(2, 3)


LET_THROUGH = Exercise(
    id="let_through", notebook="06", title="A limit at the gateway", minutes=10, difficulty=3,
    signature="let_through(arrivals, seconds, limit)", returns="a list, one time a request",
    task="return when a gateway lets each of a tenant's requests through, in order, if at most `limit` of them may be "
         "under way; each is under way for its `seconds`.",
    shows="a limit spreads a burst over time: others find slots and blocks free, and the tenant's queue is its own.",
    oracle=_let_through,
    explain=lambda arrivals, seconds, limit: f"The first {limit} go through as they come; the next must wait until "
                                             f"one of them has ended.",
    worked=((([0, 0, 0], [5, 2, 4], 2), [0, 0, 2]), (([0, 0, 0], [5, 2, 4], 1), [0, 5, 7]),
            (([0, 10], [5, 2], 1), [0, 10]), (([0, 1, 2], [4, 4, 4], 9), [0, 1, 2]),
            (([0, 0, 0, 0], [1, 9, 1, 1], 2), [0, 0, 1, 2])),
    draw=_burst,
    mistakes=(
        Mistake("no_limit", lambda a, s, k: list(a),
                "Everybody goes through at once: at most `limit` may be under way.",
                "Keep the times at which those under way end; wait for the earliest when there are `limit` of them."),
        Mistake("groups", _in_groups, "That waits for a whole group to end, as static batching does.",
                "Let the next one through as soon as any one of those under way has ended."),
        Mistake("by_turn", _by_turn, "The i-th waits for the one `limit` before it: another may have ended earlier.",
                "Take the smallest of the times at which a place becomes free."),
        Mistake("too_early", _without_arrivals, "Somebody is let through before having arrived.",
                "Take the larger of the arrival and the time at which a place is free."),
        Mistake("one_more", lambda a, s, k: _let_through(a, s, k + 1), "One more is under way than may be.",
                "Wait where `limit` are under way already."),
        Mistake("one_fewer", lambda a, s, k: _let_through(a, s, max(1, k - 1)),
                "One fewer is under way than may be.", "Wait only where `limit` are under way."),
        Mistake("one_by_one", lambda a, s, k: _let_through(a, s, 1),
                "That lets one through at a time, whatever the limit.",
                "Keep `limit` times at which a place is free, not one."),
        Mistake("ends", lambda a, s, k: [t + x for t, x in zip(_let_through(a, s, k), s, strict=True)],
                "Those are the times at which they end: return when they are let through.", "Don't add `seconds`."),
        Mistake("waits", lambda a, s, k: [t - x for t, x in zip(_let_through(a, s, k), a, strict=True)],
                "That is how long each waits: return the times at which they are let through.",
                "Don't subtract the arrivals."),
    ))


# ---- fires_at -------------------------------------------------------------------------------------------------------


def _fires_at(values: Sequence, threshold: float, hold: int) -> int:
    """Look at each window of `hold` values."""
    for end in range(hold, len(values) + 1):
        if all(value > threshold for value in values[end - hold:end]):
            return end - 1
    return -1


def _not_in_a_row(values: Sequence, threshold: float, hold: int) -> int:
    places = [i for i, value in enumerate(values) if value > threshold]
    return places[hold - 1] if len(places) >= hold else -1


def _shifted(values: Sequence, threshold: float, hold: int, by: int) -> int:
    at = _fires_at(values, threshold, hold)
    return at if at == -1 else at + by * (hold - 1)


def _mean_above(values: Sequence, threshold: float, hold: int) -> int:
    return next((end - 1 for end in range(hold, len(values) + 1)
                 if sum(values[end - hold:end]) / hold > threshold), -1)


def _series(rng: random.Random) -> tuple:
    """Runs above and below, with values at the threshold itself."""
    hold, values = rng.randint(2, 4), []
    for _ in range(rng.randint(3, 6)):
        values += [rng.choice((5, rng.randint(0, 4)))] * rng.randint(1, 2)
        values += [rng.choice((5, rng.randint(6, 30), rng.randint(6, 9))) for _ in range(rng.randint(1, 5))]
    return values, 5, hold


FIRES_AT = Exercise(
    id="fires_at", notebook="06", title="When does the alert fire?", minutes=5, difficulty=2,
    signature="fires_at(values, threshold, hold)", returns="one position, from 0 on, or -1",
    task="return the position in `values` at which an alert fires that wants `hold` of them in a row above "
         "`threshold`; -1 if it never does.",
    shows="`for:` in an alert rule trades a few minutes of lead time for not being woken by every spike.",
    oracle=_fires_at,
    explain=lambda values, threshold, hold: f"Count how many in a row lie above {threshold}: it fires when the count "
                                            f"reaches {hold}.",
    worked=((([1, 9, 9, 9], 5, 2), 2), (([9, 1, 9, 1], 5, 2), -1), (([1, 9], 5, 1), 1), (([9, 5, 9, 9], 5, 2), 3),
            (([9, 9, 9], 5, 3), 2)),
    draw=_series,
    mistakes=(
        Mistake("first", lambda v, t, h: _fires_at(v, t, 1), "That is the first value above: it wants `hold` in a row.",
                "Count those in a row, and set the count back to 0 at every value that isn't above."),
        Mistake("start", lambda v, t, h: _shifted(v, t, h, -1),
                "That is where the row begins: the alert can't know yet that it will last.",
                "Return the position at which the count reaches `hold`."),
        Mistake("not_in_a_row", _not_in_a_row, "Those aren't in a row: a value below in between starts the count anew.",
                "Set the count back to 0 at every value that isn't above."),
        Mistake("at_equal", lambda v, t, h: _fires_at([x + 1e-6 for x in v], t, h),
                "A value equal to the threshold isn't above it.", "Write value > threshold, not value >= threshold."),
        Mistake("one_late", lambda v, t, h: _fires_at(v, t, h + 1), "That wants one value more than `hold`.",
                "It fires when the count reaches `hold`, not when it is above it."),
        Mistake("counted", lambda v, t, h: _fires_at(v, t, h) + 1 if _fires_at(v, t, h) >= 0 else -1,
                "One too far: positions count from 0.", "Use enumerate(values), which begins at 0."),
        Mistake("never_is_0", lambda v, t, h: max(0, _fires_at(v, t, h)),
                "Where it never fires, return -1: 0 would be the first value.", "Return -1 after the loop."),
        Mistake("mean", _mean_above, "That is the mean of `hold` values: one spike can lift it.",
                "Each of the `hold` values must be above."),
        Mistake("below", lambda v, t, h: _fires_at([-x for x in v], -t, h),
                "That looks for values below the threshold.",
                "Write value > threshold."),
    ))

EXERCISES = (CAP_BELOW, REPLICAS_NEEDED, LONGEST_STEP, SENT_AT, LET_THROUGH, FIRES_AT)
