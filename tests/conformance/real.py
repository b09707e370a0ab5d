"""vLLM's own Scheduler, driven without a server, a model or a GPU, and counted while it runs.

Source of every name here: vLLM 0.32, v1/core/sched/scheduler.py and v1/core/kv_cache_manager.py.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1")

import torch  # the environment comes first
import vllm
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from labs import knobs, workload
from labs.blocks import blocks_for
from tests.conformance.replay import Step

logging.disable(logging.WARNING)
VERSION = vllm.__version__
EOS, STOP, OTHER = 2, 7, 3  # token ids
MODEL = dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=64, intermediate_size=128,
             num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=256,
             max_position_embeddings=8192, torch_dtype="float32")  # fmt: skip


@contextmanager
def model_folder() -> Iterator[str]:
    """A folder with the config.json of a tiny model; no weights are ever loaded."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        yield folder


def make_scheduler(config: knobs.SchedulerConfig, model: str) -> Scheduler:
    """vLLM's scheduler with our settings: synchronous, prefix caching off, one full-attention group."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "policy", "enable_chunked_prefill",
             "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive", "max_num_active_seqs",
             "scheduler_reserve_full_isl", "watermark")  # fmt: skip
    settings = {name: getattr(config, name) for name in names}
    cache = CacheConfig(block_size=config.block_size, enable_prefix_caching=False)
    cache.num_gpu_blocks = config.num_gpu_blocks
    everything = VllmConfig(
        scheduler_config=SchedulerConfig(**settings, async_scheduling=False, is_encoder_decoder=False),
        model_config=ModelConfig(model, skip_tokenizer_init=True, max_model_len=config.max_model_len),
        cache_config=cache,
    )
    spec = FullAttentionSpec(block_size=config.block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(config.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    return Scheduler(
        vllm_config=everything, kv_cache_config=blocks, block_size=config.block_size,
        structured_output_manager=StructuredOutputManager(everything),
    )  # fmt: skip


def never_fits(config: knobs.SchedulerConfig, request: workload.Request) -> str | None:
    """Why a request must not reach vLLM's scheduler: its front end refuses the first kind, the second waits for ever.

    Said here in its own words, so that the refusals of labs are compared too.
    """
    if request.prompt_tokens > config.max_model_len - 1:
        return "prompt too long"
    fed = min(request.prompt_tokens + request.output_tokens - 1, config.max_model_len - 1)
    return "too few KV blocks" if -(-fed // config.block_size) > config.num_gpu_blocks - 1 else None


def as_vllm(request: workload.Request) -> Request:
    """The request as vLLM holds it."""
    params = SamplingParams(max_tokens=request.output_tokens, stop_token_ids=[STOP])
    params.update_from_generation_config({}, EOS)
    return Request(
        request_id=request.request_id, prompt_token_ids=[1] * request.prompt_tokens, sampling_params=params,
        pooling_params=None, arrival_time=request.arrival, priority=request.priority,
    )  # fmt: skip


class Real:
    """vLLM's scheduler behind the calls of a `Driver`; `hits` counts which rules it ran into."""

    def __init__(self, config: knobs.SchedulerConfig, model: str, hits: Counter[str] | None = None,
                 refuse: bool = True) -> None:  # fmt: skip
        self.config, self.refuse, self.hits = config, refuse, Counter() if hits is None else hits
        self.scheduler = make_scheduler(config, model)
        self.preempted: list[Request] = []
        self.granted: list[Request] = []
        self.asking: Request | None = None
        self.refused: dict[str, Any] | None = None
        self._listen()

    def _listen(self) -> None:
        """Note every preemption in its order, and every call for blocks."""
        preempt, allocate = self.scheduler._preempt_request, self.scheduler.kv_cache_manager.allocate_slots

        def noted_preempt(request: Request, *rest: Any, **named: Any) -> None:
            self._count_victim(request)
            self.preempted.append(request)
            preempt(request, *rest, **named)

        def noted_allocate(request: Request, tokens: int, **named: Any) -> Any:
            self.asking, free = request, self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            given = allocate(request, tokens, **named)
            if given is not None:
                self.granted.append(request)
            elif request.status != RequestStatus.RUNNING:
                self.refused = {"request": request, "tokens": tokens, "free": free}
            return given

        self.scheduler._preempt_request = noted_preempt
        self.scheduler.kv_cache_manager.allocate_slots = noted_allocate

    def add(self, request: workload.Request) -> None:
        """Queue a request, unless it could never be served."""
        if self.refuse and (reason := never_fits(self.config, request)):
            self.hits[f"refused on arrival: {reason}"] += 1
        else:
            self.scheduler.add_request(as_vllm(request))

    def abort(self, request_id: str) -> None:
        """Take a request out, as the API process does when a client goes away."""
        request = self.scheduler.requests.get(request_id)
        if request is not None:
            self.hits["abort, " + ("running" if request.status == RequestStatus.RUNNING else "waiting")] += 1
            self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def step(self, stops: Mapping[str, int], aborts: Iterable[str]) -> Step:
        """One step of vLLM's: schedule, abort during the forward pass, update."""
        s = self.scheduler
        self.preempted, self.granted, self.refused = [], [], None
        present = len(s.requests)
        output = s.schedule()
        scheduled = tuple(output.num_scheduled_tokens.items())
        self._count_step(scheduled, present)
        running, waiting = tuple(r.request_id for r in s.running), tuple(r.request_id for r in s.waiting)
        usage = s.get_kv_cache_usage()
        tables = {i: tuple(s.kv_cache_manager.get_block_ids(i)[0]) for i in running}
        for request_id in aborts:
            self.hits["abort of a request scheduled in that step"] += request_id in output.num_scheduled_tokens
            self.abort(request_id)
        made, sampled = self._sample([i for i, _ in scheduled], stops)
        finished = self._update(output, sampled)
        preempted = tuple(r.request_id for r in self.preempted)
        return Step(scheduled, preempted, running, waiting, usage, tables, made, finished)

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Each request in queue order, its computed and its output tokens."""
        queued = [*self.scheduler.running, *self.scheduler.waiting]
        return tuple((r.request_id, r.num_computed_tokens, r.num_output_tokens) for r in queued)

    def _sample(self, ids: list[str], stops: Mapping[str, int]) -> tuple[tuple[str, ...], list[list[int]]]:
        """Who makes a token in this forward pass, and the tokens: a stop token, in one of two kinds, where drawn."""
        made, sampled = [], []
        for place, request_id in enumerate(ids):
            request = self.scheduler.requests.get(request_id)
            if request is None or request.num_computed_tokens < request.num_tokens:
                sampled.append([] if request is not None else [OTHER])
                continue
            made.append(request_id)
            stop = stops.get(request_id) == request.num_output_tokens + 1
            sampled.append([(EOS, STOP)[(place + request.num_tokens) % 2] if stop else OTHER])
        return tuple(made), sampled

    def _update(self, output: Any, sampled: list[list[int]]) -> tuple[str, ...]:
        """Apply the forward pass; who finished, in order."""
        ids = list(output.num_scheduled_tokens)
        requests = dict(self.scheduler.requests)
        model_output = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={i: place for place, i in enumerate(ids)}, sampled_token_ids=sampled,
            logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
        )  # fmt: skip
        groups = self.scheduler.update_from_output(output, model_output)
        outputs = [one for group in groups.values() for one in group.outputs]
        finished = tuple(one.request_id for one in outputs if one.finish_reason is not None)
        for request_id in finished:
            self._count_end(requests[request_id])
        return finished

    # ---- what is counted

    def _count_victim(self, victim: Request) -> None:
        """A preemption: of whom, and how it was chosen."""
        self.hits["preemption"] += 1
        self.hits["self-preemption"] += victim is self.asking
        self.hits["victim already scheduled in that step (refund)"] += victim in self.granted
        if self.config.policy == "priority":
            rivals = [r for r in self.scheduler.running if r is not victim]
            same = [r for r in rivals if (r.priority, r.arrival_time) == (victim.priority, victim.arrival_time)]
            self.hits["victim chosen among equals"] += bool(same)

    def _count_end(self, request: Request) -> None:
        """How a request ended by itself."""
        if request.status == RequestStatus.FINISHED_STOPPED:
            end = "stop token" if request.stop_reason is not None else "EOS"
        else:
            end = "max_tokens" if request.num_output_tokens >= request.max_tokens else "max_model_len"
        self.hits[f"end by {end}"] += 1

    def _count_step(self, scheduled: tuple[tuple[str, int], ...], present: int) -> None:
        """What cut a request short in this step, and what ended admission."""
        self.hits["step"] += 1
        c, threshold = self.config, self._threshold(present)
        fixed = c.long_prefill_token_threshold
        for request_id, n in scheduled:
            request = self.scheduler.requests[request_id]
            if request.num_computed_tokens == request.num_tokens:
                continue
            cut = "threshold" if n == threshold else "budget"
            self.hits[f"chunk cut by the {cut}"] += 1
            self.hits["chunk cut by an adaptive threshold above the fixed one"] += cut == "threshold" and n > fixed
        self.hits["threshold lifted for a request alone"] += present == 1 and any(n > fixed > 0 for _, n in scheduled)
        if self.scheduler.waiting:
            left = c.max_num_batched_tokens - sum(n for _, n in scheduled)
            self.hits["admission ended by: " + self._ended_by(left, threshold)] += 1

    def _threshold(self, present: int) -> int:
        """The long-prefill threshold in force, 0 if none."""
        c = self.config
        adaptive = c.max_num_batched_tokens // max(1, present) if c.long_prefill_token_threshold_adaptive else 0
        return max(c.long_prefill_token_threshold, adaptive) if c.long_prefill_token_threshold and present > 1 else 0

    def _ended_by(self, left: int, threshold: int) -> str:
        """Why the head of the queue still waits."""
        c, head, running = self.config, next(iter(self.scheduler.waiting)), len(self.scheduler.running)
        if self.preempted:
            return "a preemption in that step"
        if self.refused is not None:
            return self._blocks_short(c, **self.refused)
        if left == 0:
            return "token budget"
        if running >= (c.max_num_active_seqs or c.max_num_seqs):
            return "max_num_active_seqs" if running < c.max_num_seqs else "sequence cap"
        n = min(head.num_tokens, threshold or head.num_tokens)
        return "chunking off" if n > left and not c.enable_chunked_prefill else "unknown"

    @staticmethod
    def _blocks_short(c: knobs.SchedulerConfig, request: Request, tokens: int, free: int) -> str:
        """Which of the two block checks refused, or whether only the watermark stood in the way."""
        chunk, full = (blocks_for(n, c.block_size) for n in (tokens, request.num_tokens))
        gate = c.scheduler_reserve_full_isl
        if max(chunk, full if gate else 0) <= free:
            return "watermark"
        return "full-prompt gate" if chunk <= free else "KV blocks"
