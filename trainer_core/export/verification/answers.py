"""What a program computes from a model: the questions, and its answers. Both are files that processes exchange.

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

REQUEST_FILE: Final = "request.json"
ANSWERS_FILE: Final = "answers.json"


class HeldOutRow(msgspec.Struct):
    """Token ids, and the places of those in the loss; the first one cannot be."""

    ids: list[int]
    places: list[int]


class Request(msgspec.Struct, kw_only=True):
    """Questions about an exported model."""

    model: str  # absolute path of the folder
    texts: list[str]
    decomposed_texts: list[str]  # not in Unicode normal form C
    vocabulary_texts: list[str]  # made of the tokens of the vocabulary
    before: str  # special token in front of each text, as in a chat; empty: none
    conversations: list[list[tuple[str, str]]]  # (role, content); empty: the model has no chat template to verify
    prompts: list[list[int]]  # token ids
    max_tokens: int  # of each continuation
    n_tokens: int  # of the tokenizer; the remaining rows of the embedding are padding
    end_token: int  # ends an answer, or a text of a model that continues texts
    held_out: list[HeldOutRow] = []  # whose perplexity is measured; empty: not measured


class Continuation(msgspec.Struct):
    """Greedy tokens with the end token, and their log-probabilities among the tokens of the tokenizer.

    `gaps`, of the reference only: difference of the two largest logits at each token, divided by the standard deviation
    of all logits.
    """

    tokens: list[int]
    logprobs: list[float | None]  # None: the program does not return it
    gaps: list[float] = []


class ProgramAnswers(msgspec.Struct, kw_only=True):
    """Answers in the order of the questions."""

    program: str  # name and version
    token_ids: list[list[int]]  # of each text, without tokens that the tokenizer adds
    decomposed_ids: list[list[int]]
    vocabulary_ids: list[list[int]]
    first_ids: list[int]  # of the first text, with tokens that the tokenizer adds, such as <bos>
    rendered: list[str | None]  # prompt of each conversation; None: refused by the template
    rendered_ids: list[list[int] | None]  # its token ids as the program gives them to the model
    continuations: list[Continuation]
    stops: bool  # a generation ends with `end_token`
    losses: list[list[float | None]] = []  # of the tokens in the loss of each held-out row, in nats; None: as above


class Program(Protocol):
    """A model that is open in a program."""

    name: str

    def encode(self, text: str, special: bool) -> list[int]:
        """Token ids of a text, which may have special tokens; `special`: with tokens that the tokenizer adds."""

    def render(self, turns: Sequence[tuple[str, str]]) -> tuple[str, list[int]] | None:
        """The prompt of a conversation and its token ids; None if the template refuses it."""

    def continue_greedily(self, prompt: Sequence[int], max_tokens: int) -> Continuation: ...

    def stops_at(self, token: int, prompt: Sequence[int]) -> bool:
        """Whether a generation ends with `token`, which is made the most probable one."""

    def losses(self, row: HeldOutRow) -> list[float | None]:
        """Loss of each token in the loss, in nats."""


def read_request(folder: Path) -> Request:
    return msgspec.json.decode((folder / REQUEST_FILE).read_bytes(), type=Request)


def answer(request: Request, program: Program, folder: Path) -> None:
    """Answer all questions and write the answers. Prints a line for each prompt."""
    rendered = [program.render(turns) for turns in request.conversations]
    continuations = []
    for prompt in request.prompts:
        continuations.append(program.continue_greedily(prompt, request.max_tokens))
        sys.stdout.write("\n")
        sys.stdout.flush()

    def encode_all(texts: Sequence[str]) -> list[list[int]]:
        return [program.encode(request.before + text, special=False)[bool(request.before) :] for text in texts]

    answers = ProgramAnswers(
        program=program.name,
        token_ids=encode_all(request.texts),
        decomposed_ids=encode_all(request.decomposed_texts),
        vocabulary_ids=encode_all(request.vocabulary_texts),
        first_ids=program.encode(request.before + request.texts[0], special=True),
        rendered=[one[0] if one else None for one in rendered],
        rendered_ids=[one[1] if one else None for one in rendered],
        continuations=continuations,
        stops=program.stops_at(request.end_token, request.prompts[0]),
        losses=[program.losses(row) for row in request.held_out],
    )
    (folder / ANSWERS_FILE).write_bytes(msgspec.json.encode(answers))


def exit_with_stdin() -> None:
    """Exit when the parent, which holds the other end of stdin, exits."""

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
