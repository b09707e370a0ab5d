"""Experiments on whatever server is at hand: a real vLLM, a simulated one, or, where there is none, a recording.

Every run says where it comes from, so that no number of a stand-in is taken for a server's.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from labs.live.baseline import ENGINE, run_batches
from labs.live.client import measure
from labs.live.engines import is_address
from labs.live.launch import DEFAULT_MODEL
from labs.live.measurement import NAN, Ask, Measurement
from labs.live.models import REAL
from labs.live.monitor import Metrics, delta, read_metrics, watch
from labs.live.preflight import check_gpu, nvidia_smi
from labs.live.processes import running, stop_all
from labs.live.server import Server, ServerError, start
from labs.words import Stopped, many

COUNTED = ("iteration_tokens", "queue_time", "prefix_hits", "prefix_queries", "finished")
T4_FILE = Path("recording-from-your-gpu.json")
ENGINE_NAMED = "LABS_ENGINE"
RECORDED = "recorded "  # how the source of a run begins that was read from a file
AT_REST = 5.0  # seconds, at most, for the server's counters to come to rest
Say = Callable[[object], None]


@dataclass(frozen=True)
class Run:
    """One experiment: what the client saw, and what the server counted meanwhile.

    source: in words, who answered. steps: the engine's steps that made a token. queued: mean seconds in its queue by
    the server's own clock. hits: prompt tokens found in the prefix cache, of `asked`. All NaN where it does not say.
    times, running, waiting: what /metrics showed, in seconds from the first look.
    """

    name: str
    measurement: Measurement = field(repr=False)
    source: str
    slots: int | None = None
    static: bool = False
    steps: float = NAN
    queued: float = NAN
    hits: float = NAN
    asked: float = NAN
    times: tuple[float, ...] = field(default=(), repr=False)
    running: tuple[float, ...] = field(default=(), repr=False)
    waiting: tuple[float, ...] = field(default=(), repr=False)

    @property
    def held(self) -> bool:
        """Whether all requests were let go together, so that the steps can be predicted."""
        return self.measurement.mode == "held"

    @property
    def recorded(self) -> bool:
        """Whether it was read from a file."""
        return self.source.startswith(RECORDED)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each answer that was measured, as the server counted them."""
        return [row.completion_tokens or 0 for row in self.measurement.measured]

    @property
    def steps_per_second(self) -> float:
        """The engine's steps over the time from the first request to the last token."""
        return self.steps / self.measurement.wall if self.measurement.wall > 0 else NAN


class Interrupted(Stopped):
    """A run that was interrupted."""

    def __init__(self, run: Run) -> None:
        came = _came(run.measurement)
        super().__init__(f"Interrupted: {came} had come whole. What came is kept, as `runs[{run.name!r}]` of what ran "
                         "it; run this cell again for the whole of it.")


