"""Fused AdamW, or Muon or 8-bit AdamW for the matrices inside the layers and AdamW for the rest, in one optimizer.

Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) updates a matrix by its momentum with all singular values
brought close to one. Updates are scaled by 0.2 * sqrt(max(rows, columns)) as in Liu et al. 2025, "Muon is Scalable for
LLM Training", so that entries are about as large as AdamW's and both share one learning rate and weight decay.

8-bit AdamW (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization") keeps its moments in 8 bits, with one
fp32 scale for 256 entries. As recommended there, embeddings and small weights keep fp32 moments.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from trainer_core.config import Config
from trainer_core.models.quantization import import_bitsandbytes
from trainer_core.models.sharding import gather_rows, local_tensor, rows_of
from trainer_core.train.device import native_bf16

# Odd quintic polynomials that bring singular values from [0.005, 1] closest to one in four steps, found greedily as in
# Amsel et al. 2025, "The Polar Express": within 0.12. Each but the first expects values 5 % above the previous result,
# because rounding in bfloat16 overshoots and larger values would diverge. With the tighter bound of `orthogonalize`
# this is more accurate than the five steps of Jordan's post (torch.optim.Muon) with a fifth less arithmetic.
_QUINTICS: Final = (
    (8.2987, -24.4305, 18.0903),
    (3.7466, -2.5399, 0.4413),
    (3.1009, -2.1249, 0.4021),
    (2.1867, -1.4669, 0.3448),
)
_MARGIN: Final = 1.02  # for rounding in bfloat16
_TINY: Final = 1e-7
_BLOCK: Final = 256  # entries of an 8-bit moment that share a scale, in bitsandbytes
_MIN_8BIT_SIZE: Final = 4096  # entries; default of bitsandbytes
_MAX_STACKED: Final = (
    16 * 1024 * 1024
)  # entries stacked at once: faster for small matrices, costs memory for large ones


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


ADAMW_STATE: Final = ("step", "exp_avg", "exp_avg_sq")


class MuonWithAdamW(torch.optim.Optimizer):
    """Groups with `kind: "muon"` hold matrices; groups with `kind: "adamw"` or `kind: "adamw_8bit"` any tensors.

    Group values: `lr`, `weight_decay`; Muon: `momentum`; others: `betas`, `eps`. Like torch's fused optimizers, `step`
    reads the attributes that torch.amp.GradScaler sets (0-dim float32 on the device): it divides gradients by
    `grad_scale` and changes nothing where `found_inf` or `skip` is 1.0.

    Torch's own AdamW imports its compiler in every `step` (see `avoid_compiler_import`); this one does not.
    """

    _step_supports_amp_scaling = True  # GradScaler.step then sets `found_inf` without synchronizing
    skip: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], *, lr: float) -> None:
        defaults = {"lr": lr, "weight_decay": 0.0, "momentum": 0.95, "betas": (0.9, 0.95), "eps": 1e-8}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update. `closure` is not supported."""
        if closure is not None:
            raise ValueError("this optimizer takes no closure")
        allocate(self)
        grad_scale: Tensor | None = getattr(self, "grad_scale", None)
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        if self.skip is not None:
            found_inf = self.skip if found_inf is None else torch.maximum(found_inf, self.skip)
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if group["kind"] == "adamw":
                self._adamw(group, weights, found_inf, grad_scale)
            elif group["kind"] == "adamw_8bit":
                self._adamw_8bit(group, weights, found_inf, grad_scale)
            else:
                for alike in _group_by_shape(weights):
                    self._muon(group, alike, found_inf, grad_scale)

    def _adamw(
        self, group: dict[str, Any], weights: list[Tensor], found_inf: Tensor | None, grad_scale: Tensor | None
    ) -> None:
        states = [self.state[weight] for weight in weights]
        adamw(
            [local_tensor(weight) for weight in weights],
            [local_tensor(weight.grad) for weight in weights],  # type: ignore[arg-type]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            grad_scale=grad_scale,
            found_inf=found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _adamw_8bit(
        self, group: dict[str, Any], weights: list[Tensor], found_inf: Tensor | None, grad_scale: Tensor | None
    ) -> None:
        """Synchronizes with the device: the kernel cannot skip a step."""
        if not weights or (found_inf is not None and bool(found_inf)):
            return
        from bitsandbytes.functional import optimizer_update_8bit_blockwise as update

        signed, unsigned = _quantization_maps(weights[0].device)
        beta1, beta2 = group["betas"]
        for weight in weights:
            assert weight.grad is not None
            gradient = weight.grad if grad_scale is None else weight.grad / grad_scale
            state = self.state[weight]
            state["step"] += 1
            update(
                "adam",
                gradient.contiguous(),
                weight,
                state["exp_avg_8bit"],
                state["exp_avg_sq_8bit"],
                beta1,
                beta2,
                0.0,  # beta3 and alpha: of AdEMAMix
                0.0,
                group["eps"],
                int(state["step"]),
                group["lr"],
                signed,
                unsigned,
                state["scale"],
                state["scale_sq"],
                group["weight_decay"],
            )

    def _muon(
        self, group: dict[str, Any], weights: list[Tensor], found_inf: Tensor | None, grad_scale: Tensor | None
    ) -> None:
        """Update matrices of one shape. A skipped step is computed on zeros and changes nothing, because checking would
        synchronize with the device.
        """
        momenta = [self.state[weight]["momentum_buffer"] for weight in weights]
        parts = [local_tensor(weight) for weight in weights]
        gradients = torch.stack([local_tensor(weight.grad) for weight in weights])  # type: ignore[arg-type]
        if grad_scale is not None:
            gradients.div_(grad_scale)
        stacked, share, lr = torch.stack(momenta), group["momentum"], group["lr"]
        keep = None if found_inf is None else 1 - found_inf
        if keep is not None:
            gradients.masked_fill_(keep == 0, 0.0)
        moved = torch.lerp(stacked, gradients, 1 - share)
        update = _orthogonalize_whole(torch.lerp(gradients, moved, share), weights)  # Nesterov
        update = update.to(stacked.dtype).mul_(-lr * 0.2 * math.sqrt(max(weights[0].shape)))
        decay: float | Tensor = 1 - lr * group["weight_decay"]
        if keep is not None:
            moved = torch.where(keep == 0, stacked, moved)
            update.mul_(keep)
            decay = 1 - lr * group["weight_decay"] * keep
        torch._foreach_copy_(momenta, moved.unbind())
        torch._foreach_mul_(parts, decay)
        torch._foreach_add_(parts, update.unbind())


def _orthogonalize_whole(parts: Tensor, weights: list[Tensor]) -> Tensor:
    """`orthogonalize` of matrices of which each rank has `parts`, like those of `weights`. Every rank computes all."""
    rows = rows_of(weights[0])
    if rows is None:
        return orthogonalize(parts)
    whole = orthogonalize(gather_rows(parts, weights[0]))
    return whole[:, rows.start : rows.start + parts.shape[1]]


def orthogonalize(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices (N, rows, columns) close to one by Newton-Schulz iterations.

    They are first divided by an upper bound of the largest one: the square root of the Gram matrix's norm, which is
    needed anyway and much tighter than the matrix norm. Returns bfloat16 where the device supports it natively,
    otherwise float32.
    """
    x = matrices.to(compute_dtype(matrices.device))
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    gram = torch.bmm(x, x.mT)
    bound = _MARGIN * torch.linalg.matrix_norm(gram, keepdim=True).sqrt().clamp(min=_TINY)
    x, gram = x / bound, gram / bound**2  # no singular value exceeds one now
    for step, (a, b, c) in enumerate(_QUINTICS):
        gram = torch.bmm(x, x.mT) if step else gram
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def compute_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where its matrix products are fast, otherwise float32: emulation costs 16 times as much."""
    return torch.bfloat16 if native_bf16(device) else torch.float32


@functools.cache
def _quantization_maps(device: torch.device) -> tuple[Tensor, Tensor]:
    """Values of the 256 codes of signed and of unsigned moments."""
    from bitsandbytes.functional import create_dynamic_map

    signed, unsigned = (create_dynamic_map(signed=signed) for signed in (True, False))  # type: ignore[no-untyped-call]
    return signed.to(device), unsigned.to(device)


def _group_by_shape(weights: list[Tensor]) -> Iterator[list[Tensor]]:
    """Group weights of the same shape, limited by memory."""
    by_shape: dict[torch.Size, list[Tensor]] = {}
    for weight in weights:
        by_shape.setdefault(weight.shape, []).append(weight)
    for shape, alike in by_shape.items():
        count = max(1, _MAX_STACKED // shape.numel())
        for first in range(0, len(alike), count):
            yield alike[first : first + count]


def is_inner_matrix(name: str, weight: Tensor) -> bool:
    """Whether a weight is a matrix inside a layer: its name has the number of the layer."""
    return weight.dim() == 2 and any(part.isdecimal() for part in name.split("."))


def build_optimizer(model: nn.Module, config: Config) -> MuonWithAdamW:
    """AdamW, or Muon or 8-bit AdamW for the matrices inside the layers plus AdamW. Matrices decay, norms and biases
    do not.

    Every group has a `kind`, a value of the setting `optimizer`; `lr` is set at each step. Raises
    `config.bitsandbytes`.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    inner: list[Tensor] = []
    if config.optimizer != "adamw":
        inner = [weight for name, weight in weights.items() if is_inner_matrix(name, weight)]
    if config.optimizer == "adamw_8bit":
        inner = [weight for weight in inner if weight.numel() >= _MIN_8BIT_SIZE]
        import_bitsandbytes(next(iter(weights.values())).device, "optimizer adamw_8bit")
    taken = {id(weight) for weight in inner}
    others = [weight for weight in weights.values() if weight.dim() >= 2 and id(weight) not in taken]
    vectors = [weight for weight in weights.values() if weight.dim() < 2]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": config.weight_decay, "kind": "adamw"},
        {"params": vectors, "weight_decay": 0.0, "kind": "adamw"},
        {"params": inner, "weight_decay": config.weight_decay, "kind": config.optimizer},
    ]
    for group in groups:
        group.update(betas=(config.beta1, config.beta2), eps=config.adam_epsilon, momentum=config.muon_momentum)
    return MuonWithAdamW([group for group in groups if group["params"]], lr=config.learning_rate)


def allocate(optimizer: MuonWithAdamW) -> None:
    """Allocate the moments. Called before the first step, so that out of memory occurs before anything has changed."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if not optimizer.state[weight]:
                optimizer.state[weight] = new_state(weight, group["kind"])


def new_state(weight: Tensor, kind: str) -> dict[str, Tensor]:
    """What the optimizer keeps of a weight in a group of this kind."""
    weight = local_tensor(weight.detach())
    if kind == "muon":
        return {"momentum_buffer": torch.zeros_like(weight)}
    if kind == "adamw":
        step = torch.zeros((), dtype=torch.float32, device=weight.device)
        return {"step": step, "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
    moments = {name: torch.zeros_like(weight, dtype=torch.uint8) for name in ("exp_avg_8bit", "exp_avg_sq_8bit")}
    blocks = -(-weight.numel() // _BLOCK)
    scales = {name: torch.zeros(blocks, device=weight.device) for name in ("scale", "scale_sq")}
    return {"step": torch.zeros(()), **moments, **scales}  # the kernel reads the step on the host


def update(optimizer: MuonWithAdamW, scaler: torch.amp.GradScaler, bad: Tensor) -> None:
    """Step with the present gradients, or change nothing where `bad` (0-dim float32 on the device) is 1.0.

    A skipped step changes no weight, moment or step count. Does not synchronize. An enabled scaler unscales (unless
    `scaler.unscale_` was called, as clipping requires), skips overflows, too, and adjusts its scale by overflows only:
    a spike says nothing about the range of fp16.
    """
    optimizer.skip = bad
    scaler.step(optimizer)
    scaler.update()
