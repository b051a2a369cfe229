"""Ways to compute causal attention: torch's own choice (the reference), its kernels by name, the FlashAttention
packages, and ways for documents side by side in one sequence.

All have one signature, `Attend`, and equal the reference within rounding. Shapes: B batch, T queries, S keys,
H heads, K key/value heads (H is a multiple of K), C head width, N documents.
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

Missing = tuple[str, dict[str, Any]]  # a code of messages.engine.ENGINE, and the params of its words

Check = Callable[[torch.device, torch.dtype, int], Missing | None]


@dataclass(frozen=True, slots=True)
class Spans:
    """Documents side by side in packed rows. What is behind the last document of a row counts as one, too."""

    offsets: Tensor  # (N + 1,) int32: where documents begin in the B * T positions, and B * T at the end
    longest: int  # positions of the longest one


class Attend(Protocol):
    """(B, H, T, C) from queries (B, H, T, C), keys and values (B, K, S, C).

    Each position sees itself and what is before it; with `mask` (B, 1, T, S) those where it is True; with
    `spans` those of its own document. Where both are given they say the same.
    """

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One way to compute attention."""

    name: str
    attend: Attend
    check: Check
    by_spans: bool = False  # takes documents as spans; the others are given a mask

    def missing(self, device: torch.device, dtype: torch.dtype, head_dim: int) -> Missing | None:
        """Why it cannot be used there (the code and params of a message); None: it can."""
        return self.check(device, dtype, head_dim)


def spans_of(segments_BT: Tensor) -> Spans:
    """The documents of `Batch.segments`. On a GPU this waits for it: make them before the transfer."""
    begins_BT = torch.ones_like(segments_BT, dtype=torch.bool)
    begins_BT[:, 1:] = segments_BT[:, 1:] != segments_BT[:, :-1]
    begins = begins_BT.flatten().nonzero().flatten()
    offsets = torch.cat((begins, begins.new_tensor([segments_BT.numel()]))).to(torch.int32)
    return Spans(offsets, int(offsets.diff().max()))


def document_mask(segments_BT: Tensor) -> Tensor:
    """Who may look at whom (B, 1, T, T), where each token sees those before it in its own segment, and itself."""
    length = segments_BT.shape[1]
    same = segments_BT.unsqueeze(2) == segments_BT.unsqueeze(1)
    return (same & same.new_ones(length, length).tril()).unsqueeze(1)


def mask_of(spans: Spans, batch: int, length: int) -> Tensor:
    """`document_mask` from spans."""
    positions = torch.arange(batch * length, device=spans.offsets.device, dtype=torch.int32)
    return document_mask(torch.searchsorted(spans.offsets, positions, right=True).view(batch, length))


def sdpa(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor:
    """The reference: torch chooses the kernel."""
    if spans is not None and mask is None:
        mask = mask_of(spans, q.shape[0], q.shape[2])
    causal = mask is None if q.shape[2] > 1 else False  # a bool, too, while a graph for many widths is made
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)


def _through(kernel: SDPBackend) -> Attend:
    """One of torch's kernels. Flash attention takes no mask; where there is one, torch chooses."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor:
        masked = mask is not None or spans is not None
        if masked and kernel is SDPBackend.FLASH_ATTENTION and q.is_cuda:
            return sdpa(q, k, v, mask=mask, spans=spans)
        if kernel is SDPBackend.EFFICIENT_ATTENTION:  # knows no groups
            k, v = _for_each_head(q, k), _for_each_head(q, v)
        with sdpa_kernel(kernel):
            return sdpa(q, k, v, mask=mask, spans=spans)

    return attend


def _for_each_head(q_BHTC: Tensor, kv_BKSC: Tensor) -> Tensor:
    """Keys or values once for each query head."""
    times = q_BHTC.shape[1] // kv_BKSC.shape[1]
    return kv_BKSC if times == 1 else kv_BKSC.repeat_interleave(times, dim=1)


def documents(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor:
    """Document after document. On a CPU that costs less than all pairs of positions with a mask."""
    if spans is None:
        return sdpa(q, k, v, mask=mask, spans=None)
    lengths = spans.offsets.diff().tolist()
    parts = zip(*(torch.split(_flat(x), lengths, dim=2) for x in (q, k, v)), strict=True)
    mixed = torch.cat([sdpa(*part, mask=None, spans=None) for part in parts], dim=2)
    return mixed.view(-1, q.shape[0], *q.shape[2:]).transpose(0, 1)


def _flat(x_BHTC: Tensor) -> Tensor:
    """All rows side by side (1, H, B * T, C)."""
    return x_BHTC.transpose(0, 1).flatten(1, 2).unsqueeze(0)


# --- FlashAttention: positions before heads (B, T, H, C), or (B * T, H, C) for documents; no fp32 --------


def varlen(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor:
    """Documents by torch's own FlashAttention (torch.nn.attention.varlen); else torch chooses."""
    if spans is None:
        return sdpa(q, k, v, mask=mask, spans=None)
    compute, options = _torch_varlen()
    if "enable_gqa" not in options:
        k, v = _for_each_head(q, k), _for_each_head(q, v)
    given = dict(options, enable_gqa=q.shape[1] != k.shape[1]) if "enable_gqa" in options else options
    return _packed(partial(compute, **given), q, k, v, spans)


