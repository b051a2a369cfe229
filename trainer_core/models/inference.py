"""Rearranges a model for generation on a CPU, where reading the weights takes most of the time.

- Weights in oneDNN's packed layout: a product with few rows then reads memory in order.
- Our decoder: one product for queries, keys and values, and one for gate and up; norms and rotary positions without
  autograd.

The model has no gradients then, and other names of weights. Shapes: see `decoder.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer_core.models.attention import CuSeqlens, attend_to_cache, sdpa
from trainer_core.models.decoder import Attention, Mlp, OffsetRmsNorm, RmsNorm
from trainer_core.models.kv_cache import KvCache
from trainer_core.models.language_model import LanguageModel

_ROWS: Final = 8  # for which oneDNN chooses the layout; that for one row is slower with more


@torch.no_grad()
def optimize(model: LanguageModel) -> None:
    """Rearrange a model in evaluation mode, in place; on a GPU nothing changes."""
    if model.head.weight.device.type != "cpu":
        return
    model.requires_grad_(False)
    _replace_children(model, _can_pack(model.head.weight.dtype), model.head)


def _replace_children(module: nn.Module, packs: bool, head: nn.Module) -> None:
    """One after another, so that the weights of each are freed before the next one is packed."""
    for name, child in module.named_children():
        if isinstance(child, Attention):
            setattr(module, name, _FusedAttention(child, packs))
        elif isinstance(child, Mlp):
            setattr(module, name, _FusedMlp(child, packs))
        elif isinstance(child, RmsNorm):
            setattr(module, name, _InferenceNorm(child))
        elif isinstance(child, nn.Linear):
            setattr(module, name, _Linear([child], packs, keeps_weight=child is head))
        else:
            _replace_children(child, packs, head)


def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch packs weights of this dtype; the operators are private."""
    operators = ("_reorder_linear_weight", "_linear_pointwise")
    return dtype in (torch.float32, torch.bfloat16) and all(hasattr(torch.ops.mkldnn, name) for name in operators)


class _Linear(nn.Linear):
    """Product with the weights of one or several layers, whose outputs are concatenated."""

    def __init__(self, layers: Sequence[nn.Linear], packs: bool, keeps_weight: bool = False) -> None:
        nn.Module.__init__(self)
        first = layers[0]
        self.in_features, self.out_features = first.in_features, sum(layer.out_features for layer in layers)
        weight = first.weight.data if len(layers) == 1 else torch.cat([layer.weight.data for layer in layers])
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None  # type: ignore[arg-type, assignment]
        self._packed: Tensor | None = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS) if packs else None
        if keeps_weight:  # may be tied to the embedding
            self.weight = first.weight
        else:
            self.weight = nn.Parameter(weight if self._packed is None else self._packed, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")  # type: ignore[no-any-return]


class _InferenceNorm(nn.Module):
    """`RmsNorm` without autograd, in fewer kernels."""

    def __init__(self, norm: RmsNorm) -> None:
        super().__init__()
        self.weight, self._eps = norm.weight, torch.tensor(norm.eps)
        scale = norm.weight.data.float()
        self._scale = scale + 1.0 if isinstance(norm, OffsetRmsNorm) else scale

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._eps, norm, norm, value=1.0 / x.shape[-1]).rsqrt_()
        return (wide * inverse).mul_(self._scale).to(x.dtype)


class _FusedAttention(nn.Module):
    """`Attention` with one product for queries, keys and values."""

    def __init__(self, attention: Attention, packs: bool) -> None:
        super().__init__()
        self.layer_idx, self.head_dim, self.query_scale = attention.layer_idx, attention.head_dim, attention.query_scale
        self.n_heads, self.n_kv_heads = attention.n_heads, attention.n_kv_heads
        self.qkv_proj = _Linear([attention.q_proj, attention.k_proj, attention.v_proj], packs)
        self.o_proj = _Linear([attention.o_proj], packs)
        self.has_norms = not isinstance(attention.q_norm, nn.Identity)
        self.q_norm, self.k_norm = (
            _InferenceNorm(cast(RmsNorm, norm)) if self.has_norms else norm
            for norm in (attention.q_norm, attention.k_norm)
        )

    def forward(
        self,
        x_BTD: Tensor,
        cos_BTC: Tensor,
        sin_BTC: Tensor,
        mask_B1TS: Tensor | None,
        cu_seqlens: CuSeqlens | None,
        cache: KvCache | None,
    ) -> Tensor:
        batch, length, _ = x_BTD.shape
        heads, kv_heads = self.n_heads, self.n_kv_heads
        mixed = self.qkv_proj(x_BTD).view(batch, length, heads + 2 * kv_heads, self.head_dim)
        rotated, value = torch.split(mixed, [heads + kv_heads, kv_heads], dim=2)
        if self.has_norms:
            query, key = torch.split(rotated, [heads, kv_heads], dim=2)
            rotated = torch.cat((self.q_norm(query), self.k_norm(key)), dim=2)
        rotated, value = _rotate(rotated.transpose(1, 2), cos_BTC, sin_BTC), value.transpose(1, 2)
        query, key = torch.split(rotated, [heads, kv_heads], dim=1)
        if self.query_scale is not None:
            query = query * self.query_scale
        attend = sdpa
        if cache is not None:
            key, value = cache.update(self.layer_idx, key, value)
            attend = attend_to_cache
        out = attend(query.to(key.dtype), key, value, mask=mask_B1TS, cu_seqlens=cu_seqlens).to(x_BTD.dtype)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


def _rotate(x_BHTC: Tensor, cos_BTC: Tensor, sin_BTC: Tensor) -> Tensor:
    """`rotary.apply_rotary`."""
    half = x_BHTC.shape[-1] // 2
    cos_B1TC, sin_B1TC = cos_BTC.unsqueeze(1), sin_BTC.unsqueeze(1)
    turned = x_BHTC * cos_B1TC
    turned[..., :half].addcmul_(x_BHTC[..., half:], sin_B1TC[..., :half], value=-1)
    turned[..., half:].addcmul_(x_BHTC[..., :half], sin_B1TC[..., half:])
    return turned


class _FusedMlp(nn.Module):
    """`Mlp` with one product for gate and up."""

    def __init__(self, mlp: Mlp, packs: bool) -> None:
        super().__init__()
        self.gate_up_proj = _Linear([mlp.gate_proj, mlp.up_proj], packs)
        self.down_proj = _Linear([mlp.down_proj], packs)
        self.activation = mlp.activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(self.activation(gate) * up)  # type: ignore[no-any-return]
