"""Runs kept in a file: what was measured, on what and when, so that every picture can be drawn again with no server.

The chunks' times are kept to 0.1 ms. A prompt of tokens is kept whole, so that repeated ones can still be told.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from labs.live.bench import RECORDED, Run
from labs.live.measurement import NAN, Ask, Measurement, Row

FOLDER = Path(__file__).resolve().parents[1] / "data" / "recordings"
FORMAT = "continuous-batching recording 1"
TICK = 1e-4  # seconds
NEEDED = ("made", "machine", "command")
_PLAIN = ("name", "slots", "static", "steps", "queued", "hits", "asked", "times", "running", "waiting")
_OF_RUN = ("wall", "started_at", "mode", "engine", "model", "simulated", "interrupted", "held")
_OF_ASK = ("request_id", "prompt", "max_tokens", "arrival", "ignore_eos", "chat")
_OF_ROW = ("completion_tokens", "prompt_tokens", "finish_reason", "status", "error", "text", "warm_up")
_TIMES = ("scheduled", "sent", "done")
_MAY_BE_NAN = {"steps", "queued", "hits", "asked", "wall"}


@dataclass(frozen=True)
class Recording:
    """Runs by name, and `about`: when they were made, on which machine, by which command, with which versions."""

    about: Mapping[str, object]
    runs: Mapping[str, Run]

    def __post_init__(self) -> None:
        lacks = [name for name in NEEDED if not self.about.get(name)]
        if lacks:
            raise ValueError(f"a recording says when, where and how it was made: {', '.join(lacks)} is missing")


def machine() -> str:
    """This machine, as far as it matters to a reader of the numbers."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"


def save(path: Path, runs: Mapping[str, Run], command: str, **more: object) -> Recording:
    """Write runs, each of which says who answered. Raises ValueError for none, or for one that was only replayed."""
    if not runs or any(run.recorded for run in runs.values()):
        raise ValueError("there is no run to record" if not runs else "a run that was replayed can't be recorded anew")
    about = {"made": datetime.now(UTC).date().isoformat(), "machine": machine(), "command": command} | more
    recording = Recording(about, dict(runs))
    held = {"format": FORMAT, "about": dict(about), "runs": {name: _of_run(run) for name, run in runs.items()}}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(_lines(held), encoding="utf-8")
    part.replace(path)
    return recording


def load(name: str | Path = "vllm-cpu") -> Recording:
    """The recording in a file, or the course's own of this name. Raises ValueError for a file that is none."""
    path = Path(name) if isinstance(name, Path) or str(name).endswith(".json") else FOLDER / f"{name}.json"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            raise ValueError(f"its format is {held['format']!r}, not {FORMAT!r}")
        about = held["about"]
        return Recording(about, {name: _to_run(run, about) for name, run in held["runs"].items()})
    except FileNotFoundError:
        there = ", ".join(sorted(file.stem for file in path.parent.glob("*.json"))) or "none"
        raise ValueError(f"there is no recording {path.name}: there is {there}") from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{path.name} is not a recording: {type(error).__name__} {error}") from error


# ---- runs to and from plain values ----------------------------------------------------------------------------------

def _of_run(run: Run) -> dict[str, object]:
    measurement = run.measurement
    whole = {name: getattr(run, name) for name in _PLAIN} | {"source": run.source}
    whole |= {"peak": measurement.peak_in_flight} | {name: getattr(measurement, name) for name in _OF_RUN}
    return whole | {"rows": [_of_row(row) for row in measurement.rows]}


def _to_run(held: Mapping, about: Mapping) -> Run:
    rows = tuple(map(_to_row, held["rows"]))
    measurement = Measurement(rows, held["peak"], **{name: _value(name, held) for name in _OF_RUN})
    plain = {name: _value(name, held) for name in _PLAIN}
    series = {name: tuple(map(_number, plain[name])) for name in ("times", "running", "waiting")}
    source = f"{RECORDED}{about['made']}: {held['source']}"
    return Run(measurement=measurement, source=source, **plain | series)


def _of_row(row: Row) -> dict[str, object]:
    ticks = [round(time / TICK) for time, _ in row.chunks]
    gaps = [ticks[0], *(b - a for a, b in zip(ticks, ticks[1:], strict=False))] if ticks else []
    counts = [count for _, count in row.chunks]
    ask = {name: getattr(row.ask, name) for name in _OF_ASK}
    plain = {name: getattr(row, name) for name in _OF_ROW} | {name: getattr(row, name) for name in _TIMES}
    return ask | plain | {"gaps": gaps, "counts": None if set(counts) == {1} else counts}


def _to_row(held: Mapping) -> Row:
    prompt = held["prompt"] if isinstance(held["prompt"], str) else tuple(held["prompt"])
    ask = Ask(**{name: held[name] for name in _OF_ASK} | {"prompt": prompt})
    at, times = 0, []
    for gap in held["gaps"]:
        at += gap
        times.append(at * TICK)
    counts = held["counts"] or [1] * len(times)
    first, last = (times[0], times[-1]) if times else (NAN, NAN)
    row = Row(ask, first=first, last=last, chunks=tuple(zip(times, counts, strict=True)),
              **{name: held[name] for name in _OF_ROW})
    return replace(row, **{name: _number(held[name]) for name in _TIMES})


def _value(name: str, held: Mapping) -> object:
    return _number(held[name]) if name in _MAY_BE_NAN else held[name]


def _number(value: object) -> object:
    """None stands for NaN in the file: JSON has no other."""
    return NAN if value is None else value


def _plain(value: object) -> object:
    """What JSON can hold: NaN as null, times rounded to a tick."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else round(value, 4)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _lines(held: Mapping) -> str:
    """JSON with a line for each request, so that a change can be read."""
    runs = []
    for name, run in held["runs"].items():
        rows = ",\n".join(json.dumps(_plain(row), ensure_ascii=True, separators=(",", ":")) for row in run["rows"])
        head = json.dumps(_plain({key: value for key, value in run.items() if key != "rows"}), separators=(",", ":"))
        runs.append(f'{json.dumps(name)}: {head[:-1]},"rows":[\n{rows}]}}')
    head = json.dumps({"format": held["format"], "about": _plain(held["about"])}, indent=1)
    return f'{head[:-2]},\n "runs": {{\n' + ",\n".join(runs) + "\n}}\n"
