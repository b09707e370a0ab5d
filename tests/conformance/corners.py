"""Corner cases by hand: at least one for each rule and each boundary, with what each must show in vLLM itself."""

from __future__ import annotations

from tests.conformance.workloads import Abort, Workload, by_hand

# A workload, and the count (see real.py) that must not stay zero in it; None if only the plan matters.
Corner = tuple[Workload, str | None]


def _page_step(budget: int) -> Workload:
    """180 sequences decode when two requests bring 4,000 prefill tokens."""
    decoding = ", ".join(f"d{i:03d} 1+20" for i in range(180))
    return by_hand(
        f"the page's step at a budget of {budget}", f"{decoding}, x 2000+5 @3, y 2000+5 @3", max_num_seqs=256,
        max_num_batched_tokens=budget, num_gpu_blocks=2000, block_size=16, max_model_len=4096,
    )  # fmt: skip


def _lengths() -> list[Corner]:
    """Rules 3, 9 and 10: prompts, outputs and blocks at their boundaries."""
    short = {"num_gpu_blocks": 3}
    return [
        (by_hand("a prompt that exactly fills its blocks", "a 8+1", **short), "end by max_tokens"),
        (by_hand("a prompt one token over its blocks", "a 9+1", num_gpu_blocks=4), "end by max_tokens"),
        (by_hand("a decode that crosses into a new block", "a 8+3, b 7+3"), "end by max_tokens"),
        (by_hand("the last token needs no room", "a 8+1, b 4+5", **short), "end by max_tokens"),
        (by_hand("one token more than the pool holds", "a 9+1, b 4+6", **short),
         "refused on arrival: too few KV blocks"),
        (by_hand("a one-token prompt", "a 1+3"), "end by max_tokens"),
        (by_hand("one token in, one token out", "a 1+1, b 1+1"), "end by max_tokens"),
        (by_hand("a prompt of max_model_len - 1", "a 63+9"), "end by max_model_len"),
        (by_hand("a prompt of max_model_len", "a 64+1, b 65+1, c 5+1"), "refused on arrival: prompt too long"),
        (by_hand("max_tokens and max_model_len at once", "a 60+4, b 60+5, c 60+3"), "end by max_model_len"),
        (by_hand("blocks of one token", "a 5+4, b 3+6", block_size=1, num_gpu_blocks=12), "preemption"),
        (by_hand("a request that fills the pool alone", "a 5+8", num_gpu_blocks=4), "end by max_tokens"),
        (by_hand("a step with nobody, between two arrivals", "a 3+1, b 3+1 @6"), "end by max_tokens"),
        (by_hand("a stop token at once", "a 5+9, b 5+9", stops={"a": 1, "b": 1}), "end by stop token"),
        (by_hand("EOS in the middle", "a 5+9, b 6+9", stops={"a": 4, "b": 5}), "end by EOS"),
        (by_hand("a stop token as the last token allowed", "a 5+3, b 6+3", stops={"a": 3, "b": 3}),
         "end by stop token"),
    ]  # fmt: skip


def _budget() -> list[Corner]:
    """Rules 1, 2 and 7: the token budget, chunks and thresholds."""
    off = {"enable_chunked_prefill": False, "max_num_batched_tokens": 64}
    return [
        (by_hand("the budget exactly used", "a 10+2, b 6+2, c 1+1"), "admission ended by: token budget"),
        (by_hand("one token over the budget", "a 10+2, b 7+2"), "chunk cut by the budget"),
        (by_hand("a last chunk that ends with the budget", "a 32+2"), "chunk cut by the budget"),
        (by_hand("a chunk beside decodes", "a 2+9, b 2+9, c 40+2 @2"), "chunk cut by the budget"),
        (by_hand("a budget as small as the cap", "a 9+3, b 2+3, c 4+2", max_num_batched_tokens=4),
         "chunk cut by the budget"),
        (by_hand("a threshold for one of two", "a 30+2, b 3+9", long_prefill_token_threshold=8),
         "chunk cut by the threshold"),
        (by_hand("a threshold is lifted for a request alone", "a 40+2, b 30+2 @1", long_prefill_token_threshold=8),
         "threshold lifted for a request alone"),
        (by_hand("an adaptive threshold: a fair share", "a 30+2, b 30+2", long_prefill_token_threshold=3,
                 long_prefill_token_threshold_adaptive=True), "chunk cut by an adaptive threshold above the fixed one"),
        (by_hand("an adaptive threshold at its floor", "a 30+2, b 30+2, c 9+2, d 9+2, e 9+2, f 9+2",
                 long_prefill_token_threshold=7, long_prefill_token_threshold_adaptive=True),
         "chunk cut by the threshold"),
        (by_hand("chunking off: a head too long for what is left", "a 40+3, b 30+3, c 4+3", **off),
         "admission ended by: chunking off"),
        (by_hand("chunking off: a head that fits exactly", "a 40+3, b 24+3, c 1+1", **off),
         "admission ended by: token budget"),
        (by_hand("chunking off, with a threshold", "a 40+3, b 30+3, c 50+3", long_prefill_token_threshold=20, **off),
         "chunk cut by the threshold"),
        (_page_step(2048), "chunk cut by the budget"),
        (_page_step(8192), None),
    ]  # fmt: skip


