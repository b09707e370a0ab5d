"""Where lengths and arrivals come from: the page's stream bit for bit, the distributions, and a reader's own log."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import PEAK_MEMORY, lognormal_by_loop, one_sentence

from labs import workload
from labs.workload import (
    MEASURED,
    Request,
    bursty_arrivals,
    fit_lognormal,
    fixed_lengths,
    geometric_lengths,
    lognormal_lengths,
    measured,
    measured_lengths,
    poisson_arrivals,
    read_lengths,
    read_metrics_lengths,
    uniform_lengths,
)

NAN, INF = math.nan, math.inf


def refused(function, *args, named: str, **kwargs) -> None:
    """Fail unless the call raises a ValueError of one sentence that names what to change."""
    with pytest.raises(ValueError) as caught:
        function(*args, **kwargs)
    one_sentence(caught.value, named)


# ---- requests -------------------------------------------------------------------------------------------------------

def test_a_request_keeps_what_it_is_given() -> None:
    request = Request("a", 5, 7)
    assert (request.request_id, request.prompt_tokens, request.output_tokens) == ("a", 5, 7)
    assert (request.arrival, request.priority) == (0.0, 0)
    assert Request("shortest", 1, 1).output_tokens == 1
    with pytest.raises(FrozenInstanceError):
        request.arrival = 3.0
    assert Request("a", 5, 7, 1.5, -1) == Request("a", np.int64(5), 7, arrival=1.5, priority=-1)


@pytest.mark.parametrize(("named", "changed"), [
    *(("prompt_tokens", {"prompt_tokens": value}) for value in (0, -1, 2.5, NAN, INF, "5", None)),
    *(("output_tokens", {"output_tokens": value}) for value in (0, -1, 2.5, NAN, INF, "7", None)),
    *(("arrival", {"arrival": value}) for value in (-0.1, NAN, INF, "now", None)),
])
def test_a_request_that_cannot_be_is_refused(named: str, changed: dict) -> None:
    refused(Request, **{"request_id": "a", "prompt_tokens": 5, "output_tokens": 7, **changed}, named=named)


# ---- the page's lengths ---------------------------------------------------------------------------------------------

def test_the_eight_requests_of_the_page() -> None:
    assert workload.EIGHT_LENGTHS == (12, 15, 20, 31, 44, 60, 800, 950)
    assert workload.EIGHT_NAMES == ("A", "B", "C", "D", "E", "F", "G", "H")


@given(n=st.integers(1, 300), mu=st.floats(-3, 8), sigma=st.floats(0, 1.3), seed=st.integers(0, 2**64))
def test_lognormal_is_pythons_stream_bit_for_bit(n: int, mu: float, sigma: float, seed: int) -> None:
    assert lognormal_lengths(n, mu, sigma, seed).tolist() == lognormal_by_loop(n, mu, sigma, seed)


@pytest.mark.parametrize(("n", "mu", "sigma", "seed"), [
    (200_000, 4.2, 1.1, 0), (100_000, 4.2, 0.1, 1), (100_000, 9.0, 1.3, 2), (100_000, 0.0, 2.0, 3), (1, 4.2, 1.1, 4),
])
def test_lognormal_is_pythons_stream_for_many_requests(n: int, mu: float, sigma: float, seed: int) -> None:
    assert lognormal_lengths(n, mu, sigma, seed).tolist() == lognormal_by_loop(n, mu, sigma, seed)


def test_a_length_beside_a_whole_number_is_floored_as_python_floors_it() -> None:
    """exp(log(k)) lies just above or below k: the last bit decides, and numpy's may differ from Python's."""
    for k in range(1, 400):
        assert lognormal_lengths(3, math.log(k), 0.0, 0).tolist() == lognormal_by_loop(3, math.log(k), 0.0, 0)


def test_lognormal_at_sigma_0_is_one_length() -> None:
    assert set(lognormal_lengths(50, 4.2, 0.0, 9).tolist()) == {int(math.exp(4.2))}
    assert lognormal_lengths(1, 4.2, 0, 9).tolist() == [66]
    assert lognormal_lengths(2, -5.0, 0.0, 1).tolist() == [1, 1]


def test_golden_draws() -> None:
    """The same seed gives the same workload on every machine."""
    assert lognormal_lengths(6, 4.2, 1.1, 0).tolist() == [54, 69, 143, 59, 315, 12]
    assert uniform_lengths(6, 1, 100, 0).tolist() == [86, 64, 52, 27, 31, 5]
    assert geometric_lengths(6, 50, 0).tolist() == [34, 51, 1, 1, 28, 81]
    assert measured_lengths("azure_conv_2023", 6, 0).tolist() == [212, 87, 38, 21, 403, 428]
    assert poisson_arrivals(4, 0.5, 0).tolist() == pytest.approx([4.94251, 6.707736, 8.074593, 9.56133])
    assert bursty_arrivals(4, 0.5, 3.0, 0).tolist() == pytest.approx([6.289985, 8.730697, 8.730697, 9.735801])


@pytest.mark.parametrize("draw", [
    lambda seed: lognormal_lengths(50, 4.2, 1.1, seed), lambda seed: uniform_lengths(50, 1, 99, seed),
    lambda seed: geometric_lengths(50, 60, seed), lambda seed: measured_lengths("sharegpt_8k", 50, seed),
    lambda seed: poisson_arrivals(50, 1.0, seed), lambda seed: bursty_arrivals(50, 1.0, 2.0, seed),
])
def test_the_seed_alone_decides(draw) -> None:
    first = draw(3)
    np.random.default_rng(3).random(10)
    assert draw(3).tolist() == first.tolist()
    assert draw(4).tolist() != first.tolist()


# ---- other distributions --------------------------------------------------------------------------------------------

def test_uniform_lengths_are_even_from_low_to_high() -> None:
    lengths = uniform_lengths(60_000, 5, 10, 0)
    assert sorted(Counter(lengths.tolist())) == [5, 6, 7, 8, 9, 10]
    assert np.bincount(lengths)[5:] == pytest.approx(10_000, rel=0.05)
    assert set(uniform_lengths(10, 7, 7, 0)) == {7}


def test_fixed_lengths_are_all_the_same() -> None:
    assert fixed_lengths(3, 256).tolist() == [256, 256, 256]


def test_geometric_lengths_stop_with_the_same_chance_after_each_token() -> None:
    lengths = geometric_lengths(200_000, 20, 0)
    assert lengths.min() == 1
    assert lengths.mean() == pytest.approx(20, rel=0.02)
    assert lengths.std() == pytest.approx(math.sqrt(20 * 19), rel=0.02)
    for made in (0, 5, 40):  # of those that made so many tokens, 1 in 20 stops at the next
        assert (lengths == made + 1).sum() / (lengths > made).sum() == pytest.approx(1 / 20, rel=0.1)
    assert set(geometric_lengths(20, 1, 0)) == {1}
    assert geometric_lengths(1, workload.LONGEST, 0) > 1000


def test_a_fit_finds_mu_and_sigma_again() -> None:
    mu, sigma = fit_lognormal(lognormal_lengths(200_000, 6.0, 0.8, 0))
    assert (mu, sigma) == pytest.approx((6.0, 0.8), abs=0.01)
    assert fit_lognormal([8, 8]) == pytest.approx((math.log(8), 0))
    assert fit_lognormal([1, math.e**2]) == pytest.approx((1, 1))


@pytest.mark.parametrize("lengths", [[], [5, 0], [NAN], [-3]])
def test_a_fit_of_nothing_is_refused(lengths: list) -> None:
    refused(fit_lognormal, lengths, named="length")


DRAWS = [
    lambda n: lognormal_lengths(n, 4.2, 1.1, 0), lambda n: uniform_lengths(n, 1, 9, 0), lambda n: fixed_lengths(n, 9),
    lambda n: geometric_lengths(n, 9, 0), lambda n: measured_lengths("sharegpt_8k", n, 0),
    *(lambda n, cv=cv: bursty_arrivals(n, 1.0, cv, 0) for cv in (0, 2)), lambda n: poisson_arrivals(n, 1.0, 0),
    lambda n: read_metrics_lengths(metrics_page({"1": 5}), n).lengths,
]


@pytest.mark.parametrize("n", [0, -1, 2.5, NAN, INF, "5", None])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_number_of_requests_that_is_none_is_refused(draw, n) -> None:
    refused(draw, n, named="n must be")


@pytest.mark.parametrize("draw", DRAWS)
def test_one_request_can_be_drawn_and_a_whole_float_will_do(draw) -> None:
    assert len(draw(1)) == 1
    assert draw(3.0).tolist() == draw(3).tolist()


@pytest.mark.parametrize(("function", "args", "named"), [
    (lognormal_lengths, (5, NAN, 1.1, 0), "mu"),
    (lognormal_lengths, (5, INF, 1.1, 0), "mu"),
    (lognormal_lengths, (5, "4", 1.1, 0), "mu"),
    (lognormal_lengths, (5, 4.2, -0.1, 0), "sigma"),
    (lognormal_lengths, (5, 4.2, NAN, 0), "sigma"),
    (lognormal_lengths, (5, 4.2, None, 0), "sigma"),
    (lognormal_lengths, (5, 40.0, 1.1, 0), "mu and sigma"),
    (lognormal_lengths, (500, 4.2, 9.0, 0), "mu and sigma"),
    (uniform_lengths, (5, 0, 9, 0), "low"),
    (uniform_lengths, (5, 1.5, 9, 0), "low"),
    (uniform_lengths, (5, 10, 9, 0), "high"),
    (uniform_lengths, (5, 1, NAN, 0), "high"),
    (fixed_lengths, (5, 0), "length"),
    (fixed_lengths, (5, 0.5), "length"),
    (geometric_lengths, (5, 0.5, 0), "mean"),
    (geometric_lengths, (5, NAN, 0), "mean"),
    (measured_lengths, ("gpt", 5, 0), "azure_code_2023"),
    (measured_lengths, ("sharegpt_8k", 5, 0, "input"), "input"),
    (poisson_arrivals, (5, 0, 0), "rate"),
    (poisson_arrivals, (5, -1, 0), "rate"),
    (poisson_arrivals, (5, NAN, 0), "rate"),
    (poisson_arrivals, (5, INF, 0), "rate"),
    (bursty_arrivals, (5, 1.0, -1, 0), "cv"),
    (bursty_arrivals, (5, 1.0, NAN, 0), "cv"),
    (bursty_arrivals, (5, 1.0, 31, 0), "cv"),
])
def test_settings_that_cannot_be_are_refused(function, args: tuple, named: str) -> None:
    refused(function, *args, named=named)


def test_the_longest_length_that_may_be_drawn() -> None:
    assert workload.LONGEST == 10_000_000
    assert lognormal_lengths(1, math.log(9_999_999.5), 0.0, 0).tolist() == [9_999_999]
    top = math.log(workload.LONGEST)
    assert lognormal_lengths(1, top, 0.0, 0).tolist() == lognormal_by_loop(1, top, 0.0, 0)
    refused(lognormal_lengths, 1, math.log(10_000_100), 0.0, 0, named="10,000,000")


# ---- measured -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.parametrize("column", ["output", "prompt"])
def test_measured_lengths_have_the_logs_quantiles(name: str, column: str) -> None:
    facts = measured(name, column).facts
    lengths = measured_lengths(name, 200_000, 1, column)
    assert lengths.min() >= 1
    assert lengths.max() <= int(facts[f"{column}_max"])
    for label, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert np.quantile(lengths, q) == pytest.approx(float(facts[f"{column}_{label}"]), rel=0.06, abs=1)


def test_measured_quantiles_go_from_the_shortest_to_the_longest() -> None:
    source = measured("azure_code_2023")
    assert (source.share[0], source.share[-1]) == (0, 1)
    assert (source.tokens[0], source.tokens[-1]) == (6, 1899)
    assert (np.diff(source.share) > 0).all()
    assert (np.diff(source.tokens) >= 0).all()
    assert measured_lengths("azure_code_2023", 20_000, 0).min() == 6


def test_each_measured_workload_is_credited_and_has_its_own_row() -> None:
    assert len(MEASURED) == len(set(MEASURED)) == 7
    for name in MEASURED:
        source = measured(name)
        assert source.facts["dataset"] == source.name == name
        assert any(licence in source.credit for licence in ("CC-BY 4.0", "Apache-2.0", "MIT"))
        assert "/" in source.credit.split(",")[0]  # the repository
        assert source.title
    with (workload.DATA / "workload_summary.csv").open(newline="") as file:
        assert sorted(row["dataset"] for row in csv.DictReader(file)) == sorted(MEASURED)


def test_what_is_shown_of_a_workload_or_log_is_short(write) -> None:
    for shown in (repr(measured("sharegpt_8k")), repr(read_lengths(write("output_tokens\n" + "5\n7\n" * 5000)))):
        assert len(shown) < 400
    with pytest.raises(FrozenInstanceError):
        measured("sharegpt_8k").name = "mine"


def test_prompts_and_outputs_are_told_apart() -> None:
    prompt, output = (measured_lengths("azure_code_2023", 1000, 0, column) for column in ("prompt", "output"))
    assert np.median(prompt) > 50 * np.median(output)


# ---- arrivals -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("cv", [0, 0.5, 1.0, 3.0])
def test_arrivals_have_the_rate_and_the_spread_asked_for(cv: float) -> None:
    arrivals = bursty_arrivals(100_000, 4.0, cv, 0)
    gaps = np.diff(arrivals, prepend=0.0)
    assert (gaps >= 0).all()
    assert len(arrivals) == 100_000
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_poisson_gaps_are_exponential_and_its_counts_vary_like_their_mean() -> None:
    arrivals = poisson_arrivals(200_000, 2.0, 1)
    assert arrivals.tolist() == bursty_arrivals(200_000, 2.0, 1.0, 1).tolist()
    gaps = np.diff(arrivals)
    for t in (0.1, 0.5, 1.5):
        assert (gaps > t).mean() == pytest.approx(math.exp(-2 * t), rel=0.03)
    counts = np.bincount((arrivals / 10).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.1)


def test_clockwork_arrives_on_the_beat() -> None:
    assert bursty_arrivals(4, 0.5, 0, 7).tolist() == [2, 4, 6, 8]
    assert bursty_arrivals(4, 0.5, 1e-200, 7).tolist() == [2, 4, 6, 8]
    assert bursty_arrivals(1000, 1.0, 30, 0)[-1] > 0


@pytest.mark.parametrize("lengths", [
    geometric_lengths(20_000, 200, 3), uniform_lengths(20_000, 1, 400, 3), lognormal_lengths(20_000, 4.2, 1.1, 3),
    measured_lengths("azure_conv_2023", 20_000, 3),
])
@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_arrivals_know_nothing_of_lengths_drawn_with_the_same_seed(lengths: np.ndarray, cv: float) -> None:
    gaps = np.diff(bursty_arrivals(20_000, 1.0, cv, 3), prepend=0.0)
    ranks = [np.argsort(np.argsort(values)) for values in (gaps, lengths)]
    assert abs(np.corrcoef(ranks)[0, 1]) < 0.03


# ---- your own log: what is read -------------------------------------------------------------------------------------

@pytest.fixture
def write(tmp_path: Path):
    """Write text or bytes to a file and return its path."""
    def write(content: str | bytes, name: str = "log.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path
    return write


@pytest.mark.parametrize(("content", "lengths"), [
    ("output_tokens\n5\n7\n", [5, 7]),
    ("output_tokens\n5\n7", [5, 7]),  # no line end at the end
    ("id,output_tokens,model\na,5,x\nb,7,y\n", [5, 7]),
    ("id, output_tokens ,model\r\na, 5 ,x\r\nb,7.0,y\r\n", [5, 7]),
    ("\ufeffoutput_tokens\n5\n7\n", [5, 7]),
    ('"output_tokens","prompt"\n"5","Hello, you"\n7,"two\nlines, ""quoted"""\n', [5, 7]),
    ("output_tokens\n5\n\n\n7\n\n", [5, 7]),
    ("id,output_tokens\na,5\nb,\nc,0\nd\ne,7\n", [5, 7]),
    ("output_tokens\r5\r7\r", [5, 7]),
    ("output_tokens,model\n5,x,\n7,y,,\n", [5, 7]),
    ("output_tokens,model\n5\n7\n", [5, 7]),
    ("output_tokens,prompt\n5,日本語\n7,é\n", [5, 7]),
    ("output_tokens,output_tokens\n5,1\n7,2\n", [5, 7]),
])
def test_a_csv_is_read_as_people_write_it(write, content: str, lengths: list[int]) -> None:
    log = read_lengths(write(content))
    assert log.lengths.tolist() == lengths
    assert log.counts == Counter(lengths)
    assert log.n == len(lengths)
    assert log.source.startswith("log.csv, column output_tokens")


