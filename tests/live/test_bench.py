"""Experiments on a bench: exact starts, lowered caps, what is recorded and replayed, and predictions beside runs."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from labs.engine import StepTime
from labs.live import bench, compare, pictures, recordings
from labs.live.bench import Bench, Run, gather, open_bench, second_server, wants_gpu_install
from labs.live.client import ameasure, asks_from, measure
from labs.live.measurement import Ask, Measurement, Row
from labs.live.recordings import Recording, load, save
from labs.live.server import ServerError, start
from labs.slots import continuous_batching, static_batching
from labs.workload import Request, lognormal_lengths

FAST = [0.002, 0.0001, 0.0]
LENGTHS = [min(60, int(n)) for n in lognormal_lengths(24, 2.6, 1.0, seed=3)]
BUDGETS = [16, 16, 32, 32, 64, 128, 256, 256]


def asks(lengths, prompt=16, seed=0):
    return asks_from([Request(f"r{i}", prompt, int(n)) for i, n in enumerate(lengths)], seed=seed)


@pytest.fixture(scope="module")
def live():
    """A bench on a simulated server with 32 slots and the switch."""
    with open_bench("simulated", slots=32, static=True, step_time=FAST) as found:
        yield found
    assert not found.server.alive()


@pytest.fixture(scope="module")
def runs(live) -> dict[str, Run]:
    """A few runs by both schedulers."""
    return {
        "continuous": live.run("continuous", asks(LENGTHS), mode="held", slots=4),
        "static": live.run("static", asks(LENGTHS), mode="held", slots=4, static=True),
        "alone": live.run("alone", asks([256]), mode="held"),
        "mixed": live.run("mixed", asks(BUDGETS), mode="held"),
        "open": live.run("open", asks(LENGTHS), mode="open-loop"),
    }


# ---------------------------------------------------------------- held starts, and the two switches


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("slots", [1, 3, 8, 32])
def test_the_steps_are_the_slot_simulations(live: Bench, static: bool, slots: int) -> None:
    run = live.run("any", asks(LENGTHS[:12]), mode="held", slots=slots, static=static)
    schedule = (static_batching if static else continuous_batching)(LENGTHS[:12], slots)
    assert run.steps == schedule.steps == compare.predicted(run).steps
    assert (run.held, run.static, run.slots) == (True, static, slots)
    assert run.lengths == LENGTHS[:12]


def page(steps: int, ended: int | None) -> str:
    """A /metrics page with so many steps, and so many requests that have ended (None: it doesn't count them)."""
    text = f"# TYPE vllm:iteration_tokens_total histogram\nvllm:iteration_tokens_total_bucket{{le=\"+Inf\"}} {steps}\n"
    text += f"vllm:iteration_tokens_total_sum {steps}\nvllm:iteration_tokens_total_count {steps}\n"
    if ended is not None:
        text += f'# TYPE vllm:request_success counter\nvllm:request_success_total{{finished_reason="length"}} {ended}\n'
    return text


@pytest.mark.parametrize(("pages", "expected"), [
    ([(7, 0), (7, 0), (7, 0), (9, 2), (9, 2)], 9),  # the last steps are written late
    ([(7, 0), (9, 1), (9, 2), (9, 2)], 9),
    ([(7, None), (9, None), (9, None)], 9),  # it can't be told better
])
def test_counters_that_stand_still_are_not_at_rest_before_all_have_ended(monkeypatch, pages, expected: int) -> None:
    monkeypatch.setattr(bench.time, "sleep", lambda seconds: None)
    shown = iter([page(*each) for each in pages])
    server = SimpleNamespace(metrics=lambda: next(shown))
    assert Bench(server, 8, {}).counted(ended=2).steps == expected


def test_counters_of_a_server_that_lost_a_request_are_read_in_the_end(monkeypatch) -> None:
    monkeypatch.setattr(bench, "AT_REST", 0.6)
    assert Bench(SimpleNamespace(metrics=lambda: page(7, 1)), 8, {}).counted(ended=2).steps == 7


def test_times_of_a_held_run_count_from_where_it_was_let_go(runs) -> None:
    rows = runs["continuous"].measurement.rows
    assert all(row.ok and row.sent == row.scheduled == 0.0 for row in rows)
    assert min(row.first for row in rows) > 0
    assert [row.ask.request_id for row in rows] == [f"r{i}" for i in range(24)]
    for row in rows:
        assert row.first <= row.last <= row.done
        assert (np.diff([time for time, _ in row.chunks]) >= 0).all()


def test_a_held_run_that_is_interrupted_leaves_the_server_running(live: Bench) -> None:
    stop = threading.Event()
    threading.Timer(0.03, stop.set).start()
    found = asyncio.run(ameasure(live.server, asks([5] * 30), mode="held", stop=stop))
    with warnings.catch_warnings():  # what it left open is collected here, not in some later test
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    assert found.interrupted
    assert not any(row.ok and math.isnan(row.done) for row in found.rows)
    assert live.server.request("GET", "/is_paused").json() == {"is_paused": False}
    assert all(row.ok for row in measure(live.server, asks([3, 3])).rows)


def test_a_cap_can_be_lowered_and_raised_again(live: Bench) -> None:
    steps = [live.run("any", asks([20] * 6), mode="held", slots=slots).steps for slots in (2, None, 4)]
    assert steps == [60, 20, 40]
    with pytest.raises(ServerError, match="1 slot or more"):
        live.server.set_slots(0)
    answer = live.server.request("POST", "/labs/static", {"on": False, "slots": True})
    assert answer.status == 400


def test_a_server_without_the_switch_says_so() -> None:
    with start("simulated") as server:
        assert not server.switchable
        for change in (lambda: server.set_static(True), lambda: server.set_slots(2)):
            with pytest.raises(ServerError, match="always batches continuously"):
                change()
        at_url = open_bench(server.root_url, slots=None, api_key=server.api_key)
        with pytest.raises(ServerError, match="was not recorded"):
            at_url.run("static", asks([3]), static=True)


# ---------------------------------------------------------------- who answered is always said


def test_a_simulated_server_says_so_everywhere(live: Bench, runs) -> None:
    assert "SIMULATED" in repr(live)
    assert "SIMULATED" in str(live.about())
    assert all("SIMULATED" in run.source for run in runs.values())
    for shown in (pictures.spans({"a": runs["mixed"]}), pictures.gaps([runs["static"], runs["continuous"]]),
                  pictures.over_prediction([runs["static"], runs["continuous"]], StepTime(*FAST))):
        assert "SIMULATED" in shown.alt


def test_a_simulated_server_at_a_url_says_so(live: Bench) -> None:
    other = open_bench(live.server.base_url, api_key=live.server.api_key)
    assert "(SIMULATED)" in other.source
    other.close()
    assert live.server.alive()  # it was not ours to stop


def test_where_no_server_can_be_had_the_recording_answers_and_says_so(runs, tmp_path: Path) -> None:
    kept = save(tmp_path / "some.json", {"mixed": runs["mixed"]}, "a test").runs
    replayed = load(tmp_path / "some.json").runs
    found = open_bench("http://127.0.0.1:9", recorded=replayed)
    assert not found.live
    assert "does not answer" in found.trouble
    assert repr(found).startswith("No server: ")
    run = found.run("mixed", asks(BUDGETS), mode="held", slots=4)
    assert run.source.startswith("recorded 20")
    assert run.lengths == kept["mixed"].lengths
    assert gather(found) == {}
    with pytest.raises(ServerError, match="'other' was not recorded"):
        found.run("other", asks(BUDGETS))
    with pytest.raises(ServerError, match="does not answer"):
        open_bench("http://127.0.0.1:9")


def test_the_script_and_a_cache_come_from_the_recording_where_there_is_no_vllm(live: Bench, runs) -> None:
    other = Bench(live.server, 32, {"script": runs["mixed"], "cache": runs["mixed"]})
    assert other.script("script", asks([3]), 8) is runs["mixed"]
    assert other.run("cache", asks([3]), caching=True) is runs["mixed"]
    assert second_server(live) == {}


def test_nothing_is_installed_but_on_colab_with_a_gpu(monkeypatch) -> None:
    gpu = "Tesla T4, 7.5, 15360, 15000, 580.82\n"
    monkeypatch.setattr(bench, "nvidia_smi", lambda: gpu)
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    assert not wants_gpu_install()
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release")
    assert wants_gpu_install()
    assert not wants_gpu_install("simulated")
    monkeypatch.setattr(bench, "nvidia_smi", lambda: None)
    assert not wants_gpu_install()


# ---------------------------------------------------------------- seconds


def test_every_step_of_a_held_run_is_timed(runs) -> None:
    run = runs["continuous"]
    schedule = compare.predicted(run)
    ends = compare.step_ends(run, schedule)
    assert len(ends) == run.steps
    assert (np.diff(ends) >= 0).all()
    assert ends[-1] <= run.measurement.wall
    for row, done in zip(run.measurement.rows, schedule.done, strict=True):
        assert ends[done - 1] <= row.last + 1e-9


def test_batches_are_those_of_the_schedule() -> None:
    schedule = continuous_batching([3, 1, 2], 2)
    decode, admitted = compare.batches(schedule)
    assert admitted.tolist() == [2, 1, 0]
    assert decode.tolist() == [0, 1, 2]
    assert (decode + admitted).sum() == 6
    assert compare.prefill_tokens(schedule, [7, 5, 9]).tolist() == [12, 9, 0]


def made_of(step_time: StepTime, lengths, slots, static=False) -> Run:
    """A run whose every token comes exactly when the model says."""
    schedule = (static_batching if static else continuous_batching)(lengths, slots)
    ends = compare.predicted_ends(schedule, [16] * len(lengths), step_time)
    rows = []
    for i, (n, begun) in enumerate(zip(lengths, schedule.start, strict=True)):
        chunks = tuple((float(ends[begun + k]), 1) for k in range(n))
        first, last = chunks[0][0], chunks[-1][0]
        rows.append(Row(Ask(f"r{i}", (1,) * 16, n), 0.0, 0.0, first, last, last, chunks, n, 16))
    measurement = Measurement(tuple(rows), slots, float(ends[-1]), "", "held", "made", "none")
    return Run("made", measurement, "made", slots, static, float(schedule.steps))


@pytest.mark.parametrize("static", [False, True])
def test_the_fit_finds_the_model_that_made_the_times(static: bool) -> None:
    true = StepTime(0.009, 0.0005, 0.0)
    fitted = compare.fit_runs([made_of(true, [300], 1), made_of(true, [300] * 8, 8), made_of(true, BUDGETS, 8)])
    assert fitted.step_time.base == pytest.approx(true.base, rel=0.01)
    assert fitted.step_time.per_sequence == pytest.approx(true.per_sequence, rel=0.01)
    run = made_of(true, LENGTHS * 4, 4, static)
    assert compare.seconds(run, fitted.step_time).off == pytest.approx(0, abs=0.01)


def test_a_busy_moment_does_not_spoil_the_fit() -> None:
    true = StepTime(0.009, 0.0005, 0.0)
    run = made_of(true, [300] * 8, 8)
    rows = run.measurement.rows
    late = tuple(replace(row, chunks=tuple((t + 2.0 * (t > 1.0), n) for t, n in row.chunks)) for row in rows)
    spoilt = replace(run, measurement=replace(run.measurement, rows=late))
    fitted = compare.fit_runs([made_of(true, [300], 1), spoilt, made_of(true, BUDGETS, 8)])
    assert fitted.step_time.base == pytest.approx(true.base, rel=0.05)


def test_a_failed_request_can_not_be_timed(runs) -> None:
    run = runs["mixed"]
    rows = (replace(run.measurement.rows[0], status="cut"), *run.measurement.rows[1:])
    with pytest.raises(ValueError, match="a request failed"):
        compare.step_ends(replace(run, measurement=replace(run.measurement, rows=rows)), compare.predicted(run))


def test_median_itl_by_the_model_is_that_of_a_run_with_such_steps() -> None:
    """With everybody there at once it is what a run with the same step times has."""
    step_time = StepTime(0.009, 0.0005, 0.0)
    for static in (False, True):
        run = made_of(step_time, LENGTHS, 4, static)
        requests = [Request(f"r{i}", 16, n) for i, n in enumerate(LENGTHS)]
        median = run.measurement.percentile("itl", 0.5)
        assert compare.median_itl(requests, 4, step_time, static) == pytest.approx(median)
    assert math.isnan(compare.median_itl([Request("one", 5, 1)], 4, step_time, False))


def test_typical_itl_heeds_neither_bursts_nor_a_busy_moment() -> None:
    run = made_of(StepTime(0.010), [160] * 8, 8)

    def with_times(change) -> Run:
        rows = [replace(row, chunks=tuple((change(k, t), n) for k, (t, n) in enumerate(row.chunks)))
                for row in run.measurement.rows]
        return replace(run, measurement=replace(run.measurement, rows=tuple(rows)))

    in_fours = with_times(lambda k, t: t if k == 0 else 0.01 + 0.04 * ((k + 3) // 4))
    stalled = with_times(lambda k, t: t + 3.0 * (k > 100))
    assert compare.typical_itl(run) == pytest.approx(0.01)
    assert compare.typical_itl(in_fours) == pytest.approx(0.01)
    assert compare.typical_itl(stalled) == pytest.approx(0.01)
    assert np.median(in_fours.measurement.gaps()) < 0.001
    assert compare.smooth_gaps(stalled).sum() == pytest.approx(stalled.measurement.gaps().sum())


def test_company_is_counted_over_tokens() -> None:
    assert compare.company(static_batching([1, 3], 2)) == (2 + 2 + 1 + 1) / 4
    assert compare.company(continuous_batching([7, 7, 7], 1)) == 1


def test_static_has_the_longer_itl_between_two_loads() -> None:
    step_time = StepTime(0.0084, 0.00055, 0.00002)
    lengths = [min(512, int(n)) for n in lognormal_lengths(400, 4.2, 1.1, 0)]
    at = {}
    for rate in (0.5, 4.0, 100.0):
        requests = compare.arriving(lengths, 16, rate, seed=0)
        at[rate] = [compare.median_itl(requests, 32, step_time, static) for static in (True, False)]
    assert at[0.5][0] <= at[0.5][1]
    assert at[4.0][0] > 1.1 * at[4.0][1]
    assert at[100.0][0] < 0.9 * at[100.0][1]


# ---------------------------------------------------------------- the page's observations


def test_the_pages_observations_hold_where_times_are_exact() -> None:
    true = StepTime(0.009, 0.0005, 0.0)
    mixed, alone = made_of(true, BUDGETS, 8), made_of(true, [256], 1)
    found = compare.observations(mixed.measurement, alone.measurement.wall)
    assert [o.holds for o in found] == [True, True, True, True, False]


@pytest.mark.parametrize("broken", range(4))
def test_each_observation_can_fail(broken: int) -> None:
    rows = list(made_of(StepTime(0.01), BUDGETS, 8).measurement.rows)
    wall = rows[-1].done
    if broken in (0, 1):  # all are returned with the longest: a static server's answers
        rows = [replace(row, done=wall) for row in rows]
    if broken == 2:
        rows[0] = replace(rows[0], done=rows[0].done * 2.5)
    if broken == 3:
        wall = sum(row.done for row in rows)
    found = compare.observations(Measurement(tuple(rows), wall=wall), wall)
    assert not found[broken].holds


# ---------------------------------------------------------------- recordings


def test_a_recording_gives_back_what_was_kept(runs, tmp_path: Path) -> None:
    made = save(tmp_path / "r.json", runs, "a test", more="facts")
    again = load(tmp_path / "r.json")
    assert again.about == made.about
    assert again.about["more"] == "facts"
    assert list(again.runs) == list(runs)
    for name, run in runs.items():
        other = again.runs[name]
        assert other.source == f"recorded {made.about['made']}: {run.source}"
        assert (other.steps, other.slots, other.static) == (run.steps, run.slots, run.static)
        assert other.lengths == run.lengths
        assert np.array(other.waiting) == pytest.approx(np.array(run.waiting), nan_ok=True)
        for before, after in zip(run.measurement.rows, other.measurement.rows, strict=True):
            assert after.ask.prompt == before.ask.prompt
            assert [n for _, n in after.chunks] == [n for _, n in before.chunks]
            assert [t for t, _ in after.chunks] == pytest.approx([t for t, _ in before.chunks], abs=2e-4)
            for name in ("first", "last", "done"):
                assert getattr(after, name) == pytest.approx(getattr(before, name), abs=2e-4)
            for name in ("status", "finish_reason", "text"):
                assert getattr(after, name) == getattr(before, name)
        assert other.measurement.gaps().mean() == pytest.approx(run.measurement.gaps().mean(), rel=0.01)
    save(tmp_path / "r.json", runs, "once more")  # over an old one
    assert load(tmp_path / "r.json").about["command"] == "once more"


def test_failures_are_kept_as_failures(tmp_path: Path) -> None:
    rows = (Row(Ask("a", "text", 9), 0.0, 0.1, status="refused", error="HTTP 503: full"),
            Row(Ask("b", (1, 2), 9), 0.0, 0.1, 0.2, 0.3, math.nan, ((0.2, 1), (0.3, None)), None, status="cut"))
    run = Run("bad", Measurement(rows, 2, math.nan), "a server")
    save(tmp_path / "bad.json", {"bad": run}, "a test")
    found = load(tmp_path / "bad.json").runs["bad"]
    assert [row.status for row in found.measurement.rows] == ["refused", "cut"]
    assert found.measurement.ok == []
    assert math.isnan(found.measurement.wall)
    assert found.measurement.rows[1].chunks[1] == (pytest.approx(0.3), None)
    assert (found.slots, found.measurement.rows[1].completion_tokens) == (None, None)


OURS = '{"format": "continuous-batching recording 1", '


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', "no json", OURS + '"about": {}, "runs": {}}',
                                  OURS + '"about": {"made": 1}, "runs": {"a": 1}}'])
