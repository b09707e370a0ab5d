"""The fast path beside the readable one: every record, every outcome and every number must be the same."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labs import engine, fast
from labs.engine import Run, StepTime, run
from labs.scheduler import LIMITS, SchedulerConfig
from labs.workload import Request, poisson_arrivals

AMPLE = SchedulerConfig(256, 2048, 100_000)


@dataclass(frozen=True)
class Workload:
    """What `run` is given."""

    requests: Sequence[Request]
    config: SchedulerConfig
    step_time: StepTime | None = None
    stops: Mapping[str, int] = field(default_factory=dict)
    aborts: Mapping[str, float] = field(default_factory=dict)

    def run(self, readable: bool, max_steps: int = 20_000) -> Run:
        return run(self.requests, self.config, self.step_time, self.stops, self.aborts, False, max_steps, readable)


def draw_config(rng: random.Random) -> SchedulerConfig:
    """Settings that meet every rule: memory from too short to ample, both policies, thresholds, chunking on and off."""
    size, longest, seqs = rng.choice([1, 2, 4, 8, 16]), rng.choice([32, 64, 128, 256]), rng.choice([1, 2, 4, 8, 16])
    chunked, threshold = rng.random() < 0.75, rng.choice([0, 0, 0, 3, 8, 20])
    budget = max(seqs, rng.choice([seqs, seqs + 3, 16, 32, 64, 128]), 0 if chunked else longest)
    blocks = max(2, int(-(-longest // size) * rng.choice([0.5, 1, 1.2, 1.5, 2, 4, 30])) + 1)
    return SchedulerConfig(
        seqs, budget, blocks, size, longest, rng.choice(["fcfs", "fcfs", "priority"]), chunked, threshold,
        threshold > 0 and rng.random() < 0.4, rng.choice([None, None, None, max(1, seqs // 2)]), rng.random() < 0.7,
        rng.choice([0, 0, 0, 0.05, 0.2]),
    )  # fmt: skip


def draw(seed: int) -> Workload:
    """Requests that come together, in steps, between steps or after long gaps, and in seconds."""
    rng = random.Random(seed)
    config = draw_config(rng)
    step_time = rng.choice([None, None, StepTime(0.01, 0.001, 0.0001), StepTime(0.037, 0.0013, 0.00017)])
    unit, time, requests = 0.02 if step_time else 1.0, 0.0, []
    for i in range(rng.choice([0, 1, 2, 5, 10, 20, 40])):
        time += rng.choice([0, 0, 1, 3, 10, 0.5, 2.25, 100 if rng.random() < 0.3 else 1]) * unit
        prompt = min(rng.randint(1, rng.choice([4, 20, config.max_model_len + 1])), config.max_model_len + 1)
        output = rng.randint(1, rng.choice([3, 20, config.max_model_len]))
        arrival = time if rng.random() < 0.7 else 0.0
        requests.append(Request(f"r{rng.randint(0, 99):02d}-{i}", prompt, output, arrival, rng.choice([0, 0, 1, -1])))
    stops = {r.request_id: max(1, rng.randint(0, r.output_tokens + 1)) for r in requests if rng.random() < 0.3}
    aborts = {r.request_id: max(0, r.arrival + rng.randint(-3, 30) * unit) for r in requests if rng.random() < 0.1}
    return Workload(requests, config, step_time, stops, aborts)


def assert_same(workload: Workload) -> tuple[Run, Run]:
    """Both paths on one workload; return both runs."""
    slow, quick = workload.run(readable=True), workload.run(readable=False)
    assert isinstance(slow.records, list) and not isinstance(quick.records, list)
    for ours, theirs in zip(quick.records, slow.records, strict=True):
        assert ours == theirs
        assert (list(ours.prefill), list(ours.decode)) == (list(theirs.prefill), list(theirs.decode))
    for column in fields(fast.Series):
        ours, theirs = getattr(quick.series, column.name), getattr(slow.series, column.name)
        assert ours.dtype == theirs.dtype, column.name
        assert np.array_equal(ours, theirs), column.name
    assert list(quick.outcomes) == list(slow.outcomes) == [r.request_id for r in workload.requests]
    assert repr(quick.outcomes) == repr(slow.outcomes)  # NaN where it never came to that
    assert (quick.steps, quick.preemptions, quick.seconds) == (slow.steps, slow.preemptions, slow.seconds)
    assert quick == slow and slow == quick
    return slow, quick


def count(workload: Workload, slow: Run) -> Counter[str]:
    """Which rules a workload met."""
    hits: Counter[str] = Counter()
    hits.update(f"limit: {r.binding_limit}" for r in slow.records)
    hits.update(o.reason.partition(":")[0] for o in slow.outcomes.values())
    hits.update(f"{workload.config.policy}: preempted" for r in slow.records for _ in r.preempted)
    for before, after in pairwise(slow.records):
        present = {*before.running} - {*before.finished} & {*after.running}
        hits["went without a token"] += len(present - {*after.prefill, *after.decode})
        hits["recomputed up to one token"] += len({*before.prefill} & {*after.decode} - {*before.made})
        hits["idle gap"] += after.time > before.time + before.seconds
        hits["several prompts unfinished"] += len({*before.prefill} & {*after.prefill}) > 1
    hits["unfinished chunk"] += sum(bool({*r.prefill} - {*r.made}) for r in slow.records)
    hits["in seconds"] += workload.step_time is not None
    return hits


HITS: dict[int, Counter[str]] = {}  # by seed
WANTED = {f"limit: {name}" for name in LIMITS} | {"length", "stop", "abort", "refused", "in seconds", "idle gap"} | {
    "fcfs: preempted", "priority: preempted", "went without a token", "recomputed up to one token", "unfinished chunk",
    "several prompts unfinished"}  # fmt: skip


@pytest.mark.parametrize("block", range(8))
def test_random_workloads_give_the_same_records(block: int) -> None:
    for seed in range(block * 75, block * 75 + 75):
        workload = draw(seed)
        HITS[seed] = count(workload, assert_same(workload)[0])


@pytest.mark.parametrize("seed", [1024, 1081])
def test_a_victims_tokens_go_back_to_the_budget(seed: int) -> None:
    """Here a victim had its turn in that very step, and the last prompt in the list takes what that gives back."""
    assert_same(draw(seed))


def test_the_random_workloads_meet_every_rule() -> None:
    for seed in set(range(600)) - {*HITS}:  # where this test runs alone, or another worker had them
        workload = draw(seed)
        HITS[seed] = count(workload, workload.run(readable=True))
    hits = sum(HITS.values(), Counter())
    assert {what for what in WANTED if hits[what] < 20} == set()


LENGTHS = st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 12), st.integers(0, 2))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(LENGTHS, max_size=12), st.integers(1, 6), st.integers(0, 20), st.integers(2, 60), st.integers(1, 5),
    st.booleans(), st.integers(0, 5), st.sampled_from(["fcfs", "priority"]), st.booleans(),
)  # fmt: skip
def test_small_workloads_give_the_same_records(
    drawn: list[tuple[int, int, int, int]], seqs: int, more: int, blocks: int, size: int, gate: bool, threshold: int,
    policy: str, in_seconds: bool,
) -> None:  # fmt: skip
    config = SchedulerConfig(
        seqs, seqs + more, blocks, size, 64, policy, long_prefill_token_threshold=threshold,
        scheduler_reserve_full_isl=gate,
    )  # fmt: skip
    requests = [Request(f"r{i}", prompt, output, float(arrival), priority)
                for i, (prompt, output, arrival, priority) in enumerate(drawn)]  # fmt: skip
    assert_same_end(Workload(requests, config, StepTime(0.7, 0.01, 0.003) if in_seconds else None))


def assert_same_end(workload: Workload) -> None:
    """Both paths give the same, or, with the full-prompt gate off, both go round for ever: so does vLLM's scheduler."""
    ends = []
    for readable in (True, False):
        try:
            ends.append(workload.run(readable, max_steps=3000) and "done")
        except RuntimeError as error:
            ends.append(str(error))
    assert ends[0] == ends[1]
    if ends[0] == "done":
        assert_same(workload)
    else:
        assert "not done after 3,000 steps" in ends[0]
        assert not workload.config.scheduler_reserve_full_isl


