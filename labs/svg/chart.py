"""Lines over numbers: ITL against concurrency, an indicator over time, with a target and places to look at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labs.svg.marks import (
    FAINT,
    INK,
    LEFT,
    OKABE_ITO,
    RIGHT,
    WIDTH,
    Picture,
    dot,
    path,
    picture,
    polyline,
    text,
    ticks,
)

TOP, ROOM = 40.0, 130  # pixels; ROOM is for the names right of the lines
DASHES = ("", "9 4", "3 3", "12 3 3 3", "1 5", "6 6")


@dataclass(frozen=True)
class Axis:
    """What an axis says, how far it reaches, and whether each step to the right doubles."""

    label: str
    low: float = 0.0
    high: float | None = None
    log: bool = False


def chart(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]], x: Axis, y: Axis, title: str, alt: str,
          targets: Mapping[str, float] | None = None, marks: Mapping[str, float] | None = None,
          ranges: Mapping[str, Sequence[tuple[float, float]]] | None = None, height: float = 260.0) -> Picture:
    """One line a name through its (xs, ys), told apart by colour, dashes and name.

    `targets` are horizontal lines and `marks` vertical ones, each with its name; `ranges` gives (low, high) a point of
    a line. What isn't finite is left out; what lies above the axis is cut off at its end. Raises ValueError where
    nothing is left to draw.
    """
    clean = {name: [(a, b) for a, b in zip(*of_it, strict=True) if math.isfinite(a) and math.isfinite(b)]
             for name, of_it in lines.items()}
    every = [point for points in clean.values() for point in points]
    if not every:
        raise ValueError("there is nothing to draw: give at least one line with numbers")
    x = Axis(x.label, x.low, x.high or max(a for a, _ in every), x.log)
    y = Axis(y.label, y.low, y.high or 1.08 * max([b for _, b in every] + list((targets or {}).values())) or 1.0, y.log)
    parts = [text(LEFT, 24, title, 17, weight="bold"), *_axes(x, y, sorted({a for a, _ in every}), height)]
    for name, level in (targets or {}).items():
        at = _y(level, y, height)
        parts += [path(f"M{LEFT} {at:.1f}H{WIDTH - RIGHT - ROOM}", INK, 1.6),
                  text(LEFT + 8, at - 6, name, 14, halo=True)]
    for i, (name, at) in enumerate((marks or {}).items()):
        here = _x(at, x)
        left = here > WIDTH - RIGHT - ROOM - 200
        parts += [path(f"M{here:.1f} {TOP}V{TOP + height}", INK, 1.6),
                  text(here + (-6 if left else 6), TOP + 14 + 18 * i, name, 14, "end" if left else "start",
                       weight="bold", halo=True)]
    ends = _apart({name: _y(points[-1][1], y, height) for name, points in clean.items() if points})
    for i, (name, points) in enumerate(clean.items()):
        if points:
            parts += _line(i, name, points, x, y, height, (ranges or {}).get(name, ()), ends[name])
    return picture(parts, TOP + height + 58, alt)


def _line(i: int, name: str, points: Sequence[tuple[float, float]], x: Axis, y: Axis, height: float,
          ranges: Sequence[tuple[float, float]], name_y: float) -> list[str]:
    colour, at = OKABE_ITO[i % 6], [(_x(a, x), _y(b, y, height)) for a, b in points]
    bars = [path(f"M{a:.1f} {_y(low, y, height):.1f}V{_y(high, y, height):.1f}", colour, 3)
            for (a, _), (low, high) in zip(at, ranges, strict=False)]
    dots = [dot(a, b, 4.5, colour) for a, b in at] if len(at) <= 24 else []
    return [polyline(at, colour, DASHES[i % len(DASHES)]), *bars, *dots,
            text(at[-1][0] + 9, name_y + 5, name, 15, fill=colour, weight="bold", halo=True)]


def _apart(heights: Mapping[str, float], least: float = 17.0) -> dict[str, float]:
    """The heights of names, moved down where two would lie on each other."""
    placed: dict[str, float] = {}
    for name in sorted(heights, key=heights.get):
        placed[name] = max(heights[name], max(placed.values(), default=-math.inf) + least)
    return placed


def _x(value: float, axis: Axis) -> float:
    width = WIDTH - LEFT - RIGHT - ROOM
    if axis.log:
        low = math.log(max(axis.low, 1e-9))
        return LEFT + width * (math.log(max(value, 1e-9)) - low) / ((math.log(axis.high) - low) or 1.0)
    return LEFT + width * (value - axis.low) / ((axis.high - axis.low) or 1.0)


def _y(value: float, axis: Axis, height: float) -> float:
    share = (value - axis.low) / ((axis.high - axis.low) or 1.0)
    return TOP + height * (1 - min(max(share, 0.0), 1.0))


def _axes(x: Axis, y: Axis, levels: Sequence[float], height: float) -> list[str]:
    end, bottom = WIDTH - RIGHT - ROOM, TOP + height
    parts = []
    for value in ticks(y.low, y.high, 5):
        at = _y(value, y, height)
        parts += [path(f"M{LEFT} {at:.1f}H{end}", FAINT), text(LEFT - 8, at + 5, f"{value:,g}", 14, "end")]
    for value in levels if x.log and len(levels) <= 12 else ticks(x.low, x.high, 8):
        at = _x(value, x)
        parts += [path(f"M{at:.1f} {bottom:.1f}v5"), text(at, bottom + 20, f"{value:,g}", 14, "middle")]
    return [*parts, text((LEFT + end) / 2, bottom + 44, x.label, 15, "middle"),
            text(14, TOP + height / 2, y.label, 14, "middle", turn=True)]
