"""How several ranks compute one model: a copy on each (DDP), or shards of its weights (FSDP2).

Micro-batches of a step are accumulated; the gradients of all ranks are summed, not averaged, because the loss is
already divided by all tokens of the step. Both act on calls of modules: `Parallel.forward` passes a computation with
the model through one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec
import torch
from torch import Tensor

from trainer_core.config import Config, find_unsupported_by_fsdp
from trainer_core.models.language_model import LanguageModel
from trainer_core.system.memory import system_memory
from trainer_core.train.device import Precision
from trainer_core.train.model_memory import estimate_memory
from trainer_core.train.process_group import ProcessGroup

_STATE_SHARE: Final = 0.75  # of free memory that weights, gradients and moments may take under DDP


class Parallel:
    """A model on the device of a single process."""

    is_sharded = False
    keeps_gradients = False
    """Whether gradients stay allocated between steps: as parts of DDP's buckets, into which they accumulate."""
    local_norms: list[Tensor] | None = None
    """Set to a list before gradients are summed: DDP adds the norms of this rank's own gradients."""

    def forward(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        """`compute(*args)`, a computation with the model, on all ranks. With gradients: one loss."""
        return compute(*args)

    def summing(self, on_last_bucket: Callable[[], None]) -> AbstractContextManager[None]:
        """Around the last micro-batch of a step, whose backward pass sums the gradients of all ranks.

        `on_last_bucket` is called when this rank's backward pass is complete but for the sums that are under way.
        """
        return contextlib.nullcontext()

    def warm_up(self, run_pass: Callable[[], None]) -> None:
        """Run a forward and backward pass without effect, where the first one differs from later ones."""

    def abandon_pass(self) -> None:
        """Forget a forward pass that no backward pass follows, on all ranks."""

    def release(self) -> None:
        """Free memory of the device besides weights, for a pause."""

    def restore(self) -> None:
        """Undo `release`."""


def parallelize(
    model: LanguageModel, group: ProcessGroup, config: Config, precision: Precision, device: torch.device
) -> Parallel:
    """Distribute a model on the device over the ranks, as `config.parallel` says (not `auto`)."""
    if group.world_size == 1:
        return Parallel()
    from trainer_core.train.torch_parallel import DataParallel, ShardedParallel

    if config.parallel == "fsdp":
        return ShardedParallel(model, group, config, precision, device)
    return DataParallel(model)


def resolve_parallel(
    config: Config, vocab_size: int, device: torch.device, precision: Precision, world_size: int
) -> Config:
    """Replace `parallel: auto` by DDP where weights, gradients and moments leave enough memory for activations,
    otherwise by FSDP2.
    """
    if world_size == 1 or config.parallel != "auto":
        return config
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = system_memory().available // config.nproc_per_node
    fits = estimate_memory(config, vocab_size, precision).state <= _STATE_SHARE * free
    unsupported = find_unsupported_by_fsdp(config) or precision.needs_scaler
    return msgspec.structs.replace(config, parallel="ddp" if fits or unsupported else "fsdp")
