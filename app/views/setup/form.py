"""The form's content: a preset, the knobs changed from it as they were typed, data, a name.

Every editor of a knob (the short form and the full one show the same knob) reads and writes here, so
that they never disagree.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QObject, Signal

from trainer_core.config import Config, check_together, check_value, knobs
from trainer_core.messages import TraindeckError
from trainer_core.presets import Preset

BUILTIN_PREFIX = "builtin:"
_NOT_IN_FORM = ("preset", "data")  # they have their own places


class SetupForm(QObject):
    """What the person has chosen so far."""

    knob_changed = Signal(str)
    preset_changed = Signal()
    data_changed = Signal()
    changed = Signal()  # anything at all

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.preset: Preset | None = None
        self.data: list[str] = []
        self.run_name = ""
        self._typed: dict[str, str] = {}

    # --- preset and data -------------------------------------------------------------------------

    def choose_preset(self, preset: Preset) -> None:
        """Start from a preset: its knobs replace what was typed; the person's own data stays."""
        self.preset = preset
        self._typed = {}
        if not self.has_own_data():
            self.data = [str(path) for path in preset.knobs.get("data") or []]
        self.preset_changed.emit()
        self.data_changed.emit()
        for name in form_knobs():
            self.knob_changed.emit(name)
        self.changed.emit()

    def has_own_data(self) -> bool:
        return any(not path.startswith(BUILTIN_PREFIX) for path in self.data)

    def add_data(self, paths: list[str]) -> None:
        """Add files, folders or built-in sets. The first own file replaces what the preset brought."""
        own = [path for path in paths if not path.startswith(BUILTIN_PREFIX)]
        kept = self.data if self.has_own_data() or not own else []
        self.set_data(list(dict.fromkeys([*kept, *paths])))

    def remove_data(self, paths: list[str]) -> None:
        self.set_data([path for path in self.data if path not in paths])

    def set_data(self, paths: list[str]) -> None:
        self.data = paths
        self.data_changed.emit()
        self.changed.emit()

    def set_run_name(self, name: str) -> None:
        self.run_name = name.strip()
        self.changed.emit()

    # --- knobs -------------------------------------------------------------------------------------

    def base_value(self, name: str) -> Any:
        """The preset's value of a knob, or its default."""
        own = self.preset.knobs if self.preset else {}
        return own.get(name, knobs()[name].default)

    def text(self, name: str) -> str:
        """What the knob's editor shows."""
        return self._typed.get(name, as_text(self.base_value(name)))

    def set_text(self, name: str, text: str) -> None:
        """Take what was typed. What equals the preset again is not a change."""
        if text == self.text(name):
            return
        self._typed[name] = text
        if self.is_valid(name) and self.value(name) == self.base_value(name):
            del self._typed[name]
        self.knob_changed.emit(name)
        self.changed.emit()

    def reset(self, name: str) -> None:
        """Back to the preset's value."""
        if self._typed.pop(name, None) is not None:
            self.knob_changed.emit(name)
            self.changed.emit()

    def is_changed(self, name: str) -> bool:
        return name in self._typed

    def value(self, name: str) -> Any:
        """The typed value; raises `TraindeckError` where it is not allowed."""
        if name not in self._typed:
            return self.base_value(name)
        return check_value(name, _parsed(name, self._typed[name]), knobs()[name].flag)

    def is_valid(self, name: str) -> bool:
        try:
            self.value(name)
        except TraindeckError:
            return False
        return True

    def wrong(self) -> list[str]:
        """The knobs whose text is not allowed, in the order of the form."""
        return [name for name in form_knobs() if name in self._typed and not self.is_valid(name)]

    def changes(self) -> dict[str, Any]:
        """The knobs that differ from the preset, typed. Call it only while `wrong()` is empty."""
        return {name: self.value(name) for name in form_knobs() if name in self._typed}

    def values(self) -> dict[str, Any]:
        """The preset's knobs with the changes. Call it only while `wrong()` is empty."""
        return {**(self.preset.knobs if self.preset else {}), **self.changes()}

    def take(self, values: Mapping[str, Any]) -> None:
        """Set several knobs, as if they were typed: each can be reset. Knobs of a newer trainer are passed over."""
        for name in form_knobs():
            if name in values:
                self.set_text(name, as_text(values[name]))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether all these knobs have these values."""
        return all(self.is_valid(name) and self.value(name) == value for name, value in values.items())

    def conflict(self) -> TraindeckError | None:
        """What single knobs cannot tell: heads that do not divide the width and the like."""
        if self.wrong():
            return None
        try:
            check_together(Config(**self.values()))
        except TraindeckError as error:
            return error
        return None

    def restore(self, data: list[str], values: Mapping[str, Any]) -> None:
        """Fill in from an earlier run."""
        self._typed = {}
        for name in form_knobs():
            if name in values and values[name] != self.base_value(name):
                self._typed[name] = as_text(values[name])
            self.knob_changed.emit(name)
        self.set_data(data)


def form_knobs() -> list[str]:
    """The knobs that have an editor, in the order of `Config`."""
    return [name for name in knobs() if name not in _NOT_IN_FORM]


def as_text(value: Any) -> str:
    """A value as one would type it: `3e-4`, `true`, lists one entry a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, list | tuple):
        return "\n".join(str(entry) for entry in value)
    return str(value)


def _float_text(value: float) -> str:
    shown = f"{value:.10g}"
    if value and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.9e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return shown


def _parsed(name: str, text: str) -> Any:
    """Text for `check_value`. Full-width digits, as a Chinese keyboard types them, are digits too."""
    knob = knobs()[name]
    if knob.kind == "list":
        return [line for line in text.splitlines() if line.strip()]
    if knob.kind in ("int", "float"):
        return unicodedata.normalize("NFKC", text).replace("−", "-").replace(" ", "")
    return text.strip() if knob.kind == "str" else text
