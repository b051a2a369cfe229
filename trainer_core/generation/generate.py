"""Text generation: loading, sampling, batched greedy decoding, detokenization.

Shapes: B batch, T new tokens, S cached tokens, V vocabulary, D model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from trainer_core.base_model import source
from trainer_core.base_model.source import BaseModel
from trainer_core.base_model.weights import require_weights
from trainer_core.data.columns import Turn
from trainer_core.data.tokenizing.tokenizer import Codec, load_user_tokenizer
from trainer_core.data.tokenizing.tokenizer_files import TOKENIZER_FILE, is_chat, read_new_tokens, read_task
from trainer_core.generation.model_source import ModelSource, model_in
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.adapters import is_adapter
from trainer_core.models.build import build_model
from trainer_core.models.decoder import Decoder
from trainer_core.models.kv_cache import RaggedKvCache
from trainer_core.models.language_model import LanguageModel
from trainer_core.progress import NullReporter
from trainer_core.runs import checkpoint_dir
from trainer_core.train.adapter_checkpoint import load_base, load_merged, weights_dtype
from trainer_core.train.checkpoint import read_shape
from trainer_core.train.device import native_bf16

_MAX_POSITIONS = 32_768  # of models with more: tables and caches grow with them
_CONTEXT_TOKENS = (16, 128)  # tokens of context for decoding; more if they start within a character


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. `temperature` 0: greedy; `top_k` 0 and `top_p` 1: no limit."""

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0


class LoadedModel(NamedTuple):
    """A model for inference, with its tokenizer. `chat`: it answers prompts, in its chat template."""

    model: LanguageModel
    codec: Codec
    chat: bool


def load_model(model: ModelSource | Path, device: torch.device) -> LoadedModel:
    """Load a model, or the checkpoint or model in a folder, in the dtype of its weights where the device is fast in it.

    Raises `checkpoint.damaged`, `checkpoint.mismatch` or `data.bad_tokenizer`; for a model folder and for an adapter as
    `source.resolve`, `hf_config.from_hf_config` and `load_base`.
    """
    checkpoint, base = model_in(model, NullReporter()) if isinstance(model, Path) else model
    if checkpoint is None:
        assert base is not None
        return _load_foreign(base, device)
    problem = checkpoint_dir.find_problem_cached(checkpoint)  # `find_checkpoint` may have hashed it
    if problem:
        raise TraindeckError("checkpoint.damaged", path=str(checkpoint), reason=problem)
    if base is None and not is_adapter(checkpoint):
        loaded = load_merged(checkpoint)  # trained weights are fp32
    elif base is None:
        loaded = load_merged(checkpoint, inference_dtype(weights_dtype(checkpoint), device))
    else:
        dtype = inference_dtype(weights_dtype(base.folder), device)
        shape = read_shape(checkpoint)
        context = min(shape.max_positions, _MAX_POSITIONS)  # of the base model; that of the run may be shorter
        shape = dataclasses.replace(shape, max_seq_len=context)
        loaded = build_model(torch.device("cpu"), shape, initialize=False, dtype=dtype)
        load_base(base, loaded, NullReporter(), read_new_tokens(checkpoint).values())
    codec = Codec.load(checkpoint / TOKENIZER_FILE)
    return LoadedModel(loaded.to(device).eval(), codec, chat=read_task(checkpoint) == "sft")


def _load_foreign(base: BaseModel, device: torch.device) -> LoadedModel:
    """Load a model folder. Adapters may have their own configuration and tokenizer."""
    folders = (*reversed(base.adapters), base.folder)
    home = next((folder for folder in folders if (folder / TOKENIZER_FILE).is_file()), base.folder)
    if not (home / TOKENIZER_FILE).is_file():
        raise TraindeckError("base_model.missing_file", path=str(home), file=TOKENIZER_FILE)
    codec, _ = load_user_tokenizer(home / TOKENIZER_FILE)
    values = next((source.read_config(folder) for folder in folders if (folder / source.CONFIG_FILE).is_file()), {})
    config = hf_config.from_hf_config(values, str(home))
    config = dataclasses.replace(
        config,
        max_seq_len=min(config.max_seq_len, _MAX_POSITIONS),
        unpadded_vocab_size=codec.vocab_size if codec.vocab_size < config.vocab_size else 0,
    )
    dtype = inference_dtype(weights_dtype(base.folder), device)
    require_weights(base, build_model(torch.device("meta"), config, initialize=False))  # before memory is allocated
    model = build_model(torch.device("cpu"), config, initialize=False, dtype=dtype)
    load_base(base, model, NullReporter())
    return LoadedModel(model.to(device).eval(), codec, chat=is_chat(home))


