"""The dial: a cap on the sequences that run together, and what it does to ITL, to the queue and to the replicas."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from labs import svg
from labs.engine import StepTime
from labs.explorers.panel import Panel, View, choice_slider, slider
from labs.planner import Full, Load, Planner, Targets
from labs.serving import serve
from labs.situations import GPU_LIKE, chat

LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BUDGETS = (256, 512, 1024, 2048, 4096, 8192)
SAMPLE = 2000  # requests whose lengths stand for the workload


def dial(step_time: StepTime = GPU_LIKE) -> Panel:
    """A panel for `max_num_seqs` on one replica of a made-up GPU: p95 ITL against concurrency, and the rest."""
    return Dial(step_time)


class Dial(Panel):
    """Keeps what a full replica does at each cap, so that only the load is simulated anew."""

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self._full = lru_cache(maxsize=512)(self._at_full)
        self._share = lru_cache(maxsize=64)(self._one_replica)  # the target changes nothing of it
        sample = chat(SAMPLE, 1.0)
        self._load = Load([r.prompt_tokens for r in sample], [r.output_tokens for r in sample], 1.0)
        super().__init__({
            "cap": choice_slider("max_num_seqs", 256, [(str(n), n) for n in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96,
                                                                              128, 192, 256)]),
            "rate": slider("requests a second", 40, 1, 120),
            "target": slider("p95 ITL target, ms", 40, 10, 120, 5),
            "budget": choice_slider("max_num_batched_tokens", 2048, [(f"{n:,}", n) for n in BUDGETS]),
        }, self.draw)

    def planner(self, budget: int, target: float = 40.0) -> Planner:
        """The workload as a planner has it."""
        return Planner(self._load, self._step_time, Targets(target / 1e3, 1.0), budget)

    def _at_full(self, seqs: int, budget: int) -> Full:
        return self.planner(max(budget, seqs)).full(seqs)

    def draw(self, settings: dict[str, Any]) -> View:
        """The curve for this budget, the target across it, the cap along it."""
        cap, target, budget = settings["cap"], settings["target"], settings["budget"]
        curve = [1e3 * self._full(level, budget).itl_p95 for level in LEVELS]
        here = self._full(cap, budget)
        itl, replicas = 1e3 * here.itl_p95, math.ceil(settings["rate"] / here.capacity)
        kept = "keeps" if itl <= target else "misses"
        title = f"a cap of {cap} {kept} {target} ms: p95 ITL is {itl:.1f} ms with every slot taken"
        alt = (f"p95 ITL against concurrency: {title}. " + ", ".join(
            f"{level}: {value:.0f} ms" for level, value in zip(LEVELS, curve, strict=True)) + ".")
        picture = svg.chart({"p95 ITL": (LEVELS, curve)}, svg.Axis("sequences that run together", 1, log=True),
                            svg.Axis("ms"), title, alt, {f"target {target} ms": target}, {f"cap {cap}": cap})
        one = self._share(cap, budget, settings["rate"] / replicas)
        numbers = [(f"{itl:.1f} ms", "p95 ITL, every slot taken"),
                   (f"{replicas}", f"{'replica' if replicas == 1 else 'replicas'} for this load"),
                   (f"{here.capacity:.1f}", "requests a second by one of them")]
        return View(picture, numbers, one)

    def _one_replica(self, cap: int, budget: int, rate: float) -> list[list[str]]:
        """What one of the replicas does with its share, in a short run."""
        planner = self.planner(max(budget, cap))
        config = planner.config(planner.settings(1, cap))
        served = serve(chat(400, rate), config, self._step_time)
        return [["one replica's share", "value"], ["requests a second", f"{rate:.1f}"],
                ["p95 ITL at this load", f"{1e3 * served.itl(0.95):.1f} ms"],
                ["p99 TTFT at this load", f"{1e3 * served.ttft_at(0.99):,.0f} ms"],
                ["most that ran / waited together", f"{served.series.running.max()} / {served.series.waiting.max()}"]]
