"""What a client saw of each request, and the figures that follow from it. Nothing here talks to a server.

All times are seconds on one monotonic clock that starts with the run. NaN means that it never came.
A figure that the data cannot support is refused in words, not printed: see `tail`, and `Row.itl_gaps`.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from labs.metrics import percentile

NAN = math.nan
STATUSES = ("ok", "error", "cut", "refused", "timeout")
Chunks = Sequence[tuple[float, int | None]]


class TooFew(ValueError):
    """There are too few values to have the percentile asked for."""


# ---- from chunks to gaps --------------------------------------------------------------------------------------------

def chunk_gaps(chunks: Chunks) -> np.ndarray:
    """Seconds between one chunk and the next. A chunk may hold several tokens, so this is not inter-token latency."""
    gaps = np.diff([time for time, _ in chunks]) if len(chunks) > 1 else np.empty(0)
    if (gaps < 0).any():
        raise ValueError("chunks must be in order of time")
    return gaps


def itl_from_chunks(chunks: Chunks) -> np.ndarray:
    """Seconds between one token and the next, from (time, number of tokens) for each chunk.

    The n tokens of a chunk share the wait since the chunk before evenly: n gaps of wait / n. The tokens of the
    first chunk came together as far as anyone can tell: n - 1 gaps of 0. So N tokens always have N - 1 gaps, their
    sum is last - first, and their mean is TPOT.
    Raises ValueError if a chunk's number of tokens is unknown: then only `chunk_gaps` can be told.
    """
    counts = [count for _, count in chunks]
    if not all(isinstance(count, int | np.integer) and count >= 1 for count in counts):
        raise ValueError("each chunk needs its number of tokens, 1 or more: without it there are only chunk gaps")
    if not counts:
        return np.empty(0)
    after_first = np.array(counts[1:], dtype=int)
    return np.concatenate([np.zeros(counts[0] - 1), np.repeat(chunk_gaps(chunks) / after_first, after_first)])


def pooled(gaps: Iterable[Sequence[float]]) -> np.ndarray:
    """The gaps of all requests in one array: what a percentile of ITL is taken over."""
    return np.concatenate([np.empty(0), *(np.asarray(some, dtype=float) for some in gaps)])


def enough_for(q: float) -> int:
    """The fewest values of which the percentile `q` is not simply the largest: 1 for p50, 21 for p95, 101 for p99.

    The largest value of a run says more of how long the run was than of the server.
    """
    if q <= 0.5 or q == 1:
        return 1
    n = max(1, int(1 / (1 - q)) - 1)
    while int(q * n) >= n - 1:
        n += 1
    return n


def tail(values: Sequence[float], q: float) -> float:
    """The percentile `q` (0 to 1) by nearest rank: `sorted(values)[int(q * n)]`, always a value that occurred.

    Raises TooFew where that would be no tail but the largest value.
    """
    n = len(values)
    if 0 <= q <= 1 and n < enough_for(q):
        raise TooFew(f"n too small to have a p{100 * q:g}: n = {n}, and it takes {enough_for(q)}")
    return percentile(np.asarray(values, dtype=float), q)


# ---- one request ----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Ask:
    """One request to send. `arrival` is in seconds from the run's start; only open-loop load looks at it.

    `prompt` is text, or token ids for an exact length. `max_tokens` is only a cap, unless `ignore_eos` holds the
    model to it. `extra` goes into the body as it is.
    """

    request_id: str
    prompt: str | tuple[int, ...]
    max_tokens: int
    arrival: float = 0.0
    priority: int | None = None
    ignore_eos: bool = True
    stop: str | Sequence[str] | None = None
    chat: bool = False
    temperature: float = 0.0
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """What the client saw of one request.

    scheduled: when it was due (open-loop: its arrival; all at once: 0; closed-loop: when its turn came).
    sent: when its last byte was handed to the network: after any wait for a connection.
    first, last: the first and last chunk with a generated token; the role chunk of a chat is none.
    done: when the answer, or its failure, ended; later if answers are held back (`hold_groups`).
    chunks: (time, tokens) for each chunk with tokens; None tokens where the server does not say.
    completion_tokens: the server's usage, or the tokens counted where it gives none; None if nobody knows.
    status: ok; refused = answered by an HTTP error; error = no connection, or an error in the stream;
    cut = the stream ended before the answer did, or we stopped listening; timeout = past its deadline.
    """

    ask: Ask
    scheduled: float = 0.0
    sent: float = NAN
    first: float = NAN
    last: float = NAN
    done: float = NAN
    chunks: tuple[tuple[float, int | None], ...] = ()
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    finish_reason: str | None = None
    status: str = "ok"
    error: str = ""
    text: str = ""
    warm_up: bool = False

    @property
    def ok(self) -> bool:
        """Whether the whole answer came. Only then has a row any latency: the others are counted, not averaged."""
        return self.status == "ok"

    @property
    def counted(self) -> bool:
        """Whether each chunk's tokens are known and add up to the server's own count."""
        counts = [count for _, count in self.chunks]
        return None not in counts and self.completion_tokens in (None, sum(counts))

    @property
    def ttft(self) -> float:
        """Time to first token: first - sent. It includes the server's queue."""
        return self.first - self.sent if self.ok else NAN

    @property
    def tpot(self) -> float:
        """Time per output token: (last - first) / (tokens - 1), this request's mean ITL. NaN for 1 token or none."""
        several = self.ok and (self.completion_tokens or 0) > 1
        return (self.last - self.first) / (self.completion_tokens - 1) if several else NAN

    @property
    def itl_gaps(self) -> np.ndarray:
        """Inter-token latency: the gap before each token but the first. Empty where tokens can't be counted."""
        return itl_from_chunks(self.chunks) if self.ok and self.counted else np.empty(0)

    @property
    def chunk_gaps(self) -> np.ndarray:
        """The gaps between chunks, whatever they hold."""
        return chunk_gaps(self.chunks) if self.ok else np.empty(0)

    @property
    def e2e(self) -> float:
        """End to end: done - sent."""
        return self.done - self.sent if self.ok else NAN

    @property
    def normalised_latency(self) -> float:
        """End to end per output token: e2e / tokens. NaN if there were none, or nobody counted them."""
        return self.e2e / self.completion_tokens if self.completion_tokens else NAN

    @property
    def queue_delay(self) -> float:
        """How late the client itself was: sent - scheduled. Large = the client, not the server, is the bottleneck."""
        return self.sent - self.scheduled

    @property
    def short(self) -> bool:
        """Whether the answer ended by itself before max_tokens: then max_tokens says nothing about its length."""
        return self.ok and self.completion_tokens is not None and self.completion_tokens < self.ask.max_tokens


