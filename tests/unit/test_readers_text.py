"""Plain text, encodings, and compressed files."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.reading import Stats, compress, random_bytes, read, read_with_stats, reader_limits, source_file
from trainer_core.data import encodings
from trainer_core.data.readers.base import read_head
from trainer_core.messages import TraindeckError

POEM = "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。\n"
PROSE = "The quick brown fox, 5 years old, jumps over the lazy dog.\n"


def detect(content: bytes) -> str:
    return encodings.detect_encoding(io.BytesIO(content), len(content))


# --- encodings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [POEM * 50, PROSE * 50, POEM + PROSE, "一二三\n一一一\n", "hi\n", PROSE * 99 + POEM])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_utf_16_and_utf_32_are_detected_by_their_byte_order_mark(tmp_path: Path, text: str, encoding: str) -> None:
    content = f"\ufeff{text}".encode(encoding)
    assert not encodings.looks_binary(content[:4096])
    assert detect(content) == encoding
    (tmp_path / "a.txt").write_bytes(content)
    assert "".join(row["text"] for row in read(source_file(tmp_path / "a.txt", "text", encoding))) == text


@pytest.mark.parametrize(
    "content",
    [
        PROSE.encode() * 9 + b"\0" + PROSE.encode() * 9,
        POEM.encode() * 9 + b"\0" + POEM.encode() * 9,
        POEM.encode("gb18030") * 50 + b"\0",
        PROSE.encode("utf-16-le"),
        bytes(range(256)) * 20,
        bytes(4000),
        b"\0\1" * 2000,
        gzip.compress(PROSE.encode(), mtime=0),
    ],
)
def test_content_with_zero_bytes_and_no_byte_order_mark_is_binary(content: bytes) -> None:
    assert encodings.looks_binary(content)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(),
    encoding=st.sampled_from(["utf-8-sig", "utf-16-le", "utf-16-be", "gb18030"]),
    chunk=st.integers(1, 9),
)
def test_decoding_does_not_depend_on_the_chunk_size(
    tmp_path_factory: pytest.TempPathFactory, text: str, encoding: str, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.txt"
    mark = "\ufeff" if encoding.startswith("utf-16") else ""
    path.write_bytes((mark + text).encode(encoding, "replace"))
    expected = text.encode(encoding, "replace").decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    with reader_limits(chunk):
        rows, _, stats = read_with_stats(source_file(path, "text", encoding))
    assert ("".join(row["text"] for row in rows), stats.undecodable) == (expected, 0)


def test_undecodable_bytes_are_replaced_and_counted(tmp_path: Path) -> None:
    content = (PROSE.encode() * 50 + b"\xff\xfe") * 10
    (tmp_path / "a.txt").write_bytes(content)
    with reader_limits():
        rows, _, stats = read_with_stats(source_file(tmp_path / "a.txt", "text"))
    assert "".join(row["text"] for row in rows) == (PROSE * 50 + "\ufffd\ufffd") * 10
    assert stats.undecodable == 20


# --- pieces ----------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("ab床\n\r "), max_size=400), piece=st.integers(1, 60), chunk=st.integers(1, 90))
@example(text="a" * 400, piece=10, chunk=7)
def test_pieces_join_to_the_text_and_have_bounded_length(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece: int, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "a.txt"
    path.write_bytes(text.encode("utf-8"))
    with reader_limits(chunk):
        pieces = [row["text"] for row in read(source_file(path, "text"), piece=piece)]
    assert "".join(pieces) == text.replace("\r\n", "\n").replace("\r", "\n")
    assert all(0 < len(text) <= 4 * piece for text in pieces)


# --- compressed files ------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
@pytest.mark.parametrize("cut", [1, 5, 0.5, 0.9])
def test_a_truncated_compressed_file_yields_its_rows_then_an_error_with_the_line(
    tmp_path: Path, compression: str, cut: float
) -> None:
    lines = b"".join(json.dumps({"text": random_bytes(20, row).hex()}).encode() + b"\n" for row in range(20_000))
    content = compress(lines, compression, parts=3)
    (tmp_path / "a").write_bytes(content[: int(len(content) * cut) if cut < 1 else -int(cut)])
    stats = Stats()
    with pytest.raises(TraindeckError) as caught:
        read_with_stats(source_file(tmp_path / "a", "jsonl", compression=compression), stats=stats)
    assert caught.value.code == "data.bad_format"
    assert caught.value.params["reason"] == "the compressed data breaks off"
    assert caught.value.params["position"] == f"its end, after line {stats.read}"
    assert stats.read > 20_000 * (cut if cut < 1 else 1) * 0.4  # rows before the cut, except those of the last chunk


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_damaged_or_uncompressed_content_is_rejected(tmp_path: Path, compression: str) -> None:
    damaged = bytearray(compress(random_bytes(100_000).hex().encode(), compression))
    if compression == "gzip":
        damaged[len(damaged) // 2] ^= 0x55
    else:
        damaged[4:12] = bytes(8)  # the frame header; the rest has no checksum
    for content in (bytes(damaged), PROSE.encode(), b"\x1f\x8b\x08", compress(b"abc", compression) + PROSE.encode()):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(TraindeckError) as caught:
            read(source_file(tmp_path / "a", "text", compression=compression))
        assert caught.value.code == "data.bad_format"


def test_gzip_may_be_padded_with_zeros(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(PROSE.encode(), mtime=0) + bytes(1000))
    assert read(source_file(tmp_path / "a", "text", compression="gzip")) == [{"text": PROSE}]


def test_skippable_zstd_frames_are_ignored(tmp_path: Path) -> None:
    notes = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    (tmp_path / "a").write_bytes(notes + pa.Codec("zstd").compress(PROSE.encode(), asbytes=True) + notes)
    assert read(source_file(tmp_path / "a", "text", compression="zstd")) == [{"text": PROSE}]


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_read_head_decompresses(tmp_path: Path, compression: str) -> None:
    content = random_bytes(700_000)
    (tmp_path / "a").write_bytes(compress(content, compression, 2) if compression else content)
    for size in (1, 1000, 600_000, 2_000_000):
        assert read_head(tmp_path / "a", compression, size) == content[:size]


def test_progress_counts_the_bytes_on_disk(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(compress(PROSE.encode() * 50_000, "gzip"))
    _, _, stats = read_with_stats(source_file(tmp_path / "a", "text", compression="gzip"))
    assert stats.done == (tmp_path / "a").stat().st_size
