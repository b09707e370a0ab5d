"""The on-call panel: what it shows for each cause and fix, what is remembered, and the same in a real JupyterLab."""

from __future__ import annotations

import asyncio
import re
from html import escape, unescape
from pathlib import Path

import pytest
from browser_lab import Lab, numbers, opened, outputs
from playwright.sync_api import Browser, Locator, Page
from test_browser_player import CLASHES

from labs import explorers
from labs.course import Course
from labs.drills import DRILLS, Drill, drill, reply_id, simulate
from labs.drills.picture import draw, words
from labs.progress import Progress
from labs.svg.dashboard import Chart, dashboard
from labs.svg.marks import Picture

EACH = pytest.mark.parametrize("d", DRILLS, ids=[d.id for d in DRILLS])


def panel(*incidents: Drill) -> tuple[explorers.drills.__class__, list]:
    told: list = []
    return explorers.drills(incidents or DRILLS, lambda d, passed: told.append((d.id, passed))), told


def said(box) -> str:
    """The words in a widget."""
    return unescape(re.sub("<[^>]*>", "", box.value))


def right(d: Drill) -> str:
    return next(fix.key for fix in d.fixes if fix.right)


def wrong(d: Drill) -> str:
    return next(fix.key for fix in d.fixes if not fix.right)


# ---------------------------------------------------------------- without a browser


@EACH
def test_each_incident_is_played_through(d):
    shown, told = panel(d)
    assert said(shown._alarm) == f"Alarm: {d.alarm}"
    assert escape(d.alarm) in shown._picture.value
    assert shown._fixes.layout.display == "none"
    shown.cause.value = d.cause
    shown.name_button.click()
    assert said(shown._said) == d.name(d.cause).message
    assert shown._fixes.layout.display is None
    before = shown._picture.value
    for fix in sorted(d.fixes, key=lambda fix: fix.right):
        shown.fix.value = fix.key
        shown.apply_button.click()
        assert d.apply(fix.key).message in said(shown._done)
        assert ("After the fix, mended" in shown._picture.value) is fix.right
        assert shown._picture.value != before
    assert told == [(d.id, False)]  # a wrong fix came first, and is told once


@EACH
def test_right_at_the_first_try_is_a_pass(d):
    shown, told = panel(d)
    shown.cause.value = d.cause
    shown.name_button.click()
    shown.fix.value = right(d)
    shown.apply_button.click()
    assert told == [(d.id, True)]


def test_a_wrong_cause_can_be_mended_but_is_no_pass():
    d = drill("memory")
    shown, told = panel(d)
    shown.cause.value = next(key for key in d.offered if key != d.cause)
    shown.name_button.click()
    assert said(shown._said).startswith("The dashboard speaks against it.")
    assert shown._fixes.layout.display == "none"
    shown.cause.value = d.cause
    shown.name_button.click()
    shown.fix.value = right(d)
    shown.apply_button.click()
    assert "so this one comes back" in said(shown._done)
    assert told == [("memory", False)]


def test_an_incident_that_comes_back_is_counted_when_it_is_solved_then():
    two = drill("memory"), next(d for d in DRILLS if d.id != "memory")
    shown, told = panel(*two)
    shown.cause.value = next(key for key in two[0].offered if key != two[0].cause)
    shown.name_button.click()
    shown.next_button.click()
    assert shown.drill is two[1]
    for d in (two[1], two[0]):
        assert shown.drill is d
        shown.cause.value = d.cause
        shown.name_button.click()
        shown.fix.value = right(d)
        shown.apply_button.click()
        shown.next_button.click()
    assert told == [("memory", False), (two[1].id, True), ("memory", True)]
    shown.cause.value = next(key for key in shown.drill.offered if key != shown.drill.cause)
    shown.name_button.click()
    assert len(told) == 3, "what was solved stays solved"


def test_the_next_incident_is_one_that_is_not_solved():
    shown, told = panel(*DRILLS[:3])
    shown.next_button.click()
    shown.cause.value = shown.drill.cause
    shown.name_button.click()
    shown.fix.value = right(shown.drill)
    shown.apply_button.click()
    seen = []
    for _ in range(4):
        shown.next_button.click()
        seen.append(shown.drill)
    assert seen == [DRILLS[2], DRILLS[0], DRILLS[2], DRILLS[0]]


