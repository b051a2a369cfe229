"""Tool calls: rendered by the chat template and trained on like any answer, or dropped and counted."""

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
from trainer_core.data.columns import BadRow, ColumnMapping, Turn
from trainer_core.data.report.report import preview, report_prepared_data
from trainer_core.data.tokenizing import tokenizer
from trainer_core.data.tokenizing.tokenizer import Codec

Row = dict[str, Any]
LAYOUT = ColumnMapping("messages", messages="messages", tools="tools")

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


def call(name: str = "get_weather", number: int = 1, **arguments: Any) -> Row:
    return {
        "id": f"call0000{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments or {"city": "北京", "days": number}},
    }


def user(content: str) -> Row:
    return {"role": "user", "content": content}


def calling(*calls: Row, **fields: Any) -> Row:
    return {"role": "assistant", "content": None, "tool_calls": list(calls) or [call()], **fields}


def result(content: str = '{"celsius": 21}', number: int = 1) -> Row:
    return {"role": "tool", "name": "get_weather", "tool_call_id": f"call0000{number}", "content": content}


def answer(content: str) -> Row:
    return {"role": "assistant", "content": content}


CONVERSATIONS: dict[str, list[Row]] = {
    "one call": [user("Weather in 北京?"), calling(), result(), answer("21 °C.")],
    "system": [{"role": "system", "content": "Be brief."}, user("Weather?"), calling(), result(), answer("21 °C.")],
    "ends with a call": [user("Hi"), answer("Hello"), user("Weather?"), calling()],
    "several turns": [
        user("Weather in 北京?"),
        calling(),
        result(),
        answer("21 °C."),
        user("And tomorrow?"),
        calling(call(number=2)),
        result("18", 2),
        answer("18 °C."),
        user("Thanks"),
        answer("Bye"),
    ],
    "calls in a row": [
        user("Both?"),
        calling(),
        result(),
        calling(call(number=2)),
        result("5", 2),
        answer("21 and 5."),
    ],
    "no call": [user("Hi"), answer("Hello")],
}


def read(messages: Sequence[Row], tools: Any = (WEATHER,)) -> tuple[Turn, ...]:
    return columns.extract_turns({"messages": list(messages), "tools": list(tools) if tools else None}, LAYOUT)


def rendered(codec: Codec, turns: Sequence[Turn]) -> str:
    """What the template of a codec writes, marks and all."""
    pieces, _ = codec._select_template(turns).render(turns)
    return "".join(one[0] if isinstance(one, tuple) else codec.tokenizer.id_to_token(one) for one in pieces)


def loss_texts(codec: Codec, turns: Sequence[Turn]) -> list[str]:
    made = codec.encode_chats([turns])[0]
    return [codec.decode(made.ids[slice(*span)].tolist(), skip_special_tokens=False) for span in made.spans]


# --- parity with transformers -------------------------------------------------------------------


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_text_and_ids_equal_those_of_transformers(family: str) -> None:
    codec, theirs = load_codec(family), load_transformers(family)
    for messages in CONVERSATIONS.values():
        turns = read(messages)
        assert list(codec.drop_unsupported_calls(turns)) == list(turns)
        assert rendered(codec, turns) == theirs.apply_chat_template(messages, tools=[WEATHER], tokenize=False)
        made = codec.encode_chats([turns])[0]
        whole = theirs.apply_chat_template(messages, tools=[WEATHER], return_dict=False)
        assert made.ids.tolist() == whole[: len(made.ids)]
        assert not theirs.decode(whole[len(made.ids) :], skip_special_tokens=True).strip()
        before = messages[: [one["role"] for one in messages].index("assistant")]
        prompt = theirs.apply_chat_template(before, tools=[WEATHER], add_generation_prompt=True, return_dict=False)
        assert codec.encode_prompt(turns[: 1 + len(before)]) == prompt


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_without_tools_the_text_equals_that_of_transformers(family: str) -> None:
    messages = CONVERSATIONS["no call"]
    expected = load_transformers(family).apply_chat_template(messages, tokenize=False)
    assert rendered(load_codec(family), read(messages, None)) == expected


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
    found = loss_texts(codec, read(CONVERSATIONS["several turns"]))
    calls = [CALLS[family] % ((n, n) if "call0000" in CALLS[family] else n) for n in (1, 2)]
    expected = [calls[0], f"21 °C.{end}", calls[1], f"18 °C.{end}", f"Bye{end}"]
    if family == "qwen3-tools":
        expected[-1] = f"<think>\n\n</think>\n\n{expected[-1]}"
    assert [one.strip() for one in found] == expected


