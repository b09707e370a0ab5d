"""What a plan starts from: what comes, and what users are promised. And its answer: settings, with less of each."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from labs.serving import Served
from labs.workload import Request, poisson_arrivals

RESOURCES = {"replicas": "replicas", "max_num_seqs": "max_num_seqs", "KV blocks": "blocks"}


@dataclass(frozen=True, eq=False)
class Load:
    """What comes: pairs of prompt and output lengths (one a request of a log, say), and requests a second in all."""

    prompts: np.ndarray
    outputs: np.ndarray
    rate: float

    def __post_init__(self) -> None:
        prompts, outputs = np.asarray(self.prompts), np.asarray(self.outputs)
        if prompts.ndim != 1 or prompts.shape != outputs.shape or not prompts.size:
            raise ValueError("prompts and outputs must be lists of the same length, one pair a request")
        if min(prompts.min(), outputs.min()) < 1:
            raise ValueError("every prompt and every output must have at least 1 token")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be a number above 0, in requests a second, got {self.rate!r}")

    @property
    def max_model_len(self) -> int:
        """Room for the longest prompt with its output."""
        return int((np.asarray(self.prompts) + np.asarray(self.outputs)).max()) + 1

    def requests(self, n: int, seed: int, rate: float) -> list[Request]:
        """`n` requests drawn from the pairs, arriving at `rate` a second (infinite: all at once)."""
        rng = np.random.default_rng([seed, 7])
        drawn = rng.integers(0, len(self.prompts), n)
        arrivals = np.zeros(n) if math.isinf(rate) else poisson_arrivals(n, rate, seed)
        columns = (np.asarray(self.prompts)[drawn].tolist(), np.asarray(self.outputs)[drawn].tolist(),
                   arrivals.tolist())
        return [Request(f"r{i}", *row) for i, row in enumerate(zip(*columns, strict=True))]


@dataclass(frozen=True)
class Targets:
    """What users are promised, in seconds: the 95th percentile of ITL, the 99th of TTFT."""

    itl_p95: float
    ttft_p99: float

    def __post_init__(self) -> None:
        for name in ("itl_p95", "ttft_p99"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a number of seconds above 0, got {getattr(self, name)!r}")

    def met(self, served: Served) -> bool:
        """Whether a run keeps both; the first tenth of the arrivals, who find an empty server, have no say in TTFT."""
        return not served.itl(0.95) > self.itl_p95 and served.ttft_at(0.99) <= self.ttft_p99


@dataclass(frozen=True)
class Settings:
    """One answer: what each replica is given, and how many there are."""

    replicas: int
    max_num_seqs: int
    blocks: int

    def less(self, resource: str, part: int = 6) -> Settings | None:
        """Less of a resource: by one in `part` of it, at least by 1; None if there is none to take away."""
        value = getattr(self, RESOURCES[resource])
        smaller = value - max(1, value // part)
        return replace(self, **{RESOURCES[resource]: smaller}) if smaller >= 1 else None
