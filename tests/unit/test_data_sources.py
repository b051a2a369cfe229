"""Scanning and reading of data files: formats, encodings, folders, errors and warnings."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.prepared_data import RecordingReporter
from tests.reading import random_bytes
from trainer_core.config import Config, knobs
from trainer_core.data import formats, sources
from trainer_core.data.documents import DocumentStream
from trainer_core.data.sources import scan_datasets, scan_path
from trainer_core.messages import TraindeckError, is_known
from trainer_core.messages.data import translate_reason

POEM = "床前明月光，疑是地上霜。\n举头望明月，低头思故乡。\n"


class Piece(NamedTuple):
    """A document as (number, prompt, text or response)."""

    document: int
    prompt: str
    text: str


def read_pieces(*paths: Path | str, reporter: RecordingReporter | None = None, **knobs: Any) -> list[Piece]:
    config = Config(**knobs)
    scans = [scan_path(str(path), config) for path in paths]
    pieces = []
    for document in DocumentStream(scans, config, reporter):
        turns = dict(document.turns)
        assert not turns or list(turns) == ["user", "assistant"]
        pieces.append(Piece(document.number, turns.get("user", ""), turns.get("assistant", document.text)))
    return pieces


def texts(*paths: Path | str, **knobs: Any) -> list[str]:
    return [piece.text for piece in read_pieces(*paths, **knobs)]


def error_code(path: Path | str, **knobs: Any) -> str:
    with pytest.raises(TraindeckError) as caught:
        read_pieces(path, **knobs)
    assert is_known(caught.value.code)
    assert "?" not in str(caught.value).replace("?”", "")  # a missing parameter is shown as “?”
    return caught.value.code


# --- bad input -------------------------------------------------------------------------------------


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    assert error_code(tmp_path / "nothing.txt") == "data.not_found"


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b" \r\n\t\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_a_file_without_text_is_empty(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert error_code(tmp_path / name) == "data.empty"


def test_an_image_named_txt_is_binary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + random_bytes(5000))
    assert error_code(tmp_path / "a.txt") == "data.binary"


def test_an_unknown_binary_file_is_an_unknown_format(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(b"PK\x03\x04" + bytes(100))
    assert error_code(tmp_path / "a.docx") == "data.unknown_format"


def test_a_text_file_with_an_unknown_suffix_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.chapter").write_text("Once upon a time\n", encoding="utf-8")
    assert texts(tmp_path / "a.chapter") == ["Once upon a time\n"]


def test_missing_columns_list_the_existing_ones(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "title": ["hello"]}), tmp_path / "a.parquet")
    with pytest.raises(TraindeckError, match="id, title") as caught:
        read_pieces(tmp_path / "a.parquet")
    assert caught.value.code == "data.missing_columns"
    assert texts(tmp_path / "a.parquet", text_column="title") == ["hello"]


def test_a_missing_response_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "hi", "answer": "ho"}\n', encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        read_pieces(tmp_path / "a.jsonl")
    assert caught.value.params["wanted"] == "response"


def test_plain_text_is_rejected_for_sft(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    assert error_code(tmp_path / "a.txt", task="sft") == "data.missing_columns"


def test_bad_lines_are_skipped_counted_and_located(tmp_path: Path) -> None:
    lines = ['{"text": "one"}', '{"text": "two"', "[1]", '{"text": null}', '{"text": "three"}', '{"text": "four"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    reporter = RecordingReporter()
    assert [piece.text for piece in read_pieces(tmp_path / "a.jsonl", reporter=reporter)] == ["one", "three", "four"]
    assert list(reporter.warnings) == ["data.rows_skipped"]
    warning = reporter.warnings["data.rows_skipped"]
    assert (warning["count"], warning["position"]) == (2, "line 2")


def test_a_file_of_mostly_bad_lines_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + "bad\n" * 500, encoding="utf-8")
    assert error_code(tmp_path / "a.jsonl") == "data.bad_format"


def test_a_folder_without_data_files_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff")
    assert error_code(tmp_path) == "data.no_files"


@pytest.mark.parametrize("names", [("a.txt", "b.jsonl"), ("b.jsonl", "a.txt"), ("novels", "b.jsonl")])
def test_mixed_text_and_conversations_are_rejected_with_both_paths(tmp_path: Path, names: tuple[str, ...]) -> None:
    (tmp_path / "novels").mkdir()
    for text in (tmp_path / "a.txt", tmp_path / "novels" / "1.txt"):
        text.write_text("text", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"prompt": "a", "response": "b"}', encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        scan_datasets(Config(data=[str(tmp_path / name) for name in names]))
    text = next(name for name in names if name != "b.jsonl")
    assert (caught.value.code, caught.value.exit_code) == ("data.mixed", 4)
    assert caught.value.params == {"text": str(tmp_path / text), "chats": str(tmp_path / "b.jsonl")}


def test_skipped_files_have_reasons_in_both_languages(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 3, encoding="utf-8")
    (tmp_path / "novel.txt").write_text("A dark night.", encoding="utf-8")
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(500))
    (tmp_path / "other.csv").write_text("id,title\n1,one\n", encoding="utf-8")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(random_bytes(900))[:-50])
    pq.write_table(pa.table({"text": ["some text"] * 500}), tmp_path / "cut.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "cut.parquet").read_bytes()[:-9])
    skipped = {Path(file.path).name: file for file in scan_path(str(tmp_path), Config()).skipped}
    assert {name: file.reason for name, file in skipped.items()} == {
        "cut.parquet": "its end is missing, or it is a file of another kind",
        "cut.txt.gz": "the compressed data breaks off",
        "novel.txt": "it is plain text beside conversations",
        "other.csv": "it has no column “text”",
        "picture.txt": "it looks like a binary file, not text",
    }
    assert skipped["novel.txt"].code == "data.other_task"
    assert [file.reason for file in skipped.values() if translate_reason(file.reason, "zh").isascii()] == []


# --- encodings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gb18030", "gbk"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_chinese_text_is_read_in_every_encoding_and_line_end(tmp_path: Path, encoding: str, line_end: str) -> None:
    text = POEM * 200
    (tmp_path / "a.txt").write_bytes(text.replace("\n", line_end).encode(encoding))
    reporter = RecordingReporter()
    read = read_pieces(tmp_path / "a.txt", reporter=reporter)
    assert "".join(piece.text for piece in read) == text
    assert reporter.warnings == {}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "gb18030"])
def test_tables_are_read_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    rows = [{"prompt": "你好", "response": "您好，很高兴见到您"}] * 3
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "a.jsonl").write_bytes(lines.encode(encoding))
    (tmp_path / "b.csv").write_bytes("prompt,response\r\n你好,您好\r\n".encode(encoding))
    (tmp_path / "c.json").write_bytes(json.dumps(rows, ensure_ascii=False).encode(encoding))
    assert read_pieces(tmp_path / "a.jsonl")[2] == (2, "你好", "您好，很高兴见到您")
    assert read_pieces(tmp_path / "b.csv") == [(0, "你好", "您好")]
    assert len(read_pieces(tmp_path / "c.json")) == 3


def test_one_bad_byte_does_not_turn_utf_8_into_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(POEM.encode() * 50 + b"\xff" + POEM.encode() * 50)
    reporter = RecordingReporter()
    read = "".join(piece.text for piece in read_pieces(tmp_path / "a.txt", reporter=reporter))
    assert read == POEM * 50 + "�" + POEM * 50
    assert list(reporter.warnings) == ["data.undecodable"]
    warning = reporter.warnings["data.undecodable"]
    assert (warning["count"], warning["encoding"]) == (1, "utf-8")


def test_gb18030_after_a_megabyte_of_ascii_is_detected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"plain ascii\n" * 120_000 + POEM.encode("gb18030") * 5000)
    assert scan_path(str(tmp_path / "a.txt"), Config()).summarize("encoding") == "gb18030"


TRADITIONAL_POEM = "床前明月光，疑是地上霜。\n舉頭望明月，低頭思故鄉。\n"


@pytest.mark.parametrize("encoding", ["cp950", "big5hkscs", "gb18030"])
@pytest.mark.parametrize("times", [1, 60_000])
@pytest.mark.parametrize("end", ["\n", ""])
def test_traditional_chinese_is_detected_as_big5_or_gb18030(
    tmp_path: Path, encoding: str, times: int, end: str
) -> None:
    text = TRADITIONAL_POEM.replace("\n", end) * times
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert "".join(texts(tmp_path / "a.txt")) == text


def test_hong_kong_characters_are_detected(tmp_path: Path) -> None:
    text = (TRADITIONAL_POEM * 3 + "佢哋喺邊度？我唔知，嘅咗啲嘢冇㗎喎。\n") * 100
    (tmp_path / "a.txt").write_bytes(text.encode("big5hkscs"))
    assert "".join(texts(tmp_path / "a.txt")) == text


def test_japanese_text_is_read_as_shift_jis(tmp_path: Path) -> None:
    text = "吾輩は猫である。名前はまだ無い。\n" * 100
    (tmp_path / "a.txt").write_bytes(text.encode("cp932"))
    assert "".join(texts(tmp_path / "a.txt")) == text


@pytest.mark.parametrize(("encoding", "text"), [("cp1252", "Ünïcödé façade"), ("gb18030", "你好，世界。今天天气很好")])
def test_a_long_ascii_text_may_precede_the_first_other_character(tmp_path: Path, encoding: str, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 20_000 + text.encode(encoding) + b"\n")
    scan = scan_path(str(tmp_path), Config())
    assert scan.files[0].encoding == encoding


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    list_folder = os.scandir

    def refuse(path: Any) -> Any:  # permissions do not stop root, as which the tests may run
        if Path(path).name == "inner":
            raise PermissionError(13, "Permission denied", str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(TraindeckError) as caught:
        scan_path(str(tmp_path), Config())
    assert (caught.value.code, caught.value.params["path"]) == ("data.unreadable", str(tmp_path / "inner"))


def test_one_bad_byte_does_not_turn_gb18030_into_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(POEM.encode("gb18030") + b"\xff\n" + POEM.encode("gb18030"))
    assert "".join(texts(tmp_path / "a.txt")) == POEM + "�\n" + POEM


def test_a_file_of_white_space_including_ideographic_spaces_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \t\u3000\u3000\r\n" * 500, encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        scan_path(str(tmp_path / "a.txt"), Config())
    assert caught.value.code == "data.empty"


def test_western_text_is_not_read_as_chinese(tmp_path: Path) -> None:
    text = "El niño comió en el café. Él está aquí, ¿sí? Mañana será otro día.\n" * 50
    (tmp_path / "a.txt").write_bytes(text.encode("cp1252"))
    assert "".join(texts(tmp_path / "a.txt")) == text


def test_lone_surrogates_from_json_escapes_become_replacement_characters(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\\ud800b\\ud83d\\ude00"}', encoding="utf-8")
    assert texts(tmp_path / "a.jsonl") == ["a�b😀"]


# --- formats ---------------------------------------------------------------------------------------

ROWS = [{"prompt": f"question {i}", "response": f"answer {i}\nwith, a comma and “quotes”"} for i in range(700)]


def write_rows(path: Path) -> Path:
    """ROWS in the format of the path's suffix."""
    kind = path.suffix
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=100)
    elif kind == ".json":
        path.write_text(json.dumps(ROWS, ensure_ascii=False, indent=1), encoding="utf-8")
    elif kind == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["prompt", "response"], delimiter="\t" if kind == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(ROWS)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".tsv", ".parquet"])
