"""What the course's prose says about vLLM, asserted against the installed one: a new release shows what moved."""

from __future__ import annotations

import json
from typing import Any

import pytest

from labs.knobs import POLICIES, SchedulerConfig
from tests.conformance.environment import run_in_vllm
from tests.conformance.workloads import REFUSED

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    """Collected once, inside vLLM's environment."""
    done = run_in_vllm("tests.conformance.facts", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_version_is_the_one_that_the_course_describes(
    facts: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled():
        print(f"\nvLLM {facts['version']} on {facts['platform']}; its own defaults here: {facts['defaults']}")
    assert facts["version"].split("+")[0] == "0.32.0"


def test_the_policies_have_the_names_that_ours_have(facts: dict[str, Any]) -> None:
    assert facts["policies"] == list(POLICIES) == ["fcfs", "priority"]


DEFAULTS = {
    "policy": "fcfs",
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "async_scheduling": False,  # forced off on a CPU
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 128,
    "max_num_active_seqs": None,
    "max_num_queued_reqs": None,
    "max_num_queued_tokens": None,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "block_size": 128,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_server_on_a_cpu_has_the_defaults_that_are_stated(facts: dict[str, Any], name: str) -> None:
    assert facts["defaults"][name] == DEFAULTS[name]


def test_ours_has_vllms_defaults_where_they_are_not_a_matter_of_the_machine(facts: dict[str, Any]) -> None:
    ours = SchedulerConfig(max_num_seqs=128, max_num_batched_tokens=2048, num_gpu_blocks=100)
    shared = ("policy", "enable_chunked_prefill", "long_prefill_token_threshold", "scheduler_reserve_full_isl",
              "long_prefill_token_threshold_adaptive", "max_num_active_seqs", "watermark")  # fmt: skip
    assert {name: getattr(ours, name) for name in shared} == {name: facts["defaults"][name] for name in shared}


def test_asynchronous_scheduling_stays_off_on_a_cpu_even_when_asked_for(facts: dict[str, Any]) -> None:
    assert facts["async_if_asked"] is False


GPUS = {
    "Tesla T4, 15 GiB": [2048, 256],
    "L4, 22 GiB": [2048, 256],
    "A100, 80 GiB": [2048, 256],
    "H100, 80 GiB": [8192, 1024],
    "H200, 139 GiB": [8192, 1024],
    "B200, 180 GiB": [16384, 1024],
}


@pytest.mark.parametrize("gpu", GPUS)
def test_a_server_on_a_gpu_has_the_budget_and_the_cap_that_are_stated(facts: dict[str, Any], gpu: str) -> None:
    assert facts["batch_defaults"][gpu] == GPUS[gpu]


def test_the_settings_that_ours_refuses_are_refused_by_vllm(facts: dict[str, Any]) -> None:
    assert facts["refused"] == [False] + [True] * len(REFUSED)


FLAGS = (
    "--max-num-seqs", "--max-num-batched-tokens", "--enable-chunked-prefill", "--no-enable-chunked-prefill",
    "--scheduling-policy", "--long-prefill-token-threshold", "--long-prefill-token-threshold-adaptive",
    "--max-num-queued-reqs", "--max-num-queued-tokens", "--max-num-active-seqs", "--async-scheduling",
    "--no-async-scheduling", "--enable-prefix-caching", "--no-enable-prefix-caching", "--num-gpu-blocks-override",
    "--block-size", "--max-model-len", "--gpu-memory-utilization", "--scheduler-cls", "--scheduler-reserve-full-isl",
    "--no-scheduler-reserve-full-isl", "--watermark", "--enforce-eager", "--load-format", "--dtype",
    "--kv-offloading-size",
)  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_exists(facts: dict[str, Any], flag: str) -> None:
    assert flag in facts["flags"]


def test_there_is_no_swapping_to_turn_on(facts: dict[str, Any]) -> None:
    assert [flag for flag in facts["flags"] if "swap" in flag or "preemption-mode" in flag] == []
    assert facts["settings with swap in their names"] == []


def test_a_preempted_request_loses_its_blocks_and_computes_again_from_the_front_of_the_queue(
    facts: dict[str, Any],
) -> None:
    assert facts["preemption frees and recomputes"]


METRICS = (
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc", "vllm:num_preemptions", "vllm:iteration_tokens_total",
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds", "vllm:prefix_cache_hits", "vllm:prefix_cache_queries",
    "vllm:generation_tokens", "vllm:prompt_tokens",
)  # fmt: skip


@pytest.mark.parametrize("metric", METRICS)
def test_a_metric_exists(facts: dict[str, Any], metric: str) -> None:
    assert metric in facts["metrics"]  # a counter gets _total where it is shown


def test_the_old_name_of_a_metric_is_gone_and_none_is_a_normalised_latency(facts: dict[str, Any]) -> None:
    assert "vllm:gpu_cache_usage_perc" not in facts["metrics"]
    assert [metric for metric in facts["metrics"] if "normal" in metric] == []


def test_a_step_is_schedule_then_execute_then_update(facts: dict[str, Any]) -> None:
    assert facts["step order"]


def test_running_requests_come_before_admission_which_a_preemption_prevents(facts: dict[str, Any]) -> None:
    assert facts["running before waiting"]


def test_stop_tokens_are_looked_at_before_the_lengths(facts: dict[str, Any]) -> None:
    assert facts["stop tokens before lengths"]


def test_stop_strings_are_matched_where_text_is_made_not_in_the_scheduler(facts: dict[str, Any]) -> None:
    assert not facts["the scheduler knows stop strings"]
    assert facts["the detokenizer knows stop strings"]
