"""Slices of a long file: whole lines from all over it, and places that can be found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer_core.data.formats import SourceFile
from trainer_core.data.report.sampling import slice_file

SIZE = 600_000


def source(
    path: Path, content: bytes, kind: str = "jsonl", encoding: str = "utf-8", compression: str = ""
) -> SourceFile:
    path.write_bytes(content)
    return SourceFile(path, kind, encoding, len(content), compression)


def numbered(count: int = 60_000) -> bytes:
    return "".join(f"第{n}行 {'x' * (n % 40)}\n" for n in range(count)).encode()


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_slices_are_whole_lines_from_beginning_to_end(tmp_path: Path, encoding: str) -> None:
    lines = numbered().decode().encode(encoding).splitlines(keepends=True)
    whole = source(tmp_path / "long.txt", b"".join(lines), "text", encoding)
    slices = slice_file(whole, SIZE, tmp_path / "slices")
    assert slices is not None
    taken = (tmp_path / "slices").read_bytes().splitlines(keepends=True)
    assert set(taken) <= set(lines)
    assert len(set(taken)) == len(taken)
    assert (taken[0], taken[-1]) == (lines[0], lines[-1])
    assert slices.source.bytes == sum(map(len, taken))
    assert abs(slices.source.bytes - SIZE) < 0.02 * SIZE
    for first, offset in zip(slices.start_lines, slices.start_offsets, strict=True):
        assert b"".join(lines).startswith(taken[first], offset)


def test_a_place_in_the_slices_is_told_as_one_in_the_file(tmp_path: Path) -> None:
    content = numbered()
    slices = slice_file(source(tmp_path / "long.jsonl", content), SIZE, tmp_path / "slices")
    assert slices is not None
    assert slices.original_position("line 17") == "line 17"
    assert slices.original_position("the beginning") == "the beginning"
    for line, text in enumerate((tmp_path / "slices").read_bytes().splitlines(), 1):
        told = slices.original_position(f"line {line}")
        if line > slices.start_lines[1]:
            number, offset = told.removeprefix("line ").split(" after byte ")
            assert content[int(offset) :].split(b"\n", int(number))[int(number) - 1] == text
            break
    last = slices.original_position(f"line {slices.start_lines[-1] + 3}")
    assert last == f"line 3 after byte {slices.start_offsets[-1]}"


def test_what_cannot_be_cut_between_lines_is_left_alone(tmp_path: Path) -> None:
    one_line = source(tmp_path / "line.txt", b"x" * 5_000_000, "text")
    assert slice_file(one_line, SIZE, tmp_path / "slices") is None
    lines = numbered()
    for kind, encoding, compression in (("csv", "utf-8", ""), ("text", "utf-16", ""), ("jsonl", "utf-8", "gzip")):
        assert slice_file(source(tmp_path / "f", lines, kind, encoding, compression), SIZE, tmp_path / "slices") is None
    assert slice_file(source(tmp_path / "short", lines[: SIZE + 9]), SIZE, tmp_path / "slices") is None