def test_a_file_that_is_no_recording_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"^x\.json is not a recording: "):
        load(tmp_path / "x.json")


def test_a_missing_recording_names_those_that_are_there() -> None:
    with pytest.raises(ValueError, match=r"there is no recording nowhere\.json: there is .*vllm-cpu"):
        load("nowhere")


def test_nothing_and_what_was_replayed_are_not_recorded(runs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run to record"):
        save(tmp_path / "r.json", {}, "a test")
    replayed = {"a": replace(runs["mixed"], source="recorded 2026-01-01: x")}
    with pytest.raises(ValueError, match="replayed can't be recorded anew"):
        save(tmp_path / "r.json", replayed, "a test")
    with pytest.raises(ValueError, match="command is missing"):
        Recording({"made": "today", "machine": "this"}, runs)


# ---------------------------------------------------------------- the course's own recording


@pytest.fixture(scope="module")
def own() -> Recording:
    return load("vllm-cpu")


def test_the_courses_recording_is_of_a_real_vllm_and_says_when_and_where(own: Recording) -> None:
    assert {"made", "machine", "command"} <= set(own.about)
    assert "vllm-cpu 0.32.0" in own.about["server"]
    assert all(not run.measurement.simulated for run in own.runs.values())
    assert {run.measurement.model for run in own.runs.values()} == {"tiny", "SmolLM2-135M-Instruct"}
    assert all(row.ok for run in own.runs.values() for row in run.measurement.rows)
    text = (recordings.FOLDER / "vllm-cpu.json").read_text()
    assert "/root" not in text and "/tmp" not in text
    assert json.loads(text)["format"] == recordings.FORMAT


def test_every_exact_start_in_it_took_the_predicted_steps(own: Recording) -> None:
    held = {name: run for name, run in own.runs.items() if run.held}
    assert len(held) >= 10
    assert {name: int(run.steps) for name, run in held.items()} == {
        name: compare.predicted(run).steps for name, run in held.items()}
    assert (held["backlog continuous"].steps, held["backlog static"].steps) == (1169, 2646)


def test_an_interrupted_start_is_one_sentence(monkeypatch) -> None:
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "start", interrupted)
    said: list = []
    with pytest.raises(KeyboardInterrupt) as raised:
        open_bench("simulated", say=said.append, recorded={"a run": None})
    assert raised.value._render_traceback_() == [
        "Interrupted: no server was started, and nothing of it is left. Run this cell again."]
    assert said == ["interrupted"] and raised.value.__suppress_context__
