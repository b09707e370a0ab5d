"""A load client for any OpenAI-compatible server, and honest measurement with it.

`measure` sends `Ask`s and returns a `Measurement` with a `Row` for each of them, failures included. Definitions are
in the docstrings of `Row`; `NAMES` says what other tools call the same things, and what they mean by the same names.
"""
from __future__ import annotations

import asyncio
import random
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from labs.live.load import Run
from labs.live.measurement import (
    STATUSES,
    Ask,
    Measurement,
    Row,
    TooFew,
    chunk_gaps,
    enough_for,
    hold_groups,
    itl_from_chunks,
    peak_in_flight,
    pooled,
    tail,
)
from labs.workload import Request

__all__ = [
    "NAMES", "STATUSES", "Agreement", "Ask", "Measurement", "Name", "Row", "TooFew", "agreement", "ameasure",
    "asks_from", "chunk_gaps", "enough_for", "hold_groups", "itl_from_chunks", "measure", "peak_in_flight", "pooled",
    "tail",
]  # fmt: skip

Progress = Callable[[int, int], None]
VOCABULARY = range(64, 256)  # ids that every byte-level vocabulary has, above the special tokens at its start
_TELL_APART = 16  # tokens: the smallest block that a prefix cache shares


# ---- measuring ------------------------------------------------------------------------------------------------------

def measure(server: Any, asks: Sequence[Ask], *, mode: str = "all-at-once", progress: Progress | None = None,
            **settings: Any) -> Measurement:  # fmt: skip
    """Send `asks` to `server` and measure each; also inside Jupyter, where an event loop already runs.

    The settings are `ameasure`'s. `progress(done, total)` is called from this thread, at most ten times a second.
    Interrupting it (KeyboardInterrupt) stops the load and returns what had arrived, with `interrupted` set: what was
    still under way counts as cut.
    """
    run, caught = Run(server, asks, mode, **settings), []

    def work() -> None:
        try:
            asyncio.run(run.go())
        except BaseException as fault:  # told again in the caller's thread
            caught.append(fault)

    thread = threading.Thread(target=work, name="load", daemon=True)
    try:
        thread.start()
        _watch(thread, run, progress)
    except KeyboardInterrupt:
        run.interrupted = True
        run.stop.set()
        _join(thread)
    if caught:
        raise caught[0]
    return run.measurement()


async def ameasure(server: Any, asks: Sequence[Ask], *, mode: str = "all-at-once", concurrency: int | None = None,
                   warm_up: int = 0, timeout: float = 600.0, progress: Progress | None = None,
                   max_connections: int | None = None, hold_groups: int | None = None, counts: str = "ids",
                   stop: threading.Event | None = None) -> Measurement:  # fmt: skip
    """Send `asks` to `server` and measure each.

    server: anything with `base_url`, `api_key` and `model`.
    mode: "all-at-once"; "closed-loop", `concurrency` users who each wait for an answer before they ask again;
    "open-loop", each request at its own `arrival`, however slow the server is; or "held", all queued in order while
    the server is paused, then let go together: times count from there, and the engine's steps can be predicted.
    warm_up: so many requests more are sent first, of the same sizes and with other prompts; their rows are labelled.
    timeout: the deadline of it all, in seconds; what is not done by then counts as a timeout.
    max_connections: by default as many as the load needs; fewer make requests wait in the client (`queue_delay`).
    hold_groups: hold each answer until its group of so many has ended, as static batching does.
    counts: how tokens in a chunk are told: "ids" (`return_token_ids`), "usage" (a usage with every chunk), "none".
    stop: an event that ends the run early, from any thread; what had arrived is kept.
    Nothing is retried. Raises ValueError for settings that make no sense.
    """
    run = Run(server, asks, mode, concurrency, warm_up, timeout, max_connections, hold_groups, counts)
    run.on_progress = progress
    run.stop = stop or run.stop
    await run.go()
    return run.measurement()


def _watch(thread: threading.Thread, run: Run, progress: Progress | None) -> None:
    """Wait for the load, and show how far it is. A progress bar that fails must not cost the results."""
    shown = -1
    while True:
        thread.join(0.1)
        if progress and run.finished != shown:
            shown = run.finished
            try:
                progress(shown, len(run.records))
            except Exception as fault:
                warnings.warn(f"the progress callback failed and is left out: {fault!r}", stacklevel=3)
                progress = None
        if not thread.is_alive():
            return


def _join(thread: threading.Thread) -> None:
    """Give the load time to close its connections; an impatient second interrupt ends the wait, not the results."""
    try:
        thread.join(10)
    except KeyboardInterrupt:
        return


def asks_from(requests: Sequence[Request], seed: int = 0, vocab: Sequence[int] = VOCABULARY, *,
              seconds: float = 1.0, **settings: Any) -> list[Ask]:  # fmt: skip
    """An `Ask` for each request: exactly its prompt tokens, drawn from the ids in `vocab`, and its output tokens.

    No two prompts begin alike (their first 16 tokens differ), so that no prefix cache helps. An arrival is
    multiplied by `seconds` (the length of a step, where arrivals are in steps). Other settings go to `Ask`.
    Raises ValueError if there are not enough different prompts.
    """
    draw, seen, asks = random.Random(seed), set(), []
    for request in requests:
        prompt = _new_prompt(draw, request.prompt_tokens, vocab, seen)
        priority = {"priority": request.priority} if request.priority else {}
        asks.append(Ask(request.request_id, prompt, request.output_tokens, request.arrival * seconds,
                        **priority | settings))  # fmt: skip
    return asks