@pytest.mark.parametrize("family", ["qwen2.5-tools", "qwen3-tools"])
def test_text_before_a_call_and_several_calls_are_one_span(family: str) -> None:
    messages = [user("Both?"), calling(call(), call(number=2), content="Let me look."), result(), result("5", 2)]
    turns = read([*messages, answer("21 and 5.")])
    calls = [(CALLS[family] % n).removesuffix("<|im_end|>") for n in (1, 2)]
    assert loss_texts(load_codec(family), turns)[0] == "Let me look.\n" + "\n".join(calls) + "<|im_end|>"
    expected = load_transformers(family).apply_chat_template(
        [*messages, answer("21 and 5.")], tools=[WEATHER], tokenize=False
    )
    assert rendered(load_codec(family), turns) == expected


def test_an_answer_after_several_results_is_in_the_loss() -> None:
    calls = [user("Both?"), calling(call(), call(number=2)), result(), result("5", 2), answer("21 and 5.")]
    turns = read([*calls, user("Thanks"), answer("Bye")])
    for family in ("mistral-tools", "hermes-tools", "qwen3-tools"):
        end = ENDS.get(family, "<|im_end|>")
        assert loss_texts(load_codec(family), turns)[1].strip() == f"21 and 5.{end}"


def test_a_template_may_omit_the_text_before_a_call() -> None:
    turns = read([user("Weather?"), calling(content="Let me look."), result(), answer("21 °C.")])
    assert loss_texts(load_codec("llama3.1-tools"), turns)[0] == CALLS["llama3.1-tools"] % 1


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_tools_calls_and_results_never_become_special_tokens(family: str) -> None:
    codec = load_codec(family)
    marks = {number for number, one in codec.tokenizer.get_added_tokens_decoder().items() if one.special}
    spelled = " ".join(one.content for one in codec.tokenizer.get_added_tokens_decoder().values() if one.special)
    tool = json.loads(json.dumps(WEATHER).replace("Today's", f"{spelled} Today's"))
    evil = [user("Hi"), calling(call(city=spelled)), result(spelled), answer(spelled)]
    tame = [user("Hi"), calling(call(city="x")), result("x"), answer("x")]
    made, expected = (codec.encode_chats([read(rows, [tool])])[0] for rows in (evil, tame))
    assert [n for n in made.ids.tolist() if n in marks] == [n for n in expected.ids.tolist() if n in marks]
    assert len(made.spans) == len(expected.spans) == 2
    call_text = codec.decode(made.ids[slice(*made.spans[0])].tolist())
    assert json.dumps({"city": spelled}, ensure_ascii=False) in call_text


def test_all_calls_of_a_long_conversation_are_in_the_loss() -> None:
    """Also behind the turns for which the prompt is rendered."""
    turns = [[user(f"Weather in {n} days?"), calling(), result(), answer("21 °C.")] for n in range(30)]
    for family in TOOL_FAMILIES:
        found = loss_texts(load_codec(family), read([message for turn in turns for message in turn]))
        assert len(found) == 60
        assert all("get_weather" in one for one in found[::2])


@pytest.mark.parametrize("number", ["call_abcdefghijklmnopqrstuv", None])
def test_call_ids_are_shortened_if_the_template_requires_it(number: str | None) -> None:
    """As Mistral's; ids are labels, and nearly all data has them as OpenAI writes them, or none."""
    codec, theirs = load_codec("mistral-tools"), load_transformers("mistral-tools")
    messages = [json.loads(json.dumps(one)) for one in CONVERSATIONS["one call"]]
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = number
    turns = codec.drop_unsupported_calls(read(messages))
    short = columns.turn_fields(turns[2])["tool_calls"][0]["id"]
    assert re.fullmatch("[a-z0-9]{9}", short)
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = short
    assert rendered(codec, turns) == theirs.apply_chat_template(messages, tools=[WEATHER], tokenize=False)
    assert codec.encode_chats([read(messages)])[0].dropped_turns == 0


# --- what cannot be rendered ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama2", "gemma", "deepseek", "unigram", "mistral", "llama3"])
def test_a_template_without_tool_support_gets_no_calls(family: str) -> None:
    codec = load_codec(family)
    (made,) = codec.encode_chats([read(CONVERSATIONS["several turns"])])
    alone = [one for one in CONVERSATIONS["several turns"] if one["role"] != "tool" and not one.get("tool_calls")]
    assert made.dropped_turns == 4
    assert made.ids.tolist() == codec.encode_chats([read(alone, None)])[0].ids.tolist()


def test_only_calls_that_the_template_refuses_are_dropped() -> None:
    codec = load_codec("llama3.1-tools")
    turns = read([user("Both?"), calling(call(), call(number=2)), result(), result("5", 2), answer("21 and 5."),
                  user("More?"), calling(), result(), answer("21")])  # fmt: skip
    (made,) = codec.encode_chats([turns])
    assert made.dropped_turns == 3  # one turn with two calls, and their results
    assert [codec.decode(made.ids[slice(*span)].tolist()) for span in made.spans] == [
        "21 and 5.", (CALLS["llama3.1-tools"] % 1).removesuffix("<|eot_id|>"), "21",
    ]  # fmt: skip


