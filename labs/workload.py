"""Where requests come from: lengths that are drawn, measured, or read from your own log, and when they arrive.

Every draw takes a seed; the same seed gives the same workload on every machine.
"""
from __future__ import annotations

import csv
import json
import math
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

EIGHT_LENGTHS = (12, 15, 20, 31, 44, 60, 800, 950)
EIGHT_NAMES = tuple("ABCDEFGH")
DATA = Path(__file__).parent / "data"
LONGEST = 10_000_000  # tokens; a longer "length" in a log is a timestamp or an id in the wrong column


@dataclass(frozen=True)
class Request:
    """One request. `arrival` is in steps for the slot schedulers and the scheduler, in seconds where time is modelled.

    Raises ValueError for token counts below 1, or an arrival that is negative or not a number.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    arrival: float = 0.0
    priority: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            if (value := getattr(self, name)) != int(value) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value}")
        if not 0 <= self.arrival < math.inf:
            raise ValueError(f"arrival must be 0 or later, got {self.arrival}")


# ---- lengths from a distribution ------------------------------------------------------------------------------------

def lognormal_lengths(n: int, mu: float, sigma: float, seed: int) -> np.ndarray:
    """`n` output lengths max(1, int(random.lognormvariate(mu, sigma))), from `random.Random(seed)`: whole tokens.

    Bit for bit what a loop over Python's generator gives, without the loop.
    Raises ValueError for n below 1, a negative sigma, or lengths beyond `LONGEST`.
    """
    _at_least("n", n, 1)
    _at_least("sigma", sigma, 0)
    if not math.isfinite(mu):
        raise ValueError(f"mu must be a number, got {mu}")
    exponent = mu + _standard_normals(n, seed) * sigma
    if exponent.max() > math.log(LONGEST):
        raise ValueError(f"mu and sigma give lengths of more than {LONGEST:,} tokens: lower one of them")
    value = np.exp(exponent)
    # numpy's exp may differ from Python's in the last bit, which matters only beside a whole number.
    for i in np.flatnonzero(np.abs(value - np.rint(value)) <= 1e-9 * value):
        value[i] = math.exp(exponent[i])
    return np.maximum(1, value.astype(np.int64))


def uniform_lengths(n: int, low: int, high: int, seed: int) -> np.ndarray:
    """`n` lengths drawn evenly from low to high, both included."""
    _at_least("n", n, 1)
    _at_least("low", low, 1)
    _at_least("high", high, low)
    return np.random.default_rng(seed).integers(low, high, n, endpoint=True)


def fixed_lengths(n: int, length: int) -> np.ndarray:
    """`n` requests of one length: what a benchmark with a fixed max_tokens and `ignore_eos` sends."""
    _at_least("n", n, 1)
    _at_least("length", length, 1)
    return np.full(n, length, dtype=np.int64)


def geometric_lengths(n: int, mean: float, seed: int) -> np.ndarray:
    """`n` lengths of a model that stops after each token with the same chance, 1 / mean."""
    _at_least("n", n, 1)
    _at_least("mean", mean, 1)
    return np.random.default_rng(seed).geometric(1 / mean, n).astype(np.int64)


def fit_lognormal(lengths: np.ndarray) -> tuple[float, float]:
    """(mu, sigma) of the lognormal with the same mean and spread of ln(length)."""
    logs = np.log(np.asarray(lengths, dtype=float))
    return float(logs.mean()), float(logs.std())


def _standard_normals(n: int, seed: int) -> np.ndarray:
    """The first `n` values of random.Random(seed).normalvariate(0, 1): Kinderman and Monahan's ratio of uniforms."""
    generator = random.Random(seed)
    state = generator.getstate()[1]
    twister = np.random.RandomState()
    twister.set_state(("MT19937", np.array(state[:-1], dtype=np.uint32), state[-1]))
    found, missing = [], n
    while missing > 0:
        pairs = twister.random_sample((int(missing * 1.4) + 16, 2))  # 1 pair in 1.37 is accepted
        u1, u2 = pairs[:, 0], 1.0 - pairs[:, 1]
        z = random.NV_MAGICCONST * (u1 - 0.5) / u2
        kept = z[z * z / 4.0 <= -np.log(u2)]
        found.append(kept[:missing])
        missing -= len(kept)
    return np.concatenate(found)


# ---- measured lengths -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Measured:
    """Output lengths of a public request log, kept as quantiles; `facts` are the row of workload_summary.csv."""

    name: str
    title: str
    credit: str
    share: np.ndarray = field(repr=False)
    tokens: np.ndarray = field(repr=False)
    facts: dict = field(repr=False)