@pytest.mark.parametrize(("name", "content", "skipped"), [
    ("log.csv", "output_tokens\n5\n\n7\n\n", 0),
    ("log.csv", "id,output_tokens\na,5\nb,\nc,0\nd\ne,7\n", 3),
    ("log.csv", "id,output_tokens\na,5\nb,\n", 1),
    ("log.csv", "output_tokens,id\n" + "5,a\n0,b\n" * 9000, 9000),
    ("log.jsonl", '{"output_tokens": 5}\n\n{"output_tokens": null}\n{"error": "503"}\n{"output_tokens": 0}\n', 3),
    ("log.jsonl", '{"output_tokens": 5}\n\n \n', 0),
])
def test_rows_left_out_are_counted_aloud(write, name: str, content: str, skipped: int) -> None:
    log = read_lengths(write(content, name))
    assert log.skipped == skipped
    said = "" if not skipped else f" ({skipped:,} row{'s' * (skipped > 1)} left out, where it is empty or 0)"
    assert log.source == f"{name}, column output_tokens{said}"


@pytest.mark.parametrize("name", ["log.jsonl", "log.ndjson", "log.json", "LOG.JSONL"])
def test_jsonl_is_read_as_servers_write_it(write, name: str) -> None:
    lines = ['{"output_tokens": 5, "prompt": "Hi,\\n you"}', "", '{"output_tokens": "7"}', '{"output_tokens": null}',
             '{"error": "503"}', '{"output_tokens": 9.0}', '{"output_tokens": 0}']
    log = read_lengths(write("\ufeff" + "\n".join(lines), name))
    assert log.lengths.tolist() == [5, 7, 9]
    assert log.lengths.dtype == np.int64


