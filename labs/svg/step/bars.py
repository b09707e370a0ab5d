"""The token budget as one bar, and a bar for each sequence: prefill dark, decode light."""

from __future__ import annotations

from itertools import groupby

from labs.engine import StepRecord
from labs.svg.marks import FAINT, INK, WIDTH, box, on, path, text
from labs.svg.step.replay import CROWD_COLOUR, Replay, Row
from labs.svg.step.words import deed, short

EDGE = 16  # pixels at both sides
LINE = 22  # from one row to the next
BAR, NAME, PROMPT, OUTPUT, WORDS = 14, EDGE + 20, 178, 262, 348  # a bar's height; where the columns begin
WIDE = 78  # of each half of a bar


def shades(colour: str) -> tuple[str, str]:
    """(dark, light): a request's colour for prefill and for decode."""
    parts = [int(colour[i:i + 2], 16) for i in (1, 3, 5)]
    dark, light = [round(c * 0.68) for c in parts], [round(c + (255 - c) * 0.42) for c in parts]
    return "#" + "".join(f"{c:02X}" for c in dark), "#" + "".join(f"{c:02X}" for c in light)


def budget_bar(replay: Replay, record: StepRecord, y: float) -> list[str]:
    """The budget from left to right: decode by sequence, prefill by sequence, and what nobody used left blank."""
    budget, wide = replay.config.max_num_batched_tokens, WIDTH - 2 * EDGE
    per_token, x, parts = wide / budget, float(EDGE), []
    for deed_, tokens in (("decode", record.decode), ("prefill", record.prefill)):
        for ids, n in _pieces(replay, tokens, per_token):
            fill = shades(replay.colours[ids[0]])[deed_ == "decode"]
            edge = ' stroke="#FFFFFF" stroke-width="0.8"' if n * per_token > 4 else ""
            parts.append(box(x, y + 24, n * per_token, 26, fill, edge))
            parts += _piece_label(x, y + 42, n * per_token, ids, n, fill)
            x += n * per_token
    parts.append(box(EDGE, y + 24, wide, 26, "none", f' stroke="{INK}"'))
    return [*_budget_words(record, budget, y + 14), *parts]


def row(replay: Replay, record: StepRecord, row: Row, y: float) -> list[str]:
    """A sequence: its name, how far its prompt and its output are, and what it did."""
    ended = row.finished and len(row.ids) == 1
    words = text(WORDS, y + 15, short(deed(replay, record, row), 38), 14, weight="bold" if ended else "normal")
    swatch = box(EDGE, y + 5, 12, 12, _colour(replay, row))
    if len(row.ids) > 1:
        return [swatch, text(NAME, y + 15, f"{len(row.ids):,} ×", 14, weight="bold"), *_shared_bar(replay, row, y + 4),
                words]
    priority = replay.requests[row.ids[0]].priority if replay.config.policy == "priority" else 0
    said = f"priority {priority}" if priority else ""
    return [swatch, text(NAME, y + 15, short(row.ids[0], 6 if said else 16), 14, weight="bold", remark=said),
            *_own_bar(replay, row, y + 4), words]


def column_names(y: float) -> list[str]:
    """Above the bars: which half is which."""
    return [text(PROMPT, y, "prompt", 14), text(OUTPUT, y, "output", 14)]


def _pieces(replay: Replay, tokens: dict[str, int], per_token: float) -> list[tuple[list[str], int]]:
    """(ids, tokens) from left to right; neighbours of one colour that are too thin to be told apart are one piece."""
    def apart(request_id: str) -> tuple[str, str]:
        colour = replay.colours[request_id]
        thin = tokens[request_id] * per_token < 2 or colour == CROWD_COLOUR
        return colour, "" if thin else request_id

    groups = [list(ids) for _, ids in groupby(tokens, key=apart)]
    return [(ids, sum(tokens[i] for i in ids)) for ids in groups]


def _piece_label(x: float, base: float, width: float, ids: list[str], n: int, fill: str) -> list[str]:
    """Who, and how many tokens, where that fits; or one of both."""
    name, many = short(ids[0], 12), len(ids) > 1
    for words in (f"{len(ids):,} sequences: {n:,}", f"{n:,}") if many else (f"{name} {n:,}", name):
        if width > 8.6 * len(words) + 6:
            return [text(x + width / 2, base, words, 14, "middle", on(fill), "bold")]
    return []


