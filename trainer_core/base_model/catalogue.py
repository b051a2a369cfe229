"""Catalogue of models to fine-tune: `presets/models.yaml`, with estimates of memory and training time.

No torch, no Qt.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from trainer_core import presets
from trainer_core.messages import Language

PATH: Final = presets.FOLDER / presets.MODELS_FILE

NF4_BYTES: Final = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Of a weight: 4 bits, an 8-bit scale for 64 weights, an fp32 scale for 256 of these."""
Method = Literal["full", "lora", "qlora"]
_RANK: Final = 16
_TOKENS: Final = 2048
_CHUNK_BYTES: Final = 256 * 2**20  # fp32 logits that the loss holds at once on a GPU
_RESERVE: Final = 2**30


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Architecture, with the keys of `config.json`."""

    model_type: Literal["llama", "mistral", "qwen2", "qwen3", "gemma3_text"]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool

    def linear_layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each linear layer of a decoder layer."""
        hidden, mlp = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        attention = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
        return [*attention, (hidden, mlp), (hidden, mlp), (mlp, hidden)]

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Names and shapes of the weights of linear layers and embeddings, as in a checkpoint."""
        names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        for layer in range(self.num_hidden_layers):
            for name, (inputs, outputs) in zip(names, self.linear_layers(), strict=True):
                part = "mlp" if name in names[4:] else "self_attn"
                yield f"model.layers.{layer}.{part}.{name}.weight", (outputs, inputs)
        embedding = (self.vocab_size, self.hidden_size)
        yield "model.embed_tokens.weight", embedding
        if not self.tie_word_embeddings:
            yield "lm_head.weight", embedding


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checkpoint on the Hugging Face hub. The fields are explained in `presets/models.yaml`."""

    id: str
    purpose: dict[Language, str]
    license: str
    context: int
    parameters: int
    download_bytes: int
    shape: Shape
    source: str
    modelscope: str | None = None  # id there, where known
    instruct: bool = False  # else a base model
    gated: bool = False
    languages: tuple[str, ...] = ()  # empty: not stated
    language_count: int = 0

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    def format_languages(self, limit: int) -> str:
        """`zh en +27`: the first `limit` languages and the number of others; empty: not stated."""
        shown = self.languages[:limit]
        others = max(self.language_count, len(self.languages)) - len(shown)
        return " ".join([*shown, f"+{others}"] if others else shown)


def load(path: Path = PATH) -> list[CatalogueModel]:
    """Return the models, smallest first."""
    groups: list[dict[str, Any]] = presets.read_mapping(path)["models"]
    entries = [{**group, **checkpoint} for group in groups for checkpoint in group.pop("checkpoints")]
    return sorted(msgspec.convert(entries, list[CatalogueModel]), key=lambda model: model.parameters)


def estimate_memory(shape: Shape, parameters: int, method: Method, tokens: int = _TOKENS, on_gpu: bool = True) -> int:
    """Bytes of memory in bf16 arithmetic, with one sequence of `tokens`. LoRA and QLoRA: rank 16 on all linear layers.

    The sum of:
    - weights: with full tuning 4 bytes x parameters (fp32), with LoRA 2 (bf16); on a CPU, which may compute in fp32, 4.
      With QLoRA `NF4_BYTES` x weights of linear layers, and this much for the largest of these (in use) and the others,
      without an untied input embedding, which a GPU reads from system memory
    - gradients and Adam's two moments: with full tuning, 12 bytes x parameters
    - adapter: 16 bytes x rank x (inputs + outputs) of each linear layer: fp32 weights, gradients and Adam's two moments
    - activation checkpointing: 2 bytes x tokens x hidden size for each layer, and all activations of the layer that is
      recomputed: inputs, outputs and gradients of its linear layers, 4 bytes x tokens x (inputs + outputs)
    - logits of a chunk of the loss: 8 bytes x rows x vocabulary (bf16 and fp32 logits, bf16 gradients). A chunk has 256
      MiB of fp32 logits, as `train.engine.select` chooses on a GPU
    - 1 GiB for the CUDA context, kernels and fragmentation
    """
    widths = sum(inputs + outputs for inputs, outputs in shape.linear_layers())
    dense = 4 if method == "full" or not on_gpu else 2
    weights = dense * parameters
    if method == "qlora":
        layers = [inputs * outputs for inputs, outputs in shape.linear_layers()]
        quantized = sum(layers) * shape.num_hidden_layers
        offloaded = shape.vocab_size * shape.hidden_size if on_gpu and not shape.tie_word_embeddings else 0
        weights = int(NF4_BYTES * quantized) + dense * (max(layers) + parameters - quantized - offloaded)
    trained = 12 * parameters if method == "full" else 16 * _RANK * widths * shape.num_hidden_layers
    activations = tokens * (2 * shape.hidden_size * shape.num_hidden_layers + 4 * widths)
    rows = min(tokens, _CHUNK_BYTES // (4 * shape.vocab_size))
    return weights + trained + activations + 8 * rows * shape.vocab_size + _RESERVE


def estimate_seconds(shape: Shape, parameters: int, full: bool, tokens: float, flops_per_s: float) -> float:
    """Seconds of forward and backward. `full`: all weights are trained; otherwise an adapter, which is not counted.

    FLOPs per token: 6 for each weight that multiplies, 4 if it is frozen, as in `train.flops`; without attention.
    """
    embedding = 0 if shape.tie_word_embeddings else shape.vocab_size * shape.hidden_size
    return (6 if full else 4) * (parameters - embedding) * tokens / flops_per_s
