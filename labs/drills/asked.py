"""What became of each request of a scenario, as arrays."""
from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from labs.drills.running import Part
from labs.drills.traffic import HORIZON, Scenario, Sent


@dataclass(frozen=True, eq=False)
class Requests:
    """One entry a request: when it was created and arrived, its first token and end (NaN: never), its sizes."""

    created: np.ndarray
    arrival: np.ndarray
    first: np.ndarray
    finish: np.ndarray
    tokens: np.ndarray
    share: np.ndarray
    tenant: np.ndarray
    prompt: np.ndarray
    computed: np.ndarray

    @classmethod
    def of(cls, scenario: Scenario, sent: list[Sent], parts: list[Part]) -> Requests:
        """The times in the traces, for all that was sent."""
        times: dict[str, tuple[float, float]] = {}
        known = {s.request.request_id: s for s in sent}
        for part in parts:
            end = [*(part.trace.series.time + part.trace.series.seconds).tolist(), math.nan]
            known |= part.sent
            for r, first, last in zip(part.trace.requests, part.trace.first_token, part.trace.ended, strict=True):
                times[r.request_id] = end[first], end[last]
        names = {stream.tenant: i for i, stream in enumerate(scenario.streams)}
        rows = [(s.created, s.request.arrival, *times.get(name, (math.nan, math.nan)),
                 s.whole_prompt + s.request.output_tokens, 1 / s.stream.tenants, names[s.stream.tenant],
                 s.whole_prompt, s.request.prompt_tokens) for name, s in known.items()]
        return cls(*np.array(rows, dtype=float).T)

    def waits(self, since: np.ndarray) -> np.ndarray:
        """From `since` to the first token, or to now for those that have none."""
        return np.where(self.first <= HORIZON, self.first, HORIZON) - since
