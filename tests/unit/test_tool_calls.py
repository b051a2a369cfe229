"""Tool calls: rendered by the chat template and in the loss, or dropped and counted."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.prepared_data import RecordingReporter, prepare_files
from tests.unit.model_folders import TOOL_FAMILIES, load_codec, load_transformers, model_folder
from trainer_core.config import Config
from trainer_core.data import columns
from trainer_core.data.column_mapping import ColumnMapping, map_columns
from trainer_core.data.columns import RowError, Turn
from trainer_core.data.report.report import preview, report_prepared_data
from trainer_core.data.tokenizing import tokenizer
from trainer_core.data.tokenizing.tokenizer import Codec

Row = dict[str, Any]
MAPPING = ColumnMapping("messages", messages="messages", tools="tools")

WEATHER: Row = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Today's weather, in °C.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "城市"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def tool_call(name: str = "get_weather", number: int = 1, **arguments: Any) -> Row:
    return {
        "id": f"call0000{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments or {"city": "北京", "days": number}},
    }


def user(content: str) -> Row:
    return {"role": "user", "content": content}


def assistant_calls(*calls: Row, **fields: Any) -> Row:
    return {"role": "assistant", "content": None, "tool_calls": list(calls) or [tool_call()], **fields}


def tool_result(content: str = '{"celsius": 21}', number: int = 1) -> Row:
    return {"role": "tool", "name": "get_weather", "tool_call_id": f"call0000{number}", "content": content}


def assistant(content: str) -> Row:
    return {"role": "assistant", "content": content}


CONVERSATIONS: dict[str, list[Row]] = {
    "one call": [user("Weather in 北京?"), assistant_calls(), tool_result(), assistant("21 °C.")],
    "system": [
        {"role": "system", "content": "Be brief."},
        user("Weather?"),
        assistant_calls(),
        tool_result(),
        assistant("21 °C."),
    ],
    "ends with a call": [user("Hi"), assistant("Hello"), user("Weather?"), assistant_calls()],
    "several turns": [
        user("Weather in 北京?"),
        assistant_calls(),
        tool_result(),
        assistant("21 °C."),
        user("And tomorrow?"),
        assistant_calls(tool_call(number=2)),
        tool_result("18", 2),
        assistant("18 °C."),
        user("Thanks"),
        assistant("Bye"),
    ],
    "calls in a row": [
        user("Both?"),
        assistant_calls(),
        tool_result(),
        assistant_calls(tool_call(number=2)),
        tool_result("5", 2),
        assistant("21 and 5."),
    ],
    "no call": [user("Hi"), assistant("Hello")],
}


def parse_turns(messages: Sequence[Row], tools: Any = (WEATHER,)) -> tuple[Turn, ...]:
    return columns.extract_turns({"messages": list(messages), "tools": list(tools) if tools else None}, MAPPING)


def render(codec: Codec, turns: Sequence[Turn]) -> str:
    """Return the text of the chat template, with special tokens."""
    pieces, _ = codec._select_template(turns).render(turns)
    return "".join(piece[0] if isinstance(piece, tuple) else codec.tokenizer.id_to_token(piece) for piece in pieces)


def loss_texts(codec: Codec, turns: Sequence[Turn]) -> list[str]:
    """Return the decoded spans in the loss."""
    encoded = codec.encode_chats([turns])[0]
    return [codec.decode(encoded.ids[slice(*span)].tolist(), skip_special_tokens=False) for span in encoded.spans]


# --- parity with transformers -------------------------------------------------------------------


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_text_and_ids_equal_those_of_transformers(family: str) -> None:
    codec, reference = load_codec(family), load_transformers(family)
    for messages in CONVERSATIONS.values():
        turns = parse_turns(messages)
        assert list(codec.drop_unsupported_calls(turns)) == list(turns)
        assert render(codec, turns) == reference.apply_chat_template(messages, tools=[WEATHER], tokenize=False)
        encoded = codec.encode_chats([turns])[0]
        ids = reference.apply_chat_template(messages, tools=[WEATHER], return_dict=False)
        assert encoded.ids.tolist() == ids[: len(encoded.ids)]
        assert not reference.decode(ids[len(encoded.ids) :], skip_special_tokens=True).strip()
        before = messages[: [message["role"] for message in messages].index("assistant")]
        prompt = reference.apply_chat_template(before, tools=[WEATHER], add_generation_prompt=True, return_dict=False)
        assert codec.encode_prompt(turns[: 1 + len(before)]) == prompt


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_without_tools_the_text_equals_that_of_transformers(family: str) -> None:
    messages = CONVERSATIONS["no call"]
    expected = load_transformers(family).apply_chat_template(messages, tokenize=False)
    assert render(load_codec(family), parse_turns(messages, None)) == expected


CALLS = {
    "qwen2.5-tools": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "北京", "days": %d}}\n'
    "</tool_call><|im_end|>",
    "llama3.1-tools": '{"name": "get_weather", "parameters": {"city": "北京", "days": %d}}<|eot_id|>',
    "mistral-tools": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "北京", "days": %d}, '
    '"id": "call0000%d"}]</s>',
}
CALLS["hermes-tools"] = CALLS["qwen3-tools"] = CALLS["qwen2.5-tools"]
ENDS = {"llama3.1-tools": "<|eot_id|>", "mistral-tools": "</s>"}


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_the_loss_covers_calls_with_their_end_token_but_no_results(family: str) -> None:
    codec, end = load_codec(family), ENDS.get(family, "<|im_end|>")
    texts = loss_texts(codec, parse_turns(CONVERSATIONS["several turns"]))
    calls = [CALLS[family] % ((n, n) if "call0000" in CALLS[family] else n) for n in (1, 2)]
    expected = [calls[0], f"21 °C.{end}", calls[1], f"18 °C.{end}", f"Bye{end}"]
    if family == "qwen3-tools":
        expected[-1] = f"<think>\n\n</think>\n\n{expected[-1]}"
    assert [text.strip() for text in texts] == expected


@pytest.mark.parametrize("family", ["qwen2.5-tools", "qwen3-tools"])
def test_text_before_a_call_and_several_calls_are_one_span(family: str) -> None:
    messages = [
        user("Both?"),
        assistant_calls(tool_call(), tool_call(number=2), content="Let me look."),
        tool_result(),
        tool_result("5", 2),
    ]
    turns = parse_turns([*messages, assistant("21 and 5.")])
    calls = [(CALLS[family] % n).removesuffix("<|im_end|>") for n in (1, 2)]
    assert loss_texts(load_codec(family), turns)[0] == "Let me look.\n" + "\n".join(calls) + "<|im_end|>"
    expected = load_transformers(family).apply_chat_template(
        [*messages, assistant("21 and 5.")], tools=[WEATHER], tokenize=False
    )
    assert render(load_codec(family), turns) == expected


def test_an_answer_after_several_results_is_in_the_loss() -> None:
    calls = [
        user("Both?"),
        assistant_calls(tool_call(), tool_call(number=2)),
        tool_result(),
        tool_result("5", 2),
        assistant("21 and 5."),
    ]
    turns = parse_turns([*calls, user("Thanks"), assistant("Bye")])
    for family in ("mistral-tools", "hermes-tools", "qwen3-tools"):
        end = ENDS.get(family, "<|im_end|>")
        assert loss_texts(load_codec(family), turns)[1].strip() == f"21 and 5.{end}"


def test_a_template_may_omit_the_text_before_a_call() -> None:
    turns = parse_turns([user("Weather?"), assistant_calls(content="Let me look."), tool_result(), assistant("21 °C.")])
    assert loss_texts(load_codec("llama3.1-tools"), turns)[0] == CALLS["llama3.1-tools"] % 1


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_tools_calls_and_results_never_become_special_tokens(family: str) -> None:
    codec = load_codec(family)
    special = {
        number: token.content for number, token in codec.tokenizer.get_added_tokens_decoder().items() if token.special
    }
    spelled = " ".join(special.values())
    tool = json.loads(json.dumps(WEATHER).replace("Today's", f"{spelled} Today's"))
    hostile = [user("Hi"), assistant_calls(tool_call(city=spelled)), tool_result(spelled), assistant(spelled)]
    harmless = [user("Hi"), assistant_calls(tool_call(city="x")), tool_result("x"), assistant("x")]
    encoded, expected = (codec.encode_chats([parse_turns(rows, [tool])])[0] for rows in (hostile, harmless))
    assert [n for n in encoded.ids.tolist() if n in special] == [n for n in expected.ids.tolist() if n in special]
    assert len(encoded.spans) == len(expected.spans) == 2
    call_text = codec.decode(encoded.ids[slice(*encoded.spans[0])].tolist())
    assert json.dumps({"city": spelled}, ensure_ascii=False) in call_text


def test_all_calls_of_a_long_conversation_are_in_the_loss() -> None:
    turns = [[user(f"Weather in {n} days?"), assistant_calls(), tool_result(), assistant("21 °C.")] for n in range(30)]
    for family in TOOL_FAMILIES:
        texts = loss_texts(load_codec(family), parse_turns([message for turn in turns for message in turn]))
        assert len(texts) == 60
        assert all("get_weather" in text for text in texts[::2])


@pytest.mark.parametrize("call_id", ["call_abcdefghijklmnopqrstuv", None])
def test_call_ids_are_shortened_if_the_template_requires_it(call_id: str | None) -> None:
    """The template of Mistral requires ids of 9 characters. Most data has longer ids or none."""
    codec, reference = load_codec("mistral-tools"), load_transformers("mistral-tools")
    messages = [json.loads(json.dumps(message)) for message in CONVERSATIONS["one call"]]
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = call_id
    turns = codec.drop_unsupported_calls(parse_turns(messages))
    short = columns.turn_fields(turns[2])["tool_calls"][0]["id"]
    assert re.fullmatch("[a-z0-9]{9}", short)
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = short
    assert render(codec, turns) == reference.apply_chat_template(messages, tools=[WEATHER], tokenize=False)
    assert codec.encode_chats([parse_turns(messages)])[0].dropped_turns == 0


# --- unsupported calls ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama2", "gemma", "deepseek", "unigram", "mistral"])
def test_a_template_without_tool_support_gets_no_calls(family: str) -> None:
    codec = load_codec(family)
    (encoded,) = codec.encode_chats([parse_turns(CONVERSATIONS["several turns"])])
    messages = CONVERSATIONS["several turns"]
    remaining = [message for message in messages if message["role"] != "tool" and not message.get("tool_calls")]
    assert encoded.dropped_turns == 4
    assert encoded.ids.tolist() == codec.encode_chats([parse_turns(remaining, None)])[0].ids.tolist()


def test_only_calls_that_the_template_rejects_are_dropped() -> None:
    codec = load_codec("llama3.1-tools")
    two_calls = [user("Both?"), assistant_calls(tool_call(), tool_call(number=2)), tool_result(), tool_result("5", 2)]
    one_call = [user("More?"), assistant_calls(), tool_result(), assistant("21")]
    turns = parse_turns([*two_calls, assistant("21 and 5."), *one_call])
    (encoded,) = codec.encode_chats([turns])
    assert encoded.dropped_turns == 3  # one turn with two calls, and their results
    assert [codec.decode(encoded.ids[slice(*span)].tolist()) for span in encoded.spans] == [
        "21 and 5.", (CALLS["llama3.1-tools"] % 1).removesuffix("<|eot_id|>"), "21",
    ]  # fmt: skip


def test_a_conversation_of_dropped_calls_only_is_not_a_bad_row() -> None:
    rejected: list[int] = []
    chats = load_codec("unigram").encode_chats(
        [parse_turns([user("Weather?"), assistant_calls()]), parse_turns([user("Hi"), assistant("Hello")])],
        lambda number, error: rejected.append(number),
    )
    assert (rejected, chats[0].dropped_turns, len(chats[0].ids)) == ([], 1, 0)
    assert len(chats[1].ids) > 0


def write_chats(folder: Path, count: int = 1200) -> Path:
    path = folder / "chats.jsonl"
    rows = [
        {"messages": [*CONVERSATIONS["one call"][:-1], assistant(f"{n} °C.")], "tools": [WEATHER]} for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_dropped_calls_are_counted_and_do_not_end_preparation(tmp_path: Path) -> None:
    reporter, path = RecordingReporter(), write_chats(tmp_path)
    prepared = prepare_files(path, reporter=reporter, max_seq_len=128)
    assert prepared.train.documents + prepared.validation.documents == 1200
    assert reporter.warnings == {"data.turns_left_out": {"count": 2400}}
    config = Config(data=[str(path)], vocab_size=320, max_seq_len=128)
    assert report_prepared_data(prepared, config).skipped_turns == 2400
    assert preview(config, RecordingReporter()).skipped_turns == 2400


def test_supported_calls_are_in_the_token_cache(tmp_path: Path) -> None:
    reporter, model = RecordingReporter(), model_folder(tmp_path / "model", "qwen2.5-tools")
    prepared = prepare_files(write_chats(tmp_path, 60), reporter=reporter, max_seq_len=2048, tokenizer=str(model))
    assert reporter.warnings == {}
    assert prepared.train.documents + prepared.validation.documents == 60
    split = prepared.open_split("train")
    text = prepared.load_codec().decode(split.read(0, split.tokens).tolist(), skip_special_tokens=False)
    assert text.count(CALLS["qwen2.5-tools"] % 1) == split.documents
    assert len(split.spans) == 2 * split.documents


def test_tokens_of_calls_are_the_same_without_a_token_cache(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"messages": CONVERSATIONS["one call"], "tools": json.dumps([WEATHER])} for _ in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    knobs: dict[str, Any] = {"tokenizer": str(model_folder(tmp_path / "model", "mistral-tools")), "max_seq_len": 2048}
    cached = prepare_files(tmp_path / "chats.parquet", **knobs).open_split("train")
    direct = prepare_files(tmp_path / "chats.parquet", **knobs, token_cache=False).open_split("train")
    assert cached.read(0, cached.tokens).tolist() == direct.read(0, direct.tokens).tolist()
    messages = pq.read_table(tmp_path / "chats.parquet").to_pylist()[0]["messages"]  # pyarrow 17 sorts the keys
    expected = load_codec("mistral-tools").encode_chats([parse_turns(messages)])[0].ids.tolist()
    assert cached.read(0, int(cached.offsets[1])).tolist() == expected


def test_a_conversation_whose_last_call_is_dropped_ends_with_the_answer_before_it() -> None:
    codec = load_codec("unigram")
    trimmed = columns.trim_after_last_answer(
        codec.drop_unsupported_calls(parse_turns([user("Hi"), assistant("Hello"), user("Weather?"), assistant_calls()]))
    )
    assert trimmed[1:] == [("user", "Hi"), ("assistant", "Hello")]


# --- formats of rows -----------------------------------------------------------------

EXPECTED = parse_turns(CONVERSATIONS["one call"])


def test_arguments_may_be_json_text() -> None:
    json_call = tool_call()
    json_call["function"]["arguments"] = json.dumps(json_call["function"]["arguments"])
    messages = [user("Weather in 北京?"), assistant_calls(json_call), tool_result(), assistant("21 °C.")]
    assert parse_turns(messages) == EXPECTED
    row = {"messages": json.dumps(messages), "tools": json.dumps([WEATHER]), "parallel_tool_calls": False}
    assert columns.extract_turns(row, MAPPING) == EXPECTED


@pytest.mark.parametrize(("arguments", "expected"), [("", {}), (None, {}), ("not JSON", "not JSON"), ("[1]", "[1]")])
def test_arguments_other_than_objects_are_unchanged(arguments: Any, expected: Any) -> None:
    function_call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = parse_turns([user("Hi"), assistant_calls(function_call)])
    assert columns.turn_fields(turns[-1])["tool_calls"][0]["function"]["arguments"] == expected


def test_the_older_function_format_is_read() -> None:
    function = tool_call()["function"]
    message = {
        "role": "assistant",
        "content": None,
        "function_call": {**function, "arguments": json.dumps(function["arguments"])},
    }
    messages = [user("Hi"), message, {"role": "function", "name": "get_weather", "content": "21"}, assistant("21")]
    turns = columns.extract_turns({"messages": messages, "functions": [WEATHER["function"]]},
                             ColumnMapping("messages", messages="messages", tools="functions"))  # fmt: skip
    assert turns[0] == (columns.TOOLS_ROLE, json.dumps([WEATHER], ensure_ascii=False))
    assert columns.turn_fields(turns[2])["tool_calls"] == [{"type": "function", "function": function}]
    assert turns[3] == ("tool", "21", '{"name": "get_weather"}')


def test_sharegpt_roles_for_calls_and_results_are_read() -> None:
    function = tool_call()["function"]
    conversation = [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": json.dumps(function)},
        {"from": "observation", "value": "21"},
        {"from": "gpt", "value": "21 °C."},
    ]
    row = {"conversations": conversation, "tools": json.dumps([WEATHER["function"]])}
    turns = columns.extract_turns(row, map_columns(["conversations", "tools"], Config()))
    assert columns.turn_fields(turns[2])["tool_calls"] == [{"type": "function", "function": function}]
    assert loss_texts(load_codec("qwen2.5-tools"), turns) == [CALLS["qwen2.5-tools"] % 1, "21 °C.<|im_end|>"]


def test_nulls_of_arrow_tables_are_removed_from_calls() -> None:
    with_nulls = {**tool_call(), "index": None}
    with_nulls["function"] = {**with_nulls["function"], "arguments": {"city": "北京", "days": 1, "unit": None}}
    rows = [{**message, "tool_calls": None} for message in CONVERSATIONS["one call"]]
    rows[1] = assistant_calls(with_nulls, name=None, tool_call_id=None)
    tool = {**WEATHER, "strict": None}
    assert parse_turns(rows, [tool]) == EXPECTED
    assert render(load_codec("llama3.1-tools"), parse_turns(rows)) == render(load_codec("llama3.1-tools"), EXPECTED)


def test_a_turn_of_weight_0_is_not_in_the_loss() -> None:
    for family in ("unigram", "qwen2.5", "llama3"):
        messages = [
            user("Hi"),
            {**assistant("Nonsense"), "weight": 0},
            user("Hi!"),
            {**assistant("Hello"), "weight": 1},
        ]
        codec, turns = load_codec(family), parse_turns(messages, None)
        encoded, unweighted = codec.encode_chats([turns])[0], codec.encode_chats([[turn[:2] for turn in turns]])[0]
        assert encoded.ids.tolist() == unweighted.ids.tolist()
        assert [codec.decode(encoded.ids[slice(*span)].tolist()) for span in encoded.spans] == ["Hello"]
    assert parse_turns([*messages, user("More?"), {**assistant("No"), "weight": 0}], None) == turns


@pytest.mark.parametrize(
    ("messages", "tools", "reason"),
    [
        ([user("Hi"), assistant_calls({"type": "function", "function": {"arguments": {}}})], None, "names no function"),
        ([user("Hi"), {"role": "function_call", "content": "not JSON"}], None, "names no function"),
        ([user("Hi"), assistant_calls(tool_call(when=b"bytes"))], None, "unsupported value"),
        ([user("Hi"), assistant("Hello")], ["not a tool"], "not a list of tools"),
        ([user("Hi"), {"role": "assistant", "content": None, "tool_calls": []}], None, "has no text"),
        ([user("Hi"), {**assistant("Hello"), "weight": 0}], None, "has no answer"),
    ],
)
def test_an_invalid_call_is_a_bad_row(messages: list[Row], tools: Any, reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        parse_turns(messages, tools)


def test_deeply_nested_arguments_are_a_bad_row() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(RowError, match="unsupported value"):
        parse_turns([user("Hi"), assistant_calls(tool_call(deep=deep))])


# --- checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_transformers_renders_calls_from_a_checkpoint_in_the_same_way(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    codec, messages = load_codec(family), CONVERSATIONS["one call"]
    codec.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_bytes(codec.config_json("sft", 256))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    loaded = Codec.load(tmp_path / "tokenizer.json")
    expected = load_transformers(family).apply_chat_template(messages, tools=[WEATHER], tokenize=False)
    assert reference.apply_chat_template(messages, tools=[WEATHER], tokenize=False) == expected
    assert render(loaded, EXPECTED) == expected


def test_the_tool_use_template_file_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = model_folder(tmp_path, "hermes-tools")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    default, tool_use = (entry["template"] for entry in config.pop("chat_template"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(default, encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use, encoding="utf-8")
    codec, _ = tokenizer.load_user_tokenizer(folder / "tokenizer.json")
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    expected = reference.apply_chat_template(CONVERSATIONS["one call"], tools=[WEATHER], tokenize=False)
    assert render(codec, EXPECTED) == expected == render(load_codec("hermes-tools"), EXPECTED)
