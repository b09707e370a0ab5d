"""The exercises of notebook 03: the law behind the sweep, load, spread, the gain, and fitting a lognormal."""
from __future__ import annotations

import math
import random
import statistics
from fractions import Fraction
from itertools import combinations, product

from labs.checks.eight_requests import EIGHT, groups
from labs.checks.marking import Exercise, Mistake
from labs.metrics import expected_max
from labs.slots import continuous_batching, static_batching
from labs.words import many


def _pool(rng: random.Random) -> tuple:
    """3 to 5 lengths, not all equal, and as many draws or fewer, so that drawing without replacement works as well."""
    lengths = [rng.randint(1, 30) for _ in range(rng.randint(3, 5))]
    return [*lengths, max(lengths) + rng.randint(1, 30)], rng.randint(2, 4)


def _varied(rng: random.Random) -> list:
    """3 to 7 lengths of which at least two differ."""
    lengths = [rng.randint(2, 40) for _ in range(rng.randint(2, 6))]
    return [*lengths, max(lengths) + rng.randint(1, 40)]


# ---- expected_max ---------------------------------------------------------------------------------------------------

def _expected_max(lengths: list, draws: int) -> Fraction:
    """Go through every way to draw, and take the mean of the longest."""
    ways = list(product(lengths, repeat=draws))
    return Fraction(sum(map(max, ways)), len(ways))


def _harmonic(lengths: list, draws: int) -> float:
    return statistics.fmean(lengths) * sum(1 / k for k in range(1, draws + 1))


def _without_replacement(lengths: list, draws: int) -> float:
    return statistics.fmean(map(max, combinations(lengths, draws)))


def _expected_min(lengths: list, draws: int) -> float:
    return statistics.fmean(map(min, product(lengths, repeat=draws)))


def _index_one_off(lengths: list, draws: int) -> float:
    n = len(lengths)
    return sum(x * ((i / n) ** draws - ((i - 1) / n) ** draws) for i, x in enumerate(sorted(lengths)))


EXPECTED_MAX = Exercise(
    id="expected_max", notebook="03", title="How long is a group, on average?", minutes=8, difficulty=3,
    signature="expected_max(lengths, draws)", returns="one number",
    task="return the mean of the longest of `draws` lengths, each drawn at random from `lengths`, with replacement; "
         "exactly, without drawing.",
    shows="the longest of a group is at most x with probability (share of lengths up to x) ** draws: the tail decides.",
    oracle=_expected_max,
    explain=lambda ls, k: f"There are {len(ls)} ** {k} = {len(ls) ** k} equally likely draws; {max(ls)} is the longest "
                          f"in {len(ls) ** k - sum(x < max(ls) for x in ls) ** k} of them.",
    worked=((([5], 1), 5), (([1, 2], 1), 1.5), (([1, 2], 2), 1.75), (([10, 20, 60], 2), 370 / 9),
            (([2, 2, 8], 2), 48 / 9),
            (([3, 1, 2], 3), 8 / 3)), draw=_pool, tolerance=1e-6,
    mistakes=(
        Mistake("longest", lambda ls, k: max(ls), "The longest of all isn't in every group.",
                "Each value is the longest of a group with some probability: weigh it by that."),
        Mistake("mean", lambda ls, k: statistics.fmean(ls),
                "That is the mean of one draw: a group takes as long as its longest.",
                "P(longest <= x) = (share of lengths up to x) ** draws; turn that into a mean."),
        Mistake("mean_times_draws", lambda ls, k: statistics.fmean(ls) * k,
                "That is the mean of the sum of the draws: they run at the same time.",
                "P(longest <= x) = (share of lengths up to x) ** draws; turn that into a mean."),
        Mistake("harmonic", _harmonic, "mean x (1 + 1/2 + ... + 1/draws) holds for exponential lengths only.",
                "Use the lengths themselves: P(longest <= x) = (share of lengths up to x) ** draws."),
        Mistake("mean_log", lambda ls, k: statistics.fmean(ls) * math.log(k),
                "mean x ln(draws) is a rule of thumb for exponential lengths.",
                "Use the lengths themselves: P(longest <= x) = (share of lengths up to x) ** draws."),
        Mistake("without_replacement", _without_replacement,
                "That never draws the same request twice: here each draw is from all the lengths.",
                "Use product(lengths, repeat=draws) instead of combinations, or ((i/n) ** draws) as the share."),
        Mistake("shortest", _expected_min, "That is the mean of the shortest: a group waits for its longest.",
                "The longest is at most x when all draws are: (share of lengths up to x) ** draws."),
        Mistake("these_groups", lambda ls, k: statistics.fmean(map(max, groups(ls, k))),
                "That is the mean over the groups in this order: average over every way to draw.",
                "Sort the lengths; the i-th of n is the longest with probability (i/n) ** draws - ((i-1)/n) ** draws."),
        Mistake("first_draws", lambda ls, k: max(ls[:k]), "That is the longest of the first ones: draws are random.",
                "Average max() over every way to draw, or weigh each length by its probability."),
        Mistake("distinct", lambda ls, k: expected_max(sorted(set(ls)), k),
                "A length that occurs twice is twice as likely: don't drop it.", "Use sorted(lengths) without set()."),
        Mistake("index_from_0", _index_one_off, "One off: the shortest of n has share 1/n below or at it, not 0.",
                "Count from 1: enumerate(sorted(lengths), 1)."),
        Mistake("at_most", lambda ls, k: sum(x * (i / len(ls)) ** k for i, x in enumerate(sorted(ls), 1)),
                "(i/n) ** draws is the probability that the longest is *at most* the i-th.",
                "Subtract the probability that it is at most the one before: ((i-1)/n) ** draws."),
        Mistake("unsorted", lambda ls, k: sum(x * ((i / len(ls)) ** k - ((i - 1) / len(ls)) ** k)
                                              for i, x in enumerate(ls, 1)),
                "The i-th must be the i-th smallest.", "Loop over enumerate(sorted(lengths), 1)."),
        Mistake("one_draw_less", lambda ls, k: expected_max(ls, k - 1) if k > 1 else 0,
                "That is the longest of one draw fewer.", "The exponent is draws, not draws - 1."),
        Mistake("one_draw_more", lambda ls, k: expected_max(ls, k + 1),
                "That is the longest of one draw more.", "The exponent is draws, not draws + 1."),
        Mistake("sampled", expected_max, "Close, but not exact: that looks like a mean over random draws.",
                "No drawing: the i-th smallest of n is the longest with probability (i/n) ** draws - ((i-1)/n) ** "
                "draws.",
                within=0.1),
    ))


