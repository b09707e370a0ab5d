"""Pictures sent ahead: equal to what the kernel says once the reader is there, and missed by nobody where not sent."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
import time
from types import ModuleType

import ipywidgets as w
import pytest

from labs import explorers
from labs.explorers import ahead

PANELS = {"eight_requests": explorers.eight_requests, "simulator": explorers.simulator,
          "sigma_sweep": explorers.sigma_sweep, "dial": explorers.dial, "step_player": explorers.step_player}
SLIDERS = [(kind, name) for kind, make in PANELS.items() for panel in [make()]
           for name, control in panel.controls.items() if ahead.neighbours(control) and panel.foresees(name)]


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """Here a busy machine may take its time."""
    monkeypatch.setattr(explorers.Panel, "QUICK", 100.0)


def sent_after(panel: explorers.Panel, *moves: tuple[str, object], enough: int | None = None) -> list[dict]:
    """What is sent once a reader has moved controls, one soon after the other: `enough`, or all in a second."""
    sent: list[dict] = []
    panel._courier.send = sent.append

    async def move() -> None:
        for name, value in moves:
            panel.controls[name].value = value
            await asyncio.sleep(0.001)
        until = time.monotonic() + (1 if enough is None else 20)
        while time.monotonic() < until and len(sent) != enough:
            await asyncio.sleep(0.02)

    asyncio.run(move())
    return list(sent)


@pytest.mark.parametrize(("kind", "name"), SLIDERS)
def test_a_frame_is_what_the_panel_shows_once_it_is_there(kind: str, name: str) -> None:
    panel = PANELS[kind]()
    _, start = ahead.neighbours(panel.controls[name])[0]
    enough = 1 + len(ahead.neighbours(_at(start, panel, name).controls[name]))
    panel = PANELS[kind]()
    frames = sent_after(panel, (name, start), enough=enough)
    here = (ahead.state(panel.controls[name]), start)  # the way back
    beside = [here, *ahead.neighbours(panel.controls[name])]
    assert [frame["value"] for frame in frames] == [state for state, _ in beside]
    for frame, (_, there) in zip(frames, beside, strict=True):
        assert (frame["name"], frame["base"]) == (name, ahead.base(panel.controls))
        panel.set(**{name: there})
        assert {place: widget.value for place, widget in panel._places.items()} == frame["shows"]
        panel.set(**{name: start})


def test_neighbours_are_where_a_key_leads() -> None:
    def there(control: w.Widget) -> list[object]:
        return [state for state, _ in ahead.neighbours(control)]

    assert there(w.IntSlider(value=20, min=1, max=64)) == [21, 19, 25, 15, 64, 1]
    assert there(w.IntSlider(value=20, min=0, max=100, step=10)) == [30, 10, 70, 0, 100]
    assert there(w.IntSlider(value=1, min=1, max=3)) == [2, 3]
    assert there(w.IntSlider(value=2, min=1, max=3)) == [3, 1]
    assert there(w.IntSlider(value=2, min=2, max=2)) == []
    assert there(w.FloatSlider(value=0.3, min=0.0, max=2.0, step=0.1)) == [0.4, 0.2, 0.8, 0.0, 2.0]
    picks = w.SelectionSlider(value=20, options=[("a", 10), ("b", 20), ("c", 30), ("d", 40)])
    assert ahead.neighbours(picks) == [(2, 30), (0, 10), (3, 40)]
    assert there(w.Text("7")) == there(w.Dropdown(options=[1, 2])) == []


def test_settings_are_compared_as_the_browser_has_them() -> None:
    controls = {"n": w.IntSlider(value=3), "pick": w.Dropdown(value="b", options=["a", "b"]), "file": w.FileUpload()}
    assert ahead.base(controls) == {"n": 3, "pick": 1}


def test_where_a_slider_can_be() -> None:
    picks = w.SelectionSlider(value=20, options=[("a", 10), ("b", 20)])
    whole, part = w.IntSlider(value=1, min=1, max=3), w.FloatSlider(value=0.3, min=0.0, max=2.0, step=0.1)
    assert (ahead.at(picks, 0), ahead.at(whole, 3.0), ahead.at(part, 0.1 * 3)) == ([(0, 10)], [(3, 3)], [(0.3, 0.3)])
    outside = [(picks, 2), (picks, -1), (whole, 4), (part, -0.1), (whole, None), (part, float("nan")), (whole, "2"),
               (w.Text("7"), 1), (w.Dropdown(options=[1, 2]), 1)]
    assert [ahead.at(*where) for where in outside] == [[]] * len(outside)


def aimed(panel: explorers.Panel, name: str, state: object) -> list[dict]:
    """The frames that are sent when the browser asks for a control in `state`, before the word that it is answered."""
    panel._courier.send = (sent := []).append
    panel._aimed({"name": name, "state": state})
    assert sent.pop() == {"answered": True}
    return sent


@pytest.mark.parametrize("kind", PANELS)
def test_what_is_aimed_at_is_what_the_panel_shows_once_it_is_there(kind: str) -> None:
    panel = PANELS[kind]()
    assert panel._courier.aims == [name for name in panel.controls if panel.foresees(name)]
    for name, control in panel.controls.items():
        ends = (0, len(control.options) - 1) if isinstance(control, w.SelectionSlider) else (
            getattr(control, "min", None), getattr(control, "max", None))
        for end in ends:
            frames = aimed(panel, name, end)
            if not ahead.at(control, end) or not panel.foresees(name):
                assert frames == []
                continue
            (state, there), = ahead.at(control, end)
            here = panel.values[name]
            assert [(frame["name"], frame["value"]) for frame in frames] == [(name, state)]
            panel.set(**{name: there})
            assert {place: widget.value for place, widget in panel._places.items()} == frames[0]["shows"]
            panel.set(**{name: here})


@pytest.mark.parametrize("asked", [{}, {"name": "slots"}, {"name": "no such", "state": 3}, {"name": 7, "state": 3},
                                   {"name": [1], "state": 3}, {"name": "slots", "state": 10**9},
                                   {"name": "slots", "state": [1]}, {"name": "slots", "state": None}])
def test_what_makes_no_sense_is_answered_and_nothing_drawn(asked: dict) -> None:
    panel = explorers.eight_requests()
    assert aimed(panel, "slots", 12), "what makes sense is drawn"
    panel._courier.send = (sent := []).append
    panel._aimed(asked)
    assert sent == [{"answered": True}]


def test_the_browser_is_heard() -> None:
    panel = explorers.eight_requests()
    panel._courier.send = (sent := []).append
    panel._courier._handle_custom_msg({"name": "slots", "state": 12}, [])
    assert [message.get("value") for message in sent] == [12, None]


def test_a_picture_that_takes_long_is_drawn_for_a_pointer_once_and_no_other_slider_minds() -> None:
    panel = explorers.eight_requests()
    panel.QUICK = 0.0  # as if it took long
    assert len(aimed(panel, "slots", 13)) == 1, "nobody knows yet that it takes long"
    assert aimed(panel, "slots", 14) == []
    other = next(name for name in panel.controls if name != "slots" and ahead.neighbours(panel.controls[name]))
    assert len(aimed(panel, other, ahead.neighbours(panel.controls[other])[0][0])) == 1
    panel.set(slots=9)
    assert len(aimed(panel, "slots", 14)) == 1, "elsewhere it may be quick"


def test_what_was_sent_is_void_once_something_else_than_a_slider_changes() -> None:
    panel = explorers.sigma_sweep()
    assert {message["name"] for message in sent_after(panel, ("seed", 1))} == {"seed"}
    panel._courier.send = (sent := []).append
    panel.QUICK = 0.0  # as if it took long
    panel.controls["pasted"].value = "nothing that is read yet"
    assert [(message["name"], "shows" in message) for message in sent] == [("", False)]
    panel.controls["pasted"].value = "nor is this"
    assert len(sent) == 1, "there is nothing more to take back"


def test_who_has_moved_on_gets_no_old_picture() -> None:
    panel = explorers.simulator()
    frames = sent_after(panel, ("slots", 40), ("seed", 3))
    beside = [state for state, _ in ahead.neighbours(panel.controls["seed"])]
    last = [frame for frame in frames if frame["generation"] == panel._generation and "shows" in frame]
    assert [(frame["name"], frame["value"]) for frame in last] == [("seed", state) for state in (3, *beside)]


def test_what_cannot_be_drawn_ahead_is_left_for_the_reader_to_meet(monkeypatch) -> None:
    panel = explorers.eight_requests()
    good = panel.render
    monkeypatch.setattr(panel, "render", lambda settings: good(settings) if settings["slots"] < 10 else 1 / 0)
    frames = sent_after(panel, ("slots", 9))
    assert [frame["value"] for frame in frames] == [9, 8, 4, 1]
    assert not panel.error


def test_the_kernel_has_the_last_word_even_if_it_says_what_it_said(monkeypatch) -> None:
    """The browser may show a picture sent ahead: an answer that equals the one before must be sent again."""
    panel, again = explorers.eight_requests(), []
    for name, place in panel._places.items():
        monkeypatch.setattr(place, "send_state", lambda key=None, name=name: again.append(name))
    panel.render_now()
    assert again == [], "nothing was sent ahead"
    panel._sent = True
    panel.render_now()
    assert again == list(panel._places)
    again.clear()
    panel.set(slots=9)
    assert set(again) == {"picture", "numbers"}, "what has changed is sent by itself"


def test_a_knob_that_changes_the_steps_is_not_drawn_ahead() -> None:
    panel = explorers.step_player("memory too short")
    assert sent_after(panel, ("num_gpu_blocks", panel.controls["num_gpu_blocks"].value - 1)) == []


def test_a_slow_picture_is_not_drawn_ahead(monkeypatch) -> None:
    panel = explorers.eight_requests()
    monkeypatch.setattr(panel, "QUICK", 0.0)
    assert sent_after(panel, ("slots", 9)) == []


@pytest.mark.parametrize("where", ["no anywidget", "Colab"])
def test_without_a_courier_the_panel_is_the_same(monkeypatch, where: str) -> None:
    shown = {place: widget.value for place, widget in _at(9, explorers.eight_requests())._places.items()}
    if where == "Colab":
        monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    else:
        monkeypatch.setattr(ahead, "anywidget", None)
    panel = _at(9, explorers.eight_requests())
    assert panel._courier is None

    assert {place: len(widget.value) for place, widget in panel._places.items()} == {
        place: len(html) for place, html in shown.items()}


def _at(value: object, panel: explorers.Panel, name: str = "slots") -> explorers.Panel:
    panel.set(**{name: value})
    return panel


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process as Unix does")
def test_a_kernel_that_stands_still_keeps_nobody_waiting(lab, chrome) -> None:
    """One step further the picture is there without the kernel; what the kernel says once it runs is the same."""
    from browser_lab import opened

    book = lab.notebook("ahead.ipynb", started("eight_requests()"))
    with opened(chrome, lab, book) as session:
        page = session.page
        picture, handle = page.locator("svg[role=img]"), page.locator(".noUi-handle").first
        kernel = kernel_of(page)

        def press(key: str) -> str:
            handle.focus()
            page.keyboard.press(key)
            page.wait_for_timeout(500)
            return picture.inner_html()

        press("ArrowRight")
        page.wait_for_timeout(1500)  # what lies beside is drawn
        os.kill(kernel, signal.SIGSTOP)
        try:
            before = picture.inner_html()
            there = press("ArrowRight")
            assert "10 slots" in there
            assert there != before
            assert press("ArrowRight") == there, "two steps further only the kernel can say"
        finally:
            os.kill(kernel, signal.SIGCONT)
        page.wait_for_timeout(2000)
        assert "11 slots" in picture.inner_html()
        assert press("ArrowLeft") == there
        assert session.problems == []


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process as Unix does")
def test_every_key_of_a_slider_is_answered_while_the_kernel_stands_still(lab, chrome) -> None:
    from browser_lab import numbers, opened

    sent = "frames = open('frames.txt', 'a', buffering=1); send = panel._courier.send\n"
    sent += "panel._courier.send = lambda frame: (send(frame), print(*frame, file=frames))\npanel"
    with opened(chrome, lab, lab.notebook("every_key.ipynb", started("simulator()") + "\n" + sent)) as session:
        page = session.page
        kernel, output = kernel_of(page), page.locator(".jp-OutputArea").first
        handle = page.locator(".widget-slider").filter(has_text="slots").first.locator(".noUi-handle")
        own, seen, frames = explorers.simulator(), [], lab.folder / "frames.txt"

        def arrived() -> list[str]:
            """What was sent since the last picture that the kernel drew: for the way back, and for each key."""
            return frames.read_text().rpartition("generation name base\n")[2].splitlines()

        for key in ("ArrowRight", "PageUp", "PageDown", "ArrowLeft", "End", "Home", "PageUp"):
            handle.focus()
            frames.write_text("")
            page.keyboard.press("ArrowUp" if handle.get_attribute("aria-valuenow") == "1.0" else "ArrowDown")
            page.wait_for_timeout(300)
            own.set(slots=int(float(handle.get_attribute("aria-valuenow"))))
            for _ in range(200):
                if len(arrived()) > len(ahead.neighbours(own.controls["slots"])):
                    break
                page.wait_for_timeout(100)
            page.wait_for_timeout(500)
            os.kill(kernel, signal.SIGSTOP)
            try:
                page.keyboard.press(key)
                page.wait_for_timeout(500)
                there = float(handle.get_attribute("aria-valuenow"))
                own.set(slots=int(there))
                assert numbers(output) == [shown for shown, _ in own.view.numbers], (key, there)
                seen.append(there)
            finally:
                os.kill(kernel, signal.SIGCONT)
            page.wait_for_timeout(1000)
        assert len(set(seen)) == len(seen), seen
        assert session.problems == []


def started(make: str) -> str:
    """Code for a panel that counts what the browser asks for."""
    return (f"import os; from labs import explorers\nexplorers.Panel.QUICK = 100.0  # here a machine may be busy\n"
            f"print('kernel', os.getpid()); panel = explorers.{make}\n"
            "asks = []; panel._courier.on_msg(lambda *message: asks.append(message[1])); panel")


def kernel_of(page) -> int:
    """The kernel's process, once the panel is there."""
    page.locator("svg[role=img]").first.wait_for()
    return int(page.get_by_text(re.compile(r"^kernel \d+")).inner_text().split()[1])


