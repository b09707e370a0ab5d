"""Panels for readers who zoom, who use the keyboard, and who look: stored screenshots, compared within a tolerance.

`python tests/test_access.py` takes the stored screenshots anew, as small grey pictures: look at them before you commit.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from browser_lab import Lab, browser, chromium_path, jupyter_lab, opened
from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "tests" / "golden" / "screens"
PANEL = ".jp-OutputArea-output .jupyter-widgets.widget-vbox"
PANELS = {
    "eight_requests": "explorers.eight_requests()",
    "simulator": "explorers.simulator()",
    "sigma_sweep": "explorers.sigma_sweep()",
    "step_player": "explorers.step_player()",
    "dial": "explorers.dial()",
    "quiz": "explorers.quiz(quiz.for_notebook('01'), lambda *_: None)",
    "drills": "from labs.course import Course\nfrom labs.progress import Progress\n"
              "Course('07_check_yourself', Progress(None)).drills()",
    "prediction": "explorers.prediction('How many steps?', 0, 1000, 'steps', lambda value: None)",
}
WIDE, CELLS_WIDE = 1300, 90  # pixels of the window; of the stored pictures
TOLERANCE, FAR, FEW = 0.03, 0.25, 0.03  # mean difference; a pixel that differs much, and how many may (of 0 to 1)
FOCUS = """() => {
    const e = document.activeElement, box = e.closest('.widget-inline-hbox');
    return box ? box.querySelector('.widget-label')?.textContent ?? '' : e.textContent.trim();
}"""


def source(name: str) -> str:
    return f"from labs import explorers, quiz\n{PANELS[name]}"


def thumbnail(png: Path) -> np.ndarray:
    """A screenshot as a small grey picture, from 0 to 1: what is left when fonts and single pixels are forgotten."""
    grey = matplotlib.image.imread(png)[..., :3].mean(axis=2)
    side = grey.shape[1] // CELLS_WIDE
    rows, columns = grey.shape[0] // side, grey.shape[1] // side
    return grey[:rows * side, :columns * side].reshape(rows, side, columns, side).mean(axis=(1, 3))


def unlike(a: np.ndarray, b: np.ndarray) -> str:
    """How two pictures differ, or nothing if they are alike; the last rows may be there or not."""
    if abs(len(a) - len(b)) > max(2, 0.06 * len(b)) or a.shape[1] != b.shape[1]:
        return f"it is {a.shape} cells, the stored one {b.shape}"
    rows = min(len(a), len(b))
    apart = np.abs(a[:rows] - b[:rows])
    if apart.mean() > TOLERANCE or (apart > FAR).mean() > FEW:
        return f"mean difference {apart.mean():.3f}, {(apart > FAR).mean():.1%} of it differs much"
    return ""


def shoot(page: Page, path: Path) -> np.ndarray:
    """The panel's screenshot, small."""
    panel = page.locator(PANEL).first
    panel.wait_for()
    page.wait_for_timeout(500)
    page.mouse.move(0, 0)
    panel.screenshot(path=path)
    return thumbnail(path)


@pytest.mark.parametrize("name", PANELS)
def test_the_panel_looks_as_it_did_when_it_was_looked_at(name: str, lab: Lab, chrome: Browser, tmp_path: Path) -> None:
    with opened(chrome, lab, lab.notebook(f"look_{name}.ipynb", source(name)), width=WIDE, height=1600) as session:
        now = shoot(session.page, tmp_path / f"{name}.png")
    stored = matplotlib.image.imread(STORED / f"{name}.png")
    assert unlike(now, stored[..., 0] if stored.ndim == 3 else stored) == ""


def test_the_comparison_sees_a_changed_picture() -> None:
    kept = {path.stem: matplotlib.image.imread(path)[..., 0] for path in STORED.glob("*.png")}
    assert set(kept) == set(PANELS)
    for name, picture in kept.items():
        assert unlike(picture, picture) == ""
        assert unlike(1 - picture, picture)
        assert unlike(np.full_like(picture, picture.mean()), picture), f"an empty {name}"
        assert all(unlike(picture, other) for also, other in kept.items() if also != name)


