"""A dashboard: small charts over the same seconds, each with its limit and, in grey, what it was before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from labs.svg.marks import FAINT, INK, OKABE_ITO, WIDTH, Picture, box, path, picture, text

ACROSS, LEFT, RIGHT, GAP = 3, 46.0, 16.0, 56.0  # charts in a row; pixels: margins, and between two charts
TOP, HIGH, APART = 92.0, 92.0, 152.0  # pixels: the first chart's top, a chart's height, from one row to the next
BEFORE = "#8A8A8A"
LIMIT = f'stroke="{INK}" stroke-width="1.2" stroke-dasharray="3 3"'  # how a limit's line is drawn
COLOURS, DASHES = (OKABE_ITO[0], OKABE_ITO[3], "#000000"), ("", "7 4", "2 4")


@dataclass(frozen=True, eq=False)
class Line:
    """One curve: a value a scrape (NaN: nothing measured), its name, and the same from before, if there is any."""

    values: np.ndarray
    name: str = ""
    before: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Chart:
    """A chart's title with its unit, its lines, and a limit with its name. `spec` formats the numbers of the axis."""

    title: str
    lines: Sequence[Line]
    limit: float | None = None
    limit_name: str = ""
    spec: str = ",.0f"
    least_top: float = field(default=1.0)


def dashboard(title: str, settings: str, charts: Sequence[Chart], seconds: float, alt: str) -> Picture:
    """`charts` in rows of three over `seconds`; `alt` states the message with its numbers."""
    if not charts:
        raise ValueError("a dashboard needs at least one chart")
    wide = (WIDTH - LEFT - RIGHT - (ACROSS - 1) * GAP) / ACROSS
    parts = [text(LEFT - 30, 26, title, 17, weight="bold"), text(LEFT - 30, 48, settings, 14)]
    for i, chart in enumerate(charts):
        row, column = divmod(i, ACROSS)
        parts += _chart(chart, LEFT + column * (wide + GAP), TOP + row * APART, wide, seconds)
    rows = math.ceil(len(charts) / ACROSS)
    return picture(parts, TOP + rows * APART - 16, alt)


def _chart(chart: Chart, x: float, y: float, wide: float, seconds: float) -> list[str]:
    """One chart with its frame."""
    top = _top(chart)
    parts = [box(x, y, wide, HIGH, "none", f' stroke="{FAINT}"'), text(x - 28, y - 14, chart.title, 14, weight="bold")]
    parts += _legend(chart, x + wide, y - 14, top)
    parts += [text(x - 5, y + 5, format(top, chart.spec), 12, "end"), text(x - 5, y + HIGH + 4, "0", 12, "end")]
    for second, anchor in ((0, "start"), (seconds / 2, "middle"), (seconds, "end")):
        at = x + wide * second / seconds
        parts += [path(f"M{at:.1f} {y + HIGH:.1f}v4"), text(at, y + HIGH + 18, f"{second:g} s", 12, anchor)]
    for number, line in enumerate(chart.lines):
        if line.before is not None:
            parts.append(_curve(line.before, x, y, wide, top, BEFORE, DASHES[number], 1.5))
    for number, line in enumerate(chart.lines):
        parts.append(_curve(line.values, x, y, wide, top, COLOURS[number], DASHES[number], 2.2))
    return parts + _limit(chart, x, y, wide, top)


def _top(chart: Chart) -> float:
    """A round number that holds all curves, and the limit if it is near."""
    known = [np.nanmax(v) for line in chart.lines for v in (line.values, line.before)
             if v is not None and not np.all(np.isnan(v))]
    most = max([*known, chart.least_top])
    if chart.limit is not None and chart.limit <= 3 * most:
        most = max(most, chart.limit)
    power = 10.0 ** math.floor(math.log10(most))
    return next(m * power for m in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if m * power >= most * 0.999)


def _limit(chart: Chart, x: float, y: float, wide: float, top: float) -> list[str]:
    """A dashed line at the limit, unless it is above the chart."""
    if chart.limit is None or chart.limit > top:
        return []
    at = y + HIGH * (1 - chart.limit / top)
    return [f'<path d="M{x:.1f} {at:.1f}h{wide:.1f}" {LIMIT}/>']


def _legend(chart: Chart, right: float, y: float, top: float) -> list[str]:
    """Names of the limit and of the lines, each with a piece of it, at the right end of the title, clear of the curves.

    The name of a limit that is above the chart carries an arrow instead.
    """
    named = [(line.name, f'stroke="{COLOURS[i]}" stroke-width="2.2" stroke-dasharray="{DASHES[i] or "none"}"')
             for i, line in enumerate(chart.lines) if line.name]
    if chart.limit is not None:
        named.insert(0, (chart.limit_name, LIMIT) if chart.limit <= top else (f"↑ {chart.limit_name}", ""))
    parts, at = [], right
    for name, stroke in reversed(named):
        parts.append(text(at, y, name, 12, "end"))
        at -= _width(name, 12)
        if stroke:
            at -= 27
            parts.append(f'<path d="M{at:.1f} {y - 4:.1f}h22" {stroke}/>')
        at -= 8
    return parts


def _width(words: str, size: float) -> float:
    """About how wide a sans-serif font sets `words`, in pixels: enough to leave room for them."""
    return size * sum(0.83 if c in "mw" else 0.28 if c in " ,.ijlt" else 0.56 for c in words)


def _curve(values: np.ndarray, x: float, y: float, wide: float, top: float, colour: str, dash: str,
           width: float) -> str:
    """A line that is broken where nothing was measured."""
    n, d, pen = len(values), [], False
    for i, value in enumerate(values):
        if np.isnan(value):
            pen = False
            continue
        point = f"{x + wide * (i + 1) / n:.1f} {y + HIGH * (1 - min(value / top, 1)):.1f}"
        d.append(f"{'L' if pen else 'M'}{point}")
        pen = True
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<path d="{"".join(d) or "M0 0"}" fill="none" stroke="{colour}" stroke-width="{width:g}" '
            f'stroke-linecap="round"{more}/>')
