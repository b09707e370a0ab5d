"""Each rule of the scheduler broken on purpose, one at a time: the comparison must tell every one from vLLM.

A variant is labs/scheduler.py (or the block pool under it) with a few words replaced. If the words are no longer
there, the variant can't be made, and says so.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from labs.scheduler import Scheduler

LABS = Path(__file__).resolve().parents[2] / "labs"


@dataclass(frozen=True)
class Broken:
    """`edits` are pairs of words in `module`: what stands there, and what stands there in the variant."""

    rule: str
    how: str
    edits: tuple[tuple[str, str], ...]
    module: str = "scheduler"

    def scheduler(self) -> type[Scheduler]:
        """The scheduler with this rule broken. Raises ValueError if the words to replace are not there just once."""
        source = (LABS / f"{self.module}.py").read_text(encoding="utf-8")
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ValueError(f"rule {self.rule}, {self.how}: {old!r} is there {source.count(old)} times, not once")
            source = source.replace(old, new)
        variant = _module(self.module, source)
        if self.module == "scheduler":
            return variant.Scheduler
        whole = _module("scheduler", (LABS / "scheduler.py").read_text(encoding="utf-8"))
        whole.BlockPool = variant.BlockPool
        return whole.Scheduler


def _module(name: str, source: str) -> ModuleType:
    """A module of its own, made from `source`."""
    module = ModuleType(f"broken_{name}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(source, f"<{name}, broken>", "exec"), module.__dict__)
    return module


def _row(rule: str, how: str, *edits: str, module: str = "scheduler") -> Broken:
    """A row, its edits given in turn: old, new, old, new."""
    return Broken(rule, how, tuple(zip(edits[::2], edits[1::2], strict=True)), module)


_RUN = "budget, preempted = self._schedule_running(plan, self.config.max_num_batched_tokens, threshold)"
_LIMIT = 'limit = "KV blocks" if preempted else self._admit(plan, budget, threshold)'
_ADMIT_FIRST = """early: dict[str, int] = {}
        limit = self._admit(early, self.config.max_num_batched_tokens, threshold)
        for request_id, n in early.items():
            self._sequences[request_id].computed += n
        left = self.config.max_num_batched_tokens - sum(early.values())
        budget, preempted = self._schedule_running(plan, left, threshold)"""
_N = "n = min(sequence.tokens - sequence.computed, threshold, budget,"
_GROW = "while n > 0 and not self.pool.grow(sequence.id, sequence.computed + n):"
_REFUND = "budget += plan.pop(victim.id, 0)"
_SELF = "if victim is sequence:\n                    return budget, preempted"
_MAX = "return max(self._running, key=lambda s: s.urgency[:2])"
_GATE = "if self.pool.missing(sequence.id, sequence.tokens) > room and self.config.scheduler_reserve_full_isl:"
_RESERVE = "reserve = int(self.config.watermark * self.config.num_gpu_blocks) if self._running else 0"
_RETIRE = "for request_id in finished:\n            self.abort(request_id)"
_MADE = "if sequence is None or sequence.computed < sequence.tokens:"
_LATE = """for request_id in self.__dict__.pop("late", ()):
            self.pool.release(request_id)
        self.late = finished
        for request_id in finished:
            self._running.remove(self._sequences.pop(request_id))"""
_AGAIN = """def _again(sequence: Sequence) -> bool:
    sequence.computed -= 1
    return True


