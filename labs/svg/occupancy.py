"""Slots in use over time: for any number of requests, in at most 450 bins."""

from __future__ import annotations

import numpy as np

from labs import metrics
from labs.slots import Schedule
from labs.svg.marks import COLOURS, DRAIN, LEFT, OKABE_ITO, RIGHT, WIDTH, Picture, box, hatched, picture, text
from labs.svg.over_time import (
    Schedules,
    alt_text,
    by_name,
    frame,
    heading,
    legend,
    reaches_far,
    steps_beside,
    time_axis,
    x_of,
)
from labs.words import many

MOST_BINS, HEIGHT = 450, 120.0


def occupancies(schedules: Schedules) -> Picture:
    """Slots that make a token, and those held by finished requests: one block a schedule, on one time axis.

    A bin shows the mean over its steps. The drain, when nobody is left to admit, is shaded. Quick for 100,000 requests.
    """
    named = by_name(schedules)
    span, parts, top = max(s.steps for s in named.values()), [], 6.0
    for title, schedule in named.items():
        parts += heading(top + 20, title, schedule, span) + _block(top + 32, schedule, span)
        top += 32 + HEIGHT + 18
    parts += time_axis(top - 10, span) + legend(top + 32, drain=True)
    alt = " ".join(f"{alt_text(t, s)} {_drained(metrics.drain(s))}" for t, s in named.items())
    return picture(parts, top + 48, f"Slots in use over time. {alt}")


def binned_occupancy(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Mean number of requests inside [start, end) between consecutive `edges` (equally wide, from 0), exactly.

    Work grows with the requests, not with the steps, of which there can be a thousand million.
    """
    return np.diff(_elapsed(start, edges) - _elapsed(end, edges)) / (edges[1] - edges[0])


def _elapsed(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """At each edge, the sum of the steps since each of `times` that lies before it."""
    if (times[1:] >= times[:-1]).all():  # starts are in order, ends often are not
        count = np.searchsorted(times, edges)
        return count * edges - np.append(0, np.cumsum(times))[count]
    bin_after = np.minimum((times / (edges[1] - edges[0])).astype(np.int64), len(edges) - 2) + 1
    count = np.cumsum(np.bincount(bin_after, minlength=len(edges)))
    return count * edges - np.cumsum(np.bincount(bin_after, weights=times, minlength=len(edges)))


def _block(y: float, schedule: Schedule, span: int) -> list[str]:
    """One schedule: the drain shaded, held slots hatched, useful ones solid over them."""
    edges = np.linspace(0, schedule.steps, min(MOST_BINS, schedule.steps) + 1)
    drain, end = (x_of(step, span) for step in (schedule.steps - metrics.drain(schedule), schedule.steps))
    parts = [box(drain, y, end - drain, HEIGHT, DRAIN)]
    if schedule.release is not schedule.done:
        held = binned_occupancy(schedule.start, schedule.release, edges)
        parts += hatched(_staircase(held, edges, y, schedule, span))
    useful = _staircase(binned_occupancy(schedule.start, schedule.done, edges), edges, y, schedule, span)
    parts.append(f'<path d="{useful}" fill="{COLOURS.get(schedule.scheduler, OKABE_ITO[0])}"/>')
    parts += [text(LEFT - 8, y + 12, f"{schedule.slots}", 14, "end"), text(LEFT - 8, y + HEIGHT, "0", 14, "end"),
              text(16, y + HEIGHT / 2, "slots in use", 14, "middle", turn=True)]
    return [*parts, *frame(y, HEIGHT, schedule, span), *steps_beside(y + 24, schedule, span), _drain(y, schedule, span)]


def _drained(steps: int) -> str:
    return "The last step is drain." if steps == 1 else f"The last {steps:,} steps are drain."


def _drain(y: float, schedule: Schedule, span: int) -> str:
    """How long the drain lasts."""
    label, end = f"drain: {many(metrics.drain(schedule), 'step')}", x_of(schedule.steps, span)
    if reaches_far(schedule, span):
        return text(end - 6, y + 18, label, 14, "end", halo=True)
    return text(end + 8, y + 44, label, 14, halo=True)


def _staircase(slots: np.ndarray, edges: np.ndarray, y: float, schedule: Schedule, span: int) -> str:
    """The path around the area under `slots`, one value between each two `edges`."""
    bottom = y + HEIGHT
    xs = (LEFT + edges * ((WIDTH - LEFT - RIGHT) / span)).round(1).tolist()
    ys = (bottom - slots * (HEIGHT / schedule.slots)).round(1).tolist()
    steps = "".join([f"V{height}H{x}" for x, height in zip(xs[1:], ys, strict=True)])
    return f"M{xs[0]} {bottom:.1f}{steps}V{bottom:.1f}z"
