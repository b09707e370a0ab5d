"""The load client against a scripted server: every figure by its definition, and no fault taken for a success."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.live import client as live
from labs.live import wire
from labs.live.client import Ask, Measurement, Row, agreement, ameasure, asks_from, hold_groups, measure
from labs.workload import Request
from tests.live.stub_server import (
    Answer,
    Stub,
    answer,
    barrier,
    chunk,
    delta,
    error_event,
    usage,
    usage_chunk,
)


def asks(n: int = 1, **settings) -> list[Ask]:
    """`n` requests that differ."""
    return [Ask(str(i), f"prompt {i}", **dict(max_tokens=6) | settings) for i in range(n)]


def one(said: Answer, **settings) -> Row:
    """The row of a single request that is answered so."""
    with Stub(lambda body, i: said) as stub:
        row = measure(stub, asks(**settings), timeout=20).rows[0]
    assert len(stub.requests) == 1, "no request may be sent twice"
    return row


def patiently(check: Callable[[], None], tries: int = 3) -> None:
    """Try a check of times again: a busy machine delays, so one good try shows that the client does not."""
    for _ in range(tries - 1):
        with suppress(AssertionError):
            check()
            return
    check()


# ---------------------------------------------------------------- definitions


def test_tokens_of_a_chunk_share_its_gap() -> None:
    gaps = live.itl_from_chunks([(1.0, 1), (1.3, 3), (1.5, 2)])
    assert gaps == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])
    assert live.chunk_gaps([(1.0, 1), (1.3, 3), (1.5, 2)]) == pytest.approx([0.3, 0.2])


def test_tokens_of_the_first_chunk_came_together() -> None:
    assert live.itl_from_chunks([(2.0, 3), (2.4, 2)]) == pytest.approx([0, 0, 0.2, 0.2])
    assert live.itl_from_chunks([(2.0, 1)]).size == 0
    assert live.itl_from_chunks([]).size == 0


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=60),
    st.floats(0, 1000),
)
def test_gaps_add_up_to_last_minus_first_and_are_one_fewer_than_tokens(steps: list, start: float) -> None:
    times = start + np.cumsum([gap for gap, _ in steps])
    counts = [count for _, count in steps]
    gaps = live.itl_from_chunks(list(zip(times, counts, strict=True)))
    assert len(gaps) == sum(counts) - 1
    assert gaps.sum() == pytest.approx(times[-1] - times[0], abs=1e-6)
    assert (gaps >= 0).all()
    row = Row(asks()[0], sent=0.0, first=times[0], last=times[-1], chunks=tuple(zip(times, counts, strict=True)),
              completion_tokens=sum(counts))  # fmt: skip
    if len(gaps):
        assert row.itl_gaps.mean() == pytest.approx(row.tpot, abs=1e-6)


@pytest.mark.parametrize("bad", [[(1.0, None)], [(1.0, 0)], [(1.0, 1), (1.2, None)], [(1.0, 1.5)]])
def test_unknown_counts_give_no_itl(bad: list) -> None:
    with pytest.raises(ValueError, match="chunk gaps"):
        live.itl_from_chunks(bad)


def test_chunks_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        live.itl_from_chunks([(2.0, 1), (1.0, 1)])


def test_each_latency_by_its_definition() -> None:
    chunks = ((3.5, 1), (4.1, 2), (4.5, 2))
    row = Row(asks()[0], 2.9, 3.0, 3.5, 4.5, 4.6, chunks, 5, 7, "length")
    assert row.ttft == pytest.approx(0.5)
    assert row.tpot == pytest.approx(1.0 / 4)
    assert row.e2e == pytest.approx(1.6)
    assert row.normalised_latency == pytest.approx(1.6 / 5)
    assert row.queue_delay == pytest.approx(0.1)
    assert row.short


@pytest.mark.parametrize("n", [None, 0, 1])
def test_tpot_of_one_token_or_none_is_not_a_number(n: int | None) -> None:
    assert math.isnan(Row(asks()[0], 0, 0, 1, 1, 1, (), n).tpot)


@pytest.mark.parametrize("status", [status for status in live.STATUSES if status != "ok"])
def test_a_failed_row_has_no_latency(status: str) -> None:
    row = Row(asks()[0], 0, 0, 1, 2, 3, ((1, 1), (2, 1)), 2, 5, "length", status)
    assert all(math.isnan(x) for x in (row.ttft, row.tpot, row.e2e, row.normalised_latency))
    assert row.itl_gaps.size == row.chunk_gaps.size == 0
    assert not row.short


def test_a_percentile_that_would_be_the_largest_value_is_refused() -> None:
    with pytest.raises(live.TooFew, match="n too small to have a p99: n = 100"):
        live.tail(range(100), 0.99)
    assert live.tail(range(101), 0.99) == 99
    assert live.tail([3.0], 0.5) == 3
    assert live.tail([3.0, 1.0], 1.0) == 3
    with pytest.raises(live.TooFew):
        live.tail([], 0.5)


@given(st.sampled_from([0.75, 0.9, 0.95, 0.99, 0.999]))
def test_enough_for_is_the_least_that_is_enough(q: float) -> None:
    n = live.enough_for(q)
    assert int(q * n) < n - 1
    assert all(int(q * m) >= m - 1 for m in range(max(1, n - 50), n))


def test_pooled_percentiles_are_not_means_of_percentiles() -> None:
    gaps = [np.full(99, 0.01), np.array([1.0])]
    assert live.pooled(gaps).size == 100
    assert live.tail(live.pooled(gaps), 0.95) == 0.01
    assert live.pooled([]).size == 0


def test_peak_in_flight_counts_overlaps() -> None:
    def row(sent: float, done: float) -> Row:
        return Row(asks()[0], 0, sent, done=done)

    assert live.peak_in_flight([row(0, 2), row(1, 3), row(2, 4), row(3.5, math.nan), row(math.nan, math.nan)]) == 2
    assert live.peak_in_flight([]) == 0


# ---------------------------------------------------------------- streams as servers send them (field cases D)


def test_d2_several_tokens_in_a_chunk() -> None:
    row = one(answer([1, 3, 2], gap=0.05))
    assert [count for _, count in row.chunks] == [1, 3, 2]
    assert (row.status, row.completion_tokens, row.finish_reason) == ("ok", 6, "length")
    assert len(row.itl_gaps) == 5
    assert row.itl_gaps.sum() == pytest.approx(row.last - row.first)
    assert row.itl_gaps.mean() == pytest.approx(row.tpot)
    assert not row.short


def test_d2_without_counts_it_is_called_a_chunk_gap() -> None:
    with Stub(lambda body, i: answer([1, 3, 2], ids=False)) as stub:
        seen = measure(stub, asks())
    assert [count for _, count in seen.rows[0].chunks] == [None] * 3
    assert seen.rows[0].itl_gaps.size == 0
    assert len(seen.rows[0].chunk_gaps) == 2
    names = [line["measure"] for line in seen.table()]
    assert "chunk gap (not ITL)" in names
    assert "ITL" not in names
    with pytest.raises(ValueError, match="only chunk gaps"):
        seen.gaps()
    assert seen.rows[0].tpot == pytest.approx((seen.rows[0].last - seen.rows[0].first) / 5)


def test_d2_counts_from_a_usage_with_every_chunk() -> None:
    events = [(0, chunk("a", usage=usage(1))), (0, chunk("bcd", usage=usage(4))),
              (0, chunk("", finish="length", usage=usage(4))), (0, usage_chunk(4))]  # fmt: skip
    with Stub(lambda body, i: Answer(events)) as stub:
        row = measure(stub, asks(), counts="usage").rows[0]
    assert [count for _, count in row.chunks] == [1, 3]
    assert row.counted
    assert stub.requests[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert "return_token_ids" not in stub.requests[0]


def test_d2_a_usage_with_the_last_chunk_only_is_no_count_of_that_chunk() -> None:
    row = one(Answer([(0, chunk("a")), (0, chunk("b", finish="stop", usage=usage(9)))]))
    assert [count for _, count in row.chunks] == [None, None]
    assert row.completion_tokens == 9
    row = one(Answer([(0, chunk("a b c", finish="stop", usage=usage(9)))]))
    assert [count for _, count in row.chunks] == [None]


def test_d3_the_role_chunk_is_not_the_first_token() -> None:
    events = [(0, delta("", role="assistant")), (0.2, delta("hello", [1])), (0.05, delta(" you", [2], "stop")),
              (0, usage_chunk(2))]  # fmt: skip
    with Stub(lambda body, i: Answer(events)) as stub:
        row = measure(stub, asks(chat=True)).rows[0]
    assert row.ttft >= 0.2
    assert row.text == "hello you"
    assert stub.requests[0]["messages"] == [{"role": "user", "content": "prompt 0"}]


def test_d3_reasoning_is_generated_text_too() -> None:
    row = one(Answer([(0, delta(reasoning_content="hm")), (0.1, delta("yes", finish="stop")), (0, usage_chunk(5))]),
              chat=True)  # fmt: skip
    assert len(row.chunks) == 2
    assert row.text == "hmyes"


def test_tokens_without_text_count_and_text_without_tokens_does_not() -> None:
    events = [(0, chunk("", [1])), (0, chunk("ab", [2])), (0, chunk("c", [], "length")), (0, usage_chunk(2))]
    row = one(Answer(events))
    assert [count for _, count in row.chunks] == [1, 1]
    assert (row.status, row.text) == ("ok", "abc")


def test_d4_the_usage_chunk_has_no_choices() -> None:
    row = one(answer([1, 1]))
    assert (row.status, row.completion_tokens, row.prompt_tokens) == ("ok", 2, 5)
    assert row.last == row.chunks[-1][0]


def test_d5_tokens_are_the_servers_count_not_words() -> None:
    row = one(Answer([(0, chunk("a b c", finish="stop")), (0, usage_chunk(7))]))
    assert row.completion_tokens == 7
    assert row.normalised_latency == pytest.approx(row.e2e / 7)


def test_more_ids_than_the_usage_says_are_not_trusted() -> None:
    row = one(answer([2, 2], said=3))
    assert (row.status, row.completion_tokens, row.counted) == ("ok", 3, False)
    assert row.itl_gaps.size == 0


def test_without_a_usage_the_ids_are_counted() -> None:
    row = one(Answer([(0, chunk("a", [1, 2])), (0, chunk("b", [3], "length"))]))
    assert (row.status, row.completion_tokens, row.counted) == ("ok", 3, True)
    row = one(Answer([(0, chunk("a b", finish="length"))]))
    assert row.completion_tokens is None
    assert not row.short, "nobody knows"
    assert math.isnan(row.normalised_latency)


def test_d6_an_answer_that_ends_early_is_seen() -> None:
    with Stub(lambda body, i: answer([1, 1], finish="stop")) as stub:
        seen = measure(stub, asks(max_tokens=512, ignore_eos=False))
    assert seen.rows[0].short
    assert seen.summary()["ended early"] == 1
    assert "ignore_eos" not in stub.requests[0]


def test_d6_ignore_eos_is_asked_for_by_default() -> None:
    with Stub(lambda body, i: answer([1] * 6)) as stub:
        seen = measure(stub, asks(priority=-1, stop=("x", "y"), extra={"min_tokens": 6}))
    body = stub.requests[0]
    assert body["ignore_eos"] is body["return_token_ids"] is body["stream"] is True
    assert (body["priority"], body["min_tokens"], body["stop"], body["temperature"]) == (-1, 6, ["x", "y"], 0)
    assert body["stream_options"] == {"include_usage": True}
    assert not seen.rows[0].short


def test_d7_as_many_connections_as_the_load_needs() -> None:
    together = barrier(150)
    with Stub(lambda body, i: replace(answer([1, 1]), before=together)) as stub:
        seen = measure(stub, asks(150), timeout=40)
    assert seen.statuses == {"ok": 150}
    assert seen.peak_in_flight == stub.peak == 150


def test_d7_a_limit_of_our_own_shows_as_queue_delay() -> None:
    together = barrier(10)
    with Stub(lambda body, i: replace(answer([1, 1], wait=0.2), before=together)) as stub:
        seen = measure(stub, asks(20), max_connections=10, timeout=40)
    assert seen.statuses == {"ok": 20}
    assert seen.peak_in_flight == stub.peak == 10
    late = sorted(row.queue_delay for row in seen.rows)
    assert late[10] >= 0.2
    assert seen.percentile("ttft", 0.5) < late[10] + 0.2


def test_d8_the_schedule_is_absolute() -> None:
    """A client that is late once makes no later request late, and the delay is on record."""
    due = [0.0, 0.2, 0.3, 0.4, 1.5]

    def check() -> None:
        blocked = []

        def block(done: int, total: int) -> None:
            if not blocked:
                blocked.append(done)
                time.sleep(0.6)

        with Stub(lambda body, i: answer([1])) as stub:
            wanted = [replace(ask, arrival=at) for ask, at in zip(asks(5), due, strict=True)]
            seen = asyncio.run(ameasure(stub, wanted, mode="open-loop", progress=block))
        assert [row.scheduled for row in seen.rows] == due
        assert all(row.sent >= row.scheduled for row in seen.rows)
        assert max(seen.values("queue_delay")) > 0.2
        assert seen.rows[4].queue_delay < 0.2

    patiently(check)


def test_d8_open_loop_does_not_wait_for_a_slow_server() -> None:
    together = barrier(8)
    with Stub(lambda body, i: replace(answer([1]), before=together)) as stub:
        wanted = [replace(ask, arrival=0.02 * i) for i, ask in enumerate(asks(8))]
        seen = measure(stub, wanted, mode="open-loop", timeout=30)
    assert seen.peak_in_flight == 8


def test_d10_a_fifth_of_503s_is_counted_beside_latency_and_not_sent_again() -> None:
    with Stub(lambda body, i: Answer(status=503) if i % 5 == 0 else answer([1, 1])) as stub:
        seen = measure(stub, asks(40), mode="closed-loop", concurrency=4)
    assert seen.statuses == {"ok": 32, "refused": 8}
    assert seen.failure_rate == 0.2
    assert len(stub.requests) == 40
    assert len(seen.values("ttft")) == 32
    assert seen.summary()["failed: refused"] == 8
    assert "HTTP 503" in seen.failed[0].error
    assert "the queue is full" in seen.failed[0].error


def test_d11_an_error_event_after_200_is_an_error() -> None:
    row = one(Answer([(0, chunk("a", [1])), (0, error_event())]))
    assert row.status == "error"
    assert "EngineCore" in row.error
    assert row.chunks
    row = one(Answer([(0, {"object": "error", "message": "an older server's way", "code": 500})]))
    assert (row.status, row.error) == ("error", "an older server's way")


@pytest.mark.parametrize("end", ["cut", "silent", "done"])
def test_d11_a_stream_cut_short_is_never_a_success(end: str) -> None:
    row = one(Answer([(0, chunk("a", [1])), (0.02, chunk("b", [2]))], end))
    assert row.status == "cut"
    assert [count for _, count in row.chunks] == [1, 1]
    assert math.isnan(row.ttft)
    assert row.error


def test_d11_a_stream_cut_before_its_first_chunk() -> None:
    assert one(Answer([], "cut")).status == "cut"
    assert one(Answer([], "done")).status == "cut"


def test_d11_fewer_tokens_than_the_usage_says_is_a_cut() -> None:
    row = one(answer([1, 1], said=5))
    assert row.status == "cut"
    assert "2 tokens came" in row.error


def test_an_answer_that_the_server_aborted_is_an_error() -> None:
    assert one(answer([1, 1], finish="abort")).status == "error"


@pytest.mark.parametrize("rubbish", [b"data: {not json\n\n", b'data: {"choices": [null]}\n\n', b"data: 7\n\n",
                                     b'data: {"choices": [{"text": 5, "finish_reason": "stop"}]}\n\n'])
def test_an_answer_that_makes_no_sense_loses_no_other(rubbish: bytes) -> None:
    with Stub(lambda body, i: Answer([(0, rubbish)]) if i == 1 else answer([1, 1])) as stub:
        seen = measure(stub, asks(3), mode="closed-loop", concurrency=1)
    assert [row.status for row in seen.rows] == ["ok", "error", "ok"]


def test_a_connection_is_used_again_once_its_answer_has_been_read() -> None:
    with Stub(lambda body, i: answer([1, 1])) as stub:
        seen = measure(stub, asks(20), mode="closed-loop", concurrency=1)
    assert seen.statuses == {"ok": 20}
    assert stub.connections <= 2, "the first asks for the models"


def test_a_whole_answer_whose_connection_never_ends_is_whole() -> None:
    """After [DONE] nothing more is owed, and it isn't waited for longer than a moment."""
    began = time.monotonic()
    said = [*answer([1, 1]).events, (0.0, b"data: [DONE]\n\n")]
    with Stub(lambda body, i: Answer(said, "hang")) as stub:
        seen = measure(stub, asks(1), timeout=30)
    assert seen.statuses == {"ok": 1}
    assert time.monotonic() - began < 10