def test_every_table_format_yields_the_same_pairs(tmp_path: Path, suffix: str) -> None:
    read = read_pieces(write_rows(tmp_path / f"a{suffix}"))
    assert read == [(i, row["prompt"], row["response"]) for i, row in enumerate(ROWS)]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    config = Config()
    for suffix in (".jsonl", ".json", ".csv", ".parquet"):
        stream = DocumentStream([scan_path(str(write_rows(tmp_path / f"a{suffix}")), config)], config)
        done = [stream.bytes_done for _ in stream]
        assert done == sorted(done)
        assert stream.bytes_done == stream.total_bytes > 0


def test_a_json_file_with_one_object_a_line_is_read_as_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "one"}\n{"text": "two"}\n', encoding="utf-8")
    assert texts(tmp_path / "a.json") == ["one", "two"]


def test_numbers_in_a_table_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "1+1", "response": 2}\n', encoding="utf-8")
    assert read_pieces(tmp_path / "a.jsonl") == [(0, "1+1", "2")]


def test_a_line_separator_within_json_does_not_end_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert texts(tmp_path / "a.jsonl") == ["a\u2028b\x85c"]


def test_a_text_column_takes_precedence_unless_the_task_is_sft(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "t", "prompt": "p", "response": "r"}\n', encoding="utf-8")
    assert scan_path(str(tmp_path / "a.jsonl"), Config()).task == "pretrain"
    assert scan_path(str(tmp_path / "a.jsonl"), Config(task="sft")).task == "sft"


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("问,答\n你是谁,模型\n", encoding="utf-8")
    scan = scan_path(str(tmp_path / "a.csv"), Config(prompt_column="问", response_column="答"))
    assert (scan.columns, scan.task) == (("问", "答"), "sft")


