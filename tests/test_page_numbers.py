"""Every number that the page prints and the course repeats or corrects, to the last digit shown."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from labs import metrics, slots, sweep, workload
from labs.metrics import normalised_latency, percentile
from labs.slots import continuous_batching, static_batching

SWEEP = {  # sigma: static utilisation, continuous utilisation, p99 ratio, and p99/p50 of each
    1.1: ("20.7%", "83.7%", 5.8, 18.1, 17.9),
    0.6: ("37.4%", "94.6%", 2.8, 5.9, 5.9),
    0.3: ("58.2%", "95.8%", 1.7, 3.1, 3.1),
    0.1: ("81.5%", "97.1%", 1.2, 2.2, 2.1),
}


@pytest.fixture(scope="module")
def page() -> dict[str, slots.Schedule]:
    """Both schedulers on the page's 500 requests and 32 slots."""
    return sweep.run_both(workload.lognormal_lengths(500, 4.2, 1.1, seed=0), 32)


def spread(schedule: slots.Schedule) -> tuple[float, float]:
    """p50 and p99 of normalised latency, as the page computes them."""
    values = normalised_latency(schedule)
    return percentile(values, 0.5), percentile(values, 0.99)


# ---- the eight requests ---------------------------------------------------------------------------------------------

def test_eight_requests_in_one_static_batch() -> None:
    schedule = static_batching(workload.EIGHT_LENGTHS, 8)
    assert schedule.useful == sum(workload.EIGHT_LENGTHS) == 1932
    assert schedule.steps * schedule.slots == 7600
    assert f"{schedule.utilisation:.1%}" == "25.4%"
    assert f"{1 - schedule.utilisation:.1%}" == "74.6%"
    assert schedule.steps * schedule.slots - schedule.useful == 5668


def test_a_waits_938_steps_for_h_and_pays_79_times_per_token() -> None:
    schedule = static_batching(workload.EIGHT_LENGTHS, 8)
    assert metrics.head_of_line_wait(schedule)[0] == 938
    assert set(schedule.finish) == {950}
    normalised = normalised_latency(schedule)
    assert f"{normalised[0]:.1f}" == "79.2"
    assert normalised[-1] == 1
    assert f"{normalised[0] / normalised[-1]:.1f}" == "79.2"


def test_eight_requests_with_eight_slots_and_continuous_batching_never_wait() -> None:
    schedule = continuous_batching(workload.EIGHT_LENGTHS, 8)
    assert schedule.finish.tolist() == list(workload.EIGHT_LENGTHS)
    assert (normalised_latency(schedule) == 1).all()


# ---- the simulation of 500 requests ---------------------------------------------------------------------------------

def test_useful_slot_steps_and_mean_length(page: dict[str, slots.Schedule]) -> None:
    assert page["static"].useful == page["continuous"].useful == 59_092
    assert round(page["static"].lengths.mean()) == 118


@pytest.mark.parametrize(("name", "steps", "utilisation", "p50", "p99"), [
    ("static", 8942, "20.7%", "56.1", "1015.0"),
    ("continuous", 2206, "83.7%", "9.7", "173.6"),
])
def test_what_the_page_prints(page: dict[str, slots.Schedule], name: str, steps: int, utilisation: str, p50: str,
                              p99: str) -> None:
    schedule = page[name]
    assert schedule.steps == steps
    assert f"{schedule.utilisation:.1%}" == utilisation
    assert [f"{value:.1f}" for value in spread(schedule)] == [p50, p99]


@pytest.mark.parametrize("sigma", SWEEP)
def test_the_sigma_sweep(sigma: float) -> None:
    static, continuous, ratio, _, _ = SWEEP[sigma]
    row = sweep.compare_lognormal(sigma)
    assert f"{row['static_utilisation']:.1%}" == static
    assert f"{row['continuous_utilisation']:.1%}" == continuous
    assert round(row["p99_ratio"], 1) == ratio
    assert row["p99_ratio"] == row["static_p99"] / row["continuous_p99"]


@pytest.mark.parametrize("sigma", SWEEP)
def test_normalised_latency_is_not_flat_where_everything_arrives_at_once(sigma: float) -> None:
    *_, static, continuous = SWEEP[sigma]
    row = sweep.compare_lognormal(sigma)
    assert round(row["static_p99"] / row["static_p50"], 1) == static
    assert round(row["continuous_p99"] / row["continuous_p50"], 1) == continuous


def test_the_rest_of_the_83_percent_is_drain(page: dict[str, slots.Schedule]) -> None:
    assert metrics.steady_utilisation(page["continuous"]) == 1.0
    assert metrics.occupancy(page["continuous"])[:-metrics.drain(page["continuous"])].min() == 32


# ---- with arrivals --------------------------------------------------------------------------------------------------

def half_load(sigma: float, n: int = 20_000, seed: int = 0) -> dict[str, slots.Schedule]:
    """Both schedulers under Poisson arrivals at half of continuous batching's capacity."""
    lengths = workload.lognormal_lengths(n, 4.2, sigma, seed)
    arrivals = workload.poisson_arrivals(n, slots.arrival_rate(0.5, lengths, 32), seed)
    return sweep.run_both(lengths, 32, arrivals)


