"""How much the client itself adds when it has 500 streams, on the machine at hand.

    python -m tests.live.bench_client [--write]     against the simulated server, all streams in step
    python -m tests.live.bench_client --stub        against a stub that does nothing but send, in step and apart

A server in a process of its own notes when it sends each chunk, so what comes after it, the client's own part, is
known for each gap: (gap seen) - (gap sent). `--url` measures a server that is already running instead: then there are
no such times, and what is known is how late the client's event loop woke.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from labs.live.client import Ask, Measurement, Row, measure
from labs.live.launch import claim_port
from labs.live.web import Unreachable, ask
from tests.conformance.environment import ROOT
from tests.live import report

REPORT = ROOT / "tests" / "load_report.md"
Added = Callable[[Row], np.ndarray] | None


@dataclass(frozen=True)
class Load:
    """One run of many streams at once. Seconds, and MiB of this process after it.

    added: what the client added to each gap; it can be negative, when a late chunk is followed by a timely one.
    """

    kind: str
    streams: int
    statuses: dict[str, int]
    peak: int
    tokens: int
    took: float
    processor: float
    gaps: np.ndarray
    added: np.ndarray
    sending: float
    lag: np.ndarray
    memory: float

    @property
    def lost(self) -> int:
        """Streams that did not end as they should."""
        return self.streams - self.statuses.get("ok", 0)

    @property
    def added_p99(self) -> float:
        """The gap that the client itself adds at p99, in seconds; NaN if it can't be known."""
        return float(np.quantile(self.added, 0.99)) if self.added.size else float("nan")

    def row(self) -> tuple[str, ...]:
        """For the table."""
        gaps, added, lag = 1000 * self.gaps, 1000 * self.added, 1000 * self.lag
        own = f"{added.mean():+.2f} / {np.quantile(abs(added), 0.5):.1f} / {np.quantile(added, 0.99):.1f}"
        return (self.kind, f"{self.statuses}", f"{self.peak}", f"{self.tokens:,} in {self.took:.1f} s",
                f"{self.processor:.1f} s", f"{gaps.mean():.1f} / {np.median(gaps):.1f} / {np.quantile(gaps, .99):.1f}",
                own if added.size else "unknown", f"{1000 * self.sending:.0f} ms",
                f"{np.median(lag):.1f} / {np.quantile(lag, 0.99):.1f}", f"{self.memory:.0f} MiB")  # fmt: skip


HEAD = ("run", "ended", "peak in flight", "tokens", "processor, client", "ITL ms, mean / p50 / p99",
        "added by the client ms, mean / p50 of its size / p99", "sending all took", "loop lag ms, p50 / p99",
        "memory after")  # fmt: skip


def resident() -> float:
    """Memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def load(server: SimpleNamespace, kind: str, streams: int, tokens: int, stamps: Callable[[], Added]) -> Load:
    """`streams` streams at once, of `tokens` tokens each."""
    asks = [Ask(str(i), f"stream {i}", tokens) for i in range(streams)]
    processor, began = time.process_time(), time.perf_counter()
    seen = measure(server, asks, timeout=300)
    processor, took = time.process_time() - processor, time.perf_counter() - began
    own = added(seen, stamps())
    sending, lag = float(seen.values("queue_delay").max()), np.array(seen.lag or [0.0])
    facts = (seen.statuses, seen.peak_in_flight, seen.output_tokens, took, processor, seen.gaps(), own, sending, lag)
    for error in sorted({row.error for row in seen.failed}):
        print(f"failed: {error}")
    del seen, asks
    gc.collect()
    return Load(kind, streams, *facts, resident())


def added(seen: Measurement, stamps: Added) -> np.ndarray:
    """What the client added to each gap, where the server's own times are known."""
    if not stamps:
        return np.empty(0)
    return np.concatenate([np.empty(0), *(row.chunk_gaps - np.diff(stamps(row)) for row in seen.ok)])


