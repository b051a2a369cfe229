"""What a trainer that is running has written to disk: for events that its pipe kept back.

On Wine, pipes were seen to fall silent in the middle of a run. What is on disk is always whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.run_dir import RunDir

_CHUNK: Final = 256 * 1024  # a few ms of decoding


class Follower:
    """Reads the events that one process appends to `events.jsonl`; earlier processes' lie before `start`, in bytes."""

    def __init__(self, run_path: Path) -> None:
        self._path = RunDir(run_path).events
        self._place = self._size()  # what is there now is of earlier processes

    def read(self, last_seq: int) -> list[AnyEvent]:
        """Events after number `last_seq`, of the next piece of the file."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                chunk = file.read(_CHUNK)
        except OSError:
            return []
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._place += len(whole) or (len(chunk) if len(chunk) == _CHUNK else 0)  # no event is so long
        found = []
        for line in whole.splitlines():
            try:
                event = protocol.decode_event(line)
            except protocol.ProtocolError:
                continue
            if event.seq > last_seq:
                found.append(event)
        return found

    def rest(self, last_seq: int) -> Iterator[AnyEvent]:
        """All that there is: the process has ended."""
        before = -1
        while before != self._place:
            before = self._place
            yield from self.read(last_seq)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0
