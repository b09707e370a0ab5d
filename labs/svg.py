"""Schedules and sweeps as SVG text: quick enough to redraw while a slider moves, and with words for who cannot see it.

Time runs left to right in steps, slots top to bottom. Useful work has its request's colour (or its scheduler's, where
requests are too many to tell apart); a slot held by a finished request is pale grey and hatched; an empty slot is blank.
Nothing here simulates. `python -m labs.svg OUT.svg` writes the picture of the eight requests.
"""
from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from string import ascii_uppercase

import numpy as np

from labs import metrics
from labs.slots import SCHEDULERS, Schedule
from labs.workload import EIGHT_LENGTHS

# Okabe and Ito's palette: eight colours that people with any kind of colour vision tell apart.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
COLOURS = {"static": "#D55E00", "continuous": "#0072B2"}
HELD, HATCH, INK, FAINT = "#EDEDED", "#9A9A9A", "#222222", "#CCCCCC"
DRAIN = "#FFF4CC"

WIDTH, LEFT, RIGHT = 900, 62, 24  # pixels; the picture scales to its container
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
MOST_BINS = 450
MOST_DRAWN = 2000  # rectangles in one timeline; more could not be told apart
ROW_FOR_TEXT = 14  # pixels a slot needs for text in its row
HATCH_ID = "held-by-a-finished-request"

Schedules = Mapping[str, Schedule] | Sequence[Schedule]


@dataclass(frozen=True)
class Picture:
    """An SVG picture and `alt`, the same message in words with its numbers."""

    svg: str
    alt: str

    def inline(self, unique: str) -> str:
        """The SVG for a live page. `unique` keeps its hatching apart from that of other pictures on the page:
        browsers look ids up in the whole document, and would find one in a hidden tab."""
        return self.svg.replace(HATCH_ID, f"hatch-{unique}")

    def _repr_html_(self) -> str:
        source = b64encode(self.svg.encode()).decode()
        return (f'<img alt="{_escaped(self.alt)}" width="{WIDTH}" style="width:100%;max-width:{WIDTH}px;height:auto" '
                f'src="data:image/svg+xml;base64,{source}">')

    def __repr__(self) -> str:
        return self.alt


# ---- the pictures ---------------------------------------------------------------------------------------------------

def timelines(schedules: Schedules, names: Sequence[str] | None = None, waits: str | None = None) -> Picture:
    """Which request holds which slot when: one block per schedule, one below the other on one time axis.

    `names` are the requests' (A, B, C ... if None). `waits` names the request whose wait for its group is marked.
    Meant for up to about 64 requests and 32 slots. Raises ValueError for no schedules, or names that do not match.
    """
    named = _named(schedules)
    n = max(len(s.lengths) for s in named.values())
    names = request_names(n) if names is None else [str(name) for name in names]
    if len(names) < n:
        raise ValueError(f"names must hold one name for each request: {n} needed, got {len(names)}")
    if waits is not None and waits not in names:
        raise ValueError(f"waits must be one of the requests' names, got {waits!r}")
    picked = None if waits is None else names.index(waits)
    span, parts, top = max(s.steps for s in named.values()), [], 6.0
    for title, schedule in named.items():
        row = min(26.0, max(5.0, 220.0 / schedule.slots))
        wait = "" if picked is None else _wait_text(schedule, picked, names[picked])
        parts += _heading(top, title, schedule, span, wait)
        parts += _timeline(top + 30, row, schedule, span, names, picked)
        top += 30 + row * schedule.slots + 16
    parts += _time_axis(top - 8, span) + _legend(top + 34)
    alt = " ".join(chain([_timeline_alt(t, s, names, picked) for t, s in named.items()]))
    return _picture(parts, top + 52, alt)


def occupancies(schedules: Schedules) -> Picture:
    """Slots in use over time, useful and held: one block per schedule on one time axis, at most 450 bins each.

    A bin shows the mean over its steps. The drain, when nobody is left to admit, is shaded. Quick for 100,000 requests.
    """
    named = _named(schedules)
    span, height, parts, top = max(s.steps for s in named.values()), 120.0, [], 6.0
    for title, schedule in named.items():
        parts += _heading(top, title, schedule, span)
        parts += _occupancy(top + 32, height, title, schedule, span)
        top += 32 + height + 18
    parts += _time_axis(top - 10, span) + _legend(top + 32, drain=True)
    alt = " ".join(f"{_shares_alt(t, s)} The last {metrics.drain(s):,} are drain." for t, s in named.items())
    return _picture(parts, top + 50, f"Slots in use over time. {alt}")


