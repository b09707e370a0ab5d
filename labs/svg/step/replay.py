"""A run to be looked at step by step: what every sequence had before a step, and what the step gave it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labs.blocks import blocks_for
from labs.engine import StepRecord
from labs.knobs import SchedulerConfig
from labs.svg.marks import OKABE_ITO
from labs.workload import Request

CROWD_COLOUR, CROWD = "#8DA0B3", 12  # more than so many requests that are alike share one colour
KINDS = ("prefill", "recompute", "decode", "no tokens")


@dataclass(frozen=True)
class Row:
    """One sequence in one step, or several that do the same: before the step, in it, and left after it.

    `kind` is one of `KINDS`, "preempted" or "waiting". `computed` and `made` (output tokens) are those before the step;
    `tokens` were computed in it, `new` output tokens made; `to_go` are left to compute until the next one can be made;
    `finished` counts who ended. `blocks` are those held after scheduling.
    """

    ids: tuple[str, ...]
    kind: str
    computed: int
    made: int
    tokens: int
    new: int
    to_go: int
    finished: int
    blocks: int


class Replay:
    """The records of a run from its first step on, with the requests and settings that it ran with."""

    def __init__(self, records: Sequence[StepRecord], requests: Iterable[Request], config: SchedulerConfig) -> None:
        self.records, self.config = list(records), config
        self.requests = {r.request_id: r for r in requests}
        self.colours = colours(self.requests.values())
        self._at = {record.step: i for i, record in enumerate(self.records)}
        self._before = list(_before(self.records))

    def before(self, record: StepRecord, request_id: str) -> tuple[int, int]:
        """Tokens computed, and output tokens made, before the step."""
        return self._before[self._at[record.step]].get(request_id, (0, 0))

    def previous(self, record: StepRecord) -> StepRecord | None:
        """The step before it, if there was one."""
        i = self._at[record.step]
        return self.records[i - 1] if i else None

    def used(self, record: StepRecord) -> int:
        """KV blocks that sequences hold."""
        return self.config.num_gpu_blocks - 1 - record.free_blocks

    def row(self, record: StepRecord, request_id: str) -> Row:
        """What one sequence did in a step."""
        computed, made = self.before(record, request_id)
        tokens = record.prefill.get(request_id) or record.decode.get(request_id, 0)
        have = 0 if request_id in record.preempted else computed + tokens
        to_go = self.requests[request_id].prompt_tokens + made - have
        new, finished = (int(request_id in ids) for ids in (record.made, record.finished))
        return Row((request_id,), self._kind(record, request_id), computed, made, tokens, new, to_go, finished,
                   blocks_for(have, self.config.block_size))

    def _kind(self, record: StepRecord, request_id: str) -> str:
        """What a sequence did in a step."""
        if request_id in record.decode:
            return "decode"
        if request_id in record.prefill:
            return "recompute" if self.before(record, request_id)[1] else "prefill"
        if request_id in record.preempted:
            return "preempted"
        return "waiting" if request_id in record.waiting else "no tokens"

    def count_running_rows(self, record: StepRecord, most: int) -> int:
        """How many rows `running_rows` gives."""
        apart = self._apart(record, most)
        return len(apart) + len({self._kind(record, i) for i in record.running if i not in apart})

    def running_rows(self, record: StepRecord, most: int) -> list[Row]:
        """A row for each running sequence, in list order; a crowd, and whoever is too many, share one for each deed."""
        apart = self._apart(record, most)
        together: dict[str, list[Row]] = {}
        rows: list[Row | str] = []
        for row in (self.row(record, i) for i in record.running):
            if row.ids[0] in apart:
                rows.append(row)
                continue
            if row.kind not in together:
                rows.append(row.kind)
            together.setdefault(row.kind, []).append(row)
        return [_together(together[row]) if isinstance(row, str) else row for row in rows]

    def _apart(self, record: StepRecord, most: int) -> set[str]:
        """Who gets a row of its own: all but a crowd if there is room, else those that prefill before the others."""
        apart = [i for i in record.running if self.colours[i] != CROWD_COLOUR]
        if len(apart) + (len(KINDS) if len(apart) < len(record.running) else 0) <= most:
            return set(apart)
        return set(sorted(apart, key=lambda i: i not in record.prefill)[:most - len(KINDS)])

    def waiting_rows(self, record: StepRecord, most: int) -> list[Row]:
        """A row for each waiting sequence from the head on; the last stands for all further ones."""
        ids = list(record.waiting)
        if len(ids) <= most:
            return [self.row(record, i) for i in ids]
        rest = [self.row(record, i) for i in ids[most - 1:]]
        return [*(self.row(record, i) for i in ids[:most - 1]), _together(rest, "waiting")]

    def needs(self, record: StepRecord, request_id: str) -> int:
        """Free blocks without which a waiting sequence is not admitted, whatever else there is."""
        config, (_, made) = self.config, self.before(record, request_id)
        tokens = self.requests[request_id].prompt_tokens + made
        if not config.scheduler_reserve_full_isl:
            tokens = min(tokens, config.max_num_batched_tokens)
        reserve = int(config.watermark * config.num_gpu_blocks) if record.running else 0
        return blocks_for(tokens, config.block_size) + reserve


def colours(requests: Iterable[Request]) -> dict[str, str]:
    """A colour for each request, the same in every step; many that are alike share one: no eye could tell them apart.

    Alike are those with the same prompt length, arrival and priority.
    """
    requests = list(requests)
    alike = Counter((r.prompt_tokens, r.arrival, r.priority) for r in requests)
    found, next_one = {}, 0
    for r in requests:
        if alike[r.prompt_tokens, r.arrival, r.priority] > CROWD:
            found[r.request_id] = CROWD_COLOUR
        else:
            found[r.request_id], next_one = OKABE_ITO[next_one % len(OKABE_ITO)], next_one + 1
    return found


def _before(records: Sequence[StepRecord]) -> Iterable[dict[str, tuple[int, int]]]:
    """Before each step, (computed, made) of everyone who has computed anything yet."""
    now: dict[str, tuple[int, int]] = {}
    for record in records:
        yield dict(now)
        for request_id in record.preempted:
            now[request_id] = (0, now[request_id][1])
        for tokens in (record.prefill, record.decode):
            for request_id, n in tokens.items():
                computed, made = now.get(request_id, (0, 0))
                now[request_id] = (computed + n, made)
        for request_id in record.made:
            computed, made = now[request_id]
            now[request_id] = (computed, made + 1)
        for request_id in record.finished:
            del now[request_id]


def _together(rows: Sequence[Row], kind: str = "") -> Row:
    """Several sequences in one row."""
    if len(rows) == 1:
        return rows[0]

    def total(name: str) -> int:
        return sum(getattr(row, name) for row in rows)

    return Row(tuple(i for row in rows for i in row.ids), kind or rows[0].kind, total("computed"), total("made"),
               total("tokens"), total("new"), total("to_go"), total("finished"), total("blocks"))
