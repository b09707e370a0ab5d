"""Drills in which requests wait: for the first word, or below the cap."""
from __future__ import annotations

from dataclasses import replace

from labs.drills.changes import settings, streams, traffic
from labs.drills.drill import SYMPTOMS, Drill, Fix
from labs.drills.traffic import Scenario, Stream
from labs.scheduler import SchedulerConfig

SLOW, BELOW = SYMPTOMS["slow_start"], SYMPTOMS["wait_below_cap"]

SEQUENCE_CAP = Drill(
    "sequence_cap", SLOW,
    Scenario((Stream("chat", rate=20, seed=1),), SchedulerConfig(16, 2048, 4000, max_model_len=8192)),
    "sequence_cap", ("memory", "sequence_cap", "client_batcher", "greedy_tenant"),
    (Fix("blocks", "Give the KV cache twice the blocks", settings(num_gpu_blocks=8000),
         "Memory was never short: KV use was {b.kv_max:.0%} at most. running stays at {a.running:.0f}, and p99 TTFT at "
         "{a.client_ttft_p99:.1f} s.",
         lambda b, a: b.kv_max < 0.5 and a.running == b.running and a.client_ttft_p99 == b.client_ttft_p99),
     Fix("cap", "Raise max_num_seqs from 16 to 64", settings(max_num_seqs=64),
         "Blocks were free, so more may run: {a.running:.0f} on average instead of {b.running:.0f}, and nobody waits. "
         "p95 ITL pays a little: {ms.itl_p95:.0f} ms after {bms.itl_p95:.0f} ms.",
         lambda b, a: a.running > b.running and a.waiting < 1 and a.itl_p95 > b.itl_p95, right=True),
     Fix("budget", "Raise max_num_batched_tokens to 8,192", settings(max_num_batched_tokens=8192),
         "Steps used {b.tokens_per_step:.0f} tokens of 2,048: the budget bound nobody. p99 TTFT stays at "
         "{a.client_ttft_p99:.1f} s.",
         lambda b, a: b.tokens_per_step < 200 and abs(a.client_ttft_p99 - b.client_ttft_p99) < 0.1),
     Fix("lower", "Lower max_num_seqs to 8, so that each is served faster", settings(max_num_seqs=8),
         "Each step is a little quicker (p50 ITL {ms.itl_p50:.1f} after {bms.itl_p50:.1f} ms), but only half as many "
         "share it: {a.waiting:.0f} wait instead of {b.waiting:.0f}.",
         lambda b, a: a.itl_p50 < b.itl_p50 and a.waiting > 3 * b.waiting)))

