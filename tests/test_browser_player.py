"""The step player in a real JupyterLab, by keyboard and mouse. BROWSER_SHOTS=folder keeps the screenshots."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_lab import CLASHES, Lab, numbers, opened, outputs
from player_page import CELL, PATIENCE, choose, control, focus_steps, open_panel, wait_for_step
from playwright.sync_api import Browser, Locator
from run_player import expected, expected_split, records

from labs.presets import PRESETS, Preset

pytestmark = pytest.mark.browser
EACH = pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)


def assert_numbers(panel: Locator, record, config, where: str) -> None:
    """The large numbers are this record's, and nothing in the picture lies over anything else."""
    wait_for_step(panel, record.step)
    for _ in range(100):
        if (found := numbers(panel)) == expected(record, config):
            break
        panel.page.wait_for_timeout(50)
    assert found == expected(record, config), where
    assert expected_split(record) in panel.inner_text(), where
    picture = panel.locator("svg[role=img]")
    assert picture.count() == 1, f"{where}: not exactly one picture"
    assert picture.evaluate(CLASHES) == [], where


@EACH
def test_every_step_by_keyboard(preset: Preset, lab: Lab, chrome: Browser, shots: Path) -> None:
    found, config = records(preset)
    name = preset.name.replace(" ", "_").replace("'", "").replace(",", "")
    with opened(chrome, lab, lab.notebook("player.ipynb", CELL.format("one request alone"))) as session:
        panel = open_panel(session)
        choose(panel, "preset", preset.name)
        wait_for_step(panel, preset.start)
        panel.screenshot(path=shots / f"player_{name}.png")
        focus_steps(panel)
        session.page.keyboard.press("Home")
        for record in found:
            assert_numbers(panel, record, config, f"{preset.name}, step {record.step}")
            session.page.keyboard.press("ArrowRight")
        session.page.keyboard.press("Home")
        assert_numbers(panel, found[0], config, "back at the start")
        assert session.problems == []
        assert [o["output_type"] for o in outputs(session.page)] == ["execute_result"]


def test_play_pause_and_buttons(lab: Lab, chrome: Browser) -> None:
    found, config = records(PRESETS["one request alone"])
    with opened(chrome, lab, lab.notebook("play.ipynb", CELL.format("one request alone"))) as session:
        panel = open_panel(session)
        play, pause = (panel.locator(".widget-play button").nth(i) for i in range(2))
        play.click()
        readout = control(panel, "step").locator(".widget-readout")
        session.page.wait_for_function("box => Number(box.innerText) >= 2", arg=readout.element_handle(),
                                       timeout=PATIENCE)
        (pause if play.get_attribute("title") == "Pause" or pause.get_attribute("title") == "Pause" else play).click()
        stopped = int(readout.inner_text())
        session.page.wait_for_timeout(2000)  # three steps' time
        assert int(readout.inner_text()) == stopped < len(found) - 1
        assert_numbers(panel, found[stopped], config, "paused")
        panel.locator("button[title='next step']").click()
        assert_numbers(panel, found[stopped + 1], config, "next")
        panel.locator("button[title='previous step']").click()
        assert_numbers(panel, found[stopped], config, "previous")
        assert session.problems == []


def test_playing_starts_where_the_slider_is_and_ends_at_the_last_step(lab: Lab, chrome: Browser) -> None:
    found, config = records(PRESETS["one request alone"])
    with opened(chrome, lab, lab.notebook("play_on.ipynb", CELL.format("one request alone"))) as session:
        panel = open_panel(session)
        choose(panel, "speed", "fast")
        focus_steps(panel)
        session.page.keyboard.press("End")
        for _ in range(4):
            session.page.keyboard.press("ArrowLeft")
        wait_for_step(panel, 19)
        panel.locator(".widget-play button").first.click()
        assert_numbers(panel, found[23], config, "played to the end")
        assert session.problems == []


def test_knobs_run_again_and_nonsense_is_said(lab: Lab, chrome: Browser, shots: Path) -> None:
    preset = PRESETS["two long prompts beside 180"]
    with opened(chrome, lab, lab.notebook("knobs.ipynb", CELL.format(preset.name))) as session:
        panel, page = open_panel(session), session.page
        found, config = records(preset)
        assert_numbers(panel, found[2], config, "at first")
        budget = control(panel, "max_num_batched_tokens")
        budget.locator(".noUi-handle").focus()
        for _ in range(2):
            page.keyboard.press("ArrowRight")
        found, config = records(preset, max_num_batched_tokens=8192)
        panel.get_by_text("4,180 of 8,192", exact=True).wait_for(timeout=PATIENCE)
        assert_numbers(panel, found[2], config, "at a budget of 8,192")
        panel.screenshot(path=shots / "player_8192.png")
        panel.get_by_role("button", name="Reset").click()
        panel.get_by_text("2,048 of 2,048", exact=True).wait_for(timeout=PATIENCE)
        choose(panel, "preset", "one long prompt, in chunks")
        wait_for_step(panel, 4)
        choose(panel, "enable_chunked_prefill", "off")
        panel.get_by_text("Not drawn: with enable_chunked_prefill off").wait_for(timeout=PATIENCE)
        assert panel.locator("svg[role=img]").count() == 1
        panel.screenshot(path=shots / "player_refused.png")
        assert session.problems == []


def test_each_preset_after_the_other_brings_its_own_settings(lab: Lab, chrome: Browser) -> None:
    with opened(chrome, lab, lab.notebook("presets.ipynb", CELL.format("two long prompts beside 180"))) as session:
        panel = open_panel(session)
        for preset in [*PRESETS.values(), PRESETS["two long prompts beside 180"]] * 2:
            choose(panel, "preset", preset.name)
            found, config = records(preset)
            assert_numbers(panel, found[preset.start], config, preset.name)
            session.page.wait_for_timeout(300)  # for whatever the page may still send
            assert_numbers(panel, found[preset.start], config, f"{preset.name}, a moment later")
            shown = [control(panel, name).locator(".widget-readout").inner_text().replace(",", "") for name in (
                "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "step")]
            assert shown == [str(n) for n in (config.max_num_seqs, config.max_num_batched_tokens,
                                              config.num_gpu_blocks, preset.start)], preset.name
        assert session.problems == []


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_is_cut_off(width: int, lab: Lab, chrome: Browser, shots: Path) -> None:
    with opened(chrome, lab, lab.notebook("narrow_player.ipynb", CELL.format("two long prompts beside 180")),
                width=width) as session:
        panel = open_panel(session)
        session.page.screenshot(path=shots / f"player_{width}.png")
        cut = panel.locator(".widget-label, .widget-readout, .number").evaluate_all(
            "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)")
        assert cut == []
        assert panel.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), "the panel scrolls sideways"