def _admission() -> list[Corner]:
    """Rules 6 and 8: caps, the head of the queue, the full-prompt gate and the watermark."""
    urgent = {"policy": "priority", "max_num_seqs": 2}
    return [
        (by_hand("a cap of one", "a 3+3, b 3+3, c 3+3", max_num_seqs=1), "admission ended by: sequence cap"),
        (by_hand("max_num_active_seqs below max_num_seqs", "a 3+3, b 3+3, c 3+3", max_num_active_seqs=2),
         "admission ended by: max_num_active_seqs"),
        (by_hand("a head that does not fit while smaller ones would", "a 12+9, b 30+2, c 2+2", num_gpu_blocks=10,
                 max_num_batched_tokens=64), "admission ended by: KV blocks"),
        (by_hand("the gate: a chunk would fit, the prompt does not", "a 8+9, b 30+2, c 2+2", num_gpu_blocks=10),
         "admission ended by: full-prompt gate"),
        (by_hand("the gate off: the chunk is admitted", "a 8+9, b 30+2", num_gpu_blocks=10,
                 scheduler_reserve_full_isl=False), "preemption"),
        (by_hand("the gate: exactly enough blocks", "a 8+2, b 24+2", num_gpu_blocks=9), None),
        (by_hand("the gate does not count max_tokens", "a 5+20, b 5+20", num_gpu_blocks=7), "preemption"),
        (by_hand("the gate counts output that is to be recomputed", "a 8+17, b 8+17", num_gpu_blocks=8,
                 max_num_batched_tokens=4), "admission ended by: full-prompt gate"),
        (by_hand("a watermark while something runs", "a 4+9, b 10+3", num_gpu_blocks=6, watermark=0.4),
         "admission ended by: watermark"),
        (by_hand("no watermark while nothing runs", "a 10+2, b 4+1", num_gpu_blocks=6, watermark=0.5),
         "admission ended by: watermark"),
        (by_hand("the gate and a watermark: the chunk leaves enough free, the prompt does not", "a 4+9, b 20+3",
                 num_gpu_blocks=8, watermark=0.3), "admission ended by: watermark"),
        (by_hand("a watermark rounded down", "a 4+9, b 12+1", num_gpu_blocks=6, watermark=0.33), None),
        (by_hand("a watermark of no block at all", "a 4+9, b 12+1", num_gpu_blocks=6, watermark=0.1), None),
        (by_hand("urgent requests jump the queue", "a 4+5, b 4+5, c 4+5, d 4+5 @1 p-1", **urgent),
         "admission ended by: sequence cap"),
        (by_hand("an urgent request never takes a slot", "a 4+20 p5, b 4+20 p5, c 4+2 @3 p-1", **urgent),
         "admission ended by: sequence cap"),
        (by_hand("fcfs ignores a priority", "a 4+3, b 4+3, c 4+3 p5, d 4+3 p-1", max_num_seqs=1),
         "admission ended by: sequence cap"),
        (by_hand("equal priority and arrival: the smaller id first", "d 4+3, b 4+3, c 4+3, a 4+3", policy="priority",
                 max_num_seqs=1), "admission ended by: sequence cap"),
    ]  # fmt: skip


