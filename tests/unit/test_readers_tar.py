"""WebDataset shards: samples, and damaged or hostile archives."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reading import Stats, compress, read, read_with_stats, reader_limits, source_file, tar_archive
from trainer_core.messages import TraindeckError


def read_archive(folder: Path, content: bytes) -> tuple[list[dict[str, Any]], Stats]:
    (folder / "a.tar").write_bytes(content)
    rows, _, stats = read_with_stats(source_file(folder / "a.tar", "tar"))
    return rows, stats


def test_members_with_one_key_form_a_sample_and_others_are_ignored(tmp_path: Path) -> None:
    files = {
        "a/1.jpg": b"\xff\xd8",
        "a/1.txt": b"one",
        "a/1.json": b'{"source": "web", "text": "not this one"}',
        "a/2.json": b'{"prompt": "p", "response": "r"}',
        "b/2.txt": b"another 2",
        "b/._2.txt": b"macOS metadata",
        "readme": b"not a sample",
    }
    rows, stats = read_archive(tmp_path, tar_archive(files))
    assert rows == [{"source": "web", "text": "one"}, {"prompt": "p", "response": "r"}, {"text": "another 2"}]
    assert (stats.read, stats.bad, stats.position) == (3, 0, "sample b/2")


def test_a_second_text_with_the_same_key_begins_a_new_sample(tmp_path: Path) -> None:
    files = {"1.en.txt": b"hello", "1.zh.TXT": "你好".encode(), "1.json": b'{"n": 1}'}
    assert read_archive(tmp_path, tar_archive(files))[0] == [{"text": "hello"}, {"n": 1, "text": "你好"}]


def test_members_with_absolute_or_parent_paths_write_no_files(tmp_path: Path) -> None:
    for name in ("../a.txt", "/etc/a.txt", "C:\\a.txt", "..\\a.txt"):
        assert read_archive(tmp_path, tar_archive({"1.txt": b"one", name: b"out"}))[0] == [
            {"text": "one"},
            {"text": "out"},
        ]
        assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_links_devices_folders_and_pipes_are_ignored(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE):
            member = tarfile.TarInfo("1.txt")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        member = tarfile.TarInfo("2.txt")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"two"))
    rows, stats = read_archive(tmp_path, file.getvalue())
    assert (rows, stats.bad) == ([{"text": "two"}], 0)


def test_a_bad_member_makes_its_sample_a_bad_row(tmp_path: Path) -> None:
    files = {"1.json": b'{"cut', "2.json": b"[1]", "3.txt": b"x" * 2000, "4.txt": b"good", "5.json": b'{"text": NaN}'}
    with reader_limits(max_row_bytes=1000):
        rows, stats = read_archive(tmp_path, tar_archive(files))
    assert [str(row["text"]) for row in rows] == ["good", "nan"]
    assert (stats.bad, stats.first_bad) == (3, "sample 1")
    assert stats.reason.startswith(".json: ")


def test_the_encoding_of_each_member_is_detected(tmp_path: Path) -> None:
    text = "床前明月光，疑是地上霜。\n" * 20
    row = json.dumps({"prompt": text}, ensure_ascii=False)
    files = {f"{i}.txt": text.encode(name) for i, name in enumerate(("utf-8", "utf-8-sig", "gb18030", "utf-16"))}
    files |= {f"{i}.json": row.encode(name) for i, name in enumerate(("utf-8", "utf-8-sig", "gb18030", "utf-16"), 5)}
    rows, stats = read_archive(tmp_path, tar_archive(files))
    assert rows == [{"text": text}] * 4 + [{"prompt": text}] * 4
    assert (stats.bad, stats.undecodable) == (0, 0)


names = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/\\.:"), min_size=1, max_size=150)


@settings(max_examples=60, deadline=None)
@given(
    stems=st.lists(names, unique=True, max_size=12),
    folder=st.sampled_from(["", "./", "a/" * 90, "床/"]),
    format=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    compression=st.sampled_from(["", "gzip", "zstd"]),
    chunk=st.integers(1, 1000),
)
def test_archives_of_every_tar_format_are_read(
    tmp_path_factory: pytest.TempPathFactory, stems: list[str], folder: str, format: int, compression: str, chunk: int
) -> None:
    content = tar_archive({f"{folder}{stem}.txt": (stem * i).encode() for i, stem in enumerate(stems)}, format)
    path = tmp_path_factory.getbasetemp() / "a.tar"
    path.write_bytes(compress(content, compression, 3) if compression else content)
    with reader_limits(chunk):
        rows = read(source_file(path, "tar", compression=compression))
    assert rows == [{"text": stem * i} for i, stem in enumerate(stems)]


@pytest.mark.parametrize("size", [8**11 - 1, 2**62, 2**64])
def test_a_member_size_beyond_the_end_is_rejected(tmp_path: Path, size: int) -> None:
    member = tarfile.TarInfo("1.txt")
    member.size = size
    with pytest.raises(TraindeckError, match=r"after 1\.txt.*breaks off"):
        read_archive(tmp_path, member.tobuf(tarfile.GNU_FORMAT) + b"short")


@pytest.mark.parametrize("cut", [100, 600, 1100, 2048 + 700])
def test_a_truncated_archive_is_rejected(tmp_path: Path, cut: int) -> None:
    content = tar_archive({f"{i}.txt": b"x" * 700 for i in range(3)})
    with pytest.raises(TraindeckError) as caught:
        read_archive(tmp_path, content[:cut])
    assert caught.value.code == "data.bad_format"


def test_a_damaged_header_is_located_by_the_member_before_it(tmp_path: Path) -> None:
    content = bytearray(tar_archive({"1.txt": b"one", "2.txt": b"two"}))
    content[1024 + 130] ^= 1
    with pytest.raises(TraindeckError, match=r"after 1\.txt.*header"):
        read_archive(tmp_path, bytes(content))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" + bytes(600), b"words " * 200])
def test_files_of_other_formats_are_rejected(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(TraindeckError, match="not a tar archive"):
        read_archive(tmp_path, content)


def test_a_huge_extended_header_is_rejected_without_reading_it(tmp_path: Path) -> None:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 5 * 1024**3
    with pytest.raises(TraindeckError, match="its beginning"):
        read_archive(tmp_path, member.tobuf(tarfile.GNU_FORMAT) + bytes(10_000))


@pytest.mark.parametrize("record", [b"0 path=x\n", b"12 size=-5\n\n"])
def test_malformed_extended_headers_are_rejected(tmp_path: Path, record: bytes) -> None:
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, len(record)
    rest = tar_archive({"1.txt": b"one"})
    damaged = member.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0") + rest
    with pytest.raises(TraindeckError, match=r"its beginning|header is damaged"):
        read_archive(tmp_path, damaged)


def test_an_archive_without_end_marker_is_read_completely(tmp_path: Path) -> None:
    assert read_archive(tmp_path, tar_archive({"1.txt": b"one"})[:1024])[0] == [{"text": "one"}]
