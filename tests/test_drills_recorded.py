"""The recorded drills: complete, solved by the rules that the drills teach, and mended by what mends on the server."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest

from labs import crossing
from labs.drills import CAUSES, DRILLS, REAL, simulate
from labs.drills.picture import draw
from labs.drills.recorded import FILE, SETTINGS, as_dict, of_run, recorded
from labs.drills.telemetry import SCRAPE, SERIES
from labs.drills.traffic import HORIZON

RUNS = {name: scenario for d in REAL for name, scenario in d.runs.items()}
every = pytest.mark.parametrize("name", RUNS)
each_drill = pytest.mark.parametrize("d", REAL, ids=[d.id for d in REAL])
FIXES = [(d, fix) for d in REAL for fix in d.fixes]
each_fix = pytest.mark.parametrize(("d", "fix"), FIXES, ids=[f"{d.id}-{fix.key}" for d, fix in FIXES])


@each_drill
def test_its_rule_and_no_other_holds_on_a_real_dashboard(d):
    assert [key for key, cause in CAUSES.items() if cause.holds(d.dashboard)] == [d.cause]
    assert d.symptom.holds(d.dashboard)
    assert d.cause in d.offered


@each_drill
def test_its_alarm_rings_in_a_drill_of_another_cause_too(d):
    assert {other.cause for other in DRILLS if other.symptom is d.symptom} - {d.cause}


@each_fix
def test_a_fix_did_on_the_real_server_what_is_said_of_it(d, fix):
    said = d.apply(fix.key)
    assert said.passed is fix.right, said.message
    assert fix.proof(d.dashboard.summary, said.dashboard.summary), said.message
    assert "nan" not in said.message


@each_fix
def test_the_engine_with_a_line_for_the_step_time_says_the_same_of_every_fix(d, fix):
    """Fitted on other runs of the same server (notebook 6), and no run of a drill: mended or not, as measured."""
    line = crossing.recorded_step_time()
    before, after = (simulate(replace(run, step_time=line)) for run in (d.scenario, fix.change(d.scenario)))
    assert d.symptom.holds(before)
    assert d.symptom.mended(before, after) is fix.right


@every
def test_it_says_where_it_comes_from_and_that_nothing_failed(name):
    dashboard, about = recorded(name)
    for what in ("engine", "date", "machine", "load", "flags"):
        assert about[what]
    assert about["failed"] == 0
    assert about["requests"] == len(RUNS[name].sent())
    for setting in SETTINGS:
        assert getattr(dashboard.config, setting) == getattr(RUNS[name].config, setting)
    assert f"--max-num-seqs {dashboard.config.max_num_seqs} " in about["flags"]
    assert f"--num-gpu-blocks-override {dashboard.config.num_gpu_blocks} " in about["flags"]


@every
def test_it_has_what_a_dashboard_has(name):
    dashboard, _ = recorded(name)
    assert set(dashboard.series) == set(SERIES)
    assert all(len(values) == HORIZON / SCRAPE for values in dashboard.series.values())
    assert dashboard.series["running"].max() <= dashboard.config.max_num_seqs
    assert 0 <= dashboard.series["kv_usage"].min() <= dashboard.series["kv_usage"].max() <= 1
    assert math.isnan(dashboard.summary.computed_again)
    picture = draw(dashboard, "recorded")
    assert "nan" not in picture.svg.replace("tenant", "")
    assert "nan" not in picture.alt.replace("tenant", "")


def test_it_can_be_stored_and_read_again():
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    assert set(kept) == set(RUNS)
    for name in RUNS:
        assert as_dict(recorded(name)[0]) == {key: kept[name][key] for key in ("config", "series", "summary")}
    with pytest.raises(ValueError, match="there is no recording 'x'"):
        recorded("x")


def test_a_run_becomes_a_dashboard_by_hand():
    """Two requests, one second apart, ten tokens a second each: every number can be checked by looking."""
    def row(scheduled, first, tokens, gap):
        gaps = np.full(tokens - 1, gap)
        return SimpleNamespace(scheduled=scheduled, first=first, done=first + gaps.sum(), ok=True, itl_gaps=gaps)

    rows = [row(30.0, 30.5, 11, 0.1), row(31.0, 33.0, 11, 0.1)]

    def page(running, waiting, steps):
        return SimpleNamespace(running=running, waiting=waiting, kv_usage=0.25, preemptions=float(steps >= 20),
                               iteration_tokens=SimpleNamespace(count=steps, sum=3 * steps))

    pages = [(2.0 * i, page(1.0, 0.0, 10 * i)) for i in range(61)]
    seen = of_run(REAL[0].scenario.config, rows, pages)
    assert set(seen.series["running"]) == {1}
    assert set(seen.series["tokens_per_step"]) == {3}
    assert seen.series["preemptions"].sum() == 1
    assert seen.summary.ttft_p50 == seen.summary.ttft_p99 == 2.0
    assert seen.summary.itl_p50 == pytest.approx(0.1)
    assert seen.summary.last_token == pytest.approx(34.0)
    assert seen.summary.unanswered == 0
    at = dict(zip(seen.time, seen.series["ttft_p50"], strict=True))
    assert at[32.0] == 0.5
    assert at[34.0] == 2.0  # sorted[int(0.5 * 2)]
    assert math.isnan(at[60.0])
    assert asdict(seen.summary)["tokens_per_second"] == pytest.approx(22 / 100)
