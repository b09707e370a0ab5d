"""A /metrics page to numbers: old and new names, several engines, and what is missing told from zero.

What a page doesn't have is None, never 0, and so is a value that is not a number.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from labs.live.monitor.histogram import Histogram
from labs.live.monitor.names import CREATED, DETAIL, HISTOGRAMS, LINE_NAME, PLACES, PREFIX, Place, Sample


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
    def ended(self) -> float | None:
        """Requests that have ended, in whatever way."""
        return None if self.finished is None else sum(self.finished.values())

    @property
    def empty(self) -> bool:
        """Whether the page had nothing of vLLM's."""
        return not self.samples


def read_metrics(text: str, only: Collection[str] | None = None) -> Metrics:
    """Read the text of a /metrics page; of `only` these of our names, which is faster.

    Raises ValueError for lines that are no metrics; a page without any of vLLM's gives a `Metrics` that is `empty`.
    """
    wanted = {at for at, place in PLACES.items() if only is None or {place.name, place.part} & {*only}}
    try:
        return of_samples(dict(_samples(_lines(text, wanted))))
    except ValueError as error:
        raise ValueError(f"this is not the text of a /metrics page: {error}") from error


def _lines(text: str, wanted: Collection[str]) -> str:
    """The lines of the wanted metrics, for the parser takes its time; the types of all, which it needs."""
    kept = []
    for line in text.splitlines():
        found = LINE_NAME.match(line)
        if found and (line.startswith("# TYPE") or PREFIX.sub("", found[1]) in wanted):
            kept.append(line)
    return "\n".join([*kept, ""])


def _samples(text: str) -> Iterator[tuple[Sample, float]]:
    """Every number that belongs to a name of ours, from the newest of that name's spellings."""
    found: dict[str, dict[int, list[tuple[Sample, float]]]] = defaultdict(lambda: defaultdict(list))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            place = PLACES.get(PREFIX.sub("", sample.name))
            if place:
                found[place.name][place.age].append((_sample(place, sample.labels), sample.value))
    for ages in found.values():
        yield from ages[min(ages)]


def _sample(place: Place, labels: Mapping[str, str]) -> Sample:
    """Who reports it, and what it is of."""
    if place.name == "cache_config":
        detail = ";".join(f"{name}={labels.get(name, '')}" for name in ("num_gpu_blocks", "block_size"))
        return Sample(place.name, "", (), detail)
    name = "le" if place.part == "bucket" else DETAIL.get(place.name) or DETAIL.get(place.part, "")
    source = tuple(sorted((k, v) for k, v in labels.items() if k != name))
    return Sample(place.name, place.part, source, labels.get(name, ""))


def of_samples(samples: Mapping[Sample, float], **about: bool) -> Metrics:
    """All engines together."""
    by_name: dict[str, list[tuple[Sample, float]]] = defaultdict(list)
    for sample, value in samples.items():
        by_name[sample.name].append((sample, value))
    values: dict[str, object] = {}
    for name, of_it in by_name.items():
        if name in HISTOGRAMS:
            values[name] = _histogram(of_it)
        elif name in DETAIL:
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
