"""Utilisation against the spread of lengths: both schedulers, the law, and the reader's own point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from labs.svg.marks import (
    COLOURS,
    FAINT,
    INK,
    LEFT,
    RIGHT,
    WIDTH,
    Picture,
    box,
    dot,
    path,
    percent,
    picture,
    polyline,
    text,
)

TOP, HEIGHT, ROOM = 40.0, 300.0, 100  # pixels; ROOM is for the names right of the curves
BESIDE, LINE, LETTER = 14.0, 22.0, 9.5  # pixels: from the marker to its words, between their lines, a letter's width
OVERLOADED = "#F6E3DA"
KEY = "dots: simulated; dashed: the law for static, E[L] / E[longest of the group]"
LOADED = "dots: simulated at load {:.2f}; dashed: the highest load that static can keep up with (the law)"
NAMES = ("static", "continuous")


def sweep_curve(rows: Sequence[Mapping], here: Mapping | float | None = None, title: str | None = None,
                load: float | None = None) -> Picture:
    """Utilisation against sigma: both schedulers as simulated (dots) and the law for static batching (dashed).

    `rows` are those of `sweep.compare_lognormal`, each with its `sigma`, in any order. `here` marks one point: a sigma,
    or a row like those, whose "name", if it has one, is written beside it. Where static batching is overloaded, shade.
    Under a `load` the law is a limit and no forecast, and the picture says so.
    """
    if not rows:
        raise ValueError("rows must hold at least one point of the sweep")
    rows = sorted(rows, key=lambda row: row["sigma"])
    here = _between(rows, float(here)) if isinstance(here, (int, float)) else here
    last = max(row["sigma"] for row in [*rows, *([here] if here else [])]) or 1.0
    parts = [text(LEFT, 24, title or _message(rows), 17, weight="bold"), *_overload(rows, last), *_axes(last)]
    parts.append(polyline(_points(rows, "law", last), INK, dash="7 5"))
    curves = {name: _points(rows, f"{name}_utilisation", last) for name in NAMES}
    parts += [polyline(curves["continuous"], COLOURS["continuous"]), *_dots(curves, 4.5)]
    for name, (x, y) in ((name, points[-1]) for name, points in curves.items()):
        parts.append(text(x + 12, y + (14 if name == "static" else -2), name, 16, fill=COLOURS[name], weight="bold"))
    if here:
        parts += _marker(here, last, [*curves.values(), _points(rows, "law", last)])
    parts.append(text(LEFT, TOP + HEIGHT + 70, KEY if load is None else LOADED.format(load), 14))
    return picture(parts, TOP + HEIGHT + 84, _alt(rows, here))


def _x(sigma: float, last: float) -> float:
    return LEFT + sigma / last * (WIDTH - LEFT - RIGHT - ROOM)


def _y(share: float) -> float:
    return TOP + HEIGHT * (1 - share)


def _points(rows: Sequence[Mapping], key: str, last: float) -> list[tuple[float, float]]:
    return [(_x(row["sigma"], last), _y(row[key])) for row in rows]


def _message(rows: Sequence[Mapping]) -> str:
    first, last = rows[0], rows[-1]
    if beyond := _overloaded_from(rows):
        return f"static batching is overloaded from sigma {beyond:.2f} on"
    return (f"static batching falls from {percent(first['static_utilisation'])} to "
            f"{percent(last['static_utilisation'])} useful as lengths spread")


def _overloaded_from(rows: Sequence[Mapping]) -> float | None:
    """The least sigma among `rows` at which static batching has no steady state."""
    return next((row["sigma"] for row in rows if row.get("static_overloaded")), None)


def _overload(rows: Sequence[Mapping], last: float) -> list[str]:
    """The region in which static batching has no steady state, shaded and named."""
    if (beyond := _overloaded_from(rows)) is None:
        return []
    x, end = _x(beyond, last), _x(rows[-1]["sigma"], last)
    label = text(end - 6, _y(0.94), "static overloaded: no steady state", 14, "end", halo=True)
    return [box(x, _y(1), end - x, HEIGHT, OVERLOADED), *([label] if end - x > 240 else [])]


def _axes(last: float) -> list[str]:
    """Sigma across, utilisation up."""
    start, end, step = _x(0, last), _x(last, last), 0.25 if last <= 2.5 else 0.5
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts += [path(f"M{start:.1f} {_y(share):.1f}H{end:.1f}", FAINT),
                  text(start - 8, _y(share) + 5, f"{100 * share:.0f} %", 14, "end")]
    for i in range(int(last / step + 1e-9) + 1):
        x = _x(i * step, last)
        parts += [path(f"M{x:.1f} {_y(0):.1f}v5"), text(x, _y(0) + 20, f"{i * step:g}", 14, "middle")]
    return [*parts, text((start + end) / 2, _y(0) + 44, "sigma: the spread of ln(output length)", 15, "middle"),
            text(12, _y(0.5), "utilisation", 14, "middle", turn=True)]


def _dots(curves: Mapping[str, Sequence[tuple[float, float]]], radius: float, edge: str = "none") -> list[str]:
    """A dot at each point; where both schedulers do nearly the same, static batching's is a small one on the other."""
    found = [dot(x, y, radius, COLOURS["continuous"], edge) for x, y in curves["continuous"]]
    for (x, y), (_, other) in zip(curves["static"], curves["continuous"], strict=True):
        hidden = abs(y - other) < 2 * radius
        found.append(dot(x, y, 0.55 * radius if hidden else radius, COLOURS["static"], "none" if hidden else edge))
    return found


