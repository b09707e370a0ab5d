"""Running a scenario: one trace of the engine for each replica, or two where it hangs in between."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace

from labs import fast
from labs.drills.traffic import HORIZON, Scenario, Sent
from labs.scheduler import SchedulerConfig
from labs.workload import Request

MARGIN = 2.0  # seconds that a run goes on behind what a dashboard shows


@dataclass(frozen=True)
class Part:
    """One run of one engine: its trace, the requests in the trace's order, and until when it counts."""

    trace: fast.Trace
    sent: dict[str, Sent]
    begin: float = 0.0
    end: float = math.inf


def parts(scenario: Scenario, sent: list[Sent], replica: int) -> list[Part]:
    """What one replica runs: once, or, if it hangs, until then and again after the restart."""
    loop = sum(stream.in_flight for stream in scenario.streams)
    if loop:
        return _closed_loop(scenario, sent, loop // scenario.replicas + (replica < loop % scenario.replicas))
    runs = [(sent, 0.0, math.inf)]
    if scenario.hang_at < math.inf:
        before = [s for s in sent if s.request.arrival < scenario.hang_at]
        after = [s for s in sent if s.request.arrival >= scenario.restart_at]
        runs = [(before, 0.0, scenario.hang_at), (after, scenario.restart_at, math.inf)]
    return [Part(_run(scenario, mine, scenario.config, end), {s.request.request_id: s for s in mine}, begin, end)
            for mine, begin, end in runs if mine]


def _run(scenario: Scenario, sent: list[Sent], config: SchedulerConfig, end: float = math.inf) -> fast.Trace:
    """Run what reaches the scheduler, and stop where the dashboard ends.

    Behind a head that never fits nobody is admitted until it is gone.
    """
    requests = []
    for s in sent:
        if scenario.oversized_at <= s.request.arrival < scenario.oversized_gone:
            if scenario.oversized_gone == math.inf:
                continue
            requests.append(replace(s.request, arrival=scenario.oversized_gone))
        else:
            requests.append(s.request)
    aborts = [(min(end, HORIZON + MARGIN), r.request_id) for r in requests]
    return fast.trace(requests, config, scenario.step_time, None, aborts)


def _closed_loop(scenario: Scenario, sent: list[Sent], out: int) -> list[Part]:
    """A client that always has `out` requests in flight: the next is sent when one comes back.

    With room for them all, that is what a backlog under a cap of `out` does, each arriving when it is scheduled.
    """
    if out > scenario.config.max_num_seqs:
        raise ValueError(f"a closed loop of {out} needs a max_num_seqs of at least that")
    if not out:
        return []
    trace = _run(scenario, sent, replace(scenario.config, max_num_active_seqs=out))
    starts = trace.series.time
    now = {r.request_id: float(starts[step]) for r, step in zip(trace.requests, trace.scheduled, strict=True)}
    return [Part(trace, {s.request.request_id: replace(
        s, request=_at(s.request, now[s.request.request_id]), created=now[s.request.request_id]) for s in sent})]


def _at(request: Request, arrival: float) -> Request:
    return replace(request, arrival=arrival)
