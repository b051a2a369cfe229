"""Preferences: rows with a good and a bad answer, or with one labelled answer, as conversations and as tokens.

An answer is a text, a message, or a list of messages, which may repeat the prompt. The prompt is what both
conversations of a pair begin with; only the answers after it are trained on.

Encoded, the chosen conversation precedes the rejected one. An empty span [b, b) among the trained spans marks the token
at which the latter begins.

No torch, no Qt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import numpy as np

from trainer_core.data.column_mapping import ColumnMapping
from trainer_core.data.columns import (
    ROLE_ALIASES,
    Conversation,
    Preference,
    RowError,
    cell_text,
    parse_json,
    parse_turn,
    prompt_text,
    system_turns,
    tools_turns,
    trim_after_last_answer,
    unsupported_value,
    without_loss,
)
from trainer_core.data.tokenizing.tokenizer import Codec, EncodedChat
from trainer_core.messages import TraindeckError

_NONE: Final = EncodedChat(np.empty(0, np.uint32), [])
_LABELS: Final = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
_TRANSCRIPT_TURN: Final = re.compile(r"\n\n(Human|Assistant):")  # a whole conversation as text, as in hh-rlhf
_TRANSCRIPT_ROLES: Final = {"Human": "user", "Assistant": "assistant"}


def extract_preference(row: Mapping[str, Any], mapping: ColumnMapping) -> Preference:
    """The conversations of a row. Raises `RowError`."""
    try:
        if mapping.kind == "labelled":
            return _extract_labelled(row, mapping)
        answers = [_answer(row, name) for name in (mapping.chosen, mapping.rejected)]
        chosen, rejected = _join(_prompt(row, mapping), answers)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
        return Preference(
            _finish(chosen, shared, row, mapping, mapping.chosen),
            _finish(rejected, shared, row, mapping, mapping.rejected),
        )
    except (TypeError, RecursionError):  # values without JSON form; too deeply nested
        raise unsupported_value() from None


def _extract_labelled(row: Mapping[str, Any], mapping: ColumnMapping) -> Preference:
    """A conversation whose answer, all that follows the last user turn, is good or bad."""
    is_good = _LABELS.get(str(row.get(mapping.label)).strip().lower())
    if is_good is None:
        raise RowError(f"“{mapping.label}” is not true, false, 1 or 0")
    turns = _prompt(row, mapping)
    if mapping.response:
        [turns] = _join(turns, [_answer(row, mapping.response)])
    shared = max((number for number, turn in enumerate(turns, 1) if turn[0] == "user"), default=0)
    turns = _finish(turns, shared, row, mapping, mapping.response or mapping.messages)
    return Preference(turns, ()) if is_good else Preference((), turns)


def _prompt(row: Mapping[str, Any], mapping: ColumnMapping) -> Conversation:
    """The turns of the prompt, else of the messages; empty if the answers have them."""
    for name in filter(None, (mapping.prompt, mapping.messages)):
        if messages := _messages(row.get(name)):
            return tuple(parse_turn(message, name) for message in messages)
        if name == mapping.prompt and (text := prompt_text(row, mapping)):
            return (("user", text),)
    return ()


def _answer(row: Mapping[str, Any], name: str) -> Conversation:
    if messages := _messages(row.get(name)):
        return tuple(parse_turn(message, name) for message in messages)
    text = cell_text(row, name)
    if not text.strip():
        raise RowError(f"“{name}” is empty")
    if not text.startswith("\n\nHuman:"):
        return (("assistant", text),)
    roles, texts = (_TRANSCRIPT_TURN.split(text)[start::2] for start in (1, 2))
    return tuple((_TRANSCRIPT_ROLES[role], part.strip()) for role, part in zip(roles, texts, strict=True))


def _messages(value: Any) -> list[Any]:
    """The messages of a cell, which may be JSON; empty if it is a text."""
    parsed = parse_json(value) if isinstance(value, str) else value
    messages = [parsed] if isinstance(parsed, Mapping) else parsed
    if not isinstance(messages, list) or (isinstance(value, str) and not all(map(_is_message, messages))):
        return []
    return messages


def _is_message(value: Any) -> bool:
    role = (value.get("role") or value.get("from")) if isinstance(value, Mapping) else None
    return isinstance(role, str) and role.lower() in ROLE_ALIASES


def _join(prompt: Conversation, answers: Sequence[Conversation]) -> list[Conversation]:
    """The whole conversations. Answers that begin with a prompt repeat the end of `prompt`; if they do not, they follow
    it where it ends with an answer, and replace it elsewhere."""
    waiting = len(prompt)  # turns up to the one that waits for an answer
    while waiting and prompt[waiting - 1][0] == "assistant":
        waiting -= 1
    whole = [answer for answer in answers if answer[0][0] not in ("assistant", "tool")]
    repeated = (start for start in range(len(prompt)) for one in whole if one[: len(prompt) - start] == prompt[start:])
    start = next(repeated, len(prompt) if waiting < len(prompt) else 0)
    return [(*prompt[: start if answer in whole else waiting], *answer) for answer in answers]


def _finish(
    turns: Conversation, shared: int, row: Mapping[str, Any], mapping: ColumnMapping, name: str
) -> Conversation:
    """A conversation up to its last answer, with tools and system prompt. `shared` turns are not trained on."""
    trimmed = trim_after_last_answer(turns)
    if not trimmed:
        raise RowError(f"“{name}” has no answer of an assistant")
    if len(trimmed[-1]) == 2 and not trimmed[-1][1].strip():
        raise RowError(f"“{name}” ends with an empty answer")
    shared = min(shared, len(trimmed) - 1)  # of two equal answers, the last one
    if not any(turn[0] == "user" for turn in trimmed[:shared]):
        raise RowError("it has no prompt")
    before = [without_loss(turn) if turn[0] == "assistant" else turn for turn in trimmed[:shared]]
    system = system_turns(row, mapping) if trimmed[0][0] != "system" else ()
    return (*tools_turns(row, mapping), *system, *before, *trimmed[shared:])


# --- tokens ------------------------------------------------------------------------------------------


def encode_preferences(
    codec: Codec, rows: Sequence[Preference], on_refused: Callable[[int, TraindeckError], None] | None = None
) -> tuple[list[EncodedChat], int]:
    """Rows as tokens, and the number of pairs whose conversations have the same tokens.

    Those rows are empty, and so are rows of which the template refuses a conversation, or writes none of its answers.
    `on_refused`: as in `Codec.encode_chats`, which also says what is raised.
    """
    owners = [number for number, row in enumerate(rows) for conversation in row if conversation]
    refused: set[int] = set()

    def refuse(place: int, error: TraindeckError) -> None:
        if on_refused is not None and owners[place] not in refused:
            on_refused(owners[place], error)
        refused.add(owners[place])

    conversations = [conversation for row in rows for conversation in row if conversation]
    chats = codec.encode_chats(conversations, None if on_refused is None else refuse)
    lost = {owner for owner, chat in zip(owners, chats, strict=True) if not len(chat.ids)}
    remaining = iter(chats)
    pairs = [
        (next(remaining) if chosen else _NONE, next(remaining) if rejected else _NONE) for chosen, rejected in rows
    ]
    equal = {number for number, (one, other) in enumerate(pairs) if np.array_equal(one.ids, other.ids)} - lost
    joined = [_concatenate(*pair) for pair in pairs]
    for number in lost | equal:
        joined[number] = _NONE._replace(dropped_turns=joined[number].dropped_turns)
    return joined, len(equal)


def _concatenate(chosen: EncodedChat, rejected: EncodedChat) -> EncodedChat:
    dropped_turns, begin = chosen.dropped_turns + rejected.dropped_turns, len(chosen.ids)
    spans = [*chosen.spans, (begin, begin), *((begin + start, begin + stop) for start, stop in rejected.spans)]
    return EncodedChat(np.concatenate([chosen.ids, rejected.ids]), spans, dropped_turns)
