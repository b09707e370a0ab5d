"""Where requests come from: lengths that are drawn, measured, or read from your own log, and when they arrive.

Every draw takes a seed; the same seed gives the same workload on every machine.
"""
from __future__ import annotations

import csv
import json
import math
import os
import random
import re
import reprlib
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, islice, pairwise
from numbers import Real
from pathlib import Path
from textwrap import shorten
from typing import TextIO

import numpy as np

from labs.words import many, plainly

EIGHT_LENGTHS = (12, 15, 20, 31, 44, 60, 800, 950)
EIGHT_NAMES = tuple("ABCDEFGH")
DATA = Path(__file__).parent / "data"
MOST = 100_000_000  # requests at a time: 800 MB of lengths
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
            _whole(name, getattr(self, name), 1)
        _at_least("arrival", self.arrival, 0)


# ---- lengths from a distribution ------------------------------------------------------------------------------------

def lognormal_lengths(n: int, mu: float, sigma: float, seed: int) -> np.ndarray:
    """`n` output lengths max(1, int(random.lognormvariate(mu, sigma))), from `random.Random(seed)`: whole tokens.

    Bit for bit what a loop over Python's generator gives, without the loop.
    Raises ValueError for n below 1, a negative sigma, or lengths beyond `LONGEST`.
    """
    n = _count(n)
    _at_least("sigma", sigma, 0)
    _at_least("mu", mu, -LONGEST)
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
    n, low, high = _count(n), _whole("low", low, 1), _whole("high", high, low)
    return np.random.default_rng(seed).integers(low, high, n, endpoint=True)


def fixed_lengths(n: int, length: int) -> np.ndarray:
    """`n` requests of one length: what a benchmark with a fixed max_tokens and `ignore_eos` sends."""
    return np.full(_count(n), _whole("length", length, 1), dtype=np.int64)


def geometric_lengths(n: int, mean: float, seed: int) -> np.ndarray:
    """`n` lengths of a model that stops after each token with the same chance, 1 / mean."""
    n = _count(n)
    _at_least("mean", mean, 1)
    if mean > LONGEST:
        raise ValueError(f"mean must be at most {LONGEST:,} tokens, got {mean}")
    return np.random.default_rng(seed).geometric(1 / mean, n).astype(np.int64)


def fit_lognormal(lengths: np.ndarray) -> tuple[float, float]:
    """(mu, sigma) of the lognormal with the same mean and spread of ln(length); ValueError for a length below 1."""
    lengths = np.asarray(lengths, dtype=float)
    if lengths.size == 0 or not (lengths >= 1).all():
        raise ValueError("a fit needs at least one length, and none below 1 token")
    logs = np.log(lengths)
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
    if column not in ("output", "prompt"):
        raise ValueError(f"column must be 'output' or 'prompt', got {column!r}")
    if name not in _TITLES:
        raise ValueError(f"there is no measured workload {name!r}: choose one of {', '.join(MEASURED)}")
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
    n, source = _count(n), measured(name, column)
    u = np.random.default_rng(seed).random(n)
    return np.rint(np.exp(np.interp(u, source.share, np.log(source.tokens)))).astype(np.int64)


# ---- arrivals -------------------------------------------------------------------------------------------------------

def poisson_arrivals(n: int, rate: float, seed: int) -> np.ndarray:
    """`n` arrival times at `rate` a step (or second), each independent of the last: exponential gaps, from 0 on."""
    return bursty_arrivals(n, rate, 1.0, seed)


def bursty_arrivals(n: int, rate: float, cv: float, seed: int) -> np.ndarray:
    """`n` arrival times whose gaps vary by `cv` = std / mean (1 = Poisson, above = bursts, 0 = clockwork)."""
    n = _count(n)
    _at_least("cv", cv, 0)
    if not isinstance(rate, Real) or not 1e-12 <= rate < math.inf:
        raise ValueError(f"rate must be a number above 0 (at least 1e-12), got {rate!r}")
    if cv < 1e-6:
        return np.arange(1, n + 1) / rate
    # At a shape near 0 most gaps underflow to 0 and one holds all the time: nothing that a log ever shows.
    if cv > 30:
        raise ValueError(f"cv must be 30 or less, got {cv}")
    # A stream of its own: from the lengths' one, geometric lengths and the gaps between them would be the same draw.
    return np.cumsum(np.random.default_rng([seed, 1]).gamma(1 / cv**2, cv**2 / rate, n))