@pytest.mark.parametrize(("name", "content"), [
    ("long.csv", 'output_tokens,prompt\n5,"' + "word " * 200_000 + '"\n7,b\n'),
    ("long.jsonl", json.dumps({"output_tokens": 5, "prompt": "x" * 2_000_000}) + '\n{"output_tokens": 7}\n'),
    ("log.txt", '{"output_tokens": 5}\n{"output_tokens": 7}\n'),
    ("log", '\ufeff\n {"output_tokens": 5}\n{"output_tokens": 7}\n'),
])
def test_long_prompts_and_any_name_will_do(write, name: str, content: str) -> None:
    before = csv.field_size_limit()
    assert read_lengths(write(content, name)).lengths.tolist() == [5, 7]
    assert csv.field_size_limit() == before


def test_a_key_inside_another_can_be_named(write) -> None:
    lines = '{"usage": {"completion_tokens": 5}}\n{"error": "503"}\n{"usage": null}\n{"usage.completion_tokens": 7}\n'
    log = read_lengths(write(lines, "a.jsonl"), "usage.completion_tokens")
    assert (log.lengths.tolist(), log.skipped) == ([5, 7], 2)
    for column in (None, 5, ["usage"]):
        refused(read_lengths, write(lines, "a.jsonl"), column, named="column must be the name of a column or key")


