"""The planner: its answers hold when simulated by other seeds, and one step less is as it says; 200 random loads."""

from __future__ import annotations

import csv
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_study import CASES, GOLDEN, case, row

from labs.engine import StepTime
from labs.planner import ALIKE, FEWEST, MISSES, REFUSED, RESOURCES, Load, Margin, Planner, Settings, Targets, while_full
from labs.planner.search import largest, smallest
from labs.serving import serve
from labs.situations import chat

GPU = StepTime(8e-3, 1e-4, 4e-5)
FRESH, MORE = range(70_000, 70_004), range(80_000, 80_020)  # seeds that no plan has seen


def study() -> list[dict[str, str]]:
    with GOLDEN.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def settings_of(line: dict[str, str]) -> Settings:
    return Settings(*(int(line[name]) for name in ("replicas", "max_num_seqs", "blocks")))


# ---------------------------------------------------------------- 200 random loads


def test_the_study_holds_200_loads_of_every_kind() -> None:
    lines = study()
    assert len(lines) == len({line["seed"] for line in lines}) == CASES == 200
    for name in RESOURCES:
        verdicts = {line[f"{name} less"] for line in lines}
        assert {MISSES, ALIKE} <= verdicts, name
    assert max(int(line["replicas"]) for line in lines) > 5
    decided = sum(line[f"{name} less"] != ALIKE or line[f"{name} clear"] != "" for line in lines for name in RESOURCES)
    assert decided > 0.8 * 3 * CASES  # with half as much, if not with a sixth less


@pytest.mark.slow
def test_the_answers_hold_and_less_is_as_they_say() -> None:
    """Four simulations of each answer by new seeds: it keeps both targets in most; what is said to miss misses more.

    Where four don't show it, twenty more do.
    """
    broken, not_missed = [], []
    for line in study():
        planner, settings = case(int(line["seed"])), settings_of(line)
        missed = planner.misses(settings, FRESH)
        if missed > len(FRESH) // 2:
            broken.append((line["seed"], missed))
        for name in RESOURCES:
            less, verdict = settings.less(name), line[f"{name} less"]
            if verdict == FEWEST:
                assert less is None
            elif verdict == REFUSED:
                assert less.blocks < planner.least_blocks <= settings.blocks
            elif line[f"{name} clear"]:
                less = replace(settings, **{RESOURCES[name]: int(line[f"{name} clear"])})
            if ((verdict == MISSES or line[f"{name} clear"]) and planner.misses(less, FRESH) <= missed
                    and planner.misses(less, MORE) <= planner.misses(settings, MORE)):
                not_missed.append((line["seed"], name))
    assert (broken, not_missed) == ([], [])


@pytest.mark.slow
def test_the_study_is_what_the_planner_says() -> None:
    lines = study()
    for line in random.Random(6).sample(lines, 5):
        assert row(int(line["seed"]), case(int(line["seed"])).plan()) == line


# ---------------------------------------------------------------- one load in detail


@pytest.fixture(scope="module")
def planner() -> Planner:
    sample = chat(500, 1.0)
    load = Load([r.prompt_tokens for r in sample], [r.output_tokens for r in sample], rate=40.0)
    return Planner(load, GPU, Targets(0.040, 0.5), requests=300, runs=4)


@pytest.fixture(scope="module")
def plan(planner: Planner):
    return planner.plan()


def test_the_reasoning_is_shown_with_its_numbers(planner: Planner, plan) -> None:
    rows = {what: (answer, why) for what, answer, why in plan.rows}
    assert rows["replicas"][0] == str(plan.settings.replicas)
    assert f"{planner.load.rate / plan.settings.replicas:.2f} requests/s each" in rows["replicas"][1]
    assert rows["slots"][0] == f"max_num_seqs {plan.settings.max_num_seqs}"
    assert str(plan.margins["max_num_seqs"]) in rows["slots"][1]
    served = planner.simulate(plan.settings, planner.seed)
    assert rows["check: p95 ITL"][0] == f"{1e3 * served.itl(0.95):.1f} ms"
    assert served.itl(0.95) <= 0.040 and served.ttft_at(0.99) <= 0.5


def test_the_ceiling_is_the_last_cap_that_keeps_the_itl_target_when_full(planner: Planner, plan) -> None:
    assert planner.full(plan.ceiling).itl_p95 <= 0.040 < planner.full(plan.ceiling + 1).itl_p95
    assert plan.settings.max_num_seqs <= plan.ceiling
    assert plan.config.max_num_seqs == plan.settings.max_num_seqs
    assert plan.config.num_gpu_blocks == plan.settings.blocks


