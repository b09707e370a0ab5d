"""The time between two tokens of one request, for every token of a run: what ITL percentiles are made of."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labs.fast import NEVER, Trace


def token_gaps(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(when, gap, how many): `how many` tokens came at `when`, each `gap` seconds after its request's last one.

    A request that decodes undisturbed gets a token in every step, so its gaps are the steps' lengths. Those that were
    preempted, or went without in a step, are followed one by one.
    """
    end = trace.series.time + trace.series.seconds
    disturbed = {i for _, i in (*trace.victims, *trace.late)}
    change = np.zeros(len(end) + 1, dtype=np.int64)
    for i, first in enumerate(trace.first_token):
        if first != NEVER and i not in disturbed:
            change[first + 1] += 1
            change[_last(trace, i) + 1] -= 1
    count = np.cumsum(change[:-1])
    steps = np.flatnonzero(count)
    # Whoever decodes had a token in the step before, so the clock did not stand still in between.
    when, gap, many = [end[steps]], [trace.series.seconds[steps]], [count[steps]]
    for made in map(np.array, _followed(trace, disturbed)):
        when.append(end[made[1:]])
        gap.append(np.diff(end[made]))
        many.append(np.ones(len(made) - 1, dtype=np.int64))
    return np.concatenate(when), np.concatenate(gap), np.concatenate(many)


def _last(trace: Trace, i: int) -> int:
    """The last step in which request `i` may have made a token."""
    if i in trace.aborted:
        return max(trace.aborted[i][0] - 1, trace.first_token[i])
    return trace.ended[i]


def _followed(trace: Trace, disturbed: set[int]) -> list[Sequence[int]]:
    """The steps in which each disturbed request made a token; those that made none are left out."""
    chunks: dict[int, list[tuple[int, int]]] = {i: [] for i in disturbed}
    for step, i, n in trace.chunks:
        if i in disturbed:
            chunks[i].append((step, n))
    lost: dict[int, list[int]] = {i: [] for i in disturbed}
    for step, i in trace.victims:
        lost[i].append(step)
    late: dict[int, set[int]] = {i: set() for i in disturbed}
    for step, i in trace.late:
        late[i].add(step)
    found = [_steps_of(trace, i, chunks[i], lost[i], late[i]) for i in disturbed if trace.first_token[i] != NEVER]
    return [steps for steps in found if steps]


def _steps_of(trace: Trace, i: int, chunks: list[tuple[int, int]], lost: list[int], late: set[int]) -> list[int]:
    """Between two preemptions: chunks until all is computed, then a token in each step that it isn't late in."""
    made: list[int] = []
    prompt, stop = trace.requests[i].prompt_tokens, _last(trace, i) + 1
    for begin, until in zip([-1, *lost], [*lost, stop], strict=True):
        mine = [(step, n) for step, n in chunks if begin < step < until]
        if not mine:
            continue
        done, left = mine[-1][0], prompt + len(made) - sum(n for _, n in mine)
        if left > 1:  # preempted again before all was computed
            continue
        made += [step for step in range(done + left, until) if step not in late]
    return made
