"""One conversation of a client with a server, and the shapes of what comes back: the same from vLLM and its stand-in.

    LABS_VLLM_PYTHON=.venv-vllm/bin/python python -m tests.live.conversation     records tests/golden/conversation.json

A shape keeps what a client relies on: the status, the kind of content, every key and the type of its value, the
order of events, the exact counts of a usage, and errors word for word. It leaves out what can't be the same: ids,
times, texts, token ids, how many tokens came in one chunk, and who owns the model.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from labs.live.server import Server
from tests.conformance.environment import ROOT
from tests.live.real import started

GOLDEN = ROOT / "tests" / "golden" / "conversation.json"
MODEL = "tiny"
FLAGS = {"max_num_seqs": 8, "max_model_len": 2048}
PROMPT = [70, 71, 72, 73, 74]
KEPT = ("object", "finish_reason", "stop_reason", "role", "index", "prompt_tokens", "completion_tokens", "total_tokens",
        "type", "param", "code", "message", "error", "detail", "max_model_len", "status", "is_paused")  # fmt: skip
Body = Mapping[str, object] | bytes | None


@dataclass(frozen=True)
class Exchange:
    """One request. `key`: "ours", "wrong" or none. `hangs_up`: the client goes after the first event."""

    name: str
    method: str
    path: str
    body: Body = None
    key: str | None = "ours"
    content_type: str = "application/json"
    hangs_up: bool = False

    @property
    def counted(self) -> bool:
        """Whether its prompt is of tokens, so that every count is known."""
        return not isinstance(self.body, Mapping) or not (
            "messages" in self.body or "hello there" in str(self.body.get("prompt")))


def completion(name: str, prompt: object = PROMPT, **asked: object) -> Exchange:
    """A completion of the tiny model."""
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True, "max_tokens": 6} | asked
    return Exchange(name, "POST", "/v1/completions", {k: v for k, v in body.items() if v != "left out"})


def chat(name: str, messages: object = ({"role": "user", "content": "hello"},), **asked: object) -> Exchange:
    """A chat with the tiny model."""
    body = {"model": MODEL, "messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": 6} | asked
    return Exchange(name, "POST", "/v1/chat/completions", {k: v for k, v in body.items() if v != "left out"})


STREAM = {"stream": True}
USAGE = STREAM | {"stream_options": {"include_usage": True}}
RUNNING = STREAM | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CONVERSATION = (
    Exchange("health", "GET", "/health", key=None),
    Exchange("ping", "GET", "/ping", key=None),
    Exchange("version", "GET", "/version", key=None),
    Exchange("models", "GET", "/v1/models"),
    Exchange("models, no key", "GET", "/v1/models", key=None),
    Exchange("models, wrong key", "GET", "/v1/models", key="wrong"),
    Exchange("completion, wrong key", "POST", "/v1/completions", {"prompt": PROMPT}, key="wrong"),
    Exchange("no such path", "GET", "/nothing", key=None),
    Exchange("no such path under /v1", "GET", "/v1/nothing"),
    Exchange("wrong method", "GET", "/v1/completions"),
    completion("completion"),
    completion("completion, text", "hello there"),
    completion("completion, a text in a list", ["hello there"]),
    completion("completion, tokens in a list", [PROMPT]),
    completion("completion, lengths by default", max_tokens="left out"),
    completion("completion, no model named", model="left out"),
    completion("completion, token ids", return_token_ids=True),
    completion("completion, one token", max_tokens=1),
    completion("completion, as long as there is room", [70] * 2040, max_tokens=100),
    completion("completion, priority under fcfs", priority=-3),
    completion("completion, unknown field", no_such_field=1),
    completion("completion, sampling", temperature=0.7, top_p=0.9, seed=3),
    completion("stream", **STREAM),
    completion("stream, usage", **USAGE),
    completion("stream, usage and token ids", **USAGE, return_token_ids=True),
    completion("stream, usage with each chunk", **RUNNING),
    completion("stream, one token", **USAGE, max_tokens=1),
    chat("chat"),
    chat("chat, token ids", return_token_ids=True),
    chat("chat, max_completion_tokens", max_tokens="left out", max_completion_tokens=3),
    chat("chat, parts", [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]),
    chat("chat, system", [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]),
    chat("chat stream", **STREAM),
    chat("chat stream, usage", **USAGE),
    chat("chat stream, usage and token ids", **USAGE, return_token_ids=True),
    chat("chat stream, usage with each chunk", **RUNNING),
    completion("bad model", model="other"),
    completion("context too long", [70] * 3000),
    completion("context full", [70] * 2048),
    completion("text too long", "no " * 3000),
    completion("max_tokens beyond the context", max_tokens=5000),
    completion("max_tokens 0", max_tokens=0),
    completion("max_tokens negative", max_tokens=-1),
    completion("max_tokens a word", max_tokens="many"),
    completion("max_tokens a fraction", max_tokens=2.5),
    completion("min_tokens beyond max_tokens", min_tokens=10),
    completion("min_tokens negative", min_tokens=-1),
    completion("temperature negative", temperature=-1),
    completion("temperature a word", temperature="hot"),
    completion("top_p beyond 1", temperature=0.5, top_p=2),
    completion("top_p 0", temperature=0.5, top_p=0),
    completion("top_k below -1", temperature=0.5, top_k=-2),
    completion("presence_penalty beyond 2", presence_penalty=3),
    completion("frequency_penalty beyond 2", frequency_penalty=-3),
    completion("repetition_penalty 0", repetition_penalty=0),
    completion("n 0", n=0),
    completion("priority a word", priority="high"),
    completion("stream options without a stream", stream_options={"include_usage": True}),
    completion("stream a word", stream="maybe"),
    completion("empty stop", stop=""),
    completion("no prompt", prompt="left out"),
    completion("empty prompt", ""),
    completion("empty list", []),
    completion("prompt of another type", {"a": 1}),
    completion("no such token", [9_999_999]),
    completion("negative token", [-1]),
    completion("suffix", suffix="x"),
    Exchange("no body", "POST", "/v1/completions", b""),
    Exchange("not JSON", "POST", "/v1/completions", b"{not json"),
    Exchange("a list", "POST", "/v1/completions", b"[]"),
    Exchange("not called JSON", "POST", "/v1/completions", b"{}", content_type="text/plain"),
    chat("chat, no messages", messages="left out"),
    chat("chat, empty messages", []),
    chat("chat, messages a word", "hello"),
    chat("chat, bad model", model="other"),
    chat("chat, text too long", [{"role": "user", "content": "no " * 3000}]),
    completion("stream, bad model", **STREAM, model="other"),
    completion("stream, context too long", [70] * 3000, **STREAM),
    Exchange("hang up", "POST", "/v1/completions",
             {"model": MODEL, "prompt": PROMPT, "max_tokens": 1500, "ignore_eos": True, "stream": True}, hangs_up=True),
    Exchange("pause", "POST", "/pause?mode=keep"),
    Exchange("is it paused", "GET", "/is_paused"),
    Exchange("resume", "POST", "/resume"),
    Exchange("is it still paused", "GET", "/is_paused"),
    Exchange("pause, no such mode", "POST", "/pause?mode=never"),
)  # fmt: skip


# ---- shapes ---------------------------------------------------------------------------------------------------------

def shape(value: object, key: str = "", counted: bool = True) -> object:
    """The shape of a JSON value; `key` is what it stands under. A text that is not `counted` has as many tokens as
    the model's vocabulary makes of it: then only the tokens made, and the sum, are exact.
    """
    if isinstance(value, Mapping):
        if not counted and "prompt_tokens" in value:
            value = dict(value) | {"total_tokens": value["total_tokens"] - value["prompt_tokens"], "prompt_tokens": 0}
        return {name: shape(one, name, counted) for name, one in sorted(value.items())}
    if key in ("token_ids", "prompt_token_ids") and isinstance(value, list):
        return f"{len(value)} ids" if key == "prompt_token_ids" and counted else "ids"
    if isinstance(value, list):
        return [shape(one, key, counted) for one in value]
    if key in KEPT and value is not None:
        return _words(value) if isinstance(value, str) else value
    return type(value).__name__


def _words(text: str) -> str:
    """Words without what a server says of its own insides."""
    return re.sub(r"0x[0-9a-f]+", "0x...", text)


def events(text: str, read: Callable[[object], object]) -> list[object]:
    """The shapes of a stream's events, in order; chunks with tokens in a row that look alike count once."""
    found: list[object] = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        if not part.startswith("data: "):
            found.append(f"not an event: {part[:40]}")
            continue
        one: object = part[6:] if part[6:] == "[DONE]" else _merged(read(json.loads(part[6:])))
        if not found or found[-1] != one:
            found.append(one)
    return found


