"""labs.scheduler is vLLM's, step for step: vLLM's own Scheduler runs beside it, and a real server is counted.

Needs an environment with vLLM: see tests/requirements-vllm.txt. A machine without one still has test_scheduler.py.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labs.engine import run
from labs.scheduler import SchedulerConfig
from labs.workload import Request
from tests.conformance.broken import BROKEN
from tests.conformance.corners import CORNERS
from tests.conformance.environment import run_in_vllm, vllm_python
from tests.conformance.server import Server

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

WORKLOADS, BROKEN_ON = 600, 150
# What the random workloads must run into, counted inside vLLM's scheduler.
LEAST = {"preemption": 1000} | dict.fromkeys((
    "self-preemption", "victim already scheduled in that step (refund)", "victim chosen among equals",
    "chunk cut by the budget", "chunk cut by the threshold", "chunk cut by an adaptive threshold above the fixed one",
    "threshold lifted for a request alone",
    "admission ended by: sequence cap", "admission ended by: token budget", "admission ended by: KV blocks",
    "admission ended by: full-prompt gate", "admission ended by: watermark", "admission ended by: chunking off",
    "admission ended by: max_num_active_seqs", "admission ended by: a preemption in that step",
    "abort, running", "abort, waiting", "abort of a request scheduled in that step",
    "end by EOS", "end by stop token", "end by max_tokens", "end by max_model_len",
    "refused on arrival: prompt too long", "refused on arrival: too few KV blocks",
    "workload with policy fcfs", "workload with policy priority", "workload with tied priorities",
    "workload with tied priorities and arrivals", "workload with chunking on", "workload with chunking off",
    "workload with a threshold", "workload with an adaptive threshold", "workload with a watermark",
    "workload with max_num_active_seqs", "workload with scheduler_reserve_full_isl on",
    "workload with scheduler_reserve_full_isl off",
), 50)  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run of the comparison, and its report for the log."""
    path = tmp_path_factory.mktemp("conformance") / "result.json"
    arguments = ("--workloads", str(WORKLOADS), "--broken-on", str(BROKEN_ON), "--json", str(path))
    done = run_in_vllm("tests.conformance", *arguments, timeout=1500)
    assert path.exists(), done.stdout + done.stderr[-3000:]
    return json.loads(path.read_text()) | {"report": done.stdout}


def test_every_random_workload_is_the_same_at_every_step(
    result: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print("\n" + result["report"])
    assert (result["workloads"], result["differ"]) == (WORKLOADS, {})


@pytest.mark.parametrize("what", LEAST)
def test_the_random_workloads_run_into_each_rule(result: dict[str, Any], what: str) -> None:
    assert result["hits"].get(what, 0) >= LEAST[what]


def test_no_admission_ended_for_an_unknown_reason(result: dict[str, Any]) -> None:
    assert "admission ended by: unknown" not in result["hits"]


@pytest.mark.parametrize("name", [workload.name for workload, _ in CORNERS])
def test_a_corner_case_is_the_same_at_every_step(result: dict[str, Any], name: str) -> None:
    assert result["corners"][name] is None
    assert [what for what in result["unshown"] if what.startswith(f"{name}:")] == []


def test_what_is_refused_for_want_of_blocks_would_wait_for_ever_in_vllm(result: dict[str, Any]) -> None:
    refused = result["refused"]
    assert refused["refused"] >= 50
    assert refused["waits for ever in vLLM"] == refused["refused"]


@pytest.mark.parametrize("place", range(len(BROKEN)), ids=[f"{b.rule}: {b.how}" for b in BROKEN])
def test_a_broken_rule_is_told_from_vllm(result: dict[str, Any], place: int) -> None:
    row = result["broken"][place]
    assert (row["rule"], row["how"]) == (BROKEN[place].rule, BROKEN[place].how)
    assert row["of"] == BROKEN_ON + len(CORNERS)
    assert row["differ"] > 0


# ---- a real server

CONFIG = SchedulerConfig(16, 256, 42, block_size=32, max_model_len=512)


def requests(pressure: bool) -> list[Request]:
    """All at once; under memory pressure, outputs for which there are not nearly enough blocks."""
    rng = random.Random(0)
    if pressure:
        return [Request(f"r{i:02d}", rng.randint(4, 100), rng.randint(100, 400)) for i in range(32)]
    lengths = [(rng.randint(4, 40), min(60, max(1, int(rng.lognormvariate(2.8, 0.9))))) for _ in range(64)]
    return [Request(f"r{i:02d}", *pair) for i, pair in enumerate(lengths)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all runs."""
    vllm_python()  # skips before anything is started
    with Server(Path(tmp_path_factory.mktemp("server")), CONFIG) as started:
        started.wait_until_ready()
        yield started


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.parametrize("pressure", [False, True], ids=["no pressure", "memory pressure"])
def test_run_predicts_the_steps_and_preemptions_of_a_real_server(server: Server, pressure: bool, turn: int) -> None:
    sent = requests(pressure)
    predicted = run(sent, CONFIG)
    # vLLM's histogram has no entry for a step in which nobody makes a token, so no step here may be one.
    assert all(record.made for record in predicted.records)
    assert (predicted.preemptions > 20) == pressure
    counted = server.run(sent)
    assert counted["vllm:iteration_tokens_total_count"] == predicted.steps
    assert counted["vllm:num_preemptions_total"] == predicted.preemptions
    assert counted["vllm:generation_tokens_total"] == sum(r.output_tokens for r in sent)
    print(f"turn {turn}: {predicted.steps} steps, {predicted.preemptions} preemptions, in both")


def test_the_server_refuses_a_prompt_that_leaves_no_room(server: Server) -> None:
    body = {"model": "tiny", "max_tokens": 1, "ignore_eos": True}
    full, nearly = ([1] * (CONFIG.max_model_len - short) for short in (0, 1))
    assert server.ask("POST", "/v1/completions", body | {"prompt": full})[0] == 400
    assert server.ask("POST", "/v1/completions", body | {"prompt": nearly})[0] == 200
    assert CONFIG.refusal(Request("full", len(full), 1))
    assert CONFIG.refusal(Request("nearly", len(nearly), 1)) is None
