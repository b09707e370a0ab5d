"""Running and waiting while they happen: a load on a live server, and what the server says of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import ipywidgets as w

from labs import svg
from labs.explorers.panel import Displayed, Panel, View, dropdown, message_html, sentence, slider

EVERY = 0.25  # seconds between two pictures
ALL_AT_ONCE, ONE_BY_ONE = "all at once", "one by one"


class Feed(Protocol):
    """A server under load, as the panel needs it: see `labs.live.feed`."""

    source: str
    cap: int | None
    live: bool
    switchable: bool
    busy: bool
    error: str
    diagnosis: str
    series: tuple[Sequence[float], Sequence[float], Sequence[float]]
    measurement: Any

    def start(self, requests: int, rate: float | None, static: bool = False, seed: int = 0) -> None:
        """Begin a load."""

    def stop(self) -> None:
        """End it."""


def live(feed: Feed) -> Live:
    """A panel that sends a load and shows running and waiting meanwhile; it begins with what the feed knows."""
    return Live(feed)


class Live(Panel):
    """Sliders for the load, a button that sends it, one that stops it."""

    FORESEEN = ()  # what it shows hangs on the server, not on the sliders

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self._send = w.Button(description="Send", button_style="primary", icon="play")
        self._halt = w.Button(description="Stop", icon="stop", disabled=True)
        self._send.on_click(lambda _: self.send())
        self._halt.on_click(lambda _: self.halt())
        super().__init__({
            "requests": slider("requests", 64, 8, 200),
            "arrive": dropdown("they come", ALL_AT_ONCE, [(word, word) for word in (ALL_AT_ONCE, ONE_BY_ONE)]),
            "rate": slider("requests a second", 4, 1, 20),
            "batching": dropdown("batching", False, [("continuous", False), ("static", True)]),
            "seed": slider("seed of the lengths", 0, 0, 99),
        }, self.draw)

    def layout_controls(self) -> w.Widget:
        """The controls, and the two buttons under them."""
        return w.VBox([super().layout_controls(), w.HBox([self._send, self._halt])])

    def settle(self, name: str | None) -> None:
        """A rate belongs to requests that come one by one; static batching to a server that can be switched."""
        self.controls["rate"].disabled = self.controls["arrive"].value == ALL_AT_ONCE
        self.controls["batching"].disabled = not self.feed.switchable

    def send(self) -> None:
        """Begin the load that the sliders describe, and follow it."""
        chosen = self.values
        rate = None if chosen["arrive"] == ALL_AT_ONCE else float(chosen["rate"])
        try:
            self.feed.start(chosen["requests"], rate, chosen["batching"], chosen["seed"])
        except Exception as error:  # said in the panel: a button has nobody else to tell
            self.error = sentence(error)
            self._message.value = message_html(f"Not sent: {self.error}", bad=True)
            return
        self._buttons()
        self._follow()

    def halt(self) -> None:
        """End the load."""
        self.feed.stop()
        self._buttons()
        self.render_now()

    def draw(self, settings: dict[str, Any]) -> View:
        """Running and waiting so far."""
        times, running, waiting = self.feed.series
        picture = svg.running_and_waiting(times, running, waiting, self.feed.cap, self.feed.source)
        return View(picture, _numbers(running, waiting, self.feed.measurement), _rows(self.feed.measurement),
                    self.feed.error or self.feed.diagnosis)

    def _buttons(self) -> None:
        self._send.disabled, self._halt.disabled = self.feed.busy, not self.feed.busy

    def _follow(self) -> None:
        """Draw again every so often while the load is under way, and once when it has ended."""
        self.render_now()
        self._buttons()
        if not self.feed.busy:
            return
        try:
            asyncio.get_running_loop().call_later(EVERY, self._follow)
        except RuntimeError:  # a plain script: nobody would call back, so see it through
            while self.feed.busy:
                time.sleep(EVERY)
            self._follow()


class StatusLine(Displayed):
    """One line that tells how far something is: a function of one word that can be handed on as a callback."""

    def __init__(self, text: str = "") -> None:
        self._line = w.HTML(message_html(text))
        super().__init__([self._line])

    def __call__(self, words: object) -> None:
        """Show `words` in place of the last ones."""
        self._line.value = message_html(str(words))

    def summary(self) -> str:
        """The same on each run, whatever it says by now."""
        return "a line that tells how far it is"


def _numbers(running: Sequence[float], waiting: Sequence[float], measurement: Any) -> list[tuple[str, str]]:
    now = [(f"{values[-1]:.0f}" if values and values[-1] == values[-1] else "–", f"{name}, at the last look")
           for name, values in (("running", running), ("waiting", waiting))]
    if measurement is None:
        return now
    return [*now, (f"{measurement.output_tokens / measurement.wall:,.0f}", "tokens a second, over the whole load")]


def _rows(measurement: Any) -> list[list[str]]:
    """Counts and latencies of the load that has ended."""
    if measurement is None:
        return []
    lines = {line["measure"]: line for line in measurement.table()}
    rows = [["", "mean", "p50"]]
    for name in ("TTFT", "ITL", "end to end"):
        if (line := lines.get(name)) and line["n"]:
            middle = line["p50"] if isinstance(line["p50"], str) else f"{line['p50']:,.1f}"
            rows.append([f"{name}, {line['unit']}", f"{line['mean']:,.1f}", middle])
    return [*rows, ["whole answers, of all", f"{len(measurement.ok)}", f"{len(measurement.measured)}"]]
