"""Which request holds which slot when: for a few requests, each in its own colour."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from string import ascii_uppercase

import numpy as np

from labs.slots import Schedule
from labs.svg.marks import LEFT, OKABE_ITO, RIGHT, WIDTH, Picture, box, hatched, on, path, picture, text
from labs.svg.over_time import Schedules, alt_text, by_name, frame, heading, legend, steps_beside, time_axis, x_of
from labs.words import many

MOST_DRAWN = 2000  # requests; more could not be told apart
ROW_FOR_TEXT = 14  # pixels that a slot needs for text in its row


def timelines(schedules: Schedules, names: Sequence[str] | None = None, waits: str | None = None) -> Picture:
    """Requests in their slots over time: one block a schedule, one below the other on one axis.

    `names` are the requests' (A, B, C ... if None). `waits` names the request whose wait for its group is marked.
    Meant for up to about 64 requests and 32 slots. Raises ValueError for no schedules, or names that do not match.
    """
    named = by_name(schedules)
    names, picked = _names(named, names, waits)
    colours = request_colours(names)
    span, parts, top = max(s.steps for s in named.values()), [], 6.0
    for title, schedule in named.items():
        row = min(26.0, max(5.0, 220.0 / schedule.slots))
        wait = "" if picked is None else _wait(schedule, picked, names[picked])
        fits = row >= ROW_FOR_TEXT and _wait_pixels(schedule, picked, span) > 13.0 * len(wait) if wait else False
        parts += heading(top + 20, title, schedule, span, "" if fits else wait)
        parts += _block(top + 30, row, schedule, span, colours)
        parts += _arrow(top + 30, row, schedule, span, picked, wait if fits else "") if wait else []
        parts += _labels(top + 30, row, schedule, span, names, colours)
        top += 30 + row * schedule.slots + 16
    parts += time_axis(top - 8, span) + legend(top + 34)
    return picture(parts, top + 50, " ".join(_alt(title, s, names, picked) for title, s in named.items()))


def request_names(n: int) -> list[str]:
    """A, B, ... Z, AA, AB, ... as a spreadsheet names its columns; numbers beyond ZZ."""
    letters = list(ascii_uppercase)
    return (letters + [a + b for a in letters for b in letters] + [str(i) for i in range(702, n)])[:n]


def request_colours(names: Sequence[str]) -> list[str]:
    """A colour for each request: it goes with the name, so that the same requests in another order keep theirs."""
    place = {name: i for i, name in enumerate(request_names(len(names)))}
    return [OKABE_ITO[place.get(name, i) % len(OKABE_ITO)] for i, name in enumerate(names)]


def _names(named: dict[str, Schedule], names: Sequence[str] | None, waits: str | None) -> tuple[list[str], int | None]:
    """The requests' names, and which of them is `waits`."""
    n = max(len(s.lengths) for s in named.values())
    names = request_names(n) if names is None else [str(name) for name in names]
    if len(names) < n:
        raise ValueError(f"names must hold one name for each request: {n} needed, got {len(names)}")
    if waits is not None and waits not in names:
        raise ValueError(f"waits must be one of the requests' names, got {waits!r}")
    return names, None if waits is None else names.index(waits)


def _block(y: float, row: float, schedule: Schedule, span: int, colours: Sequence[str]) -> list[str]:
    """A bar a request, and hatching where it holds its slot for others."""
    per_step, gap = (WIDTH - LEFT - RIGHT) / span, 2 if row > 12 else 0.6
    held, bars = [], []
    for i, (start, done, release, slot) in enumerate(islice(_requests(schedule), MOST_DRAWN)):
        x, top, width = LEFT + start * per_step, y + slot * row + gap / 2, max((done - start) * per_step, 0.8)
        bars.append(box(x, top, width, row - gap, colours[i]))
        if release > done:
            rest = (release - done) * per_step
            held.append(f"M{x + width:.1f} {top:.1f}h{rest:.1f}v{row - gap:.1f}h{-rest:.1f}z")
    return hatched("".join(held)) + bars + frame(y, row * schedule.slots, schedule, span)


