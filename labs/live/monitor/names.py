"""Under which names the numbers stand on a /metrics page.

Source: vLLM 0.32, v1/metrics/loggers.py, and the names that earlier versions used. Ray Serve writes `ray_vllm_...`.
"""
from __future__ import annotations

import re
from typing import NamedTuple

# Our name, then the names on the page without "vllm:", the newest first. If a page has several, the newest counts.
GAUGES = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "waiting_by_reason": ("num_requests_waiting_by_reason",),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "cache_config": ("cache_config_info",),
}
COUNTERS = {  # with or without "_total"
    "preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens",),
    "generation_tokens": ("generation_tokens",),
    "prefix_hits": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "prefix_queries": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "finished": ("request_success",),
    "rejections": ("admission_rejections",),
}
HISTOGRAMS = {
    "iteration_tokens": ("iteration_tokens_total",),
    "ttft": ("time_to_first_token_seconds",),
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot": ("request_time_per_output_token_seconds",),
    "e2e": ("e2e_request_latency_seconds",),
    "queue_time": ("request_queue_time_seconds", "time_in_queue_requests"),
    "prompt_lengths": ("request_prompt_tokens",),
    "generation_lengths": ("request_generation_tokens",),
}
CREATED = "created"  # when a counter was made, which is when its server began
DETAIL = {"waiting_by_reason": "reason", "rejections": "reason", "finished": "finished_reason"}
PREFIX = re.compile(r"^(?:ray_)?vllm[:_]")
LINE_NAME = re.compile(r"^(?:# (?:TYPE|HELP) )?((?:ray_)?vllm[:_]\w+)")


class Place(NamedTuple):
    """Where a name on the page belongs: ours, how old the name is (0 is the newest), and which part of it."""

    name: str
    age: int
    part: str = ""


class Sample(NamedTuple):
    """What a number is of: our name, the part, who reports it (its labels), and a bucket's bound or a reason."""

    name: str
    part: str
    source: tuple[tuple[str, str], ...]
    detail: str = ""


def _places() -> dict[str, Place]:
    """Every name that may stand on a page."""
    places = {alias: Place(name, age) for name, aliases in GAUGES.items() for age, alias in enumerate(aliases)}
    for name, aliases in COUNTERS.items():
        for age, alias in enumerate(aliases):
            places |= {f"{alias}_total": Place(name, 2 * age), alias: Place(name, 2 * age + 1),
                       f"{alias}_created": Place(CREATED, 0, name)}
    for name, aliases in HISTOGRAMS.items():
        for age, alias in enumerate(aliases):
            places |= {f"{alias}_{part}": Place(name, age, part) for part in ("bucket", "sum", "count")}
    return places


PLACES = _places()
