"""A request body to an `Asked`, or an `ApiError` with vLLM's status and words.

Source: vLLM 0.32's answers, recorded. What is not simulated is refused with a 400 that says so, never ignored,
if it would change how many tokens come back or in what shape; sampling settings are read and have no effect.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labs.live.simulated import text

_UNSUPPORTED = {"echo": False, "logprobs": None, "prompt_logprobs": None, "use_beam_search": False,
                "prompt_embeds": None, "response_format": None, "structured_outputs": None, "tools": None,
                "top_logprobs": None, "stop_token_ids": None, "logit_bias": None, "bad_words": None,
                "truncate_prompt_tokens": None, "allowed_token_ids": None}


class ApiError(Exception):
    """An answer that is not 200, in vLLM's shape."""

    def __init__(self, message: str, param: str | None = None, kind: str = "BadRequestError",
                 status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.kind, self.status = message, param, kind, status

    def body(self) -> dict[str, Any]:
        """The JSON that goes with the status."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}}


def invalid(kind: str, field_name: str, message: str, value: object) -> ApiError:
    """A field of the wrong type, worded as vLLM's validation words it."""
    shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, list | dict) else str(value)
    detail = {"type": kind, "loc": field_name, "msg": message, "input": shown}
    return ApiError(f"1 validation error:\n  {detail}", field_name, "Bad Request")


def bad(message: str, param: str, value: object = None) -> ApiError:
    """A field whose value can't be, worded as vLLM words it."""
    shown = "" if value is None else f", value={value}"
    return ApiError(f"{message} (parameter={param}{shown})", param)


@dataclass(frozen=True)
class Asked:
    """What one request asks for, checked."""

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    chat: bool
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    return_token_ids: bool = False
    ignore_eos: bool = False
    include_stop: bool = False
    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    priority: int = 0
    seed: int = 0


