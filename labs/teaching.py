"""The part of TEACHING.md that is made from the checks and questions: what people get wrong, and what each is told.

`python -m labs.teaching` writes it out; solutions/build.py puts it between the marks in TEACHING.md.
"""
from __future__ import annotations

import sys
from collections.abc import Iterable

from labs import checks, quiz
from labs.checks import Mistake

# The exercises that a two-hour workshop has time for, in its order.
WORKSHOP = ("slot_steps_wasted", "normalised_latency", "nearest_rank", "gain", "admit", "binding_limit", "diagnosis")
SHOWN = 4  # mistakes of each, the first that the check looks for; there are more


def distinct(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Those that are told something new: several may share a hint, and then the first stands for all."""
    kept: list[Mistake] = []
    for mistake in mistakes:
        if all(mistake.hint != other.hint and mistake.stronger != other.stronger for other in kept):
            kept.append(mistake)
    return kept


def wrong_answers() -> str:
    """Markdown: for each exercise of the workshop the mistakes that its check knows, then those of the questions."""
    parts = []
    for name in WORKSHOP:
        exercise = checks.EXERCISES[name]
        where = f"notebook {int(exercise.notebook)}, {exercise.minutes} minutes"
        parts.append(f"**{exercise.title}** (`{name}`, {where})\n")
        parts += [f"- {mistake.hint} *Then:* {mistake.stronger}" for mistake in distinct(exercise.mistakes)[:SHOWN]]
        parts.append("")
    parts.append("**Notebook 7's questions that ask for a number**\n")
    for question in quiz.of_the_page():
        if question.slips:
            value, why = question.slips[0]
            parts.append(f"- *{question.ask}* Not {value:.4g}: {why}")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(wrong_answers() + "\n")
