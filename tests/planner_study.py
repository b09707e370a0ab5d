"""Plan for 200 random loads, and keep the answers: python tests/planner_study.py

Lengths, step times, budgets, rates and targets are drawn from a seed each; a case that no number of replicas can serve
is left out and counted. tests/test_planner.py simulates every answer, and one step less of each resource, by other
seeds, and plans some of the cases again.
"""
from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labs.engine import StepTime  # noqa: E402
from labs.planner import RESOURCES, Load, Plan, Planner, Targets  # noqa: E402
from labs.workload import MEASURED, lognormal_lengths, measured_lengths  # noqa: E402

GOLDEN = ROOT / "tests/golden/planner_study.csv"
CASES = 200


def lengths(rng: random.Random, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts and outputs: two lognormals, or a measured workload."""
    if rng.random() < 1 / 3:
        name = rng.choice(MEASURED)
        drawn = [measured_lengths(name, 1000, seed, column) for column in ("prompt", "output")]
    else:
        drawn = [lognormal_lengths(1000, rng.uniform(3, 6.5), rng.uniform(0, 1.2), seed),
                 lognormal_lengths(1000, rng.uniform(2.5, 5.5), rng.uniform(0, 1.3), seed + 1)]
    return np.clip(drawn[0], 1, 3000), np.clip(drawn[1], 1, 1500)


def case(seed: int) -> Planner:
    """One random load with its machine and its targets."""
    rng = random.Random(seed)
    prompts, outputs = lengths(rng, seed)
    base = rng.uniform(4e-3, 30e-3)
    step_time = StepTime(base, base * rng.uniform(0.002, 0.03), base * rng.uniform(0.0005, 0.005))
    budget = rng.choice((1024, 2048, 8192))
    longest = float(np.quantile(prompts, 0.99))
    itl = rng.uniform(1.3, 4) * step_time(1, min(budget, int(prompts.mean())))
    ttft = rng.uniform(1.5, 10) * (base * (1 + longest / budget) + step_time.per_prefill_token * longest)
    return Planner(Load(prompts, outputs, 10 ** rng.uniform(-0.5, 1.3)), step_time, Targets(itl, ttft), budget,
                   requests=400)


def row(seed: int, plan: Plan) -> dict[str, str]:
    """A plan in a line."""
    s, margins = plan.settings, {}
    for name in RESOURCES:
        margin = plan.margins[name]
        margins |= {f"{name} less": margin.verdict, f"{name} missed": str(margin.missed),
                    f"{name} clear": str(margin.clear or "")}
    return {"seed": str(seed), "replicas": str(s.replicas), "max_num_seqs": str(s.max_num_seqs),
            "blocks": str(s.blocks), "ceiling": str(plan.ceiling)} | margins


def study(cases: int) -> Iterator[dict[str, str]]:
    """The first `cases` seeds that can be served."""
    seed = left_out = 0
    while cases:
        try:
            yield row(seed, case(seed).plan())
            cases -= 1
        except ValueError as error:
            left_out += 1
            print(f"{seed} is left out: {error}", flush=True)
        seed += 1
    print(f"{left_out} of {seed} loads can't be served by any number of replicas")


def main() -> None:
    """Write the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--to", type=Path, default=GOLDEN)
    given = parser.parse_args()
    with given.to.open("w", newline="", encoding="utf-8") as file:
        writer = None
        for found in study(given.cases):
            writer = writer or csv.DictWriter(file, found, lineterminator="\n")
            if file.tell() == 0:
                writer.writeheader()
            writer.writerow(found)
            file.flush()


if __name__ == "__main__":
    main()
