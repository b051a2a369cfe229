"""Properties of every reader: round trips, resuming, damaged files, and other file types."""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.reading import (
    TABLES,
    Stats,
    columnar_file,
    compressed,
    encoded,
    limits,
    read,
    read_with_stats,
    source_of,
    tar_of,
)
from trainer_core.data.formats import FORMATS, KNOWN_SUFFIXES, format_from_name
from trainer_core.messages import TraindeckError

ALL = (*TABLES, "text")
LONGEST = 400

# No line ends that the readers turn into "\n", no lone surrogates: what a format can hold exactly.
words = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=40)
tables = st.lists(st.fixed_dictionaries({"prompt": words, "response": words, "其他": words}), min_size=1, max_size=30)


@contextmanager
def file_of(content: bytes, name: str = "a") -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        yield path


@pytest.mark.parametrize("kind", TABLES)
@settings(max_examples=25, deadline=None)
@given(
    rows=tables, chunk=st.integers(1, 200), columns=st.sampled_from([(), ("response",), ("其他", "prompt"), ("no",)])
)
def test_written_rows_are_read_back_unchanged(
    kind: str, rows: list[dict[str, str]], chunk: int, columns: tuple[str, ...]
) -> None:
    with file_of(encoded(rows, kind)) as path, limits(chunk):
        found = read(source_of(path, kind), columns)  # may have more columns than requested
        if not columns:
            assert found == rows
            assert list(found[0]) == list(rows[0])  # the order of columns: a table has one for all rows
        wanted = [[row.get(name) for name in columns] for row in rows]
        assert [[row.get(name) for name in columns] for row in found] == wanted


def rows_and_bad_ones(kind: str, seed: int) -> bytes:
    """A file of rows among which some cannot be used, or are too long, or hold bytes that are not UTF-8."""
    dice = random.Random(seed)
    if kind == "text":
        lines = [b"a line of text, " + bytes(dice.choices(b"ab\xff\n ", k=dice.randrange(90))) for _ in range(40)]
        return b"\n".join(lines)
    texts = [dice.choice(["good", "床前明月光", "x" * 600, "", "two\nlines"]) + str(i) for i in range(50)]
    broken = [b'{"text": "cut', b"[1]", b'{"text": "\xff\xfe"}', b"", b'{"text": NaN}', b'{"text": "\\ud800"}']
    if kind in ("parquet", "arrow", "feather"):
        values = [dice.choice([text.encode(), b"\xff" + text.encode(), None]) for text in texts]
        return columnar_file(pa.table({"text": pa.array(values, pa.binary())}), kind)
    if kind in ("csv", "tsv"):
        filled = [json.dumps(text, ensure_ascii=False).replace("\\n", "\n").encode() for text in texts]
        return b"text\n" + b"\n".join(dice.choice([one, b"", b"\xff\xfe"]) for one in filled)
    objects = [json.dumps({"text": text, "n": 1}, ensure_ascii=False).encode() for text in texts]
    mixed = [dice.choice([one, one, dice.choice(broken)]) for one in objects]
    if kind == "jsonl":
        return b"\n".join(mixed)
    if kind == "json":
        return b"[" + b",\n".join(dice.choice([one, b"5", b"[1]", b'{"text": NaN}']) for one in objects) + b"]"
    names = [
        dice.choice(["", "../", "/", "b/"]) + f"{i}.{dice.choice(['json', 'txt', 'png', 'en.txt'])}" for i in range(50)
    ]
    return tar_of(dict(zip(names, mixed, strict=True)))


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 300), columns=st.sampled_from([(), ("text",)]))
def test_resumed_reading_equals_uninterrupted_reading(
    kind: str, seed: int, chunk: int, columns: tuple[str, ...]
) -> None:
    with file_of(rows_and_bad_ones(kind, seed)) as path, limits(chunk, LONGEST):
        source = source_of(path, kind)
        rows, states, whole = read_with_stats(source, columns, piece=20)
        for taken in range(0, len(rows), 5):
            before = states[taken - 1] if taken else Stats().state()
            more, _, stats = read_with_stats(source, columns, before, piece=20)
            assert repr(more) == repr(rows[taken:])  # NaN is not equal to itself
            assert stats.state() == whole.state()


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), skip=st.integers(0, 60), chunk=st.integers(1, 300))
def test_skip_rows_counts_good_and_bad_rows(kind: str, seed: int, skip: int, chunk: int) -> None:
    with file_of(rows_and_bad_ones(kind, seed)) as path, limits(chunk, LONGEST):
        rows, states, whole = read_with_stats(source_of(path, kind), piece=20)
        kept = [row for row, state in zip(rows, states, strict=True) if int(state["read"]) > skip]
        assert repr(read(source_of(path, kind), skip=skip, piece=20)) == repr(kept)
        assert whole.read == whole.bad + len(rows)


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 300))
def test_rows_do_not_depend_on_the_chunk_size(kind: str, seed: int, chunk: int) -> None:
    with file_of(rows_and_bad_ones(kind, seed)) as path:
        source = source_of(path, kind)
        with limits(LONGEST, LONGEST, batch=10**6):
            rows, states, _ = read_with_stats(source, piece=20)
        with limits(chunk, LONGEST):
            again, states_again, _ = read_with_stats(source, piece=20)
    assert repr(again) == repr(rows)
    assert [state["read"] for state in states_again] == [state["read"] for state in states]
    assert [state["first_bad"] for state in states_again] == [state["first_bad"] for state in states]


