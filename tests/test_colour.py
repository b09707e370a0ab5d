"""The palette as people with the common kinds of colour-blindness see it.

Matrices: G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, "A Physiologically-based Model for Simulation of Color
Vision Deficiency", IEEE TVCG 15 (2009), table 1, severity 1.0; they act on linear RGB.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from labs.svg.marks import COLOURS, DRAIN, HATCH, HELD, INK, OKABE_ITO

SIGHT = {
    "normal": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                            [0.004733, 0.691367, 0.303900]]),
}
TOLD_APART = 8.0  # CIELAB distance; one that is just seen is 2.3


def linear(colour: str) -> np.ndarray:
    """#RRGGBB as linear RGB from 0 to 1."""
    value = np.array([int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Linear RGB as CIELAB, D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb
    ratio = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(a: str, b: str, sight: str) -> float:
    """How far apart two colours are for these eyes, in CIELAB."""
    seen = [lab(np.clip(SIGHT[sight] @ linear(colour), 0, 1)) for colour in (a, b)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def contrast(a: str, b: str) -> float:
    """WCAG's contrast ratio."""
    bright = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colour)) for colour in (a, b))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(("a", "b"), [*combinations(OKABE_ITO, 2)])
def test_requests_are_told_apart(a: str, b: str, sight: str) -> None:
    assert distance(a, b, sight) >= TOLD_APART


@pytest.mark.parametrize("sight", SIGHT)
def test_the_two_schedulers_are_told_apart_at_a_glance(sight: str) -> None:
    assert distance(COLOURS["static"], COLOURS["continuous"], sight) >= 40


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("ground", ["#FFFFFF", HELD, DRAIN])
def test_a_held_slot_and_the_drain_are_not_taken_for_a_request(ground: str, sight: str) -> None:
    assert min(distance(ground, colour, sight) for colour in OKABE_ITO) >= TOLD_APART


def test_words_and_hatching_can_be_read_on_their_ground() -> None:
    assert min(contrast(INK, ground) for ground in ("#FFFFFF", HELD, DRAIN)) >= 7
    assert contrast(HATCH, HELD) >= 2


def test_the_simulation_sees_a_pair_that_is_known_to_fail() -> None:
    assert distance("#00A000", "#B06000", "normal") > 60
    assert distance("#00A000", "#B06000", "deuteranopia") < 40
    assert distance("#D00000", "#6B5900", "protanopia") < 30
