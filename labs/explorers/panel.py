"""A panel: controls, a picture that follows them, a few large numbers, a table, and a line for what went wrong.

Only what ipywidgets 7.7 (Colab) and 8 share. The picture is SVG text in one HTML widget that lives as long as the
panel: nothing is added to the page when it changes.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets as w
from traitlets import TraitError

from labs.explorers import ahead
from labs.svg import Picture
from labs.words import Refused

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
LABEL, CONTROL = "190px", "436px"  # width of a label, and of a control with its label
MOST = "calc(100% - 8px)"  # width of a control where the page is narrow: its margins need the rest


@dataclass(frozen=True)
class View:
    """What a panel shows for one choice of settings.

    `numbers` are (value, what it is), two to four of them; `rows` the table, its header first.
    """

    picture: Picture
    numbers: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Displayed(w.VBox):
    """A box that shows itself alike under ipywidgets 7 and 8, and as plain HTML where no kernel is running."""

    _ipython_display_ = None  # ipywidgets 7 would show only the live widget through this

    def summary(self) -> str:
        """The box in words."""
        return "controls: run this cell to use them"

    def static_html(self) -> str:
        """The box as HTML without a kernel, the same on each run."""
        return f"<p>{escape(self.summary())}</p>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {
            "text/plain": self.summary(),
            WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.model_id},
        }
        # Colab's choice between a live widget and HTML in one bundle is not documented: leave it only the widget.
        return bundle if "google.colab" in sys.modules else bundle | {"text/html": self.static_html()}

    def __repr__(self) -> str:
        return self.summary()


class Missing(ValueError):
    """The reader hasn't given yet what is to be drawn: what to give, said without the look of a fault."""


