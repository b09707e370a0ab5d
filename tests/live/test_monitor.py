"""The monitor: what a page says and what it doesn't, what limits a server, and a watch that always ends."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.engine import StepTime, run
from labs.live.monitor import (
    LIMITS,
    Caps,
    Histogram,
    Metrics,
    delta,
    diagnose,
    normalised_latency,
    read_metrics,
    watch,
)
from labs.scheduler import SchedulerConfig
from labs.workload import Request
from tests.live.simulated_server import CONFIG, Simulated, wait_for

SCRAPES = Path(__file__).parent / "scrapes"


def page(name: str) -> str:
    return (SCRAPES / f"{name}.txt").read_text(encoding="utf-8")


@cache
def read(name: str) -> Metrics:
    return read_metrics(page(name))


# ---------------------------------------------------------------- reading a page


def test_a_real_page_is_read() -> None:
    full, later = read("vllm-0.32-memory-full"), read("vllm-0.32-preempting")
    assert (full.running, full.waiting, full.kv_usage, full.preemptions) == (6, 18, 1.0, 0)
    assert full.waiting_by_reason == {"capacity": 18, "deferred": 0}
    assert (full.num_gpu_blocks, full.block_size, full.engines) == (33, 32, ("0",))
    assert later.waiting == 11
    change = delta(full, later)
    assert (change.preemptions, change.interval, change.reset) == (5, True, False)
    assert change.generation_tokens == later.generation_tokens - full.generation_tokens > 0
    assert change.steps == later.steps - full.steps > 0
    assert set(later.finished) == {"stop", "length", "abort", "error", "repetition"}
    for name in ("ttft", "itl", "tpot", "e2e", "queue_time", "prompt_lengths", "generation_lengths"):
        assert getattr(later, name).count == getattr(later, name).counts[-1]


def test_old_names_are_found() -> None:
    old = read("old-names")
    assert (old.running, old.waiting, old.kv_usage, old.preemptions) == (3, 5, 0.95, 7)
    assert (old.prefix_hits, old.prefix_queries, old.itl.count, old.itl.mean) == (30, 90, 1200, 0.01)
    assert (old.waiting_by_reason, old.iteration_tokens, old.steps, old.num_gpu_blocks) == (None, None, None, None)
    assert old.engines == ("0",)


def test_if_a_page_has_both_names_the_new_one_counts_once() -> None:
    both = read("both-names")
    assert (both.kv_usage, both.prefix_hits, both.itl.count) == (0.4, 31, 11)


def test_what_is_missing_is_not_0() -> None:
    neither = read("neither-name")
    assert neither.running == 3
    assert not neither.empty
    for name in ("waiting", "kv_usage", "preemptions", "waiting_by_reason", "itl", "finished", "steps"):
        assert getattr(neither, name) is None
    assert neither.kv_usage_by_engine == {}


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "process_open_fds 21.0\n",
                                  "<html><body>404 not found</body></html>"])  # fmt: skip
def test_a_page_without_vllms_metrics_is_empty(text: str) -> None:
    assert read_metrics(text) == Metrics()
    assert read_metrics(text).empty
    assert read("empty").empty


@pytest.mark.parametrize("text", ["vllm:num_requests_running{engine=", "vllm:num_requests_running x y z",
                                  'vllm:num_requests_running{engine="0"} many'])  # fmt: skip
def test_a_torn_page_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not the text of a /metrics page"):
        read_metrics(text)


def test_what_is_not_a_number_is_missing() -> None:
    odd = read("not-a-number")
    assert (odd.running, odd.waiting, odd.preemptions) == (3, None, None)
    assert (odd.kv_usage, odd.kv_usage_by_engine) == (0.3, {"1": 0.3})


@pytest.mark.parametrize("text", ["vllm:num_preemptions_total 3\n", "vllm:num_preemptions 3\n",
                                  "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total 3\n",
                                  "# TYPE vllm:num_preemptions counter\nvllm:num_preemptions_total 3\n",
                                  "# TYPE vllm:num_preemptions counter\nvllm:num_preemptions 3\n",
                                  "# TYPE vllm:num_preemptions_total counter\nvllm:num_preemptions_total 3\n"
                                  "vllm:num_preemptions_created 1e9\n"])  # fmt: skip
def test_a_counter_counts_with_total_or_without(text: str) -> None:
    assert read_metrics(text).preemptions == 3
    assert delta(read_metrics(text.replace(" 3", " 1")), read_metrics(text)).preemptions == 2


def test_several_engines_are_added_up_and_the_fullest_cache_counts() -> None:
    two = read("two-engines")
    assert (two.engines, two.running, two.waiting, two.preemptions) == (("0", "1"), 14, 2, 5)
    assert (two.kv_usage, two.kv_usage_by_engine) == (0.97, {"0": 0.97, "1": 0.6})
    assert two.waiting_by_reason == {"capacity": 2, "deferred": 0}
    assert two.e2e == Histogram((1.0, 2.0, math.inf), (15, 35, 50), 100.0, 50)


def test_ray_serves_names_and_replicas_are_understood() -> None:
    ray = read("ray-serve")
    assert (ray.running, ray.waiting, ray.kv_usage, ray.preemptions) == (3, 0, 0.5, 2)
    assert ray.kv_usage_by_engine == {"a1/w1": 0.5, "b2/w2": 0.25}


def test_of_only_some_names_the_rest_is_missing() -> None:
    text = page("vllm-0.32-preempting")
    some = read_metrics(text, only=("running", "preemptions"))
    assert (some.running, some.preemptions) == (read("vllm-0.32-preempting").running, 5)
    assert (some.waiting, some.itl) == (None, None)


# ---------------------------------------------------------------- between two pages


def test_a_server_that_began_anew_counts_from_0() -> None:
    change = delta(read("two-engines"), read("two-engines-reset"))
    assert change.reset
    assert change.preemptions == 3 + 1  # the first engine's since it began, the second's since the other page
    assert change.e2e == Histogram((1.0, 2.0, math.inf), (1, 3, 4), 6.0, 4)
    assert change.running == 14


def counts(preemptions: float, created: float | None = None) -> Metrics:
    made = "" if created is None else f"vllm:num_preemptions_created {created}\n"
    return read_metrics(f"vllm:num_preemptions_total {preemptions}\n{made}")


@pytest.mark.parametrize(("before", "after", "rose", "reset"), [
    (counts(3), counts(5), 2, False), (counts(3), counts(3), 0, False), (counts(3), counts(1), 1, True),
    (counts(3, 1e9), counts(5, 1e9), 2, False), (counts(3, 1e9), counts(5, 1.1e9), 5, True),
    (Metrics(), counts(5), None, False), (counts(3), Metrics(), None, False),
])  # fmt: skip
def test_a_delta_is_what_was_counted_between(before: Metrics, after: Metrics, rose: float, reset: bool) -> None:
    change = delta(before, after)
    assert (change.preemptions, change.reset) == (rose, reset)


def test_an_engine_that_has_come_counts_from_0() -> None:
    one = read_metrics('vllm:num_preemptions_total{engine="0"} 4\n')
    two = read_metrics('vllm:num_preemptions_total{engine="0"} 4\nvllm:num_preemptions_total{engine="1"} 2\n')
    assert (delta(one, two).preemptions, delta(one, two).reset) == (2, False)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12))
def test_deltas_add_up_through_any_restarts(seen: list[int]) -> None:
    pages = [counts(n) for n in seen]
    rose = sum(delta(a, b).preemptions for a, b in zip(pages, pages[1:], strict=False))
    assert rose == sum(b - a if b >= a else b for a, b in zip(seen, seen[1:], strict=False))


# ---------------------------------------------------------------- histograms and normalised latency


def test_quantiles_of_a_histogram() -> None:
    h = Histogram((1.0, 2.0, 4.0, math.inf), (10, 20, 20, 25), 50.0, 25)
    assert h.mean == 2.0
    assert (h.quantile(0.2), h.quantile(0.4), h.quantile(0.6), h.quantile(0.8)) == (0.5, 1.0, 1.5, 2.0)
    assert h.quantile(0.99) == 4.0  # beyond the last finite bound it can't be told
    assert (h.bracket(0.2), h.bracket(0.6), h.bracket(0.99)) == ((0.0, 1.0), (1.0, 2.0), (4.0, math.inf))
    with pytest.raises(ValueError, match="the 99th percentile is q=0.99"):
        h.quantile(99)


def test_without_values_there_is_no_quantile() -> None:
    for nothing in (Histogram((1.0, math.inf), (0, 0), 0.0, 0), Histogram((), (), 0.0, 0)):
        assert math.isnan(nothing.quantile(0.5))
        assert math.isnan(nothing.mean)


@given(st.lists(st.floats(0.0, 9.9), min_size=1, max_size=60), st.floats(0.0, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_value(values: list[float], q: float) -> None:
    bounds = (0.1, 1.0, 2.0, 5.0, 10.0, math.inf)
    h = Histogram(bounds, tuple(sum(v <= b for v in values) for b in bounds), sum(values), len(values))
    low, high = h.bracket(q)
    value = sorted(values)[max(0, math.ceil(q * len(values) - 1e-12) - 1)]
    assert low <= value <= high
    assert low <= h.quantile(q) <= high


def test_normalised_latency_is_all_seconds_over_all_tokens() -> None:
    assert normalised_latency(read("two-engines")) == 0.1
    assert normalised_latency(delta(read("two-engines"), read("two-engines-reset"))) == 0.1
    assert normalised_latency(read("old-names")) is None
    assert "weighted by tokens" in " ".join(normalised_latency.__doc__.split())


# ---------------------------------------------------------------- the table, row by row

CAPS = Caps(max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512, num_gpu_blocks=101, block_size=16)


def seen(running: float | None, waiting: float | None, kv: float | None = 0.3, *, preempted: float | None = 0,
         tokens: float = 20, **more: object) -> Metrics:
    """Two pages' worth of numbers."""
    return Metrics(running=running, waiting=waiting, kv_usage=kv, preemptions=preempted, interval=True,
                   engines=("0",), iteration_tokens=Histogram((), (), tokens * 10, 10), **more)  # fmt: skip


