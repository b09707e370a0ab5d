"""The batched script as a baseline: its counts by hand, its faults in words, the real one against the prediction."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from labs.live.baseline import ENGINE, Baseline, Batch, run_batches
from labs.live.client import Ask, asks_from
from labs.live.diagnosis import ServerError
from labs.slots import static_batching
from labs.workload import Request
from tests.conformance.environment import vllm_python

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="starts a program by its #! line")
# What stands in for a Python with transformers: it is called as one, and generates as FAKE tells it to.
FAKE = """
import json, os, sys, time
order_file, result_file = sys.argv[-2:]
order, fake = json.loads(open(order_file).read()), json.loads(os.environ.get("FAKE", "{}"))
assert sys.argv[1] == "-P" and sys.argv[2].endswith("batched_script.py"), sys.argv
if words := fake.get("words"):
    print(words, flush=True)
if "fails" in fake and fake["fails"] == 0:
    sys.exit(1)
time.sleep(fake.get("late", 0))
with open(result_file, "a") as result:
    print(json.dumps({"transformers": "0", "order": order}), file=result, flush=True)
    at = 0.0
    for number, batch in enumerate(order["batches"], 1):
        wanted = [request["max_tokens"] for request in batch]
        steps = max(wanted)
        ends = [at + (i + 1) * 0.01 for i in range(steps)]
        prompts = [len(request["prompt"]) for request in batch]
        line = dict(started=at, ended=ends[-1], step_ends=ends, steps=steps + fake.get("miscounts", 0),
                    width=max(prompts), prompts=prompts, tokens=wanted, finish=["length"] * len(batch),
                    texts=["x"] * len(batch))
        print(json.dumps(line), file=result, flush=True)
        at = ends[-1]
        if fake.get("fails") == number:
            sys.exit(3)
        if fake.get("hangs") == number:
            print('{"half a', end="", file=result, flush=True)
            time.sleep(600)
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The stand-in, folders of its own, and a mark by which its processes are known; none may be left."""
    program = tmp_path / "python"
    (tmp_path / "fake.py").write_text(FAKE)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path / "fake.py"}" "$@"\n')
    program.chmod(0o755)
    made = tmp_path / "cache" / "models" / "tiny" / "config.json"
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LABS_TEST_MARK", mark := uuid.uuid4().hex)
    yield str(program)
    assert marked(mark) == []


def marked(mark: str) -> list[str]:
    """Processes that carry the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if folder.name != str(os.getpid()) and mark.encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


@pytest.fixture
def run(python: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Baseline]:
    """run_batches with the stand-in, which behaves as told."""

    def run(asks: list[Ask], fake: dict | None = None, **settings: object) -> Baseline:
        monkeypatch.setenv("FAKE", json.dumps(fake or {}))
        return run_batches(asks, **dict(python=python, batch_size=2, timeout=20.0) | settings)

    return run


def asks(*lengths: int, **settings: object) -> list[Ask]:
    """One ask for each length; each prompt is one token longer than the one before."""
    return [Ask(str(i), tuple(range(1, i + 2)), n, **settings) for i, n in enumerate(lengths)]


# ---------------------------------------------------------------- counts


@linux
def test_a_batch_takes_as_long_as_its_longest_and_what_is_computed_beyond_is_waste(run) -> None:
    seen = run(asks(3, 10, 5, 5, 2))
    assert [batch.steps for batch in seen.batches] == [10, 5, 2]
    assert seen.steps == 17 == static_batching([3, 10, 5, 5, 2], 2).steps
    assert [batch.wasted for batch in seen.batches] == [7, 0, 0]
    assert [batch.computed for batch in seen.batches] == [20, 10, 2]
    assert seen.waste == 7 / 32
    assert [batch.padding for batch in seen.batches] == [1, 1, 0]
    assert seen.gaps() == pytest.approx([0.01] * 14)


