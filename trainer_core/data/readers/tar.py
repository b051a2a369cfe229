"""WebDataset shards: tar archives of small files, those of one sample next to each other.

The archive is read from its beginning to its end; nothing is extracted, and no name in it is ever opened.
No torch, no Qt.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from trainer_core.data.encodings import Decoder, Tally, detect
from trainer_core.data.readers.archive import Archive
from trainer_core.data.readers.base import LONGEST, TEXT, TOO_LONG, Request, Row, Source
from trainer_core.data.readers.json_rows import Rows

_OUTSIDE: Final = re.compile(r"(^|[/\\])\.\.($|[/\\])|^[/\\]|^[A-Za-z]:")
_NAMED: Final = re.compile(r"((?:.*/)?[^/.]+)\.([^/]*)")  # key and what follows the first dot of the name
_TEXT, _JSON = "txt", "json"


class _Member(NamedTuple):
    """A file in the archive. `data` is None where it is longer than `LONGEST`."""

    name: str
    key: str
    kind: str
    data: bytes | None


@dataclass(slots=True)
class _Sample:
    """The members of one key, or what is wrong with one."""

    key: str
    members: dict[str, bytes | None] = field(default_factory=dict)
    problem: str = ""


def read_tar(source: Source, request: Request, tally: Tally) -> Iterator[Row]:
    """A row for each sample: `.txt` is its text, the keys of `.json` are its columns. Other members are passed over."""
    tally.unit = "sample"
    rows = Rows(request.columns, tally)
    for sample in islice(_samples(source, tally), request.skip, None):
        tally.number = sample.key
        tally.read += 1
        row = sample.problem or _row(sample, rows, tally)
        if isinstance(row, str):
            tally.skip(tally.position, row)
        else:
            yield row


def _row(sample: _Sample, rows: Rows, tally: Tally) -> Row | str:
    row: Row = {}
    for kind, data in sorted(sample.members.items()):  # .json, then .txt: its text is the one that counts
        if data is None:
            return f".{kind} is {TOO_LONG}"
        text = _text(data, tally)
        if kind == _TEXT:
            row = {**row, TEXT: text}
            continue
        found = rows.row(text.encode("utf-8"))
        if isinstance(found, str):
            return f".{kind}: {found}"
        row = found
    return row


def _text(data: bytes, tally: Tally) -> str:
    """A member's text in whatever encoding it is."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        decoder = Decoder(detect(io.BytesIO(data), len(data)))
        text = decoder.feed(data, final=True)
        tally.undecodable += decoder.undecodable
        return text


def _samples(source: Source, tally: Tally) -> Iterator[_Sample]:
    sample = _Sample("")
    for member in _members(source, tally):
        if _OUTSIDE.search(member.name):
            yield _Sample(member.name, problem="its name leads out of the archive")
            continue
        if member.key != sample.key or member.kind in sample.members:
            if sample.members:
                yield sample
            sample = _Sample(member.key)
        sample.members[member.kind] = member.data
    if sample.members:
        yield sample


def _members(source: Source, tally: Tally) -> Iterator[_Member]:
    """The .txt and .json files. Raises `data.bad_format` where the archive is damaged or breaks off."""
    archive = Archive(source, tally)
    ignored = 0
    for entry in archive.entries():
        key, kind = _key_and_kind(entry.name) if entry.is_file else ("", "")
        if kind in (_TEXT, _JSON):
            data = archive.read(entry.size) if entry.size <= LONGEST else None
            archive.pass_over(entry.stored - len(data or b""))
            yield _Member(entry.name, key, kind, data)
        else:
            archive.pass_over(entry.stored)
            ignored += entry.is_file
            tally.ignored = ignored


def _key_and_kind(name: str) -> tuple[str, str]:
    """`a/b.en.txt` is a sample `a/b` and its kind `txt`; a hidden file is neither."""
    named = _NAMED.fullmatch(name.replace("\\", "/").removeprefix("./"))
    return (named[1], named[2].rpartition(".")[2].lower()) if named else ("", "")
