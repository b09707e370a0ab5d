"""Panels: what they show, how they take events, what they do with nonsense; and the field cases they must get right."""

from __future__ import annotations

import asyncio
import html
import re
import selectors
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import run_explorers as script
from IPython.core.formatters import DisplayFormatter
from ipywidgets import Checkbox, IntSlider, Text

from labs import explorers, quiz
from labs.explorers.eight import parse_lengths
from labs.explorers.panel import WIDGET_VIEW, LatestWins, put, table_html
from labs.explorers.sigma import uploaded
from labs.svg import Picture

KINDS = pytest.mark.parametrize("make", script.EXPLORERS, ids=lambda make: make.__name__)


class Clock:
    """Seconds that pass only where somebody waits, so that a busy machine changes nothing."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, work: Coroutine) -> None:
        """Run `work` in an event loop that goes by this clock."""
        with asyncio.Runner(loop_factory=self._loop) as runner:
            runner.run(work)

    def _loop(self) -> asyncio.AbstractEventLoop:
        selector = selectors.DefaultSelector()
        look = selector.select

        def select(timeout: float | None = None) -> list:
            self.sleep(max(timeout or 0.0, 0.0))
            return look(0)

        selector.select = select
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = self
        return loop


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The panels' clock, and this file's."""
    own = Clock()
    theirs = SimpleNamespace(monotonic=own, perf_counter=own, sleep=own.sleep)
    monkeypatch.setattr("labs.explorers.panel.time", theirs)
    monkeypatch.setitem(globals(), "time", theirs)
    return own


