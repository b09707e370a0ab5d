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
from labs.live.simulated.problems import ApiError, bad, detail, invalid, invalid_for
from labs.live.simulated.sampling import check_settings, read_settings

_UNSUPPORTED = {"echo": False, "logprobs": None, "prompt_logprobs": None, "use_beam_search": False,
                "prompt_embeds": None, "response_format": None, "structured_outputs": None, "tools": None,
                "top_logprobs": None, "stop_token_ids": None, "logit_bias": None, "bad_words": None,
                "truncate_prompt_tokens": None, "allowed_token_ids": None}


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
    except json.JSONDecodeError as error:
        raise invalid("json_invalid", f"body.{error.pos}", "JSON decode error", {}, {"error": error.msg}) from None
    except (ValueError, RecursionError) as error:
        raise invalid("json_invalid", "body.0", "JSON decode error", {}, {"error": str(error)}) from None
    if not isinstance(body, dict):
        raise invalid("model_attributes_type", "body",
                      "Input should be a valid dictionary or object to extract fields from", body)
    return body


def read_request(body: Mapping[str, Any], chat: bool, model: str, max_model_len: int) -> Asked:
    """Check `body` as vLLM would, in its order: the types, the model, then the lengths."""
    numbers, flags = read_settings(body)
    whole = {name: _whole(body, name) for name in ("max_tokens", "max_completion_tokens", "n", "min_tokens",
                                                   "priority", "seed", "top_k")}
    options = _stream_options(body, flags["stream"])
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
    check_settings(numbers, whole, max_tokens)
    return Asked(model, prompt, max_tokens, chat, flags["stream"], bool(options.get("include_usage")),
                 bool(options.get("continuous_usage_stats")), flags["return_token_ids"], flags["ignore_eos"],
                 flags["include_stop_str_in_output"], _stops(body), whole["min_tokens"] or 0, whole["priority"] or 0,
                 whole["seed"] or 0)


def _stream_options(body: Mapping[str, Any], stream: bool) -> Mapping[str, Any]:
    """The stream options, which only a stream may have."""
    options = body.get("stream_options") or {}
    if options and not stream:
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
    if isinstance(value, float):
        message = "Input should be a valid integer, got a number with a fractional part"
        raise invalid("int_from_float", f"body.{name}", message, value)
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
    if body.get("suffix"):
        text_prompt = isinstance(body.get("prompt"), str)
        needs = "is only supported for models with" if text_prompt else "requires text prompt input for"
        raise ApiError(f"suffix {needs} FIM completion rendering", "suffix")
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
        raise _no_prompt(prompt)
    if prompt and max(prompt) >= text.VOCABULARY:
        raise ApiError(f"Token id {max(prompt)} is out of vocabulary")
    return tuple(prompt), ""


def _no_prompt(prompt: object) -> ApiError:
    """A prompt may be of four types: what is wrong with it as each of them."""
    no_list, no_text = "Input should be a valid list", "Input should be a valid string"
    text_error = detail("string_type", "body.prompt", no_text, prompt)
    if not isinstance(prompt, list):
        list_error = detail("list_type", "body.prompt", no_list, prompt)
        return invalid_for("body.prompt", [list_error, list_error, text_error, list_error])
    at, item = next((i, item) for i, item in enumerate(prompt) if not (type(item) is int and item >= 0))
    name, whole = f"body.prompt.{at}", type(item) is int
    number_error = (
        detail("greater_than_equal", name, "Input should be greater than or equal to 0", item, {"ge": 0}) if whole
        else detail("int_type", name, "Input should be a valid integer", item))
    return invalid_for(name, [number_error, detail("list_type", name, no_list, item), text_error,
                              detail("string_type", name, no_text, item)])  # fmt: skip


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
    stops = body.get("stop")
    stops = () if stops is None else stops
    stops = (stops,) if isinstance(stops, str) else stops
    if not all(isinstance(stop, str) for stop in stops):
        raise invalid("string_type", "body.stop", "Input should be a valid string", body["stop"])
    if "" in stops:
        raise ApiError("stop cannot contain an empty string.")
    return tuple(stops)
