"""Codes of the trainer in the window's language. What needs Qt's translations is worded by the views."""

from __future__ import annotations

from collections.abc import Mapping

from app.state.log_store import LogEntry
from app.state.run_machine import ErrorInfo
from app.state.settings import LanguageSetting
from trainer_core import messages
from trainer_core.messages import CATALOGUE, ExitCode, Language, TraindeckError, Value


def resolve_language(setting: LanguageSetting, system: str = "") -> Language:
    """The language to speak. `system` is the desktop's locale name, such as `zh_CN`; empty: ask the environment."""
    if setting != "system":
        return setting
    if not system:
        return messages.terminal_language()
    return "zh" if system.lower().startswith(("zh", "chinese")) else "en"


class Wording:
    """Words codes in the current language. One object is shared, so that switching reaches every view."""

    def __init__(self, language: Language = "en") -> None:
        self.language: Language = language

    def word(self, code: str, params: Mapping[str, Value] | None = None) -> str:
        """The whole sentence: what happened and what to do."""
        return messages.word(code, params or {}, self.language)

    def error(self, error: ErrorInfo | TraindeckError) -> str:
        """The sentence for what ended a run, or for what the configuration refuses."""
        return self.word(error.code, error.params)

    def entry(self, entry: LogEntry) -> str | None:
        """The sentence for a log entry of the catalogue; None: the view words it."""
        return self.word(entry.code, entry.params) if entry.code in CATALOGUE else None


def exit_code_name(code: int | None) -> str:
    """`OUT_OF_MEMORY` for 5 and so on; empty where a code means nothing."""
    return next((known.name for known in ExitCode if known == code), "")
