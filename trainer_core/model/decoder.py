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

from trainer_core.config import Config, default_heads
from trainer_core.model import cpu
from trainer_core.model.attention import Attend, Spans, document_mask, sdpa

__all__ = [
    "Decoder", "KvCache", "Layer", "ModelConfig", "RaggedKvCache", "RmsNorm", "decoder_on", "document_mask",
    "rotary_table", "rotate",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder; every value is filled in (no zero stands for a default)."""

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
    used_vocab: int = 0  # rows that stand for tokens, the first ones; the others fill up. 0: all

    @property
    def tokens(self) -> int:
        """How many tokens there are: the first so many rows of the vocabulary."""
        return self.used_vocab or self.vocab_size

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.n_heads

    @classmethod
    def of(cls, config: Config, vocab_size: int) -> ModelConfig:
        """The shape that a run's knobs ask for, defaults filled in. The tokenizer's `vocab_size` is rounded up."""
        heads = config.n_heads or default_heads(config.hidden_dim)
        rows = -(-vocab_size // config.vocab_multiple) * config.vocab_multiple
        return cls(
            vocab_size=rows,
            used_vocab=vocab_size if rows > vocab_size else 0,
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
    """Keys and values of the tokens seen so far, for generation. Filled from the left."""

    def __init__(self, config: ModelConfig, batch: int, capacity: int, like: Tensor) -> None:
        shape = (config.n_layers, batch, config.n_kv_heads, capacity, config.head_dim)
        self.keys = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def extend(self, layer: int, key_BKTC: Tensor, value_BKTC: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new keys and values of one layer; returns all of that layer's. `advance` once per call."""
        end = self.length + key_BKTC.shape[2]
        self.keys[layer, :, :, self.length : end] = key_BKTC
        self.values[layer, :, :, self.length : end] = value_BKTC
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, tokens: int) -> None:
        self.length += tokens


class RaggedKvCache(KvCache):
    """A cache whose rows have different lengths: prompts padded on the right, then one token per row at a time.

    `length` is that of the longest row. Slots behind a row's own length must be masked.
    """

    def __init__(self, config: ModelConfig, lengths: Sequence[int], capacity: int, like: Tensor) -> None:
        super().__init__(config, len(lengths), capacity, like)
        self.keys.zero_()  # a NaN in a masked slot would still reach the output
        self.values.zero_()
        self.lengths_B = torch.tensor(lengths, device=like.device)

    def extend(self, layer: int, key_BKTC: Tensor, value_BKTC: Tensor) -> tuple[Tensor, Tensor]:
        if self.length == 0:
            return super().extend(layer, key_BKTC, value_BKTC)
        slots_BKTC = self.lengths_B.view(-1, 1, 1, 1).expand_as(key_BKTC)
        self.keys[layer].scatter_(2, slots_BKTC, key_BKTC)
        self.values[layer].scatter_(2, slots_BKTC, value_BKTC)
        end = self.length + 1
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, tokens: int) -> None:
        if self.length:
            self.lengths_B = self.lengths_B + 1
        self.length += tokens

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        self.keys, self.values, self.lengths_B = self.keys[:, rows], self.values[:, rows], self.lengths_B[rows]
        self.length = int(self.lengths_B.max())


class Linear(nn.Linear):
    """One whose weights are drawn once, by `Decoder`."""

    def reset_parameters(self) -> None:
        pass


class Embedding(nn.Embedding):
    """Likewise."""

    def reset_parameters(self) -> None:
        pass


class RmsNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019), computed in fp32 as Hugging Face does."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if cpu.suits(x):
            return cpu.rms_norm(x, self.weight, self.eps)
        return F.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def rotate(x_BHTC: Tensor, cos_BTC: Tensor, sin_BTC: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021): the first half of a head pairs with its second half."""
    if cpu.suits(x_BHTC):
        return cpu.rotate(x_BHTC, cos_BTC, sin_BTC)
    first, second = x_BHTC.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x_BHTC * cos_BTC.unsqueeze(1) + turned * sin_BTC.unsqueeze(1)


class Attention(nn.Module):
    """Causal grouped-query self-attention."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads = layer, config.n_heads, config.n_kv_heads
        self.head_dim = config.head_dim
        self.attend: Attend = sdpa
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
        spans: Spans | None,
        cache: KvCache | None,
    ) -> Tensor:
        batch, length, width = x_BTD.shape
        query = self.q_proj(x_BTD).view(batch, length, self.heads, self.head_dim)
        key = self.k_proj(x_BTD).view(batch, length, self.kv_heads, self.head_dim)
        value = self.v_proj(x_BTD).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        query = rotate(self.q_norm(query).transpose(1, 2), cos_BTC, sin_BTC)
        key = rotate(self.k_norm(key).transpose(1, 2), cos_BTC, sin_BTC)
        attend = self.attend
        if cache is not None:
            attend = sdpa  # others are chosen for whole sequences, and for the arithmetic of training
            key, value = cache.extend(self.layer, key, value)
        mixed = attend(query, key, value, mask=mask_B1TS, spans=spans)
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


