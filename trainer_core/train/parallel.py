"""How several ranks compute one model: a copy on each (DDP), or shards of its weights (FSDP2, DeepSpeed).

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

from trainer_core.config import Config, find_unsupported
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.sharding import whole_tensor
from trainer_core.system.memory import system_memory
from trainer_core.train import deepspeed_config, optimizers
from trainer_core.train.checkpoint import PartitionedState, TrainState
from trainer_core.train.device import Precision
from trainer_core.train.model_memory import estimate_memory
from trainer_core.train.optimizers import MuonWithAdamW
from trainer_core.train.process_group import ProcessGroup

Judge = Callable[[Tensor], Tensor]
"""From the norm of the gradients, 1.0 if the update must be skipped, else 0.0."""

_STATE_SHARE: Final = 0.75  # of free memory that weights, gradients and moments may take under DDP


class Parallel:
    """A model on the device of a single process."""

    is_sharded = False
    partitioned: PartitionedState | None = None
    """Set if a library has divided weights and moments, so that only it can read and write them."""
    keeps_gradients = False
    """Whether gradients stay allocated between steps: as parts of DDP's buckets, into which they accumulate."""
    local_norms: list[Tensor] | None = None
    """Set to a list before gradients are summed: DDP adds the norms of this rank's own gradients."""

    def attach(self, optimizer: MuonWithAdamW) -> None:
        """Receive the optimizer of the model, once, before anything is loaded."""

    def forward(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        """`compute(*args)`, a computation with the model, on all ranks. With gradients: one loss."""
        return compute(*args)

    def summing(self, on_last_bucket: Callable[[], None]) -> AbstractContextManager[None]:
        """Around the last micro-batch of a step, whose backward pass sums the gradients of all ranks.

        `on_last_bucket` is called when this rank's backward pass is complete but for the sums that are under way.
        """
        return contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss that `forward` returned."""
        torch.autograd.backward(loss)

    def update(self, state: TrainState, limit: float, judge: Judge) -> tuple[Tensor, Tensor]:
        """Clip the gradients to a norm of `limit` and update the weights, or change nothing, as `judge` decides.

        Returns the norm and the decision, 0-dim float32 on the device. Does not synchronize.
        """
        state.scaler.unscale_(state.optimizer)
        norm = whole_tensor(torch.nn.utils.clip_grad_norm_(state.model.parameters(), limit))
        bad = judge(norm)
        optimizers.update(state.optimizer, state.scaler, bad)
        state.optimizer.zero_grad(set_to_none=not self.keeps_gradients)
        return norm, bad

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
    if config.parallel == "deepspeed":
        from trainer_core.train.deepspeed_parallel import DeepSpeedParallel

        width = model.head.weight.shape[-1]
        settings = group.on_rank_zero(lambda: deepspeed_config.read(config, precision.name, group.world_size, width))
        return DeepSpeedParallel(model, settings, device)
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
    unsupported = find_unsupported(config, "fsdp") or precision.needs_scaler
    return msgspec.structs.replace(config, parallel="ddp" if fits or unsupported else "fsdp")
