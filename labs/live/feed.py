"""A load in the background, and what the server shows meanwhile: what the live panel draws."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from labs.live.bench import Bench, Run
from labs.live.client import ameasure, asks_from
from labs.live.load import MODES
from labs.live.measurement import Ask, Measurement
from labs.live.monitor import Watch, diagnose, watch
from labs.live.monitor.limits import Caps
from labs.workload import Request, lognormal_lengths, poisson_arrivals


class Feed:
    """One load at a time on a bench's server. `start` comes back at once; `stop` ends it, and what arrived is kept."""

    def __init__(self, bench: Bench, first: Run | None = None) -> None:
        self.bench, self.first = bench, first
        self.measurement: Measurement | None = None
        self.error = ""
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def source(self) -> str:
        """Who answers, in words."""
        return self.bench.source if self._watch or not self.first else self.first.source

    @property
    def cap(self) -> int | None:
        """How many may run."""
        return self.bench.slots if self._watch or not self.first else self.first.slots

    @property
    def live(self) -> bool:
        """Whether there is a server that answers."""
        return self.bench.live and self.bench.server.alive()

    @property
    def switchable(self) -> bool:
        """Whether static batching can be chosen."""
        return self.bench.live and self.bench.server.switchable

    @property
    def busy(self) -> bool:
        """Whether a load is under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def series(self) -> tuple[Sequence[float], Sequence[float], Sequence[float]]:
        """Seconds, requests running, requests waiting."""
        if self._watch:
            seen = self._watch.series
            return seen.time.tolist(), seen.running.tolist(), seen.waiting.tolist()
        return (self.first.times, self.first.running, self.first.waiting) if self.first else ((), (), ())

    @property
    def diagnosis(self) -> str:
        """What limits the server at this moment, in words."""
        if not self._watch or not self.busy:
            return ""
        page, change = self._watch.latest
        found = diagnose(change or page, Caps(max_num_seqs=self.bench.slots))
        return f"{found.limit}: {found.words}"

    def start(self, requests: int, rate: float | None, static: bool = False, seed: int = 0) -> None:
        """Send so many requests of varied lengths: all at once, or `rate` a second. Raises ValueError if it can't."""
        if self.busy:
            raise ValueError("a load is under way: stop it, or wait for its end")
        if not self.live:
            raise ValueError("there is no server: run the cell that starts it, then this one again")
        asks = workload(requests, rate, seed)
        if self.switchable:
            self.bench.server.set_static(static)
            self.bench.server.set_slots(self.bench.slots)
        self._stop, self.error, self.measurement = threading.Event(), "", None
        self._watch = watch(self.bench.server, 0.1)
        self._thread = threading.Thread(target=self._load, args=(asks, rate), name="live panel", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the load, if there is one."""
        self._stop.set()
        if self._thread:
            self._thread.join(10)

    def _load(self, asks: list[Ask], rate: float | None) -> None:
        mode = MODES[0] if rate is None else "open-loop"
        try:
            self.measurement = asyncio.run(ameasure(self.bench.server, asks, mode=mode, stop=self._stop))
        except Exception as fault:  # shown by the panel: a thread has nobody else to tell
            self.error = str(fault)
        finally:
            self._watch.stop()


def workload(requests: int, rate: float | None, seed: int = 0) -> list[Ask]:
    """So many requests with lengths spread as in the rest of the course, 512 tokens at most."""
    lengths = [min(512, int(n)) for n in lognormal_lengths(requests, 4.2, 1.1, seed)]
    arrivals = [0.0] * requests if rate is None else poisson_arrivals(requests, rate, seed)
    each = enumerate(zip(lengths, arrivals, strict=True))
    return asks_from([Request(f"p{i}", 16, n, float(t)) for i, (n, t) in each], seed=seed)