class Layer(nn.Module):
    """Attention and MLP, each on a residual path behind a norm."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(config.hidden_dim, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RmsNorm(config.hidden_dim, config.norm_eps)
        self.mlp = Mlp(config)
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        spans: Spans | None,
        cache: KvCache | None,
    ) -> Tensor:
        x = x + self.drop(self.self_attn(self.input_layernorm(x), cos, sin, mask, spans, cache))
        return x + self.drop(self.mlp(self.post_attention_layernorm(x)))  # type: ignore[no-any-return]


def call_layer(layer: nn.Module, *given: Any) -> Tensor:
    """The plain way from one layer to the next."""
    return layer(*given)  # type: ignore[no-any-return]


class Backbone(nn.Module):
    """Embedding, layers, last norm: what Hugging Face calls `model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_dim)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.n_layers))
        self.norm = RmsNorm(config.hidden_dim, config.norm_eps)
        self.call: Callable[..., Tensor] = call_layer  # training may wrap it
        cos, sin = rotary_table(config)
        self.register_buffer("cos_TC", cos, persistent=False)
        self.register_buffer("sin_TC", sin, persistent=False)

    def forward(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None,
        mask_B1TS: Tensor | None,
        spans: Spans | None,
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
            x = self.call(layer, x, cos, sin, mask_B1TS, spans, cache)
        if cache is not None:
            cache.advance(ids_BT.shape[1])
        return self.norm(x)  # type: ignore[no-any-return]


def rotary_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (max_seq_len, C) in fp32, the frequencies written twice (half-rotation)."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
    angles = torch.outer(torch.arange(config.max_seq_len, dtype=torch.float32, device="cpu"), config.rope_theta**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class Decoder(nn.Module):
    """A causal language model. `forward` gives logits; weights are drawn from torch's global generator."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Linear(config.hidden_dim, config.vocab_size, bias=False)
        self.apply(_draw_weights)
        self._shrink_residual_ends()
        if config.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TS: Tensor | None = None,
        spans: Spans | None = None,
        cache: KvCache | None = None,
    ) -> Tensor:
        """Logits (B, T, V). With a `cache`, `ids_BT` continue what it holds; a `mask` (True: may look)
        then spans all S keys. Without a mask attention is causal, which with a filled cache is right
        for one token at a time. `spans` say the same as a mask that keeps documents apart."""
        hidden = self.hidden(ids_BT, positions_BT=positions_BT, mask_B1TS=mask_B1TS, spans=spans, cache=cache)
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def hidden(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TS: Tensor | None = None,
        spans: Spans | None = None,
        cache: KvCache | None = None,
    ) -> Tensor:
        """What the head makes logits of (B, T, D)."""
        return self.model(ids_BT, positions_BT, mask_B1TS, spans, cache)  # type: ignore[no-any-return]

    def set_attention(self, attend: Attend) -> None:
        """How all layers compute attention over whole sequences; with a cache they keep to the reference."""
        for layer in self.model.layers:
            layer.self_attn.attend = attend  # type: ignore[union-attr]

    def _shrink_residual_ends(self) -> None:
        """Matrices that write to the residual path start smaller the deeper the model (GPT-2)."""
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                _draw(weight, std=0.02 / (2 * self.config.n_layers) ** 0.5)

    def count_parameters(self) -> int:
        """Trainable weights; a tied head counts once."""
        return sum(weight.numel() for weight in self.parameters())


def _draw_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        _draw(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


@torch.no_grad()
def _draw(weight: Tensor, std: float) -> None:
    """In system memory whatever it lies on, so that a seed gives the same model everywhere."""
    if weight.device.type == "cpu":
        weight.normal_(std=std)
    elif not weight.is_meta:
        weight.copy_(torch.empty(weight.shape, device="cpu").normal_(std=std))


def decoder_on(device: torch.device, config: ModelConfig) -> Decoder:
    """A model with its weights drawn on a device. Of system memory it takes no more than its largest matrix: where
    several ranks begin at once, as many whole models would be too much for a small machine."""
    with device:
        return Decoder(config).to(device)
