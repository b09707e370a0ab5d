"""The step player and the step's picture: true to the records, the same to the last digit, safe, said in words.

After a change that is meant: `REGEN_GOLDEN=1 pytest tests/test_player.py` writes tests/golden/step_*.svg anew.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import run_player as script

from labs import engine, explorers, svg
from labs.knobs import SchedulerConfig
from labs.presets import PRESETS, Preset
from labs.svg.marks import WIDTH
from labs.svg.step import MOST_RUNNING, Replay, StepPictures, deed
from labs.svg.step.bars import EDGE, budget_bar, shades
from labs.svg.step.pool import PoolGrid
from labs.svg.step.replay import CROWD_COLOUR
from labs.workload import Request

GOLDEN = Path(__file__).parent / "golden"
EACH = pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
SVG = "{http://www.w3.org/2000/svg}"


@cache
def replay(name: str) -> Replay:
    """A preset's run with block tables."""
    preset = PRESETS[name]
    done = engine.run(preset.requests, preset.config, stops=preset.stops, aborts=preset.aborts, tables=True)
    return Replay(done.records, preset.requests, preset.config)


@cache
def busy() -> Replay:
    """Many different requests in a large pool, with stops and aborts, under priority and pressure."""
    requests = [Request(f"r{i}", 5 + 37 * i % 200, 3 + 11 * i % 60, i // 3, priority=i % 3 - 1) for i in range(90)]
    config = SchedulerConfig(max_num_seqs=40, max_num_batched_tokens=300, num_gpu_blocks=260, policy="priority",
                             block_size=8, long_prefill_token_threshold=64)
    done = engine.run(requests, config, stops={"r7": 2, "r20": 9}, aborts={"r9": 12, "r33": 13, "r80": 40}, tables=True)
    assert done.preemptions > 20
    return Replay(done.records, requests, config)


REPLAYS = pytest.mark.parametrize("one", [*PRESETS, "busy"])


def of(one: str) -> Replay:
    return busy() if one == "busy" else replay(one)


# ---- in both versions of ipywidgets ---------------------------------------------------------------------------------


def exercise_player() -> int:
    """Every check of run_player.py, here; how many passed."""
    return sum(sum(1 for _ in check()) for check in (script.choosing, script.own_requests, script.display))


@EACH
def test_every_step_shows_its_record(preset: Preset) -> None:
    assert len(list(script.every_step(preset))) == len(replay(preset.name).records) + 1


@EACH
def test_every_knob_at_its_ends(preset: Preset) -> None:
    assert len(list(script.every_knob(preset))) >= 8


def test_presets_buttons_own_requests_and_display() -> None:
    assert exercise_player() == len(PRESETS) + 5


@pytest.mark.slow
def test_with_colabs_versions(root: Path) -> None:
    named = os.environ.get("LABS_COLAB_PYTHON")
    if not named:
        pytest.skip("LABS_COLAB_PYTHON names no Python with the versions of tests/requirements-colab.txt")
    python = str((root / named).absolute())
    done = subprocess.run([python, "tests/run_player.py"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ipywidgets 7.7.1" in done.stdout and " 0 failed" in done.stdout


def test_a_name_that_is_no_presets() -> None:
    with pytest.raises(ValueError, match="no preset 'the step': choose from 'two long prompts beside 180', 'one long"):
        explorers.step_player("the step")


def test_a_preset_of_ones_own() -> None:
    mine = replace(PRESETS["one request alone"], name="mine", sentence="Look here.", start=5)
    panel = explorers.step_player(mine)
    assert panel.values["step"] == 5 and panel.view.note == "Look here."


def test_a_run_that_is_too_long_is_refused_in_words() -> None:
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=999, max_model_len=9999)
    panel = explorers.step_player(([Request("A", 10, 5000)], config))
    assert panel.error.startswith("this takes more than 2,000 steps")


def test_the_step_stays_where_it_is_when_a_knob_moves() -> None:
    panel = explorers.step_player()
    panel.set(max_num_batched_tokens=8192)
    assert panel.values["step"] == 2 and panel.view.numbers[0][0] == "4,180 of 8,192"


def test_moving_through_the_steps_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    panel = explorers.step_player("memory too short")
    monkeypatch.setattr("labs.explorers.player.run", None)
    for i in range(84):
        panel.set(step=i)
        assert not panel.error and f"step {i}:" in panel.view.picture.svg


def test_a_preset_is_run_once_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[SchedulerConfig] = []
    monkeypatch.setattr("labs.explorers.player.run", lambda r, c, **more: runs.append(c) or engine.run(r, c, **more))
    panel = explorers.step_player()
    panel.controls["preset"].set_state({"index": 4})
    assert runs == [PRESETS["two long prompts beside 180"].config, PRESETS["urgent requests under priority"].config]
    assert panel.play.max == panel.controls["step"].max == 41


# ---- what the picture is made from ----------------------------------------------------------------------------------


@REPLAYS
def test_rows_agree_with_the_block_tables_and_the_records(one: str) -> None:
    run = of(one)
    for record in run.records:
        for request_id in record.running:
            row = run.row(record, request_id)
            assert row.blocks == len(record.tables[request_id])
            assert row.new == (request_id in record.made) == (row.tokens > 0 and row.to_go == 0)
            assert row.finished == (request_id in record.finished)
        lost = [run.row(record, i) for i in record.preempted]
        assert sum(row.computed for row in lost) == record.lost
        assert all(row.kind == "preempted" and row.blocks == 0 for row in lost)
        assert run.used(record) == sum(map(len, record.tables.values()))


@REPLAYS
@pytest.mark.parametrize("most", [6, MOST_RUNNING, 14, 1000])
def test_rows_together_leave_nobody_out(one: str, most: int) -> None:
    run = of(one)
    for record in run.records:
        rows = run.running_rows(record, most)
        assert Counter(i for row in rows for i in row.ids) == Counter(record.running)
        assert sum(row.tokens for row in rows) == record.prefill_tokens + record.decode_tokens
        assert len(rows) == run.count_running_rows(record, most) <= most
        assert sum(row.new for row in rows) == len(record.made)
        waiting = run.waiting_rows(record, most)
        assert [i for row in waiting for i in row.ids] == list(record.waiting)
        assert len(waiting) <= most


def test_the_page_shows_its_crowd_in_one_row() -> None:
    run = replay("two long prompts beside 180")
    record = run.records[2]
    crowd, x = run.running_rows(record, MOST_RUNNING)
    assert (len(crowd.ids), crowd.kind, crowd.tokens, x.ids) == (180, "decode", 180, ("X",))
    assert deed(run, record, crowd) == "decoding, one token each"
    assert deed(run, record, x) == "prefill 1,868: 132 to go"


def test_colours_stay_the_same_and_only_a_crowd_shares_one() -> None:
    run = replay("two long prompts beside 180")
    assert {run.colours[f"d{i}"] for i in range(180)} == {CROWD_COLOUR}
    assert len({run.colours["X"], run.colours["Y"], CROWD_COLOUR}) == 3
    assert len(set(replay("urgent requests under priority").colours.values())) == 8


def luminance(colour: str) -> float:
    return sum(weight * int(colour[i:i + 2], 16) for weight, i in ((0.299, 1), (0.587, 3), (0.114, 5)))


@pytest.mark.parametrize("colour", [*svg.OKABE_ITO, CROWD_COLOUR])
def test_prefill_is_dark_and_decode_is_light(colour: str) -> None:
    dark, light = shades(colour)
    assert luminance(dark) < luminance(light) - 60
    assert luminance(dark) <= luminance(colour) <= luminance(light)


# ---- the picture ----------------------------------------------------------------------------------------------------


def rectangles(parts: list[str]) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(f'<g xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</g>').iter(f"{SVG}rect"))


@REPLAYS
def test_the_budget_bar_is_as_long_as_the_tokens(one: str) -> None:
    run = of(one)
    for record in run.records:
        bars = [r for r in rectangles(budget_bar(run, record, 0)) if float(r.get("height")) == 26][:-1]
        share = (record.prefill_tokens + record.decode_tokens) / run.config.max_num_batched_tokens
        drawn = sum(float(r.get("width")) for r in bars)
        assert drawn == pytest.approx(share * (WIDTH - 2 * EDGE), abs=0.06 * len(bars))
        fills = {shades(run.colours[i])[1] for i in record.decode} | {shades(run.colours[i])[0] for i in record.prefill}
        assert {r.get("fill") for r in bars} == fills


@pytest.mark.parametrize("one", PRESETS)
def test_the_grid_colours_the_blocks_that_each_sequence_holds(one: str) -> None:
    run = of(one)
    grid = PoolGrid(run, 0, 0, 290, 220)
    corners = {f"M{x:g} {y:g}": cell for cell, (x, y) in enumerate(map(grid._corner, range(grid.cells)))}
    assert grid.per_cell == 1 and len(corners) == run.config.num_gpu_blocks
    for record in run.records:
        held = Counter()
        for request_id, table in record.tables.items():
            held.update({(run.colours[request_id], block) for block in table})
        drawn = Counter((colour, corners[corner]) for d, colour in re.findall(r'<path d="([^"]*)" fill="(#\w+)"/>',
                                                                             "".join(grid.parts(record)[1:]))
                        for corner in re.findall(r"M[\d.]+ [\d.]+", d))
        assert drawn == held and 0 not in {block for _, block in held}


def test_new_blocks_are_outlined() -> None:
    run = replay("memory too short")
    grid = PoolGrid(run, 0, 0, 290, 220)
    outlined = [sum(d.count("M") for d in re.findall(r'd="([^"]*)" fill="none" stroke="#222222" stroke-width="1.6"',
                                                     "".join(grid.parts(record)[1:]))) for record in run.records]
    assert outlined[:5] == [12, 0, 0, 6, 0]


def test_a_large_pool_is_drawn_with_many_blocks_a_square_and_says_so() -> None:
    requests = [Request("A", 900, 3), Request("B", 900, 3)]
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=2048, num_gpu_blocks=50_001)
    panel = explorers.step_player((requests, config))
    picture = panel.view.picture.svg
    assert re.search(r"a square: \d+ blocks, by the first one held", picture)
    assert "KV blocks: 114 of 50,000 held, 49,886 free" in picture and len(picture) < 100_000


def test_without_tables_the_picture_says_how_to_see_the_owners() -> None:
    preset = PRESETS["one request alone"]
    done = engine.run(preset.requests, preset.config)
    picture = svg.step(done.records[3], done.records, preset.requests, preset.config)
    assert "run(..., tables=True)" in picture.svg and "KV blocks: 19 of 40 held" in picture.svg


def test_a_record_of_another_run_is_refused() -> None:
    run = replay("one request alone")
    with pytest.raises(ValueError, match="step 3 is not among the records"):
        svg.step(run.records[3], run.records[:2], run.requests.values(), run.config)


def drawn_texts(picture: svg.Picture) -> list[str]:
    return ["".join(t.itertext()) for t in ElementTree.fromstring(picture.svg).iter(f"{SVG}text")]


def picture(one: str, at: int) -> svg.Picture:
    run = of(one)
    return StepPictures(run).picture(run.records[at])


@REPLAYS
def test_every_picture_says_its_records_numbers_in_print_and_in_words(one: str) -> None:
    run = of(one)
    pictures = StepPictures(run)
    heights = set()
    for record in run.records:
        drawn = pictures.picture(record)
        texts, used = drawn_texts(drawn), record.prefill_tokens + record.decode_tokens
        budget, total = run.config.max_num_batched_tokens, run.config.num_gpu_blocks - 1
        for said in (f"token budget: {used:,} of {budget:,}", f"decode {record.decode_tokens:,}",
                     f"prefill {record.prefill_tokens:,}", f"unused {budget - used:,}",
                     f"running{len(record.running):,} of {run.config.max_num_seqs:,}",
                     f"KV blocks: {run.used(record):,} of {total:,} held, {record.free_blocks:,} free"):
            assert said in texts
        assert any(t.startswith(f"waiting{len(record.waiting):,}") for t in texts)
        assert texts[0].startswith(f"step {record.step}: ") and drawn.alt.startswith(f"Step {record.step}: ")
        assert f"{used:,} of {budget:,} tokens" in drawn.alt and f"{len(record.waiting):,} waiting" in drawn.alt
        heights.add(re.search(r'viewBox="([^"]*)"', drawn.svg)[1])
    assert len(heights) == 1, "a picture must not jump while the reader scrubs"


@pytest.mark.parametrize(("name", "at", "said"), [
    ("two long prompts beside 180", 2, "step 2: the token budget binds; 1 waitsX has 132 tokens to go"),
    ("two long prompts beside 180", 5, "step 5: no limit binds; nobody waits"),
    ("one long prompt, chunking off", 8,
     "step 8: the token budget binds; 3 waitL, at the head, needs 508 tokens at once, 507 left"),
    ("memory too short", 19, "step 19: KV blocks bind; 2 waitF and E preempted: 96 computed tokens lost"),
    ("urgent requests under priority", 6,
     "step 6: the sequence cap binds; 4 waitU, at the head, needs a place: all 4 are taken"),
    ("the head of the queue does not fit", 5,
     "step 5: the full-prompt gate binds; 4 waitH, at the head, needs 38 blocks, 34 free"),
    ("one request alone", 23, "step 23: no limit binds; nobody waitsA finishes"),
])
def test_the_title_is_the_message(name: str, at: int, said: str) -> None:
    assert drawn_texts(picture(name, at))[0] == said


def test_those_behind_a_head_that_does_not_fit_would() -> None:
    assert drawn_texts(picture("the head of the queue does not fit", 5)).count("needs 2 blocks: would fit") == 3


def test_preempted_work_is_crossed_out_and_kept_output_too() -> None:
    run = replay("memory too short")
    assert [deed(run, run.records[i], run.row(run.records[i], "E")) for i in (19, 20, 50)] == [
        "preempted: 48 tokens lost", "needs 4 blocks, 2 free", "recompute 49: token 20 of 44"]


NAMES = ("<script>alert(1)</script>", 'a"b\'c', "&amp;", "tab\tnew\nline", "\x00\x1b", "×" * 400, "a]]>b")


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_safe(name: str) -> None:
    requests = [Request(name, 40, 3), Request("B", 300, 3)]
    config = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=64, num_gpu_blocks=30)
    done = engine.run(requests, config, tables=True)
    for record in done.records:
        drawn = svg.step(record, done.records, requests, config)
        root = ElementTree.fromstring(drawn.svg)
        known = {"svg", "title", "defs", "pattern", "path", "rect", "text", "tspan", "polyline"}
        assert {e.tag.removeprefix(SVG) for e in root.iter()} <= known
        assert max(map(len, drawn_texts(drawn))) < 110


