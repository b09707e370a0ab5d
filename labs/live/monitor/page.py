"""A /metrics page to numbers: old and new names, several engines, and what is missing told from zero.

Source of the names: vLLM 0.32, v1/metrics/loggers.py, and the names that earlier versions used. Ray Serve writes
them as `ray_vllm_...`. What a page doesn't have is None, never 0, and so is a value that is not a number.
"""
from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

# Our name, then the names on the page without "vllm:", the newest first. If a page has several, the newest counts.
GAUGES = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "waiting_by_reason": ("num_requests_waiting_by_reason",),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "cache_config": ("cache_config_info",),
}
COUNTERS = {  # with or without "_total"
    "preemptions": ("num_preemptions",),
    "prompt_tokens": ("prompt_tokens",),
    "generation_tokens": ("generation_tokens",),
    "prefix_hits": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "prefix_queries": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "finished": ("request_success",),
    "rejections": ("admission_rejections",),
}
HISTOGRAMS = {
    "iteration_tokens": ("iteration_tokens_total",),
    "ttft": ("time_to_first_token_seconds",),
    "itl": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot": ("request_time_per_output_token_seconds",),
    "e2e": ("e2e_request_latency_seconds",),
    "queue_time": ("request_queue_time_seconds", "time_in_queue_requests"),
    "prompt_lengths": ("request_prompt_tokens",),
    "generation_lengths": ("request_generation_tokens",),
}
CREATED = "created"  # when a counter was made, which is when its server began
_DETAIL = {"waiting_by_reason": "reason", "rejections": "reason", "finished": "finished_reason"}
_PREFIX = re.compile(r"^(?:ray_)?vllm[:_]")
_LINE_NAME = re.compile(r"^(?:# (?:TYPE|HELP) )?((?:ray_)?vllm[:_]\w+)")


class Place(NamedTuple):
    """Where a name on the page belongs: ours, how old the name is (0 is the newest), and which part of it."""

    name: str
    age: int
    part: str = ""


class Sample(NamedTuple):
    """What a number is of: our name, the part, who reports it (its labels), and a bucket's bound or a reason."""

    name: str
    part: str
    source: tuple[tuple[str, str], ...]
    detail: str = ""


def _places() -> dict[str, Place]:
    """Every name that may stand on a page."""
    places = {alias: Place(name, age) for name, aliases in GAUGES.items() for age, alias in enumerate(aliases)}
    for name, aliases in COUNTERS.items():
        for age, alias in enumerate(aliases):
            places |= {f"{alias}_total": Place(name, 2 * age), alias: Place(name, 2 * age + 1),
                       f"{alias}_created": Place(CREATED, 0, name)}
    for name, aliases in HISTOGRAMS.items():
        for age, alias in enumerate(aliases):
            places |= {f"{alias}_{part}": Place(name, age, part) for part in ("bucket", "sum", "count")}
    return places


_PLACES = _places()


@dataclass(frozen=True)
class Histogram:
    """How often a value was at most each of `bounds`, the last of which is infinite; `counts` are cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    count: float

    @property
    def mean(self) -> float:
        """Exact, unlike a quantile; NaN without values."""
        return self.sum / self.count if self.count else math.nan

    def quantile(self, q: float) -> float:
        """Within the bucket that holds it a straight line, as Prometheus has it; NaN without values.

        No finer than the bucket: see `bracket`. Beyond the last finite bound it is that bound.
        """
        low, high = self.bracket(q)
        if not math.isfinite(high):
            return low
        i = self.bounds.index(high)
        below = self.counts[i - 1] if i else 0.0
        return low + (high - low) * max(0.0, q * self.counts[-1] - below) / (self.counts[i] - below)

    def bracket(self, q: float) -> tuple[float, float]:
        """Between which two bounds the quantile lies: all that the histogram knows for certain."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must lie between 0 and 1, got {q}: the 99th percentile is q=0.99")
        if not self.count or not self.counts:
            return math.nan, math.nan
        rank = q * self.counts[-1]
        i = next(i for i, count in enumerate(self.counts) if count >= rank and count > 0)
        return (self.bounds[i - 1] if i else min(0.0, self.bounds[0])), self.bounds[i]