def test_another_column_can_be_named(write) -> None:
    assert read_lengths(write("n,GeneratedTokens\n1,44\n2,55\n"), "GeneratedTokens").lengths.tolist() == [44, 55]
    assert read_lengths(write('{"usage": 3}\n', "a.jsonl"), "usage").lengths.tolist() == [3]


@given(lengths=st.lists(st.integers(1, 10_000_000), min_size=1, max_size=60), keep=st.integers(1, 80))
def test_only_the_first_are_kept_in_order_and_all_are_counted(tmp_path_factory, lengths: list[int], keep: int) -> None:
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    path.write_text("output_tokens\n" + "\n".join(map(str, lengths)))
    log = read_lengths(path, keep=keep)
    assert log.lengths.tolist() == lengths[:keep]
    assert log.counts == Counter(lengths)
    assert list(log.counts) == sorted(set(lengths))
    assert log.n == len(lengths)


@pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
def test_a_long_log_is_read_whole_and_its_bad_row_is_found(write, name: str) -> None:
    lengths = uniform_lengths(20_000, 1, 500, 0).tolist()

    def text(values: list) -> str:
        if name == "log.csv":
            return "output_tokens,prompt\n" + "".join(f'{value},"a\nb"\n' for value in values)
        return "".join(json.dumps({"output_tokens": value}) + "\n" for value in values)

    log = read_lengths(write(text(lengths), name), keep=15_000)
    assert log.lengths.tolist() == lengths[:15_000]
    assert log.counts == Counter(lengths)
    lengths[12_345] = "n/a"
    place = "row 12347" if name == "log.csv" else "line 12346"  # a CSV's header is its first row
    refused(read_lengths, write(text(lengths), name), named=f"{place} has 'n/a'")


