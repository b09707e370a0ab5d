"""What a fix does to a scenario, as functions of it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labs.drills.traffic import Scenario

Change = Callable[[Scenario], Scenario]


def settings(**changed: Any) -> Change:
    """Start the engine with other settings, by vLLM's names."""
    return lambda scenario: replace(scenario, config=replace(scenario.config, **changed))


def traffic(**changed: Any) -> Change:
    """Change something else of the scenario."""
    return lambda scenario: replace(scenario, **changed)


def streams(tenant: str, **changed: Any) -> Change:
    """Treat one stream of requests differently."""
    return lambda scenario: replace(scenario, streams=tuple(
        replace(s, **changed) if s.tenant == tenant else s for s in scenario.streams))


def both(*changes: Change) -> Change:
    """Several changes, one after the other."""
    def change(scenario: Scenario) -> Scenario:
        for each in changes:
            scenario = each(scenario)
        return scenario
    return change
