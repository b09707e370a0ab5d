"""What users see of a run, beside the records of the readable engine, token by token."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_fast import draw_config

from labs.engine import StepTime, run
from labs.metrics import percentile
from labs.scheduler import SchedulerConfig
from labs.serving import serve
from labs.workload import Request, lognormal_lengths, poisson_arrivals

GPU = StepTime(8e-3, 1e-4, 4e-5)


def gaps_by_records(requests, config, step_time) -> list[tuple[float, float]]:
    """(gap, when it ended), token by token."""
    last, gaps = {}, []
    for record in run(requests, config, step_time).records:
        end = record.time + record.seconds
        for name in record.made:
            if name in last:
                gaps.append((round(end - last[name], 7), round(end, 7)))
            last[name] = end
    return sorted(gaps)


def expand(served) -> list[tuple[float, float]]:
    assert (served.gap_counts >= 0).all()
    pairs = zip(served.gap_seconds, served.gap_counts, served.gap_times, strict=True)
    return sorted((round(float(g), 7), round(float(t), 7)) for g, n, t in pairs for _ in range(n))


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_every_gap_is_the_one_between_two_tokens(seed: int) -> None:
    rng = random.Random(seed)
    config = draw_config(rng)
    longest = config.max_model_len - 1
    requests = [Request(f"r{i}", rng.randint(1, longest), rng.randint(1, 40), 0.02 * rng.randint(0, 40),
                        rng.choice((0, 0, 1))) for i in range(rng.randint(1, 25))]
    step_time = StepTime(0.01, 0.001, 0.0001)
    try:
        served = serve(requests, config, step_time, max_steps=20_000)
    except RuntimeError:
        assume(False)  # two that preempt each other for ever: tests/test_fast.py holds that both paths do so
    wanted = np.array(gaps_by_records(requests, config, step_time)).reshape(-1, 2)
    np.testing.assert_allclose(np.array(expand(served)).reshape(-1, 2), wanted, atol=1e-6)


def test_preemption_and_lateness_are_among_the_cases_above() -> None:
    tight = SchedulerConfig(8, 256, 19, max_model_len=128)
    requests = [Request(f"r{i}", 30, 46 + i) for i in range(6)]
    served = serve(requests, tight, GPU)
    assert served.preemptions.sum() > 0
    assert len(expand(served)) == sum(r.output_tokens - 1 for r in requests)
    assert max(served.gap_seconds[served.gap_counts > 0]) > 3 * GPU(8, 0)  # the victim's own wait


def workload(n: int = 300, rate: float = 12) -> list[Request]:
    outputs, arrivals = lognormal_lengths(n, 4.2, 1.1, 0), poisson_arrivals(n, rate, 0)
    return [Request(f"r{i}", 200, int(o), float(a)) for i, (o, a) in enumerate(zip(outputs, arrivals, strict=True))]


def test_percentiles_and_times_are_those_of_the_outcomes() -> None:
    config = SchedulerConfig(16, 2048, 5000, max_model_len=4096)
    served, outcomes = serve(workload(), config, GPU), run(workload(), config, GPU).outcomes.values()
    gaps = [g for g, _ in gaps_by_records(workload(), config, GPU)]
    for q in (0, 0.5, 0.95, 0.99, 1):
        assert served.itl(q) == pytest.approx(percentile(gaps, q), abs=1e-6)
    for name in ("ttft", "tpot", "normalised_latency"):
        np.testing.assert_allclose(getattr(served, name), [getattr(o, name) for o in outcomes], rtol=1e-9)
    np.testing.assert_allclose(served.queueing, [o.scheduled - o.request.arrival for o in outcomes], atol=1e-12)
    assert served.ttft_at(0.99) == pytest.approx(percentile([o.ttft for o in outcomes][30:], 0.99))
    good = sum(o.ttft <= 0.5 and not o.tpot > 0.0105 for o in outcomes)
    assert served.goodput(0.5, 0.0105) == pytest.approx(good / served.seconds)
    assert 0 < good < 300


def test_requests_may_come_in_any_order_and_be_refused() -> None:
    config = SchedulerConfig(4, 256, 100, max_model_len=128)
    served = serve([Request("b", 10, 5, 1.0), Request("never", 200, 5, 0.5), Request("a", 10, 5, 0.0)], config, GPU)
    assert [r.request_id for r in served.requests] == ["a", "never", "b"]
    assert np.isnan(served.ttft).tolist() == [False, True, False]
    assert np.isnan(serve([Request("one", 10, 1)], config, GPU).itl(0.5))
    assert serve([], config, GPU).goodput(1, 1) == 0
