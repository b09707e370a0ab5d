"""What comes back for a request, whole or as server-sent events, in the shapes of vLLM 0.32."""
from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from labs.live.simulated import text
from labs.live.simulated.asked import Asked
from labs.live.simulated.engine import Job

FINGERPRINT = "simulated"


@dataclass
class Answer:
    """The answer to one request, whole or in pieces: `sent` tokens and `shown` characters have gone out."""

    asked: Asked
    job: Job
    created: int = field(default_factory=lambda: int(time.time()))
    sent: int = 0
    shown: int = 0

    @property
    def _head(self) -> dict[str, Any]:
        """What every object of this answer begins with."""
        kind = "chat.completion" if self.asked.chat else "text_completion"
        if self.asked.chat and self.asked.stream:
            kind += ".chunk"
        return {"id": self.job.request.request_id, "object": kind, "created": self.created, "model": self.asked.model}

    def _ids(self, start: int, stop: int) -> list[int] | None:
        """Token ids, if they were asked for."""
        return text.token_ids(start, stop, self.job.stop_at) if self.asked.return_token_ids else None

    def _prompt_ids(self) -> list[int] | None:
        """The prompt's, if they were asked for."""
        return list(self.asked.prompt) if self.asked.return_token_ids else None

    def _usage(self) -> dict[str, int]:
        """Tokens in and out, so far."""
        prompt = len(self.asked.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + self.sent, "completion_tokens": self.sent}

    def _usage_so_far(self) -> dict[str, int | None]:
        """The same as it comes with a chunk."""
        return self._usage() | ({"completion_tokens_details": None} if self.asked.chat else {})

    def whole(self) -> dict[str, Any]:
        """The answer in one piece, once the job has ended."""
        self.sent = self.job.tokens
        said, ids, chat = text.COUNTING.first(self.job.shown), self._ids(0, self.sent), self.asked.chat
        choice: dict[str, Any] = {"index": 0}
        if chat:
            choice["message"] = {"role": "assistant", "content": said, "refusal": None, "annotations": None,
                                 "audio": None, "function_call": None, "reasoning": None}
        else:
            choice["text"] = said
        choice |= {"logprobs": None, "finish_reason": self.job.finish_reason, "stop_reason": self.job.stop_reason,
                   "token_ids": ids}
        about_prompt = {"prompt_logprobs": None, "prompt_token_ids": self._prompt_ids()}
        choice |= {"routed_experts": None} if chat else {**about_prompt, "routed_experts": None}
        usage = {**self._usage(), "prompt_tokens_details": None, "completion_tokens_details": None}
        return {**self._head, "choices": [choice], "service_tier": None, "system_fingerprint": FINGERPRINT,
                "usage": usage, **({**about_prompt, "prompt_text": None} if chat else {}),
                "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}

    def events(self) -> Iterator[str]:
        """The server-sent events that have come due: the new tokens in one chunk, and at the end what ends a stream."""
        job, first = self.job, self.sent == 0
        if job.tokens > self.sent or job.finish_reason:
            if first and self.asked.chat:
                yield self._event(self._role_chunk())
            yield self._event(self._chunk(first))
        if job.finish_reason:
            if self.asked.include_usage:
                yield self._event({**self._head, "choices": [], "usage": self._usage(),
                                   "system_fingerprint": FINGERPRINT})
            yield "data: [DONE]\n\n"

    def _event(self, body: Mapping[str, Any]) -> str:
        """One server-sent event."""
        return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"

    def _role_chunk(self) -> dict[str, Any]:
        """A chat begins with who speaks: a chunk without a token."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        usage = {"usage": self._usage_so_far()} if self.asked.continuous_usage else {}
        return {**self._head, "choices": [choice], "prompt_token_ids": self._prompt_ids(), "prompt_text": None, **usage}

    def _chunk(self, first: bool) -> dict[str, Any]:
        """All tokens that have come since the last chunk."""
        job, start = self.job, self.sent
        self.sent = job.tokens
        new, self.shown = text.COUNTING.first(job.shown)[self.shown:], max(self.shown, job.shown)
        ids = self._ids(start, self.sent)
        choice: dict[str, Any] = {"index": 0, **({"delta": {"content": new}} if self.asked.chat else {"text": new}),
                                  "logprobs": None, "finish_reason": job.finish_reason}
        if not self.asked.chat:
            choice |= {"stop_reason": job.stop_reason, "prompt_token_ids": self._prompt_ids() if first else None}
        elif job.finish_reason:
            choice["stop_reason"] = job.stop_reason
        chunk = {**self._head, "choices": [{**choice, "token_ids": ids}]}
        if job.finish_reason and not self.asked.include_usage:
            chunk["system_fingerprint"] = FINGERPRINT
        return chunk | ({"usage": self._usage_so_far()} if self.asked.continuous_usage else {})


def new_id(chat: bool) -> str:
    """An id like vLLM's."""
    return f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex[:16]}"


def list_of_models(model: str, max_model_len: int, created: int) -> dict[str, Any]:
    """The list of the one model."""
    permission = {"id": "modelperm-simulated", "object": "model_permission", "created": created,
                  "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": False,
                  "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False, "organization": "*",
                  "group": None, "is_blocking": False}
    entry = {"id": model, "object": "model", "created": created, "owned_by": "simulated", "root": model,
             "parent": None, "max_model_len": max_model_len, "permission": [permission]}
    return {"object": "list", "data": [entry]}