# ---- your own log ---------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Log:
    """Output lengths from a reader's own log: the first ones in order, and the count of every length in all of it."""

    lengths: np.ndarray
    counts: dict[int, int] = field(repr=False)
    source: str
    skipped: int = 0  # rows left out, for their column is empty or 0: requests that failed before their first token

    @property
    def n(self) -> int:
        """Requests in the whole log."""
        return sum(self.counts.values())


@plainly
def read_lengths(path: str | Path, column: str = "output_tokens", keep: int = 1_000_000) -> Log:
    """Read one column of output lengths from a CSV (with a header) or a JSONL file, in a stream.

    The first `keep` lengths stay in order for simulation; the rest are only counted, so memory stays small however
    large the file is. A byte-order mark is ignored. Rows where the column is empty or 0 are left out, and counted in
    `skipped`. Raises ValueError that says which row to mend.
    """
    if not isinstance(path, (str, os.PathLike)) or not str(path).strip():
        raise ValueError(f"path must be the name of a CSV or JSONL file, got {reprlib.repr(path)}")
    path, keep = Path(path).expanduser(), _whole("keep", keep, 1)
    if not isinstance(column, str):
        raise ValueError(f"column must be the name of a column or key, got {reprlib.repr(column)}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file in it")
    if not path.is_file():
        raise ValueError(f"there is no file {path}: check the name, or upload it beside this notebook")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, _long_fields():
            begins = file.read(1000).lstrip()[:1]
            file.seek(0)
            jsonl = begins == "{" or path.suffix.lower() in (".jsonl", ".json", ".ndjson")
            chunks = _jsonl_chunks if jsonl else _csv_chunks
            return _collect(chunks(file, column), keep, f"{path.name}, column {column}")
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text: unpack it if it is packed, or export it as a CSV in UTF-8"
                         ) from None
    except csv.Error as error:
        raise ValueError(f"{path.name} is not a readable CSV ({error}): export it again, one request a line") from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let a field of a CSV be as long as a line; Python's limit, which is everybody's, is put back."""
    before = csv.field_size_limit(_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@plainly
def read_metrics_lengths(text: str, n: int = 5000, seed: int = 0) -> Log:
    """`n` lengths drawn from the vllm:request_generation_tokens histogram in the text of a /metrics page.

    Several engines' series are added up. Inside a bucket lengths are drawn evenly, and in the last, open one they
    are the bucket's lower bound: coarser than a log. Raises ValueError if the histogram is missing or empty.
    """
    n, inside = _count(n), _metrics_buckets(text)
    if not inside:
        raise ValueError("there is no vllm:request_generation_tokens histogram in this text: paste the whole "
                         "/metrics page of a vLLM server")
    buckets = sorted(inside)
    requests = np.array([inside[bucket] for bucket in buckets])
    if len(buckets) == 1 and math.isinf(buckets[0][1]):
        raise ValueError("the vllm:request_generation_tokens histogram has only its last, open bucket: paste the whole "
                         "page")
    if requests.min() < 0:
        raise ValueError("the vllm:request_generation_tokens histogram counts down: paste one page, unchanged")
    if requests.sum() == 0:
        raise ValueError("the vllm:request_generation_tokens histogram is empty: send the server some requests first")
    rng = np.random.default_rng(seed)
    low, high = np.array([(low, high if math.isfinite(high) else low) for low, high in buckets]).T
    drawn = rng.choice(len(buckets), n, p=requests / requests.sum())
    lengths = np.maximum(1, np.ceil(low[drawn] + (high - low)[drawn] * rng.random(n))).astype(np.int64)
    return Log(lengths, dict(sorted(Counter(lengths.tolist()).items())),
               f"/metrics histogram of {many(int(requests.sum()), 'request')}")


_NUMBER = r"\d[\d.]*(?:e\+?\d+)?"
_BUCKET = re.compile(rf'vllm:request_generation_tokens_bucket\{{(.*?)\ble="({_NUMBER}|\+Inf)"(.*?)\}}'
                     rf"\s+({_NUMBER})\s*$")


def _metrics_buckets(text: str) -> Counter[tuple[float, float]]:
    """How many requests each bucket (low, high) holds, over all engines' series on a /metrics page."""
    series: dict[str, dict[float, float]] = {}
    for found in filter(None, (_BUCKET.match(line.strip()) for line in text.splitlines())):
        before, bound, after, count = found.groups()
        series.setdefault(before + after, {})[float(bound)] = float(count)
    inside: Counter[tuple[float, float]] = Counter()
    for up_to in series.values():
        bounds = sorted(up_to)
        for low, high in pairwise([0.0, *bounds]):
            inside[low, high] += up_to[high] - up_to.get(low, 0.0)
    return inside


