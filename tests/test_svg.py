"""Pictures as SVG: the same to the last digit, true to the schedule, safe, and said in words.

After a change that is meant: `REGEN_GOLDEN=1 pytest tests/test_svg.py` writes tests/golden anew; look at them.
"""

from __future__ import annotations

import base64
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import metrics, sweep, workload
from labs.slots import arrival_rate, continuous_batching, static_batching
from labs.svg import Picture, binned_occupancy, message, occupancies, on, request_names, sweep_curve, timelines
from labs.svg.__main__ import eight_requests
from labs.svg.dashboard import LIMIT, Chart, Line, dashboard
from labs.svg.marks import LEFT, OKABE_ITO, RIGHT, WIDTH
from labs.svg.over_time import ticks

GOLDEN = Path(__file__).parent / "golden"
PAGE = workload.lognormal_lengths(500, 4.2, 1.1, 0)


def test_a_request_keeps_its_colour_in_another_order() -> None:
    lengths = dict(zip("ABCDEFGH", workload.EIGHT_LENGTHS, strict=True))
    mixed = {name: lengths[name] for name in "DGAEBHCF"}

    def colours(requests: dict[str, int]) -> dict[str, str]:
        """The colour of each bar by its width: no two requests have equal lengths."""
        drawn = timelines([static_batching(list(requests.values()), 8)], names=list(requests)).svg
        return dict(re.findall(rf'<rect [^>]* width="([\d.]+)" [^>]*fill="({"|".join(OKABE_ITO)})"', drawn))

    assert colours(mixed) == colours(lengths) and len(colours(lengths)) == 8


def under_load() -> Picture:
    arrivals = workload.poisson_arrivals(500, arrival_rate(0.5, PAGE, 32), 0)
    return occupancies(sweep.run_both(PAGE, 32, arrivals))


def curve(load: float | None = None, **more) -> Picture:
    rows = [{"sigma": s / 4, **sweep.compare_lognormal(s / 4, load=load)} for s in range(9)]
    return sweep_curve(rows, load=load, **more)


PICTURES: dict[str, Callable[[], Picture]] = {
    "eight_requests": eight_requests,
    "eight_requests_in_4_slots": lambda: timelines(sweep.run_both(workload.EIGHT_LENGTHS, 4), waits="A"),
    "sixty_four_requests": lambda: timelines(sweep.run_both(PAGE[:64], 32), waits="F"),
    "page": lambda: occupancies(sweep.run_both(PAGE, 32)),
    "under_load": under_load,
    "sweep": lambda: curve(here=1.1),
    "sweep_overloaded": lambda: curve(0.4, here={"name": "a log", **sweep.compare(PAGE, 32, 0.4), "sigma": 1.6}),
}


