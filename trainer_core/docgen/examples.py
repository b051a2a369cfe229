"""One example of every event and command, read from `examples.jsonl`: for docs/protocol.md and as test data.

A line holds a message as it is on the wire, without `t`, `seq` and fields that equal their default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from trainer_core import protocol

_START_TIME: Final = 1_767_225_600.125  # 2026-01-01 00:00:00 UTC

EVENTS: Final[dict[type[Any], Any]] = {}
COMMANDS: Final[dict[type[Any], Any]] = {}

for _seq, _line in enumerate(Path(__file__).with_suffix(".jsonl").read_bytes().splitlines(), start=1):
    if _line.startswith(b'{"type"'):
        _event = protocol.decode_event(_line)
        _event.t, _event.seq = _START_TIME + _seq, _seq
        EVENTS[type(_event)] = _event
    else:
        _command = protocol.decode_command(_line)
        COMMANDS[type(_command)] = _command
