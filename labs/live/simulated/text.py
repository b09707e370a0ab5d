"""The simulated model's tokens: prompts are cut into pieces, answers count upwards from one, one number a line."""
from __future__ import annotations

import math
import random
import re
import zlib
from collections.abc import Sequence

VOCABULARY = 151_936  # as large as the one of the page's model, so that prompts made for that fit
END = 0  # the token at which the model stops by itself
_BYTES = 256  # the tokens of answers are single characters, by their codes; those of prompts lie above
_PIECE = re.compile(r"\s?\w{1,4}|\s?[^\w\s]|\s")


def encode(text: str) -> tuple[int, ...]:
    """The token ids of a prompt: up to four letters a token, which is about what real vocabularies come to."""
    return tuple(_BYTES + zlib.crc32(piece.encode()) % (VOCABULARY - _BYTES) for piece in _PIECE.findall(text))


class Counting:
    """The text that every answer begins with, "1 2 3 ..." on lines of their own, one character a token."""

    def __init__(self) -> None:
        self._text, self._next = "", 1

    def first(self, n: int) -> str:
        """The first `n` tokens as text."""
        while len(self._text) < n:
            self._text += "".join(f"{i}\n" for i in range(self._next, self._next + 1000))
            self._next += 1000
        return self._text[:n]


COUNTING = Counting()


def token_ids(start: int, stop: int, end_at: int | None = None) -> list[int]:
    """The ids of an answer's tokens from number `start` up to `stop`, the first being 0; token `end_at` - 1 ends it."""
    ids = [ord(character) for character in COUNTING.first(stop)[start:]]
    if end_at is not None and start < end_at <= stop:
        ids[end_at - 1 - start] = END
    return ids


def natural_length(prompt: Sequence[int], seed: int, mu: float = 4.2, sigma: float = 1.1) -> int:
    """After how many tokens the model stops by itself: lognormal, the same for the same prompt and seed."""
    generator = random.Random(f"{seed}:{zlib.crc32(repr(tuple(prompt)).encode())}")
    return max(1, int(math.exp(generator.normalvariate(mu, sigma))))
