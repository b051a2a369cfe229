"""JSON Lines and separated values: what is read, what is a bad row, and which line it is on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.reading import limits, read, read_and_tally, source_of
from trainer_core.data.encodings import ReadStats
from trainer_core.data.readers.json_objects import RowDecoder
from trainer_core.messages import TraindeckError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(["text", "prompt", "其他", "a b", "", "\u2028", '"']), values)


def written(tmp_path: Path, content: bytes, name: str = "a.jsonl") -> Path:
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


# --- one object ------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(row=objects, ascii=st.booleans(), columns=st.lists(st.sampled_from(["text", "其他", "a b", "no"]), unique=True))
def test_an_object_is_read_as_the_json_module_reads_it(row: dict[str, Any], ascii: bool, columns: list[str]) -> None:
    line = json.dumps(row, ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    wanted = {name: value for name, value in json.loads(line).items() if not columns or name in columns}
    found = RowDecoder(tuple(columns), ReadStats()).decode_row(line)
    assert isinstance(found, dict)
    assert repr(sorted(found.items())) == repr(sorted(wanted.items()))  # as text: NaN is not equal to itself


@settings(max_examples=300)
@given(row=objects, place=st.floats(0, 1), junk=st.binary(min_size=1, max_size=3))
@example(row={"text": ""}, place=0.9, junk=b"\\ud800")
@example(row={"text": "a"}, place=0, junk=b"\xef\xbb\xbf")
def test_a_damaged_object_is_read_as_the_json_module_reads_it_or_not_at_all(
    row: dict[str, Any], place: float, junk: bytes
) -> None:
    line = json.dumps(row).encode()
    at = int(place * len(line))
    line = line[:at] + junk + line[at:]
    try:
        wanted = json.loads(line.decode("utf-8", "replace").removeprefix("\ufeff"))
    except ValueError:
        wanted = None
    read = RowDecoder((), ReadStats()).decode_row(line)
    assert repr(read) == repr(wanted) if isinstance(wanted, dict) else isinstance(read, str)


def test_a_deeply_nested_object_is_no_row() -> None:
    line = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert isinstance(RowDecoder((), ReadStats()).decode_row(line), str)
    assert isinstance(RowDecoder(("text",), ReadStats()).decode_row(line), str)


# --- lines -----------------------------------------------------------------------------------------


def test_bad_lines_are_counted_and_the_first_is_located(tmp_path: Path) -> None:
    content = b'{"text": 1}\n\n \r\n{"text": "cut\n[1]\n{"text": NaN}\n{"text": "\\ud800"}\n{"text": "half'
    rows, states, tally = read_and_tally(source_of(written(tmp_path, content), "jsonl"))
    assert len(rows) == 3
    assert (tally.bad, tally.first_bad) == (3, "line 4")
    assert [state["read"] for state in states] == [1, 4, 5]
    assert tally.position == "line 8"


def test_lines_of_white_space_of_any_kind_are_no_rows(tmp_path: Path) -> None:
    content = '{"text": 1}\n\u3000\n\t\n\ufeff\n\xa0 \n{"text": 2}\n'.encode()
    rows, _, tally = read_and_tally(source_of(written(tmp_path, content), "jsonl"))
    assert (len(rows), tally.bad) == (2, 0)


def test_files_put_together_have_byte_order_marks_in_the_middle(tmp_path: Path) -> None:
    content = '\ufeff{"text": 1}\n\ufeff{"text": 2}\n'.encode()
    assert read(source_of(written(tmp_path, content), "jsonl", "utf-8-sig")) == [{"text": 1}, {"text": 2}]


def test_lines_that_end_as_on_an_old_macintosh_are_lines(tmp_path: Path) -> None:
    content = b'{"text": 1}\r{"text": 2}\r'
    assert read(source_of(written(tmp_path, content), "jsonl")) == [{"text": 1}, {"text": 2}]


def test_bytes_that_are_not_utf_8_are_replaced_and_counted(tmp_path: Path) -> None:
    content = b'{"text": "a\xff\xfeb"}\n{"text": "c"}\n'
    rows, _, tally = read_and_tally(source_of(written(tmp_path, content), "jsonl"), ("text",))
    assert rows == [{"text": "a\ufffd\ufffdb"}, {"text": "c"}]
    assert (tally.undecodable, tally.content) == (2, len(content))


def test_zero_bytes_make_a_line_bad(tmp_path: Path) -> None:
    content = b'{"text": "a\0b"}\n\0\0\0\n{"text": "c"}\n'
    rows, _, tally = read_and_tally(source_of(written(tmp_path, content), "jsonl"))
    assert (rows, tally.bad, tally.first_bad) == ([{"text": "c"}], 2, "line 1")


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_what_is_too_long_is_one_bad_row_and_its_neighbours_are_read(tmp_path: Path, kind: str) -> None:
    row = '"{}"' if kind == "csv" else '{{"text": "{}"}}'
    first, last = ("text\n", "") if kind == "csv" else ("[", "]") if kind == "json" else ("", "")
    between = ",\n" if kind == "json" else "\n"
    content = first + between.join(row.format(text) for text in ("a", "x" * 900, "b", "y " * 9999, "c")) + last
    with limits(chunk=50, longest=1000):
        rows, _, tally = read_and_tally(source_of(written(tmp_path, content.encode()), kind))
    words = {"jsonl": "line 4", "json": "element 4", "csv": "line 3"}  # 500 characters of csv are the limit
    assert [row["text"][0] for row in rows] == (["a", "b", "c"] if kind == "csv" else ["a", "x", "b", "c"])
    assert (tally.bad, tally.first_bad) == (2 if kind == "csv" else 1, words[kind])
    assert "longer than" in tally.reason


# --- separated values ------------------------------------------------------------------------------


def table(tmp_path: Path, content: str, kind: str = "csv") -> tuple[list[dict[str, Any]], ReadStats]:
    rows, _, tally = read_and_tally(source_of(written(tmp_path, content.encode(), "a"), kind))
    return rows, tally


def test_a_field_over_several_lines_is_one_row_and_the_next_has_its_own_line_number(tmp_path: Path) -> None:
    rows, tally = table(tmp_path, 'a,b\r\n1,"two\r\nlines"\r\n\r\n"x ""y""",3\r\n')
    assert rows == [{"a": "1", "b": "two\nlines"}, {"a": 'x "y"', "b": "3"}]
    assert tally.position == "line 5"