_TITLES = {
    "azure_code_2023": ("Azure, code completion, 2023",
                        "Azure/AzurePublicDataset, CC-BY 4.0; Patel et al., Splitwise, ISCA 2024"),
    "azure_conv_2023": ("Azure, conversation, 2023",
                        "Azure/AzurePublicDataset, CC-BY 4.0; Patel et al., Splitwise, ISCA 2024"),
    "mooncake_conversation": ("Mooncake, conversation", "kvcache-ai/Mooncake, Apache-2.0; Qin et al., FAST 2025"),
    "mooncake_synthetic": ("Mooncake, synthetic", "kvcache-ai/Mooncake, Apache-2.0; Qin et al., FAST 2025"),
    "arxiv_summarization_4k": ("arXiv summaries, 4k", "microsoft/vidur, MIT; Agrawal et al., Vidur, MLSys 2024"),
    "sharegpt_8k": ("ShareGPT chats, 8k", "microsoft/sarathi-serve, Apache-2.0; Agrawal et al., OSDI 2024"),
    "servegen_deepseek_r1": ("DeepSeek-R1 reasoning (rebuilt)",
                             "alibaba/ServeGen, Apache-2.0; Xiang et al., arXiv 2505.09999"),
}
MEASURED = tuple(_TITLES)


@cache
def measured(name: str, column: str = "output") -> Measured:
    """The measured workload `name`, one of `MEASURED`; `column` is "output" or "prompt"."""
    if name not in _TITLES or column not in ("output", "prompt"):
        raise ValueError(f"there is no measured workload {name!r} ({column}): choose one of {', '.join(MEASURED)}")
    with (DATA / "workload_quantiles.csv").open(newline="", encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if (r["dataset"], r["field"]) == (name, column)]
    with (DATA / "workload_summary.csv").open(newline="", encoding="utf-8") as file:
        facts = next(r for r in csv.DictReader(file) if r["dataset"] == name)
    points = sorted((float(r["quantile"]), int(r["tokens"])) for r in rows)
    share, tokens = (np.array(column) for column in zip(*points, strict=True))
    title, credit = _TITLES[name]
    return Measured(name, title, credit, share, tokens, facts)


def measured_lengths(name: str, n: int, seed: int, column: str = "output") -> np.ndarray:
    """`n` lengths drawn independently from the quantiles of a measured workload.

    Between two quantiles the logarithm is interpolated, so the mean is near the log's, not equal to it (a test
    holds it within 5 %); any order in the log, such as a busy hour with longer answers, is gone.
    """
    _at_least("n", n, 1)
    source = measured(name, column)
    u = np.random.default_rng(seed).random(n)
    return np.rint(np.exp(np.interp(u, source.share, np.log(source.tokens)))).astype(np.int64)


# ---- arrivals -------------------------------------------------------------------------------------------------------

def poisson_arrivals(n: int, rate: float, seed: int) -> np.ndarray:
    """`n` arrival times at `rate` a step (or second), each independent of the last: exponential gaps, from 0 on."""
    return bursty_arrivals(n, rate, 1.0, seed)


def bursty_arrivals(n: int, rate: float, cv: float, seed: int) -> np.ndarray:
    """`n` arrival times whose gaps vary by `cv` = std / mean (1 = Poisson, above = bursts, 0 = clockwork)."""
    _at_least("n", n, 1)
    _at_least("cv", cv, 0)
    if not 0 < rate < math.inf:
        raise ValueError(f"rate must be a number above 0, got {rate}")
    if cv == 0:
        return np.arange(1, n + 1) / rate
    # At a shape near 0 most gaps underflow to 0 and one holds all the time: nothing that a log ever shows.
    if cv > 30:
        raise ValueError(f"cv must be 30 or less, got {cv}")
    # A stream of its own: with the lengths' seed as it is, geometric lengths and the gaps between them would be one draw.
    return np.cumsum(np.random.default_rng([seed, 1]).gamma(1 / cv**2, cv**2 / rate, n))


# ---- your own log ---------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Log:
    """Output lengths from a reader's own log: the first ones in order, and the count of every length in all of it."""

    lengths: np.ndarray
    counts: dict[int, int] = field(repr=False)
    source: str

    @property
    def n(self) -> int:
        """Requests in the whole log."""
        return sum(self.counts.values())