def test_two_that_preempt_each_other_for_ever_do_so_on_both_paths() -> None:
    """Found by hypothesis: without the gate, what is admitted evicts what was admitted before it."""
    config = SchedulerConfig(5, 12, 30, 2, 64, "priority", long_prefill_token_threshold=2,
                             scheduler_reserve_full_isl=False)
    drawn = [(2, 28, 3, 1), (3, 13, 3, 2), (5, 14, 12, 0), (15, 29, 12, 1), (15, 29, 12, 1)]
    assert_same_end(Workload([Request(f"r{i}", *lengths, float(arrival), priority)
                              for i, (*lengths, arrival, priority) in enumerate(drawn)], config))
    with pytest.raises(RuntimeError, match="give it more KV blocks"):
        Workload([Request(f"r{i}", *lengths, float(arrival), priority)
                  for i, (*lengths, arrival, priority) in enumerate(drawn)], config).run(False, max_steps=3000)


# ---------------------------------------------------------------- corners


def requests_of(*lengths: tuple[int, int], arrivals: Sequence[float] | None = None) -> list[Request]:
    return [Request(f"r{i}", *pair, (arrivals or [0.0] * len(lengths))[i]) for i, pair in enumerate(lengths)]


CORNERS = {
    "nobody": Workload([], AMPLE),
    "one request": Workload(requests_of((100, 50)), AMPLE),
    "one token": Workload(requests_of((1, 1)), AMPLE),
    "two prompts that fill the budget": Workload(requests_of((2048, 3), (2048, 3)), replace(AMPLE, max_model_len=4096)),
    "more than the budget, token by token": Workload(requests_of((9, 3), (9, 3)), SchedulerConfig(1, 1, 100)),
    "decoding takes the whole budget": Workload(requests_of(*[(1, 9)] * 4), SchedulerConfig(2, 2, 100)),
    "idle gaps in steps": Workload(requests_of((5, 3), (5, 3), (5, 3), arrivals=[0, 40.5, 41]), AMPLE),
    "idle gaps in seconds": Workload(
        requests_of((5, 3), (5, 3), (5, 3), arrivals=[0, 40.5, 40.52]), AMPLE, StepTime(0.011)
    ),
    "the first comes late": Workload(requests_of((5, 3), arrivals=[7.3]), AMPLE),
    "all refused": Workload(requests_of((5000, 3), (6000, 3)), AMPLE),
    "refused in between": Workload(requests_of((5, 30), (5000, 3), (9, 9), arrivals=[0, 3, 5]), AMPLE),
    "ended by max_model_len": Workload(requests_of((2000, 500), (2047, 5), (2046, 5)), AMPLE),
    "a block a token": Workload(requests_of((5, 30), (9, 12)), SchedulerConfig(2, 32, 60, 1)),
    "exactly the blocks that one needs": Workload(requests_of((5, 28), (9, 24)), SchedulerConfig(2, 32, 3, 16)),
    "preempts itself": Workload(requests_of((30, 60), (30, 60)), SchedulerConfig(2, 64, 9, 16)),
    "stops at the first, a middle and the last token": Workload(
        requests_of((5, 9), (5, 9), (5, 9), (5, 9)), AMPLE, stops={"r0": 1, "r1": 4, "r2": 9, "r3": 10}
    ),
    "aborted before, on and after arrival, and too late": Workload(
        requests_of((5, 9), (5, 9), (5, 9), (5, 9), arrivals=[3] * 4), AMPLE,
        aborts={"r0": 1, "r1": 3, "r2": 6.5, "r3": 99},
    ),
    "aborted in the queue, with a prompt in chunks, and twice over": Workload(
        requests_of((50, 9), (50, 9), (5, 9)), SchedulerConfig(2, 16, 100), aborts={"r0": 1, "r1": 5, "r2": 2}
    ),
    "lengths from an array": Workload(
        [Request(f"r{i}", p, o, a) for i, (p, o, a) in enumerate(zip(*np.arange(1, 31).reshape(3, 10), strict=True))],
        AMPLE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_corners_give_the_same_records(name: str) -> None:
    assert_same(CORNERS[name])


def test_what_the_corners_come_to() -> None:
    assert CORNERS["nobody"].run(readable=False).seconds == 0.0
    assert CORNERS["one request"].run(readable=False).steps == 50
    stopped = CORNERS["stops at the first, a middle and the last token"].run(readable=False).outcomes
    assert [(o.reason, o.output_tokens) for o in stopped.values()] == [
        ("stop", 1), ("stop", 4), ("stop", 9), ("length", 9)
    ]  # fmt: skip
    aborted = CORNERS["aborted before, on and after arrival, and too late"].run(readable=False).outcomes
    assert [(o.reason, o.output_tokens, o.finish) for o in aborted.values()] == [
        ("abort", 0, 3.0), ("abort", 0, 3.0), ("abort", 4, 7.0), ("length", 9, 12.0)
    ]  # fmt: skip


@pytest.mark.parametrize("readable", [False, True])
def test_what_never_ends_is_said(readable: bool) -> None:
    with pytest.raises(RuntimeError, match="not done after 30 steps"):
        Workload(requests_of((5, 31)), AMPLE).run(readable, max_steps=30)
    assert Workload(requests_of((5, 30)), AMPLE).run(readable, max_steps=30).steps == 30
    with pytest.raises(ValueError, match="two requests have the same request_id"):
        run([Request("a", 1, 1), Request("a", 2, 2)], AMPLE, readable=readable)


@pytest.mark.parametrize("readable", [False, True])
def test_outcomes_come_in_the_order_of_the_requests(readable: bool) -> None:
    requests = requests_of((5, 3), (5, 3), (5, 3), arrivals=[9, 0, 4])
    assert list(run(requests, AMPLE, readable=readable).outcomes) == ["r0", "r1", "r2"]


# ---------------------------------------------------------------- measured by others, and long


def peers() -> list[Request]:
    """The workload on which other simulators were measured; vLLM takes 3,208 steps for it."""
    rng = random.Random(0)
    return [Request(f"r{i}", rng.randint(10, 300), min(1500, max(1, int(rng.lognormvariate(4.2, 1.1)))))
            for i in range(4000)]  # fmt: skip


def test_the_peers_workload_takes_as_many_steps_as_vllm() -> None:
    done = run(peers(), AMPLE)
    assert done.steps == 3208
    assert done.series.prefill_tokens.sum() == sum(r.prompt_tokens for r in peers())
    assert done.series.decode_tokens.sum() == sum(r.output_tokens - 1 for r in peers())


@pytest.mark.parametrize("blocks", [700, 1200, 100_000])
def test_many_running_give_the_same_records(blocks: int) -> None:
    arrivals = poisson_arrivals(500, 40.0, 1).tolist()
    requests = [replace(r, arrival=a) for r, a in zip(peers()[:500], arrivals, strict=True)]
    config, step_time = replace(AMPLE, max_num_seqs=64, num_gpu_blocks=blocks), StepTime(0.01, 0.0002, 0.00001)
    slow, quick = assert_same(Workload(requests, config, step_time))
    assert (slow.preemptions > 0) == (blocks < 10_000)
    assert quick.steps > 1000


def test_the_work_follows_the_events_not_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    advance = fast._Loop.advance

    def counted(loop: fast._Loop, most: int) -> None:
        calls["advance"] += 1
        advance(loop, most)

    monkeypatch.setattr(fast._Loop, "advance", counted)
    lengths, config = [(50, 3 + 7 * i) for i in range(40)], replace(AMPLE, max_num_seqs=8, max_model_len=1_000_000)
    steps, worked = [], []
    for times in (1, 10, 100):
        calls.clear()
        steps.append(run(requests_of(*((p, o * times) for p, o in lengths)), config).steps)
        worked.append(calls["advance"])
    assert steps[2] > 95 * steps[0] > 50_000
    assert max(worked) <= 3 * len(lengths)  # an admission, a first step and an end each, at most


# ---------------------------------------------------------------- which path, and records made when asked for


def test_tables_and_other_step_times_take_the_readable_path() -> None:
    requests = requests_of((40, 5), (20, 5))
    assert run(requests, AMPLE, tables=True).records[0].tables["r1"] == (4, 5)
    assert isinstance(run(requests, AMPLE, lambda decode, prefill: 0.5).records, list)
    assert not isinstance(run(requests, AMPLE, StepTime(0.5)).records, list)


def test_records_are_a_sequence() -> None:
    workload = Workload(requests_of(*[(9, 30)] * 5), SchedulerConfig(2, 16, 100))
    slow, quick = workload.run(readable=True), workload.run(readable=False)
    assert len(quick.records) == quick.steps > 50
    assert [quick.records[0], quick.records[7], quick.records[-1]] == [slow.records[i] for i in (0, 7, -1)]
    assert quick.records[7] is quick.records[7]
    assert (quick.records[3:20:4], quick.records[:0], quick.records[::-1]) == (
        slow.records[3:20:4], [], slow.records[::-1]
    )  # fmt: skip
    assert list(quick.records) == slow.records and quick.records == slow.records and quick.records != slow.records[1:]
    with pytest.raises(IndexError):
        quick.records[quick.steps]


def test_a_run_can_be_sent_to_another_process() -> None:
    for readable in (False, True):
        done = Workload(requests_of((9, 30), (5, 4)), AMPLE).run(readable)
        again = pickle.loads(pickle.dumps(done))
        assert again == done and again.series.binding_limit.tolist() == done.series.binding_limit.tolist()


def test_the_same_workload_gives_the_same_run() -> None:
    workload = draw(3)
    assert workload.run(False) == workload.run(False)
    assert engine.run(peers()[:50], AMPLE) != engine.run(peers()[:51], AMPLE)
