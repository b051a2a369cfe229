"""A model on several ranks: a copy on each (DDP), or a shard of its weights (FSDP2).

Separate from `parallel.py`: this module takes 0.7 s to import, which one process need not wait for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainer_core.config import Config
from trainer_core.models.decoder import Decoder
from trainer_core.models.language_model import LanguageModel
from trainer_core.train.device import Precision
from trainer_core.train.parallel import Parallel
from trainer_core.train.process_group import ProcessGroup


class Computation(nn.Module):
    """Calls a computation with the model."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        return compute(*args)


class DataParallel(Parallel):
    """DDP: every rank has the whole model. Gradients are summed while the last micro-batch is still in backward.

    DDP arranges its buckets anew after its first backward pass, which changes the order of summation: with passes that
    are discarded, the first step after every start sums like all later ones.
    """

    keeps_gradients = True

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._summing = False
        self._warm_up: Callable[[], None] = lambda: None
        self._ddp: DistributedDataParallel | None = None
        self._wrap(init_sync=True)

    def _wrap(self, init_sync: bool) -> None:
        self._ddp = DistributedDataParallel(
            Computation(self._model), forward_sync_buffers=False, gradient_as_bucket_view=True, init_sync=init_sync
        )
        self._ddp.register_comm_hook(self, _sum_bucket)

    def forward(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        if not self._summing or not torch.is_grad_enabled():  # gradients accumulate without DDP
            return compute(*args)
        assert self._ddp is not None
        return self._ddp(compute, *args)  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def summing(self, on_last_bucket: Callable[[], None]) -> Iterator[None]:
        self._summing, self.on_last_bucket = True, on_last_bucket
        try:
            yield
        finally:
            self._summing = False

    def warm_up(self, run_pass: Callable[[], None]) -> None:
        self._warm_up = run_pass
        with self.summing(lambda: None):
            run_pass()
            run_pass()  # its forward pass arranges the buckets, on all ranks together

    def abandon_pass(self) -> None:
        self.release()  # a reducer that waits for gradients cannot be told otherwise
        self.restore()

    def release(self) -> None:
        self._ddp = None
        self._model.zero_grad(set_to_none=True)  # the buckets

    def restore(self) -> None:
        self._wrap(init_sync=False)
        self.warm_up(self._warm_up)


def _sum_bucket(parallel, bucket):  # type: ignore[no-untyped-def] # torch refuses annotations that are strings
    """Communication hook of DDP: a future of the sum of a bucket, not of its mean."""
    buffer = bucket.buffer()
    if parallel.local_norms is not None:
        parallel.local_norms.append(torch.linalg.vector_norm(buffer))
    if bucket.is_last():
        parallel.on_last_bucket()
    work = distributed.all_reduce(buffer, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _allocate(root: Any, device: torch.device) -> None:
    """Give undefined values on the device to weights that are on `meta`. Buffers keep theirs."""
    buffers = {name: buffer.to(device) for name, buffer in root.named_buffers()}
    root.to_empty(device=device)
    for name, buffer in root.named_buffers():
        buffer.copy_(buffers[name])


def _compile(layer: Any) -> None:
    """Compile a layer for whole sequences. With a cache, its last argument, it would be compiled again for each layer
    and length, up to torch's limit, from which on training is not compiled either.
    """
    from trainer_core.train.engine import compilation

    compilation.prepare_inductor()
    plain, compiled = layer.forward, torch.compile(layer.forward, options=compilation.RANDOM_AS_EAGER)
    layer.forward = lambda *inputs: (compiled if inputs[-1] is None else plain)(*inputs)


class ShardedParallel(Parallel):
    """FSDP2: every rank holds a part of the rows of each weight, its gradient and its moments.

    Layers are gathered one at a time, in the precision of the forward pass; embedding, head and last norm in their own.
    """

    is_sharded = True

    def __init__(
        self, model: LanguageModel, group: ProcessGroup, config: Config, precision: Precision, device: torch.device
    ) -> None:
        self._device = device
        mesh = init_device_mesh(device.type, (group.world_size,))
        offload = CPUOffloadPolicy() if config.fsdp_cpu_offload and device.type == "cuda" else OffloadPolicy()
        in_layers = MixedPrecisionPolicy(
            param_dtype=precision.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        options: dict[str, Any] = {"mesh": mesh, "offload_policy": offload}
        for layer in model.layers:
            if config.compile == "on" and isinstance(model, Decoder):
                _compile(layer)
            fully_shard(layer, mp_policy=in_layers, reshard_after_forward=config.fsdp_reshard_after_forward, **options)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        self._root: Any = fully_shard(Computation(model), mp_policy=policy, **options)
        if any(weight.is_meta for weight in model.parameters()):
            _allocate(self._root, torch.device("cpu") if isinstance(offload, CPUOffloadPolicy) else device)
        modules = list(cast(Any, self._root).modules())
        self._modules: list[Any] = [module for module in modules if isinstance(module, FSDPModule)]
        for module in self._modules:
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)

    def forward(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        result: Tensor = self._root(compute, *args)
        if not torch.is_grad_enabled():  # otherwise after the backward pass
            for module in self._modules:
                module.reshard()
        return result

    def release(self) -> None:
        self._root.to("cpu")

    def restore(self) -> None:
        self._root.to(self._device)
