"""The simulated server: vLLM's shapes and errors, exact counts, and steps that are the engine's own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from labs.engine import StepTime, run
from labs.live.monitor import read_metrics
from labs.live.simulated import engine as engine_module
from labs.live.simulated import text
from labs.live.simulated.answer import Answer
from labs.live.simulated.asked import Asked
from labs.live.simulated.command import parser
from labs.live.simulated.engine import Engine, Job
from labs.live.simulated.metrics import Statistics
from labs.scheduler import SchedulerConfig
from labs.slots import static_batching
from labs.workload import Request, lognormal_lengths
from tests.live.simulated_server import CONFIG, FAST, Simulated, events, wait_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[Simulated]:
    with Simulated(api_key="secret") as simulated:
        yield simulated


def shape(value: object) -> object:
    """Keys and types."""
    if isinstance(value, dict):
        return {k: shape(v) for k, v in value.items()}
    return [shape(v) for v in value] if isinstance(value, list) else type(value).__name__


# ---------------------------------------------------------------- what it answers

NONE = "NoneType"
USAGE = {"prompt_tokens": "int", "total_tokens": "int", "completion_tokens": "int"}
WHOLE = {
    "id": "str", "object": "str", "created": "int", "model": "str",
    "choices": [{"index": "int", "text": "str", "logprobs": NONE, "finish_reason": "str", "stop_reason": NONE,
                 "token_ids": NONE, "prompt_logprobs": NONE, "prompt_token_ids": NONE, "routed_experts": NONE}],
    "service_tier": NONE, "system_fingerprint": "str",
    "usage": {**USAGE, "prompt_tokens_details": NONE, "completion_tokens_details": NONE},
    "kv_transfer_params": NONE, "ec_transfer_params": NONE, "metrics": NONE,
}  # fmt: skip


def test_a_completion_has_vllms_shape_and_exact_counts(server: Simulated) -> None:
    status, body = server.complete([5, 6, 7], max_tokens=30, ignore_eos=True)
    assert status == 200
    assert shape(body) == WHOLE
    assert body["id"].startswith("cmpl-")
    assert body["usage"] | {"prompt_tokens": 3, "completion_tokens": 30, "total_tokens": 33} == body["usage"]
    assert body["choices"][0]["text"] == "".join(f"{i}\n" for i in range(1, 14))
    assert body["choices"][0]["finish_reason"] == "length"
    assert len(body["choices"][0]["text"].split()) == 13  # words are not tokens


def test_a_stream_has_vllms_chunks(server: Simulated) -> None:
    options = {"include_usage": True}
    status, raw = server.complete([1, 2], max_tokens=3, ignore_eos=True, stream=True, stream_options=options,
                                  return_token_ids=True)  # fmt: skip
    assert (status, server.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    *chunks, usage, done = events(raw)
    choices = [chunk["choices"][0] for chunk in chunks]
    head = {"id": usage["id"], "object": "text_completion", "created": usage["created"], "model": "tiny"}
    assert chunks[0] == head | {"choices": [{"index": 0, "text": "1", "logprobs": None, "finish_reason": None,
        "stop_reason": None, "prompt_token_ids": [1, 2], "token_ids": [49]}]}  # fmt: skip
    assert [token for choice in choices for token in choice["token_ids"]] == [49, 10, 50]
    assert choices[-1]["finish_reason"] == "length"
    assert choices[-1]["prompt_token_ids"] is None
    assert usage == head | {"choices": [], "usage": {"prompt_tokens": 2, "total_tokens": 5, "completion_tokens": 3},
                            "system_fingerprint": "simulated"}  # fmt: skip
    assert done == "data: [DONE]"


def test_without_usage_the_last_chunk_says_who_made_it(server: Simulated) -> None:
    *chunks, _ = events(server.complete(max_tokens=3, ignore_eos=True, stream=True)[1])
    assert [chunk.get("system_fingerprint") for chunk in chunks[-2:]] == [None, "simulated"]
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_so_far_comes_with_every_chunk_if_asked_for(server: Simulated) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, usage, _ = events(server.complete([1], max_tokens=3, stream=True, ignore_eos=True,
                                               stream_options=options)[1])  # fmt: skip
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3]
    assert usage["usage"]["completion_tokens"] == 3


def test_a_chat_has_vllms_shape(server: Simulated) -> None:
    status, body = server.chat(max_tokens=4, ignore_eos=True)
    assert status == 200
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "1\n2\n", "refusal": None,
        "annotations": None, "audio": None, "function_call": None, "reasoning": None}  # fmt: skip
    assert body["prompt_token_ids"] is None
    assert body["id"].startswith("chatcmpl-")


def test_a_chat_stream_begins_with_a_role_chunk_that_has_no_token(server: Simulated) -> None:
    options = {"include_usage": True}
    role, *chunks, usage, _ = events(server.chat(max_completion_tokens=3, ignore_eos=True, stream=True,
                                                 stream_options=options, return_token_ids=True)[1])  # fmt: skip
    assert role["object"] == "chat.completion.chunk"
    assert role["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                                "finish_reason": None}]  # fmt: skip
    assert len(role["prompt_token_ids"]) == usage["usage"]["prompt_tokens"]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == "1\n2"
    assert all("role" not in chunk["choices"][0]["delta"] for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert usage["usage"]["completion_tokens"] == 3


def test_a_chat_takes_parts_of_text_and_gives_all_the_room_there_is(server: Simulated) -> None:
    body = server.chat([{"type": "text", "text": "hi"}], ignore_eos=True)[1]
    assert body["usage"]["total_tokens"] == CONFIG.max_model_len
    assert server.chat([{"type": "image_url", "image_url": {}}])[0] == 400


def test_a_slow_reader_gets_several_tokens_in_a_chunk_and_none_is_lost() -> None:
    job = Job(Request("a", 2, 9))
    answer = Answer(Asked("tiny", (1, 2), 9, chat=False, stream=True, return_token_ids=True), job)
    for new in (1, 3, 2):
        for _ in range(new):
            job.take_token(0.0)
        job.finish_reason = "length" if job.tokens == 6 else None
        *chunks, last = answer.events()
        chunk = chunks[0] if chunks else last
        assert len(events(chunk)[0]["choices"][0]["token_ids"]) == new
    assert last == "data: [DONE]\n\n"


def test_the_openai_client_understands_it(server: Simulated) -> None:
    with openai.OpenAI(base_url=f"{server.root}/v1", api_key="secret", max_retries=0) as client:
        assert [(model.id, model.owned_by) for model in client.models.list()] == [("tiny", "simulated")]
        extra = {"ignore_eos": True, "return_token_ids": True}
        done = client.completions.create(model="tiny", prompt="hi", max_tokens=5, extra_body=extra)
        assert (done.usage.completion_tokens, len(done.choices[0].token_ids)) == (5, 5)
        chunks = list(client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=5, stream=True,
                                                stream_options={"include_usage": True}, extra_body=extra))  # fmt: skip
        assert sum(len(c.choices[0].token_ids) for c in chunks if c.choices) == 5
        assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 5)
        message = [{"role": "user", "content": "hi"}]
        assert client.chat.completions.create(model="tiny", messages=message, max_tokens=4,
                                              extra_body=extra).choices[0].message.content == "1\n2\n"  # fmt: skip
        spoken = client.chat.completions.create(model="tiny", messages=message, max_tokens=4, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in spoken if c.choices) == "1\n2\n"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="other", prompt="hi")
    wrong = openai.OpenAI(base_url=f"{server.root}/v1", api_key="wrong", max_retries=0)
    with wrong as client, pytest.raises(openai.AuthenticationError):
        client.completions.create(model="tiny", prompt="hi")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/version", "/metrics", "/nothing", "/v1/completions"])
def test_it_says_everywhere_that_it_is_simulated(server: Simulated, path: str) -> None:
    server.ask("GET", path)
    assert server.headers["x-simulated"] == "true"


def test_it_says_so_in_words_too(server: Simulated) -> None:
    assert server.ask("GET", "/version") == (200, {"version": "0.32.0-simulated"})
    assert server.ask("GET", "/v1/models")[1]["data"][0] | {"owned_by": "simulated", "max_model_len": 512} == (
        server.ask("GET", "/v1/models")[1]["data"][0]
    )
    assert 'simulated="True"' in server.ask("GET", "/metrics")[1]
    assert server.ask("GET", "/health") == (200, "")


# ---------------------------------------------------------------- what it refuses

LONG = "Please reduce the length of the input prompt. (parameter=input_tokens, value={n})"
REFUSED = {
    "another model": ({"model": "other"}, 404, "NotFoundError", "model",
                      "The model `other` does not exist. Valid aliases: tiny."),
    "no prompt": ({"prompt": None}, 400, "BadRequestError", "prompt",
                  "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"),
    "empty list": ({"prompt": []}, 400, "BadRequestError", None, "You must pass at least one prompt"),
    "no such token": ({"prompt": [999999]}, 400, "BadRequestError", None, "Token id 999999 is out of vocabulary"),
    "too long": ({"prompt": [1] * 600}, 400, "BadRequestError", "input_tokens",
                 "This model's maximum context length is 512 tokens. However, your prompt contains 600 input tokens, "
                 "which exceeds this limit even without any output tokens. " + LONG.format(n=600)),
    "text too long": ({"prompt": "no " * 600}, 400, "BadRequestError", "input_tokens",
                      "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 "
                      "input tokens, which exceeds this limit even without any output tokens. " + LONG.format(n=513)),
    "no room": ({"prompt": [1] * 512}, 400, "BadRequestError", "max_tokens",
                "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"),
    "max_tokens beyond": ({"max_tokens": 5000}, 400, "BadRequestError", "max_tokens",
                          "max_tokens=5000 cannot be greater than max_model_len=512. Please request fewer output "
                          "tokens. (parameter=max_tokens, value=5000)"),
    "max_tokens 0": ({"max_tokens": 0}, 400, "BadRequestError", "max_tokens",
                     "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"),
    "max_tokens a word": ({"max_tokens": "x"}, 400, "Bad Request", "body.max_tokens",
                          "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input "
                          "should be a valid integer, unable to parse string as an integer', 'input': 'x'}"),
    "stream options": ({"stream_options": {"include_usage": True}}, 400, "BadRequestError", "stream_options",
                       "Stream options can only be defined when `stream=True`. (parameter=stream_options)"),
    "temperature": ({"temperature": -1}, 400, "BadRequestError", "temperature",
                    "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)"),
    "n 0": ({"n": 0}, 400, "BadRequestError", None, "n must be at least 1, got 0."),
    "suffix": ({"suffix": "x"}, 400, "BadRequestError", "suffix",
               "suffix is only supported for models with FIM completion rendering"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_error_has_vllms_status_type_and_words(server: Simulated, case: str) -> None:
    asked, status, kind, param, message = REFUSED[case]
    body = {"model": "tiny", "prompt": "hi"} | asked
    assert server.ask("POST", "/v1/completions", body) == (
        status, {"error": {"message": message, "type": kind, "param": param, "code": status}}
    )  # fmt: skip


@pytest.mark.parametrize("asked", [{"n": 2}, {"echo": True}, {"logprobs": 1}, {"prompt": ["a", "b"]},
                                   {"use_beam_search": True}, {"response_format": {"type": "json_object"}},
                                   {"stop_token_ids": [3]}, {"logit_bias": {"5": 1}}])  # fmt: skip
def test_what_it_does_not_do_it_says(server: Simulated, asked: dict) -> None:
    status, body = server.ask("POST", "/v1/completions", {"model": "tiny", "prompt": "hi"} | asked)
    assert status == 400
    assert body["error"]["message"].startswith("The simulated server ")


@pytest.mark.parametrize("asked", [{"n": 1}, {"echo": False}, {"prompt": ["a"]}, {"prompt": [[1, 2]]}, {"foo": 1},
                                   {"response_format": {"type": "text"}}, {"stop": None}, {"temperature": 0.7},
                                   {"priority": 3}, {"max_tokens": None}, {"model": None}])  # fmt: skip
def test_what_changes_nothing_is_taken(server: Simulated, asked: dict) -> None:
    status, body = server.ask("POST", "/v1/completions",
                              {"model": "tiny", "prompt": "hi", "ignore_eos": True} | asked)  # fmt: skip
    assert (status, body["usage"]["completion_tokens"]) == (200, 16)


@pytest.mark.parametrize(("raw", "kind"), [(b"{not json", "json_invalid"), (b"[]", "model_attributes_type"),
                                           (b"", "missing"), (b"[" * 100_000, "json_invalid")])  # fmt: skip
def test_what_is_no_request_is_refused(server: Simulated, raw: bytes, kind: str) -> None:
    status, body = server.ask("POST", "/v1/completions", raw)
    assert (status, body["error"]["type"]) == (400, "Bad Request")
    assert f"'type': '{kind}'" in body["error"]["message"]


def test_paths_and_methods_and_kinds_of_content(server: Simulated) -> None:
    assert server.ask("GET", "/nothing") == (404, {"detail": "Not Found"})
    assert server.ask("GET", "/v1/completions") == (405, {"detail": "Method Not Allowed"})
    status, body = server.ask("POST", "/v1/completions", {"prompt": "x"}, **{"Content-Type": "text/plain"})
    assert (status, body["error"]["message"]) == (
        400, "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    )  # fmt: skip


@pytest.mark.parametrize("messages", [None, "x", [], [{"content": "x"}], ["x"]])
def test_a_chat_needs_messages(server: Simulated, messages: object) -> None:
    body = {"model": "tiny"} | ({} if messages is None else {"messages": messages})
    assert server.ask("POST", "/v1/chat/completions", body)[0] == 400


@pytest.mark.parametrize("key", ["Bearer wrong", "secret", "Basic secret", ""])
def test_a_wrong_key_gets_a_401_and_the_rest_needs_none(server: Simulated, key: str) -> None:
    assert server.ask("GET", "/v1/models", Authorization=key) == (401, {"error": "Unauthorized"})
    assert server.ask("GET", "/health", Authorization=key)[0] == 200
    assert server.ask("GET", "/metrics", Authorization=key)[0] == 200


def test_a_request_that_could_never_be_served_is_told_so() -> None:
    with Simulated(replace(CONFIG, num_gpu_blocks=5)) as small:
        status, body = small.complete([1] * 60, max_tokens=100)
        assert status == 400
        assert "needs 10 KV blocks, more than the 4 there are" in body["error"]["message"]


@pytest.mark.parametrize(("limit", "reason"), [({"max_num_queued_reqs": 2}, "max_num_queued_reqs"),
                                               ({"max_num_queued_tokens": 10}, "max_num_queued_tokens")])  # fmt: skip
def test_beyond_a_queue_limit_it_answers_503(limit: dict, reason: str) -> None:
    with Simulated(**limit) as busy:
        busy.ask("POST", "/pause?mode=keep")
        held = [busy.send("POST", "/v1/completions", {"prompt": [1] * 5, "max_tokens": 2}) for _ in range(2)]
        wait_for(lambda: busy.engine.waiting == 2)
        status, body = busy.complete()
        assert (status, body["error"]["type"], body["error"]["code"]) == (503, "Service Unavailable", 503)
        assert body["error"]["message"].endswith("Please try again later or on a different instance.")
        busy.ask("POST", "/resume")
        assert [connection.getresponse().status for connection in held] == [200, 200]
        assert read_metrics(busy.ask("GET", "/metrics")[1]).rejections[reason] == 1
        assert busy.complete()[0] == 200


# ---------------------------------------------------------------- where an answer ends


def test_without_ignore_eos_it_stops_by_itself_where_the_seed_says(server: Simulated) -> None:
    lengths = set()
    for prompt in range(6):
        natural = text.natural_length([prompt], seed=0)
        body = server.complete([prompt], max_tokens=500, return_token_ids=True)[1]
        choice = body["choices"][0]
        assert body["usage"]["completion_tokens"] == min(natural, 500)
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop" if natural <= 500 else "length", None)
        if natural <= 500:
            assert choice["token_ids"][-1] == text.END
            assert len(choice["text"]) == natural - 1  # the last token has no text
        lengths.add(natural)
    assert len(lengths) > 3
    assert text.natural_length([1], seed=0) != text.natural_length([1], seed=1)


def test_the_context_ends_it_where_max_tokens_would_go_beyond(server: Simulated) -> None:
    body = server.complete([1] * 500, max_tokens=100, ignore_eos=True)[1]
    assert (body["usage"]["completion_tokens"], body["choices"][0]["finish_reason"]) == (12, "length")
    assert server.complete([1] * 511, max_tokens=2)[1]["usage"]["completion_tokens"] == 1


def test_max_tokens_and_min_tokens_bound_it(server: Simulated) -> None:
    prompt = next([p] for p in range(99) if 5 < text.natural_length([p], 0) < 50)
    assert server.complete(prompt, max_tokens=3)[1]["choices"][0]["finish_reason"] == "length"
    assert server.complete(prompt, max_tokens=99, min_tokens=60)[1]["usage"]["completion_tokens"] == 61


@pytest.mark.parametrize(("stop", "include", "said"), [("5", False, "1\n2\n3\n4\n"), ("5", True, "1\n2\n3\n4\n5"),
                                                       (["\n4\n", "x"], False, "1\n2\n3")])  # fmt: skip
def test_a_stop_string_ends_it_and_costs_the_engine_one_more_step(stop: object, include: bool, said: str) -> None:
    with Simulated() as server:
        _, body = server.complete([1], max_tokens=99, ignore_eos=True, stop=stop, include_stop_str_in_output=include)
        choice, made = body["choices"][0], body["usage"]["completion_tokens"]
        assert (choice["text"], choice["finish_reason"]) == (said, "stop")
        assert choice["stop_reason"] == (stop if isinstance(stop, str) else stop[0])
        assert made == (9 if "5" in stop else 8)
        wait_for(lambda: not server.engine.scheduler.sequences)
        wait_for(lambda: len(server.records) == made + 1)
        assert server.engine.scheduler.pool.free == CONFIG.num_gpu_blocks - 1
        assert read_metrics(server.ask("GET", "/metrics")[1]).finished["stop"] == 1


def test_a_streams_text_holds_back_what_may_become_a_stop_string(server: Simulated) -> None:
    *chunks, _ = events(server.complete([1], max_tokens=99, ignore_eos=True, stream=True, stop="\n7\n")[1])
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "1\n2\n3\n4\n5\n6"
    assert chunks[-1]["choices"][0] | {"finish_reason": "stop", "stop_reason": "\n7\n"} == chunks[-1]["choices"][0]
    assert server.complete(stop=[""])[0] == 400


# ---------------------------------------------------------------- aborts, priority, pause


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("queued", [True, False])
def test_hanging_up_frees_the_blocks(stream: bool, queued: bool) -> None:
    with Simulated(step_time=StepTime(0.01)) as server:
        if queued:
            server.ask("POST", "/pause?mode=keep")
        body = {"prompt": [1] * 100, "max_tokens": 400, "ignore_eos": True, "stream": stream}
        connection = server.send("POST", "/v1/completions", body)
        wait_for(lambda: server.engine.jobs and (queued or len(server.records) > 3))
        connection.sock.close()
        connection.close()
        wait_for(lambda: not server.engine.jobs)
        server.ask("POST", "/resume")
        assert server.engine.scheduler.sequences == []
        assert server.engine.scheduler.pool.free == CONFIG.num_gpu_blocks - 1
        assert server.complete(max_tokens=2)[0] == 200
        page = read_metrics(server.ask("GET", "/metrics")[1])
        assert (page.running, page.waiting, page.kv_usage, sum(page.finished.values())) == (0, 0, 0, 1)


def held_streams(server: Simulated, bodies: list[dict]) -> list:
    """Pause, queue one stream after the other, resume; the answers."""
    assert server.ask("POST", "/pause?mode=keep") == (200, {"status": "paused"})
    assert server.ask("GET", "/is_paused") == (200, {"is_paused": True})
    answers = []
    for body in bodies:
        connection = server.send("POST", "/v1/completions", {"ignore_eos": True, "stream": True, **body})
        answers.append(connection.getresponse())
    assert server.engine.waiting == len(bodies)
    assert server.records == [] or server.engine.running == 0
    assert server.ask("POST", "/resume") == (200, {"status": "resumed"})
    return answers


@pytest.mark.parametrize(("policy", "order"), [("priority", [2, 0, 3, 1]), ("fcfs", [0, 1, 2, 3])])
def test_priority_orders_the_queue_and_fcfs_ignores_it(policy: str, order: list[int]) -> None:
    config = replace(CONFIG, max_num_seqs=1, policy=policy)
    with Simulated(config) as server:
        bodies = [{"prompt": [1], "max_tokens": 3, "priority": p} for p in (0, 5, -1, 0)]
        for answer in held_streams(server, bodies):
            assert answer.read().endswith(b"[DONE]\n\n")
        ids = list(dict.fromkeys(name for record in server.records for name in record.prefill))
        arrived = [request.request_id for request in server.arrivals]
        assert [arrived.index(name) for name in ids] == order


def test_a_pause_can_abort_or_wait(server: Simulated) -> None:
    with Simulated(step_time=StepTime(0.01)) as own:
        connection = own.send("POST", "/v1/completions", {"prompt": [1], "max_tokens": 400, "ignore_eos": True})
        wait_for(lambda: len(own.records) > 2)
        assert own.ask("POST", "/pause") == (200, {"status": "paused"})
        answer = connection.getresponse()
        assert b'"finish_reason":"abort"' in answer.read()
        own.ask("POST", "/resume")
        connection = own.send("POST", "/v1/completions", {"prompt": [1], "max_tokens": 20, "ignore_eos": True})
        wait_for(lambda: own.engine.jobs)
        assert own.ask("POST", "/pause?mode=wait")[0] == 200
        assert not own.engine.jobs
        assert b'"finish_reason":"length"' in connection.getresponse().read()
    assert server.ask("POST", "/pause?mode=zzz")[0] == 400


# ---------------------------------------------------------------- exact steps


def played(config: SchedulerConfig, work: list[Request], **settings: object) -> tuple[Simulated, list]:
    """Run `work` from an exact start; the server after it, and its steps with the ids of `work`."""
    with Simulated(config, StepTime(0.0005, 0.00001), speed=2.0, **settings) as server:
        bodies = [{"prompt": [1] * r.prompt_tokens, "max_tokens": r.output_tokens, "priority": r.priority}
                  for r in work]  # fmt: skip
        for answer in held_streams(server, bodies):
            assert answer.read().endswith(b"[DONE]\n\n")
        wait_for(lambda: server.engine.running == 0)
        server.page = read_metrics(server.ask("GET", "/metrics")[1])
        server.state = server.ask("GET", "/labs/state")[1]
    names = {a.request_id: r.request_id for a, r in zip(server.arrivals, work, strict=True)}
    return server, [renamed(record, names) for record in server.records]


def renamed(record: object, names: dict[str, str]) -> tuple:
    """What was decided in a step, without its times."""
    return (*({names[i]: n for i, n in of.items()} for of in (record.prefill, record.decode)),
            *(tuple(names[i] for i in of)
              for of in (record.running, record.waiting, record.preempted, record.made, record.finished)),
            record.lost, record.free_blocks, record.binding_limit)  # fmt: skip


def work_of(outputs: list[int], prompt: int, priorities: int = 1) -> list[Request]:
    # All arrive by step 1 but at times that differ, as they do at a server: under priority no two tie.
    return [Request(f"{i:03}", prompt + i % 7, int(n), (i + 1) / 1000, i % priorities) for i, n in enumerate(outputs)]


LENGTHS = lognormal_lengths(64, 4.2, 1.1, 0).clip(max=512).tolist()
ROOMY = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=2048, num_gpu_blocks=1000)
TIGHT = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=64, num_gpu_blocks=20, block_size=16,
                        max_model_len=288)  # fmt: skip
EXACT = {
    "the 64 requests in 8 slots": (ROOMY, work_of(LENGTHS, 4)),
    "memory pressure": (TIGHT, work_of([20 + 7 * (i % 11) for i in range(40)], 30)),
    "memory pressure, priority": (replace(TIGHT, policy="priority"),
                                  work_of([20 + 7 * (i % 11) for i in range(40)], 30, priorities=3)),
    "long prompts in chunks": (replace(TIGHT, num_gpu_blocks=60), work_of([5] * 20, 150)),
}  # fmt: skip


@pytest.mark.parametrize("case", EXACT)
def test_from_an_exact_start_every_step_is_the_engines(case: str) -> None:
    config, work = EXACT[case]
    server, steps = played(config, work)
    predicted = run(work, config)
    assert steps == [renamed(record, {r.request_id: r.request_id for r in work}) for record in predicted.records]
    assert (server.state["steps"], server.state["preemptions"]) == (predicted.steps, predicted.preemptions)
    assert server.page.preemptions == predicted.preemptions
    assert server.page.steps == sum(bool(record.made) for record in predicted.records)
    assert server.page.generation_tokens == sum(r.output_tokens for r in work)
    if case.startswith("the 64"):
        assert predicted.steps == 1169
    if case.startswith("memory"):
        assert predicted.preemptions > 10


def test_static_batching_takes_the_steps_of_the_slots() -> None:
    work = [replace(request, prompt_tokens=4) for request in EXACT["the 64 requests in 8 slots"][1]]
    server, _ = played(ROOMY, work, static=True)
    assert server.state["steps"] == static_batching(LENGTHS, 8).steps == 2646


def test_static_batching_can_be_switched_while_it_runs() -> None:
    with Simulated(CONFIG) as server:
        def steps(n: int) -> int:
            before = len(server.records)
            for answer in held_streams(server, [{"prompt": [1], "max_tokens": m} for m in n]):
                answer.read()
            wait_for(lambda: not server.engine.scheduler.sequences)
            return len(server.records) - before

        lengths = [9, 1, 1, 1, 9, 1]
        assert steps(lengths) == 10
        assert server.ask("POST", "/labs/static", {"on": True}) == (200, {"static": True})
        assert steps(lengths) == 18
        assert server.ask("POST", "/labs/static", {"on": False}) == (200, {"static": False})
        assert steps(lengths) == 10
        assert server.ask("POST", "/labs/static", {"on": 1})[0] == 400


# ---------------------------------------------------------------- time


class Clock:
    """Time that only passes while the engine sleeps; step `slow[0]` ends `slow[1]` seconds late."""

    def __init__(self, slow: tuple[int, float]) -> None:
        self.now, self.slow, self.sleeps = 100.0, slow, 0
        self.ends: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep_until(self, end: float) -> None:
        late = self.slow[1] if self.sleeps == self.slow[0] else 0.0
        self.sleeps += 1
        self.now = max(self.now, end) + late
        self.ends.append(self.now - 100.0)
        await asyncio.sleep(0)


def ends(monkeypatch: pytest.MonkeyPatch, slow: tuple[int, float], speed: float = 1.0) -> tuple[list[float], Engine]:
    """When each of ten steps of 10 ms ended."""
    clock = Clock(slow)
    monkeypatch.setattr(engine_module, "monotonic", clock)
    monkeypatch.setattr(engine_module, "sleep_until", clock.sleep_until)

    async def go() -> Engine:
        engine = Engine(CONFIG, StepTime(0.01), Statistics("tiny", CONFIG), speed)
        engine.submit(Job(Request("a", 1, 10)))
        loop = asyncio.create_task(engine.serve())
        while engine.jobs:
            await asyncio.sleep(0)
        loop.cancel()
        return engine

    return clock.ends, asyncio.run(go())


def test_steps_end_when_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ends(monkeypatch, (-1, 0.0))[0] == pytest.approx([0.01 * i for i in range(1, 11)])
    assert ends(monkeypatch, (-1, 0.0), speed=10.0)[0] == pytest.approx([0.001 * i for i in range(1, 11)])


@pytest.mark.parametrize("late", [0.004, 0.035])
def test_a_late_step_does_not_put_off_the_ones_after_it(monkeypatch: pytest.MonkeyPatch, late: float) -> None:
    times, engine = ends(monkeypatch, (3, late))
    assert times == pytest.approx([max(0.01 * i, 0.04 + late) if i > 3 else 0.01 * i for i in range(1, 11)])
    assert engine.seconds_lost == 0


def test_a_machine_that_stood_still_is_not_caught_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    times, engine = ends(monkeypatch, (3, 60.0))
    assert times[-1] == pytest.approx(0.1 + 60.0 - 0.01, abs=0.02)
    assert engine.seconds_lost == pytest.approx(60.0, abs=0.02)


def test_step_times_in_real_time_add_up() -> None:
    with Simulated(step_time=StepTime(0.01)) as server:
        began = time.monotonic()
        server.complete([1], max_tokens=50, ignore_eos=True)
        assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_a_speed_must_be_above_0(speed: float) -> None:
    with pytest.raises(ValueError, match="speed must be above 0"):
        Engine(CONFIG, FAST, Statistics("tiny", CONFIG), speed)


# ---------------------------------------------------------------- text and command line


def test_tokens_of_a_text_are_the_same_everywhere_and_in_the_vocabulary() -> None:
    ids = text.encode("Count upwards from one, one number a line.")
    assert len(ids) == 13
    assert ids == text.encode("Count upwards from one, one number a line.")
    assert all(text.END < i < text.VOCABULARY for i in ids)
    assert text.COUNTING.first(5000).startswith("1\n2\n3\n")
    assert text.COUNTING.first(5000).split()[1000] == "1001"


def command(*flags: str, **environment: str) -> subprocess.Popen:
    """The server as a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "labs.live.simulated", *flags], cwd=ROOT, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env=os.environ | environment)  # fmt: skip


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def connects(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_as_a_command_it_serves_on_this_machine_only_and_ends_when_told(sent: int, record_property) -> None:
    port, began = free_port(), time.monotonic()
    flags = ("--served-model-name", "tiny", "--no-enable-prefix-caching", "--enforce-eager")
    process = command("--port", str(port), *flags, "--step-time", "0.01", "0", "0", VLLM_API_KEY="k")
    try:
        wait_for(lambda: connects("127.0.0.1", port), 30)
        record_property("seconds to start", round(time.monotonic() - began, 2))
        assert not connects("127.0.0.2", port)  # one that listens everywhere would answer there
        client = Simulated()
        client.port, client.key = port, "k"
        assert client.complete(max_tokens=2)[0] == 200
        stream = client.send("POST", "/v1/completions", {"prompt": "a", "max_tokens": 400, "stream": True,
                                                         "ignore_eos": True})  # fmt: skip
        streamed = stream.getresponse()
        assert streamed.status == 200
    finally:
        process.send_signal(sent)
        output = process.communicate(timeout=20)[0]
    assert "SIMULATED server: no model and no GPU" in output
    assert "Application startup complete." in output
    assert "Traceback" not in output
    streamed.close()
    client.close()


@pytest.mark.parametrize(("flags", "said"), [
    (["--host", "0.0.0.0"], "invalid choice"), (["--nonsense"], "unrecognized arguments: --nonsense"),
    (["--max-num-seqs", "0"], "max_num_seqs must be"), (["--speed", "0"], "speed must be above 0"),
    (["--enable-prefix-caching"], "argument --enable-prefix-caching: the simulated server has no prefix cache"),
    (["--trust-remote-code"], "argument --trust-remote-code: the simulated server has no model"),
    (["--step-time", "0", "0", "0"], "base"),
])  # fmt: skip
def test_flags_that_it_does_not_know_end_it_with_2(flags: list[str], said: str) -> None:
    process = command(*flags)
    output = process.communicate(timeout=30)[0]
    assert (process.returncode, said in output) == (2, True), output


def test_a_port_that_is_taken_ends_it_with_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = command("--port", str(taken.getsockname()[1]))
        output = process.communicate(timeout=30)[0]
    assert process.returncode not in (0, None)
    assert re.search(r"\[Errno \d+\].*address already in use", output)


def test_its_flags_are_vllms() -> None:
    given = parser().parse_args(["--num-gpu-blocks-override", "42", "--scheduling-policy", "priority",
                                 "--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096"])  # fmt: skip
    assert (given.num_gpu_blocks, given.policy, given.enable_chunked_prefill) == (42, "priority", False)