_ROWS = 4096  # converted at once
_CHARACTERS = 10_000_000  # the longest line that is read: prompts can be long, and a file without line ends is no log


Chunk = tuple[str, int, list]  # "row" or "line", the number of the first one, the values
_BLANK, _MISSING = object(), object()  # in place of a value: an empty row or line, and one that lacks the key


def _csv_chunks(file: TextIO, column: str) -> Iterator[Chunk]:
    """Values of `column`, some thousand rows at a time; the header is row 1."""
    lines = _lines(file, "row")
    first_line = next(lines, "")
    if first_line.count('"') % 2 == 0 and "," not in first_line:  # else a quoted name would be blamed for it
        _refuse_other_separators(first_line.replace('"', "").strip(), column)
    rows = _whole_rows(csv.reader(chain([first_line], lines), strict=True))
    header = [name.strip() for name in next(rows, [])]
    if any("\0" in name for name in header):
        raise ValueError("the file is not UTF-8 text: export it as a CSV in UTF-8")
    if column not in header:
        raise ValueError(f"the file has no column {column!r}: {_header_fault(header)}")
    at, width, first = header.index(column), len(header), 2
    while values := [row[at] if len(row) == width else _odd_row(row, at, width) for row in islice(rows, _ROWS)]:
        yield "row", first, values
        first += len(values)


def _lines(file: TextIO, unit: str) -> Iterator[str]:
    """The lines; a file without line ends must not be read into memory as one."""
    for number, line in enumerate(iter(partial(file.readline, _CHARACTERS), ""), 1):
        if len(line) == _CHARACTERS:
            raise ValueError(f"{unit} {number} is longer than {_CHARACTERS:,} characters: leave the prompts out")
        yield line


def _refuse_other_separators(header: str, column: str) -> None:
    """Raise ValueError if the column is there once the first line is split at semicolons, tabs or bars."""
    if column != header and column in re.split("[;\t|]", header):
        raise ValueError(f"the file's columns are not separated by commas: its first line is {header!r}; export it "
                         f"with commas")


def _header_fault(header: list[str]) -> str:
    """What is the matter with a header that lacks the column, and what to change."""
    if not any(header):
        return "its first line is empty"
    if any(re.fullmatch(r"[-+]?\d[\d.]*", name) for name in header):
        return (f"its first line is {shorten(','.join(header), 60)!r}, which is a request and not a header: put a line "
                f"with the columns' names above it")
    return f"its header has {shorten(', '.join(header), 80)}; name the one that holds the output lengths as column"


