"""Causal attention backends: torch's own choice (the reference), its kernels by name, the FlashAttention packages, and
variable-length attention for packed documents.

All have one signature, `AttentionFunction`, and equal the reference within rounding. Shapes: B batch, T queries, S
keys, H heads, K key/value heads (H is a multiple of K), C head width, N documents.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

UnavailableReason = tuple[str, dict[str, Any]]  # message code and its parameters

AvailabilityCheck = Callable[[torch.device, torch.dtype, int], UnavailableReason | None]


@dataclass(frozen=True, slots=True)
class CuSeqlens:
    """Documents, one after another, in all positions of a batch."""

    offsets: Tensor  # (N + 1,) int32: where documents begin in the B * T positions, and B * T at the end
    max_seqlen: int  # length of the longest


class AttentionFunction(Protocol):
    """(B, H, T, C) from queries (B, H, T, C), keys and values (B, K, S, C).

    Each position attends to itself and earlier ones; with `mask` (B, 1, T, S) to those where it is True; with
    `cu_seqlens` to those of its own document. If both are given they are equivalent.
    """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: CuSeqlens | None
    ) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """An implementation of attention."""

    name: str
    attend: AttentionFunction
    unavailable_reason: AvailabilityCheck  # of a device, dtype and head width; None: available
    uses_cu_seqlens: bool = False  # takes cumulative sequence lengths instead of a mask


def document_mask(segments_BT: Tensor) -> Tensor:
    """Attention mask (B, 1, T, T): each token attends to itself and earlier ones of its segment."""
    length = segments_BT.shape[1]
    same = segments_BT.unsqueeze(2) == segments_BT.unsqueeze(1)
    return (same & same.new_ones(length, length).tril()).unsqueeze(1)


def sliding_window_mask(indices_BT: Tensor, keys: int, window: int) -> Tensor:
    """Attention mask (B, 1, T, S): each token attends to itself and to the `window - 1` keys before it. `indices_BT`:
    of the tokens among the `keys` (S).
    """
    queries_BT1, keys_S = indices_BT.unsqueeze(2), torch.arange(keys, device=indices_BT.device)
    return ((keys_S <= queries_BT1) & (keys_S > queries_BT1 - window)).unsqueeze(1)


def mask_from_cu_seqlens(cu_seqlens: CuSeqlens, batch: int, length: int) -> Tensor:
    """`document_mask` from cumulative lengths."""
    positions = torch.arange(batch * length, device=cu_seqlens.offsets.device, dtype=torch.int32)
    return document_mask(torch.searchsorted(cu_seqlens.offsets, positions, right=True).view(batch, length))


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: CuSeqlens | None) -> Tensor:
    """The reference: torch chooses the kernel."""
    if cu_seqlens is not None and mask is None:
        mask = mask_from_cu_seqlens(cu_seqlens, q.shape[0], q.shape[2])
    causal = mask is None if q.shape[2] > 1 else False  # a bool also while a dynamic graph is traced
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to scores. Kernels take it as it is; they would convert another in each layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def attend_to_cache(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: CuSeqlens | None) -> Tensor:
    """Attention to cached keys; `mask`: of `additive_mask`. For one position of each row, a CPU multiplies matrices,
    which takes five sixths of the time of torch's kernel.
    """
    if mask is None or q.shape[2] > 1 or q.device.type != "cpu":
        return sdpa(q, k, v, mask=mask, cu_seqlens=cu_seqlens)
    batch, kv_heads, keys, width = k.shape
    summand = mask.expand(batch, kv_heads, 1, keys).flatten(0, 1)
    queries = q.reshape(batch * kv_heads, -1, width)
    scores = torch.baddbmm(summand, queries, k.flatten(0, 1).transpose(1, 2), alpha=width**-0.5)
    return torch.bmm(scores.softmax(-1), v.flatten(0, 1)).view(q.shape)


def _sdpa_with_kernel(kernel: SDPBackend) -> AttentionFunction:
    """One of torch's kernels. Flash attention takes no mask; with one, torch chooses."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: CuSeqlens | None) -> Tensor:
        masked = mask is not None or cu_seqlens is not None
        if masked and kernel is SDPBackend.FLASH_ATTENTION and q.is_cuda:
            return sdpa(q, k, v, mask=mask, cu_seqlens=cu_seqlens)
        if kernel is SDPBackend.EFFICIENT_ATTENTION:  # does not support groups
            k, v = _repeat_kv(q, k), _repeat_kv(q, v)
        with sdpa_kernel(kernel):
            return sdpa(q, k, v, mask=mask, cu_seqlens=cu_seqlens)

    return attend


