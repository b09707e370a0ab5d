"""Notebook 07's exercise: the table of running against waiting, completed, as a function."""
from __future__ import annotations

import random

from labs.checks.marking import Mistake
from labs.checks.step_loop import Structured
from labs.words import many

HEADROOM, CAP, MEMORY, OTHER = "headroom", "sequence cap", "memory", "budget or head"


def _decided(running: int, waiting: int, max_num_seqs: int, kv_usage: float, preemptions: int) -> tuple[str, str]:
    """The answer, in the order in which one looks, and what decides it."""
    if preemptions:
        return MEMORY, "the preemptions decide"
    if not waiting:
        return HEADROOM, "nobody waits, which decides"
    if running >= max_num_seqs:
        return CAP, "the cap decides"
    return (MEMORY, "0.9 is reached, which decides") if kv_usage >= 0.9 else (OTHER, "0.9 is not reached")


def _diagnosis(*seen: float) -> str:
    """The answer alone."""
    return _decided(*seen)[0]


def _page(running: int, waiting: int, cap: int, usage: float, preemptions: int) -> str:
    """The three rows of the page's table."""
    if not waiting:
        return HEADROOM
    return CAP if running >= cap else MEMORY


def _cap_first(running: int, waiting: int, cap: int, usage: float, preemptions: int) -> str:
    if waiting and running >= cap:
        return CAP
    return _diagnosis(running, waiting, cap, usage, preemptions)


def _draw(rng: random.Random) -> tuple:
    """A moment on a server, near one of the limits or none."""
    cap = rng.choice([8, 32, 256])
    running = rng.choice([cap, cap - 1, rng.randint(1, cap)])
    return (running, rng.choice([0, 0, 1, rng.randint(1, 90)]), cap, rng.choice([0.05, 0.31, 0.89, 0.9, 0.97, 1.0]),
            rng.choice([0, 0, 0, 1, 14]))


DIAGNOSIS = Structured(
    id="diagnosis", notebook="07", title="What limits the server?", minutes=6, difficulty=2,
    signature="diagnosis(running, waiting, max_num_seqs, kv_usage, preemptions)",
    returns='one of the texts "memory", "headroom", "sequence cap", "budget or head"',
    task='return "memory" if anybody was preempted; else "headroom" if nobody waits; else "sequence cap" if running '
         'has reached it; else "memory" if kv_usage is 0.9 or more; else "budget or head".',
    shows="three rows aren't enough: below the cap with somebody waiting may be memory, the token budget, or a head "
          "that doesn't fit.",
    oracle=_diagnosis,
    explain=lambda running, waiting, cap, usage, preemptions: (
        f"{many(preemptions, 'preemption')}; {waiting} waiting; {running} running of {cap}; KV usage {usage:.0%}: "
        f"{_decided(running, waiting, cap, usage, preemptions)[1]}."),
    worked=(((8, 3, 8, 0.3, 0), CAP), ((5, 3, 8, 0.97, 0), MEMORY), ((5, 3, 8, 0.3, 0), OTHER),
            ((5, 0, 8, 0.3, 0), HEADROOM), ((8, 0, 8, 0.3, 0), HEADROOM), ((5, 3, 8, 0.3, 2), MEMORY),
            ((8, 3, 8, 0.99, 2), MEMORY), ((8, 3, 8, 0.95, 0), CAP), ((5, 0, 8, 0.8, 1), MEMORY),
            ((7, 1, 8, 0.9, 0), MEMORY)),
    draw=_draw,
    mistakes=(
        Mistake("three_rows", _page, "Running below the cap with somebody waiting isn't always memory.",
                "Below the cap, look at kv_usage: under 0.9 it is \"budget or head\"; and preemptions come first."),
        Mistake("cap_first", _cap_first, "At the cap and preempting: the blocks gave out, so it is memory.",
                "Ask for preemptions before anything else."),
        Mistake("waiting_first", lambda r, w, cap, usage, p: _diagnosis(r, w, cap, usage, p) if w else HEADROOM,
                "Preempted while nobody waits is memory all the same.", "Ask for preemptions before anything else."),
        Mistake("cap_before_all", lambda r, w, cap, usage, p: CAP if r >= cap else _diagnosis(r, w, cap, usage, p),
                "At the cap with nobody waiting, nothing is short.",
                "Ask in this order: preemptions, waiting, the cap, kv_usage."),
        Mistake("kv_before_cap", lambda r, w, cap, usage, p: (
            MEMORY if not p and w and usage >= 0.9 else _diagnosis(r, w, cap, usage, p)),
                "At the cap a slot is what is missing, however full the KV cache is.",
                "Ask for the cap before kv_usage."),
        Mistake("percent", lambda r, w, cap, usage, p: _diagnosis(r, w, cap, usage / 100, p),
                "kv_usage is a share: 1 is full.", "Compare kv_usage >= 0.9, not 90."),
        Mistake("no_preemptions", lambda r, w, cap, usage, p: _diagnosis(r, w, cap, usage, 0),
                "That takes no notice of preemptions: whoever was preempted lost its blocks for want of memory.",
                "Begin with: if preemptions > 0: return \"memory\"."),
        Mistake("full_is_memory", lambda r, w, cap, usage, p: MEMORY if usage >= 0.9 else _diagnosis(r, w, cap, usage,
                                                                                                     p),
                "A full KV cache hurts nobody while nobody waits, and at the cap a slot is what is missing.",
                "Ask for kv_usage last, after the sequence cap."),
        Mistake("nobody_waits", lambda r, w, cap, usage, p: _diagnosis(r, 1, cap, usage, p),
                "Where nobody waits, nobody is held back: that is headroom, even at the cap.",
                "After preemptions, ask: if waiting == 0: return \"headroom\"."),
        Mistake("above_the_cap", lambda r, w, cap, usage, p: _diagnosis(r - 1, w, cap, usage, p),
                "running never gets larger than max_num_seqs: at the cap is equal to it.",
                "Compare running >= max_num_seqs."),
        Mistake("nearly_full", lambda r, w, cap, usage, p: _diagnosis(r, w, cap, usage if usage > 0.9 else 0, p),
                "0.9 itself counts as full.", "Compare kv_usage >= 0.9."),
    ))

EXERCISES = (DIAGNOSIS,)
