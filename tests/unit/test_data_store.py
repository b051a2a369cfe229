"""Token files: written in a stream, gone on with, and read as one array."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.made_cache import add_document
from trainer_core.data import token_files
from trainer_core.data.token_files import Split, TokenFileWriter


@pytest.mark.parametrize(("vocab_size", "width"), [(65_536, 2), (65_537, 4)])
def test_tokens_are_read_across_shards(tmp_path: Path, vocab_size: int, width: int) -> None:
    writer = TokenFileWriter(tmp_path / "split", vocab_size, shard_tokens=10)
    tokens = list(range(vocab_size - 47, vocab_size))
    for start in range(0, 47, 6):
        add_document(writer, tokens[start : start + 6])
    writer.finish()
    shards = sorted((tmp_path / "split").glob("tokens-*.bin"))
    assert [shard.stat().st_size for shard in shards] == [10 * width] * 4 + [7 * width]
    split = pickle.loads(pickle.dumps(Split(tmp_path / "split", vocab_size, shard_tokens=10)))
    assert split.offsets.tolist() == [*range(0, 48, 6), 47] if 47 % 6 else True
    for start, stop in [(0, 47), (9, 11), (10, 20), (3, 3), (19, 41), (46, 47)]:
        assert split.read(start, stop).tolist() == tokens[start:stop]
    split.close()
    assert token_files.token_dtype(vocab_size) == f"<u{width}"


def test_a_writer_goes_on_from_a_commit_as_if_nothing_had_happened(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    documents = [draw.integers(0, 500, draw.integers(1, 30)).tolist() for _ in range(60)]

    def write(folder: Path, writer: TokenFileWriter, part: list[list[int]]) -> TokenFileWriter:
        for ids in part:
            add_document(writer, ids, [(0, 1), (len(ids) - 1, len(ids))])
        return writer

    write(tmp_path / "whole", TokenFileWriter(tmp_path / "whole", 500, shard_tokens=64), documents).finish()
    expected = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    for number, until in enumerate((0, 1, 7, 31, 59)):
        folder = tmp_path / f"broken {number}"
        first = write(folder, TokenFileWriter(folder, 500, shard_tokens=64), documents[:until])
        state = first.commit()
        write(folder, first, documents[until : until + 20]).abort()  # written, but never committed
        write(folder, TokenFileWriter(folder, 500, state, shard_tokens=64), documents[until:]).finish()
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == expected


def test_without_tokens_on_disk_the_counts_are_the_same(tmp_path: Path) -> None:
    for name, keep in (("with", True), ("without", False)):
        writer = TokenFileWriter(tmp_path / name, 500, keep_tokens=keep)
        for ids in ([1, 2, 3], [4, 5]):
            add_document(writer, ids)
        writer.finish()
    kept, counted = Split(tmp_path / "with", 500), Split(tmp_path / "without", 500)
    assert kept.offsets.tolist() == counted.offsets.tolist() == [0, 3, 5]
    assert not list((tmp_path / "without").glob("tokens-*"))
