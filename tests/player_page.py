"""The step player on a page: what its browser test and its benchmark share."""

from __future__ import annotations

from browser_lab import Session
from playwright.sync_api import Locator

PANEL = ".jp-OutputArea-output .jupyter-widgets.widget-vbox"
CELL = "from labs import explorers\npanel = explorers.step_player({!r})\npanel"
PATIENCE = 30_000  # milliseconds
SHOWS = """([panel, step]) => [...panel.querySelectorAll('svg[role=img]')].some(
    svg => svg.querySelector('text').textContent.startsWith(`step ${step}: `))"""


def open_panel(session: Session) -> Locator:
    """The player, once it is drawn."""
    session.page.wait_for_selector(f"{PANEL} svg[role=img]", timeout=PATIENCE)
    return session.page.locator(PANEL).first


def control(panel: Locator, label: str) -> Locator:
    """A control, found by the label that a reader sees."""
    return panel.locator(".widget-inline-hbox").filter(has=panel.page.get_by_text(label, exact=True))


def choose(panel: Locator, label: str, option: str) -> None:
    """Pick from a list."""
    control(panel, label).locator("select").select_option(label=option)


def wait_for_step(panel: Locator, step: int) -> None:
    """Until the picture is that of `step`."""
    panel.page.wait_for_function(SHOWS, arg=[panel.element_handle(), step], timeout=PATIENCE)


def focus_steps(panel: Locator) -> None:
    """Put the keyboard on the slider of the steps."""
    control(panel, "step").locator(".noUi-handle").focus()
