"""One HTTP request with the standard library: never through a proxy to this machine, never following a redirect."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

LOCAL = ("127.0.0.1", "localhost", "::1")


class Unreachable(OSError):
    """Nothing answered, or what did spoke no HTTP."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    text: str

    def json(self) -> dict:
        """The answer as a dictionary; an empty one if it is none."""
        try:
            value = json.loads(self.text)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None  # the key is for this server, and no other


def ask(method: str, url: str, key: str | None = None, body: object = None, timeout: float = 10.0) -> Answer:
    """Send it and wait for all of the answer. Raises Unreachable; an error status is an answer."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    handlers = [_Stay(), *([ProxyHandler({})] if urlsplit(url).hostname in LOCAL else [])]
    try:
        with build_opener(*handlers).open(Request(url, data, headers, method=method), timeout=timeout) as answer:
            return Answer(answer.status, answer.read().decode("utf-8", errors="replace"))
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode("utf-8", errors="replace"))
    except (URLError, http.client.HTTPException, OSError) as error:
        raise Unreachable(str(getattr(error, "reason", error)) or type(error).__name__) from error
