"""Drills in which tokens come slowly, not at all, or fewer than hoped for."""
from __future__ import annotations

import math
from dataclasses import replace

from labs.drills.changes import both, settings, streams, traffic
from labs.drills.drill import SYMPTOMS, Drill, Fix
from labs.drills.traffic import Scenario, Stream
from labs.engine import StepTime
from labs.scheduler import SchedulerConfig

FITS, SILENCE, LITTLE = SYMPTOMS["slow_tokens"], SYMPTOMS["silence"], SYMPTOMS["little_work"]
USUAL = SchedulerConfig(256, 2048, 4000, max_model_len=8192)

FULL_BATCH = Drill(
    "full_batch", FITS,
    Scenario((Stream("chat", rate=16, seed=11),), USUAL, StepTime(16e-3, 4e-4, 4e-5)),
    "full_batch", ("long_prompts", "full_batch", "thrashing", "token_budget"),
    (Fix("budget", "Lower max_num_batched_tokens to 512", settings(max_num_batched_tokens=512),
         "Steps held {b.tokens_per_step:.0f} tokens on average: it is the sequences, each with a token a step, that "
         "make them long. p50 ITL stays at {ms.itl_p50:.0f} ms.",
         lambda b, a: b.tokens_per_step < 512 and a.itl_p50 > 0.95 * b.itl_p50),
     Fix("cap", "Lower max_num_seqs to 40", settings(max_num_seqs=40),
         "The brake works, p50 ITL {ms.itl_p50:.0f} after {bms.itl_p50:.0f} ms, but one replica can't do the work at "
         "that pace: {a.waiting:.0f} wait, and p99 TTFT is {a.client_ttft_p99:.0f} s.",
         lambda b, a: a.itl_p50 < 0.040 < b.itl_p50 and a.waiting > 50),
     Fix("replica", "Lower max_num_seqs to 40, and add a replica", both(settings(max_num_seqs=40), traffic(replicas=2)),
         "Each holds fewer at once: p95 ITL {ms.itl_p95:.0f} ms, and nobody waits. The cap keeps it so when the load "
         "grows: waiting then asks for the next replica.",
         lambda b, a: a.itl_p95 < 0.040 and a.waiting < 1, right=True),
     Fix("more", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "At most {b.running_max:.0f} of 256 ran, so nothing changes; and a fuller batch would be slower still. p95 "
         "ITL stays at {ms.itl_p95:.0f} ms.",
         lambda b, a: b.running_max < 256 and a.itl_p95 == b.itl_p95)))

LONG_PROMPTS = Drill(
    "long_prompts", FITS,
    Scenario((Stream("chat", rate=6, seed=12), Stream("documents", rate=4, prompt=2500, output=40, seed=13)),
             SchedulerConfig(256, 8192, 8000, max_model_len=16_384)),
    "long_prompts", ("full_batch", "memory", "long_prompts", "sequence_cap"),
    (Fix("cap", "Lower max_num_seqs to 16", settings(max_num_seqs=16),
         "The long steps are long because of prompts, not of how many run: p95 ITL is still {ms.itl_p95:.0f} ms, and "
         "p50, {ms.itl_p50:.0f} ms, was fine before.",
         lambda b, a: a.itl_p95 > 0.9 * b.itl_p95 and b.itl_p50 < 0.020),
     Fix("raise", "Raise max_num_batched_tokens to 16,384", settings(max_num_batched_tokens=16_384),
         "Whole prompts already fitted into one step; now two may. p95 ITL is {ms.itl_p95:.0f} ms.",
         lambda b, a: a.itl_p95 > 0.9 * b.itl_p95),
     Fix("blocks", "Give the KV cache twice the blocks", settings(num_gpu_blocks=16_000),
         "KV use was {b.kv_max:.0%} at most, and nobody was preempted. p95 ITL stays at {ms.itl_p95:.0f} ms.",
         lambda b, a: b.kv_max < 0.9 and b.preemptions == 0 and a.itl_p95 > 0.95 * b.itl_p95),
     Fix("budget", "Lower max_num_batched_tokens to 512", settings(max_num_batched_tokens=512),
         "Long prompts are cut into chunks, and no step is longer than a chunk takes: p95 ITL {ms.itl_p95:.0f} after "
         "{bms.itl_p95:.0f} ms. Prompts pay: p99 TTFT {a.client_ttft_p99:.1f} after {b.client_ttft_p99:.1f} s.",
         lambda b, a: a.itl_p95 < 0.040 and a.client_ttft_p99 > b.client_ttft_p99, right=True)))

