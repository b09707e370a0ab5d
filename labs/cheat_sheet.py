"""The cheat sheet: one printable page, every figure on it computed here. `python -m labs.cheat_sheet` writes it out.

solutions/build.py stores it as notebooks/cheat_sheet.html, and says if what is stored is not what this gives.
"""
from __future__ import annotations

import sys
from base64 import b64encode
from dataclasses import dataclass
from html import escape

from labs import metrics, svg
from labs.engine import run
from labs.scheduler import SchedulerConfig
from labs.slots import continuous_batching, static_batching
from labs.sweep import compare
from labs.workload import EIGHT_LENGTHS, Request, lognormal_lengths

N, SLOTS, MU, SIGMAS, SEED = 500, 32, 4.2, (1.1, 0.6, 0.3, 0.1), 0
STYLE = """
@page { size: A4; margin: 9mm }
body { font: 10.3px/1.32 Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif; color: #222; background: #fff;
       max-width: 188mm; margin: 0 auto; padding: 4px }
table { font-size: inherit; line-height: inherit }
h1 { font-size: 19px; margin: 0 0 1px } h2 { font-size: 12.6px; margin: 7px 0 2px; border-bottom: 1px solid #0072B2 }
p { margin: 2px 0 } table { border-collapse: collapse; width: 100%; margin: 2px 0 }
th, td { text-align: left; padding: 1.6px 6px 1.6px 0; border-bottom: 1px solid #ddd; vertical-align: top }
code { font: 9.8px 'DejaVu Sans Mono', 'Liberation Mono', monospace }
.lead { font-size: 13.5px; font-weight: bold; margin: 3px 0 } ol, ul { margin: 2px 0; padding-left: 16px }
img { width: 100%; height: auto } .side { display: flex; gap: 6mm } .side > :first-child { flex: 56 }
.side > :last-child { flex: 44 } .small { color: #555; font-size: 9.6px }
"""


@dataclass(frozen=True)
class Sheet:
    """The page as HTML; shows itself in a notebook."""

    html: str

    def __repr__(self) -> str:
        return "the cheat sheet: also a page to print, cheat_sheet.html beside this notebook"

    def _repr_html_(self) -> str:
        # In a frame of its own, so that its style stays with it.
        return (f'<iframe title="cheat sheet" srcdoc="{escape(self.html)}" width="100%" height="1060" '
                'style="border:1px solid #ccc;background:#fff;max-width:820px"></iframe>')


@dataclass(frozen=True)
class Figures:
    """The numbers on the sheet, each from a run of the course's own schedulers."""

    useful: int
    available: int
    longest: int
    first: int
    rows: tuple[tuple[float, float, float, float], ...]
    drain: float
    half_load: dict[str, float]
    budget_steps: int
    preemptions: int
    lost: float

    @property
    def waste(self) -> float:
        """The wasted share of the eight requests' static batch."""
        return 1 - self.useful / self.available


def figures() -> Figures:
    """Run everything that the sheet quotes."""
    eight = static_batching(EIGHT_LENGTHS, 8)
    rows = []
    for sigma in SIGMAS:
        lengths = lognormal_lengths(N, MU, sigma, SEED)
        both = static_batching(lengths, SLOTS), continuous_batching(lengths, SLOTS)
        p99 = [metrics.percentile(metrics.normalised_latency(s), 0.99) for s in both]
        rows.append((sigma, both[0].utilisation, both[1].utilisation, p99[0] / p99[1]))
    whole = continuous_batching(lognormal_lengths(N, MU, SIGMAS[0], SEED), SLOTS)
    budget, tight = two_prompts(2048), crowded()
    computed = sum(r.prefill_tokens + r.decode_tokens for r in tight.records)
    return Figures(eight.useful, eight.slots * eight.steps, int(max(EIGHT_LENGTHS)), int(min(EIGHT_LENGTHS)),
                   tuple(rows), metrics.drain(whole) / whole.steps,
                   compare(lognormal_lengths(N, MU, 0.0, SEED), SLOTS, load=0.5, seed=SEED), budget,
                   tight.preemptions, sum(r.lost for r in tight.records) / computed)


