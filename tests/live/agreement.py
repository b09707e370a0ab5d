"""Our client, vLLM's own load tool and the server's own histograms, on one server and one workload, in turns.

    LABS_VLLM_PYTHON=.venv-vllm/bin/python python -m tests.live.agreement [--repeats 5] [--write]

Runs alternate (ours, theirs, ours, ...), so that what the machine does to one it does to the other; medians are
compared. The server's histograms grow by each run's own requests, so each client is also held against them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from labs.live.client import Ask, Measurement, agreement, measure
from labs.live.server import Server
from tests.conformance.environment import ROOT, vllm_python
from tests.live import report
from tests.live.real import started

REPORT = ROOT / "tests" / "agreement_report.md"
CONCURRENCY = 8
# name: (ours from a Measurement, theirs in the tool's result, the server's histogram if it has one, unit)
MEASURES = {
    "TTFT, mean": (lambda m: 1000 * m.values("ttft").mean(), "mean_ttft_ms", "TTFT", "ms"),
    "TTFT, median": (lambda m: 1000 * statistics.median(m.values("ttft")), "median_ttft_ms", None, "ms"),
    "TPOT, mean": (lambda m: 1000 * m.values("tpot").mean(), "mean_tpot_ms", "TPOT", "ms"),
    "ITL, mean": (lambda m: 1000 * m.gaps().mean(), "mean_itl_ms", "ITL", "ms"),
    "end to end, mean": (lambda m: 1000 * m.values("e2e").mean(), "mean_e2el_ms", "end to end", "ms"),
    "output tokens a second": (lambda m: m.output_tokens / m.wall, "output_throughput", None, "1/s"),
    "requests a second": (lambda m: len(m.ok) / m.wall, "request_throughput", None, "1/s"),
}
SERVERS = {"TTFT": "mean_ttft_ms", "ITL": "mean_itl_ms", "TPOT": "mean_tpot_ms", "end to end": "mean_e2el_ms"}


def workload(n: int, seed: int = 0) -> list[Ask]:
    """`n` texts of 48 to 80 characters, no two alike, with answers of 32 to 128 tokens."""
    draw, letters = Random(seed), "abcdefghijklmnopqrstuvwxyz "
    texts = ["".join(draw.choices(letters, k=draw.randint(48, 80))).strip() for _ in range(n)]
    return [Ask(str(i), text, draw.randint(32, 128)) for i, text in enumerate(texts)]


@dataclass
class Seen:
    """What a client said of its runs, and how far that was from the server's own figures, run by run."""

    figures: dict[str, list[float]] = field(default_factory=dict)
    off: dict[str, list[float]] = field(default_factory=dict)
    server: dict[str, list[float]] = field(default_factory=dict)
    lag: list[float] = field(default_factory=list)

    def add(self, figures: Mapping[str, float], own: Mapping[str, float], server: Mapping[str, float]) -> None:
        """One run: its figures, and of those that the server has too, the client's mean and the server's."""
        for name, value in figures.items():
            self.figures.setdefault(name, []).append(float(value))
        for name, mean in server.items():
            self.server.setdefault(name, []).append(mean)
            self.off.setdefault(name, []).append(own[name] / mean - 1)

    def median(self, name: str) -> float:
        """The median over the runs."""
        return statistics.median(self.figures[name])


@dataclass(frozen=True)
class Outcome:
    """Both clients after some alternating runs of the same workload."""

    ours: Seen
    theirs: Seen
    runs: int

    def difference(self, name: str) -> float:
        """Ours / theirs - 1, of the medians."""
        return self.ours.median(name) / self.theirs.median(name) - 1

    def off(self, name: str) -> float:
        """Our client's mean / the server's - 1, the median over the runs."""
        return statistics.median(self.ours.off[name])


# ---- the two clients ------------------------------------------------------------------------------------------------