GREEDY_TENANT = Drill(
    "greedy_tenant", SLOW,
    Scenario((Stream("chat", rate=8, seed=2),
              Stream("one tenant", burst=50, prompt=300, output=4000, output_sigma=0.05, start=20, tenants=1, seed=3)),
             SchedulerConfig(256, 2048, 4000, max_model_len=8192)),
    "greedy_tenant", ("thrashing", "sequence_cap", "greedy_tenant", "memory"),
    (Fix("cap", "Raise max_num_seqs to 1,024", settings(max_num_seqs=1024),
         "Slots weren't short, blocks were (KV use {b.kv_usage:.0%}): at most {a.running_max:.0f} run, as before, and "
         "p99 TTFT stays at {a.client_ttft_p99:.0f} s.",
         lambda b, a: a.running_max == b.running_max and a.client_ttft_p99 == b.client_ttft_p99),
     Fix("replica", "Add a replica", lambda s: replace(s, replicas=2),
         "The tenant's requests spread over both and fill them: KV use still reaches {a.kv_max:.0%}, and p99 TTFT is "
         "{a.client_ttft_p99:.0f} s after {b.client_ttft_p99:.0f} s, for twice the money.",
         lambda b, a: a.kv_max > 0.95 and 2 < a.client_ttft_p99 < b.client_ttft_p99),
     Fix("limit", "Let this tenant send a request every 6 s (429 until then)",
         streams("one tenant", spacing=6.0),
         "It never holds more than a part of the blocks (KV use {a.kv_max:.0%} at most), and the others find room at "
         "once: p99 TTFT {a.client_ttft_p99:.2f} s. That tenant pays, and knows why.",
         lambda b, a: a.kv_max < 0.5 and a.client_ttft_p99 < 0.5, right=True),
     Fix("budget", "Raise max_num_batched_tokens to 8,192", settings(max_num_batched_tokens=8192),
         "Blocks are short, not budget: steps used {b.tokens_per_step:.0f} tokens of 2,048. p99 TTFT is still "
         "{a.client_ttft_p99:.0f} s.",
         lambda b, a: b.tokens_per_step < 200 and a.client_ttft_p99 > 0.9 * b.client_ttft_p99),
     Fix("pool", "Give long requests a pool of their own", streams("one tenant", elsewhere=True),
         "The others' blocks are their own again: p99 TTFT {a.client_ttft_p99:.2f} s here, "
         "{a.elsewhere_ttft_p99:.1f} s in the new pool, which costs a replica.",
         lambda b, a: a.client_ttft_p99 < 0.5 and a.elsewhere_ttft_p99 < 2, right=True)))

CLIENT_BATCHER = Drill(
    "client_batcher", SLOW,
    Scenario((Stream("chat", rate=8, seed=4),), SchedulerConfig(256, 2048, 4000, max_model_len=8192), collect=64),
    "client_batcher", ("sequence_cap", "under_load", "prefix_flattery", "client_batcher"),
    (Fix("replica", "Add a replica", lambda s: replace(s, replicas=2),
         "The server was never behind: TTFT there goes from {b.ttft_p99:.2f} to {a.ttft_p99:.2f} s, at the client it "
         "stays at {a.client_ttft_p99:.1f} s. The wait is before the first server sees anything.",
         lambda b, a: a.ttft_p99 < b.ttft_p99 < 1 and a.client_ttft_p99 > 0.95 * b.client_ttft_p99),
     Fix("smaller", "Let clients collect 32 instead of 64", traffic(collect=32),
         "Half the batch, about half the wait: p99 TTFT at the client {a.client_ttft_p99:.1f} s after "
         "{b.client_ttft_p99:.1f} s. Any collecting is static batching in front of a continuous batcher.",
         lambda b, a: 0.4 * b.client_ttft_p99 < a.client_ttft_p99 < 0.8 * b.client_ttft_p99),
     Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "At most {b.running_max:.0f} of 256 ran: no slot was missing. p99 TTFT at the client stays at "
         "{a.client_ttft_p99:.1f} s.",
         lambda b, a: b.running_max < 128 and a.client_ttft_p99 == b.client_ttft_p99),
     Fix("send", "Send each request when it is there", traffic(collect=0),
         "Slots open in every step, so there is nothing to collect for: p99 TTFT at the client {a.client_ttft_p99:.2f} "
         "s, and p50 ITL {ms.itl_p50:.1f} after {bms.itl_p50:.1f} ms, because the batch is no longer a crowd.",
         lambda b, a: a.client_ttft_p99 < 0.2 and a.itl_p50 < b.itl_p50, right=True)))