# ---- servers --------------------------------------------------------------------------------------------------------

@contextmanager
def simulated(itl: float) -> Iterator[tuple[SimpleNamespace, Callable[[], Added]]]:
    """The simulated server, with steps of `itl` seconds: all streams get their tokens at the same moments."""
    port = claim_port()
    root = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([sys.executable, "-m", "tests.live.stamping", str(port), str(itl)], cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while not _well(root):
            assert process.poll() is None and time.monotonic() < until, "the simulated server did not start"
            time.sleep(0.1)
        server = SimpleNamespace(base_url=f"{root}/v1", model="simulated", api_key="none", engine="simulated")
        yield server, lambda: _sent(ask("GET", f"{root}/stamps", timeout=60).json())
    finally:
        process.kill()
        process.wait()


def _well(root: str) -> bool:
    try:
        return ask("GET", f"{root}/health", timeout=2).status == 200
    except Unreachable:
        return False


def _sent(stamps: dict[str, list[float]]) -> Added:
    return lambda row: np.array(stamps[row.ask.prompt])


@contextmanager
def stub(itl: float, in_step: bool) -> Iterator[tuple[SimpleNamespace, Callable[[], Added]]]:
    """A stub whose tokens are the times at which it sends them."""
    command = [sys.executable, str(Path(__file__).with_name("stub_server.py")), "--itl", str(itl)]
    process = subprocess.Popen(command + ["--in-step"] * in_step, stdout=subprocess.PIPE, text=True)
    try:
        base = f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        yield SimpleNamespace(base_url=base, model="stub", api_key="none"), lambda: _in_text
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _in_text(row: Row) -> np.ndarray:
    return np.array(row.text.split(), dtype=float)


# ---- the report -----------------------------------------------------------------------------------------------------

def runs(wanted: argparse.Namespace) -> list[Load]:
    """All runs asked for."""
    if wanted.url:
        server = SimpleNamespace(base_url=wanted.url, model=wanted.model, api_key=wanted.key)
        return [load(server, wanted.url, wanted.streams, wanted.tokens, lambda: None) for _ in range(wanted.repeats)]
    kinds = [("stub, in step", stub(wanted.itl, True)), ("stub, apart", stub(wanted.itl, False))]
    found = []
    for kind, opened in kinds if wanted.stub else [("simulated server", simulated(wanted.itl))]:
        with opened as (server, stamps):
            found += [load(server, kind, wanted.streams, wanted.tokens, stamps) for _ in range(wanted.repeats)]
    return found


def main() -> int:
    """Run it; exit status 1 if any stream is not accounted for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=60, help="tokens of each stream")
    parser.add_argument("--itl", type=float, default=0.25, help="seconds between two tokens of a stream")
    parser.add_argument("--repeats", type=int, default=4, help="runs of each kind, to see whether memory stays flat")
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--url", help="a running server's base URL, ending in /v1")
    parser.add_argument("--model", default="simulated")
    parser.add_argument("--key", default="none")
    parser.add_argument("--write", action="store_true", help=f"store the result in tests/{REPORT.name}")
    wanted = parser.parse_args()
    before, busy = resident(), f"load average before it {os.getloadavg()[0]:.1f}"
    found = runs(wanted)
    seen = (f"{wanted.streams} streams at once of {wanted.tokens} tokens each, a token every {1000 * wanted.itl:.0f} "
            f"ms, from one client, the server on the same machine; {busy}; memory before the first run "
            f"{before:.0f} MiB.")  # fmt: skip
    about = report.versions("openai", "uvicorn", vllm=False)
    head = report.heading("Many streams from one client", "python -m tests.live.bench_client --write", seen, about)
    text = "\n".join([*head, *report.table(HEAD, [one.row() for one in found])])
    print(text)
    if wanted.write:
        REPORT.write_text(text.rstrip() + "\n", encoding="utf-8")
    return int(any(one.lost for one in found))


if __name__ == "__main__":
    sys.exit(main())
