"""Results as matplotlib Axes, in the colours of `labs.svg`. Nothing here simulates.

Figures are made without pyplot, which keeps every figure until it is closed: these go away by themselves.
"""
from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from labs import metrics
from labs.slots import Schedule
from labs.svg import (
    COLOURS,
    DRAIN,
    FAINT,
    HATCH,
    HELD,
    INK,
    MOST_BINS,
    OKABE_ITO,
    binned_occupancy,
    message,
    on,
    request_colours,
    request_names,
)
from labs.words import many

POINTS, TITLE = 11, 12  # type sizes
Schedules = Mapping[str, Schedule]


@dataclass(frozen=True)
class Shown:
    """A finished picture as PNG, with its message in words."""

    png: bytes = field(repr=False)
    alt: str
    width: int = 900

    def _repr_html_(self) -> str:
        source = b64encode(self.png).decode()
        style = f"width:100%;max-width:{self.width}px;height:auto"
        return (f'<img alt="{escape(self.alt)}" width="{self.width}" style="{style}" '
                f'src="data:image/png;base64,{source}">')

    def __repr__(self) -> str:
        return self.alt


def figure(rows: int = 1, height: float | None = None, sharex: bool = False) -> tuple[Figure, Axes | np.ndarray]:
    """A figure 9 inches wide and its Axes: one, or an array of `rows`, one below the other. `height` is in inches."""
    fig = Figure(figsize=(9, height or 2.6 * rows + 0.6), layout="constrained", facecolor="white")
    axes = fig.subplots(rows, 1, sharex=sharex)
    for ax in np.atleast_1d(axes):
        ax.tick_params(labelsize=POINTS)
        ax.spines[["top", "right"]].set_visible(False)
    return fig, axes


def show(fig: Figure, alt: str, dpi: int = 150) -> Shown:
    """`fig` as a picture that ends a cell, with `alt` for who cannot see it: state its message and its numbers."""
    if not alt.strip():
        raise ValueError("alt must say in words what the picture shows")
    buffer = BytesIO()
    fig.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return Shown(buffer.getvalue(), alt, round(fig.get_figwidth() * 100))


# ---- over time ------------------------------------------------------------------------------------------------------