def sweep_curve(rows: Sequence[Mapping], here: Mapping | float | None = None, title: str | None = None) -> Picture:
    """Utilisation against sigma: both schedulers as simulated (dots) and the law for static batching (dashed).

    `rows` are those of `sweep.compare_lognormal`, in any order, with a `sigma` each. `here` marks one point: a sigma,
    or a row, whose "name" is written beside it.
    """
    if not rows:
        raise ValueError("rows must hold at least one point of the sweep")
    rows = sorted(rows, key=lambda r: r["sigma"])
    if isinstance(here, (int, float)):
        here = _between(rows, float(here))
    last, top, height = max(r["sigma"] for r in rows + ([here] if here else [])) or 1.0, 40.0, 300.0

    def x(sigma: float) -> float:
        return LEFT + sigma / last * (WIDTH - LEFT - RIGHT - 90)

    def y(share: float) -> float:
        return top + height * (1 - share)

    parts = _grid(x, y, last)
    first, final = rows[0], rows[-1]
    default = (f"the wider the spread, the more static batching wastes: {_percent(first['static_utilisation'])} useful at "
               f"sigma {first['sigma']:g}, {_percent(final['static_utilisation'])} at {final['sigma']:g}")
    parts.append(_text(LEFT, 24, title or default, 17, weight="bold"))
    parts.append(_polyline([(x(r["sigma"]), y(r["law"])) for r in rows], INK, dash="7 5"))
    for name in ("static", "continuous"):
        points = [(x(r["sigma"]), y(r[f"{name}_utilisation"])) for r in rows]
        if name == "continuous":
            parts.append(_polyline(points, COLOURS[name]))
        parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4.5" fill="{COLOURS[name]}"/>' for px, py in points]
        parts.append(_text(points[-1][0] + 12, points[-1][1] + 5, name, 16, fill=COLOURS[name], weight="bold"))
    parts.append(_text(x(0) + 12, y(0.05), "dots: simulated; dashed: the law for static, E[L] / E[longest of the group]", 14))
    if here:
        parts += _here(x, y, here)
    return _picture(parts, top + height + 58, _sweep_alt(rows, here))


def request_names(n: int) -> list[str]:
    """A, B, ... Z, AA, AB, ... as a spreadsheet names its columns."""
    letters = list(ascii_uppercase)
    return (letters + [a + b for a in letters for b in letters] + [str(i) for i in range(702, n)])[:n]


