"""The planner: nothing here is a formula to be believed; each candidate is simulated, and so is one step less.

Replicas share the arrivals at random, so each of k sees a Poisson stream of rate/k, and one of them is simulated.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from labs.engine import StepTime
from labs.planner.asked import RESOURCES, Load, Settings, Targets
from labs.planner.judged import ALIKE, FEWEST, MISSES, REFUSED, Full, Margin, while_full
from labs.planner.search import largest, smallest
from labs.scheduler import SchedulerConfig
from labs.serving import Served, serve

MOST_SEQS, MOST_REPLICAS = 256, 10_000
# Five more runs that miss on the same arrivals: by chance alone that happens once in 2^5.
TELLS = 5
ALLOWED = 1  # runs, by other seeds than those of the search, in which the answer may miss
STEPS = (6, 3, 2)  # one step less is a sixth; then a third, and half, until it is told apart
TURNS = 8  # requests a slot in a simulation, at least
SATURATED = 3  # requests a slot in the run that keeps every slot busy


@dataclass(frozen=True)
class Plan:
    """The answer, how it was found (`rows` of text), and the `margins` by resource.

    `ceiling` is the most sequences that keep the ITL target with every slot taken, `capacity` what a replica with so
    many does, in requests a second.
    """

    settings: Settings
    ceiling: int
    capacity: float
    config: SchedulerConfig
    margins: dict[str, Margin]
    rows: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Planner:
    """All that an answer depends on. `runs` simulations of `requests` requests judge a candidate, each with a seed."""

    load: Load
    step_time: StepTime
    targets: Targets
    max_num_batched_tokens: int = 2048
    block_size: int = 16
    runs: int = 10
    requests: int = 600
    seed: int = 0

    def plan(self) -> Plan:
        """The fewest replicas, then the fewest slots, then the fewest blocks. Raises ValueError if none is enough."""
        ceiling = self._ceiling()
        full = self.full(ceiling)
        fewest = max(1, math.ceil(0.999 * self.load.rate / full.capacity))
        replicas = smallest(lambda k: self.holds(self.settings(k, ceiling)), fewest, MOST_REPLICAS)
        seqs = self._fewest_slots(replicas, ceiling)
        blocks = self._fewest_blocks(replicas, seqs)
        settings = self.firmed(Settings(replicas, seqs, blocks), ceiling)
        margins = {resource: self.margin(settings, resource) for resource in RESOURCES}
        return Plan(settings, ceiling, full.capacity, self.config(settings), margins,
                    tuple(reasoning(self, settings, ceiling, full, margins)))

    def config(self, settings: Settings) -> SchedulerConfig:
        """The settings as vLLM's."""
        return SchedulerConfig(settings.max_num_seqs, max(self.max_num_batched_tokens, settings.max_num_seqs),
                               settings.blocks, self.block_size, self.load.max_model_len)

    # ---- judging a candidate

    def simulate(self, settings: Settings, seed: int) -> Served:
        """One replica's share of the load, long enough for every slot to be taken several times."""
        n = max(self.requests, TURNS * settings.max_num_seqs)
        requests = self.load.requests(n, seed, self.load.rate / settings.replicas)
        return serve(requests, self.config(settings), self.step_time)

    def holds(self, settings: Settings) -> bool:
        """Whether all runs keep the targets; stops at the first that doesn't."""
        return all(self.targets.met(self.simulate(settings, self.seed + run)) for run in range(self.runs))

    def misses(self, settings: Settings, seeds: range) -> int:
        """In how many runs, by these seeds, a target is missed."""
        return sum(not self.targets.met(self.simulate(settings, seed)) for seed in seeds)

    def margin(self, settings: Settings, resource: str) -> Margin:
        """What one step less of a resource does, by runs of their own: the same arrivals for both."""
        seeds = range(self.seed + 2 * self.runs, self.seed + 3 * self.runs)
        answer, one_step = self.misses(settings, seeds), None
        for part in STEPS:
            less = settings.less(resource, part)
            if less is None or less.blocks < self.least_blocks:
                return one_step or Margin(FEWEST if less is None else REFUSED)
            missed = self.misses(less, seeds)
            told = missed - answer >= TELLS
            one_step = one_step or Margin(MISSES if told else ALIKE, missed, answer, self.runs)
            if told:
                clear = getattr(less, RESOURCES[resource])
                return one_step if one_step.verdict == MISSES else replace(one_step, clear=clear, clearly=missed)
        return one_step

    def full(self, seqs: int) -> Full:
        """One replica with ample memory and a queue that never empties."""
        requests = self.load.requests(SATURATED * seqs + 200, self.seed, math.inf)
        served = serve(requests, self.config(self.settings(1, seqs)), self.step_time)
        return while_full(served, seqs)

    # ---- memory

    @cached_property
    def least_blocks(self) -> int:
        """The fewest that vLLM starts with: those of one request of max_model_len, and the null block."""
        return -(-self.load.max_model_len // self.block_size) + 1

    def settings(self, replicas: int, seqs: int) -> Settings:
        """Settings with ample memory."""
        return Settings(replicas, seqs, self.ample(seqs))

    def ample(self, seqs: int) -> int:
        """Blocks with which memory never binds."""
        return seqs * (self.least_blocks - 1) + 1

    # ---- the search

    def _ceiling(self) -> int:
        """The most sequences that keep the ITL target with every slot taken."""
        alone = self.full(1).itl_p95
        if alone > self.targets.itl_p95:
            raise ValueError(f"one sequence alone has a p95 ITL of {1e3 * alone:.1f} ms, above the target of "
                             f"{1e3 * self.targets.itl_p95:.1f} ms: no cap can hold it, a faster step must")
        lonely = self.load.requests(self.requests, self.seed, 1e-3)
        config = self.config(self.settings(1, 1))
        first = serve(lonely, config, self.step_time).ttft_at(0.99)
        if first > self.targets.ttft_p99:
            raise ValueError(f"the p99 TTFT is {first:.2f} s with nobody else there, above the target of "
                             f"{self.targets.ttft_p99:.2f} s: no number of replicas helps")
        return largest(lambda c: self.full(c).itl_p95 <= self.targets.itl_p95, 1, MOST_SEQS)

    def _fewest_slots(self, replicas: int, ceiling: int) -> int:
        """Looked for from the mean number that run if there are plenty."""
        ample = self.settings(replicas, ceiling)
        series = self.simulate(ample, self.seed).series
        mean = math.ceil(float(np.average(series.running, weights=series.seconds)))
        low = min(mean, ceiling)
        while low > 1 and self.holds(self.settings(replicas, low)):
            low = max(1, low - max(1, low // 4))
        return smallest(lambda c: self.holds(self.settings(replicas, c)), low, ceiling)

    def _fewest_blocks(self, replicas: int, seqs: int) -> int:
        """To about 4 %, between those of one request and the most that are used if there are plenty."""
        ample = self.settings(replicas, seqs)
        used = max(ample.blocks - int(self.simulate(ample, self.seed + run).series.free_blocks.min())
                   for run in range(self.runs))
        low, high = self.least_blocks - 1, max(used, self.least_blocks)
        while high - low > max(1, high // 24):
            middle = (low + high) // 2
            holds = self.holds(Settings(replicas, seqs, middle))
            low, high = (low, middle) if holds else (middle, high)
        return high

    def firmed(self, settings: Settings, ceiling: int) -> Settings:
        """More of what is short, until other arrivals keep the targets too: a search favours lucky runs."""
        seeds = range(self.seed + self.runs, self.seed + 2 * self.runs)
        while self.misses(settings, seeds) > ALLOWED:
            settings = self._more(settings, ceiling, seeds)
        return settings

    def _more(self, settings: Settings, ceiling: int, seeds: range) -> Settings:
        """A sixth more blocks if that is what is short, else of slots with their blocks, else one replica more."""
        replicas, seqs, blocks = settings.replicas, settings.max_num_seqs, settings.blocks
        if blocks < self.ample(seqs) and self.misses(self.settings(replicas, seqs), seeds) <= ALLOWED:
            return Settings(replicas, seqs, min(self.ample(seqs), blocks + max(1, blocks // 6)))
        if seqs < ceiling and self.misses(self.settings(replicas, ceiling), seeds) <= ALLOWED:
            more = min(ceiling, seqs + max(1, seqs // 6))
            return Settings(replicas, more, min(self.ample(more), math.ceil(blocks * more / seqs)))
        return Settings(replicas + 1, seqs, blocks)


# ---- in words -------------------------------------------------------------------------------------------------------

def reasoning(planner: Planner, settings: Settings, ceiling: int, full: Full,
              margins: dict[str, Margin]) -> Iterator[tuple[str, str, str]]:
    """Rows of what was asked, what was found and why."""
    served = planner.simulate(settings, planner.seed)
    beyond = planner.full(ceiling + 1).itl_p95
    each = planner.load.rate / settings.replicas
    yield ("the brake", f"max_num_seqs at most {ceiling}",
           f"with all slots taken p95 ITL is {1e3 * full.itl_p95:.1f} ms; with one more, {1e3 * beyond:.1f} ms")
    yield ("one replica", f"{full.capacity:.2f} requests/s", f"what it does with {ceiling} slots always taken")
    yield ("replicas", f"{settings.replicas}", f"{each:.2f} requests/s each; one less: {margins['replicas']}")
    yield ("slots", f"max_num_seqs {settings.max_num_seqs}",
           f"{served.series.running.max()} at once at most; one size smaller: {margins['max_num_seqs']}")
    yield ("memory", f"{settings.blocks:,} KV blocks of {planner.block_size}",
           f"{100 * served.series.kv_usage.max():.0f} % used at the peak; one size smaller: {margins['KV blocks']}")
    yield ("check: p95 ITL", f"{1e3 * served.itl(0.95):.1f} ms", f"target {1e3 * planner.targets.itl_p95:.1f} ms")
    yield ("check: p99 TTFT", f"{served.ttft_at(0.99):.2f} s", f"target {planner.targets.ttft_p99:.2f} s")
    yield ("check: preemptions", f"{served.preemptions.sum()}", f"among {len(served.requests):,} requests")
