"""Token files: streamed writes, resumed writes, and reads as one array."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.token_caches import add_document
from trainer_core.data.token_files import Split, TokenFileWriter


@pytest.mark.parametrize(("vocab_size", "width"), [(65_536, 2), (65_537, 4)])
def test_any_range_of_tokens_is_read_back(tmp_path: Path, vocab_size: int, width: int) -> None:
    writer = TokenFileWriter(tmp_path / "split", vocab_size)
    tokens = list(range(vocab_size - 47, vocab_size))
    for start in range(0, 47, 6):
        add_document(writer, tokens[start : start + 6])
    writer.finish()
    assert (tmp_path / "split" / "tokens.bin").stat().st_size == 47 * width
    split = pickle.loads(pickle.dumps(Split(tmp_path / "split", vocab_size)))
    assert split.offsets.tolist() == [*range(0, 48, 6), 47]
    for start, stop in [(0, 47), (9, 11), (3, 3), (46, 47)]:
        assert split.read(start, stop).tolist() == tokens[start:stop]
    split.close()


def test_a_writer_that_resumes_from_a_commit_writes_identical_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    documents = [rng.integers(0, 500, rng.integers(1, 30)).tolist() for _ in range(60)]

    def write(writer: TokenFileWriter, documents: list[list[int]]) -> TokenFileWriter:
        for ids in documents:
            add_document(writer, ids, [(0, 1), (len(ids) - 1, len(ids))])
        return writer

    write(TokenFileWriter(tmp_path / "uninterrupted", 500), documents).finish()
    expected = {file.name: file.read_bytes() for file in (tmp_path / "uninterrupted").iterdir()}
    for committed in (0, 1, 7, 31, 59):
        folder = tmp_path / f"interrupted {committed}"
        first = write(TokenFileWriter(folder, 500), documents[:committed])
        state = first.commit()
        write(first, documents[committed : committed + 20]).abort()  # written, not committed
        write(TokenFileWriter(folder, 500, state), documents[committed:]).finish()
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == expected