class Bench:
    """A server and the runs made on it; where there is no server, or it can't do a thing, the recorded run is given.

    `recorded` maps names to runs made before. `trouble` says why there is no server.
    """

    def __init__(self, server: Server | None, slots: int | None, recorded: Mapping[str, Run], trouble: str = "",
                 model: str | None = None, caching: bool = False) -> None:
        self.server, self.slots, self.recorded, self.trouble = server, slots, dict(recorded), trouble
        self.model, self.caching = model, caching
        self.runs: dict[str, Run] = {}

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        cap = f", max_num_seqs {self.slots}" if self.slots else ""
        if self.server:
            return f"{self.source}{cap}, at {self.server.root_url}"
        return f"No server{': ' + self.trouble if self.trouble else ''} What follows is {self.source}."

    @property
    def source(self) -> str:
        """Who answers, in words for a table or a picture."""
        if not self.server:
            return next((run.source for run in self.recorded.values()), "nothing: there is no recording")
        engine = self.server.engine
        name = {"url": self.server.root_url, "simulated": "SIMULATED server"}.get(engine, engine)
        simulated = " (SIMULATED)" if self.server.simulated and engine == "url" else ""
        return " ".join(filter(None, (name + simulated, self.server.version, self.server.model)))

    def about(self) -> list[tuple[str, str]]:
        """What a reader should know of it, a line each."""
        if not self.server:
            return [("server", f"none: {self.trouble}"), ("instead", self.source)]
        engine = {"url": "a server of yours", "simulated": "SIMULATED: no model, times by a straight line"}
        cap = f"{self.slots}" if self.server.engine != "url" else "its own"
        return [("engine", engine.get(self.server.engine, self.server.engine)), ("version", self.server.version or "–"),
                ("model", self.server.model), ("max_num_seqs", cap), ("address", self.server.root_url),
                ("log", str(self.server.log_path.name) if self.server.log_path else "–")]

    @property
    def live(self) -> bool:
        """Whether a server answers, real or simulated."""
        return self.server is not None

    def run(self, name: str, asks: Sequence[Ask], *, static: bool = False, slots: int | None = None,
            caching: bool = False, progress: Callable | None = None, **load: object) -> Run:  # fmt: skip
        """Measure `asks`, or give the recorded run of that name where the server can't; `load` is `measure`'s.

        `slots` lowers the cap for this run, `caching` says that it needs a prefix cache. Raises ServerError if it can't
        be measured and was not recorded, and Interrupted if it was interrupted: what had come is then in `runs`.
        """
        if not self._can(static, slots, load.get("mode")) or (caching and not self.caching):
            return self._keep(self._recorded(name))
        if self.server.switchable:
            self.server.set_static(static)
            self.server.set_slots(slots)
        before = self.counted()
        with watch(self.server, 0.1) as seen:
            measurement = measure(self.server, asks, progress=progress, **load)
            series = seen.stop()
        answered = sum(row.ok for row in measurement.rows)
        change = delta(before, self.counted((before.ended or 0) + answered))
        queue = change.queue_time
        return self._whole(Run(
            name, measurement, self._source_of(measurement), slots or self.slots, static, _known(change.steps),
            queue.mean if queue and queue.count else NAN, _known(change.prefix_hits), _known(change.prefix_queries),
            *(tuple(np.round(column, 3).tolist()) for column in (series.time, series.running, series.waiting)),
        ))  # fmt: skip

    def script(self, name: str, asks: Sequence[Ask], batch_size: int, progress: Callable | None = None) -> Run:
        """Answer `asks` with transformers' `generate` on padded batches of the same model; as `run` where it can't."""
        if not self.server or self.server.engine not in ("vllm", "vllm-cpu"):
            return self._keep(self._recorded(name))
        model = self.model or DEFAULT_MODEL[self.server.engine]
        done = run_batches(asks, model, batch_size=batch_size, progress=progress)
        source = f"{ENGINE}, {done.measurement.model}"
        return self._whole(Run(name, done.measurement, source, batch_size, True, float(done.steps)))

    def counted(self, ended: float = 0.0) -> Metrics:
        """The server's counters, once they have come to rest: the last step's are written after its tokens are sent.

        On a busy machine that can be a while after, in which they stand still: until `ended` requests in all have ended
        by its own count, where it counts them, they are not at rest.
        """
        until, last = time.monotonic() + AT_REST, None
        while time.monotonic() < until:
            page = read_metrics(self.server.metrics(), COUNTED)
            if last is not None and page.steps == last.steps and (page.ended is None or page.ended >= ended):
                return page
            last = page
            time.sleep(0.25)
        return last

    def close(self) -> None:
        """Stop the server, if it was started here; the runs stay."""
        if self.server:
            self.server.stop()

    def _can(self, static: bool, slots: int | None, mode: object) -> bool:
        """Whether the server can do it: a URL's may have no switch, and no pause."""
        if not self.server or ((static or slots not in (None, self.slots)) and not self.server.switchable):
            return False
        return mode != "held" or self.server.engine != "url" or self._pauses()

    def _pauses(self) -> bool:
        with contextlib.suppress(ServerError):
            self.server.resume()
            return True
        return False

    def _recorded(self, name: str) -> Run:
        if name not in self.recorded:
            raise ServerError(f"{self!r} And {name!r} was not recorded.", "Start a server that can do it.")
        return self.recorded[name]

    def _source_of(self, measurement: Measurement) -> str:
        """Who answered; a part of a run says that it is one, wherever it is shown."""
        if not measurement.interrupted:
            return self.source
        return f"INTERRUPTED, {_came(measurement)}: {self.source}"

    def _whole(self, run: Run) -> Run:
        """Keep the run, and give it. A part of one is only kept: the cell would go on as if it were all."""
        self._keep(run)
        if run.measurement.interrupted:
            raise Interrupted(run)
        return run

    def _keep(self, run: Run) -> Run:
        self.runs[run.name] = run
        return run


