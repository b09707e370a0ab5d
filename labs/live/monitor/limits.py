"""What limits a server right now: the table of running against waiting, completed.

"Below the cap with requests waiting" need not mean memory: it may be the token budget, a prompt at the head of the
queue that doesn't fit, or a deferral. The page says which as far as it can, and what it can't tell is said too.
vLLM counts a preemption once the victim has made its next token, so full KV blocks are seen before it.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labs.live.monitor.between import delta
from labs.live.monitor.page import Metrics

LIMITS = ("sequence cap", "at the cap", "KV blocks", "preemption", "token budget", "full-prompt gate", "blocked head",
          "deferred", "under-loaded", "idle", "dead", "unknown")
FULL = 0.9  # share of the KV blocks from which one is likely missing to somebody
BUDGET_SPENT = 0.8  # share of the token budget that the mean step uses, from which it is likely the limit
LONG_PROMPT = 0.5  # share of the KV blocks in use beyond which a long prompt may not fit, where sizes are not known


@dataclass(frozen=True)
class Caps:
    """The settings of one engine that `diagnose` compares with, by vLLM's names; None is not known."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """The binding `limit`, one of `LIMITS`; the numbers in `words`; and `what_to_do`."""

    limit: str
    words: str
    what_to_do: str


def diagnose(values: Metrics | None, caps: object = None, before: Metrics | None = None) -> Diagnosis:
    """Name what limits the server: `values` is a page, None if no answer came, or the `delta` of two pages.

    `caps` is a `Caps`, a `SchedulerConfig` or a mapping. An earlier page, `before`, tells preemption and the token
    budget; without it they can't be seen. One page is one moment: look at several before acting.
    """
    if values is None:
        return Diagnosis("dead", "No answer from /metrics.", "Read the end of the server's log; start it again.")
    if values.running is None or values.waiting is None:
        return _missing(values)
    change = delta(before, values) if before is not None else values if values.interval else None
    seen = _Seen(values, change, _caps(caps, values))
    for rule in (_nothing_there, _preempting, _nobody_waits, _at_the_cap, _deferred, _memory, _nobody_runs,
                 _cap_unknown, _budget):
        if found := rule(seen):
            return found
    return _gate(seen)


@dataclass(frozen=True)
class _Seen:
    """The numbers that the rules look at."""

    values: Metrics
    change: Metrics | None
    caps: Caps

    @property
    def running(self) -> float:
        """Requests that run, on all engines."""
        return self.values.running or 0.0

    @property
    def waiting(self) -> float:
        """Requests that wait, on all engines."""
        return self.values.waiting or 0.0

    @property
    def cap(self) -> int | None:
        """How many may run, on all engines."""
        return self.caps.max_num_seqs and self.caps.max_num_seqs * max(1, len(self.values.engines))

    @property
    def counts(self) -> str:
        """Running and waiting, in words."""
        of_cap = "" if self.cap is None else f" of {self.cap} that may"
        return f"{self.running:.0f} running{of_cap}, {self.waiting:.0f} waiting"

    @property
    def memory(self) -> str:
        """The fullest engine's KV usage, in words."""
        return "KV usage not known" if self.values.kv_usage is None else f"KV usage {self.values.kv_usage:.0%}"

    @property
    def tokens_a_step(self) -> float | None:
        """Tokens of the mean step since the earlier page."""
        histogram = self.change.iteration_tokens if self.change else None
        return histogram.mean if histogram and histogram.count else None

    @property
    def free_tokens(self) -> float | None:
        """Tokens for which the fullest engine has room."""
        blocks, size = self.caps.num_gpu_blocks, self.caps.block_size
        if None in (blocks, size, self.values.kv_usage):
            return None
        return (1 - self.values.kv_usage) * (blocks - 1) * size


def _caps(caps: object, values: Metrics) -> Caps:
    """The settings, from whatever holds them; the size of the KV cache, if need be, from the page."""
    def get(name: str) -> int | None:
        return caps.get(name) if isinstance(caps, Mapping) else getattr(caps, name, None)

    found = {name: get(name) for name in Caps.__dataclass_fields__}
    active = get("max_num_active_seqs")
    return Caps(**found | {
        "max_num_seqs": found["max_num_seqs"] if active is None else active,
        "num_gpu_blocks": found["num_gpu_blocks"] or values.num_gpu_blocks,
        "block_size": found["block_size"] or values.block_size,
    })


def _missing(values: Metrics) -> Diagnosis:
    """The page doesn't say what is needed: that is not a load of 0."""
    lacks = [name for name in ("running", "waiting") if getattr(values, name) is None]
    about = "nothing of vLLM's" if values.empty else f"no number of {' or '.join(lacks)} requests"
    return Diagnosis("unknown", f"The page has {about}: that is not the same as 0.",
                     "Check the address and vLLM's version; the names may have changed.")


