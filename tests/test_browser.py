"""Explorers and notebooks in a real JupyterLab, by keyboard and mouse. BROWSER_SHOTS=folder keeps the screenshots."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
import run_explorers as script
from browser_lab import Lab, Session, jupyter_lab, numbers, opened, outputs, write_notebook
from playwright.sync_api import Browser, Locator, Page

from labs import explorers

pytestmark = pytest.mark.browser
PANEL = ".jp-OutputArea-output .jupyter-widgets.widget-vbox"
PATIENCE = 30  # seconds until the numbers on screen must be right
KINDS = pytest.mark.parametrize("make", script.EXPLORERS, ids=lambda make: make.__name__)
NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("0[0-3]*.ipynb"))


def cell(make, also: str = "") -> str:
    return f"from labs import explorers\npanel = explorers.{make.__name__}()\n{also}\npanel"


def open_panel(session: Session) -> Locator:
    session.page.wait_for_selector(f"{PANEL} svg", timeout=PATIENCE * 1000)
    return session.page.locator(PANEL).first


def control(panel: Locator, make, name: str) -> Locator:
    """A control, found by the label that a reader sees."""
    label = make().controls[name].description
    return panel.locator(".widget-inline-hbox").filter(has=panel.page.get_by_text(label, exact=True))


def settings_on_screen(panel: Locator, make) -> dict[str, Any]:
    """What the controls show, as settings."""
    found: dict[str, Any] = {}
    for name, widget in make().controls.items():
        if not getattr(widget, "description", "") or name in ("file", "column"):
            continue
        box = control(panel, make, name)
        if name in ("arrivals", "workload", "request"):
            shown = box.locator("select").evaluate("s => s.options[s.selectedIndex].text")
            found[name] = dict(widget.options)[shown.replace("\xa0", " ")]
        elif name == "lengths":
            found[name] = box.locator("input").input_value()
        else:
            number = float(box.locator(".widget-readout").inner_text().replace(",", ""))
            found[name] = int(number) if number.is_integer() and not hasattr(widget, "readout_format") else number
    return {name: int(v) if isinstance(v, float) and v.is_integer() and name not in ("mu", "sigma", "load") else v
            for name, v in found.items()}


def assert_numbers_come_right(session: Session, panel: Locator, make, where: str) -> dict[str, Any]:
    """Wait until the numbers on screen are those computed apart from the settings on screen."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        settings = settings_on_screen(panel, make)
        expected = script.EXPECTED[make.__name__](settings)
        if numbers(panel) == expected and settings_on_screen(panel, make) == settings:
            break
        session.page.wait_for_timeout(100)
    assert numbers(panel) == expected, f"{where}: {settings}"
    assert panel.locator("svg[role=img]").count() == 1, f"{where}: not exactly one picture"
    assert panel.get_by_text("Not drawn").count() == 0, where
    return settings


def to_end(session: Session, box: Locator, key: str) -> None:
    box.locator(".noUi-handle").focus()
    session.page.keyboard.press(key)


def to_middle(session: Session, box: Locator) -> None:
    place = box.locator(".noUi-base").bounding_box()
    session.page.mouse.click(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)


@KINDS
def test_each_slider_by_keyboard_and_mouse(make, lab: Lab, chrome: Browser, shots: Path) -> None:
    with opened(chrome, lab, lab.notebook(f"{make.__name__}.ipynb", cell(make))) as session:
        panel = open_panel(session)
        first = assert_numbers_come_right(session, panel, make, "at first")
        panel.screenshot(path=shots / f"{make.__name__}.png")
        if "load" in make().controls:
            control(panel, make, "arrivals").locator("select").select_option(index=1)
        sliders = [name for name, c in make().controls.items() if hasattr(c, "readout")]
        for name in sliders:
            box, seen = control(panel, make, name), set()
            for key in ("Home", "End"):
                to_end(session, box, key)
                seen.add(assert_numbers_come_right(session, panel, make, f"{name} at {key}")[name])
            to_middle(session, box)
            seen.add(assert_numbers_come_right(session, panel, make, f"{name} in the middle")[name])
            assert len(seen) == 3, f"{name} only took {seen}"
            panel.get_by_role("button", name="Reset").click()
            assert assert_numbers_come_right(session, panel, make, "after a reset") == first
            if "load" in make().controls:
                control(panel, make, "arrivals").locator("select").select_option(index=1)
        panel.screenshot(path=shots / f"{make.__name__}_at_load.png")
        assert session.problems == []
        assert [o["output_type"] for o in outputs(session.page)] == ["execute_result"]


