"""Sampling of large data: whole lines, spread over the files, within a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reading import read
from trainer_core.data.column_mapping import PLAIN_TEXT
from trainer_core.data.readers.base import SourceFile
from trainer_core.data.report.sampling import sample_datasets
from trainer_core.data.sources import DatasetScan, DatasetScans

BUDGET = 600_000


def write_source(
    path: Path, content: bytes, kind: str = "text", encoding: str = "utf-8", compression: str = ""
) -> SourceFile:
    path.write_bytes(content)
    return SourceFile(path, kind, encoding, len(content), compression, PLAIN_TEXT)


def sample(*files: SourceFile, budget: int = BUDGET) -> list[SourceFile]:
    sampled = sample_datasets(DatasetScans([DatasetScan("data", files, ())]), budget)
    return [file for scan in sampled.train for file in scan.files]


def numbered_lines(count: int = 60_000) -> bytes:
    return "".join(f"第{n}行 {'x' * (n % 40)}\n" for n in range(count)).encode()


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_a_long_file_is_sampled_in_whole_lines_from_beginning_to_end(tmp_path: Path, encoding: str) -> None:
    content = numbered_lines().decode().encode(encoding)
    (source,) = sample(write_source(tmp_path / "long.txt", content, "text", encoding))
    assert len(source.ranges) == 9
    assert (source.ranges[0][0], source.ranges[-1][1]) == (0, len(content))
    assert abs(source.bytes_to_read - BUDGET) < 0.02 * BUDGET
    for start, end in source.ranges:
        assert start == 0 or content[start - 1 : start] == b"\n"
        assert content[end - 1 : end] == b"\n"
    text = "".join(row["text"] for row in read(source))
    assert text.encode(encoding) == b"".join(content[start:end] for start, end in source.ranges)


def test_files_that_cannot_be_divided_between_lines_are_sampled_from_the_beginning(tmp_path: Path) -> None:
    lines = numbered_lines()
    for source in (
        write_source(tmp_path / "line.txt", b"x" * 5_000_000),
        write_source(tmp_path / "a.csv", lines, "csv"),
        write_source(tmp_path / "utf-16.txt", lines, encoding="utf-16-le"),
        write_source(tmp_path / "a.jsonl.gz", lines, "jsonl", compression="gzip"),
    ):
        (sampled,) = sample(source)
        assert sampled.ranges == ()
        assert sampled.max_characters == pytest.approx(BUDGET, rel=0.01)


def test_every_file_is_read_in_proportion_to_its_size(tmp_path: Path) -> None:
    small, large = (
        write_source(tmp_path / name, b"x" * size, "csv") for name, size in (("a", 100_000), ("b", 5_000_000))
    )
    assert sample(small, large, budget=6_000_000) == [small, large]
    first, second = sample(small, large, budget=1_000_000)
    assert (first.path, second.path) == (small.path, large.path)
    assert first.bytes_to_read + second.bytes_to_read == pytest.approx(1_000_000, rel=0.01)
    many = [write_source(tmp_path / str(n), b"x" * 300_000, "csv") for n in range(400)]
    sampled = sample(*many, budget=3_000_000)
    assert 32 <= len(sampled) <= 64
    assert sum(file.bytes_to_read for file in sampled) == pytest.approx(3_000_000, rel=0.01)
    assert len(sample(*many, budget=10)) == 1


def test_most_small_files_of_a_sample_are_read_completely(tmp_path: Path) -> None:
    many = [write_source(tmp_path / str(n), b"x\n" * 5_000) for n in range(400)]
    sampled = sample(*many, budget=1_000_000)
    assert sum(file.bytes_to_read for file in sampled) == pytest.approx(1_000_000, rel=0.02)
    assert sum(file in many for file in sampled) > 60
