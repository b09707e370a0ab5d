"""The eight requests, or any few: lengths, slots, and the two timelines."""

from __future__ import annotations

import re
from typing import Any

from labs import metrics, svg
from labs.explorers.panel import Panel, View, dropdown, slider, text
from labs.sweep import run_both
from labs.workload import EIGHT_LENGTHS

MOST, LONGEST = 64, 100_000


def eight_requests() -> Panel:
    """A panel for a few requests by their lengths, all there at step 0: static above, continuous below."""
    return EightRequests()


class EightRequests(Panel):
    """Lengths as text, and a slider for the length of the request that is picked."""

    def __init__(self) -> None:
        names = svg.request_names(len(EIGHT_LENGTHS))
        super().__init__({
            "lengths": text("output lengths (tokens)", ", ".join(map(str, EIGHT_LENGTHS)), "such as 12, 15, 800"),
            "slots": slider("slots", 8, 1, 32),
            "request": dropdown("request to look at", 0, [(name, i) for i, name in enumerate(names)]),
            "length": slider("its length (tokens)", EIGHT_LENGTHS[0], 1, 1000),
        }, render)

    def settle(self, name: str | None) -> None:
        """The text is what counts: the slider writes one length into it, and follows it otherwise."""
        try:
            lengths = parse_lengths(self.controls["lengths"].value)
        except ValueError:
            return  # said by `render`; the other controls wait until the text can be read again
        request, length = self.controls["request"], self.controls["length"]
        if name == "length":
            lengths[request.value] = length.value
            self.controls["lengths"].value = ", ".join(map(str, lengths))
            return
        options = [(label, i) for i, label in enumerate(svg.request_names(len(lengths)))]
        if list(request.options) != options:
            picked = min(request.value or 0, len(lengths) - 1)
            request.options = options
            request.value = picked
        length.max = max(1000, *lengths)
        length.value = lengths[request.value]

    def imagined(self, name: str, value: Any) -> dict[str, Any]:
        """A length counts once it stands in the text."""
        if name != "length":
            return super().imagined(name, value)
        lengths = parse_lengths(self.controls["lengths"].value)
        lengths[self.controls["request"].value] = value
        return self.values | {"length": value, "lengths": ", ".join(map(str, lengths))}

    def restore(self, name: str, value: Any) -> None:
        """The list of requests follows the text, so the text comes first."""
        if name == "length":
            return
        super().restore(name, value)
        if name == "lengths":
            self.settle(None)


def parse_lengths(line: str) -> list[int]:
    """Lengths from text such as "12, 15, 20". Raises ValueError that names the first word that is not one."""
    words = [word for word in re.split(r"[\s,;]+", line) if word]
    if not words:
        raise ValueError("write at least one output length, such as 12, 15, 800")
    if len(words) > MOST:
        raise ValueError(f"{len(words)} requests are too many to draw: write at most {MOST}")
    return [_length(word) for word in words]


def render(settings: dict[str, Any]) -> View:
    """Both schedulers on the lengths."""
    lengths = parse_lengths(settings["lengths"])
    picked = min(settings["request"] or 0, len(lengths) - 1)
    name = svg.request_names(len(lengths))[picked]
    both = run_both(lengths, settings["slots"])
    return View(svg.timelines(both, waits=name), _numbers(both, picked, name), _rows(both))


def _numbers(both: dict, picked: int, name: str) -> list[tuple[str, str]]:
    static, continuous = both["static"], both["continuous"]
    waits = [int(metrics.head_of_line_wait(s)[picked]) for s in (static, continuous)]
    spread = [float(n.max() / n.min()) for n in map(metrics.normalised_latency, (static, continuous))]
    return [
        (f"{static.steps:,} → {continuous.steps:,}", "steps, static → continuous"),
        (f"{100 * static.utilisation:.1f} % → {100 * continuous.utilisation:.1f} %", "utilisation"),
        (f"{waits[0]:,} → {waits[1]:,}", f"steps that {name} waits after its last token"),
        (f"{spread[0]:.1f} → {spread[1]:.1f}", "normalised latency, worst / best"),
    ]


def _rows(both: dict) -> list[list[str]]:
    """One row a request: when it is returned, and its steps per token."""
    static, continuous = both["static"], both["continuous"]
    per_token = {name: metrics.normalised_latency(s) for name, s in both.items()}
    header = ["request", "tokens", "static: returned at step", "steps per token",
              "continuous: returned at step", "steps per token"]
    return [header] + [
        [name, f"{static.lengths[i]:,}", f"{static.finish[i]:,}", f"{per_token['static'][i]:.1f}",
         f"{continuous.finish[i]:,}", f"{per_token['continuous'][i]:.1f}"]
        for i, name in enumerate(svg.request_names(len(static.lengths)))]


def _length(word: str) -> int:
    if not re.fullmatch(r"[+-]?\d+", word):
        raise ValueError(f"{word[:20]!r} is not a whole number of tokens: write lengths such as 12, 15, 800")
    if not 1 <= (length := int(word[:12])) <= LONGEST:
        raise ValueError(f"a length must be from 1 to {LONGEST:,} tokens, but there is {word[:20]}")
    return length