def exhaust(path: Path, kind: str, compression: str = "", encoding: str = "utf-8") -> int:
    """How many rows there are until the end, or until an error that can be told to a person."""
    stats = Stats()
    with suppress(TraindeckError):
        read_with_stats(source_of(path, kind, encoding, compression), stats=stats)
    return stats.read


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=600), chunk=st.integers(1, 300))
@example(content=b'"', chunk=5)
@example(content=b"[", chunk=1)
@example(content=b'[{"a": "\\', chunk=1)
@example(content=b"\0" * 600, chunk=7)
@example(content=b"PAR1PAR1", chunk=7)
@example(content=b"ARROW1\0\0", chunk=7)
@example(content=b"\xff\xff\xff\xff\x10\0\0\0", chunk=7)
def test_arbitrary_bytes_yield_rows_or_a_traindeck_error(kind: str, content: bytes, chunk: int) -> None:
    with file_of(content) as path, limits(chunk):
        for compression in ("", "gzip", "zstd") if kind in ("jsonl", "text") else ("",):
            exhaust(path, kind, compression)


@pytest.mark.parametrize("kind", ALL)
@settings(max_examples=40, deadline=None)
@given(place=st.floats(0, 1), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_or_truncated_file_never_raises_another_error(kind: str, place: float, value: int, cut: bool) -> None:
    rows = [{"text": f"row {i} " + "床前明月光" * (i % 5), "n": str(i)} for i in range(40)]
    whole = bytearray(encoded(rows, kind) if kind != "text" else b"a line\n" * 200)
    at = int(place * (len(whole) - 1))
    whole[at] = value
    with file_of(bytes(whole[:at] if cut else whole)) as path, limits():
        assert exhaust(path, kind) <= 200


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-32-be", "gb18030", "cp1252"])
@pytest.mark.parametrize("kind", ["text", "jsonl", "json", "csv", "tsv"])
@settings(max_examples=20, deadline=None)
@given(content=st.binary(max_size=300))
def test_arbitrary_bytes_decode_in_any_encoding(kind: str, encoding: str, content: bytes) -> None:
    with file_of(content) as path, limits(7):
        exhaust(path, kind, encoding=encoding)


@pytest.mark.parametrize("kind", ALL)
def test_a_folder_instead_of_a_file_is_rejected(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(TraindeckError, match="not a regular file"):
        read(source_of(tmp_path / "a", kind))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.parametrize("kind", ALL)
def test_a_pipe_or_a_device_is_rejected_without_blocking(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TraindeckError, match="not a regular file"):
            read(source_of(path, kind))


@pytest.mark.parametrize("kind", ALL)
def test_a_deleted_file_raises_file_not_found(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(b"x")
    source = source_of(tmp_path / "a", kind)
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        read(source)


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind not in ("parquet", "arrow", "feather")])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), parts=st.integers(1, 5), chunk=st.integers(1, 300))
def test_compressed_files_yield_the_same_rows(kind: str, compression: str, seed: int, parts: int, chunk: int) -> None:
    content = rows_and_bad_ones(kind, seed)
    with file_of(content) as plain, file_of(compressed(content, compression, parts)) as packed, limits(chunk):
        rows = read(source_of(plain, kind))
        assert repr(read(source_of(packed, kind, compression=compression))) == repr(rows)
        assert repr(read(source_of(packed, kind, compression=compression), skip=7)) == repr(
            read(source_of(plain, kind), skip=7)
        )


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("a.jsonl", ("jsonl", "")),
        ("a.JSONL.GZ", ("jsonl", "gzip")),
        ("语料.txt.zst", ("text", "zstd")),
        ("a.json.gz", ("json", "gzip")),
        ("a.tgz", ("tar", "gzip")),
        ("a.tar.gz", ("tar", "gzip")),
        ("a.arrow", ("arrow", "")),
        ("a.parquet.gz", (None, "gzip")),
        ("a.gz", (None, "gzip")),
        ("a.docx", (None, "")),
    ],
)
def test_format_and_compression_are_detected_from_the_name(name: str, found: tuple[Any, str]) -> None:
    assert format_from_name(Path(name)) == found


def test_every_format_is_listed_in_messages() -> None:
    for entry in FORMATS.values():
        assert entry.suffixes[0] in KNOWN_SUFFIXES
