"""Golden traces: what vLLM's scheduler did, stored small, so that a machine without vLLM can compare too.

    $LABS_VLLM_PYTHON -m tests.conformance --record tests/golden/traces
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.conformance.broken import BROKEN
from tests.conformance.corners import CORNERS
from tests.conformance.replay import Ours, Step, difference, replay
from tests.conformance.workloads import Workload, draw, from_json

SEEDS, LONGEST, RANDOM = range(100_000, 100_400), 250, 36  # tried; steps; random workloads kept
FIELDS = ("scheduled", "preempted", "running", "waiting", "made", "finished")


def digest(step: Step | str) -> Step | str:
    """The same step with its block tables cut down to a checksum."""
    if isinstance(step, str):
        return step
    text = " ".join(f"{i}:{','.join(map(str, blocks))}" for i, blocks in step.tables.items())
    return replace(step, tables={"crc32": (zlib.crc32(text.encode()),)})


def pack(workload: Workload, steps: Iterable[Step | str]) -> dict[str, Any]:
    """Plain values: requests by their number, and of each step only what changed."""
    number = {r.request_id: i for i, (_, r) in enumerate(workload.requests)}
    usable, packed, last = workload.config.num_gpu_blocks - 1, [], {}
    for step in steps:
        if isinstance(step, str):
            return {**workload.as_json(), "steps": packed, "end": step}
        now = {name: [number[i] for i in getattr(step, name)] for name in FIELDS[1:]}
        now["scheduled"] = [[number[i], n] for i, n in step.scheduled]
        now["used"] = round(step.kv_usage * usable)
        now["crc32"] = digest(step).tables["crc32"][0]
        packed.append({k: v for k, v in now.items() if last.get(k, [] if k in FIELDS else None) != v})
        last = now
    raise ValueError("the replay did not say how it ended")


def unpack(stored: dict[str, Any]) -> tuple[Workload, list[Step | str]]:
    """The workload and vLLM's steps, as `digest` gives them."""
    workload = from_json(stored)
    ids = [r.request_id for _, r in workload.requests]
    usable, now, steps = workload.config.num_gpu_blocks - 1, dict.fromkeys(FIELDS, []), []
    for change in stored["steps"]:
        now = {**now, **change}
        named = {name: tuple(ids[i] for i in now[name]) for name in FIELDS[1:]}
        steps.append(Step(
            scheduled=tuple((ids[i], n) for i, n in now["scheduled"]),
            kv_usage=1 - (usable - now["used"]) / usable,
            tables={"crc32": (now["crc32"],)},
            **named,
        ))  # fmt: skip
    return workload, [*steps, stored["end"]]


def load(folder: Path) -> Iterator[tuple[Workload, list[Step | str]]]:
    """All traces of a folder: workloads and vLLM's steps, as `digest` gives them."""
    for path in sorted(folder.glob("*.json")):
        for stored in json.loads(path.read_text(encoding="utf-8"))["traces"]:
            yield unpack(stored)


def record(folder: Path, model: str) -> str:
    """Record the corner cases and some random workloads, among them one for each broken rule, in two files."""
    from tests.conformance.real import VERSION, Real

    def run(workload: Workload) -> list[Step | str]:
        return list(replay(Real(workload.config, model), workload))

    folder.mkdir(parents=True, exist_ok=True)
    by_hand = [(w, run(w)) for w, _ in CORNERS if len(w.requests) < 20]
    tried = [(w, steps) for w in map(draw, SEEDS) if len(steps := run(w)) <= LONGEST]
    unseen, chosen = [b.scheduler() for b in BROKEN], {}
    for workload, steps in tried:
        caught = [s for s in unseen if difference(replay(Ours(workload.config, s), workload), steps)]
        if caught or len(chosen) < RANDOM - len(unseen):
            chosen[workload.name] = (workload, steps)
        unseen = [s for s in unseen if s not in caught]
    for name, traces in {"corners": by_hand, "random": list(chosen.values())}.items():
        lines = ",\n".join(json.dumps(pack(*t), separators=(",", ":")) for t in traces)
        (folder / f"{name}.json").write_text(f'{{"vllm":"{VERSION}","traces":[\n{lines}\n]}}\n')
    return f"{len(by_hand)} by hand, {len(chosen)} random; broken rules that these do not show: {len(unseen)}"