# ---- your own log: what is refused ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("content", "named"), [
    ("", "empty"),
    ("\n\n", "empty"),
    ("tokens,model\n5,x\n", "its header has tokens, model"),
    ("Output_Tokens\n5\n", "Output_Tokens"),
    ("output_tokens;model\n5;x\n", "output_tokens;model"),
    (",".join(f"column{i}" for i in range(5000)) + "\n1\n", "output_tokens"),
    ("x" * 100_000 + "\n1\n", "output_tokens"),
    ('"two\nlines",b\n5,5\n', "two lines, b"),
    ("output_tokens\n", "there is a header and no request below it"),
    ("output_tokens,id\n\n\n", "there is a header and no request below it"),
    ("44\n55\n", "its first line is '44', which is a request and not a header"),
    ("2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:47.68,374,55\n", "374,44', which is a request"),
    ("tokens,model\n5,x\n", "has tokens, model; name the one that holds the output lengths as column"),
    ("output_tokens\n0\n0\n", "no request"),
    ("id,output_tokens\na\nb,\n", "no request"),
    ("output_tokens\n5\nmany\n", "row 3 has 'many'"),
    ("output_tokens\n5\n\n7\n1,000\n", "row 5 has '1,000'"),
    ("prompt,output_tokens\nHello,5\nHello, you,7\n", "row 3 has 'Hello, you,7'"),
    ("output_tokens\n5\n\"1,000\"\n", "row 3 has '1,000'"),
    ("output_tokens\n2.5\n", "row 2 has '2.5'"),
    ("output_tokens\n5\n-1\n", "row 3 has '-1'"),
    ("output_tokens\nnan\n", "row 2 has 'nan'"),
    ("output_tokens\ninf\n", "row 2 has 'inf'"),
    ("output_tokens\n1e400\n", "row 2 has '1e400'"),
    ("output_tokens\n1700158546\n", "row 2 has '1700158546'"),
    ("output_tokens\n10000001\n", "10,000,000"),
    ("output_tokens\n" + "9" * 5000 + "\n", "row 2"),
    ("output_tokens\n" + "word " * 5000 + "\n", "row 2"),
    ("output_tokens\ntrue\n", "row 2 has 'true'"),
    ('output_tokens,prompt\n5,a\n6,"b\n7,c\n8,d\n', "row 3 has a quotation mark that is not closed"),
    ('output_tokens,prompt\n5,"a\n6,b\n', "row 2 has a quotation mark that is not closed"),
    ('output_tokens,prompt\n5,"a"b\n6,c\n', "row 2 has a quotation mark"),
    ('output_tokens\n5\n"6\n7\n', "row 3 has a quotation mark"),
    ("id;output_tokens\na;5\n", "separated by commas"),
    ("id\toutput_tokens\na\t5\n", "separated by commas"),
    ("output_tokens,prompt\n5," + "x" * 10_000_000 + "\n", "row 2 is longer than 10,000,000 characters"),
    ('output_tokens,prompt\n5,"' + ("x" * 6_000_000 + "\n") * 2, "field larger"),
    ('"id";"output_tokens"\na;5\n', "separated by commas"),
    ("output_tokens,prompt\n5,é\n".encode("latin-1"), "UTF-8"),
    ("output_tokens\n5\n".encode("utf-16"), "UTF-8"),
    ("output_tokens\n5\n".encode("utf-16-le"), "UTF-8"),
    (b"\x1f\x8b\x08\x00\x00\x00", "UTF-8"),
    (b"output_tokens\n" + b"5\n" * 50_000 + b"\xff\n", "UTF-8"),
])
def test_a_csv_that_cannot_be_read_is_refused(write, content: str | bytes, named: str) -> None:
    refused(read_lengths, write(content), named=named)