def cut_off(panel: Locator) -> list[str]:
    """Words that do not fit where they stand."""
    return panel.locator(".widget-label, .widget-readout, .number").evaluate_all(
        "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)") + panel.evaluate(
        """panel => [...panel.querySelectorAll("input, textarea, select, button")].filter(
            e => e.getBoundingClientRect().right > panel.getBoundingClientRect().right).map(e => e.outerHTML)""")


NARROW = {**PANELS, "own words": "explorers.quiz(quiz.of_the_page(), lambda *_: None, own_words=True)",
          "own file": "panel = explorers.sigma_sweep()\npanel.set(workload='own')\npanel"}


@pytest.mark.parametrize("name", NARROW)
def test_nothing_hangs_over_the_edge_of_a_narrow_page(name: str, lab: Lab, chrome: Browser) -> None:
    book = lab.notebook(f"narrow_{name.replace(' ', '_')}.ipynb", f"from labs import explorers, quiz\n{NARROW[name]}")
    with opened(chrome, lab, book, width=800, height=1600) as session:
        panel = session.page.locator(PANEL).first
        panel.wait_for()
        session.page.wait_for_timeout(300)
        assert cut_off(panel) == []


@pytest.mark.parametrize("name", PANELS)
def test_it_can_be_read_at_twice_the_size(name: str, lab: Lab, chrome: Browser, tmp_path: Path) -> None:
    book = lab.notebook(f"zoom_{name}.ipynb", source(name))
    with opened(chrome, lab, book, width=1280, height=1600, zoom=2) as session:
        panel = session.page.locator(PANEL).first
        panel.wait_for()
        session.page.screenshot(path=tmp_path / f"{name}_200.png")
        assert cut_off(panel) == []
        assert panel.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), "the panel scrolls sideways"


@pytest.mark.parametrize("name", ["eight_requests", "simulator", "sigma_sweep", "step_player", "dial"])
def test_the_keyboard_goes_through_the_controls_as_they_stand(name: str, lab: Lab, chrome: Browser) -> None:
    with opened(chrome, lab, lab.notebook(f"keys_{name}.ipynb", source(name)), width=WIDE, height=1600) as session:
        page, panel = session.page, session.page.locator(PANEL).first
        panel.wait_for()
        stops = panel.locator("input:visible:enabled, select:visible:enabled, button:visible:enabled, "
                              ".noUi-handle:visible, textarea:visible:enabled")
        places = [(box["y"], box["x"]) for box in (stops.nth(i).bounding_box() for i in range(stops.count())) if box]
        stops.first.focus()
        seen = [page.evaluate(FOCUS)]
        for _ in range(len(places) - 1):
            page.keyboard.press("Tab")
            if not panel.evaluate("e => e.contains(document.activeElement)"):
                break
            seen.append(page.evaluate(FOCUS))
        named = [label for i, label in enumerate(seen) if label and label not in seen[:i]]
        labels = panel.locator(".widget-label:visible").evaluate_all("all => all.map(e => e.textContent)")
        assert len(named) >= 3
        order = [labels.index(label) for label in named if label in labels]
        assert order == sorted(order), f"Tab goes {named}, but they stand {labels}"
        handles = panel.locator(".noUi-handle:visible")
        spoken = []
        for i in range(handles.count()):
            handles.nth(i).focus()
            spoken.append((handles.nth(i).get_attribute("aria-label"), page.evaluate(FOCUS)))
        assert spoken and all(said == label != "" for said, label in spoken), "a slider says no name to a screen reader"


if __name__ == "__main__":
    import tempfile

    STORED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "labs", Path(folder) / "labs")
        with jupyter_lab(Path(folder)) as lab_, browser(chromium_path()) as chrome_:
            for name_ in sys.argv[1:] or PANELS:
                book_ = lab_.notebook(f"{name_}.ipynb", source(name_))
                with opened(chrome_, lab_, book_, width=WIDE, height=1600) as session_:
                    full = STORED.parent / f"{name_}_full.png" if "--full" in sys.argv else Path(folder) / "full.png"
                    small = shoot(session_.page, full)
                matplotlib.image.imsave(STORED / f"{name_}.png", small, cmap="gray", vmin=0, vmax=1)
                print(name_, small.shape)
