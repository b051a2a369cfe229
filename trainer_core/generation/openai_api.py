"""Requests and answers of OpenAI's API: chat completions and completions.

https://platform.openai.com/docs/api-reference/chat and .../completions
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from trainer_core.data.columns import Turn
from trainer_core.generation.sampling import SamplingParams

Document = dict[str, Any]
_UNSUPPORTED: Final = (
    "tools", "functions", "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "echo",
    "suffix", "response_format",
)  # fmt: skip
_DEFAULT_TEMPERATURE: Final = 0.8  # as `generate`
_MAX_SEED: Final = 2**63


class ApiError(Exception):
    """An answer that reports an error."""

    def __init__(self, status: HTTPStatus, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    def document(self) -> Document:
        kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def bad_request(message: str, code: str | None = None, param: str | None = None) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, message, code, param)


# --- requests --------------------------------------------------------------------------------------------


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _ContentPart(msgspec.Struct):
    type: str
    text: str = ""


class _Message(msgspec.Struct):
    role: str
    content: str | list[_ContentPart] | None = None

    def turn(self) -> Turn:
        parts = self.content if isinstance(self.content, list) else [_ContentPart("text", self.content or "")]
        for part in parts:
            if part.type != "text":
                raise bad_request(f"Content of type {part.type!r:.40} is not supported.", param="messages")
        return "system" if self.role == "developer" else self.role, "".join(part.text for part in parts)


class _Request(msgspec.Struct, kw_only=True):
    """Fields of both kinds of requests. Others are ignored, except for those in `_UNSUPPORTED`."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=5)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None
    seed: int | None = None
    stop: Annotated[str, msgspec.Meta(min_length=1)] | list[Annotated[str, msgspec.Meta(min_length=1)]] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    def sampling(self, index: int) -> SamplingParams:
        """Of the text with this index. Without a seed it is random."""
        seed = secrets.randbits(62) if self.seed is None else self.seed
        temperature = _DEFAULT_TEMPERATURE if self.temperature is None else self.temperature
        top_p = 1.0 if self.top_p is None else max(self.top_p, 1e-9)
        return SamplingParams(temperature, self.top_k or 0, top_p, (seed + index) % _MAX_SEED)

    @property
    def stop_strings(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Request, kw_only=True):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def prompts(self) -> list[list[Turn]]:
        return [[message.turn() for message in self.messages]]


class CompletionRequest(_Request, kw_only=True):
    prompt: str | Annotated[list[str], msgspec.Meta(min_length=1, max_length=8)]

    @property
    def limit(self) -> int:
        return self.max_tokens or 16  # OpenAI's default

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


Request: TypeAlias = ChatRequest | CompletionRequest


def parse(body: bytes, kind: type[Request]) -> Request:
    """Decode a request. Raises `ApiError`."""
    try:
        document = msgspec.json.decode(body)
        request: Request = msgspec.convert(document, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request(f"{error!s:.300}") from error
    for name in _UNSUPPORTED:
        if document.get(name) not in (None, False, 0, "", [], {}, {"type": "text"}):
            raise bad_request(f"{name} is not supported.", code="unsupported_parameter", param=name)
    return request


# --- answers ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Response:
    """Builds the response to one request, whole or in pieces."""

    model: str
    is_chat: bool
    prompt_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: secrets.token_hex(12))

    def whole(self, texts: Sequence[str], finish_reasons: Sequence[str], tokens: int) -> Document:
        choices = []
        for index, (text, reason) in enumerate(zip(texts, finish_reasons, strict=True)):
            content: Document = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
            choices.append({"index": index, **content, "logprobs": None, "finish_reason": reason})
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage(tokens)}

    def piece(self, index: int, text: str, finish_reason: str | None, is_first: bool) -> Document:
        role = {"role": "assistant"} if is_first else {}
        content: Document = {"delta": {**role, "content": text}} if self.is_chat else {"text": text}
        choice = {"index": index, **content, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def final_usage(self, tokens: int) -> Document:
        """The last piece with `stream_options: {"include_usage": true}`."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": self.usage(tokens)}

    def usage(self, tokens: int) -> Document:
        total = self.prompt_tokens + tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens, "total_tokens": total}

    def _head(self, chat_kind: str) -> Document:
        kind, prefix = (chat_kind, "chatcmpl") if self.is_chat else ("text_completion", "cmpl")
        return {"id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model}


def model_document(name: str, created: int) -> Document:
    return {"id": name, "object": "model", "created": created, "owned_by": "traindeck"}


def encode(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
