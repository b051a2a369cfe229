"""Many events at once: measurements as columns, all else as it stands.

A million events decoded one by one are seconds of objects that nobody keeps. Here hundreds of lines are decoded in one
call, into structs of only the fields that plots have, and put into arrays column by column, while all of them are still
in the processor's cache; lines of other events are kept as they are, to be decoded where they are shown.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import attrgetter, or_
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from app.state.measurements.metrics import (
    GPU_COLUMNS,
    GPU_FIELDS,
    HOST_FIELDS,
    PERFORMANCE_FIELDS,
    STEP_FIELDS,
    Array,
    Rows,
    held_by_heat,
)
from app.state.measurements.thinning import thin
from trainer_core import protocol

_STEP: Final = ("t", "step", "tokens", *STEP_FIELDS.values())
_PERFORMANCE: Final = ("t", "step", *PERFORMANCE_FIELDS.values())
_HOST: Final = ("t", *HOST_FIELDS.values())
_GPU: Final = tuple(GPU_FIELDS.values())
LAYOUT: Final = "|".join((*_STEP, "", *_PERFORMANCE, "", *_HOST, "", *GPU_COLUMNS))
"""What the columns are: arrays of another layout are of another version of this program."""

_NEWLINE: Final = 10
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


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
    tag, of = whole.__struct_config__.tag, whole.__struct_config__.tag_field
    return msgspec.defstruct(f"Lean{whole.__name__}", [*made, *more], kw_only=True, gc=False, tag=tag, tag_field=of)


_LeanGpu: Any = _lean(protocol.Gpu, (*_GPU, "index", "name", "throttle"))
_Step: Any = _lean(protocol.Step, _STEP)
_Performance: Any = _lean(protocol.Performance, _PERFORMANCE)
_Hardware: Any = _lean(protocol.Hardware, _HOST, ("gpus", list[_LeanGpu], []))
_Progress: Any = _lean(protocol.Progress, ())
_FIGURES: Final = (_Step, _Performance, _Hardware, _Progress)
_OTHERS: Final = [
    _lean(kind, ()) for kind in protocol.event_types() if kind.__struct_config__.tag not in
    {figure.__struct_config__.tag for figure in _FIGURES}
]  # fmt: skip
_gpu_name: Final = attrgetter("index", "name")
_numbers: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("Numbered", [("seq", int)]))
_events: msgspec.json.Decoder[Any] = msgspec.json.Decoder(reduce(or_, (*_FIGURES, *_OTHERS)))


@dataclass(slots=True)
class Block:
    """Events in order. `others`: (place, line) of those that are no measurements; places count from 0."""

    rows: Rows
    others: list[tuple[int, bytes]] = field(default_factory=list)

    def pieces(self) -> Iterator[tuple[Rows, bytes]]:
        """In order: measurements, and the line of another event after them; the last one is empty."""
        reached = 0.0
        for place, line in [*self.others, (math.inf, b"")]:
            yield self.rows.between(reached, place), line
            reached = place


def number_of(line: bytes) -> int | None:
    """An event's `seq`; None: it is no event."""
    try:
        return int(_numbers.decode(line).seq)
    except _UNREADABLE:
        return None


def thinned(rows: Rows, limit: int) -> Rows:
    """At most `limit` of each kind: see `thin`."""

    def few(table: Array, axes: int) -> Array:
        return np.concatenate(thin(table[:axes], table[axes:], limit))

    gpus = {index: few(table, 2) for index, table in rows.gpus.items()}
    return Rows(few(rows.steps, 4), few(rows.performance, 3), few(rows.host, 2), gpus)


