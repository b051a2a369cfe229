"""One decoder for the Llama, Mistral, Qwen and Gemma 3 families.

Pre-norm with RMSNorm, rotary positions, grouped-query attention, gated MLP; all else is in `ModelConfig`. Modules have
the names that Hugging Face gives them, so a state dict needs no translation.

Shapes: B batch, T sequence, S keys seen (cache included), D width, H heads, K key/value heads, C head width, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer_core.models import cpu_ops
from trainer_core.models.attention import (
    AttentionFunction,
    CuSeqlens,
    additive_mask,
    attend_to_cache,
    mask_from_cu_seqlens,
    sdpa,
    sliding_window_mask,
)
from trainer_core.models.kv_cache import KvCache
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import Activation, ModelConfig, NormConfig, RopeConfig
from trainer_core.models.rotary import apply_rotary, rotary_table
from trainer_core.models.sharding import copy_whole, is_sharded

_ACTIVATIONS: Final[dict[Activation, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class Linear(nn.Linear):
    """By oneDNN on a CPU. Without initialization: `Decoder` draws the weights once."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return cpu_ops.linear(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    """Without initialization, see `Linear`."""

    def reset_parameters(self) -> None:
        pass


class RmsNorm(nn.Module):
    """Root mean square norm (Zhang and Sennrich 2019), computed in fp32 as in Hugging Face."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps
        self.initialize()

    def initialize(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return _rms_norm(x, self.weight, self.eps)


class OffsetRmsNorm(RmsNorm):
    """Applies its weights w as 1 + w (Gemma)."""

    def initialize(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return _rms_norm(x, self.weight.float() + 1.0, self.eps)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if cpu_ops.is_supported(x):
        return cpu_ops.rms_norm(x, weight, eps)
    return F.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def _build_norm(dim: int, config: NormConfig) -> RmsNorm:
    return (OffsetRmsNorm if config.offset else RmsNorm)(dim, config.eps)


class Attention(nn.Module):
    """Causal grouped-query self-attention."""

    def __init__(self, config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        heads = config.attention
        self.layer_idx, self.n_heads, self.n_kv_heads = layer_idx, heads.n_heads, heads.n_kv_heads
        self.head_dim = heads.head_dim
        self.attend: AttentionFunction = sdpa
        width, kv_width = heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim
        self.q_proj = Linear(config.hidden_dim, width, bias=heads.qkv_bias)
        self.k_proj = Linear(config.hidden_dim, kv_width, bias=heads.qkv_bias)
        self.v_proj = Linear(config.hidden_dim, kv_width, bias=heads.qkv_bias)
        self.o_proj = Linear(width, config.hidden_dim, bias=heads.output_bias)
        self.q_norm: nn.Module = _build_norm(heads.head_dim, config.norm) if heads.qk_norm else nn.Identity()
        self.k_norm: nn.Module = _build_norm(heads.head_dim, config.norm) if heads.qk_norm else nn.Identity()
        # Attention divides scores by the square root of `head_dim`.
        scale = 1.0 if heads.query_scalar is None else (heads.head_dim / heads.query_scalar) ** 0.5
        self.query_scale = None if scale == 1.0 else scale

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
        query = self.q_proj(x_BTD).view(batch, length, self.n_heads, self.head_dim)
        key = self.k_proj(x_BTD).view(batch, length, self.n_kv_heads, self.head_dim)
        value = self.v_proj(x_BTD).view(batch, length, self.n_kv_heads, self.head_dim).transpose(1, 2)
        query = apply_rotary(self.q_norm(query).transpose(1, 2), cos_BTC, sin_BTC)
        key = apply_rotary(self.k_norm(key).transpose(1, 2), cos_BTC, sin_BTC)
        if self.query_scale is not None:
            query = query * self.query_scale
        if cache is None:
            mixed = self.attend(query, key, value, mask=mask_B1TS, cu_seqlens=cu_seqlens)
        else:  # other backends apply to whole sequences and training precision
            key, value = cache.update(self.layer_idx, key, value)
            query = query.to(key.dtype)
            mixed = attend_to_cache(query, key, value, mask=mask_B1TS, cu_seqlens=cu_seqlens).to(x_BTD.dtype)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))  # type: ignore[no-any-return]


class Mlp(nn.Module):
    """Gated MLP (Shazeer 2020): SwiGLU, or GeGLU in Gemma."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        mlp = config.mlp
        self.gate_proj = Linear(config.hidden_dim, mlp.dim, bias=mlp.bias)
        self.up_proj = Linear(config.hidden_dim, mlp.dim, bias=mlp.bias)
        self.down_proj = Linear(mlp.dim, config.hidden_dim, bias=mlp.bias)
        self.activation = _ACTIVATIONS[mlp.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention and MLP, each on a pre-norm residual path."""

    def __init__(self, config: ModelConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = _build_norm(config.hidden_dim, config.norm)
        self.self_attn = Attention(config, layer_idx)
        self.post_attention_layernorm = _build_norm(config.hidden_dim, config.norm)
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


class SandwichDecoderLayer(DecoderLayer):
    """Also normalizes the output of attention and MLP (Gemma 3)."""

    def __init__(self, config: ModelConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.pre_feedforward_layernorm = _build_norm(config.hidden_dim, config.norm)
        self.post_feedforward_layernorm = _build_norm(config.hidden_dim, config.norm)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        cu_seqlens: CuSeqlens | None,
        cache: KvCache | None,
    ) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x), cos, sin, mask, cu_seqlens, cache)
        x = x + self.dropout(self.post_attention_layernorm(mixed))
        out = self.mlp(self.pre_feedforward_layernorm(x))
        return x + self.dropout(self.post_feedforward_layernorm(out))  # type: ignore[no-any-return]


