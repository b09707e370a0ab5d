"""What can be behind an incident, and the sign of each on a dashboard: a rule on the dashboard's own numbers, no more.

tests/test_drills.py checks that on each drill's dashboard exactly one rule holds: the drill can be solved by looking.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from labs.drills.telemetry import Dashboard
from labs.drills.text import share
from labs.drills.traffic import HORIZON
from labs.words import many

BUSY, FULL, DRAINED = 0.95, 0.9, 0.6  # shares: of the cap, of the KV blocks, and what is far from full


@dataclass(frozen=True)
class Cause:
    """A `key`, a `name`, the `sign` by which it is known, and `here`: what this dashboard says of the sign."""

    key: str
    name: str
    sign: str
    holds: Callable[[Dashboard], bool]
    here: Callable[[Dashboard], str]


def _waits(d: Dashboard) -> bool:
    return d.summary.waiting > 1


def _at_cap(d: Dashboard) -> bool:
    return d.summary.running > BUSY * d.cap


def _one_tenant(d: Dashboard) -> bool:
    return d.summary.largest_tenant >= 0.5 and _waits(d)


def _forgot(d: Dashboard) -> bool:
    """The prefix cache's hits fell while one looked on."""
    return d.summary.cache_hits_first - d.summary.cache_hits_last > 0.3


def _budget_spent(d: Dashboard) -> bool:
    return d.summary.tokens_per_step >= 0.8 * d.config.max_num_batched_tokens


def _silent(d: Dashboard) -> bool:
    return HORIZON - d.summary.last_token > 30


def _emptied(d: Dashboard) -> float:
    """Of the scrapes that found somebody waiting: the share with the KV cache far from full and budget left."""
    s = d.series
    waits = s["waiting"] > 0
    idle = (s["kv_usage"] < DRAINED) & (s["tokens_per_step"] < 0.5 * d.config.max_num_batched_tokens)
    return float((waits & idle).sum() / max(waits.sum(), 1))


def _alone(d: Dashboard) -> bool:
    """The same one request's worth of load at every scrape."""
    return bool(np.all(d.series["running"] == 1)) and not d.series["waiting"].any()


def _of_cap(d: Dashboard) -> str:
    return f"running {d.summary.running:.0f} on average, at most {d.cap} may, {d.summary.waiting:.0f} waiting"


def _kv(d: Dashboard) -> str:
    return f"KV use {d.summary.kv_usage:.0%} on average and {d.summary.kv_max:.0%} at most"


def _again(d: Dashboard) -> str:
    """vLLM exports no count of tokens that were computed again: a recorded dashboard has none."""
    again = d.summary.computed_again
    return "tokens computed again: not exported" if math.isnan(again) else f"{again:.0%} of tokens computed again"


def _itl(d: Dashboard) -> str:
    return f"ITL p50 {1e3 * d.summary.itl_p50:.0f} ms, p95 {1e3 * d.summary.itl_p95:.0f} ms"


