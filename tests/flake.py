"""Run nbval over all notebooks several times in a row and print a table: python tests/flake.py --runs 10."""

from __future__ import annotations

import argparse
import os
import time

from nbval_run import NOTEBOOKS as ALL
from nbval_run import ROOT, nbval, needs_a_server

# Without a vLLM the live server's notebook has other outputs, and says so.
NOTEBOOKS = [path for path in ALL if os.environ.get("LABS_VLLM_PYTHON") or not needs_a_server(path)]


def main() -> int:
    """Print one row a notebook; 0 if no run failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    failures, seconds, failed_output = {}, {}, []
    for run in range(1, runs + 1):
        for path in NOTEBOOKS:
            begun = time.monotonic()
            same, said = nbval(path)
            seconds.setdefault(path, []).append(time.monotonic() - begun)
            failures[path] = failures.get(path, 0) + (not same)
            failed_output += [] if same else [f"--- run {run}, {path.name}\n{said}"]
        print(f"run {run} of {runs}: {sum(failures.values())} failures so far", flush=True)
    print(*failed_output, sep="\n")
    print("| notebook | runs | failures | longest, s |\n|---|---|---|---|")
    for path in NOTEBOOKS:
        print(f"| {path.relative_to(ROOT)} | {runs} | {failures[path]} | {max(seconds[path]):.1f} |")
    print(f"total: {runs * len(NOTEBOOKS)} runs, {sum(failures.values())} failures")
    return 1 if any(failures.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