class Reader:
    """Lines to blocks: `take` some hundreds at a time, then have the `block` that they make.

    Some measurements stay among the others: the first of each GPU, which tells its name, and the newest performance of
    a block, which is shown in figures. `live`: so do its newest step and progress, which tell how far a run is, and
    steps that have no loss. Of a run that is over progress is left out.
    """

    def __init__(self, *, live: bool = False) -> None:
        self._newest_of: Final = (_Step, _Performance, _Progress) if live else (_Performance,)
        self._live = live
        self._gpus: set[tuple[int, str]] = set()  # index and name
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._others: list[tuple[int, bytes]] = []
        self._newest: dict[Any, tuple[int, int, bytes]] = {}  # events before the lines it came with; its place; them
        self._parts: defaultdict[Any, list[Array]] = defaultdict(list)  # tables, by kind of event or a GPU's index

    def take(self, lines: bytes) -> None:
        """Whole lines, each with its newline. Those that cannot be read are kept among the others."""
        found = _decoded(lines)
        places: defaultdict[Any, list[int]] = defaultdict(list)  # within these lines, by kind of event
        for place, kind in enumerate(map(type, found)):
            places[kind].append(place)
        aside = self._set_aside(found, places)
        others = [*aside, *chain.from_iterable(own for kind, own in places.items() if kind not in _FIGURES)]
        begin, self._count = self._count, self._count + len(found)
        self._others += zip((begin + place for place in others), _cut_out(lines, others), strict=True)
        for kind in self._newest_of:
            if places[kind]:
                self._newest[kind] = (begin, places[kind][-1], lines)
        for kind in (_Step, _Performance, _Hardware):
            if places[kind]:
                self._add(kind, [begin + place for place in places[kind]], [found[place] for place in places[kind]])

    def _set_aside(self, found: list[Any], places: dict[Any, list[int]]) -> list[int]:
        """Places of measurements that stay among the others; they are taken out of `places`."""
        aside = self._naming(found, places[_Hardware])
        if self._live:
            aside += [place for place in places[_Step] if found[place].loss is None]
        for kind in (_Hardware, _Step) if aside else ():
            places[kind] = [place for place in places[kind] if place not in aside]
        return aside

    def _naming(self, found: list[Any], hardware: list[int]) -> list[int]:
        """Places of those that name a GPU which was not known by this name."""
        gpus = chain.from_iterable(found[place].gpus for place in hardware)
        if self._gpus.issuperset(map(_gpu_name, gpus)):
            return []
        naming = []
        for place in hardware:
            named = set(map(_gpu_name, found[place].gpus))
            if not named <= self._gpus:
                naming.append(place)
                self._gpus = {one for one in self._gpus if one[0] not in dict(named)} | named
        return naming

    def _add(self, kind: Any, places: list[int], events: list[Any]) -> None:
        columns = _columns(events)
        gpus = columns.pop() if kind is _Hardware else []
        table = _table([places, *columns])
        self._parts[kind].append(table)
        if any(gpus):
            self._add_gpus(np.repeat(table[:2], list(map(len, gpus)), axis=1), list(chain.from_iterable(gpus)))

    def _add_gpus(self, at: Array, gpus: list[Any]) -> None:
        """`at`: place and time of each one's event."""
        *columns, indices, _names, throttles = _columns(gpus)
        hot = list(map(held_by_heat, throttles)) if any(throttles) else [False] * len(gpus)
        table = np.concatenate((at, _table([*columns, hot])))
        several = set(indices)
        for index in several:
            self._parts[index].append(table[:, np.equal(indices, index)] if len(several) > 1 else table)

    def block(self) -> Block:
        """What was taken since the last one."""
        for kind in self._newest_of:
            if kind in self._newest and kind in self._parts:
                self._parts[kind][-1] = self._parts[kind][-1][:, :-1]
        rows = Rows(
            self._whole(_Step, len(_STEP)),
            self._whole(_Performance, len(_PERFORMANCE)),
            self._whole(_Hardware, len(_HOST)),
            {kind: self._whole(kind, 1 + len(GPU_COLUMNS)) for kind in self._parts if isinstance(kind, int)},
        )
        newest = [(begin + place, _cut_out(lines, [place])[0]) for begin, place, lines in self._newest.values()]
        block = Block(rows, sorted([*self._others, *newest]))
        self._begin()
        return block

    def _whole(self, kind: Any, columns: int) -> Array:
        parts = self._parts.get(kind)
        return np.concatenate(parts, axis=1) if parts else np.empty((1 + columns, 0))


def _decoded(lines: bytes) -> list[Any]:
    """One for each line; None for a line that is no event."""
    with contextlib.suppress(*_UNREADABLE):
        found: list[Any] = _events.decode_lines(lines)
        if len(found) == np.count_nonzero(_newlines(lines)):  # else some are empty, or of two events
            return found
    return [_decoded_alone(line) for line in lines.split(b"\n")[:-1]]


def _newlines(lines: bytes) -> npt.NDArray[np.bool_]:
    """Where they are."""
    return np.equal(np.frombuffer(lines, np.uint8), _NEWLINE)


def _cut_out(lines: bytes, places: list[int]) -> list[bytes]:
    """Some of the lines."""
    if not places:
        return []
    ends = np.flatnonzero(_newlines(lines))
    return [lines[ends[place - 1] + 1 if place else 0 : ends[place]] for place in places]


def _decoded_alone(line: bytes) -> Any:
    try:
        return _events.decode(line)
    except _UNREADABLE:
        return None


def _columns(events: Sequence[Any]) -> list[Sequence[Any]]:
    """The fields of structs as columns, those of a struct within them in its place."""
    found: list[Sequence[Any]] = []
    for column in zip(*map(msgspec.structs.astuple, events), strict=True):
        if isinstance(column[0], msgspec.Struct):
            found += _columns(column)
        else:
            found.append(column)
    return found


def _table(columns: Sequence[Sequence[Any]]) -> Array:
    """One row for each column, float64; None becomes NaN."""
    count = len(columns[0])
    pack = struct.Struct(f"{count}d").pack
    rows = []
    for column in columns:
        if column[0] is None and column.count(None) == count:  # what is not measured here
            rows.append(np.full(count, np.nan).tobytes())
            continue
        try:
            rows.append(pack(*column))
        except struct.error:  # a None: takes longer
            rows.append(np.array(column, dtype=np.float64).tobytes())
    return np.frombuffer(b"".join(rows)).reshape(-1, count)
