"""The simulator: any number of requests with lognormal lengths, all there at once or arriving at a load."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from labs import metrics, svg
from labs.explorers.panel import Panel, View, choice_slider, dropdown, slider
from labs.slots import Schedule, arrival_rate
from labs.sweep import run_both
from labs.workload import lognormal_lengths, poisson_arrivals

REQUESTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
ARRIVALS = [("all at step 0 (a backlog)", "backlog"), ("one by one (Poisson)", "poisson")]
LOAD = "load (1 = continuous is full)"
OVERLOADED = "overloaded: no steady state"


def simulator() -> Panel:
    """A panel for both schedulers on a workload of your making: slots in use over time, utilisation, latency."""
    return Simulator()


class Simulator(Panel):
    """Keeps the last few workloads, so that moving another slider need not draw them again."""

    def __init__(self) -> None:
        self._lengths = lru_cache(maxsize=2)(lognormal_lengths)
        super().__init__({
            "requests": choice_slider("requests", 500, [(f"{n:,}", n) for n in REQUESTS]),
            "slots": slider("slots", 32, 1, 256),
            "mu": slider("mu: mean of ln(tokens)", 4.2, 1.0, 7.0, 0.1),
            "sigma": slider("sigma: spread of ln(tokens)", 1.1, 0.0, 2.0, 0.05),
            "seed": slider("seed of the random numbers", 0, 0, 99),
            "arrivals": dropdown("requests arrive", "backlog", ARRIVALS),
            "load": slider(LOAD, 0.5, 0.1, 1.2, 0.05),
        }, self.draw)

    def settle(self, name: str | None) -> None:
        """A backlog has no load."""
        self.controls["load"].disabled = self.controls["arrivals"].value == "backlog"

    def draw(self, settings: dict[str, Any]) -> View:
        """Both schedulers on the workload that the settings describe."""
        lengths = self._lengths(settings["requests"], settings["mu"], settings["sigma"], settings["seed"])
        load = None if settings["arrivals"] == "backlog" else settings["load"]
        slots = settings["slots"]
        arrivals = load and poisson_arrivals(len(lengths), arrival_rate(load, lengths, slots), settings["seed"])
        both = run_both(lengths, slots, arrivals)
        law = metrics.expected_static_utilisation(lengths, slots)
        over = {name: load is not None and load >= limit for name, limit in (("static", law), ("continuous", 1.0))}
        return View(svg.occupancies(both), _numbers(both, over, load), _rows(both, over, law), _note(over, load, law))


def _numbers(both: dict[str, Schedule], over: dict[str, bool], load: float | None) -> list[tuple[str, str]]:
    static, continuous = both["static"], both["continuous"]
    p99 = {name: _quantile(s, 0.99, over[name]) for name, s in both.items()}
    shown = [(f"{static.steps:,} → {continuous.steps:,}", "steps, static → continuous"),
             (f"{_percent(static.utilisation)} → {_percent(continuous.utilisation)}", "utilisation"),
             (f"{_short(p99['static'])} → {_short(p99['continuous'])}", "p99 normalised latency, steps per token")]
    if load is None:
        return [*shown, (f"{static.steps / continuous.steps:.1f}x", "gain: fewer steps with continuous batching")]
    gain = p99["static"] / p99["continuous"]
    return [*shown, ("no steady state" if math.isnan(gain) else f"{gain:.1f}x", "gain: lower p99 normalised latency")]


def _rows(both: dict[str, Schedule], over: dict[str, bool], law: float) -> list[list[str]]:
    """What a scheduler does, one column each."""
    def row(label: str, value) -> list[str]:
        return [label, *(value(name, s) for name, s in both.items())]

    def latency(name: str, s: Schedule, value) -> str:
        return OVERLOADED if over[name] else value(s)

    return [
        ["", "static", "continuous"],
        row("normalised latency p50 (steps per token)", lambda n, s: _long(_quantile(s, 0.5, over[n]))),
        row("normalised latency p99", lambda n, s: _long(_quantile(s, 0.99, over[n]))),
        row("normalised latency, mean", lambda n, s: latency(n, s, lambda s: f"{metrics.normalised_latency(s).mean():,.1f}")),
        row("— of it queueing for a slot", lambda n, s: latency(n, s, lambda s: f"{metrics.queueing(s).mean():,.1f}")),
        row("— of it in a slot", lambda n, s: latency(n, s, lambda s: f"{metrics.service(s).mean():,.1f}")),
        row("utilisation without warm-up and drain", lambda n, s: _percent(metrics.steady_utilisation(s))),
        row("drain (steps)", lambda n, s: f"{metrics.drain(s):,}"),
        ["the law: highest utilisation, and load", _percent(law), "100.0 %"],
    ]


def _note(over: dict[str, bool], load: float | None, law: float) -> str:
    named = [name for name, is_over in over.items() if is_over]
    if load is None or not named:
        return ""
    limits = {"static": law, "continuous": 1.0}
    return "; ".join(f"{name} is overloaded: work arrives at load {load:.2f} and it can do {limits[name]:.2f}, so its "
                     "queue has no steady state" for name in named) + "."


def _quantile(schedule: Schedule, q: float, overloaded: bool) -> float:
    """A percentile of normalised latency; NaN where it would only say how long the run was."""
    return math.nan if overloaded else metrics.percentile(metrics.normalised_latency(schedule), q)


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.1f} %"


def _short(value: float) -> str:
    return "overloaded" if math.isnan(value) else f"{value:,.1f}"


def _long(value: float) -> str:
    return OVERLOADED if math.isnan(value) else f"{value:,.1f}"
