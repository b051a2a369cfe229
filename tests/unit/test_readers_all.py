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
    compress,
    encode_rows,
    read,
    read_with_stats,
    reader_limits,
    source_file,
    tar_archive,
)
from trainer_core.data.formats import FORMATS, KNOWN_SUFFIXES, format_from_name
from trainer_core.messages import TraindeckError

KINDS = (*TABLES, "text")
MAX_ROW_BYTES = 400

# Values that every format stores exactly: no "\r", which readers convert to "\n", and no lone surrogates.
field_texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=40)
row_lists = st.lists(
    st.fixed_dictionaries({"prompt": field_texts, "response": field_texts, "其他": field_texts}),
    min_size=1,
    max_size=30,
)


@contextmanager
def temporary_file(content: bytes, name: str = "a") -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        yield path


@pytest.mark.parametrize("kind", TABLES)
@settings(max_examples=25, deadline=None)
@given(
    rows=row_lists, chunk=st.integers(1, 200), columns=st.sampled_from([(), ("response",), ("其他", "prompt"), ("no",)])
)
def test_written_rows_are_read_back_unchanged(
    kind: str, rows: list[dict[str, str]], chunk: int, columns: tuple[str, ...]
) -> None:
    with temporary_file(encode_rows(rows, kind)) as path, reader_limits(chunk):
        result = read(source_file(path, kind), columns)  # may have more columns than requested
        if not columns:
            assert result == rows
            assert list(result[0]) == list(rows[0])  # the order of columns
        expected = [[row.get(name) for name in columns] for row in rows]
        assert [[row.get(name) for name in columns] for row in result] == expected


def file_with_bad_rows(kind: str, seed: int) -> bytes:
    """Return a file with good rows, malformed rows, too long rows, and invalid UTF-8."""
    rng = random.Random(seed)
    if kind == "text":
        lines = [b"a line of text, " + bytes(rng.choices(b"ab\xff\n ", k=rng.randrange(90))) for _ in range(40)]
        return b"\n".join(lines)
    texts = [rng.choice(["good", "床前明月光", "x" * 600, "", "two\nlines"]) + str(i) for i in range(50)]
    malformed = [b'{"text": "cut', b"[1]", b'{"text": "\xff\xfe"}', b"", b'{"text": NaN}', b'{"text": "\\ud800"}']
    if kind in ("parquet", "arrow", "feather"):
        values = [rng.choice([text.encode(), b"\xff" + text.encode(), None]) for text in texts]
        return columnar_file(pa.table({"text": pa.array(values, pa.binary())}), kind)
    if kind in ("csv", "tsv"):
        fields = [json.dumps(text, ensure_ascii=False).replace("\\n", "\n").encode() for text in texts]
        return b"text\n" + b"\n".join(rng.choice([field, b"", b"\xff\xfe"]) for field in fields)
    objects = [json.dumps({"text": text, "n": 1}, ensure_ascii=False).encode() for text in texts]
    mixed = [rng.choice([row, row, rng.choice(malformed)]) for row in objects]
    if kind == "jsonl":
        return b"\n".join(mixed)
    if kind == "json":
        return b"[" + b",\n".join(rng.choice([row, b"5", b"[1]", b'{"text": NaN}']) for row in objects) + b"]"
    names = [
        rng.choice(["", "../", "/", "b/"]) + f"{i}.{rng.choice(['json', 'txt', 'png', 'en.txt'])}" for i in range(50)
    ]
    return tar_archive(dict(zip(names, mixed, strict=True)))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 300), columns=st.sampled_from([(), ("text",)]))
def test_resumed_reading_equals_uninterrupted_reading(
    kind: str, seed: int, chunk: int, columns: tuple[str, ...]
) -> None:
    with temporary_file(file_with_bad_rows(kind, seed)) as path, reader_limits(chunk, MAX_ROW_BYTES):
        source = source_file(path, kind)
        rows, states, total = read_with_stats(source, columns, piece=20)
        for count in range(0, len(rows), 5):
            before = states[count - 1] if count else Stats().state()
            rest, _, stats = read_with_stats(source, columns, before, piece=20)
            assert repr(rest) == repr(rows[count:])  # NaN is not equal to itself
            assert stats.state() == total.state()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), skip=st.integers(0, 60), chunk=st.integers(1, 300))
