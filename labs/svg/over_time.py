"""What pictures over time share: the message above a block, its frame, the time axis, the legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from labs.slots import Schedule
from labs.svg.marks import DRAIN, FAINT, HELD, INK, LEFT, RIGHT, WIDTH, box, hatched, path, percent, text
from labs.words import many

Schedules = Mapping[str, Schedule] | Sequence[Schedule]


def by_name(schedules: Schedules) -> dict[str, Schedule]:
    """Schedules by the name that their block is given. Raises ValueError for none, or two of one name."""
    named = dict(schedules) if isinstance(schedules, Mapping) else {s.scheduler: s for s in schedules}
    if not named or len(named) < len(schedules):
        raise ValueError("give at least one schedule, and a dict of name -> schedule where two are of one kind")
    return named


def message(title: str, schedule: Schedule) -> tuple[str, str]:
    """What a picture of `schedule` says, in a headline and a remark."""
    held = float((schedule.release - schedule.done).sum()) / (schedule.slots * schedule.steps)
    waste = 1 - schedule.utilisation
    empty = max(0.0, waste - held)
    if waste < 0.0005:
        return f"{title}: no slot-step wasted", ""
    if held < 0.0005:
        headline = f"{title}: {percent(schedule.utilisation)} of slot-steps useful"
        return headline, f"none held by finished requests, {percent(empty)} empty"
    remark = "all" if empty < 0.0005 else percent(held)
    rest = "" if empty < 0.0005 else f", {percent(empty)} empty"
    return f"{title}: {percent(waste)} of slot-steps wasted", f"{remark} held by finished requests{rest}"


def alt_text(title: str, schedule: Schedule) -> str:
    """The message with the numbers behind it."""
    headline, remark = message(title, schedule)
    return (f"{headline}{' (' + remark + ')' if remark else ''}: {schedule.useful:,} useful of "
            f"{many(schedule.slots * schedule.steps, 'slot-step')}, {many(schedule.slots, 'slot')}, "
            f"{many(schedule.steps, 'step')}.")


def x_of(step: float, span: int) -> float:
    """Pixels from the left at which `step` lies on an axis of `span` steps."""
    return LEFT + step / span * (WIDTH - LEFT - RIGHT)


def reaches_far(schedule: Schedule, span: int) -> bool:
    """True if a block ends so far right that nothing fits beside it."""
    return schedule.steps > 0.82 * span


def heading(y: float, title: str, schedule: Schedule, span: int, remark: str = "") -> list[str]:
    """The message above a block, a remark beside it, and the number of steps if the block reaches that far."""
    headline, shares = message(title, schedule)
    parts = [text(LEFT, y, headline, 17, weight="bold", remark=remark or shares)]
    if reaches_far(schedule, span):
        parts.append(text(WIDTH - RIGHT, y, many(schedule.steps, "step"), 16, "end", weight="bold"))
    return parts


def steps_beside(y: float, schedule: Schedule, span: int) -> list[str]:
    """The number of steps to the right of a block that ends early."""
    if reaches_far(schedule, span):
        return []
    return [text(x_of(schedule.steps, span) + 8, y, many(schedule.steps, "step"), 16, weight="bold", halo=True)]


def frame(y: float, height: float, schedule: Schedule, span: int) -> list[str]:
    """The outline of all slot-steps of a run (what stays blank in it was empty), and a line where it ends."""
    x = x_of(schedule.steps, span)
    return [box(LEFT, y, x - LEFT, height, "none", f' stroke="{FAINT}"'),
            path(f"M{x:.1f} {y - 4:.1f}v{height + 8:.1f}", width=2)]


def time_axis(y: float, span: int) -> list[str]:
    """Ticks at round numbers of steps, labelled."""
    parts = [path(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}")]
    for tick in ticks(span):
        x = x_of(tick, span)
        parts += [path(f"M{x:.1f} {y:.1f}v5"), text(x, y + 20, f"{tick:,}", 14, "middle")]
    return [*parts, text(WIDTH - RIGHT, y + 42, "time in steps →", 15, "end")]


def ticks(span: int) -> list[int]:
    """At most 8 round numbers from 0 to `span`."""
    power = 10 ** math.floor(math.log10(max(span / 7, 1)))
    step = next(int(m * power) for m in (1, 2, 2.5, 5, 10) if m * power >= span / 7 and m * power == int(m * power))
    return list(range(0, span + 1, step))


def legend(y: float, drain: bool = False) -> list[str]:
    """What hatched, blank and shaded mean, once."""
    items = [(HELD, "held by a finished request"), ("#FFFFFF", "empty")]
    items += [(DRAIN, "drain: nobody left to admit")] if drain else []
    parts, x = [], float(LEFT)
    for fill, label in items:
        parts += hatched(f"M{x:.0f} {y - 12:.0f}h24v15h-24z") if fill == HELD else []
        parts.append(box(x, y - 12, 24, 15, "none" if fill == HELD else fill, f' stroke="{INK}" stroke-width="0.6"'))
        parts.append(text(x + 31, y, label, 14))
        x += 31 + 7.1 * len(label) + 24
    return parts
