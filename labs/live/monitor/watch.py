"""Watch a server in the background: running, waiting, KV usage and preemptions, a few times a second."""
from __future__ import annotations

import math
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from labs.live.monitor.between import delta
from labs.live.monitor.page import Metrics, read_metrics

FASTEST = 0.05  # seconds; 20 pages a second cost a server nothing, 50 slow it by a third
_NAMES = ("running", "waiting", "waiting_by_reason", "kv_usage", "cache_config", "preemptions", "generation_tokens",
          "iteration_tokens")
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Series:
    """What was seen, one entry a page; NaN where no answer came or the page did not say.

    `time` is in seconds from `started`, which is on time.monotonic(). `preemptions` counts from the first page on,
    through restarts. `failed` counts the pages that did not come.
    """

    started: float
    time: np.ndarray
    running: np.ndarray
    waiting: np.ndarray
    kv: np.ndarray
    preemptions: np.ndarray
    failed: int = 0
    resets: int = 0

    def __len__(self) -> int:
        return len(self.time)


class Watch:
    """A thread that reads /metrics every so often. `stop()`, or the end of a `with`, ends it; so does `at_most`."""

    def __init__(self, fetch: Callable[[], str], every: float, timeout: float, at_most: float) -> None:
        self._fetch, self._every, self._timeout, self._at_most = fetch, max(FASTEST, every), timeout, at_most
        self._rows: list[tuple[float, float, float, float, float]] = []
        self._failed = self._resets = 0
        self._preemptions = math.nan
        self._before: Metrics | None = None
        self._latest: tuple[Metrics | None, Metrics | None] = None, None
        self._stopping, self._lock = threading.Event(), threading.Lock()
        self.started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="watch /metrics", daemon=True)
        self._thread.start()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether it still watches."""
        return self._thread.is_alive() and not self._stopping.is_set()

    @property
    def latest(self) -> tuple[Metrics | None, Metrics | None]:
        """The last page, None if it did not come, and what it changed from the last one that did: for `diagnose`."""
        return self._latest

    @property
    def series(self) -> Series:
        """What has been seen so far."""
        with self._lock:
            rows, failed, resets = list(self._rows), self._failed, self._resets
        columns = np.array(rows, dtype=float).reshape(-1, 5).T
        return Series(self.started, *columns, failed, resets)

    def stop(self) -> Series:
        """End it and give what was seen. A fetch that hangs is not waited for longer than its timeout."""
        self._stopping.set()
        self._thread.join(self._timeout + 1.0)
        return self.series

    def _run(self) -> None:
        """Look at fixed times; those that a slow page made it miss are left out, not made up for."""
        due = self.started
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            now = time.monotonic()
            if now - self.started > self._at_most:
                return
            self._look(now)
            due += self._every * max(1, math.ceil((time.monotonic() - due) / self._every))

    def _look(self, now: float) -> None:
        """One page."""
        try:
            page = read_metrics(self._fetch(), _NAMES)
        except Exception:  # whatever a dying server and the way to it can raise: the row says that nothing came
            page = None
        change = delta(self._before, page) if page and self._before else None
        row = (now - self.started, *self._row(page, change))
        if self._stopping.is_set():
            return
        with self._lock:
            self._rows.append(row)
            self._failed += page is None
            self._resets += bool(change and change.reset)
        self._latest, self._before = (page, change), page or self._before

    def _row(self, page: Metrics | None, change: Metrics | None) -> tuple[float, float, float, float]:
        """The numbers of a page, NaN for what it lacks."""
        if page is None:
            return math.nan, math.nan, math.nan, math.nan
        if page.preemptions is not None:
            rose = change.preemptions if change and change.preemptions is not None else 0.0
            self._preemptions = rose + (0.0 if math.isnan(self._preemptions) else self._preemptions)
        counted = math.nan if page.preemptions is None else self._preemptions
        return (*(math.nan if v is None else v for v in (page.running, page.waiting, page.kv_usage)), counted)


def watch(server: object, every: float = 0.1, *, timeout: float = 2.0, at_most: float = 3600.0) -> Watch:
    """Begin to watch `server`: something with `.metrics()`, a function that gives the page's text, or an address.

    It looks every `every` seconds, no more than 20 times a second, and for `at_most` so many seconds.
    """
    return Watch(_fetcher(server, timeout), every, timeout, at_most)


def _fetcher(server: object, timeout: float) -> Callable[[], str]:
    """How to get the page."""
    if isinstance(server, str):
        root = server.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
        return lambda: _get(f"{root}/metrics", timeout)
    fetch = getattr(server, "metrics", server)
    if not callable(fetch):
        raise TypeError(f"give a server, an address or a function that gives the page's text, not {server!r}")
    return fetch


def _get(url: str, timeout: float) -> str:
    """The text at an address; http only."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"an address begins with http:// or https://, got {url}")
    with _NO_PROXY.open(url, timeout=timeout) as answer:
        return answer.read(50_000_000).decode("utf-8", "replace")
