"""JSON Lines and separated values: rows, bad rows and line numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.reading import Stats, read, read_with_stats, reader_limits, source_file
from trainer_core.data.readers.json_objects import decode_object
from trainer_core.messages import TraindeckError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(["text", "prompt", "其他", "a b", "", "\u2028", '"']), values)


def write_file(tmp_path: Path, content: bytes, name: str = "a.jsonl") -> Path:
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


# --- objects ---------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(row=objects, ascii=st.booleans())
def test_rows_equal_those_of_the_json_module(row: dict[str, Any], ascii: bool) -> None:
    line = json.dumps(row, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    assert repr(decode_object(line)) == repr(json.loads(line))  # as text: NaN is not equal to itself


@settings(max_examples=300)
@given(row=objects, position=st.floats(0, 1), junk=st.binary(min_size=1, max_size=3))
@example(row={"text": ""}, position=0.9, junk=b"\\ud800")
@example(row={"text": "a"}, position=0, junk=b"\xef\xbb\xbf")
def test_damaged_objects_equal_the_json_module_or_are_bad_rows(
    row: dict[str, Any], position: float, junk: bytes
) -> None:
    line = json.dumps(row).encode()
    index = int(position * len(line))
    line = line[:index] + junk + line[index:]
    try:
        expected = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
    except ValueError:
        expected = None
    decoded = decode_object(line)
    assert repr(decoded) == repr(expected) if isinstance(expected, dict) else isinstance(decoded, str)


def test_a_deeply_nested_object_is_a_bad_row() -> None:
    line = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert isinstance(decode_object(line), str)


# --- lines -----------------------------------------------------------------------------------------


def test_bad_lines_are_counted_and_the_first_is_located(tmp_path: Path) -> None:
    content = b'{"text": 1}\n\n \r\n{"text": "cut\n[1]\n{"text": NaN}\n{"text": "\\ud800"}\n{"text": "half'
    rows, states, stats = read_with_stats(source_file(write_file(tmp_path, content), "jsonl"))
    assert len(rows) == 3
    assert (stats.bad, stats.first_bad) == (3, "line 4")
    assert [state["read"] for state in states] == [1, 4, 5]
    assert stats.position == "line 8"


def test_blank_lines_are_ignored(tmp_path: Path) -> None:
    content = '{"text": 1}\n\u3000\n\t\n\ufeff\n\xa0 \n{"text": 2}\n'.encode()
    rows, _, stats = read_with_stats(source_file(write_file(tmp_path, content), "jsonl"))
    assert (len(rows), stats.bad) == (2, 0)


def test_byte_order_marks_inside_joined_files_are_ignored(tmp_path: Path) -> None:
    content = '\ufeff{"text": 1}\n\ufeff{"text": 2}\n'.encode()
    assert read(source_file(write_file(tmp_path, content), "jsonl", "utf-8-sig")) == [{"text": 1}, {"text": 2}]


def test_invalid_utf_8_is_replaced_and_counted(tmp_path: Path) -> None:
    content = b'{"text": "a\xff\xfeb"}\n{"text": "c"}\n'
    rows, _, stats = read_with_stats(source_file(write_file(tmp_path, content), "jsonl"), ("text",))
    assert rows == [{"text": "a\ufffd\ufffdb"}, {"text": "c"}]
    assert stats.undecodable == 2


def test_zero_bytes_make_a_line_bad(tmp_path: Path) -> None:
    content = b'{"text": "a\0b"}\n\0\0\0\n{"text": "c"}\n'
    rows, _, stats = read_with_stats(source_file(write_file(tmp_path, content), "jsonl"))
    assert (rows, stats.bad, stats.first_bad) == ([{"text": "c"}], 2, "line 1")


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_a_too_long_row_is_one_bad_row(tmp_path: Path, kind: str) -> None:
    row = '"{}"' if kind == "csv" else '{{"text": "{}"}}'
    first, last = ("text\n", "") if kind == "csv" else ("[", "]") if kind == "json" else ("", "")
    between = ",\n" if kind == "json" else "\n"
    content = first + between.join(row.format(text) for text in ("a", "x" * 900, "b", "y " * 9999, "c")) + last
    with reader_limits(chunk=50, max_row_bytes=1000):
        rows, _, stats = read_with_stats(source_file(write_file(tmp_path, content.encode()), kind))
    positions = {"jsonl": "line 4", "json": "element 4", "csv": "line 3"}  # the limit of csv is 500 characters
    assert [row["text"][0] for row in rows] == (["a", "b", "c"] if kind == "csv" else ["a", "x", "b", "c"])
    assert (stats.bad, stats.first_bad) == (2 if kind == "csv" else 1, positions[kind])
    assert "longer than" in stats.reason


# --- separated values ------------------------------------------------------------------------------


def read_table(tmp_path: Path, content: str, kind: str = "csv") -> tuple[list[dict[str, Any]], Stats]:
    rows, _, stats = read_with_stats(source_file(write_file(tmp_path, content.encode(), "a"), kind))
    return rows, stats


def test_multi_line_fields_keep_line_numbers_correct(tmp_path: Path) -> None:
    rows, stats = read_table(tmp_path, 'a,b\r\n1,"two\r\nlines"\r\n\r\n"x ""y""",3\r\n')
    assert rows == [{"a": "1", "b": "two\nlines"}, {"a": 'x "y"', "b": "3"}]
    assert stats.position == "line 5"