def inference_dtype(stored: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype in which weights of dtype `stored` are loaded."""
    if device.type == "cuda" and (stored is torch.float16 or (stored is torch.bfloat16 and native_bf16(device))):
        return stored
    return torch.float32


def generate_text(
    model: LanguageModel,
    codec: Codec,
    prompt: str | Sequence[Turn],
    max_tokens: int,
    sampling: SamplingParams,
    chat: bool,
) -> Iterator[str]:
    """Stream the continuation of `prompt`, or with `chat` the answer to it. Conversations require `chat`.

    Raises `data.chat_refused`.
    """
    ids = prompt_ids(codec, prompt, chat)
    stream = IncrementalDetokenizer(codec, () if chat else ids)
    for token in generate_tokens(model, ids or [codec.end_of_text], max_tokens, sampling, codec.stop_token_ids):
        yield stream.add(token)


def prompt_ids(codec: Codec, prompt: str | Sequence[Turn], chat: bool) -> list[int]:
    """Token IDs of a prompt. Raises `data.chat_refused`."""
    if isinstance(prompt, str) and not chat:
        return [*codec.prefix_ids, *codec.encode(prompt)]
    return codec.encode_prompt(prompt)


@torch.no_grad()
def generate_tokens(
    model: LanguageModel,
    prompt: Sequence[int],
    max_tokens: int,
    sampling: SamplingParams,
    eos_token_ids: frozenset[int],
) -> Iterator[int]:
    """Stream new tokens, without the end token. When the context is full, its older half is discarded."""
    device, window = model.head.weight.device, model.config.max_seq_len
    generator = torch.Generator(device).manual_seed(sampling.seed)
    seen = list(prompt)[-(window - 1) :]
    capacity = min(window, len(seen) + max_tokens)
    cache = model.new_cache(capacity)
    n_tokens = model.config.n_tokens  # the remaining rows are padding

    def next_logits(ids: list[int]) -> Tensor:
        hidden_BTD = model.forward_hidden(torch.tensor([ids], device=device), cache=cache)
        return model.logits(hidden_BTD[0, -1])[:n_tokens]

    logits_V = next_logits(seen)
    for _ in range(max_tokens):
        token = int(sample_token(logits_V, sampling, generator))
        if token in eos_token_ids:
            return
        yield token
        seen.append(token)
        if cache.length == window:
            seen = seen[-(window // 2) :]
            cache = model.new_cache(capacity)
            logits_V = next_logits(seen)
        else:
            logits_V = next_logits([token])


def sample_token(logits_V: Tensor, sampling: SamplingParams, generator: torch.Generator) -> Tensor:
    """Sample one token from logits (V,)."""
    if sampling.temperature == 0:
        return logits_V.argmax()
    logits_V = logits_V.float() / sampling.temperature
    if sampling.top_k:
        lowest = logits_V.topk(min(sampling.top_k, logits_V.numel())).values[-1]
        logits_V = logits_V.masked_fill(logits_V < lowest, float("-inf"))
    if sampling.top_p < 1:
        logits_V = _apply_top_p(logits_V, sampling.top_p)
    return torch.multinomial(logits_V.softmax(-1), 1, generator=generator)[0]


def _apply_top_p(logits_V: Tensor, share: float) -> Tensor:
    """Mask all but the most probable tokens whose sum reaches `share` (Holtzman et al. 2020); at least one is kept."""
    ordered, order = logits_V.sort(descending=True)
    probability = ordered.softmax(-1)
    beyond = probability.cumsum(-1) - probability >= share
    return logits_V.masked_fill(beyond.scatter(0, order, beyond), float("-inf"))


@dataclass(slots=True)
class Completion:
    """Tokens without the end token. `finish_reason`: an end token, the token limit, or a full context."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: Literal["end", "limit", "context"] = "context"


@torch.no_grad()
def generate_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    eos_token_ids: frozenset[int],
    poll: Callable[[], None],
) -> list[Completion]:
    """Greedy completions of a batch of prompts, each shorter than `max_seq_len`.

    Row i has up to `limits[i]` tokens, fewer if the context is full; the token after them may be an end token. Prompts
    are padded on the right and each row fills the cache from the left, so that completions do not depend on other rows
    (except for rounding). Finished rows are removed from the batch. `poll` is called after each token.
    """
    if not isinstance(model, Decoder):  # no cache for rows of different lengths
        return [_complete(model, *row, eos_token_ids, poll) for row in zip(prompts, limits, strict=True)]
    window, lengths = model.config.max_seq_len, list(map(len, prompts))
    max_tokens = [min(limit, window - length) for limit, length in zip(limits, lengths, strict=True)]
    capacity = max(length + limit for length, limit in zip(lengths, max_tokens, strict=True))
    cache = RaggedKvCache(model.config, lengths, capacity, model.head.weight)
    completions = [Completion() for _ in prompts]
    rows = list(range(len(prompts)))  # indices into `completions`, in the order of the batch
    next_B = _prefill(model, prompts, cache)
    while True:
        kept = []
        for position, (row, token) in enumerate(zip(rows, next_B.tolist(), strict=True)):
            completion = completions[row]
            if token in eos_token_ids:
                completion.finish_reason = "end"
            elif len(completion.tokens) == max_tokens[row]:
                completion.finish_reason = "context" if lengths[row] + max_tokens[row] == window else "limit"
            else:
                completion.tokens.append(token)
                kept.append(position)
        poll()
        if not kept:
            return completions
        if len(kept) < len(rows):
            kept_B = torch.tensor(kept, device=next_B.device)
            rows, next_B = [rows[position] for position in kept], next_B[kept_B]
            cache.select_rows(kept_B)
        next_B = _decode_step(model, next_B, cache)


