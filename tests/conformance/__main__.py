"""Compare labs.scheduler with vLLM's own, at every step. Needs the Python of an environment with vLLM.

    $LABS_VLLM_PYTHON -m tests.conformance --workloads 5000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

from tests.conformance.broken import BROKEN, Broken
from tests.conformance.corners import CORNERS
from tests.conformance.real import VERSION, Real, model_folder
from tests.conformance.replay import LIVELOCK, Ours, Step, difference, replay
from tests.conformance.traces import record
from tests.conformance.workloads import Workload, draw
from tests.machine import machine

Recorded = list[tuple[Workload, list[Step | str]]]


def compare(workload: Workload, model: str, hits: Counter[str]) -> tuple[list[Step | str], str | None]:
    """vLLM's steps for a workload, and where ours first differ."""
    theirs = list(replay(Real(workload.config, model, hits), workload))
    if theirs[-1] == LIVELOCK:
        hits["livelock, the same in both"] += 1
    return theirs, difference(replay(Ours(workload.config), workload), theirs)


def count_settings(workload: Workload, hits: Counter[str]) -> None:
    """Count what a workload is drawn with."""
    c, requests = workload.config, [r for _, r in workload.requests]
    tied = len({r.priority for r in requests}) < len(requests)
    twins = len({(r.priority, r.arrival) for r in requests}) < len(requests)
    hits.update(
        name for name, drawn in {
            f"workload with policy {c.policy}": True,
            "workload with tied priorities": c.policy == "priority" and tied,
            "workload with tied priorities and arrivals": c.policy == "priority" and twins,
            "workload with chunking " + ("on" if c.enable_chunked_prefill else "off"): True,
            "workload with a threshold": c.long_prefill_token_threshold > 0,
            "workload with an adaptive threshold": c.long_prefill_token_threshold_adaptive,
            "workload with a watermark": c.watermark > 0,
            "workload with max_num_active_seqs": c.max_num_active_seqs is not None,
            "workload with scheduler_reserve_full_isl " + ("on" if c.scheduler_reserve_full_isl else "off"): True,
        }.items() if drawn
    )  # fmt: skip


def run_random(seeds: Iterable[int], model: str, keep: int) -> tuple[Recorded, dict[str, str], Counter[str]]:
    """Random workloads: vLLM's steps for the first `keep`, those that differ, and the counts."""
    recorded, differ, hits = [], {}, Counter()
    for seed in seeds:
        workload = draw(seed)
        count_settings(workload, hits)
        theirs, where = compare(workload, model, hits)
        if len(recorded) < keep:
            recorded.append((workload, theirs))
        if where:
            differ[workload.name] = where
    return recorded, differ, hits


def run_corners(model: str) -> tuple[Recorded, dict[str, str | None], list[str]]:
    """The corner cases: vLLM's steps, where ours differ (None if nowhere), and those that don't show what they should.
    """
    recorded, differ, unshown = [], {}, []
    for workload, shows in CORNERS:
        hits: Counter[str] = Counter()
        theirs, differ[workload.name] = compare(workload, model, hits)
        recorded.append((workload, theirs))
        if shows and not hits[shows]:
            unshown.append(f"{workload.name}: no {shows}")
    return recorded, differ, unshown


def run_broken(broken: Broken, recorded: Recorded) -> dict[str, Any]:
    """One row of the table: how many workloads tell a broken rule from vLLM, and the first that does."""
    scheduler, differ = broken.scheduler(), []
    for workload, theirs in recorded:
        where = difference(replay(Ours(workload.config, scheduler), workload), theirs)
        if where:
            differ.append(f"{workload.name}, {where}")
    return {"rule": broken.rule, "how": broken.how, "differ": len(differ), "of": len(recorded),
            "first": differ[0] if differ else ""}  # fmt: skip


def refused_for_good(seeds: Iterable[int], model: str) -> dict[str, int]:
    """Requests that ours refuses for want of blocks, each alone in vLLM's scheduler: how many wait there for ever."""
    told = Counter()
    for seed in seeds:
        workload = draw(seed)
        for _, request in workload.requests:
            reason = workload.config.refusal(request)
            if reason is None or "KV blocks" not in reason:
                continue
            alone = Workload(request.request_id, workload.config, ((0, request),))
            *_, end = replay(Real(workload.config, model, refuse=False), alone)
            told["refused"] += 1
            told["waits for ever in vLLM"] += end == LIVELOCK
    return dict(told)


def as_text(result: dict[str, Any]) -> str:
    """The report, for people."""
    n, bad = result["workloads"], result["differ"]
    lines = [
        f"vLLM {result['vllm']}; {result['machine']}; {result['date']}",
        f"random workloads (seeds {result['seed']} to {result['seed'] + n - 1}): {n - len(bad)} of {n} the same at "
        f"every step, {result['seconds']:.0f} s",
        *(f"  DIFFERS: {name}, {where}" for name, where in bad.items()),
        f"corner cases: {sum(w is None for w in result['corners'].values())} of {len(result['corners'])} the same",
        *(f"  DIFFERS: {name}, {where}" for name, where in result["corners"].items() if where),
        *(f"  DOES NOT SHOW IT: {what}" for what in result["unshown"]),
        f"refused for want of blocks, tried alone in vLLM: {result['refused']}",
        "", "what was run into, counted in vLLM's scheduler:",
        *(f"  {count:>9,}  {what}" for what, count in sorted(result["hits"].items())),
    ]  # fmt: skip
    if result["broken"]:
        lines += ["", "with one rule broken (workloads that differ, of those tried):"]
        lines += ["  {rule:>4}  {differ:>4} of {of}  {how}: {first}".format(**row) for row in result["broken"]]
    return "\n".join(lines)


def everything(chosen: argparse.Namespace, model: str) -> dict[str, Any]:
    """Run all that is asked for."""
    began = time.monotonic()
    seeds = range(chosen.seed, chosen.seed + chosen.workloads)
    kept, differ, hits = run_random(seeds, model, chosen.broken_on)
    seconds = time.monotonic() - began
    corners, corners_differ, unshown = run_corners(model)
    broken = [run_broken(one, corners + kept) for one in BROKEN] if chosen.broken_on else []
    return {
        "vllm": VERSION, "machine": f"{machine()}, Python {platform.python_version()}",
        "date": date.today().isoformat(), "workloads": chosen.workloads,
        "seed": chosen.seed, "seconds": seconds, "differ": differ, "hits": dict(hits),
        "corners": corners_differ, "unshown": unshown, "refused": refused_for_good(seeds[:100], model),
        "broken": broken, "all_seconds": time.monotonic() - began,
    }  # fmt: skip


def main() -> int:
    """Compare, report, and exit with 1 if anything differs or a broken rule goes unseen."""
    parser = argparse.ArgumentParser(prog="tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", type=int, default=600, help="random workloads")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first")
    parser.add_argument("--broken-on", type=int, default=0, help="workloads on which each broken rule is tried")
    parser.add_argument("--json", type=Path, help="write the result here too")
    parser.add_argument("--record", type=Path, help="record golden traces into this folder, and do nothing else")
    chosen = parser.parse_args()
    with model_folder() as model:
        if chosen.record:
            print(record(chosen.record, model))
            return 0
        result = everything(chosen, model)
    print(as_text(result), f"\n{result['all_seconds']:.0f} s in all")
    if chosen.json:
        chosen.json.write_text(json.dumps(result, indent=1))
    unseen = [row for row in result["broken"] if not row["differ"]]
    return int(bool(result["differ"] or result["unshown"] or any(result["corners"].values()) or unseen))


if __name__ == "__main__":
    sys.exit(main())
