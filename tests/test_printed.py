"""What is printed: the cheat sheet, whose figures are all computed, and the certificate, which claims no more."""

from __future__ import annotations

import re
from html import escape, unescape
from pathlib import Path

import pytest
from browser_lab import browser

from labs import certificate, cheat_sheet, checks, drills, engine, explorers, quiz
from labs.course import Course
from labs.progress import FILE_NAME, Progress
from labs.scheduler import SchedulerConfig
from labs.slots import continuous_batching, static_batching
from labs.workload import EIGHT_LENGTHS, Request, lognormal_lengths

ROOT = Path(__file__).resolve().parent.parent


def words(html: str) -> str:
    """What a reader sees."""
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


# ---------------------------------------------------------------- the cheat sheet


def test_the_stored_sheet_is_what_is_computed_now():
    assert (ROOT / "notebooks/cheat_sheet.html").read_text(encoding="utf-8") == cheat_sheet.sheet().html


def test_its_figures_are_those_of_runs_made_apart():
    f = cheat_sheet.figures()
    assert (f.useful, f.available, f.longest, f.first) == (sum(EIGHT_LENGTHS), 8 * max(EIGHT_LENGTHS), 950, 12)
    for sigma, static, continuous, _ in f.rows:
        lengths = lognormal_lengths(500, 4.2, sigma, 0)
        groups = [lengths[i:i + 32] for i in range(0, 500, 32)]
        assert static == pytest.approx(lengths.sum() / (32 * sum(g.max() for g in groups)))
        assert continuous == pytest.approx(lengths.sum() / (32 * continuous_batching(lengths, 32).steps))
    whole = continuous_batching(lognormal_lengths(500, 4.2, 1.1, 0), 32)
    assert f.drain == pytest.approx(1 - whole.start.max() / whole.steps, abs=0.01)
    requests = [Request(f"d{i}", 1, 50) for i in range(180)] + [Request(n, 2000, 5, arrival=2) for n in "XY"]
    run = engine.run(requests, SchedulerConfig(256, 2048, 20_000, max_model_len=4096))
    assert f.budget_steps == max(r.step for r in run.records if r.prefill) - 1


def test_it_quotes_the_pages_numbers():
    said = words(cheat_sheet.sheet().html)
    for number in ("74.6 %", "5,668 of 7,600", "938 steps", "20.7 % 83.7 % 5.8x", "37.4 % 94.6 % 2.8x",
                   "58.2 % 95.8 % 1.7x", "81.5 % 97.1 % 1.2x", "p50 1.5, p99 2.0", "p50 1.0, p99 1.0", ": 3 steps."):
        assert number in said, number


def test_no_figure_on_it_is_typed_in(monkeypatch):
    """With other figures the page has others: each number of `figures` reaches the page from there."""
    f = cheat_sheet.figures()
    other = cheat_sheet.Figures(1111, 2222, 333, 44, ((0.7, 0.111, 0.222, 9.9),) * 4, 0.3456,
                                {"static_p50": 7.1, "static_p99": 7.2, "continuous_p50": 7.3, "continuous_p99": 7.4},
                                77, 88, 0.999)
    before, after = words(cheat_sheet.sheet(f).html), words(cheat_sheet.sheet(other).html)
    for number in ("50.0 % of slot-steps", "1,111 of 2,222", "289 steps", "11.1 % 22.2 % 9.9x", "34.6 %",
                   "p50 7.1, p99 7.2", "p99 7.4", "77 steps", "88 preemptions", "99.9 %"):
        assert number in after, number
        assert number not in before, number


def test_it_names_each_flag_and_each_limit_that_the_drills_teach():
    said = words(cheat_sheet.sheet().html)
    for flag in ("--max-num-seqs", "--max-num-batched-tokens", "--enable-chunked-prefill", "--scheduling-policy"):
        assert flag in said
    for limit in ("sequence cap", "memory", "token budget", "head of the queue", "headroom", "no tokens"):
        assert limit in said


@pytest.mark.browser
@pytest.mark.slow
def test_both_print_on_a4_and_the_sheet_on_one_page(chromium, tmp_path):
    pages = {}
    with browser(chromium) as chrome:
        for name, html in (("sheet", cheat_sheet.sheet().html), ("certificate", certificate.certificate("Ada").html)):
            page = chrome.new_page()
            page.set_content(html)
            pdf = page.pdf(prefer_css_page_size=True)
            pages[name] = len(re.findall(rb"/Type\s*/Page\b", pdf))
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            page.close()
        page = chrome.new_page()
        for html in (cheat_sheet.sheet().html, cheat_sheet.sheet().html.removeprefix("<!DOCTYPE html>")):
            page.set_content(html)  # without its first line it is in quirks mode, as in JupyterLab's viewer
            sizes = page.locator("td").evaluate_all("all => all.map(e => getComputedStyle(e).fontSize)")
            assert set(sizes) == {page.evaluate("getComputedStyle(document.body).fontSize")}
        page.close()
    assert pages["sheet"] == 1
    assert pages["certificate"] >= 1