def _checkpointed(options: dict[str, Any], layer: nn.Module, *inputs: Any) -> Tensor:
    """Call a layer and recompute its activations in backward. `options`: of torch's `checkpoint`."""
    if not torch.is_grad_enabled():
        return layer(*inputs)  # type: ignore[no-any-return]
    return checkpoint(layer, *inputs, use_reentrant=False, **options)  # type: ignore[no-any-return]


class Backbone(nn.Module):
    """Embedding, layers, final norm: Hugging Face's `model`."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_dim)
        layer_class = SandwichDecoderLayer if config.norm.sandwich else DecoderLayer
        self.layers = nn.ModuleList(layer_class(config, index) for index in range(config.n_layers))
        self.norm = _build_norm(config.hidden_dim, config.norm)
        self.checkpointing: tuple[int, dict[str, Any]] = (0, {})  # arguments of `checkpoint_layers`
        self._slides = tuple(index in config.attention.sliding_layers for index in range(config.n_layers))
        self._add_rotary_table("", config.rope)
        if config.local_rope is not None:
            self._add_rotary_table("local_", config.local_rope)
        if config.embedding_scale != 1.0:  # rounded to the dtype of the model, as in transformers
            scale = torch.tensor(config.embedding_scale, dtype=torch.float32, device="cpu")
            self.register_buffer("embedding_scale", scale, persistent=False)

    def _add_rotary_table(self, prefix: str, rope: RopeConfig) -> None:
        cos, sin = rotary_table(rope, self.config.attention.head_dim, self.config.max_seq_len)
        self.register_buffer(f"{prefix}cos_TC", cos, persistent=False)
        self.register_buffer(f"{prefix}sin_TC", sin, persistent=False)

    def forward(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None,
        mask_B1TS: Tensor | None,
        cu_seqlens: CuSeqlens | None,
        cache: KvCache | None,
    ) -> Tensor:
        x = self.embed_tokens(ids_BT)
        if self.config.embedding_scale != 1.0:
            x = x * self.embedding_scale.to(x.dtype)
        start, length = cache.length if cache is not None else 0, ids_BT.shape[1]
        positions = slice(start, start + length) if positions_BT is None else positions_BT
        rotary, masks = self._rotary("", positions, x.dtype), (mask_B1TS, cu_seqlens)
        inputs = local = (*rotary, *_masks_for(cache, *masks))
        if self.config.attention.sliding_layers:
            masks = self._window(ids_BT, positions_BT, mask_B1TS, cu_seqlens, cache)
            if self.config.local_rope is not None:
                rotary = self._rotary("local_", positions, x.dtype)
            local = (*rotary, *_masks_for(cache, *masks))
        count, options = self.checkpointing
        for index, (layer, slides) in enumerate(zip(self.layers, self._slides, strict=True)):
            call = partial(_checkpointed, options, layer) if index < count else layer
            x = call(x, *(local if slides else inputs), cache)
        if cache is not None:
            cache.advance(length)
        return self.norm(x)  # type: ignore[no-any-return]

    def _rotary(self, prefix: str, positions: slice | Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine (1 or B, T, C)."""
        cos, sin = getattr(self, f"{prefix}cos_TC")[positions], getattr(self, f"{prefix}sin_TC")[positions]
        if isinstance(positions, slice):
            cos, sin = cos.unsqueeze(0), sin.unsqueeze(0)
        return cos.to(dtype), sin.to(dtype)

    def _window(
        self,
        ids_BT: Tensor,
        positions_BT: Tensor | None,
        mask_B1TS: Tensor | None,
        cu_seqlens: CuSeqlens | None,
        cache: KvCache | None,
    ) -> tuple[Tensor | None, CuSeqlens | None]:
        """Mask and documents of layers with a sliding window: as given where the window covers all keys.

        Compiled code decides by the longest sequence, so that the width of a batch stays dynamic.
        """
        batch, length = ids_BT.shape
        window, start = self.config.attention.sliding_window, cache.length if cache is not None else 0
        longest = self.config.max_seq_len if torch.compiler.is_compiling() else start + length
        if cu_seqlens is not None:
            longest = min(longest, cu_seqlens.max_seqlen)
        if window is None or longest <= window:
            return mask_B1TS, cu_seqlens
        indices_BT = positions_BT  # in a cache, a row's tokens are at the index of their position
        if indices_BT is None or cache is None:
            indices_BT = torch.arange(start, start + length, device=ids_BT.device).unsqueeze(0)
        near = sliding_window_mask(indices_BT, start + length, window)
        if mask_B1TS is None and cu_seqlens is not None:
            mask_B1TS = mask_from_cu_seqlens(cu_seqlens, batch, length)
        return (near if mask_B1TS is None else near & mask_B1TS), None