def timeline(ax: Axes, schedule: Schedule, names: Sequence[str] | None = None, span: float | None = None) -> Axes:
    """Which request holds which slot when. `span` (steps) sets the axis, so that two timelines can share one."""
    names = names or request_names(len(schedule.lengths))
    span = span or schedule.steps
    colours = request_colours(names)[:len(schedule.lengths)]
    held = np.flatnonzero(schedule.release > schedule.done)
    ax.add_collection(PolyCollection(_bars(schedule.slot[held], schedule.done[held], schedule.release[held]),
                                     facecolor=HELD, edgecolor=HATCH, hatch="///", linewidth=0))
    ax.add_collection(PolyCollection(_bars(schedule.slot, schedule.start, schedule.done), facecolor=colours,
                                     edgecolor="white", linewidth=0.5))
    if schedule.slots <= 16 and len(schedule.lengths) <= 64:
        _name_bars(ax, schedule, names, span)
    ax.axvline(schedule.steps, color=INK, linewidth=1.5)
    ax.set(xlim=(0, span * 1.001), ylim=(schedule.slots - 0.5, -0.5))
    ax.set_yticks(range(0, schedule.slots, max(1, schedule.slots // 8)))
    return _labelled(ax, _headline(schedule), "steps", "slot")


def two_timelines_figure(schedules: Schedules, names: Sequence[str] | None = None) -> Figure:
    """The schedules' timelines one above the other on one axis, each under its message."""
    fig, axes = figure(rows=len(schedules), sharex=True)
    span = max(s.steps for s in schedules.values())
    for ax, schedule in zip(np.atleast_1d(axes), schedules.values(), strict=True):
        timeline(ax, schedule, names, span)
    for ax in np.atleast_1d(axes)[:-1]:
        ax.set_xlabel("")
    return fig


def occupancy(ax: Axes, schedule: Schedule, span: float | None = None) -> Axes:
    """Slots in use over time, useful and held, in at most 450 bins; the drain is shaded."""
    edges = np.linspace(0, schedule.steps, min(MOST_BINS, schedule.steps) + 1)
    ax.axvspan(schedule.steps - metrics.drain(schedule), schedule.steps, color=DRAIN, linewidth=0)
    held = binned_occupancy(schedule.start, schedule.release, edges)
    useful = binned_occupancy(schedule.start, schedule.done, edges)
    ax.stairs(held, edges, fill=True, facecolor=HELD, edgecolor=HATCH, hatch="///", linewidth=0)
    ax.stairs(useful, edges, fill=True, color=COLOURS.get(schedule.scheduler, OKABE_ITO[0]))
    ax.axvline(schedule.steps, color=INK, linewidth=1.5)
    ax.set(xlim=(0, (span or schedule.steps) * 1.001), ylim=(0, schedule.slots * 1.02))
    title = f"{_headline(schedule)}; drain: the last {many(metrics.drain(schedule), 'step')}"
    return _labelled(ax, title, "steps", "slots in use")


# ---- sweeps ---------------------------------------------------------------------------------------------------------

def utilisation_sweep(ax: Axes, rows: Sequence[Mapping]) -> Axes:
    """Both schedulers' utilisation against sigma as simulated, with the law for static batching over it."""
    rows = sorted(rows, key=lambda r: r["sigma"])
    sigma = [r["sigma"] for r in rows]
    for name, style in (("static", "o"), ("continuous", "o-")):
        values = [100 * r[f"{name}_utilisation"] for r in rows]
        ax.plot(sigma, values, style, color=COLOURS[name], markersize=6, clip_on=False)
        ax.annotate(f"{name} {values[-1]:.1f} %", (sigma[-1], values[-1]), (8, -4), textcoords="offset points",
                    fontsize=POINTS, color=COLOURS[name], fontweight="bold")
    ax.plot(sigma, [100 * r["law"] for r in rows], "--", color=INK, linewidth=1.5)
    middle = len(rows) // 2
    ax.annotate("the law: E[L] / E[longest of the group]", (sigma[middle], 100 * rows[middle]["law"]), (10, 12),
                textcoords="offset points", fontsize=POINTS)
    ax.set(ylim=(0, 101))
    static = [100 * r["static_utilisation"] for r in rows]
    title = f"static batching falls from {static[0]:.1f} % to {static[-1]:.1f} % as lengths spread"
    return _labelled(ax, title, "sigma: the spread of ln(output length)", "utilisation, %")


def gains(ax: Axes, rows: Sequence[Mapping]) -> Axes:
    """Continuous batching's gain on measured workloads (dots) beside lognormals fitted to them (circles).

    Each row has `name`, `gain` and `fitted_gain`, in static steps / continuous steps.
    """
    rows = sorted(rows, key=lambda r: r["gain"])
    for y, row in enumerate(rows):
        ax.plot([row["gain"], row["fitted_gain"]], [y, y], color=FAINT, linewidth=3, zorder=1)
    at = range(len(rows))
    ax.scatter([r["gain"] for r in rows], at, s=70, color=COLOURS["continuous"], zorder=3, label="measured")
    ax.scatter([r["fitted_gain"] for r in rows], at, s=70, facecolor="white", edgecolor=OKABE_ITO[1], linewidth=2,
               zorder=2, label="a lognormal fitted to it")
    ax.set_yticks(at, [r["name"] for r in rows])
    ax.set_xlim(left=0)
    ax.legend(loc="lower right", fontsize=POINTS, frameon=False)
    off = max(max(r["fitted_gain"] / r["gain"], r["gain"] / r["fitted_gain"]) for r in rows)
    title = f"a fitted lognormal misses the gain by up to {off:.1f}x"
    return _labelled(ax, title, "continuous batching's gain, times fewer steps", "")


# ---- latency --------------------------------------------------------------------------------------------------------

def latency_ecdf(ax: Axes, schedules: Mapping[str, Schedule | np.ndarray]) -> Axes:
    """The share of requests with at most a normalised latency, for schedules or plain values by name."""
    tails = []
    for i, (name, given) in enumerate(schedules.items()):
        values = metrics.normalised_latency(given) if isinstance(given, Schedule) else np.asarray(given, dtype=float)
        colour = COLOURS.get(name, OKABE_ITO[i % len(OKABE_ITO)])
        ax.ecdf(values, color=colour, linewidth=2)
        ax.annotate(name, (metrics.percentile(values, 0.5), 0.5), (8, -4), textcoords="offset points", fontsize=POINTS,
                    color=colour, fontweight="bold")
        tails.append(f"{name} {metrics.percentile(values, 0.99):,.1f}")
    ax.set_xscale("log")
    ax.set_ylim(0, 1.01)
    title = f"p99 normalised latency: {', '.join(tails)}"
    return _labelled(ax, title, "normalised latency, steps per output token (log)", "share of requests")


def latency_parts(ax: Axes, schedules: Schedules) -> Axes:
    """Mean normalised latency split into queueing (waiting for a slot) and service (holding one)."""
    shares = []
    for y, (name, schedule) in enumerate(schedules.items()):
        queued, served = float(metrics.queueing(schedule).mean()), float(metrics.service(schedule).mean())
        ax.barh(y, queued, color="white", edgecolor=COLOURS.get(name, INK), hatch="..", height=0.6)
        ax.barh(y, served, left=queued, color=COLOURS.get(name, INK), height=0.6)
        ax.annotate(f"{queued:,.1f} queueing (dotted) + {served:,.1f} in a slot (solid)", (queued + served, y), (8, -4),
                    textcoords="offset points", fontsize=POINTS)
        shares.append(f"{name} {100 * queued / (queued + served):.0f} %")
    ax.set_yticks(range(len(schedules)), list(schedules))
    ax.invert_yaxis()
    ax.set_xlim(0, 2 * ax.get_xlim()[1])
    return _labelled(ax, f"share of normalised latency that is queueing: {', '.join(shares)}",
                     "mean normalised latency, steps per output token", "")


def length_histogram(ax: Axes, lengths: Sequence[int] | np.ndarray, name: str = "output lengths") -> Axes:
    """Output lengths in bins of equal width on a log axis, with p50 and p99 marked."""
    lengths = np.asarray(lengths)
    ax.hist(lengths, bins=np.geomspace(max(0.7, lengths.min() * 0.9), lengths.max() * 1.1, 50), color=OKABE_ITO[4])
    marks = {label: metrics.percentile(lengths, q) for label, q in (("p50", 0.5), ("p99", 0.99))}
    for label, value in marks.items():
        ax.axvline(value, color=INK, linewidth=1.5)
        ax.annotate(f"{label} {value:,.0f}", (value, 0.94), (5, 0), xycoords=("data", "axes fraction"), fontsize=POINTS,
                    textcoords="offset points", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    ax.margins(y=0.18)
    ax.set_xscale("log")
    title = f"{name}: p99 is {marks['p99'] / marks['p50']:.1f} times p50"
    return _labelled(ax, title, "output length, tokens (log)", "requests")


# ---- parts ----------------------------------------------------------------------------------------------------------

def _bars(slot: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Corners of one rectangle a request, 0.9 of a row high."""
    low, high = slot - 0.45, slot + 0.45
    return np.stack([np.column_stack(p) for p in ((first, low), (last, low), (last, high), (first, high))], axis=1)


def _name_bars(ax: Axes, schedule: Schedule, names: Sequence[str], span: float) -> None:
    colours = request_colours(names)
    for i, name in enumerate(names[:len(schedule.lengths)]):
        wide = schedule.lengths[i] > 0.025 * span
        x = schedule.start[i] + schedule.lengths[i] / 2 if wide else schedule.done[i] + 0.004 * span
        if wide or not ((schedule.slot == schedule.slot[i]) & (schedule.start >= schedule.done[i])).any():
            ax.text(x, schedule.slot[i], name, fontsize=POINTS, va="center", ha="center" if wide else "left",
                    color=on(colours[i]) if wide else INK, fontweight="bold", clip_on=True)


def _headline(schedule: Schedule) -> str:
    return message(schedule.scheduler, schedule)[0]


def _labelled(ax: Axes, title: str, x: str, y: str) -> Axes:
    ax.set_title(title, loc="left", fontsize=TITLE, fontweight="bold")
    ax.set_xlabel(x, fontsize=POINTS)
    ax.set_ylabel(y, fontsize=POINTS)
    return ax
