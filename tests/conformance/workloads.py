"""Workloads for the comparison: settings, requests that come at a step, stop tokens and aborts; random or by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from labs.blocks import blocks_for
from labs.scheduler import SchedulerConfig
from labs.workload import Request


@dataclass(frozen=True)
class Abort:
    """Take `request_id` out at `step`: before it is scheduled, or during its forward pass."""

    step: int
    request_id: str
    during: bool = False


@dataclass(frozen=True)
class Workload:
    """`requests` are pairs: the step before which one is queued, and the request, whose arrival only ranks it.

    `stops[id]` is the output token at which it draws a stop token.
    """

    name: str
    config: SchedulerConfig
    requests: tuple[tuple[int, Request], ...]
    stops: Mapping[str, int] = field(default_factory=dict)
    aborts: tuple[Abort, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes the same workload."""
        requests = [[step, r.request_id, r.prompt_tokens, r.output_tokens, r.arrival, r.priority]
                    for step, r in self.requests]  # fmt: skip
        aborts = [[a.step, a.request_id, a.during] for a in self.aborts]
        return {"name": self.name, "config": asdict(self.config), "requests": requests, "stops": dict(self.stops),
                "aborts": aborts}  # fmt: skip


def from_json(stored: Mapping[str, Any]) -> Workload:
    """The workload that `as_json` stored."""
    requests = tuple((step, Request(*rest)) for step, *rest in stored["requests"])
    return Workload(
        stored["name"], SchedulerConfig(**stored["config"]), requests, stored["stops"],
        tuple(Abort(*a) for a in stored["aborts"]),
    )  # fmt: skip


# Settings that vLLM's SchedulerConfig refuses beside max_num_seqs 4, max_num_batched_tokens 64, max_model_len 2048.
REFUSED: tuple[dict[str, Any], ...] = (
    {"max_num_seqs": 0}, {"max_num_batched_tokens": 3}, {"policy": "lifo"},
    {"enable_chunked_prefill": False}, {"max_num_active_seqs": 0}, {"max_num_active_seqs": 5},
    {"long_prefill_token_threshold": -1}, {"long_prefill_token_threshold": 2049},
    {"watermark": 1.0}, {"watermark": -0.1}, {"watermark": float("nan")},
)  # fmt: skip


def draw_config(rng: random.Random) -> SchedulerConfig:
    """Settings drawn so that each rule matters often: few blocks, small budgets, both policies."""
    block_size, max_model_len = rng.choice((1, 2, 4, 8, 16)), rng.choice((32, 64, 128, 256))
    max_num_seqs, chunked = rng.choice((1, 2, 4, 8, 16)), rng.random() < 0.75
    budget = max(max_num_seqs, rng.choice((max_num_seqs, max_num_seqs + 3, 16, 32, 64, 128)))
    threshold = rng.choice((0, 0, 0, 3, 8, 20))
    blocks = int(blocks_for(max_model_len, block_size) * rng.choice((0.5, 0.75, 1, 1.2, 1.5, 2, 4))) + 1
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget if chunked else max(budget, max_model_len),
        num_gpu_blocks=max(2, blocks),
        block_size=block_size,
        max_model_len=max_model_len,
        policy=rng.choice(("fcfs", "priority")),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=threshold,
        long_prefill_token_threshold_adaptive=threshold > 0 and rng.random() < 0.5,
        max_num_active_seqs=rng.choice((None, None, None, max(1, max_num_seqs // 2))),
        scheduler_reserve_full_isl=rng.random() < 0.6,
        watermark=rng.choice((0.0, 0.0, 0.0, 0.05, 0.2)),
    )


def draw_request(rng: random.Random, name: str, step: int, config: SchedulerConfig) -> Request:
    """A request with ties of arrival and of priority; under fcfs a priority is ignored, so it may have one too."""
    prompt = rng.randint(1, rng.choice((4, 20, config.max_model_len - 1)))
    if rng.random() < 0.03:
        prompt = config.max_model_len + rng.randint(0, 2)  # to be refused on arrival
    output = rng.randint(1, rng.choice((3, 20, config.max_model_len)))
    arrival = float(step) if rng.random() < 0.6 else 0.0
    return Request(name, prompt, output, arrival, rng.choice((0, 0, 1, -1, 2)))


def draw(seed: int) -> Workload:
    """The random workload of a seed."""
    rng = random.Random(seed)
    config = draw_config(rng)
    if rng.random() < 0.25:  # many preemptions among equals
        blocks = blocks_for(config.max_model_len, config.block_size) + rng.randint(1, 5)
        config = replace(config, policy="priority", max_num_seqs=max(4, config.max_num_seqs),
                         max_num_batched_tokens=max(4, config.max_num_batched_tokens), num_gpu_blocks=blocks,
                         scheduler_reserve_full_isl=rng.random() < 0.5, watermark=0.0)  # fmt: skip
    requests, step = [], 0
    for i in range(rng.randint(1, 40)):
        step += rng.choice((0, 0, 1, 3, 10))
        requests.append((step, draw_request(rng, f"r{i:02d}", step, config)))
    stops = {r.request_id: rng.randint(1, r.output_tokens) for _, r in requests if rng.random() < 0.3}
    aborts = tuple(
        Abort(step + rng.randint(0, 30), r.request_id, rng.random() < 0.5)
        for step, r in requests if rng.random() < 0.12
    )  # fmt: skip
    return Workload(f"seed {seed}", config, tuple(requests), stops, aborts)


def by_hand(name: str, requests: str, *, aborts: tuple[Abort, ...] = (), stops: Mapping[str, int] | None = None,
            **settings: Any) -> Workload:  # fmt: skip
    """A workload in words: `requests` reads "a 5+3, b 4+1 @2 p-1": prompt + output, the step, the priority."""
    config = replace(SchedulerConfig(4, 16, 100, block_size=4, max_model_len=64), **settings)
    read = []
    for words in (part.split() for part in requests.split(",")):
        prompt, output = map(int, words[1].split("+"))
        step = next((int(word[1:]) for word in words if word[0] == "@"), 0)
        priority = next((int(word[1:]) for word in words if word[0] == "p"), 0)
        read.append((step, Request(words[0], prompt, output, float(step), priority)))
    return Workload(name, config, tuple(read), stops or {}, aborts)
