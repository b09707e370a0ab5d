"""Notebook 07 in a real JupyterLab: a question in one's own words, one drill, the cheat sheet, the certificate."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_lab import CLASHES, Lab, opened
from playwright.sync_api import Browser, Locator, Page

from labs.drills import DRILLS, REAL
from labs.drills.picture import draw
from labs.quiz import of_the_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NAME = "07_check_yourself.ipynb"
# Texts of a dashboard that stand in a chart's frame, where its curves are. A halo of 1 unit is not yet inside.
COVERING = """svg => {
    const frames = [...svg.querySelectorAll('rect[fill=none]')].map(e => e.getBBox());
    return [...svg.querySelectorAll('text')].filter(e => frames.some(f => {
        const b = e.getBBox();
        const wide = Math.min(b.x + b.width, f.x + f.width) - Math.max(b.x, f.x);
        const high = Math.min(b.y + b.height, f.y + f.height) - Math.max(b.y, f.y);
        return wide > 1 && high > 3;
    })).map(e => e.textContent);
}"""


def cell_of(page: Page, source: str) -> Locator:
    """The code cell with this source, scrolled to (JupyterLab draws only what is in view)."""
    index = page.evaluate(
        """source => {
            const book = window.jupyterapp.shell.currentWidget.content;
            const i = [...book.model.cells].findIndex(c => c.sharedModel.source.includes(source));
            book.activeCellIndex = i; book.scrollToItem(i, 'start'); return i;
        }""", source)
    cell = page.locator(f'.jp-Cell[data-windowed-list-index="{index}"]')
    cell.wait_for(timeout=10_000)
    return cell


def test_a_reader_answers_looks_and_prints(lab: Lab, chrome: Browser, shots: Path) -> None:
    question = of_the_page()[0]
    with opened(chrome, lab, f"notebooks/{NAME}", height=1300) as session:
        page = session.page
        quiz = cell_of(page, "course.quiz()").locator(".jp-OutputArea-output").last
        quiz.get_by_role("button", name="Answer").click()
        quiz.get_by_text("Say it in your own words first").wait_for(timeout=10_000)
        assert question.answer[:40] not in quiz.inner_text()
        quiz.locator("textarea").fill("One decides per group, the other per step.")
        quiz.locator("input[type=text]").fill("12")
        quiz.get_by_role("button", name="Answer").click()
        quiz.get_by_text("Model answer:").wait_for(timeout=10_000)
        assert question.answer[:40] in quiz.inner_text()
        page.screenshot(path=shots / "07_answered.png")

        drills = cell_of(page, "course.drills()").locator(".jp-OutputArea-output").last
        drills.get_by_text("Alarm:").wait_for(timeout=10_000)
        page.screenshot(path=shots / "07_drill.png")

        sheet = cell_of(page, "sheet()").frame_locator("iframe").locator("h1")
        sheet.wait_for(timeout=10_000)
        assert sheet.inner_text() == "Continuous batching on one page"
        page.screenshot(path=shots / "07_sheet.png")

        proof = cell_of(page, "course.certificate()").locator(".jp-OutputArea-output").last
        proof.locator("input[type=text]").fill("Ada <b>Lovelace</b>")
        proof.get_by_role("button", name="Write certificate.html").click()
        proof.get_by_text("Written to notebooks/certificate.html").wait_for(timeout=10_000)
        page_of_it = proof.frame_locator("iframe")
        page_of_it.locator(".name").wait_for(timeout=10_000)
        assert page_of_it.locator(".name").inner_text() == "Ada <b>Lovelace</b>"
        assert "Passed 1 of" in page_of_it.locator("body").inner_text()
        page.screenshot(path=shots / "07_certificate.png")
        assert session.problems == []
    assert "Ada &lt;b&gt;Lovelace&lt;/b&gt;" in (lab.folder / "notebooks/certificate.html").read_text()


def test_no_words_of_a_dashboard_lie_over_its_curves_or_over_others(chrome: Browser) -> None:
    page = chrome.new_page()
    for drill in (*DRILLS, *REAL):
        shown = {"before": drill.dashboard} | {fix.key: drill.after(fix) for fix in drill.fixes}
        for name, after in shown.items():
            page.set_content(draw(after, drill.alarm, drill.dashboard).inline("x"))
            svg = page.locator("svg")
            assert svg.locator("rect[fill=none]").count() == 9
            assert svg.evaluate(COVERING) == svg.evaluate(CLASHES) == [], (drill.id, name)
    page.close()
