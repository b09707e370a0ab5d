"""What asks the reader for something: a prediction, questions; and a progress bar for what takes a while."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import ipywidgets as w

from labs.explorers.panel import MOST, Displayed, flow, message_html, sentence
from labs.words import many

WIDE = "min(700px, 100%)"


def prediction(question: str, low: float, high: float, unit: str, on_commit: Callable[[float], Any],
               start: float | None = None) -> Prediction:
    """A slider from `low` to `high` and a button that hands the chosen value to `on_commit`, once.

    `start` is an answer given earlier. Whole numbers if `low` and `high` are.
    """
    return Prediction(question, low, high, unit, on_commit, start)


class Prediction(Displayed):
    """A question to be answered with a number, before the cell that reveals it."""

    def __init__(self, question: str, low: float, high: float, unit: str, on_commit: Callable[[float], Any],
                 start: float | None = None) -> None:
        if not low < high:
            raise ValueError(f"low must be below high, got {low} and {high}")
        self.question, self.unit, self._on_commit = question, unit, on_commit
        self.committed: float | None = None
        whole = float(low).is_integer() and float(high).is_integer() and high - low >= 10
        kind, step = (w.IntSlider, 1) if whole else (w.FloatSlider, (high - low) / 100)
        begin = low if start is None else min(max(start, low), high)  # the middle would be a hint, and often a good one
        number = int if whole else float
        self.slider = kind(
            value=number(begin), min=number(low), max=number(high), step=step,
            description="your answer", style={"description_width": "initial"},
            layout=w.Layout(width="480px", max_width=MOST))
        self.button = w.Button(description="Commit", button_style="primary", icon="check")
        self.button.on_click(lambda _: self.commit())
        self._said = w.HTML(message_html("" if start is None else f"committed earlier: {self._with_unit(start)}"))
        title = w.HTML(f'<div style="font-size:15px;line-height:21px;font-weight:600">{escape(question)}</div>')
        units = w.HTML(f'<span style="font-size:14px;margin-right:16px">{escape(unit)}</span>')
        super().__init__([title, flow([self.slider, units, self.button]), self._said])

    def commit(self) -> None:
        """Take the slider's value as the answer, and hold it: an answer given after the reveal is no prediction."""
        if self.committed is not None:
            return
        value = self.slider.value
        try:
            self._on_commit(value)
        except Exception as error:  # the reader must see that nothing was kept
            self._said.value = message_html(f"Not kept: {sentence(error)}", bad=True)
            return
        self.committed = value
        self.slider.disabled = self.button.disabled = True
        self._said.value = message_html(f"committed: {self._with_unit(value)}")

    def summary(self) -> str:
        """The question."""
        return f"Predict: {self.question}"

    def _with_unit(self, value: float) -> str:
        return f"{value:,.4g} {self.unit}".strip() if value != int(value) else f"{int(value):,} {self.unit}".strip()


def quiz(questions: Sequence[Any], on_answer: Callable[[Any, Any], Any], own_words: bool = False,
         note: str = "") -> Quiz:
    """Questions one after another; `on_answer(question, result)` is called after each reply.

    With `own_words` the reader first writes an answer, which nobody marks: it is set beside the model answer. And a
    question that was missed comes back after a few others, until it is right.

    A question has `prompt`, `choices` (or None), `unit`, `answer`, `solution`, told at the second miss, and
    `mark(reply)`, whose result has `passed` and `message`. The model answer is shown only after a reply. `note` stands
    below the first question.
    """
    return Quiz(questions, on_answer, own_words, note)