def test_nothing_chosen_is_said_and_not_counted():
    shown, told = panel()
    shown.name_button.click()
    assert said(shown._said) == "Choose a cause first."
    shown.cause.value = DRILLS[0].cause
    shown.name_button.click()
    shown.apply_button.click()
    assert said(shown._done) == "Choose a fix first."
    assert told == []


def test_whatever_goes_wrong_is_said_in_the_panel():
    def fails(d, passed):
        raise OSError("the disk is full")

    shown = explorers.drills(DRILLS[:1], fails)
    shown.cause.value = next(key for key in DRILLS[0].offered if key != DRILLS[0].cause)
    shown.name_button.click()
    assert said(shown._said) == "OSError: the disk is full"
    with pytest.raises(ValueError, match="at least one incident"):
        explorers.drills([], fails)


def test_fixes_are_simulated_ahead_while_the_reader_reads():
    async def reading() -> None:
        panel(*DRILLS[:2])
        for _ in range(200):
            await asyncio.sleep(0.05)
            if simulate.cache_info().currsize >= 6:
                return

    simulate.cache_clear()
    asyncio.run(reading())
    assert simulate.cache_info().currsize == 6  # the first incident, its four fixes, the next incident
    misses = simulate.cache_info().misses
    for fix in DRILLS[0].fixes:
        DRILLS[0].apply(fix.key)
    assert simulate.cache_info().misses == misses


def test_who_has_gone_on_is_not_kept_busy():
    async def going_on() -> None:
        shown, _ = panel(*DRILLS[:3])
        shown.go_on()
        shown._run_one(DRILLS[0], [lambda: DRILLS[5].dashboard])

    simulate.cache_clear()
    asyncio.run(going_on())
    misses = simulate.cache_info().misses
    simulate(DRILLS[5].scenario)
    assert simulate.cache_info().misses == misses + 1


def test_the_next_incident_starts_afresh_and_the_last_leads_to_the_first():
    shown, _ = panel(*DRILLS[:2])
    assert [label for label, _ in shown.which.options] == ["1 of 2", "2 of 2"]
    shown.cause.value = DRILLS[0].cause
    shown.name_button.click()
    shown.next_button.click()
    assert shown.drill is DRILLS[1]
    assert (shown.cause.value, said(shown._said), shown._fixes.layout.display) == (None, "", "none")
    assert [key for _, key in shown.cause.options] == list(DRILLS[1].offered)
    shown.next_button.click()
    assert shown.drill is DRILLS[0]


def test_what_was_missed_comes_first_the_next_time():
    progress = Progress(None)
    for d in DRILLS:
        progress.record_reply(reply_id(d.id), d.id != "oversized")
    for i in range(3):
        progress.record_reply(f"other {i}", True)
    shown = Course("07_check_yourself", progress).drills()
    assert shown.drill.id == "oversized"
    assert {d.id for d in shown.incidents} == {d.id for d in DRILLS}
    shown.cause.value = "oversized"
    shown.name_button.click()
    shown.fix.value = "refuse"
    shown.apply_button.click()
    assert progress.replies(reply_id("oversized")) == (1, 1)


@EACH
def test_the_alternative_text_states_the_dashboards_numbers_and_not_the_cause(d):
    picture = draw(d.dashboard, d.alarm)
    s = d.dashboard.summary
    for number in (f"{s.client_ttft_p99:.2f} s", f"{1e3 * s.itl_p95:.0f} ms", f"{s.preemptions} preemptions",
                   f"{s.kv_usage:.0%}".replace("%", " %"), f"{d.dashboard.series['waiting'][-1]:.0f}",
                   f"max_num_seqs {d.dashboard.config.max_num_seqs}"):
        assert number in picture.alt, number
    for cause in d.causes:
        assert cause.name not in picture.alt