def _nothing_there(seen: _Seen) -> Diagnosis | None:
    if seen.running or seen.waiting:
        return None
    return Diagnosis("idle", f"Nothing runs and nothing waits; {seen.memory}.", "Nothing, or send some load.")


def _preempting(seen: _Seen) -> Diagnosis | None:
    lost = seen.change.preemptions if seen.change else None
    if not lost:
        return None
    times = "once" if lost == 1 else f"{lost:.0f} times"
    return Diagnosis("preemption", f"Preempted {times} since the earlier page; {seen.counts}; {seen.memory}.",
                     "Work is being done twice. Lower max_num_seqs, give the KV cache more memory, or add a replica.")


def _nobody_waits(seen: _Seen) -> Diagnosis | None:
    if seen.waiting:
        return None
    if seen.cap is not None and seen.running >= seen.cap:
        return Diagnosis("at the cap", f"{seen.counts}; {seen.memory}.", "Nothing yet: the next request will wait.")
    return Diagnosis("under-loaded", f"{seen.counts}; {seen.memory}.", "Nothing: there is headroom.")


def _at_the_cap(seen: _Seen) -> Diagnosis | None:
    if seen.cap is None or seen.running < seen.cap:
        return None
    if seen.values.kv_usage is not None and seen.values.kv_usage >= FULL:
        return Diagnosis("sequence cap", f"{seen.counts}; {seen.memory}.",
                         "Add a replica: with the KV cache this full, a higher max_num_seqs would preempt.")
    return Diagnosis("sequence cap", f"{seen.counts}; {seen.memory}.",
                     "Raise max_num_seqs while KV blocks are free and the ITL target allows; else add a replica.")


def _deferred(seen: _Seen) -> Diagnosis | None:
    reasons = seen.values.waiting_by_reason or {}
    if not reasons.get("deferred") or reasons.get("capacity"):
        return None
    return Diagnosis("deferred", f"{seen.counts}, all of them deferred, none for want of capacity; {seen.memory}.",
                     "Look at LoRA limits (max_loras) and at KV transfer: more memory or slots would change nothing.")


def _memory(seen: _Seen) -> Diagnosis | None:
    if seen.values.kv_usage is None or seen.values.kv_usage < FULL:
        return None
    return Diagnosis("KV blocks", f"{seen.counts}; {seen.memory}.",
                     "Give the KV cache more memory, shorten contexts, or add a replica; watch for preemptions.")


def _nobody_runs(seen: _Seen) -> Diagnosis | None:
    if seen.running:
        return None
    return Diagnosis("blocked head", f"{seen.counts}; {seen.memory}: nothing is in the head's way.",
                     "Is the engine paused? Else the head of the queue needs more blocks than there are: vLLM lets it "
                     "wait for ever, and everybody behind it.")


def _cap_unknown(seen: _Seen) -> Diagnosis | None:
    if seen.cap is not None and seen.values.kv_usage is not None:
        return None
    lacks = "max_num_seqs" if seen.cap is None else "the KV usage"
    return Diagnosis("unknown", f"{seen.counts}; {seen.memory}. Without {lacks} the limit can't be named.",
                     "Give max_num_seqs in caps." if seen.cap is None else "Check which name the page has for it.")


def _budget(seen: _Seen) -> Diagnosis | None:
    """The mean step spends the budget; or a prompt of any length would fit, so memory can't be what holds it."""
    budget, mean = seen.caps.max_num_batched_tokens, seen.tokens_a_step
    advice = "Raise max_num_batched_tokens if the ITL target allows; prompts are being computed in pieces meanwhile."
    if budget is not None and mean is not None and mean >= BUDGET_SPENT * budget:
        return Diagnosis("token budget", f"{seen.counts}; {mean:,.0f} tokens a step of {budget:,}; {seen.memory}.",
                         advice)
    free, longest = seen.free_tokens, seen.caps.max_model_len
    fits = free >= longest if free is not None and longest is not None else seen.values.kv_usage < LONG_PROMPT
    if not fits:
        return None
    return Diagnosis("token budget", f"{seen.counts}; {seen.memory}: there is room for any prompt, so the steps' token "
                     "budget is left, or they have only just come.", "Look again; if they still wait: " + advice)


def _gate(seen: _Seen) -> Diagnosis:
    return Diagnosis("full-prompt gate", f"{seen.counts}; {seen.memory}: the blocks that are free are too few for the "
                     "prompt at the head of the queue, whole or even in part, and only the head is tried.",
                     "Send long prompts elsewhere or give the KV cache more memory; short ones behind it wait too.")