def _whole_rows(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows; a quotation mark that is never closed would make one of all that follow, without a word."""
    read = 0
    try:
        for row in rows:
            read += 1
            yield row
    except csv.Error as error:
        if not re.search("end of data|expected after", str(error)):
            raise
        raise ValueError(f"row {read + 1} has a quotation mark that is not closed, or that stands where none belongs: "
                         f"mend that row") from None


def _odd_row(row: list[str], at: int, width: int) -> object:
    """The value in a row that ends early, "" if it is left out; all of a row with more fields than the header names."""
    if not row:
        return _BLANK
    if any(row[width:]):
        return ",".join(row)  # no number: which of the commas should have been quoted can't be told
    return row[at] if at < len(row) else ""


def _jsonl_chunks(file: TextIO, column: str) -> Iterator[Chunk]:
    """Values of the key `column`, some thousand lines at a time."""
    lines = enumerate(_lines(file, "line"), 1)
    first, seen, keys = 1, False, {}
    while values := [_picked(_json_object(*line), column, keys) for line in islice(lines, _ROWS)]:
        seen = seen or any(value is not _BLANK and value is not _MISSING for value in values)
        yield "line", first, values
        first += len(values)
    if not seen:
        found = shorten(", ".join(keys) or "none", 80)
        raise ValueError(f"the file has no key {column!r} on any line: it has {found}; name "
                         f"the one that holds the output lengths as column, or a path such as usage.tokens")


def _picked(row: dict, column: str, keys: dict[str, None]) -> object:
    """The value of a key, or of a path of keys with dots between them; where there is none, note those there are."""
    if column in row:
        return row[column]
    found: object = row
    for key in column.split("."):
        found = found.get(key, _MISSING) if isinstance(found, dict) else _MISSING
    if found is _MISSING and len(keys) < 20:
        keys.update(dict.fromkeys(row))
    return found if row else _BLANK


def _json_object(number: int, line: str) -> dict:
    """The JSON object on a line; an empty one for a blank line."""
    try:
        row = json.loads(line) if line.strip() else {}
    except (ValueError, RecursionError):
        raise ValueError(f"line {number} is not JSON: a JSONL file has one object a line") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} is not a JSON object: a JSONL file has one object a line")
    return row


def _collect(chunks: Iterable[Chunk], keep: int, source: str) -> Log:
    """Count every length, and keep the first `keep` in order."""
    counts, kept, skipped = Counter(), array("q"), 0
    for unit, first, values in chunks:
        lengths = list(filter(None, _lengths(unit, first, values)))
        counts.update(lengths)
        kept.extend(lengths[:keep - len(kept)])
        skipped += len(values) - values.count(_BLANK) - len(lengths)
    if not kept:
        raise ValueError(f"{source}: no request has an output length above 0" if skipped else
                         f"{source}: there is a header and no request below it, so export the log again")
    left_out = f" ({many(skipped, 'row')} left out, where it is empty or 0)" if skipped else ""
    return Log(np.array(kept, dtype=np.int64), dict(sorted(counts.items())), source + left_out, skipped)


def _lengths(unit: str, first: int, values: list) -> list[int]:
    """Whole numbers of tokens. All at once where each value is plainly one, else one by one, to say which is not."""
    if set(map(type, values)) in ({str}, {int}):
        try:
            numbers = list(map(int, values))
        except ValueError:
            numbers = [-1]
        if min(numbers) >= 0 and max(numbers) <= LONGEST:
            return numbers
    return [_length(f"{unit} {first + i}", value) for i, value in enumerate(values)]


def _length(where: str, value: object) -> int:
    """A whole number of tokens; 0 for an empty field, or for none."""
    text = "" if value in (None, _BLANK, _MISSING) else str(value).strip()
    try:
        number = float(text or 0)
    except ValueError:
        number = math.nan
    if not (0 <= number <= LONGEST and number == int(number)):
        raise ValueError(f"{where} has {reprlib.repr(value)} where a whole number of tokens from 0 to {LONGEST:,} "
                         "belongs: mend or drop it, or name another column")
    return int(number)


def _count(n: int) -> int:
    """Return `n` as an int, or raise ValueError unless it is a number of requests that fits into memory."""
    if (n := _whole("n", n, 1)) > MOST:
        raise ValueError(f"n must be at most {MOST:,} requests, got {n:,}")
    return n


def _at_least(name: str, value: float, least: float) -> None:
    """Raise ValueError unless `value` is a finite number of `least` or more."""
    if not isinstance(value, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if not least <= value < math.inf:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def _whole(name: str, value: float, least: int) -> int:
    """Return `value` as an int, or raise ValueError unless it is a whole number of `least` or more."""
    _at_least(name, value, least)
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value}")
    return int(value)