def test_typed_lengths_and_nonsense(lab: Lab, chrome: Browser, shots: Path) -> None:
    make = explorers.eight_requests
    with opened(chrome, lab, lab.notebook("typed.ipynb", cell(make))) as session:
        panel = open_panel(session)
        words = control(panel, make, "lengths").locator("input")
        words.fill("30, 10, 500")
        assert_numbers_come_right(session, panel, make, "typed")
        words.fill("30, ten")
        panel.get_by_text("Not drawn: 'ten' is not a whole number").wait_for()
        assert panel.locator("svg[role=img]").count() == 1
        panel.screenshot(path=shots / "nonsense.png")
        words.fill("30, 10")
        assert_numbers_come_right(session, panel, make, "typed again")
        assert session.problems == []


def test_a_drag_ends_on_the_last_value(lab: Lab, chrome: Browser) -> None:
    make = explorers.simulator
    with opened(chrome, lab, lab.notebook("drag.ipynb", cell(make, "panel.set(requests=100_000)"))) as session:
        panel, mouse = open_panel(session), session.page.mouse
        place = control(panel, make, "slots").locator(".noUi-base").bounding_box()
        y = place["y"] + place["height"] / 2
        mouse.move(place["x"] + 0.12 * place["width"], y)
        mouse.down()
        for i in range(60):
            mouse.move(place["x"] + (0.12 + i * 0.014) * place["width"], y)
        mouse.up()
        assert assert_numbers_come_right(session, panel, make, "after a drag")["slots"] > 200
        assert session.problems == []


def upload(session: Session, panel: Locator, path: Path) -> None:
    """Choose a file, as a reader does."""
    with session.page.expect_file_chooser() as chooser:
        panel.get_by_role("button", name="CSV or JSONL").click()
    chooser.value.set_files(path)


def test_own_file_is_read(lab: Lab, chrome: Browser, shots: Path, tmp_path: Path) -> None:
    make, log = explorers.sigma_sweep, tmp_path / "log.csv"
    log.write_text("output_tokens\n" + "\n".join(str(1 + i % 90) for i in range(900)))
    with opened(chrome, lab, lab.notebook("own.ipynb", cell(make))) as session:
        panel = open_panel(session)
        control(panel, make, "workload").locator("select").select_option(label="your own file or /metrics page")
        panel.get_by_text("Not drawn yet: choose a CSV").wait_for()
        upload(session, panel, log)
        panel.get_by_text("900 requests of 45.5 tokens").wait_for()
        panel.screenshot(path=shots / "own_file.png")
        large = tmp_path / "large.csv"  # over 10 MB, which Jupyter Server alone would answer by breaking the connection
        large.write_text("output_tokens\n" + "12\n" * 4_200_000)
        upload(session, panel, large)
        panel.get_by_text("large.csv has 12.6 MB, and the panel takes 10").wait_for(timeout=120_000)
        upload(session, panel, log)
        panel.get_by_text("large.csv has 12.6 MB").wait_for(state="hidden", timeout=60_000)
        panel.get_by_text("900 requests of 45.5 tokens").wait_for()
        assert session.problems == []


def test_prediction_and_quiz_by_mouse(lab: Lab, chrome: Browser, shots: Path) -> None:
    ask = ("from labs import explorers, quiz\nsaid = []\n"
           "explorers.prediction('What share of the slot-steps is wasted?', 0, 100, '%', said.append)")
    questions = "explorers.quiz(quiz.for_notebook('01'), lambda question, result: said.append(result.passed))"
    with opened(chrome, lab, lab.notebook("asking.ipynb", ask, questions)) as session:
        page = session.page
        to_end(session, page.locator(".widget-slider").first, "End")
        page.get_by_role("button", name="Commit").click()
        page.get_by_text("committed: 100 %").wait_for()
        reply = page.locator(PANEL).locator("input[type=radio], input[type=text]").last
        reply.check() if reply.get_attribute("type") == "radio" else reply.fill("1")
        page.get_by_role("button", name="Answer").click()
        page.get_by_text("Model answer:").wait_for()
        page.screenshot(path=shots / "asking.png")
        assert session.problems == []


