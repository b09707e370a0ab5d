"""A sweep on a real Dask cluster of three processes, one of which is killed in the middle; prints what came of it.

`python tests/dask_sweep.py [points]`. The rows must be those of one process, in the same order.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from distributed import Client, LocalCluster

from labs.sweep import compare_lognormal, grid, sweep


def main(points: int) -> None:
    """Run the sweep twice, and compare."""
    settings = grid(sigma=[0.4, 0.8, 1.1, 1.4], slots=[8, 32], seed=range(max(1, points // 8)))
    expected = sweep(compare_lognormal, settings)
    with LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=None,
                      host="127.0.0.1") as cluster, Client(cluster) as client:
        client.wait_for_workers(3)
        before = client.run(os.getpid)
        victim = psutil.Process(next(iter(before.values())))
        calls = []

        def progress(done: int, total: int) -> None:
            calls.append((done, total))
            if done == total // 4:
                victim.kill()

        rows = sweep(compare_lognormal, settings, executor=client.get_executor(retries=3), progress=progress)
        # Asked of the machine and not of the cluster, whose connections to the dead worker break while they are asked.
        gone, _ = psutil.wait_procs([victim], timeout=60)
    print(json.dumps({
        "points": len(settings), "workers": len(before), "killed": victim in gone,
        "every call of progress": calls == [(i + 1, len(settings)) for i in range(len(settings))],
        "same rows": json.dumps(rows) == json.dumps(expected)}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
