"""ChatML, and conversations as a chat template receives them: validation, messages, tool calls.

No torch, no Qt.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from trainer_core.data.columns import THINK_TAGS, TOOLS_ROLE, Turn, turn_fields, without_reasoning
from trainer_core.messages import TraindeckError

END_OF_TEXT: Final = "<|endoftext|>"
IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
Thinking = Literal["auto", "keep", "drop"]
SPECIAL_TOKENS: Final = (END_OF_TEXT, IM_START, IM_END)
# ChatML, for models without a template of their own.
CHATML_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MAX_CONVERSATION_CHARS: Final = 4 * 1024 * 1024  # a conversation is encoded at once, with up to 300 bytes per character
_ROLES: Final = ("system", "user", "assistant", "tool")


def validate_turns(turns: Sequence[Turn]) -> None:
    """Raises `data.chat_refused` for no turns, an unknown role or too long a text."""
    if not turns:
        raise chat_refused_error("it has no messages")
    for number, (role, *_) in enumerate(turns):
        if role not in _ROLES and (number or role != TOOLS_ROLE):  # a role could spell a special token
            raise chat_refused_error(f"a message's role is “{role[:40]}”")
    if sum(len(part) for turn in turns for part in turn[1:]) > MAX_CONVERSATION_CHARS:
        raise chat_refused_error("it is longer than 4 million characters; divide it into several conversations")


def to_message(turn: Turn) -> dict[str, Any]:
    """A turn as a template's message."""
    fields = turn_fields(turn)
    fields.pop("weight", None)
    if "tool_calls" in fields and not turn[1].strip():  # then the fields have the content, if there is one
        return {"role": turn[0], **fields}
    return {"role": turn[0], "content": turn[1], **fields}


def with_reasoning(turns: Sequence[Turn], thinking: Thinking) -> Sequence[Turn]:
    """A conversation with the reasoning of its answers in their text (`keep`), or without it (`drop`).

    Reasoning is `reasoning_content`, and the text up to the last `</think>`. Raises `data.chat_refused` if `drop`
    leaves nothing of an answer.
    """
    return turns if thinking == "auto" else [_turn_with_reasoning(turn, thinking) for turn in turns]


def _turn_with_reasoning(turn: Turn, thinking: Thinking) -> Turn:
    fields = turn_fields(turn) if turn[0] == "assistant" else {}
    reasoning = fields.pop("reasoning_content", "")
    if not reasoning and (turn[0] != "assistant" or thinking == "keep" or THINK_TAGS[1] not in turn[1]):
        return turn
    answer = without_reasoning(turn[1]).lstrip("\n")
    if thinking == "keep":
        answer = f"{THINK_TAGS[0]}\n{reasoning.strip(chr(10))}\n{THINK_TAGS[1]}\n\n{answer}"
    elif not answer.strip() and "tool_calls" not in fields:
        raise chat_refused_error("an answer has only reasoning")
    fields.pop("content", None)
    if "tool_calls" in fields and not answer.strip():
        fields["content"] = answer
    return ("assistant", answer, json.dumps(fields, ensure_ascii=False)) if fields else ("assistant", answer)


def drop_calls(turns: Sequence[Turn], is_supported: Callable[[Turn], bool]) -> Sequence[Turn]:
    """A conversation without the turns whose tool calls are not supported, and the tool results that follow them."""
    kept: list[Turn] = []
    dropping = False
    for turn in turns:
        if turn[0] != "tool":
            dropping = turn[0] == "assistant" and "tool_calls" in turn_fields(turn) and not is_supported(turn)
        if not dropping:
            kept.append(turn)
    return kept


def shorten_tool_call_ids(turns: Sequence[Turn]) -> list[Turn]:
    """A conversation with tool call ids of nine letters and digits, which Mistral's templates require."""
    found: list[Turn] = []
    unanswered: list[str] = []  # ids of calls, for results without an id
    for number, turn in enumerate(turns):
        fields = turn_fields(turn)
        for place, call in enumerate(fields.get("tool_calls", ())):
            call["id"] = _short_id(call.get("id", f"call {number} {place}"))
            unanswered.append(call["id"])
        if turn[0] == "tool":
            given = fields.get("tool_call_id")
            fields["tool_call_id"] = _short_id(given) if given or not unanswered else unanswered[0]
            unanswered = [one for one in unanswered if one != fields["tool_call_id"]]
        found.append((*turn[:2], json.dumps(fields, ensure_ascii=False)) if fields else turn)
    return found


def _short_id(given: Any) -> str:
    return hashlib.blake2b(str(given).encode("utf-8")).hexdigest()[:9]


def chat_refused_error(reason: str) -> TraindeckError:
    return TraindeckError("data.chat_refused", reason=reason)


def no_answers_error() -> TraindeckError:
    return chat_refused_error("the model's chat template writes none of its answers")
