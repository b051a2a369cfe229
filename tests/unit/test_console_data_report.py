"""The data report on a terminal: both languages, with and without colours."""

from __future__ import annotations

import io

import msgspec
import pytest

from trainer_core import protocol
from trainer_core.console.data_report import TerminalStyle, format_data_report
from trainer_core.console.display import ConsoleSink
from trainer_core.docgen.examples import EVENTS
from trainer_core.messages import Language

REPORT: protocol.DataReport = EVENTS[protocol.DataReport]


def text_of(report: protocol.DataReport, style: TerminalStyle) -> str:
    return "\n".join(line.plain for line in format_data_report(report, style))


def with_tokens(*tokens: protocol.Token, length: int = 0) -> protocol.DataReport:
    sample = protocol.SampleView(tokens=list(tokens), length=length or len(tokens))
    return msgspec.structs.replace(REPORT, samples=[sample])


def test_estimates_are_marked_and_exact_figures_are_not() -> None:
    sampled = text_of(REPORT, TerminalStyle("en"))
    assert "Read 16 MiB of 1.0 GiB" in sampled
    assert "≈ 10,000,000" in sampled
    assert "≈ 98,951   96 samples per step" in sampled
    complete = text_of(msgspec.structs.replace(REPORT, complete=True, tokenizer="t.json"), TerminalStyle("en"))
    assert "All figures are exact" in complete
    assert "98,951   98,950 full, one smaller" in complete
    assert "≈" not in complete


def test_rows_are_counted_by_split_only_for_tables() -> None:
    table = text_of(REPORT, TerminalStyle("en"))
    assert "≈ 9,500,000" in table
    assert "≈ 31,875,015 (5.0 %)" in table
    counts = protocol.DataCounts(rows=253, documents=26, characters=9, tokens=9)
    text = text_of(msgspec.structs.replace(REPORT, task="pretrain", read=counts), TerminalStyle("en"))
    assert "≈ 10,000,000" in text
    assert "≈ 9,500,000" not in text
    assert "≈ 31,875,015 (5.0 %)" in text


@pytest.mark.parametrize(("language", "note"), [("en", "can change slightly"), ("zh", "略有变化")])
def test_token_counts_without_a_given_tokenizer_are_estimates(language: Language, note: str) -> None:
    text = text_of(msgspec.structs.replace(REPORT, complete=True), TerminalStyle(language))
    assert note in text
    assert "exact" not in text
    assert "准确" not in text


def test_figures_of_prepared_data_are_exact() -> None:
    text = text_of(msgspec.structs.replace(REPORT, complete=True, prepared=True), TerminalStyle("en"))
    assert "All figures are exact" in text


@pytest.mark.parametrize(
    ("language", "note"), [("en", "for the default batch size; set --preset"), ("zh", "按默认批大小计算")]
)
def test_steps_with_the_default_batch_size_are_marked(language: Language, note: str) -> None:
    assert note in text_of(msgspec.structs.replace(REPORT, batch_is_default=True), TerminalStyle(language))
    assert note not in text_of(REPORT, TerminalStyle(language))


def test_the_reason_of_the_first_bad_row_is_translated() -> None:
    assert "questions.parquet 的第 4117 行，“answer”为空" in text_of(REPORT, TerminalStyle("zh"))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_report_shows_every_count(language: Language) -> None:
    packed = msgspec.structs.replace(
        REPORT,
        packed_sequences=1234,
        fill=0.987,
        fill_unpacked=0.31,
        undecodable=77,
        empty=5,
        skipped_turns=2400,
    )
    text = text_of(packed, TerminalStyle(language))
    for figure in ("414", "498", "23,118", "37 (0.024 %)", "4117", "1,234", "98.7 %", "31.0 %", "77", "2,400"):
        assert figure in text
    assert ("prompt: question, response: answer" if language == "en" else "提示: question, 回答: answer") in text


def test_histogram_bars_are_scaled_and_never_empty() -> None:
    rows = [line.plain.strip() for line in format_data_report(REPORT, TerminalStyle("en"))]
    assert f"32  {'█' * 40} 84,410" in rows
    assert "256  █ 414" in rows


def test_tokens_in_the_loss_are_coloured_or_marked() -> None:
    uncoloured = text_of(REPORT, TerminalStyle("en", colour=False))
    assert "[[4<|im_end|>]]" in uncoloured
    coloured = [line for line in format_data_report(REPORT, TerminalStyle("en")) if "im_end" in line.plain][-1]
    in_loss = [coloured.plain[span.start : span.end] for span in coloured.spans if "green" in str(span.style)]
    assert in_loss == ["4", "<|im_end|>"]


def test_document_boundaries_and_omitted_tokens_are_shown() -> None:
    report = with_tokens(protocol.Token("a", 1, True, False, 0), protocol.Token("b", 2, False, False, 1), length=2000)
    text = text_of(report, TerminalStyle("en", colour=False))
    assert "[[a]]\n--- Document 2\nb … and 1,998 more tokens" in text


def test_the_middle_of_a_long_prompt_is_left_out_so_that_the_answer_is_shown() -> None:
    prompt = [protocol.Token(f"{number} ", number, False, False, 0) for number in range(900)]
    report = with_tokens(*prompt, protocol.Token("yes", 900, True, False, 0), length=1000)
    text = text_of(report, TerminalStyle("en", colour=False))
    assert "1. 0 1 " in text
    assert "38 39  … 860 861 " in text
    assert "898 899 [[yes]] … and 99 more tokens" in text


def test_control_characters_in_the_data_are_escaped() -> None:
    report = with_tokens(protocol.Token("\x1b[2J", 1, True, False, 0))
    bad = protocol.BadRow(path="a\x1bb", position="line 1", reason="\x1b]0;x\x07")
    for untrusted in (report, msgspec.structs.replace(report, first_bad=bad, tokenizer="\x1b")):
        assert "\x1b" not in text_of(untrusted, TerminalStyle("en"))


def test_the_console_shows_the_report_on_a_stream_without_colours() -> None:
    stream = io.StringIO()
    sink = ConsoleSink(stream, "zh")
    sink.write(REPORT)
    sink.close()
    assert "[[4<|im_end|>]]" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
