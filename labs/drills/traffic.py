"""What a drill simulates, as data: who sends what, to an engine with which settings, and what goes wrong with it."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labs.engine import StepTime
from labs.scheduler import SchedulerConfig
from labs.situations import GPU_LIKE
from labs.workload import Request, lognormal_lengths, poisson_arrivals

HORIZON = 120.0  # seconds that a dashboard shows


@dataclass(frozen=True)
class Stream:
    """Requests of one kind: lognormal lengths with these medians and sigmas, in tokens.

    They come at `rate` a second (Poisson) from `start` to `end`, or `burst` of them at `start`, or, with `in_flight`,
    as a closed loop that always has so many out. So many `tenants`, all alike, send them. Of each prompt the share
    `cached` is found in the prefix cache until `cached_until`. A gateway lets one through every `spacing` seconds.
    `elsewhere` has another pool serve them.
    """

    tenant: str
    rate: float = 0.0
    prompt: int = 200
    output: int = 60
    prompt_sigma: float = 0.3
    output_sigma: float = 0.8
    start: float = 0.0
    end: float = HORIZON
    burst: int = 0
    in_flight: int = 0
    cached: float = 0.0
    cached_until: float = 0.0
    spacing: float = 0.0
    elsewhere: bool = False
    tenants: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        if sum((self.rate > 0, self.burst > 0, self.in_flight > 0)) != 1:
            raise ValueError(f"{self.tenant}: give a rate, a burst or a number in flight, and only one of them")
        if not 0 <= self.cached < 1:
            raise ValueError(f"{self.tenant}: cached is a share from 0 up to 1, got {self.cached}")

    def created(self) -> np.ndarray:
        """When its users press the button, in seconds."""
        if self.burst or self.in_flight:
            each = GPU_LIKE(self.in_flight, 0) * self.output  # seconds that one takes, about
            enough = 2.8 * HORIZON / each  # for a closed loop all of which goes to one replica of two
            return np.full(self.burst or self.in_flight * math.ceil(enough), self.start)
        times = self.start + poisson_arrivals(math.ceil(2 * self.rate * (self.end - self.start)) + 20, self.rate,
                                              self.seed)
        return times[times < self.end]


@dataclass(frozen=True)
class Sent:
    """A request as the engine gets it, with what the engine doesn't know: tenant, birth, whole prompt."""

    request: Request
    created: float
    stream: Stream
    whole_prompt: int


@dataclass(frozen=True)
class Scenario:
    """Streams, settings and a fault. `replicas` share the traffic in turn.

    `collect` makes clients hold requests until so many have come together. From `hang_at` until `restart_at` the
    engine makes no step, while its web server answers. At `oversized_at` a request comes that needs `oversized_blocks`
    KV blocks, more than there are: vLLM lets it wait at the head of the queue, until it is taken out at
    `oversized_gone`.
    """

    streams: tuple[Stream, ...]
    config: SchedulerConfig
    step_time: StepTime = GPU_LIKE
    replicas: int = 1
    collect: int = 0
    hang_at: float = math.inf
    restart_at: float = math.inf
    oversized_at: float = math.inf
    oversized_gone: float = math.inf
    oversized_blocks: int = 0

    def __post_init__(self) -> None:
        if not self.streams or self.replicas < 1:
            raise ValueError("a scenario needs at least one stream and one replica")
        if len({stream.tenant for stream in self.streams}) < len(self.streams):
            raise ValueError("two streams have the same tenant: give each a name of its own")
        if self.oversized_at < math.inf and self.oversized_blocks < self.config.num_gpu_blocks:
            raise ValueError(f"a request of {self.oversized_blocks} blocks fits: it isn't oversized")

    def sent(self) -> list[Sent]:
        """Every request in the order in which the gateway lets them through."""
        every = sorted((sent for stream in self.streams for sent in _of(stream)), key=lambda s: s.request.arrival)
        return _collected(every, self.collect) if self.collect else every


def _of(stream: Stream) -> list[Sent]:
    """The requests of one stream."""
    created = stream.created()
    n, at = len(created), created
    prompts = lognormal_lengths(n, math.log(stream.prompt), stream.prompt_sigma, stream.seed + 1)
    outputs = lognormal_lengths(n, math.log(stream.output), stream.output_sigma, stream.seed + 2)
    if stream.spacing:  # turned away with a 429 until then: the request that counts is the one that is let in
        at = at.copy()
        for i in range(1, n):
            at[i] = max(at[i], at[i - 1] + stream.spacing)
        created = at
    hit = np.where(created < stream.cached_until, stream.cached, 0.0)
    computed = np.maximum(1, np.round(prompts * (1 - hit))).astype(int)
    return [Sent(Request(f"{stream.tenant} {i}", int(computed[i]), int(outputs[i]), arrival=float(at[i])),
                 float(created[i]), stream, int(prompts[i])) for i in range(n)]


def _collected(every: list[Sent], size: int) -> list[Sent]:
    """Each group of `size` goes off together, with its last one."""
    held = []
    for first in range(0, len(every), size):
        group = every[first:first + size]
        off = group[-1].request.arrival
        held += [Sent(Request(s.request.request_id, s.request.prompt_tokens, s.request.output_tokens, arrival=off),
                      s.created, s.stream, s.whole_prompt) for s in group]
    return held
