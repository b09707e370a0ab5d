"""The live panel: running and waiting while a load is under way, what it says when it can't, and its picture."""

from __future__ import annotations

import asyncio
import gc
import math
import time
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs import explorers
from labs.explorers.live import ALL_AT_ONCE, ONE_BY_ONE, Live, StatusLine
from labs.live.bench import Bench, Run, open_bench
from labs.live.feed import Feed, workload
from labs.live.measurement import Measurement
from labs.svg import running_and_waiting


@dataclass
class Stub:
    """A feed without a server; `busy` for so many looks after each start."""

    source: str = "a <stub> & co"
    cap: int | None = 8
    live: bool = True
    switchable: bool = False
    error: str = ""
    diagnosis: str = "under-loaded: 3 running"
    series: tuple = ((0.0, 0.1, 0.2), (3.0, math.nan, 8.0), (5.0, 4.0, 0.0))
    measurement: Measurement | None = None
    looks: int = 0
    started: list = field(default_factory=list)
    stopped: int = 0

    @property
    def busy(self) -> bool:
        self.looks -= 1
        return self.looks > 0

    def start(self, requests: int, rate: float | None, static: bool = False, seed: int = 0) -> None:
        if not self.live:
            raise ValueError("there is no server: run the cell that starts it")
        self.started.append((requests, rate, static, seed))
        self.looks = 12

    def stop(self) -> None:
        self.stopped += 1
        self.looks = 0


