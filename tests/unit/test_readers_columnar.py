"""Parquet, Arrow files and Hugging Face data sets on disk."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.reading import Stats, columnar_file, random_bytes, read, read_with_stats, reader_limits, source_file
from trainer_core.config import Config
from trainer_core.data.formats import read_rows
from trainer_core.data.readers.base import FileInput
from trainer_core.data.readers.columnar import column_names
from trainer_core.data.sources import scan_path
from trainer_core.data.splits import saved_splits
from trainer_core.messages import Language, TraindeckError, format_message

KINDS = ("parquet", "arrow", "feather")
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "你好"}]


def write_table_file(tmp_path: Path, kind: str, table: pa.Table, rows: int = 7) -> Path:
    (tmp_path / "a").write_bytes(columnar_file(table, kind, rows))
    return tmp_path / "a"


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_converted_to_python_types(tmp_path: Path, kind: str) -> None:
    columns: dict[str, Any] = {
        "text": ["one", None, ""],
        "number": [1, None, 3],
        "share": [0.5, None, float("inf")],
        "messages": [CHAT, [], None],
        "choice": pa.array(["x", "y", "x"]).dictionary_encode(),
        "long": pa.array(["a", None, "c"], pa.large_string()),
        "a.b": ["dotted", "name", "名"],
    }
    path = write_table_file(tmp_path, kind, pa.table(columns))
    expected = [
        {
            "text": text,
            "number": number,
            "share": share,
            "messages": chat,
            "choice": choice,
            "long": long,
            "a.b": dotted,
        }
        for text, number, share, chat, choice, long, dotted in zip(
            *(column if isinstance(column, list) else column.to_pylist() for column in columns.values()), strict=True
        )
    ]
    assert read(source_file(path, kind)) == expected
    assert read(source_file(path, kind), ("a.b", "messages", "no")) == [
        {"messages": row["messages"], "a.b": row["a.b"]} for row in expected
    ]
    assert read(source_file(path, kind), ("no",)) == [{}, {}, {}]
    assert column_names(FileInput(source_file(path, kind))) == tuple(columns)


@pytest.mark.parametrize("kind", KINDS)
def test_binary_columns_are_decoded_and_bad_bytes_counted(tmp_path: Path, kind: str) -> None:
    table = pa.table({"text": pa.array([b"one", b"tw\xff\xfeo", None, "三".encode()], pa.binary())})
    rows, states, stats = read_with_stats(source_file(write_table_file(tmp_path, kind, table), kind))
    assert [row["text"] for row in rows] == ["one", "tw\ufffd\ufffdo", None, "三"]
    assert (stats.undecodable, stats.bad) == (2, 0)
    assert [state["undecodable"] for state in states] == [0, 2, 2, 2]


def unchecked_strings(*texts: bytes) -> pa.Array:
    """Return a string array of bytes that are not checked to be UTF-8."""
    return pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_utf_8_in_string_columns_is_replaced_and_counted(tmp_path: Path, kind: str) -> None:
    table = pa.table({"text": unchecked_strings(b"one", b"tw\xff", b"three")})
    rows, _, stats = read_with_stats(source_file(write_table_file(tmp_path, kind, table), kind))
    assert [row["text"] for row in rows] == ["one", "tw\ufffd", "three"]
    assert (stats.undecodable, stats.bad) == (1, 0)


def test_a_nested_value_with_invalid_utf_8_is_a_bad_row(tmp_path: Path) -> None:
    texts = unchecked_strings(b"a", b"b\xff", b"c", b"d")
    chats = pa.ListArray.from_arrays([0, 1, 2, 4], texts)
    rows, _, stats = read_with_stats(
        source_file(write_table_file(tmp_path, "parquet", pa.table({"text": chats})), "parquet")
    )
    assert [row["text"] for row in rows] == [["a"], ["c", "d"]]
    assert (stats.bad, stats.first_bad) == (1, "row 2")


@pytest.mark.parametrize("kind", KINDS)
def test_too_long_values_are_bad_rows(tmp_path: Path, kind: str) -> None:
    path = write_table_file(tmp_path, kind, pa.table({"text": ["a" * 10, "b" * 2000, "c" * 700] * 5}), rows=100)
    with reader_limits(max_row_bytes=1000):
        rows, _, stats = read_with_stats(source_file(path, kind))
    assert [row["text"][0] for row in rows] == ["a", "c"] * 5
    assert (stats.bad, stats.first_bad, stats.position) == (5, "row 2", "row 15")


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_other_formats_raise_bad_format(tmp_path: Path, kind: str) -> None:
    with zipfile.ZipFile(tmp_path / "zip", "w") as file:
        file.writestr("x", "y" * 1000)
    contents = [
        (tmp_path / "zip").read_bytes(),
        b"",
        b"words " * 100,
        b"FEA1" + bytes(100),
        b"PAR1" + random_bytes(300),
    ]
    contents += [columnar_file(pa.table({"text": ["a"]}), "arrow" if kind == "parquet" else "parquet")]
    for content in contents:
        (tmp_path / "a").write_bytes(content)
        source = source_file(tmp_path / "a", kind)
        for call in (lambda source: read(source), lambda source: column_names(FileInput(source))):
            with pytest.raises(TraindeckError) as caught:
                call(source)
            assert caught.value.code == "data.bad_format"


@pytest.mark.parametrize(("language", "text"), [("en", "end is missing"), ("zh", "缺少结尾")])
def test_a_truncated_parquet_file_has_its_own_reason(tmp_path: Path, language: Language, text: str) -> None:
    (tmp_path / "cut.parquet").write_bytes(columnar_file(pa.table({"text": ["a"] * 99}), "parquet")[:-9])
    with pytest.raises(TraindeckError) as caught:
        read(source_file(tmp_path / "cut.parquet", "parquet"))
    assert text in format_message(caught.value.code, caught.value.params, language)


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_reports_the_row_reached(tmp_path: Path, kind: str) -> None:
    path = write_table_file(
        tmp_path, kind, pa.table({"text": [random_bytes(50, row).hex() for row in range(5000)]}), rows=500
    )
    path.write_bytes(path.read_bytes()[:-50_000])
    stats = Stats()
    with pytest.raises(TraindeckError) as caught:
        read_with_stats(source_file(path, kind), stats=stats)
    assert caught.value.code == "data.bad_format"
    assert stats.read == (4500 if kind == "arrow" else 0)  # the other formats have their index at the end
    assert caught.value.params["position"] == (f"after row {stats.read}" if stats.read else "its beginning")


def test_a_damaged_page_reports_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a"
    table = pa.table({"text": [random_bytes(50, row).hex() for row in range(5000)]})
    pq.write_table(table, path, row_group_size=500, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    stats = Stats()
    with pytest.raises(TraindeckError) as caught:
        read_with_stats(source_file(path, "parquet"), stats=stats)
    assert caught.value.code == "data.bad_format"
    assert caught.value.params["position"] == f"after row {stats.read}"
    assert 2000 <= stats.read <= 2500


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not truncate a mapped file")
def test_an_arrow_file_truncated_while_reading_raises_an_error(tmp_path: Path) -> None:
    path = write_table_file(tmp_path, "arrow", pa.table({"text": ["words " * 50] * 5000}), rows=100)
    rows = read_rows(FileInput(source_file(path, "arrow")))
    next(rows)
    with path.open("r+b") as file:
        file.truncate(100_000)
    with pytest.raises(TraindeckError, match="shorter"):
        list(rows)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["arrow", "feather"])
def test_compressed_arrow_files_are_read(tmp_path: Path, kind: str, compression: str) -> None:
    table = pa.table({"id": list(range(3000)), "text": [f"some text {i} " * 9 for i in range(3000)]})
    open_writer = pa.ipc.new_stream if kind == "arrow" else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with open_writer(str(tmp_path / "a"), table.schema, options=options) as writer:
        writer.write_table(table, 1000)
    source = source_file(tmp_path / "a", kind)
    assert read(source, ("text",)) == table.select(["text"]).to_pylist()
    assert read(source, ("id",), skip=1500) == [{"id": i} for i in range(1500, 3000)]


@pytest.mark.parametrize("kind", KINDS)
def test_progress_increases_to_the_file_size(tmp_path: Path, kind: str) -> None:
    path = write_table_file(tmp_path, kind, pa.table({"text": ["words " * 50] * 1000}), rows=100)
    source = source_file(path, kind)
    file = FileInput(source)
    done = [file.done for _ in read_rows(file)]
    assert done == sorted(done)
    assert done[500] > source.bytes * 0.2
    assert source.bytes * 0.9 < file.done <= source.bytes


def test_duplicate_column_names_raise_no_error(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    for kind in KINDS:
        path = write_table_file(tmp_path, kind, table)
        assert [row["text"] for row in read(source_file(path, kind), ("text",))] in (["a"], ["b"])


# --- Hugging Face folders --------------------------------------------------------------------------


def save_dataset(folder: Path, texts: list[list[str]]) -> None:
    """Write a folder as `Dataset.save_to_disk` does, with one file for each list of texts."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{len(texts):05}.arrow" for i in range(len(texts))]
    for name, values in zip(names, texts, strict=True):
        (folder / name).write_bytes(columnar_file(pa.table({"text": values}), "arrow"))
    (folder / "dataset_info.json").write_text('{"features": {}}', encoding="utf-8")
    state = {"_data_files": [{"filename": name} for name in reversed(names)], "_split": None}
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")