@pytest.mark.parametrize(("content", "named"), [
    ("", "no key 'output_tokens'"),
    ("\n \n", "no key 'output_tokens'"),
    ('{"tokens": 5}\n', "no key 'output_tokens'"),
    ('{"output_tokens": 5}\n{"output_tokens": 7\n', "line 2"),
    ('[{"output_tokens": 5}]\n', "line 1 is not a JSON object"),
    ("5\n", "line 1 is not a JSON object"),
    ("output_tokens\n5\n", "line 1 is not JSON"),
    ('\n{"output_tokens": "many"}\n', "line 2 has 'many'"),
    ('{"output_tokens": 2.5}\n', "line 1 has 2.5"),
    ('{"output_tokens": -5}\n', "line 1 has -5"),
    ('{"output_tokens": NaN}\n', "line 1 has nan"),
    ('{"output_tokens": Infinity}\n', "line 1 has inf"),
    ('{"output_tokens": true}\n', "line 1 has True"),
    ('{"output_tokens": false}\n', "line 1 has False"),
    ('{"output_tokens": [5]}\n', "line 1 has [5]"),
    ('{"output_tokens": []}\n', "line 1 has []"),
    ('{"output_tokens": {}}\n', "line 1 has {}"),
    ('{"output_tokens": ' + "9" * 5000 + "}\n", "line 1"),
    ("[" * 100_000 + "\n", "line 1 is not JSON"),
    ('{"output_tokens": 5, "prompt": "' + "x" * 10_000_000 + '"}\n', "line 1 is longer than 10,000,000 characters"),
    ('{"tokens": 5, "model": "m"}\n{"id": 1}\n', "it has tokens, model, id; name the one"),
    ('{"usage": {"tokens": 5}}\n', "it has usage; name the one that holds the output lengths as column, or a path"),
    ('{"output_tokens": null}\n', "no request"),
    (b'{"output_tokens": 5, "prompt": "\xe9"}\n', "UTF-8"),
])
def test_a_jsonl_that_cannot_be_read_is_refused(write, content: str | bytes, named: str) -> None:
    refused(read_lengths, write(content, "log.jsonl"), named=named)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(read_lengths, "nowhere.csv", named="nowhere.csv")
    Path("folder.csv").mkdir()
    refused(read_lengths, "folder.csv", named="folder.csv is a folder")
    Path("log.csv").write_text("output_tokens\n5\n")
    for path in ("", " ", None, 5, b"log.csv", ["log.csv"]):
        refused(read_lengths, path, named="path must be the name of a CSV or JSONL file, got")
    for keep in (0, -1, 1.5):
        refused(read_lengths, "log.csv", keep=keep, named="keep")


