"""The on-call panel: an alarm and a dashboard, a cause to name, a fix to apply, and the dashboard after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from typing import Any

import ipywidgets as w

from labs.drills import Drill
from labs.drills.picture import draw
from labs.explorers.panel import Displayed, dropdown, flow, message_html, numbers_html, sentence


def drills(incidents: Sequence[Drill], on_done: Callable[[Drill, bool], Any]) -> DrillPanel:
    """A panel that plays `incidents`; `on_done(drill, passed)` is called once for each that was played.

    Passed is who names the right cause and picks a right fix at the first try; everybody may go on trying.
    """
    return DrillPanel(incidents, on_done)


class DrillPanel(Displayed):
    """One incident at a time; its causes and fixes stay on the page, so that a wrong fix can be followed by another."""

    PAUSE = 0.05  # seconds between two runs made ahead, in which a click gets through

    def __init__(self, incidents: Sequence[Drill], on_done: Callable[[Drill, bool], Any]) -> None:
        if not incidents:
            raise ValueError("give at least one incident to play")
        self.incidents, self._on_done = list(incidents), on_done
        self.told: dict[str, bool] = {}
        self.which = dropdown("incident", 0, [(f"{i + 1} of {len(self.incidents)}", i)
                                              for i in range(len(self.incidents))])
        self._alarm, self._numbers, self._picture, self._said, self._done = (w.HTML() for _ in range(5))
        self.cause, self.fix = _choice(), _choice()
        self.name_button = w.Button(description="Name the cause", button_style="primary")
        self.apply_button = w.Button(description="Apply the fix", button_style="primary")
        self.next_button = w.Button(description="Next incident", icon="arrow-right")
        self._causes = w.VBox([_title("What is the cause?"), self.cause, self.name_button, self._said])
        self._fixes = w.VBox([_title("Which fix do you apply?"), self.fix, self.apply_button, self._done])
        self.which.observe(lambda _: self.begin(), names="value")
        self.name_button.on_click(lambda _: self._guarded(self._name, self._said))
        self.apply_button.on_click(lambda _: self._guarded(self._apply, self._done))
        self.next_button.on_click(lambda _: self.go_on())
        self._silent = False
        super().__init__([flow([self.which, self.next_button]), self._alarm, self._picture, self._numbers,
                          self._causes, self._fixes])
        self.begin()

    @property
    def drill(self) -> Drill:
        """The incident that is played."""
        return self.incidents[self.which.value]

    def begin(self) -> None:
        """Show the chosen incident, nothing named yet."""
        self._guarded(self._begin, self._said)

    def go_on(self) -> None:
        """The next incident that isn't solved; the next one if all are. After the last one comes the first."""
        others = [(self.which.value + k) % len(self.incidents) for k in range(1, len(self.incidents) + 1)]
        self.which.value = next((i for i in others if not self.told.get(self.incidents[i].id)), others[0])

    def summary(self) -> str:
        """The dashboard in words, without the cause."""
        return f"{len(self.incidents)} incidents. The first: {draw(self.drill.dashboard, self.drill.alarm).alt}"

    def static_html(self) -> str:
        """The alarm, the dashboard, and what there is to choose from."""
        d = self.drill
        causes, fixes = ("".join(f"<li>{escape(each.name)}</li>" for each in of) for of in (d.causes, d.fixes))
        return (f"{draw(d.dashboard, d.alarm)._repr_html_()}<p>What is the cause?</p><ul>{causes}</ul>"
                f"<p>Which fix do you apply?</p><ul>{fixes}</ul>"
                "<p><em>Run the cells from the top to answer.</em></p>")

    # ---- inner workings

    def _begin(self) -> None:
        d = self.drill
        self._first_try, self._told_now = True, False
        self._show(d.dashboard, d.alarm)
        self._alarm.value = message_html(f"Alarm: {d.alarm}", bad=True)
        self._said.value = self._done.value = ""
        self.fix.disabled = self.apply_button.disabled = True
        self._offer(self.cause, [(cause.name, cause.key) for cause in d.causes])
        self._offer(self.fix, [(fix.name, fix.key) for fix in d.fixes])
        self.name_button.disabled = False
        self.cause.disabled = False
        self._fixes.layout.display = "none"
        coming = self.incidents[(self.which.value + 1) % len(self.incidents)]
        self._ahead(d, [*(partial(d.after, fix) for fix in d.fixes), lambda: coming.dashboard])

    def _ahead(self, drill: Drill, runs: list[Callable[[], Any]]) -> None:
        """Run what may be asked for next while the reader reads, one after the other, so that a click finds it."""
        with suppress(RuntimeError):  # no event loop: a plain script, in which nobody waits
            loop = asyncio.get_running_loop()
            loop.call_later(self.PAUSE, self._run_one, drill, runs)

    def _run_one(self, drill: Drill, runs: list[Callable[[], Any]]) -> None:
        """One of them, unless the reader has gone on; what goes wrong is said when it is asked for."""
        if self.drill is drill and runs:
            with suppress(Exception):
                runs[0]()
            self._ahead(drill, runs[1:])

    def _offer(self, control: w.RadioButtons, options: list[tuple[str, str]]) -> None:
        control.options = options
        control.value = None

    def _name(self) -> None:
        """Mark the cause; a right one opens the fixes."""
        if self.cause.value is None:
            raise ValueError("Choose a cause first.")
        said = self.drill.name(self.cause.value)
        self._said.value = message_html(said.message, bad=not said.passed)
        if said.passed:
            self.cause.disabled = self.name_button.disabled = True
            self.fix.disabled = self.apply_button.disabled = False
            self._fixes.layout.display = None
        else:
            self._tell(False)

    def _apply(self) -> None:
        """Draw what comes of the fix over what was."""
        if self.fix.value is None:
            raise ValueError("Choose a fix first.")
        d, key = self.drill, self.fix.value
        said = d.apply(key)
        name = next(fix.name for fix in d.fixes if fix.key == key)
        verdict = "mended" if said.passed else "not mended"
        self._show(said.dashboard, f"After the fix, {verdict} (grey: before)", before=d.dashboard)
        more = "" if self._first_try or not said.passed else " Not at the first try, so this one comes back."
        self._done.value = message_html(f"{name}: {said.message}{more}", bad=not said.passed)
        self._tell(said.passed)

    def _tell(self, passed: bool) -> None:
        """The first mistake, or the end without one, is what counts: once each time that an incident comes."""
        self._first_try = self._first_try and passed
        if not self._told_now and not self.told.get(self.drill.id):
            self._told_now, self.told[self.drill.id] = True, passed
            self._on_done(self.drill, passed)

    def _show(self, dashboard: Any, title: str, before: Any = None) -> None:
        """The picture and three numbers of a dashboard."""
        s = dashboard.summary
        self._picture.value = draw(dashboard, title, before).inline(self.model_id)
        self._numbers.value = numbers_html([
            (f"{s.client_ttft_p99:.2f} s", "p99 TTFT at the client"), (f"{1e3 * s.itl_p95:.0f} ms", "p95 ITL"),
            (f"{s.tokens_per_second:,.0f}", f"tokens a second per {self.drill.device}"),
            (f"{s.unanswered:,}", "without an answer yet")])

    def _guarded(self, action: Callable[[], None], place: w.HTML) -> None:
        """Whatever goes wrong is said where the reader looks."""
        try:
            action()
        except Exception as error:
            place.value = message_html(sentence(error), bad=True)


def _choice() -> w.RadioButtons:
    return w.RadioButtons(options=[], layout=w.Layout(width="auto", max_width="100%"))


def _title(words: str) -> w.HTML:
    return w.HTML(f'<div style="font-size:15px;line-height:21px;font-weight:600">{escape(words)}</div>')
