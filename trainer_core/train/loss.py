"""The loss of a batch: the reference, and in parts, so that the logits of all tokens are never held at once.

Shapes: B batch, T sequence, D width, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trainer_core.data.batches import IGNORED, Batch
from trainer_core.model.attention import spans_of
from trainer_core.model.decoder import Decoder, document_mask


def token_loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Summed cross-entropy in nats over the labels that count (not `IGNORED`), in fp32."""
    flat = logits_BTV.float().flatten(0, 1)
    return F.cross_entropy(flat, labels_BT.flatten(), ignore_index=IGNORED, reduction="sum")


def linear_token_loss(
    hidden_BTD: Tensor, weight_VD: Tensor, labels_BT: Tensor, chunk: int, counted: int | None = None
) -> Tensor:
    """`token_loss` of `hidden @ weight.T`, holding at most `chunk` rows of logits. `counted`: how many labels count,
    where it is known (`Batch.tokens`)."""
    return token_loss(F.linear(hidden_BTD, weight_VD), labels_BT)


def batch_loss(model: Decoder, batch: Batch, *, chunk: int = 0, varlen: bool = False) -> Tensor:
    """`token_loss` of a batch that is on the model's device. No token sees those of another document where
    the batch divides its sequences.

    `chunk`: rows of logits held at once; 0: all. `varlen`: documents are given to attention as spans rather than
    as a mask, for backends that take them.
    """
    mask = spans = None
    if batch.segments is not None:
        if varlen:
            spans = getattr(batch, "spans", None) or spans_of(batch.segments)
        else:
            mask = document_mask(batch.segments)
    hidden = model.hidden(batch.input_ids, positions_BT=batch.positions, mask_B1TS=mask, spans=spans)
    if chunk:
        return linear_token_loss(hidden, model.lm_head.weight, batch.labels, chunk, batch.tokens)
    return token_loss(model.lm_head(hidden), batch.labels)
