"""What it takes to start a server: its command, environment, port and log."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labs.live import engines, models
from labs.live.diagnosis import ServerError, shorten
from labs.live.web import Answer, Unreachable, ask

HOST = "127.0.0.1"  # nothing here listens to anybody else
LOGS_KEPT = 10
DEFAULT_MODEL = {"vllm": "Qwen/Qwen2.5-0.5B-Instruct", "vllm-cpu": models.TINY, "simulated": "simulated"}
NAMES = {models.TINY: "tiny", models.REAL: "SmolLM2-135M-Instruct"}
# Prefix caching is on by default in vLLM; the course's predictions, and honest repeats of a measurement, want it off.
FLAGS = {"max_model_len": 2048, "enable_prefix_caching": False}
CPU_FLAGS = {"enforce_eager": True, "block_size": 32}
# The last of these brings /pause and /resume.
VLLM_ENV = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1"}
SITE = Path(__file__).with_name("site")


@dataclass(frozen=True)
class Launch:
    """A command, the name that it serves its model under, and what its environment has beside ours."""

    command: list[str]
    served: str
    env: dict[str, str]


def launch(
    choice: engines.Choice, model: str | None, port: int, flags: dict, switch: Path | None,
    say: Callable[[object], None],
) -> Launch:  # fmt: skip
    """How to start `choice`; a model that is not there yet is made first."""
    model = model or DEFAULT_MODEL[choice.engine]
    start = _simulated if choice.engine == "simulated" else _vllm
    return start(choice, model, {"host": HOST, "port": port}, flags, switch, say)


def _simulated(choice, model: str, place: dict, flags: dict, switch: Path | None, say) -> Launch:
    name = str(flags.get("served_model_name") or NAMES.get(model, model))
    words = engines.arguments(place | flags | {"served_model_name": name, "static": True if switch else None})
    env = _env(None) | {"PYTHONPATH": str(engines.ROOT)}
    return Launch([choice.python, "-m", "labs.live.simulated", *words], name, env)


def _vllm(choice, model: str, place: dict, flags: dict, switch: Path | None, say) -> Launch:
    folder = models.resolve(model, choice.python, say)
    local, cpu = Path(folder).is_dir(), choice.engine == "vllm-cpu"
    name = str(flags.get("served_model_name") or NAMES.get(model) or (Path(folder).name if local else folder))
    own = FLAGS | (CPU_FLAGS if cpu else {}) | dict(choice.preflight.flags)
    own |= {"load_format": "dummy"} if model == models.TINY else {}
    own |= {"scheduler_cls": engines.SCHEDULER, "async_scheduling": False} if switch else {}
    words = engines.arguments({"model": folder} | place | own | flags | {"served_model_name": name})
    env = _env(switch) | VLLM_ENV | dict(choice.preflight.env) | ({"HF_HUB_OFFLINE": "1"} if local else {})
    if cpu:
        env |= {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), env["PYTHONPATH"]]))
    return Launch([choice.python, "-m", "vllm.entrypoints.openai.api_server", *words], name, env)


def _env(switch: Path | None) -> dict[str, str]:
    """What every server gets. The kernel's own PYTHONPATH is not for another environment."""
    env = {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(engines.ROOT) if switch else "", "PYTHONHOME": ""}
    return env | ({"LABS_STATIC_SWITCH": str(switch)} if switch else {})


def log_file(named: str | os.PathLike | None, engine: str) -> Path:
    """A new and empty log: the one named, or one among the last few that are kept."""
    if named:
        path = Path(named).expanduser().absolute()
    else:
        folder = models.cache_folder() / "logs"
        old = sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
        for log in old[: max(0, len(old) - LOGS_KEPT + 1)]:
            log.unlink(missing_ok=True)
        path = folder / f"{engine}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def claim_port(asked: object = None) -> int:
    """The port asked for, if nobody has it, or a free one. Raises ServerError that says who has it."""
    with socket.socket() as own:
        if os.name == "posix":
            own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only one that is listened on counts as taken
        try:
            own.bind((HOST, int(asked or 0)))
        except OSError as error:
            raise ServerError(
                f"Port {asked} is taken by {_owner(int(asked))}.", "Leave port out, and a free one is picked."
            ) from error
        return own.getsockname()[1]


def _owner(port: int) -> str:
    """Who has a port, as far as it says."""
    with contextlib.suppress(Unreachable):
        if names := served_models(ask("GET", f"http://{HOST}:{port}/v1/models", timeout=3)):
            return f"another server, of the model {shorten(names[0], 80)}"
    return "another program"


def served_models(answer: Answer, field: str = "id") -> list[str]:
    """The models in an answer to GET /v1/models, or what it says of each in another field."""
    data = answer.json().get("data")
    return [str(one.get(field)) for one in data if isinstance(one, dict)] if isinstance(data, list) else []