PREFIX_FLATTERY = Drill(
    "prefix_flattery", SLOW,
    Scenario((Stream("documents", rate=12, prompt=2000, cached=0.95, cached_until=50, seed=5),),
             SchedulerConfig(256, 2048, 16_000, max_model_len=8192)),
    "prefix_flattery", ("token_budget", "prefix_flattery", "full_batch", "client_batcher"),
    (Fix("blocks", "Double the KV cache, so that more prefixes stay", settings(num_gpu_blocks=32_000),
         "The prompts are new ones: nothing that is kept helps them. Hits stay at {a.cache_hits_last:.0%}, p99 TTFT at "
         "{a.client_ttft_p99:.1f} s.",
         lambda b, a: a.cache_hits_last < 0.05 and a.client_ttft_p99 > 0.9 * b.client_ttft_p99),
     Fix("budget", "Raise max_num_batched_tokens to 8,192", settings(max_num_batched_tokens=8192),
         "Steps become fewer and longer (p95 ITL {ms.itl_p95:.0f} after {bms.itl_p95:.0f} ms), but the prompts are as "
         "much work as before: p99 TTFT {a.client_ttft_p99:.1f} s.",
         lambda b, a: a.itl_p95 > 1.5 * b.itl_p95 and a.client_ttft_p99 > 0.8 * b.client_ttft_p99),
     Fix("replicas", "Measure with distinct prompts, and size for them: 3 replicas",
         lambda s: replace(s, replicas=3),
         "Each now computes a third of the prompts: p99 TTFT {a.client_ttft_p99:.2f} s with hits at "
         "{a.cache_hits_last:.0%}. The test before had measured the cache.",
         lambda b, a: a.client_ttft_p99 < 1 and a.cache_hits_last < 0.05, right=True),
     Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "At most {b.running_max:.0f} of 256 ran: no slot was missing, prompts take their time to compute. p99 TTFT "
         "stays at {a.client_ttft_p99:.1f} s.",
         lambda b, a: b.running_max < 256 and a.client_ttft_p99 == b.client_ttft_p99)))

MEMORY = Drill(
    "memory", BELOW,
    Scenario((Stream("chat", rate=6, prompt=1500, output=30, seed=6),),
             SchedulerConfig(256, 2048, 350, max_model_len=4096)),
    "memory", ("memory", "token_budget", "thrashing", "blocked_head"),
    (Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "At most {b.running_max:.0f} of 256 ran: the cap was far away. KV use stays at {a.kv_usage:.0%}, and "
         "{a.waiting:.0f} wait as before.",
         lambda b, a: b.running_max < 32 and a.waiting == b.waiting and a.kv_usage == b.kv_usage),
     Fix("budget", "Raise max_num_batched_tokens to 8,192", settings(max_num_batched_tokens=8192),
         "Steps used {b.tokens_per_step:.0f} tokens of 2,048. A prompt may now be computed at once, if there are "
         "blocks for it: there aren't, and {a.waiting:.0f} still wait.",
         lambda b, a: b.tokens_per_step < 1024 and a.kv_usage > 0.8 and a.waiting > 0.7 * b.waiting),
     Fix("lower", "Lower max_num_seqs to 3", settings(max_num_seqs=3),
         "That helps against preemption, and there was little: {b.preemptions} preemptions, {b.computed_again:.0%} of "
         "tokens computed again. Fewer run, and {a.waiting:.0f} wait instead of {b.waiting:.0f}.",
         lambda b, a: b.computed_again < 0.05 and a.running < b.running and a.waiting > b.waiting),
     Fix("blocks", "Give the KV cache three times the blocks", settings(num_gpu_blocks=1050),
         "Blocks were what was missing, and a bigger GPU, a smaller model or replicas give them: KV "
         "use {a.kv_usage:.0%} on average, {a.waiting:.1f} waiting, p99 TTFT "
         "{a.client_ttft_p99:.2f} s. With more of them running ITL pays for it, and is above its target now: p95 "
         "{ms.itl_p95:.0f} after {bms.itl_p95:.0f} ms. A lower max_num_seqs and a replica are the next step.",
         lambda b, a: a.kv_usage < 0.5 and a.waiting < 1 and b.itl_p95 < 0.04 < a.itl_p95, right=True)))