# ---- predicted_static_utilisation -----------------------------------------------------------------------------------

def _predicted(lengths: list, slots: int) -> Fraction:
    """Mean length over mean group length."""
    return Fraction(sum(lengths), len(lengths)) / _expected_max(lengths, slots)


PREDICTED_STATIC_UTILISATION = Exercise(
    id="predicted_static_utilisation", notebook="03", title="The law behind the sweep", minutes=3, difficulty=1,
    signature="predicted_static_utilisation(lengths, slots)", returns="one number, a share from 0 to 1",
    task="return the utilisation that static batching has on full groups of `slots` lengths drawn at random from "
         "`lengths`: mean length / mean longest of a group.",
    shows="the length distribution and the slots alone say what static batching wastes, before anything has run.",
    oracle=_predicted,
    explain=lambda ls, k: f"The mean length is {statistics.fmean(ls):.6g}, and a group of {k} takes "
                          f"{float(_expected_max(ls, k)):.6g} steps on average.",
    worked=((([5], 1), 1), (([1, 2], 1), 1), (([1, 2], 2), 6 / 7), (([10, 20, 60], 2), 30 / (370 / 9)),
            (([4, 4, 4], 3), 1)),
    draw=_pool, tolerance=1e-6,
    mistakes=(
        Mistake("longest_of_all", lambda ls, k: statistics.fmean(ls) / max(ls),
                "That is a batch of everything: a group of `slots` rarely holds the longest of all.",
                "Divide by expected_max(lengths, slots) instead of max(lengths)."),
        Mistake("simulated", lambda ls, k: static_batching(ls, k).utilisation,
                "That is the utilisation of one run in this order: the law needs no run.",
                "Divide the mean length by expected_max(lengths, slots)."),
        Mistake("inverted", lambda ls, k: 1 / _predicted(ls, k),
                "Upside down: that is the gain of continuous batching, not utilisation.",
                "Divide the mean length by the mean longest, not the other way round."),
        Mistake("waste", lambda ls, k: 1 - _predicted(ls, k), "That is the wasted share.", "Leave out the 1 - ..."),
        Mistake("per_slot", lambda ls, k: _predicted(ls, k) / k,
                "The work of one slot is divided by the slot-steps of all: `slots` requests share a group.",
                "Leave out the division by `slots`: it stands above and below, and cancels."),
        Mistake("total", lambda ls, k: sum(ls) / _expected_max(ls, k),
                "That is the sum of all lengths over one group's steps.", "Use the mean length, not the sum."),
        Mistake("mean_of_ratios",
                lambda ls, k: statistics.fmean(sum(way) / (k * max(way)) for way in product(ls, repeat=k)),
                "That averages each group's utilisation: long groups last longer, so they count for more.",
                "Take both means first, and then divide one by the other."),
        Mistake("continuous", lambda ls, k: continuous_batching(ls, k).utilisation,
                "That is continuous batching, simulated.", "Divide the mean length by expected_max(lengths, slots)."),
        Mistake("median", lambda ls, k: statistics.median(ls) / _expected_max(ls, k),
                "The useful work is the sum of lengths: it needs the mean, not the median.",
                "Use the mean of lengths."),
        Mistake("without_replacement", lambda ls, k: statistics.fmean(ls) / _without_replacement(ls, k),
                "The longest of a group without drawing the same request twice: here each draw is from all lengths.",
                "Use your expected_max, which draws with replacement."),
        Mistake("sampled", lambda ls, k: _predicted(ls, k),
                "Close, but not exact: that looks like a mean over random draws.",
                "Use your exact expected_max: nothing needs to be drawn.", within=0.1),
    ))