GOLDENS = {
    "step_page_first_chunk": ("two long prompts beside 180", 2),
    "step_page_second_chunk": ("two long prompts beside 180", 3),
    "step_long_prompt_waits": ("one long prompt, chunking off", 8),
    "step_two_finish": ("one long prompt, in chunks", 11),
    "step_preempts": ("memory too short", 35),
    "step_recomputes": ("memory too short", 50),
    "step_urgent": ("urgent requests under priority", 14),
    "step_head_blocks": ("the head of the queue does not fit", 5),
    "step_busy": ("busy", 20),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_picture_is_the_one_that_was_looked_at(name: str) -> None:
    path, drawn = GOLDEN / f"{name}.svg", picture(*GOLDENS[name]).svg + "\n"
    if os.environ.get("REGEN_GOLDEN") == "1":
        path.write_text(drawn, encoding="utf-8")
    assert drawn == path.read_text(encoding="utf-8")


@REPLAYS
def test_a_picture_is_small_enough_to_send_at_every_step(one: str) -> None:
    """tests/bench_player.py measures the time that it takes."""
    run = of(one)
    pictures = StepPictures(run)
    assert max(len(pictures.picture(record).svg) for record in run.records[::4]) < 60_000


def test_speeds_are_milliseconds_a_step() -> None:
    panel = explorers.step_player()
    assert [milliseconds for _, milliseconds in panel.speed.options] == [1500, 600, 150]
    panel.speed.value = 150
    assert panel.play.interval == 150
