"""Conversations as rows of a data file: random ones from a seed, and handwritten odd ones."""

from __future__ import annotations

import random
from typing import Any, Final

Message = dict[str, Any]

TOOLS: Final[list[Message]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city, in °C. 天气",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "城市"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "Time", "parameters": {"type": "object"}}},
]
WORDS: Final = (
    "hello", "What is", "12345", "it's", "THEY'LL", "naïve", "café", "e\u0301", "床前明月光", "，", "。", "你好！",
    "👋", "👩‍👩‍👧", "🇨🇳", "مرحبا", "हिन्दी", "def f(x):\n    return x", "\n\n", "\t", "  ", "\u3000", "{{ x }}",
    "{% raw %}", "```py\nx = 1\n```", "<b>", "<|", "[", "a_b-c", "http://例.cn/?q=1&r=2", "\\n", '"', "'", "`", "½",
    "Ａ", "\u200b", "…", "user", "assistant", "system", "model", "</s", "think",
)  # fmt: skip


def _chat(*contents: str) -> list[Message]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(contents)]


ODD: Final = [
    _chat("  spaces around  ", "x \n"),
    _chat("?", "👩‍👩‍👧", "\n", "。"),
    [{"role": "system", "content": ""}, *_chat("空系统消息", "好")],
    _chat("assistant\n\nuser\n", "assistant:\nmodel\n\nuser"),
    _chat("{{ bos_token }}{% for %}", "{{ messages[0] }}"),
    _chat("1", "2" * 300, "3", "é\u0301ﬁ"),
]
ODD_THINKING: Final = [
    _chat("?", "<think>\n\n</think>\n\nempty"),
    _chat("?", "no opening\n</think>\n\nanswer"),
    _chat("?", "<think>one</think><think>two</think>three"),
    _chat("?", "before <think>x</think> after"),
    _chat("?", "<think>\nnever closed"),
    _chat("What is </think>?", "<think>\n想\n</think>\n\n👌"),
]


def random_conversations(count: int, features: set[str], seed: str) -> list[list[Message]]:
    """`count` random conversations that end with an answer. `features`: "system", "tools", "thinking"."""
    rng = random.Random(seed)
    return [_conversation(rng, features) for _ in range(count)]


def _conversation(rng: random.Random, features: set[str]) -> list[Message]:
    messages: list[Message] = []
    if "system" in features and rng.random() < 0.5:
        messages.append({"role": "system", "content": _text(rng)})
    for number in range(rng.choice((1, 1, 2, 3, 5))):
        messages.append({"role": "user", "content": _text(rng)})
        if "tools" in features and rng.random() < 0.4:
            messages += _tool_exchange(rng, number, features)
        messages.append(_answer(rng, features))
    return messages


def _tool_exchange(rng: random.Random, number: int, features: set[str]) -> list[Message]:
    function = {"name": "get_weather", "arguments": {"city": _text(rng), "days": rng.randint(1, 9)}}
    call = {"id": f"call{number:05}", "type": "function", "function": function}
    asked: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
    if "thinking" in features and rng.random() < 0.5:
        asked["reasoning_content"] = _text(rng)
    result = {"role": "tool", "name": "get_weather", "tool_call_id": call["id"], "content": _text(rng)}
    return [asked, result]


def _answer(rng: random.Random, features: set[str]) -> Message:
    answer: Message = {"role": "assistant", "content": _text(rng)}
    if "thinking" in features:
        form = rng.randrange(3)
        if form == 1:
            answer["content"] = f"<think>\n{_text(rng)}\n</think>\n\n{answer['content']}"
        elif form == 2:
            answer["reasoning_content"] = _text(rng)
    return answer


def _text(rng: random.Random) -> str:
    """Some words. Begins with no white space, which would merge with the line break before an answer."""
    words = rng.choices(WORDS, k=rng.choice((1, 2, 4, 8, 16)))
    return rng.choice(("", " ")).join(words).lstrip() or "ok"
