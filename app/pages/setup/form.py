"""Content of the setup form: preset, changed settings as typed, data, run name. Each change can be undone.

All editors read and write this model, so two editors of one setting never disagree.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from PySide6.QtCore import QEvent, QObject, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QUndoCommand, QUndoStack

from app.core.number_input import format_number, normalize_number
from app.core.sources import BUILTIN_PREFIX
from app.knob_texts import knob_label
from app.pages.setup.texts import format_input_error
from app.texts import tr
from app.widgets import formatting
from trainer_core.config import Config, check_combinations, check_value, knobs
from trainer_core.messages import TraindeckError
from trainer_core.presets import Preset
from trainer_core.runs.run_dir import safe_name

VALIDATION: Final = "validation_data"
_NOT_IN_FORM = ("preset", "data")  # they have widgets of their own
_TYPED_KINDS: Final = ("int", "float", "str", "list")  # consecutive key presses are one undo step
_MAX_UNDO: Final = 200

CONFLICTING_KNOBS: Final[Mapping[str, tuple[str, ...]]] = {
    "config.heads": ("hidden_dim", "n_heads"),
    "config.kv_heads": ("n_kv_heads", "n_heads"),
    "config.bias_and_norm": ("qkv_bias", "qk_norm"),
    "config.qwen_pre_tokenizer": ("pre_tokenizer", "qk_norm", "qkv_bias"),
    "ranks.too_many": ("ranks", "batch_size", "gradient_accumulation_steps"),
    "config.schedule": ("pause_between",),
}
"""Settings involved in each error of `check_combinations`."""


@dataclass(frozen=True, slots=True)
class StartBlocker:
    """Why a run cannot start. `field`: `preset`, `data`, `name` or the name of a setting; empty: none."""

    text: str
    field: str


@dataclass(frozen=True, slots=True)
class _Content:
    """Snapshot of the form for undo."""

    preset: Preset | None = None
    data: tuple[str, ...] = ()
    run_name: str = ""
    typed: tuple[tuple[str, str], ...] = ()


class _Change(QUndoCommand):
    """Undo step between two contents of a form. Steps with the same `merge_id` become one; -1: none of them."""

    def __init__(self, form: SetupForm, before: _Content, after: _Content, what: str, merge_id: int) -> None:
        super().__init__(what)
        self._form, self._before, self.after, self._merge_id = form, before, after, merge_id

    def id(self) -> int:
        return self._merge_id

    def mergeWith(self, other: QUndoCommand) -> bool:  # noqa: N802 - Qt's name
        assert isinstance(other, _Change)
        self.after = other.after
        self.setObsolete(self.after == self._before)
        return True

    def undo(self) -> None:
        self._form.restore_content(self._before)

    def redo(self) -> None:
        self._form.restore_content(self.after)


class SetupForm(QObject):
    """Model of the setup form."""

    knob_changed = Signal(str)
    preset_changed = Signal()
    data_changed = Signal()
    name_changed = Signal()  # not emitted for typing
    changed = Signal()  # any change

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.preset: Preset | None = None
        self.data: list[str] = []
        self.run_name = ""
        self._typed: dict[str, str] = {}
        self.kept: tuple[str, ...] = ()  # changed settings that kept their values when the preset was chosen
        self.invalid_knobs: list[str] = []  # in the order of the form
        self._missing_tokenizer = ""  # path
        self._conflict: TraindeckError | None = None  # of valid settings, e.g. of heads that do not divide the width
        self.undo_stack = QUndoStack(self, undoLimit=_MAX_UNDO)  # texts: name of a setting, or of `_commit`
        self._content = _Content()  # of the last undo step
        self._typing_session = 0
        self.undo_key_filter = UndoKeyFilter(self)  # for all editors of this form

    # --- preset and data -------------------------------------------------------------------------

    def choose_preset(self, preset: Preset) -> None:
        """Select another preset. Changed settings and data keep their values; the settings are listed in `kept`."""
        if self.data in ([], _data_of(self.preset)):
            self.data = _data_of(preset)
        self.preset = preset
        # Validation data belongs to the data, not to the changed settings.
        self.kept = tuple(name for name in form_knobs() if name != VALIDATION and self.is_changed(name))
        self._emit_all()
        self._commit("preset")

    def load_preset(self, preset: Preset) -> None:
        """Reset all settings and the data to those of a preset."""
        self.preset, self.data, self._typed, self.kept = preset, _data_of(preset), {}, ()
        self._emit_all()
        self._commit("preset")

    def dismiss_kept(self) -> None:
        """Clear `kept`, without an undo step."""
        self.kept = ()
        self.changed.emit()

    def has_own_data(self) -> bool:
        return any(not path.startswith(BUILTIN_PREFIX) for path in self.data)

    @property
    def validation_data(self) -> list[str]:
        """Files and folders to evaluate; empty: a fraction of the data is held out."""
        return list(_parse(VALIDATION, self.text(VALIDATION)))

    def add_data(self, paths: list[str]) -> None:
        """Add files, folders or built-in data. The first file or folder replaces the data of the preset."""
        own = [path for path in paths if not path.startswith(BUILTIN_PREFIX)]
        kept = self.data if self.has_own_data() or not own else []
        self.set_data(list(dict.fromkeys([*kept, *paths])))

    def set_data(self, paths: list[str]) -> None:
        self.data = paths
        self.data_changed.emit()
        self._commit("data")

    def add_validation_data(self, paths: list[str]) -> None:
        self.set_validation_data(list(dict.fromkeys([*self.validation_data, *paths])))

    def set_validation_data(self, paths: list[str]) -> None:
        self.end_typing()
        self.set_text(VALIDATION, format_value(paths))

    def set_run_name(self, name: str) -> None:
        self.run_name = name.strip()
        self._commit("name", typing=True)

    def clear_run_name(self) -> None:
        if self.run_name:
            self.run_name = ""
            self.name_changed.emit()
            self._commit("name")

    # --- knobs -------------------------------------------------------------------------------------

    def base_value(self, name: str) -> Any:
        """Value of a setting in the preset, or its default."""
        own = self.preset.knobs if self.preset else {}
        return own.get(name, knobs()[name].default)

    def text(self, name: str) -> str:
        """Text of the editor."""
        return self._typed.get(name, format_value(self.base_value(name)))

    def set_text(self, name: str, text: str) -> None:
        """Set a typed value. The value of the preset is not a change."""
        if text != self.text(name):
            self._type(name, text)
            if name == "max_epochs" and "max_steps" not in self._typed and self.is_changed(name):
                self._type("max_steps", "0")  # as in `config.resolve`: typed epochs override the steps of a preset
            self._commit(name, typing=knobs()[name].kind in _TYPED_KINDS)

    def _type(self, name: str, text: str) -> None:
        self._typed[name] = text
        if self.is_valid(name) and self.value(name) == self.base_value(name):
            del self._typed[name]
        self.knob_changed.emit(name)

    def reset(self, *names: str) -> None:
        """Reset settings, all without `names`, to the values of the preset."""
        reset = [name for name in names or form_knobs() if self._typed.pop(name, None) is not None]
        self.kept = tuple(filter(self.is_changed, self.kept))
        for name in reset:
            self.knob_changed.emit(name)
        if reset:
            self._commit(reset[0] if len(reset) == 1 else "settings")

    def is_changed(self, name: str) -> bool:
        """Whether the value is invalid or differs from the preset."""
        return name in self._typed and not (self.is_valid(name) and self.value(name) == self.base_value(name))

    def value(self, name: str) -> Any:
        """The typed value. Raises `TraindeckError` if it is invalid."""
        if name not in self._typed:
            return self.base_value(name)
        return check_value(name, _parse(name, self._typed[name]), knobs()[name].flag)

    def is_valid(self, name: str) -> bool:
        try:
            self.value(name)
        except TraindeckError:
            return False
        return True

    def changes(self) -> dict[str, Any]:
        """Values that differ from the preset. Call only while `invalid_knobs` is empty."""
        return {name: self.value(name) for name in form_knobs() if self.is_changed(name)}

    def values(self) -> dict[str, Any]:
        """Values of the preset, with the changes. Call only while `invalid_knobs` is empty."""
        return {**(self.preset.knobs if self.preset else {}), **self.changes()}

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Set several settings in one undo step. Unknown ones are ignored."""
        for name in form_knobs():
            if name in values and format_value(values[name]) != self.text(name):
                self._type(name, format_value(values[name]))
        self._commit("settings")

    def has_values(self, values: Mapping[str, Any]) -> bool:
        """Whether all these settings have these values."""
        return all(self.is_valid(name) and self.value(name) == value for name, value in values.items())

    def restore(self, data: list[str], values: Mapping[str, Any]) -> None:
        """Restore the data and settings of an earlier run or session."""
        self._typed = {
            name: format_value(values[name])
            for name in form_knobs()
            if name in values and values[name] != self.base_value(name)
        }
        self.data, self.kept = data, ()
        self._emit_all()
        self._commit("settings")

    # --- errors --------------------------------------------------------------------------------------

    def error(self, name: str) -> str:
        """Why a setting is invalid, or conflicts with others; empty: it is valid."""
        if self._is_missing(name):
            return tr("setup.tokenizer_not_found")
        if not self.is_valid(name):
            return format_input_error(knobs()[name], self.text(name))
        return self._conflict_text() if name in self._conflicting_knobs() else ""

    def find_blocker(self, existing_names: Container[str] = ()) -> StartBlocker | None:
        """The first reason why a run cannot start. `existing_names`: of runs on disk."""
        if self.invalid_knobs:
            name = self.invalid_knobs[0]
            if self._is_missing(name):
                return StartBlocker(self.error(name), name)
            setting, values = knob_label(knobs()[name]), formatting.format_allowed_values(knobs()[name])
            return StartBlocker(tr("setup.setting_range", setting=setting, range=values), name)
        if self.preset is None:
            return StartBlocker(tr("setup.preset_required"), "preset")
        if not self.data:
            return StartBlocker(tr("setup.data_required"), "data")
        if self.run_name and safe_name(self.run_name) in existing_names:
            return StartBlocker(tr("setup.name_exists"), "name")
        if self._conflict is None:
            return None
        involved = sorted(self._conflicting_knobs(), key=lambda name: not self.is_changed(name))
        return StartBlocker(self._conflict_text(), next(iter(involved), ""))

    @property
    def blocked_reason(self) -> str:
        """Why a run cannot start; empty: it can."""
        blocker = self.find_blocker()
        return blocker.text if blocker else ""

    def _conflicting_knobs(self) -> tuple[str, ...]:
        return CONFLICTING_KNOBS.get(self._conflict.code, ()) if self._conflict else ()

    def _conflict_text(self) -> str:
        return formatting.localized_message(self._conflict.code, self._conflict.params) if self._conflict else ""

    def set_missing_tokenizer(self, path: str) -> None:
        """Set the path at which there is no tokenizer; empty: the tokenizer exists or is not checked yet."""
        if path != self._missing_tokenizer:
            self._missing_tokenizer = path
            self._validate()
            self.changed.emit()

    def _is_missing(self, name: str) -> bool:
        """Whether the setting names a tokenizer that does not exist."""
        return (
            name == "tokenizer" and bool(self._missing_tokenizer) and self.text(name).strip() == self._missing_tokenizer
        )

    def _validate(self) -> None:
        before = {*self.invalid_knobs, *self._conflicting_knobs()}
        self.invalid_knobs = [name for name in form_knobs() if not self.is_valid(name) or self._is_missing(name)]
        self._conflict = None
        if not self.invalid_knobs:
            try:
                check_combinations(Config(**self.values()))
            except TraindeckError as error:
                self._conflict = error
        for name in sorted(before | {*self.invalid_knobs, *self._conflicting_knobs()}):
            self.knob_changed.emit(name)

    # --- undo ------------------------------------------------------------------------------------------

    def end_typing(self) -> None:
        """End the undo step of the text that is being typed."""
        self._typing_session += 1

    def _read_content(self) -> _Content:
        return _Content(self.preset, tuple(self.data), self.run_name, tuple(sorted(self._typed.items())))

    def restore_content(self, content: _Content) -> None:
        """Restore a snapshot."""
        if content == self._read_content():
            return
        self.preset, self.data, self.run_name = content.preset, list(content.data), content.run_name
        self._typed, self.kept, self._content = dict(content.typed), (), content
        self.end_typing()
        self._emit_all()
        self.name_changed.emit()
        self._validate()
        self.changed.emit()

    def _emit_all(self) -> None:
        self.preset_changed.emit()
        self.data_changed.emit()
        for name in form_knobs():
            self.knob_changed.emit(name)

    def _commit(self, what: str, *, typing: bool = False) -> None:
        """Validate the form and add an undo step: `what` is `preset`, `data`, `name`, `settings` or a setting."""
        before, self._content = self._content, self._read_content()
        self._validate()
        if before != self._content:
            merge_id = hash((what, self._typing_session)) & 0x7FFF_FFFF if typing else -1
            self.undo_stack.push(_Change(self, before, self._content, what, merge_id))
        self.changed.emit()


class UndoKeyFilter(QObject):
    """Event filter that leaves the undo and redo keys to the menu: an editor's own undo would bypass the form."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        keys = (QKeySequence.StandardKey.Undo, QKeySequence.StandardKey.Redo)
        if event.type() != QEvent.Type.ShortcutOverride or not isinstance(event, QKeyEvent):
            return False
        if not any(map(event.matches, keys)):
            return False
        event.ignore()
        return True


def _data_of(preset: Preset | None) -> list[str]:
    return [str(path) for path in preset.knobs.get("data") or []] if preset else []


def form_knobs() -> list[str]:
    """Settings that have an editor, in the order of `Config`."""
    return [name for name in knobs() if name not in _NOT_IN_FORM]


def format_value(value: Any) -> str:
    """A value as typed text: `3e-4`, `true`, one line per entry of a list."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, list | tuple):
        return "\n".join(str(entry) for entry in value)
    return str(value)


def _parse(name: str, text: str) -> Any:
    """Convert typed text for `check_value`."""
    knob = knobs()[name]
    if knob.kind == "list":
        return [line for line in text.splitlines() if line.strip()]
    if knob.kind in ("int", "float"):
        return normalize_number(text)
    return text.strip() if knob.kind == "str" else text