def _merged(one: dict) -> dict:
    """How many tokens a chunk's running usage counts is the server's own affair, as long as the last has them all."""
    usage, reasons = one.get("usage"), [choice.get("finish_reason") for choice in one.get("choices") or ()]
    ended = not reasons or any(reason != "NoneType" for reason in reasons)
    if isinstance(usage, dict) and not ended:
        one["usage"] = {name: count if isinstance(count, str) else "int" for name, count in usage.items()}
    return one


def metrics(page: str) -> dict[str, object]:
    """Every vLLM metric on a page: its type, and the labels of its series."""
    types = dict(re.findall(r"^# TYPE (vllm:\w+) (\w+)$", page, re.M))
    found: dict[str, object] = {}
    for name, kind in sorted(types.items()):
        if name.endswith("_created"):
            continue
        series = re.findall(rf"^{name}(?:_bucket|_sum|_count)?\{{([^}}]*)\}}", page, re.M)
        labels = {label for one in series for label in re.findall(r'(\w+)="', one)} - {"le"}
        found[name] = {"type": kind, "labels": sorted(labels)}
    return found


@dataclass
class Talk:
    """What a server answered."""

    answers: dict[str, object] = field(default_factory=dict)
    metrics: dict[str, object] = field(default_factory=dict)
    left_running: float = -1.0