def two_prompts(budget: int) -> int:
    """Steps until two prompts of 2,000 tokens are computed beside 180 requests that decode."""
    requests = [Request(f"d{i}", 1, 50) for i in range(180)] + [Request(n, 2000, 5, arrival=2) for n in "XY"]
    records = run(requests, SchedulerConfig(256, budget, num_gpu_blocks=20_000, max_model_len=4096)).records
    return sum(bool(r.prefill) for r in records[1:])


def crowded():
    """24 requests on 60 KV blocks."""
    outputs = [min(int(n), 400) for n in lognormal_lengths(24, MU, 1.1, SEED)]
    requests = [Request(f"r{i:02}", 60, n) for i, n in enumerate(outputs)]
    return run(requests, SchedulerConfig(16, 512, num_gpu_blocks=61, max_model_len=512))


def percent(share: float) -> str:
    """74.6 %."""
    return f"{100 * share:.1f} %"


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """An HTML table; cells may hold markup of our own."""
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def sheet(f: Figures | None = None) -> Sheet:
    """The whole page."""
    f = figures() if f is None else f
    parts = [
        "<h1>Continuous batching on one page</h1>",
        '<p class="lead">A batch is a set of slots whose membership is re-decided every token step.</p>',
        f'<div class="side"><div>{_picture()}</div><div>{_sweep(f)}</div></div>', _steps(f), _compared(f),
        _diagnosis(), _flags(), _remember(f),
        f'<p class="small">Figures: {N} requests of lognormal({MU}, sigma) tokens, seed {SEED}, {SLOTS} slots, all '
        "there at step 0, one token a step, no memory limit and no prefill; p99 = sorted[int(0.99 n)]. The eight "
        f"requests: {', '.join(map(str, EIGHT_LENGTHS))} tokens. Rules of vLLM 0.32, synchronous "
        "scheduling, no prefix caching.</p>"]
    return Sheet(f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Continuous batching: cheat sheet'
                 f"</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n")


def _picture() -> str:
    lengths = lognormal_lengths(24, MU, SIGMAS[0], SEED)
    picture = svg.timelines([static_batching(lengths, 8), continuous_batching(lengths, 8)])
    source = b64encode(picture.svg.encode()).decode()
    return (f"<p>{len(lengths)} requests in 8 slots, sigma {SIGMAS[0]:g}, all there at step 0:</p>"
            f'<img alt="{escape(picture.alt)}" src="data:image/svg+xml;base64,{source}">')


def _steps(f: Figures) -> str:
    return ("<h2>One step of vLLM V1</h2>"
            "<p><b>schedule</b>: running first, a token each while the budget lasts, preempting the last of them "
            "(fcfs) where KV blocks are short; then, if nobody was preempted, admit from the head of the queue while "
            "budget, <code>max_num_seqs</code> and blocks for its whole prompt allow → <b>execute</b>: one forward "
            "pass; a token each, none for an unfinished prompt chunk → <b>retire</b>: at EOS, a stop token or "
            "<code>max_tokens</code>; blocks are free before the next step. (Stop strings are found outside, and "
            f"abort.) 180 decoding and two prompts of 2,000 at a budget of 2,048: {f.budget_steps} steps.</p>")


def _compared(f: Figures) -> str:
    p50, p99 = f.half_load["static_p50"], f.half_load["static_p99"]
    return "<h2>Static against continuous</h2>" + table(("", "static", "continuous"), [
        ("membership is decided", "once for a group", "before every step"),
        ("a finished request", f"holds its slot: A waits {f.longest - f.first} steps for nothing", "leaves at once"),
        ("a new request", "waits for the group", "gets the next free slot"),
        ("the eight requests, eight slots", f"{percent(f.waste)} of slot-steps wasted "
         f"({f.available - f.useful:,} of {f.available:,})", "a freed slot is the next one's"),
        ("equal lengths, arriving at half load", f"normalised latency p50 {p50:.1f}, p99 {p99:.1f}",
         f"p50 {f.half_load['continuous_p50']:.1f}, p99 {f.half_load['continuous_p99']:.1f}"),
        ("ITL", "better for a backlog (emptier batch), often worse at an equal arrival rate", "the other way round")])


