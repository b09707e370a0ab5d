"""Steps and wall clock as predicted beside those measured on the real server, in interleaved rounds.

    LABS_VLLM_PYTHON=.venv-vllm/bin/python python -m tests.live.predicted_seconds [--rounds 5] [--write]

In each round a step-time model is fitted on runs of another workload, and then every workload runs once under each
scheduler, from an exact start. `--save FILE` keeps the pairs and adds to those that are in it, so that a long report
can be made in several sittings; `--only NAME` runs one workload.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from labs.live.bench import Bench
from labs.live.compare import fit_runs, predicted, seconds
from labs.live.server import Server
from tests.conformance.environment import ROOT
from tests.live import report
from tests.live.real import SLOTS, started
from tests.live.workloads import CALIBRATION, WORKLOADS, asks

REPORT = ROOT / "tests" / "predicted_seconds_report.md"


class Pair(NamedTuple):
    """One run: its steps and its seconds, as predicted and as measured."""

    predicted_steps: int
    steps: float
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """predicted / measured - 1, of the seconds."""
        return self.predicted / self.measured - 1


Pairs = dict[str, list[Pair]]


def one_round(bench: Bench, names: Sequence[str], seed: int) -> dict[str, Pair]:
    """Fit, then run each of these workloads under each scheduler; static and continuous change places by turns."""
    fit = fit_runs([bench.run("fit", asks(CALIBRATION, seed), static=static, mode="held") for static in (True, False)])
    found = {}
    for name in names:
        lengths, slots = WORKLOADS[name]
        for static in (True, False) if seed % 2 else (False, True):
            run = bench.run(name, asks(lengths, seed), static=static, slots=slots, mode="held", timeout=200)
            clock = seconds(run, fit.step_time)
            key = f"{name}, {'static' if static else 'continuous'}"
            found[key] = Pair(predicted(run).steps, run.steps, clock.predicted, clock.measured)
    return found


def rounds(server: Server, names: Sequence[str], n: int, pairs: Pairs | None = None) -> Iterator[Pairs]:
    """The pairs after each of `n` rounds, added to those given; a short run before them is not counted."""
    bench, pairs = Bench(server, SLOTS, {}), dict(pairs or {})
    bench.run("warm-up", asks(CALIBRATION), mode="held")
    for seed in range(n):
        for key, pair in one_round(bench, names, seed).items():
            pairs[key] = [*pairs.get(key, []), pair]
        yield pairs


def off(pairs: Sequence[Pair]) -> float:
    """How far the predicted wall clock is off: the median over the pairs."""
    return statistics.median(pair.off for pair in pairs)


def rows(pairs: Mapping[str, Sequence[Pair]]) -> list[tuple[object, ...]]:
    """For the table: one line a workload and scheduler."""
    lines = []
    for key, some in pairs.items():
        steps = {(pair.predicted_steps, pair.steps) for pair in some}
        said = ", ".join(f"{ours} = {int(theirs)}" if ours == theirs else f"{ours} against {theirs}"
                         for ours, theirs in steps)  # fmt: skip
        middle = [statistics.median(column) for column in zip(*((p.predicted, p.measured) for p in some), strict=True)]
        lines.append((key, said, f"{middle[0]:.2f} s", f"{middle[1]:.2f} s", f"{off(some):+.1%}",
                      " ".join(f"{pair.off:+.0%}" for pair in some)))  # fmt: skip
    return lines


HEAD = ("workload", "steps predicted = measured", "seconds predicted", "seconds measured", "off, median", "each pair")


def main() -> int:
    """Run it, print it, and with --write store it; exit status 1 if a number of steps differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=WORKLOADS, action="append")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--write", action="store_true", help=f"store the result in tests/{REPORT.name}")
    wanted = parser.parse_args()
    pairs: Pairs = {}
    if wanted.save and wanted.save.exists():
        pairs = {key: [Pair(*one) for one in some] for key, some in json.loads(wanted.save.read_text()).items()}
    if wanted.rounds:
        with started() as server:
            for now in rounds(server, wanted.only or list(WORKLOADS), wanted.rounds, pairs):
                pairs = now
                if wanted.save:
                    wanted.save.write_text(json.dumps(pairs))
    seen = (f"The tiny model (512 x 8, random) on vLLM for the CPU, exact starts; the step-time model is fitted in "
            f"each round on {len(CALIBRATION)} other requests, run both ways; {report.busy()}.")  # fmt: skip
    head = report.heading(
        "Steps and seconds, predicted and measured",
        "LABS_VLLM_PYTHON=.venv-vllm/bin/python .venv/bin/python -m tests.live.predicted_seconds --write",
        seen, report.versions("openai"))  # fmt: skip
    text = "\n".join([*head, *report.table(HEAD, rows(pairs))])
    print(text)
    if wanted.write:
        REPORT.write_text(text.rstrip() + "\n", encoding="utf-8")
    return int(any(pair.steps != pair.predicted_steps for some in pairs.values() for pair in some))


if __name__ == "__main__":
    sys.exit(main())
