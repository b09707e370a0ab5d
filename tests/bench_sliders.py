"""From a slider's event to the new picture on screen, for each explorer beside a plain `interact` with a new figure.

`python tests/bench_sliders.py [events]` starts a JupyterLab and a headless Chromium, presses an arrow key on a slider
of one and of the other in turn, and prints medians, 95th percentiles and the ratio. `interact` is used as tutorials
use it (tests/plain.py), with matplotlib's figure as SVG, which is as sharp at every size as the explorer's picture, and
once more as PNG, Jupyter's default, which is coarser and quicker. A time runs from the key's event in the page until
the frame that holds the new picture has been painted. Run it on an idle machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import plain
from browser_lab import Lab, browser, chromium_path, jupyter_lab, opened
from playwright.sync_api import Browser, Page

EVENTS, PAUSE = 20, 250  # per way of drawing; milliseconds between two events
FORMS = ("svg", "png")
HEAD = "%matplotlib inline\n%config InlineBackend.figure_format = '{form}'\nfrom labs import explorers\n"
SLIDER = {"eight_requests": "slots", "simulator": "slots", "sigma_sweep": "sigma"}
# A picture has changed when its description (SVG) or its bytes (image) differ, and it has been decoded.
ARM = """(selector) => {
    const root = document.querySelectorAll('.jp-CodeCell')[selector];
    const look = () => {
        const svg = root.querySelector('svg[role=img]'), img = root.querySelector('.jp-OutputArea img');
        return svg ? svg.outerHTML : img && img.complete && img.naturalWidth ? img.src : null;
    };
    const before = look();
    let began = null;
    window.took = new Promise(resolve => {
        document.addEventListener('keydown', () => { began = performance.now(); }, {capture: true, once: true});
        const check = () => {
            const now = look();
            if (began === null || now === null || now === before) return;
            observer.disconnect();
            requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began), 0));
        };
        const observer = new MutationObserver(check);
        observer.observe(root, {subtree: true, childList: true, attributes: true, characterData: true});
        root.addEventListener('load', check, true);
    });
}"""


def event_to_picture(page: Page, cell: int, slider: str, key: str) -> float:
    """Milliseconds from one key press on the cell's slider to its new picture."""
    sliders = page.locator(".jp-CodeCell").nth(cell).locator(".widget-slider").filter(has_text=slider)
    sliders.first.locator(".noUi-handle").focus()
    page.evaluate(ARM, cell)
    page.keyboard.press(key)
    return page.evaluate("Promise.race([window.took, new Promise((_, no) => setTimeout(no, 20000, 'no new picture'))])")


def measure(chrome: Browser, lab: Lab, name: str, form: str, events: int) -> tuple[list[float], list[float]]:
    """Times of the explorer and of `interact`, in turn."""
    first = HEAD.format(form=form) + plain.COMMON + f"explorers.{name}()"
    book = lab.notebook(f"{name}_{form}.ipynb", first, plain.CELLS[name])
    ours: list[float] = []
    theirs: list[float] = []
    with opened(chrome, lab, book, height=2600) as session:
        page = session.page
        page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea img").wait_for()
        for i in range(-3, events):  # the first three warm up
            key = "ArrowRight" if i % 2 else "ArrowLeft"
            for cell, times in ((0, ours), (1, theirs)):
                took = event_to_picture(page, cell, SLIDER[name], key)
                page.wait_for_timeout(PAUSE)
                if i >= 0:
                    times.append(took)
    return ours, theirs


def quantile(times: list[float], q: float) -> float:
    """The value at rank int(q n)."""
    return sorted(times)[min(int(q * len(times)), len(times) - 1)]


def main(events: int) -> None:
    """Measure and print."""
    if not (path := chromium_path()):
        sys.exit("no browser: install chromium, or name one in LABS_CHROMIUM")
    print(f"milliseconds, {events} events each       explorer{'interact + new figure':>26}{'ratio of':>12}")
    print(f"{'':30}{'median':>10}{'p95':>8}{'median':>18}{'p95':>8}{'medians':>12}")
    with tempfile.TemporaryDirectory() as folder, jupyter_lab(Path(folder)) as lab, browser(path) as chrome:
        for form in FORMS:
            for name in plain.CELLS:
                ours, theirs = measure(chrome, lab, name, form, events)
                a, b = quantile(ours, 0.5), quantile(theirs, 0.5)
                print(f"{name + ', ' + form:30}{a:10.0f}{quantile(ours, 0.95):8.0f}{b:18.0f}"
                      f"{quantile(theirs, 0.95):8.0f}{b / a:11.1f}x", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS)
