"""The sigma sweep: utilisation against the spread of lengths, and where a workload of yours lies on it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import ipywidgets as w
import numpy as np

from labs import metrics, svg
from labs.explorers.panel import MOST, Missing, Panel, View, dropdown, flow, show_if, slider, text
from labs.explorers.simulator import ARRIVALS, LOAD, OVERLOADED
from labs.sweep import Row, compare, compare_lognormal
from labs.words import many
from labs.workload import (
    MEASURED,
    fit_lognormal,
    lognormal_lengths,
    measured,
    measured_lengths,
    read_lengths,
    read_metrics_lengths,
)

SUFFIXES = (".csv", ".jsonl", ".json", ".ndjson", ".txt", ".prom")
LARGEST = 10_000_000  # bytes of an uploaded file
DRAWN = 5000  # requests drawn from a measured workload, and the most that are taken from a log
WORKLOADS = [("lognormal, 500 requests", "lognormal"), *((measured(name).title, name) for name in MEASURED),
             ("your own file or /metrics page", "own")]


def sigma_sweep() -> Panel:
    """A panel for utilisation against sigma, with the law, and a workload of your choice marked on it."""
    return SigmaSweep()


class SigmaSweep(Panel):
    """Keeps the curves drawn last, which sigma does not change, and the file that was read last."""

    def __init__(self) -> None:
        self._curve = lru_cache(maxsize=16)(_curve)
        self._read = lru_cache(maxsize=2)(read_own)
        super().__init__({
            "workload": dropdown("workload", "lognormal", WORKLOADS),
            "sigma": slider("sigma: spread of ln(tokens)", 1.1, 0.0, 2.0, 0.05),
            "slots": slider("slots", 32, 1, 256),
            "arrivals": dropdown("requests arrive", "backlog", ARRIVALS),
            "load": slider(LOAD, 0.5, 0.1, 1.2, 0.05),
            "seed": slider("seed of the random numbers", 0, 0, 99),
            "file": w.FileUpload(description="CSV or JSONL", accept=",".join(SUFFIXES), multiple=False),
            "column": text("column of output lengths", "output_tokens"),
            "pasted": w.Textarea(placeholder="or paste the text of a vLLM /metrics page",
                                 layout=w.Layout(width="430px", max_width=MOST, height="60px")),
        }, self.draw)

    def layout_controls(self) -> w.Widget:
        """The controls for a file stand apart: they matter only for one workload."""
        own = ("file", "column", "pasted")
        return w.VBox([flow([c for n, c in self.controls.items() if n not in own] + [self.reset_button]),
                       flow([self.controls[n] for n in own])])

    def settle(self, name: str | None) -> None:
        """Only what matters for the workload can be moved."""
        self.controls["load"].disabled = self.controls["arrivals"].value == "backlog"
        self.controls["sigma"].disabled = self.controls["workload"].value != "lognormal"
        show_if(not self.controls["sigma"].disabled, self.controls["sigma"])  # a measured workload has its own
        show_if(self.controls["workload"].value == "own", *(self.controls[n] for n in ("file", "column", "pasted")))

    def restore(self, name: str, value: Any) -> None:
        """A file that was uploaded stays: ipywidgets 7 cannot take it back."""
        if name != "file":
            super().restore(name, value)

    def draw(self, settings: dict[str, Any]) -> View:
        """The curve for these slots and this load, and the workload's own point."""
        slots, seed = settings["slots"], settings["seed"]
        load = None if settings["arrivals"] == "backlog" else settings["load"]
        name, lengths, credit = self._workload(settings)
        point = compare(lengths, slots, load, seed)
        sigma = settings["sigma"] if name is None else fit_lognormal(lengths)[1]
        here = {**point, "sigma": sigma} | ({"name": name} if name else {})
        curve = self._curve(slots, load, seed, len(lengths))
        note = _described(lengths, sigma) if name is None else (
            f"{name}: {_described(lengths, sigma)} {metrics.shape(lengths, slots).verdict.capitalize()}. {credit}")
        return View(svg.sweep_curve(curve, here, load=load), _numbers(point, load), _rows(point), note)

    def _workload(self, settings: dict[str, Any]) -> tuple[str | None, np.ndarray, str]:
        """(name, lengths, credit); no name for the lognormal, which is on the curve itself."""
        kind, seed = settings["workload"], settings["seed"]
        if kind == "lognormal":
            return None, lognormal_lengths(500, 4.2, settings["sigma"], seed), ""
        if kind != "own":
            return measured(kind).title, measured_lengths(kind, DRAWN, seed), f"Data: {measured(kind).credit}."
        file = uploaded(settings["file"])
        if not file and not settings["pasted"].strip():
            raise Missing("choose a CSV or JSONL file of up to 10 MB with a column of output lengths, or paste a "
                             "/metrics page; read_lengths takes larger files")
        if file and len(file[1]) > LARGEST:
            size = len(file[1]) / 1e6
            raise ValueError(f"{file[0]} has {size:.1f} MB, and the panel takes {LARGEST / 1e6:.0f}: read it "
                             f"with read_lengths in a cell, or choose a part of it")
        lengths, source = self._read(file, settings["column"].strip(), settings["pasted"])
        return "your workload", lengths, f"Read from {source}."