ROWS = {
    "at the cap, others wait, memory left": (seen(8, 3), "sequence cap", "Raise max_num_seqs"),
    "at the cap, others wait, memory full": (seen(8, 3, 0.96), "sequence cap", "Add a replica"),
    "at the cap, nobody waits": (seen(8, 0), "at the cap", "next request will wait"),
    "below the cap, others wait, memory full": (seen(5, 3, 0.97), "KV blocks", "more memory"),
    "preempting": (seen(5, 3, 0.97, preempted=4), "preemption", "Lower max_num_seqs"),
    "preempting, nobody waits": (seen(5, 0, 0.97, preempted=1), "preemption", "twice"),
    "below the cap, the budget spent": (seen(5, 3, tokens=480), "token budget", "max_num_batched_tokens"),
    "below the cap, room for any prompt": (seen(5, 3), "token budget", "Look again"),
    "below the cap, the head does not fit": (seen(5, 3, 0.8), "full-prompt gate", "long prompts"),
    "all deferred": (seen(5, 3, waiting_by_reason={"capacity": 0, "deferred": 3}), "deferred", "LoRA"),
    "some deferred, memory full": (seen(5, 3, 0.95, waiting_by_reason={"capacity": 2, "deferred": 1}), "KV blocks",
                                   "replica"),
    "nothing runs, others wait": (seen(0, 3, 0.0), "blocked head", "paused"),
    "below the cap, nobody waits": (seen(5, 0), "under-loaded", "headroom"),
    "nothing at all": (seen(0, 0, 0.0), "idle", "load"),
    "no answer": (None, "dead", "log"),
    "no number of waiting requests": (seen(3, None), "unknown", "names"),
    "no number of running requests": (seen(None, 0), "unknown", "names"),
    "an empty page": (Metrics(), "unknown", "address"),
    "no KV usage": (seen(5, 3, None), "unknown", "name"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_table(row: str) -> None:
    values, limit, advice = ROWS[row]
    found = diagnose(values, CAPS)
    assert found.limit == limit
    assert advice in found.what_to_do
    assert found.words.endswith(".")


def test_every_limit_has_its_row() -> None:
    assert {limit for _, limit, _ in ROWS.values()} == set(LIMITS)


def test_below_the_cap_with_requests_waiting_is_not_always_memory() -> None:
    found = {diagnose(values, CAPS).limit for values, *_ in ROWS.values() if values and values.waiting and
             values.running and values.running < 8}  # fmt: skip
    assert {"KV blocks", "token budget", "full-prompt gate", "deferred", "preemption"} <= found


def test_a_real_servers_pages_are_diagnosed() -> None:
    full, later = read("vllm-0.32-memory-full"), read("vllm-0.32-preempting")
    assert diagnose(full, {"max_num_seqs": 8}).limit == "KV blocks"
    assert diagnose(later, {"max_num_seqs": 8}, full).limit == "preemption"
    assert "Preempted 5 times" in diagnose(later, {"max_num_seqs": 8}, full).words


def test_caps_may_be_of_any_kind_and_may_be_missing() -> None:
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=512, num_gpu_blocks=101, max_model_len=512)
    for caps in (config, CAPS, vars(CAPS)):
        assert diagnose(seen(8, 3), caps).limit == "sequence cap"
    assert diagnose(seen(4, 3), replace(config, max_num_active_seqs=4)).limit == "sequence cap"
    assert diagnose(seen(8, 3), None).limit == "unknown"
    assert "Without max_num_seqs" in diagnose(seen(8, 3), None).words
    assert diagnose(seen(8, 3, 0.95), None).limit == "KV blocks"
    assert diagnose(seen(8, 0), None).limit == "under-loaded"


def test_the_cap_is_each_engines() -> None:
    two = read("two-engines")
    assert diagnose(two, Caps(max_num_seqs=7)).limit == "sequence cap"
    assert diagnose(two, Caps(max_num_seqs=8)).limit == "KV blocks"


def test_one_page_alone_shows_no_preemption() -> None:
    one = replace(seen(5, 3, 0.97, preempted=400), interval=False)
    assert diagnose(one, CAPS).limit == "KV blocks"


GROUPS = {"sequence cap": "cap", "KV blocks": "memory", "full-prompt gate": "memory", "preemption": "memory",
          "token budget": "budget"}  # fmt: skip


def test_the_diagnosis_agrees_with_what_bound_the_steps() -> None:
    found, rng = Counter(), random.Random(0)
    for _ in range(30):
        config = SchedulerConfig(rng.choice([4, 8, 16]), rng.choice([32, 128, 512]), rng.choice([33, 65, 200]),
                                 max_model_len=512)  # fmt: skip
        work = [Request(str(k), rng.randint(1, 300), rng.randint(1, 100), k * rng.choice([0, 1, 5]))
                for k in range(40)]  # fmt: skip
        for step in run(work, config).records:
            values = seen(len(step.running), len(step.waiting), step.kv_usage, preempted=len(step.preempted),
                          tokens=step.prefill_tokens + step.decode_tokens)  # fmt: skip
            if step.waiting:
                found[GROUPS[step.binding_limit] == GROUPS.get(diagnose(values, config).limit)] += 1
    assert found[True] / found.total() > 0.95


# ---------------------------------------------------------------- the simulated server's page


def test_the_simulated_servers_page_equals_what_it_did() -> None:
    config = replace(CONFIG, max_num_seqs=8, num_gpu_blocks=12)
    with Simulated(config) as server:
        server.ask("POST", "/pause?mode=keep")
        bodies = [{"prompt": [1] * (10 + i), "max_tokens": 40 + i, "ignore_eos": True} for i in range(12)]
        sent = []
        for body in bodies:
            sent.append(server.send("POST", "/v1/completions", body))
            wait_for(lambda: server.engine.waiting == len(sent))
        paused = read_metrics(server.ask("GET", "/metrics")[1])
        assert (paused.running, paused.waiting, paused.kv_usage) == (0, 12, 0)
        server.ask("POST", "/resume")
        assert [connection.getresponse().status for connection in sent] == [200] * 12
        done = read_metrics(server.ask("GET", "/metrics")[1])
        records = list(server.records)
    change = delta(paused, done)
    tokens = sum(body["max_tokens"] for body in bodies)
    assert (done.running, done.waiting, done.kv_usage, change.reset) == (0, 0, 0, False)
    assert change.preemptions == sum(len(r.preempted) for r in records) > 0
    assert change.generation_tokens == change.generation_lengths.sum == tokens
    assert change.prompt_tokens == change.prompt_lengths.sum == sum(len(body["prompt"]) for body in bodies)
    assert change.finished == {"stop": 0, "length": 12, "abort": 0, "error": 0, "repetition": 0}
    assert change.steps == sum(bool(r.made) for r in records)
    assert (change.ttft.count, change.e2e.count, change.queue_time.count) == (12, 12, 12)
    assert change.itl.count == tokens - 12
    assert change.itl.sum == pytest.approx(change.e2e.sum - change.ttft.sum)
    assert 0 < change.queue_time.sum < change.ttft.sum < change.e2e.sum
    assert (done.num_gpu_blocks, done.block_size) == (12, 16)
    assert normalised_latency(change) == pytest.approx(change.e2e.sum / tokens)


def test_the_simulated_server_has_the_names_that_vllm_has() -> None:
    with Simulated() as server:
        simulated = read_metrics(server.ask("GET", "/metrics")[1])
    real = read("vllm-0.32-preempting")
    assert {(s.name, s.part) for s in simulated.samples} == {(s.name, s.part) for s in real.samples}
    for name in ("iteration_tokens", "ttft", "itl", "tpot", "e2e", "queue_time"):
        assert getattr(simulated, name).bounds == getattr(real, name).bounds
    def labels(values: Metrics) -> set[tuple[str, str]]:
        return {(s.name, label) for s in values.samples for label, _ in s.source}

    assert labels(simulated) == labels(real)


# ---------------------------------------------------------------- watching


def test_a_watch_sees_the_load_come_and_go() -> None:
    with Simulated(replace(CONFIG, max_num_seqs=2), StepTime(0.01)) as server:
        with watch(server.root, every=0.05) as watching:
            wait_for(lambda: len(watching.series) > 1)
            sent = [server.send("POST", "/v1/completions", {"prompt": [1], "max_tokens": 40, "ignore_eos": True})
                    for _ in range(4)]  # fmt: skip
            assert [connection.getresponse().status for connection in sent] == [200] * 4
            wait_for(lambda: watching.series.running[-1] == 0)
            latest, change = watching.latest
            assert diagnose(latest, server.engine.scheduler.config, None).limit == "idle"
            assert change.interval
        series = watching.series
    assert not watching.alive
    assert (series.running.max(), series.waiting.max(), series.running[0], series.failed) == (2, 2, 0, 0)
    assert series.kv.max() > 0
    assert (np.diff(series.time) > 0).all()
    assert series.preemptions[-1] == 0


def test_a_watch_counts_preemptions_through_a_restart() -> None:
    pages = iter([3, 5, 1, 2])
    last = threading.Event()

    def fetch() -> str:
        n = next(pages, None)
        if n is None:
            last.set()
            raise OSError("gone")
        return f"vllm:num_requests_running 1\nvllm:num_preemptions_total {n}\n"

    watching = watch(fetch, every=0.05)
    assert last.wait(10)
    series = watching.stop()
    assert series.preemptions[:4].tolist() == [0, 2, 3, 4]
    assert (series.resets, np.isnan(series.waiting).all()) == (1, True)


def test_a_watch_survives_a_dead_server_and_sees_it_come_back() -> None:
    answers = iter(["vllm:num_requests_running 1\n", OSError("gone"), "<html>", "vllm:num_requests_running {", "x",
                    "vllm:num_requests_running 2\n"])  # fmt: skip

    def fetch() -> str:
        answer = next(answers, "vllm:num_requests_running 2\n")
        if isinstance(answer, Exception):
            raise answer
        return answer

    with watch(fetch, every=0.05) as watching:
        wait_for(lambda: len(watching.series) >= 6)
    series = watching.series
    assert series.running[[0, 5]].tolist() == [1, 2]
    assert np.isnan(series.running[1:5]).all()
    assert series.failed == 2  # the others came, and said nothing


def test_nothing_listens_and_the_watch_goes_on() -> None:
    with watch("http://127.0.0.1:9/v1", every=0.05) as watching:
        wait_for(lambda: len(watching.series) >= 2)
        assert watching.latest == (None, None)
        assert diagnose(watching.latest[0], CAPS).limit == "dead"
    assert watching.series.failed == len(watching.series)


def test_it_looks_no_more_than_20_times_a_second() -> None:
    with watch(lambda: "", every=0.0) as watching:
        time.sleep(0.5)
    assert len(watching.series) <= 11


def test_it_stops_even_if_the_server_hangs() -> None:
    release = threading.Event()

    def hang() -> str:
        release.wait(60)
        return "vllm:num_requests_running 1\n"

    watching = watch(hang, timeout=0.1)
    began = time.monotonic()
    series = watching.stop()
    assert time.monotonic() - began < 10
    assert (len(series), watching.alive) == (0, False)
    release.set()
    wait_for(lambda: not watching._thread.is_alive())
    assert len(watching.series) == 0


def test_it_ends_by_itself() -> None:
    watching = watch(lambda: "", every=0.05, at_most=0.1)
    wait_for(lambda: not watching.alive)
    assert len(watching.series) >= 1


@pytest.mark.parametrize(("server", "error"), [(3, TypeError), (None, TypeError)])
def test_what_can_not_be_watched_is_told_so(server: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="give a server, an address or a function"):
        watch(server)


def test_only_http_is_fetched() -> None:
    with watch("file:///etc", every=0.05) as watching:
        wait_for(lambda: len(watching.series) >= 1)
    assert watching.series.failed >= 1
