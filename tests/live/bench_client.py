"""How much the client itself adds at 500 streams, on the machine at hand: python tests/live/bench_client.py

A stub in a process of its own stamps each token with the time at which it sends it, so the client's own part of
each gap is known: (gap seen) - (gap sent). `--url` measures a server that is already running instead (such as the
simulated one): then there are no stamps, and what is known is how late the client's event loop woke.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from labs.live.client import Ask, Measurement, Row, measure  # noqa: E402


def resident() -> float:
    """Memory of this process now, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def added(row: Row) -> np.ndarray:
    """Seconds that the client added to each gap: it can be negative, when a late chunk is followed by a timely one."""
    stamps = np.array(row.text.split(), dtype=float)
    return np.diff([at for at, _ in row.chunks]) - np.diff(stamps)


def run(server: SimpleNamespace, streams: int, tokens: int) -> tuple[Measurement, float, float]:
    """(what was measured, processor seconds used, seconds it took)."""
    asks = [Ask(str(i), f"stream {i}", tokens) for i in range(streams)]
    cpu, start = time.process_time(), time.perf_counter()
    seen = measure(server, asks, timeout=300)
    return seen, time.process_time() - cpu, time.perf_counter() - start


def report(title: str, seen: Measurement, cpu: float, took: float, stamped: bool) -> None:
    """Print what one run showed."""
    gaps, lag = 1000 * seen.gaps(), 1000 * np.array(seen.lag or [0.0])
    print(f"{title} (load average {os.getloadavg()[0]:.1f}): {seen.statuses}, peak in flight {seen.peak_in_flight}")
    print(f"  {seen.output_tokens:,} tokens in {took:.1f} s; the client used a processor for {cpu:.1f} s of it")
    print(f"  ITL mean {gaps.mean():.1f} ms, p50 {np.median(gaps):.1f}, p99 {np.quantile(gaps, 0.99):.1f}; "
          f"sending took {seen.values('queue_delay').max():.2f} s; loop lag p50 {np.median(lag):.1f} ms, "
          f"p99 {np.quantile(lag, 0.99):.1f}")  # fmt: skip
    if stamped:
        own = 1000 * np.concatenate([added(row) for row in seen.ok])
        p99 = np.quantile(own, 0.99)
        print(f"  added to a gap by the client: mean {own.mean():.2f} ms, p50 of its size {np.median(abs(own)):.1f}, "
              f"p99 {p99:.1f} ({p99 / gaps.mean():.0%} of the mean gap)")  # fmt: skip
    for error in sorted({row.error for row in seen.failed}):
        print(f"  failed: {error}")


def main() -> int:
    """Run it; exit status 1 if any stream is not accounted for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=60, help="tokens of each stream")
    parser.add_argument("--itl", type=float, default=0.25, help="seconds between two tokens of a stream")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind, to see whether memory stays flat")
    parser.add_argument("--url", help="a running server's base URL, ending in /v1")
    parser.add_argument("--model", default="stub")
    parser.add_argument("--key", default="none")
    wanted = parser.parse_args()
    lost = 0
    for in_step in (False, True) if not wanted.url else (None,):
        stub, server = start(wanted, in_step)
        for i in range(wanted.repeats):
            seen, cpu, took = run(server, wanted.streams, wanted.tokens)
            kind = {None: wanted.url, False: "apart", True: "in step"}[in_step]
            report(f"{kind}, run {i + 1}", seen, cpu, took, stub is not None)
            lost += wanted.streams - len(seen.ok)
            del seen
            gc.collect()
            print(f"  memory afterwards {resident():.0f} MiB")
        if stub:
            stub.kill()
            stub.wait()
    return int(lost > 0)


def start(wanted: argparse.Namespace, in_step: bool | None) -> tuple[subprocess.Popen | None, SimpleNamespace]:
    """(the stub's process, the server to measure)."""
    if wanted.url:
        return None, SimpleNamespace(base_url=wanted.url, model=wanted.model, api_key=wanted.key)
    command = [sys.executable, str(Path(__file__).with_name("stub_server.py")), "--itl", str(wanted.itl)]
    stub = subprocess.Popen(command + ["--in-step"] * bool(in_step), stdout=subprocess.PIPE, text=True)
    port = int(stub.stdout.readline())
    return stub, SimpleNamespace(base_url=f"http://127.0.0.1:{port}/v1", model="stub", api_key="none")


if __name__ == "__main__":
    sys.exit(main())