def test_the_fewest_blocks_are_near_the_edge(planner: Planner, plan) -> None:
    answer = plan.settings
    found = planner._fewest_blocks(answer.replicas, answer.max_num_seqs)
    assert planner.holds(replace(answer, blocks=found))
    assert not planner.holds(replace(answer, blocks=found - max(1, found // 24)))


def test_more_load_takes_as_many_replicas_or_more(planner: Planner, plan) -> None:
    more = Planner(Load(planner.load.prompts, planner.load.outputs, 120.0), GPU, planner.targets, requests=300, runs=4)
    assert more.plan().settings.replicas > plan.settings.replicas


def test_a_full_replica_is_looked_at_between_start_and_drain() -> None:
    planner = Planner(Load([10], [20], 1.0), StepTime(0.01), Targets(1, 1))
    full = planner.full(4)
    assert full.itl_p95 == pytest.approx(0.01)
    assert full.capacity == pytest.approx(4 / (20 * 0.01), rel=0.05)
    served = serve(planner.load.requests(50, 0, math.inf), planner.config(planner.settings(1, 4)), planner.step_time)
    assert while_full(served, 4).itl_p95 == pytest.approx(0.01)


def test_what_no_replicas_can_serve_is_said_in_a_sentence() -> None:
    load = Load([100], [50], 1.0)
    with pytest.raises(ValueError, match="no cap can hold it, a faster step must"):
        Planner(load, GPU, Targets(0.005, 1.0), requests=100).plan()
    with pytest.raises(ValueError, match="no number of replicas helps"):
        Planner(load, GPU, Targets(0.1, 0.001), requests=100).plan()


@pytest.mark.parametrize(("prompts", "outputs", "rate", "says"), [
    ([], [], 1, "one pair a request"), ([1, 2], [1], 1, "one pair a request"), ([0], [1], 1, "at least 1 token"),
    ([1], [1], 0, "rate must be"), ([1], [1], math.inf, "rate must be"), ([1], [1], math.nan, "rate must be")])
def test_a_load_that_makes_no_sense(prompts, outputs, rate, says) -> None:
    with pytest.raises(ValueError, match=says):
        Load(prompts, outputs, rate)


def test_targets_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="itl_p95 must be"):
        Targets(0, 1)
    with pytest.raises(ValueError, match="ttft_p99 must be"):
        Targets(1, math.nan)


def test_the_load_is_drawn_in_pairs_and_seeded() -> None:
    load = Load([1, 50], [2, 60], 3.0)
    drawn = load.requests(400, seed=1, rate=2.0)
    assert {(r.prompt_tokens, r.output_tokens) for r in drawn} == {(1, 2), (50, 60)}
    assert drawn == load.requests(400, 1, 2.0) != load.requests(400, 2, 2.0)
    assert drawn[-1].arrival == pytest.approx(200, rel=0.2)
    assert {r.arrival for r in load.requests(5, 1, math.inf)} == {0.0}
    assert load.max_model_len == 111


def test_a_step_less_is_a_sixth_or_one() -> None:
    settings = Settings(2, 30, 7)
    assert settings.less("replicas") == Settings(1, 30, 7)
    assert settings.less("max_num_seqs") == Settings(2, 25, 7)
    assert settings.less("KV blocks") == Settings(2, 30, 6)
    assert settings.less("max_num_seqs", 3) == Settings(2, 20, 7)
    assert Settings(1, 1, 2).less("replicas") is Settings(1, 1, 2).less("max_num_seqs") is None


def test_a_margin_in_words() -> None:
    assert str(Margin(MISSES, 9, 0, 10)) == "misses a target in 9 of 10 runs"
    assert str(Margin(ALIKE, 3, 1, 10)) == "can't be told apart within noise (3 of 10 runs miss)"
    assert str(Margin(ALIKE, 3, 1, 10, 1200, 8)).endswith("(3 of 10 runs miss); with 1,200, 8 of 10 miss")
    assert "would not start" in str(Margin(REFUSED))
    assert str(Margin(FEWEST)) == "there is none to take away"


@given(edge=st.integers(1, 200), low=st.integers(1, 200), high=st.integers(1, 300))
def test_the_searches_find_the_edge(edge: int, low: int, high: int) -> None:
    low, high = sorted((low, high))
    if low <= edge:
        assert largest(lambda x: x <= edge, low, high) == min(edge, high)
    if edge <= high:
        assert smallest(lambda x: x >= edge, low, high) == max(edge, low)
    elif low < high:
        with pytest.raises(ValueError, match="too few"):
            smallest(lambda x: x >= edge, low, high)


def test_longer_runs_for_more_slots() -> None:
    planner = Planner(Load(np.array([10]), np.array([10]), 5.0), StepTime(0.01), Targets(1, 1), requests=100)
    assert len(planner.simulate(planner.settings(1, 5), 0).requests) == 100
    assert len(planner.simulate(planner.settings(1, 50), 0).requests) == 400
