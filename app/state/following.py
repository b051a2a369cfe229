"""What a trainer that is running has written to disk: for events that its pipe kept back.

On Wine, pipes were seen to fall silent in the middle of a run. What is on disk is always whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs.run_dir import RunDir

_CHUNK: Final = 256 * 1024  # a few ms of decoding
_SOONEST_S: Final = 0.25  # between two looks while something comes
_RAREST_S: Final = 5.0  # and while nothing does, as in a pause


class Follower:
    """Reads the events that one process appends to `events.jsonl`; earlier processes' lie before `start`, in bytes.

    The file is open only while a piece of it is read: Windows renames and deletes no open file.
    """

    def __init__(self, run_path: Path) -> None:
        self._path = RunDir(run_path).events
        self._place = self._size()  # what is there now is of earlier processes
        self._heard = -math.inf
        self._wait, self._due = _SOONEST_S, -math.inf

    def look(self, last_seq: int, now: float, heard: float) -> list[AnyEvent]:
        """Events after number `last_seq`, if it is time to look again: ever more rarely while nothing comes.

        `now`, and `heard`, when the pipe last brought something: seconds of the same clock.
        """
        if heard > self._heard:
            self._heard, self._wait, self._due = heard, _SOONEST_S, now
            self._pass_over(last_seq)
        if now < self._due:
            return []
        found = self.read(last_seq) if self._size() > self._place else []
        self._wait = _SOONEST_S if found else min(_RAREST_S, 2 * self._wait)
        self._due = now + self._wait
        return found

    def read(self, last_seq: int) -> list[AnyEvent]:
        """Events after number `last_seq`, of the next piece of the file."""
        chunk = self._piece(self._place)
        whole = chunk[: chunk.rfind(b"\n") + 1]
        self._place += len(whole) or (len(chunk) if len(chunk) == _CHUNK else 0)  # no event is so long
        decoded = (_decoded(line) for line in whole.splitlines())
        return [event for event in decoded if event is not None and event.seq > last_seq]

    def rest(self, last_seq: int) -> Iterator[AnyEvent]:
        """All that there is: the process has ended."""
        self._pass_over(last_seq)
        before = -1
        while before != self._place:
            before = self._place
            yield from self.read(last_seq)

    def _pass_over(self, last_seq: int) -> None:
        """Go shortly before the first event after `last_seq`: what the pipe has brought is not read again."""
        place = self._size()
        while place > self._place:
            place -= _CHUNK
            if place <= self._place:
                return
            chunk = self._piece(place)
            begin = chunk.find(b"\n") + 1  # it may lie within a line
            event = _decoded(chunk[begin : chunk.find(b"\n", begin)])
            if event is not None and event.seq <= last_seq:
                self._place = place + begin
                return

    def _piece(self, place: int) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(place)
                return file.read(_CHUNK)
        except OSError:
            return b""

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0


def _decoded(line: bytes) -> AnyEvent | None:
    try:
        return protocol.decode_event(line)
    except protocol.ProtocolError:
        return None