@pytest.mark.parametrize("width", [1300, 800])
@KINDS
def test_nothing_is_cut_off(make, width: int, lab: Lab, chrome: Browser, shots: Path) -> None:
    with opened(chrome, lab, lab.notebook(f"narrow_{make.__name__}.ipynb", cell(make)), width=width) as session:
        panel = open_panel(session)
        session.page.screenshot(path=shots / f"{make.__name__}_{width}.png")
        cut = panel.locator(".widget-label, .widget-readout, .number").evaluate_all(
            "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)")
        assert cut == []
        inside = panel.evaluate("e => e.scrollWidth <= e.clientWidth + 1")
        assert inside, "the panel scrolls sideways"


def test_dark_theme(chrome: Browser, tmp_path: Path, shots: Path) -> None:
    """The picture brings its own white; numbers and table follow the page."""
    with jupyter_lab(tmp_path, dark=True) as lab:
        book = lab.notebook("dark.ipynb", cell(explorers.simulator))
        with opened(chrome, lab, book) as session:
            panel = open_panel(session)
            session.page.screenshot(path=shots / "dark.png")
            assert luminance(session.page, ".jp-Notebook", "backgroundColor") < 80
            assert luminance(session.page, f"{PANEL} .number", "color") > 180
            assert panel.locator("svg[role=img] > rect").first.get_attribute("fill") == "#FFFFFF"


def luminance(page: Page, selector: str, what: str) -> float:
    """How light a colour on the page is, from 0 to 255."""
    colour = page.locator(selector).first.evaluate("(e, what) => getComputedStyle(e)[what]", what)
    return sum(float(c) for c in colour.split("(")[1].rstrip(")").split(",")[:3]) / 3


def test_a6_a_stored_panel_shows_its_picture_without_a_kernel(lab: Lab, chrome: Browser, shots: Path) -> None:
    """As a fresh copy of the course opens: not run here yet, so not trusted, so shown as the HTML beside the widget."""
    bundle = explorers.simulator()._repr_mimebundle_()
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("panel", execution_count=1, outputs=[
        nbformat.v4.new_output("execute_result", data=bundle, execution_count=1)])])
    write_notebook(book, lab.folder / "stored.ipynb")
    with opened(chrome, lab, "stored.ipynb", run=False) as session:
        picture = session.page.locator(".jp-OutputArea-output img")
        picture.wait_for()
        assert picture.evaluate("e => e.naturalWidth") == 900 and "8,942 steps" in picture.get_attribute("alt")
        assert session.page.get_by_text("model not found").count() == 0
        session.page.screenshot(path=shots / "stored.png")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_shipped_notebook_runs(path: Path, lab: Lab, chrome: Browser, shots: Path) -> None:
    with opened(chrome, lab, f"notebooks/{path.name}") as session:
        kinds = [(o["output_type"], o.get("name")) for o in outputs(session.page)]
        assert kinds and not [k for k in kinds if k[0] == "error" or k[1] == "stderr"]
        assert session.page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
        assert session.page.get_by_text("Error displaying widget").count() == 0
        assert session.problems == []
        session.page.screenshot(path=shots / f"{path.stem}.png")


def test_the_server_sends_small_messages_at_once(lab: Lab, chrome: Browser) -> None:
    """labs/jupyter is installed and on, and kernels still answer through it."""
    book = lab.notebook("nodelay.ipynb", "print(6 * 7)")
    with opened(chrome, lab, book) as session:
        assert session.page.locator(".jp-OutputArea-output", has_text="42").count() == 1
    log = (lab.folder / ".jupyter" / "log.txt").read_text()
    assert "labs_nodelay | extension was successfully loaded" in log