@dataclass(frozen=True)
class Metrics:
    """What a page says, all engines together; None is what it doesn't say.

    `kv_usage` is the fullest engine's, and each one's is in `kv_usage_by_engine`. After `delta` the counters and
    histograms are those of the time between two pages, `interval` is True, and `reset` says if a server began anew.
    """

    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] | None = None
    kv_usage: float | None = None
    kv_usage_by_engine: Mapping[str, float] = field(default_factory=dict)
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_hits: float | None = None
    prefix_queries: float | None = None
    finished: Mapping[str, float] | None = None
    rejections: Mapping[str, float] | None = None
    iteration_tokens: Histogram | None = None
    ttft: Histogram | None = None
    itl: Histogram | None = None
    tpot: Histogram | None = None
    e2e: Histogram | None = None
    queue_time: Histogram | None = None
    prompt_lengths: Histogram | None = None
    generation_lengths: Histogram | None = None
    engines: tuple[str, ...] = ()
    interval: bool = False
    reset: bool = False
    samples: Mapping[Sample, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def steps(self) -> float | None:
        """Steps in which a token was made: those that only computed a part of a prompt are not counted by vLLM."""
        return self.iteration_tokens.count if self.iteration_tokens else None

    @property
    def empty(self) -> bool:
        """Whether the page had nothing of vLLM's."""
        return not self.samples


def read_metrics(text: str, only: Collection[str] | None = None) -> Metrics:
    """Read the text of a /metrics page; of `only` these of our names, which is faster.

    Raises ValueError for lines that are no metrics; a page without any of vLLM's gives a `Metrics` that is `empty`.
    """
    wanted = {at for at, place in _PLACES.items() if only is None or {place.name, place.part} & {*only}}
    try:
        return _metrics(dict(_samples(_lines(text, wanted))))
    except ValueError as error:
        raise ValueError(f"this is not the text of a /metrics page: {error}") from error


def _lines(text: str, wanted: Collection[str]) -> str:
    """The lines of the wanted metrics, for the parser takes its time; the types of all, which it needs."""
    kept = []
    for line in text.splitlines():
        found = _LINE_NAME.match(line)
        if found and (line.startswith("# TYPE") or _PREFIX.sub("", found[1]) in wanted):
            kept.append(line)
    return "\n".join([*kept, ""])


def _samples(text: str) -> Iterator[tuple[Sample, float]]:
    """Every number that belongs to a name of ours, from the newest of that name's spellings."""
    found: dict[str, dict[int, list[tuple[Sample, float]]]] = defaultdict(lambda: defaultdict(list))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            place = _PLACES.get(_PREFIX.sub("", sample.name))
            if place:
                found[place.name][place.age].append((_sample(place, sample.labels), sample.value))
    for ages in found.values():
        yield from ages[min(ages)]


def _sample(place: Place, labels: Mapping[str, str]) -> Sample:
    """Who reports it, and what it is of."""
    if place.name == "cache_config":
        detail = ";".join(f"{name}={labels.get(name, '')}" for name in ("num_gpu_blocks", "block_size"))
        return Sample(place.name, "", (), detail)
    name = "le" if place.part == "bucket" else _DETAIL.get(place.name) or _DETAIL.get(place.part, "")
    source = tuple(sorted((k, v) for k, v in labels.items() if k != name))
    return Sample(place.name, place.part, source, labels.get(name, ""))


def _metrics(samples: Mapping[Sample, float], **about: bool) -> Metrics:
    """All engines together."""
    by_name: dict[str, list[tuple[Sample, float]]] = defaultdict(list)
    for sample, value in samples.items():
        by_name[sample.name].append((sample, value))
    values: dict[str, object] = {}
    for name, of_it in by_name.items():
        if name in HISTOGRAMS:
            values[name] = _histogram(of_it)
        elif name in _DETAIL:
            values[name] = _by_detail(of_it)
        elif name not in ("kv_usage", "cache_config", CREATED):
            values[name] = _sum(value for _, value in of_it)
    engines = _engine_names({s.source for name in ("running", "kv_usage") for s, _ in by_name[name]})
    each = {engines[s.source]: value for s, value in by_name["kv_usage"] if math.isfinite(value)}
    return Metrics(**values, **_cache_config(by_name["cache_config"]), kv_usage=max(each.values(), default=None),
                   kv_usage_by_engine=each, engines=tuple(sorted(engines.values())), samples=samples, **about)


def _sum(values: Iterable[float]) -> float | None:
    """All engines together; None if one of them isn't a number, for then the sum isn't known."""
    total = sum(values)
    return total if math.isfinite(total) else None


def _by_detail(samples: Iterable[tuple[Sample, float]]) -> dict[str, float]:
    """The sum for each reason, of those that are known."""
    sums: dict[str, float] = defaultdict(float)
    for sample, value in samples:
        sums[sample.detail] += value
    return {detail: value for detail, value in sums.items() if math.isfinite(value)}


def _histogram(samples: Iterable[tuple[Sample, float]]) -> Histogram | None:
    """One histogram of all engines', with the bounds that all of them have."""
    buckets: dict[tuple, dict[float, float]] = defaultdict(dict)
    total = {"sum": 0.0, "count": 0.0}
    for sample, value in samples:
        if sample.part == "bucket":
            buckets[sample.source][float(sample.detail)] = value
        else:
            total[sample.part] += value
    bounds = tuple(sorted(set.intersection(*map(set, buckets.values())))) if buckets else ()
    counts = tuple(sum(of_one[bound] for of_one in buckets.values()) for bound in bounds)
    known = math.isfinite(sum(counts) + sum(total.values()))
    return Histogram(bounds, counts, total["sum"], total["count"]) if known else None


def _cache_config(samples: Iterable[tuple[Sample, float]]) -> dict[str, int]:
    """The size of the KV cache of an engine, if they say it and agree."""
    said = {sample.detail for sample, _ in samples}
    pairs = (part.split("=") for part in next(iter(said)).split(";")) if len(said) == 1 else ()
    return {name: int(value) for name, value in pairs if value.isdigit()}


def _engine_names(sources: Collection[tuple[tuple[str, str], ...]]) -> dict[tuple[tuple[str, str], ...], str]:
    """A short name for each engine: its number if that tells them apart, else all in which its labels differ."""
    numbers = {source: dict(source).get("engine", "0") for source in sources}
    if len(set(numbers.values())) == len(sources):
        return numbers
    common = set.intersection(*map(set, sources))
    return {source: "/".join(value for name, value in source if (name, value) not in common) for source in sources}


# ---- between two pages ----------------------------------------------------------------------------------------------

def delta(before: Metrics, after: Metrics) -> Metrics:
    """What the counters and histograms rose by from one page to the next; gauges are those of `after`.

    A server that began anew counts from 0, so what it has counted since is taken. A metric that `before` did not
    have is None: what it rose by isn't known.
    """
    anew = _begun_anew(before.samples, after.samples)
    known = {sample.name for sample in before.samples}
    samples = {}
    for sample, value in after.samples.items():
        if sample.name in GAUGES or sample.name == CREATED:
            samples[sample] = value
        elif sample.name in known:
            samples[sample] = value - (0.0 if sample.source in anew else before.samples.get(sample, 0.0))
    return _metrics(samples, interval=True, reset=bool(anew))


def _begun_anew(before: Mapping[Sample, float], after: Mapping[Sample, float]) -> set[tuple[tuple[str, str], ...]]:
    """The engines one of whose counts went down, or was created later than it had been."""
    fell = {s.source for s, value in before.items() if s.name not in GAUGES and after.get(s, value) < value}
    later = {s.source for s, value in after.items() if s.name == CREATED and value > before.get(s, value)}
    return fell | later


def normalised_latency(values: Metrics) -> float | None:
    """Seconds from arrival to the last token, per output token: as near as vLLM's own metrics come to it.

    vLLM exports no such metric. This is all seconds over all tokens of the requests that ended, so it is the mean
    weighted by tokens: a long answer counts for more than a short one, which is just where they differ; a percentile
    can't be had; requests that still run are not in it. To see what short requests suffer, measure at the client.
    """
    if values.e2e is None or values.generation_lengths is None or not values.generation_lengths.sum:
        return None
    return values.e2e.sum / values.generation_lengths.sum