# ---- arrival_rate ---------------------------------------------------------------------------------------------------

def _arrival_rate(load: float, lengths: list, slots: int) -> Fraction:
    """All slots together make `slots` tokens a step; a request needs its mean length of them."""
    capacity = slots / Fraction(sum(lengths), len(lengths))
    return Fraction(load) * capacity


ARRIVAL_RATE = Exercise(
    id="arrival_rate", notebook="03", title="How many requests make a load of 0.5?", minutes=5, difficulty=2,
    signature="arrival_rate(load, lengths, slots)", returns="one number, requests per step",
    task="return the requests per step that make up `load`, where 1 is all that continuous batching can serve: `slots` "
         "tokens a step.",
    shows="load compares the work that arrives with the work that the slots can do; above 1 no scheduler keeps up.",
    oracle=_arrival_rate,
    explain=lambda load, ls, k: f"{many(k, 'slot')} can make {many(k, 'token')} a step, and a request needs "
                                f"{statistics.fmean(ls):.6g} on average: load 1 is "
                                f"{many(k / statistics.fmean(ls), 'request')} a step.",
    worked=(((1, [4, 4], 4), 1), ((0.5, [4, 4], 4), 0.5), ((1, [10, 30], 2), 0.1), ((2, [3], 3), 2), ((1, [5], 4), 0.8),
            ((0.5, [1, 2, 9], 8), 1)),
    draw=lambda rng: (rng.choice((0.25, 0.5, 0.75, 1.5)), _varied(rng), rng.randint(2, 9)),
    mistakes=(
        Mistake("gap", lambda load, ls, k: statistics.fmean(ls) / (load * k),
                "Upside down: that is the steps between two arrivals.", "The rate is 1 over that gap."),
        Mistake("one_slot", lambda load, ls, k: load / statistics.fmean(ls),
                "That is what one slot can serve: there are `slots` of them.", "Multiply by `slots`."),
        Mistake("full_load", lambda load, ls, k: k / statistics.fmean(ls),
                "That is load 1, whatever `load` says.", "Multiply by `load`."),
        Mistake("tokens", lambda load, ls, k: load * k,
                "Those are tokens per step: how many requests is that?", "Divide by the mean length."),
        Mistake("times_mean", lambda load, ls, k: load * k * statistics.fmean(ls),
                "Longer requests mean fewer of them: divide by the mean length.", "load * slots / mean length."),
        Mistake("total", lambda load, ls, k: load * k / sum(ls),
                "That divides by the sum of lengths: one request needs their mean.", "Multiply by len(lengths)."),
        Mistake("longest", lambda load, ls, k: load * k / max(ls),
                "Not every request is as long as the longest.", "Divide by the mean length."),
        Mistake("median", lambda load, ls, k: load * k / statistics.median(ls),
                "The work that arrives follows from the mean length, not from the median: the tail counts.",
                "Divide by sum(lengths) / len(lengths)."),
        Mistake("static_capacity", lambda load, ls, k: load * k / expected_max(ls, k),
                "That is a share of what static batching can serve: load is defined against continuous batching.",
                "Divide by the mean length, not by the mean longest."),
        Mistake("load_in_percent", lambda load, ls, k: load / 100 * k / statistics.fmean(ls),
                "load is a share here: a half is 0.5.", "Leave out the division by 100."),
        Mistake("per_slot", lambda load, ls, k: load / (k * statistics.fmean(ls)),
                "More slots serve more requests: multiply by `slots`.", "load * slots / mean length."),
    ))


