"""The situations to play: what each one says about itself is so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.engine import Run, run
from labs.presets import PRESETS, Preset

EACH = pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)


def played(name: str, **knobs) -> Run:
    preset = PRESETS[name]
    return run(preset.requests, replace(preset.config, **knobs), stops=preset.stops, aborts=preset.aborts)


def tokens(done: Run, step: int) -> tuple[dict[str, int], int]:
    """(prefill by request, decoding sequences)."""
    return dict(done.records[step].prefill), len(done.records[step].decode)


def first_scheduled(done: Run, request_id: str) -> int:
    return next(r.step for r in done.records if request_id in r.prefill)


@EACH
def test_quick_to_scrub_finishes_and_says_what_to_look_for(preset: Preset) -> None:
    done = run(preset.requests, preset.config, stops=preset.stops, aborts=preset.aborts)
    assert preset.start < done.steps <= 120
    assert {outcome.reason for outcome in done.outcomes.values()} == {"length"}
    assert 40 < len(preset.sentence) < 260 and preset.sentence.endswith(".")
    assert list(PRESETS)[0] == "two long prompts beside 180"


@EACH
def test_ranges_hold_the_preset_itself(preset: Preset) -> None:
    config, (least, most, step) = preset.config, preset.blocks
    assert preset.seqs[0] <= config.max_num_seqs <= preset.seqs[1]
    assert config.max_num_batched_tokens in preset.budgets and list(preset.budgets) == sorted(preset.budgets)
    assert config.num_gpu_blocks in range(least, most + 1, step)


def test_pages_step_takes_three_steps_at_2048() -> None:
    done = played("two long prompts beside 180")
    assert [tokens(done, i) for i in (2, 3, 4)] == [
        ({"X": 1868}, 180), ({"X": 132, "Y": 1736}, 180), ({"Y": 264}, 181)]
    assert [r.binding_limit for r in done.records[1:5]] == ["none", "token budget", "token budget", "none"]
    assert [r.waiting for r in done.records[1:4]] == [(), ("Y",), ()]


def test_pages_step_takes_one_step_at_8192() -> None:
    done = played("two long prompts beside 180", max_num_batched_tokens=8192)
    assert tokens(done, 2) == ({"X": 2000, "Y": 2000}, 180)
    assert tokens(done, 3) == ({}, 182)


def test_a_long_prompt_in_chunks_makes_nobody_late() -> None:
    done = played("one long prompt, in chunks")
    assert [tokens(done, i) for i in range(4, 9)] == [*[({"L": 123}, 5)] * 4, ({"L": 16, "F": 16, "G": 16}, 5)]
    assert all(set("BCDE") <= set(r.decode) for r in done.records[1:20])
    assert [first_scheduled(done, i) for i in "FG"] == [8, 8]


def test_chunking_off_makes_the_long_prompt_and_all_behind_it_wait() -> None:
    done = played("one long prompt, chunking off")
    for record in done.records[5:12]:
        assert record.waiting == ("L", "F", "G") and record.binding_limit == "token budget"
        assert 512 - len(record.decode) == 507 < 508
    assert tokens(done, 12) == ({"L": 508}, 4)
    assert done.records[11].finished == ("A",) and first_scheduled(done, "F") == 13
    chunked = played("one long prompt, in chunks")
    assert max(sum(r.prefill.values()) + len(r.decode) for r in chunked.records) == 128


def test_both_long_prompts_are_the_same_requests() -> None:
    chunks, whole = (PRESETS[f"one long prompt, {how}"] for how in ("in chunks", "chunking off"))
    assert chunks.requests == whole.requests
    assert (chunks.config.enable_chunked_prefill, whole.config.enable_chunked_prefill) == (True, False)


def test_chunking_off_is_refused_at_a_budget_below_max_model_len() -> None:
    with pytest.raises(ValueError, match="must be at least max_model_len"):
        played("one long prompt, in chunks", enable_chunked_prefill=False)


def test_short_memory_preempts_and_computes_again() -> None:
    done, ample = played("memory too short"), played("memory too short", num_gpu_blocks=49)
    assert [(r.step, r.preempted, r.lost) for r in done.records if r.preempted] == [
        (19, ("F", "E"), 96), (35, ("D",), 64), (51, ("F",), 49)]
    computed = [sum(sum(r.prefill.values()) + len(r.decode) for r in one.records) for one in (done, ample)]
    assert computed[0] - computed[1] == sum(r.lost for r in done.records) == 209
    assert (done.steps, ample.steps, ample.preemptions) == (84, 56, 0)


def test_urgent_requests_jump_the_queue_and_take_nobodys_slot() -> None:
    done = played("urgent requests under priority")
    assert done.preemptions == 0
    assert [r.waiting for r in done.records[5:8]] == [("E", "F"), *[("U", "V", "E", "F")] * 2]
    assert all(r.running == tuple("ABCD") and r.binding_limit == "sequence cap" for r in done.records[6:14])
    assert [first_scheduled(done, i) for i in "UVEF"] == [14, 20, 24, 26]


def test_under_fcfs_nobody_jumps() -> None:
    done = played("urgent requests under priority", policy="fcfs")
    assert done.preemptions == 0
    order = [first_scheduled(done, i) for i in "EFUV"]
    assert order == sorted(order) and order[0] < order[1] < order[2] < order[3]


def test_under_memory_pressure_the_urgent_ones_stay() -> None:
    done = played("urgent requests under priority", num_gpu_blocks=9)
    assert done.preemptions > 0
    assert not {"U", "V"} & {i for r in done.records for i in r.preempted}


def test_the_head_that_does_not_fit_blocks_those_that_would() -> None:
    done = played("the head of the queue does not fit")
    for record in done.records[4:20]:
        assert record.waiting == ("H", "P", "Q", "R") and record.running == tuple("ABC")
        assert record.binding_limit == "full-prompt gate"
        assert -(-600 // 16) == 38 > record.free_blocks >= 31  # H; P, Q and R need 2 each
    assert done.records[19].finished == ("A",)
    assert [first_scheduled(done, i) for i in "HPQR"] == [20, *[first_scheduled(done, "P")] * 3]
    assert done.preemptions == 0


def test_one_request_alone_prefills_once_and_then_decodes() -> None:
    done = played("one request alone")
    assert tokens(done, 0) == ({"A": 300}, 0)
    assert [tokens(done, i) for i in range(1, 24)] == [({}, 1)] * 23 and done.steps == 24