def test_skip_rows_counts_good_and_bad_rows(kind: str, seed: int, skip: int, chunk: int) -> None:
    with temporary_file(file_with_bad_rows(kind, seed)) as path, reader_limits(chunk, MAX_ROW_BYTES):
        rows, states, total = read_with_stats(source_file(path, kind), piece=20)
        kept = [row for row, state in zip(rows, states, strict=True) if int(state["read"]) > skip]
        assert repr(read(source_file(path, kind), skip=skip, piece=20)) == repr(kept)
        assert total.read == total.bad + len(rows)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10_000), chunk=st.integers(1, 300))
def test_rows_do_not_depend_on_the_chunk_size(kind: str, seed: int, chunk: int) -> None:
    with temporary_file(file_with_bad_rows(kind, seed)) as path:
        source = source_file(path, kind)
        with reader_limits(MAX_ROW_BYTES, MAX_ROW_BYTES, batch=10**6):
            rows, states, _ = read_with_stats(source, piece=20)
        with reader_limits(chunk, MAX_ROW_BYTES):
            other_rows, other_states, _ = read_with_stats(source, piece=20)
    assert repr(other_rows) == repr(rows)
    assert [state["read"] for state in other_states] == [state["read"] for state in states]
    assert [state["first_bad"] for state in other_states] == [state["first_bad"] for state in states]


def count_rows(path: Path, kind: str, compression: str = "", encoding: str = "utf-8") -> int:
    """Return the number of rows before the end of the file or the first `TraindeckError`."""
    stats = Stats()
    with suppress(TraindeckError):
        read_with_stats(source_file(path, kind, encoding, compression), stats=stats)
    return stats.read


@pytest.mark.parametrize("kind", KINDS)
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
    with temporary_file(content) as path, reader_limits(chunk):
        for compression in ("", "gzip", "zstd") if kind in ("jsonl", "text") else ("",):
            count_rows(path, kind, compression)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(position=st.floats(0, 1), value=st.integers(0, 255), truncate=st.booleans())
def test_a_damaged_or_truncated_file_never_raises_another_error(
    kind: str, position: float, value: int, truncate: bool
) -> None:
    rows = [{"text": f"row {i} " + "床前明月光" * (i % 5), "n": str(i)} for i in range(40)]
    content = bytearray(encode_rows(rows, kind) if kind != "text" else b"a line\n" * 200)
    index = int(position * (len(content) - 1))
    content[index] = value
    with temporary_file(bytes(content[:index] if truncate else content)) as path, reader_limits():
        assert count_rows(path, kind) <= 200


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-32-be", "gb18030", "cp1252"])
@pytest.mark.parametrize("kind", ["text", "jsonl", "json", "csv", "tsv"])
@settings(max_examples=20, deadline=None)
@given(content=st.binary(max_size=300))
def test_arbitrary_bytes_in_any_encoding_yield_rows_or_a_traindeck_error(
    kind: str, encoding: str, content: bytes
) -> None:
    with temporary_file(content) as path, reader_limits(7):
        count_rows(path, kind, encoding=encoding)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_instead_of_a_file_is_rejected(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(TraindeckError, match="not a regular file"):
        read(source_file(tmp_path / "a", kind))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_or_a_device_is_rejected_without_blocking(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TraindeckError, match="not a regular file"):
            read(source_file(path, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_deleted_file_raises_file_not_found(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_bytes(b"x")
    source = source_file(tmp_path / "a", kind)
    (tmp_path / "a").unlink()
    with pytest.raises(FileNotFoundError):
        read(source)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("parquet", "arrow", "feather")])
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), parts=st.integers(1, 5), chunk=st.integers(1, 300))
def test_compressed_files_yield_the_same_rows(kind: str, compression: str, seed: int, parts: int, chunk: int) -> None:
    content = file_with_bad_rows(kind, seed)
    with (
        temporary_file(content) as plain,
        temporary_file(compress(content, compression, parts)) as compressed,
        reader_limits(chunk),
    ):
        rows = read(source_file(plain, kind))
        assert repr(read(source_file(compressed, kind, compression=compression))) == repr(rows)
        assert repr(read(source_file(compressed, kind, compression=compression), skip=7)) == repr(
            read(source_file(plain, kind), skip=7)
        )


@pytest.mark.parametrize(
    ("name", "expected"),
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
def test_format_and_compression_are_detected_from_the_name(name: str, expected: tuple[Any, str]) -> None:
    assert format_from_name(Path(name)) == expected


def test_known_suffixes_include_every_format() -> None:
    for entry in FORMATS.values():
        assert entry.suffixes[0] in KNOWN_SUFFIXES
