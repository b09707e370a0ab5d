"""From a slider's event to the new picture on screen, for each explorer beside a plain `interact` with a new figure.

`python tests/bench_sliders.py [events]` starts a JupyterLab and a headless Chromium, moves the same slider of one and
of the other alike, in turn, and prints medians, 95th percentiles and ratios. It is moved in three ways:

- by an arrow key, one step: where a key leads has been drawn ahead (labs/explorers/ahead.py);
- by a press on its track, far off, where the pointer has rested for a fifth of a second: that is drawn ahead too, while
  the reader aims;
- by a page key, five steps at once: it is drawn ahead after what lies one step further.

Between two events there is a quarter of a second; dragging is not measured. `interact` is used as tutorials use it
(tests/plain.py), with matplotlib's figure as SVG, which is as sharp at every size as the explorer's picture, and once
more as PNG, Jupyter's default, which is coarser and quicker. A time runs from the event in the page until the frame
that holds the new picture has been painted. Run it on an idle machine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import plain
from browser_lab import Lab, browser, chromium_path, jupyter_lab, opened
from playwright.sync_api import Browser, Page

EVENTS, PAUSE, AIM = 20, 250, 200  # per way; milliseconds between two events, and from resting to a press
STEP, PRESS, JUMP = ("ArrowRight", "ArrowLeft"), (0.3, 0.7), ("PageUp", "PageDown")  # keys, or places on the track
FORMS = ("svg", "png")
HEAD = "%matplotlib inline\n%config InlineBackend.figure_format = '{form}'\nfrom labs import explorers\n"
SLIDER = {"eight_requests": "slots", "simulator": "slots", "sigma_sweep": "sigma"}
# A picture has changed when its text (SVG) or its bytes (image) differ, and it has been decoded.
ARM = """(selector) => {
    const root = document.querySelectorAll('.jp-CodeCell')[selector];
    const look = () => {
        const svg = root.querySelector('svg[role=img]'), img = root.querySelector('.jp-OutputArea img');
        return svg ? svg.outerHTML : img && img.complete && img.naturalWidth ? img.src : null;
    };
    const before = look();
    let began = null;
    window.took = new Promise(resolve => {
        for (const kind of ['keydown', 'pointerdown'])
            document.addEventListener(kind, () => { began ??= performance.now(); }, {capture: true, once: true});
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


def event_to_picture(page: Page, cell: int, slider: str, how: str | float) -> float:
    """Milliseconds from a key on the cell's slider, or a press at a place of its track, to its new picture."""
    sliders = page.locator(".jp-CodeCell").nth(cell).locator(".widget-slider").filter(has_text=slider)
    if isinstance(how, str):
        sliders.first.locator(".noUi-handle").focus()
        page.evaluate(ARM, cell)
        page.keyboard.press(how)
    else:
        box = sliders.first.locator(".noUi-base").bounding_box()
        page.mouse.move(box["x"] + how * box["width"], box["y"] + box["height"] / 2, steps=10)
        page.wait_for_timeout(AIM)
        page.evaluate(ARM, cell)
        page.mouse.down()
        page.mouse.up()
    return page.evaluate("Promise.race([window.took, new Promise((_, no) => setTimeout(no, 20000, 'no new picture'))])")


def measure(chrome: Browser, lab: Lab, name: str, form: str, events: int) -> list[list[float]]:
    """Times of the explorer for a step, a press and a jump, then of `interact` for the same, in turn."""
    first = HEAD.format(form=form) + plain.COMMON + f"explorers.{name}()"
    book = lab.notebook(f"{name}_{form}.ipynb", first, plain.CELLS[name])
    ways: list[tuple[int, tuple, list[float]]] = [(cell, hows, []) for cell in (0, 1) for hows in (STEP, PRESS, JUMP)]
    with opened(chrome, lab, book, height=2600) as session:
        page = session.page
        page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea img").wait_for()
        for i in range(-3, events):  # the first three warm up
            for cell, hows, times in ways:
                took = event_to_picture(page, cell, SLIDER[name], hows[i % 2])
                page.wait_for_timeout(PAUSE)
                if i >= 0:
                    times.append(took)
    return [times for *_, times in ways]


def quantile(times: list[float], q: float) -> float:
    """The value at rank int(q n)."""
    return sorted(times)[min(int(q * len(times)), len(times) - 1)]


def main(events: int) -> None:
    """Measure and print."""
    if not (path := chromium_path()):
        sys.exit("no browser: install chromium, or name one in LABS_CHROMIUM")
    print(f"milliseconds, {events} events each; median/p95")
    print(f"{'':24}{'explorer':>12}{'':24}{'interact':>12}{'':24}{'ratio':>9}")
    print(f"{'':24}" + f"{'a step':>12}{'a press':>12}{'a jump':>12}" * 2 + f"{'a step':>9}{'a press':>9}{'a jump':>9}")
    with tempfile.TemporaryDirectory() as folder, jupyter_lab(Path(folder)) as lab, browser(path) as chrome:
        for form in FORMS:
            for name in plain.CELLS:
                times = measure(chrome, lab, name, form, events)
                shown = [f"{quantile(t, 0.5):.0f}/{quantile(t, 0.95):.0f}" for t in times]
                ratios = [quantile(theirs, 0.5) / quantile(ours, 0.5)
                          for ours, theirs in zip(times[:3], times[3:], strict=True)]
                print(f"{name + ', ' + form:24}" + "".join(f"{took:>12}" for took in shown)
                      + "".join(f"{ratio:8.1f}x" for ratio in ratios), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS)
