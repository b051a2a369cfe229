"""Peak memory of the readers, measured in a separate process."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer_core.data import formats
from trainer_core.data.readers.base import FileInput, SourceFile

MIB = 1024 * 1024

# Prints the number of good rows, the number of bad rows, and the peak memory in MiB.
SCRIPT = """
import sys
from pathlib import Path
from trainer_core.data.formats import FORMATS, read_rows
from trainer_core.data.readers.base import FileInput, SourceFile

path, kind, compression = Path(sys.argv[1]), *sys.argv[2:]
source = SourceFile(path, kind, "" if FORMATS[kind].binary else "utf-8", path.stat().st_size, compression)
good = bad = 0
for row in read_rows(FileInput(source, ("text",) if FORMATS[kind].tabular else ())):
    good, bad = good + (not isinstance(row, str)), bad + isinstance(row, str)
if sys.platform == "win32":
    import psutil
    peak = psutil.Process().memory_info().peak_wset
elif sys.platform == "linux":  # ru_maxrss includes memory of the parent at the fork
    peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
else:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(good, bad, peak // 1024**2)
"""


def measure_reader(path: Path, kind: str, compression: str = "") -> tuple[int, int, int]:
    """Return the number of good rows, the number of bad rows, and the peak memory in MiB."""
    command = [sys.executable, "-c", SCRIPT, str(path), kind, compression]
    root = Path(formats.__file__).parents[2]
    result = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root, timeout=120)
    good, bad, peak = map(int, result.stdout.split())
    return good, bad, peak


def file_with_long_row(kind: str, text: str, size: int) -> Iterator[bytes]:
    """Yield the parts of a file with a short row, a row of `size` bytes, and another short row."""
    row = {"jsonl": '{"text": "%s"}', "json": '{"text": "%s"}', "csv": '"%s"', "text": "%s"}[kind]
    start, between, end = {"csv": ("text\n", "\n", "\n"), "json": ("[", ",", "]")}.get(kind, ("", "\n", "\n"))
    before, after = row.split("%s")
    yield f"{start}{before}good{after}{between}{before}".encode()
    part = text.encode() * (MIB // len(text.encode()))
    for _ in range(size // len(part)):
        yield part
    yield f"{after}{between}{before}good{after}{end}".encode()


@pytest.mark.parametrize("text", ["床前明月光", "a smile 😀"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "text"])
def test_a_line_of_200_megabytes_is_read_in_bounded_memory(tmp_path: Path, kind: str, text: str) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.writelines(file_with_long_row(kind, text, 200 * 1000 * 1000))
    good, bad, peak = measure_reader(tmp_path / "a", kind)
    assert (good, bad) == (2, 1) if kind != "text" else (good > 500 and bad == 0)
    assert peak < 250


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_the_longest_valid_line_is_read_in_600_mebibytes(tmp_path: Path, kind: str) -> None:
    size = 30 * MIB if kind == "csv" else 62 * MIB
    with (tmp_path / "a").open("wb") as file:
        file.writelines(file_with_long_row(kind, "plain words and a smile 😀", size))
    good, bad, peak = measure_reader(tmp_path / "a", kind)
    assert (good, bad) == (3, 0)
    assert peak < 600


def test_a_file_that_unpacks_to_half_a_gigabyte_is_read_in_bounded_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a", "wb", compresslevel=1) as file:
        for _ in range(512):
            file.write(b"x" * MIB)
    good, bad, peak = measure_reader(tmp_path / "a", "jsonl", "gzip")
    assert (good, bad) == (0, 1)
    assert peak < 250


def text_table(rows: int) -> pa.Table:
    """Return rows of 1,000 random letters."""
    letters = np.random.default_rng(0).integers(97, 123, rows * 1000, np.uint8)
    offsets = pa.py_buffer(np.arange(0, rows * 1000 + 1, 1000, dtype=np.int64))
    text = pa.Array.from_buffers(pa.large_string(), rows, [None, offsets, pa.py_buffer(letters)])
    return pa.table({"id": np.arange(rows), "text": text})


def test_a_row_group_of_300_megabytes_is_read_in_bounded_memory(tmp_path: Path) -> None:
    pq.write_table(text_table(300_000), tmp_path / "a", row_group_size=300_000, compression="none")
    good, bad, peak = measure_reader(tmp_path / "a", "parquet")
    assert (good, bad) == (300_000, 0)
    assert peak < 250


@pytest.mark.parametrize("open_writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_an_arrow_batch_of_300_megabytes_is_mapped_and_not_copied(tmp_path: Path, open_writer: type) -> None:
    table = text_table(300_000)
    with open_writer(str(tmp_path / "a"), table.schema) as writer:
        writer.write_batch(table.combine_chunks().to_batches()[0])
    del table
    source = SourceFile(tmp_path / "a", "arrow", "", (tmp_path / "a").stat().st_size)
    before, peak_allocated = pa.total_allocated_bytes(), 0
    for _ in formats.read_rows(FileInput(source, ("text",))):
        peak_allocated = max(peak_allocated, pa.total_allocated_bytes())
    assert peak_allocated - before < 10 * MIB
    good, bad, peak = measure_reader(tmp_path / "a", "arrow")
    assert (good, bad) == (300_000, 0)
    assert peak < 250 + 300  # includes the pages of the mapped file, which the system can reclaim
