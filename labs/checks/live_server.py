"""The exercises of notebook 05: ITL from chunks, the right token count, the step-time model, a fair benchmark."""
from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from labs.checks.marking import Exercise, Mistake
from labs.checks.step_loop import Structured
from labs.words import many

# ---- itl ------------------------------------------------------------------------------------------------------------

def _itl(times: Sequence[float], counts: Sequence[int]) -> list[float]:
    """One gap a token, token by token: those of a chunk share the wait before it."""
    gaps = []
    for i in range(1, len(times)):
        for _ in range(int(counts[i])):
            gaps.append((times[i] - times[i - 1]) / counts[i])
    return gaps


def _waits(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def _stream(rng: random.Random) -> tuple:
    """A stream of 2 to 6 chunks, the first with 1 token and one at least with more; times in whole milliseconds."""
    n, at, times = rng.randint(2, 6), rng.randint(20, 400), []
    for _ in range(n):
        times.append(at / 1000)
        at += rng.randint(4, 60)
    counts = [1, *(rng.randint(1, 4) for _ in range(n - 1))]
    counts[rng.randint(1, n - 1)] = rng.randint(2, 4)
    return times, counts


ITL = Exercise(
    id="itl", notebook="05", title="Inter-token latency from chunks", minutes=6, difficulty=2,
    signature="itl(times, counts)", returns="a list with one number a token, the first token aside",
    task="return the gap before each token but the first; the tokens of one chunk share the wait before it evenly.",
    shows="a chunk is not a token: taken for one, chunks that hold several make a server look slower than it is.",
    oracle=_itl,
    explain=lambda t, c: "There is one token, so there is no gap." if len(t) == 1 else (
        f"The second chunk came {t[1] - t[0]:.3g} s after the first and holds {c[1]}: so it gives {many(c[1], 'gap')} "
        f"of {(t[1] - t[0]) / c[1]:.3g} s."),
    worked=((([0.0, 1.0], [1, 1]), [1.0]), (([0.5, 0.9], [1, 2]), [0.2, 0.2]),
            (([0.1, 0.4, 0.6], [1, 3, 2]), [0.1, 0.1, 0.1, 0.1, 0.1]), (([0.2, 0.3, 0.7], [1, 1, 4]), [0.1] * 5),
            (([0.3], [1]), [])),
    draw=_stream,
    mistakes=(
        Mistake("chunk_gaps", lambda t, c: _waits(t),
                "Those are the gaps between chunks, and a chunk may hold several tokens.",
                "For each chunk but the first, add its count of gaps, each of them wait / count."),
        Mistake("once", lambda t, c: [wait / n for wait, n in zip(_waits(t), c[1:], strict=True)],
                "The wait is shared, but each chunk gives one gap: it should give one for each of its tokens.",
                "Repeat each gap count times: gaps += [wait / n] * n."),
        Mistake("not_shared", lambda t, c: [wait for wait, n in zip(_waits(t), c[1:], strict=True) for _ in range(n)],
                "Each token of a chunk is given the whole wait: share it out.",
                "Divide the wait by the chunk's count."),
        Mistake("count_before", lambda t, c: [wait / n for wait, n in zip(_waits(t), c, strict=False)
                                              for _ in range(n)],
                "The wait belongs to the chunk that it leads up to: use that chunk's count, not the one before.",
                "zip(times, times[1:], counts[1:]) pairs each wait with the right count."),
        Mistake("zeros", lambda t, c: [gap for wait, n in zip(_waits(t), c[1:], strict=True)
                                       for gap in (wait, *[0.0] * (n - 1))],
                "The tokens of a chunk were made one after another, though they came together: share the wait out.",
                "Give each of the count tokens wait / count."),
        Mistake("with_ttft", lambda t, c: [gap / n for gap, n in zip([t[0], *_waits(t)], c, strict=True)
                                           for _ in range(n)],
                "The time until the first token is TTFT, not a gap between two tokens.",
                "Begin with the second chunk."),
        Mistake("tpot", lambda t, c: (t[-1] - t[0]) / max(sum(c) - 1, 1),
                "That is TPOT, the mean: return every gap, so that percentiles can be taken.",
                "Return a list with a gap for each token but the first."),
        Mistake("milliseconds", lambda t, c: [1000 * gap for gap in _itl(t, c)],
                "Those are milliseconds: times are given in seconds, so return seconds.", "Leave out the factor 1000."),
    ))


# ---- output_tokens --------------------------------------------------------------------------------------------------

def _output_tokens(rows: list[dict]) -> int:
    """The server's own count, of the answers that came whole."""
    return sum(row["usage"] for row in rows if row["status"] == "ok")


def _by(count: Callable[[dict], int], failed: bool = False) -> Callable[[list], int]:
    """Another way to count, of whole answers or of all."""
    return lambda rows: sum(count(row) for row in rows if failed or row["status"] == "ok")


def _answers(rng: random.Random) -> tuple:
    """2 to 5 answers; one at least was cut short, and words, chunks, tokens and caps all differ."""
    rows = []
    for _ in range(rng.randint(2, 5)):
        usage = rng.randint(5, 40)
        words = rng.randint(1, usage - 3)
        rows.append({"text": " ".join("word" for _ in range(words)), "chunks": rng.randint(1, usage - 1),
                     "usage": usage, "max_tokens": usage + rng.choice((0, rng.randint(1, 30))),
                     "status": rng.choice(("ok", "ok", "ok", "error"))})
    rows[rng.randrange(len(rows))]["status"] = "cut"
    return (rows,)


def _row(text: str, chunks: int, usage: int, max_tokens: int, status: str = "ok") -> dict:
    return {"text": text, "chunks": chunks, "usage": usage, "max_tokens": max_tokens, "status": status}


OUTPUT_TOKENS = Structured(
    id="output_tokens", notebook="05", title="Which count of tokens is right?", minutes=5, difficulty=1,
    signature="output_tokens(rows)", returns="one number",
    task="return the tokens of all answers that came whole (status \"ok\"), by the server's own count.",
    shows="words, chunks and max_tokens are all at hand, and all wrong: only the server's usage counts tokens.",
    oracle=_output_tokens,
    explain=lambda rows: f"Of {many(len(rows), 'answer')}, {sum(row['status'] == 'ok' for row in rows)} came whole.",
    worked=((([_row("one two", 3, 5, 16)],), 5), (([_row("one", 4, 6, 8), _row("two", 1, 4, 8, "cut")],), 6),
            (([_row("a b c", 5, 9, 9), _row("a b", 4, 7, 20)],), 16), (([_row("a", 2, 9, 16, "error")],), 0)),
    draw=_answers,
    mistakes=(
        Mistake("words", _by(lambda row: len(row["text"].split())),
                "Those are words: a token may be a piece of a word, a space, or half a letter.",
                "Add up row[\"usage\"]."),
        Mistake("characters", _by(lambda row: len(row["text"])), "Those are characters: a token holds several.",
                "Add up row[\"usage\"]."),
        Mistake("chunks", _by(lambda row: row["chunks"]), "Those are chunks: one may hold several tokens.",
                "Add up row[\"usage\"]."),
        Mistake("max_tokens", _by(lambda row: row["max_tokens"]),
                "That is what was allowed: an answer may end before it.", "Add up row[\"usage\"]."),
        Mistake("failures_too", _by(lambda row: row["usage"], failed=True),
                "That counts answers that were cut or failed: nobody got those whole.",
                "Leave out the rows whose status isn't \"ok\"."),
        Mistake("words_of_all", _by(lambda row: len(row["text"].split()), failed=True),
                "Those are words, and those of failed answers as well.",
                "Add up row[\"usage\"] of the rows whose status is \"ok\"."),
        Mistake("chunks_of_all", _by(lambda row: row["chunks"], failed=True),
                "Those are chunks, and those of failed answers as well.",
                "Add up row[\"usage\"] of the rows whose status is \"ok\"."),
        Mistake("caps_of_all", _by(lambda row: row["max_tokens"], failed=True),
                "That is what was allowed, to failed answers as well.",
                "Add up row[\"usage\"] of the rows whose status is \"ok\"."),
        Mistake("answers", _by(lambda row: 1), "That is how many answers came whole: add up their tokens.",
                "Add up row[\"usage\"]."),
        Mistake("list", lambda rows: [row["usage"] for row in rows if row["status"] == "ok"],
                "Those are the answers' tokens one by one: return their sum.", "Wrap it in sum()."),
    ))


# ---- step_time ------------------------------------------------------------------------------------------------------

def _step_time(batch: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Least squares by its definition: the slope from the deviations, then the base."""
    mean_x, mean_y = sum(batch) / len(batch), sum(seconds) / len(seconds)
    products = sum((x - mean_x) * (y - mean_y) for x, y in zip(batch, seconds, strict=True))
    slope = products / sum((x - mean_x) ** 2 for x in batch)
    return [mean_y - slope * mean_x, slope]


def _through_origin(batch: Sequence[float], seconds: Sequence[float]) -> list[float]:
    slope = sum(x * y for x, y in zip(batch, seconds, strict=True)) / sum(x * x for x in batch)
    return [0.0, slope]


def _ends(batch: Sequence[float], seconds: Sequence[float]) -> list[float]:
    slope = (seconds[-1] - seconds[0]) / (batch[-1] - batch[0])
    return [seconds[0] - slope * batch[0], slope]


def _sideways(batch: Sequence[float], seconds: Sequence[float]) -> list[float]:
    base, slope = _step_time(seconds, batch)
    return [-base / slope, 1 / slope]


def _steps(rng: random.Random) -> tuple:
    """4 to 7 steps of different sizes, smallest first, around a line; times in seconds."""
    batch = sorted(rng.sample(range(1, 33), rng.randint(4, 7)))
    base, each = rng.randint(5, 20) / 1000, rng.randint(100, 900) / 1e6
    return batch, [round(base + each * n + rng.uniform(-0.001, 0.001), 6) for n in batch]


STEP_TIME = Exercise(
    id="step_time", notebook="05", title="Fit the step-time model", minutes=7, difficulty=3,
    signature="step_time(batch, seconds)", returns="two numbers: base, then seconds per sequence",
    task="return [base, per_sequence], the straight line base + per_sequence x batch that fits best (least squares).",
    shows="two numbers turn steps into seconds: most of a step's time is there with one sequence already.",
    oracle=_step_time,
    explain=lambda batch, seconds: f"The means are {sum(batch) / len(batch):.4g} sequences and "
                                   f"{sum(seconds) / len(seconds):.4g} s: the line passes through that point.",
    worked=((([1, 2, 3], [3.0, 5.0, 7.0]), [1.0, 2.0]), (([0, 10], [4.0, 9.0]), [4.0, 0.5]),
            (([1, 2, 3, 4], [2.0, 2.0, 4.0, 4.0]), [1.0, 0.8]),
            (([1, 4, 8], [0.009, 0.0105, 0.0125]), [0.0085, 0.0005])),
    draw=_steps,
    tolerance=1e-6,
    mistakes=(
        Mistake("swapped", lambda b, s: _step_time(b, s)[::-1], "The right numbers the wrong way round: base first.",
                "numpy.polyfit(batch, seconds, 1) gives the slope first: turn its result round."),
        Mistake("through_origin", _through_origin, "That line begins at 0: a step with hardly anybody costs time, too.",
                "Fit a constant as well: numpy.polyfit(batch, seconds, 1)."),
        Mistake("two_ends", _ends, "That is the line through the first and the last point: use all of them.",
                "Use numpy.polyfit(batch, seconds, 1), or the formulas of least squares."),
        Mistake("smallest_as_base", lambda b, s: [min(s), _step_time(b, s)[1]],
                "The base is what the line has at a batch of 0: the smallest batch already has sequences in it.",
                "base = mean of seconds - slope x mean of batch."),
        Mistake("sideways", _sideways, "That fits batch to seconds: it's the misses in seconds that should be small.",
                "Give batch first: numpy.polyfit(batch, seconds, 1)."),
        Mistake("milliseconds", lambda b, s: [1000 * value for value in _step_time(b, s)],
                "Those are milliseconds: return seconds.", "Leave out the factor 1000."),
        Mistake("base_only", lambda b, s: _step_time(b, s)[0], "That is the base: return the slope as well.",
                "Return [base, per_sequence]."),
        Mistake("slope_only", lambda b, s: _step_time(b, s)[1], "That is the slope: return the base as well, first.",
                "Return [base, per_sequence]."),
        Mistake("mean_and_slope", lambda b, s: [sum(s) / len(s), _step_time(b, s)[1]],
                "The first number is the mean step: the base is what the line has at a batch of 0.",
                "base = mean of seconds - slope x mean of batch."),
        Mistake("shares", lambda b, s: [0.0, sum(s) / sum(b)], "That shares all time among the sequences: a step has a "
                "cost of its own, whoever is in it.", "Fit a constant as well: numpy.polyfit(batch, seconds, 1)."),
    ))


# ---- fair -----------------------------------------------------------------------------------------------------------

FAIR, FAILED, COLD, CACHED, ALONE, EQUAL = ("fair", "failures left out", "cold start", "cached prompts",
                                            "concurrency 1", "equal lengths")
ORDER = (FAILED, COLD, CACHED, ALONE, EQUAL)


def _wrongs(concurrency: int, lengths: list, warm_up: int, cache_hits: int, failed: int) -> list[str]:
    """All that is the matter, in the order of the task."""
    found = {FAILED: failed > 0, COLD: warm_up == 0, CACHED: cache_hits > 0, ALONE: concurrency == 1,
             EQUAL: min(lengths) == max(lengths)}
    return [name for name in ORDER if found[name]]


def _fair(*benchmark: object) -> str:
    """The first of them."""
    return [*_wrongs(*benchmark), FAIR][0]


def _look(*order: str) -> Callable[..., str]:
    """Look in another order, or at fewer things."""
    return lambda *benchmark: next((name for name in order if name in _wrongs(*benchmark)), FAIR)


def _benchmark(rng: random.Random) -> tuple:
    """Each thing is the matter about one time in three."""
    same = rng.randint(16, 512)
    lengths = [same] * 4 if rng.random() < 0.35 else [same, rng.randint(16, 512), same + 1, rng.randint(16, 512)]
    return (rng.choice((1, 2, 8, 32)), lengths, rng.choice((0, 4, 8)), rng.choice((0, 0, 512)),
            rng.choice((0, 0, 0, 3)))


_IN_ORDER = "Ask in this order: failures left out, cold start, cached prompts, concurrency 1, equal lengths."

FAIR_BENCHMARK = Structured(
    id="fair", notebook="05", title="Is the benchmark fair?", minutes=6, difficulty=2,
    signature="fair(concurrency, lengths, warm_up, cache_hits, failed)",
    returns="one of the texts " + ", ".join(f'"{name}"' for name in (*ORDER, FAIR)),
    task="return the first that is the matter: \"failures left out\" (some failed), \"cold start\" (no warm-up), "
         "\"cached prompts\" (prompt tokens found in the cache), \"concurrency 1\", \"equal lengths\"; else \"fair\".",
    shows="who finds no gain from vLLM has most often measured one request at a time, or answers of one length.",
    oracle=_fair,
    explain=lambda concurrency, lengths, warm_up, hits, failed: (
        f"{failed} failed; {many(warm_up, 'request')} of warm-up; "
        f"{many(hits, 'cached token')}; concurrency {concurrency}; lengths from {min(lengths)} to {max(lengths)}."),
    worked=(((8, [16, 512], 4, 0, 0), FAIR), ((8, [16, 512], 4, 0, 2), FAILED), ((8, [16, 512], 0, 0, 0), COLD),
            ((8, [16, 512], 4, 96, 0), CACHED), ((1, [16, 512], 4, 0, 0), ALONE), ((8, [256, 256], 4, 0, 0), EQUAL),
            ((1, [256, 256], 0, 96, 2), FAILED), ((1, [256, 256], 0, 96, 0), COLD), ((1, [64, 64], 4, 96, 0), CACHED),
            ((1, [64, 64], 4, 0, 0), ALONE), ((2, [16, 512], 1, 0, 0), FAIR),
            ((8, [16, 512], 4, 1, 0), CACHED)),
    draw=_benchmark,
    mistakes=(
        Mistake("no_failures", _look(COLD, CACHED, ALONE, EQUAL), "Failed answers are missing from every latency: that "
                "comes first.", "Begin with: if failed: return \"failures left out\"."),
        Mistake("no_cold", _look(FAILED, CACHED, ALONE, EQUAL), "Without a warm-up the first answers carry the costs "
                "of the start.", "After the failures, ask for warm_up == 0."),
        Mistake("no_cache", _look(FAILED, COLD, ALONE, EQUAL), "Prompts found in the cache need no prefill: repeats "
                "look fast.", "Ask for cache_hits > 0, before the concurrency."),
        Mistake("no_alone", _look(FAILED, COLD, CACHED, EQUAL), "One request at a time leaves nothing to batch.",
                "Ask for concurrency == 1, before the lengths."),
        Mistake("no_equal", _look(FAILED, COLD, CACHED, ALONE), "Answers of one length are what static batching "
                "likes best.", "At last, ask whether min(lengths) == max(lengths)."),
        Mistake("alone_first", _look(ALONE, FAILED, COLD, CACHED, EQUAL), "Other things come before the concurrency.",
                _IN_ORDER),
        Mistake("cold_first", _look(COLD, FAILED, CACHED, ALONE, EQUAL), "Failures come before the warm-up.",
                _IN_ORDER),
        Mistake("cached_first", _look(CACHED, FAILED, COLD, ALONE, EQUAL), "Other things come before the cache.",
                _IN_ORDER),
        Mistake("equal_first", _look(FAILED, COLD, CACHED, EQUAL, ALONE), "Concurrency is asked for before the "
                "lengths.", _IN_ORDER),
        Mistake("last_one", _look(*ORDER[::-1]), "Where several are the matter, return the first, not the "
                "last.",
                "Return at once at the first, or use elif. " + _IN_ORDER),
        Mistake("few", lambda c, *rest: _fair(1 if c <= 2 else c, *rest), "Two at a time can be batched already: only "
                "concurrency 1 leaves nothing to do.", "Ask for concurrency == 1."),
        Mistake("all", _wrongs, "Those are all that is the matter: return the first as a text.",
                "Return at once at the first, and \"fair\" at the end."),
        Mistake("nothing", lambda *b: None if _fair(*b) == FAIR else _fair(*b), "Where nothing is the matter, the "
                "answer is the text \"fair\", not Python's None.", "End with: return \"fair\"."),
        Mistake("truth", lambda *b: not _wrongs(*b), "Say what is the matter, not only whether: return a text.",
                "Return one of the six texts."),
    ))

EXERCISES = (ITL, OUTPUT_TOKENS, STEP_TIME, FAIR_BENCHMARK)
