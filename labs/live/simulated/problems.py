"""Answers that are not 200, in vLLM's shape and words."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """An answer that is not 200, in vLLM's shape."""

    def __init__(self, message: str, param: str | None = None, kind: str = "BadRequestError",
                 status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.kind, self.status = message, param, kind, status

    def body(self) -> dict[str, Any]:
        """The JSON that goes with the status."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def detail(kind: str, field_name: str, message: str, value: object, ctx: Mapping[str, object] | None = None) -> str:
    """One thing that is wrong with a field."""
    shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, list | dict) else str(value)
    said: dict[str, object] = {"type": kind, "loc": field_name, "msg": message, "input": shown}
    return str(said | ({"ctx": dict(ctx)} if ctx else {}))


def invalid(kind: str, field_name: str, message: str, value: object,
            ctx: Mapping[str, object] | None = None) -> ApiError:
    """A field of the wrong type, worded as vLLM's validation words it."""
    return invalid_for(field_name, [detail(kind, field_name, message, value, ctx)])


def invalid_for(field_name: str, details: list[str]) -> ApiError:
    """A field that is wrong in each of several ways: it might have been of any of several types."""
    count = f"{len(details)} validation error{'s' if len(details) > 1 else ''}:"
    return ApiError("\n  ".join([count, *details]), field_name, "Bad Request")


def bad(message: str, param: str, value: object = None) -> ApiError:
    """A field whose value can't be, worded as vLLM words it."""
    shown = "" if value is None else f", value={value}"
    return ApiError(f"{message} (parameter={param}{shown})", param)