def scrape(server: Server) -> dict[str, float]:
    """Sums and counts of the server's histograms, once they have come to rest."""
    last: dict[str, float] = {}
    while True:
        found = re.findall(r"^(vllm:\w+_seconds_(?:sum|count))\{[^}]*\} (\S+)$", server.metrics(), re.M)
        now = {name: float(value) for name, value in found}
        if now == last:
            return now
        last = now
        time.sleep(0.3)


def ours(server: Server, asks: Sequence[Ask], seen: Seen) -> Measurement:
    """One run of our client."""
    before = scrape(server)
    measured = measure(server, asks, mode="closed-loop", concurrency=CONCURRENCY, timeout=300)
    assert len(measured.ok) == len(asks), measured.statuses
    lines = {line.measure: line for line in agreement(measured, before, scrape(server))}
    assert all(line.client_n == line.server_n for line in lines.values()), lines
    client, own = ({name: getattr(lines[name], side) for name in SERVERS} for side in ("client", "server"))
    seen.add({name: how[0](measured) for name, how in MEASURES.items()}, client, own)
    seen.lag.append(sorted(measured.lag or (0.0,))[int(0.99 * len(measured.lag))])
    return measured


class Tool:
    """vLLM's own load tool on the same requests."""

    def __init__(self, server: Server, asks: Sequence[Ask], folder: Path, model: str) -> None:
        self.server, self.asks, self.result = server, asks, folder / "result.jsonl"
        # As conversations, since other kinds of data need pandas: an answer's length is that of the one on record,
        # and a letter is a token of the tiny model's.
        prompts = folder / "prompts.json"
        talks = [[{"value": ask.prompt}, {"value": "x" * ask.max_tokens}] for ask in asks]
        prompts.write_text(json.dumps([{"conversations": talk} for talk in talks]))
        self.words = [
            "--backend", "openai", "--base-url", server.root_url, "--model", server.model, "--tokenizer", model,
            "--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--disable-shuffle",
            "--num-prompts", str(len(asks)), "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--max-concurrency", str(CONCURRENCY), "--temperature", "0", "--disable-tqdm",
            "--ready-check-timeout-sec", "0",
        ]  # fmt: skip
        self.result.touch()
        self.log = (folder / "tool.log").open("w")
        env = os.environ | {"OPENAI_API_KEY": server.api_key, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
                            "DO_NOT_TRACK": "1", "PYTHONPATH": ""}  # fmt: skip
        self.process = subprocess.Popen(
            [vllm_python(), str(Path(__file__).with_name("load_tool.py")), str(self.result)], stdin=subprocess.PIPE,
            stdout=self.log, stderr=subprocess.STDOUT, text=True, env=env, cwd=folder,
        )  # fmt: skip
        self.lines(1, 180)

    def lines(self, n: int, seconds: float) -> list[dict]:
        """Its results, once there are `n`; what it said, if it ends or takes too long."""
        until = time.monotonic() + seconds
        while len(lines := self.result.read_text().split("\n")[:-1]) < n:
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the load tool failed:\n" + Path(self.log.name).read_text()[-3000:])
            time.sleep(0.1)
        return [json.loads(line) for line in lines]

    def run(self, seen: Seen) -> dict:
        """One run."""
        before, n = scrape(self.server), len(self.lines(1, 1))
        self.process.stdin.write(json.dumps(self.words) + "\n")
        self.process.stdin.flush()
        done = self.lines(n + 1, 300)[-1]
        assert (done["completed"], done["total_output_tokens"]) == (len(self.asks), wanted(self.asks)), done
        after = scrape(self.server)
        empty = Measurement(rows=())
        server = {line.measure: line.server for line in agreement(empty, before, after)}
        seen.add({name: done[how[1]] for name, how in MEASURES.items()},
                 {name: done[key] / 1000 for name, key in SERVERS.items()}, server)  # fmt: skip
        return done

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.log.close()


