"""What a server's own numbers showed over time: requests running, and requests waiting, on one axis of seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labs.svg.marks import FAINT, INK, LEFT, OKABE_ITO, RIGHT, WIDTH, Picture, path, picture, text, ticks

WHOLE = (1, 2, 5, 10)  # requests are counted, so there is no 2.5 of them
TOP, HEIGHT, ROOM = 46.0, 230.0, 96  # pixels; ROOM is for the names right of the lines
RUNNING, WAITING = OKABE_ITO[0], OKABE_ITO[3]


def running_and_waiting(times: Sequence[float], running: Sequence[float], waiting: Sequence[float],
                        cap: int | None = None, source: str = "") -> Picture:
    """Both as lines of steps; NaN leaves a gap. `cap` is drawn as the line that running can't pass. Times in seconds.

    Raises ValueError if the three are not of one length.
    """
    if not len(times) == len(running) == len(waiting):
        raise ValueError("times, running and waiting must be of one length")
    span = max([1.0, *times])
    top = max([1.0, float(cap or 0), *(v for v in (*running, *waiting) if not math.isnan(v))])
    headline = _headline(running, waiting, cap)
    parts = [text(LEFT, 26, headline, 17, weight="bold", remark=source), *_axes(span, top)]
    if cap:
        parts += [path(f"M{LEFT} {_y(cap, top):.1f}H{WIDTH - RIGHT - ROOM}", INK, 1),
                  text(LEFT + 8, _y(cap, top) - 6, f"cap {cap}", 14, halo=True)]
    last = {}
    for name, values, colour, width in (("waiting", waiting, WAITING, 2.0), ("running", running, RUNNING, 3.0)):
        parts.append(path(_line(times, values, span, top), colour, width))
        last[name] = _y(next((v for v in reversed(values) if not math.isnan(v)), 0.0), top)
    apart = 18 if abs(last["running"] - last["waiting"]) < 18 else 0
    for name, colour, lift in (("running", RUNNING, 0), ("waiting", WAITING, -apart)):
        at = _x(times[-1] if len(times) else 0, span)
        parts.append(text(at + 6, last[name] + lift - 6, name, 15, fill=colour, weight="bold", halo=True))
    return picture(parts, TOP + HEIGHT + 52, f"{headline}. {source}".strip())


def _headline(running: Sequence[float], waiting: Sequence[float], cap: int | None) -> str:
    """The peak of each, in words."""
    peaks = [max((v for v in values if not math.isnan(v)), default=math.nan) for values in (running, waiting)]
    if any(map(math.isnan, peaks)):
        return "no load yet"
    of_cap = f" of {cap}" if cap else ""
    return f"at most {peaks[0]:.0f}{of_cap} running, {peaks[1]:.0f} waiting"


def _axes(span: float, top: float) -> list[str]:
    """Seconds below, requests at the left."""
    bottom = TOP + HEIGHT
    parts = [path(f"M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT - ROOM}"),
             text(18, TOP + HEIGHT / 2, "requests", 15, "middle", turn=True),
             text(WIDTH - RIGHT - ROOM, bottom + 42, "seconds →", 15, "end")]
    for value in ticks(0, span, 6, WHOLE):
        x = _x(value, span)
        parts += [path(f"M{x:.1f} {bottom}v5"), text(x, bottom + 21, f"{value:g}", 14, "middle")]
    for value in ticks(0, top, 6, WHOLE):
        y = _y(value, top)
        parts += [path(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT - ROOM}", FAINT, 0.6),
                  text(LEFT - 8, y + 5, f"{value:g}", 14, "end")]
    return parts


def _line(times: Sequence[float], values: Sequence[float], span: float, top: float) -> str:
    """An SVG path: each value holds until the next look."""
    parts, before = [], math.nan
    for time, value in zip(times, values, strict=True):
        if not math.isnan(value):
            x, y = _x(time, span), _y(value, top)
            parts.append(f"M{x:.1f} {y:.1f}" if math.isnan(before) else f"H{x:.1f}V{y:.1f}")
        before = value
    return "".join(parts)


def _x(time: float, span: float) -> float:
    return LEFT + time / span * (WIDTH - LEFT - RIGHT - ROOM)


def _y(value: float, top: float) -> float:
    return TOP + HEIGHT * (1 - value / top)