TOKEN_BUDGET = Drill(
    "token_budget", BELOW,
    Scenario((Stream("chat", rate=11, prompt=1200, seed=7),), SchedulerConfig(128, 256, 8000, max_model_len=8192)),
    "token_budget", ("blocked_head", "memory", "token_budget", "greedy_tenant"),
    (Fix("blocks", "Give the KV cache twice the blocks", settings(num_gpu_blocks=16_000),
         "KV use was {b.kv_max:.0%} at most: blocks were free. {a.waiting:.0f} wait as before.",
         lambda b, a: b.kv_max < 0.5 and a.waiting == b.waiting),
     Fix("budget", "Raise max_num_batched_tokens from 256 to 1,024", settings(max_num_batched_tokens=1024),
         "Steps take more prompt tokens each, and fewer steps carry the fixed cost: {a.waiting:.1f} wait, p99 TTFT "
         "{a.client_ttft_p99:.1f} s. ITL pays for it: p95 {ms.itl_p95:.0f} after {bms.itl_p95:.0f} ms.",
         lambda b, a: a.waiting <= 1 and a.itl_p95 > b.itl_p95, right=True),
     Fix("cap", "Raise max_num_seqs to 256", settings(max_num_seqs=256),
         "At most {b.running_max:.0f} of 128 ran. Every step spends its {b.tokens_per_step:.0f} tokens, whoever may "
         "run: {a.waiting:.0f} wait as before.",
         lambda b, a: b.running_max < 64 and b.tokens_per_step > 250 and a.waiting == b.waiting),
     Fix("unchunk", "Lower max_num_batched_tokens to 192, for smoother steps", settings(max_num_batched_tokens=192),
         "Steps get shorter (p50 ITL {ms.itl_p50:.0f} after {bms.itl_p50:.0f} ms) and carry fewer prompt tokens: "
         "{a.waiting:.0f} wait instead of {b.waiting:.0f}.",
         lambda b, a: a.itl_p50 < b.itl_p50 and a.waiting > b.waiting)))

BLOCKED_HEAD = Drill(
    "blocked_head", BELOW,
    Scenario((Stream("chat", rate=5, prompt=1500, output=100, seed=8),
              Stream("documents", rate=0.08, prompt=27_000, prompt_sigma=0.02, seed=9, tenants=20)),
             SchedulerConfig(256, 2048, 2000, max_model_len=32_768)),
    "blocked_head", ("token_budget", "blocked_head", "memory", "sequence_cap"),
    (Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "At most {b.running_max:.0f} of 256 ran. The head needs blocks, not a slot: {a.waiting:.0f} wait as before.",
         lambda b, a: b.running_max < 128 and a.waiting == b.waiting),
     Fix("budget", "Raise max_num_batched_tokens to 8,192", settings(max_num_batched_tokens=8192),
         "The long prompt takes fewer steps once it is in, but it must wait for its blocks just the same: "
         "{a.waiting:.0f} wait instead of {b.waiting:.0f}.",
         lambda b, a: a.waiting > 0.8 * b.waiting),
     Fix("pool", "Send long prompts to a pool of their own", streams("documents", elsewhere=True),
         "Nobody stands in front of the short prompts: {a.waiting:.1f} wait, p99 TTFT {a.client_ttft_p99:.1f} s, and "
         "{a.elsewhere_ttft_p99:.1f} s for the documents in their own pool, which costs a replica. p95 ITL is still "
         "above its target: {ms.itl_p95:.0f} after {bms.itl_p95:.0f} ms.",
         lambda b, a: a.waiting <= 1 and a.elsewhere_ttft_p99 < 2 and 0.04 < a.itl_p95 < b.itl_p95, right=True),
     Fix("blocks", "Give the KV cache a tenth more blocks", settings(num_gpu_blocks=2200),
         "A document still needs most of them, so the cache must still empty for it: {a.waiting:.0f} wait instead of "
         "{b.waiting:.0f}, and p99 TTFT is {a.client_ttft_p99:.1f} s.",
         lambda b, a: 2 < a.waiting < b.waiting and a.client_ttft_p99 > 2)))