def drop_connections() -> None:
    """Collect what a load that was cut short left open, here and not in some later test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def click(button) -> None:
    """Press it as a browser would."""
    button.click()


# ---------------------------------------------------------------- the panel


def test_it_begins_with_what_the_feed_knows() -> None:
    panel = explorers.live(Stub())
    assert panel.view.picture.alt == "at most 8 of 8 running, 5 waiting. a <stub> & co"
    assert [value for value, _ in panel.view.numbers] == ["8", "0"]
    assert "under-loaded: 3 running" in panel._message.value
    assert "a &lt;stub&gt; &amp; co" in panel._picture.value
    assert "<stub>" not in panel._picture.value
    assert "at most 8 of 8 running" in panel._repr_mimebundle_()["text/html"]


def test_nothing_known_is_no_load_and_no_fault() -> None:
    panel = explorers.live(Stub(series=((), (), ()), cap=None))
    assert panel.error == ""
    assert panel.view.picture.alt.startswith("no load yet")
    assert [value for value, _ in panel.view.numbers] == ["–", "–"]


def test_send_hands_on_the_sliders_and_follows_to_the_end() -> None:
    feed = Stub(switchable=True)
    panel = Live(feed)
    panel.set(requests=20, arrive=ONE_BY_ONE, rate=7, batching=True, seed=3)
    panel.set(arrive=ALL_AT_ONCE)
    click(panel._send)
    panel.set(arrive=ONE_BY_ONE)
    click(panel._send)
    assert feed.started == [(20, None, True, 3), (20, 7.0, True, 3)]
    assert not feed.busy
    assert (panel._send.disabled, panel._halt.disabled) == (False, True)


def test_controls_that_mean_nothing_are_disabled() -> None:
    panel = Live(Stub(switchable=False))
    assert panel.controls["rate"].disabled
    assert panel.controls["batching"].disabled
    panel.set(arrive=ONE_BY_ONE)
    assert not panel.controls["rate"].disabled
    assert not Live(Stub(switchable=True)).controls["batching"].disabled


def test_in_an_event_loop_it_draws_while_the_load_runs() -> None:
    feed = Stub()
    drawn = []

    async def use() -> None:
        panel = Live(feed)
        draw = panel.draw
        panel.render = lambda settings: drawn.append(time.monotonic()) or draw(settings)
        panel.send()
        assert panel._send.disabled
        assert not panel._halt.disabled
        while feed.looks > 0:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.6)
        assert not panel._send.disabled

    asyncio.run(use())
    assert len(drawn) >= 3
    assert all(b - a > 0.2 for a, b in zip(drawn, drawn[1:], strict=False))


def test_stop_ends_it() -> None:
    feed = Stub(looks=100)
    panel = Live(feed)
    panel.halt()
    assert feed.stopped == 1
    assert (panel._send.disabled, panel._halt.disabled) == (False, True)


def test_without_a_server_it_says_so_and_keeps_its_picture() -> None:
    panel = Live(Stub(live=False))
    before = panel._picture.value
    click(panel._send)
    assert "Not sent: there is no server: run the cell that starts it" in panel._message.value
    assert panel._picture.value == before


def test_a_fault_of_the_load_is_shown_escaped() -> None:
    panel = Live(Stub(error="the server said <b>no</b>"))
    assert "the server said &lt;b&gt;no&lt;/b&gt;" in panel._message.value


def test_a_finished_load_is_told_in_a_table() -> None:
    lines = [{"measure": "TTFT", "unit": "ms", "n": 2, "mean": 12.34, "p50": 11.1},
             {"measure": "ITL", "unit": "ms", "n": 0, "mean": math.nan, "p50": math.nan},
             {"measure": "end to end", "unit": "s", "n": 2, "mean": 1.5, "p50": "n too small to have a p50"}]
    done = SimpleNamespace(output_tokens=500, wall=2.0, table=lambda: lines, ok=[1, 2], measured=[1, 2, 3])
    view = Live(Stub(measurement=done)).view
    assert ("250", "tokens a second, over the whole load") in view.numbers
    assert view.rows == [["", "mean", "p50"], ["TTFT, ms", "12.3", "11.1"],
                         ["end to end, s", "1.5", "n too small to have a p50"], ["whole answers, of all", "2", "3"]]


def test_a_status_line_takes_any_words_and_is_the_same_in_every_file() -> None:
    line = StatusLine()
    same = line.summary()
    line("12 s <of> 600")
    assert "12 s &lt;of&gt; 600" in line._line.value
    assert line.summary() == same


# ---------------------------------------------------------------- the feed


@pytest.fixture(scope="module")
def bench():
    """A simulated server, faster than a real one."""
    with open_bench("simulated", slots=4, static=True, step_time=[0.002, 0.0, 0.0]) as found:
        yield found


def test_a_load_is_watched_and_measured(bench: Bench) -> None:
    feed = Feed(bench)
    assert feed.series == ((), (), ())
    feed.start(12, None, static=False, seed=1)
    assert feed.busy
    with pytest.raises(ValueError, match="under way"):
        feed.start(3, None)
    while feed.busy:
        time.sleep(0.05)
    assert feed.error == ""
    assert [row.ok for row in feed.measurement.rows] == [True] * 12
    times, running, waiting = feed.series
    assert len(times) >= 3
    assert max(running) <= 4
    assert max(waiting) >= 4
    assert "SIMULATED" in feed.source
    assert feed.cap == 4


def test_a_load_can_be_stopped_and_what_came_is_kept(bench: Bench) -> None:
    feed = Feed(bench)
    feed.start(60, None)
    until = time.monotonic() + 20
    while len(feed.series[2]) < 3 or feed.series[2][-1] > max(feed.series[2]) - 6:  # until a few have ended
        assert time.monotonic() < until
        time.sleep(0.05)
    assert feed.diagnosis
    began = time.monotonic()
    feed.stop()
    assert time.monotonic() - began < 8
    assert not feed.busy
    assert feed.measurement.interrupted
    assert any(row.ok for row in feed.measurement.rows)
    assert any(row.status == "cut" for row in feed.measurement.rows)
    drop_connections()


def test_arrivals_one_by_one_and_static_batching(bench: Bench) -> None:
    feed = Feed(bench)
    feed.start(8, 20.0, static=True, seed=2)
    assert bench.server.static
    while feed.busy:
        time.sleep(0.05)
    assert feed.measurement.mode == "open-loop"
    feed.start(2, None, static=False)
    assert not bench.server.static
    feed.stop()
    drop_connections()


def test_where_there_is_no_server_it_shows_the_recorded_run() -> None:
    run = Run("r", Measurement(()), "recorded 2026-11-29: a server", 8, times=(0.0, 0.1), running=(8.0, 2.0),
              waiting=(9.0, 0.0))
    feed = Feed(Bench(None, 8, {"r": run}), run)
    panel = explorers.live(feed)
    assert panel.view.picture.alt == "at most 8 of 8 running, 9 waiting. recorded 2026-11-29: a server"
    panel.send()
    assert "there is no server" in panel._message.value
    assert feed.diagnosis == ""


def test_a_server_that_was_stopped_is_no_fault_of_the_panels() -> None:
    with open_bench("simulated", slots=4) as gone:
        panel = explorers.live(Feed(gone))
    panel.send()
    assert "there is no server" in panel._message.value


def test_the_workload_is_the_courses() -> None:
    first, again = workload(30, None, 0), workload(30, 5.0, 0)
    assert [ask.max_tokens for ask in first] == [ask.max_tokens for ask in again]
    assert all(ask.arrival == 0 for ask in first)
    assert all(a.arrival < b.arrival for a, b in zip(again, again[1:], strict=False))
    assert max(ask.max_tokens for ask in workload(500, None, 0)) == 512
    assert len({ask.prompt for ask in first}) == 30


# ---------------------------------------------------------------- the picture

NUMBERS = st.floats(0, 10_000) | st.just(math.nan)


@given(st.lists(st.tuples(st.floats(0, 1e4), NUMBERS, NUMBERS), max_size=40), st.none() | st.integers(1, 500),
       st.text(max_size=30))
def test_any_series_can_be_drawn_within_its_frame(rows, cap, source) -> None:
    rows.sort(key=lambda row: row[0])
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    picture = running_and_waiting(*columns, cap, source)
    root = ElementTree.fromstring(picture.svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    for element in root.iter():
        for name, most in (("x", width), ("y", height)):
            if element.get(name) and element.tag.endswith("text"):
                assert -1 <= float(element.get(name)) <= most, ElementTree.tostring(element)
    assert "nan" not in picture.svg.replace(source, "").lower() or "nan" in source.lower()


def test_the_picture_says_the_peaks_and_refuses_ragged_series() -> None:
    assert running_and_waiting([0, 1], [2, 3], [4, math.nan], 5, "s").alt == "at most 3 of 5 running, 4 waiting. s"
    assert running_and_waiting([0], [math.nan], [1]).alt.startswith("no load yet")
    with pytest.raises(ValueError, match="of one length"):
        running_and_waiting([0], [1, 2], [3])


def test_a_gap_is_left_where_no_answer_came() -> None:
    whole = running_and_waiting([0, 1, 2], [1, 2, 3], [0, 0, 0]).svg
    gap = running_and_waiting([0, 1, 2], [1, math.nan, 3], [0, 0, 0]).svg
    assert gap.count('d="M') == whole.count('d="M')
    assert gap != whole