def wanted(asks: Sequence[Ask]) -> int:
    """Tokens that a run makes."""
    return sum(ask.max_tokens for ask in asks)


@contextmanager
def tool(server: Server, asks: Sequence[Ask], folder: Path) -> Iterator[Tool]:
    """The load tool, open; the server's own page of models says which folder its tokenizer is in."""
    model = server.request("GET", "/v1/models").json()["data"][0]["root"]
    opened = Tool(server, asks, folder, model)
    try:
        yield opened
    finally:
        with suppress(OSError):
            opened.close()


def alternate(server: Server, folder: Path, requests: int = 32, repeats: int = 5) -> Outcome:
    """Alternating runs of both, after one of each that is not counted."""
    asks, outcome = workload(requests), Outcome(Seen(), Seen(), repeats)
    with tool(server, asks, folder) as theirs:
        ours(server, asks, Seen())
        theirs.run(Seen())
        for i in range(repeats):
            for turn in (0, 1) if i % 2 == 0 else (1, 0):
                _ = theirs.run(outcome.theirs) if turn else ours(server, asks, outcome.ours)
    return outcome


# ---- the report -----------------------------------------------------------------------------------------------------

WHY = {
    "TTFT, mean": "ours starts when the request's last byte is on its way, theirs before the body is written",
    "TTFT, median": "as above",
    "end to end, mean": "ours ends with the stream, after the usage and [DONE]; theirs with the last token",
    "output tokens a second": "ours ends with the last answer; theirs when all its tasks are gathered",
    "requests a second": "as above",
}


def lines(outcome: Outcome) -> list[str]:
    """Both tables."""
    first = [(name, f"{outcome.ours.median(name):.2f} {unit}", f"{outcome.theirs.median(name):.2f} {unit}",
              f"{outcome.difference(name):+.1%}", WHY.get(name, "the same definition"))
             for name, (_, _, _, unit) in MEASURES.items()]  # fmt: skip
    second = [(name, f"{1000 * statistics.median(outcome.ours.server[name]):.2f} ms", f"{outcome.off(name):+.1%}",
               " ".join(f"{value:+.1%}" for value in outcome.ours.off[name]),
               f"{statistics.median(outcome.theirs.off[name]):+.1%}",
               " ".join(f"{value:+.1%}" for value in outcome.theirs.off[name])) for name in SERVERS]  # fmt: skip
    return [
        "## Our client beside vLLM's own load tool", "",
        *report.table(("measure", "ours", "vLLM's tool", "difference", "definitions"), first),
        "## Each beside the server's own histograms, sum / count, in the same run", "",
        f"Our client's event loop woke {1000 * max(outcome.ours.lag):.0f} ms late at p99 in its worst run, and "
        f"{1000 * min(outcome.ours.lag):.0f} ms in its best: what else ran on the machine delayed it so much.", "",
        *report.table(("measure", "server", "our client", "its runs", "vLLM's tool", "its runs"), second),
    ]  # fmt: skip


def main() -> int:
    """Run it, print it, and with --write store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--write", action="store_true", help=f"store the result in tests/{REPORT.name}")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started() as server:
        outcome = alternate(server, Path(folder), wanted.requests, wanted.repeats)
    seen = (f"{wanted.requests} requests of 48 to 80 characters and 32 to 128 tokens, {CONCURRENCY} at a time, on the "
            f"tiny model (512 x 8, random) with max_num_seqs 8 and prefix caching off; medians of {wanted.repeats} "
            f"runs of each client, in turns; {report.busy()}.")  # fmt: skip
    text = "\n".join([
        *report.heading("The client beside vLLM's own load tool and the server's own figures",
                        "LABS_VLLM_PYTHON=.venv-vllm/bin/python .venv/bin/python -m tests.live.agreement --write",
                        seen, report.versions("openai")), *lines(outcome),
    ])  # fmt: skip
    print(text)
    if wanted.write:
        REPORT.write_text(text.rstrip() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
