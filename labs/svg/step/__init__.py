"""One step of the scheduler as a picture: who runs, who waits, the token budget, the block pool, the binding limit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labs.engine import StepRecord
from labs.knobs import SchedulerConfig
from labs.svg.marks import Picture, picture, text
from labs.svg.step.bars import EDGE, LINE, budget_bar, column_names, row
from labs.svg.step.over_steps import HEIGHT, Strip
from labs.svg.step.pool import PoolGrid
from labs.svg.step.replay import Replay, Row
from labs.svg.step.words import alt, deed, headline, remark
from labs.workload import Request

__all__ = ["Replay", "Row", "StepPictures", "deed", "headline", "step"]
MOST_RUNNING, MOST_WAITING = 8, 5  # rows
TOP, POOL_LEFT, POOL_WIDTH = 112.0, 594, 290
NARROWEST = 600  # pixels: there, text is as small as it may be
LEAST, LEAST_LARGE, LARGE = 150.0, 250.0, 150  # pixels for the pool, if it has many blocks, and how many those are


def step(record: StepRecord, records: Sequence[StepRecord], requests: Iterable[Request],
         config: SchedulerConfig) -> Picture:
    """`record`, one of the `records` of a run of `requests` under `config`, as a picture.

    `records` must begin with the run's first step. Block owners are shown if it ran with `tables=True`.
    Raises ValueError if `record` is not among them.
    """
    if not any(record is one or record.step == one.step for one in records):
        raise ValueError(f"step {record.step} is not among the records")
    return StepPictures(Replay(records, requests, config)).picture(record)


class StepPicture(Picture):
    """A picture with so much in it that it could not be read if it got any narrower: put it where it can scroll."""

    def inline(self, unique: str) -> str:
        """The SVG for a live page."""
        return f'<div style="min-width:{NARROWEST}px">{super().inline(unique)}</div>'


class StepPictures:
    """The pictures of one run: what all of them share is made once, so that each takes a millisecond or two."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self._running = max([1, *(replay.count_running_rows(r, MOST_RUNNING) for r in replay.records)])
        self._waiting = max([1, *(min(len(r.waiting), MOST_WAITING) for r in replay.records)])
        self._queue_y = TOP + 6 + LINE * self._running + 30
        least = LEAST_LARGE if replay.config.num_gpu_blocks > LARGE else LEAST
        body = max(self._queue_y + 6 + LINE * self._waiting - TOP, least)
        self._grid = PoolGrid(replay, POOL_LEFT, TOP + 12, POOL_WIDTH, body - 36)
        self._body_end = TOP + body
        self._strip = Strip(replay, self._body_end + 14)

    def picture(self, record: StepRecord) -> Picture:
        """One step."""
        parts = [text(EDGE, 26, headline(record), 17, weight="bold", remark=remark(self.replay, record)),
                 *budget_bar(self.replay, record, 38), *self._running_list(record), *self._queue(record),
                 *self._pool(record), *self._strip.parts(record)]
        drawn = picture(parts, self._body_end + 14 + HEIGHT, alt(self.replay, record))
        return StepPicture(drawn.svg, drawn.alt)

    def _running_list(self, record: StepRecord) -> list[str]:
        beside = f"{len(record.running):,} of {self.replay.config.max_num_seqs:,}"
        parts = [text(EDGE, TOP, "running", 14, weight="bold", remark=beside), *column_names(TOP)]
        for i, one in enumerate(self.replay.running_rows(record, MOST_RUNNING)):
            parts += row(self.replay, record, one, TOP + 6 + LINE * i)
        return parts

    def _queue(self, record: StepRecord) -> list[str]:
        y, many = self._queue_y, len(record.waiting)
        beside = f"{many:,}, head first" if many > 1 else f"{many:,}"
        parts = [text(EDGE, y, "waiting", 14, weight="bold", remark=beside)]
        for i, one in enumerate(self.replay.waiting_rows(record, MOST_WAITING)):
            parts += row(self.replay, record, one, y + 6 + LINE * i)
        return parts

    def _pool(self, record: StepRecord) -> list[str]:
        total = self.replay.config.num_gpu_blocks - 1
        title = f"KV blocks: {self.replay.used(record):,} of {total:,} held, {record.free_blocks:,} free"
        told = record.tables or not record.running
        key = self._grid.key() if told else "whose they are: run(..., tables=True) tells"
        return [text(POOL_LEFT, TOP, title, 14, weight="bold"), *self._grid.parts(record),
                text(POOL_LEFT, self._grid.bottom + 16, key, 14)]
