"""Operators of CUDA tensors, computed by those for CPUs in the same memory: the pretended card's is the host's."""

from __future__ import annotations

import ctypes
import sys
import warnings
from collections.abc import Callable

import card_attention
import torch
from torch import Tensor

# Names that begin so stay torch's own: they compute nothing, or are not for us.
_OWN = (
    "empty", "new_empty", "as_strided", "view", "_reshape_alias", "resize", "set_", "set.", "record_stream", "_pin",
    "pin_memory", "is_pinned", "is_set_to", "_local_scalar_dense", "_fused_sdp_choice", "_efficientzerotensor", "alias",
    "_unsafe_view", "unfold", "_conj", "_nested", "_cudnn", "cudnn", "_use_cudnn", "sparse", "_sparse", "_coalesce",
    "lift", "data", "t.", "slice.", "_cslt", "_lazy_clone", "_cuda_", "_assert_async", "_assert_scalar",
)  # fmt: skip

log: list | None = None  # while a graph is captured: what was computed, and the memory that it was written to
_library: torch.library.Library | None = None


def _softmax(x, dim, to_float):
    return torch.ops.aten._softmax(x.float() if to_float else x, dim, False)


def _log_softmax(x, dim, to_float):
    return torch.ops.aten._log_softmax(x.float() if to_float else x, dim, False)


_OTHERWISE = {  # what a CPU has with other types only
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _log_softmax,
    "aten::_softmax_backward_data": lambda g, out, dim, dtype: torch.ops.aten._softmax_backward_data(
        g, out, dim, g.dtype
    ).to(dtype),
    "aten::_log_softmax_backward_data": lambda g, out, dim, dtype: torch.ops.aten._log_softmax_backward_data(
        g, out, dim, g.dtype
    ).to(dtype),
}


def register() -> None:
    global _library
    _library = torch.library.Library("aten", "IMPL", "CUDA")
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
        if not name.startswith("aten::") or name in card_attention.OPERATORS:
            continue
        short = name.removeprefix("aten::")
        base, _, overload = short.partition(".")
        if not short.startswith(_OWN) and hasattr(torch.ops.aten, base):
            operator = getattr(getattr(torch.ops.aten, base), overload or "default", None)
            if operator is not None:
                _replace(short, _computed(name, operator))
    for name, function in card_attention.OPERATORS.items():
        _replace(name.removeprefix("aten::"), _new(function))
    _replace("copy_", _copied)


def _replace(short: str, kernel: Callable) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            _library.impl(short, kernel, "CUDA", allow_override=True)
        except RuntimeError as error:
            sys.stderr.write(f"card: {short} stays as it is: {error}\n")


def _computed(name: str, operator: Callable) -> Callable:
    arguments = operator._schema.arguments
    returns = operator._schema.returns
    written = [(place, one.name) for place, one in enumerate(arguments) if one.alias_info and one.alias_info.is_write]
    in_place = all(one.alias_info is not None for one in returns)
    generators = [(place, one.name) for place, one in enumerate(arguments) if one.name == "generator"]

    def kernel(*given, **named):
        device = _device(given, named)
        down, down_named = _down(list(given)), {key: _down(value) for key, value in named.items()}
        if "device" in down_named:
            down_named["device"] = torch.device("cpu")
        if down_named.get("pin_memory"):
            down_named["pin_memory"] = False
        for place, key in generators:
            if place < len(down):
                down[place] = _generator(given[place])
            else:
                down_named[key] = _generator(named.get(key))
        # A number that torch wrapped as a tensor arrives as a number: the packet finds the overload for it.
        numbers = any(
            isinstance(value, int | float) and str(one.type) == "Tensor"
            for value, one in zip(given, arguments, strict=False)
        )

        def compute():
            if name in _OTHERWISE:
                return _OTHERWISE[name](*down, **down_named)
            if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"):
                from torch._decomp import decomposition_table

                return decomposition_table[operator](*down, **down_named)
            return (operator.overloadpacket if numbers else operator)(*down, **down_named)

        result = compute()
        if not written:
            return _kept(compute, _up(result, device))
        outs = []
        for place, key in written:
            out = named[key] if key in named else given[place] if place < len(given) else None
            mine = down_named[key] if key in down_named else down[place] if place < len(down) else None
            if isinstance(out, Tensor) and mine.shape != out.shape:  # out=, of another shape before
                out.resize_(mine.shape)
                on_cpu(out).copy_(mine)
                _kept(lambda mine=mine: (compute(), mine)[1], out)
            outs.append(out)
        if in_place:
            _kept(compute, None)
            return None if not returns else outs[0] if len(returns) == 1 else tuple(outs)
        return _kept(compute, _up(result, device))

    return kernel


def _new(function: Callable) -> Callable:
    def kernel(*given, **named):
        device = _device(given, named)
        down, down_named = _down(list(given)), {key: _down(value) for key, value in named.items()}

        def compute():
            return function(*down, **down_named)

        return _kept(compute, _up(compute(), device))

    return kernel


def _copied(to, source, non_blocking=False):
    down, from_ = _down(to), _down(source)

    def compute():
        return down.copy_(from_)

    compute()
    _kept(compute, None)
    return to


def _kept(compute: Callable, result):
    """`result`, remembered while a graph is captured; by its memory alone, so that it is freed as it would be."""
    if log is not None:
        log.append((compute, _memory(result)))
    return result


def _memory(result):
    if isinstance(result, Tensor):
        return on_cpu(result) if result.device.type == "cuda" else None
    return [_memory(one) for one in result] if isinstance(result, (list, tuple)) else None


def on_cpu(tensor: Tensor) -> Tensor:
    """The same memory as a tensor for the CPU."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())


def _down(value):
    if isinstance(value, Tensor):
        return on_cpu(value) if value.device.type == "cuda" else value
    if isinstance(value, (list, tuple)):
        return [_down(one) for one in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _up(value, device):
    if isinstance(value, Tensor):
        if value.device.type != "cpu":
            return value
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        if value.numel():
            on_cpu(made).copy_(value)
        return made
    return type(value)(_up(one, device) for one in value) if isinstance(value, (list, tuple)) else value


def _device(given, named) -> torch.device:
    for value in (*given, *named.values()):
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, Tensor) and one.device.type == "cuda":
                return one.device
    wanted = named.get("device")
    return (
        wanted if wanted is not None and wanted.index is not None else torch.device("cuda", torch.cuda.current_device())
    )


def _generator(wanted: torch.Generator | None) -> torch.Generator:
    """Draws from the state of CUDA's generator, which goes on as it would: so it can be saved and brought back."""
    wanted = wanted or torch.cuda.default_generators[torch.cuda.current_device()]
    if wanted.device.type != "cuda":
        return wanted
    try:
        offset = wanted.get_offset()
        wanted.set_offset(offset + 4)
    except RuntimeError:  # while a graph is captured
        offset = 0
    made = torch.Generator()
    made.manual_seed((wanted.initial_seed() * 1000003 + offset * 7919 + 17) % 2**63)
    return made
