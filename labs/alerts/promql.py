"""As much of PromQL as the course's rules use, over pages of /metrics: to try an expression before it is relied on.

Left out: offsets, subqueries, `ignoring`, most functions, counter extrapolation. A counter's rate is its increase
between the first and the last page over the time between them, with resets told by a fall.
"""
from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = float | Vector
Page = Mapping[str, Vector]

LINE = re.compile(r'^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
TOKEN = re.compile(r'\s*(\d+\.?\d*(?:e-?\d+)?|[a-zA-Z_:][\w:]*|"[^"]*"|[<>=!]=|=~|[-+*/(){}<>=,\[\]])')
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b, "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b}
COUNT: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else math.nan}
WORDS = ("and", "or", "unless", "rate", "increase", "max_over_time", "histogram_quantile", "by", "on")
GATHER: dict[str, Callable[[Sequence[float]], float]] = {"sum": sum, "max": max, "min": min,
                                                         "avg": lambda values: sum(values) / len(values)}


def read_page(text: str) -> dict[str, Vector]:
    """The samples of a /metrics page by name and labels."""
    page: dict[str, Vector] = defaultdict(dict)
    for line in text.splitlines():
        if found := LINE.match(line):
            labels = frozenset((name, value) for name, value in LABEL.findall(found[2] or ""))
            page[found[1]][labels] = float(found[3])
    return dict(page)


@dataclass(frozen=True)
class Scrapes:
    """Pages of one server in order, and the seconds at which each was read."""

    times: tuple[float, ...]
    pages: tuple[Page, ...]

    def evaluate(self, expression: str) -> Value:
        """What `expression` gives at the last page. Raises ValueError for what can't be read."""
        parser = _Parser(self, expression)
        value = parser.either()
        if parser.at < len(parser.tokens):
            raise ValueError(f"{expression!r} can't be read from {parser.tokens[parser.at]!r} on")
        return value

    def fires(self, expression: str) -> bool:
        """Whether an alert rule with this expression would be pending or firing: it gives anything at all."""
        value = self.evaluate(expression)
        return bool(value) if isinstance(value, dict) else False

    def instant(self, name: str, wanted: Labels) -> Vector:
        """The series of a name that have the wanted labels, at the last page."""
        return {labels: value for labels, value in self.pages[-1].get(name, {}).items() if wanted <= labels}

    def highest(self, name: str, wanted: Labels) -> Vector:
        """The highest value of each series over all pages."""
        return {labels: max(page[name][labels] for page in self.pages if labels in page.get(name, {}))
                for labels in self.instant(name, wanted)}

    def increase(self, name: str, wanted: Labels) -> Vector:
        """How much each counter grew over all pages."""
        grown: Vector = {}
        for labels, last in self.instant(name, wanted).items():
            values = [page[name][labels] for page in self.pages if labels in page.get(name, {})]
            grown[labels] = sum(b - a if b >= a else b for a, b in zip(values, values[1:], strict=False))
            assert values[-1] == last
        return grown


def tokens_of(expression: str) -> list[str]:
    """The expression in pieces. Raises ValueError for a character that PromQL doesn't have."""
    found, at = [], 0
    expression = expression.strip()
    while at < len(expression):
        match = TOKEN.match(expression, at)
        if not match:
            raise ValueError(f"{expression!r} can't be read from {expression[at:at + 20]!r} on")
        found.append(match[1])
        at = match.end()
    return found


def metrics_in(expression: str) -> Iterator[str]:
    """The names of the metrics that an expression asks for."""
    for token in tokens_of(re.sub(r"\b(?:by|on)\s*\([^)]*\)|\{[^}]*\}|\[[^\]]*\]", " ", expression)):
        if re.fullmatch(r"[a-zA-Z_:][\w:]*", token) and token not in (*GATHER, *WORDS):
            yield token