CAUSES: dict[str, Cause] = {cause.key: cause for cause in (
    Cause("sequence_cap", "max_num_seqs is reached",
          "running sits at max_num_seqs, requests wait, and KV blocks are free",
          lambda d: _waits(d) and _at_cap(d) and d.summary.kv_max < FULL,
          lambda d: f"{_of_cap(d)}; {_kv(d)}"),
    Cause("memory", "The KV cache is too small for this traffic",
          "running stays below max_num_seqs, requests wait, KV use stays above 80 %, little is computed twice, and no "
          "one tenant holds most of it",
          lambda d: (_waits(d) and not _at_cap(d) and d.summary.kv_usage > 0.8 and not d.summary.computed_again >= 0.2
                     and not _one_tenant(d) and not _forgot(d)),
          lambda d: f"{_of_cap(d)}; {_kv(d)}; {_again(d)}; largest tenant "
                    f"{share(d.summary.largest_tenant)}"),
    Cause("thrashing", "Too many sequences at once: they preempt each other",
          "preemptions never stop, and much of what is computed was computed before",
          lambda d: d.summary.computed_again >= 0.2 and not _one_tenant(d),
          lambda d: f"{d.summary.preemptions} preemptions, {_again(d)}; "
                    f"largest tenant {share(d.summary.largest_tenant)}"),
    Cause("token_budget", "max_num_batched_tokens is too small for these prompts",
          "requests wait below max_num_seqs with KV blocks free, and every step spends the whole token budget",
          lambda d: (_waits(d) and not _at_cap(d) and _budget_spent(d) and d.summary.kv_max < FULL and not _forgot(d)),
          lambda d: f"{d.summary.tokens_per_step:.0f} tokens a step of a budget of {d.config.max_num_batched_tokens:,};"
                    f" {_of_cap(d)}; {_kv(d)}"),
    Cause("blocked_head", "A long prompt at the head of the queue blocks those behind it",
          "again and again requests wait while the KV cache empties and the steps have budget left",
          lambda d: (_waits(d) and not _at_cap(d) and _emptied(d) >= 0.3 and d.summary.running_max > 0
                     and not _silent(d)),
          lambda d: f"at {_emptied(d):.0%} of the scrapes with somebody waiting, KV use was below {DRAINED:.0%} and "
                    f"the step less than half full; {d.summary.tokens_per_step:.0f} tokens a step"),
    Cause("greedy_tenant", "One tenant's long requests hold the memory",
          "requests wait, and one tenant has more than half of the tokens in flight",
          _one_tenant,
          lambda d: f"the largest tenant has {d.summary.largest_tenant:.0%} of the tokens in flight at most; "
                    f"{d.summary.waiting:.0f} waiting"),
    Cause("client_batcher", "Clients collect requests before they send them",
          "TTFT at the client is seconds longer than at the server, and running goes up and down like a saw",
          lambda d: d.summary.client_ttft_p99 - d.summary.ttft_p99 > 1,
          lambda d: f"p99 TTFT {d.summary.client_ttft_p99:.1f} s at the client and {d.summary.ttft_p99:.1f} s at the "
                    "server"),
    Cause("oversized", "The head of the queue needs more KV blocks than there are",
          "nothing runs, the KV cache is empty, and the queue grows without end",
          lambda d: _silent(d) and d.series["running"][-1] == 0 and d.series["waiting"][-1] > 0,
          lambda d: f"at the end {d.series['running'][-1]:.0f} running, {d.series['waiting'][-1]:.0f} waiting, KV use "
                    f"{d.series['kv_usage'][-1]:.0%}; the last token came {HORIZON - d.summary.last_token:.0f} s ago"),
    Cause("dead_engine", "The engine has stopped, though its web server answers",
          "no token comes any more, and all gauges stand still at what they last were",
          lambda d: _silent(d) and d.series["running"][-1] > 0,
          lambda d: f"at the end {d.series['running'][-1]:.0f} running, {d.series['waiting'][-1]:.0f} waiting; the "
                    f"last token came {HORIZON - d.summary.last_token:.0f} s ago"),
    Cause("misread_benchmark", "The benchmark sends one request at a time",
          "exactly one request runs at every scrape, and none waits: whoever sends waits for each answer",
          _alone,
          lambda d: f"running between {d.series['running'].min():.0f} and {d.series['running'].max():.0f}, at most "
                    f"{d.series['waiting'].max():.0f} waiting"),
    Cause("under_load", "There is more hardware than work",
          "few run, their number comes and goes, nobody waits, and answers are quick",
          lambda d: (not d.series["waiting"].any() and d.summary.running_max < 0.1 * d.cap and not _alone(d)
                     and not _silent(d) and d.summary.tokens_per_second < 200),
          lambda d: f"running between {d.series['running'].min():.0f} and {d.series['running'].max():.0f} of {d.cap} "
                    f"on {many(d.replicas, 'replica')}, at most {d.series['waiting'].max():.0f} waiting"
                    f"; p99 TTFT {d.summary.client_ttft_p99:.2f} s"),
    Cause("prefix_flattery", "The tests used repeated prompts, which the prefix cache had",
          "prefix-cache hits fall, and from then on TTFT climbs",
          _forgot,
          lambda d: f"prefix-cache hits {d.summary.cache_hits_first:.0%} in the first seconds and "
                    f"{d.summary.cache_hits_last:.0%} in the last; p99 TTFT {d.summary.client_ttft_p99:.1f} s"),
    Cause("full_batch", "The batch is fuller than the ITL target allows",
          "even the median ITL is above the target, nobody waits, and no limit of the engine is reached",
          lambda d: not _waits(d) and d.summary.itl_p50 > 0.040,
          lambda d: f"{_itl(d)}; {_of_cap(d)}"),
    Cause("long_prompts", "Long prompts go into single, long steps",
          "the median ITL is fine, the p95 is many times that, and nobody is preempted",
          lambda d: (not _waits(d) and d.summary.itl_p95 > 0.040 and d.summary.itl_p50 < 0.020
                     and not d.summary.computed_again >= 0.05 and not d.summary.preemptions),
          lambda d: f"{_itl(d)}; {d.summary.tokens_per_step:.0f} tokens a step on average, "
                    f"{d.summary.preemptions} preemptions"),
)}
