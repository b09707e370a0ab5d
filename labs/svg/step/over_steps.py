"""Running, waiting and KV usage over all steps of a run, with a line at the present one."""

from __future__ import annotations

from collections.abc import Sequence

from labs.engine import StepRecord
from labs.svg.marks import FAINT, INK, WIDTH, box, path, text
from labs.svg.over_time import ticks
from labs.svg.step.replay import Replay

START, END = 96, WIDTH - 62  # pixels: where the first step begins, and the last ends
COUNTS, USAGE, GAP = 44.0, 24.0, 8.0  # heights
HEIGHT = COUNTS + GAP + USAGE + 44
RUNNING, WAITING, KV = "#0072B2", "#D55E00", "#BBBBBB"


class Strip:
    """Drawn once for a run; the present step only adds a line."""

    def __init__(self, replay: Replay, y: float) -> None:
        self.y, records = y, replay.records
        self.steps, self.first = len(records), records[0].step if records else 0
        top, usage = y + 20, y + 20 + COUNTS + GAP
        running, waiting = ([len(getattr(r, name)) for r in records] for name in ("running", "waiting"))
        most = max([1, *running, *waiting])
        self._drawn = "".join([
            _area([r.kv_usage for r in records], usage, USAGE, 1.0, KV),
            path(f"M{START} {top:g}H{END}M{START} {usage:g}H{END}", FAINT),
            path(f"M{START} {top + COUNTS:g}H{END}M{START} {usage + USAGE:g}H{END}"),
            _line(running, top, COUNTS, most, RUNNING), _line(waiting, top, COUNTS, most, WAITING, "5 3"),
            text(START - 8, top + 16, "running", 14, "end", RUNNING, "bold"),
            text(START - 8, top + 36, "waiting", 14, "end", WAITING, "bold"),
            text(START - 8, usage + 17, "KV usage", 14, "end"),
            text(END + 6, top + 10, f"{most:,}", 14), text(END + 6, top + COUNTS, "0", 14),
            text(END + 6, usage + 12, "100 %", 14), *self._axis(usage + USAGE)])

    def parts(self, record: StepRecord) -> list[str]:
        """The strip with a line at `record`, and its number."""
        x, top, bottom = self._x(record.step - self.first + 0.5), self.y + 16, self.y + 20 + COUNTS + GAP + USAGE + 4
        words = f"step {record.step:,}"
        half = 4.2 * len(words)
        return [self._drawn, path(f"M{x:.1f} {top:g}V{bottom:g}", INK, 2),
                text(min(max(x, START + half), END - half), self.y + 12, words, 14, "middle", weight="bold")]

    def _x(self, step: float) -> float:
        return START + step / max(self.steps, 1) * (END - START)

    def _axis(self, y: float) -> list[str]:
        parts = []
        for tick in ticks(max(self.steps - 1, 1)):
            x = self._x(tick + 0.5)
            parts += [path(f"M{x:.1f} {y:g}v5"), text(x, y + 20, f"{tick + self.first:,}", 14, "middle")]
        return [*parts, text(START - 8, y + 20, "step", 14, "end")]


def _steps(values: Sequence[float], y: float, height: float, most: float) -> list[tuple[float, float]]:
    """Corners of a line that is level within each step."""
    wide = (END - START) / max(len(values), 1)
    return [(START + (i + side) * wide, y + height * (1 - value / most))
            for i, value in enumerate(values) for side in (0, 1)]


def _line(values: Sequence[float], y: float, height: float, most: float, colour: str, dash: str = "") -> str:
    joined = " ".join(f"{px:.1f},{py:.1f}" for px, py in _steps(values, y, height, most))
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2.2"{more}/>'


def _area(values: Sequence[float], y: float, height: float, most: float, colour: str) -> str:
    corners = "L".join(f"{px:.1f} {py:.1f}" for px, py in _steps(values, y, height, most))
    return f'<path d="M{START} {y + height:g}L{corners}L{END} {y + height:g}z" fill="{colour}"/>' if corners else box(
        START, y, 0, 0, colour)
