"""Sampling settings, which have no effect here, but are refused where vLLM refuses them, in its words.

Source: vLLM 0.32's answers, recorded in tests/golden/conversation.json.
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from labs.live.simulated.problems import ApiError, bad, invalid

_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_FLAGS = ("stream", "ignore_eos", "return_token_ids", "include_stop_str_in_output")
_WORDS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False, "on": True, "off": False}


def read_number(body: Mapping[str, Any], name: str) -> float | None:
    """A number, which may be left out."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            message = "Input should be a valid number, unable to parse string as a number"
            raise invalid("float_parsing", f"body.{name}", message, value) from None
    if not isinstance(value, int | float):
        raise invalid("float_type", f"body.{name}", "Input should be a valid number", value)
    return float(value)


def read_flag(body: Mapping[str, Any], name: str) -> bool:
    """Yes or no, as a boolean or in one of the usual words; no if left out."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    said = _WORDS.get(str(value).lower()) if isinstance(value, str | int) else None
    if said is None:
        kind = "bool_parsing" if isinstance(value, str | int | float) else "bool_type"
        unclear = ", unable to interpret input" if kind == "bool_parsing" else ""
        raise invalid(kind, f"body.{name}", f"Input should be a valid boolean{unclear}", value)
    return said


def read_settings(body: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, bool]]:
    """The types of all settings: numbers and flags by name."""
    return {name: read_number(body, name) for name in _NUMBERS}, {name: read_flag(body, name) for name in _FLAGS}


def check_settings(numbers: Mapping[str, float | None], whole: Mapping[str, int | None], max_tokens: int) -> None:
    """Raise ApiError for a setting beyond its limits, in vLLM's order."""
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= (value := _or(numbers[name], 0.0)) <= 2:
            raise ApiError(f"{name} must be in [-2, 2], got {value}.")
    if not (value := _or(numbers["repetition_penalty"], 1.0)) > 0:
        raise ApiError(f"repetition_penalty must be greater than zero, got {value}.")
    if not (value := _or(numbers["temperature"], 1.0)) >= 0:
        raise bad(f"temperature must be non-negative, got {value}.", "temperature", value)
    if not 0 < (value := _or(numbers["top_p"], 1.0)) <= 1:
        raise bad(f"top_p must be in (0, 1], got {value}.", "top_p", value)
    if (top_k := whole["top_k"]) is not None and top_k < -1:
        raise ApiError(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if (least := whole["min_tokens"] or 0) < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {least}.")
    if least > max_tokens:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {least}.")


def _or(value: float | None, default: float) -> float:
    return default if value is None or math.isnan(value) else value