def binned_occupancy(start: np.ndarray, end: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Mean number of requests inside [start, end) between consecutive `edges` (equally wide, from 0), exactly.

    Work grows with the requests, not with the steps, of which there can be a thousand million.
    """
    width = edges[1] - edges[0]
    return np.diff(_elapsed(start, edges) - _elapsed(end, edges)) / width


# ---- parts of the pictures ------------------------------------------------------------------------------------------

def _named(schedules: Schedules) -> dict[str, Schedule]:
    """Schedules by the name that their block is given."""
    named = dict(schedules) if isinstance(schedules, Mapping) else {s.scheduler: s for s in schedules}
    if not named or len(named) < len(schedules):
        raise ValueError("give at least one schedule, and a dict of name -> schedule where two are of one kind")
    return named


def _elapsed(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """At each edge, the sum of the steps since each of `times` that lies before it."""
    if (times[1:] >= times[:-1]).all():  # starts are in order, ends often are not
        count = np.searchsorted(times, edges)
        return count * edges - np.append(0, np.cumsum(times))[count]
    at = np.minimum((times / (edges[1] - edges[0])).astype(np.int64), len(edges) - 2) + 1
    count = np.cumsum(np.bincount(at, minlength=len(edges)))
    return count * edges - np.cumsum(np.bincount(at, weights=times, minlength=len(edges)))


def _x(step: float, span: int) -> float:
    """Pixels from the left at which `step` lies."""
    return LEFT + step / span * (WIDTH - LEFT - RIGHT)


def message(title: str, schedule: Schedule) -> tuple[str, str]:
    """What a picture of `schedule` says, in a headline and a remark."""
    held = float((schedule.release - schedule.done).sum()) / (schedule.slots * schedule.steps)
    waste = 1 - schedule.utilisation
    empty = max(0.0, waste - held)
    if waste < 0.0005:
        return f"{title}: no slot-step wasted", ""
    if held < 0.0005:
        return f"{title}: {_percent(schedule.utilisation)} of slot-steps useful", (
            f"none held by finished requests, {_percent(empty)} empty")
    rest = "all held by finished requests" if empty < 0.0005 else (
        f"{_percent(held)} held by finished requests, {_percent(empty)} empty")
    return f"{title}: {_percent(waste)} of slot-steps wasted", rest


def _heading(top: float, title: str, schedule: Schedule, span: int, remark: str = "") -> list[str]:
    """The message above a block, with a remark beside it, and the number of steps if the block reaches that far."""
    headline, shares = message(title, schedule)
    remark = remark or shares
    more = f'<tspan font-weight="normal" font-size="14" dx="12">{_escaped(remark)}</tspan>' if remark else ""
    head = _text(LEFT, top + 20, headline, 17, weight="bold")
    parts = [head.replace("</text>", f"{more}</text>")]
    if _x(schedule.steps, span) > 0.8 * WIDTH:
        parts.append(_text(WIDTH - RIGHT, top + 20, f"{schedule.steps:,} steps", 16, "end", weight="bold"))
    return parts


def _end_label(y: float, schedule: Schedule, span: int) -> list[str]:
    """The number of steps to the right of a block that ends early."""
    if (x := _x(schedule.steps, span)) > 0.8 * WIDTH:
        return []
    return [_text(x + 8, y, f"{schedule.steps:,} steps", 16, weight="bold", halo=True)]


def _frame(y: float, height: float, schedule: Schedule, span: int) -> list[str]:
    """The outline of all slot-steps that the run had: what stays blank in it was empty."""
    x = _x(schedule.steps, span)
    return [f'<rect x="{LEFT}" y="{y:.1f}" width="{x - LEFT:.1f}" height="{height:.1f}" fill="none" stroke="{FAINT}"/>'
            f'<path d="M{x:.1f} {y - 4:.1f}v{height + 8:.1f}" stroke="{INK}" stroke-width="2"/>']


def _timeline(y: float, row: float, schedule: Schedule, span: int, names: Sequence[str], picked: int | None) -> list[str]:
    """One block: a bar per request, hatched while it holds its slot for others."""
    per_step = (WIDTH - LEFT - RIGHT) / span
    gap = 2 if row > 12 else 0.6
    held, bars, labels = [], [], []
    room = _room_after(schedule, span)
    requests = zip(schedule.start.tolist(), schedule.done.tolist(), schedule.release.tolist(), schedule.slot.tolist(),
                   room.tolist(), strict=True)
    for i, (start, done, release, slot, free) in enumerate(requests):
        if i == MOST_DRAWN:
            break
        x, top = LEFT + start * per_step, y + slot * row + gap / 2
        width, colour = max((done - start) * per_step, 0.8), OKABE_ITO[i % len(OKABE_ITO)]
        if release > done:
            held.append(f'M{x + width:.1f} {top:.1f}h{(release - done) * per_step:.1f}v{row - gap:.1f}'
                        f'h{-(release - done) * per_step:.1f}z')
        bars.append(f'<rect x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{row - gap:.1f}" fill="{colour}"/>')
        labels += _bar_label(x, width, free * per_step, top + row / 2 - gap / 2, row, colour, names[i], done - start)
    slots = range(0, schedule.slots, max(1, int(np.ceil(15 / row))))
    side = [_text(LEFT - 10, y + (s + 0.5) * row + 5, str(s), 14, "end") for s in slots]
    side.append(_text(16, y + row * schedule.slots / 2, "slot", 14, "middle", turn=True))
    mark = [] if picked is None else _wait_mark(y, row, schedule, span, picked, names[picked])
    return (_hatched("".join(held)) + bars + _frame(y, row * schedule.slots, schedule, span) + side + mark + labels
            + _end_label(y + row * schedule.slots / 2 + 6, schedule, span))


def _room_after(schedule: Schedule, span: int) -> np.ndarray:
    """Steps between each request's last token and the next start in its slot."""
    order = np.lexsort((schedule.start, schedule.slot))
    following = np.append(schedule.start[order][1:], span)
    following[np.append(np.diff(schedule.slot[order]) != 0, True)] = span
    room = np.empty(len(order), dtype=np.int64)
    room[order] = following - schedule.done[order]
    return room


def _bar_label(x: float, width: float, free: float, middle: float, row: float, colour: str, name: str,
               length: int) -> list[str]:
    """A request's name in its bar or, where that is too narrow, beside it; nothing where neither fits."""
    size = min(15.0, row - 3)
    if size < 9:
        return []
    letter, full = size * 0.72, f"{name}  {length:,} tokens"
    if width > len(full) * letter:
        return [_text(x + 6, middle + size * 0.36, full, size, fill=_on(colour), weight="bold")]
    if width > len(name) * letter + 4:
        return [_text(x + width / 2, middle + size * 0.36, name, size, "middle", fill=_on(colour), weight="bold")]
    beside = f"{name} {length:,}"
    for label in (beside, name):
        if free > len(label) * letter + 8:
            return [_text(x + width + 5, middle + size * 0.36, label, size, weight="bold", halo=True)]
    return []


def _wait_text(schedule: Schedule, i: int, name: str) -> str:
    """How long request `i` waits after its last token, in words; empty if it does not."""
    wait = int(schedule.finish[i] - schedule.done[i])
    return f"{name} waits {wait:,} step{'s' if wait > 1 else ''} after its last token" if wait else ""


def _wait_mark(y: float, row: float, schedule: Schedule, span: int, i: int, name: str) -> list[str]:
    """An arrow over the steps that request `i` waits after its last token, with their number where it fits."""
    if not (label := _wait_text(schedule, i, name)):
        return []
    x, end = _x(int(schedule.done[i]), span), _x(int(schedule.finish[i]), span)
    middle = y + (int(schedule.slot[i]) + 0.5) * row
    head = "m-9 -5l9 5l-9 5" if end - x > 12 else ""
    parts = [f'<path d="M{x:.1f} {middle - row / 2:.1f}v{row:.1f}M{x:.1f} {middle:.1f}H{end - 1:.1f}{head}" fill="none" '
             f'stroke="{INK}" stroke-width="1.8"/>']
    if row < ROW_FOR_TEXT or end - x < 1.6 * (wide := 8.0 * len(label)):
        return parts
    centre = (x + end) / 2
    return parts + [f'<rect x="{centre - wide / 2 - 4:.1f}" y="{middle - 10:.1f}" width="{wide + 8:.1f}" height="20" rx="3" '
                    f'fill="#FFFFFF"/>', _text(centre, middle + 5.4, label, 15, "middle", weight="bold")]


def _occupancy(y: float, height: float, title: str, schedule: Schedule, span: int) -> list[str]:
    """One block: slots in use over time as an area, with the held ones hatched above the useful ones."""
    bins = min(MOST_BINS, schedule.steps)
    edges = np.linspace(0, schedule.steps, bins + 1)
    useful = binned_occupancy(schedule.start, schedule.done, edges)
    colour = COLOURS.get(schedule.scheduler, OKABE_ITO[0])
    xs = (LEFT + edges / span * (WIDTH - LEFT - RIGHT)).round(1).tolist()
    scale, bottom = height / schedule.slots, y + height
    drain = _x(schedule.steps - metrics.drain(schedule), span)
    end = _x(schedule.steps, span)
    parts = [f'<rect x="{drain:.1f}" y="{y:.1f}" width="{end - drain:.1f}" height="{height:.1f}" fill="{DRAIN}"/>']
    if schedule.release is not schedule.done:
        held = binned_occupancy(schedule.start, schedule.release, edges)
        parts += _hatched(_area(xs, (bottom - held * scale).round(1).tolist(), bottom))
    parts.append(f'<path d="{_area(xs, (bottom - useful * scale).round(1).tolist(), bottom)}" fill="{colour}"/>')
    parts += _frame(y, height, schedule, span)
    parts += [_text(LEFT - 8, y + 12, f"{schedule.slots}", 14, "end"), _text(LEFT - 8, bottom, "0", 14, "end"),
              _text(16, y + height / 2, "slots in use", 14, "middle", turn=True)]
    return parts + _end_label(y + 24, schedule, span) + _drain_label(y, schedule, drain, end)


def _drain_label(y: float, schedule: Schedule, drain: float, end: float) -> list[str]:
    label = f"drain: {metrics.drain(schedule):,} steps"
    if end > 0.8 * WIDTH:
        return [_text(end - 6, y + 18, label, 14, "end", halo=True)]
    return [_text(end + 8, y + 44, label, 14, halo=True)]


def _area(xs: list[float], ys: list[float], bottom: float) -> str:
    """The path of a staircase of heights `ys` between `xs`, closed along `bottom`."""
    steps = "".join([f"V{y}H{x}" for x, y in zip(xs[1:], ys, strict=True)])
    return f"M{xs[0]} {bottom:.1f}{steps}V{bottom:.1f}z"


def _hatched(path: str) -> list[str]:
    if not path:
        return []
    return [f'<path d="{path}" fill="{HELD}"/><path d="{path}" fill="url(#{HATCH_ID})"/>']


def _time_axis(y: float, span: int) -> list[str]:
    """Ticks at round numbers of steps, labelled."""
    parts = [f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{INK}"/>']
    for tick in _ticks(span):
        x = _x(tick, span)
        parts.append(f'<path d="M{x:.1f} {y:.1f}v5" stroke="{INK}"/>{_text(x, y + 20, f"{tick:,.0f}", 14, "middle")}')
    return parts + [_text(WIDTH - RIGHT, y + 42, "time in steps →", 15, "end")]


def _ticks(span: float) -> list[float]:
    """Between 4 and 8 round numbers from 0 to `span`."""
    raw = span / 7
    power = 10 ** np.floor(np.log10(raw))
    step = max(1, next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw - 1e-12))
    step = np.ceil(step)
    return [i * step for i in range(int(span // step) + 1)]


def _legend(y: float, drain: bool = False) -> list[str]:
    """What hatched, blank and shaded mean, once."""
    items = [(HELD, "held by a finished request", True), ("#FFFFFF", "empty", False)]
    items += [(DRAIN, "drain: nobody left to admit", False)] if drain else []
    parts, x = [], float(LEFT)
    for fill, label, hatch in items:
        box = f'<rect x="{x:.0f}" y="{y - 11:.0f}" width="24" height="14" stroke="{FAINT}" fill='
        parts.append(f'{box}"{fill}"/>' + (f'{box}"url(#{HATCH_ID})"/>' if hatch else ""))
        parts.append(_text(x + 31, y + 1, label, 14))
        x += 31 + 7.1 * len(label) + 24
    return parts


def _grid(x, y, last: float) -> list[str]:
    """Axes of the sweep: sigma across, utilisation up."""
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{x(0):.1f} {y(share):.1f}H{x(last):.1f}" stroke="{FAINT}"/>'
                     + _text(x(0) - 8, y(share) + 5, f"{share:.0%}".replace("%", " %"), 14, "end"))
    step = 0.25 if last <= 2.5 else 0.5
    for i in range(int(last / step + 1e-9) + 1):
        parts.append(f'<path d="M{x(i * step):.1f} {y(0):.1f}v5" stroke="{INK}"/>' + _text(x(i * step), y(0) + 20, f"{i * step:g}", 14, "middle"))
    return parts + [_text((x(0) + x(last)) / 2, y(0) + 44, "sigma: the spread of ln(output length)", 15, "middle"),
                    _text(14, (y(0) + y(1)) / 2, "utilisation", 14, "middle", turn=True)]


def _here(x, y, row: Mapping) -> list[str]:
    """A line at the reader's point, with both values beside it."""
    at = x(row["sigma"])
    room = at - x(0) > 180  # both curves fall to the right: the label under one goes left of the line, above one right
    parts = [f'<path d="M{at:.1f} {y(1):.1f}V{y(0):.1f}" stroke="{INK}" stroke-width="1.6"/>']
    for name, lift in (("continuous", 26 if room else 40), ("static", -14)):
        share = row[f"{name}_utilisation"]
        anchor, shift = ("end", -12) if room and name == "continuous" else ("start", 12)
        parts.append(f'<circle cx="{at:.1f}" cy="{y(share):.1f}" r="8" fill="{COLOURS[name]}" stroke="#FFFFFF" stroke-width="2.5"/>'
                     + _text(at + shift, y(share) + lift, f"{name} {_percent(share)}", 16, anchor, COLOURS[name], "bold", True))
    if name := row.get("name"):
        anchor, shift = ("end", -12) if room else ("start", 12)
        parts.append(_text(at + shift, y(0.5) + 5, str(name), 15, anchor, weight="bold", halo=True))
    return parts


def _between(rows: Sequence[Mapping], sigma: float) -> dict:
    """A row at `sigma`, on the lines between the simulated points."""
    xs = [r["sigma"] for r in rows]
    keys = ("static_utilisation", "continuous_utilisation", "law")
    return {"sigma": sigma} | {k: float(np.interp(sigma, xs, [r[k] for r in rows])) for k in keys}


# ---- words ----------------------------------------------------------------------------------------------------------

def _shares_alt(title: str, schedule: Schedule) -> str:
    headline, remark = message(title, schedule)
    return (f"{headline}{' (' + remark + ')' if remark else ''}: {schedule.useful:,} useful of "
            f"{schedule.slots * schedule.steps:,} slot-steps, {schedule.slots} slots, {schedule.steps:,} steps.")


def _timeline_alt(title: str, schedule: Schedule, names: Sequence[str], picked: int | None) -> str:
    text = _shares_alt(title, schedule)
    if picked is None:
        return text
    wait = int(schedule.finish[picked] - schedule.done[picked])
    return text + (f" {names[picked]} waits {wait:,} steps after its last token." if wait else
                   f" {names[picked]} is returned with its last token.")


def _sweep_alt(rows: Sequence[Mapping], here: Mapping | None) -> str:
    first, last = rows[0], rows[-1]
    text = "Utilisation against sigma."
    for name in ("static", "continuous"):
        key = f"{name}_utilisation"
        text += f" {name}: {_percent(first[key])} at sigma {first['sigma']:g}, {_percent(last[key])} at {last['sigma']:g}."
    if here:
        what = f" ({here['name']})" if here.get("name") else ""
        text += (f" At sigma {here['sigma']:.2f}{what}: static {_percent(here['static_utilisation'])}, continuous "
                 f"{_percent(here['continuous_utilisation'])}.")
    return text


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


# ---- SVG ------------------------------------------------------------------------------------------------------------

def _picture(parts: list[str], height: float, alt: str) -> Picture:
    hatch = (f'<pattern id="{HATCH_ID}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
             f'<path d="M0 0V7" stroke="{HATCH}" stroke-width="2.2"/></pattern>')
    words = _escaped(alt)
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" '
           f'role="img" aria-label="{words}" style="width:100%;max-width:{WIDTH}px;height:auto;display:block" '
           f'font-family="{FONT}"><title>{words}</title><defs>{hatch}</defs>'
           f'<rect width="{WIDTH}" height="{height:.0f}" rx="4" fill="#FFFFFF"/>{"".join(parts)}</svg>')
    return Picture(svg, alt)


def _text(x: float, y: float, text: str, size: float, anchor: str = "start", fill: str = INK, weight: str = "normal",
          halo: bool = False, turn: bool = False) -> str:
    """A line of text; `halo` keeps it readable over hatching, `turn` runs it upwards."""
    more = f' font-weight="{weight}"' if weight != "normal" else ""
    more += f' text-anchor="{anchor}"' if anchor != "start" else ""
    more += ' stroke="#FFFFFF" stroke-width="5" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    more += f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{more}>{_escaped(text)}</text>'


def _polyline(points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"{more}/>'


def _on(colour: str) -> str:
    """Black or white, whichever is easier to read on `colour`."""
    red, green, blue = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return "#FFFFFF" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#000000"


def _escaped(text: str) -> str:
    """Text safe in SVG and HTML: markup escaped, and what XML forbids dropped."""
    return escape("".join(c for c in str(text) if c.isprintable()))


def _write_eight(path: str) -> None:
    """Write the picture of the eight requests, 8 slots, with the steps that A waits."""
    eight = {name: scheduler(EIGHT_LENGTHS, 8) for name, scheduler in SCHEDULERS.items()}
    Path(path).write_text(timelines(eight, waits="A").svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m labs.svg OUT.svg")
    _write_eight(sys.argv[1])