def test_the_longest_length_in_a_log_may_be_read(write) -> None:
    assert read_lengths(write("output_tokens\n10000000\n1\n")).lengths.tolist() == [10_000_000, 1]


# ---- your own log: memory -------------------------------------------------------------------------------------------

READ = PEAK_MEMORY + """
import sys
from labs.workload import read_lengths
try:
    log = read_lengths(sys.argv[1])
    print(log.n, len(log.lengths), max(log.counts))
except ValueError as error:
    print(error)
print(peak_memory())
"""


def read_apart(path: Path, root: Path) -> tuple[str, float]:
    """What a process of its own says on reading `path`, and the most memory that it took, in MB."""
    ran = subprocess.run([sys.executable, "-c", READ, path], cwd=root, capture_output=True, text=True, check=True)
    said, peak = ran.stdout.splitlines()
    return said, float(peak)


def write_large(path: Path, head: str, block: str, megabytes: int) -> int:
    """Write `head` and then `block` over and over; return how many times."""
    times = megabytes * 1_000_000 // len(block) + 1
    with path.open("w") as file:
        file.write(head)
        for _ in range(times):
            file.write(block)
    return times


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is measured with getrusage, which Windows lacks")
def test_200_mb_of_csv_are_read_in_a_stream(tmp_path: Path, root: Path) -> None:
    values = [*geometric_lengths(49_999, 200, 0).tolist(), 9_999_999]
    block = "".join(f"2023-11-16 18:15:{i % 60:02}.6805900,4808,{value}\n" for i, value in enumerate(values))
    path = tmp_path / "large.csv"
    times = write_large(path, "TIMESTAMP,ContextTokens,output_tokens\n", block, 200)
    assert path.stat().st_size > 200_000_000
    said, peak = read_apart(path, root)
    path.unlink()
    assert said == f"{times * 50_000} 1000000 9999999"
    assert peak < 300


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is measured with getrusage, which Windows lacks")
@pytest.mark.parametrize(("name", "head", "row"), [
    ("prompts.csv", "prompt,output_tokens\n", "{prompt},5\n"),
    ("prompts.jsonl", "", '{{"prompt": "{prompt}", "output_tokens": 5}}\n'),
])
def test_400_mb_of_long_prompts_are_read_in_little_memory(tmp_path: Path, root: Path, name: str, head: str,
                                                          row: str) -> None:
    path = tmp_path / name
    times = write_large(path, head, row.format(prompt="word " * 20_000), 400)
    said, peak = read_apart(path, root)
    path.unlink()
    assert said == f"{times} {times} 5"
    assert peak < 300


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="peak memory is measured with getrusage, which Windows lacks")
@pytest.mark.parametrize(("name", "head", "named"), [
    ("one_field.csv", "output_tokens,prompt\n5,", "row 2 is longer"),
    ("one_line.jsonl", '{"output_tokens": 5, "prompt": "', "line 1"),
])
def test_200_mb_in_one_line_are_refused_in_little_memory(tmp_path: Path, root: Path, name: str, head: str,
                                                         named: str) -> None:
    path = tmp_path / name
    write_large(path, head, "x" * 1_000_000, 200)
    said, peak = read_apart(path, root)
    path.unlink()
    one_sentence(said, named)
    assert peak < 300


# ---- the text of a /metrics page ------------------------------------------------------------------------------------

def metrics_page(up_to: dict[str, float], labels: str = 'model_name="m",engine="0"', after: bool = False) -> str:
    """A page as vLLM serves it, whose histogram has so many requests up to each bound."""
    name = "vllm:request_generation_tokens"
    order = '{{le="{0}",{1}}}' if after else '{{{1},le="{0}"}}'
    buckets = [f"{name}_bucket{order.format(bound, labels)} {float(count)}" for bound, count in up_to.items()]
    return "\n".join([
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        f"vllm:num_requests_running{{{labels}}} 3.0",
        f"# HELP {name} Number of generation tokens processed.", f"# TYPE {name} histogram", *buckets,
        f"{name}_count{{{labels}}} {float(list(up_to.values())[-1])}", f"{name}_sum{{{labels}}} 1234.0",
        f'vllm:request_prompt_tokens_bucket{{{labels},le="1.0"}} 999.0', ""])


def test_a_histogram_with_only_its_open_bucket_says_nothing() -> None:
    refused(read_metrics_lengths, metrics_page({"+Inf": 9}), named="only its last, open bucket")


@pytest.mark.parametrize("odd", ["5e", "1.0.0e", "", "NaN", "many"])
def test_a_count_that_is_no_number_is_left_aside(odd: str) -> None:
    page = metrics_page(PAGE) + f'\nvllm:request_generation_tokens_bucket{{model_name="m",engine="1",le="5.0"}} {odd}\n'
    assert read_metrics_lengths(page).source == "/metrics histogram of 100 requests"


