"""Published chat templates: the ids of transformers, and the loss on what the assistant wrote."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.prepared_data import RecordingReporter, prepare_files
from tests.unit.model_folders import model_folder, template
from tests.unit.random_conversations import ODD, ODD_THINKING, TOOLS, Message, random_conversations
from trainer_core.config import Config
from trainer_core.data.column_mapping import ColumnMapping
from trainer_core.data.columns import Turn, extract_turns
from trainer_core.data.report.report import preview
from trainer_core.data.tokenizing.conversations import Thinking
from trainer_core.data.tokenizing.tokenizer import Codec, load_user_tokenizer
from trainer_core.messages import TraindeckError

MAPPING: Final = ColumnMapping("messages", messages="messages", tools="tools")
# By template: the family of its tokenizer, and what its conversations have.
PUBLISHED: Final = {
    "llama3_2": ("llama3.1-tools", {"system", "tools"}),
    "qwen2_5": ("qwen2.5", {"system", "tools", "thinking"}),
    "qwen3": ("qwen3", {"system", "tools", "thinking"}),
    "mistral_v3": ("mistral-tools", {"system", "tools"}),
    "smollm2": ("smollm2", {"system", "thinking"}),
    "gemma3": ("gemma", {"system"}),
}
WITH_MARKS: Final = {  # with {% generation %} marks
    "llama3_training": ("llama3", {"system"}),
    "qwen2_5_training": ("qwen2.5", {"system", "tools"}),
    "qwen3_training": ("qwen3", {"system", "tools", "thinking"}),
    "gemma3_training": ("gemma", {"system"}),
}


@cache
def load(name: str) -> tuple[Codec, Any]:
    """Load a template with our code and with transformers."""
    transformers = pytest.importorskip("transformers")  # here, since it delays collection by seconds
    family, _ = {**PUBLISHED, **WITH_MARKS}[name]
    with tempfile.TemporaryDirectory() as folder:
        path = model_folder(Path(folder), family, chat_template=template(f"published/{name}"))
        return load_user_tokenizer(path / "tokenizer.json")[0], transformers.AutoTokenizer.from_pretrained(path)


def rows(name: str, count: int) -> Iterator[tuple[list[Message], list[Message] | None, Sequence[Turn]]]:
    """Yield random and handwritten conversations: messages, tools and turns."""
    _, features = {**PUBLISHED, **WITH_MARKS}[name]
    chats = random_conversations(count, features, name) + ODD + (ODD_THINKING if "thinking" in features else [])
    for number, messages in enumerate(chats):
        tools = TOOLS if "tools" in features and number % 2 else None
        yield messages, tools, extract_turns({"messages": messages, "tools": tools}, MAPPING)


def normalize(codec: Codec, text: str) -> str:
    """Return a text as the tokenizer normalizes it, without outer white space."""
    return codec.decode(codec.encode(text)).strip()


@pytest.mark.parametrize("name", PUBLISHED)
def test_200_conversations_have_the_ids_of_transformers(name: str) -> None:
    codec, reference = load(name)
    for messages, tools, turns in rows(name, 200):
        encoded = codec.encode_chats([turns])[0]
        expected = reference.apply_chat_template(messages, tools=tools, return_dict=False)
        assert encoded.ids.tolist() == expected[: len(encoded.ids)], messages
        assert not reference.decode(expected[len(encoded.ids) :], skip_special_tokens=True).strip()
        prompt = reference.apply_chat_template(
            messages[:-1], tools=tools, add_generation_prompt=True, return_dict=False
        )
        assert codec.encode_prompt(turns[:-1]) == prompt
        assert encoded.spans[-1] == (len(prompt), len(encoded.ids))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_loss_covers_what_the_assistant_wrote(name: str) -> None:
    codec, _ = load(name)
    for messages, _, turns in rows(name, 20):
        encoded = codec.encode_chats([turns])[0]
        answers = [message for message in messages if message["role"] == "assistant"]
        assert len(encoded.spans) == len(answers)
        for span, answer in zip(encoded.spans, answers, strict=True):
            ids = encoded.ids[slice(*span)].tolist()
            text = codec.decode(ids[:-1], skip_special_tokens=False).strip()
            assert ids[-1] in codec.stop_token_ids
            for call in answer.get("tool_calls", ()):
                assert normalize(codec, json.dumps(call["function"]["arguments"], ensure_ascii=False)) in text
            written = normalize(codec, answer["content"])
            reasoning, closing, rest = text.rpartition("</think>")
            if name == "qwen3":  # which writes the reasoning itself, or removes it
                assert not closing or reasoning.startswith("<think>")
                assert rest.strip().startswith(written.rpartition("</think>")[2].strip())
            elif written:
                assert text == written


@pytest.mark.parametrize("name", WITH_MARKS)
def test_the_loss_covers_what_a_template_marks(name: str) -> None:
    codec, reference = load(name)
    for messages, tools, turns in rows(name, 20):
        encoded = codec.encode_chats([turns])[0]
        expected = reference.apply_chat_template(
            messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        assert encoded.ids.tolist() == expected["input_ids"][: len(encoded.ids)]
        mask = [0] * len(expected["input_ids"])
        for start, stop in encoded.spans:
            mask[start:stop] = [1] * (stop - start)
        assert mask == expected["assistant_masks"], messages


# --- the setting `thinking` ------------------------------------------------------------------------

REASONED: Final[list[Message]] = [
    {"role": "user", "content": "12 + 30?"},
    {"role": "assistant", "content": "<think>\n12 + 30\n</think>\n\n42"},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "yes", "reasoning_content": "Sure."},
]
FIRST, SECOND = "<think>\n12 + 30\n</think>\n\n", "<think>\nSure.\n</think>\n\n"
EMPTY: Final = "<think>\n\n</think>\n\n"  # which Qwen3's template writes before the last answer
LOSS_TEXTS: Final = {
    ("qwen3", "auto"): ["42", SECOND + "yes"],
    ("qwen3", "keep"): [FIRST + "42", SECOND + "yes"],
    ("qwen3", "drop"): ["42", EMPTY + "yes"],
    ("qwen2_5", "auto"): [FIRST + "42", "yes"],
    ("qwen2_5", "keep"): [FIRST + "42", SECOND + "yes"],
    ("qwen2_5", "drop"): ["42", "yes"],
    ("", "auto"): [FIRST + "42", "yes"],  # ChatML
    ("", "keep"): [FIRST + "42", SECOND + "yes"],
    ("", "drop"): ["42", "yes"],
}


def write_model(folder: Path, name: str) -> Path:
    return model_folder(folder, "qwen3", chat_template=template(f"published/{name}") if name else None)


@pytest.mark.parametrize(("name", "thinking"), LOSS_TEXTS)
def test_reasoning_is_kept_or_dropped_as_set(tmp_path: Path, name: str, thinking: Thinking) -> None:
    path = write_model(tmp_path, name) / "tokenizer.json"
    codec, _ = load_user_tokenizer(path, thinking)
    codec.save(path)  # the setting is saved with the tokenizer
    turns = extract_turns({"messages": REASONED}, MAPPING)
    for one in (codec, Codec.load(path)):
        encoded = one.encode_chats([turns])[0]
        texts = [one.decode(encoded.ids[slice(*span)]) for span in encoded.spans]
        assert texts == LOSS_TEXTS[name, thinking]


def test_kept_reasoning_is_in_the_prompt_of_the_next_answer(tmp_path: Path) -> None:
    codec, _ = load_user_tokenizer(write_model(tmp_path, "qwen3") / "tokenizer.json", "keep")
    for messages, _, turns in rows("qwen3", 30):
        encoded = codec.encode_chats([turns])[0]
        prompt = codec.encode_prompt(turns[:-1])
        assert encoded.ids[: len(prompt)].tolist() == prompt
        texts = [codec.decode(encoded.ids[slice(*span)]) for span in encoded.spans]
        answers = [message for message in messages if message["role"] == "assistant"]
        for text, answer in zip(texts, answers, strict=True):
            assert normalize(codec, answer.get("reasoning_content", "")) in text
            if answer["content"].startswith("<think>\n") and "</think>" in answer["content"]:
                assert normalize(codec, answer["content"].partition("</think>")[0]) in text


def test_reasoning_beside_a_tool_call_is_left_out_if_the_template_rejects_text_there(tmp_path: Path) -> None:
    path = model_folder(tmp_path, "mistral-tools", chat_template=template("published/mistral_v3")) / "tokenizer.json"
    codec, _ = load_user_tokenizer(path, "keep")
    call = {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": {}}}
    messages: list[Message] = [
        {"role": "user", "content": "Time?"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "I need the time."},
        {"role": "tool", "tool_call_id": "call00001", "content": "12:00"},
        {"role": "assistant", "content": "Noon.", "reasoning_content": "It is 12:00."},
    ]
    encoded = codec.encode_chats([extract_turns({"messages": messages, "tools": TOOLS}, MAPPING)])[0]
    texts = [codec.decode(encoded.ids[slice(*span)]).strip() for span in encoded.spans]
    assert texts == [
        '[{"name": "now", "arguments": {}, "id": "call00001"}]',
        "<think>\nIt is 12:00.\n</think>\n\nNoon.",
    ]


def test_an_answer_of_reasoning_alone_is_refused_if_reasoning_is_dropped(tmp_path: Path) -> None:
    codec, _ = load_user_tokenizer(write_model(tmp_path, "qwen3") / "tokenizer.json", "drop")
    with pytest.raises(TraindeckError, match="only reasoning"):
        codec.encode_chats([[("user", "Hi"), ("assistant", "<think>\nHm.\n</think>\n\n")]])


def test_the_preview_shows_the_loss_of_kept_and_dropped_reasoning(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": REASONED}) + "\n" for _ in range(40)), encoding="utf-8")
    tokenizer = str(write_model(tmp_path / "model", "qwen3"))
    settings: tuple[Thinking, ...] = ("auto", "keep", "drop")
    for thinking in settings:
        config = Config(data=[str(path)], tokenizer=tokenizer, max_seq_len=256, thinking=thinking)
        report = preview(config, RecordingReporter())
        shown = "".join(token.text for token in report.samples[0].tokens if token.in_loss)
        assert shown == "<|im_end|>".join([*LOSS_TEXTS["qwen3", thinking], ""])
    caches = {prepare_files(path, tokenizer=tokenizer, max_seq_len=256, thinking=one).folder for one in settings}
    assert len(caches) == 3