def _complete(
    model: LanguageModel, prompt: Sequence[int], limit: int, eos_token_ids: frozenset[int], poll: Callable[[], None]
) -> Completion:
    """`generate_batch` of one row."""
    room = model.config.max_seq_len - len(prompt)
    completion, limit = Completion(finish_reason="end"), min(limit, room)
    for token in generate_tokens(model, prompt, limit + 1, SamplingParams(temperature=0), eos_token_ids):
        poll()
        if len(completion.tokens) == limit:
            completion.finish_reason = "context" if limit == room else "limit"
            break
        completion.tokens.append(token)
    return completion


def _prefill(model: LanguageModel, prompts: Sequence[Sequence[int]], cache: RaggedKvCache) -> Tensor:
    """The most probable token (B,) after each prompt."""
    longest, device = max(map(len, prompts)), cache.lengths_B.device
    padded_BT = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts], device=device)
    hidden_BTD = model.forward_hidden(padded_BT, cache=cache)  # causal: padding on the right has no effect
    return _argmax_token(model, hidden_BTD[torch.arange(len(prompts), device=device), cache.lengths_B - 1])


def _decode_step(model: LanguageModel, tokens_B: Tensor, cache: RaggedKvCache) -> Tensor:
    """The most probable token (B,) after one more token per row."""
    slots_S = torch.arange(cache.length + 1, device=tokens_B.device)
    positions_BT = cache.lengths_B[:, None]
    mask_B1TS = (slots_S <= positions_BT)[:, None, None]
    hidden_BTD = model.forward_hidden(tokens_B[:, None], positions_BT=positions_BT, mask_B1TS=mask_B1TS, cache=cache)
    return _argmax_token(model, hidden_BTD[:, -1])


def _argmax_token(model: LanguageModel, hidden_BD: Tensor) -> Tensor:
    """Of one position only: logits of whole prompts may need more memory than training."""
    return model.logits(hidden_BD)[:, : model.config.n_tokens].argmax(-1)


class IncrementalDetokenizer:
    """Decodes a stream of tokens; incomplete characters are held back.

    `context`: tokens before the stream. Some tokenizers omit a leading space, which is needed within a text.
    """

    def __init__(self, codec: Codec, context: Sequence[int] = ()) -> None:
        self._codec = codec
        tails = (context[-length:] for length in _CONTEXT_TOKENS)
        self._tokens = list(next((tail for tail in tails if "\ufffd" not in codec.decode(tail)), context))
        self._emitted_length = len(codec.decode(self._tokens))

    def add(self, token: int) -> str:
        self._tokens.append(token)
        text = self._codec.decode(self._tokens)
        if text.endswith("\ufffd"):  # part of a character of several bytes
            return ""
        piece, self._emitted_length = text[self._emitted_length :], len(text)
        return piece