def _sweep(f: Figures) -> str:
    rows = [(f"{sigma:g}", percent(static), percent(continuous), f"{gain:.1f}x")
            for sigma, static, continuous, gain in f.rows]
    return ("<h2>The gain on a backlog: variance in output length</h2>"
            + table(("sigma", "static useful", "continuous useful", "p99 static / continuous"), rows)
            + "<p>Waste of a group = slots x longest - sum. Static utilisation = E[L] / E[longest of the group]. p99 "
            "is that of normalised latency. The continuous run's gap to 100 % is drain: at "
            f"sigma {SIGMAS[0]:g} its last {percent(f.drain)} of steps have nobody left to admit."
            "</p>")


def _diagnosis() -> str:
    return "<h2>running, waiting, KV use: who holds the next request back?</h2>" + table(
        ("running", "waiting", "and", "limit", "do"), [
            ("at <code>max_num_seqs</code>", "&gt; 0", "no preemptions", "sequence cap",
             "raise it while ITL allows and KV blocks are free; else a replica"),
            ("below", "&gt; 0", "KV use near 100 %", "memory", "more KV memory, shorter contexts, a replica"),
            ("any", "any", "preemptions, not just a few", "memory: work is done twice",
             "lower <code>max_num_seqs</code>, or as above"),
            ("below", "&gt; 0", "steps spend the budget", "token budget", "raise <code>max_num_batched_tokens</code>"),
            ("below", "&gt; 0", "blocks and budget left", "head of the queue: its prompt doesn't fit",
             "a pool for long prompts"),
            ("any", "0", "no preemptions", "none", "nothing: headroom"),
            ("0 or frozen", "any", "no tokens", "an engine that stands, or a head that never fits",
             "probe with a token; refuse what can't fit")])


def _flags() -> str:
    return "<h2>Flags</h2>" + table(("flag", "what it trades"), [
        ("<code>--max-num-seqs N</code>", "a brake: higher is more throughput and a longer ITL; cap it below where p95 "
         "ITL crosses its target, and add replicas for the rest"),
        ("<code>--max-num-batched-tokens N</code>", "tokens a step: higher computes prompts sooner, lower keeps ITL "
         "smooth when they arrive"),
        ("<code>--enable-chunked-prefill</code>", "on by default: a long prompt shares steps instead of taking them"),
        ("<code>--scheduling-policy fcfs|priority</code>", "orders the queue and picks victims; smaller is sooner; it "
         "takes a slot from nobody. fcfs is the default, and ignores priorities")])


def _remember(f: Figures) -> str:
    return ("<h2>To remember</h2><ol><li>On a backlog the gain is variance in output length; with arrivals, open "
            "membership gains even at equal lengths. A benchmark at concurrency 1 sees neither; one in which "
            "everybody reaches a fixed <code>max_tokens</code> doesn't see the first.</li><li>It ends "
            "head-of-line blocking inside a batch, not starvation at admission: that takes priorities, a "
            "gateway's limits or pools. A request alone gets no faster.</li><li>Preemption is the memory limit, "
            f"not a fault of the batcher: 24 requests on 60 blocks, {f.preemptions} preemptions, {percent(f.lost)}"
            " of all tokens computed again. Where memory binds, KV use rises first: alert there, and on "
            "waiting.</li><li>Normalised latency = (returned - arrived) / output tokens. Watch its tail, and "
            "split it into queueing and service. vLLM exports none: measure it at the client.</li></ol>")


if __name__ == "__main__":
    sys.stdout.write(sheet().html)
