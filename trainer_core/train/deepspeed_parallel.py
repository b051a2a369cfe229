"""A model on DeepSpeed's engine (`--parallel deepspeed`): ZeRO stages 1, 2 and 3, with offload to system memory.

DeepSpeed divides weights, gradients and moments; the optimizer, its schedule and the checkpoints are Traindeck's. So a
run continues under any other distribution, and no pickle is written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, distributed

from trainer_core.models.language_model import LanguageModel
from trainer_core.train import optimizers
from trainer_core.train.checkpoint import TrainState
from trainer_core.train.optimizers import MuonWithAdamW
from trainer_core.train.parallel import Judge, Parallel
from trainer_core.train.torch_parallel import Computation

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


class DeepSpeedParallel(Parallel):
    """`settings`: see `deepspeed_config.py`."""

    is_sharded = True

    def __init__(self, model: LanguageModel, settings: dict[str, Any], device: torch.device) -> None:
        self._model, self._settings, self._device = model, settings, device
        self._stage: int = settings["zero_optimization"]["stage"]

    def attach(self, optimizer: MuonWithAdamW) -> None:
        os.environ["DS_ACCELERATOR"] = self._device.type
        os.environ["LOCAL_RANK"] = str(self._device.index or 0)
        import deepspeed
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        # Use gloo between CPUs: DeepSpeed would compile its own operator, which fails in a path with a space
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        if not distributed.is_initialized():  # a single process
            backend = "nccl" if self._device.type == "cuda" and distributed.is_nccl_available() else "gloo"
            store = distributed.HashStore()  # type: ignore[attr-defined]
            distributed.init_process_group(backend, store=store, rank=0, world_size=1)
        self._read_weight, self._read_moment = safe_get_full_fp32_param, safe_get_full_optimizer_state
        self._optimizer = optimizer
        self._engine, self._zero, *_ = deepspeed.initialize(
            model=Computation(self._model), optimizer=optimizer, config=self._settings, dist_init_required=False
        )
        self._engine.set_gradient_accumulation_boundary(False)
        self._allocate_moments()
        self.partitioned = self

    def _allocate_moments(self) -> None:
        for flat in self._flat_weights():
            self._optimizer.state[flat] = optimizers.new_state(flat, "adamw")
        if self._stage < 3:
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()

    def _flat_weights(self) -> list[Tensor]:
        """This rank's parts of the trained weights, in fp32."""
        zero = self._zero
        flat = zero.single_partition_of_fp32_groups if self._stage < 3 else zero.fp32_partitioned_groups_flat
        return list(flat)

    # --- a step --------------------------------------------------------------------------------------

    def forward(self, compute: Callable[..., Tensor], *args: Any) -> Tensor:
        module = self._engine if torch.is_grad_enabled() else self._engine.module
        result: Tensor = module(compute, *args)
        return result

    @contextlib.contextmanager
    def summing(self, on_last_bucket: Callable[[], None]) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(True)
        yield
        self._engine.set_gradient_accumulation_boundary(False)

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss * distributed.get_world_size())  # it averages over ranks

    def update(self, state: TrainState, limit: float, judge: Judge) -> tuple[Tensor, Tensor]:
        judged: list[tuple[Tensor, Tensor]] = []

        def judge_once() -> tuple[Tensor, Tensor]:
            if not judged:
                norm = torch.as_tensor(self._zero._global_grad_norm, dtype=torch.float32, device=self._device)
                norm = torch.where(norm < 0, torch.inf, norm)  # DeepSpeed returns -1 for one that is not finite
                judged.append((norm, judge(norm)))
            return judged[0]

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            """The norm is known, and nothing has changed yet. Called for each part of the weights."""
            optimizer.skip = judge_once()[1].to(self._flat_weights()[0].device)

        handle = state.optimizer.register_step_pre_hook(before_step)
        try:
            self._engine.set_gradient_accumulation_boundary(True)
            self._engine.step()
        finally:
            self._engine.set_gradient_accumulation_boundary(False)
            handle.remove()
        return judge_once()  # DeepSpeed makes no update of fp32 weights with a norm that is not finite

    # --- the state of training -----------------------------------------------------------------------

    def collect(self, weight: Tensor) -> dict[str, Tensor]:
        if not weight.requires_grad:
            with self._gathered(weight):
                return {"weight": weight.detach().cpu().clone()}
        moments = {key: self._read_moment(weight, key) for key in _MOMENTS}
        step = self._optimizer.state[self._flat_weights()[0]]["step"]
        whole = {"weight": self._read_weight(weight), "step": step, **moments}
        return {name: tensor.detach().cpu().clone() for name, tensor in whole.items()}

    def copy_weight(self, source: Tensor, target: Tensor) -> None:
        from deepspeed.utils import safe_set_full_fp32_param

        with torch.no_grad(), self._gathered(target, modifier=0):
            target.copy_(source)
        if target.requires_grad:
            safe_set_full_fp32_param(target, source.float())

    def load_moments(self, moments: Iterable[tuple[Tensor, dict[str, Tensor]]]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        self._allocate_moments()
        for weight, values in moments:
            for key in _MOMENTS:
                safe_set_full_optimizer_state(weight, values[key], key)
            for flat in self._flat_weights():
                self._optimizer.state[flat]["step"].copy_(values["step"])

    def _gathered(self, weight: Tensor, modifier: int | None = None) -> contextlib.AbstractContextManager[Any]:
        if self._stage < 3:
            return contextlib.nullcontext()
        import deepspeed

        gathered: contextlib.AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
            [weight], modifier_rank=modifier
        )
        return gathered