def test_without_a_kernel_there_is_the_dashboard_and_what_to_choose_from():
    shown, _ = panel()
    html = shown.static_html()
    assert html.count("<img") == 1
    for each in (*DRILLS[0].causes, *DRILLS[0].fixes):
        assert escape(each.name) in html
    for fix in DRILLS[0].fixes:
        assert "Mended" not in html
        assert fix.because[:30] not in html
    assert words(DRILLS[0].dashboard) in shown.summary().replace(" %", "%")


def test_a_dashboard_needs_charts():
    with pytest.raises(ValueError, match="at least one chart"):
        dashboard("x", "y", [], 120, "z")
    assert isinstance(Chart("a", []), Chart)


# ---------------------------------------------------------------- in a real browser

CELL = ("from labs.course import Course\nfrom labs.progress import Progress\n"
        "Course('07_check_yourself', Progress(None)).drills()")


def choose(box: Locator, words: str) -> None:
    """Click the radio button beside these words."""
    box.locator("label", has_text=words).first.locator("input").check()


def look(page: Page) -> None:
    """One picture, with nothing over anything else and nothing cut."""
    picture = page.locator("svg[role=img]")
    assert picture.count() == 1
    assert picture.evaluate(CLASHES) == []


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 900])
def test_every_incident_by_mouse(lab: Lab, chrome: Browser, shots: Path, width: int) -> None:
    with opened(chrome, lab, lab.notebook("drills.ipynb", CELL), width=width, height=1400) as session:
        page = session.page
        box = page.locator(".jp-OutputArea-output").last
        for d in DRILLS:
            box.get_by_text(f"Alarm: {d.alarm}").wait_for(timeout=10_000)
            look(page)
            page.screenshot(path=shots / f"{width}_{d.id}_alarm.png")
            choose(box, next(c.name for c in d.causes if c.key == d.cause))
            box.get_by_role("button", name="Name the cause").click()
            box.get_by_text("Right. Its sign:").wait_for(timeout=10_000)
            for fix in (wrong(d), right(d)):
                choose(box, next(f.name for f in d.fixes if f.key == fix))
                box.get_by_role("button", name="Apply the fix").click()
                title = "mended" if fix == right(d) else "not mended"
                page.locator("svg text", has_text=f"After the fix, {title} (grey").wait_for(timeout=10_000)
                look(page)
                page.screenshot(path=shots / f"{width}_{d.id}_{title.replace(' ', '_')}.png")
            assert len(numbers(box)) == 4
            box.get_by_role("button", name="Next incident").click()
        assert session.problems == []


def by_keys(page: Page, wanted: int, of: int) -> None:
    """From the first of some radio buttons: tab to the wanted one, choose it, tab on to the button, press that."""
    for _ in range(wanted):
        page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(of - wanted):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")


@pytest.mark.browser
@pytest.mark.slow
def test_one_incident_by_keyboard_alone(lab: Lab, chrome: Browser) -> None:
    d = DRILLS[0]
    with opened(chrome, lab, lab.notebook("keys.ipynb", CELL), height=1400) as session:
        page = session.page
        box = page.locator(".jp-OutputArea-output").last
        box.get_by_text(f"Alarm: {d.alarm}").wait_for(timeout=10_000)
        box.locator("input[type=radio]").first.focus()
        by_keys(page, d.offered.index(d.cause), len(d.causes))
        box.get_by_text("Right. Its sign:").wait_for(timeout=10_000)
        box.get_by_role("button", name="Apply the fix", disabled=False).wait_for(timeout=10_000)  # shown last of all
        box.locator("input[type=radio]:enabled").first.focus()
        by_keys(page, [fix.key for fix in d.fixes].index(right(d)), len(d.fixes))
        page.locator("svg text", has_text="After the fix, mended").wait_for(timeout=10_000)
        assert session.problems == []
        assert len(outputs(page)) == 1


def test_pictures_are_small_enough_to_send_at_once():
    for d in DRILLS:
        picture = draw(d.apply(right(d)).dashboard, "After", d.dashboard)
        assert isinstance(picture, Picture)
        assert len(picture.svg) < 60_000