def open_bench(engine: str = "auto", model: str | None = None, *, slots: int | None = 8, say: Say | None = None,
               recorded: Mapping[str, Run] | None = None, **flags: object) -> Bench:  # fmt: skip
    """Start a server, or go to the one at a URL; where neither can be had, a bench that gives what was `recorded`.

    "recording" asks for that at once; for "auto", LABS_ENGINE may name another engine, so that no cell need be changed.

    Other arguments are `start`'s; all but its key are left aside for a server at a URL, which has settings of its own.
    """
    engine = os.environ.get(ENGINE_NAMED, engine) if engine == "auto" else engine
    if engine == "recording" and recorded:
        return Bench(None, slots, recorded, "it was asked for the recording.", model)
    url = is_address(engine)
    ours = {k: v for k, v in flags.items() if k == "api_key"} if url else {"max_num_seqs": slots} | flags
    try:
        server = start(engine, model, progress=say, **ours)
    except KeyboardInterrupt:
        if say:
            say("interrupted")
        raise Stopped("Interrupted: no server was started, and nothing of it is left. Run this cell again.") from None
    except ServerError as error:
        if not recorded:
            raise
        return Bench(None, slots, recorded, str(error), model)
    return Bench(server, slots, recorded or {}, model=model, caching=bool(ours.get("enable_prefix_caching")))


def _came(measurement: Measurement) -> str:
    """How much of a run there is."""
    return f"{len(measurement.ok)} of {many(len(measurement.measured), 'answer')}"


def stop_earlier(say: Say | None = None) -> int:
    """Stop the servers that earlier cells of this kernel started and that still run; return how many there were."""
    earlier = running()
    if earlier and say:
        say(f"stopping {many(len(earlier), 'server')} that an earlier cell started ...")
    stop_all()
    return len(earlier)


def gather(*benches: Bench) -> dict[str, Run]:
    """The runs of several benches by name, those that a recording gave left out."""
    return {name: run for bench in benches for name, run in bench.runs.items() if not run.recorded}


def second_server(bench: Bench) -> dict[str, object]:
    """Settings of a second server of the same kind, with a model that ends its answers and with prefix caching.

    On a GPU the first model does so already; the simulated server has no cache.
    """
    if bench.server is None or bench.server.engine not in ("vllm", "vllm-cpu"):
        return {}
    speaks = {"model": REAL} if bench.server.engine == "vllm-cpu" else {}
    return speaks | {"enable_prefix_caching": True}


def wants_gpu_install(engine: str = "auto") -> bool:
    """Whether vLLM is to be fetched first: on Colab, with a GPU that can run it, for an engine that needs it."""
    return "COLAB_RELEASE_TAG" in os.environ and engine in ("auto", "vllm") and check_gpu(nvidia_smi()).ok


def _known(value: float | None) -> float:
    return NAN if value is None else float(value)