def _curve(slots: int, load: float | None, seed: int, n: int) -> list[Row]:
    """The sweep with as many requests a point as the workload has: a short run would look worse only for its drain."""
    sigmas = [i / 10 for i in range(0, 21, 1 if n <= 1000 else 2)]
    return [{"sigma": sigma, **compare_lognormal(sigma, slots, n, load=load, seed=seed)} for sigma in sigmas]


def uploaded(value: Any) -> tuple[str, bytes] | None:
    """(name, content) of the last file in a FileUpload's value: a dict in ipywidgets 7, a tuple in 8."""
    if not value:
        return None
    if isinstance(value, Mapping):
        name, item = list(value.items())[-1]
        return str(name), bytes(item["content"])
    return str(value[-1]["name"]), bytes(value[-1]["content"])


def read_own(file: tuple[str, bytes] | None, column: str, pasted: str) -> tuple[np.ndarray, str]:
    """(lengths, where from) from pasted /metrics text or, if there is none, an uploaded file."""
    if pasted.strip():
        log = read_metrics_lengths(pasted, DRAWN)
    elif file[0].lower().endswith((".txt", ".prom")):
        log = read_metrics_lengths(file[1].decode("utf-8", "replace"), DRAWN)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(file[0]).name
            path.write_bytes(file[1])
            log = read_lengths(path, column or "output_tokens", keep=DRAWN)
    return log.lengths, log.source


def _described(lengths: np.ndarray, sigma: float) -> str:
    """A workload's lengths in a sentence."""
    p50, p99 = (metrics.percentile(lengths, q) for q in (0.5, 0.99))
    return (f"{many(len(lengths), 'request')} of {lengths.mean():,.1f} tokens on average: "
            f"p50 {p50:,.0f}, p99 {p99:,.0f}, "
            f"CV {lengths.std() / lengths.mean():.2f}, sigma {sigma:.2f}.")


def _numbers(point: Row, load: float | None) -> list[tuple[str, str]]:
    """Utilisation and gain."""
    shown = [(_percent(point["static_utilisation"]), "utilisation, static"),
             (_percent(point["continuous_utilisation"]), "utilisation, continuous")]
    if load is None:
        return [*shown, (_percent(point["law"]), "the law: E[L] / E[longest of the group]"),
                (f"{point['gain']:.1f}x", "gain: times fewer steps")]
    ratio = point["p99_ratio"]
    return [*shown, (_percent(point["law"]), "the law: the highest load that static can keep up with"),
            (f"{ratio:.1f}x" if ratio == ratio else "no steady state", "times lower p99")]


def _rows(point: Row) -> list[list[str]]:
    """A row a figure, a column a scheduler."""
    def both(label: str, key: str, form: str) -> list[str]:
        values = [point[f"{name}_{key}"] for name in ("static", "continuous")]
        return [label, *(format(v, form) if v == v else OVERLOADED for v in values)]

    return [
        ["", "static", "continuous"],
        both("steps", "steps", ",d"),
        both("normalised latency p50 (steps per token)", "p50", ",.1f"),
        both("normalised latency p99", "p99", ",.1f"),
        ["highest load it can keep up with", f"{point['law']:.3f}", "1.000"],
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
