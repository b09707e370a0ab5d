"""vLLM V1's scheduling rules: `schedule()` decides and returns a plan, `update()` applies one forward pass.

Source: vLLM 0.32, v1/core/sched/scheduler.py. Synchronous scheduling, prefix caching off, one full-attention
group, no speculative decoding. tests/ drive the real Scheduler beside this one and compare every step.
"""
from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass

from labs.blocks import BlockPool
from labs.knobs import SchedulerConfig
from labs.workload import Request

__all__ = ["LIMITS", "Scheduler", "SchedulerConfig", "Sequence", "StepPlan"]
LIMITS = ("none", "sequence cap", "token budget", "KV blocks", "full-prompt gate")


@dataclass(eq=False)
class Sequence:
    """A request inside the scheduler: `output` tokens made so far, and how many of its tokens are `computed`."""

    request: Request
    output: int = 0
    computed: int = 0

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def tokens(self) -> int:
        """Prompt and output tokens so far: what must be computed before the next one can be made."""
        return self.request.prompt_tokens + self.output

    @property
    def urgency(self) -> tuple[int, float, str]:
        """Under the priority policy, the smallest goes first."""
        return self.request.priority, self.request.arrival, self.id


@dataclass(frozen=True)
class StepPlan:
    """One step: tokens by request id in scheduling order, who lost its blocks, and what held the rest back."""

    num_scheduled_tokens: dict[str, int]
    preempted: tuple[str, ...]
    binding_limit: str


