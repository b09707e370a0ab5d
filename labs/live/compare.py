"""A run beside its prediction: steps, the seconds of each step, and what the page says one should observe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labs.engine import Fit, StepTime, fit_step_time
from labs.live.bench import Run
from labs.live.measurement import Measurement
from labs.metrics import percentile, weighted_percentiles
from labs.scheduler import SchedulerConfig
from labs.serving import serve
from labs.situations import in_groups
from labs.slots import SCHEDULERS, Schedule
from labs.workload import Request, poisson_arrivals

AT_ONCE = 0.1  # of the longest answer's latency: "a fraction of a second" where nobody waits for the longest
FLAT = 2.0  # largest normalised latency over the smallest, up to which "roughly flat" is a fair word
NEAR = 1.1  # times the longest request, up to which the wall clock is "about" that


# ---- steps ----------------------------------------------------------------------------------------------------------

def predicted(run: Run, slots: int | None = None) -> Schedule:
    """The slot simulation of a run that began with everybody queued: from its lengths and its cap, nothing else."""
    return SCHEDULERS["static" if run.static else "continuous"](run.lengths, slots or run.slots)


def batches(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """For each step, how many sequences decode and how many are admitted: the last are prefilled in that step."""
    steps = schedule.steps
    came, went = (np.bincount(at, minlength=steps + 1) for at in (schedule.start, schedule.done))
    return np.cumsum(came - went)[:steps] - came[:steps], came[:steps]


def prefill_tokens(schedule: Schedule, prompts: Sequence[int]) -> np.ndarray:
    """For each step, the prompt tokens of those who are admitted in it."""
    return np.bincount(schedule.start, weights=prompts, minlength=schedule.steps)[: schedule.steps].astype(int)


# ---- seconds --------------------------------------------------------------------------------------------------------

def step_ends(run: Run, schedule: Schedule) -> np.ndarray:
    """When each step of a held run ended, in seconds from its start: the first of the step's tokens to arrive.

    The k-th token of a request comes from the k-th step after its start, so the schedule says which tokens of
    different requests belong to one step. Raises ValueError if tokens can't be counted, or a request failed.
    """
    ends = np.full(schedule.steps, np.inf)
    for row, start in zip(run.measurement.measured, schedule.start, strict=True):
        if not (row.ok and row.counted):
            raise ValueError("a step's time needs every token's: a request failed, or its tokens can't be counted")
        at = np.repeat([time for time, _ in row.chunks], [count for _, count in row.chunks])
        np.minimum.at(ends, start + np.arange(len(at)), at)
    return np.minimum.accumulate(ends[::-1])[::-1]  # a step has ended before any token of a later one arrives


def measured_steps(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decoding sequences, prefill tokens and seconds of each step of a held run but the first, which is a start."""
    schedule = predicted(run)
    decode, _ = batches(schedule)
    prompts = [row.prompt_tokens or 0 for row in run.measurement.measured]
    seconds = np.diff(step_ends(run, schedule), prepend=0.0)
    return decode[1:], prefill_tokens(schedule, prompts)[1:], seconds[1:]


def fit_runs(runs: Sequence[Run], block: int = 16) -> Fit:
    """The step-time model of all steps of some held runs, from means over `block` steps in a row.

    A single step can't be timed from outside to the millisecond: two tokens may arrive together. A mean over a few
    can. Blocks in which the machine did something else, far off the line, are left out; the residual is of the rest.
    """
    points = np.concatenate([_means(np.array(measured_steps(run), dtype=float), block) for run in runs], axis=1)
    for _ in range(4):
        fitted = fit_step_time(*points)
        line = fitted.step_time
        off = np.abs(line.base + line.per_sequence * points[0] + line.per_prefill_token * points[1] - points[2])
        usual = off <= 3 * np.median(off)
        if usual.all() or usual.sum() < 3:
            break
        points = points[:, usual]
    return fitted


def _means(columns: np.ndarray, block: int) -> np.ndarray:
    """Means over each `block` columns; those that are left over at the end are left out."""
    whole = columns.shape[1] // block * block
    return columns[:, :whole].reshape(len(columns), -1, block).mean(axis=2)


def predicted_ends(schedule: Schedule, prompts: Sequence[int], step_time: StepTime) -> np.ndarray:
    """When each step should end, in seconds, by the model."""
    decode, prefill = batches(schedule)[0], prefill_tokens(schedule, prompts)
    return np.cumsum([step_time(int(d), int(p)) for d, p in zip(decode, prefill, strict=True)])