@functools.cache
def _torch_varlen() -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """torch's function, and how this version of it is told to be causal and, if it can, of groups."""
    compute = importlib.import_module("torch.nn.attention.varlen").varlen_attn
    known = inspect.signature(compute).parameters
    options: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    return compute, options | ({"enable_gqa": False} if "enable_gqa" in known else {})


def _flash_package(module: str) -> Attend:
    """FlashAttention-2 (flash_attn) or -3 (flash_attn_interface); both know groups and documents."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, spans: Spans | None) -> Tensor:
        if spans is None and mask is not None:
            return sdpa(q, k, v, mask=mask, spans=None)
        package = importlib.import_module(module)
        if spans is not None:
            return _packed(partial(package.flash_attn_varlen_func, causal=True), q, k, v, spans)
        q, k, v = (x.transpose(1, 2) for x in _in_low_precision(q, k, v))
        return _first(package.flash_attn_func(q, k, v, causal=True)).transpose(1, 2)

    return attend


def _packed(compute: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """By a function of FlashAttention's form for sequences of different lengths."""
    batch, longest = q.shape[0], spans.longest
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in _in_low_precision(q, k, v))
    mixed = _first(compute(q, k, v, spans.offsets, spans.offsets, longest, longest))
    return mixed.view(batch, -1, *mixed.shape[1:]).transpose(1, 2)


def _in_low_precision(*tensors: Tensor) -> Iterator[Tensor]:
    """As autocast gives them to torch's own attention; rotated queries and keys come in fp32."""
    kind = tensors[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensors[-1].dtype
    return (tensor.to(dtype) for tensor in tensors)


def _first(result: Any) -> Tensor:
    """The output alone: FlashAttention-3 has given its log-sum-exp too."""
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output


# --- what there is ---------------------------------------------------------------------------------------


def _anything(device: torch.device, dtype: torch.dtype, head_dim: int) -> Missing | None:
    return None


def _cpu_only(device: torch.device, dtype: torch.dtype, head_dim: int) -> Missing | None:
    return None if device.type == "cpu" else ("path.unsupported", {"what": device.type})


def _kernel_of_torch(name: str, on_cpu: bool = False) -> Check:
    """Asks torch whether its kernel computes such heads on that device, backward too."""

    def check(device: torch.device, dtype: torch.dtype, head_dim: int) -> Missing | None:
        if device.type != "cuda":
            return None if on_cpu and device.type == "cpu" else ("path.no_gpu", {})
        example = torch.empty(1, 1, 16, head_dim, dtype=dtype, device=device, requires_grad=True)
        params = torch.backends.cuda.SDPAParams(example, example, example, None, 0.0, True, False)
        can = getattr(torch.backends.cuda, f"can_use_{name}_attention", None)
        return None if can is not None and can(params) else _unsupported(dtype, head_dim)

    return check


def _flash_of(package: str, module: str, oldest: tuple[int, int], newest: tuple[int, int]) -> Check:
    """Whether a module with FlashAttention is there and computes on that device. `oldest` and `newest`: its GPUs'
    compute capabilities."""

    def check(device: torch.device, dtype: torch.dtype, head_dim: int) -> Missing | None:
        if device.type != "cuda":
            return "path.no_gpu", {}
        capability = torch.cuda.get_device_capability(device)
        if not oldest <= capability <= newest:
            return "path.unsupported", {"what": torch.cuda.get_device_name(device)}
        if dtype not in (torch.float16, torch.bfloat16) or head_dim > 256 or head_dim % 8:
            return _unsupported(dtype, head_dim)
        if torch.are_deterministic_algorithms_enabled() and package != "torch":  # these do not ask torch
            return "path.unsupported", {"what": "deterministic"}
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            return "path.not_installed", {"package": package}
        except Exception as error:  # noqa: BLE001 - built for another torch, it fails in any way
            return "path.failed", {"reason": str(error).partition("\n")[0]}
        return None

    return check


def _unsupported(dtype: torch.dtype, head_dim: int) -> Missing:
    return "path.unsupported", {"what": f"{str(dtype).removeprefix('torch.')}, head_dim {head_dim}"}


BACKENDS: Final[dict[str, Backend]] = {
    backend.name: backend
    for backend in (
        Backend("sdpa", sdpa, _anything),
        Backend("flash", _through(SDPBackend.FLASH_ATTENTION), _kernel_of_torch("flash", on_cpu=True)),
        Backend("efficient", _through(SDPBackend.EFFICIENT_ATTENTION), _kernel_of_torch("efficient")),
        Backend("cudnn", _through(SDPBackend.CUDNN_ATTENTION), _kernel_of_torch("cudnn")),
        Backend("math", _through(SDPBackend.MATH), _anything),
        Backend(
            "flash2",
            _flash_package("flash_attn"),
            _flash_of("flash-attn", "flash_attn", (8, 0), (99, 0)),
            by_spans=True,
        ),
        Backend(
            "flash3",
            _flash_package("flash_attn_interface"),
            _flash_of("flash-attn-3", "flash_attn_interface", (9, 0), (9, 9)),
            by_spans=True,
        ),
        Backend("varlen", varlen, _flash_of("torch", "torch.nn.attention.varlen", (8, 0), (99, 0)), by_spans=True),
        Backend("documents", documents, _cpu_only, by_spans=True),
    )
}
"""By name, in the order of Config.attention; `varlen` and `documents` are for packed samples alone."""
