"""Texts, prompts and conversations that both programs encode and continue. No torch, no Qt."""

from __future__ import annotations

import unicodedata
from typing import Final

from trainer_core.data.columns import Turn
from trainer_core.data.tokenizing.tokenizer import Codec

_VOCABULARY_TOKENS: Final = 64  # in each text of `vocabulary_texts`

_ENGLISH: Final = (
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France?",
    "It's 5 o'clock; they'll say we've never been there, I'd bet.",
    "Once upon a time, in a small village by the sea, there lived an old fisherman.",
    "HELLO World, mIxEd CaSe and ALLCAPS",
    "e-mail: someone@example.com, https://example.com/path?query=1&other=2#part",
    "naïve café façade résumé coöperate",
    "Ich weiß nicht, was soll es bedeuten, daß ich so traurig bin.",
    "¿Dónde está la biblioteca? ¡Olé!",
    "a",
)
_CHINESE: Final = (
    "床前明月光，疑是地上霜。",
    "举头望明月，低头思故乡。",
    "请用一句话介绍你自己。",
    "2024年5月1日，星期三，气温25℃。",
    "繁體中文與简体中文混排。",
    "人工智能（AI）正在改变世界！",
    "“引号”、《书名号》——破折号……省略号",
    "中文English混合mixed文本",
    "日本語のテキストとカタカナ",
    "한국어 문장입니다.",
)
_SYMBOLS: Final = (
    "😀😃😄 emoji 🎉🎉",
    "👨‍👩‍👧‍👦 family, 👍🏽 skin tone, 🇩🇪 flag",
    "∑ ∫ √2 ≈ 1.414, π ≠ 3",
    "→ ← ↑ ↓ ✓ ✗ • ©®™",
    "\u200bzero\u200bwidth\ufeff and no-break\u00a0space",
    "Привет, мир! Γειά σου Κόσμε",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝓼𝓬𝓻𝓲𝓹𝓽 𠮷野家",
    "\U0010abcd private use \ue000",
)
_CODE: Final = (
    "def add(a, b):\n    return a + b  # it's 12345\n",
    "for (int i = 0; i < n; ++i) { sum += x[i]; }",
    '{"key": [1, 2.5, null, true], "text": "a\\nb"}',
    "SELECT * FROM users WHERE id >= 10 AND name LIKE '%x%';",
    "<html><body class='a'>&amp; text</body></html>",
    "C:\\Users\\名字\\file.txt and /usr/local/bin",
    "x = {**a, 'b': [*c]}\t# tab\n\tif x:\r\n\t\tpass",
    "#!/bin/sh\nset -e; echo \"$HOME\" | grep -c '^/'",
    "\\frac{a}{b} \\sum_{i=1}^{n} x_i",
    "| a | b |\n| --- | --- |\n| 1 | **2** |",
)
_SPACES_AND_DIGITS: Final = (
    " leading space",
    "trailing space ",
    "two  spaces   three    four",
    "\n\n\nlines\n\n and \n spaces \n",
    "\t\ttabs\tbetween\t",
    "   ",
    "1234567890 12 345 6789 0.5 1,000,000 3.14159e-10",
    "007 1st 2nd 3rd ١٢٣ Ⅳ ½ ²",
    "1+1=2, 10*10=100, 5%3",
    "don't Don'T DON'T can’t",
)
TEXTS: Final = (*_ENGLISH, *_CHINESE, *_SYMBOLS, *_CODE, *_SPACES_AND_DIGITS)
"""50 texts in Unicode's normal form C."""

DECOMPOSED_TEXTS: Final = tuple(unicodedata.normalize("NFD", text) for text in (_ENGLISH[6], _CHINESE[9]))
"""Not in normal form C. llama.cpp does not normalize; the tokenizer of Qwen does."""

PROMPTS: Final = (*_ENGLISH[:4], *_ENGLISH[6:9], *_CHINESE[:8], *_CODE[:3], _SPACES_AND_DIGITS[6], _SYMBOLS[2])
"""20 prompts to continue."""

_QUESTION: Final[Turn] = ("user", "What is 12 plus 30?")
_SYSTEM: Final[Turn] = ("system", "You are a helpful assistant.\n请简短回答。")
_MORE: Final[tuple[Turn, ...]] = (
    ("assistant", "It is 42."),
    ("user", "  床前明月光的下一句是什么？ 😀\n"),
    ("assistant", "疑是地上霜。"),
    ("user", "Thanks! Write `x = 1`."),
)
CONVERSATIONS: Final[tuple[tuple[Turn, ...], ...]] = (
    (_SYSTEM, _QUESTION, *_MORE),  # the first that the template accepts is the one that is shown
    (_QUESTION, *_MORE),
    (_SYSTEM, _QUESTION),
    (_QUESTION,),
)
"""Conversations that end with a question. Some templates refuse a system prompt."""


def vocabulary_texts(codec: Codec) -> list[str]:
    """Texts of all tokens that are words or parts of words, a line each. Two exchanged tokens change their ids."""
    decoded = (codec.decode([number]) for number in range(codec.vocab_size))
    words = [word for word in decoded if word.strip().isalnum() and unicodedata.is_normalized("NFC", word)]
    return ["\n".join(words[first : first + _VOCABULARY_TOKENS]) for first in range(0, len(words), _VOCABULARY_TOKENS)]