class Panel(Displayed):
    """Named controls and `render(settings) -> View`, redrawn when one of them changes; the latest setting wins.

    If `render` raises, its message is shown and the last good picture stays. `reset` brings back what was seen first.
    What lies one key further, or under the pointer, is drawn ahead (labs/explorers/ahead.py).
    """

    FORESEEN: Sequence[str] | None = None  # controls whose next picture can be drawn ahead; None for every slider
    PAUSE = 0.02  # seconds after a picture, and between two drawn ahead, in which a reader's event gets through
    QUICK = 0.03  # seconds that a picture may take if more are to be drawn ahead

    def __init__(self, controls: Mapping[str, w.Widget], render: Callable[[dict[str, Any]], View]) -> None:
        self.controls, self.render = dict(controls), render
        self.shown: View | None = None
        self.error, self._missing = "", False
        self._silent = False
        self._redraw = LatestWins(self.render_now)
        self._message, self._numbers, self._picture = w.HTML(), w.HTML(), w.HTML()
        self._table = w.HTML(layout=w.Layout(overflow="auto", max_width="100%"))
        self.reset_button = w.Button(description="Reset", tooltip="Back to the first numbers", icon="undo")
        self.reset_button.on_click(lambda _: self.reset())
        super().__init__([self.layout_controls(), self._message, self._numbers, self._picture, self._table])
        self._places = {"picture": self._picture, "numbers": self._numbers, "message": self._message,
                        "table": self._table}  # in this order: each is sent by itself
        self._courier = ahead.courier(self.controls, self._places, filter(self.foresees, self.controls))
        if self._courier:
            self._courier.on_msg(lambda _, content, buffers: self._aimed(content))
        self._moved: str | None = None
        self._generation, self._sent = 0, False
        self._slow: set[str] = set()  # controls of which a picture drawn ahead took long since the last redraw
        for name, control in self.controls.items():
            control.observe(lambda _, name=name: self._changed(name), names="value")
        self._first, self._displayed = self.values, False
        self.settle(None)
        self.render_now()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if not self._displayed:  # what the reader sees first is what Reset brings back
            self._first, self._displayed = self.values, True
        if self._redraw.waiting:  # what is stored is what was set last
            self.render_now()
        return super()._repr_mimebundle_(include, exclude)

    # ---- for notebooks and tests

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def view(self) -> View | None:
        """What is shown for the present settings (the last good view if they cannot be shown)."""
        if self._redraw.waiting:
            self.render_now()
        return self.shown

    def set(self, **values: Any) -> None:
        """Move controls, as a reader would, with one redraw.

        Raises ValueError for a name that is not a control's, and for a value that it can't have: nothing is moved then.
        """
        if unknown := values.keys() - self.controls.keys():
            raise Refused(f"there is no control {min(unknown)!r}: choose from {', '.join(self.controls)}")
        before = self.values
        with self._quiet():
            try:
                for name, value in values.items():
                    put(name, self.controls[name], value)
                    self.settle(name)
            except Refused:
                for name in self.controls:
                    self.restore(name, before[name])
                self.settle(None)
                raise
        self._redraw.request()

    def reset(self) -> None:
        """Back to the settings that the panel was first shown with."""
        with self._quiet():
            for name in self.controls:
                self.restore(name, self._first[name])
            self.settle(None)
        self.render_now()

    def render_now(self) -> None:
        """Redraw at once for the present settings."""
        self._redraw.cancel()
        self._generation += 1
        again, self._sent = self._sent, False
        if again:  # first of all: from here on nothing that was sent ahead may be shown
            self._courier.send({"generation": self._generation, "name": "", "base": {}})
        began = time.perf_counter()
        try:
            self.shown = self.render(self.values)
            self.error = ""
        except Exception as error:  # a panel must never go silent: whatever went wrong is said in it
            self.error, self._missing = sentence(error), isinstance(error, Missing)
        self._show(again)
        self._slow.clear()
        if time.perf_counter() - began < self.QUICK and not self.error:
            self._plan_ahead()

    # ---- for kinds of panel

    def layout_controls(self) -> w.Widget:
        """The controls as they stand above the picture."""
        return flow([*self.controls.values(), self.reset_button])

    def settle(self, name: str | None) -> None:
        """Bring controls that depend on others into line after `name` changed (None: any may have)."""

    def restore(self, name: str, value: Any) -> None:
        """Give a control its first value back."""
        self.controls[name].value = value

    def foresees(self, name: str) -> bool:
        """Whether what a control would show can be drawn before it is there."""
        return self.FORESEEN is None or name in self.FORESEEN

    def imagined(self, name: str, value: Any) -> dict[str, Any]:
        """The settings as they would be with the control `name` at `value`."""
        return self.values | {name: value}

    def summary(self) -> str:
        """The picture in words."""
        return self.shown.picture.alt if self.shown else self.error

    def static_html(self) -> str:
        """Numbers, picture and table as they are now."""
        if not self.shown:
            return super().static_html()
        note = "<p><em>Run the cells from the top to move the sliders.</em></p>"
        return numbers_html(self.shown.numbers) + self.shown.picture._repr_html_() + table_html(self.shown.rows) + note

    # ---- inner workings

    def _changed(self, name: str) -> None:
        if self._silent:
            return
        self._moved = name
        with self._quiet():
            self.settle(name)
        self._redraw.request()

    def _plan_ahead(self) -> None:
        """Soon draw where a key would take the control moved last, unless it is moved again by then."""
        if self._courier and self._moved and self.foresees(self._moved):
            self._later(self._generation, self._moved, ahead.neighbours(self.controls[self._moved]), True)

    def _aimed(self, content: Mapping[str, Any]) -> None:
        """Draw what a press would show where the reader's pointer rests; an answer goes back in any case."""
        name, state = content.get("name"), content.get("state")
        if isinstance(name, str) and name in self.controls and self.foresees(name) and name not in self._slow:
            self._send_ahead(self._generation, name, ahead.at(self.controls[name], state))
        self._courier.send({"answered": True})

    def _later(self, *what: Any) -> None:
        with suppress(RuntimeError):  # no event loop: a plain script, in which nobody waits
            asyncio.get_running_loop().call_later(self.PAUSE, self._send_ahead, *what)

    def _send_ahead(self, generation: int, name: str, beside: list[tuple[Any, Any]], first: bool = False) -> None:
        """One picture, and then the next, as long as they are quick; what can't be drawn is said when it is reached."""
        if generation != self._generation or self._redraw.waiting or not beside:
            return
        (state, value), *rest = beside
        began = time.perf_counter()
        with suppress(Exception):
            if first:  # the way back: a reader may return before the kernel has heard of it
                here = {place: widget.value for place, widget in self._places.items()}
                self._send_frame(name, ahead.state(self.controls[name]), here)
            self._send_frame(name, state, self._html(self.render(self.imagined(name, value))))
        if time.perf_counter() - began < self.QUICK:
            self._later(generation, name, rest)
        else:
            self._slow.add(name)

    def _send_frame(self, name: str, state: Any, shows: Mapping[str, str]) -> None:
        """What each place of the panel shows once the control `name` is in `state`."""
        self._sent = True
        self._courier.send({"generation": self._generation, "name": name, "value": state, "shows": shows,
                            "base": ahead.base(self.controls)})

    @contextmanager
    def _quiet(self):
        """Changes made inside redraw nothing by themselves."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    def _show(self, again: bool = False) -> None:
        """Send what has changed; `again` also what hasn't, for the browser may show what was sent ahead."""
        shows = self._html(self.shown) if self.shown else {}
        if self.error:
            shows["message"] = message_html(f"Not drawn{' yet' * self._missing}: {self.error}", bad=not self._missing)
        for name, html in shows.items():
            place = self._places[name]
            if place.value != html:
                place.value = html
            elif again:
                place.send_state("value")

    def _html(self, view: View) -> dict[str, str]:
        """What each place of the panel says for a view."""
        return {"picture": view.picture.inline(self.model_id), "numbers": numbers_html(view.numbers),
                "message": message_html(view.note), "table": table_html(view.rows)}