def smooth_gaps(run: Run, over: int = 16) -> np.ndarray:
    """The gap before each token but the first, in seconds, each taken as the mean over its `over` tokens in a row.

    Tokens that arrived together, for want of a processor, so weigh no more than others. Sums stay as they are.
    """
    found = [np.empty(0)]
    for row in run.measurement.ok:
        gaps = row.itl_gaps
        parts = [gaps[i : i + over] for i in range(0, len(gaps), over)]
        found += [np.full(len(part), part.mean()) for part in parts]
    return np.concatenate(found)


def typical_itl(run: Run) -> float:
    """The median of `smooth_gaps`, in seconds: what most tokens waited for, whatever else the machine did at times."""
    return percentile(smooth_gaps(run), 0.5)


class Seconds(NamedTuple):
    """A run's wall clock beside the model's."""

    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1


def seconds(run: Run, step_time: StepTime) -> Seconds:
    """What the model says of a held run's wall clock, and what it was."""
    prompts = [row.prompt_tokens or 0 for row in run.measurement.measured]
    return Seconds(float(predicted_ends(predicted(run), prompts, step_time)[-1]), run.measurement.wall)


def first_and_others(run: Run) -> tuple[float, float]:
    """TTFT of a run's first request, and the mean of the others', in seconds."""
    ttft = run.measurement.values("ttft")
    return float(ttft[0]), float(ttft[1:].mean())


# ---- arrivals -------------------------------------------------------------------------------------------------------

def arriving(lengths: Sequence[int], prompt: int, rate: float, seed: int) -> list[Request]:
    """Requests of these output lengths that come one by one, `rate` a second."""
    arrivals = poisson_arrivals(len(lengths), rate, seed)
    return [Request(f"r{i}", prompt, int(n), float(t)) for i, (n, t) in enumerate(zip(lengths, arrivals, strict=True))]


def median_itl(requests: Sequence[Request], slots: int, step_time: StepTime, static: bool) -> float:
    """The median gap between two tokens of a request by the engine, in seconds; NaN if there are none.

    As on the server, static batching admits nobody while anybody runs, and who has finished leaves.
    """
    longest = max(r.prompt_tokens + r.output_tokens for r in requests) + 1
    config = SchedulerConfig(slots, max(2048, slots), slots * longest, max_model_len=longest)
    runs = in_groups(requests, slots, config, step_time) if static else [serve(requests, config, step_time)]
    gaps, counts = (np.concatenate([getattr(run, name) for run in runs]) for name in ("gap_seconds", "gap_counts"))
    return weighted_percentiles(gaps, counts, 0.5)[0]


def company(schedule: Schedule) -> float:
    """How many sequences are in the step that makes a token, on average over all tokens: what ITL follows."""
    decode, admitted = batches(schedule)
    batch = (decode + admitted).astype(float)
    return float((batch * batch).sum() / batch.sum())


# ---- the page's four observations -----------------------------------------------------------------------------------

class Observation(NamedTuple):
    """Something that the page says one should observe, the number that decides it, and whether it holds."""

    claim: str
    number: str
    holds: bool


def observations(mixed: Measurement, alone: float) -> list[Observation]:
    """The page's four, on a run of mixed lengths; `alone` is the latency of its longest request by itself."""
    rows = mixed.ok
    latency, tokens = np.array([r.e2e for r in rows]), np.array([r.completion_tokens for r in rows])
    short, longest = latency[tokens == tokens.min()].max(), latency[tokens == tokens.max()].max()
    normalised = latency / tokens
    in_order = _in_order(latency, tokens)
    flat = normalised.max() / normalised.min()
    return [
        Observation("the shortest return at once, not after the longest",
                    f"{short:.2f} s of {longest:.2f} s", bool(short <= AT_ONCE * longest)),
        Observation("latency follows each request's own length",
                    f"{in_order[0]} of {in_order[1]} pairs in order", in_order[0] == in_order[1]),
        Observation("normalised latency is roughly flat", f"largest / smallest {flat:.2f}", bool(flat <= FLAT)),
        Observation("the wall clock is the longest request's, not the sum",
                    f"{mixed.wall / longest:.2f} times the longest, {mixed.wall / latency.sum():.2f} of the sum",
                    bool(mixed.wall <= NEAR * longest)),
        Observation("... and as long as that request takes alone", f"{mixed.wall / alone:.2f} times as long",
                    bool(mixed.wall <= NEAR * alone)),
    ]  # fmt: skip


def _in_order(latency: np.ndarray, tokens: np.ndarray) -> tuple[int, int]:
    """Of all pairs of different length, how many in which the longer took longer."""
    pairs = [(i, j) for i in range(len(tokens)) for j in range(len(tokens)) if tokens[i] < tokens[j]]
    return sum(bool(latency[i] < latency[j]) for i, j in pairs), len(pairs)


