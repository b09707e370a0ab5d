"""The step player: a run of the engine, one step at a time, with the settings that shape it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import ipywidgets as w

from labs.engine import Run, run
from labs.explorers.panel import Panel, View, choice_slider, dropdown, flow, message_html, slider
from labs.knobs import POLICIES, SchedulerConfig
from labs.presets import PRESETS, Preset
from labs.svg.step import Replay, StepPictures, deed
from labs.workload import Request

MOST_STEPS, MOST_ROWS = 2000, 14
SPEEDS = [("slow", 1500), ("normal", 600), ("fast", 150)]  # milliseconds a step
KNOBS = ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "enable_chunked_prefill", "policy")
KNOB = "360px"  # so that two stand side by side in a narrow notebook
OWN = "your own requests"
FIRST = "two long prompts beside 180"  # the preset that a player opens with


def step_player(preset: str | Preset | tuple[Iterable[Request], SchedulerConfig] = FIRST) -> Panel:
    """A panel that plays a run step by step: one of the presets by name, or (requests, config) of your own.

    Arrivals are in steps. Raises ValueError for a name that is not a preset's.
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise ValueError(f"there is no preset {preset!r}: choose from {', '.join(map(repr, PRESETS))}")
        return StepPlayer(PRESETS[preset])
    return StepPlayer(preset if isinstance(preset, Preset) else own(*preset))


def own(requests: Iterable[Request], config: SchedulerConfig) -> Preset:
    """A preset from a reader's requests and settings, with sliders that reach well to both sides of them."""
    requests, seqs, budget, blocks = (tuple(requests), config.max_num_seqs, config.max_num_batched_tokens,
                                      config.num_gpu_blocks)
    budgets = {budget, *(max(1, round(budget * factor)) for factor in (0.125, 0.25, 0.5, 2, 4, 8))}
    return Preset(OWN, "", requests, config, (1, max(16, 2 * seqs)), tuple(sorted(budgets)),
                  (2, max(16, 2 * blocks), 1))


@dataclass(frozen=True)
class Played:
    """The pictures of a run, and a sentence for each request that was refused on arrival."""

    pictures: StepPictures
    refused: tuple[str, ...]