def _repeat_kv(q_BHTC: Tensor, kv_BKSC: Tensor) -> Tensor:
    """Repeat keys or values for each query head."""
    times = q_BHTC.shape[1] // kv_BKSC.shape[1]
    return kv_BKSC if times == 1 else kv_BKSC.repeat_interleave(times, dim=1)


def per_document_attention(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: CuSeqlens | None
) -> Tensor:
    """One document after the other. On a CPU this is faster than all pairs of positions with a mask."""
    if cu_seqlens is None:
        return sdpa(q, k, v, mask=mask, cu_seqlens=None)
    lengths = cu_seqlens.offsets.diff().tolist()
    parts = zip(*(torch.split(_flatten_batch(x), lengths, dim=2) for x in (q, k, v)), strict=True)
    mixed = torch.cat([sdpa(*part, mask=None, cu_seqlens=None) for part in parts], dim=2)
    return mixed.view(-1, q.shape[0], *q.shape[2:]).transpose(0, 1)


def _flatten_batch(x_BHTC: Tensor) -> Tensor:
    """All rows side by side (1, H, B * T, C)."""
    return x_BHTC.transpose(0, 1).flatten(1, 2).unsqueeze(0)


# --- FlashAttention: positions before heads (B, T, H, C), or (B * T, H, C) for documents; no fp32 --------


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: CuSeqlens | None) -> Tensor:
    """torch's own FlashAttention (torch.nn.attention.varlen) for documents; otherwise torch chooses."""
    if cu_seqlens is None:
        return sdpa(q, k, v, mask=mask, cu_seqlens=None)
    compute, options = _load_torch_varlen()
    if "enable_gqa" not in options:
        k, v = _repeat_kv(q, k), _repeat_kv(q, v)
    given = dict(options, enable_gqa=q.shape[1] != k.shape[1]) if "enable_gqa" in options else options
    return _call_varlen(partial(compute, **given), q, k, v, cu_seqlens)


@functools.cache
def _load_torch_varlen() -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """torch's function, and the keywords for causal and, if supported, grouped-query attention in this version."""
    compute = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    known = inspect.signature(compute).parameters
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    return compute, options | ({"enable_gqa": False} if "enable_gqa" in known else {})


def _flash_attention(module: str) -> AttentionFunction:
    """FlashAttention-2 (flash_attn) or -3 (flash_attn_interface); both support groups and documents."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, cu_seqlens: CuSeqlens | None) -> Tensor:
        if cu_seqlens is None and mask is not None:
            return sdpa(q, k, v, mask=mask, cu_seqlens=None)
        package = importlib.import_module(module)
        if cu_seqlens is not None:
            return _call_varlen(partial(package.flash_attn_varlen_func, causal=True), q, k, v, cu_seqlens)
        q, k, v = (x.transpose(1, 2) for x in _cast_for_autocast(q, k, v))
        return _drop_logsumexp(package.flash_attn_func(q, k, v, causal=True)).transpose(1, 2)

    return attend


def _call_varlen(compute: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, cu_seqlens: CuSeqlens) -> Tensor:
    """Call a variable-length function with FlashAttention's signature."""
    batch, longest = q.shape[0], cu_seqlens.max_seqlen
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in _cast_for_autocast(q, k, v))
    mixed = _drop_logsumexp(compute(q, k, v, cu_seqlens.offsets, cu_seqlens.offsets, longest, longest))
    return mixed.view(batch, -1, *mixed.shape[1:]).transpose(1, 2)