def _budget_words(record: StepRecord, budget: int, y: float) -> list[str]:
    """The numbers beside the bar; their swatches tell what dark, light and blank mean in the whole picture."""
    dark, light = shades("#888888")
    used = record.prefill_tokens + record.decode_tokens
    parts, x = [text(EDGE, y, f"token budget: {used:,} of {budget:,}", 14, weight="bold")], 300.0
    for fill, words in ((light, f"decode {record.decode_tokens:,}"), (dark, f"prefill {record.prefill_tokens:,}"),
                        ("#FFFFFF", f"unused {budget - used:,}")):
        parts += [box(x, y - 12, 22, 14, fill, f' stroke="{INK}" stroke-width="0.6"'), text(x + 29, y, words, 14)]
        x += 175
    return parts


def _colour(replay: Replay, row: Row) -> str:
    """The colour of a row's requests, or of a crowd if they have several."""
    found = {replay.colours[i] for i in row.ids}
    return found.pop() if len(found) == 1 else CROWD_COLOUR


def _own_bar(replay: Replay, row: Row, y: float) -> list[str]:
    """Prompt and output of one sequence, each as a share of its whole; this step's part outlined."""
    request = replay.requests[row.ids[0]]
    dark, light = shades(replay.colours[row.ids[0]])
    lost = row.kind == "preempted"
    have = 0 if lost else row.computed + row.tokens
    in_prompt = WIDE / request.prompt_tokens
    before, after = min(row.computed, request.prompt_tokens), min(have, request.prompt_tokens)
    parts = [box(PROMPT, y, WIDE, BAR, "#FFFFFF", f' stroke="{FAINT}"'),
             box(OUTPUT, y, WIDE, BAR, "#FFFFFF", f' stroke="{FAINT}"')]
    if after:
        parts.append(box(PROMPT, y, after * in_prompt, BAR, dark))
    if lost:
        parts += _crossed(PROMPT, y, before * in_prompt, dark)
    elif after > before:
        parts.append(box(PROMPT + before * in_prompt, y, (after - before) * in_prompt, BAR, "none",
                         f' stroke="{INK}" stroke-width="2"'))
    return parts + _output_bar(row, request.prompt_tokens, request.output_tokens, have, y, light)


def _output_bar(row: Row, prompt: int, output: int, have: int, y: float, light: str) -> list[str]:
    """Tokens made; those that must be computed again are crossed out, the one made in this step is outlined."""
    per_token = WIDE / output
    # The newest token is never computed before the next step, so it is not among what was lost.
    again = 0 if have >= prompt + row.made else max(0, row.made - max(0, have - prompt) - 1)
    kept = row.made - again
    parts = []
    if kept and not (have == 0 and row.made):
        parts.append(box(OUTPUT, y, kept * per_token, BAR, light))
    if again or (have == 0 and row.made):
        start = 0 if have == 0 else kept
        parts += _crossed(OUTPUT + start * per_token, y, (row.made - start) * per_token, light)
    if row.new:
        parts.append(box(OUTPUT + row.made * per_token, y, per_token, BAR, light,
                         f' stroke="{INK}" stroke-width="2"'))
    return parts


def _shared_bar(replay: Replay, row: Row, y: float) -> list[str]:
    """One bar for many: no share of anything, only who and what."""
    dark, light = shades(_colour(replay, row))
    fill = {"decode": light, "prefill": dark, "recompute": dark}.get(row.kind, "#FFFFFF")
    return [box(PROMPT, y, OUTPUT + WIDE - PROMPT, BAR, fill, f' stroke="{FAINT}"')]


def _crossed(x: float, y: float, width: float, colour: str) -> list[str]:
    """Work that was thrown away: pale, with crosses."""
    if width < 1:
        return []
    crosses = "".join(f"M{x + at:.1f} {y}l{min(9, width - at):.1f} {BAR}m0 -{BAR}l-{min(9, width - at):.1f} {BAR}"
                      for at in range(0, int(width), 9))
    return [box(x, y, width, BAR, colour, ' opacity="0.25"'), path(crosses, INK, 0.9)]
