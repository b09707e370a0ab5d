"""Incidents recorded on a real vLLM, each fix with a run of its own: nothing here is simulated.

The loads are for the tiny model on two cores: a decode step takes it some 10 ms, a prompt token half a millisecond.
tests/record_dashboards.py records them.
"""
from __future__ import annotations

from typing import Any

from labs.drills.changes import settings
from labs.drills.drill import SYMPTOMS, Drill, Fix
from labs.drills.recorded import recorded
from labs.drills.telemetry import Dashboard
from labs.drills.traffic import Scenario, Stream
from labs.scheduler import SchedulerConfig


class RecordedDrill(Drill):
    """A drill whose dashboards were recorded: its own by its id, that after a fix by the id and the fix's key."""

    device = "server"

    @property
    def dashboard(self) -> Dashboard:
        """What the one on call saw."""
        return recorded(self.id)[0]

    @property
    def about(self) -> dict[str, Any]:
        """Where and how it was recorded."""
        return recorded(self.id)[1]

    def after(self, fix: Fix) -> Dashboard:
        """What the same load gave on a server started as the fix says."""
        return recorded(f"{self.id}+{fix.key}")[0]

    @property
    def runs(self) -> dict[str, Scenario]:
        """Every run that it needs, by name."""
        return {self.id: self.scenario} | {f"{self.id}+{fix.key}": fix.change(self.scenario) for fix in self.fixes}


def _config(slots: int) -> SchedulerConfig:
    return SchedulerConfig(slots, 2048, 601, block_size=32, max_model_len=1024)


SEQUENCE_CAP = RecordedDrill(
    "real_sequence_cap", SYMPTOMS["slow_start"],
    Scenario((Stream("chat", rate=6, prompt=100, output=60, seed=21),), _config(4)),
    "sequence_cap", ("memory", "token_budget", "sequence_cap", "full_batch"),
    (Fix("blocks", "Give the KV cache twice the blocks", settings(num_gpu_blocks=1201),
         "Memory was never short: KV use was {b.kv_max:.0%} at most. running stays at {a.running:.0f}, and p99 TTFT at "
         "{a.client_ttft_p99:.0f} s.",
         lambda b, a: b.kv_max < 0.5 and abs(a.running - b.running) < 0.5 and a.client_ttft_p99 > 2),
     Fix("cap", "Raise max_num_seqs from 4 to 32", settings(max_num_seqs=32),
         "Blocks were free, so more may run: {a.running:.0f} on average instead of {b.running:.0f}, and p99 TTFT is "
         "{a.client_ttft_p99:.2f} s. p95 ITL: {ms.itl_p95:.0f} ms after {bms.itl_p95:.0f} ms.",
         lambda b, a: a.running > b.running and a.waiting < 1, right=True),
     Fix("lower", "Lower max_num_seqs to 2, so that each is served faster", settings(max_num_seqs=2),
         "A step for two takes about as long as for four (p50 ITL {ms.itl_p50:.1f} ms, {bms.itl_p50:.1f} ms before),"
         " and only half as many share it: {a.waiting:.0f} wait instead of {b.waiting:.0f}.",
         lambda b, a: abs(a.itl_p50 / b.itl_p50 - 1) < 0.15 and a.waiting > 1.5 * b.waiting)))

LONG_PROMPTS = RecordedDrill(
    "real_long_prompts", SYMPTOMS["slow_tokens"],
    Scenario((Stream("chat", rate=1.5, prompt=30, output=80, output_sigma=0.4, seed=41),
              Stream("documents", rate=4.5, prompt=250, output=6, prompt_sigma=0.2, output_sigma=0.2, seed=42)),
             _config(32)),
    "long_prompts", ("full_batch", "memory", "long_prompts", "thrashing"),
    (Fix("cap", "Lower max_num_seqs to 4", settings(max_num_seqs=4),
         "The long steps are long because of prompts, not of how many run: p95 ITL is still {ms.itl_p95:.0f} ms, and "
         "p50, {bms.itl_p50:.0f} ms, was fine before.",
         lambda b, a: a.itl_p95 > 0.040 and b.itl_p50 < 0.020),
     Fix("blocks", "Give the KV cache twice the blocks", settings(num_gpu_blocks=1201),
         "KV use was {b.kv_max:.0%} at most, and nobody was preempted. p95 ITL is {ms.itl_p95:.0f} ms.",
         lambda b, a: b.kv_max < 0.9 and b.preemptions == 0 and a.itl_p95 > 0.040),
     Fix("budget", "Lower max_num_batched_tokens to 48", settings(max_num_batched_tokens=48),
         "Long prompts are cut into chunks, and no step is longer than a chunk takes: p95 ITL {ms.itl_p95:.0f} after "
         "{bms.itl_p95:.0f} ms. Prompts pay: p99 TTFT {a.client_ttft_p99:.1f} after {b.client_ttft_p99:.1f} s.",
         lambda b, a: a.itl_p95 < 0.040 and a.client_ttft_p99 > b.client_ttft_p99, right=True)))

REAL: tuple[RecordedDrill, ...] = (SEQUENCE_CAP, LONG_PROMPTS)
