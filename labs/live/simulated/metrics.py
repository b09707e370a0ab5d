"""What the simulated server's /metrics page says, under vLLM's names, so that one reader reads both.

Source: vLLM 0.32, v1/metrics/loggers.py and buckets.py. As there, a step counts when it has made a token, and a
prompt when its first token is out. Unlike there, the gauges are those of the moment, even while nothing runs, and
a preemption counts at once, not when its victim has made its next token.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from labs.scheduler import SchedulerConfig

if TYPE_CHECKING:
    from labs.live.simulated.engine import Engine, Job

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
          2560)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_TIMES = (1, 2, 3, 4, 5, 10, 20)
_GAUGES = {
    "num_requests_running": "Requests in the step that is being computed (simulated).",
    "num_requests_waiting": "Requests in the queue (simulated).",
    "kv_cache_usage_perc": "Share of the KV blocks in use, 1 is all of them (simulated).",
}
_COUNTERS = {
    "num_preemptions": "Sequences that lost their blocks, each time counted (simulated).",
    "prompt_tokens": "Prompt tokens computed (simulated).",
    "generation_tokens": "Tokens made (simulated).",
    "prefix_cache_queries": "Tokens looked up in the prefix cache; there is none here (simulated).",
    "prefix_cache_hits": "Tokens found in the prefix cache; there is none here (simulated).",
}
_HISTOGRAMS = {
    "iteration_tokens_total": ("Tokens of a step that made at least one (simulated).", _STEP_TOKENS),
    "time_to_first_token_seconds": ("Seconds from arrival to the first token (simulated).", _FIRST),
    "inter_token_latency_seconds": ("Seconds from one token to the next (simulated).", _BETWEEN),
    "request_time_per_output_token_seconds": ("Seconds a token after the first, per request (simulated).", _BETWEEN),
    "e2e_request_latency_seconds": ("Seconds from arrival to the last token (simulated).", _LATENCY),
    "request_queue_time_seconds": ("Seconds from arrival to the first step (simulated).", _LATENCY),
    "request_prefill_time_seconds": ("Seconds from the first step to the first token (simulated).", _LATENCY),
    "request_decode_time_seconds": ("Seconds from the first token to the last (simulated).", _LATENCY),
    "request_inference_time_seconds": ("Seconds from the first step to the last token (simulated).", _LATENCY),
    "request_num_preemptions": ("Times that a request lost its blocks (simulated).", _TIMES),
}
_TOKEN_HISTOGRAMS = {
    "request_prompt_tokens": "Prompt tokens of a request (simulated).",
    "request_generation_tokens": "Tokens made for a request (simulated).",
    "request_params_max_tokens": "The max_tokens of a request (simulated).",
}


def _one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to `most`."""
    return [m * 10**e for e in range(len(str(most))) for m in (1, 2, 5) if m * 10**e <= most]


class Statistics:
    """Counters, gauges and histograms, in a registry of their own."""

    def __init__(self, model: str, config: SchedulerConfig) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"engine": "0", "model_name": model}
        self._gauges = {n: self._made(Gauge, n, text) for n, text in _GAUGES.items()}
        self._counters = {n: self._made(Counter, n, text) for n, text in _COUNTERS.items()}
        sizes = _one_two_five(config.max_model_len)
        kinds = _HISTOGRAMS | {n: (text, sizes) for n, text in _TOKEN_HISTOGRAMS.items()}
        self._histograms = {n: self._made(Histogram, n, text, buckets=b) for n, (text, b) in kinds.items()}
        self._waiting = self._family(Gauge, "num_requests_waiting_by_reason", "Queued requests by reason (simulated).",
                                     "reason", ("capacity", "deferred"))
        self._success = self._family(Counter, "request_success", "Requests done, by how they ended (simulated).",
                                     "finished_reason", ("stop", "length", "abort", "error", "repetition"))
        limits = Counter("vllm:admission_rejections", "Requests refused by a queue limit (simulated).",
                         ["model_name", "reason"], registry=self.registry)
        self._rejections = {r: limits.labels(model_name=model, reason=r)
                            for r in ("max_num_queued_reqs", "max_num_queued_tokens")}
        facts = {"block_size": config.block_size, "num_gpu_blocks": config.num_gpu_blocks,
                 "enable_prefix_caching": False, "engine": 0, "simulated": True}
        info = Gauge("vllm:cache_config_info", "Settings of the KV cache (simulated).", list(facts),
                     registry=self.registry)
        info.labels(**{name: str(fact) for name, fact in facts.items()}).set(1)

    def _made(self, kind: type, name: str, text: str, **options: object) -> object:
        """A metric with an engine and a model."""
        family = kind(f"vllm:{name}", text, ["model_name", "engine"], registry=self.registry, **options)
        return family.labels(**self._labels)

    def _family(self, kind: type, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, object]:
        """A metric with one more label, and every value that it may take."""
        family = kind(f"vllm:{name}", text, ["model_name", "engine", label], registry=self.registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def rejected(self, reason: str) -> None:
        """A queue limit refused a request."""
        self._rejections[reason].inc()

    def step(self, preempted: int, made: Sequence[tuple[Job, float]], now: float) -> None:
        """A step has ended: for each job with a new token, the time of the token before, NaN for a first one."""
        self._counters["num_preemptions"].inc(preempted)
        if not made:
            return
        prompts = sum(job.request.prompt_tokens for job, _ in made if job.tokens == 1)
        self._counters["prompt_tokens"].inc(prompts)
        self._counters["generation_tokens"].inc(len(made))
        self._histograms["iteration_tokens_total"].observe(prompts + len(made))
        for job, before in made:
            if job.tokens == 1:
                self._histograms["time_to_first_token_seconds"].observe(now - job.arrived)
            else:
                self._histograms["inter_token_latency_seconds"].observe(now - before)
            if job.finish_reason:
                self._finished(job)

    def _finished(self, job: Job) -> None:
        """A request is done."""
        decode = job.last_token - job.first_token
        self._success[job.finish_reason].inc()
        for name, value in {
            "e2e_request_latency_seconds": job.last_token - job.arrived,
            "request_queue_time_seconds": job.scheduled - job.arrived,
            "request_prefill_time_seconds": job.first_token - job.scheduled,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": job.last_token - job.scheduled,
            "request_time_per_output_token_seconds": decode / (job.tokens - 1) if job.tokens > 1 else 0,
            "request_num_preemptions": job.preemptions,
            "request_prompt_tokens": job.request.prompt_tokens,
            "request_generation_tokens": job.tokens,
            "request_params_max_tokens": job.request.output_tokens,
        }.items():
            self._histograms[name].observe(value)

    def page(self, engine: Engine) -> bytes:
        """The text of /metrics, with the gauges of this moment."""
        self._gauges["num_requests_running"].set(engine.running)
        self._gauges["num_requests_waiting"].set(engine.waiting)
        self._gauges["kv_cache_usage_perc"].set(engine.kv_usage)
        self._waiting["capacity"].set(engine.waiting)
        return generate_latest(self.registry)
