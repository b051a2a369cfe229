"""What the checkpoint computes, in torch: the reference of a verification.

Shapes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch

from trainer_core.data.columns import Turn
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.data.tokenizing.tokenizer_files import post_processor_ids, read_config, read_tokenizer
from trainer_core.export.verification import samples
from trainer_core.export.verification.answers import Continuation, HeldOutRow, ProgramAnswers, Request
from trainer_core.export.verification.held_out import held_out_rows
from trainer_core.generation.generate import generate_batch, load_model, prompt_ids
from trainer_core.messages import TraindeckError
from trainer_core.models.build import build_model
from trainer_core.models.language_model import LanguageModel
from trainer_core.progress import Reporter
from trainer_core.train.checkpoint import read_shape

_MAX_TOKENS: Final = 16  # of each continuation
_BATCH: Final = 5  # prompts


class Reference(NamedTuple):
    """Questions, and the answers of the checkpoint. `limitations`: as in the event."""

    request: Request
    answers: ProgramAnswers
    limitations: list[str]


def required_bytes(checkpoint: Path) -> int:
    """Memory of the model's weights in float32. Raises `checkpoint.damaged`."""
    return 4 * build_model(torch.device("meta"), read_shape(checkpoint), initialize=False).count_parameters()


def compute_reference(
    checkpoint: Path,
    folder: Path,
    dtype: torch.dtype,
    reporter: Reporter,
    *,
    rounds_vectors: bool = True,
    scores_held_out: bool = False,
) -> Reference:
    """Questions about the model in `folder`, answered by the checkpoint with weights rounded to `dtype`, in float32.

    `rounds_vectors`: also biases and weights of norms, which a GGUF file keeps in float32. `scores_held_out`: measure
    the perplexity of held-out rows. Raises as `load_model`.
    """
    model, codec, chat = load_model(checkpoint, torch.device("cpu"))
    for weight in model.parameters():
        rounded = weight.data.to(dtype) if rounds_vectors or weight.ndim > 1 else weight.data
        weight.data = rounded.float()
    config = read_config(checkpoint / "tokenizer.json")
    current = Codec(read_tokenizer(checkpoint / "tokenizer.json"), replace(config, now=None))
    window = model.config.max_seq_len
    held_out, is_of_run = held_out_rows(checkpoint, codec, window) if scores_held_out else ([], True)
    max_tokens = min(_MAX_TOKENS, window // 2)
    rendered = [_render(current, turns) for turns in samples.CONVERSATIONS] if chat else []
    request = Request(
        model=str(folder),
        texts=[*samples.TEXTS],
        decomposed_texts=[*samples.DECOMPOSED_TEXTS],
        vocabulary_texts=samples.vocabulary_texts(codec),
        before=str(codec.tokenizer.id_to_token(codec.end_of_turn)) if chat else "",
        conversations=[[(role, content) for role, content, *_ in turns] for turns in samples.CONVERSATIONS if chat],
        prompts=[prompt_ids(codec, text, chat)[max_tokens - window :] for text in samples.PROMPTS],
        max_tokens=max_tokens,
        n_tokens=model.config.n_tokens,
        end_token=codec.end_of_turn if chat else codec.end_of_text,
        held_out=held_out,
    )

    def encode_all(texts: Sequence[str]) -> list[list[int]]:
        return [ids.tolist() for ids in codec.encode_texts(texts, within_chat=chat)]

    token_ids, (prefix, suffix) = encode_all(request.texts), post_processor_ids(codec.tokenizer)
    answers = ProgramAnswers(
        program="Traindeck",
        token_ids=token_ids,
        decomposed_ids=encode_all(request.decomposed_texts),
        vocabulary_ids=encode_all(request.vocabulary_texts),
        first_ids=[*prefix, *[codec.end_of_turn] * chat, *token_ids[0], *suffix],
        rendered=[one[0] if one else None for one in rendered],
        rendered_ids=[one[1] if one else None for one in rendered],
        continuations=_continue_greedily(model, request, codec.stop_token_ids, reporter),
        stops=True,
        losses=[_losses(model, row, reporter) for row in request.held_out],
    )
    limitations = {"date": config.now is not None, "built_in_texts": not is_of_run}
    return Reference(request, answers, [name for name, applies in limitations.items() if applies])


def _render(codec: Codec, turns: Sequence[Turn]) -> tuple[str, list[int]] | None:
    try:
        return codec.render_prompt(turns), codec.encode_prompt(turns)
    except TraindeckError as error:
        if error.code == "data.chat_refused":
            return None
        raise


def _continue_greedily(
    model: LanguageModel, request: Request, end_tokens: frozenset[int], reporter: Reporter
) -> list[Continuation]:
    found: list[Continuation] = []
    for first in range(0, len(request.prompts), _BATCH):
        prompts = request.prompts[first : first + _BATCH]
        limits = [request.max_tokens] * len(prompts)
        completions = generate_batch(model, prompts, limits, end_tokens, reporter.poll)
        for prompt, one in zip(prompts, completions, strict=True):
            ended = one.finish_reason == "end" and len(one.tokens) < request.max_tokens
            found.append(_score(model, prompt, one.tokens, ended))
            reporter.progress("verifying", len(found), 2 * len(request.prompts), "prompts")
    return found


@torch.no_grad()
def _losses(model: LanguageModel, row: HeldOutRow, reporter: Reporter) -> list[float | None]:
    """Loss of each token in the loss, in nats."""
    reporter.poll()
    logprobs_TV = model(torch.tensor([row.ids]))[0, :, : model.config.n_tokens].float().log_softmax(-1)
    return [-float(logprobs_TV[place - 1, row.ids[place]]) for place in row.places]


@torch.no_grad()
def _score(model: LanguageModel, prompt: list[int], tokens: list[int], ended: bool) -> Continuation:
    """The tokens of a completion, and the end token after it, with their log-probabilities and gaps."""
    ids_1T = torch.tensor([[*prompt, *tokens]])
    hidden_TD = model.forward_hidden(ids_1T)[0, len(prompt) - 1 :]
    logits_TV = model.logits(hidden_TD if ended else hidden_TD[:-1])[:, : model.config.n_tokens].float()
    chosen_T = torch.tensor([*tokens, *logits_TV[-1:].argmax(-1).tolist()] if ended else tokens, dtype=torch.int64)
    logprobs_T = logits_TV.log_softmax(-1).gather(1, chosen_T[:, None])[:, 0]
    top_T2 = logits_TV.topk(2).values
    gaps_T = (top_T2[:, 0] - top_T2[:, 1]) / logits_TV.std(-1)
    return Continuation(chosen_T.tolist(), logprobs_T.tolist(), gaps_T.tolist())
