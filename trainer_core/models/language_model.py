"""What training and generation need of a model, whoever computes it.

Shapes: B batch, T sequence, S keys seen (cache included), D width, V vocabulary.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Protocol

from torch import Tensor, nn

from trainer_core.models.attention import AttentionFunction, CuSeqlens
from trainer_core.models.model_config import LanguageModelConfig
from trainer_core.models.sharding import whole_shape


class Cache(Protocol):
    """Keys and values of earlier positions, for generation."""

    @property
    def length(self) -> int:
        """Positions in the cache."""


class LanguageModel(nn.Module):
    """A causal language model. `forward` returns logits."""

    config: LanguageModelConfig
    linear_types: tuple[type[nn.Module], ...] = (nn.Linear,)
    """Modules that multiply by a weight matrix, as adapters target them."""

    @property
    @abstractmethod
    def backbone(self) -> nn.Module:
        """The model without its head."""

    @property
    @abstractmethod
    def layers(self) -> list[nn.Module]:
        """The layers of the backbone, in their order."""

    @property
    @abstractmethod
    def embedding(self) -> nn.Embedding:
        """The input embedding."""

    @property
    @abstractmethod
    def head(self) -> nn.Linear:
        """The output layer."""

    @property
    @abstractmethod
    def has_plain_head(self) -> bool:
        """Whether logits are the product of hidden states and `head.weight`, as the loss in chunks computes them."""

    @abstractmethod
    def forward_hidden(
        self,
        ids_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        mask_B1TS: Tensor | None = None,
        cu_seqlens: CuSeqlens | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Hidden states before the head (B, T, D). With a `cache` of `new_cache`, `ids_BT` continue its content."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D)."""

    @abstractmethod
    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for one sequence of up to `capacity` positions."""

    @abstractmethod
    def set_attention(self, attend: AttentionFunction) -> None:
        """Set the attention of all layers over whole sequences, where the model has a choice."""

    @abstractmethod
    def checkpoint_layers(self, count: int, options: dict[str, Any]) -> None:
        """Recompute the activations of the first `count` layers in backward, with `options` of torch's `checkpoint`."""

    def forward(self, ids_BT: Tensor, **inputs: Any) -> Tensor:
        """Logits (B, T, V). `inputs`: of `forward_hidden`."""
        return self.logits(self.forward_hidden(ids_BT, **inputs))

    def embeddings(self) -> dict[str, nn.Module]:
        """Input embedding and head by the last part of their names."""
        modules = {module: name.rpartition(".")[2] for name, module in self.named_modules()}
        return {modules[one]: one for one in (self.embedding, self.head)}

    def vocabulary_weights(self) -> set[str]:
        """Names of the weights of embedding and head, which have a row for each token."""
        found = {id(weight) for module in (self.embedding, self.head) for weight in module.parameters()}
        return {name for name, weight in self.state_dict(keep_vars=True).items() if id(weight) in found}

    def count_parameters(self) -> int:
        """Number of weights; a tied head counts once. Quantized weights are stored in another shape."""
        return sum(math.prod(whole_shape(getattr(weight, "quant_state", weight))) for weight in self.parameters())