def test_the_names_of_columns_may_have_line_ends_and_spaces(tmp_path: Path) -> None:
    assert table(tmp_path, '"a\nb", c \n1,2\n')[0] == [{"a\nb": "1", "c": "2"}]


def test_rows_with_too_few_or_too_many_fields_keep_those_that_have_a_name(tmp_path: Path) -> None:
    assert table(tmp_path, "a,b\n1\n1,2,3\n")[0] == [{"a": "1"}, {"a": "1", "b": "2"}]


def test_a_quotation_mark_that_is_never_closed_is_one_bad_row(tmp_path: Path) -> None:
    rows, tally = table(tmp_path, 'a,b\n1,2\n3,"four\n5,6\n7,8')
    assert rows == [{"a": "1", "b": "2"}]
    assert (tally.bad, tally.first_bad, tally.reason) == (1, "line 3", "a quotation mark is never closed")


def test_a_field_over_many_lines_that_is_too_long_is_passed_over_to_its_end(tmp_path: Path) -> None:
    with limits(longest=1000):
        rows, tally = table(tmp_path, 'a,b\n1,"' + 'said ""so""\n' * 200 + '"\n3,4\n')
    assert rows == [{"a": "3", "b": "4"}]
    assert (tally.bad, tally.first_bad) == (1, "line 2")


def test_quotation_marks_within_fields_are_left_alone(tmp_path: Path) -> None:
    assert table(tmp_path, 'a,b\n5" pipe,x"y\n1,2')[0] == [{"a": '5" pipe', "b": 'x"y'}, {"a": "1", "b": "2"}]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_the_separator_is_the_one_that_the_header_has(tmp_path: Path, kind: str, separator: str) -> None:
    assert table(tmp_path, f"a{separator}b\n1{separator}2\n", kind)[0] == [{"a": "1", "b": "2"}]


def test_a_header_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    with limits(longest=100), pytest.raises(TraindeckError, match="line 1") as caught:
        table(tmp_path, "x" * 200 + "\n1\n")
    assert caught.value.code == "data.bad_format"


def test_a_header_alone_or_nothing_at_all_has_no_rows(tmp_path: Path) -> None:
    assert table(tmp_path, "a,b\n")[0] == table(tmp_path, "")[0] == []