@pytest.mark.parametrize("sigma", [1.1, 0.6, 0.0])
def test_continuous_batching_at_half_load_is_flat(sigma: float) -> None:
    assert [round(value, 1) for value in spread(half_load(sigma)["continuous"])] == [1.0, 1.0]


@pytest.mark.parametrize("seed", range(3))
def test_equal_lengths_still_wait_for_the_running_group(seed: int) -> None:
    """Membership is a second cause beside variance: with arrivals, sigma 0 costs static batching 1.5 and 2.0."""
    assert [round(value, 1) for value in spread(half_load(0.0, seed=seed)["static"])] == [1.5, 2.0]
    lengths = workload.lognormal_lengths(100, 4.2, 0.0, seed)
    assert not metrics.overloaded("static", 0.5, lengths, 32)


def test_static_batching_at_half_load_is_overloaded_and_its_p50_measures_only_the_run() -> None:
    lengths = workload.lognormal_lengths(20_000, 4.2, 1.1, 0)
    assert metrics.overloaded("static", 0.5, lengths, 32)
    assert not metrics.overloaded("continuous", 0.5, lengths, 32)
    p50 = [spread(half_load(1.1, n)["static"])[0] for n in (2_000, 20_000, 80_000)]
    assert [round(value) for value in p50] == [165, 1918, 7994]
    assert 8 < p50[1] / p50[0] < 13  # ten times the run
    assert 3.6 < p50[2] / p50[1] < 4.4  # four times the run


@pytest.mark.parametrize("seed", range(6))
def test_an_overloaded_queue_grows_whatever_the_seed(seed: int) -> None:
    short, long = (spread(half_load(1.1, n, seed)["static"])[0] for n in (2_000, 20_000))
    assert short > 100
    assert 1_600 < long < 2_400
    assert long > 6 * short


# ---- lengths --------------------------------------------------------------------------------------------------------

def test_118_is_the_mean_of_the_sample_and_122_of_the_distribution() -> None:
    assert f"{workload.lognormal_lengths(500, 4.2, 1.1, 0).mean():.0f}" == "118"
    assert f"{np.exp(4.2 + 1.1**2 / 2):.1f}" == "122.1"
    floored = workload.lognormal_lengths(4_000_000, 4.2, 1.1, 0).mean()
    assert floored == pytest.approx(121.6, abs=0.3)  # its standard error is 0.1


@pytest.fixture(scope="module")
def summary() -> dict[str, dict[str, str]]:
    """Rows of workload_summary.csv by dataset."""
    with (workload.DATA / "workload_summary.csv").open(newline="") as file:
        return {row["dataset"]: row for row in csv.DictReader(file)}


def test_real_outputs_gain_from_2_1_to_8_1_times(summary: dict[str, dict[str, str]]) -> None:
    gains = [float(row["real_speedup"]) for row in summary.values()]
    assert (round(min(gains), 1), round(max(gains), 1)) == (2.1, 8.1)
    means = [float(row["output_mean"]) for row in summary.values()]
    assert (round(min(means)), round(max(means))) == (28, 1527)


@pytest.mark.parametrize("name", workload.MEASURED)
@pytest.mark.parametrize("column", ["output", "prompt"])
def test_measured_means_are_within_5_percent_of_the_log(name: str, column: str) -> None:
    drawn = workload.measured_lengths(name, 200_000, seed=1, column=column).mean()
    assert drawn == pytest.approx(float(workload.measured(name).facts[f"{column}_mean"]), rel=0.05)


@pytest.mark.parametrize("name", workload.MEASURED)
def test_measured_presets_gain_what_the_shuffled_log_gains(name: str) -> None:
    """The mean of 12 draws of 5,000; the log's own figure is one such draw, and a heavy tail makes it noisy."""
    facts = workload.measured(name).facts
    rows = [sweep.compare_measured(name, seed=seed) for seed in range(12)]
    for key, column in (("gain", "speedup"), ("static_utilisation", "static_util"),
                        ("continuous_utilisation", "cont_util"), ("p99_ratio", "p99_ratio")):
        values = [row[key] for row in rows]
        given = float(facts[f"shuffled_{column}"])
        assert abs(np.mean(values) - given) < max(0.08 * given, 3.5 * np.std(values)), key


def misses(row: dict[str, str]) -> float:
    """By what factor a lognormal with the log's own mu and sigma gets the gain wrong (above 1: too high)."""
    lengths = workload.lognormal_lengths(5_000, float(row["output_ln_mu"]), float(row["output_ln_sigma"]), seed=0)
    return sweep.compare(lengths, 32)["gain"] / float(row["shuffled_speedup"])


def test_a_lognormal_fitted_to_a_real_log_misses_its_gain_both_ways(summary: dict[str, dict[str, str]]) -> None:
    recorded = [float(row["lognormal_speedup"]) / float(row["shuffled_speedup"]) for row in summary.values()]
    assert round(max(recorded), 1) == 2.5
    assert round(1 / min(recorded), 1) == 2.0
    ours = {name: misses(row) for name, row in summary.items()}
    assert max(ours, key=ours.__getitem__) == "mooncake_conversation"
    assert min(ours, key=ours.__getitem__) == "arxiv_summarization_4k"
    assert list(ours.values()) == pytest.approx(recorded, rel=0.15)
