"""The simulator: any number of requests with lognormal lengths, all there at once or arriving at a load."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
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
        limits = {"static": law, "continuous": 1.0}
        results = [measure(both[name], load, limit) for name, limit in limits.items()]
        return View(svg.occupancies(both), _numbers(*results, load), _rows(results), _note(results, load))


@dataclass(frozen=True)
class Outcome:
    """What one scheduler did. Latencies are normalised, in steps per output token, and NaN if it is overloaded.

    `limit` is the highest utilisation that it can sustain, and so the highest load.
    """

    schedule: Schedule
    limit: float
    overloaded: bool
    p50: float
    p99: float
    mean: float
    queueing: float
    service: float


def measure(schedule: Schedule, load: float | None, limit: float) -> Outcome:
    """A schedule's outcome. With no load (a backlog) there is no overload: all work is there from the start."""
    if load is not None and load >= limit:  # the rule of `metrics.overloaded`, for a limit that is known already
        return Outcome(schedule, limit, True, *[math.nan] * 5)
    latency = metrics.normalised_latency(schedule)
    return Outcome(schedule, limit, False, metrics.percentile(latency, 0.5), metrics.percentile(latency, 0.99),
                   *(float(part.mean()) for part in (latency, metrics.queueing(schedule), metrics.service(schedule))))


def _numbers(static: Outcome, continuous: Outcome, load: float | None) -> list[tuple[str, str]]:
    before, after = static.schedule, continuous.schedule
    shown = [(f"{before.steps:,} → {after.steps:,}", "steps, static → continuous"),
             (f"{_percent(before.utilisation)} → {_percent(after.utilisation)}", "utilisation"),
             (f"{_latency(static.p99, 'overloaded')} → {_latency(continuous.p99, 'overloaded')}",
              "p99 normalised latency (steps per token)")]
    if load is None:
        return [*shown, (f"{before.steps / after.steps:.1f}x", "gain: times fewer steps")]
    gain = static.p99 / continuous.p99
    return [*shown, (f"{gain:.1f}x" if gain == gain else "no steady state", "times lower p99")]


def _rows(results: list[Outcome]) -> list[list[str]]:
    """A row a figure, a column a scheduler."""
    def row(label: str, value: Callable[[Outcome], str]) -> list[str]:
        return [label, *map(value, results)]

    return [
        ["", *(r.schedule.scheduler for r in results)],
        row("normalised latency p50 (steps per token)", lambda r: _latency(r.p50)),
        row("normalised latency p99", lambda r: _latency(r.p99)),
        row("normalised latency, mean", lambda r: _latency(r.mean)),
        row("— of it queueing for a slot", lambda r: _latency(r.queueing)),
        row("— of it in a slot", lambda r: _latency(r.service)),
        row("utilisation without warm-up and drain", lambda r: _percent(metrics.steady_utilisation(r.schedule))),
        row("drain (steps)", lambda r: f"{metrics.drain(r.schedule):,}"),
        row("highest load it can keep up with", lambda r: f"{r.limit:.3f}"),
    ]


def _note(results: list[Outcome], load: float | None) -> str:
    """Which scheduler is overloaded, and by how much."""
    return " ".join(f"{r.schedule.scheduler.capitalize()} is overloaded: work arrives at load {load:.2f} and it can "
                    f"sustain {r.limit:.2f}, so its queue grows for ever." for r in results if r.overloaded)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share == share else "no such window"


def _latency(value: float, overloaded: str = OVERLOADED) -> str:
    return f"{value:,.1f}" if value == value else overloaded