def point(page, slider, share: float) -> None:
    """Move the mouse to a place of the slider's track."""
    box = slider.locator(".noUi-base").bounding_box()
    page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process as Unix does")
@pytest.mark.parametrize(("make", "name", "share", "zoom"), [
    ("eight_requests()", "slots", 0.8, 1), ("sigma_sweep()", "sigma", 0.3, 1), ("simulator()", "requests", 0.6, 1),
    ("simulator()", "slots", 0.613, 2), ("simulator()", "slots", 0.377, 1.25), ("dial()", "requests a second", 0.9, 1)])
def test_where_the_pointer_rests_a_press_needs_no_kernel(lab, chrome, make: str, name: str, share: float,
                                                         zoom: float) -> None:
    """What a press on the track would show is drawn while the reader aims: far off, it is there without the kernel."""
    from browser_lab import numbers, opened

    own = eval(f"explorers.{make}")
    control = next(control for control in own.controls.values() if name in control.description)
    with opened(chrome, lab, lab.notebook("aim.ipynb", started(make)), int(1300 * zoom), int(1200 * zoom),
                zoom=zoom) as session:
        page = session.page
        kernel, output = kernel_of(page), page.locator(".jp-OutputArea").first
        slider = page.locator(".widget-slider").filter(has_text=name).first
        slider.scroll_into_view_if_needed()
        page.wait_for_timeout(500)
        point(page, slider, share - 0.1)
        point(page, slider, share)
        page.wait_for_timeout(1500)
        before = numbers(output)
        os.kill(kernel, signal.SIGSTOP)
        try:
            page.mouse.down()
            page.mouse.up()
            page.wait_for_timeout(500)
            there = ahead.at(control, float(slider.locator(".noUi-handle").get_attribute("aria-valuenow")))
            assert there not in [[near] for near in ahead.neighbours(control)], "a press is a long way"
            own.set(**{next(key for key, its in own.controls.items() if its is control): there[0][1]})
            shown = [shown for shown, _ in own.view.numbers]
            assert numbers(output) == shown != before
        finally:
            os.kill(kernel, signal.SIGCONT)
        page.wait_for_timeout(1500)
        assert numbers(output) == shown
        assert session.problems == []


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process as Unix does")
def test_the_pointer_asks_for_one_thing_at_a_time_and_only_where_it_rests(lab, chrome) -> None:
    from browser_lab import opened

    own = explorers.simulator()
    book = lab.notebook("asks.ipynb", started("simulator()"), "print('asked', len(asks), asks[-1:])")
    with opened(chrome, lab, book) as session:
        page = session.page
        kernel = kernel_of(page)

        def asked() -> list[str]:
            page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
            page.evaluate("window.jupyterapp.commands.execute('notebook:run-cell')")
            page.wait_for_timeout(700)
            return page.get_by_text(re.compile(r"^asked \d+")).inner_text().split(maxsplit=2)[1:]

        slots = page.locator(".widget-slider").filter(has_text="slots").first
        point(page, slots, 0.2)
        page.wait_for_timeout(1000)
        assert asked()[0] == "1"
        page.evaluate("""() => {  // all at once, so that no pause between two of them is a rest
            for (const track of document.querySelectorAll(".noUi-base")) {
                const { left, top, width } = track.getBoundingClientRect();
                for (const share of [0.3, 0.6, 0.9])
                    track.dispatchEvent(new MouseEvent("mousemove", {
                        bubbles: true, clientX: left + share * width, clientY: top }));
            }
            document.body.dispatchEvent(new MouseEvent("mousemove", { bubbles: true }));
        }""")
        slots.locator(".noUi-handle").hover()
        page.wait_for_timeout(300)
        load = page.locator(".widget-slider").filter(has_text="load").first
        if load.is_visible():  # disabled, as long as nobody arrives
            point(page, load, 0.5)
            page.wait_for_timeout(300)
        page.mouse.move(5, 5)
        assert asked()[0] == "1"
        os.kill(kernel, signal.SIGSTOP)
        try:
            for i in range(20):
                point(page, slots, 0.3 + 0.02 * i)
                page.wait_for_timeout(90)
        finally:
            os.kill(kernel, signal.SIGCONT)
        page.wait_for_timeout(1000)
        number, last = asked()
        assert int(number) <= 3, "the first, and once it was answered the newest"
        slider = own.controls["slots"]
        newest = slider.min + 0.68 * (slider.max - slider.min)
        assert float(re.search(r"'state': ([\d.]+)", last)[1]) == pytest.approx(newest, abs=2)
        page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
        page.wait_for_timeout(2500)
        for share in (0.2, 0.5, 0.8):
            point(page, slots, share)
            page.wait_for_timeout(150)
        assert [problem for problem in session.problems if "Cannot send" in problem or "page" in problem] == []


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize(("make", "name"), [("eight_requests()", "slots"), ("step_player('memory too short')", "step"),
                                            ("step_player('memory too short')", "num_gpu_blocks")])
