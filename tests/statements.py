"""The page, statement by statement, in our words: where the course shows each one, or corrects it.

A place is "NN/cell" with a text that its source or stored output must hold, "question/id", "exercise/id" or
"drill/id". Most rows name the cell in which a reader sees it happen. tests/test_statements.py holds it all.
"""

from __future__ import annotations

from dataclasses import dataclass

Place = tuple[str, str]  # where, and what must stand there


@dataclass(frozen=True)
class Row:
    """A statement under one of the page's headings; `corrected` where the course says something else."""

    heading: str
    says: str
    places: tuple[Place, ...]
    corrected: bool = False

    @property
    def name(self) -> str:
        """For the name of a test."""
        return f"{self.heading}: {self.says}"


def shown(heading: str, says: str, *places: Place) -> Row:
    """A statement that the course shows."""
    return Row(heading, says, places)


def corrected(heading: str, says: str, *places: Place) -> Row:
    """A statement that the course corrects, softens or completes."""
    return Row(heading, says, places, corrected=True)


INTRO, PROBLEM, IDEA = "Introduction", "The Problem", "The Idea"
LOOP, TRUE, MIXED, NUMBERS = ("The step loop", "What had to be true", "Prefill and decode in the same step",
                              "What it does to your numbers")
ONE, CHANGE, TWO = "Experiment 1", "Now change one thing", "Experiment 2"
DIAL, BITES, PRODUCTION, CHECK, SHEET, SOURCES = ("Dial It In", "Where It Bites You", "In Production",
                                                  "Check Yourself", "Cheat Sheet", "Sources")
EXAMPLE, DEFAULTS, CLAIMS, CODE, RENDERING = ("Checklist: the worked example", "Checklist: defaults",
                                              "Checklist: technical claims", "Checklist: code", "Checklist: rendering")
HEADINGS = (INTRO, PROBLEM, IDEA, LOOP, TRUE, MIXED, NUMBERS, ONE, CHANGE, TWO, DIAL, BITES, PRODUCTION, CHECK, SHEET,
            SOURCES, EXAMPLE, DEFAULTS, CLAIMS, CODE, RENDERING)