"""
_STEAL = """if len(self._running) >= self.config.active_cap:
                if self.config.policy == "priority" and sequence.urgency < self._victim().urgency:
                    victim = self._victim()
                    budget += plan.pop(victim.id, 0)
                    self._preempt(victim)
                    continue"""
_SKIP = """if self.pool.missing(sequence.id, n) > room:
                later = [s for s in self._waiting[1:] if self.pool.missing(s.id, s.tokens) <= room]
                if later:
                    self._waiting.remove(later[0])
                    self._waiting.insert(0, later[0])
                    continue
                return"""

BROKEN: list[Broken] = [
    _row("1", "waiting requests before running ones", _RUN, _ADMIT_FIRST, _LIMIT, "whole = {**early, **plan}",
         "return StepPlan(plan, tuple", "return StepPlan(whole, tuple"),
    _row("1", "the newest running request first", "sequence = self._running[i]", "sequence = self._running[-1 - i]"),
    _row("1", "a running prefill not cut to what is left of the budget", _N, _N.replace(" budget,", "")),
    _row("1", "room for one more token kept than max_model_len asks",
         "self.config.max_model_len - sequence.computed - 1)", "self.config.max_model_len - sequence.computed - 2)"),
    _row("2", "no threshold at all", "if threshold == 0 or present <= 1:", "if True:"),
    _row("2", "the threshold holds for a request alone", "threshold == 0 or present <= 1", "threshold == 0"),
    _row("2", "the threshold lifted while nobody waits", "len(self._sequences), self", "len(self._waiting) + 1, self"),
    _row("2", "an adaptive threshold ignored",
         "if self.config.long_prefill_token_threshold_adaptive:", "if False:"),
    _row("2", "an adaptive threshold without its floor", "return max(threshold, self", "return max(1, self"),
    _row("2", "the fair share rounded up", "self.config.max_num_batched_tokens // present",
         "-(-self.config.max_num_batched_tokens // present)"),
    _row("2", "the threshold not applied to running requests", _N, _N.replace(" threshold,", "")),
    _row("3", "no null block: every block is given", "deque(range(1, num_gpu_blocks))", "deque(range(num_gpu_blocks))",
         "1 - self.free / (self.num_gpu_blocks - 1)", "max(0, 1 - self.free / (self.num_gpu_blocks - 1))",
         module="blocks"),
    _row("3", "a block kept for the next token", _GROW, _GROW.replace("computed + n)", "computed + n + 1)")),
    _row("3", "whole blocks only: the last part is not counted", "return -(-tokens // block_size)",
         "return tokens // block_size", module="blocks"),
    _row("3", "the whole prompt's blocks taken at admission", "self.pool.grow(sequence.id, n)",
         "self.pool.grow(sequence.id, sequence.tokens)"),
    _row("3", "freed blocks reused last", "self._free.extendleft(", "self._free.extend(", module="blocks"),
    _row("4", "fcfs: the first of running is the victim", "return self._running[-1]", "return self._running[0]"),
    _row("4", "priority: the last of running is the victim", _MAX, "return self._running[-1]"),
    _row("4", "priority: the most urgent is the victim", _MAX, _MAX.replace("max(", "min(")),
    _row("4", "priority: the arrival does not count", _MAX, _MAX.replace("urgency[:2]", "urgency[:1]")),
    _row("4", "priority: the last of several equals", _MAX,
         _MAX.replace("max(self._running", "max(self._running[::-1]")),
    _row("4", "priority: the id decides among equals", _MAX, _MAX.replace("[:2]", "")),
    _row("4", "a victim keeps what it got in that step: no refund", _REFUND, "plan.pop(victim.id, 0)"),
    _row("4", "tokens computed anew after a refund", _GROW,
         "while n > 0 and not self.pool.grow(sequence.id, sequence.computed + (n := min(sequence.tokens - "
         "sequence.computed, threshold, budget))):"),
    _row("4", "a self-preempter does not end the scan", _SELF,
         _SELF.replace("return budget, preempted", "n, i = 0, i - 1")),
    _row("4", "the next in the list skipped after an earlier victim", "i -= self._running.index(victim) < i", "pass"),
    _row("4", "whoever lacks blocks preempts itself", "victim = self._victim()", "victim = sequence"),
    _row("5", "what was computed is kept on preemption", "victim.computed = 0", "pass"),
    _row("5", "the output is lost on preemption", "victim.computed = 0", "victim.computed = victim.output = 0"),
    _row("5", "fcfs: a victim goes to the back", "self._enqueue(victim, 0)",
         "self._enqueue(victim, len(self._waiting))"),
    _row("5", "priority: a victim goes to the front", "self._enqueue(victim, 0)", "self._waiting.insert(0, victim)"),
    _row("5", "priority: the id does not order the heap", "insort(self._waiting, sequence, key=lambda s: s.urgency)",
         "insort(self._waiting, sequence, key=lambda s: s.urgency[:2])"),
    _row("5", "priority: the queue in order of arrival", "insort(self._waiting, sequence, key=lambda s: s.urgency)",
         "insort(self._waiting, sequence, key=lambda s: s.urgency[1:])"),
    _row("6", "admission in a step that preempted", _LIMIT, _LIMIT.replace("if preempted", "if False")),
    _row("6", "smaller requests pass a head that does not fit",
         "if self.pool.missing(sequence.id, n) > room:\n                return", _SKIP),
    _row("6", "max_num_active_seqs ignored", "self.config.active_cap", "self.config.max_num_seqs"),
    _row("6", "an urgent request takes a slot", "if len(self._running) >= self.config.active_cap:", _STEAL),
    _row("7", "chunking off: the head is chunked all the same",
         "if n > budget and not self.config.enable_chunked_prefill:", "if False:"),
    _row("7", "chunking on: a head too long for the budget waits",
         "if n > budget and not self.config.enable_chunked_prefill:", "if n > budget:"),
    _row("7", "chunking off: compared before the threshold cuts", "if n > budget and not",
         "if sequence.tokens > budget and not"),
    _row("7", "the threshold not applied at admission", "n = min(sequence.tokens, threshold)", "n = sequence.tokens"),
    _row("8", "no full-prompt gate", _GATE, "if False:"),
    _row("8", "the gate cannot be turned off", _GATE, _GATE.replace(" and self.config.scheduler_reserve_full_isl", "")),
    _row("8", "the gate counts max_tokens", _GATE,
         _GATE.replace("sequence.tokens", "min(self.config.max_model_len, sequence.request.prompt_tokens + "
                       "sequence.request.output_tokens)")),
    _row("8", "the gate counts the prompt only", _GATE,
         _GATE.replace("sequence.tokens", "sequence.request.prompt_tokens")),
    _row("8", "the gate without the watermark", _GATE, _GATE.replace("> room", "> self.pool.free")),
    _row("8", "no watermark", _RESERVE, "reserve = 0"),
    _row("8", "a watermark though nothing runs", _RESERVE, _RESERVE.replace(" if self._running else 0", "")),
    _row("8", "the watermark rounded up", _RESERVE,
         "reserve = -int(-self.config.watermark * self.config.num_gpu_blocks // 1) if self._running else 0"),
    _row("8", "running requests leave the watermark free too", _GROW,
         "while n > 0 and (self.pool.missing(sequence.id, sequence.computed + n) > self.pool.free"
         " - int(self.config.watermark * self.config.num_gpu_blocks)"
         " or not self.pool.grow(sequence.id, sequence.computed + n)):"),
    _row("9", "every prefill chunk makes a token", _MADE, "if sequence is None:"),
    _row("9", "the last prefill chunk makes no token",
         f"{_MADE}\n", f"{_MADE[:-1]} or (plan.num_scheduled_tokens[request_id] > 1 and _again(sequence)):\n",
         "class Scheduler:", f"{_AGAIN}class Scheduler:"),
    _row("10", "one token more than max_tokens", "sequence.output >= sequence.request.output_tokens or",
         "sequence.output > sequence.request.output_tokens or"),
    _row("10", "max_model_len does not end a request", " or sequence.tokens >= self.config.max_model_len", ""),
    _row("10", "one token less than max_model_len", "sequence.tokens >= self.config.max_model_len",
         "sequence.tokens >= self.config.max_model_len - 1"),
    _row("10", "a stop token does not end a request", "if ended or request_id in stopped:", "if ended:"),
    _row("10", "blocks freed a step late", _RETIRE, _LATE),
    _row("10", "an aborted request keeps its blocks", "self.pool.release(request_id)", "pass"),
]
