"""Static batching inside vLLM, for its `--scheduler-cls labs.live.static_scheduler.StaticScheduler`.

A group is what one step admits; nobody joins it until its last member has ended. The class changes nothing else:
requests still leave the engine as they finish, and their slots stay empty. The cap on running requests can be
lowered while it runs, below the `--max-num-seqs` that it was started with.
"""

from __future__ import annotations

import os

from vllm.v1.core.sched.scheduler import Scheduler

SWITCH = "LABS_STATIC_SWITCH"  # names a file: batching is static while that file is there
SLOTS = ".slots"  # what follows in the name of a second file, which holds a lower cap
LIMITS = ("max_num_active_reqs", "max_num_running_reqs")  # what vLLM calls its cap, newest first


class StaticScheduler(Scheduler):
    """vLLM's own scheduler, except that it admits nobody while anybody runs, or up to a lower cap."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._limit = next(name for name in LIMITS if hasattr(self, name))
        self._cap, self._switch = getattr(self, self._limit), os.environ.get(SWITCH)

    def schedule(self, *args: object, **kwargs: object):
        """One step. With no file named, batching is always static."""
        static = self._switch is None or os.path.exists(self._switch)
        running, cap = len(self.running), self._lowered()
        # As many as run already, not fewer: there are versions that compare for equality.
        setattr(self, self._limit, running if running > cap or static and running else cap)
        return super().schedule(*args, **kwargs)

    def _lowered(self) -> int:
        """The cap of this step."""
        try:
            with open(f"{self._switch}{SLOTS}", encoding="ascii") as file:
                return min(self._cap, max(1, int(file.read())))
        except (OSError, ValueError):
            return self._cap
