"""On-call drills: an alarm and a dashboard, a cause to name, a fix to apply, and the dashboard after it.

Those of `DRILLS` come from `labs.engine`'s step loop and stored settings: each gives the same dashboard each time.
Those of `REAL` were recorded on a real server, every fix too.
"""
from __future__ import annotations

from labs.drills import tokens, waiting
from labs.drills.causes import CAUSES, Cause
from labs.drills.drill import SYMPTOMS, Drill, Fix, Said
from labs.drills.real import REAL, RecordedDrill
from labs.drills.telemetry import Dashboard, Summary, simulate
from labs.drills.traffic import Scenario, Stream

__all__ = ["CAUSES", "DRILLS", "EVERY", "REAL", "SYMPTOMS", "Cause", "Dashboard", "Drill", "Fix", "RecordedDrill",
           "Said", "Scenario", "Stream", "Summary", "drill", "reply_id", "simulate"]

DRILLS: tuple[Drill, ...] = (
    waiting.SEQUENCE_CAP, waiting.MEMORY, tokens.FULL_BATCH, waiting.CLIENT_BATCHER, tokens.MISREAD_BENCHMARK,
    waiting.BLOCKED_HEAD, tokens.LONG_PROMPTS, tokens.DEAD_ENGINE, waiting.GREEDY_TENANT, tokens.UNDER_LOAD,
    waiting.TOKEN_BUDGET, tokens.THRASHING, waiting.PREFIX_FLATTERY, tokens.OVERSIZED)
EVERY: tuple[Drill, ...] = (*DRILLS, *REAL)


def drill(drill_id: str) -> Drill:
    """The drill with this id. Raises ValueError if there is none."""
    for candidate in EVERY:
        if candidate.id == drill_id:
            return candidate
    raise ValueError(f"there is no drill {drill_id!r}")


def reply_id(drill_id: str) -> str:
    """The name under which a drill's result is kept among the replies in the progress file."""
    return f"drill-{drill_id}"