THRASHING = Drill(
    "thrashing", FITS,
    Scenario((Stream("chat", rate=2.8, prompt=60, output=300, output_sigma=0.4, seed=14),),
             SchedulerConfig(256, 2048, 400, max_model_len=4096), StepTime(16e-3, 2e-4, 3e-4)),
    "thrashing", ("memory", "long_prompts", "full_batch", "thrashing"),
    (Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "At most {b.running_max:.0f} of 256 ran: the cap bound nobody. {a.preemptions} preemptions, as before.",
         lambda b, a: b.running_max < 256 and a.preemptions == b.preemptions),
     Fix("lower", "Lower max_num_seqs to 22, what the blocks carry to the end", settings(max_num_seqs=22),
         "Who starts can now mostly finish: {a.preemptions} preemptions instead of {b.preemptions}, p95 ITL "
         "{ms.itl_p95:.0f} ms, and {a.tokens_per_second:.0f} tokens a second instead of {b.tokens_per_second:.0f}, "
         "because less is done twice. What still waits ({a.waiting:.0f}) needs more memory or a replica.",
         lambda b, a: a.preemptions < 0.2 * b.preemptions and a.tokens_per_second > b.tokens_per_second, right=True),
     Fix("budget", "Lower max_num_batched_tokens to 256", settings(max_num_batched_tokens=256),
         "The work done twice comes in smaller pieces, and stays: {a.computed_again:.0%} of all tokens are computed "
         "again, {b.computed_again:.0%} before; p95 ITL {ms.itl_p95:.0f} ms.",
         lambda b, a: a.computed_again > 0.2 and a.itl_p95 > 0.040),
     Fix("watermark", "Keep 2 % of the blocks free at admission (watermark)", settings(watermark=0.02),
         "That is room for a few tokens of each, and they grow by hundreds: {a.preemptions} preemptions after "
         "{b.preemptions}, p95 ITL {ms.itl_p95:.0f} ms.",
         lambda b, a: a.preemptions > 0.3 * b.preemptions and a.itl_p95 > 0.040)))

OVERSIZED = Drill(
    "oversized", SILENCE,
    Scenario((Stream("chat", rate=6, seed=15),), USUAL, oversized_at=50, oversized_blocks=5000),
    "oversized", ("dead_engine", "oversized", "memory", "under_load"),
    (Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "Nothing runs at all: no slot is missing. The queue grows to the end, and {a.unanswered} requests have no "
         "answer.", lambda b, a: a.unanswered == b.unanswered > 100),
     Fix("budget", "Raise max_num_batched_tokens to 8,192", settings(max_num_batched_tokens=8192),
         "The steps are empty: budget was never short. The last token still came at {a.last_token:.0f} s of 120.",
         lambda b, a: a.last_token < 60),
     Fix("refuse", "Refuse at the gateway what can never fit", traffic(oversized_at=math.inf),
         "The scheduler tries only the head of its queue, and vLLM lets one that never fits wait for ever. Without it "
         "the others run as ever: p99 TTFT {a.client_ttft_p99:.2f} s.",
         lambda b, a: a.client_ttft_p99 < 0.5, right=True),
     Fix("blocks", "Give the KV cache a tenth more blocks", settings(num_gpu_blocks=4400),
         "This one needs 5,000 blocks, so it fits into 4,400 no more than into 4,000: {a.unanswered} requests have no "
         "answer.", lambda b, a: a.unanswered == b.unanswered > 100)))

