"""One decoder for the Llama and Qwen families.

Pre-norm with RMSNorm, rotary positions in the Hugging Face half-rotation layout, grouped-query
attention through `scaled_dot_product_attention`, SwiGLU; optional bias on q, k, v (Qwen2) and
RMSNorm on queries and keys (Qwen3); tied or untied head. Modules carry the names that Hugging Face
gives them, so a state dict needs no translation.

Shapes: B batch, T sequence, S keys seen (cache included), D width, H heads, K key/value heads,
C head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer_core.config import Config, default_n_heads
from trainer_core.models import cpu_ops
from trainer_core.models.attention import AttentionFunction, CuSeqlens, sdpa


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Architecture of a decoder; every value is explicit (zero is no default)."""

    vocab_size: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    mlp_dim: int
    max_seq_len: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dropout: float = 0.0
    qkv_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = True
    unpadded_vocab_size: int = 0  # rows that are tokens, the first ones; the others are padding. 0: all

    @property
    def n_tokens(self) -> int:
        """Number of tokens: the first rows of the vocabulary."""
        return self.unpadded_vocab_size or self.vocab_size

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.n_heads

    @classmethod
    def from_config(cls, config: Config, vocab_size: int) -> ModelConfig:
        """The architecture for a run's knobs, with defaults resolved. The tokenizer's `vocab_size` is rounded up."""
        heads = config.n_heads or default_n_heads(config.hidden_dim)
        rows = -(-vocab_size // config.vocab_multiple) * config.vocab_multiple
        return cls(
            vocab_size=rows,
            unpadded_vocab_size=vocab_size if rows > vocab_size else 0,
            hidden_dim=config.hidden_dim,
            n_layers=config.n_layers,
            n_heads=heads,
            n_kv_heads=config.n_kv_heads or heads,
            mlp_dim=config.mlp_dim or -(-(config.hidden_dim * 8 // 3) // 64) * 64,
            max_seq_len=config.max_seq_len,
            rope_theta=config.rope_theta,
            norm_eps=config.norm_eps,
            dropout=config.dropout,
            qkv_bias=config.qkv_bias,
            qk_norm=config.qk_norm,
            tie_embeddings=config.tie_embeddings,
        )


class KvCache:
    """Key/value cache for generation, filled from the left."""

    def __init__(self, config: ModelConfig, batch: int, capacity: int, like: Tensor) -> None:
        shape = (config.n_layers, batch, config.n_kv_heads, capacity, config.head_dim)
        self.keys = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def update(self, layer_idx: int, key_BKTC: Tensor, value_BKTC: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values of one layer; returns all of that layer's. Call `advance` once per forward pass."""
        end = self.length + key_BKTC.shape[2]
        self.keys[layer_idx, :, :, self.length : end] = key_BKTC
        self.values[layer_idx, :, :, self.length : end] = value_BKTC
        return self.keys[layer_idx, :, :, :end], self.values[layer_idx, :, :, :end]

    def advance(self, tokens: int) -> None:
        self.length += tokens


class RaggedKvCache(KvCache):
    """Key/value cache of rows with different lengths: prompts padded on the right, then one token per row at a time.

    `length` is that of the longest row. Mask slots behind a row's own length.
    """

    def __init__(self, config: ModelConfig, lengths: Sequence[int], capacity: int, like: Tensor) -> None:
        super().__init__(config, len(lengths), capacity, like)
        self.keys.zero_()  # a NaN in a masked slot would still reach the output
        self.values.zero_()
        self.lengths_B = torch.tensor(lengths, device=like.device)

    def update(self, layer_idx: int, key_BKTC: Tensor, value_BKTC: Tensor) -> tuple[Tensor, Tensor]:
        if self.length == 0:
            return super().update(layer_idx, key_BKTC, value_BKTC)
        slots_BKTC = self.lengths_B.view(-1, 1, 1, 1).expand_as(key_BKTC)
        self.keys[layer_idx].scatter_(2, slots_BKTC, key_BKTC)
        self.values[layer_idx].scatter_(2, slots_BKTC, value_BKTC)
        end = self.length + 1
        return self.keys[layer_idx, :, :, :end], self.values[layer_idx, :, :, :end]

    def advance(self, tokens: int) -> None:
        if self.length:
            self.lengths_B = self.lengths_B + 1
        self.length += tokens

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.keys, self.values, self.lengths_B = self.keys[:, rows], self.values[:, rows], self.lengths_B[rows]
        self.length = int(self.lengths_B.max())


class Linear(nn.Linear):
    """Without initialization: `Decoder` draws the weights once."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """Without initialization, see `Linear`."""

    def reset_parameters(self) -> None:
        pass


class RmsNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019), computed in fp32 as in Hugging Face."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if cpu_ops.is_supported(x):
            return cpu_ops.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def apply_rotary(x_BHTC: Tensor, cos_BTC: Tensor, sin_BTC: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021): the first half of a head pairs with its second half."""
    if cpu_ops.is_supported(x_BHTC):
        return cpu_ops.apply_rotary(x_BHTC, cos_BTC, sin_BTC)
    first, second = x_BHTC.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x_BHTC * cos_BTC.unsqueeze(1) + turned * sin_BTC.unsqueeze(1)


class Attention(nn.Module):
    """Causal grouped-query self-attention."""

    def __init__(self, config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        self.layer_idx, self.n_heads, self.n_kv_heads = layer_idx, config.n_heads, config.n_kv_heads
        self.head_dim = config.head_dim
        self.attend: AttentionFunction = sdpa
        kv_width = config.n_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_dim, config.hidden_dim, bias=config.qkv_bias)
        self.k_proj = Linear(config.hidden_dim, kv_width, bias=config.qkv_bias)
        self.v_proj = Linear(config.hidden_dim, kv_width, bias=config.qkv_bias)
        self.o_proj = Linear(config.hidden_dim, config.hidden_dim, bias=False)
        if config.qk_norm:
            self.q_norm: nn.Module = RmsNorm(config.head_dim, config.norm_eps)
            self.k_norm: nn.Module = RmsNorm(config.head_dim, config.norm_eps)
        else:
            self.q_norm = self.k_norm = nn.Identity()

    def forward(
        self,
        x_BTD: Tensor,
        cos_BTC: Tensor,
        sin_BTC: Tensor,
        mask_B1TS: Tensor | None,
        cu_seqlens: CuSeqlens | None,
        cache: KvCache | None,
    ) -> Tensor:
        batch, length, width = x_BTD.shape
        query = self.q_proj(x_BTD).view(batch, length, self.n_heads, self.head_dim)
        key = self.k_proj(x_BTD).view(batch, length, self.n_kv_heads, self.head_dim)
        value = self.v_proj(x_BTD).view(batch, length, self.n_kv_heads, self.head_dim).transpose(1, 2)
        query = apply_rotary(self.q_norm(query).transpose(1, 2), cos_BTC, sin_BTC)
        key = apply_rotary(self.k_norm(key).transpose(1, 2), cos_BTC, sin_BTC)
        attend = self.attend
        if cache is not None:
            attend = sdpa  # other backends apply to whole sequences and training precision
            key, value = cache.update(self.layer_idx, key, value)
        mixed = attend(query, key, value, mask=mask_B1TS, cu_seqlens=cu_seqlens)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_dim, config.mlp_dim, bias=False)
        self.up_proj = Linear(config.hidden_dim, config.mlp_dim, bias=False)
        self.down_proj = Linear(config.mlp_dim, config.hidden_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention and MLP, each on a pre-norm residual path."""

    def __init__(self, config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_dim, config.norm_eps)
        self.self_attn = Attention(config, layer_idx)
        self.post_attention_layernorm = RmsNorm(config.hidden_dim, config.norm_eps)
        self.mlp = Mlp(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        cu_seqlens: CuSeqlens | None,
        cache: KvCache | None,
    ) -> Tensor:
        x = x + self.dropout(self.self_attn(self.input_layernorm(x), cos, sin, mask, cu_seqlens, cache))
        return x + self.dropout(self.mlp(self.post_attention_layernorm(x)))  # type: ignore[no-any-return]


def call_layer(layer: nn.Module, *given: Any) -> Tensor:
    """Calls a layer without wrapping."""
    return layer(*given)  # type: ignore[no-any-return]


class Backbone(nn.Module):
    """Embedding, layers, final norm: Hugging Face's `model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_dim)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.n_layers))
        self.norm = RmsNorm(config.hidden_dim, config.norm_eps)
        self.layer_call: Callable[..., Tensor] = call_layer  # training may wrap it
        cos, sin = rotary_table(config)
        self.register_buffer("cos_TC", cos, persistent=False)
        self.register_buffer("sin_TC", sin, persistent=False)

    def forward(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None,
        mask_B1TS: Tensor | None,
        cu_seqlens: CuSeqlens | None,
        cache: KvCache | None,
    ) -> Tensor:
        x = self.embed_tokens(ids_BT)
        if positions_BT is None:
            start = cache.length if cache is not None else 0
            span = slice(start, start + ids_BT.shape[1])
            cos, sin = self.cos_TC[span].unsqueeze(0), self.sin_TC[span].unsqueeze(0)  # type: ignore[index]
        else:
            cos, sin = self.cos_TC[positions_BT], self.sin_TC[positions_BT]  # type: ignore[index]
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for layer in self.layers:
            x = self.layer_call(layer, x, cos, sin, mask_B1TS, cu_seqlens, cache)
        if cache is not None:
            cache.advance(ids_BT.shape[1])
        return self.norm(x)  # type: ignore[no-any-return]


def rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (max_seq_len, C) in fp32, frequencies repeated (half-rotation)."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
    angles = torch.outer(torch.arange(config.max_seq_len, dtype=torch.float32, device="cpu"), config.rope_theta**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class Decoder(nn.Module):
    """A causal language model. `forward` returns logits; weights are drawn from torch's global generator."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Linear(config.hidden_dim, config.vocab_size, bias=False)
        self.apply(_init_weights)
        self._scale_residual_projections()
        if config.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TS: Tensor | None = None,
        cu_seqlens: CuSeqlens | None = None,
        cache: KvCache | None = None,
    ) -> Tensor:
        """Logits (B, T, V). With a `cache`, `ids_BT` continue its content; a `mask` (True: attend) then covers all S
        keys. Without a mask attention is causal, which with a filled cache is correct for one token at a time.
        `cu_seqlens` are equivalent to a mask that separates documents.
        """
        hidden = self.forward_hidden(
            ids_BT, positions_BT=positions_BT, mask_B1TS=mask_B1TS, cu_seqlens=cu_seqlens, cache=cache
        )
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def forward_hidden(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TS: Tensor | None = None,
        cu_seqlens: CuSeqlens | None = None,
        cache: KvCache | None = None,
    ) -> Tensor:
        """Hidden states before the head (B, T, D)."""
        return self.model(ids_BT, positions_BT, mask_B1TS, cu_seqlens, cache)  # type: ignore[no-any-return]

    def set_attention(self, attend: AttentionFunction) -> None:
        """Set the attention of all layers over whole sequences; with a cache they use the reference."""
        for layer in self.model.layers:
            layer.self_attn.attend = attend  # type: ignore[union-attr]

    def _scale_residual_projections(self) -> None:
        """Scale the initial matrices that write to the residual path down with depth (GPT-2)."""
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                _init_normal(weight, std=0.02 / (2 * self.config.n_layers) ** 0.5)

    def count_parameters(self) -> int:
        """Trainable weights; a tied head counts once."""
        return sum(weight.numel() for weight in self.parameters())


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        _init_normal(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


@torch.no_grad()
def _init_normal(weight: Tensor, std: float) -> None:
    """Draw on the host for any device, so that a seed gives the same model everywhere."""
    if weight.device.type == "cpu":
        weight.normal_(std=std)
    elif not weight.is_meta:
        weight.copy_(torch.empty(weight.shape, device="cpu").normal_(std=std))


def build_decoder(device: torch.device, config: ModelConfig) -> Decoder:
    """Build a model with initialized weights on a device. Host memory is at most that of its largest matrix, because
    several ranks may start at once on a small machine.
    """
    with device:
        return Decoder(config).to(device)