class _Parser:
    """Reads and evaluates at once, from the loosest binding to the tightest."""

    def __init__(self, scrapes: Scrapes, expression: str) -> None:
        self.scrapes, self.expression, self.tokens, self.at = scrapes, expression, tokens_of(expression), 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise ValueError(f"{self.expression!r}: {wanted or 'something'} is missing before {token or 'its end'!r}")
        self.at += 1
        return token

    def either(self) -> Value:
        left = self.comparison_and()
        while self.peek() == "or":
            self.take()
            left = {**self.comparison_and(), **left}
        return left

    def comparison_and(self) -> Value:
        left = self.comparison()
        while self.peek() in ("and", "unless"):
            word = self.take()
            on = self.names() if self.peek() == "on" and self.take() else None
            right = self.comparison()
            known = {_kept(labels, on) for labels in right}
            left = {labels: v for labels, v in left.items() if (_kept(labels, on) in known) is (word == "and")}
        return left

    def comparison(self) -> Value:
        left = self.binary(0)
        if self.peek() in COMPARE:
            test = COMPARE[self.take()]
            right = self.binary(0)
            both = _matched(left, right)
            return {labels: a for labels, (a, b) in both.items() if test(a, b)}
        return left

    def binary(self, level: int) -> Value:
        if level == 2:
            return self.primary()
        left = self.binary(level + 1)
        while self.peek() in (("+", "-"), ("*", "/"))[level]:
            count = COUNT[self.take()]
            right = self.binary(level + 1)
            if not isinstance(left, dict) and not isinstance(right, dict):
                left = count(left, right)
            else:
                left = {labels: count(a, b) for labels, (a, b) in _matched(left, right).items()}
        return left

    def primary(self) -> Value:
        token = self.take()
        if token == "(":
            value = self.either()
            self.take(")")
            return value
        if re.fullmatch(r"[\d.].*", token):
            return float(token)
        if token in GATHER:
            return self.gathered(token)
        if token in ("rate", "increase", "max_over_time"):
            return self.ranged(token)
        if token == "histogram_quantile":
            self.take("(")
            q = float(self.take())
            self.take(",")
            value = quantiles(q, self.either())
            self.take(")")
            return value
        return self.scrapes.instant(token, self.selector())

    def gathered(self, word: str) -> Vector:
        """`sum by (a, b) (...)`."""
        by = self.names() if self.peek() == "by" and self.take() else ()
        self.take("(")
        value = self.either()
        self.take(")")
        groups: dict[Labels, list[float]] = defaultdict(list)
        for labels, v in value.items():
            groups[_kept(labels, by)].append(v)
        return {labels: GATHER[word](values) for labels, values in groups.items()}

    def ranged(self, word: str) -> Vector:
        """`rate(name{labels}[5m])`, over all the pages there are."""
        self.take("(")
        series = self.scrapes.highest if word == "max_over_time" else self.scrapes.increase
        grown = series(self.take(), self.selector())
        for wanted in ("[", "", "", "]", ")"):
            self.take(wanted)
        if word == "max_over_time":
            return grown
        seconds = self.scrapes.times[-1] - self.scrapes.times[0]
        return grown if word == "increase" else {labels: v / seconds for labels, v in grown.items()}

    def selector(self) -> Labels:
        """`{name="value", ...}`, or nothing."""
        wanted = set()
        if self.peek() == "{":
            while self.take() != "}":
                name = self.take()
                self.take("=")
                wanted.add((name, self.take().strip('"')))
                if self.peek() == "}":
                    self.take()
                    break
        return frozenset(wanted)

    def names(self) -> tuple[str, ...]:
        """`(a, b)`."""
        self.take("(")
        names = []
        while (token := self.take()) != ")":
            names += [token] if token != "," else []
        return tuple(names)


def quantiles(q: float, buckets: Vector) -> Vector:
    """As PromQL: within the bucket in which the rank falls, on a straight line; the last finite bound beyond it."""
    groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        bound = dict(labels)["le"]
        groups[frozenset(pair for pair in labels if pair[0] != "le")].append((float(bound), count))
    found = {}
    for labels, pairs in groups.items():
        pairs.sort()
        rank, low, below = q * pairs[-1][1], 0.0, 0.0
        if not rank:
            continue
        for bound, count in pairs:
            if count >= rank:
                found[labels] = low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
                break
            low, below = bound, count
    return found


def _kept(labels: Labels, names: Sequence[str] | None) -> Labels:
    return labels if names is None else frozenset(pair for pair in labels if pair[0] in names)


def _matched(left: Value, right: Value) -> dict[Labels, tuple[float, float]]:
    """Pairs with the same labels; a number goes with every series."""
    if not isinstance(left, dict):
        left = dict.fromkeys(right if isinstance(right, dict) else [frozenset()], left)
    if not isinstance(right, dict):
        right = dict.fromkeys(left, right)
    return {labels: (value, right[labels]) for labels, value in left.items() if labels in right}