DEAD_ENGINE = Drill(
    "dead_engine", SILENCE,
    Scenario((Stream("chat", rate=6, seed=16),), USUAL, hang_at=60),
    "dead_engine", ("oversized", "greedy_tenant", "memory", "dead_engine"),
    (Fix("cap", "Let max_num_seqs be 512 from now on, without a restart", lambda s: s,
         "No setting reaches a running engine, least of all one that makes no step: the last "
         "token still came at {a.last_token:.0f} s of 120.",
         lambda b, a: a.last_token == b.last_token < 62),
     Fix("restart", "Restart it, and probe with one token instead of /health",
         traffic(restart_at=85.0),
         "It answers again from 85 s on. Those who were in flight or came meanwhile have no answer ({a.unanswered}, "
         "{b.unanswered} without the restart). A probe that makes a token sees in seconds what /health didn't.",
         lambda b, a: a.unanswered < 0.7 * b.unanswered and a.last_token > 118, right=True),
     Fix("watch", "Wait: /health says 200, and nothing waits", lambda s: s,
         "The gauges stand still, so they say nothing about now: after another minute the last token is still that of "
         "second {a.last_token:.0f}, and {a.unanswered} requests have no answer.",
         lambda b, a: a.unanswered == b.unanswered > 100),
     Fix("limit", "Let the gateway send half as much", streams("chat", rate=3.0),
         "A stopped engine is not an overloaded one: the last token came at {a.last_token:.0f} s.",
         lambda b, a: a.last_token < 62)))

MISREAD_BENCHMARK = Drill(
    "misread_benchmark", LITTLE,
    Scenario((Stream("benchmark", in_flight=1, output=128, output_sigma=0.0, tenants=1, seed=17),), USUAL),
    "misread_benchmark", ("under_load", "misread_benchmark", "sequence_cap", "full_batch"),
    (Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "{a.running_max:.0f} of them is used. {a.tokens_per_second:.0f} tokens a second, as before.",
         lambda b, a: a.running_max == 1 and a.tokens_per_second == b.tokens_per_second),
     Fix("replica", "Add a replica", traffic(replicas=2),
         "The one request is at one of the two; the other idles: {a.tokens_per_second:.0f} tokens a second per GPU.",
         lambda b, a: a.tokens_per_second < 0.6 * b.tokens_per_second and a.last_token > 118),
     Fix("short", "Ask for half as many tokens in each request", streams("benchmark", output=64),
         "Twice as many requests, one after the other: still one at a time, and {a.tokens_per_second:.0f} tokens a "
         "second.", lambda b, a: a.running_max == 1 and a.tokens_per_second <= b.tokens_per_second),
     Fix("many", "Measure with 32 in flight, and lengths that vary",
         streams("benchmark", in_flight=32, output_sigma=0.8),
         "One step serves them all: {a.tokens_per_second:.0f} tokens a second after {b.tokens_per_second:.0f}, with "
         "p50 ITL at {ms.itl_p50:.0f} ms. With one request there was nothing to batch.",
         lambda b, a: a.tokens_per_second > 10 * b.tokens_per_second, right=True)))

UNDER_LOAD = Drill(
    "under_load", LITTLE,
    Scenario((Stream("chat", rate=6, seed=10),), USUAL, replicas=4),
    "under_load", ("misread_benchmark", "token_budget", "client_batcher", "under_load"),
    (Fix("replica", "Add a fifth replica", traffic(replicas=5),
         "The same work on more GPUs: {a.tokens_per_second:.0f} tokens a second per GPU after "
         "{b.tokens_per_second:.0f}.", lambda b, a: a.tokens_per_second < b.tokens_per_second),
     Fix("one", "Keep one replica, and watch waiting and KV use", lambda s: replace(s, replicas=1),
         "All the work was little: {a.tokens_per_second:.0f} tokens a second on one, KV use {a.kv_max:.0%} at most, "
         "p99 TTFT {a.client_ttft_p99:.2f} s after {b.client_ttft_p99:.2f} s.",
         lambda b, a: a.tokens_per_second > 3 * b.tokens_per_second and a.client_ttft_p99 < 0.1, right=True),
     Fix("cap", "Raise max_num_seqs to 512", settings(max_num_seqs=512),
         "At most {b.running_max:.0f} ran on all four together. {a.tokens_per_second:.0f} tokens a second, as before.",
         lambda b, a: b.running_max < 64 and a.tokens_per_second == b.tokens_per_second),
     Fix("budget", "Raise max_num_batched_tokens to 8,192", settings(max_num_batched_tokens=8192),
         "Steps hold {b.tokens_per_step:.0f} tokens. The users send no more than they did: {a.tokens_per_second:.0f} "
         "tokens a second.",
         lambda b, a: b.tokens_per_step < 64 and abs(a.tokens_per_second - b.tokens_per_second) < 1)))
