"""Pictures sent ahead: what a panel shows one key further is in the browser before the reader gets there.

A slider's answer goes to the kernel and back, which takes as long as the network takes. So once a picture is shown, the
panel draws those that a key leads to while there is nothing else to do, and sends them (ahead.js); and where the
pointer rests on a slider's track, the browser asks for what a press there would show. The browser shows a picture as
soon as its slider is there; the kernel's own answer follows as ever, and is equal. Where anywidget isn't installed, or
the page wouldn't load it (Colab, unless asked to), nothing is sent ahead, and that is all that is missing.
"""
from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ipywidgets as w
import traitlets

try:
    import anywidget
except ImportError:
    anywidget = None

PAGE = 5  # steps that a page key goes
PLAIN = (bool, int, float, str, type(None))


def courier(controls: Mapping[str, w.Widget], places: Mapping[str, w.Widget], aims: Iterable[str]) -> Any | None:
    """What carries frames to the browser for these controls and HTML widgets; None where nothing can.

    `aims` are the controls whose pictures the browser may ask for.
    """
    if anywidget is None or "google.colab" in sys.modules:
        return None
    return Courier(aims=list(aims), controls={name: control.model_id for name, control in controls.items()},
                   places={name: place.model_id for name, place in places.items()})


if anywidget is not None:
    class Courier(anywidget.AnyWidget):
        """A widget with no view: it hands frames to ahead.js."""

        _esm = Path(__file__).with_name("ahead.js").read_text(encoding="utf-8")
        aims = traitlets.List().tag(sync=True)
        controls = traitlets.Dict().tag(sync=True)
        places = traitlets.Dict().tag(sync=True)


def state(control: w.Widget) -> Any:
    """A control's setting as its model in the browser has it: an index where there are choices, else the value."""
    return control.value if getattr(control, "index", None) is None else control.index


def base(controls: Mapping[str, w.Widget]) -> dict[str, Any]:
    """All settings that can be compared in the browser."""
    return {name: state(control) for name, control in controls.items() if isinstance(state(control), PLAIN)}


def neighbours(control: w.Widget) -> list[tuple[Any, Any]]:
    """(state, value) where a key takes a slider, the likeliest first: none for what is no slider.

    That is one step to the right and to the left (arrows), PAGE steps (page keys), and both ends (Home and End).
    """
    if isinstance(control, w.SelectionSlider):
        here, step, low, high = control.index, 1, 0, len(control.options) - 1
    elif isinstance(control, w.IntSlider | w.FloatSlider):
        here, step, low, high = control.value, control.step, control.min, control.max
    else:
        return []
    steps = [here + step, here - step]
    leaps = [min(here + PAGE * step, high), max(here - PAGE * step, low), high, low]
    found = dict(near for there in steps + leaps for near in at(control, there))
    return [near for near in found.items() if near[0] != here]


def at(control: w.Widget, state: Any) -> list[tuple[Any, Any]]:
    """(state, value) of a slider in `state`; none if it can't be there, or is no slider."""
    if not isinstance(state, int | float) or not math.isfinite(state):
        return []
    if isinstance(control, w.SelectionSlider):
        values = [value for _, value in control.options] if isinstance(control.options[0], tuple) else control.options
        index = round(state)
        return [(index, values[index])] if 0 <= index < len(values) else []
    if isinstance(control, w.IntSlider | w.FloatSlider):
        value = round(state) if isinstance(control, w.IntSlider) else round(state, 9)
        return [(value, value)] if control.min <= value <= control.max else []
    return []