def read_splits(folder: Path) -> dict[str, list[str]]:
    return {
        split: [row["text"] for file in files for row in read(source_file(file, "arrow"))]
        for split, files in saved_splits(folder).items()
    }


def write_split_list(folder: Path, *names: str) -> None:
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": names}), encoding="utf-8")


def test_files_of_a_saved_data_set_are_read_in_the_stored_order(tmp_path: Path) -> None:
    save_dataset(tmp_path / "d", [["a", "b"], ["c"]])
    (tmp_path / "d" / "cache-1.arrow").write_bytes(b"unrelated")
    assert read_splits(tmp_path / "d") == {"": ["c", "a", "b"]}


def test_the_splits_of_a_saved_data_set_are_found(tmp_path: Path) -> None:
    save_dataset(tmp_path / "test", [["a"]])
    save_dataset(tmp_path / "train_sft", [["b"]])
    save_dataset(tmp_path / "train_gen", [["c"]])
    write_split_list(tmp_path, "test", "train_sft", "train_gen", "no", "..")
    assert read_splits(tmp_path) == {"test": ["a"], "train": ["b", "c"]}
    write_split_list(tmp_path, "..")
    assert read_splits(tmp_path) == {}


def test_a_data_set_without_a_train_split_is_rejected_with_the_names_of_its_splits(tmp_path: Path) -> None:
    for name in ("test", "validation"):
        save_dataset(tmp_path / name, [[name]])
    write_split_list(tmp_path, "train", "test", "validation")  # the folder `train` is missing
    with pytest.raises(TraindeckError) as caught:
        scan_path(str(tmp_path), Config())
    assert caught.value.code == "data.no_train_split"
    assert caught.value.params["found"] == "test, validation"
    assert scan_path(str(tmp_path), Config(), validation=True).split == "validation"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"_data_files": 5}', '{"splits": {}}', '{"_data_files": [5]}'])
def test_unrelated_json_files_are_not_a_data_set(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content, encoding="utf-8")
    (tmp_path / "dataset_dict.json").write_text(content, encoding="utf-8")
    assert not saved_splits(tmp_path)


def test_a_data_set_cannot_refer_to_files_outside_its_folder(tmp_path: Path) -> None:
    state = {"_data_files": [{"filename": "../../secret.arrow"}]}
    (tmp_path / "state.json").write_text(json.dumps(state), encoding="utf-8")
    assert saved_splits(tmp_path) == {"": [tmp_path / "secret.arrow"]}