class Scheduler:
    """Two queues and a block pool. The rules are numbered as at the end of notebook 4."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_gpu_blocks, config.block_size)
        self._running: list[Sequence] = []
        self._waiting: list[Sequence] = []
        self._sequences: dict[str, Sequence] = {}

    @property
    def sequences(self) -> list[Sequence]:
        """Every request that is here: the running ones in list order, then the waiting ones."""
        return [*self._running, *self._waiting]

    @property
    def running(self) -> list[str]:
        """Ids of the running requests, in list order."""
        return [s.id for s in self._running]

    @property
    def waiting(self) -> list[str]:
        """Ids of the waiting requests, in the order in which they would be admitted."""
        return [s.id for s in self._waiting]

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use."""
        return self.pool.usage

    def add(self, request: Request) -> None:
        """Queue `request`. Raises ValueError, with the reason, if it could never be served."""
        if request.request_id in self._sequences:
            raise ValueError(f"request {request.request_id!r} is already here: give each request an id of its own")
        if reason := self.config.refusal(request):
            raise ValueError(reason)
        sequence = self._sequences[request.request_id] = Sequence(request)
        self._enqueue(sequence, len(self._waiting))

    def abort(self, request_id: str) -> None:
        """Take a request out, running or waiting, and free its blocks; nothing happens if it is not here."""
        sequence = self._sequences.pop(request_id, None)
        if sequence is not None:
            (self._running if sequence in self._running else self._waiting).remove(sequence)
            self.pool.release(request_id)

    def schedule(self) -> StepPlan:
        """Decide the next step: running requests first, then admission."""
        plan: dict[str, int] = {}
        threshold = self._threshold()
        budget, preempted = self._schedule_running(plan, self.config.max_num_batched_tokens, threshold)
        # Rule 6: nobody is admitted in a step that preempted.
        limit = "KV blocks" if preempted else self._admit(plan, budget, threshold)
        for request_id, n in plan.items():  # rule 9
            self._sequences[request_id].computed += n
        return StepPlan(plan, tuple(s.id for s in preempted), limit)

    def update(self, plan: StepPlan, stopped: Collection[str] = ()) -> list[str]:
        """One forward pass over `plan`: return the ids that finished. `stopped` drew a stop token in this pass."""
        finished = []
        for request_id in plan.num_scheduled_tokens:
            sequence = self._sequences.get(request_id)
            if sequence is None or sequence.computed < sequence.tokens:
                continue  # aborted meanwhile, or an unfinished prefill chunk: it makes no token (rule 9)
            sequence.output += 1  # a decode, or the last prefill chunk
            ended = sequence.output >= sequence.request.output_tokens or sequence.tokens >= self.config.max_model_len
            if ended or request_id in stopped:  # rule 10; output_tokens is the request's max_tokens
                finished.append(request_id)
        for request_id in finished:
            self.abort(request_id)  # its blocks are free before the next schedule()
        return finished

    def _threshold(self) -> int:
        """Rule 2: the most tokens that one request may take in this step; the whole budget is no limit."""
        present, threshold = len(self._sequences), self.config.long_prefill_token_threshold
        if threshold == 0 or present <= 1:
            return self.config.max_num_batched_tokens
        if self.config.long_prefill_token_threshold_adaptive:
            return max(threshold, self.config.max_num_batched_tokens // present)
        return threshold

    def _schedule_running(self, plan: dict[str, int], budget: int, threshold: int) -> tuple[int, list[Sequence]]:
        """Rules 1, 3 and 4: fill `plan` in list order, preempting for blocks; return what is left and the victims."""
        preempted: list[Sequence] = []
        i = 0
        while i < len(self._running) and budget > 0:
            sequence = self._running[i]
            n = min(sequence.tokens - sequence.computed, threshold, budget,
                    self.config.max_model_len - sequence.computed - 1)
            while n > 0 and not self.pool.grow(sequence.id, sequence.computed + n):
                victim = self._victim()
                preempted.append(victim)
                i -= self._running.index(victim) < i  # if it stood before i, the others move up by one
                budget += plan.pop(victim.id, 0)  # the refund, if it had its turn in this step; n stays as it is
                self._preempt(victim)
                if victim is sequence:
                    return budget, preempted  # it was its own victim: the scan ends
            if n > 0:
                plan[sequence.id] = n
                budget -= n
            i += 1
        return budget, preempted

    def _victim(self) -> Sequence:
        """Rule 4: the last of running (fcfs), or the first of the least urgent (priority)."""
        if self.config.policy == "fcfs":
            return self._running[-1]
        return max(self._running, key=lambda s: s.urgency[:2])

    def _preempt(self, victim: Sequence) -> None:
        """Rule 5: it loses its blocks and what was computed, keeps its output, and waits (fcfs: at the front)."""
        self._running.remove(victim)
        self.pool.release(victim.id)
        victim.computed = 0
        self._enqueue(victim, 0)

    def _enqueue(self, sequence: Sequence, place: int) -> None:
        """Let it wait: under fcfs at `place`, under priority where its urgency puts it."""
        if self.config.policy == "fcfs":
            self._waiting.insert(place, sequence)
        else:
            insort(self._waiting, sequence, key=lambda s: s.urgency)

    def _admit(self, plan: dict[str, int], budget: int, threshold: int) -> str:
        """Rules 6, 7 and 8: admit from the head of the queue until something forbids it; return what did."""
        while self._waiting:
            sequence = self._waiting[0]
            if budget == 0:
                return "token budget"
            if len(self._running) >= self.config.active_cap:
                return "sequence cap"
            n = min(sequence.tokens, threshold)
            if n > budget and not self.config.enable_chunked_prefill:
                return "token budget"
            n = min(n, budget)
            reserve = int(self.config.watermark * self.config.num_gpu_blocks) if self._running else 0
            room = self.pool.free - reserve
            if self.pool.missing(sequence.id, n) > room:
                return "KV blocks"  # vLLM asks the gate first: that admits the same, only this name would differ
            if self.pool.missing(sequence.id, sequence.tokens) > room and self.config.scheduler_reserve_full_isl:
                return "full-prompt gate"  # prompt and output so far; max_tokens does not count
            self.pool.grow(sequence.id, n)
            self._running.append(self._waiting.pop(0))
            plan[sequence.id] = n
            budget -= n
        unfinished = any(s.computed + plan.get(s.id, 0) < s.tokens for s in self._running)
        return "token budget" if budget == 0 and unfinished else "none"
