"""Files of the chat page: stored conversations, corrected answers; and the difference of two texts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from app.core.conversation import Turn
from app.core.conversation_store import MAX_CONVERSATIONS, Conversation, ConversationStore, ModelTurns
from app.core.correction_store import CorrectionStore
from app.core.text_difference import differing_spans
from tests.prepared_data import RecordingReporter
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.report.report import preview

QUESTION = [protocol.Turn(role="system", content="Be brief."), protocol.Turn(role="user", content="1 加 1？\n")]


def conversation(prompt: str, answer: str = "2") -> Conversation:
    turn = Turn(prompt, {"seed": 3}, chat=True, step=200, text=answer, status="failed", error=("usage", {"a": 1}))
    return Conversation("Be brief.", [ModelTurns("runs/一", "base", [turn]), ModelTurns("runs/two")])


def test_a_conversation_is_read_as_it_was_stored(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "对话")
    path = store.save(conversation("first"), None)
    store.save(conversation("1 加 1？ 🙂"), path)
    [(found, read)] = store.list_all()
    assert (found, read.title, read.system) == (path, "1 加 1？ 🙂", "Be brief.")
    [turn] = read.models[0].turns
    assert (turn.text, turn.step, turn.sampling, turn.error) == ("2", 200, {"seed": 3}, ("usage", {"a": 1}))
    assert [(model.run, model.checkpoint) for model in read.models] == [("runs/一", "base"), ("runs/two", "")]


def test_only_the_newest_conversations_are_kept_and_damaged_files_are_ignored(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path)
    for number in range(MAX_CONVERSATIONS + 2):
        path = store.save(conversation(str(number)), None)
        os.utime(path, (number, number))
    assert len(store.list_all()) == MAX_CONVERSATIONS
    path.write_bytes(b"{")
    titles = [found.title for _, found in store.list_all()]
    assert titles[:2] == [str(MAX_CONVERSATIONS), str(MAX_CONVERSATIONS - 1)]


def test_a_large_conversation_loses_its_first_turns(tmp_path: Path) -> None:
    large = conversation("first", "x" * 1_500_000)
    large.models[0].turns.append(Turn("second", {}, text="y" * 1_500_000))
    store = ConversationStore(tmp_path)
    path = store.save(large, None)
    assert store.list_all()[0][1].title == "second"
    assert path.stat().st_size < 2 * 1024**2
    assert large.title == "first"  # in memory


@pytest.mark.skipif(sys.platform == "win32", reason="the user's folders are private on Windows")
def test_only_the_user_can_read_conversations(tmp_path: Path) -> None:
    ConversationStore(tmp_path / "chats").save(conversation("secret"), None)
    assert (tmp_path / "chats").stat().st_mode & 0o077 == 0


def test_corrections_are_rows_for_fine_tuning_and_for_preferences(tmp_path: Path) -> None:
    store = CorrectionStore(tmp_path / "数据 data" / "corrections.jsonl")
    assert store.count() == 0
    store.add(QUESTION, "2", "3")
    store.path.write_bytes(store.path.read_bytes().rstrip(b"\n"))  # as an editor may leave it
    store.add(QUESTION, "二", "3")
    rows = [json.loads(line) for line in store.path.read_text(encoding="utf-8").splitlines()]
    assert store.count() == len(rows) == 2
    assert rows[0]["messages"] == rows[0]["chosen"]
    assert [message["content"] for message in rows[1]["chosen"]] == ["Be brief.", "1 加 1？\n", "二"]
    assert [message["content"] for message in rows[1]["rejected"]] == ["Be brief.", "1 加 1？\n", "3"]
    store.undo()
    assert [json.loads(line) for line in store.path.read_text(encoding="utf-8").splitlines()] == rows[:1]


def test_rows_of_other_programs_are_kept(tmp_path: Path) -> None:
    store = CorrectionStore(tmp_path / "corrections.jsonl")
    first = store.add(QUESTION, "2", "3")
    foreign = [b'{"messages": [], "id": 7}\r', b"no JSON \xff", b"[1]"]
    with store.path.open("ab") as file:
        file.write(b"\n".join(foreign))
    second = store.add(QUESTION, "II", "4")
    third = store.add(QUESTION, "two", "3", replaced=first)
    *kept, second_row, third_row = store.path.read_bytes().splitlines(keepends=True)
    assert b"".join(kept) == b"".join(line + b"\n" for line in foreign)
    assert [json.loads(row)["correction_id"] for row in (second_row, third_row)] == [second, third]
    assert [store.undo(), store.undo()] == [third, second]
    assert not store.can_undo
    assert (store.undo(), store.path.read_bytes()) == ("", b"".join(kept))


def test_the_trainer_reads_the_corrected_answers(tmp_path: Path) -> None:
    store = CorrectionStore(tmp_path / "corrections.jsonl")
    for number in range(40):
        store.add(QUESTION, f"answer {number}", "wrong")
    report = preview(
        Config(data=[str(store.path)], vocab_size=320, max_seq_len=128, validation_fraction=0.0), RecordingReporter()
    )
    assert report.read.documents == 40
    text = "".join(token.text for token in report.samples[0].tokens if token.in_loss)
    assert text.startswith("answer 0")
    assert "wrong" not in text


def test_the_trainer_prefers_the_corrected_answers_to_the_generated_ones(tmp_path: Path) -> None:
    store = CorrectionStore(tmp_path / "corrections.jsonl")
    for number in range(40):
        store.add(QUESTION, f"answer {number}", f"wrong {number}")
    config = Config(data=[str(store.path)], objective="dpo", vocab_size=320, max_seq_len=128, validation_fraction=0.0)
    report = preview(config, RecordingReporter())
    assert (report.task, report.read.documents) == ("preference", 40)
    texts = [
        "".join(token.text for token in report.samples[0].tokens if token.document == place and token.in_loss)
        for place in (0, 1)
    ]
    assert texts == ["answer 0<|im_end|>", "wrong 0<|im_end|>"]


@pytest.mark.parametrize(
    ("first", "second", "parts"),
    [
        ("same text", "same text", ([], [])),
        ("", "new", ([], ["new"])),
        ("It has 31 days.", "It has 30 days.", (["31"], ["30"])),
        ("八月有三十一天", "八月有三十天。", (["一"], ["。"])),
        ("a 🙂 b", "a b", (["🙂 "], [])),
    ],
)
def test_the_parts_that_differ_are_words_or_chinese_characters(
    first: str, second: str, parts: tuple[list[str], list[str]]
) -> None:
    spans = differing_spans(first, second)
    found = tuple([text[begin:end] for begin, end in side] for text, side in zip((first, second), spans, strict=True))
    assert found == parts


def test_a_long_text_is_compared_up_to_some_words_after_the_first_difference() -> None:
    long = "word " * 2000
    assert differing_spans(long, long) == ([], [])
    assert differing_spans(f"{long}one", f"{long}two")[0] == [(10_000, 10_003)]
    spans, _ = differing_spans(f"one {long}", f"two {long}")
    assert spans == [(0, 3), (749, 10_004)]  # 300 words and spaces from `one` on
