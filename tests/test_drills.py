"""The drills: each is what its settings give, can be solved from its dashboard, and a wrong fix is seen to fail."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import fast
from labs.drills import CAUSES, DRILLS, SYMPTOMS, Drill, Fix, Scenario, Stream, drill, simulate
from labs.drills.telemetry import SCRAPE, SERIES
from labs.drills.text import spaced
from labs.drills.traffic import HORIZON
from labs.engine import StepTime, run
from labs.gaps import token_gaps
from labs.metrics import percentile
from labs.quiz import of_the_page
from labs.scheduler import SchedulerConfig
from labs.workload import Request, lognormal_lengths, poisson_arrivals

every = pytest.mark.parametrize("d", DRILLS, ids=[d.id for d in DRILLS])
FIXES = [(d, fix) for d in DRILLS for fix in d.fixes]
each_fix = pytest.mark.parametrize(("d", "fix"), FIXES, ids=[f"{d.id}-{fix.key}" for d, fix in FIXES])
WANTED = {"sequence_cap", "memory", "token_budget", "blocked_head", "greedy_tenant", "client_batcher", "oversized",
          "misread_benchmark", "under_load", "thrashing", "prefix_flattery", "dead_engine"}
STEP_TIME = StepTime(8e-3, 1e-4, 4e-5)


# ---------------------------------------------------------------- the set


def test_there_are_at_least_twelve_and_each_kind_is_there():
    assert len(DRILLS) >= 12
    assert {d.cause for d in DRILLS} >= WANTED
    assert len({d.id for d in DRILLS}) == len({d.cause for d in DRILLS}) == len(DRILLS)


@every
def test_its_parts_are_complete(d):
    assert set(d.series) == set(SERIES)
    assert all(len(values) == len(d.dashboard.time) == HORIZON / SCRAPE for values in d.series.values())
    assert 4 <= len(d.causes) <= 5
    assert 4 <= len(d.fixes) <= 5
    assert drill(d.id) is d
    for text in (d.alarm, *(f.name for f in d.fixes)):
        assert text[0].isupper() or text[0].isdigit()
    for choice in (*d.fixes, *d.causes):
        assert len(choice.name) <= 62, "a radio button's text must fit on one line of a narrow notebook"
        assert "{" not in text


@every
def test_its_first_symptom_is_shared_with_a_drill_of_another_cause(d):
    assert d.symptom.holds(d.dashboard)
    others = [o for o in DRILLS if o.symptom is d.symptom and o.cause != d.cause and d.symptom.holds(o.dashboard)]
    assert others


@every
def test_the_alarm_alone_gives_nothing_away(d):
    """More than one of the causes on offer shows the same alarm, in this set of drills."""
    shown = {o.cause for o in DRILLS if d.symptom.holds(o.dashboard)}
    assert len(shown & set(d.offered)) >= 2 or len(shown) >= 2


@every
def test_exactly_one_cause_of_all_shows_its_sign_on_the_dashboard(d):
    """The rules see nothing but the dashboard, so it can be solved by looking."""
    assert [key for key, cause in CAUSES.items() if cause.holds(d.dashboard)] == [d.cause]


@every
def test_it_is_the_same_each_time(d):
    first = d.dashboard
    simulate.cache_clear()
    again = d.dashboard
    assert again is not first
    assert again.summary == first.summary or repr(again.summary) == repr(first.summary)  # NaN
    for name in SERIES:
        np.testing.assert_array_equal(again.series[name], first.series[name])


def test_another_seed_shows_the_same_cause():
    """The sign is of the cause, not of one draw of arrivals (those near a tipping point apart)."""
    for d in DRILLS:
        if d.cause in ("thrashing", "full_batch", "blocked_head"):
            continue
        shifted = replace(d.scenario, streams=tuple(replace(s, seed=s.seed + 100) for s in d.scenario.streams))
        assert CAUSES[d.cause].holds(simulate(shifted)), d.id


def test_the_notebook_counts_them_as_they_are(root):
    text = (root / "solutions/07_check_yourself.ipynb").read_text(encoding="utf-8")
    numbers = {12: "Twelve", 14: "Fourteen"}
    assert f"{numbers[len(DRILLS)]} incidents from" in text
    assert f"{numbers[len(of_the_page())]} questions." in text


# ---------------------------------------------------------------- marking


@every
def test_each_cause_is_marked_and_answered_with_the_dashboards_numbers(d):
    for cause in d.causes:
        said = d.name(cause.key)
        assert said.passed is (cause.key == d.cause)
        assert cause.sign in said.message
        assert any(c.isdigit() for c in said.message)
        assert said.message.startswith("Right." if said.passed else "The dashboard speaks against it.")
    with pytest.raises(ValueError, match="choose one of these causes"):
        d.name("the weather")


@each_fix
def test_a_fix_is_applied_and_does_what_is_said_of_it(d: Drill, fix: Fix):
    said = d.apply(fix.key)
    assert said.passed is fix.right
    assert fix.proof(d.dashboard.summary, said.dashboard.summary), said.message
    assert "{" not in said.message
    assert not re.search(r"\bnan\b", said.message)
    assert said.message.startswith("Mended." if fix.right else "Not mended.")
    assert not re.search(r"\d%", said.message)


@every
def test_no_fix_hides_in_the_others_and_an_unknown_one_is_refused(d):
    assert 1 <= sum(fix.right for fix in d.fixes) <= 2
    with pytest.raises(ValueError, match="choose one of these fixes"):
        d.apply("pray")


def test_a_proof_is_no_empty_promise():
    """Nearly all proofs tell a fix from no fix at all: they compare, they don't nod."""
    nods = [(d.id, fix.key) for d, fix in FIXES if fix.right
            and fix.proof(d.dashboard.summary, d.dashboard.summary)]
    assert nods == []