def hold(server: Server, exchanges: Iterable[Exchange] = CONVERSATION) -> Talk:
    """Have the conversation. Raises OSError if the server breaks off."""
    talk = Talk()
    for exchange in exchanges:
        talk.answers[exchange.name] = answer(server, exchange)
    talk.left_running = idle(server)
    talk.metrics = metrics(server.metrics())
    return talk


def answer(server: Server, exchange: Exchange) -> dict[str, object]:
    """The shape of one answer."""
    connection = http.client.HTTPConnection(server.root_url.removeprefix("http://"), timeout=60)
    key = {"ours": server.api_key, "wrong": f"not-{server.api_key}"}.get(exchange.key)
    headers = {"Content-Type": exchange.content_type} | ({"Authorization": f"Bearer {key}"} if key else {})
    raw = exchange.body if isinstance(exchange.body, bytes | None) else json.dumps(exchange.body).encode()
    connection.request(exchange.method, exchange.path, raw, headers)
    got = connection.getresponse()
    kind = (got.getheader("content-type") or "").partition(";")[0]
    found: dict[str, object] = {"status": got.status, "content": kind}
    read = partial(shape, counted=exchange.counted)
    if exchange.hangs_up:
        found["first event"] = events(_first(got), read)[0]
        connection.sock.shutdown(socket.SHUT_RDWR)
    elif kind == "text/event-stream":
        found["events"] = events(got.read().decode(), read)
    else:
        text = got.read().decode()
        found["body"] = read(json.loads(text)) if kind == "application/json" and text else len(text) and "text"
    connection.close()
    return found


def _first(got: http.client.HTTPResponse) -> str:
    """The first event of a stream."""
    text = ""
    while not text.endswith("\n\n"):
        text += got.read(1).decode()
    return text


def idle(server: Server, seconds: float = 10.0) -> float:
    """Requests that still run, once none does or the time is over."""
    until = time.monotonic() + seconds
    while True:
        found = re.findall(r"^vllm:num_requests_(?:running|waiting)\{[^}]*\} (\S+)$", server.metrics(), re.M)
        left = sum(map(float, found))
        if left == 0 or time.monotonic() > until:
            return left
        time.sleep(0.1)


def main() -> int:
    """Record it from the real server."""
    with started(**FLAGS) as server:
        talk = hold(server)
        golden = {
            "from": f"vLLM {server.version} on a CPU, the tiny model; python -m tests.live.conversation",
            "answers": talk.answers, "metrics": talk.metrics,
        }  # fmt: skip
    assert talk.left_running == 0
    GOLDEN.write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(talk.answers)} answers and {len(talk.metrics)} metrics in {GOLDEN.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