class LatestWins:
    """Calls `run` at once where nothing is going on, and once for a whole burst of requests.

    Events that pile up while `run` is busy are delivered right after it ends. Answering each would play them all back,
    long after the reader let go; so the first of them starts a short wait for the last one.
    """

    SETTLE, LONGEST = 0.008, 0.1  # seconds: between two events of a burst, and before a burst is interrupted to draw

    def __init__(self, run: Callable[[], None]) -> None:
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = self._begun = self._latest = float("-inf")

    @property
    def waiting(self) -> bool:
        """True if a request has not been answered yet."""
        return self._timer is not None

    def request(self) -> None:
        """Ask for a run: now, or soon if requests come thick and fast."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a plain script: nobody would call back later
            self._fire()
            return
        self._latest = time.monotonic()
        if self.waiting and self._loop is loop:
            return
        if self._latest - self._ended > self.SETTLE:
            self._fire()
        else:
            self._begun, self._loop = self._latest, loop
            self._timer = loop.call_later(self.SETTLE, self._look)

    def cancel(self) -> None:
        """Forget a waiting request."""
        if self._timer:
            self._timer.cancel()
        self._timer = None

    def _look(self) -> None:
        """Run if the burst is over, or has lasted long enough for the reader to wonder."""
        now = time.monotonic()
        if now - self._latest < self.SETTLE / 2 and now - self._begun < self.LONGEST:
            self._timer = self._loop.call_later(self.SETTLE, self._look)
        else:
            self._fire()

    def _fire(self) -> None:
        self.cancel()
        try:
            self._run()
        finally:
            self._ended = time.monotonic()


# ---- controls -------------------------------------------------------------------------------------------------------


def put(name: str, control: w.Widget, value: Any) -> None:
    """Give a control a value; a text takes a list, too, and a choice its label.

    Raises `Refused` where ipywidgets would clamp a value in silence, or refuse it without saying what it takes.
    """
    if isinstance(control, w.IntSlider | w.FloatSlider):
        kind = "a whole number" if isinstance(control, w.IntSlider) else "a number"
        can = f"give it {kind} from {control.min:,} to {control.max:,}"
    elif isinstance(control, w.SelectionSlider | w.Dropdown):
        choices = dict(item if isinstance(item, tuple) else (str(item), item) for item in control.options)
        value = choices.get(value, value) if isinstance(value, str) else value
        can = f"choose from {', '.join(map(repr, choices.values()))}"
        if not {str(choice) for choice in choices.values()} & {label.replace(",", "") for label in choices}:
            can += f" or {', '.join(map(repr, choices))}"
    elif isinstance(control, w.Checkbox):
        can = "give it True or False"
    elif isinstance(control, w.FileUpload):
        can = "choose the file with its button, or read it in a cell with read_lengths"
    else:
        value = ", ".join(map(str, value)) if isinstance(control, w.Text) and isinstance(value, list | tuple) else value
        example = getattr(control, "placeholder", "")
        can = f"give it a text{f', {example}' * example.startswith('such as')}"
    try:
        control.value = value
    except TraitError:
        pass
    else:
        moves = isinstance(control, w.IntSlider | w.FloatSlider)
        if not moves or control.value == value and not isinstance(value, bool):
            return
    raise Refused(f"{name} can't be {value!r}: {can}")


def slider(label: str, value: float, low: float, high: float, step: float = 1) -> w.Widget:
    """A slider for whole numbers, or for fractions if `step` is one."""
    if isinstance(step, int):
        return w.IntSlider(value=value, min=low, max=high, step=step, readout_format=",d", **_looks(label))
    return w.FloatSlider(value=value, min=low, max=high, step=step, readout_format=".2f", **_looks(label))


def choice_slider(label: str, value: Any, options: Sequence[tuple[str, Any]]) -> w.SelectionSlider:
    """A slider over a few named values."""
    return w.SelectionSlider(value=value, options=options, **_looks(label))


def dropdown(label: str, value: Any, options: Sequence[tuple[str, Any]]) -> w.Dropdown:
    """One of a few named values."""
    return w.Dropdown(value=value, options=options, **_looks(label))


def text(label: str, value: str, placeholder: str = "") -> w.Text:
    """A line of text."""
    return w.Text(value=value, placeholder=placeholder, **_looks(label))


def flow(widgets: Sequence[w.Widget]) -> w.HBox:
    """Side by side, wrapping where the page is narrow."""
    return w.HBox(list(widgets), layout=w.Layout(display="flex", flex_flow="row wrap", align_items="center"))


def show_if(condition: bool, *widgets: w.Widget) -> None:
    """Show or hide controls that matter only for some settings."""
    for widget in widgets:
        widget.layout.display = None if condition else "none"


def _looks(label: str) -> dict[str, Any]:
    return {
        "description": label,
        "style": {"description_width": LABEL},
        "layout": w.Layout(width=CONTROL, max_width=MOST, margin="2px 6px 2px 2px"),
    }


# ---- text -----------------------------------------------------------------------------------------------------------


def numbers_html(numbers: Sequence[tuple[str, str]]) -> str:
    """A few numbers in large type, each with what it is."""
    cells = [
        f'<div style="margin:0 30px 6px 0"><div class="number" style="font-size:24px;line-height:30px;font-weight:600">'
        f'{escape(value)}</div><div style="font-size:14px;line-height:18px">{escape(label)}</div></div>'
        for value, label in numbers
    ]
    return f'<div style="display:flex;flex-wrap:wrap;margin:6px 0">{"".join(cells)}</div>'


def table_html(rows: Sequence[Sequence[str]]) -> str:
    """A table, its header first; the first column names the row."""
    if not rows:
        return ""
    cell = 'style="padding:3px 14px 3px 0;text-align:{}"'
    head = "".join(f'<th scope="col" {cell.format("left" if not i else "right")}>{escape(name)}</th>'
                   for i, name in enumerate(rows[0]))
    body = "".join(
        "<tr>" + f'<th scope="row" {cell.format("left")[:-1]};font-weight:normal">{escape(row[0])}</th>'
        + "".join(f'<td {cell.format("right")}>{escape(value)}</td>' for value in row[1:]) + "</tr>"
        for row in rows[1:])
    table = f'<table style="border-collapse:collapse;font-size:14px;line-height:20px"><thead><tr>{head}</tr></thead>'
    return f"{table}<tbody>{body}</tbody></table>"


def message_html(text: str, bad: bool = False) -> str:
    """One line of text; what went wrong also carries a mark, so that it does not hang on colour alone."""
    look = "background:#FCE8E0;color:#7A2E00;border-left:5px solid #D55E00;padding:4px 10px" if bad else ""
    style = f"font-size:14px;line-height:20px;white-space:normal;{look}"
    return f'<div role="status" style="{style}">{escape(text)}</div>'


def sentence(error: Exception) -> str:
    """An exception as one sentence: a ValueError is written for the reader, anything else says its kind too."""
    said = " ".join(str(error).split()) or "no reason was given"
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"
