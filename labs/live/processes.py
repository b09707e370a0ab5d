"""Start a command under a supervisor, and end it surely: nothing that it started is left."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("supervisor.py")
GRACE = 10.0  # seconds that a server has to end by itself once it is asked
SLACK = 15.0  # and that the supervisor has on top, to kill what is left
TAIL = 64 * 1024

_running: set[Process] = set()


class Process:
    """A command that runs under a supervisor; its output is in `log`."""

    def __init__(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str], cwd: Path, grace: float | None = None
    ) -> None:
        self.log, self.grace, self.stopped = log, GRACE if grace is None else grace, False
        self.owner, self._lock = os.getpid(), threading.RLock()
        running()  # collects those that have ended meanwhile
        self._temporary = tempfile.mkdtemp(prefix="labs-")
        self._supervisor = self._supervise()
        _running.add(self)
        try:
            order = dict(command=list(command), env=dict(env), cwd=str(cwd), log=str(log), grace=self.grace)
            self._say(json.dumps(order | {"temporary": self._temporary}))
            self.pid = int(self._supervisor.stdout.readline() or 0)  # 0: it could not be started, and the log says why
        except BaseException:
            self.stop()
            raise

    def _supervise(self) -> subprocess.Popen:
        """Start the supervisor: isolated, so that it starts fast and heeds nothing in the environment it passes on."""
        apart = dict(start_new_session=True) if os.name == "posix" else dict(creationflags=0x200)
        with self.log.open("ab") as words:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=words, text=True, **apart,
            )  # fmt: skip

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended already
            self._supervisor.stdin.write(line + "\n")
            self._supervisor.stdin.flush()

    def exit_code(self) -> int | None:
        """None while it runs; then its exit code, or 128 + the signal that ended it."""
        with self._lock:
            code = self._supervisor.poll()
            if code is not None and self in _running:
                self._forget()
        return code

    def let_go(self) -> None:
        """Tell the supervisor to stop it, and wait for nothing."""
        if os.getpid() == self.owner:
            self._say("stop")

    def stop(self) -> None:
        """Stop it and wait until nothing is left; the second time does nothing. An interrupt is raised afterwards."""
        if os.getpid() != self.owner or self not in _running:
            return
        self.stopped, interrupted = True, None
        self.let_go()
        until = time.monotonic() + self.grace + SLACK
        while self.exit_code() is None and time.monotonic() < until:
            try:
                time.sleep(0.02)
            except KeyboardInterrupt as interrupt:
                interrupted = interrupt  # who interrupts a stop wants it to go faster, not to be half done
                until = min(until, time.monotonic() + 1.0)
        if self.exit_code() is None:
            self._supervisor.kill()
            self._supervisor.wait()
            self.exit_code()
        if interrupted:
            raise interrupted

    def _forget(self) -> None:
        """Its supervisor has ended: what may be left, should that have been killed, is killed here."""
        _running.discard(self)
        pid = getattr(self, "pid", 0)
        if pid and os.name == "posix":
            for _ in range(100):
                try:
                    os.killpg(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    break
                time.sleep(0.02)
        shutil.rmtree(self._temporary, ignore_errors=True)
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            with contextlib.suppress(OSError):
                pipe.close()


def running() -> list[Process]:
    """Those that this process started and that have not ended."""
    return [process for process in list(_running) if process.owner == os.getpid() and process.exit_code() is None]


def stop_all() -> None:
    """Stop every one, side by side; also done when the interpreter ends."""
    for process in running():
        process.let_go()
    for process in running():
        process.stop()


atexit.register(stop_all)


def tail(path: Path, size: int = TAIL) -> str:
    """The end of a file that is being written."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