class Quiz(Displayed):
    """One question at a time: reply, see the verdict and the model answer, go on."""

    BACK = 4  # places behind which a missed question comes back

    def __init__(self, questions: Sequence[Any], on_answer: Callable[[Any, Any], Any], own_words: bool = False,
                 note: str = "") -> None:
        self.questions, self._on_answer, self._own_words = list(questions), on_answer, own_words
        self._note = note
        if not self.questions:
            raise ValueError("a quiz needs at least one question")
        self.first = len(self.questions)  # those behind are missed ones, asked again
        self.at, self.passed = 0, 0
        self.words = w.Textarea(placeholder="in your own words, a sentence or two", rows=3,
                                layout=w.Layout(width="700px", max_width=MOST))
        self._prompt, self._said = w.HTML(), w.HTML()
        self._place = w.VBox()
        self.reply: w.Widget = w.Text()
        self.button = w.Button(button_style="primary")
        self.button.on_click(lambda _: self.press())
        super().__init__([self._prompt, self._place, self.button, self._said], layout=w.Layout(max_width="900px"))
        self._ask()

    def press(self) -> None:
        """What the button does now: mark the reply, or go on to the next question."""
        if self.reply.disabled:
            self.at += 1
            self._ask()
        elif self._asks_words and not self.words.value.strip():
            self._said.value = message_html("Say it in your own words first: what you recall is what you keep.",
                                            bad=True)
        elif self.reply.value in (None, ""):
            self._said.value = message_html("Choose or write an answer first.", bad=True)
        else:
            self._mark()

    def summary(self) -> str:
        """The questions, without their answers."""
        prompts = " ".join(f"{i}. {q.prompt}" for i, q in enumerate(self.questions, 1))
        return f"{len(self.questions)} questions: {prompts}"

    def static_html(self) -> str:
        """The questions as a list."""
        items = "".join(f"<li>{escape(q.prompt)}</li>" for q in self.questions)
        return f"<ol>{items}</ol><p><em>Run the cells from the top to answer.</em></p>"

    @property
    def _asks_words(self) -> bool:
        """Own words are asked for once; when a question comes back, only its marked part is."""
        return self._own_words and self.questions[self.at] not in self.questions[:self.at]

    def _place_of(self, question: Any) -> str:
        """Which of how many; a question that came back is no new one."""
        seen = self.questions[:self.at]
        new = sum(q not in seen[:i] for i, q in enumerate(seen))
        return "Once more." if question in seen else f"{new + 1} of {self.first}."

    def _ask(self) -> None:
        self._said.value = message_html("" if self.at else self._note)
        if self.at == len(self.questions):
            left = self.first - self.passed
            again = f" Run this cell again for the {many(left, 'question')} that you missed."
            again = "" if self._own_words or not left else again
            said = f"Done: {self.passed} of {self.first} right when first asked here.{again}"
            self._prompt.value = message_html(said)
            self._place.children = ()
            self.button.layout.display = "none"
            return
        question = self.questions[self.at]
        asked = question.recall if self._asks_words else question.prompt
        self._prompt.value = _asked(f"<b>{self._place_of(question)}</b> {escape(asked)}")
        self.reply = _reply_control(question)
        self.reply.on_msg(lambda _, content, __: self.press() if content.get("event") == "submit" else None)  # Enter
        self.words.value, self.words.disabled = "", False
        first = (self.words, w.HTML(_asked(escape(question.ask)))) if self._asks_words else ()
        self._place.children = (*first, self.reply)
        self.button.description = "Answer"

    def _mark(self) -> None:
        question = self.questions[self.at]
        try:
            result = question.mark(self.reply.value)
        except Exception as error:  # a reply that cannot be read is the reader's to mend, not the end of the quiz
            self._said.value = message_html(sentence(error), bad=True)
            return
        self._on_answer(question, result)
        self.passed += bool(result.passed) and question not in self.questions[:self.at]
        self.reply.disabled = self.words.disabled = True
        misses = self.questions[:self.at + 1].count(question)  # with this one, if it is one: each brought it back once
        if self._own_words and not result.passed:  # farther off each time, so that the new ones get their turn
            self.questions.insert(min(self.at + self.BACK * misses, len(self.questions)), question)
        verdict = "Right." if result.passed else "Not quite."
        told = f" The right reply is: {question.solution}." if misses > 1 and not result.passed else ""
        said = f"{verdict} {result.message}{told}".strip()
        self._said.value = (message_html(said, bad=not result.passed)
                            + f'<div style="font-size:14px;line-height:20px;white-space:normal;margin-top:6px">'
                              f'<b>Model answer:</b> {escape(question.answer)}</div>')
        self.button.description = "Next question" if self.at + 1 < len(self.questions) else "Finish"


def _asked(html: str) -> str:
    """A question as it stands above what answers it."""
    return f'<div style="font-size:15px;line-height:22px;white-space:normal">{html}</div>'


def _reply_control(question: Any) -> w.Widget:
    if question.choices:
        layout = w.Layout(width="auto", max_width=MOST)
        return w.RadioButtons(options=list(question.choices), value=None, layout=layout)
    return w.Text(description=question.unit or "", placeholder="your answer", style={"description_width": "initial"},
                  layout=w.Layout(width="420px", max_width=MOST))


def progress_bar(total: int) -> tuple[ProgressBar, Callable[[int, int], None]]:
    """A bar to display, and the `progress(done, total)` that `sweep.sweep` calls. Nothing is printed."""
    bar = ProgressBar(total)
    return bar, bar.update


class ProgressBar(Displayed):
    """How much of something long is done."""

    def __init__(self, total: int) -> None:
        self._bar = w.IntProgress(value=0, min=0, max=max(1, total), layout=w.Layout(width="420px", max_width="80%"))
        self._count = w.HTML()
        super().__init__([w.HBox([self._bar, self._count])])
        self.update(0, total)

    def update(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        self._bar.max, self._bar.value = max(1, total), done
        self._count.value = f"<span>{done:,} of {total:,}</span>"

    def summary(self) -> str:
        """The bar in words: the same on each run, however far it has come."""
        return "a progress bar"