def test_a_drill_that_makes_no_sense_is_refused():
    d = DRILLS[0]
    with pytest.raises(ValueError, match="the cause must be among those offered"):
        replace(d, cause="dead_engine")
    with pytest.raises(ValueError, match="one that is right"):
        replace(d, fixes=d.fixes[:1])
    with pytest.raises(ValueError, match="there is no drill 'x'"):
        drill("x")
    assert spaced("7% of 100%") == "7 % of 100 %"


# ---------------------------------------------------------------- the simulation behind them


@given(st.integers(0, 10_000), st.sampled_from([16, 64, 512]), st.sampled_from([50, 70, 200]),
       st.sampled_from(["fcfs", "priority"]))
def test_token_gaps_are_those_between_the_tokens_in_the_records(seed, budget, blocks, policy):
    n = 30
    prompts, outputs = lognormal_lengths(n, 4, 1, seed), lognormal_lengths(n, 3.5, 1, seed + 1)
    arrivals = poisson_arrivals(n, 20, seed)
    requests = [Request(f"r{i}", int(min(prompts[i], 400)), int(min(outputs[i], 300)), float(arrivals[i]), i % 3)
                for i in range(n)]
    config = SchedulerConfig(12, budget, blocks, max_model_len=1024, policy=policy)
    aborts = [(float(arrivals[-1]) / 2, f"r{i}") for i in range(0, n, 7) if arrivals[i] <= arrivals[-1] / 2]
    trace = fast.trace(requests, config, STEP_TIME, None, aborts)
    got: Counter = Counter()
    for when, gap, many in zip(*token_gaps(trace), strict=True):
        got[round(float(when), 7), round(float(gap), 7)] += int(many)
    end, last, wanted = trace.series.time + trace.series.seconds, {}, Counter()
    for step, who in enumerate(fast.replay(trace)):
        for name in who.made:
            if name in last:
                wanted[round(float(end[step]), 7), round(float(end[step] - last[name]), 7)] += 1
            last[name] = end[step]
    assert got == wanted


CHAT = Stream("chat", rate=5, seed=3)
USUAL = SchedulerConfig(8, 512, 300, max_model_len=4096)


def test_the_gauges_are_the_engines_own():
    dashboard = simulate(Scenario((CHAT,), USUAL))
    requests = [s.request for s in Scenario((CHAT,), USUAL).sent()]
    records = run(requests, USUAL, STEP_TIME).records
    for now, running, waiting, usage in zip(dashboard.time, *(dashboard.series[n] for n in
                                                              ("running", "waiting", "kv_usage")), strict=True):
        there = [r for r in records if r.time <= now - 1e-9 and r.time + r.seconds >= now]
        assert (running, waiting) == ((len(there[-1].running), len(there[-1].waiting)) if there else (0, 0))
        assert usage == pytest.approx(there[-1].kv_usage if there else 0)


def test_the_summary_is_what_the_outcomes_say():
    summary = simulate(Scenario((CHAT,), USUAL)).summary
    outcomes = run([s.request for s in Scenario((CHAT,), USUAL).sent()], USUAL, STEP_TIME).outcomes.values()
    counted = [o for o in outcomes if o.request.arrival >= 20]
    ttft = [min(o.first_token, HORIZON) - o.request.arrival for o in counted]
    assert summary.ttft_p99 == pytest.approx(percentile(ttft, 0.99))
    assert summary.ttft_p50 == pytest.approx(percentile(ttft, 0.5))
    assert summary.unanswered == sum(not o.finish <= HORIZON for o in counted)


