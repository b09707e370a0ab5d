"""What to alert on, and what to draw, for vLLM: as data. `python -m labs.alerts` writes the files beside this one."""
from __future__ import annotations

import json
from dataclasses import dataclass
from string import Template
from typing import Any

BY = "by (model_name, engine)"
# The highest in two minutes: while sequences are preempted, KV usage falls and rises from step to step.
KV = f"max {BY} (max_over_time(vllm:kv_cache_usage_perc[2m]))"
# Memory binds if it is nearly full, or somebody was preempted: with few blocks the next prompt may not fit long before.
MEMORY = f"({KV} > 0.9 or sum {BY} (rate(vllm:num_preemptions_total[5m])) > 0)"
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
TTFT, ITL = "vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_bucket"


@dataclass(frozen=True)
class Rule:
    """One alert: what it looks at, for how long before it fires, and what to do."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    do: str


def quantile(q: float, metric: str) -> str:
    """A percentile from a histogram, over the last five minutes."""
    return f"histogram_quantile({q}, sum by (le, model_name) (rate({metric}[5m])))"


NORMALISED = ("sum by (model_name) (rate(vllm:e2e_request_latency_seconds_sum[5m])) / "
              "sum by (model_name) (rate(vllm:request_generation_tokens_sum[5m]))")
RULES = (
    Rule("VllmKvCacheNearlyFull", f"{KV} > 0.9", "2m", "warning",
         "The KV cache is nearly full: preemption is next, and with it work done twice.",
         "Add a replica, or bring less load; lower max_num_seqs if only this replica is meant to slow down."),
    Rule("VllmPreempting", f"sum {BY} (rate(vllm:num_preemptions_total[5m])) > 0.1", "5m", "warning",
         "Sequences lose their blocks and compute their tokens again. vLLM counts each when its victim runs again.",
         "This is memory, not batching: more KV blocks, a replica, or shorter contexts."),
    Rule("VllmWaitingForMemory",
         f"sum {BY} ({WAITING}) > 0 and on (model_name, engine) {MEMORY}", "5m",
         "warning", "Requests wait, and blocks are short: memory holds them back.",
         "A replica. A higher max_num_seqs would only preempt more."),
    Rule("VllmWaitingForSlots",
         f"sum {BY} ({WAITING}) > 0 unless on (model_name, engine) {MEMORY}", "5m",
         "warning", "Requests wait and blocks aren't short: the sequence cap or the token budget holds them back.",
         "Look at running: at max_num_seqs, raise it if ITL allows, else add a replica; below it, look at the budget."),
    Rule("VllmNobodyRuns", f"sum {BY} ({WAITING}) > 0 unless on (model_name, engine) sum {BY} ({RUNNING}) > 0", "1m",
         "critical", "Requests wait and none runs: the head of the queue fits nowhere, or the engine hangs.",
         "Look at the log; a request that can never fit has to be aborted."),
    Rule("VllmStuck",
         f"sum {BY} ({RUNNING}) > 0 unless on (model_name, engine) "
         f"sum {BY} (rate(vllm:generation_tokens_total[5m])) > 0", "5m", "critical",
         "Requests run and no token is made.", "Restart the replica; /health may still say that all is well."),
    Rule("VllmTtftHigh", f"{quantile(0.99, TTFT)} > 2", "5m", "warning",
         "p99 TTFT is above 2 s: the time in the queue is part of it.", "See what requests wait for: the rules above."),
    Rule("VllmItlHigh", f"{quantile(0.95, ITL)} > 0.04", "5m", "warning",
         "p95 ITL is above 40 ms. vLLM's buckets end at 25 and 50 ms: between them this is a straight line.",
         "Lower max_num_seqs; if it comes in spikes when long prompts arrive, lower max_num_batched_tokens."),
    Rule("VllmRefusing", "sum by (model_name, reason) (rate(vllm:admission_rejections_total[5m])) > 0", "2m", "warning",
         "The queue's own limit refuses requests: clients see HTTP 503.", "Add a replica, or let clients slow down."),
    Rule("VllmDown", "up{job=\"vllm\"} == 0", "1m", "critical", "The /metrics page doesn't answer.",
         "Restart the replica. Missing isn't zero: without this rule all the others are silent."),
)
PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Running against waiting", "short", ((f"sum {BY} ({RUNNING})", "running"), (f"sum {BY} ({WAITING})", "waiting"))),
    ("KV cache in use", "percentunit", ((f"max {BY} (vllm:kv_cache_usage_perc)", "engine {{engine}}"),)),
    ("Preemptions a second", "short", ((f"sum {BY} (rate(vllm:num_preemptions_total[5m]))", "preempted"),)),
    ("TTFT", "s", tuple((quantile(q, TTFT), f"p{100 * q:g}") for q in (0.5, 0.99))),
    ("ITL", "s", tuple((quantile(q, ITL), f"p{100 * q:g}") for q in (0.5, 0.95))),
    ("Normalised latency: mean seconds a token, weighted by tokens (vLLM has no percentile of it)", "s",
     ((NORMALISED, "end to end / output tokens"),)),
    ("Output tokens a second", "short", (("sum by (model_name) (rate(vllm:generation_tokens_total[5m]))", "tokens"),)),
    ("Refused at admission", "short",
     (("sum by (model_name, reason) (rate(vllm:admission_rejections_total[5m]))", "{{reason}}"),)),
)
HEAD = """\
# Alert rules for vLLM (names as in version 0.32). Written by: python -m labs.alerts
# Each expression was tried on recorded pages; the thresholds are the course's examples: put in your own targets.
groups:
  - name: vllm
    rules:
"""
ONE = Template("""\
      - alert: $name
        expr: $expression
        for: $lasts
        labels:
          severity: $severity
        annotations:
          summary: $summary
          description: $do
""")


def rules_yaml() -> str:
    """The rules as Prometheus reads them."""
    return HEAD + "".join(ONE.substitute(
        name=rule.name, lasts=rule.lasts, severity=rule.severity,
        **{key: json.dumps(getattr(rule, key), ensure_ascii=False) for key in ("expression", "summary", "do")})
        for rule in RULES)


def dashboard() -> dict[str, Any]:
    """The panels as Grafana imports them, two in a row."""
    panels = [{
        "id": i + 1, "type": "timeseries", "title": title, "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"h": 8, "w": 12, "x": 12 * (i % 2), "y": 8 * (i // 2)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "ABCD"[k], "expr": expression, "legendFormat": legend}
                    for k, (expression, legend) in enumerate(targets)],
    } for i, (title, unit, targets) in enumerate(PANELS)]
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {"title": "vLLM: continuous batching", "uid": "vllm-continuous-batching", "schemaVersion": 39, "version": 1,
            "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "templating": {"list": [source]},
            "panels": panels}


def expressions() -> list[str]:
    """Every expression, of rules and panels."""
    return [rule.expression for rule in RULES] + [target[0] for _, _, targets in PANELS for target in targets]
