"""Notebook 06's situations: the workloads, the gateway, static groups on the engine, and a run over time."""

from __future__ import annotations

import numpy as np
import pytest

from labs.checks import EXERCISES
from labs.engine import StepTime, run
from labs.scheduler import SchedulerConfig
from labs.serving import serve
from labs.situations import behind_gateway, burst, chat, collected, first_time, in_groups, over_time, rising
from labs.workload import Request

GPU = StepTime(8e-3, 1e-4, 4e-5)
AMPLE = SchedulerConfig(64, 2048, 50_000, max_model_len=8192)


def test_chat_is_seeded_and_within_its_bounds() -> None:
    one = chat(500, rate=5, seed=3)
    assert one == chat(500, rate=5, seed=3) != chat(500, rate=5, seed=4)
    assert max(r.prompt_tokens for r in one) <= 3000 and max(r.output_tokens for r in one) <= 2000
    assert one[-1].arrival == pytest.approx(100, rel=0.2)


def test_the_load_rises_in_a_straight_line() -> None:
    arrivals = np.array([r.arrival for r in rising(400, 1, 9, seed=1)])
    assert len(arrivals) == 2000
    assert (np.diff(arrivals) >= 0).all() and arrivals[-1] <= 400
    counts = np.histogram(arrivals, bins=4, range=(0, 400))[0]
    np.testing.assert_allclose(counts, [200, 400, 600, 800], atol=60)
    with pytest.raises(ValueError, match="must rise"):
        rising(10, 5, 5)


def test_a_gateway_lets_no_more_than_its_limit_through() -> None:
    others, tenant = chat(60, rate=6, name="other"), burst(n=12, output=200, at=1.0)
    for limit in (1, 3, 12):
        served = behind_gateway(others, tenant, limit, AMPLE, GPU)
        own = [i for i, r in enumerate(served.requests) if r.request_id.startswith("tenant")]
        starts, ends = served.arrival[own], served.finish[own]
        inside = [int(((starts <= at) & (ends > at)).sum()) for at in starts]
        assert max(inside) == limit
    alone = [i for i, r in enumerate(served.requests) if r.request_id.startswith("tenant")]
    assert (served.arrival[alone] == 1.0).all()  # a limit of all of them holds nobody


def test_the_gateway_is_the_exercises_where_lengths_are_known() -> None:
    """One sequence more costs no time here, so each request is under way for as long as it has tokens."""
    step_time = StepTime(1.0)
    tenant = [Request(f"t{i}", 1, n, 0.0) for i, n in enumerate((5, 2, 4, 1))]
    served = behind_gateway([], tenant, 2, SchedulerConfig(8, 64, 1000), step_time)
    order = [r.request_id for r in served.requests]
    wanted = list(EXERCISES["let_through"].oracle([0, 0, 0, 0], [5, 2, 4, 1], 2))
    assert [served.arrival[order.index(f"t{i}")] for i in range(4)] == wanted


def test_a_client_that_collects_sends_when_the_window_closes() -> None:
    requests = [Request(f"r{i}", 5, 5, at) for i, at in enumerate((0.0, 0.01, 0.05, 0.06, 0.2))]
    assert [(r.request_id, r.arrival) for r in collected(requests, 0.05)] == [
        ("r0", 0.05), ("r1", 0.05), ("r2", 0.05), ("r3", 0.06 + 0.05), ("r4", 0.25)]
    assert collected(requests[::-1], 0.0) == requests
    milliseconds = [round(1000 * r.arrival) for r in requests]
    sent = EXERCISES["sent_at"].oracle(milliseconds, 50)
    assert [round(1000 * r.arrival) for r in collected(requests, 0.05)] == sent
    with pytest.raises(ValueError, match="0 seconds or more"):
        collected(requests, -1)


def test_static_groups_begin_when_the_one_before_is_done() -> None:
    requests = chat(50, rate=20)
    runs = in_groups(requests, 8, AMPLE, GPU)
    assert [r.request_id for one in runs for r in one.requests] == [r.request_id for r in requests]
    assert max(len(one.requests) for one in runs) == 8
    for before, after in zip(runs, runs[1:], strict=False):
        assert after.series.time[0] >= before.seconds
    backlog = in_groups([Request(f"r{i}", 1, n) for i, n in enumerate((3, 9, 4, 2))], 2, AMPLE, StepTime(1.0))
    assert [one.seconds for one in backlog] == [9, 13]


def test_windows_hold_what_the_records_say() -> None:
    requests, config = chat(200, rate=12, mu=5.2), SchedulerConfig(64, 2048, 900, max_model_len=8192)
    over, records = over_time(serve(requests, config, GPU), every=2.0), run(requests, config, GPU).records
    assert over.preemptions.sum() == sum(len(r.preempted) for r in records) > 0
    for i, start in enumerate(over.time):
        here = [r for r in records if start <= r.time < start + 2.0]
        assert over.running[i] == max((len(r.running) for r in here), default=0)
        assert over.waiting[i] == max((len(r.waiting) for r in here), default=0)
        assert over.kv_usage[i] == pytest.approx(max((r.kv_usage for r in here), default=0))
    assert np.isnan(over_time(serve([Request("a", 1, 1, 5.0)], config, GPU), every=2.0).ttft[:2]).all()


def test_an_alert_wants_its_windows_in_a_row() -> None:
    over = over_time(serve(chat(100, rate=12), AMPLE, GPU), every=1.0)
    assert first_time(over, "running", -1, hold=3) == 2.0
    assert first_time(over, "running", 10_000) == float("inf")