def test_a_conversation_of_dropped_calls_only_is_not_a_bad_row() -> None:
    refused: list[int] = []
    chats = load_codec("unigram").encode_chats(
        [read([user("Weather?"), calling()]), read([user("Hi"), answer("Hello")])],
        lambda number, error: refused.append(number),
    )
    assert (refused, chats[0].dropped_turns, len(chats[0].ids)) == ([], 1, 0)
    assert len(chats[1].ids) > 0


def chats_file(folder: Path, count: int = 1200) -> Path:
    path = folder / "chats.jsonl"
    rows = [
        {"messages": [*CONVERSATIONS["one call"][:-1], answer(f"{n} °C.")], "tools": [WEATHER]} for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_dropped_calls_are_counted_and_do_not_end_preparation(tmp_path: Path) -> None:
    reporter, path = RecordingReporter(), chats_file(tmp_path)
    made = prepare_files(path, reporter=reporter, max_seq_len=128)
    assert made.train.documents + made.validation.documents == 1200
    assert reporter.warnings == {"data.turns_left_out": {"count": 2400}}
    config = Config(data=[str(path)], vocab_size=320, max_seq_len=128)
    assert report_prepared_data(made, config).skipped_turns == 2400
    assert preview(config, RecordingReporter()).skipped_turns == 2400


def test_supported_calls_are_in_the_token_cache(tmp_path: Path) -> None:
    reporter, given = RecordingReporter(), model_folder(tmp_path / "given", "qwen2.5-tools")
    made = prepare_files(chats_file(tmp_path, 60), reporter=reporter, max_seq_len=2048, tokenizer=str(given))
    assert reporter.warnings == {}
    assert made.train.documents + made.validation.documents == 60
    split = made.open_split("train")
    text = made.load_codec().decode(split.read(0, split.tokens).tolist(), skip_special_tokens=False)
    assert text.count(CALLS["qwen2.5-tools"] % 1) == split.documents
    assert len(split.spans) == 2 * split.documents


def test_tokens_of_calls_are_the_same_without_a_token_cache(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"messages": CONVERSATIONS["one call"], "tools": json.dumps([WEATHER])} for _ in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "chats.parquet")
    knobs: dict[str, Any] = {"tokenizer": str(model_folder(tmp_path / "given", "mistral-tools")), "max_seq_len": 2048}
    kept = prepare_files(tmp_path / "chats.parquet", **knobs).open_split("train")
    direct = prepare_files(tmp_path / "chats.parquet", **knobs, token_cache=False).open_split("train")
    assert kept.read(0, kept.tokens).tolist() == direct.read(0, direct.tokens).tolist()
    messages = pq.read_table(tmp_path / "chats.parquet").to_pylist()[0]["messages"]  # pyarrow 17 sorts the keys
    expected = load_codec("mistral-tools").encode_chats([read(messages)])[0].ids.tolist()
    assert kept.read(0, int(kept.offsets[1])).tolist() == expected


def test_a_dropped_last_call_leaves_the_answer_before_it_as_the_last(tmp_path: Path) -> None:
    """Also where the last call is left out: then the answer before it is asked for."""
    codec = load_codec("unigram")
    kept = columns.trim_after_last_answer(
        codec.drop_unsupported_calls(read([user("Hi"), answer("Hello"), user("Weather?"), calling()]))
    )
    assert kept[1:] == [("user", "Hi"), ("assistant", "Hello")]


# --- formats of rows -----------------------------------------------------------------

EXPECTED = read(CONVERSATIONS["one call"])


def test_arguments_may_be_json_text() -> None:
    written_as_text = call()
    written_as_text["function"]["arguments"] = json.dumps(written_as_text["function"]["arguments"])
    messages = [user("Weather in 北京?"), calling(written_as_text), result(), answer("21 °C.")]
    assert read(messages) == EXPECTED
    row = {"messages": json.dumps(messages), "tools": json.dumps([WEATHER]), "parallel_tool_calls": False}
    assert columns.extract_turns(row, LAYOUT) == EXPECTED


@pytest.mark.parametrize(("arguments", "kept"), [("", {}), (None, {}), ("not JSON", "not JSON"), ("[1]", "[1]")])
def test_arguments_that_are_no_object_are_unchanged(arguments: Any, kept: Any) -> None:
    one = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = read([user("Hi"), calling(one)])
    assert columns.turn_fields(turns[-1])["tool_calls"][0]["function"]["arguments"] == kept


