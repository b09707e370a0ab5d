"""Lines over numbers, as SVG: what is drawn, what is said, and what can't be drawn."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from labs.svg import Axis, chart


def points(svg: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="([^"]+)"', svg)
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in found]


def test_lines_have_names_dashes_and_a_message() -> None:
    shown = chart({"a<b": ([1, 2, 4], [10, 20, 40]), "other": ([1, 2, 4], [5, 5, 5])}, Axis("n", 1, log=True),
                  Axis("ms"), "it rises", "it rises from 10 to 40", {"target 30": 30}, {"cap 2": 2})
    ET.fromstring(shown.svg)
    assert shown.alt in shown.svg
    for words in ("it rises", "a&lt;b", "other", "target 30", "cap 2", ">n<", ">ms<"):
        assert words in shown.svg
    assert shown.svg.count("stroke-dasharray") == 1
    (x1, y1), (x2, y2), (x3, y3) = points(shown.svg)[0]
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)  # each doubling is as wide
    assert y1 > y2 > y3


def test_what_isnt_a_number_is_left_out_and_what_is_too_high_is_cut() -> None:
    shown = chart({"a": ([0, 1, 2, 3], [1.0, float("nan"), 99.0, 1.0])}, Axis("s"), Axis("share", high=2.0), "t", "alt")
    line = points(shown.svg)[0]
    assert len(line) == 3
    assert line[1][1] == 40.0  # the top of the axis
    ET.fromstring(chart({"flat": ([0, 0], [0, 0])}, Axis("s"), Axis("y"), "t", "alt").svg)
    with pytest.raises(ValueError, match="nothing to draw"):
        chart({"none": ([], [])}, Axis("s"), Axis("y"), "t", "alt")


def test_names_at_one_height_are_moved_apart() -> None:
    shown = chart({"one": ([0, 1], [3, 3]), "two": ([0, 1], [3, 3])}, Axis("s"), Axis("y"), "t", "alt")
    heights = [float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>(?:one|two)<', shown.svg)]
    assert abs(heights[0] - heights[1]) >= 15


def test_spreads_stand_at_their_points() -> None:
    shown = chart({"a": ([1, 2], [5, 6])}, Axis("s"), Axis("y", high=10), "t", "alt", ranges={"a": [(4, 7), (5, 9)]})
    assert len(re.findall(r'stroke-width="3"', shown.svg)) == 2
