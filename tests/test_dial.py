"""The dial of notebook 06: every control at its ends, and its numbers beside the readable engine's, token by token."""

from __future__ import annotations

import math

import pytest

from labs import explorers
from labs.engine import StepTime, run
from labs.explorers.dial import BUDGETS, GPU_LIKE, LEVELS
from labs.metrics import percentile


@pytest.fixture(scope="module")
def dial():
    return explorers.dial()


def p95_by_records(dial, seqs: int, budget: int) -> float:
    """p95 of the gaps between the first full moment and the last one at which somebody waits, in ms."""
    planner = dial.planner(budget)
    requests = planner.load.requests(3 * seqs + 200, 0, math.inf)
    records = run(requests, planner.config(planner.settings(1, seqs)), GPU_LIKE, readable=True).records
    last, gaps, firsts = {}, [], []
    for record in records:
        end = record.time + record.seconds
        for name in record.made:
            if name in last:
                gaps.append((end - last[name], end))
            else:
                firsts.append(end)
            last[name] = end
    begin, until = sorted(firsts)[seqs - 1], max(r.time for r in records if r.waiting)
    return 1e3 * percentile([gap for gap, end in gaps if begin < end <= until], 0.95)


@pytest.mark.parametrize(("cap", "budget"), [(4, 2048), (32, 512)])
def test_its_itl_is_the_readable_engines(dial, cap: int, budget: int) -> None:
    dial.set(cap=cap, budget=budget)
    assert dial.view.numbers[0] == (f"{p95_by_records(dial, cap, budget):.1f} ms", "p95 ITL, every slot taken")
    dial.reset()


def test_every_control_at_its_ends(dial) -> None:
    ends = {"cap": (1, 256), "rate": (1, 120), "target": (10, 120), "budget": (BUDGETS[0], BUDGETS[-1])}
    for name, values in ends.items():
        for value in values:
            dial.set(**{name: value})
            assert dial.error == "" and dial.values[name] == value
            rows = dict(dial.view.rows)
            share = dial.values["rate"] / int(dial.view.numbers[1][0])
            assert rows["requests a second"] == f"{share:.1f}"
            kept = float(dial.view.numbers[0][0].split()[0]) <= dial.values["target"]
            assert ("keeps" in dial.view.picture.alt) is kept
        dial.reset()


def test_a_higher_cap_is_slower_for_each_and_does_more(dial) -> None:
    shown = []
    for cap in (8, 32, 128):
        dial.set(cap=cap)
        shown.append([float(value.split()[0]) for value, _ in dial.view.numbers])
    dial.reset()
    itl, replicas, capacity = zip(*shown, strict=True)
    assert itl == tuple(sorted(itl)) and capacity == tuple(sorted(capacity))
    assert replicas == tuple(sorted(replicas, reverse=True))


def test_the_alternative_text_has_every_level(dial) -> None:
    assert all(f"{level}: " in dial.view.picture.alt for level in LEVELS)


def test_another_step_time_is_another_machine() -> None:
    slow = explorers.dial(StepTime(0.1))
    assert slow.view.numbers[0][0] == "100.0 ms"