def drawn_texts(picture: Picture) -> list[str]:
    """All text that the picture draws (its title is only read out)."""
    return ["".join(t.itertext()) for t in ElementTree.fromstring(picture.svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_the_one_that_was_looked_at(name: str) -> None:
    path, svg = GOLDEN / f"{name}.svg", PICTURES[name]().svg + "\n"
    if os.environ.get("REGEN_GOLDEN") == "1":
        path.write_text(svg, encoding="utf-8")
    assert svg == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PICTURES)
def test_picture_is_well_formed_and_says_its_message_in_words(name: str) -> None:
    picture = PICTURES[name]()
    root = ElementTree.fromstring(picture.svg)
    assert root.get("role") == "img" and root.get("aria-label") == root[0].text == picture.alt == repr(picture)
    for number in re.findall(r"\d[\d,.]* %", " ".join(drawn_texts(picture))):
        assert number in picture.alt or number in ("0 %", "25 %", "50 %", "75 %", "100 %")


@pytest.mark.parametrize("name", PICTURES)
def test_nothing_is_drawn_outside_the_picture(name: str) -> None:
    root = ElementTree.fromstring(PICTURES[name]().svg)
    height = float(root.get("height"))
    for text in root.iter("{http://www.w3.org/2000/svg}text"):
        x, size, words = float(text.get("x")), float(text.get("font-size")), "".join(text.itertext())
        if text.get("transform"):
            continue
        wide = 0.56 * size * len(text.text) + 0.5 * 14 * (len(words) - len(text.text))  # about Helvetica's
        left = x - {"end": wide, "middle": wide / 2}.get(text.get("text-anchor"), 0)
        assert left > -2 and left + wide < WIDTH + 12, words
        assert size <= float(text.get("y")) < height


SVG = "{http://www.w3.org/2000/svg}"


def boxes(root: ElementTree.Element) -> list[tuple[str, float, float, float, float]]:
    """(words, left, top, right, bottom) of each text that isn't turned; its width is about Helvetica's."""
    found = []
    for text in root.iter(f"{SVG}text"):
        if text.get("transform"):
            continue
        x, y, size, words = float(text.get("x")), float(text.get("y")), float(text.get("font-size")), text.text
        wide = (0.6 if text.get("font-weight") else 0.5) * size * len(words)
        left = x - {"end": wide, "middle": wide / 2}.get(text.get("text-anchor"), 0)
        found.append((words, left, y - 0.75 * size, left + wide, y + 0.2 * size))
    return found


@pytest.mark.parametrize("load", [None, 0.3])
@pytest.mark.parametrize("slots", [1, 4, 32, 256])
@pytest.mark.parametrize("name", ["", "Azure, code completion, 2023", "DeepSeek-R1 reasoning (rebuilt)"])
def test_no_words_lie_on_a_curve_or_on_other_words(load: float | None, slots: int, name: str) -> None:
    rows = [{"sigma": s / 4, **sweep.compare_lognormal(s / 4, slots, load=load)} for s in range(9)]
    for sigma in (0, 0.05, 0.2, 0.5, 1, 1.3, 1.6, 1.8, 2):
        here = {**sweep.compare_lognormal(sigma, slots, load=load), "sigma": sigma, "name": name} if name else sigma
        root = ElementTree.fromstring(sweep_curve(rows, here=here).svg)
        found = boxes(root)
        for one, other in itertools.combinations(found, 2):
            apart = one[3] <= other[1] or other[3] <= one[1] or one[4] <= other[2] or other[4] <= one[2]
            assert apart, (sigma, one, other)
        for line in root.iter(f"{SVG}polyline"):
            xs, ys = np.transpose([[float(v) for v in point.split(",")] for point in line.get("points").split()])
            for words, left, top, right, bottom in found:
                across = np.linspace(left, right, 30)
                across = across[(across >= xs[0]) & (across <= xs[-1])]
                heights = np.interp(across, xs, ys)
                assert not ((heights > top) & (heights < bottom)).any(), (sigma, words)


@pytest.mark.parametrize(("limit", "top"), [(None, 10), (8, 10), (30, 30), (31, 10), (2048, 10)])
def test_a_chart_reaches_up_to_its_limit_if_that_is_near(limit: float | None, top: float) -> None:
    drawn = dashboard("title", "settings", [Chart("chart", [Line(np.array([4.0, 10.0]))], limit, "limit")], 60, "alt")
    assert f">{top}</text>" in drawn.svg
    assert ("↑ limit" in drawn.svg) == (limit is not None and limit > top)
    assert (LIMIT in drawn.svg) == (limit is not None and limit <= top)


def test_the_readme_shows_the_eight_requests_as_drawn_now(root: Path) -> None:
    assert (root / "notebooks/img/two_timelines.svg").read_text(encoding="utf-8") == eight_requests().svg + "\n"


def test_the_eight_requests_say_the_pages_numbers() -> None:
    alt = eight_requests().alt
    for said in ("74.6 % of slot-steps wasted", "1,932 useful of 7,600", "950 steps", "A waits 938 steps", "25.4 %"):
        assert said in alt
    assert "A waits 938 steps after its last token" in drawn_texts(eight_requests())


def test_the_page_says_its_numbers() -> None:
    alt = PICTURES["page"]().alt
    for said in ("8,942 steps", "2,206 steps", "83.7 % of slot-steps useful", "79.3 % of slot-steps wasted",
                 "59,092 useful of 286,144", "The last 471 steps are drain"):
        assert said in alt


def test_a_short_wait_is_said_above_the_block() -> None:
    texts = drawn_texts(PICTURES["eight_requests_in_4_slots"]())
    assert any("wasted" in t and t.endswith("A waits 19 steps after its last token") for t in texts)


@pytest.mark.parametrize("scheduler", [static_batching, continuous_batching])
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_bars_and_hatching_cover_what_the_schedule_says(scheduler, slots: int) -> None:
    lengths = [40, 7, 93, 20, 55, 61, 12]
    schedule = scheduler(lengths, slots)
    svg = timelines([schedule]).svg
    per_step = (WIDTH - LEFT - RIGHT) / schedule.steps
    bars = re.findall(rf'<rect [^>]* width="([\d.]+)" [^>]*fill="({"|".join(OKABE_ITO)})"', svg)
    assert [round(float(width) / per_step) for width, _ in bars] == lengths
    assert [colour for _, colour in bars] == list(OKABE_ITO[:7])
    held = re.search(r'<path d="([^"]*)" fill="#EDEDED"', svg)[1] if scheduler is static_batching and slots > 1 else ""
    widths = [float(h) for h in re.findall(r"M[\d.]+ [\d.]+h([\d.]+)", held)]
    assert sum(widths) / per_step == pytest.approx((schedule.release - schedule.done).sum(), abs=0.5)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 25))
def test_binned_occupancy_is_the_mean_of_each_bin(lengths: list[int], slots: int, bins: int) -> None:
    for schedule in sweep.run_both(lengths, slots).values():
        bins = min(bins, schedule.steps)
        edges = np.linspace(0, schedule.steps, bins + 1)
        for which, end in (("useful", schedule.done), ("held", schedule.release)):
            steps = np.append(0, np.cumsum(metrics.occupancy(schedule, which)))
            expected = np.diff(np.interp(edges, np.arange(len(steps)), steps)) / np.diff(edges)
            assert binned_occupancy(schedule.start, end, edges) == pytest.approx(expected, abs=1e-6)