@linux
def test_the_rows_say_what_the_user_of_a_script_sees(run) -> None:
    seen = run(asks(3, 10, 5, 5, 2)).measurement
    assert [row.completion_tokens for row in seen.ok] == [3, 10, 5, 5, 2]
    assert [row.prompt_tokens for row in seen.ok] == [1, 2, 3, 4, 5]
    assert [row.e2e for row in seen.rows] == pytest.approx([0.1, 0.1, 0.15, 0.15, 0.17])
    assert seen.rows[0].normalised_latency == pytest.approx(0.1 / 3)
    assert all(math.isnan(row.ttft) and math.isnan(row.tpot) for row in seen.rows), "nothing comes before the end"
    assert (seen.engine, seen.model, seen.peak_in_flight, seen.wall) == (ENGINE, "tiny", 2, pytest.approx(0.17))
    summary = seen.summary()
    assert (summary["load"], summary["output tokens"], summary["ended early"]) == ("batches of 2", 25, 0)
    assert summary["output tokens/s"] == pytest.approx(25 / 0.17)
    assert [line["n"] for line in seen.table() if line["measure"] in ("TTFT", "TPOT", "end to end")] == [0, 0, 5]


@linux
def test_at_concurrency_1_each_request_comes_when_its_turn_comes(run) -> None:
    seen = run(asks(3, 10, 5), batch_size=1, closed_loop=True)
    assert [row.e2e for row in seen.measurement.rows] == pytest.approx([0.03, 0.1, 0.05])
    assert (seen.steps, seen.waste) == (18, 0)


@linux
def test_what_is_asked_of_the_script(run, tmp_path: Path) -> None:
    order = run([Ask("a", "hello", 4, chat=True, ignore_eos=False)]).about["order"]
    assert order["batches"] == [[{"prompt": "hello", "max_tokens": 4, "chat": True}]]
    assert (order["ignore_eos"], order["random_weights"]) == (False, True)
    assert order["model"] == str(tmp_path / "cache" / "models" / "tiny")
    other = tmp_path / "other"
    other.mkdir()
    order = run([Ask("a", (1, 2), 4)], model=str(other)).about["order"]
    assert order["batches"] == [[{"prompt": [1, 2], "max_tokens": 4, "chat": False}]]
    assert (order["ignore_eos"], order["random_weights"], order["model"]) == (True, False, str(other))


@linux
def test_progress_counts_requests(run) -> None:
    told = []
    run(asks(1, 1, 1), progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3, 3)
    assert told == sorted(set(told))


def test_a_batch_that_makes_no_sense_is_refused() -> None:
    good = dict(started=0.0, ended=1.0, step_ends=(0.5, 1.0), width=2, prompts=(1, 2), tokens=(1, 2),
                finish=("length", "stop"), texts=("a", "b"))  # fmt: skip
    assert Batch(**good).wasted == 1
    for wrong in ({"tokens": (1, 3)}, {"tokens": ()}, {"prompts": (1,)}, {"finish": ("stop",) * 3}, {"texts": ()}):
        with pytest.raises(ValueError, match="a batch needs"):
            Batch(**good | wrong)


# ---------------------------------------------------------------- faults


@linux
def test_a_script_that_cannot_run_says_why(run) -> None:
    words = "ModuleNotFoundError: No module named 'transformers'"
    with pytest.raises(ServerError, match="The script gave no answer: its environment is broken.*transformers") as told:
        run(asks(3), {"words": words, "fails": 0})
    assert told.value.log.read_text().strip() == words
    with pytest.raises(ServerError, match="its last words were: good night"):
        run(asks(3), {"words": "good night", "fails": 0})
    with pytest.raises(ServerError, match="it said nothing"):
        run(asks(3), {"fails": 0})


@linux
def test_a_python_that_is_not_there_is_told(run, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="The script gave no answer"):
        run(asks(3), python=str(tmp_path / "nowhere"))


def test_without_a_python_that_has_transformers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labs.live.engines.find", lambda kind, python=None: None)
    with pytest.raises(ServerError, match=r"No Python with transformers was found.*install"):
        run_batches(asks(3), batch_size=1)


