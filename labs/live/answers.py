"""What is kept of one request while its answer streams in, and when that counts as a whole answer."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labs.live.measurement import NAN, Ask, Row


class StreamError(Exception):
    """The server said in the middle of a stream, or at its end, that the answer failed."""


@dataclass
class Record:
    """A row in the making."""

    ask: Ask
    clock: Callable[[], float]
    scheduled: float = NAN
    warm_up: bool = False
    begun: float = NAN
    sent: float = NAN
    done: float = NAN
    answered: bool = False
    chunks: list[tuple[float, int | None]] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    usage: Any = None
    running_usage: bool | None = None
    finish_reason: str | None = None
    status: str = ""
    error: str = ""

    def take(self, event: Any) -> None:
        """Note a chunk: its time first, since all that follows takes time of its own."""
        now = self.clock()
        before, usage = self.usage, getattr(event, "usage", None)
        self.usage = usage or before
        choices = getattr(event, "choices", None)
        if choices is None and not usage:
            raise StreamError(str(getattr(event, "message", None) or event))
        for choice in choices or ():  # none in the chunk that carries the usage
            self.finish_reason = getattr(choice, "finish_reason", None) or self.finish_reason
            text = _text(choice)
            self.text.append(text)
            count = self._count(choice, before, usage, bool(text))
            if count or (count is None and text):
                self.chunks.append((now, count))

    def _count(self, choice: Any, before: Any, usage: Any, text: bool) -> int | None:
        """Tokens in this chunk: its ids, or the growth of a usage that comes with every chunk; else unknown."""
        ids = getattr(choice, "token_ids", None)
        if ids is not None:
            return len(ids)
        if self.running_usage is None and (text or usage):
            self.running_usage = bool(usage) and self.finish_reason is None
        if not (self.running_usage and usage):
            return None
        return usage.completion_tokens - (before.completion_tokens if before else 0)

    def end(self, status: str, error: str = "") -> None:
        """Close the record, once: what was said first stands."""
        if not self.status:
            self.status, self.error = status, error
            self.done = NAN if math.isnan(self.begun) else self.clock()

    def finish(self) -> None:
        """The stream ended by itself: decide whether the answer is whole."""
        came, known = sum(count or 0 for _, count in self.chunks), None not in [count for _, count in self.chunks]
        said = self.usage.completion_tokens if self.usage else None
        if self.finish_reason is None:
            self.end("cut", "the stream ended with no finish reason")
        elif self.finish_reason in ("abort", "error"):
            self.end("error", f"the server ended it: finish reason {self.finish_reason}")
        elif known and said is not None and came < said:
            self.end("cut", f"{came} tokens came, and the server's usage says {said}")
        else:
            self.end("ok")

    def shift(self, by: float) -> None:
        """Move every time onto another clock."""
        self.scheduled, self.sent, self.done = self.scheduled + by, self.sent + by, self.done + by
        self.chunks = [(time + by, count) for time, count in self.chunks]

    def row(self) -> Row:
        """The record as it stands."""
        counts = [count for _, count in self.chunks]
        counted = sum(counts) if counts and None not in counts else None
        sent = self.begun if self.answered and math.isnan(self.sent) else self.sent  # no word from the transport
        error = self.error if self.status else "still under way"
        first, last = (self.chunks[0][0], self.chunks[-1][0]) if self.chunks else (NAN, NAN)
        return Row(
            self.ask, self.scheduled, sent, first, last, self.done, tuple(self.chunks),
            self.usage.completion_tokens if self.usage else counted, getattr(self.usage, "prompt_tokens", None),
            self.finish_reason, self.status or "cut", error, "".join(self.text), self.warm_up,
        )  # fmt: skip


def _text(choice: Any) -> str:
    """The text of a completion's or a chat's chunk, reasoning and tool calls included; "" for the role chunk.

    Raises StreamError for what has no such text.
    """
    holder = getattr(choice, "delta", None) or choice
    parts = [getattr(holder, name, None) for name in ("text", "reasoning_content", "reasoning", "content", "refusal")]
    for call in getattr(holder, "tool_calls", None) or ():
        parts.append(getattr(getattr(call, "function", None), "arguments", None))
    said = [part for part in parts if part]
    if not (hasattr(choice, "text") or hasattr(choice, "delta")) or not all(isinstance(part, str) for part in said):
        raise StreamError(f"a choice without a text: {choice}")
    return "".join(said)
