"""Architecture of a model, as nested dataclasses of plain values. Imports no framework.

`dataclasses.asdict` and `msgspec.convert` translate to and from JSON values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]  # `model_type` of `config.json`
Activation = Literal["silu", "gelu_pytorch_tanh"]  # names of Hugging Face


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Grouped-query attention."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    query_scalar: int | None = None  # scores are divided by its square root; None: `head_dim`
    sliding_window: int | None = None  # positions that a layer of `sliding_layers` attends to, its own included
    sliding_layers: tuple[int, ...] = ()  # their indices

    def __post_init__(self) -> None:
        if self.sliding_layers and self.sliding_window is None:
            raise ValueError("sliding_layers without sliding_window")


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """Gated MLP."""

    dim: int
    bias: bool = False
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormConfig:
    """RMSNorm."""

    eps: float = 1e-5
    offset: bool = False  # weights are stored as w and applied as 1 + w
    sandwich: bool = False  # also normalize the output of attention and MLP


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Frequencies of rotary positions beyond the length of pretraining."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_positions: int = 0  # length of pretraining; not used by `linear`
    low_freq_factor: float = 1.0  # of `llama3`, as the next
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # of `yarn`, as all that follow
    beta_slow: float = 1.0
    attention_factor: float = 1.0  # of cosine and sine
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary positions."""

    theta: float = 10_000.0
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelConfig:
    """What is known of any model."""

    vocab_size: int
    hidden_dim: int
    n_layers: int
    tie_embeddings: bool = True
    max_seq_len: int  # positions that this process uses: the length of the rotary table
    max_positions: int  # positions that the model supports, `max_position_embeddings` of `config.json`
    unpadded_vocab_size: int = 0  # rows that are tokens, the first ones; the others are padding. 0: all
    dropout: float = 0.0

    @property
    def n_tokens(self) -> int:
        """Number of tokens: the first rows of the vocabulary."""
        return self.unpadded_vocab_size or self.vocab_size

    def with_vocab_size(self, rows: int) -> Self:
        """The same architecture with another vocabulary."""
        return replace(self, vocab_size=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(LanguageModelConfig):
    """Architecture of our decoder; every value is explicit."""

    family: Family
    attention: AttentionConfig
    mlp: MlpConfig
    norm: NormConfig
    rope: RopeConfig
    local_rope: RopeConfig | None = None  # of the layers with a sliding window; None: `rope`
    embedding_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig(LanguageModelConfig):
    """Architecture that transformers computes."""

    values: dict[str, Any]  # of `config.json`, without those that describe a tokenizer or a file

    def with_vocab_size(self, rows: int) -> Self:
        return replace(self, vocab_size=rows, values={**self.values, "vocab_size": rows})
