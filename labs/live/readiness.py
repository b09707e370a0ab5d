"""Wait for a server with a deadline, and believe it only once a token has come from the one that was started."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from labs.live.diagnosis import ServerError, explain_end, shorten
from labs.live.launch import served_models
from labs.live.processes import Process, last_line, tail
from labs.live.web import Answer, Unreachable, ask

TOKEN_SECONDS = 120.0  # at most, for the first token of a server that says it is ready
POLL, TELL = 0.2, 0.5  # seconds between two looks, and between two words to the caller
LINGER = 5.0  # seconds that an end may take, once it is in sight
WHOLE = 1 << 22  # bytes of a log that are searched for the cause of a failure
GIVEN_UP = "Engine core initialization failed"  # from here on it only takes its time to end


@dataclass(frozen=True)
class Waiting:
    """What `progress` is called with while a server starts; as text, one line."""

    elapsed: float
    timeout: float
    phase: str
    last_line: str = ""

    def __str__(self) -> str:
        said = f" | {shorten(self.last_line, 100)}" if self.last_line else ""
        return f"{self.elapsed:.0f} s of at most {self.timeout:.0f}: {self.phase}{said}"


Progress = Callable[[Waiting], None]


@dataclass
class Clock:
    """The deadline, and who is told of the time."""

    timeout: float
    progress: Progress | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.timeout - self.elapsed

    def say(self, phase: object, line: str = "") -> None:
        """Tell the caller, who may not want to be told."""
        if self.progress:
            self.progress(Waiting(self.elapsed, self.timeout, str(phase), line))


def wait_until_well(process: Process, root_url: str, clock: Clock) -> None:
    """Return once it says that it is well. Raises ServerError if it ends, or once the time is over."""
    told = -TELL
    while not _well(root_url):
        check_runs(process, "before it was ready")
        end = tail(process.log)
        if GIVEN_UP in end:
            raise explain_end(tail(process.log, WHOLE), exit_soon(process), process.log, "before it was ready")
        last = last_line(end)
        if clock.left <= 0:
            said = f"; its last words: {shorten(last)}." if last else " and has said nothing."
            raise ServerError(
                f"The server was not ready after {clock.timeout:.0f} s{said}",
                "Give it a longer timeout: a first start also fetches and compiles.", process.log,
            )  # fmt: skip
        if clock.elapsed - told >= TELL:
            told = clock.elapsed
            clock.say("waiting for the server", last)
        time.sleep(max(0.0, min(POLL, clock.left)))


def _well(root_url: str) -> bool:
    with contextlib.suppress(Unreachable):
        return ask("GET", root_url + "/health", timeout=2).status == 200
    return False


def check_runs(process: Process, when: str) -> None:
    """Raise ServerError, with the cause that its log gives, if it has ended."""
    if (code := process.exit_code()) is not None:
        raise explain_end(tail(process.log, WHOLE), code, process.log, when)


def check_ours(process: Process, root_url: str, key: str, served: str) -> None:
    """The one that answers must be the one started: only that knows the key, and refuses all others."""
    wrong = _models(process, root_url, f"not-{key}")
    right = _models(process, root_url, key)
    if wrong.status == 401 and right.status == 200 and served in served_models(right):
        return
    names = served_models(right) or served_models(wrong)
    what = f"serves {shorten(', '.join(names), 80)}" if names else f"answers HTTP {right.status}"
    raise ServerError(
        f"What answers at {root_url} is not the server that was started: it {what}.",
        "Leave port out, and a free one is picked.", process.log,
    )  # fmt: skip


def _models(process: Process, root_url: str, key: str) -> Answer:
    try:
        return ask("GET", f"{root_url}/v1/models", key)
    except Unreachable as error:
        exit_soon(process)
        check_runs(process, "before it was ready")
        raise ServerError("The server does not say what it serves.", "Start it again.", process.log) from error


def check_token(
    process: Process | None, root_url: str, key: str | None, model: str, clock: Clock, chat: bool = False
) -> None:
    """One token must come: an engine may be dead behind a server that says it is well."""
    log = process.log if process else None
    clock.say("waiting for a first token", last_line(tail(log)) if log else "")
    wait = max(1.0, min(TOKEN_SECONDS, clock.left))
    body: dict[str, object] = {"model": model, "max_tokens": 1, "temperature": 0}
    body |= {"messages": [{"role": "user", "content": "One"}]} if chat else {"prompt": "One"}
    try:
        answer = ask("POST", f"{root_url}/v1/{'chat/completions' if chat else 'completions'}", key, body, wait)
    except Unreachable as error:
        if process:
            exit_soon(process)
            check_runs(process, "before its first token")
        raise ServerError(
            f"The server says that it is well, but no token came ({shorten(str(error))}): its engine may be dead.",
            "Start it again.", log,
        ) from error  # fmt: skip
    if answer.status == 404 and not chat and process is None:
        check_token(process, root_url, key, model, clock, chat=True)
    elif answer.status != 200 or not answer.json().get("choices"):
        raise ServerError(
            f"The server says that it is well, but gives no token: HTTP {answer.status}, {shorten(answer.text)}.",
            "Start it again." if log else "Ask its owner.", log,
        )  # fmt: skip


def exit_soon(process: Process) -> int | None:
    """Its exit code, if it ends within a moment: a connection breaks a little earlier than the process ends."""
    until = time.monotonic() + LINGER
    while process.exit_code() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process.exit_code()
