"""Every error, warning and piece of advice that the trainer can send: its code and its words.

The wire carries a code and parameters, never prose. Whoever reads it (a terminal, the window) words
it from this catalogue, in English or Chinese. Each text says what happened and where (`what`), then
what to do (`do`). A new message is one entry of a table in this folder; a test holds both languages to the same
parameters and every code used in the sources to this catalogue.

No torch, no Qt.
"""

from __future__ import annotations

import locale
import os
import string
from collections.abc import Mapping
from typing import Literal

from trainer_core.messages.amounts import size_of_mib
from trainer_core.messages.catalogue import CATALOGUE
from trainer_core.messages.data import in_chinese
from trainer_core.messages.message import ExitCode, Message, Words

__all__ = [
    "CATALOGUE",
    "ExitCode",
    "Language",
    "Message",
    "TraindeckError",
    "Value",
    "Words",
    "terminal_language",
    "what_and_do",
    "word",
]

Language = Literal["en", "zh"]
Value = str | int | float | bool | None


class _Lenient(string.Formatter):
    """Shows `?` for a parameter the sender left out: a message about a failure must not fail itself. What is sent in
    MiB (`free_mib`) is said with its unit.

    A system's own words are part of our sentence: the stop that a Chinese Windows ends them with would be a second one.
    """

    def get_value(self, key: int | str, args: object, kwargs: Mapping[str, object]) -> object:
        value = kwargs.get(str(key), "?")
        if key == "reason" and isinstance(value, str):
            return value.rstrip(" .。")
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        return size_of_mib(value) if str(key).endswith("_mib") else f"{value:,}"


class TraindeckError(Exception):
    """A failure that is told to people in one sentence. `code` names an entry of `CATALOGUE`.

    Raise it where the cause is known; the command line turns it into an `error` event and its exit
    code. `detail` is technical (an exception's own text): shown small, never instead of the sentence.
    """

    def __init__(self, code: str, detail: str = "", **params: Value) -> None:
        super().__init__(code, params)
        self.code = code
        self.params: dict[str, Value] = params
        self.detail = detail

    @property
    def exit_code(self) -> ExitCode:
        message = CATALOGUE.get(self.code)
        return message.exit_code if message else ExitCode.FAILED

    def __str__(self) -> str:
        return word(self.code, self.params, "en")


def word(code: str, params: Mapping[str, Value], language: Language) -> str:
    """The sentence for a code. An unknown code (a newer trainer) is shown with its parameters."""
    what, do = what_and_do(code, params, language)
    return f"{what}{'' if language == 'zh' else ' '}{do}".strip()


def what_and_do(code: str, params: Mapping[str, Value], language: Language) -> tuple[str, str]:
    """As `word`, but what happened and what to do apart."""
    message = CATALOGUE.get(code)
    if message is None:
        shown = ", ".join(f"{name}={value}" for name, value in params.items())
        return f"{code} ({shown})" if shown else code, ""
    words = message.en
    if language == "zh":
        words, params = message.zh, in_chinese(params)
    return _Lenient().vformat(words.what, (), params), _Lenient().vformat(words.do, (), params)


def terminal_language() -> Language:
    """The language of a terminal: `TRAINDECK_LANG` (en, zh), else the system's locale."""
    chosen = os.environ.get("TRAINDECK_LANG") or os.environ.get("LC_ALL") or os.environ.get("LANG")
    if not chosen:
        chosen = locale.getlocale()[0] or ""
    return "zh" if chosen.lower().startswith(("zh", "chinese")) else "en"