def test_column_names_may_contain_line_ends_and_spaces(tmp_path: Path) -> None:
    assert read_table(tmp_path, '"a\nb", c \n1,2\n')[0] == [{"a\nb": "1", "c": "2"}]


def test_a_row_may_lack_values_but_has_no_more_than_columns(tmp_path: Path) -> None:
    rows, stats = read_table(tmp_path, "a,b\n1\n1,2,,\nhi,Hello, my friend\n")
    assert rows == [{"a": "1"}, {"a": "1", "b": "2"}]
    assert (stats.bad, stats.first_bad, stats.reason.partition(";")[0]) == (
        1, "line 4", "it has more values than columns"
    )  # fmt: skip


@pytest.mark.parametrize("blank", ["\n", " \r\n\n", ";;\n"])
def test_blank_lines_may_precede_the_header(tmp_path: Path, blank: str) -> None:
    rows, stats = read_table(tmp_path, f"{blank}a;b\n1;2\n")
    assert rows == [{"a": "1", "b": "2"}]
    assert stats.position == f"line {blank.count(chr(10)) + 2}"


def test_an_unclosed_quote_is_one_bad_row(tmp_path: Path) -> None:
    rows, stats = read_table(tmp_path, 'a,b\n1,2\n3,"four\n5,6\n7,8')
    assert rows == [{"a": "1", "b": "2"}]
    assert (stats.bad, stats.first_bad, stats.reason) == (
        1,
        "line 3",
        "a quotation mark is never closed, so all lines from there on are lost",
    )


def test_a_too_long_multi_line_field_is_a_bad_row(tmp_path: Path) -> None:
    with reader_limits(max_row_bytes=1000):
        rows, stats = read_table(tmp_path, 'a,b\n1,2\n3,"' + "a line\n" * 200 + '"')
    assert rows[0] == {"a": "1", "b": "2"}
    assert (stats.first_bad, "longer than" in stats.reason) == ("line 3", True)


def test_quotes_within_unquoted_fields_are_kept(tmp_path: Path) -> None:
    assert read_table(tmp_path, 'a,b\n5" pipe,x"y\n1,2')[0] == [{"a": '5" pipe', "b": 'x"y'}, {"a": "1", "b": "2"}]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_the_separator_is_detected_from_the_header(tmp_path: Path, kind: str, separator: str) -> None:
    assert read_table(tmp_path, f"a{separator}b\n1{separator}2\n", kind)[0] == [{"a": "1", "b": "2"}]


def test_a_too_long_header_is_rejected(tmp_path: Path) -> None:
    with reader_limits(max_row_bytes=100), pytest.raises(TraindeckError, match="line 1") as caught:
        read_table(tmp_path, "x" * 200 + "\n1\n")
    assert caught.value.code == "data.bad_format"


def test_a_header_alone_or_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert read_table(tmp_path, "a,b\n")[0] == read_table(tmp_path, "")[0] == []