def _cast_for_autocast(*tensors: Tensor) -> Iterator[Tensor]:
    """Cast as autocast does for torch's own attention; rotated queries and keys are fp32."""
    kind = tensors[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensors[-1].dtype
    return (tensor.to(dtype) for tensor in tensors)


def _drop_logsumexp(result: Any) -> Tensor:
    """The output only: FlashAttention-3 may also return its log-sum-exp."""
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output


# --- availability ----------------------------------------------------------------------------------------


def _always_available(device: torch.device, dtype: torch.dtype, head_dim: int) -> UnavailableReason | None:
    return None


def _cpu_only(device: torch.device, dtype: torch.dtype, head_dim: int) -> UnavailableReason | None:
    return None if device.type == "cpu" else ("path.unsupported", {"what": device.type})


def _torch_kernel_check(name: str, on_cpu: bool = False) -> AvailabilityCheck:
    """Check that torch's kernel supports such heads on that device, backward included."""

    def check(device: torch.device, dtype: torch.dtype, head_dim: int) -> UnavailableReason | None:
        if device.type != "cuda":
            return None if on_cpu and device.type == "cpu" else ("path.no_gpu", {})
        example = torch.empty(1, 1, 16, head_dim, dtype=dtype, device=device, requires_grad=True)
        params = torch.backends.cuda.SDPAParams(example, example, example, None, 0.0, True, False)
        can = getattr(torch.backends.cuda, f"can_use_{name}_attention", None)
        return None if can is not None and can(params) else _unsupported(dtype, head_dim)

    return check


def _flash_check(
    package: str, module: str, min_capability: tuple[int, int], max_capability: tuple[int, int]
) -> AvailabilityCheck:
    """Check that a FlashAttention module is installed and supports that device. `min_capability` and
    `max_capability`: compute capabilities of its GPUs.
    """

    def check(device: torch.device, dtype: torch.dtype, head_dim: int) -> UnavailableReason | None:
        if device.type != "cuda":
            return "path.no_gpu", {}
        capability = torch.cuda.get_device_capability(device)
        if not min_capability <= capability <= max_capability:
            return "path.unsupported", {"what": torch.cuda.get_device_name(device)}
        if dtype not in (torch.float16, torch.bfloat16) or head_dim > 256 or head_dim % 8:
            return _unsupported(dtype, head_dim)
        if torch.are_deterministic_algorithms_enabled() and package != "torch":  # these do not check torch's setting
            return "path.unsupported", {"what": "deterministic"}
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            return "path.not_installed", {"package": package}
        except Exception as error:  # noqa: BLE001 - built for another torch, it fails in any way
            return "path.failed", {"reason": str(error).partition("\n")[0]}
        return None

    return check


def _unsupported(dtype: torch.dtype, head_dim: int) -> UnavailableReason:
    return "path.unsupported", {"what": f"{str(dtype).removeprefix('torch.')}, head_dim {head_dim}"}


BACKENDS: Final[dict[str, AttentionBackend]] = {
    backend.name: backend
    for backend in (
        AttentionBackend("sdpa", sdpa, _always_available),
        AttentionBackend(
            "flash", _sdpa_with_kernel(SDPBackend.FLASH_ATTENTION), _torch_kernel_check("flash", on_cpu=True)
        ),
        AttentionBackend(
            "efficient", _sdpa_with_kernel(SDPBackend.EFFICIENT_ATTENTION), _torch_kernel_check("efficient")
        ),
        AttentionBackend("cudnn", _sdpa_with_kernel(SDPBackend.CUDNN_ATTENTION), _torch_kernel_check("cudnn")),
        AttentionBackend("math", _sdpa_with_kernel(SDPBackend.MATH), _always_available),
        AttentionBackend(
            "flash2",
            _flash_attention("flash_attn"),
            _flash_check("flash-attn", "flash_attn", (8, 0), (99, 0)),
            uses_cu_seqlens=True,
        ),
        AttentionBackend(
            "flash3",
            _flash_attention("flash_attn_interface"),
            _flash_check("flash-attn-3", "flash_attn_interface", (9, 0), (9, 9)),
            uses_cu_seqlens=True,
        ),
        AttentionBackend(
            "varlen",
            varlen_attention,
            _flash_check("torch", "torch.nn.attention.varlen", (8, 0), (99, 0)),
            uses_cu_seqlens=True,
        ),
        AttentionBackend("documents", per_document_attention, _cpu_only, uses_cu_seqlens=True),
    )
}
"""By name, in the order of Config.attention; `varlen` and `documents` are for packed samples only."""