def test_a_hundred_thousand_requests_make_no_larger_picture() -> None:
    lengths = workload.lognormal_lengths(100_000, 4.2, 1.1, 0)
    assert len(occupancies(sweep.run_both(lengths, 32)).svg) < 40_000


def test_a_picture_shows_itself_as_an_image_with_alternative_text() -> None:
    html = Picture("<svg/>", 'a "quoted" <b> & more')._repr_html_()
    assert 'alt="a &quot;quoted&quot; &lt;b&gt; &amp; more"' in html
    assert base64.b64decode(re.search(r"base64,([^\"]+)", html)[1]) == b"<svg/>"


def test_two_pictures_on_a_page_do_not_share_an_id() -> None:
    one, other = eight_requests().inline("one"), eight_requests().inline("other")
    assert not set(re.findall(r' id="([^"]+)"', one)) & set(re.findall(r' id="([^"]+)"', other))
    assert 'fill="url(#hatch-one)"' in one


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a"b', "a&b", "a\x00b\x0bc", "é→中"])
def test_names_are_escaped(name: str) -> None:
    schedules = sweep.run_both([300, 400], 2)
    root = ElementTree.fromstring(timelines(schedules, names=[name, "other"], waits=name).svg)
    clean = "".join(c for c in name if c.isprintable())
    assert clean in root.get("aria-label") and not list(root.iter("{http://www.w3.org/2000/svg}script"))


@pytest.mark.parametrize("draw", [timelines, occupancies])
def test_what_cannot_be_drawn_is_said(draw) -> None:
    schedule = static_batching([1, 2], 2)
    with pytest.raises(ValueError, match="at least one schedule"):
        draw([])
    with pytest.raises(ValueError, match="dict of name -> schedule"):
        draw([schedule, schedule])
    assert "one: " in draw({"one": schedule, "two": schedule}).alt


def test_names_must_match() -> None:
    schedule = static_batching([1, 2], 2)
    with pytest.raises(ValueError, match="2 needed, got 1"):
        timelines([schedule], names=["A"])
    with pytest.raises(ValueError, match="one of the requests' names, got 'Z'"):
        timelines([schedule], waits="Z")
    with pytest.raises(ValueError, match="at least one point"):
        sweep_curve([])


EXTREMES = [([1], 1), ([1], 256), ([5] * 64, 64), ([10**6], 1), ([*range(1, 65)], 1)]


@pytest.mark.parametrize(("lengths", "slots"), EXTREMES)
def test_extremes_are_drawn(lengths: list[int], slots: int) -> None:
    schedules = sweep.run_both(lengths, slots)
    for picture in (timelines(schedules, waits="A"), occupancies(schedules)):
        assert "nan" not in picture.svg.lower().replace("finance", "")
        ElementTree.fromstring(picture.svg)


def test_what_a_picture_says_of_waste() -> None:
    assert message("static", static_batching([5, 5], 2)) == ("static: no slot-step wasted", "")
    held = ("s: 25.0 % of slot-steps wasted", "all held by finished requests")
    assert message("s", static_batching([5, 10], 2)) == held
    assert message("s", static_batching([5, 10, 10], 2))[1] == "12.5 % held by finished requests, 25.0 % empty"
    assert message("c", continuous_batching([5, 10], 2))[0] == "c: 75.0 % of slot-steps useful"


@pytest.mark.parametrize("span", [1, 2, 5, 8, 9, 950, 981, 8942, 10**6, 123_456_789])
def test_ticks_are_few_and_round(span: int) -> None:
    at = ticks(span)
    assert at[0] == 0 and at[-1] <= span and len(at) <= 9
    assert re.fullmatch(r"(1|2|25|5)0*", str(at[1]))


def test_request_names() -> None:
    assert request_names(8) == list(workload.EIGHT_NAMES)
    assert request_names(28)[-2:] == ["AA", "AB"]
    assert len(set(request_names(2000))) == 2000


@pytest.mark.parametrize("colour", OKABE_ITO)
def test_text_on_a_bar_can_be_read(colour: str) -> None:
    def light(hexadecimal: str) -> float:
        parts = [int(hexadecimal[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    high, low = sorted((light(colour), light(on(colour))), reverse=True)
    assert (high + 0.05) / (low + 0.05) > 3  # WCAG's floor for large or bold type


def test_the_command_writes_the_picture(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "out.svg"
    subprocess.run([sys.executable, "-m", "labs.svg", str(path)], cwd=root, check=True)
    assert path.read_text(encoding="utf-8").startswith("<svg")
    without = subprocess.run([sys.executable, "-m", "labs.svg"], cwd=root, capture_output=True, text=True)
    assert without.returncode == 1 and "usage" in without.stderr
