"""Start a server, wait until it gives a token, and stop it so that nothing is left.

It is vLLM on a GPU or on a CPU, a simulated stand-in with the same HTTP API, or one that runs already, by its URL.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from secrets import token_urlsafe

from labs.live import engines
from labs.live.diagnosis import ServerError, shorten
from labs.live.launch import HOST, claim_port, launch, log_file, served_models
from labs.live.processes import Process, running, stop_all, tail
from labs.live.readiness import (
    Clock,
    Progress,
    Waiting,
    check_ours,
    check_runs,
    check_token,
    exit_soon,
    wait_until_well,
)  # fmt: skip
from labs.live.web import Answer, Unreachable, ask

__all__ = ["Server", "ServerError", "Waiting", "running", "start", "stop_all"]


class Server:
    """A server that answers; a context manager that stops it.

    `base_url` ends in /v1, `root_url` does not; `model` is the name to ask for; `simulated` says that it is no engine.
    """

    def __init__(
        self, engine: str, root_url: str, api_key: str | None, model: str, process: Process | None = None,
        switch: Path | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.root_url, self.api_key, self.model = engine, root_url, api_key, model
        self.base_url, self.simulated, self.version = f"{root_url}/v1", engine == "simulated", ""
        self._process, self._switch = process, switch
        if process:
            weakref.finalize(self, process.let_go).atexit = False  # at the end, stop_all waits for it too

    def __repr__(self) -> str:
        return f"<Server {self.engine} {self.version} with {self.model} at {self.root_url}>"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def log_path(self) -> Path | None:
        """Where its words are; None for a server that was not started here."""
        return self._process.log if self._process else None

    def log_tail(self, n: int = 20) -> str:
        """The last `n` lines of its log."""
        return "\n".join(tail(self.log_path).splitlines()[-n:]) if self.log_path else ""

    def stop(self) -> None:
        """Stop it and everything that it started; a server that was not started here is left alone."""
        if self._process:
            self._process.stop()
        if self._switch:
            _remove_switch(self._switch)

    def alive(self) -> bool:
        """Whether it runs and says that it is well; one that has no /health is well if it answers."""
        if self._process and self._process.exit_code() is not None:
            return False
        with contextlib.suppress(Unreachable):
            status = ask("GET", self.root_url + "/health", self.api_key, timeout=5).status
            return status == 200 or (status == 404 and self._process is None)
        return False

    def request(self, method: str, path: str, body: object = None, timeout: float = 30.0) -> Answer:
        """One request to a path under `root_url`. Raises ServerError, with the cause if it has ended."""
        try:
            return ask(method, self.root_url + path, self.api_key, body, timeout)
        except Unreachable as error:
            if self._process:
                if self._process.stopped:
                    raise ServerError("The server was stopped.", "Start it again.", self.log_path) from error
                exit_soon(self._process)
                check_runs(self._process, "while it was in use")
            raise ServerError(
                f"The server at {self.root_url} does not answer: {shorten(str(error))}.",
                "Start it again." if self._process else "Check the URL, and that it is up.", self.log_path,
            ) from error  # fmt: skip

    def metrics(self) -> str:
        """The text of GET /metrics."""
        answer = self.request("GET", "/metrics")
        if answer.status != 200:
            raise ServerError(f"The server shows no metrics (HTTP {answer.status}).", "Ask its owner where they are.")
        return answer.text

    def pause(self) -> None:
        """Hold all requests, running ones too, until `resume`; new ones queue up."""
        self._hold("/pause?mode=keep")

    def resume(self) -> None:
        """Go on."""
        self._hold("/resume")

    def _hold(self, path: str) -> None:
        answer = self.request("POST", path)
        if answer.status != 200:
            raise ServerError(
                f"The server cannot be paused and resumed (HTTP {answer.status}).",
                "Start it with start(), or set VLLM_SERVER_DEV_MODE=1 where it is started.", self.log_path,
            )  # fmt: skip

    @property
    def static(self) -> bool:
        """Whether it batches statically just now."""
        return self._switch is not None and self._switch.exists()

    @property
    def switchable(self) -> bool:
        """Whether `set_static` and `set_slots` can be used."""
        return self._switch is not None

    def set_static(self, static: bool) -> None:
        """Switch between static and continuous batching, without a restart, for a server started with static=True."""
        self._needs_switch()
        if self.simulated:
            self.request("POST", "/labs/static", {"on": static})
        if static:
            self._switch.touch()
        else:
            self._switch.unlink(missing_ok=True)

    def set_slots(self, slots: int | None) -> None:
        """Let at most so many requests run, or as many as it was started for (None), without a restart; as above."""
        self._needs_switch()
        if slots is not None and slots < 1:
            raise ServerError(f"It needs 1 slot or more, not {slots}.", "Give a number above 0, or None.")
        if self.simulated:
            self.request("POST", "/labs/static", {"on": self.static, "slots": slots})
        lowered = slots_file(self._switch)
        if slots is None:
            lowered.unlink(missing_ok=True)
            return
        part = lowered.with_suffix(".part")  # the engine reads it in every step: it must never see half a number
        part.write_text(str(slots), encoding="ascii")
        part.replace(lowered)

    def _needs_switch(self) -> None:
        if self._switch is None:
            raise ServerError("This server always batches continuously.", "Start it with static=True to switch.")


def start(
    engine: str = "auto", model: str | None = None, *, timeout: float = 600.0, progress: Progress | None = None,
    python: str | os.PathLike | None = None, log_path: str | os.PathLike | None = None, static: bool = False,
    env: Mapping[str, str] | None = None, **flags: object,
) -> Server:  # fmt: skip
    """Start a server, or find the one at a URL, and give it once a token has come from it.

    `engine` is "vllm" (a GPU), "vllm-cpu", "simulated", "auto" for the first of these that is at hand, or a URL.
    `model` is "tiny" (random weights), "smollm2", a folder or a hub's name. Other settings are vLLM's, by their
    Python names: max_num_seqs=8. `static=True` lets batching be switched with `set_static`, and starts static.
    Raises ServerError, and leaves nothing running, if no token has come within `timeout` seconds, or at once if the
    server ends; the first use of a small model makes it, which takes a minute more.
    """
    clock = Clock(timeout, progress)
    key = str(flags.pop("api_key", None) or "")
    engine = str(engine)
    if engines.is_address(engine):
        return _connect(engine, model, key or os.environ.get("OPENAI_API_KEY"), clock)
    if flags.pop("host", HOST) not in (HOST, "localhost"):
        raise ServerError("The server would listen beyond this machine.", "Leave host out.")
    if flags.get("trust_remote_code"):
        raise ServerError("The server would run code that comes with the model.", "Choose a model that needs none.")
    choice = engines.choose(engine, python)
    port, key = claim_port(flags.pop("port", None)), key or token_urlsafe(24)
    log = log_file(log_path, choice.engine)
    switch = log.with_suffix(".static") if static else None
    how = launch(choice, model, port, flags, switch, clock.say)
    if switch:
        switch.touch()
    secret = {"VLLM_API_KEY": key}  # not in the command, which everybody on the machine may read
    process = None
    try:
        process = Process(how.command, log=log, env=how.env | secret | dict(env or {}), cwd=log.parent)
        server = Server(choice.engine, f"http://{HOST}:{port}", key, how.served, process, switch)
        wait_until_well(process, server.root_url, clock)
        check_ours(process, server.root_url, key, how.served)
        check_token(process, server.root_url, key, how.served, clock)
        server.version = _version(server)
    except BaseException:  # an interrupted cell, too
        if process:
            process.stop()
        if switch:
            _remove_switch(switch)
        raise
    clock.say("ready")
    return server


def slots_file(switch: Path) -> Path:
    """The file beside the switch that holds a lower cap."""
    return switch.with_name(switch.name + ".slots")


def _remove_switch(switch: Path) -> None:
    for file in (switch, slots_file(switch)):
        file.unlink(missing_ok=True)


def _connect(url: str, model: str | None, key: str | None, clock: Clock) -> Server:
    """The server at a URL, once it lists the model and gives a token."""
    if not url.startswith(("http://", "https://")):
        raise ServerError(f"{shorten(url)} is no address of a server.", "Give one that begins http:// or https://.")
    server = Server("url", url.rstrip("/").removesuffix("/v1"), key, model or "")
    listed = server.request("GET", "/v1/models", timeout=max(1.0, min(30.0, clock.left)))
    if listed.status in (401, 403):
        raise ServerError(f"{url} refuses the key (HTTP {listed.status}).", "Give it as api_key=.")
    names = served_models(listed)
    if not names or (model and model not in names):
        has = f"serves {shorten(', '.join(names), 120)}, not {model}" if names else f"lists none (HTTP {listed.status})"
        raise ServerError(f"The model was not found: {url} {has}.", "Name one that it serves.")
    server.model = model or names[0]
    server.simulated = "simulated" in served_models(listed, "owned_by")
    server.version = _version(server)
    check_token(None, server.root_url, key, server.model, clock)
    clock.say("ready")
    return server


def _version(server: Server) -> str:
    """What it says its version is; nothing, if it says nothing."""
    with contextlib.suppress(ServerError):
        return str(server.request("GET", "/version").json().get("version") or "")
    return ""