def read_body(raw: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object in a request."""
    if content_type.split(";")[0].strip().lower() != "application/json":
        raise ApiError("1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", None,
                       "Bad Request")
    if not raw.strip():
        raise invalid("missing", "body", "Field required", None)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        raise invalid("json_invalid", "body.1", "JSON decode error", {}) from None
    if not isinstance(body, dict):
        raise invalid("model_attributes_type", "body",
                      "Input should be a valid dictionary or object to extract fields from", body)
    return body


def read_request(body: Mapping[str, Any], chat: bool, model: str, max_model_len: int) -> Asked:
    """Check `body` as vLLM would, in its order: the types, the model, then the lengths."""
    options = _stream_options(body)
    whole = {name: _whole(body, name) for name in ("max_tokens", "max_completion_tokens", "n", "min_tokens",
                                                   "priority", "seed")}
    if body.get("model") not in (None, "", model):
        raise ApiError(f"The model `{body['model']}` does not exist. Valid aliases: {model}.", "model",
                       "NotFoundError", 404)
    _refuse_unsupported(body, whole["n"])
    prompt, at_least = (_chat_text(body), "at least ") if chat else _completion_prompt(body)
    if isinstance(prompt, str):
        # A text is no longer read once it is seen to be too long: "at least" is all that can be said of its length.
        prompt = text.encode(prompt)[:max_model_len + 1]
    asked = whole["max_tokens"]
    if chat and whole["max_completion_tokens"] is not None:
        asked = whole["max_completion_tokens"]
    max_tokens = _max_tokens(asked, None if chat else 16, len(prompt), at_least, max_model_len)
    return Asked(model, prompt, max_tokens, chat, bool(body.get("stream")), bool(options.get("include_usage")),
                 bool(options.get("continuous_usage_stats")), bool(body.get("return_token_ids")),
                 bool(body.get("ignore_eos")), bool(body.get("include_stop_str_in_output")), _stops(body),
                 whole["min_tokens"] or 0, whole["priority"] or 0, whole["seed"] or 0)


def _stream_options(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stream options, which only a stream may have."""
    options = body.get("stream_options") or {}
    if options and not body.get("stream"):
        raise bad("Stream options can only be defined when `stream=True`.", "stream_options")
    if not isinstance(options, dict):
        raise invalid("model_attributes_type", "body.stream_options",
                      "Input should be a valid dictionary or object to extract fields from", options)
    return options


def _whole(body: Mapping[str, Any], name: str) -> int | None:
    """A whole number, which may be left out."""
    value = body.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise invalid("int_parsing", f"body.{name}", message, value) from None
    raise invalid("int_type", f"body.{name}", "Input should be a valid integer", value)


def _refuse_unsupported(body: Mapping[str, Any], n: int | None) -> None:
    """Say what the simulated server doesn't do."""
    if n is not None and n < 1:
        raise ApiError(f"n must be at least 1, got {n}.")
    if n not in (None, 1):
        raise bad("The simulated server gives one answer a request: it has no n above 1.", "n", n)
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        value = float(temperature)
        raise bad(f"temperature must be non-negative, got {value}.", "temperature", value)
    if body.get("suffix"):
        raise ApiError("suffix is only supported for models with FIM completion rendering", "suffix")
    for name, without in _UNSUPPORTED.items():
        value = body.get(name)
        if value in (None, without, [], {}) or (name == "response_format" and value == {"type": "text"}):
            continue
        raise bad(f"The simulated server has no {name}.", name)


def _completion_prompt(body: Mapping[str, Any]) -> tuple[str | tuple[int, ...], str]:
    """The one prompt, which is a text, token ids, or a list with one of these; and how sure its length is."""
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        raise bad("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if prompt == []:
        raise ApiError("You must pass at least one prompt")
    if isinstance(prompt, list) and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise bad("The simulated server takes one prompt a request.", "prompt")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, "at least "
    if not (isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt)):
        raise invalid("string_type", "body.prompt", "Input should be a valid string", prompt)
    if prompt and max(prompt) >= text.VOCABULARY:
        raise ApiError(f"Token id {max(prompt)} is out of vocabulary")
    return tuple(prompt), ""


def _chat_text(body: Mapping[str, Any]) -> str:
    """The prompt that a conversation comes to, by a template of the simplest kind."""
    if "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", dict(body))
    messages = body["messages"]
    if not isinstance(messages, list):
        raise invalid("list_type", "body.messages", "Input should be a valid list", messages)
    if not messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return "".join(f"<{_role(m)}>{_content(m)}" for m in messages) + "<assistant>"


def _role(message: object) -> str:
    """Who says it."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid("missing", "body.messages.0.role", "Field required", message)
    return message["role"]


def _content(message: Mapping[str, Any]) -> str:
    """What a message says: its text, or its parts' texts."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise bad("The simulated server takes text only.", "messages")
        return "\n".join(parts)
    return content if isinstance(content, str) else ""


def _max_tokens(asked: int | None, default: int | None, prompt: int, at_least: str, max_model_len: int) -> int:
    """How many tokens may be made, at most."""
    value = default if asked is None else asked
    if value is not None and value < 1:
        raise bad(f"max_tokens must be at least 1, got {value}.", "max_tokens", value)
    if value is not None and value > max_model_len:
        raise bad(f"max_tokens={value} cannot be greater than max_model_len={max_model_len}. "
                  "Please request fewer output tokens.", "max_tokens", value)
    if prompt > max_model_len:
        raise bad(f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
                  f"{at_least}{prompt} input tokens, which exceeds this limit even without any output tokens. "
                  "Please reduce the length of the input prompt.", "input_tokens", prompt)
    room = max_model_len - prompt
    if room < 1:
        raise bad("max_tokens must be at least 1, got 0.", "max_tokens", 0)
    return room if value is None else min(value, room)


def _stops(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings."""
    stops = body.get("stop") or ()
    stops = (stops,) if isinstance(stops, str) else stops
    if not all(isinstance(stop, str) for stop in stops):
        raise invalid("string_type", "body.stop", "Input should be a valid string", body["stop"])
    if "" in stops:
        raise ApiError("stop cannot contain an empty string.")
    return tuple(stops)
