"""Checks of the exercises: `check("gain", gain)` says passed, not yet (with a hint), or not attempted yet."""
from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from labs.checks import check_yourself, dial_it_in, eight_requests, live_server, sigma_sweep, simulator, step_loop
from labs.checks.marking import NOT_ATTEMPTED, NOT_YET, PASSED, Exercise, Mistake, Result, mark, report
from labs.progress import Progress
from labs.words import Refused, Stopped

__all__ = ["EXERCISES", "NOT_ATTEMPTED", "NOT_YET", "PASSED", "Exercise", "Mistake", "Result", "check", "for_notebook"]

EXERCISES: dict[str, Exercise] = {exercise.id: exercise for exercise in (
    *eight_requests.EXERCISES, *simulator.EXERCISES, *sigma_sweep.EXERCISES, *step_loop.EXERCISES,
    *live_server.EXERCISES, *dial_it_in.EXERCISES, *check_yourself.EXERCISES)}


def check(exercise_id: str, answer: Any, attempt: int = 1, progress: Progress | None = None,
          limit_s: float = 5.0) -> Result:
    """Mark the learner's function `answer`; from the second `attempt` on, hints are stronger.

    With `progress`, attempts are counted there (and `attempt` is left aside), and a pass is recorded.
    Raises ValueError only for an exercise that doesn't exist; whatever the learner's code does becomes a sentence.
    """
    exercise = EXERCISES.get(exercise_id)
    if exercise is None:
        asked = re.sub(r"\W+", "_", str(exercise_id)).lower()
        near = get_close_matches(asked, EXERCISES, 1, 0.5)
        raise Refused(f"there is no exercise {exercise_id!r}: " + (
            f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(EXERCISES)}"))
    marks_itself = isinstance(exercise, step_loop.Structured)
    try:
        finding = exercise.mark(answer, limit_s) if marks_itself else mark(exercise, answer, limit_s)
    except KeyboardInterrupt:
        raise Stopped(f"Interrupted: {exercise.id} was not marked, and no attempt was counted. Run this cell again to "
                      "check it.") from None
    if finding.status == NOT_YET and finding.mistake is None and (others := _calls(answer) - {exercise.id}):
        finding = replace(finding, fault=f"{finding.fault} (It calls {' and '.join(sorted(others))}: is that right?)")
    if progress is not None and finding.status != NOT_ATTEMPTED:
        attempt = progress.record_attempt(exercise.id, finding.mistake.key if finding.mistake else "")
        if finding.status == PASSED:
            progress.record_pass(exercise.id)
    return report(exercise, finding, attempt)


def _calls(answer: Any) -> set[str]:
    """The exercises whose functions a learner's function uses: where one is wrong, so is what rests on it."""
    return {name for name in getattr(getattr(answer, "__code__", None), "co_names", ()) if name in EXERCISES}


def for_notebook(notebook: str) -> list[Exercise]:
    """The exercises of one notebook ("01", "02", ...), in order."""
    return [exercise for exercise in EXERCISES.values() if exercise.notebook == notebook]