class Stub(explorers.Panel):
    """A panel with one slider that counts how often it is drawn, and takes its time or fails if told to."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.drawn: list[int] = []
        self.seconds = seconds
        super().__init__({"x": IntSlider(0, -1, 1000)}, self.draw)
        self._courier = None  # nothing is drawn ahead: that is test_ahead.py's

    def draw(self, settings: dict[str, Any]) -> explorers.View:
        time.sleep(self.seconds)
        self.drawn.append(settings["x"])
        if settings["x"] < 0:
            raise ValueError("x must be 0 or more")
        x = str(settings["x"])
        return explorers.View(Picture(f"<svg>{x}</svg>", f"x is {x}"), [(x, "x")], [])


# ---- every control, moved as a browser would -------------------------------------------------------------------------


@KINDS
def test_every_control_at_its_ends_and_in_the_middle(make) -> None:
    assert len(list(script.every_stop(make))) >= 6


@KINDS
def test_loads(make) -> None:
    assert list(script.with_arrivals(make)) or make is explorers.eight_requests


def test_own_files() -> None:
    assert len(list(script.own_files())) == 9


def test_text_that_holds_no_lengths() -> None:
    assert len(list(script.bad_lengths())) == 12


def test_asking() -> None:
    assert len(list(script.asking())) == 2


# ---- the page's numbers ----------------------------------------------------------------------------------------------


def test_the_eight_requests_begin_with_the_pages_numbers() -> None:
    panel = explorers.eight_requests()
    assert script.shown(panel) == ["950 → 950", "25.4 % → 25.4 %", "938 → 0", "79.2 → 1.0"]
    assert panel.view.rows[1] == ["A", "12", "950", "79.2", "12", "1.0"]
    assert "A waits 938 steps" in repr(panel)


def test_the_simulator_begins_with_the_pages_numbers() -> None:
    panel = explorers.simulator()
    assert script.shown(panel) == ["8,942 → 2,206", "20.7 % → 83.7 %", "1,015.0 → 173.6", "4.1x"]
    assert ["normalised latency p50 (steps per token)", "56.1", "9.7"] in panel.view.rows


@pytest.mark.parametrize(("sigma", "static", "continuous"),
                         [(1.1, "20.7 %", "83.7 %"), (0.6, "37.4 %", "94.6 %"), (0.3, "58.2 %", "95.8 %"),
                          (0.1, "81.5 %", "97.1 %")])
def test_the_sweep_gives_the_pages_table(sigma: float, static: str, continuous: str) -> None:
    panel = explorers.sigma_sweep()
    panel.set(sigma=sigma)
    assert script.shown(panel)[:2] == [static, continuous]


def test_queueing_and_service_add_up_to_the_mean() -> None:
    for column in (1, 2):
        mean, queueing, service = (float(row[column].replace(",", "")) for row in explorers.simulator().view.rows[3:6])
        assert mean == pytest.approx(queueing + service, abs=0.11)


def test_an_overloaded_scheduler_is_named_instead_of_given_a_percentile() -> None:
    panel = explorers.simulator()
    panel.set(arrivals="poisson", load=0.5)
    assert script.shown(panel)[2:] == ["overloaded → 1.0", "no steady state"]
    assert panel.view.rows[1][1:] == ["overloaded: no steady state", "1.0"]
    assert "Static is overloaded: work arrives at load 0.50" in panel.view.note
    panel.set(load=1.2)
    assert panel.view.rows[1][1:] == ["overloaded: no steady state"] * 2
    panel.set(load=0.1)
    assert "overloaded" not in str(panel.view.rows) and panel.view.note == ""


def test_under_a_load_the_law_is_a_limit_and_no_forecast_of_utilisation() -> None:
    panel = explorers.sigma_sweep()
    assert "dashed: the law for static, E[L] / E[longest of the group]" in panel.view.picture.svg
    panel.set(arrivals="poisson", load=0.2)
    assert "dots: simulated at load 0.20; dashed: the highest load that static can keep up with (the law)" in (
        panel.view.picture.svg)
    (limit, said), = [number for number in panel.view.numbers if number[1].startswith("the law")]
    assert said == "the law: the highest load that static can keep up with"
    assert limit == f"{100 * float(panel.view.rows[-1][1]):.1f} %"


@pytest.mark.parametrize("name", [name for _, name in explorers.sigma.WORKLOADS[1:-1]])
def test_measured_workloads_are_credited_and_marked_on_the_curve(name: str) -> None:
    panel = explorers.sigma_sweep()
    panel.set(workload=name)
    title = panel.controls["workload"].label
    assert not panel.error and panel.controls["sigma"].disabled
    assert title in panel.view.picture.alt and title in panel.view.note and "Data: " in panel.view.note


# ---- the request that is picked --------------------------------------------------------------------------------------


def test_the_length_slider_writes_into_the_text_and_follows_it() -> None:
    panel = explorers.eight_requests()
    assert panel.controls["length"].max == 1000
    panel.set(request=6, length=100)
    assert panel.values["lengths"] == "12, 15, 20, 31, 44, 60, 100, 950"
    panel.set(lengths="5 7;9\n2000")
    assert [label for label, _ in panel.controls["request"].options] == ["A", "B", "C", "D"]
    assert (panel.values["request"], panel.values["length"]) == (3, 2000)
    panel.reset()
    assert panel.values == explorers.eight_requests().values


def test_typing_goes_through_text_that_cannot_be_read_yet() -> None:
    panel = explorers.eight_requests()
    for words in ("12, 15,", "12, 15, ", "12, 15, 2x", "12, 15, 2"):
        panel.set(lengths=words)
    assert not panel.error and len(panel.view.rows) == 4


@pytest.mark.parametrize(("words", "message"), [
    ("", "at least one output length"), ("12, 0", "from 1 to 100,000 tokens, but there is 0"),
    ("-4", "but there is -4"), ("1e3", "'1e3' is not a whole number"), ("nan", "'nan' is not"),
    ("99999999999999999999", "from 1 to 100,000"), ("3 " * 65, "65 requests are too many to draw")])
def test_what_is_wrong_with_lengths_is_said(words: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_lengths(words)


# ---- field cases -----------------------------------------------------------------------------------------------------


@KINDS
def test_a1_ten_updates_are_one_picture_in_one_widget(make) -> None:
    panel = make()
    children, picture = panel.children, panel.children[3]
    for slots in range(1, 11):
        panel.set(slots=slots)
    assert panel.children == children and panel.children[3] is picture
    assert picture.value.count("<svg") == 1 and f"{10} slots" in picture.value or make is explorers.sigma_sweep


def test_a2_of_fifty_rapid_events_the_last_one_wins(clock: Clock) -> None:
    panel = Stub(seconds=0.2)
    panel.drawn.clear()

    async def drag() -> None:
        for x in range(1, 51):
            panel.controls["x"].value = x
            await asyncio.sleep(0)  # as between two messages of a kernel
        await asyncio.sleep(0.5)

    clock.run(drag())
    assert panel.drawn == [1, 50]
    assert ">50</svg>" in panel.children[3].value


def test_reset_brings_back_what_the_reader_saw_first() -> None:
    panel = explorers.eight_requests()
    panel.set(lengths="30, 90, 15", slots=4)  # as notebook 0 does before it shows the panel
    panel._repr_mimebundle_()
    panel.set(slots=2, lengths="7, 8")
    panel._repr_mimebundle_()
    panel.reset()
    assert (panel.values["lengths"], panel.values["slots"]) == ("30, 90, 15", 4)


def test_a2_events_with_pauses_are_each_drawn_at_once() -> None:
    panel = Stub()
    panel.drawn.clear()

    async def steps() -> None:
        for x in (1, 2, 3):
            await asyncio.sleep(0.03)
            panel.controls["x"].value = x
            assert panel.drawn[-1] == x

    asyncio.run(steps())
    assert panel.drawn == [1, 2, 3]


def test_a2_a_burst_that_goes_on_is_drawn_in_between(clock: Clock) -> None:
    runs: list[float] = []

    async def burst() -> None:
        wins = LatestWins(lambda: runs.append(clock()))
        while clock() < 0.6:
            wins.request()
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)

    clock.run(burst())
    between = [later - earlier for earlier, later in pairwise(runs)]
    assert 6 <= len(runs) <= 8, "at once, at most every tenth of a second, and when it is over"
    assert all(LatestWins.SETTLE <= gap <= LatestWins.LONGEST + 2 * LatestWins.SETTLE for gap in between)
    assert runs[0] == 0.0 < 0.6 <= runs[-1]


def test_a2_looking_at_the_view_draws_what_is_waiting() -> None:
    panel = Stub()

    async def look() -> None:
        panel.set(x=1)
        panel.set(x=2)
        panel.set(x=3)
        assert panel.view.picture.alt == "x is 3" and panel.values == {"x": 3}

    asyncio.run(look())


def test_what_a_notebook_stores_is_what_was_set_last() -> None:
    panel = Stub()

    async def show() -> str:
        panel.set(x=1)
        panel.set(x=2)
        panel.set(x=3)
        return panel._repr_mimebundle_()["text/plain"]

    assert asyncio.run(show()) == "x is 3"


def test_a2_a_loop_that_ended_holds_nothing_up() -> None:
    panel = Stub()

    async def leave() -> None:
        for x in (1, 2, 3):
            panel.set(x=x)

    asyncio.run(leave())
    panel.set(x=4)
    assert panel.drawn[-1] == 4
    asyncio.run(leave())

    async def again() -> None:
        panel.set(x=9)
        await asyncio.sleep(0.05)

    asyncio.run(again())
    assert panel.drawn[-1] == 9


def test_a3_what_a_callback_raises_is_shown_and_the_last_good_picture_stays() -> None:
    panel = Stub()
    panel.set(x=5)
    panel.controls["x"].set_state({"value": -1})
    assert "Not drawn: x must be 0 or more" in panel.children[1].value and 'role="status"' in panel.children[1].value
    assert ">5</svg>" in panel.children[3].value and panel.view.picture.alt == "x is 5" and panel.values == {"x": -1}
    panel.controls["x"].set_state({"value": 6})
    assert "Not drawn" not in panel.children[1].value and ">6</svg>" in panel.children[3].value


def test_a3_an_error_of_our_own_names_its_kind_in_one_line() -> None:
    panel = Stub()
    panel.render = lambda settings: 1 // 0
    panel.set(x=1)
    assert panel.error == "ZeroDivisionError: integer division or modulo by zero"


def test_a3_a_panel_that_fails_from_the_start_says_so() -> None:
    def fail(settings):
        raise RuntimeError("first line\nsecond <b>line</b>")

    panel = explorers.Panel({"x": IntSlider()}, fail)
    assert panel.view is None and "first line second &lt;b&gt;line" in panel.children[1].value
    assert "first line" in panel._repr_mimebundle_()["text/html"]


@KINDS
def test_a6_a_static_viewer_gets_a_picture(make) -> None:
    panel = make()
    bundle, _ = DisplayFormatter().format(panel)
    assert set(bundle) == {"text/plain", "text/html", WIDGET_VIEW}
    assert bundle["text/html"].count("<img alt=") == 1 and "Run the cells" in bundle["text/html"]
    assert bundle["text/plain"] == panel.view.picture.alt


@KINDS
def test_a6_colab_gets_only_the_live_widget(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script.sys.modules, "google.colab", script)
    assert set(make()._repr_mimebundle_()) == {"text/plain", WIDGET_VIEW}


# ---- panels in general -----------------------------------------------------------------------------------------------


def test_set_moves_several_controls_with_one_redraw() -> None:
    panel = explorers.simulator()
    drawn = []
    panel.render = lambda settings: drawn.append(settings) or panel.shown
    panel.set(slots=4, seed=3, requests=1000)
    assert len(drawn) == 1 and drawn[0]["slots"] == 4
    with pytest.raises(ValueError, match="there is no control 'slotz': choose from requests, slots"):
        panel.set(slotz=3)
    panel.reset_button.click()
    assert drawn[-1]["slots"] == 32 and len(drawn) == 2


@pytest.mark.parametrize("lengths", [[5, 6], (5, 6)])
def test_set_takes_a_list_where_the_reader_types_one(lengths) -> None:
    panel = explorers.eight_requests()
    panel.set(lengths=lengths)
    assert panel.controls["lengths"].value == "5, 6" and not panel.error


def test_a_value_that_no_control_takes_leaves_the_panel_working() -> None:
    panel = explorers.simulator()
    with pytest.raises(ValueError, match="requests can't be 7: choose from 10, 20, .*, 100000$"):
        panel.set(requests=7)
    panel.controls["slots"].value = 8
    assert panel.view.picture.alt.count("8 slots") >= 1 and not panel.error


@pytest.mark.parametrize("value, says", [
    (10**9, "slots can't be 1000000000: give it a whole number from 1 to 256"),
    (0, "slots can't be 0: give it a whole number from 1 to 256"),
    (8.5, "slots can't be 8.5: give it a whole number from 1 to 256"),
    ("many", "slots can't be 'many': give it a whole number from 1 to 256"),
    (None, "slots can't be None: give it a whole number from 1 to 256"),
])
def test_set_refuses_what_ipywidgets_would_clamp_in_silence_and_moves_nothing(value, says) -> None:
    panel = explorers.simulator()
    before = panel.values
    with pytest.raises(ValueError, match=re.escape(says)) as raised:
        panel.set(sigma=0.5, slots=value)
    assert panel.values == before and not panel.error
    assert raised.value._render_traceback_() == [f"ValueError: {says}"]
    panel.set(sigma=0.55, slots=16.0)
    assert (panel.values["sigma"], panel.values["slots"]) == (0.55, 16)


@KINDS
def test_set_takes_what_every_control_says_and_nothing_beyond(make) -> None:
    panel = make()
    for name, control in panel.controls.items():
        if hasattr(control, "max") and not control.disabled:
            panel.set(**{name: control.max})
            with pytest.raises(ValueError, match=f"{name} can't be .*: give it a.* number from .* to "):
                panel.set(**{name: control.max + 1})
            assert control.value == control.max


@KINDS
def test_labels_have_room_and_controls_can_be_tabbed_to(make) -> None:
    for control in make().controls.values():
        if description := getattr(control, "description", ""):
            assert 6.5 * len(description) <= 190, f"{description} is cut off"
            assert getattr(control, "tabbable", None) is not False


def test_text_in_tables_and_numbers_is_escaped() -> None:
    table = ElementTree.fromstring(table_html([["what", "how"], ["a", "1"]]))
    looks = [cell.get("style") for cell in table.iter() if cell.tag in ("th", "td")]
    cell = "padding:3px 14px 3px 0;text-align:"
    assert looks == [f"{cell}left", f"{cell}right", f"{cell}left;font-weight:normal", f"{cell}right"]
    assert "&lt;b&gt;" in table_html([["<b>"], ["<i>"]]) and "<i>" not in table_html([["<b>"], ["<i>"]])


def test_uploads_of_both_versions_are_read() -> None:
    assert uploaded({}) is None and uploaded(()) is None
    assert uploaded({"a.csv": {"metadata": {}, "content": b"x"}}) == ("a.csv", b"x")
    assert uploaded(({"name": "a.csv", "content": memoryview(b"x")},)) == ("a.csv", b"x")


# ---- predictions, the quiz, progress ---------------------------------------------------------------------------------


def test_a_prediction_is_committed_once() -> None:
    said: list[float] = []
    panel = explorers.prediction("How much?", 0, 1, "of the slot-steps", said.append, start=0.25)
    assert "committed earlier: 0.25 of the slot-steps" in panel.children[2].value and panel.slider.value == 0.25
    panel.slider.value = 0.4
    panel.button.click()
    assert said == [0.4] and "committed: 0.4 of the slot-steps" in panel.children[2].value and panel.button.disabled
    panel.commit()
    assert said == [0.4]


@pytest.mark.parametrize("make", [explorers.eight_requests, explorers.simulator, explorers.sigma_sweep,
                                  explorers.step_player, explorers.dial])
def test_every_control_stands_on_the_panel_once_and_reset_after_the_first(make) -> None:
    def leaves(widget):
        return [widget] if not hasattr(widget, "children") else [leaf for child in widget.children
                                                                 for leaf in leaves(child)]

    panel = make()
    shown = leaves(panel.children[0])
    for control in (*panel.controls.values(), panel.reset_button):
        assert sum(each is control for each in shown) == 1
    if make is explorers.sigma_sweep:  # what matters only for a file comes last
        names = [name for each in shown for name, control in panel.controls.items() if each is control]
        assert names[-3:] == ["file", "column", "pasted"]


@pytest.mark.parametrize(("low", "high", "step"), [(0, 10, 1), (5, 15, 1), (0, 9, 0.09), (0.5, 10.5, 0.1)])
def test_a_prediction_is_whole_where_that_is_fine_enough(low: float, high: float, step: float) -> None:
    slider = explorers.prediction("How many?", low, high, "", lambda value: None).slider
    assert (slider.min, slider.max, slider.step) == (low, high, pytest.approx(step))
    assert isinstance(slider.value, int) == (step == 1)


def test_a_prediction_that_cannot_be_kept_says_so() -> None:
    def refuse(value: float) -> None:
        raise OSError("the disk is full")

    panel = explorers.prediction("How much?", 0, 100, "%", refuse)
    panel.button.click()
    assert "Not kept: OSError: the disk is full" in panel.children[2].value and not panel.button.disabled
    with pytest.raises(ValueError, match="low must be below high"):
        explorers.prediction("?", 5, 5, "", refuse)


@dataclass
class Reply:
    passed: bool
    message: str


@dataclass
class Asked:
    prompt: str
    choices: tuple[str, ...] | None
    answer: str
    unit: str = ""
    solution: str = "7"

    def mark(self, reply: str) -> Reply:
        if reply == "what":
            raise ValueError("Reply with a number.")
        return Reply(reply in ("yes", "7"), "Because <so>.")


def test_a_quiz_goes_from_question_to_question() -> None:
    heard: list[tuple[str, bool]] = []
    panel = explorers.quiz([Asked("Is it?", ("no", "yes"), "It is."), Asked("How many?", None, "Seven.", "steps")],
                           lambda question, result: heard.append((question.prompt, result.passed)))
    prompt, _, button, said = panel.children
    assert "It is." not in prompt.value + said.value and "1 of 2" in prompt.value
    button.click()
    assert "Choose or write an answer first" in said.value and heard == []
    panel.reply.value = "no"
    button.click()
    assert "Not quite. Because &lt;so&gt;." in said.value and "It is." in said.value and panel.reply.disabled
    button.click()
    assert isinstance(panel.reply, Text) and "How many?" in prompt.value and "Seven." not in said.value
    panel.reply.value = "what"
    button.click()
    assert "Reply with a number." in said.value and len(heard) == 1
    panel.reply.value = "7"
    button.click()
    assert "Right. Because" in said.value and button.description == "Finish"
    button.click()
    assert "Done: 1 of 2" in prompt.value and heard == [("Is it?", False), ("How many?", True)]


def test_the_courses_own_questions_can_be_asked() -> None:
    for question in quiz.QUESTIONS:
        panel = explorers.quiz([question], lambda *_: None)
        assert question.answer not in panel._repr_mimebundle_()["text/html"]
        right = next((c.text for c in question.options if c.right), None)
        panel.reply.value = right or str(question.value)
        panel.press()
        assert "Right." in panel.children[3].value, question.id


def test_who_misses_everything_is_asked_everything_all_the_same_and_told_at_the_second_miss() -> None:
    asked: list[str] = []
    panel = explorers.quiz(quiz.of_the_page(), lambda question, marked: asked.append(question.id), own_words=True)
    for _ in range(60):
        question = panel.questions[panel.at]
        if panel._asks_words:
            panel.words.value = "I don't know"
        wrong = next((c.text for c in question.options if not c.right), None)
        panel.reply.value = wrong or "123456"
        panel.press()
        told = f"The right reply is: {question.solution}."
        assert (told in html.unescape(panel.children[3].value)) == (asked.count(question.id) > 1)
        panel.press()
    assert set(asked) == {question.id for question in quiz.of_the_page()}
    assert set(asked[:30]) == set(asked), "the new ones come within the first thirty"


def test_the_quiz_says_that_something_was_missed_and_how_to_go_on() -> None:
    panel = explorers.quiz([Asked("one?", None, "7")], lambda *_: None, note="1 of 3 questions now.")
    assert "1 of 3 questions now." in panel.children[3].value
    panel.reply.value = "5"
    panel.press()
    panel.press()
    done = "Done: 0 of 1 right when first asked here. Run this cell again for the 1 question that you missed."
    assert done in panel.children[0].value


def test_a_choice_can_be_set_by_its_label_and_a_refusal_says_what_there_is() -> None:
    panel = explorers.eight_requests()
    panel.set(request="C")
    assert panel.values["request"] == 2
    with pytest.raises(ValueError, match=r"request can't be 'Z': choose from 0, 1, .*7 or 'A', 'B', .*'H'$"):
        panel.set(request="Z")
    panel.controls["lengths"].value = "1, 2, x"
    with pytest.raises(ValueError, match=r"lengths can't be 5: give it a text, such as 12, 15, 800$"):
        panel.set(lengths=5)
    with pytest.raises(ValueError, match=r"slots can't be True: give it a whole number from 1 to 32$"):
        panel.set(slots=True)
    with pytest.raises(ValueError, match=r"file can't be 'log.csv': choose the file with its button, or read it in a "):
        explorers.sigma_sweep().set(file="log.csv")
    simulator = explorers.simulator()
    simulator.set(requests="1,000")
    assert simulator.values["requests"] == 1000


def test_a_box_to_tick_takes_true_and_false() -> None:
    box = Checkbox(value=False)
    put("batching", box, True)
    assert box.value is True
    with pytest.raises(ValueError, match=r"^batching can't be 'on': give it True or False$"):
        put("batching", box, "on")


def test_only_the_sigma_that_counts_is_shown() -> None:
    panel = explorers.sigma_sweep()
    assert panel.controls["sigma"].layout.display is None
    panel.set(workload=explorers.sigma.WORKLOADS[1][1])
    assert panel.controls["sigma"].layout.display == "none"


def test_enter_in_the_answer_is_the_button() -> None:
    panel = explorers.quiz([Asked("one?", None, "7"), Asked("two?", None, "7")], lambda question, marked: None)
    panel.reply.value = "5"
    panel.reply._handle_custom_msg({"event": "submit"}, [])
    assert panel.reply.disabled  # marked
    panel.reply._handle_custom_msg({"event": "something else"}, [])
    assert panel.at == 0
    panel.reply._handle_custom_msg({"event": "submit"}, [])
    assert panel.at == 1


def test_a_quiz_needs_questions() -> None:
    with pytest.raises(ValueError, match="at least one question"):
        explorers.quiz([], lambda *_: None)


def test_with_own_words_nothing_opens_before_they_are_written_and_a_missed_question_comes_back() -> None:
    replies: list[tuple[str, bool]] = []
    questions = quiz.of_the_page()
    panel = explorers.quiz(questions, lambda q, result: replies.append((q.id, result.passed)), own_words=True)
    wrong, right = "950", "12"
    panel.reply.value = wrong
    panel.press()
    assert "in your own words first" in panel._said.value
    assert replies == []
    assert questions[0].answer not in panel._said.value
    panel.words.value = "Groups against steps <b>."
    panel.press()
    assert replies == [("granularity", False)]
    assert "Model answer" in panel._said.value
    assert panel.words.disabled
    assert panel.words.value == "Groups against steps <b>."  # it stays beside the model answer
    for _ in range(3):
        panel.press()
        panel.words.value = "x"
        question = panel.questions[panel.at]
        panel.reply.value = next((o.text for o in question.options if o.right), str(question.value))
        panel.press()
    panel.press()
    assert "Once more." in panel._prompt.value
    assert len(panel._place.children) == 1  # only the marked part, this time
    panel.reply.value = right
    panel.press()
    assert replies[-1] == ("granularity", True)
    panel.press()
    assert "5 of 12." in panel._prompt.value


def test_own_words_are_never_markup_and_the_count_is_of_first_tries() -> None:
    questions = quiz.of_the_page()[:2]
    panel = explorers.quiz(questions, lambda *_: None, own_words=True)
    for reply in ("950", str(questions[1].value), "12"):
        panel.words.value = "<script>"
        panel.reply.value = reply
        panel.press()
        panel.press()
    assert "Done: 1 of 2 right when first asked here.</div>" in panel._prompt.value


def test_progress_prints_nothing(capfd: pytest.CaptureFixture) -> None:
    bar, progress = explorers.progress_bar(5)
    before = bar._repr_mimebundle_()
    for i in range(5):
        progress(i + 1, 5)
    assert "5 of 5" in bar.children[0].children[1].value and bar._repr_mimebundle_() == before
    assert capfd.readouterr() == ("", "")


def test_a_load_of_exactly_the_limit_is_an_overload() -> None:
    panel = explorers.simulator()
    panel.set(sigma=0.0, requests=10_000, arrivals="poisson", load=1.0)  # equal lengths: both limits are 1
    assert sum("overloaded" in value for row in panel.view.rows for value in row) >= 2


ONE_OF_MANY = re.compile(r"(?<![\d.,:/x])\b1 (?!is\b|has\b|as\b|was\b|takes\b)[a-z-]+s\b")
PAGE_OF_ONE = ('vllm:request_generation_tokens_bucket{le="1.0"} 1\n'
               'vllm:request_generation_tokens_bucket{le="+Inf"} 1\n')
SMALLEST = {
    explorers.eight_requests: [{"lengths": "1", "slots": 1}, {"lengths": "1, 2", "slots": 2},
                               {"lengths": "2, 2", "slots": 1}, {"lengths": "3, 2", "slots": 2, "request": 1}],
    explorers.simulator: [{"requests": 10, "slots": slots, "mu": 1.0, "sigma": 0.0, "arrivals": arrivals}
                          for slots in (1, 10) for arrivals in ("backlog", "poisson")],
    explorers.sigma_sweep: [{"slots": 1}, {"workload": "own", "pasted": PAGE_OF_ONE, "slots": 1}],
}


@pytest.mark.parametrize("make", SMALLEST, ids=lambda make: make.__name__)
def test_one_slot_is_no_slots(make) -> None:
    panel = make()
    for settings in SMALLEST[make]:
        panel.set(**settings)
        assert not panel.error
        shown = " ".join([panel.summary(), *(str(getattr(child, "value", "")) for child in panel.children)])
        said = re.sub(r"<(?!svg|img)[^>]*>", " ", html.unescape(shown))
        assert [found[0] for found in ONE_OF_MANY.finditer(said)] == [], settings
