"""The settings of the scheduler, by vLLM's names, with the combinations that vLLM refuses refused."""
from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from labs.blocks import blocks_for
from labs.workload import Request

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True)
class SchedulerConfig:
    """vLLM's knobs, by vLLM's names.

    `max_num_active_seqs` None means `max_num_seqs`; `watermark` is a share of all blocks.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int = 16
    max_model_len: int = 2048
    policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    max_num_active_seqs: int | None = None
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("max_num_seqs", 1), ("max_num_batched_tokens", self.max_num_seqs), ("num_gpu_blocks", 2),
                            ("block_size", 1), ("max_model_len", 2), ("long_prefill_token_threshold", 0)):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError("with enable_chunked_prefill off, max_num_batched_tokens must be at least max_model_len")
        if self.long_prefill_token_threshold > self.max_model_len:
            raise ValueError("long_prefill_token_threshold must be at most max_model_len, "
                             f"got {self.long_prefill_token_threshold}")
        if self.max_num_active_seqs is not None and not 1 <= self.max_num_active_seqs <= self.max_num_seqs:
            raise ValueError(f"max_num_active_seqs must lie from 1 to max_num_seqs, got {self.max_num_active_seqs}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be a share from 0 up to 1, got {self.watermark}")

    @property
    def active_cap(self) -> int:
        """The most requests that may run at once."""
        return self.max_num_active_seqs or self.max_num_seqs

    def refusal(self, request: Request) -> str | None:
        """Why `request` could never be served; None if it could. vLLM lets the second kind wait for ever."""
        if request.prompt_tokens >= self.max_model_len:
            return (f"the prompt of {request.prompt_tokens} tokens leaves no room for an answer within max_model_len "
                    f"{self.max_model_len}")
        # The last token is never fed back, so its keys and values need no room.
        longest = min(request.prompt_tokens + request.output_tokens, self.max_model_len) - 1
        need, blocks = blocks_for(longest, self.block_size), self.num_gpu_blocks - 1
        return f"the request needs {need} KV blocks, more than the {blocks} there are" if need > blocks else None
