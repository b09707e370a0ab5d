"""A drill's dashboard as a picture, and in words."""
from __future__ import annotations

import math

import numpy as np

from labs.drills.telemetry import Dashboard
from labs.drills.text import spaced
from labs.drills.traffic import HORIZON
from labs.svg.dashboard import Chart, Line, dashboard
from labs.svg.marks import Picture
from labs.words import many

PERCENT = 100.0


def draw(d: Dashboard, title: str, before: Dashboard | None = None) -> Picture:
    """Nine charts; `before` stands behind them in grey."""
    return dashboard(title, settings(d), charts(d, before), HORIZON, spaced(f"{title.rstrip('.')}. {words(d)}"))


def settings(d: Dashboard) -> str:
    """The settings that the engine was started with."""
    c = d.config
    return (f"max_num_seqs {c.max_num_seqs:,} · max_num_batched_tokens {c.max_num_batched_tokens:,} · "
            f"{c.num_gpu_blocks:,} KV blocks of {c.block_size} tokens · {many(d.replicas, 'replica')}"
            " · /health 200")


def charts(d: Dashboard, before: Dashboard | None = None) -> list[Chart]:
    """What an operator looks at, the pair of running and waiting first."""
    def line(name: str, label: str = "", times: float = 1.0) -> Line:
        return Line(times * d.series[name], label, None if before is None else times * before.series[name])

    budget = d.config.max_num_batched_tokens
    return [
        Chart("running", [line("running")], d.cap, f"max_num_seqs {d.cap:,}", least_top=4),
        Chart("waiting", [line("waiting")], least_top=4),
        Chart("KV use, %", [line("kv_usage", times=PERCENT)], least_top=100),
        Chart("TTFT, s", [line("ttft_p50", "p50"), line("ttft_p99", "p99"),
                          line("client_ttft_p99", "p99 at client")], spec=",.2g", least_top=0.1),
        Chart("ITL, ms", [line("itl_p50", "p50", 1000), line("itl_p95", "p95", 1000)], 40, "target 40", least_top=20),
        Chart("preemptions in 2 s", [line("preemptions")], least_top=4),
        Chart("tokens a step, mean", [line("tokens_per_step")], budget, f"budget {budget:,}", least_top=10),
        Chart("largest tenant: not recorded" if math.isnan(d.summary.largest_tenant) else "largest tenant, % of tokens",
              [line("largest_tenant", times=PERCENT)], least_top=100),
        Chart("prefix-cache hits, %", [line("cache_hits", times=PERCENT)], least_top=100),
    ]


def words(d: Dashboard) -> str:
    """The dashboard's numbers in sentences, for who cannot see it."""
    s, series = d.summary, d.series
    tenant = "who sent what was not recorded" if math.isnan(s.largest_tenant) else (
        f"the largest tenant has {s.largest_tenant:.0%} of the tokens in flight at most")
    again = "" if math.isnan(s.computed_again) else f", {s.computed_again:.0%} of tokens computed again"
    return (f"Settings: {settings(d)}. Over two minutes: running {_range(series['running'])} of {d.cap:,}; waiting "
            f"{_range(series['waiting'])}, at the end {series['waiting'][-1]:.0f}; KV use {s.kv_usage:.0%} on average "
            f"and {s.kv_max:.0%} at most; {s.preemptions} preemptions{again}. "
            f"TTFT p50 {s.ttft_p50:.2f} s, p99 {s.ttft_p99:.2f} s, at the client {s.client_ttft_p99:.2f} s; ITL "
            f"p50 {1e3 * s.itl_p50:.0f} ms, p95 {1e3 * s.itl_p95:.0f} ms; "
            f"{s.tokens_per_step:.0f} tokens a step on average; {tenant}; prefix-cache hits "
            f"{s.cache_hits_first:.0%} at first and {s.cache_hits_last:.0%} at last; the last token came at "
            f"{s.last_token:.0f} s.")


def _range(values: np.ndarray) -> str:
    """The smallest and the largest of `values`, or the one that all are."""
    low, high = float(values.min()), float(values.max())
    return f"{low:.0f} throughout" if low == high else f"{low:.0f} to {high:.0f}"
