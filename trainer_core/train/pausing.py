"""A pause gives the card back: what training holds on it moves to system memory, or to a file where that is short.

The tensors stay the same objects and only their storage moves, so optimizer, model and whatever refers to them go on
with them, bit for bit. While they are away they can be read as ever: a Stop in a pause saves them from where they are
and needs no card. A file is mapped, so reading it takes no memory either.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final

import torch
from torch import Tensor, nn

from trainer_core import files
from trainer_core.machine.ram import system_memory
from trainer_core.session import Session
from trainer_core.train.device import keep_to_the_card
from trainer_core.train.engine.engine import Engine
from trainer_core.train.oom import give_back, is_out_of_memory
from trainer_core.train.ranks import ALONE, Ranks

FORCED: Final = "TRAINDECK_PARK"  # environment: `memory` or `disk` parks on a CPU too, so that it can be tried there
_FILE: Final = "paused.bin"
_SPARE_BYTES: Final = 1024**3  # system memory, and space of the disk, that is left alone
_STIR: Final = 0.05  # of the device's free memory: so much may what a desktop holds of it change by itself
_ALIGNMENT: Final = 64  # bytes, of each tensor in the file

_log = logging.getLogger(__name__)


def _free_of_system() -> int:
    return system_memory().available - _SPARE_BYTES


def _free_of_device(device: torch.device) -> int | None:
    """Bytes, where it can be asked."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def _most_used(device: torch.device) -> int:
    """Bytes that training has held at once of late."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


class Parking:
    """Takes tensors off a device, and brings them back.

    `tensors` says which at each `park` (those on other devices are passed over), `folder` is where a file may be
    written. `system_memory` and `device_memory` give the bytes that are free (None: not known), `most_used` those that
    training has held of a device at once. All ranks park at the same moment: each takes its share of what is free.
    """

    def __init__(
        self,
        tensors: Callable[[], Iterable[Tensor]],
        device: torch.device,
        folder: Path,
        system_memory: Callable[[], int] = _free_of_system,
        device_memory: Callable[[torch.device], int | None] = _free_of_device,
        most_used: Callable[[torch.device], int] = _most_used,
        ranks: Ranks = ALONE,
    ) -> None:
        self._tensors, self._device = tensors, device
        self._file = folder / (f"{ranks.rank}-{_FILE}" if ranks.rank else _FILE)
        self._system_memory, self._device_memory, self._most_used = system_memory, device_memory, most_used
        self._sharing = ranks.size
        self._parked: list[Tensor] = []
        self.needed = 0  # bytes of the device without which there is no going on
        self.remove_file()  # of a process that was killed in a pause

    @property
    def free(self) -> int | None:
        """Bytes of the device that are free."""
        return self._device_memory(self._device)

    def park(self) -> str:
        """Move everything off the device; gives `memory` or `disk`, or an empty text: it stays, neither has room."""
        here = [tensor for tensor in self._tensors() if tensor.device == self._device]
        distinct = list({id(tensor): tensor for tensor in here}.values())
        held = sum(tensor.nbytes for tensor in distinct)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # other streams may still write
        self.needed = max(held, self._most_used(self._device))
        share = self._system_memory() // self._sharing
        in_memory = held <= share and self._move(distinct, torch.device("cpu"))
        if not in_memory and not self._move_to_file(distinct, held):
            return ""
        _empty(self._device)
        self.needed = min(self.needed, self._most_to_ask_for(held))
        return "memory" if in_memory else "disk"

    def _most_to_ask_for(self, held: int) -> int:
        """Bytes of the device that may be waited for, now that nothing of ours is there.

        The peak may be more than can ever be free: an attempt that failed counts in it, and on Windows what the driver
        has put into system memory. So may even `held` be, and then it goes back to where it was.
        """
        free = self.free
        if free is None:
            return self.needed
        most = int(free * (1 - _STIR))
        return held if most < held <= free else most

    def unpark(self) -> bool:
        """Bring everything back; False: the device has no room for it yet, and all is as it was."""
        free = self.free
        if self._parked and free is not None and free < self.needed:
            return False
        if not self._move(self._parked, self._device):
            return False
        self._parked = []
        self.remove_file()
        return True

    def _move(self, tensors: list[Tensor], to: torch.device) -> bool:
        """All of them or, where memory ends, none."""
        moved: list[Tensor] = []
        try:
            for tensor in tensors:
                moved.append(tensor.data.to(to, copy=True))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        if len(moved) < len(tensors):
            moved.clear()
            give_back(to)
            return False
        self._place(tensors, moved)
        return True

    def _place(self, tensors: list[Tensor], moved: list[Tensor]) -> None:
        for tensor, elsewhere in zip(tensors, moved, strict=True):
            tensor.data = elsewhere
        self._parked = tensors

    def _move_to_file(self, tensors: list[Tensor], size: int) -> bool:
        """All of them or, where the disk has no room, none."""
        try:
            if files.free_bytes(self._file.parent) < (size + _SPARE_BYTES) * self._sharing:
                return False
            with self._file.open("wb") as file:
                places = [_write(file, tensor.detach()) for tensor in tensors]
                length = file.tell()
            content = torch.from_file(str(self._file), shared=False, size=length, dtype=torch.uint8)
        except (OSError, RuntimeError):  # torch's, where a file cannot be mapped
            self.remove_file()
            return False
        self._place(tensors, [_read(content, place, tensor) for place, tensor in zip(places, tensors, strict=True)])
        return True

    def remove_file(self) -> None:
        """The file may go as soon as it is mapped, but on Windows, which keeps it for as long as it is."""
        with contextlib.suppress(OSError):
            files.retry_sharing(lambda: self._file.unlink(missing_ok=True))


def _write(file: BinaryIO, tensor: Tensor) -> int:
    """Append a tensor's bytes; gives where they begin."""
    file.write(b"\0" * (-file.tell() % _ALIGNMENT))
    place = file.tell()
    if tensor.numel():
        file.write(tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return place


def _read(content: Tensor, place: int, like: Tensor) -> Tensor:
    """A tensor of that shape and type whose bytes begin at `place` of the mapped file."""
    return content[place : place + like.nbytes].view(like.dtype).view(like.shape)


def _empty(device: torch.device) -> None:
    """Give back what nothing refers to, libraries' working memory included."""
    if device.type == "cuda" and hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
        torch._C._cuda_clearCublasWorkspaces()
    give_back(device)


def kept_between_steps(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """All tensors of some size that a model in training keeps between two steps."""
    yield from model.parameters()
    yield from (weight.grad for weight in model.parameters() if weight.grad is not None)
    yield from model.buffers()
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


@contextlib.contextmanager
def freeing(
    session: Session,
    engine: Engine,
    tensors: Callable[[], Iterable[Tensor]],
    device: torch.device,
    folder: Path,
    ranks: Ranks = ALONE,
) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """While this lasts, a pause takes `tensors` and the engine's recorded graphs off the device; on every rank. Gives
    what does it on this one."""
    forced = os.environ.get(FORCED, "")
    room = (lambda: 0) if forced == "disk" else _free_of_system
    parking = Parking(tensors, device, folder, room, ranks=ranks)
    if device.type != "cuda" and not forced:
        yield contextlib.nullcontext
        return

    @contextlib.contextmanager
    def away() -> Iterator[None]:
        since = time.perf_counter()
        engine.forget_graphs()
        where = parking.park()
        _log.info("paused: %s, %.2f s", f"{parking.needed} bytes to {where}" if where else "no room", _s(since))
        if not where:
            session.warn("pause.no_room", needed_mib=_mib(parking.needed))
        yield  # a Stop goes out from here, and leaves all where it is
        since = time.perf_counter()
        if not parking.unpark():
            session.warn("pause.memory_taken", needed_mib=_mib(parking.needed), free_mib=_mib(parking.free or 0))
            session.wait("other_program", parking.unpark)
        keep_to_the_card(device)
        engine.record_again()
        _log.info("going on, %.2f s", _s(since))

    @contextlib.contextmanager
    def everywhere() -> Iterator[None]:
        ranks.tell("pause")
        with away():
            yield
        ranks.tell("go on")
        ranks.most(0, poll=session.stop_if_asked)

    session.around_pauses.append(everywhere)
    try:
        yield away
    finally:
        session.around_pauses.remove(everywhere)
        parking.remove_file()


def _s(since: float) -> float:
    return time.perf_counter() - since


def _mib(size: int) -> int:
    return -(-size // 2**20)