# --- folders and pieces ----------------------------------------------------------------------------


def test_the_files_of_a_folder_are_read_in_order_of_name_without_hidden_ones(tmp_path: Path) -> None:
    for name in ("c/2.txt", "c/1.md", "a.py", ".git/x.txt", "B/0.txt", "c/.hidden.txt", "photo.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert texts(tmp_path) == ["B/0.txt", "a.py", "c/1.md", "c/2.txt"]


def test_the_token_cache_inside_the_data_folder_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("good", encoding="utf-8")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "texts.jsonl").write_text('{"text": "not data"}', encoding="utf-8")
    assert texts(tmp_path, cache_dir=str(tmp_path / "cache")) == ["good"]


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "语料 & data").mkdir()
    (tmp_path / "语料 & data" / "a!.txt").write_text("good", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert texts("语料 & data") == texts("语料 & data/a!.txt") == texts(".") == ["good"]


def test_a_long_text_is_one_document_split_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line number {i} of a longer text\n" for i in range(30_000))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "b.txt").write_text("another\n", encoding="utf-8")
    read = read_pieces(tmp_path)
    assert "".join(piece.text for piece in read[:-1]) == text
    assert {piece.document for piece in read[:-1]} == {0}
    assert read[-1] == (1, "", "another\n")
    assert len(read) > 200
    assert all(piece.text.endswith("\n") for piece in read)


def test_a_small_text_has_enough_pieces_for_a_validation_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a short line\n" * 2000, encoding="utf-8")
    assert len(texts(tmp_path / "a.txt")) >= 40


def test_a_text_without_line_ends_is_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("床前明月光" * 400_000, encoding="utf-8")
    read = texts(tmp_path / "a.txt")
    assert "".join(read) == "床前明月光" * 400_000
    assert max(map(len, read)) <= 4 * 64 * 1024


def test_every_format_that_can_be_configured_has_a_reader() -> None:
    assert set(knobs()["data_format"].choices) == {"auto", *formats.FORMATS}


def test_scanning_imports_neither_torch_nor_pyarrow_nor_tokenizers() -> None:
    check = "import sys, trainer_core.data.sources as s; assert not {'torch','pyarrow','tokenizers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=Path(sources.__file__).parents[2])
