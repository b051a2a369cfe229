"""Loss on neutral text: shows whether fine-tuning forgets what the base model knew.

The texts, some sentences in English and in Chinese, belong to Traindeck and are the same for every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from trainer_core.data.batch import Batch
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.models.language_model import LanguageModel

LANGUAGES: Final = ("en", "zh")
_FOLDER: Final = Path(__file__).parent / "neutral_texts"


class NeutralText:
    """The texts as batches of one sequence each: they need less memory than a step. Draws no random numbers."""

    def __init__(self, codec: Codec, max_seq_len: int) -> None:
        texts = {language: (_FOLDER / f"{language}.txt").read_text(encoding="utf-8") for language in LANGUAGES}
        self._batches = {language: [*_batches(codec, text, max_seq_len)] for language, text in texts.items()}

    @torch.no_grad()
    def losses(
        self, model: LanguageModel, loss_of: Callable[[Batch], Tensor], device: torch.device
    ) -> dict[str, float | None]:
        """Mean loss per token for each language, as fields of the event `eval`. None: not finite."""
        model.eval()
        try:
            means = {
                language: float(sum(loss_of(batch.to(device)) for batch in batches))
                / sum(batch.loss_tokens for batch in batches)
                for language, batches in self._batches.items()
            }
        finally:
            model.train()
        return {f"neutral_loss_{name}": mean if math.isfinite(mean) else None for name, mean in means.items()}


def _batches(codec: Codec, text: str, max_seq_len: int) -> Iterator[Batch]:
    """Windows of up to `max_seq_len` tokens."""
    ids = [*codec.prefix_ids, *codec.encode(text)]
    for start in range(0, len(ids) - 1, max_seq_len):
        window = torch.tensor([ids[start : start + max_seq_len + 1]])
        yield Batch(window[:, :-1], window[:, 1:], loss_tokens=window.shape[1] - 1, samples=1)
