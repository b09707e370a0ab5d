"""Our client beside vLLM's own load tool and the server's own histograms, on one server and one workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.agreement import MEASURES, SERVERS, WHY, Outcome, Seen, alternate, lines, wanted, workload
from tests.live.real import Shared

CLOSE = 0.15  # in CI, where anything may run beside it: the stored report holds them to 5 %


def outcome(ours: float = 1.0, theirs: float = 1.0) -> Outcome:
    """Two clients with the same figures, times a factor."""
    made = Outcome(Seen(), Seen(), 3)
    for seen, factor in ((made.ours, ours), (made.theirs, theirs)):
        for run in (1.0, 2.0, 9.0):
            means = dict.fromkeys(SERVERS, run * factor)
            seen.add(dict.fromkeys(MEASURES, run * factor), means, dict.fromkeys(SERVERS, run))
        seen.lag.append(0.002)
    return made


def test_medians_are_compared_and_each_run_with_the_server_in_it() -> None:
    made = outcome(1.04, 1.0)
    assert made.difference("TTFT, mean") == pytest.approx(0.04)
    assert made.off("ITL") == pytest.approx(0.04)
    text = "\n".join(lines(made))
    assert "| TPOT, mean | 2.08 ms | 2.00 ms | +4.0% | the same definition |" in text
    assert text.count("+4.0% +4.0% +4.0%") == len(SERVERS)
    assert "woke 2 ms late at p99" in text


def test_every_difference_of_definition_is_of_a_measure_that_there_is() -> None:
    assert set(WHY) < set(MEASURES)


def test_no_two_requests_are_alike_and_a_letter_is_a_token() -> None:
    asks = workload(48)
    assert len({ask.prompt[:16] for ask in asks}) == 48
    assert all(4 <= len(ask.prompt) <= 80 and 32 <= ask.max_tokens <= 128 for ask in asks)
    assert wanted(asks) == sum(ask.max_tokens for ask in asks)
    assert workload(48) == asks != workload(48, seed=1)


@pytest.mark.vllm
@pytest.mark.slow
def test_three_witnesses_agree(real: Shared, tmp_path: Path) -> None:
    """In one of three tries: what disturbs one client and not the other is no difference between them."""
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        seen = alternate(real(), folder, requests=24, repeats=3)
        apart = {name: seen.difference(name) for name in MEASURES if "TTFT" not in name}
        apart |= {f"{name} beside the server's": seen.off(name) for name in ("ITL", "TPOT")}
        # TTFT is short here, and its two definitions are milliseconds apart: within a step or so.
        late = abs(seen.ours.median("TTFT, mean") - seen.theirs.median("TTFT, mean"))
        if max(map(abs, apart.values())) < CLOSE and late < 40:
            break
    assert max(map(abs, apart.values())) < CLOSE, "\n".join([str(apart), *lines(seen)])
    assert late < 40, "\n".join(lines(seen))
