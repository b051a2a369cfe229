"""Frees the GPU during a pause: training state moves to system memory, or to a file if memory is short.

Tensor objects stay the same and only their storage moves, so optimizer and model continue bit for bit. Offloaded
tensors remain readable: a Stop during a pause saves them without the GPU. The file is memory-mapped, so reading it
takes no memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

import torch
from torch import Tensor, nn

from trainer_core.run_context import RunContext
from trainer_core.system import files
from trainer_core.system.memory import system_memory
from trainer_core.train.control import Control
from trainer_core.train.device import limit_to_vram
from trainer_core.train.engine.engine import Engine
from trainer_core.train.oom import is_out_of_memory, release_memory
from trainer_core.train.parallel import Parallel
from trainer_core.train.process_group import SINGLE_PROCESS, ProcessGroup

FORCED: Final = "TRAINDECK_OFFLOAD"  # environment variable: `memory` or `disk` offloads on a CPU too, for tests
_FILE: Final = "paused.bin"
_SPARE_BYTES: Final = 1024**3  # system memory and disk space that stay free
_DESKTOP_SHARE: Final = 0.05  # share of the device's free memory that a desktop may use or free by itself
_ALIGNMENT: Final = 64  # bytes, of each tensor in the file

_log = logging.getLogger(__name__)


def free_system_bytes() -> int:
    """Bytes of system memory that may be used."""
    return 0 if os.environ.get(FORCED) == "disk" else system_memory().available - _SPARE_BYTES


def free_device_bytes(device: torch.device) -> int | None:
    """Free bytes of the device, if known."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def peak_bytes(device: torch.device) -> int:
    """Peak bytes of training since the last reset."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


class StateOffloader:
    """Moves tensors off a device and back.

    `tensors` yields the tensors at each `offload` (those on other devices are skipped); `folder` is where a file may be
    written. All ranks offload at the same time: each takes its share of free memory.
    """

    def __init__(
        self,
        tensors: Callable[[], Iterable[Tensor]],
        device: torch.device,
        folder: Path,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self._tensors, self._device, self._num_ranks = tensors, device, group.local_world_size
        self._file = folder / (f"{group.rank}-{_FILE}" if group.rank else _FILE)
        self._offloaded: list[Tensor] = []
        self.needed = 0  # bytes of the device required to continue
        self.remove_file()  # left by a process that was killed during a pause

    def offload(self) -> str:
        """Move everything off the device. Returns `memory` or `disk`; empty: neither has room, nothing moved."""
        distinct = list({id(tensor): tensor for tensor in self._tensors() if tensor.device == self._device}.values())
        held = sum(tensor.nbytes for tensor in distinct)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # other streams may still write
        self.needed = max(held, peak_bytes(self._device))
        in_memory = held <= free_system_bytes() // self._num_ranks and self._move(distinct, torch.device("cpu"))
        if not in_memory and not self._move_to_file(distinct, held):
            return ""
        _empty(self._device)
        self.needed = min(self.needed, self._attainable_bytes(held))
        return "memory" if in_memory else "disk"

    def _attainable_bytes(self, held: int) -> int:
        """Bytes of the device worth waiting for, now that nothing of this process is on it.

        The peak may exceed what can ever be free: it includes failed attempts and, on Windows, what the driver placed
        in system memory.
        """
        free = free_device_bytes(self._device)
        if free is None:
            return self.needed
        limit = int(free * (1 - _DESKTOP_SHARE))
        return held if limit < held <= free else limit

    def restore(self) -> bool:
        """Move everything back. False: the device has no room yet, and nothing moved."""
        free = free_device_bytes(self._device)
        if self._offloaded and free is not None and free < self.needed:
            return False
        if not self._move(self._offloaded, self._device):
            return False
        self._offloaded = []
        self.remove_file()
        return True

    def _move(self, tensors: list[Tensor], to: torch.device) -> bool:
        """Move all tensors or, if memory runs out, none."""
        moved: list[Tensor] = []
        try:
            for tensor in tensors:
                moved.append(tensor.data.to(to, copy=True))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        if len(moved) < len(tensors):
            moved.clear()
            release_memory(to)
            return False
        self._set_data(tensors, moved)
        return True

    def _set_data(self, tensors: list[Tensor], moved: list[Tensor]) -> None:
        for tensor, copy in zip(tensors, moved, strict=True):
            tensor.data = copy
        self._offloaded = tensors

    def _move_to_file(self, tensors: list[Tensor], size: int) -> bool:
        """Move all tensors or, if the disk has no room, none."""
        try:
            if files.free_bytes(self._file.parent) < (size + _SPARE_BYTES) * self._num_ranks:
                return False
            with self._file.open("wb") as file:
                offsets = [_write(file, tensor.detach()) for tensor in tensors]
                length = file.tell()
            content = torch.from_file(str(self._file), shared=False, size=length, dtype=torch.uint8)
        except (OSError, RuntimeError):  # from torch, if a file cannot be mapped
            self.remove_file()
            return False
        self._set_data(
            tensors, [_read(content, offset, tensor) for offset, tensor in zip(offsets, tensors, strict=True)]
        )
        return True

    def remove_file(self) -> None:
        """Unlink the file as soon as it is mapped; on Windows only after it is closed."""
        with contextlib.suppress(OSError):
            files.retry_sharing_violation(lambda: self._file.unlink(missing_ok=True))


def _write(file: BinaryIO, tensor: Tensor) -> int:
    """Append a tensor's bytes; returns their offset."""
    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
    offset = file.tell()
    if tensor.numel():
        file.write(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return offset


def _read(content: Tensor, offset: int, like: Tensor) -> Tensor:
    """A tensor of that shape and type at offset `offset` of the mapped file."""
    return content[offset : offset + like.nbytes].view(like.dtype).view(like.shape)


def _empty(device: torch.device) -> None:
    """Free unreferenced memory, including libraries' workspaces."""
    if device.type == "cuda" and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()
    release_memory(device)


def persistent_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """All tensors that a model in training keeps between steps."""
    yield from model.parameters()
    yield from (weight.grad for weight in model.parameters() if weight.grad is not None)
    yield from model.buffers()
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


@contextlib.contextmanager
def offloaded_in_pauses(
    control: Control,
    context: RunContext,
    engine: Callable[[], Engine],
    parallel: Parallel,
    offloader: StateOffloader,
    device: torch.device,
) -> Iterator[None]:
    """Inside the context, a pause moves the tensors of `offloader` and recorded graphs off the device, on all ranks."""
    if device.type != "cuda" and FORCED not in os.environ:
        yield
        return

    @contextlib.contextmanager
    def offload() -> Iterator[None]:
        since = time.perf_counter()
        engine().reset_graphs()
        parallel.release()
        where = offloader.offload()
        moved = f"{offloader.needed} bytes to {where}" if where else "no memory"
        _log.info("paused: %s, %.2f s", moved, time.perf_counter() - since)
        if not where:
            context.warn("pause.no_room", needed_mib=_mib(offloader.needed))
        yield  # a Stop raises here and leaves the state offloaded
        since = time.perf_counter()
        if not offloader.restore():
            context.warn(
                "pause.memory_taken", needed_mib=_mib(offloader.needed), free_mib=_mib(free_device_bytes(device) or 0)
            )
        control.wait_for_restore(offloader.restore)
        limit_to_vram(device)
        parallel.restore()
        engine().rerecord_graphs()
        _log.info("resumed, %.2f s", time.perf_counter() - since)

    try:
        with control.offload_on_pause(offload):
            yield
    finally:
        offloader.remove_file()


def _mib(size: int) -> int:
    return -(-size // 2**20)
