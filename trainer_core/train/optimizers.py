"""Optimizer with parameter groups, and updates that can be skipped on the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trainer_core.config import Config
from trainer_core.train.muon import MuonWithAdamW


def avoid_compiler_import() -> None:
    """Mark methods of `torch.optim.Optimizer` as already excluded from compilation.

    At the first call of each, torch (2.13) imports its compiler to exclude it: 1,300 modules, a third of the time to
    the first step. They are never called from compiled code. The marks are private to torch; without them only that
    time is lost.
    """
    for name in ("zero_grad", "add_param_group", "state_dict", "load_state_dict"):
        plain = getattr(getattr(torch.optim.Optimizer, name), "__wrapped__", None)
        if plain is not None:
            plain.__dynamo_disable = plain


avoid_compiler_import()


def build_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    """Fused AdamW, or Muon for the matrices inside the layers plus AdamW. Matrices decay, norms and biases do not.

    Every group has a `kind`, "adamw" or "muon"; `lr` is set at each step.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    inner: list[Tensor] = []
    if config.optimizer == "muon":
        inner = [weight for name, weight in weights.items() if weight.dim() == 2 and ".layers." in f".{name}"]
    taken = {id(weight) for weight in inner}
    others = [weight for weight in weights.values() if weight.dim() >= 2 and id(weight) not in taken]
    vectors = [weight for weight in weights.values() if weight.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": config.weight_decay, "kind": "adamw"},
        {"params": vectors, "weight_decay": 0.0, "kind": "adamw"},
        {"params": inner, "weight_decay": config.weight_decay, "kind": "muon"},
    ]
    for group in groups:
        group.update(betas=(config.beta1, config.beta2), eps=config.adam_epsilon, momentum=config.muon_momentum)
    return MuonWithAdamW([group for group in groups if group["params"]], lr=config.learning_rate)


def allocate(optimizer: torch.optim.Optimizer) -> None:
    """Allocate the moments as the first update would, so that out of memory occurs before anything has changed."""
    for group in optimizer.param_groups:
        names = ("momentum_buffer",) if group["kind"] == "muon" else ("exp_avg", "exp_avg_sq")
        for weight in group["params"]:
            if not optimizer.state[weight]:
                state = {name: torch.zeros_like(weight, memory_format=torch.preserve_format) for name in names}
                if group["kind"] == "adamw":
                    state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
                optimizer.state[weight] = state


def update(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, bad: Tensor) -> None:
    """Step with the present gradients, or change nothing where `bad` (0-dim float32 on the device) is 1.0.

    A skipped step changes no weight, moment or step count. Does not synchronize. An enabled scaler unscales (unless
    `scaler.unscale_` was called, as clipping requires), skips overflows, too, and adjusts its scale by overflows only:
    a spike says nothing about the range of fp16.
    """

    def leave_out_bad(stepping: torch.optim.Optimizer, *_: Any) -> None:
        overflow: Tensor | None = getattr(stepping, "found_inf", None)  # of the scaler
        stepping.found_inf = bad if overflow is None else torch.maximum(overflow, bad)  # type: ignore[attr-defined]

    hook = optimizer.register_step_pre_hook(leave_out_bad)
    try:
        scaler.step(optimizer)
    finally:
        hook.remove()
        if hasattr(optimizer, "found_inf"):  # an enabled scaler removes it
            del optimizer.found_inf
    scaler.update()
