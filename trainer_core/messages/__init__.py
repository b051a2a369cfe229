"""Errors, warnings and advice of the trainer: code → text.

Events carry a code and parameters, never prose. The terminal and the window format them with the texts below `message`
in `trainer_core/texts`: a description (what happened and where) and an action (what to do). A test checks that the
catalogue has every code used in the sources.

No torch, no Qt.
"""

from __future__ import annotations

import functools
import locale
import os
import string
from collections.abc import Mapping

from trainer_core import texts
from trainer_core.messages.amounts import format_mib
from trainer_core.messages.data import translate_params
from trainer_core.messages.exit_codes import ExitCode, exit_code_of
from trainer_core.texts import Language

__all__ = [
    "ExitCode",
    "Language",
    "TraindeckError",
    "Value",
    "codes",
    "format_message",
    "format_message_parts",
    "is_known",
    "template",
    "terminal_language",
]

Value = str | int | float | bool | None

_PREFIX = "message."


@functools.cache
def codes(prefix: str = "") -> tuple[str, ...]:
    """Return all message codes that start with `prefix`."""
    suffix = ".description"
    keys = texts.catalogue("en")
    found = [key[len(_PREFIX) : -len(suffix)] for key in keys if key.startswith(_PREFIX) and key.endswith(suffix)]
    return tuple(code for code in found if code.startswith(prefix))


def is_known(code: str) -> bool:
    """Return whether the catalogue has a text for `code`."""
    return f"{_PREFIX}{code}.description" in texts.catalogue("en")


def template(code: str, language: Language) -> tuple[str, str]:
    """Return description and action of a known code as `str.format` templates. The action may be empty."""
    table = texts.catalogue(language)
    return table[f"{_PREFIX}{code}.description"], table.get(f"{_PREFIX}{code}.action", "")


class _LenientFormatter(string.Formatter):
    """Formats a missing parameter as `?` and a parameter in MiB (`free_mib`) with its unit.

    Removes the full stop of a reason: the message has its own.
    """

    def get_value(self, key: int | str, args: object, kwargs: Mapping[str, object]) -> object:
        value = kwargs.get(str(key), "?")
        if key == "reason" and isinstance(value, str):
            return value.rstrip(" .。")
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        return format_mib(value) if str(key).endswith("_mib") else f"{value:,}"


class TraindeckError(Exception):
    """A failure with a message code (`codes()`) and its parameters.

    The command line turns it into an `error` event and its exit code. `detail` is the text of the cause.
    """

    def __init__(self, code: str, detail: str = "", **params: Value) -> None:
        super().__init__(code, params)
        self.code = code
        self.params: dict[str, Value] = params
        self.detail = detail

    @property
    def exit_code(self) -> ExitCode:
        return exit_code_of(self.code)

    def __str__(self) -> str:
        return format_message(self.code, self.params, "en")


def format_message(code: str, params: Mapping[str, Value], language: Language) -> str:
    """Return description and action of a code. An unknown code is shown with its parameters."""
    description, action = format_message_parts(code, params, language)
    return f"{description}{'' if language == 'zh' else ' '}{action}".strip()


def format_message_parts(code: str, params: Mapping[str, Value], language: Language) -> tuple[str, str]:
    """Return description and action of a code."""
    if not is_known(code):
        shown = ", ".join(f"{name}={value}" for name, value in params.items())
        return f"{code} ({shown})" if shown else code, ""
    description, action = template(code, language)
    params = translate_params(params, language)
    formatter = _LenientFormatter()
    return formatter.vformat(description, (), params), formatter.vformat(action, (), params)


def terminal_language() -> Language:
    """Return the language of the terminal: `TRAINDECK_LANG` (en, zh), else that of the locale."""
    chosen = os.environ.get("TRAINDECK_LANG") or os.environ.get("LC_ALL") or os.environ.get("LANG")
    if not chosen:
        chosen = locale.getlocale()[0] or ""
    return "zh" if chosen.lower().startswith(("zh", "chinese")) else "en"
