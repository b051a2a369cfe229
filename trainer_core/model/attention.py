"""Ways to compute causal attention: torch's own choice (the reference), its kernels by name, the FlashAttention
packages, and ways for documents side by side in one sequence.

All have one signature, `Attend`, and equal the reference within rounding. Shapes: B batch, T queries, S keys,
H heads, K key/value heads (H is a multiple of K), C head width, N documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Missing = tuple[str, dict[str, Any]]  # a code of messages_engine.ENGINE, and the params of its words


@dataclass(frozen=True, slots=True)
class Spans:
    """Documents side by side in packed rows. What is behind the last document of a row counts as one, too."""

    offsets: Tensor  # (N + 1,) int32: where documents begin in the B * T positions, and B * T at the end
    longest: int  # positions of the longest one


class Attend(Protocol):
    """(B, H, T, C) from queries (B, H, T, C), keys and values (B, K, S, C).

    Each position sees itself and what is before it; with `mask` (B, 1, T, S) those where it is True; with
    `spans` those of its own document. Where both are given they say the same.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to compute attention."""

    name: str
    attend: Attend
    check: Callable[[torch.device, torch.dtype, int], Missing | None]
    by_spans: bool = False  # takes documents as spans; the others are given a mask

    def missing(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> Missing | None:
        """Why it cannot be used there (the code and params of a message); None: it can."""
        return self.check(device, dtype, head_dim)


def spans_of(segments_BT: Tensor) -> Spans:
    """The documents of `Batch.segments`. On a GPU this waits for it: make them before the transfer."""
    begins_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    begins_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    begins = begins_BT.flatten().nonzero().flatten()
    offsets = torch.cat((begins, begins.new_tensor([segments_BT.numel()]))).to(torch.int32)
    return Spans(offsets, int(offsets.diff().max()))


def document_mask(segments_BT: Tensor) -> Tensor:
    """Who may look at whom (B, 1, T, T), where each token sees those before it in its own segment, and itself."""
    length = segments_BT.shape[1]
    same = segments_BT.unsqueeze(2) == segments_BT.unsqueeze(1)
    return (same & same.new_ones(length, length).tril()).unsqueeze(1)


def mask_of(spans: Spans, batch: int, length: int) -> Tensor:
    """`document_mask` from spans."""
    positions = torch.arange(batch * length, device=spans.offsets.device, dtype=torch.int32)
    return document_mask(torch.searchsorted(spans.offsets, positions, right=True).view(batch, length))


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor:
    """The reference: torch chooses the kernel."""
    if spans is not None and mask is None:
        mask = mask_of(spans, q.shape[0], q.shape[2])
    causal, grouped = mask is None and q.shape[2] > 1, q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)


def _anything(device: torch.device, dtype: torch.dtype, head_dim: int) -> None:
    return None


BACKENDS: Final[dict[str, Backend]] = {backend.name: backend for backend in (Backend("sdpa", sdpa, _anything),)}
