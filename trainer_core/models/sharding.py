"""Tensors whose rows are divided over ranks, as FSDP2 does (DTensor, sharded on the first dimension)."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor


class Rows(NamedTuple):
    """The part of a tensor on this rank: rows from `start` on, of a tensor of `shape`."""

    start: int
    shape: torch.Size


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor. The module of that class takes 1 s to import, so it is imported only where needed."""
    return hasattr(tensor, "placements")


def rows_of(tensor: Tensor) -> Rows | None:
    """The rows of a sharded tensor on this rank; None: it is whole."""
    if not is_sharded(tensor):
        return None
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded = cast(DTensor, tensor)
    _, offset = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    return Rows(offset[0], sharded.shape)


def whole_shape(tensor: Tensor) -> torch.Size:
    """Its shape before DeepSpeed divided it; FSDP2 keeps it."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return cast(Any, tensor).to_local() if is_sharded(tensor) else tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor. Collective, unless it is whole already."""
    return cast(Any, tensor).full_tensor() if is_sharded(tensor) else tensor


def gather_rows(parts: Tensor, like: Tensor) -> Tensor:
    """Whole matrices (N, rows, columns) from the parts of each rank, divided like the sharded matrix `like`."""
    from torch.distributed.tensor import DTensor, Shard

    mesh, shape = cast(DTensor, like).device_mesh, torch.Size((len(parts), *like.shape))
    strides = torch.empty(shape, device="meta").stride()
    sharded = DTensor.from_local(parts.contiguous(), mesh, (Shard(1),), run_check=False, shape=shape, stride=strides)
    return sharded.full_tensor()


def copy_whole(source: Tensor, target: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    rows = rows_of(target)
    with torch.no_grad():
        if rows is None:
            target.copy_(source)
        else:
            local = local_tensor(target)
            local.copy_(source[rows.start : rows.start + len(local)])