# ---- coefficient_of_variation ---------------------------------------------------------------------------------------

def _cv(lengths: list) -> float:
    """Root of the mean squared distance from the mean, over the mean."""
    mean = Fraction(sum(lengths), len(lengths))
    return math.sqrt(sum((x - mean) ** 2 for x in lengths) / len(lengths)) / mean


COEFFICIENT_OF_VARIATION = Exercise(
    id="coefficient_of_variation", notebook="03", title="One number for the spread", minutes=3, difficulty=1,
    signature="coefficient_of_variation(lengths)", returns="one number",
    task="return the coefficient of variation: the (population) standard deviation of `lengths` over their mean.",
    shows="CV compares spread across workloads of any mean: near 0 continuous batching gains little, above 1 a lot.",
    oracle=_cv,
    explain=lambda ls: f"The mean is {statistics.fmean(ls):.6g}, and the standard deviation (dividing by n = "
                       f"{len(ls)}) {statistics.pstdev(ls):.6g}.",
    worked=((([5, 5],), 0), (([1, 3],), 0.5), (([2, 4, 4, 4, 5, 5, 7, 9],), 0.4), (([10, 30],), 0.5)),
    draw=lambda rng: (_varied(rng),),
    mistakes=(
        Mistake("sample", lambda ls: statistics.stdev(ls) / statistics.fmean(ls),
                "That divides by n - 1, for a sample: here the lengths are all there is.",
                "Use statistics.pstdev, or numpy's std with ddof=0."),
        Mistake("std", statistics.pstdev, "That is the standard deviation, in tokens: CV has no unit.",
                "Divide by the mean."),
        Mistake("variance", statistics.pvariance, "That is the variance, in tokens squared: CV has no unit.",
                "Take the square root, then divide by the mean."),
        Mistake("variance_over_mean", lambda ls: statistics.pvariance(ls) / statistics.fmean(ls),
                "That is variance over mean: take the square root of the variance.", "Use the standard deviation."),
        Mistake("squared", lambda ls: statistics.pvariance(ls) / statistics.fmean(ls) ** 2,
                "That is CV squared.", "Take the square root."),
        Mistake("inverted", lambda ls: statistics.fmean(ls) / statistics.pstdev(ls),
                "Upside down: the spread belongs above.", "Divide the standard deviation by the mean."),
        Mistake("mean_distance",
                lambda ls: statistics.fmean(abs(x - statistics.fmean(ls)) for x in ls) / statistics.fmean(ls),
                "That takes the mean distance: the standard deviation squares the distances first.",
                "Square each distance, take the mean, then the root."),
        Mistake("range", lambda ls: (max(ls) - min(ls)) / statistics.fmean(ls),
                "That is the range over the mean: only two requests decide it.", "Use the standard deviation."),
        Mistake("over_median", lambda ls: statistics.pstdev(ls) / statistics.median(ls),
                "That divides by the median.", "Divide by the mean."),
        Mistake("longest_over_mean", lambda ls: max(ls) / statistics.fmean(ls),
                "That is the longest over the mean, which one request decides.",
                "Divide the standard deviation of all lengths by their mean."),
    ))


# ---- gain -----------------------------------------------------------------------------------------------------------

def _steps(lengths: list, slots: int) -> tuple[int, int]:
    """(static, continuous) steps on a backlog, by counting."""
    return sum(max(group) for group in groups(lengths, slots)), max(_slot_ends(lengths, slots))


def _slot_ends(lengths: list, slots: int) -> list[int]:
    """When each slot has nothing left to do under continuous batching."""
    free_at = [0] * slots
    for length in lengths:
        free_at.sort()
        free_at[0] += length
    return free_at


def _gain(lengths: list, slots: int) -> Fraction:
    return Fraction(*_steps(lengths, slots))


