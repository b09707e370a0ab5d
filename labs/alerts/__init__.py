"""Alert rules and a dashboard for vLLM, and what it takes to try them on recorded pages."""

from labs.alerts.promql import Scrapes, metrics_in, read_page
from labs.alerts.rules import PANELS, RULES, Rule, dashboard, expressions, rules_yaml

__all__ = ["PANELS", "RULES", "Rule", "Scrapes", "dashboard", "expressions", "metrics_in", "read_page", "rules_yaml"]
