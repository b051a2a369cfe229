"""Files of a tokenizer.

    tokenizer.json              the tokenizer itself, as `tokenizers` reads it
    tokenizer_config.json       its named tokens (bos_token …) and its chat template
    special_tokens_map.json     older models: named tokens
    chat_template.jinja         the chat template, if it is a separate file
    additional_chat_templates/tool_use.jinja  beside chat_template.jinja: the one for conversations with tools

Caches, runs and checkpoints have the first two; settings of Traindeck are in the second, below `traindeck`.

No torch, no Qt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, processors

from trainer_core.data.column_mapping import Task
from trainer_core.data.tokenizing import conversations
from trainer_core.data.tokenizing.conversations import Thinking
from trainer_core.messages import TraindeckError

TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TOOL_TEMPLATE_FILE: Final = "additional_chat_templates/tool_use.jinja"
COMPANION_FILES: Final = (CONFIG_FILE, "special_tokens_map.json", "chat_template.jinja", TOOL_TEMPLATE_FILE)
_RESERVED: Final = re.compile(r"<\|reserved_special_token_\d+\|>|<unused\d+>|\[control_\d+\]|<SPECIAL_\d+>")
"""Tokens for own use, of Llama 3, Gemma and Mistral."""
_MAX_FILE_BYTES: Final = 256 * 1024 * 1024  # bytes; the largest tokenizers known have 35 MB


def find_tokenizer(location: str) -> Path:
    """The tokenizer.json at a path or in a folder; raises `data.bad_tokenizer`."""
    path = Path(location).expanduser()
    if path.is_dir():
        path = path / TOKENIZER_FILE
    if not path.is_file():
        raise bad_tokenizer_error(path, "there is no such file")
    return path


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """The companion files of a tokenizer.json."""

    path: Path = field(default_factory=Path)  # of the tokenizer.json
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token, eos_token …
    template: str = conversations.CHATML_TEMPLATE
    tool_template: str = ""  # for conversations with tools; empty: `template`
    template_path: Path = field(default_factory=Path)  # `path` if there is none
    added_tokens: Sequence[AddedToken] = ()  # further tokens, in the order of their ids
    end_of_text: str = ""  # empty: unknown
    now: datetime | None = None  # the template's current time
    thinking: Thinking = "auto"  # the setting of this name
    new_tokens: Mapping[str, int] = field(default_factory=dict)  # in texts, with ids; the base model does not know them
    add_bos: bool = False  # add_bos_token
    add_eos: bool = False  # add_eos_token


def read_config(path: Path) -> TokenizerConfig:
    """Read the companion files of a tokenizer.json. Raises `data.bad_tokenizer` or `data.bad_template`."""
    config = _read_json(path.with_name(CONFIG_FILE))
    template, tool_template, template_path = _read_templates(path, config)
    ours = _traindeck_fields(config)
    tokens = _named_tokens(ours.get("tokens"))
    if "tokens" not in ours:
        older = _read_json(path.with_name("special_tokens_map.json"))
        tokens = {**_named_tokens(older), **_named_tokens(config), **_named_tokens(config.get("extra_special_tokens"))}
    try:
        now = datetime.fromisoformat(ours.get("now", ""))
    except (TypeError, ValueError):
        now = None
    return TokenizerConfig(
        path=path,
        special_tokens=tokens,
        template=template or conversations.CHATML_TEMPLATE,
        tool_template=tool_template,
        template_path=template_path,
        added_tokens=_added_tokens(config),
        end_of_text=str(ours.get("end_of_text", "")),
        now=now,
        thinking=thinking if (thinking := ours.get("thinking")) in ("keep", "drop") else "auto",
        new_tokens=_new_tokens(ours),
        add_bos=config.get("add_bos_token") is True,
        add_eos=config.get("add_eos_token") is True,
    )


def read_new_tokens(folder: Path) -> dict[str, int]:
    """Tokens, with ids, that the base model of prepared data was not trained on."""
    return _new_tokens(_traindeck_fields(_read_json(folder / CONFIG_FILE)))


def read_task(folder: Path) -> Task:
    """The task that the model of a checkpoint folder was trained for."""
    config = _read_json(folder / CONFIG_FILE)
    if ours := _traindeck_fields(config):
        return "sft" if ours.get("task") == "sft" else "pretrain"
    return "sft" if config.get("eos_token") == conversations.IM_END else "pretrain"  # written by Traindeck 0.1


def is_chat(folder: Path) -> bool:
    """Whether the model of a folder answers prompts: as Traindeck trained it, otherwise if it has a chat template."""
    config = _read_json(folder / CONFIG_FILE)
    if _traindeck_fields(config):
        return read_task(folder) == "sft"
    return bool(_read_templates(folder / TOKENIZER_FILE, config)[0])


def _traindeck_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    found = config.get("traindeck")
    return found if isinstance(found, dict) else {}


def _new_tokens(ours: Mapping[str, Any]) -> dict[str, int]:
    found = ours.get("new_tokens")
    pairs = found.items() if isinstance(found, dict) else ()
    return {token: number for token, number in pairs if isinstance(number, int)}


def _named_tokens(values: Any) -> dict[str, str]:
    """Tokens by name, such as bos_token: a text each, or an object that describes the token."""
    pairs = values.items() if isinstance(values, dict) else ()
    found = {name: value.get("content") if isinstance(value, dict) else value for name, value in pairs}
    return {
        name: token for name, token in found.items() if name.endswith("_token") and isinstance(token, str) and token
    }


def _read_templates(path: Path, config: Mapping[str, Any]) -> tuple[str, str, Path]:
    """A model's chat template, its template for tools, and the file of both; `path` if there is none."""
    file = path.with_name("chat_template.jinja")
    if file.is_file():
        tool_file = path.parent / TOOL_TEMPLATE_FILE
        return _read_text(file), _read_text(tool_file) if tool_file.is_file() else "", file
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
    named = found if isinstance(found, dict) else {"default": found}
    default, tool_use = (named.get(name) for name in ("default", "tool_use"))
    if not isinstance(default, str) or not default:
        return "", "", path
    return default, tool_use if isinstance(tool_use, str) else "", path.with_name(CONFIG_FILE)