def test_after_any_keys_and_presses_it_shows_what_the_slider_says(lab, chrome, make: str, name: str) -> None:
    """Fast and slow, to and fro: once it rests, the numbers are those of where the slider is."""
    from browser_lab import numbers, opened

    own, rng = eval(f"explorers.{make}"), random.Random(0)
    keys = ["ArrowLeft", "ArrowRight"] * 3 + ["PageUp", "PageDown", "Home", "End"]
    with opened(chrome, lab, lab.notebook("keys.ipynb", f"from labs import explorers\nexplorers.{make}")) as session:
        page = session.page
        page.locator("svg[role=img]").first.wait_for()
        slider = page.locator(".widget-slider").filter(has_text=name).first
        for _ in range(25):
            slider.locator(".noUi-handle").focus()
            for _ in range(rng.randint(1, 5)):
                if rng.random() < 0.7:
                    page.keyboard.press(rng.choice(keys))
                else:
                    box = slider.locator(".noUi-base").bounding_box()
                    page.mouse.move(box["x"] + rng.random() * box["width"], box["y"] + box["height"] / 2)
                    page.wait_for_timeout(rng.choice([0, 50, 250]))
                    if rng.random() < 0.7:
                        page.mouse.down()
                        page.mouse.up()
                page.wait_for_timeout(rng.choice([0, 0, 10, 25, 60, 250]))
            page.wait_for_timeout(900)
            for moved in dict.fromkeys([name, "step"]):  # where a knob has been on its way, the step may have changed
                if moved in own.controls:
                    handle = page.locator(".widget-slider").filter(has_text=moved).first.locator(".noUi-handle")
                    own.set(**{moved: int(float(handle.get_attribute("aria-valuenow")))})
            assert numbers(page.locator(".jp-OutputArea").first) == [shown for shown, _ in own.view.numbers]
            assert page.locator("svg[role=img]").first.locator("title").first.text_content() == own.view.picture.alt
        assert session.problems == []
