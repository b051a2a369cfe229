"""Many events at once: measurements as columns, all else as it stands.

A million events decoded one by one are a second of objects that nobody keeps. Here a line of a measurement is decoded
into a struct of only the fields that plots have, and put into arrays by the thousand; lines of other events are kept
as they are, to be decoded where they are shown. Progress is left out: it tells nothing of a run that is over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np

from app.state.measurements.metrics import (
    GPU_COLUMNS,
    GPU_FIELDS,
    HOST_FIELDS,
    PERFORMANCE_FIELDS,
    STEP_FIELDS,
    Array,
    Rows,
    gpu_values,
)
from app.state.measurements.thinning import thin
from trainer_core import protocol

_STEP: Final = ("t", "step", "tokens", *STEP_FIELDS.values())
_PERFORMANCE: Final = ("t", "step", *PERFORMANCE_FIELDS.values())
_HOST: Final = ("t", *HOST_FIELDS.values())
_GPU: Final = tuple(GPU_FIELDS.values())
LAYOUT: Final = "|".join((*_STEP, "", *_PERFORMANCE, "", *_HOST, "", *GPU_COLUMNS))
"""What the columns are: arrays of another layout are of another version of this program."""

_Row = tuple[Any, ...]
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_HEAD: Final = len(b'{"type":"')


def _lean(whole: type[msgspec.Struct], paths: tuple[str, ...], *more: tuple[str, Any, Any]) -> Any:
    """A struct with only those fields of an event; a path is a field, or a field and one of its own."""
    inner: dict[str, list[str]] = {}
    for path in paths:
        name, _, own = path.partition(".")
        inner.setdefault(name, []).append(own)
    known = {one.name: one for one in msgspec.structs.fields(whole)}
    made: list[tuple[Any, ...]] = []
    for name, parts in inner.items():
        kind = known[name].type if parts == [""] else _lean(known[name].type, tuple(parts))
        made.append((name, kind) if known[name].required else (name, kind, known[name].default))
    return msgspec.defstruct(f"Lean{whole.__name__}", [*made, *more], kw_only=True, gc=False)


_LeanGpu: Any = _lean(protocol.Gpu, ("index", "name", "throttle", *_GPU))
_steps: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_lean(protocol.Step, _STEP))
_performances: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_lean(protocol.Performance, _PERFORMANCE))
_hardware: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    _lean(protocol.Hardware, _HOST, ("gpus", list[_LeanGpu], []))
)
_of_step, _of_performance, _of_host = (attrgetter(*paths) for paths in (_STEP, _PERFORMANCE, _HOST))


@dataclass(slots=True)
class Block:
    """Events in order. `others`: (place, line) of those that are no measurements; places count from 0."""

    rows: Rows
    others: list[tuple[int, bytes]] = field(default_factory=list)

    def events(self) -> Iterator[tuple[int, protocol.AnyEvent]]:
        """The others, decoded; without those that are no events."""
        for place, line in self.others:
            with contextlib.suppress(protocol.ProtocolError):
                yield place, protocol.decode_event(line)


def thinned(rows: Rows, limit: int) -> Rows:
    """At most `limit` of each kind: see `thin`."""

    def few(table: Array, axes: int) -> Array:
        return np.concatenate(thin(table[:axes], table[axes:], limit))

    gpus = {index: few(table, 2) for index, table in rows.gpus.items()}
    return Rows(few(rows.steps, 4), few(rows.performance, 3), few(rows.host, 2), gpus)


class Reader:
    """Lines to blocks. Two kinds of measurements stay among the others: the first of each GPU, which tells its name,
    and the newest performance of a block, which is shown in figures.
    """

    def __init__(self) -> None:
        self._gpus: dict[int, str] = {}

    def block(self, lines: list[bytes]) -> Block:
        """Lines that cannot be read are left out."""
        steps: list[_Row] = []
        performances: list[_Row] = []
        hosts: list[_Row] = []
        gpus: dict[int, list[_Row]] = {}
        others: list[tuple[int, bytes]] = []
        newest: tuple[int, bytes] | None = None
        decode, of_step = _steps.decode, _of_step
        for place, line in enumerate(lines):
            kind = line[_HEAD : line.find(b'"', _HEAD)]
            try:
                if kind == b"step":
                    steps.append((place, *of_step(decode(line))))
                elif kind == b"hardware":
                    if not self._take_hardware(place, line, hosts, gpus):
                        others.append((place, line))
                elif kind == b"performance":
                    performances.append((place, *_of_performance(_performances.decode(line))))
                    newest = (place, line)
                elif kind != b"progress" and line:
                    others.append((place, line))
            except _UNREADABLE:
                continue
        if newest is not None:
            performances.pop()
            others = sorted([*others, newest])
        rows = Rows(
            _array(steps, 1 + len(_STEP)),
            _array(performances, 1 + len(_PERFORMANCE)),
            _array(hosts, 1 + len(_HOST)),
            {index: _array(found, 2 + len(GPU_COLUMNS)) for index, found in gpus.items()},
        )
        return Block(rows, others)

    def _take_hardware(self, place: int, line: bytes, hosts: list[_Row], gpus: dict[int, list[_Row]]) -> bool:
        event = _hardware.decode(line)
        names = {gpu.index: gpu.name for gpu in event.gpus}
        if any(self._gpus.get(index) != name for index, name in names.items()):
            self._gpus.update(names)
            return False
        hosts.append((place, *_of_host(event)))
        for gpu in event.gpus:
            gpus.setdefault(gpu.index, []).append((place, event.t, *gpu_values(gpu)))
        return True


def _array(rows: list[_Row], columns: int) -> Array:
    """Rows to an array of shape (columns, rows); None becomes NaN."""
    try:
        flat = np.fromiter(chain.from_iterable(rows), np.float64, len(rows) * columns)
    except TypeError:  # a None: takes twice as long
        flat = np.array(rows, dtype=np.float64)
    return np.ascontiguousarray(flat.reshape(len(rows), columns).T)