def _new_prompt(draw: random.Random, n: int, vocab: Sequence[int], seen: set) -> tuple[int, ...]:
    """A prompt of `n` tokens whose beginning is not in `seen` yet."""
    for _ in range(100):
        prompt = tuple(draw.choices(vocab, k=n))
        if prompt[:_TELL_APART] not in seen:
            seen.add(prompt[:_TELL_APART])
            return prompt
    raise ValueError(f"{len(vocab)} token ids do not give enough different prompts of {n} tokens: use longer prompts")


# ---- the server's own figures beside ours ---------------------------------------------------------------------------

class Agreement(NamedTuple):
    """One figure as client and server have it: means in seconds; None where one of them has none."""

    measure: str
    client: float | None
    server: float | None
    difference: float | None
    client_n: int
    server_n: int | None
    words: str


_HISTOGRAMS = {  # ours: vLLM's names, the present one first
    "TTFT": ("vllm:time_to_first_token_seconds",),
    "ITL": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "TPOT": ("vllm:request_time_per_output_token_seconds",),
    "end to end": ("vllm:e2e_request_latency_seconds",),
}


def agreement(measurement: Measurement, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Agreement]:
    """Our means beside the server's own, from its histograms between two scrapes (take the first after warm-up).

    `before` and `after` map names to values: "NAME_sum" and "NAME_count", or "NAME" to anything with `sum` and
    `count`. The server counts everybody's requests, so the numbers of values must agree before the means can.
    """
    ours = {"TTFT": measurement.values("ttft"), "ITL": measurement.gaps() if measurement.counted else [],
            "TPOT": measurement.values("tpot"), "end to end": measurement.values("e2e")}  # fmt: skip
    return [_compare(name, values, _delta(_HISTOGRAMS[name], before, after)) for name, values in ours.items()]


def _compare(name: str, ours: Sequence[float], theirs: tuple[float, float] | str) -> Agreement:
    """One line of the comparison."""
    n, mean = len(ours), float(sum(ours)) / len(ours) if len(ours) else None
    if isinstance(theirs, str):
        return Agreement(name, mean, None, None, n, None, theirs)
    total, count = theirs
    if not count or mean is None:
        return Agreement(name, mean, total / count if count else None, None, n, int(count), "one side has no values")
    server = total / count
    words = f"client {mean / server - 1:+.1%} ({1000 * (mean - server):+.1f} ms)"
    if count != n:
        words += f"; but the server counted {count:.0f} values and the client {n}: not the same requests"
    return Agreement(name, mean, server, mean / server - 1, n, int(count), words)


def _delta(names: Sequence[str], before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, float] | str:
    """(sum, count) that a histogram grew by, or why that can't be said. Absent before = not yet there, so 0."""
    for name in names:
        if (end := _sum_count(after, name)) is not None:
            start = _sum_count(before, name) or (0.0, 0.0)
            if end[1] < start[1]:
                return "the server's counters went back: it was started again in between"
            return end[0] - start[0], end[1] - start[1]
    return f"the server has no {names[0]}"


def _sum_count(metrics: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """A histogram's sum and count in any of the shapes that `agreement` takes; None if it is absent."""
    if f"{name}_count" in metrics:
        return float(metrics[f"{name}_sum"]), float(metrics[f"{name}_count"])
    found = metrics.get(name)
    if found is None:
        return None
    if isinstance(found, Mapping):
        return float(found["sum"]), float(found["count"])
    return float(found.sum), float(found.count)


# ---- what others call it --------------------------------------------------------------------------------------------

class Name(NamedTuple):
    """A figure, and what each tool calls it."""

    ours: str
    definition: str
    vllm_bench_serve: str
    guidellm: str
    llmperf: str
    server_metric: str


NAMES = (
    Name("TTFT", "first chunk with a generated token - sent", "TTFT", "time to first token", "ttft_s",
         "vllm:time_to_first_token_seconds"),
    Name("ITL", "the gap before each token but the first, pooled over all requests",
         "(none: its ITL is the gap between chunks, whatever they hold)",
         "(none: its inter-token latency is TPOT, weighted by tokens)",
         "(none: its inter-token latency is normalised latency)", "vllm:inter_token_latency_seconds"),
    Name("chunk gap", "the gap between two chunks, which may hold several tokens each", "ITL", "(none)", "(none)",
         "(none)"),
    Name("TPOT", "(last - first) / (tokens - 1), one value a request", "TPOT = (E2E - TTFT) / (tokens - 1)",
         "inter-token latency", "(none)", "vllm:request_time_per_output_token_seconds"),
    Name("end to end", "done - sent", "E2EL (to the last chunk)", "request latency", "end_to_end_latency_s",
         "vllm:e2e_request_latency_seconds"),
    Name("normalised latency", "end to end / tokens", "(none)", "time per output token = (last - start) / tokens",
         "inter_token_latency_s = summed gaps, TTFT included, / tokens",
         "(none: e2e sum / generation tokens gives its mean weighted by tokens)"),
    Name("queue_delay", "sent - scheduled: the client's own lateness", "(none)", "(none)", "(none)", "(none)"),
)  # fmt: skip