def test_the_older_function_format_is_read() -> None:
    function = call()["function"]
    older = {
        "role": "assistant",
        "content": None,
        "function_call": {**function, "arguments": json.dumps(function["arguments"])},
    }
    messages = [user("Hi"), older, {"role": "function", "name": "get_weather", "content": "21"}, answer("21")]
    turns = columns.extract_turns({"messages": messages, "functions": [WEATHER["function"]]},
                             ColumnMapping("messages", messages="messages", tools="functions"))  # fmt: skip
    assert turns[0] == (columns.TOOLS_ROLE, json.dumps([WEATHER], ensure_ascii=False))
    assert columns.turn_fields(turns[2])["tool_calls"] == [{"type": "function", "function": function}]
    assert turns[3] == ("tool", "21", '{"name": "get_weather"}')


def test_sharegpt_roles_for_calls_and_results_are_read() -> None:
    function = call()["function"]
    conversation = [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": json.dumps(function)},
        {"from": "observation", "value": "21"},
        {"from": "gpt", "value": "21 °C."},
    ]
    row = {"conversations": conversation, "tools": json.dumps([WEATHER["function"]])}
    turns = columns.extract_turns(row, columns.map_columns(["conversations", "tools"], Config()))
    assert columns.turn_fields(turns[2])["tool_calls"] == [{"type": "function", "function": function}]
    assert loss_texts(load_codec("qwen2.5-tools"), turns) == [CALLS["qwen2.5-tools"] % 1, "21 °C.<|im_end|>"]


def test_nulls_of_arrow_tables_are_removed_from_calls() -> None:
    filled = {**call(), "index": None}
    filled["function"] = {**filled["function"], "arguments": {"city": "北京", "days": 1, "unit": None}}
    rows = [{**one, "tool_calls": None} for one in CONVERSATIONS["one call"]]
    rows[1] = calling(filled, name=None, tool_call_id=None)
    tool = {**WEATHER, "strict": None}
    assert read(rows, [tool]) == EXPECTED
    assert rendered(load_codec("llama3.1-tools"), read(rows)) == rendered(load_codec("llama3.1-tools"), EXPECTED)


def test_a_turn_of_weight_0_is_not_in_the_loss() -> None:
    for family in ("unigram", "qwen2.5", "llama3"):
        messages = [user("Hi"), {**answer("Nonsense"), "weight": 0}, user("Hi!"), {**answer("Hello"), "weight": 1}]
        codec, turns = load_codec(family), read(messages, None)
        made, plain = codec.encode_chats([turns])[0], codec.encode_chats([[turn[:2] for turn in turns]])[0]
        assert made.ids.tolist() == plain.ids.tolist()
        assert [codec.decode(made.ids[slice(*span)].tolist()) for span in made.spans] == ["Hello"]
    assert read([*messages, user("More?"), {**answer("No"), "weight": 0}], None) == turns


@pytest.mark.parametrize(
    ("messages", "tools", "reason"),
    [
        ([user("Hi"), calling({"type": "function", "function": {"arguments": {}}})], None, "names no function"),
        ([user("Hi"), {"role": "function_call", "content": "not JSON"}], None, "names no function"),
        ([user("Hi"), calling(call(when=b"bytes"))], None, "unsupported value"),
        ([user("Hi"), answer("Hello")], ["not a tool"], "not a list of tools"),
        ([user("Hi"), {"role": "assistant", "content": None, "tool_calls": []}], None, "has no text"),
        ([user("Hi"), {**answer("Hello"), "weight": 0}], None, "has no answer"),
    ],
)
def test_an_invalid_call_is_a_bad_row(messages: list[Row], tools: Any, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        read(messages, tools)


def test_deeply_nested_arguments_are_a_bad_row() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(BadRow, match="unsupported value"):
        read([user("Hi"), calling(call(deep=deep))])


# --- checkpoints ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TOOL_FAMILIES)
def test_transformers_renders_calls_from_a_checkpoint_in_the_same_way(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    codec, messages = load_codec(family), CONVERSATIONS["one call"]
    codec.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_bytes(codec.config_json("sft", 256))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    again = Codec.load(tmp_path / "tokenizer.json")
    expected = load_transformers(family).apply_chat_template(messages, tools=[WEATHER], tokenize=False)
    assert theirs.apply_chat_template(messages, tools=[WEATHER], tokenize=False) == expected
    assert rendered(again, EXPECTED) == expected


def test_the_tool_use_template_file_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = model_folder(tmp_path, "hermes-tools")
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    default, tool_use = (one["template"] for one in config.pop("chat_template"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(default, encoding="utf-8")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use, encoding="utf-8")
    codec, _ = tokenizer.load_user_tokenizer(folder / "tokenizer.json")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(CONVERSATIONS["one call"], tools=[WEATHER], tokenize=False)
    assert rendered(codec, EXPECTED) == expected == rendered(load_codec("hermes-tools"), EXPECTED)
