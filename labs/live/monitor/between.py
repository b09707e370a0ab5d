"""From one page to the next: what was counted between, through restarts, and what comes of it."""
from __future__ import annotations

from collections.abc import Mapping

from labs.live.monitor.names import CREATED, GAUGES, Sample
from labs.live.monitor.page import Metrics, of_samples


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
    return of_samples(samples, interval=True, reset=bool(anew))


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