def _backlog(rng: random.Random) -> tuple:
    """5 to 8 lengths and 2 or 3 slots: at least two groups."""
    return [rng.randint(2, 20) for _ in range(rng.randint(5, 8))], rng.randint(2, 3)


def _lanes(lengths: list, slots: int) -> int:
    return max(sum(lengths[lane::slots]) for lane in range(slots))


GAIN = Exercise(
    id="gain", notebook="03", title="What does continuous batching gain?", minutes=6, difficulty=2,
    signature="gain(lengths, slots)", returns="one number",
    task="return static steps / continuous steps for a backlog of `lengths`, all there at step 0, on `slots` slots.",
    shows="the gain depends on the workload and the slots: 1 where all lengths are equal, more the more they "
          "vary.",
    oracle=_gain,
    explain=lambda ls, k: f"Static takes {_steps(ls, k)[0]} steps in groups of {k}, continuous {_steps(ls, k)[1]}.",
    worked=((([4, 4], 2), 1), (([3, 1, 2], 2), 5 / 3), (([9, 1, 1, 9, 1, 1], 3), 1.8), ((EIGHT, 4), 1),
            (([9, 1, 1] * 3, 3), 2.25), (([5, 1, 4, 1], 1), 1)),
    draw=_backlog,
    mistakes=(
        Mistake("inverted", lambda ls, k: 1 / _gain(ls, k), "Upside down: a gain is at least 1 here.",
                "Divide static steps by continuous steps."),
        Mistake("difference", lambda ls, k: _steps(ls, k)[0] - _steps(ls, k)[1],
                "Those are the steps saved: how many times fewer is that?", "Divide instead of subtracting."),
        Mistake("saved_share", lambda ls, k: 1 - 1 / _gain(ls, k), "That is the share of steps saved.",
                "Return static steps / continuous steps."),
        Mistake("excess", lambda ls, k: _gain(ls, k) - 1, "That is how much more static takes: 0 would mean no gain.",
                "Leave out the - 1: a gain of 1 means no difference."),
        Mistake("law", lambda ls, k: expected_max(ls, k) * len(ls) / sum(ls),
                "That is the law, for a backlog without end: this one is finite and has an order.",
                "Count the steps of both schedulers on these lengths."),
        Mistake("no_drain", lambda ls, k: _steps(ls, k)[0] * k / sum(ls),
                "That supposes that continuous batching never idles: at the end its slots drain.",
                "Divide by the steps of continuous batching, not by sum(lengths) / slots."),
        Mistake("no_drain_whole", lambda ls, k: _steps(ls, k)[0] / -(-sum(ls) // k),
                "That supposes that continuous batching never idles: at the end its slots drain.",
                "Divide by the steps of continuous batching, not by sum(lengths) / slots."),
        Mistake("last_request", lambda ls, k: _steps(ls, k)[0] / continuous_batching(ls, k).finish[-1],
                "The last request in the list need not be the last to finish.",
                "Take the largest number that continuous_finish returns, not the one at [-1]."),
        Mistake("first_slot", lambda ls, k: _steps(ls, k)[0] / min(_slot_ends(ls, k)),
                "That is when the first slot has nothing left to do: the run ends with the last one.",
                "Continuous steps: the largest of the slots' times, not the smallest."),
        Mistake("round_robin", lambda ls, k: _steps(ls, k)[0] / _lanes(ls, k),
                "Continuous batching doesn't deal requests to slots in turn: each takes the one free earliest.",
                "Use your continuous_finish: its largest number is the continuous steps."),
        Mistake("against_one_by_one", lambda ls, k: sum(ls) / _steps(ls, k)[1],
                "That compares with one request at a time: static batching runs groups.",
                "Static steps: the longest of each group of `slots`, added up."),
        Mistake("one_group", lambda ls, k: max(ls) / _steps(ls, k)[1],
                "Static batching is not one group of everything: there are only `slots` slots.",
                "Static steps: the longest of each group of `slots`, added up."),
        Mistake("latency", lambda ls, k: statistics.fmean(static_batching(ls, k).finish)
                / statistics.fmean(continuous_batching(ls, k).finish),
                "That compares mean latencies: the gain compares steps until all is done.",
                "Use the largest finish of each, not the mean."),
    ))


# ---- fit_lognormal --------------------------------------------------------------------------------------------------

def _fit(lengths: list) -> tuple[float, float]:
    """The mean and the (population) spread of the logarithms."""
    logs = [math.log(length) for length in lengths]
    mu = sum(logs) / len(logs)
    return mu, math.sqrt(sum((x - mu) ** 2 for x in logs) / len(logs))


def _moments(lengths: list) -> tuple[float, float]:
    variance = math.log(1 + _cv(lengths) ** 2)
    return math.log(statistics.fmean(lengths)) - variance / 2, math.sqrt(variance)


def _log_fit(lengths: list, log, spread=statistics.pstdev, centre=statistics.fmean) -> tuple[float, float]:
    logs = [log(length) for length in lengths]
    return centre(logs), spread(logs)


FIT_LOGNORMAL = Exercise(
    id="fit_lognormal", notebook="03", title="Fit a lognormal to a log", minutes=5, difficulty=2,
    signature="fit_lognormal(lengths)", returns="two numbers, mu and sigma",
    task="return (mu, sigma): the mean and the (population) standard deviation of the natural logarithms of `lengths`.",
    shows="two numbers can stand for a workload, and leave out its tail: set the fit's gain beside the measured one.",
    oracle=_fit,
    explain=lambda ls: f"The logarithms are {[round(math.log(x), 4) for x in ls]}: mu is their mean, sigma their "
                       "spread.",
    worked=((([1, 1],), (0, 0)), (([1, 100],), (math.log(10), math.log(10))),
            (([2, 2, 8, 8],), (math.log(4), math.log(2)))),
    draw=lambda rng: (_varied(rng),),
    mistakes=(
        Mistake("no_log", lambda ls: (statistics.fmean(ls), statistics.pstdev(ls)),
                "Those are the mean and spread of the lengths: a lognormal's are of their logarithms.",
                "Take math.log of each length first."),
        Mistake("log_last", lambda ls: (math.log(statistics.fmean(ls)), math.log(statistics.pstdev(ls))),
                "That takes the logarithm of the mean: take the mean of the logarithms.",
                "Take math.log of each length first, then mean and standard deviation."),
        Mistake("log_of_mean", lambda ls: (math.log(statistics.fmean(ls)), _fit(ls)[1]),
                "mu is the mean of the logarithms, not the logarithm of the mean, which is larger.",
                "Use the mean of the same logarithms from which sigma comes."),
        Mistake("log10", lambda ls: _log_fit(ls, math.log10), "Those are logarithms to base 10: use natural ones.",
                "Use math.log, or numpy's log."),
        Mistake("log2", lambda ls: _log_fit(ls, math.log2), "Those are logarithms to base 2: use natural ones.",
                "Use math.log, or numpy's log."),
        Mistake("log1p", lambda ls: _log_fit(ls, math.log1p),
                "That adds 1 to each length first: none is 0, so it isn't needed.",
                "Use math.log(length)."),
        Mistake("sample", lambda ls: _log_fit(ls, math.log, statistics.stdev),
                "Sigma divides by n - 1, for a sample: divide by n here.",
                "Use statistics.pstdev, or numpy's std with ddof=0."),
        Mistake("variance", lambda ls: _log_fit(ls, math.log, statistics.pvariance),
                "The second number is the variance: sigma is its square root.", "Take the square root."),
        Mistake("swapped", lambda ls: _fit(ls)[::-1], "The right numbers in the wrong order: mu comes first.",
                "Return mu, sigma."),
        Mistake("median", lambda ls: _log_fit(ls, math.log, centre=statistics.median),
                "mu here is the median of the logarithms: take their mean.", "Use the mean."),
        Mistake("moments", _moments,
                "That fits the mean and spread of the lengths: a few long requests move it far. Fit their logarithms.",
                "mu is the mean of math.log(length), sigma their standard deviation: nothing else."),
        Mistake("back_in_tokens", lambda ls: (math.exp(_fit(ls)[0]), _fit(ls)[1]),
                "exp(mu) is the median in tokens: mu stays a logarithm.", "Leave out the exp()."),
        Mistake("mu_only", lambda ls: _fit(ls)[0], "That is mu alone: return sigma, too.", "Return mu, sigma."),
    ))

EXERCISES = (EXPECTED_MAX, PREDICTED_STATIC_UTILISATION, ARRIVAL_RATE, COEFFICIENT_OF_VARIATION, GAIN, FIT_LOGNORMAL)
