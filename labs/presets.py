"""Situations worth playing step by step: a few requests, the settings under which they run, and what to look for.

All times are in steps. Each is over within about a hundred steps, and the same on every run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labs.knobs import SchedulerConfig
from labs.workload import Request


@dataclass(frozen=True)
class Preset:
    """`requests` under `config`, with `sentence` on what to look for, first at step `start`.

    `seqs` (least, most), `budgets` and `blocks` (least, most, in steps of) are the settings worth trying.
    """

    name: str
    sentence: str
    requests: tuple[Request, ...]
    config: SchedulerConfig
    seqs: tuple[int, int]
    budgets: tuple[int, ...]
    blocks: tuple[int, int, int]
    start: int = 0
    stops: Mapping[str, int] = field(default_factory=dict)
    aborts: Mapping[str, float] = field(default_factory=dict)


def _many(names: str, prompt: int, outputs: tuple[int, ...], arrival: float = 0, priority: int = 0) -> list[Request]:
    """A request for each of `names` (separated by blanks), alike but for their output lengths."""
    return [Request(name, prompt, output, arrival, priority)
            for name, output in zip(names.split(), outputs, strict=True)]


def _pages_step() -> Preset:
    """180 requests that are decoding when X and Y arrive, with 2,000 prompt tokens each."""
    crowd = [Request(f"d{i}", 10, 24 + i % 37, 0) for i in range(180)]
    return Preset(
        "two long prompts beside 180",
        "180 sequences are decoding when X and Y bring 4,000 prompt tokens at step 2. Steps 2 to 4: what is left of "
        "the budget beside the decoders is what prefill gets. Then set the budget to 8,192.",
        (*crowd, *_many("X Y", 2000, (20, 20), arrival=2)),
        SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=2048, num_gpu_blocks=1201),
        (16, 512), (512, 1024, 2048, 4096, 8192, 16384), (401, 2001, 100), start=2)


def _long_prompt(name: str, sentence: str, budget: int, chunked: bool, start: int) -> Preset:
    """Five short requests are decoding when L arrives with 508 tokens; F and G come right behind it."""
    config = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=budget, num_gpu_blocks=81, max_model_len=512,
                             enable_chunked_prefill=chunked)
    requests = (*_many("A B C D E", 16, (12, 24, 30, 36, 42)), *_many("L", 508, (4,), arrival=4),
                *_many("F G", 16, (10, 10), arrival=5))
    return Preset(name, sentence, requests, config, (1, 32), (32, 64, 128, 256, 512, 1024), (41, 161, 8), start)


def _memory_short() -> Preset:
    """Six requests that fit when they begin, and no longer fit when they have grown."""
    return Preset(
        "memory too short",
        "All six fit at first, but each grows by a token a step and nothing is kept back for that. When a block is "
        "missing the last to be admitted loses all of its blocks, and must compute those tokens again.",
        tuple(_many("A B C D E F", 30, (50, 46, 56, 52, 44, 48))),
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, num_gpu_blocks=19, max_model_len=128),
        (1, 16), (64, 128, 256, 512), (9, 49, 1), start=19)


def _urgent() -> Preset:
    """Four slots, all taken; two ordinary requests wait when two urgent ones arrive."""
    return Preset(
        "urgent requests under priority",
        "U and V (priority -1: lower is earlier) jump the queue at step 6, ahead of E and F. They take no slot from "
        "anyone: they wait until one of A to D ends. Then set the policy to fcfs.",
        (*_many("A B C D", 32, (14, 20, 26, 32)), *_many("E F", 32, (16, 16), arrival=2),
         *_many("U V", 32, (10, 10), arrival=6, priority=-1)),
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=256, num_gpu_blocks=61, policy="priority"),
        (1, 12), (64, 128, 256, 512), (9, 101, 4), start=6)


def _head_does_not_fit() -> Preset:
    """The head of the queue needs more blocks than are free; those behind it would fit."""
    return Preset(
        "the head of the queue does not fit",
        "From step 3 on H, at the head of the queue, needs 38 blocks and fewer are free. P, Q and R behind it need 2 "
        "each: they would fit, and wait all the same, because only the head is tried.",
        (*_many("A B C", 80, (20, 28, 36)), *_many("H", 600, (8,), arrival=3),
         *_many("P Q R", 24, (8, 8, 8), arrival=4)),
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=256, num_gpu_blocks=53, max_model_len=1024),
        (1, 16), (128, 256, 512, 1024), (41, 125, 4), start=5)


def _alone() -> Preset:
    """One request, and nobody else."""
    return Preset(
        "one request alone",
        "One step computes the whole prompt and makes the first token; every later step computes one token. The rest "
        "of the budget is unused: that is the room for everybody else.",
        tuple(_many("A", 300, (24,))),
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512, num_gpu_blocks=41),
        (1, 16), (64, 128, 256, 512, 1024), (22, 81, 1))


PRESETS = {preset.name: preset for preset in (
    _pages_step(),
    _long_prompt(
        "one long prompt, in chunks",
        "L brings 508 tokens at step 4 and gets what the five decoders leave of 128, step by step: nobody's next token "
        "is late. F and G wait behind it for 3 steps, until its last chunk leaves some budget.", 128, True, 4),
    _long_prompt(
        "one long prompt, chunking off",
        "L's 508 tokens must go into one step, but five decoders leave 507: L waits until A ends, and F and G behind "
        "it wait too. Then, at step 12, everybody's next token takes a step of 512 tokens.", 512, False, 8),
    _memory_short(),
    _urgent(),
    _head_does_not_fit(),
    _alone(),
)}