def test_in_a_notebook_it_stands_in_a_frame():
    shown = cheat_sheet.sheet()
    assert repr(shown).startswith("the cheat sheet")
    assert shown._repr_html_().count("<iframe") == 1
    assert static_batching(EIGHT_LENGTHS, 8).steps == 950


# ---------------------------------------------------------------- the certificate


def filled() -> Progress:
    progress = Progress(None)
    progress.record_attempt("static_steps", "slip")
    progress.record_attempt("static_steps")
    progress.record_pass("static_steps")
    progress.record_attempt("gain", "law")
    progress.record_reply("granularity", False)
    progress.record_reply("granularity", True)
    progress.record_reply("load", False)
    progress.record_reply(drills.reply_id("memory"), True)
    return progress


def test_it_counts_what_was_passed_tried_and_left():
    made = certificate.certificate("Ada", filled())
    n, q, d = len(checks.EXERCISES), len(quiz.QUESTIONS), len(drills.EVERY)
    assert made.counts("exercise") == (1, 1, n - 2)
    assert made.counts("question") == (1, 1, q - 2)
    assert made.counts("drill") == (1, 0, d - 1)
    assert made.missed_before == 1
    said = words(made.html)
    assert f"Passed 3 of {n + q + d} exercises, questions and drills" in said
    assert "1 of the questions and drills passed were missed at least once before" in said


def test_it_is_honest_about_a_reader_who_did_nothing():
    made = certificate.certificate("", Progress(None))
    said = words(made.html)
    assert said.count("Nothing.") == 2  # nothing passed, nothing tried
    assert f"Passed 0 of {len(checks.EXERCISES) + len(quiz.QUESTIONS) + len(drills.EVERY)} " in said
    assert "(no name given)" in said
    for exercise in checks.EXERCISES.values():
        assert exercise.title in said.split("Not attempted")[-1]
    assert "which anyone could edit" in said


def test_every_item_is_listed_once_a_notebook_and_where_it_belongs():
    made = certificate.certificate("Ada", filled())
    passed, rest = made.html.split("<h2>Tried, not passed</h2>")
    tried, left = rest.split("<h2>Not attempted</h2>")
    assert escape(checks.EXERCISES["static_steps"].title) in passed
    assert escape(checks.EXERCISES["gain"].title) in tried
    assert escape(quiz.question("load").recall) in tried
    assert escape(quiz.question("chunks").recall) in left
    assert "incident 2" in words(passed)


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "O'Hara & Söhne",
                                  "</title><h1>", "Ada\u0000\u202e", "  Ada  "])
def test_the_readers_name_is_text_and_nothing_else(name):
    made = certificate.certificate(name, Progress(None))
    kept = "".join(c for c in name.strip() if c.isprintable())
    assert f'<p class="name">{escape(kept)}</p>' in made.html
    assert "<script" not in made.html
    assert "<img" not in made.html
    assert made._repr_html_().count("<") == 2  # the frame, and nothing that got out of it


@pytest.mark.parametrize("name", ["x" * 81, 7, None])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match="at most 80 characters"):
        certificate.certificate(name, Progress(None))


def test_it_is_written_where_asked_or_says_why_not(tmp_path):
    made = certificate.certificate("Ada", filled())
    path = made.save(tmp_path / "mine.html")
    assert path.read_text(encoding="utf-8") == made.html
    with pytest.raises(ValueError, match="nowhere.html can't be written here"):
        made.save(tmp_path / "none" / "nowhere.html")


def test_a_broken_progress_file_is_said_on_it(tmp_path):
    (tmp_path / FILE_NAME).write_text("{")
    made = certificate.certificate("Ada", Progress(tmp_path / FILE_NAME))
    assert "could not be understood" in words(made.html)


def test_the_panel_shows_it_and_writes_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    panel = Course("07_check_yourself", filled()).certificate()
    assert "1 passed" in panel.summary()
    panel.name.value = "Ada <b>"
    assert "Ada &amp;lt;b&amp;gt;" in panel._page.value  # escaped for the page, and again for the frame
    panel.button.click()
    assert "certificate.html: open it and print it" in panel._said.value
    assert "Ada &lt;b&gt;" in (tmp_path / "certificate.html").read_text()
    panel.name.value = "x" * 100
    assert "at most 80 characters" in panel._said.value
    monkeypatch.setattr(Path, "write_text", lambda *a, **k: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    panel.name.value = "Ada"
    panel.button.click()
    assert "Read-only file system" in panel._said.value
    assert isinstance(panel, explorers.certificate(lambda name: certificate.certificate(name)).__class__)
