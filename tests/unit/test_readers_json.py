"""JSON arrays in any layout and chunk size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reading import Stats, read_with_stats, reader_limits, source_file
from trainer_core.data.formats import read_rows
from trainer_core.data.readers.base import FileInput
from trainer_core.messages import TraindeckError

texts = st.text(st.sampled_from('ab"\\{}[],: \n床\ud800'), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.just(float("nan")) | texts
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
arrays = st.lists(st.dictionaries(texts, values, max_size=3) | values, max_size=30)


def read_array(folder: Path, content: str | bytes) -> tuple[list[dict[str, Any]], Stats]:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    (folder / "a.json").write_bytes(data)
    rows, _, stats = read_with_stats(source_file(folder / "a.json", "json"))
    return rows, stats


@settings(max_examples=150, deadline=None)
@given(array=arrays, chunk=st.integers(1, 400), indent=st.sampled_from([None, 0, 2]), ascii=st.booleans())
def test_objects_are_rows_and_other_elements_are_bad_rows(
    tmp_path_factory: pytest.TempPathFactory, array: list[Any], chunk: int, indent: int | None, ascii: bool
) -> None:
    folder = tmp_path_factory.getbasetemp()
    content = json.dumps(array, indent=indent, ensure_ascii=ascii)
    expected = [row for row in json.loads(content.encode("utf-8", "replace")) if isinstance(row, dict)]
    with reader_limits(chunk):
        rows, stats = read_array(folder, content.encode("utf-8", "replace"))
    assert repr(rows) == repr(expected)
    assert (stats.bad, stats.read) == (len(array) - len(rows), len(array))


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_reading_continues_after_a_malformed_element(tmp_path: Path, chunk: int) -> None:
    with reader_limits(chunk):
        rows, stats = read_array(
            tmp_path, '[{"a": 1}, {"a": tru}, {"a" 2}, x, {"a": 3},, {"a": 4}}, {"a": 5}, {"a": 6} {"a": 7}]'
        )
    assert [row["a"] for row in rows] == [1, 3, 5]
    assert (stats.bad, stats.first_bad) == (5, "element 2")


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("end", [",", ', {"a": 3', ', {"a": "tw', ", 17", ', {"a": "\\'])
def test_a_truncated_array_yields_its_rows_then_an_error_with_the_position(
    tmp_path: Path, chunk: int, end: str
) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": 2}' + end, encoding="utf-8")
    rows = read_rows(FileInput(source_file(tmp_path / "a.json", "json")))
    with reader_limits(chunk):
        assert [next(rows), next(rows)] == [{"a": 1}, {"a": 2}]
        with pytest.raises(TraindeckError, match=r"element 3.*ends too early"):
            next(rows)


@pytest.mark.parametrize("content", ["", "  \n", '{"a": 1}', "words", "\0"])
def test_a_file_without_an_array_is_rejected(tmp_path: Path, content: str) -> None:
    with pytest.raises(TraindeckError, match="the beginning") as caught:
        read_array(tmp_path, content)
    assert caught.value.code == "data.bad_format"


def test_content_after_the_array_is_ignored(tmp_path: Path) -> None:
    assert read_array(tmp_path, '[{"a": 1}] trailing ] } words')[0] == [{"a": 1}]


def test_elements_may_span_many_chunks(tmp_path: Path) -> None:
    array = [{"text": "x\\" * n + '"床"'} for n in (10, 9_000, 5, 250, 7)]
    with reader_limits(100):
        assert read_array(tmp_path, json.dumps(array))[0] == array


def test_nested_brackets_do_not_split_an_element(tmp_path: Path) -> None:
    array = [{"messages": [{"role": "user", "content": "},{ ],["}] * 9}] * 500
    rows, stats = read_array(tmp_path, json.dumps(array))
    assert rows == array
    assert stats.bad == 0
