"""Use a trained model: load a checkpoint, let it write.

Shapes: B batch, T tokens given, S tokens seen, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from trainer_core.data.columns import Turn
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.data.tokenizing.tokenizer_files import task_of
from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import Decoder, KvCache, RaggedKvCache
from trainer_core.runs import checkpoint_dir
from trainer_core.train.checkpoint import load_weights, read_shape, require_weights

_CONTEXTS = (16, 128)  # tokens of a text that say how it goes on; more where they begin within a character


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 takes the likeliest; `top_k` 0 and `top_p` 1 do not cut."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


def load(checkpoint: Path, device: torch.device) -> tuple[Decoder, Codec]:
    """A model ready to write, and its tokenizer. Raises `checkpoint.damaged` or `checkpoint.mismatch`."""
    problem = checkpoint_dir.problem(checkpoint)
    if problem:
        raise TraindeckError("checkpoint.damaged", path=str(checkpoint), reason=problem)
    shape = read_shape(checkpoint)
    require_weights(checkpoint, shape)
    model = Decoder(shape)
    load_weights(checkpoint, model)
    return model.to(device).eval(), Codec.load(checkpoint / "tokenizer.json")


def is_chat(checkpoint: Path) -> bool:
    """Whether the model was trained to answer prompts."""
    return task_of(checkpoint) == "sft"


def write_text(
    model: Decoder, codec: Codec, prompt: str | Sequence[Turn], max_tokens: int, sampling: Sampling, chat: bool
) -> Iterator[str]:
    """What the model writes after `prompt` (as an answer to it if `chat`), piece by piece.

    A conversation, rather than a text, is for `chat` only. Raises `data.chat_refused`.
    """
    ids = prompt_ids(codec, prompt, chat)
    stream = TextStream(codec, () if chat else ids)
    for token in write_tokens(model, ids or [codec.end_of_text], max_tokens, sampling, codec.ends):
        yield stream.add(token)


def prompt_ids(codec: Codec, prompt: str | Sequence[Turn], chat: bool) -> list[int]:
    """What `write_text` gives the model. Raises `data.chat_refused`."""
    if isinstance(prompt, str) and not chat:
        return [*codec.prefix, *codec.encode(prompt)]
    return codec.encode_prompt(prompt)


@torch.no_grad()
def write_tokens(
    model: Decoder, prompt: Sequence[int], max_tokens: int, sampling: Sampling, ends: frozenset[int]
) -> Iterator[int]:
    """New tokens one by one, without the end token. Text longer than the model's window goes on with
    the newest half of it in view."""
    device, window = model.lm_head.weight.device, model.config.max_seq_len
    generator = torch.Generator(device).manual_seed(sampling.seed)
    seen = list(prompt)[-(window - 1) :]
    cache = KvCache(model.config, 1, min(window, len(seen) + max_tokens), model.lm_head.weight)
    words = model.config.tokens  # the rows behind them stand for nothing

    def after(ids: list[int]) -> Tensor:
        hidden_BTD = model.hidden(torch.tensor([ids], device=device), cache=cache)
        return model.lm_head(hidden_BTD[0, -1])[:words]  # type: ignore[no-any-return]

    logits_V = after(seen)
    for _ in range(max_tokens):
        token = int(draw(logits_V, sampling, generator))
        if token in ends:
            return
        yield token
        seen.append(token)
        if cache.length == window:
            seen = seen[-(window // 2) :]
            cache.length = 0
            logits_V = after(seen)
        else:
            logits_V = after([token])


def draw(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """One token from one row of logits."""
    if sampling.temperature == 0:
        return logits_V.argmax()
    logits_V = logits_V.float() / sampling.temperature
    if sampling.top_k:
        lowest = logits_V.topk(min(sampling.top_k, logits_V.numel())).values[-1]
        logits_V = logits_V.masked_fill(logits_V < lowest, float("-inf"))
    if sampling.top_p < 1:
        logits_V = _nucleus(logits_V, sampling.top_p)
    return torch.multinomial(logits_V.softmax(-1), 1, generator=generator)[0]


def _nucleus(logits_V: Tensor, share: float) -> Tensor:
    """Only the likeliest tokens that together reach `share` (Holtzman et al. 2020); at least one."""
    ordered, order = logits_V.sort(descending=True)
    likelihood = ordered.softmax(-1)
    beyond = likelihood.cumsum(-1) - likelihood >= share
    return logits_V.masked_fill(beyond.scatter(0, order, beyond), float("-inf"))


@dataclass(slots=True)
class Answer:
    """Tokens without the end token, and what ended them: an end token, the limit, or the end of the context."""

    tokens: list[int] = field(default_factory=list)
    stop: Literal["end", "limit", "context"] = "context"


@torch.no_grad()
def answer_all(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    ends: frozenset[int],
    poll: Callable[[], None],
) -> list[Answer]:
    """Greedy answers to a batch of prompts, each shorter than `max_seq_len`.

    Row i has up to `limits[i]` tokens, fewer where the context ends, and one more prediction that may be an end token.
    Prompts are padded on the right and each row fills the cache from the left, so that no answer depends on the other
    rows (except for rounding). Finished rows leave the batch. `poll` is called after each token.
    """
    window, lengths = model.config.max_seq_len, list(map(len, prompts))
    most = [min(limit, window - length) for limit, length in zip(limits, lengths, strict=True)]
    capacity = max(length + limit for length, limit in zip(lengths, most, strict=True))
    cache = RaggedKvCache(model.config, lengths, capacity, model.lm_head.weight)
    answers = [Answer() for _ in prompts]
    rows = list(range(len(prompts)))  # indices into `answers`, in the order of the batch
    next_B = _read_prompts(model, prompts, cache)
    while True:
        kept = []
        for position, (row, token) in enumerate(zip(rows, next_B.tolist(), strict=True)):
            answer = answers[row]
            if token in ends:
                answer.stop = "end"
            elif len(answer.tokens) == most[row]:
                answer.stop = "context" if lengths[row] + most[row] == window else "limit"
            else:
                answer.tokens.append(token)
                kept.append(position)
        poll()
        if not kept:
            return answers
        if len(kept) < len(rows):
            kept_B = torch.tensor(kept, device=next_B.device)
            rows, next_B = [rows[position] for position in kept], next_B[kept_B]
            cache.keep(kept_B)
        next_B = _append(model, next_B, cache)


def _read_prompts(model: Decoder, prompts: Sequence[Sequence[int]], cache: RaggedKvCache) -> Tensor:
    """The likeliest token (B,) after each prompt."""
    longest, device = max(map(len, prompts)), cache.lengths_B.device
    padded_BT = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    hidden_BTD = model.hidden(padded_BT, cache=cache)  # causal: no prompt sees the padding behind it
    return _likeliest(model, hidden_BTD[torch.arange(len(prompts), device=device), cache.lengths_B - 1])


def _append(model: Decoder, tokens_B: Tensor, cache: RaggedKvCache) -> Tensor:
    """The likeliest token (B,) after one more token per row."""
    slots_S = torch.arange(cache.length + 1, device=tokens_B.device)
    positions_BT = cache.lengths_B[:, None]
    mask_B1TS = (slots_S <= positions_BT)[:, None, None]
    hidden_BTD = model.hidden(tokens_B[:, None], positions_BT=positions_BT, mask_B1TS=mask_B1TS, cache=cache)
    return _likeliest(model, hidden_BTD[:, -1])


def _likeliest(model: Decoder, hidden_BD: Tensor) -> Tensor:
    """Of the last position alone: logits of whole prompts can take more memory than training does."""
    return model.lm_head(hidden_BD)[:, : model.config.tokens].argmax(-1)  # type: ignore[no-any-return]


class TextStream:
    """Text from tokens one by one: a piece is given out when its last character is whole.

    `before`: the tokens of a text that is gone on with. Some tokenizers leave out the space at the
    beginning of what they decode, which here is in the middle.
    """

    def __init__(self, codec: Codec, before: Sequence[int] = ()) -> None:
        self._codec = codec
        tails = (before[-length:] for length in _CONTEXTS)
        self._tokens = list(next((tail for tail in tails if "\ufffd" not in codec.decode(tail)), before))
        self._given = len(codec.decode(self._tokens))

    def add(self, token: int) -> str:
        self._tokens.append(token)
        text = self._codec.decode(self._tokens)
        if text.endswith("\ufffd"):  # part of a character of several bytes
            return ""
        piece, self._given = text[self._given :], len(text)
        return piece