def _marker(here: Mapping, last: float, curves: Sequence[Sequence[tuple[float, float]]]) -> list[str]:
    """A line at the reader's point, and both values in words where no curve runs."""
    at = _x(here["sigma"], last)
    ends = {name: [(at, _y(here[f"{name}_utilisation"]))] for name in NAMES}
    words = [(str(here["name"]), INK)] if here.get("name") else []
    words += [(f"{name} {percent(here[f'{name}_utilisation'])}", COLOURS[name]) for name in reversed(NAMES)]
    middle = sum(y for points in ends.values() for _, y in points) / len(ends)
    anchor, x, y = _place(at, middle, LETTER * max(len(line) for line, _ in words), LINE * len(words), curves)
    return [path(f"M{at:.1f} {_y(1):.1f}V{_y(0):.1f}", width=1.6), *_dots(ends, 8, "#FFFFFF"),
            *(text(x, y + LINE * (i + 0.75), line, 16, anchor, colour, "bold", halo=True)
              for i, (line, colour) in enumerate(words))]


def _place(at: float, middle: float, width: float, height: float,
           curves: Sequence[Sequence[tuple[float, float]]]) -> tuple[str, float, float]:
    """(text-anchor, x, top) of a box beside the line `at` that no curve crosses: near the line, then near `middle`."""
    free = []
    for away in np.arange(BESIDE, 300, 20.0):
        for anchor, x, left in (("start", at + away, at + away), ("end", at - away, at - away - width)):
            if left < LEFT or left + width > WIDTH - RIGHT - ROOM:
                continue
            across = np.linspace(left, left + width, 40)
            heights = [np.interp(across, *np.transpose(points)) for points in curves]
            for top in np.arange(TOP + 30, TOP + HEIGHT - height, 6.0):  # 30: below the name of the overloaded region
                if all(((ys < top - 4) | (ys > top + height + 4)).all() for ys in heights):
                    free.append((abs(top + height / 2 - middle), anchor, x, float(top)))
        if free:
            break
    return min(free, default=(0.0, "start", at + BESIDE, TOP + HEIGHT / 2))[1:]


def _between(rows: Sequence[Mapping], sigma: float) -> dict:
    """A row at `sigma`, on the lines between the simulated points."""
    at = [row["sigma"] for row in rows]
    keys = ("static_utilisation", "continuous_utilisation", "law")
    return {"sigma": sigma} | {key: float(np.interp(sigma, at, [row[key] for row in rows])) for key in keys}


def _alt(rows: Sequence[Mapping], here: Mapping | None) -> str:
    first, last, words = rows[0], rows[-1], f"Utilisation against sigma: {_message(rows)}."
    for name in NAMES:
        key = f"{name}_utilisation"
        words += (f" {name}: {percent(first[key])} at sigma {first['sigma']:g}, {percent(last[key])} at "
                  f"{last['sigma']:g}.")
    if not here:
        return words
    label = f" ({here['name']})" if here.get("name") else ""
    return words + (f" At sigma {here['sigma']:.2f}{label}: static {percent(here['static_utilisation'])}, continuous "
                    f"{percent(here['continuous_utilisation'])}, the law {percent(here['law'])}.")