def test_behind_a_head_that_never_fits_everybody_waits_as_in_the_scheduler(monkeypatch):
    """The readable scheduler, told not to refuse it, does what the drill says vLLM does."""
    scenario = Scenario((CHAT,), USUAL, oversized_at=30, oversized_blocks=400)
    monkeypatch.setattr(SchedulerConfig, "refusal", lambda self, request: None)
    config = replace(USUAL, max_model_len=8192)
    requests = [s.request for s in scenario.sent() if s.request.arrival < 60]
    whole = [*requests, Request("huge", 6400, 10, arrival=30.0)]
    end = {r.request_id: 60.0 for r in whole}
    real = run(whole, config, STEP_TIME, aborts=end, readable=True)
    alone = simulate(scenario)
    for now in (29.0, 31.0, 40.0, 59.0):
        record = [r for r in real.records if r.time <= now][-1]
        place = int(np.searchsorted(alone.time, now))
        near = alone.series["running"][place - 1:place + 1]
        assert min(near) - 3 <= len(record.running) <= max(near) + 3
    last = [r for r in real.records if r.time < 59.9][-1]
    assert len(last.running) == 0
    assert last.waiting[0] == "huge"
    blocked = 1 + sum(30 <= r.arrival <= 59.9 for r in requests)
    assert len(last.waiting) == blocked
    at = int(np.searchsorted(alone.time, 58.0))
    assert alone.series["waiting"][at] == 1 + sum(30 <= r.arrival <= 58 for r in requests)


def test_what_hangs_stands_still_and_loses_what_it_had():
    whole, hung = simulate(Scenario((CHAT,), USUAL)), simulate(Scenario((CHAT,), USUAL, hang_at=60))
    before = hung.time < 60
    for name in ("running", "waiting", "kv_usage"):
        np.testing.assert_array_equal(hung.series[name][before], whole.series[name][before])
        assert len(set(hung.series[name][hung.time >= 60])) == 1
    assert hung.series["steps"][hung.time > 62].sum() == 0
    assert hung.summary.last_token < 60.02  # the step that was under way
    again = simulate(Scenario((CHAT,), USUAL, hang_at=60, restart_at=80))
    assert again.summary.last_token > 118
    assert whole.summary.unanswered < again.summary.unanswered < hung.summary.unanswered


def test_replicas_share_the_work_and_their_gauges_add_up():
    one, two = (simulate(Scenario((CHAT,), USUAL, replicas=n)) for n in (1, 2))
    assert two.cap == 2 * one.cap
    assert two.summary.tokens_per_second == pytest.approx(one.summary.tokens_per_second / 2, rel=0.05)


def test_a_closed_loop_keeps_as_many_in_flight_as_it_says():
    loop = Scenario((Stream("b", in_flight=3, output=50, tenants=1),), USUAL)
    assert set(simulate(loop).series["running"]) == {3}
    assert set(simulate(replace(loop, replicas=2)).series["running"]) == {3}
    with pytest.raises(ValueError, match="a closed loop of 9 needs"):
        simulate(Scenario((Stream("b", in_flight=9),), USUAL))


def test_clients_that_collect_send_in_groups():
    sent = Scenario((CHAT,), USUAL, collect=10).sent()
    for first in range(0, len(sent), 10):
        group = sent[first:first + 10]
        assert len({s.request.arrival for s in group}) == 1
        assert max(s.created for s in group) == group[0].request.arrival


def test_a_cached_prompt_is_computed_in_part_until_the_cache_no_longer_helps():
    stream = Stream("d", rate=5, prompt=1000, prompt_sigma=0, cached=0.9, cached_until=60)
    for s in Scenario((stream,), USUAL).sent():
        assert s.request.prompt_tokens / s.whole_prompt == pytest.approx(0.1 if s.created < 60 else 1, rel=0.02)


def test_a_gateway_lets_a_tenant_through_one_at_a_time():
    sent = Scenario((Stream("t", burst=10, spacing=4, start=5),), USUAL).sent()
    assert [s.request.arrival for s in sent] == [5 + 4 * i for i in range(10)]


@pytest.mark.parametrize(("wrong", "words"), [
    (lambda: Stream("x"), "give a rate, a burst or a number in flight"),
    (lambda: Stream("x", rate=1, burst=2), "only one of them"),
    (lambda: Stream("x", rate=1, cached=1.0), "cached is a share"),
    (lambda: Scenario((), USUAL), "at least one stream"),
    (lambda: Scenario((CHAT,), USUAL, replicas=0), "one replica"),
    (lambda: Scenario((CHAT, CHAT), USUAL), "a name of its own"),
    (lambda: Scenario((CHAT,), USUAL, oversized_at=3, oversized_blocks=200), "it isn't oversized"),
])
def test_settings_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


def test_symptoms_name_their_numbers():
    for d in DRILLS:
        assert any(c.isdigit() for c in d.alarm)
    assert {d.symptom.key for d in DRILLS} == set(SYMPTOMS)
    assert all(math.isfinite(d.dashboard.summary.client_ttft_p99) for d in DRILLS)