def test_one_request_is_no_requests() -> None:
    assert read_metrics_lengths(metrics_page({"5.0": 1, "+Inf": 1})).source == "/metrics histogram of 1 request"


PAGE = {"1.0": 10, "2.0": 10, "5.0": 40, "10.0": 90, "+Inf": 100}


def test_lengths_are_drawn_from_the_histograms_buckets() -> None:
    log = read_metrics_lengths(metrics_page(PAGE), n=50_000)
    share = np.bincount(log.lengths, minlength=11) / 50_000
    assert share[1] == pytest.approx(0.1, abs=0.01)
    assert share[2] == 0
    assert share[3:6] == pytest.approx(0.1, abs=0.01)
    assert share[6:10] == pytest.approx(0.1, abs=0.01)
    assert share[10] == pytest.approx(0.1 + 0.1, abs=0.01)  # the open bucket counts as its lower bound
    assert log.lengths.max() == 10
    assert log.counts == Counter(log.lengths.tolist())
    assert list(log.counts) == sorted(log.counts)
    assert log.n == len(log.lengths) == 50_000
    assert log.source == "/metrics histogram of 100 requests"


def test_several_engines_are_added_up_whatever_the_order_of_labels_and_bounds() -> None:
    one = metrics_page({"1.0": 5, "2.0": 20, "+Inf": 20}, 'engine="0"')
    other = metrics_page({"1.0": 25, "8.0": 30, "+Inf": 30}, 'engine="1"', after=True)
    log = read_metrics_lengths(one + "\n" + other, n=50_000, seed=3)
    share = np.bincount(log.lengths, minlength=9) / 50_000
    assert log.source == "/metrics histogram of 50 requests"
    assert share[1] == pytest.approx(30 / 50, abs=0.01)
    assert share[2] == pytest.approx(15 / 50 + 5 / 50 / 7, abs=0.01)
    assert share[3:9] == pytest.approx(5 / 50 / 7, abs=0.01)


def test_scientific_counts_and_windows_line_ends_are_read() -> None:
    page = metrics_page({"1.0": 0, "1e+06": 2, "+Inf": 2}).replace("2.0\n", "2e+06\n").replace("\n", "\r\n")
    log = read_metrics_lengths(page, n=1000)
    assert log.source == "/metrics histogram of 2,000,000 requests"
    assert 400_000 < log.lengths.mean() < 600_000


def test_the_same_seed_draws_the_same_lengths_and_another_one_others() -> None:
    draws = [read_metrics_lengths(metrics_page(PAGE), 40, seed).lengths.tolist() for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    default = read_metrics_lengths(metrics_page(PAGE)).lengths
    assert default.tolist() == read_metrics_lengths(metrics_page(PAGE), 5000, 0).lengths.tolist()


@pytest.mark.parametrize(("text", "named"), [
    ("", "vllm:request_generation_tokens"),
    ("<html>404</html>", "vllm:request_generation_tokens"),
    (metrics_page(PAGE).replace("generation", "prompt"), "vllm:request_generation_tokens"),
    (metrics_page({"1.0": 0, "+Inf": 0}), "empty"),
    (metrics_page({"1.0": 9, "2.0": 8, "+Inf": 12}), "counts down"),
    (metrics_page({"1.0": NAN, "+Inf": NAN}), "vllm:request_generation_tokens"),
])
def test_a_page_without_a_histogram_is_refused(text: str, named: str) -> None:
    refused(read_metrics_lengths, text, named=named)


@pytest.mark.parametrize("draw", [
    lambda n: workload.lognormal_lengths(n, 4.2, 1.1, 0), lambda n: workload.uniform_lengths(n, 1, 9, 0),
    lambda n: workload.fixed_lengths(n, 9), lambda n: workload.geometric_lengths(n, 9, 0),
    lambda n: workload.measured_lengths("azure_conv_2023", n, 0), lambda n: workload.poisson_arrivals(n, 1.0, 0),
])
def test_more_requests_than_memory_holds_are_refused(draw) -> None:
    with pytest.raises(ValueError, match="n must be at most 100,000,000 requests, got 1,000,000,000"):
        draw(10**9)


def test_a_mean_or_a_rate_that_no_server_has() -> None:
    with pytest.raises(ValueError, match="mean must be at most"):
        workload.geometric_lengths(5, 1e300, 0)
    with pytest.raises(ValueError, match="rate must be a number above 0"):
        workload.poisson_arrivals(5, 1e-320, 0)
    with pytest.raises(ValueError, match="rate must be a number above 0"):
        workload.poisson_arrivals(5, "1", 0)
