"""Training data that is encoded on the fly: the same tokens as in a token cache."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.prepared_data import prepare_files
from trainer_core.data import uncached
from trainer_core.data.uncached import OnTheFlySplit
from trainer_core.messages import TraindeckError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(uncached, "_RUN_TOKENS", 700)


@pytest.fixture(params=["text", "pairs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two parquet files with several row groups, an empty row and an unusable row."""
    (tmp_path / "数据").mkdir()
    for number in range(2):
        texts: list[str | None] = [f"Row {i} of file {number}, which says {'much ' * (i % 50)}." for i in range(300)]
        if request.param == "text":
            texts[17], texts[40] = "", None
            table = pa.table({"text": texts})
        else:
            texts[17] = None
            table = pa.table({"prompt": [f"What is row {i}?" for i in range(300)], "response": texts})
        pq.write_table(table, tmp_path / "数据" / f"{number}.parquet", row_group_size=70)
    return tmp_path / "数据"


@pytest.mark.parametrize("split", ["train", "validation"])
def test_any_range_of_tokens_equals_that_of_the_token_cache(folder: Path, split: str) -> None:
    cached = prepare_files(folder).open_split(split)
    uncached = prepare_files(folder, token_cache=False).open_split(split)
    assert isinstance(uncached, OnTheFlySplit) == (split == "train")
    stored = (uncached.folder / "tokens.bin").stat().st_size > 0
    assert stored == (split == "validation")  # evaluation reads it repeatedly, in random order
    assert np.array_equal(cached.offsets, uncached.offsets)
    assert np.array_equal(cached.spans, uncached.spans)
    assert np.array_equal(cached.read(0, cached.tokens), uncached.read(0, uncached.tokens))
    rng = np.random.default_rng(1)
    unpickled = pickle.loads(pickle.dumps(uncached))
    for start, stop in np.sort(rng.integers(0, cached.tokens + 1, (60, 2)), axis=1).tolist():
        assert np.array_equal(cached.read(start, stop), unpickled.read(start, stop))
    unpickled.close()


def test_rows_that_changed_after_preparation_raise_an_error(folder: Path) -> None:
    split = prepare_files(folder, token_cache=False).open_split("train")
    pq.write_table(pq.read_table(folder / "0.parquet").slice(0, 50), folder / "0.parquet")
    with pytest.raises(TraindeckError) as caught:
        split.read(0, 4000)
    assert caught.value.code == "data.changed_while_read"


def test_formats_other_than_parquet_require_the_token_cache(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words " * 2000, encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        prepare_files(tmp_path / "a.txt", token_cache=False)
    assert caught.value.code == "data.needs_cache"