def _preemption() -> list[Corner]:
    """Rules 4 and 5: who is chosen, and what becomes of it."""
    urgent = {"policy": "priority"}
    short = {"max_num_batched_tokens": 8, "scheduler_reserve_full_isl": False}
    return [
        (by_hand("fcfs: the last of running is the victim", "a 7+9, b 7+9, c 7+9", num_gpu_blocks=7), "preemption"),
        (by_hand("the last preempts itself", "a 8+9, b 3+9", num_gpu_blocks=5), "self-preemption"),
        (by_hand("two victims in one step go to the front in order", "a 16+9, b 7+5, c 7+5", num_gpu_blocks=9,
                 max_num_batched_tokens=64), "preemption"),
        (by_hand("nobody is admitted in a step that preempts", "a 7+9, b 7+9, c 7+9, d 1+1 @1", num_gpu_blocks=7),
         "admission ended by: a preemption in that step"),
        (by_hand("a victim earlier in the list, already scheduled", "a 6+9 p2, b 8+9 @1, c 7+9 @1", num_gpu_blocks=7,
                 **urgent), "victim already scheduled in that step (refund)"),
        (by_hand("a victim later in the list", "a 8+9, b 7+9 p1, c 7+9 p2", num_gpu_blocks=7, **urgent), "preemption"),
        (by_hand("equal priority and arrival: the first of them", "a 7+9 p1, b 8+9 p1, c 8+9 p1", num_gpu_blocks=7,
                 **urgent), "victim chosen among equals"),
        (by_hand("equal priority: the latest to arrive", "a 8+9 p1, b 7+9 @1 p1, c 4+9 @1", num_gpu_blocks=7, **urgent),
         "preemption"),
        (by_hand("a self-preemption in the middle ends the scan", "a 1+9, b 7+9 @1 p3, c 1+9 @2", num_gpu_blocks=5,
                 **urgent),
         "self-preemption"),
        (by_hand("a refund goes to those after", "a 9+9 p9, b 3+9 @1, c 20+3 @2", num_gpu_blocks=7, **short, **urgent),
         "victim already scheduled in that step (refund)"),
        (by_hand("a refund does not lengthen the chunk that caused it", "a 9+9 p9, b 1+3 @1, c 20+3 @2",
                 num_gpu_blocks=7, **short, **urgent), "victim already scheduled in that step (refund)"),
        (by_hand("a victim waits behind a more urgent one", "a 7+9, b 7+9 p2, c 7+9 @1 p1", num_gpu_blocks=5, **urgent),
         "preemption"),
        (by_hand("a resumed request is longer than the budget", "a 12+30, b 12+30", num_gpu_blocks=13,
                 max_num_batched_tokens=8), "preemption"),
        (by_hand("a resumed request under a threshold", "a 12+30, b 12+30", num_gpu_blocks=13,
                 long_prefill_token_threshold=5), "preemption"),
        (by_hand("without the gate, two equals preempt each other for ever", "a 6+3, b 4+5", num_gpu_blocks=3,
                 max_num_batched_tokens=4, max_num_seqs=2, long_prefill_token_threshold=3,
                 scheduler_reserve_full_isl=False, **urgent), "livelock, the same in both"),
        (by_hand("all that every rule is about, in one", "a 12+9 p1, b 9+9, c 17+9 @1 p2, d 5+9 @2 p-1, e 21+9 @2",
                 num_gpu_blocks=12, watermark=0.1, long_prefill_token_threshold=6, max_num_active_seqs=3, **urgent),
         "preemption"),
    ]  # fmt: skip


def _aborts() -> list[Corner]:
    """Aborts from outside, before a step and during its forward pass."""
    return [
        (by_hand("an abort of a running request", "a 4+9, b 4+9", aborts=(Abort(3, "a"),)), "abort, running"),
        (by_hand("an abort of a request scheduled in that step", "a 4+9, b 4+9", aborts=(Abort(3, "a", True),)),
         "abort of a request scheduled in that step"),
        (by_hand("an abort during the step that would have ended it", "a 4+3, b 4+9", aborts=(Abort(2, "a", True),)),
         "abort of a request scheduled in that step"),
        (by_hand("an abort of an unfinished prefill", "a 40+9, b 4+9", aborts=(Abort(1, "a", True),)),
         "abort of a request scheduled in that step"),
        (by_hand("an abort of the head that blocks the queue", "a 12+9, b 30+2, c 2+2", num_gpu_blocks=10,
                 aborts=(Abort(2, "b"),)), "abort, waiting"),
        (by_hand("an abort of a waiting victim", "a 7+9, b 7+9, c 7+9", num_gpu_blocks=7,
                 aborts=(Abort(4, "c", True), Abort(6, "b"))), "abort, waiting"),
        (by_hand("an abort of one that is gone, and of one unknown", "a 4+2, b 4+9",
                 aborts=(Abort(5, "a"), Abort(6, "z", True))), None),
        (by_hand("an abort under priority", "a 4+9 p1, b 4+9, c 4+9 p2", policy="priority", max_num_seqs=1,
                 aborts=(Abort(2, "c"), Abort(3, "b", True))), "abort, waiting"),
    ]  # fmt: skip


CORNERS: list[Corner] = [*_lengths(), *_budget(), *_admission(), *_preemption(), *_aborts()]