def _read_text(file: Path) -> str:
    try:
        return _read_content(file).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise TraindeckError("data.bad_template", path=str(file), reason=str(error)) from error


def _added_tokens(config: Mapping[str, Any]) -> list[AddedToken]:
    """Tokens that a tokenizer_config.json adds to the vocabulary, as transformers would."""
    found = config.get("added_tokens_decoder")
    rows = found.items() if isinstance(found, dict) else ()
    by_id = {int(number): row for number, row in rows if number.isdecimal() and isinstance(row, dict)}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return [
        AddedToken(row["content"], **{flag: bool(row[flag]) for flag in flags if flag in row})
        for _, row in sorted(by_id.items())
        if isinstance(row.get("content"), str) and row["content"]
    ]


def _read_content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise bad_tokenizer_error(path, f"it is larger than {_MAX_FILE_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise bad_tokenizer_error(path, error.strerror or str(error)) from error


def _read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file; empty if the file does not exist. Raises `data.bad_tokenizer`."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(_read_content(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise bad_tokenizer_error(path, str(error)) from error
    if not isinstance(found, dict):
        raise bad_tokenizer_error(path, "it holds no JSON object")
    return found


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json, without truncation and padding. Raises `data.bad_tokenizer`."""
    content = _read_content(path)
    try:
        tokenizer = Tokenizer.from_str(content.decode("utf-8-sig"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer
    except BaseException as error:  # tokenizers raises bare Exception, and on some input panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise bad_tokenizer_error(path, (str(error).splitlines() or [type(error).__name__])[0][:200]) from error


def use_reserved_tokens(tokenizer: Tokenizer, names: Sequence[str]) -> Tokenizer:
    """A tokenizer with reserved tokens of its vocabulary renamed to `names`, as many as it has."""
    if not names or not any(_RESERVED.fullmatch(one.content) for one in tokenizer.get_added_tokens_decoder().values()):
        return tokenizer
    document = json.loads(tokenizer.to_str())
    reserved = [one for one in document["added_tokens"] if _RESERVED.fullmatch(one["content"])]
    renamed = {one["content"]: name for one, name in zip(reserved, names, strict=False)}
    for one in document["added_tokens"]:
        if one["content"] in renamed:
            one.update(content=renamed[one["content"]], special=True)
    vocabulary = document["model"]["vocab"]  # Unigram has a list of pairs
    pairs = [(renamed.get(name, name), value) for name, value in dict(vocabulary).items()]
    document["model"]["vocab"] = dict(pairs) if isinstance(vocabulary, dict) else pairs
    return Tokenizer.from_str(json.dumps(document, ensure_ascii=False))


# --- tokens that the post-processor adds -----------------------------------------------------------


def post_processor_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the post-processor writes before and after a text, such as `<bos>` and `<eos>`."""
    if tokenizer.post_processor is None:
        return [], []
    try:
        encoding = tokenizer.encode("a", add_special_tokens=True)
    except Exception:  # noqa: BLE001 - tokenizers raises it; `Codec` refuses a tokenizer that cannot encode
        return [], []
    text = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
    first, last = (text[0], text[-1] + 1) if text else (len(encoding.ids), len(encoding.ids))
    return encoding.ids[:first], encoding.ids[last:]


def apply_bos_eos_flags(tokenizer: Tokenizer, config: TokenizerConfig) -> None:
    """Adds to the post-processor what `add_bos_token` and `add_eos_token` ask for. Raises `data.bad_tokenizer`.

    The tokenizer classes of Llama and Gemma in transformers 4 follow the flags; transformers 5 follows the
    post-processor alone. In most published tokenizers both agree. A flag that is false removes nothing.
    """
    ids = post_processor_ids(tokenizer)
    before, after = ([str(tokenizer.id_to_token(number)) for number in side] for side in ids)
    bos, eos = (config.special_tokens.get(name, "") for name in ("bos_token", "eos_token"))
    add_bos = config.add_bos and not before and tokenizer.token_to_id(bos) is not None
    add_eos = config.add_eos and not after and tokenizer.token_to_id(eos) is not None
    if not add_bos and not add_eos:
        return
    before, after = [bos] if add_bos else before, [eos] if add_eos else after
    special = [(token, tokenizer.token_to_id(token)) for token in {*before, *after}]
    try:
        tokenizer.post_processor = processors.TemplateProcessing(single=[*before, "$A", *after], special_tokens=special)
    except Exception as error:  # tokenizers raises ValueError for names that its template syntax does not take
        raise bad_tokenizer_error(config.path, str(error)) from error


def bad_tokenizer_error(path: Path, reason: str) -> TraindeckError:
    return TraindeckError("data.bad_tokenizer", path=str(path), reason=reason.rstrip("."))
