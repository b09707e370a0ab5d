"""Runs as pictures, in the colours of the rest of the course. Each says in its title who answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labs.engine import StepTime
from labs.live import compare
from labs.live.bench import Run
from labs.plots import POINTS, TITLE, Shown, figure, show
from labs.svg import COLOURS, HATCH, INK, OKABE_ITO

SCHEDULER = {False: "continuous", True: "static"}


def spans(runs: Mapping[str, Run]) -> Shown:
    """When each request of a run began and ended to get tokens: a row a request, a block a run, one axis."""
    fig, axes = figure(len(runs), height=0.9 + sum(0.32 * len(run.lengths) + 0.55 for run in runs.values()),
                       sharex=True)
    words = []
    for ax, (name, run) in zip(np.atleast_1d(axes), runs.items(), strict=True):
        words.append(_spans(ax, name, run))
    widest = max(run.measurement.wall for run in runs.values())
    axes = np.atleast_1d(axes)
    for ax in axes:
        ax.set_xlim(0, 1.2 * widest)
    axes[-1].set_xlabel("seconds", fontsize=POINTS, loc="left")
    return _signed(fig, next(iter(runs.values())).source, " ".join(words))


def _spans(ax: Axes, name: str, run: Run) -> str:
    """One block; what it says in words."""
    rows = [row for row in run.measurement.measured if row.ok]
    for y, row in enumerate(rows):
        colour = OKABE_ITO[y % 6]
        ax.barh(y, row.first, height=0.8, color="white", edgecolor=HATCH, linewidth=0.5)
        ax.barh(y, row.last - row.first, left=row.first, height=0.8, color=colour)
        ax.annotate(f"{row.completion_tokens} tokens, {row.last:.1f} s", (row.last, y), (5, -4),
                    textcoords="offset points", fontsize=POINTS)
    ax.set_yticks(range(len(rows)), [chr(65 + i) for i in range(len(rows))])
    ax.invert_yaxis()
    short, long = (pick(row.last for row in rows) for pick in (min, max))
    title = f"{name}: the first is back after {short:.1f} s, the last after {long:.1f} s"
    _labelled(ax, title)
    each = "; ".join(f"{chr(65 + i)} {r.completion_tokens} tokens in {r.last:.2f} s" for i, r in enumerate(rows))
    return f"{title} ({run.source}). {each}."


def gaps(runs: Sequence[Run]) -> Shown:
    """The share of inter-token gaps up to a length (means over 16 in a row), a curve a run, its median marked."""
    fig, ax = figure(height=3.4)
    middle, top = {}, 0.0
    for run in runs:
        name, values = SCHEDULER[run.static], 1e3 * compare.smooth_gaps(run)
        middle[name], top = 1e3 * compare.typical_itl(run), max(top, float(np.quantile(values, 0.98)))
        ax.ecdf(values, color=COLOURS[name], linewidth=2, linestyle="--" if run.static else "-")
        ax.plot(middle[name], 0.5, "o", color=COLOURS[name], markersize=9, markeredgecolor="white")
    for i, name in enumerate(sorted(middle, key=middle.get)):  # the shorter one's name stands left of its dot
        ax.annotate(f"{name}: {middle[name]:.1f} ms", (middle[name], 0.5), (-10 if i == 0 else 10, 8 - 20 * i),
                    textcoords="offset points", fontsize=POINTS, color=COLOURS[name], fontweight="bold",
                    ha="right" if i == 0 else "left", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    ax.set(xlim=(0, min(1.2 * top, 3 * max(middle.values()))), ylim=(0, 1.01))
    title = f"typical ITL: {', '.join(f'{name} {value:.1f} ms' for name, value in middle.items())}"
    _labelled(ax, title, "gap before a token, ms (means over 16 tokens)", "share of gaps")
    return _signed(fig, runs[0].source, f"{title} ({runs[0].source}).")


def over_prediction(runs: Sequence[Run], step_time: StepTime) -> Shown:
    """Predicted against measured: steps as bars above, requests finished over seconds below."""
    fig, (above, below) = figure(2, height=6.4)
    said = [_steps(above, y, run) for y, run in enumerate(runs)]
    above.set_yticks(range(len(runs)), [SCHEDULER[run.static] for run in runs])
    above.invert_yaxis()
    above.set_xlim(0, 1.4 * max(run.steps for run in runs))
    _labelled(above, "steps: predicted (outline) and counted (filled)", "steps")
    off = []
    for run in runs:
        said.append(_finished(below, run, step_time))
        off.append(f"{SCHEDULER[run.static]} {compare.seconds(run, step_time).off:+.0%}")
    title = f"seconds: predicted (dashed) is off by {', '.join(off)}"
    below.set_xlim(0, 1.2 * max(run.measurement.wall for run in runs))
    _labelled(below, title, "seconds", "requests finished")
    return _signed(fig, runs[0].source, f"{title} ({runs[0].source}). {' '.join(said)}")


def _steps(ax: Axes, y: int, run: Run) -> str:
    name, steps = SCHEDULER[run.static], compare.predicted(run).steps
    ax.barh(y, run.steps, height=0.5, color=COLOURS[name])
    ax.barh(y, steps, height=0.8, facecolor="none", edgecolor=INK, linewidth=1.5)
    words = f"predicted {steps:,}, counted {run.steps:,.0f}"
    ax.annotate(words, (max(steps, run.steps), y), (8, -4), textcoords="offset points", fontsize=POINTS)
    return f"{name}: {words} steps."


def _finished(ax: Axes, run: Run, step_time: StepTime) -> str:
    name, schedule = SCHEDULER[run.static], compare.predicted(run)
    prompts = [row.prompt_tokens or 0 for row in run.measurement.measured]
    ends = np.sort(compare.predicted_ends(schedule, prompts, step_time)[schedule.done - 1])
    measured = np.sort([row.last for row in run.measurement.measured])
    count = np.arange(1, len(ends) + 1)
    ax.step(measured, count, where="post", color=COLOURS[name], linewidth=2.5)
    ax.step(ends, count, where="post", color=INK, linewidth=1.5, linestyle="--")
    ax.annotate(name, (max(measured[-1], ends[-1]), count[-1]), (8, -6), textcoords="offset points", fontsize=POINTS,
                color=COLOURS[name], fontweight="bold")
    return f"{name}: predicted {ends[-1]:.1f} s, measured {measured[-1]:.1f} s."


def turning(loads: Sequence[float], curves: Mapping[str, Sequence[float]],
            measured: Sequence[tuple[float, str, float]], source: str) -> Shown:
    """Typical ITL (ms) against load: `curves` by the model, `measured` as points (load, scheduler, ms)."""
    fig, ax = figure(height=3.8)
    for name, values in curves.items():
        ax.plot(loads, values, color=COLOURS[name], linewidth=2, linestyle="--" if name == "static" else "-")
        ax.annotate(name, (loads[-1], values[-1]), (6, -4), textcoords="offset points", fontsize=POINTS,
                    color=COLOURS[name], fontweight="bold", annotation_clip=False)
    for load, name, value in measured:
        ax.plot(load, value, "D" if name == "static" else "o", color=COLOURS[name], markersize=9,
                markeredgecolor="white", clip_on=False)
        above = value == max(ms for _, _, ms in measured)  # the two are often too near for labels side by side
        ax.annotate(f"{name} {value:.1f}", (load, value), (9, 4 if above else -14), textcoords="offset points",
                    fontsize=POINTS, color=COLOURS[name])
    worse = np.array(curves["static"]) > np.array(curves["continuous"])
    between = [load for load, flag in zip(loads, worse, strict=True) if flag]
    title = (f"static has the longer ITL from load {between[0]:.2g} to {between[-1]:.2g}" if between
             else "static has the shorter ITL at every load")
    highest = max(*(max(values) for values in curves.values()), *(value for *_, value in measured))
    ax.set_ylim(bottom=0, top=1.15 * highest)
    _labelled(ax, f"{title}, by the model", "load (1 = continuous batching is full)", "typical ITL, ms")
    points = "; ".join(f"{name} at load {load:.2g}: {value:.1f} ms" for load, name, value in measured)
    return _signed(fig, f"points: {source}",
                   f"{title}, by the model. Measured ({source}): {points}.")


def _labelled(ax: Axes, title: str, x: str = "", y: str = "") -> None:
    """The message above; the axes' names, with room to the right of the lower one for who answered."""
    ax.set_title(title, loc="left", fontsize=TITLE, fontweight="bold")
    ax.set_xlabel(x, fontsize=POINTS, loc="left")
    ax.set_ylabel(y, fontsize=POINTS)


def _signed(fig: Figure, source: str, alt: str) -> Shown:
    """The picture with who answered in its lower right corner."""
    fig.text(0.995, 0.008, source, ha="right", va="bottom", fontsize=POINTS - 1)
    return show(fig, alt)
