"""The form's content: a preset, the knobs changed from it as they were typed, data, a name.

Every editor of a knob (the short form and the full one show the same knob) reads and writes here, so
that they never disagree. Each change can be undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from PySide6.QtCore import QObject, Signal

from app.state.typed import as_typed, plain
from app.state.undo import UndoStack
from app.views.setup.undo_keys import UndoKeys
from trainer_core.config import Config, check_together, check_value, knobs
from trainer_core.messages import TraindeckError
from trainer_core.presets import Preset

BUILTIN_PREFIX = "builtin:"
VALIDATION: Final = "validation_data"
_NOT_IN_FORM = ("preset", "data")  # they have their own places
_TYPED_IN: Final = ("int", "float", "str", "list")  # kinds that are written letter by letter

TOGETHER: Final[Mapping[str, tuple[str, ...]]] = {
    "config.heads": ("hidden_dim", "n_heads"),
    "config.kv_heads": ("n_kv_heads", "n_heads"),
    "config.bias_and_norm": ("qkv_bias", "qk_norm"),
    "config.qwen_pre_tokenizer": ("pre_tokenizer", "qk_norm", "qkv_bias"),
    "config.schedule": ("pause_between",),
}
"""What `check_together` refuses, and the knobs that it is about."""


@dataclass(frozen=True, slots=True)
class _Content:
    """All that a person can change, as a value."""

    preset: Preset | None = None
    data: tuple[str, ...] = ()
    run_name: str = ""
    typed: tuple[tuple[str, str], ...] = ()
    kept: tuple[str, ...] = ()


class SetupForm(QObject):
    """What the person has chosen so far."""

    knob_changed = Signal(str)
    preset_changed = Signal()
    data_changed = Signal()
    name_changed = Signal()  # by other means than typing it
    changed = Signal()  # anything at all

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.preset: Preset | None = None
        self.data: list[str] = []
        self.run_name = ""
        self._typed: dict[str, str] = {}
        self.kept: tuple[str, ...] = ()  # changed knobs that kept their values when the preset was chosen
        self._wrong: list[str] = []
        self._gone = ""  # a tokenizer that is not there
        self._conflict: TraindeckError | None = None
        self._undo = UndoStack(_Content())
        self.undo_keys = UndoKeys(self)  # for whatever edits this form

    # --- preset and data -------------------------------------------------------------------------

    def choose_preset(self, preset: Preset) -> None:
        """Use another preset. Changed knobs keep their values and are listed in `kept`; data that the person chose
        stays."""
        if self.data in ([], _data_of(self.preset)):
            self.data = _data_of(preset)
        self.preset = preset
        # Validation data belongs to the data that the person chose, not to the changed settings.
        self.kept = tuple(name for name in form_knobs() if name != VALIDATION and self.is_changed(name))
        self._show_all()
        self._commit("preset")

    def load_preset(self, preset: Preset) -> None:
        """Set preset, knobs and data exactly as in a preset."""
        self.preset, self.data, self._typed, self.kept = preset, _data_of(preset), {}, ()
        self._show_all()
        self._commit("preset")

    def forget_kept(self) -> None:
        """The person has read which changes were kept. Not a step of undo."""
        self.kept = ()
        self._undo.present = self._content()
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
        self._commit("data")

    @property
    def validation_data(self) -> list[str]:
        """Files and folders to evaluate; empty: a part of the data is held back."""
        return list(_parsed(VALIDATION, self.text(VALIDATION)))

    @property
    def all_data(self) -> list[str]:
        """All files and folders that a run reads."""
        return [*self.data, *self.validation_data]

    def add_validation_data(self, paths: list[str]) -> None:
        self._set_validation_data(list(dict.fromkeys([*self.validation_data, *paths])))

    def remove_validation_data(self, paths: list[str]) -> None:
        self._set_validation_data([path for path in self.validation_data if path not in paths])

    def _set_validation_data(self, paths: list[str]) -> None:
        self._type(VALIDATION, as_text(paths))
        self._commit(VALIDATION)

    def set_run_name(self, name: str) -> None:
        self.run_name = name.strip()
        self._commit("name", typing=True)

    def forget_run_name(self) -> None:
        """It is taken by now: the next run gets one of its own."""
        if self.run_name:
            self.run_name = ""
            self.name_changed.emit()
            self._commit("name")

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
        if text != self.text(name):
            self._type(name, text)
            self._commit(name, typing=knobs()[name].kind in _TYPED_IN)

    def _type(self, name: str, text: str) -> None:
        self._typed[name] = text
        if self.is_valid(name) and self.value(name) == self.base_value(name):
            del self._typed[name]
        self.knob_changed.emit(name)

    def reset(self, *names: str) -> None:
        """Back to the preset's values; without a name, of all knobs."""
        gone = [name for name in names or form_knobs() if self._typed.pop(name, None) is not None]
        self.kept = tuple(filter(self.is_changed, self.kept))
        for name in gone:
            self.knob_changed.emit(name)
        if gone:
            self._commit(gone[0] if len(gone) == 1 else "settings")

    def is_changed(self, name: str) -> bool:
        """Whether the typed text means another value than the preset's. Text that is not allowed does."""
        return name in self._typed and not (self.is_valid(name) and self.value(name) == self.base_value(name))

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

    def changes(self) -> dict[str, Any]:
        """The knobs that differ from the preset, typed. Call it only while `wrong()` is empty."""
        return {name: self.value(name) for name in form_knobs() if self.is_changed(name)}

    def values(self) -> dict[str, Any]:
        """The preset's knobs with the changes. Call it only while `wrong()` is empty."""
        return {**(self.preset.knobs if self.preset else {}), **self.changes()}

    def take(self, values: Mapping[str, Any]) -> None:
        """Set several knobs, as if they were typed: each can be reset. Knobs of a newer trainer are passed over."""
        for name in form_knobs():
            if name in values and as_text(values[name]) != self.text(name):
                self._type(name, as_text(values[name]))
        self._commit("settings")

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether all these knobs have these values."""
        return all(self.is_valid(name) and self.value(name) == value for name, value in values.items())

    def restore(self, data: list[str], values: Mapping[str, Any]) -> None:
        """Fill in from an earlier run."""
        self._typed = {
            name: as_text(values[name])
            for name in form_knobs()
            if name in values and values[name] != self.base_value(name)
        }
        self.data, self.kept = data, ()
        self._show_all()
        self._commit("settings")

    # --- what is wrong -------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """The knobs whose text is not allowed, in the order of the form."""
        return list(self._wrong)

    def conflict(self) -> TraindeckError | None:
        """What single knobs cannot tell: heads that do not divide the width and the like."""
        return self._conflict

    def blamed(self) -> tuple[str, ...]:
        """The knobs that the conflict is about; those that the person changed first."""
        names = TOGETHER.get(self._conflict.code, ()) if self._conflict else ()
        return tuple(sorted(names, key=lambda name: not self.is_changed(name)))

    def tells(self, name: str) -> bool:
        """Whether the conflict is to be told at this knob: at those that were changed, or at all where none was."""
        blamed = self.blamed()
        return name in blamed and (self.is_changed(name) or not self.is_changed(blamed[0]))

    def mark_gone(self, path: str) -> None:
        """There is no tokenizer at this path; empty: at the one that is set there is, as far as one knows."""
        if path != self._gone:
            self._gone = path
            self._recheck()
            self.changed.emit()

    def is_gone(self, name: str) -> bool:
        """Whether a knob names a file that is not there."""
        return name == "tokenizer" and bool(self._gone) and self.text(name).strip() == self._gone

    def _recheck(self) -> None:
        before = {*self._wrong, *self.blamed()}
        self._wrong = [
            name for name in form_knobs() if (name in self._typed and not self.is_valid(name)) or self.is_gone(name)
        ]
        self._conflict = None if self._wrong else self._found_conflict()
        for name in sorted(before | {*self._wrong, *self.blamed()}):
            self.knob_changed.emit(name)

    def _found_conflict(self) -> TraindeckError | None:
        try:
            check_together(Config(**self.values()))
        except TraindeckError as error:
            return error
        return None

    # --- undo ------------------------------------------------------------------------------------------

    @property
    def undoes(self) -> str | None:
        """What `undo` takes back: a knob, `preset`, `data`, `name`, or `settings` for several knobs."""
        return self._undo.undoes

    @property
    def redoes(self) -> str | None:
        return self._undo.redoes

    def undo(self) -> None:
        self._put(self._undo.undo())

    def redo(self) -> None:
        self._put(self._undo.redo())

    def settle(self) -> None:
        """A field was left: what is typed next is undone by itself."""
        self._undo.settle()

    def forget_steps(self) -> None:
        """What there is now is where undo ends."""
        self._undo.begin(self._content())

    def _content(self) -> _Content:
        typed = tuple(sorted(self._typed.items()))
        return _Content(self.preset, tuple(self.data), self.run_name, typed, self.kept)

    def _put(self, content: _Content | None) -> None:
        if content is None:
            return
        self.preset, self.data, self.run_name = content.preset, list(content.data), content.run_name
        self._typed, self.kept = dict(content.typed), content.kept
        self._show_all()
        self.name_changed.emit()
        self._recheck()
        self.changed.emit()

    def _show_all(self) -> None:
        self.preset_changed.emit()
        self.data_changed.emit()
        for name in form_knobs():
            self.knob_changed.emit(name)

    def _commit(self, what: str, *, typing: bool = False) -> None:
        self._undo.push(self._content(), what, typing=typing)
        self._recheck()
        self.changed.emit()


def _data_of(preset: Preset | None) -> list[str]:
    return [str(path) for path in preset.knobs.get("data") or []] if preset else []


def form_knobs() -> list[str]:
    """The knobs that have an editor, in the order of `Config`."""
    return [name for name in knobs() if name not in _NOT_IN_FORM]


def as_text(value: Any) -> str:
    """A value as one would type it: `3e-4`, `true`, lists one entry a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return as_typed(value)
    if isinstance(value, list | tuple):
        return "\n".join(str(entry) for entry in value)
    return str(value)


def _parsed(name: str, text: str) -> Any:
    """Text for `check_value`."""
    knob = knobs()[name]
    if knob.kind == "list":
        return [line for line in text.splitlines() if line.strip()]
    if knob.kind in ("int", "float"):
        return plain(text)
    return text.strip() if knob.kind == "str" else text
