"""Text generation: loading, prompts, detokenization."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from trainer_core.base_model import source
from trainer_core.base_model.source import BaseModel
from trainer_core.base_model.weights import require_weights
from trainer_core.data.columns import Turn
from trainer_core.data.tokenizing.tokenizer import Codec, load_user_tokenizer
from trainer_core.data.tokenizing.tokenizer_files import TOKENIZER_FILE, is_chat, read_new_tokens, read_task
from trainer_core.generation.decoding import Completion as Completion
from trainer_core.generation.decoding import DecodingRow, new_batch
from trainer_core.generation.decoding import generate_tokens as generate_tokens
from trainer_core.generation.model_source import ModelSource, model_in
from trainer_core.generation.sampling import GREEDY as GREEDY
from trainer_core.generation.sampling import SamplingParams as SamplingParams
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config, inference
from trainer_core.models.adapters import is_adapter
from trainer_core.models.build import build_model
from trainer_core.models.language_model import LanguageModel
from trainer_core.progress import NullReporter
from trainer_core.runs import checkpoint_dir
from trainer_core.train.adapter_checkpoint import load_base, load_merged, weights_dtype
from trainer_core.train.checkpoint import read_shape
from trainer_core.train.device import native_bf16

_MAX_POSITIONS = 32_768  # of models with more: tables and caches grow with them
_CONTEXT_TOKENS = (16, 128)  # tokens of context for decoding; more if they start within a character


class LoadedModel(NamedTuple):
    """A model for inference, with its tokenizer. `chat`: it answers prompts, in its chat template."""

    model: LanguageModel
    codec: Codec
    chat: bool


def load_model(model: ModelSource | Path, device: torch.device, *, for_generation: bool = False) -> LoadedModel:
    """Load a model, or the checkpoint or model in a folder.

    In fp32 on a CPU, and in the dtype of its weights on a GPU that computes in it. With `for_generation` also on such a
    CPU, and rearranged by `inference.optimize`.

    Raises `checkpoint.damaged`, `checkpoint.mismatch` or `data.bad_tokenizer`; for a model folder and for an adapter as
    `source.resolve`, `hf_config.from_hf_config` and `load_base`.
    """
    checkpoint, base = model_in(model, NullReporter()) if isinstance(model, Path) else model
    if checkpoint is None:
        assert base is not None
        loaded = _load_foreign(base, device, for_generation)
    else:
        loaded = _load_checkpoint(checkpoint, base, device, for_generation)
    loaded.model.to(device).eval()
    if for_generation:
        inference.optimize(loaded.model)
    return loaded


def _load_checkpoint(
    checkpoint: Path, base: BaseModel | None, device: torch.device, for_generation: bool
) -> LoadedModel:
    """Load a checkpoint, or with its configuration and tokenizer the weights of `base`."""
    problem = checkpoint_dir.find_problem_cached(checkpoint)  # `find_checkpoint` may have hashed it
    if problem:
        raise TraindeckError("checkpoint.damaged", path=str(checkpoint), reason=problem)
    if base is None and not is_adapter(checkpoint):
        model = load_merged(checkpoint)  # trained weights are fp32
    elif base is None:
        model = load_merged(checkpoint, _choose_dtype(weights_dtype(checkpoint), device, for_generation))
    else:
        dtype, shape = _choose_dtype(weights_dtype(base.folder), device, for_generation), read_shape(checkpoint)
        context = min(shape.max_positions, _MAX_POSITIONS)  # of the base model; that of the run may be shorter
        shape = dataclasses.replace(shape, max_seq_len=context)
        model = build_model(torch.device("cpu"), shape, initialize=False, dtype=dtype)
        load_base(base, model, NullReporter(), read_new_tokens(checkpoint).values())
    return LoadedModel(model, Codec.load(checkpoint / TOKENIZER_FILE), chat=read_task(checkpoint) == "sft")


def _load_foreign(base: BaseModel, device: torch.device, for_generation: bool) -> LoadedModel:
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
    dtype = _choose_dtype(weights_dtype(base.folder), device, for_generation)
    require_weights(base, build_model(torch.device("meta"), config, initialize=False))  # before memory is allocated
    model = build_model(torch.device("cpu"), config, initialize=False, dtype=dtype)
    load_base(base, model, NullReporter())
    return LoadedModel(model, codec, chat=is_chat(home))


def _choose_dtype(stored: torch.dtype, device: torch.device, for_generation: bool) -> torch.dtype:
    """The dtype in which weights of dtype `stored` are loaded."""
    if stored is torch.float16:
        return stored if device.type == "cuda" else torch.float32
    uses_bf16 = stored is torch.bfloat16 and (device.type == "cuda" or for_generation) and native_bf16(device)
    return torch.bfloat16 if uses_bf16 else torch.float32


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


def generate_batch(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    limits: Sequence[int],
    eos_token_ids: frozenset[int],
    poll: Callable[[], None],
    sampling: SamplingParams | Sequence[SamplingParams] = GREEDY,
) -> list[Completion]:
    """Completions of a batch of prompts, each shorter than `max_seq_len`.

    Row i has up to `limits[i]` tokens, fewer in a full context; the token after them may be an end token. `poll` is
    called after each step. `sampling`: of all rows, or of each.
    """
    samplings = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
    rows = [DecodingRow(*row) for row in zip(prompts, limits, samplings, strict=True)]
    batch = new_batch(model, eos_token_ids)
    batch.add(rows)
    poll()
    while batch.rows:
        batch.step()
        poll()
    return [row.completion for row in rows]


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
