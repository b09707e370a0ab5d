"""A drill: an incident from stored settings, causes to choose from, and fixes that are really applied."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from labs.drills.causes import CAUSES, Cause
from labs.drills.telemetry import Dashboard, Summary, simulate
from labs.drills.text import spaced
from labs.drills.traffic import HORIZON, Scenario

TTFT_TARGET, ITL_TARGET = 2.0, 0.040  # seconds: p99 TTFT at the client, p95 ITL


@dataclass(frozen=True)
class Symptom:
    """What the alarm says: `holds` on the dashboard; `mended(before, after)` is what a fix must reach (`aim`)."""

    key: str
    says: Callable[[Summary], str]
    aim: str
    holds: Callable[[Dashboard], bool]
    mended: Callable[[Dashboard, Dashboard], bool]


def _soon(d: Dashboard) -> bool:
    return d.summary.client_ttft_p99 <= TTFT_TARGET


SYMPTOMS = {symptom.key: symptom for symptom in (
    Symptom("slow_start", lambda s: f"Users wait for the first word: p99 TTFT is {s.client_ttft_p99:.1f} s at the "
                                    "client.",
            "p99 TTFT at the client of at most 2 s", lambda d: not _soon(d), lambda before, after: _soon(after)),
    Symptom("wait_below_cap", lambda s: f"{s.waiting:.0f} requests wait on average, though running never reaches "
                                        "max_num_seqs.",
            "at most 1 request waiting on average, and p99 TTFT at the client of at most 2 s",
            lambda d: d.summary.waiting > 1 and d.summary.running_max < d.cap,
            lambda before, after: after.summary.waiting <= 1 and _soon(after)),
    Symptom("slow_tokens", lambda s: f"Tokens come slowly: p95 ITL is {1e3 * s.itl_p95:.0f} ms, the target 40 ms.",
            "p95 ITL of at most 40 ms, and a p99 TTFT no worse than before or 2 s",
            lambda d: d.summary.itl_p95 > ITL_TARGET,
            lambda before, after: after.summary.itl_p95 <= ITL_TARGET and (
                _soon(after) or after.summary.client_ttft_p99 <= before.summary.client_ttft_p99)),
    Symptom("silence", lambda s: f"No answer any more: the last token came {HORIZON - s.last_token:.0f} s ago. "
                                 "/health says 200.",
            "tokens right up to the end", lambda d: HORIZON - d.summary.last_token > 30,
            lambda before, after: HORIZON - after.summary.last_token < 2),
    Symptom("little_work", lambda s: f"Each GPU makes {s.tokens_per_second:.0f} tokens a second; somebody had "
                                     "promised thousands.",
            "at least 300 tokens a second per GPU, and p99 TTFT at the client of at most 2 s",
            lambda d: d.summary.tokens_per_second < 200,
            lambda before, after: after.summary.tokens_per_second >= 300 and _soon(after)),
)}


@dataclass(frozen=True)
class Fix:
    """A change to the scenario, and why it helps or not: `because` may name numbers of `{b}` before and `{a}` after.

    `proof(before, after)` is that reason as a comparison of numbers; a test holds it true.
    """

    key: str
    name: str
    change: Callable[[Scenario], Scenario] = field(repr=False)
    because: str
    proof: Callable[[Summary, Summary], bool] = field(repr=False)
    right: bool = False


@dataclass(frozen=True, repr=False)
class Said:
    """A verdict with its reason; `dashboard` is the one after a fix."""

    passed: bool
    message: str
    dashboard: Dashboard | None = None

    def __repr__(self) -> str:
        return self.message


@dataclass(frozen=True)
class Drill:
    """One incident: the alarm (`symptom`), the stored `scenario`, the `cause`'s key among the `offered`, and fixes."""

    id: str
    symptom: Symptom
    scenario: Scenario = field(repr=False)
    cause: str
    offered: tuple[str, ...]
    fixes: tuple[Fix, ...] = field(repr=False)
    device: ClassVar[str] = "GPU"  # what one replica runs on

    def __post_init__(self) -> None:
        if self.cause not in self.offered or not {*self.offered} <= {*CAUSES}:
            raise ValueError(f"{self.id}: the cause must be among those offered, and each a key of CAUSES")
        if len({fix.key for fix in self.fixes}) < len(self.fixes) or not any(fix.right for fix in self.fixes):
            raise ValueError(f"{self.id}: fixes need keys of their own, and one that is right")

    @property
    def dashboard(self) -> Dashboard:
        """What the one on call sees."""
        return simulate(self.scenario)

    @property
    def series(self) -> dict:
        """The dashboard's series by name."""
        return self.dashboard.series

    @property
    def alarm(self) -> str:
        """The first symptom, in words."""
        return self.symptom.says(self.dashboard.summary)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes to choose from."""
        return tuple(CAUSES[key] for key in self.offered)

    def name(self, key: str) -> Said:
        """Mark a cause: what its sign is, and what the dashboard says of it."""
        cause = next((cause for cause in self.causes if cause.key == key), None)
        if cause is None:
            raise ValueError(f"choose one of these causes: {', '.join(self.offered)}")
        verdict = "Right" if key == self.cause else "The dashboard speaks against it"
        words = f"{verdict}. Its sign: {cause.sign}. Here: {cause.here(self.dashboard)}."
        return Said(key == self.cause, spaced(words))

    def after(self, fix: Fix) -> Dashboard:
        """The same two minutes with the fix in force."""
        return simulate(fix.change(self.scenario))

    def apply(self, key: str) -> Said:
        """Apply a fix to the same two minutes, and compare."""
        fix = next((fix for fix in self.fixes if fix.key == key), None)
        if fix is None:
            raise ValueError(f"choose one of these fixes: {', '.join(fix.key for fix in self.fixes)}")
        before, after = self.dashboard, self.after(fix)
        mended = self.symptom.mended(before, after)
        reason = fix.because.format(b=before.summary, a=after.summary, ms=_Milliseconds(after.summary),
                                    bms=_Milliseconds(before.summary))
        verdict = "Mended" if mended else "Not mended"
        return Said(mended, spaced(f"{verdict}. {reason} The aim: {self.symptom.aim}."), after)


class _Milliseconds:
    """A summary's times in milliseconds."""

    def __init__(self, summary: Summary) -> None:
        self.itl_p50, self.itl_p95 = 1e3 * summary.itl_p50, 1e3 * summary.itl_p95