def _masks_for(
    cache: KvCache | None, mask: Tensor | None, cu_seqlens: CuSeqlens | None
) -> tuple[Tensor | None, CuSeqlens | None]:
    """Masks as attention to a cache takes them, converted once for all layers."""
    return mask if cache is None or mask is None else additive_mask(mask, cache.keys.dtype), cu_seqlens


class Decoder(LanguageModel):
    """A language model of our own.

    Weights are drawn from torch's global generator if `initialize`, otherwise undefined.
    """

    config: ModelConfig
    has_plain_head = True

    def __init__(self, config: ModelConfig, initialize: bool = True) -> None:
        super().__init__()
        self.config = config
        self.model = Backbone(config)
        self.lm_head = Linear(config.hidden_dim, config.vocab_size, bias=False)
        if initialize:
            self.initialize()
        if config.tie_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def backbone(self) -> Backbone:
        return self.model

    @property
    def layers(self) -> list[nn.Module]:
        return list(self.model.layers)

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.embed_tokens

    @property
    def head(self) -> nn.Linear:
        return self.lm_head

    def forward_hidden(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TS: Tensor | None = None,
        cu_seqlens: CuSeqlens | None = None,
        cache: KvCache | None = None,
    ) -> Tensor:
        """Hidden states before the head (B, T, D).

        With a `cache`, `ids_BT` continue its content; a `mask` (True: attend) then covers all S keys. Without a mask
        attention is causal, which with a filled cache is correct for one token at a time. `cu_seqlens` are equivalent
        to a mask that separates documents.
        """
        return self.model(ids_BT, positions_BT, mask_B1TS, cu_seqlens, cache)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)  # type: ignore[no-any-return]

    def new_cache(self, capacity: int) -> KvCache:
        return KvCache(self.config, 1, capacity, self.lm_head.weight)

    def set_attention(self, attend: AttentionFunction) -> None:
        """Set the attention of all layers over whole sequences; with a cache they use the reference."""
        for layer in self.model.layers:
            layer.self_attn.attend = attend  # type: ignore[union-attr]

    def checkpoint_layers(self, count: int, options: dict[str, Any]) -> None:
        self.model.checkpointing = (count, options)

    def initialize(self) -> None:
        """Draw all weights. Matrices that write to the residual path are scaled down with depth (GPT-2)."""
        self.model.apply(_init_weights)
        head = self.lm_head.weight
        if head is self.model.embed_tokens.weight:  # tied already: draw what `__init__` draws before it ties them
            torch.empty(head.shape, device="cpu").normal_()
        else:
            _init_weights(self.lm_head)
        for name, weight in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                _init_normal(weight, std=0.02 / (2 * self.config.n_layers) ** 0.5)


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        _init_normal(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, RmsNorm):
        module.initialize()


@torch.no_grad()
def _init_normal(weight: Tensor, std: float) -> None:
    """Draw on the host for any device, so that a seed gives the same model everywhere."""
    if weight.device.type == "cpu" and not is_sharded(weight):
        weight.normal_(std=std)
    elif not weight.is_meta:
        copy_whole(torch.empty(weight.shape, device="cpu").normal_(std=std), weight)


def build_decoder(
    device: torch.device, config: ModelConfig, initialize: bool = True, dtype: torch.dtype = torch.float32
) -> Decoder:
    """Build a model on a device, with initialized or with undefined weights in `dtype`. On `meta`, buffers have values.

    Host memory is at most that of its largest matrix, because several ranks may start at once on a small machine.
    """
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            decoder = Decoder(config, initialize)
        return decoder if device.type == "meta" else decoder.to(device)
    finally:
        torch.set_default_dtype(previous)