def read_lengths(path: str | Path, column: str = "output_tokens", keep: int = 1_000_000) -> Log:
    """Read one column of output lengths from a CSV (with a header) or a JSONL file, in a stream.

    The first `keep` lengths stay in order for simulation; the rest are only counted, so memory stays small however
    large the file is. A byte-order mark is ignored, and so are rows where the column is empty or 0 (requests that
    failed before their first token). Raises ValueError that says which row to mend.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file {path}: check the name, or upload it beside this notebook")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            values = _jsonl_values if path.suffix in (".jsonl", ".json", ".ndjson") else _csv_values
            return _collect(values(file, column), keep, f"{path.name}, column {column}")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text: export it as a CSV in UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path.name} is not a readable CSV ({error}): export it again, one request a line") from None


def read_metrics_lengths(text: str, n: int = 5000, seed: int = 0) -> Log:
    """`n` lengths drawn from the vllm:request_generation_tokens histogram in the text of a /metrics page.

    Several engines' series are added up. Inside a bucket lengths are drawn evenly, and in the last, open one they
    are the bucket's lower bound: coarser than a log. Raises ValueError if the histogram is missing or empty.
    """
    _at_least("n", n, 1)
    upto: dict[float, float] = {}
    for line in text.splitlines():
        found = re.match(r'vllm:request_generation_tokens_bucket\{.*?\ble="([^"]+)".*?\}\s+(\S+)', line.strip())
        if found:
            bound, count = float(found[1].replace("Inf", "inf")), float(found[2])
            upto[bound] = upto.get(bound, 0.0) + count
    if not upto:
        raise ValueError("there is no vllm:request_generation_tokens histogram in this text: paste the whole "
                         "/metrics page of a vLLM server")
    bounds = sorted(upto)
    inside = np.diff([0.0] + [upto[b] for b in bounds])
    if inside.sum() <= 0 or (inside < 0).any():
        raise ValueError("the vllm:request_generation_tokens histogram is empty: send the server some requests first")
    rng = np.random.default_rng(seed)
    low = np.array([0.0, *bounds[:-1]])
    high = np.array([b if math.isfinite(b) else low[-1] for b in bounds])
    bucket = rng.choice(len(bounds), n, p=inside / inside.sum())
    lengths = np.maximum(1, np.ceil(low[bucket] + (high - low)[bucket] * rng.random(n))).astype(np.int64)
    values, counts = np.unique(lengths, return_counts=True)
    source = f"/metrics histogram of {int(inside.sum()):,} requests"
    return Log(lengths, dict(zip(values.tolist(), counts.tolist(), strict=True)), source)


def _csv_values(file: TextIO, column: str) -> Iterator[tuple[int, object]]:
    """(line number, value) of `column` in a CSV with a header."""
    rows = csv.reader(file)
    header = [name.strip() for name in next(rows, [])]
    if column not in header:
        named = ", ".join(header[:12]) or "nothing: the file is empty"
        raise ValueError(f"the file has no column {column!r}: its header has {named}")
    at = header.index(column)
    for row in rows:
        yield rows.line_num, row[at] if at < len(row) else ""


def _jsonl_values(file: TextIO, column: str) -> Iterator[tuple[int, object]]:
    """(line number, value) of the key `column` in a file with one JSON object a line."""
    seen = False
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            raise ValueError(f"line {number} is not JSON: a JSONL file has one object a line") from None
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is not a JSON object such as {{\"{column}\": 128}}")
        seen = seen or column in row
        yield number, row.get(column, "")
    if not seen:
        raise ValueError(f"the file has no key {column!r} on any line: name the key that holds the output length")


def _collect(rows: Iterable[tuple[int, object]], keep: int, source: str) -> Log:
    """Count every length, and keep the first `keep` in order."""
    rows, kept, room = iter(rows), [], keep
    counts = np.zeros(1024, dtype=np.int64)
    while chunk := list(islice(rows, 100_000)):
        lengths = np.array([value for row in chunk if (value := _length(*row)) > 0], dtype=np.int64)
        if len(lengths) == 0:
            continue
        if lengths.max() >= len(counts):
            counts = np.append(counts, np.zeros(2 * lengths.max() - len(counts), dtype=np.int64))
        counts += np.bincount(lengths, minlength=len(counts))
        kept.append(lengths[:room].astype(np.int32))
        room -= len(kept[-1])
    if not kept:
        raise ValueError(f"{source}: no request has an output length above 0")
    occurring = np.flatnonzero(counts)
    return Log(np.concatenate(kept).astype(np.int64),
               dict(zip(occurring.tolist(), counts[occurring].tolist(), strict=True)), source)


def _length(line: int, value: object) -> int:
    """A whole number of tokens; 0 for an empty field."""
    try:
        number = int(value) if isinstance(value, (int, str)) and value != "" else float(value or 0)
    except (TypeError, ValueError):
        try:
            number = float(str(value).strip() or 0)
        except ValueError:
            raise ValueError(f"line {line} has {value!r} where a number of tokens belongs: mend or drop it") from None
    if isinstance(value, bool) or not 0 <= number <= LONGEST or number != int(number):
        raise ValueError(f"line {line} has {value!r} where a whole number of tokens from 0 to {LONGEST:,} belongs: "
                         "mend or drop it, or name another column")
    return int(number)


def _at_least(name: str, value: float, least: float) -> None:
    """Raise ValueError unless `value` is a finite number of `least` or more."""
    if not least <= value < math.inf:
        raise ValueError(f"{name} must be at least {least}, got {value}")
