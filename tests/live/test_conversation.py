"""The recorded conversation, held again with the simulated server and with the real one: the same shapes and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from labs.live.monitor.names import COUNTERS, GAUGES, HISTOGRAMS
from labs.live.server import start
from tests.live.conversation import CONVERSATION, FLAGS, GOLDEN, Talk, events, hold, metrics, shape
from tests.live.real import Shared

GOLD = json.loads(GOLDEN.read_text(encoding="utf-8"))
NAMES = [exchange.name for exchange in CONVERSATION]
# What a real server counts of things that are not simulated.
NOT_SIMULATED = {
    "vllm:engine_sleep_state", "vllm:estimated_flops_per_gpu_total", "vllm:estimated_read_bytes_per_gpu_total",
    "vllm:estimated_write_bytes_per_gpu_total", "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total", "vllm:mm_cache_hits_total", "vllm:mm_cache_queries_total",
    "vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_cached_by_source_total",
    "vllm:prompt_tokens_cached_total", "vllm:request_max_num_generation_tokens", "vllm:request_params_n",
    "vllm:request_prefill_kv_computed_tokens",
}  # fmt: skip


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    """The conversation with the simulated server, started as a learner starts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABS_CACHE", str(tmp_path_factory.mktemp("cache")))
        with start("simulated", "tiny", step_time=[0.002, 0, 0], timeout=60, **FLAGS) as server:
            yield hold(server)


def test_the_recording_is_of_this_conversation_with_a_real_server() -> None:
    assert GOLD["from"].startswith("vLLM 0.32.0")
    assert [*GOLD["answers"]] == NAMES
    statuses = {found["status"] for found in GOLD["answers"].values()}
    assert statuses == {200, 400, 401, 404, 405}
    assert sum(found["status"] == 200 for found in GOLD["answers"].values()) >= 30


@pytest.mark.parametrize("name", NAMES)
def test_the_simulated_server_answers_as_the_real_one_did(simulated: Talk, name: str) -> None:
    assert simulated.answers[name] == GOLD["answers"][name]


def test_a_client_that_hangs_up_leaves_nothing_running(simulated: Talk) -> None:
    assert simulated.left_running == 0


def test_the_simulated_server_has_the_real_ones_metrics(simulated: Talk) -> None:
    assert set(GOLD["metrics"]) - set(simulated.metrics) == NOT_SIMULATED
    assert set(simulated.metrics) - set(GOLD["metrics"]) == set()
    for name in set(simulated.metrics) - {"vllm:cache_config_info"}:  # a page of settings: here the few that matter
        assert simulated.metrics[name] == GOLD["metrics"][name], name
    settings = set(simulated.metrics["vllm:cache_config_info"]["labels"])
    assert settings - set(GOLD["metrics"]["vllm:cache_config_info"]["labels"]) == {"simulated"}


def test_every_metric_that_the_monitor_reads_was_there() -> None:
    now = [names[0] for table in (GAUGES, COUNTERS, HISTOGRAMS) for names in table.values()]
    missing = [name for name in now if not {f"vllm:{name}", f"vllm:{name}_total"} & set(GOLD["metrics"])]
    assert missing == []


@pytest.mark.vllm
@pytest.mark.slow
def test_the_real_server_answers_as_it_did(real: Shared) -> None:
    talk = hold(real())
    differing = {name: (talk.answers[name], GOLD["answers"][name])
                 for name in NAMES if talk.answers[name] != GOLD["answers"][name]}  # fmt: skip
    assert differing == {}
    assert set(talk.metrics) == set(GOLD["metrics"])
    assert talk.left_running == 0


# ---------------------------------------------------------------- shapes tell what matters


def test_a_shape_leaves_out_what_cannot_be_the_same_and_nothing_else() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    one = {"id": "cmpl-1", "created": 5, "object": "x", "choices": [{"text": "a", "token_ids": [1, 2]}], "usage": usage}
    other = {"id": "cmpl-2", "created": 6, "object": "x", "choices": [{"text": "b", "token_ids": [3]}], "usage": usage}
    assert shape(one) == shape(other)
    for change in ({"object": "y"}, {"id": None}, {"more": 1}, {"choices": []}, {"usage": usage | {"total_tokens": 9}}):
        assert shape(one) != shape(one | change)
    longer = {"usage": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}}
    assert shape(one, counted=False) == shape(one | longer, counted=False) != shape(one | longer)


def test_the_order_of_events_is_part_of_the_shape() -> None:
    chunk, end = 'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n', 'data: {"choices":[]}\n\n'
    done = "data: [DONE]\n\n"
    assert len(events(chunk * 3 + end + done, shape)) == 3
    assert events(chunk + end + done, shape) == events(chunk * 2 + end + done, shape)
    assert events(chunk + done + end, shape) != events(chunk + end + done, shape)
    assert events("oops\n\n", shape) == ["not an event: oops"]


def test_metrics_by_type_and_labels() -> None:
    page = Path(__file__).with_name("scrapes") / "vllm-0.32-preempting.txt"
    found = metrics(page.read_text())
    assert found["vllm:num_requests_running"] == {"type": "gauge", "labels": ["engine", "model_name"]}
    assert found["vllm:inter_token_latency_seconds"]["type"] == "histogram"


def test_a_stream_is_read_to_its_first_event_before_the_client_hangs_up() -> None:
    hanging = [exchange for exchange in CONVERSATION if exchange.hangs_up]
    assert [exchange.name for exchange in hanging] == ["hang up"]
    assert "first event" in GOLD["answers"]["hang up"]