def hold_groups(rows: Sequence[Row], k: int) -> tuple[Row, ...]:
    """The same rows as a user of static batching sees them: each answer returned when its group of `k` has ended.

    Groups are formed in the order in which requests were due. Warm-up rows are left alone.
    """
    if k < 1:
        raise ValueError(f"a group has 1 request or more, got {k}")
    order = sorted((i for i, row in enumerate(rows) if not row.warm_up), key=lambda i: rows[i].scheduled)
    held = list(rows)
    for _, members in groupby(enumerate(order), key=lambda item: item[0] // k):
        group = [i for _, i in members]
        end = max((rows[i].done for i in group if not math.isnan(rows[i].done)), default=NAN)
        for i in group:
            held[i] = replace(rows[i], done=NAN if math.isnan(rows[i].done) else end)
    return tuple(held)


def peak_in_flight(rows: Iterable[Row]) -> int:
    """The most requests that were under way at one time, from when each was sent and done."""
    rows = [row for row in rows if not math.isnan(row.sent)]
    ends = [math.inf if math.isnan(row.done) else row.done for row in rows]
    events = sorted([(row.sent, 1) for row in rows] + [(end, -1) for end in ends])  # at a tie the end comes first
    return int(max(np.cumsum([change for _, change in events]), default=0))


# ---- a whole run ----------------------------------------------------------------------------------------------------

LATENCIES = {  # name: (the figure of one row, what multiplies seconds, unit)
    "TTFT": ("ttft", 1000, "ms"),
    "TPOT": ("tpot", 1000, "ms"),
    "end to end": ("e2e", 1, "s"),
    "normalised latency": ("normalised_latency", 1000, "ms/token"),
    "client's own delay": ("queue_delay", 1000, "ms"),
}


@dataclass(frozen=True)
class Measurement:
    """One run: a row for every request asked for, warm-up rows first. Figures leave warm-up and failures out.

    lag: how late the client's own event loop woke, in seconds, sampled 20 times a second.
    """

    rows: tuple[Row, ...]
    peak_in_flight: int = 0
    wall: float = NAN
    started_at: str = ""
    mode: str = ""
    engine: str = ""
    model: str = ""
    simulated: bool = False
    interrupted: bool = False
    held: int | None = None
    lag: tuple[float, ...] = field(default=(), repr=False)

    @property
    def measured(self) -> list[Row]:
        """All rows but the warm-up."""
        return [row for row in self.rows if not row.warm_up]

    @property
    def ok(self) -> list[Row]:
        """The answers that came whole: the ones that latency is taken from."""
        return [row for row in self.measured if row.ok]

    @property
    def failed(self) -> list[Row]:
        """The ones that did not: see `Row.status` and `Row.error`."""
        return [row for row in self.measured if not row.ok]

    @property
    def failure_rate(self) -> float:
        """Failed / all, to be read beside every latency."""
        return len(self.failed) / len(self.measured) if self.measured else NAN

    @property
    def statuses(self) -> dict[str, int]:
        """How many rows ended in each status."""
        found = Counter(row.status for row in self.measured)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def output_tokens(self) -> int:
        """Tokens of the answers that came whole."""
        return sum(row.completion_tokens or 0 for row in self.ok)

    @property
    def repeated_prompts(self) -> int:
        """How many prompts had been sent before in this run: a server's prefix cache makes those cheaper."""
        return len(self.measured) - len({(row.ask.chat, row.ask.prompt) for row in self.measured})

    @property
    def counted(self) -> bool:
        """Whether every answer's tokens are known chunk by chunk. If not there is no ITL, only chunk gaps."""
        return all(row.counted for row in self.ok)

    def values(self, name: str) -> np.ndarray:
        """A row's figure (such as "ttft") for each answer that came whole, without those that have none (NaN).

        "queue_delay" is taken over every request sent: a client that is late is late for failures too.
        """
        rows = self.measured if name == "queue_delay" else self.ok
        found = np.array([getattr(row, name) for row in rows], dtype=float)
        return found[~np.isnan(found)]

    def gaps(self) -> np.ndarray:
        """Pooled ITL gaps of all answers; ValueError where tokens can't be counted (then see `chunk_gaps`)."""
        if not self.counted:
            raise ValueError("the server does not say how many tokens each chunk has: there are only chunk gaps")
        return pooled(row.itl_gaps for row in self.ok)

    def chunk_gaps(self) -> np.ndarray:
        """Pooled gaps between chunks."""
        return pooled(row.chunk_gaps for row in self.ok)

    def percentile(self, name: str, q: float) -> float:
        """A percentile of "itl" or of a row's figure such as "ttft", in seconds; TooFew if n is too small for it."""
        return tail(self.gaps() if name == "itl" else self.values(name), q)

    def between(self, start: float, end: float) -> Measurement:
        """Only the requests due in [start, end): leaves out a declared warm-up and drain. Rates are then per window."""
        rows = tuple(row for row in self.rows if not row.warm_up and start <= row.scheduled < end)
        return replace(self, rows=rows, wall=end - start, peak_in_flight=peak_in_flight(rows))

    def summary(self) -> dict[str, object]:
        """One line a fact: what ran, how it ended, how fast. Latencies are in `table`."""
        ended = {f"failed: {status}": count for status, count in self.statuses.items() if status != "ok"}
        wall = self.wall if self.wall > 0 else NAN
        note = " (simulated)" if self.simulated and self.engine != "simulated" else ""
        return {
            "engine": (self.engine or "unknown") + note,
            "model": self.model,
            "load": self.mode + (f", answers held by {self.held}" if self.held else ""),
            "requests": len(self.measured), "ok": len(self.ok), **ended, "failure rate": self.failure_rate,
            "ended early": sum(row.short for row in self.ok),
            "warm-up, left out": len(self.rows) - len(self.measured),
            "repeated prompts": self.repeated_prompts,
            "peak in flight": self.peak_in_flight,
            "wall, s": self.wall, "requests/s": len(self.ok) / wall,
            "output tokens": self.output_tokens, "output tokens/s": self.output_tokens / wall,
            "interrupted": self.interrupted,
        }  # fmt: skip

    def table(self) -> list[dict[str, object]]:
        """Latencies, one row each: measure, unit, n, mean, p50, p95, p99; a percentile refused is a sentence."""
        lines = [(name, unit, scale * self.values(key)) for name, (key, scale, unit) in LATENCIES.items()]
        gaps = ("ITL", self.gaps()) if self.counted else ("chunk gap (not ITL)", self.chunk_gaps())
        lines.insert(2, (gaps[0], "ms", 1000 * gaps[1]))
        lines.append(("client's loop lag", "ms", 1000 * np.array(self.lag)))
        return [_line(*line) for line in lines]


def _line(name: str, unit: str, values: np.ndarray) -> dict[str, object]:
    """One row of the table."""
    mean = float(values.mean()) if values.size else NAN
    shares = {f"p{100 * q:g}": _tail_or_reason(values, q) for q in (0.5, 0.95, 0.99)}
    return {"measure": name, "unit": unit, "n": values.size, "mean": mean, **shares}


def _tail_or_reason(values: np.ndarray, q: float) -> float | str:
    try:
        return tail(values, q)
    except TooFew as reason:
        return str(reason).partition(":")[0]