class StepPlayer(Panel):
    """Runs the engine once for each choice of settings; moving through the steps only draws."""

    FORESEEN = ("step",)  # a knob may change how many steps there are

    def __init__(self, preset: Preset) -> None:
        self.presets = ({} if preset.name in PRESETS else {preset.name: preset}) | PRESETS
        self._played = lru_cache(maxsize=8)(self._play)
        self.play = w.Play(value=0, min=0, max=1, step=1, interval=600)
        self.back, self.next = (w.Button(icon=icon, tooltip=tip, layout=w.Layout(width="44px")) for icon, tip in (
            ("step-backward", "previous step"), ("step-forward", "next step")))
        self.speed = w.Dropdown(value=600, options=SPEEDS, description="speed", layout=w.Layout(width="170px"))
        super().__init__({
            "preset": dropdown("preset", preset.name, [(name, name) for name in self.presets]),
            "max_num_seqs": slider("max_num_seqs", 1, 1, 2),
            "max_num_batched_tokens": choice_slider("max_num_batched_tokens", 1, [("1", 1)]),
            "num_gpu_blocks": slider("num_gpu_blocks", 2, 2, 3),
            "enable_chunked_prefill": dropdown("enable_chunked_prefill", True, [("on", True), ("off", False)]),
            "policy": dropdown("policy", POLICIES[0], [(name, name) for name in POLICIES]),
            "step": slider("step", 0, 0, 1),
        }, self.draw)
        self._picture.layout.max_width, self._picture.layout.overflow = "100%", "auto"
        self.reset_button.tooltip = "Back to the settings of this preset"
        # Not linked in the page: there, each step of a scrub would send two messages and take twice as long.
        step = self.controls["step"]
        self.play.observe(lambda change: setattr(step, "value", change["new"]), names="value")
        step.observe(lambda change: setattr(self.play, "value", change["new"]), names="value")
        self.play.value = step.value
        self.back.on_click(lambda _: self._move(-1))
        self.next.on_click(lambda _: self._move(1))
        self.speed.observe(lambda change: setattr(self.play, "interval", change["new"]), names="value")

    @property
    def preset(self) -> Preset:
        """The preset that is chosen."""
        return self.presets[self.controls["preset"].value]

    def layout_controls(self) -> w.Widget:
        """What runs above how it is played, which is nearest to the picture."""
        for name in KNOBS:
            self.controls[name].layout.width = KNOB
        step = self.controls["step"]
        step.style.description_width, step.layout = "36px", w.Layout(width="auto", flex="1 1 300px")
        return w.VBox([flow([self.controls["preset"], self.reset_button]),
                       flow([self.controls[name] for name in KNOBS]),
                       flow([self.play, self.back, self.next, self.speed, step])])

    def settle(self, name: str | None) -> None:
        """A new preset brings its own settings; new settings may take more or fewer steps."""
        if name == "step":
            return
        with self._quiet():  # a preset moves several knobs: nothing is run for those on the way
            self._settle(name in (None, "preset"))

    def _settle(self, begin: bool) -> None:
        """Bring the knobs (if a preset begins) and the number of steps into line."""
        if begin:
            self._load(self.preset)
        try:
            steps = len(self._played(*self._settings()).pictures.replay.records)
        except ValueError:
            return  # said by `draw`
        step, last = self.controls["step"], max(steps - 1, 0)
        at = min(self.preset.start if begin else step.value, last)
        for widget in (step, self.play):
            _range(widget, at, 0, last)

    def reset(self) -> None:
        """Back to the settings of the preset that is chosen, and to its first step to look at."""
        self.settle(None)
        self.render_now()

    def draw(self, settings: dict[str, Any]) -> View:
        """One step of the run under the present settings."""
        pictures = self._played(*self._settings()).pictures
        replay = pictures.replay
        if not replay.records:
            raise ValueError("no step ran: " + (self._refused() or "there are no requests"))
        record = replay.records[min(settings["step"], len(replay.records) - 1)]
        return View(pictures.picture(record), numbers(replay, record), table(replay, record), self._note())

    def static_html(self) -> str:
        """With the sentence on what to look for."""
        return message_html(self._note()) + super().static_html()

    def _load(self, preset: Preset) -> None:
        """Give the knobs a preset's ranges and values."""
        c, config = self.controls, preset.config
        _range(c["max_num_seqs"], config.max_num_seqs, *preset.seqs)
        _range(c["num_gpu_blocks"], config.num_gpu_blocks, *preset.blocks)
        _options(c["max_num_batched_tokens"], config.max_num_batched_tokens, preset.budgets)
        for name in ("enable_chunked_prefill", "policy"):
            c[name].value = getattr(config, name)

    def _settings(self) -> tuple[Any, ...]:
        return tuple(self.controls[name].value for name in ("preset", *KNOBS))

    def _play(self, preset: str, *knobs: Any) -> Played:
        """Run a preset under the knobs."""
        one = self.presets[preset]
        config = replace(one.config, **dict(zip(KNOBS, knobs, strict=True)))
        try:
            done: Run = run(one.requests, config, stops=one.stops, aborts=one.aborts, tables=True,
                            max_steps=MOST_STEPS)
        except RuntimeError as error:
            raise ValueError(f"this takes more than {MOST_STEPS:,} steps, too many to play: give it more KV blocks, "
                             "or fewer requests") from error
        refused = [f"{o.request.request_id} was {o.reason}" for o in done.outcomes.values()
                   if o.reason.startswith("refused")]
        return Played(StepPictures(Replay(done.records, one.requests, config)), tuple(refused))

    def _move(self, by: int) -> None:
        step = self.controls["step"]
        step.value = min(max(step.value + by, step.min), step.max)

    def _refused(self) -> str:
        """Who was refused on arrival, and why."""
        refused = self._played(*self._settings()).refused
        return refused[0] + (f" (and {len(refused) - 1:,} more)" if len(refused) > 1 else "") if refused else ""

    def _note(self) -> str:
        refused = self._refused()
        return " ".join(filter(None, [self.preset.sentence, f"{refused[0].upper()}{refused[1:]}." if refused else ""]))


def numbers(replay: Replay, record: Any) -> list[tuple[str, str]]:
    """The four numbers of a step."""
    config, used = replay.config, record.prefill_tokens + record.decode_tokens
    return [
        (f"{used:,} of {config.max_num_batched_tokens:,}",
         f"tokens: {record.prefill_tokens:,} prefill + {record.decode_tokens:,} decode"),
        (f"{len(record.running):,} of {config.max_num_seqs:,}", "running"),
        (f"{len(record.waiting):,}", "waiting"),
        (f"{replay.used(record):,} of {config.num_gpu_blocks - 1:,}", "KV blocks held"),
    ]


def table(replay: Replay, record: Any) -> list[list[str]]:
    """Who did what in a step."""
    rows = [["request", "in this step", "tokens", "computed", "output made", "KV blocks"]]
    for row in (*replay.running_rows(record, MOST_ROWS), *replay.waiting_rows(record, MOST_ROWS)):
        lost = row.kind == "preempted"
        name = row.ids[0] if len(row.ids) == 1 else f"{len(row.ids):,} sequences"
        words = deed(replay, record, row) + ("; finished" if row.finished and len(row.ids) == 1 else "")
        counts = (row.tokens, 0 if lost else row.computed + row.tokens, row.made + row.new, row.blocks)
        rows.append([name, words, *(f"{n:,}" for n in counts)])
    return rows


def _range(control: w.Widget, value: int, least: int, most: int, step: int = 1) -> None:
    """Give a slider, or what plays it, a range and a value.

    The page hears of each in turn, and a slider there that finds its value outside of its range, or between two of its
    steps, moves it and says so, as if the reader had: so on the way to the new range the value is inside of both.
    """
    control.step = 1
    control.min, control.max = min(control.min, least), max(control.max, most)
    control.value = value
    control.min, control.max, control.step = least, most, step


def _options(control: w.SelectionSlider, value: int, options: Iterable[int]) -> None:
    """Give a slider other values to choose from, in the same way."""
    control.index = 0
    control.options = [(f"{n:,}", n) for n in options]
    control.value = value
