"""Scrub each preset of the step player from end to end in a real JupyterLab, and time each step on the screen.

`python tests/bench_player.py [CHROMIUM]`: from the key that moves the slider to the frame that shows the new step.
Exits 1 if a preset's p95 is over 100 ms.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from browser_lab import browser, jupyter_lab, opened
from player_page import CELL, choose, control, focus_steps, open_panel, wait_for_step
from playwright.sync_api import Locator

from labs import metrics
from labs.presets import PRESETS

LIMIT = 100  # milliseconds
# From a key pressed on the slider to the frame after the one in which the picture of the step is in the page.
WATCH = """panel => {
    window.times = [];
    let pressed = 0, wanted = '';
    const readout = panel => panel.querySelector('svg[role=img] text').textContent;
    document.addEventListener('keydown', () => { pressed = performance.now(); }, true);
    window.expect = step => { wanted = `step ${step}: `; };
    new MutationObserver(() => {
        if (!wanted || !pressed || !readout(panel).startsWith(wanted)) return;
        const began = pressed;
        wanted = '';
        requestAnimationFrame(() => setTimeout(() => window.times.push(performance.now() - began)));
    }).observe(panel, {childList: true, subtree: true, characterData: true});
}"""


def scrub(panel: Locator, steps: int) -> list[float]:
    """Milliseconds of each step, one key after the other, there and back."""
    page = panel.page
    focus_steps(panel)
    page.keyboard.press("Home")
    wait_for_step(panel, 0)
    page.evaluate("() => { window.times = []; }")
    for i, (key, step) in enumerate([*(("ArrowRight", s) for s in range(1, steps)),
                                     *(("ArrowLeft", s) for s in reversed(range(steps - 1)))]):
        page.evaluate("step => window.expect(step)", step)
        page.keyboard.press(key)
        page.wait_for_function("n => window.times.length === n", arg=i + 1)
    return page.evaluate("() => window.times")


def drag(panel: Locator, steps: int) -> float:
    """Milliseconds from the end of a quick drag over the whole slider to the last step on the screen."""
    mouse, base = panel.page.mouse, control(panel, "step").locator(".noUi-base")
    place = base.bounding_box()
    y, left, wide = place["y"] + place["height"] / 2, place["x"], place["width"]
    mouse.click(left + 1, y)
    wait_for_step(panel, 0)
    mouse.move(left + 1, y)
    mouse.down()
    for i in range(61):
        mouse.move(left + wide * i / 60, y)
    began = panel.page.evaluate("() => performance.now()")
    wait_for_step(panel, steps - 1)
    ended = panel.page.evaluate("() => performance.now()")
    mouse.up()
    return ended - began


def main(chromium: str) -> int:
    """Print a line a preset; 1 if one is too slow."""
    slow = 0
    with tempfile.TemporaryDirectory() as folder, jupyter_lab(Path(folder)) as lab, browser(chromium) as chrome, \
            opened(chrome, lab, lab.notebook("player.ipynb", CELL.format("one request alone"))) as session:
        panel = open_panel(session)
        panel.evaluate(WATCH)
        print("preset, steps: p50, p95 and longest of a step (ms); after a quick drag from end to end (ms)")
        for preset in PRESETS.values():
            choose(panel, "preset", preset.name)
            wait_for_step(panel, preset.start)
            handle = control(panel, "step").locator(".noUi-handle")
            steps = 1 + int(float(handle.get_attribute("aria-valuemax")))
            times = scrub(panel, steps)
            p50, p95 = (metrics.percentile(times, q) for q in (0.5, 0.95))
            slow |= p95 > LIMIT
            print(f"{preset.name}, {steps}: {p50:.0f}, {p95:.0f}, {max(times):.0f}; {drag(panel, steps):.0f}",
                  flush=True)
        print("\n".join(session.problems) or "no errors in the page")
    return int(slow)


if __name__ == "__main__":
    found = sys.argv[1] if len(sys.argv) > 1 else next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    sys.exit(main(found) if found else "name a Chromium: python tests/bench_player.py CHROMIUM")
