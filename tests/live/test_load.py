"""Many streams from one client against the simulated server: all accounted for, and what the client adds is known."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from labs.live.client import Ask, Measurement, Row
from tests.live.bench_client import added, load, simulated

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="two processes share a clock on Linux")


def test_what_the_client_adds_is_the_gap_seen_without_the_gap_sent() -> None:
    ask = Ask("a", "p", 3)
    row = Row(ask, 0.0, 0.0, 1.0, 3.1, 3.1, ((1.0, 1), (2.0, 1), (3.1, 1)), 3)
    failed = Row(ask, status="cut")
    found = added(Measurement((row, failed)), lambda _: np.array([10.0, 11.0, 12.0]))
    assert found == pytest.approx([0.0, 0.1])
    assert added(Measurement((row,)), None).size == 0


@pytest.mark.slow
def test_200_streams_are_all_accounted_for_and_memory_stays_flat() -> None:
    with simulated(0.25) as (server, stamps):
        assert isinstance(server, SimpleNamespace)
        loads = [load(server, "simulated", 200, 12, stamps) for _ in range(4)]
    for one in loads:
        assert one.statuses == {"ok": 200}
        assert (one.lost, one.peak, one.tokens) == (0, 200, 2400)
        assert one.took > 11 * 0.25, "no faster than the server gave them"
        assert one.added.size >= 200, "the server's own times are known"
        assert abs(one.added.mean()) < 1.0, "what is late once is early the next time, however busy the machine"
    assert loads[-1].memory < loads[1].memory + 20, [one.memory for one in loads]