ROWS: tuple[Row, ...] = (

    # ---- Introduction
    shown(INTRO, "paging lets a server hold several times more sequences", ("00/fit-note", "sixteen times as many")),
    shown(INTRO, "held sequences are worth something only if each step works on them",
          ("00/measure-note", "wants its batch full at every step")),
    shown(INTRO, "iteration-level scheduling and continuous batching are one idea; Orca introduced it",
          ("04/paging-note", "iteration-level scheduling"), ("07/sources", "Orca")),

    # ---- The Problem
    shown(PROBLEM, "batching raises throughput several-fold", ("00/roofline", "sequences"), ("00/measure", "vectors")),
    shown(PROBLEM, "p50 is fine and p99 is far worse, unrelated to a request's own size", ("02/tail", "1015.0"),
          ("01/wait", "938")),
    shown(PROBLEM, "12 tokens take as long as 800", ("01/wait", "950"), ("01/define-hol", "trivial question")),
    shown(PROBLEM, "utilisation draws a sawtooth", ("02/sawtooth", "sawtooth"), ("02/occupancy", "svg.occupancies")),
    shown(PROBLEM, "new requests wait though slots stand idle", ("01/ninth", "the ninth starts"),
          ("01/two-failures", "Closed membership")),
    shown(PROBLEM, "static (request-level) batching takes a group, runs it, returns it together",
          ("01/q-waste", "request-level batching")),
    shown(PROBLEM, "that is right for image classification, where all take equally long",
          ("01/q-waste", "image classification")),
    shown(PROBLEM, "the eight lengths", ("01/lengths", "950")),
    shown(PROBLEM, "950 steps, 7,600 slot-steps, 1,932 of them useful", ("01/static", "7,600"), ("01/static", "1,932")),
    shown(PROBLEM, "74.6 % wasted", ("01/utilisation", "74.6%"), ("exercise/slot_steps_wasted", "")),
    shown(PROBLEM, "A waits another 938 steps", ("01/reveal-wait", "938"), ("exercise/head_of_line_wait", "")),
    shown(PROBLEM, "two failures: held slots, fixed membership", ("01/two-failures", "Held slots"),
          ("question/two_failures", "")),
    shown(PROBLEM, "normalised latency is end-to-end latency over output tokens",
          ("01/q-normalised", "normalised latency"), ("exercise/normalised_latency", "")),
    corrected(PROBLEM, "A's is 79 times H's", ("01/reveal-norm", "79.2"), ("01/assumption", "assumption")),

    # ---- The Idea
    shown(IDEA, "the restaurant: what is ready leaves, who waits sits down", ("01/picture-both", "continuous")),
    shown(IDEA, "a batch is a set of slots whose membership is re-decided every token step", ("07/sheet", "sheet()"),
          ("question/granularity", "")),
    shown(IDEA, "a finished sequence leaves at the end of its step", ("01/continuous", "12"),
          ("exercise/retire", "")),
    shown(IDEA, "a waiting request joins when slot and memory are there", ("exercise/admit", ""),
          ("exercise/next_slot", ""), ("04/ex-limit", "full-prompt gate")),
    shown(IDEA, "no longest member any more: order still matters", ("01/four-table", "mixed")),
    shown(IDEA, "no dish is cooked faster: a request's own steps stay", ("01/notice-continuous", "Not one step less"),
          ("question/faster", "")),

    # ---- Under the Hood
    corrected(LOOP, "schedule, execute, retire, admit, preempt", ("04/q-loop", "would be a simplification"),
              ("question/page_order", ""), ("04/rules", "Running requests first")),
    shown(LOOP, "three limits: token budget, sequence cap, free KV blocks", ("04/q-loop", "max_num_batched_tokens"),
          ("exercise/binding_limit", "")),
    corrected(LOOP, "one new token for each running sequence",
              ("04/budget-note", "unfinished chunk makes no output token")),
    corrected(LOOP, "EOS, max_tokens or a stop string retires", ("04/stop-strings", "API server"),
              ("exercise/retire", "")),
    shown(LOOP, "blocks return to the pool when a sequence leaves", ("04/moved", "block numbers freed"),
          ("04/rules", "free before the next step")),
    shown(LOOP, "short of memory, a running sequence is evicted and recomputed", ("04/preempt", "preemptions"),
          ("question/preempted", "")),
    corrected(LOOP, "about a hundred times a second", ("05/join", "times a second")),

    shown(TRUE, "membership must change without moving memory", ("04/moved", "MiB moved")),
    shown(TRUE, "with block tables, nothing moves", ("04/moved", "block tables"), ("question/paging", "")),
    corrected(TRUE, "paging is what makes it possible at all", ("04/paging-note", "not an impossibility")),
    shown(TRUE, "one forward pass over ragged lengths", ("04/ragged-compare", "agree: True"), ("question/ragged", "")),

    shown(MIXED, "prefill and decode share a step and its budget", ("04/page-step", "decode tokens"),
          ("exercise/chunk_plan", "")),
    corrected(MIXED, "a step of 4,000 prefill tokens beside 180 decodes", ("04/page-step", "1,868"),
              ("04/reveal-steps", "3 steps"), ("question/chunks", "")),
    shown(MIXED, "long prefills are chunked", ("04/budget-note", "chunked prefill"), ("04/panel", "step_player")),

    corrected(NUMBERS, "utilisation: 25.4 % against about 100 %", ("01/continuous", "25.4%"),
              ("02/drain", "utilisation before")),
    shown(NUMBERS, "a short request's latency becomes its own", ("01/continuous", "A returned at")),
    corrected(NUMBERS, "admission within a step or two", ("05/join-verdict", "two steps")),
    corrected(NUMBERS, "normalised latency nearly flat", ("02/parts-table", "queueing"), ("02/open-note", "flat"),
              ("question/all_at_once", "")),
    corrected(NUMBERS, "ITL slightly worse at a given load", ("05/itl-note", "backlog"),
              ("05/turn-note", "turn round"), ("06/per-user", "mean_itl")),

    # ---- Try It
    shown(ONE, "59,092 useful slot-steps", ("02/lengths-facts", "59,092")),
    shown(ONE, "static 8,942 steps, 20.7 %; continuous 2,206 steps, 83.7 %", ("02/both", "8,942"), ("02/both", "20.7%"),
          ("02/both", "2,206"), ("02/both", "83.7%")),
    shown(ONE, "p50/p99 56.1/1,015.0 and 9.7/173.6", ("02/tail", "56.1"), ("02/tail", "1015.0"), ("02/tail", "9.7"),
          ("02/tail", "173.6")),
    shown(ONE, "a quarter of the steps", ("02/reveal-ratio", "4.1")),
    shown(ONE, "p99 5.8 times better", ("02/reveal-p99", "5.8")),
    shown(ONE, "the gap to 100 % is drain", ("02/drain", "drain"), ("02/longer", "drain"), ("question/drain", "")),
    shown(ONE, "the reader writes both schedulers", ("exercise/static_finish", ""), ("exercise/continuous_finish", "")),

    shown(CHANGE, "the sweep: 20.7/83.7/5.8, 37.4/94.6/2.8, 58.2/95.8/1.7, 81.5/97.1/1.2", ("03/sweep", "37.4%"),
          ("03/sweep", "94.6%"), ("03/sweep", "2.8"), ("03/sweep", "58.2%"), ("03/sweep", "81.5%"),
          ("03/sweep", "97.1%"), ("03/sweep", "1.2")),
    shown(CHANGE, "at equal lengths the two converge", ("03/spread-note", "melts")),
    corrected(CHANGE, "the advantage comes entirely from variance", ("03/arrivals", "sigma 0, half load"),
              ("03/arrivals-note", "closed membership"), ("question/where_from", "")),
    corrected(CHANGE, "nobody puts it into a benchmark", ("question/benchmark", "Published benchmarks do vary")),

    shown(TWO, "eight budgets at once on a real server", ("05/mixed-asks", "16, 16, 32, 32, 64, 128, 512, 512"),
          ("05/mixed", "BUDGETS")),
    shown(TWO, "the short ones return early", ("05/observations", "holds?")),
    shown(TWO, "latency follows a request's own length", ("05/observations", "holds?"), ("05/reveal-spread", "times")),
    corrected(TWO, "normalised latency roughly flat over the eight", ("05/observations-note", "Roughly flat")),
    corrected(TWO, "wall clock about that of the longest alone", ("05/observations", "holds?"),
              ("05/observations-note", "fourth")),
    corrected(TWO, "it demonstrates continuous batching", ("05/admission-note", "independent retirement"),
              ("05/four-slots", "slots=4")),
    corrected(TWO, "all 512: the wall clock barely moves", ("05/equal", "steps"), ("05/equal-note", "longer")),

    # ---- Dial It In
    shown(DIAL, "max_num_seqs: throughput against per-user ITL; a brake", ("06/panel-dial", "dial"),
          ("06/dial-note", "brake"), ("drill/full_batch", "")),
    shown(DIAL, "raising it helps only while KV blocks are free", ("drill/sequence_cap", ""),
          ("drill/greedy_tenant", "")),
    shown(DIAL, "the budget: prefill throughput against smooth ITL", ("06/budget", "budget"),
          ("drill/long_prompts", ""), ("04/seconds-budget", "at a budget of")),
    shown(DIAL, "offline: raise the budget", ("06/budget-offline", "budget")),
    shown(DIAL, "chunked prefill off is almost always wrong for interactive serving", ("06/chunked", "chunked"),
          ("04/panel-presets", "chunking off")),
    corrected(DIAL, "priority lets a tier jump the queue", ("04/priority", "fcfs"),
              ("04/priority-note", "takes a slot from nobody")),
    shown(DIAL, "defaults move: look at your own build", ("06/defaults", "2048")),

    # ---- Where It Bites You
    shown(BITES, "concurrency 1: nothing to gain", ("06/benchmarks", "concurrency 1"), ("drill/misread_benchmark", "")),
    shown(BITES, "uniform lengths: nearly nothing to gain", ("06/benchmark-note", "Equal lengths"),
          ("question/when_static", "")),
    shown(BITES, "a fixed max_tokens makes lengths uniform", ("06/benchmark-note", "max_tokens"),
          ("question/benchmark", "")),
    shown(BITES, "it doesn't make one user's tokens faster", ("06/peruser-note", "type"), ("question/faster", "")),
    shown(BITES, "client-side collecting is static batching again", ("06/collector-table", "collected for 50 ms"),
          ("drill/client_batcher", "")),
    shown(BITES, "fcfs is not fairness: starvation at admission", ("06/fcfs-table", "fcfs"),
          ("drill/greedy_tenant", ""), ("question/greedy_tenant", "")),
    shown(BITES, "preemption is the memory limit, not a fault of the batcher", ("04/preempt-note", "not the batcher"),
          ("06/preempt", "preemptions"), ("drill/thrashing", "")),

    # ---- In Production
    shown(PRODUCTION, "watch running and waiting as a pair", ("07/q-drills", "as a pair"), ("06/alerts", "rule")),
    shown(PRODUCTION, "at the cap, somebody waits: concurrency-capped", ("drill/sequence_cap", ""),
          ("exercise/diagnosis", "")),
    corrected(PRODUCTION, "below the cap, somebody waits: memory-capped", ("drill/memory", ""),
              ("drill/token_budget", ""), ("drill/blocked_head", ""), ("07/rows", "KV cache"),
              ("question/not_memory", "")),
    shown(PRODUCTION, "below the cap, nobody waits: headroom", ("drill/under_load", "")),
    corrected(PRODUCTION, "the pair is most of what one on call needs: other signs beside it",
              ("drill/dead_engine", ""), ("drill/oversized", ""), ("07/alarms", "slow start")),
    shown(PRODUCTION, "measure the tail: an average hides what broke", ("06/tail", "p99")),
    corrected(PRODUCTION, "track normalised latency percentiles: vLLM exports none", ("06/tail-note", "exports no")),
    shown(PRODUCTION, "at ten times the traffic goodput falls after a knee", ("06/tenfold", "two_minutes"),
          ("06/tenfold-note", "knee")),
    corrected(PRODUCTION, "KV use leads, latency lags", ("06/lead-table", "lead"), ("06/lead-note", "cap")),
    shown(PRODUCTION, "the shape of your workload, before you deploy", ("03/own", "read_lengths"),
          ("03/own-verdict", "verdict"), ("06/shape", "p99 / p50"), ("exercise/gain", "")),
    shown(PRODUCTION, "flattening the variance costs you quietly", ("03/own-panel", "max_tokens")),

    # ---- Check Yourself
    *(shown(CHECK, f"question {number} of the page", (f"question/{name}", ""), ("07/quiz", "12 questions"))
      for number, name in enumerate(("granularity", "head_of_line", "normalised", "faster", "one_step", "paging",
                                     "ragged", "where_from", "benchmark", "itl_target", "greedy_tenant",
                                     "when_static"), 1)),

    # ---- Cheat Sheet
    *(shown(SHEET, what, ("07/sheet", text)) for what, text in (
        ("the reframe", "re-decided every token step"), ("the step", "One step of vLLM V1"),
        ("static against continuous", "Static against continuous"), ("running and waiting", "who holds the next"),
        ("the flags", "--max-num-batched-tokens"), ("what to remember", "To remember"))),

    # ---- Sources
    *(shown(SOURCES, what, ("07/sources", text)) for what, text in (
        ("Orca", "usenix.org"), ("PagedAttention", "2309.06180"), ("vLLM's tuning pages", "docs.vllm.ai"))),

    # ---- Verification checklist
    shown(EXAMPLE, "the arithmetic of the eight", ("01/static", "5,668"), ("01/utilisation", "25.4%")),
    shown(EXAMPLE, "state what 79 compares", ("01/assumption", "950/12")),
    shown(DEFAULTS, "no number for max_num_seqs but your own build's", ("06/defaults", "max_num_seqs")),
    shown(DEFAULTS, "the policy's name, its default and the alternative", ("04/q-priority", "--scheduling-policy"),
          ("07/sheet", "fcfs is the default")),
    shown(DEFAULTS, "no recompute-or-swap choice: preemption recomputes", ("question/preempted", "Nothing is swapped"),
          ("question/paging", "V1 has no swapping")),
    shown(DEFAULTS, "chunked prefill is on by default", ("07/sheet", "on by default")),
    shown(CLAIMS, "is ITL worse? measured, both for a backlog and at an equal rate", ("05/itl-backlog", "gaps"),
          ("05/turn-measured", "open-loop")),
    shown(CLAIMS, "prefill and decode are mixed and share the budget", ("04/page-step", "decode tokens"),
          ("04/proof", "vLLM's own")),
    shown(CLAIMS, "the loop's true order, said where it differs", ("04/q-loop", "simplification"), ("04/rules", "1. ")),
    shown(CODE, "the simulation's output is real, drain and 5.8x explained", ("02/both", "83.7%"),
          ("02/reveal-p99", "5.8"), ("02/drain-note", "drain")),
    shown(CODE, "what the model leaves out is said", ("02/left-out", "KV memory")),
    shown(CODE, "lognormal(4.2, 1.1) against measured lengths", ("03/real", "Azure"), ("03/fitted-worst", "the fit"),
          ("02/lengths-facts", "mean 118")),
    shown(CODE, "the convergence over the sweep", ("03/sweep", "81.5%")),
    shown(CODE, "mixed lengths on a real server, all four observations tried", ("05/observations", "holds?")),
    shown(CODE, "split() counts words: count tokens by usage", ("05/own-tokens", "words"),
          ("exercise/output_tokens", "")),
    shown(RENDERING, "the page's image: a picture that is computed", ("01/picture-both", "svg.timelines")),
    shown(RENDERING, "the drawn step loop: a player instead", ("04/panel", "step_player")),
    shown(RENDERING, "links resolve", ("07/sources", "https://")),
)
