"""Key/value caches for generation.

Shapes: B batch, K key/value heads, T new positions, C head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer_core.models.model_config import ModelConfig


class KvCache:
    """Key/value cache for generation, filled from the left.

    In fp32 on a CPU: torch's attention of one position takes 4 to 7 times as long in bf16.
    """

    def __init__(self, config: ModelConfig, batch: int, capacity: int, like: Tensor) -> None:
        heads = config.attention
        shape = (config.n_layers, batch, heads.n_kv_heads, capacity, heads.head_dim)
        dtype = torch.float32 if like.device.type == "cpu" else like.dtype
        self.keys = torch.empty(shape, dtype=dtype, device=like.device)
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
        if layer_idx == 0:
            self._slots = self._next_slots()
        for kept, new in ((self.keys, key_BKTC), (self.values, value_BKTC)):
            width = kept.shape[-1]
            kept[layer_idx].view(-1, width).index_copy_(0, self._slots, new.to(kept.dtype).reshape(-1, width))
        end = self.length + 1
        return self.keys[layer_idx, :, :, :end], self.values[layer_idx, :, :, :end]

    def _next_slots(self) -> Tensor:
        """Where each row's next position is among the B * K * S slots of a layer, (B * K)."""
        _, batch, kv_heads, capacity, _ = self.keys.shape
        heads = torch.arange(batch * kv_heads, device=self.lengths_B.device).view(batch, kv_heads)
        return (heads * capacity + self.lengths_B[:, None]).flatten()

    def advance(self, tokens: int) -> None:
        if self.length:
            self.lengths_B = self.lengths_B + 1
        self.length += tokens

    def select_rows(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.keys, self.values, self.lengths_B = self.keys[:, rows], self.values[:, rows], self.lengths_B[rows]
        self.length = int(self.lengths_B.max())

    @property
    def capacity(self) -> int:
        """Positions for which there is memory."""
        return self.keys.shape[3]

    def grow(self, capacity: int) -> None:
        """Allocate memory for more positions."""
        more = (0, 0, 0, capacity - self.capacity)
        self.keys, self.values = F.pad(self.keys, more), F.pad(self.values, more)

    def join(self, other: RaggedKvCache) -> RaggedKvCache:
        """Append the rows of another cache. Returns this one."""
        capacity = max(self.capacity, other.capacity)
        for cache in (self, other):
            cache.grow(capacity)
        keys, values = torch.cat((self.keys, other.keys), dim=1), torch.cat((self.values, other.values), dim=1)
        self.keys, self.values = keys, values  # both, or none if memory runs out
        self.lengths_B = torch.cat((self.lengths_B, other.lengths_B))
        self.length = max(self.length, other.length)
        return self
