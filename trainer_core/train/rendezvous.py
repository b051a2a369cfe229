"""Where ranks find one another: a folder of small files, or the store that `torchrun` keeps.

A folder, because nothing listens then: no port is open but those between the ranks, on the loopback interface.
torch has a store in a file too, which cannot be opened on Windows below a folder with a Chinese name.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from trainer_core.system import files

_POLL_S: Final = 0.02
_PATIENCE_S: Final = 600.0  # for another rank's address, once all have said that they are there


class FolderStore(Store):
    """A key is a file in `folder`; only rank 0 removes them, as a whole."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def _file(self, key: str) -> Path:
        return self.folder / key.encode("utf-8").hex()

    def set(self, key: str, value: str | bytes) -> None:
        files.write_atomic(self._file(key), value if isinstance(value, bytes) else value.encode("utf-8"))

    def get(self, key: str) -> bytes:
        """Waits for it. Raises `TimeoutError`."""
        self.wait([key])
        return files.retry_sharing_violation(self._file(key).read_bytes)

    def check(self, keys: list[str]) -> bool:
        return all(self._file(key).is_file() for key in keys)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        end = time.monotonic() + (timeout.total_seconds() if timeout else _PATIENCE_S)
        while not self.check(keys):
            if time.monotonic() > end:
                raise TimeoutError(f"Timed out waiting for another rank: {keys}")
            time.sleep(_POLL_S)


def store_of_launcher(rank: int, size: int) -> Store:
    """The store that `torchrun`, or whoever set MASTER_ADDR and MASTER_PORT, has; of this start alone."""
    found, _, _ = next(rendezvous("env://", rank, size))
    return PrefixStore(f"traindeck/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", found)


def wait_for(store: Store, keys: list[str], look: Callable[[], None]) -> None:
    """Until `keys` are there. `look` is called again and again, and may raise."""
    while not store.check(keys):
        look()
        time.sleep(_POLL_S)


def read_if_there(store: Store, key: str) -> bytes | None:
    """What was set, or None; also where the store has gone."""
    with contextlib.suppress(RuntimeError, OSError):
        if store.check([key]):
            return bytes(store.get(key))
    return None