def _labels(y: float, row: float, schedule: Schedule, span: int, names: Sequence[str],
            colours: Sequence[str]) -> list[str]:
    """Slots' numbers, the requests' names where they fit, and the steps of a run that ends early."""
    per_step, middle = (WIDTH - LEFT - RIGHT) / span, y + row * schedule.slots / 2
    every = max(1, int(np.ceil(15 / row)))
    parts = [text(LEFT - 10, y + (s + 0.5) * row + 5, str(s), 14, "end") for s in range(0, schedule.slots, every)]
    parts += [text(16, middle, "slot", 14, "middle", turn=True), *steps_beside(middle + 6, schedule, span)]
    if row < ROW_FOR_TEXT:
        return parts
    room = (_room_after(schedule, span) * per_step).tolist()
    for i, (start, done, _, slot) in enumerate(islice(_requests(schedule), MOST_DRAWN)):
        parts += _bar_label(LEFT + start * per_step, (done - start) * per_step, room[i], y + (slot + 0.5) * row,
                            min(15.0, row - 3), colours[i], names[i], done - start)
    return parts


def _bar_label(x: float, width: float, room: float, middle: float, size: float, colour: str, name: str,
               tokens: int) -> list[str]:
    """A request's name in its bar or, where that is too narrow, beside it; nothing where neither fits."""
    letter, base, full = size * 0.72, middle + size * 0.36, f"{name}  {many(tokens, 'token')}"
    if width > len(full) * letter:
        return [text(x + 6, base, full, size, fill=on(colour), weight="bold")]
    if width > len(name) * letter + 4:
        return [text(x + width / 2, base, name, size, "middle", fill=on(colour), weight="bold")]
    for label in (f"{name} {tokens:,}", name):
        if room > len(label) * letter + 8:
            return [text(x + width + 5, base, label, size, weight="bold", halo=True)]
    return []


def _arrow(y: float, row: float, schedule: Schedule, span: int, i: int, label: str) -> list[str]:
    """An arrow over the steps that request `i` waits after its last token, and over it how many, unless said above."""
    x, end = x_of(int(schedule.done[i]), span), x_of(int(schedule.finish[i]), span)
    middle, centre, half = y + (int(schedule.slot[i]) + 0.5) * row, (x + end) / 2, 4.0 * len(label) + 4
    head = "m-9 -5l9 5l-9 5" if end - x > 12 else ""
    begin = x + 60 if label else x  # leaves room for the name of a bar that is too narrow for it
    line = path(f"M{x:.1f} {middle - row / 2:.1f}v{row:.1f}M{begin:.1f} {middle:.1f}H{end - 1:.1f}{head}", width=1.8)
    if not label:
        return [line]
    return [line, box(centre - half, middle - 10, 2 * half, 20, "#FFFFFF", ' rx="3"'),
            text(centre, middle + 5.4, label, 15, "middle", weight="bold")]


def _requests(schedule: Schedule) -> zip:
    """(start, done, release, slot) of each request, as plain numbers."""
    return zip(schedule.start.tolist(), schedule.done.tolist(), schedule.release.tolist(), schedule.slot.tolist(),
               strict=True)


def _room_after(schedule: Schedule, span: int) -> np.ndarray:
    """Steps between each request's last token and the next start in its slot."""
    order = np.lexsort((schedule.start, schedule.slot))
    following = np.append(schedule.start[order][1:], span)
    following[np.append(np.diff(schedule.slot[order]) != 0, True)] = span
    room = np.empty(len(order), dtype=np.int64)
    room[order] = following - schedule.done[order]
    return room


def _wait(schedule: Schedule, i: int, name: str) -> str:
    """How long request `i` waits after its last token, in words; empty if it does not."""
    wait = int(schedule.finish[i] - schedule.done[i])
    return f"{name} waits {many(wait, 'step')} after its last token" if wait else ""


def _wait_pixels(schedule: Schedule, i: int, span: int) -> float:
    return x_of(int(schedule.finish[i]), span) - x_of(int(schedule.done[i]), span)


def _alt(title: str, schedule: Schedule, names: Sequence[str], picked: int | None) -> str:
    if picked is None:
        return alt_text(title, schedule)
    wait = _wait(schedule, picked, names[picked]) or f"{names[picked]} is returned with its last token"
    return f"{alt_text(title, schedule)} {wait}."
