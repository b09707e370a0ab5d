"""What a step says, in words: its message, a line for each row, and the whole for who cannot see the picture."""

from __future__ import annotations

from labs.engine import StepRecord
from labs.svg.step.replay import Replay, Row
from labs.words import many

LIMITS = {
    "none": "no limit binds",
    "sequence cap": "the sequence cap binds",
    "token budget": "the token budget binds",
    "KV blocks": "KV blocks bind",
    "full-prompt gate": "the full-prompt gate binds",
}
MEMORY = ("KV blocks", "full-prompt gate")


def headline(record: StepRecord) -> str:
    """The step's message: its binding limit, and how many wait."""
    waiting = len(record.waiting)
    limit = LIMITS.get(record.binding_limit, f"{record.binding_limit} binds")
    return f"step {record.step}: {limit}; {f'{waiting:,} wait' + 's' * (waiting == 1) if waiting else 'nobody waits'}"


def remark(replay: Replay, record: StepRecord) -> str:
    """What else matters most in this step."""
    if record.preempted:
        return f"{names(record.preempted)} preempted: {record.lost:,} computed tokens lost"
    if record.binding_limit == "token budget" and (cut := _cut(replay, record)):
        return f"{short(cut.ids[0])} has {many(cut.to_go, 'token')} to go"
    if record.waiting:
        head = replay.row(record, record.waiting[0])
        return f"{short(head.ids[0])}, at the head, {_why_not(replay, record, head)}"
    return f"{names(record.finished)} finish{'es' * (len(record.finished) == 1)}" if record.finished else ""


def deed(replay: Replay, record: StepRecord, row: Row) -> str:
    """What a row did in the step, or what it waits for."""
    if len(row.ids) > 1:
        return _together(row)
    token = f"token {row.made + 1:,} of {replay.requests[row.ids[0]].output_tokens:,}"
    if row.finished:
        return f"{token}: finished"
    if row.kind in ("prefill", "recompute"):
        return f"{row.kind} {row.tokens:,}: " + (token if row.new else f"{row.to_go:,} to go")
    if row.kind == "decode":
        return f"decode: {token}"
    if row.kind == "preempted":
        return f"preempted: {many(row.computed, 'token')} lost"
    if row.kind == "no tokens":
        return "no tokens in this step"
    return _need(replay, record, row)


def names(ids: tuple[str, ...], most: int = 4) -> str:
    """A few names, and how many more."""
    shown = [short(i) for i in ids[:most]]
    if len(ids) > most:
        return f"{', '.join(shown)} and {len(ids) - most:,} more"
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def short(name: str, most: int = 8) -> str:
    """A name that fits its column."""
    return name if len(name) <= most else name[:most - 1] + "…"


def alt(replay: Replay, record: StepRecord) -> str:
    """The message with its numbers."""
    config, total = replay.config, replay.config.num_gpu_blocks - 1
    said = remark(replay, record)
    words = headline(record) + (f" ({said})" if said else "")
    prefill = ", ".join(f"{short(i)} {n:,}" for i, n in list(record.prefill.items())[:8])
    return (f"{words[0].upper()}{words[1:]}. {record.prefill_tokens + record.decode_tokens:,} of "
            f"{config.max_num_batched_tokens:,} tokens: {record.prefill_tokens:,} prefill"
            f"{f' ({prefill})' if 0 < len(record.prefill) <= 8 else ''} and {record.decode_tokens:,} decode. "
            f"{len(record.running):,} of {config.max_num_seqs:,} running, {len(record.waiting):,} waiting"
            f"{f' ({names(record.waiting)})' if record.waiting else ''}. "
            f"{replay.used(record):,} of {total:,} KV blocks held, {record.free_blocks:,} free."
            + (f" Finished: {names(record.finished)}." if record.finished else ""))


def _together(row: Row) -> str:
    """Several sequences in a line."""
    ended = f"; {row.finished:,} finish{'es' * (row.finished == 1)}" if row.finished else ""
    return {
        "decode": f"decoding, one token each{ended}",
        "no tokens": "no tokens in this step",
        "waiting": f"more, for {many(row.to_go, 'token')}",
    }.get(row.kind, f"{row.kind} {row.tokens:,} together{ended}")


def _need(replay: Replay, record: StepRecord, row: Row) -> str:
    """What a waiting sequence needs; behind a head that does not fit, whether it would."""
    if row.ids[0] == record.waiting[0] and not record.preempted:
        return _why_not(replay, record, row)
    need = replay.needs(record, row.ids[0])
    if record.binding_limit in MEMORY and not record.preempted:
        return f"needs {many(need, 'block')}: " + ("would fit" if need <= record.free_blocks else "would not fit")
    return f"needs {many(row.to_go, 'token')}{' again' if row.made else ''}, {many(need, 'block')}"


def _why_not(replay: Replay, record: StepRecord, head: Row) -> str:
    """What keeps the head of the queue waiting: what it needs and what there is."""
    config = replay.config
    if record.binding_limit in MEMORY:
        return f"needs {many(replay.needs(record, head.ids[0]), 'block')}, {record.free_blocks:,} free"
    if record.binding_limit == "sequence cap":
        return f"needs a place: all {config.max_num_active_seqs or config.max_num_seqs:,} are taken"
    left = config.max_num_batched_tokens - record.prefill_tokens - record.decode_tokens
    return f"needs {many(head.to_go, 'token')}{' at once' if left else ''}, {left:,} left"


def _cut(replay: Replay, record: StepRecord) -> Row | None:
    """The sequence whose prefill the budget cut short."""
    rows = (replay.row(record, i) for i in reversed(record.prefill))
    return next((row for row in rows if row.to_go), None)
