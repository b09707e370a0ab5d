"""Static pictures: the message is the title, the colours are those of the SVG pictures, and no figure is left open."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from labs import plots, sweep, workload
from labs.slots import continuous_batching, static_batching
from labs.svg import COLOURS, OKABE_ITO
from labs.workload import EIGHT_LENGTHS

EIGHT = sweep.run_both(workload.EIGHT_LENGTHS, 8)
LENGTHS = workload.lognormal_lengths(500, 4.2, 1.1, 0)
PAGE = sweep.run_both(LENGTHS, 32)
ROWS = [{"sigma": s / 4, **sweep.compare_lognormal(s / 4)} for s in range(9)]
GAINS = [{"name": "Azure, conversation, 2023", "gain": 2.6, "fitted_gain": 4.2},
         {"name": "Azure, code completion, 2023", "gain": 8.1, "fitted_gain": 4.1}]
DRAWN: dict[str, tuple[Callable[[Axes], Axes], str]] = {
    "timeline": (lambda ax: plots.timeline(ax, EIGHT["static"]), "static: 74.6 % of slot-steps wasted"),
    "occupancy": (lambda ax: plots.occupancy(ax, PAGE["continuous"]),
                  "continuous: 83.7 % of slot-steps useful; drain: the last 471 steps"),
    "utilisation_sweep": (lambda ax: plots.utilisation_sweep(ax, ROWS),
                          "static batching falls from 97.7 % to 10.2 % as lengths spread"),
    "latency_ecdf": (lambda ax: plots.latency_ecdf(ax, PAGE),
                     "p99 normalised latency: static 1,015.0, continuous 173.6"),
    "latency_parts": (lambda ax: plots.latency_parts(ax, PAGE),
                      "share of normalised latency that is queueing: static 89 %, continuous 96 %"),
    "length_histogram": (lambda ax: plots.length_histogram(ax, LENGTHS), "output lengths: p99 is 9.7 times p50"),
    "gains": (lambda ax: plots.gains(ax, GAINS), "a fitted lognormal misses the gain by up to 2.0x"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_title_is_the_message_and_nothing_is_cut_off(name: str) -> None:
    draw, title = DRAWN[name]
    fig, ax = plots.figure()
    assert draw(ax) is ax and ax.get_title(loc="left") == title
    fig.draw_without_rendering()
    for text in [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, *ax.texts, *ax.get_yticklabels()]:
        box = text.get_window_extent()
        assert not text.get_text() or (box.x0 >= -1 and box.x1 <= fig.bbox.width + 1), text.get_text()


def test_a4_thirty_pictures_leave_no_figure_open(root: Path) -> None:
    code = """if True:
        import sys
        from labs import plots, sweep
        for i in range(30):
            fig, ax = plots.figure()
            plots.timeline(ax, sweep.run_both([i + 1, 9], 2)["static"])
            assert plots.show(fig, "two requests").png
        print("matplotlib.pyplot" in sys.modules)
        import matplotlib.pyplot
        print(matplotlib.pyplot.get_fignums())"""
    done = subprocess.run([sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code], cwd=root,
                          capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n[]\n", "")


def test_a_picture_is_shown_with_alternative_text() -> None:
    fig, ax = plots.figure(height=2)
    plots.length_histogram(ax, [1, 10, 100])
    shown = plots.show(fig, 'lengths "1" & <more>')
    assert shown.png.startswith(b"\x89PNG") and repr(shown) == 'lengths "1" & <more>'
    assert 'alt="lengths &quot;1&quot; &amp; &lt;more&gt;" width="900"' in shown._repr_html_()
    with pytest.raises(ValueError, match="alt must say"):
        plots.show(fig, "  ")


def test_the_same_picture_has_the_same_bytes() -> None:
    def png() -> bytes:
        return plots.show(plots.two_timelines_figure(EIGHT), "eight requests").png

    assert png() == png()


def test_two_timelines_share_one_axis_and_the_requests_colours() -> None:
    fig = plots.two_timelines_figure(sweep.run_both(LENGTHS[:40], 8))
    above, below = fig.axes
    assert above.get_xlim() == below.get_xlim() and fig.get_figwidth() == 9
    bars = [c for c in above.collections if isinstance(c, PolyCollection)][-1]
    assert [to_hex(c).upper() for c in bars.get_facecolor()[:8]] == list(OKABE_ITO)


def test_schedulers_keep_their_colours() -> None:
    _, ax = plots.figure()
    plots.utilisation_sweep(ax, ROWS)
    assert [to_hex(line.get_color()).upper() for line in ax.lines[:2]] == list(COLOURS.values())


def test_the_law_is_drawn_over_the_points() -> None:
    _, ax = plots.figure()
    plots.utilisation_sweep(ax, ROWS[::-1])
    assert ax.lines[2].get_ydata() == pytest.approx([100 * row["law"] for row in ROWS])


def test_latencies_may_be_plain_values() -> None:
    _, ax = plots.figure()
    plots.latency_ecdf(ax, {"mine": np.array([1.0, 2.0, 3.0])})
    assert ax.get_title(loc="left") == "p99 normalised latency: mine 3.0"


def test_two_rows_are_two_axes() -> None:
    fig, axes = plots.figure(rows=2)
    assert len(axes) == 2 and fig.get_figheight() > plots.figure()[0].get_figheight()


def test_nothing_that_happened_lies_outside_the_axes() -> None:
    both = [static_batching(EIGHT_LENGTHS, 4), continuous_batching(EIGHT_LENGTHS, 4)]
    for schedule in both:
        for draw in (plots.timeline, plots.occupancy):
            _, ax = plots.figure()
            draw(ax, schedule)
            low, high = ax.get_xlim()
            assert low <= 0 and schedule.steps <= high <= 1.05 * schedule.steps, draw.__name__


def test_bars_are_named_where_there_is_room() -> None:
    _, ax = plots.figure()
    plots.timeline(ax, static_batching(EIGHT_LENGTHS, 8))
    assert {"G", "H"} <= {text.get_text().split()[0] for text in ax.texts}
    _, ax = plots.figure()
    plots.timeline(ax, static_batching([20] * 65, 5))
    assert not ax.texts
