"""What every picture is made of: colours, text, hatching, and the picture itself."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# Okabe and Ito's palette: eight colours that people with any kind of colour vision tell apart.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#000000")
COLOURS = {"static": "#D55E00", "continuous": "#0072B2"}
INK, FAINT, HELD, HATCH, DRAIN = "#222222", "#CCCCCC", "#EDEDED", "#9A9A9A", "#FFF4CC"

WIDTH, LEFT, RIGHT = 900, 62, 24  # pixels: the whole, and the margins; the picture scales to its container
FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
HATCH_ID = "held-by-a-finished-request"


@dataclass(frozen=True)
class Picture:
    """An SVG picture and `alt`, the same message in words with its numbers."""

    svg: str
    alt: str

    def inline(self, unique: str) -> str:
        """The SVG for a live page, with an id of its own for the hatching.

        A browser looks an id up in the whole page, and draws nothing if it finds it first in a hidden tab.
        """
        return self.svg.replace(HATCH_ID, f"hatch-{unique}")

    def _repr_html_(self) -> str:
        source = b64encode(self.svg.encode()).decode()
        style = f"width:100%;max-width:{WIDTH}px;height:auto"
        return (f'<img alt="{escaped(self.alt)}" width="{WIDTH}" style="{style}" '
                f'src="data:image/svg+xml;base64,{source}">')

    def __repr__(self) -> str:
        return self.alt


def picture(parts: Iterable[str], height: float, alt: str) -> Picture:
    """`parts` on white, so that it reads on dark pages too."""
    words = escaped(alt)
    hatch = (f'<pattern id="{HATCH_ID}" width="7" height="7" patternUnits="userSpaceOnUse" '
             f'patternTransform="rotate(45)"><path d="M0 0V7" stroke="{HATCH}" stroke-width="2.2"/></pattern>')
    svg = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
           f'height="{height:.0f}" role="img" aria-label="{words}" font-family="{FONT}" '
           f'style="width:100%;max-width:{WIDTH}px;height:auto;display:block"><title>{words}</title>'
           f'<defs>{hatch}</defs><rect width="{WIDTH}" height="{height:.0f}" rx="4" fill="#FFFFFF"/>'
           f'{"".join(parts)}</svg>')
    return Picture(svg, alt)


def text(x: float, y: float, words: str, size: float, anchor: str = "start", fill: str = INK, weight: str = "normal",
         halo: bool = False, turn: bool = False, remark: str = "") -> str:
    """A line of text; `halo` keeps it readable over hatching, `turn` runs it upwards, `remark` follows it plainly."""
    more = f' font-weight="{weight}"' if weight != "normal" else ""
    more += f' text-anchor="{anchor}"' if anchor != "start" else ""
    more += ' stroke="#FFFFFF" stroke-width="5" stroke-linejoin="round" paint-order="stroke"' if halo else ""
    more += f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    tail = f'<tspan font-weight="normal" font-size="14" dx="12">{escaped(remark)}</tspan>' if remark else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}"{more}>{escaped(words)}{tail}</text>'


def path(d: str, colour: str = INK, width: float = 1.0) -> str:
    """A line along the SVG path `d`."""
    return f'<path d="{d}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    """A filled rectangle."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}/>'


def dot(x: float, y: float, radius: float, fill: str, edge: str = "none") -> str:
    """A filled circle."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{edge}" stroke-width="2.5"/>'


def polyline(points: Sequence[tuple[float, float]], colour: str, dash: str = "") -> str:
    """A line through `points`."""
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    more = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2.5"{more}/>'


def hatched(d: str) -> list[str]:
    """The area inside the SVG path `d`, as slots held by finished requests look."""
    return [f'<path d="{d}" fill="{HELD}"/><path d="{d}" fill="url(#{HATCH_ID})"/>'] if d else []


def on(colour: str) -> str:
    """Black or white, whichever is easier to read on `colour`."""
    red, green, blue = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return "#FFFFFF" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "#000000"


def percent(share: float) -> str:
    """A share as "74.6 %"."""
    return f"{100 * share:.1f} %"


def escaped(words: object) -> str:
    """Text safe in SVG and HTML: markup escaped, and what XML forbids dropped."""
    return escape("".join(c for c in str(words) if c.isprintable()))


def ticks(low: float, high: float, most: int, multiples: Sequence[float] = (1, 2, 2.5, 5, 10)) -> list[float]:
    """Round numbers from `low` to `high`, some `most` of them: every so many times a power of ten, or a multiple."""
    span = (high - low) or 1.0
    power = 10 ** math.floor(math.log10(span / most))
    step = next(m * power for m in (*multiples, 20) if m * power >= span / most)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, int(high / step + 1e-9) + 1)]
