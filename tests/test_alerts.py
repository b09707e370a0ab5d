"""The alert rules and the dashboard, each expression on recorded pages of a real server; and the evaluator itself."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import yaml

from labs import alerts
from labs.alerts import RULES, Scrapes, metrics_in, read_page
from labs.crossing import recorded
from labs.live.monitor import delta, read_metrics

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "labs/alerts"


@pytest.fixture(scope="module")
def scrapes() -> Scrapes:
    pages = recorded("pages")["pages"]
    return Scrapes(tuple(p["seconds"] for p in pages), tuple(read_page(p["text"]) for p in pages))


def one(value) -> float:
    assert len(value) == 1
    return next(iter(value.values()))


# ---------------------------------------------------------------- the rules and the dashboard


def test_the_files_are_what_is_written_and_can_be_read() -> None:
    assert (FOLDER / "vllm_alerts.yml").read_text() == alerts.rules_yaml()
    rules = yaml.safe_load(alerts.rules_yaml())["groups"][0]["rules"]
    assert [(r["alert"], r["expr"], r["for"]) for r in rules] == [(r.name, r.expression, r.lasts) for r in RULES]
    assert all(r["annotations"]["summary"] and r["annotations"]["description"] for r in rules)
    assert json.loads((FOLDER / "vllm_dashboard.json").read_text()) == alerts.dashboard()
    panels = alerts.dashboard()["panels"]
    assert len({p["id"] for p in panels}) == len({tuple(p["gridPos"].values()) for p in panels}) == len(panels)


@pytest.mark.parametrize("expression", [e for e in alerts.expressions() if "up{" not in e])
def test_every_metric_and_label_of_an_expression_is_on_the_page(scrapes: Scrapes, expression: str) -> None:
    page = scrapes.pages[-1]
    names = [*metrics_in(expression)]
    assert names
    for name in names:
        assert name in page, name
        if "by (model_name, engine)" in expression:
            assert all({"model_name", "engine"} <= {key for key, _ in labels} for labels in page[name])
        if "reason" in expression:
            assert all("reason" in dict(labels) for labels in page[name])
    scrapes.evaluate(expression)


def test_the_rules_say_what_the_server_suffered(scrapes: Scrapes) -> None:
    """Pages from before the load, and then while memory was short."""
    firing = {rule.name for rule in RULES if "up{" not in rule.expression and scrapes.fires(rule.expression)}
    assert {"VllmKvCacheNearlyFull", "VllmPreempting", "VllmWaitingForMemory"} <= firing
    assert not {"VllmWaitingForSlots", "VllmNobodyRuns", "VllmStuck", "VllmRefusing"} & firing
    idle = Scrapes(scrapes.times[:1], scrapes.pages[:1])
    assert not [r.name for r in RULES if "rate(" not in r.expression and idle.fires(r.expression)]


def test_the_counter_is_late(scrapes: Scrapes) -> None:
    """Running falls and waiting grows on two pages that both say 0 preemptions, and nobody else was sent."""
    seen = [[sum(page[f"vllm:{name}"].values()) for name in (
        "num_requests_running", "num_requests_waiting", "num_preemptions_total")] for page in scrapes.pages]
    assert any(after[0] < before[0] and after[1] > before[1] and after[2] == 0
               for before, after in itertools.pairwise(seen))
    assert seen[-1][2] > 0


def page(running=0, waiting=0, kv=0.0, tokens=0, up=1) -> dict:
    name = 'model_name="m",engine="0"'
    return read_page(f'vllm:num_requests_running{{{name}}} {running}\nvllm:num_requests_waiting{{{name}}} {waiting}\n'
                     f'vllm:kv_cache_usage_perc{{{name}}} {kv}\nvllm:generation_tokens_total{{{name}}} {tokens}\n'
                     f'up{{job="vllm"}} {up}\n')


@pytest.mark.parametrize(("name", "quiet", "firing"), [
    ("VllmKvCacheNearlyFull", page(kv=0.9), page(kv=0.91)),
    ("VllmWaitingForMemory", page(waiting=3, kv=0.5), page(waiting=3, kv=0.95)),
    ("VllmWaitingForSlots", page(waiting=3, kv=0.95), page(waiting=3, kv=0.5)),
    ("VllmWaitingForSlots", page(waiting=0, kv=0.5), page(waiting=1, kv=0.9)),
    ("VllmNobodyRuns", page(waiting=3, running=1), page(waiting=3)),
    ("VllmNobodyRuns", page(), page(waiting=1)),
    ("VllmDown", page(), page(up=0)),
])
def test_a_rule_fires_on_what_it_is_for(name: str, quiet, firing) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    assert not Scrapes((0.0,), (quiet,)).fires(rule.expression)
    assert Scrapes((0.0,), (firing,)).fires(rule.expression)


def test_stuck_is_running_without_tokens() -> None:
    rule = next(rule for rule in RULES if rule.name == "VllmStuck")
    assert Scrapes((0.0, 60.0), (page(running=2, tokens=5), page(running=2, tokens=5))).fires(rule.expression)
    assert not Scrapes((0.0, 60.0), (page(running=2, tokens=5), page(running=2, tokens=6))).fires(rule.expression)
    assert not Scrapes((0.0, 60.0), (page(tokens=5), page(tokens=5))).fires(rule.expression)


# ---------------------------------------------------------------- the evaluator


def test_it_agrees_with_the_monitor_on_a_real_page(scrapes: Scrapes) -> None:
    texts = [p["text"] for p in recorded("pages")["pages"]]
    typed = ["\n".join((*_types(text), text)) for text in texts]
    grown, seconds = delta(read_metrics(typed[0]), read_metrics(typed[-1])), scrapes.times[-1] - scrapes.times[0]
    assert one(scrapes.evaluate("sum(rate(vllm:generation_tokens_total[5m]))")) == pytest.approx(
        grown.generation_tokens / seconds)
    assert one(scrapes.evaluate("sum(increase(vllm:num_preemptions_total[5m]))")) == grown.preemptions > 0
    p95 = one(scrapes.evaluate(
        "histogram_quantile(0.95, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[5m])))"))
    bounds, counts = grown.itl.bounds, grown.itl.counts
    rank = 0.95 * grown.itl.count
    i = next(i for i, count in enumerate(counts) if count >= rank)
    assert (bounds[i - 1] if i else 0) < p95 <= bounds[i]


def _types(text: str):
    """The parser wants to know which names are histograms and which are counters."""
    names = {line.split("{")[0] for line in text.splitlines()}
    for name in sorted(names):
        if name.endswith("_bucket"):
            yield f"# TYPE {name.removesuffix('_bucket')} histogram"
        elif name.endswith("_total"):
            yield f"# TYPE {name} counter"
        elif f"{name.rsplit('_', 1)[0]}_bucket" not in names:
            yield f"# TYPE {name} gauge"


PAGES = Scrapes((0.0, 10.0), (
    read_page('a{x="1",y="p"} 2\na{x="2",y="p"} 4\nc_total 5\nh_bucket{le="1"} 0\nh_bucket{le="2"} 0\n'
              'h_bucket{le="+Inf"} 0'),
    read_page('a{x="1",y="p"} 3\na{x="2",y="q"} 8\nb{x="1"} 6\nc_total 25\nh_bucket{le="1"} 4\nh_bucket{le="2"} 8\n'
              'h_bucket{le="+Inf"} 10')))


@pytest.mark.parametrize(("expression", "value"), [
    ("2 + 3 * 4 - 6 / 2", 11.0),
    ("(2 + 3) * 4", 20.0),
    ("sum(a)", {(): 11.0}),
    ("max by (x) (a)", {(("x", "1"),): 3.0, (("x", "2"),): 8.0}),
    ('avg(a{x="2"})', {(): 8.0}),
    ("sum by (x) (a) / b", {(("x", "1"),): 0.5}),
    ("sum by (x) (a) > 5", {(("x", "2"),): 8.0}),
    ("sum(rate(c_total[5m]))", {(): 2.0}),
    ("increase(c_total[1h])", {(): 20.0}),
    ("sum by (x) (a) and on (x) b", {(("x", "1"),): 3.0}),
    ("sum by (x) (a) unless on (x) b", {(("x", "2"),): 8.0}),
    ("histogram_quantile(0.5, h_bucket)", {(): 1.25}),
    ("histogram_quantile(0.95, h_bucket)", {(): 2.0}),
    ("nothing > 0", {}),
    ("sum by (x) (a) > 5 or b", {(("x", "2"),): 8.0, (("x", "1"),): 6.0}),
    ("max by (y) (max_over_time(a[5m]))", {(("y", "p"),): 3.0, (("y", "q"),): 8.0}),
    ('(b > 5 or a) and on (x) a{x="1"}', {(("x", "1"),): 6.0, (("x", "1"), ("y", "p")): 3.0}),
])  # fmt: skip
def test_expressions(expression: str, value) -> None:
    got = PAGES.evaluate(expression)
    if isinstance(got, dict):
        got = {tuple(sorted(labels)): v for labels, v in got.items()}
    assert got == value


def test_a_counter_that_fell_began_anew() -> None:
    pages = tuple(read_page(f"c_total {n}") for n in (10, 30, 4, 9))
    assert Scrapes((0, 1, 2, 3), pages).evaluate("increase(c_total[5m])") == {frozenset(): 20 + 4 + 5}


def test_what_cant_be_read_is_shown_from_where_on() -> None:
    with pytest.raises(ValueError, match=r"from ' \$ 0123456789 012345' on$"):
        PAGES.evaluate("a $ 0123456789 0123456789")


@pytest.mark.parametrize("expression", ["sum(", "a > ", "sum(a) )", "a $ b", ""])
def test_what_cant_be_read_is_said_so(expression: str) -> None:
    with pytest.raises(ValueError, match="read|missing"):
        PAGES.evaluate(expression)