def read(raw: bytes, cuts: list[int]) -> list:
    """The events in these bytes, which arrive cut at these places."""
    async def parts():
        for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
            yield raw[begin:end]

    async def go() -> list:
        return [event async for event in wire.events(parts())]

    return asyncio.run(go())


@given(st.data(), st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_however_the_bytes_are_cut(data, newline: str) -> None:
    """Text may hold what `str.splitlines` takes for the end of a line, and a UTF-8 character may be cut in two."""
    texts = ["a", "\u2028b\u0085c\x0b", "日本", '"}\\n', ""]
    lines = [f"data: {json.dumps({'choices': [{'text': text}]}, ensure_ascii=False)}" for text in texts]
    raw = (f"{newline}{newline}".join([": a comment", *lines, "data:[DONE]", "data: 7"]) + newline * 2).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    assert [event.choices[0].text for event in read(raw, cuts)] == texts


def test_an_event_of_two_lines_is_one_and_half_an_event_is_none() -> None:
    assert read(b'data: {"a":\ndata: 1}\n\ndata: {"b": 2', []) == [SimpleNamespace(a=1)]


def test_d12_warm_up_is_labelled_left_out_and_has_other_prompts() -> None:
    with Stub(lambda body, i: answer([1, 1])) as stub:
        wanted = asks_from([Request(str(i), 20, 2) for i in range(4)])
        seen = measure(stub, wanted, warm_up=6)
    assert len(stub.requests) == 10
    assert [row.warm_up for row in seen.rows] == [True] * 6 + [False] * 4
    assert len(seen.measured) == len(seen.ok) == 4
    assert len(seen.values("ttft")) == 4
    assert all(row.done <= 0 for row in seen.rows[:6])
    assert all(row.sent >= 0 for row in seen.rows[6:])
    assert len({tuple(body["prompt"]) for body in stub.requests}) == 10
    assert [body["max_tokens"] for body in stub.requests] == [2] * 10
    assert seen.summary()["warm-up, left out"] == 6


def test_warm_up_of_text_prompts() -> None:
    with Stub(lambda body, i: answer([1])) as stub:
        measure(stub, asks(2), warm_up=3, mode="closed-loop", concurrency=2)
    assert len({body["prompt"] for body in stub.requests}) == 5


def test_d1_prompts_are_distinct_and_exactly_as_long_as_asked() -> None:
    requests = [Request(str(i), 16 + i % 3, 5 + i, arrival=i, priority=i % 2) for i in range(300)]
    wanted = asks_from(requests, seed=1, seconds=0.01, ignore_eos=True)
    assert [len(ask.prompt) for ask in wanted] == [request.prompt_tokens for request in requests]
    assert len({ask.prompt[:16] for ask in wanted}) == 300
    assert [ask.max_tokens for ask in wanted] == [request.output_tokens for request in requests]
    assert wanted[3].arrival == pytest.approx(0.03)
    assert [ask.priority for ask in wanted[:2]] == [None, 1]
    assert wanted == asks_from(requests, seed=1, seconds=0.01)
    assert wanted[0].prompt != asks_from(requests, seed=2)[0].prompt
    with pytest.raises(ValueError, match="different prompts"):
        asks_from([Request(str(i), 1, 1) for i in range(20)], vocab=range(10))


def test_d1_prompts_that_repeat_are_reported() -> None:
    with Stub(lambda body, i: answer([1])) as stub:
        seen = measure(stub, [replace(ask, prompt="the same") for ask in asks(3)])
    assert seen.summary()["repeated prompts"] == 2


# ---------------------------------------------------------------- load


def test_closed_loop_keeps_so_many_under_way() -> None:
    with Stub(lambda body, i: answer([1, 1], gap=0.03)) as stub:
        seen = measure(stub, asks(12), mode="closed-loop", concurrency=3)
    assert seen.statuses == {"ok": 12}
    assert seen.peak_in_flight == stub.peak == 3
    assert stub.connections <= 12 + stub.greeted


def test_rows_come_in_the_order_of_the_asks() -> None:
    with Stub(lambda body, i: answer([1], wait=0.05 * (3 - i % 4))) as stub:
        seen = measure(stub, asks(4))
    assert [row.ask.request_id for row in seen.rows] == list("0123")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(mode="all"), "mode must be one of"),
        (dict(mode="closed-loop"), "concurrency"),
        (dict(mode="open-loop", concurrency=3), "concurrency"),
        (dict(mode="closed-loop", concurrency=0), "1 or more"),
        (dict(mode="closed-loop", concurrency=2, hold_groups=4), "fill a group"),
        (dict(timeout=0), "timeout"),
        (dict(warm_up=-1), "warm_up"),
        (dict(counts="words"), "counts"),
        (dict(max_connections=0), "1 or more"),
    ],
)
def test_settings_that_make_no_sense(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        measure(SimpleNamespace(base_url="http://127.0.0.1:9/v1", model="m"), asks(5), **settings)


def test_asks_that_make_no_sense() -> None:
    server = SimpleNamespace(base_url="http://127.0.0.1:9/v1", model="m")
    with pytest.raises(ValueError, match="nothing to send"):
        measure(server, [])
    with pytest.raises(ValueError, match="text"):
        measure(server, [Ask("a", (1, 2), 3, chat=True)])
    with pytest.raises(ValueError, match="arrival"):
        measure(server, [Ask("a", "b", 3, arrival=math.nan)])


def test_the_key_is_sent_and_nothing_else_is_needed_of_a_server() -> None:
    with Stub(lambda body, i: answer([1])) as stub:
        measure(stub, asks())
        seen = measure(SimpleNamespace(base_url=stub.base_url, model="m"), asks())
    assert stub.headers[0]["authorization"] == "bearer secret"  # (the stub lowers case)
    assert seen.statuses == {"ok": 1}


def test_a_proxy_in_the_environment_is_not_used_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert one(answer([1])).status == "ok"


# ---------------------------------------------------------------- answers held until their group has ended


def held_row(i: int, done: float, **more) -> Row:
    return Row(asks(i + 1)[i], 0.0, 0.0, 0.1, done, done, ((0.1, 1), (done, 1)), 2, 5, "length", **more)


def test_held_answers_return_when_the_longest_of_their_group_has() -> None:
    rows = [held_row(i, done) for i, done in enumerate([1, 5, 2, 3, 4])]
    held = hold_groups(rows, 2)
    assert [row.done for row in held] == [5, 5, 3, 3, 4]
    assert [row.last for row in held] == [1, 5, 2, 3, 4]
    assert held[0].normalised_latency == pytest.approx(5 / 2)
    assert [row.tpot for row in held] == [row.tpot for row in rows]
    assert hold_groups(rows, 1) == tuple(rows)


def test_groups_are_formed_as_requests_are_due_and_without_the_warm_up() -> None:
    rows = [held_row(0, 9, warm_up=True), held_row(1, 1), held_row(2, 2), held_row(3, 3)]
    rows[1] = replace(rows[1], scheduled=0.5)
    assert [row.done for row in hold_groups(rows, 2)] == [9, 1, 3, 3]
    assert math.isnan(hold_groups([replace(rows[1], done=math.nan), rows[2]], 2)[0].done)
    with pytest.raises(ValueError, match="1 request or more"):
        hold_groups(rows, 0)


def test_a_failed_member_does_not_hold_its_group_for_ever() -> None:
    with Stub(lambda body, i: Answer(status=503) if i == 1 else answer([1, 1], gap=0.05)) as stub:
        seen = measure(stub, asks(7), mode="closed-loop", concurrency=3, hold_groups=3, timeout=20)
    assert seen.statuses == {"ok": 6, "refused": 1}
    assert seen.rows[0].done == seen.rows[2].done


def test_in_a_closed_loop_the_next_request_waits_for_the_group() -> None:
    with Stub(lambda body, i: answer([1, 1], gap=0.2 if body["prompt"].endswith("0") else 0.0)) as stub:
        seen = measure(stub, asks(4), mode="closed-loop", concurrency=2, hold_groups=2)
    assert min(row.sent for row in seen.rows[2:]) >= seen.rows[0].last
    assert seen.rows[1].done == seen.rows[0].done >= seen.rows[0].last
    assert seen.summary()["load"] == "closed-loop, answers held by 2"


# ---------------------------------------------------------------- deadlines, interruption, Jupyter


def test_a_slow_server_meets_the_deadline() -> None:
    def check() -> None:
        with Stub(lambda body, i: answer([1, 1]) if i == 0 else Answer([(0, chunk("a", [1]))], "hang")) as stub:
            start = time.perf_counter()
            seen = measure(stub, asks(4), mode="closed-loop", concurrency=2, timeout=1.0)
        assert time.perf_counter() - start < 5
        assert seen.statuses == {"ok": 1, "timeout": 3}
        assert "never sent" in seen.rows[3].error
        assert math.isnan(seen.rows[3].sent)
        assert seen.rows[1].chunks, "what had arrived is kept"
        assert not seen.interrupted

    patiently(check)


def test_a_dead_server_is_told_at_once() -> None:
    with Stub(lambda body, i: answer([1])) as stub:
        port = stub.port
    start = time.perf_counter()
    seen = measure(SimpleNamespace(base_url=f"http://127.0.0.1:{port}/v1", model="m"), asks(50))
    assert time.perf_counter() - start < 5
    assert seen.statuses == {"error": 50}
    assert "no connection" in seen.rows[0].error
    assert math.isnan(seen.wall)
    assert seen.table()
    assert seen.failure_rate == 1


def test_a_server_that_dies_in_mid_run() -> None:
    def script(body: dict, i: int) -> Answer:
        if i == 3:
            stub.die()
        return answer([1, 1], gap=0.05) if i < 3 else Answer([(0, chunk("a", [1]))], "hang")

    with Stub(script) as stub:
        seen = measure(stub, asks(8), mode="closed-loop", concurrency=1, timeout=20)
    assert seen.statuses == {"ok": 3, "error": 4, "cut": 1}


def test_interruption_returns_what_had_arrived() -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with Stub(lambda body, i: answer([1, 1]) if i < 3 else Answer([(0, chunk("a", [1]))], "hang")) as stub:
        seen = measure(stub, asks(6), mode="closed-loop", concurrency=2, progress=interrupt, timeout=60)
    assert seen.interrupted
    assert seen.statuses == {"ok": 3, "cut": 3}
    assert len(seen.rows) == 6
    assert {row.error for row in seen.failed} == {"interrupted", "interrupted (it was never sent)"}
    assert threading.active_count() < 5


def test_a_real_interrupt(root: Path) -> None:
    code = textwrap.dedent("""
        import os, signal, threading
        from labs.live.client import measure
        from tests.live.stub_server import Answer, Stub, answer, chunk
        from tests.live.test_client import asks
        def script(body, i):
            if i < 2:
                return answer([1, 1])
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            return Answer([(0, chunk("a", [1]))], "hang")
        with Stub(script) as stub:
            seen = measure(stub, asks(5), mode="closed-loop", concurrency=1, timeout=60)
        print(seen.interrupted, seen.statuses)
    """)
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("True {'ok': 2, 'cut': 3}", "")


def test_stopped_from_outside() -> None:
    stop = threading.Event()
    with Stub(lambda body, i: answer([1]) if i == 0 else Answer([(0, chunk("a", [1]))], "hang")) as stub:
        seen = asyncio.run(ameasure(stub, asks(2), stop=stop, progress=lambda done, total: stop.set()))
    assert seen.interrupted
    assert sorted(row.status for row in seen.rows) == ["cut", "ok"]


def test_measure_works_where_a_loop_already_runs() -> None:
    async def cell() -> Measurement:
        return measure(stub, asks(3))

    with Stub(lambda body, i: answer([1, 1])) as stub:
        assert asyncio.run(cell()).statuses == {"ok": 3}


def test_progress_counts_up_to_all() -> None:
    seen = []
    with Stub(lambda body, i: answer([1, 1])) as stub:
        measure(stub, asks(5), warm_up=2, progress=lambda *now: seen.append(now))
    assert seen[-1] == (5, 5)
    assert seen == sorted(seen)


def test_a_progress_bar_that_fails_costs_no_result() -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError("no bar")

    with Stub(lambda body, i: answer([1, 1])) as stub, pytest.warns(UserWarning, match="no bar"):
        assert measure(stub, asks(3), progress=fail).statuses == {"ok": 3}


# ---------------------------------------------------------------- the whole run in figures


def measurement(n: int = 200) -> Measurement:
    rows = tuple(
        Row(ask, i / 10, i / 10, i / 10 + 0.2, i / 10 + 0.5, i / 10 + 0.5,
            ((i / 10 + 0.2, 1), (i / 10 + 0.4, 2), (i / 10 + 0.5, 1)), 4, 5, "length")
        for i, ask in enumerate(asks(n, max_tokens=4))
    )  # fmt: skip
    return Measurement(rows, live.peak_in_flight(rows), rows[-1].done, mode="open-loop", engine="vllm", model="m")


def test_summary_and_table() -> None:
    seen = measurement()
    facts = seen.summary()
    assert (facts["engine"], facts["ok"], facts["output tokens"], facts["failure rate"]) == ("vllm", 200, 800, 0)
    assert facts["output tokens/s"] == pytest.approx(800 / seen.wall)
    lines = {line["measure"]: line for line in seen.table()}
    assert lines["TTFT"]["p99"] == pytest.approx(200)
    assert lines["ITL"]["n"] == 600
    assert lines["ITL"]["mean"] == pytest.approx(100)
    assert lines["TPOT"]["p50"] == pytest.approx(100)
    assert lines["normalised latency"]["mean"] == pytest.approx(125)
    assert seen.percentile("itl", 0.99) == pytest.approx(0.1)


def test_a_small_run_says_so_where_its_tail_would_stand() -> None:
    line = measurement(8).table()[0]
    assert line["p50"] == pytest.approx(200)
    assert (line["p95"], line["p99"]) == ("n too small to have a p95", "n too small to have a p99")


def test_f3_warm_up_and_drain_are_left_out_by_a_declared_window() -> None:
    inner = measurement().between(5.0, 15.0)
    assert len(inner.rows) == 100
    assert inner.wall == 10
    assert inner.summary()["requests/s"] == pytest.approx(10)


def test_simulated_is_said() -> None:
    assert replace(measurement(), simulated=True, engine="simulated").summary()["engine"] == "simulated"
    assert replace(measurement(), simulated=True, engine="url").summary()["engine"] == "url (simulated)"


def test_an_empty_run_has_no_figures() -> None:
    empty = Measurement(())
    assert math.isnan(empty.failure_rate)
    assert empty.table()[0]["p50"] == "n too small to have a p50"
    assert empty.summary()["requests"] == 0


# ---------------------------------------------------------------- beside the server's own figures


def scrape(n: int, scale: float = 1.0) -> dict[str, float]:
    means = {"time_to_first_token_seconds": (0.2, 200), "e2e_request_latency_seconds": (0.5, 200),
             "request_time_per_output_token_seconds": (0.1, 200),
             "inter_token_latency_seconds": (0.1, 600)}  # fmt: skip
    return {
        f"vllm:{name}_{part}": n * value
        for name, (mean, count) in means.items() for part, value in (("sum", scale * mean * count), ("count", count))
    }  # fmt: skip


def test_agreement_of_client_and_server() -> None:
    lines = {line.measure: line for line in agreement(measurement(), scrape(3), scrape(4))}
    assert set(lines) == {"TTFT", "ITL", "TPOT", "end to end"}
    for line in lines.values():
        assert line.difference == pytest.approx(0, abs=1e-9)
        assert line.client_n == line.server_n
        assert "not the same" not in line.words
        assert re.fullmatch(r"client [+-]0\.0% \([+-]0\.0 ms\)", line.words)


def test_agreement_takes_histograms_of_any_shape() -> None:
    name = "vllm:time_to_first_token_seconds"
    for after in ({"sum": 44.0, "count": 200}, SimpleNamespace(sum=44.0, count=200)):
        line = agreement(measurement(), {}, {name: after})[0]
        assert line.server == pytest.approx(0.22)
        assert line.difference == pytest.approx(0.2 / 0.22 - 1)


def test_agreement_knows_the_older_name_of_itl() -> None:
    old = {"vllm:time_per_output_token_seconds_sum": 60.0, "vllm:time_per_output_token_seconds_count": 600}
    line = agreement(measurement(), {}, old)[1]
    assert (line.measure, line.difference) == ("ITL", pytest.approx(0))


def test_agreement_says_when_it_cannot_be_told() -> None:
    missing, reset = agreement(measurement(), {}, {})[0], agreement(measurement(), scrape(4), scrape(1))[0]
    assert (missing.server, missing.difference) == (None, None)
    assert "has no vllm:time_to_first_token_seconds" in missing.words
    assert "started again" in reset.words
    others = agreement(measurement(), scrape(1), scrape(3))[0]
    assert "not the same requests" in others.words
    assert agreement(measurement(), scrape(1), scrape(1))[0].words == "one side has no values"


def test_names_of_other_tools() -> None:
    names = {name.ours: name for name in live.NAMES}
    assert names["normalised latency"].guidellm.startswith("time per output token")
    assert names["chunk gap"].vllm_bench_serve == "ITL"
    assert all(all(name) for name in live.NAMES)


def test_importing_the_client_loads_no_plotting_and_no_widgets(root: Path) -> None:
    code = "import sys, labs.live.client; print(*{'matplotlib', 'ipywidgets', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


def test_the_time_for_the_rest_of_an_answer_cuts_no_closing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx closes connections that were idle for too long while it reads an answer's end, under anyio's shield."""
    closed = []

    async def parts():
        yield b"data: [DONE]\n\n"
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(0.1)
            closed.append("the idle one")
        await asyncio.sleep(60)

    @asynccontextmanager
    async def create(**settings):
        yield SimpleNamespace(iter_bytes=parts)

    completions = SimpleNamespace(with_streaming_response=SimpleNamespace(create=create))
    monkeypatch.setattr(wire, "REST", 0.02)

    async def go() -> list:
        async with wire.open_stream(SimpleNamespace(completions=completions), "m", asks(1)[0], "ids") as stream:
            return [event async for event in stream]

    began = time.monotonic()
    assert asyncio.run(go()) == []
    assert closed == ["the idle one"]
    assert time.monotonic() - began < 30