@linux
def test_what_came_before_the_script_died_is_kept_and_the_rest_is_no_success(run) -> None:
    seen = run(asks(3, 10, 5, 5), {"fails": 1, "words": "CUDA out of memory"})
    assert [row.status for row in seen.measurement.rows] == ["ok", "ok", "error", "error"]
    assert "exit code 3: the GPU ran out of memory" in seen.measurement.rows[3].error
    assert (seen.steps, seen.measurement.failure_rate) == (10, 0.5)


@linux
def test_the_deadline_holds_and_what_came_before_it_is_kept(run) -> None:
    began = time.monotonic()
    seen = run(asks(3, 10, 5, 5), {"hangs": 1}, timeout=2.0)
    assert time.monotonic() - began < 15
    assert seen.measurement.statuses == {"ok": 2, "timeout": 2}
    with pytest.raises(ServerError, match="no answer after 1 s"):
        run(asks(3), {"late": 600}, timeout=1.0)


@linux
def test_an_interrupt_ends_the_script_and_keeps_what_had_come(run) -> None:
    def interrupt(done: int, total: int) -> None:
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()

    seen = run(asks(3, 10, 5, 5), {"hangs": 1}, progress=interrupt)
    assert seen.measurement.statuses == {"ok": 2, "cut": 2}
    assert seen.measurement.interrupted


@linux
def test_a_miscount_of_steps_is_no_result(run) -> None:
    with pytest.raises(ServerError, match="4 tokens a row in 3 steps"):
        run(asks(3), {"miscounts": 1})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([], "nothing to generate"),
        ([Ask("a", "x", 3), Ask("b", "y", 3, ignore_eos=False)], "not both"),
        (asks(3, temperature=0.5), "temperature 0"),
        (asks(3, stop="x"), "no stop strings"),
        (asks(3, extra={"min_tokens": 1}), "no extra"),
        (asks(0), "max_tokens of 1 or more"),
        ([Ask("a", "", 3)], "needs a prompt"),
    ],
)
def test_asks_that_it_cannot_serve_are_refused(wrong: list[Ask], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run_batches(wrong, batch_size=2)
    with pytest.raises(ValueError, match="a batch has 1 request or more"):
        run_batches(asks(3), batch_size=0)


# ---------------------------------------------------------------- the real one


@pytest.mark.vllm
@pytest.mark.slow
def test_the_real_script_takes_the_steps_that_static_batching_predicts(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LABS_CACHE", str(tmp_path))
    lengths = [5, 40, 8, 1, 20, 9]
    wanted = asks_from([Request(str(i), 3 + i, n) for i, n in enumerate(lengths)])
    seen = run_batches(wanted, "tiny", batch_size=4, python=vllm_python(), timeout=300)
    assert seen.steps == static_batching(lengths, 4).steps == 60
    assert [row.completion_tokens for row in seen.measurement.ok] == lengths
    assert {row.finish_reason for row in seen.measurement.rows} == {"length"}
    assert [batch.prompts for batch in seen.batches] == [(3, 4, 5, 6), (7, 8)]
    assert seen.waste == pytest.approx(1 - sum(lengths) / (4 * 40 + 2 * 20))
    assert (seen.gaps() > 0).all()
    assert seen.about["transformers"]
    assert seen.measurement.wall == max(row.done for row in seen.measurement.rows) >= seen.gaps().sum()
    natural = [Ask(str(i), (1, 2, 3 + i), 30, ignore_eos=False) for i in range(2)]
    seen = run_batches(natural, "tiny", batch_size=1, python=vllm_python(), timeout=300, closed_loop=True)
    assert [row.status for row in seen.measurement.rows] == ["ok", "ok"]
    for batch in seen.batches:
        assert batch.steps == batch.tokens[0] <= 30
        assert (batch.finish[0] == "length") is (batch.tokens[0] == 30)
