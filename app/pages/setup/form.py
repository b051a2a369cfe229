"""Content of the setup form: preset, changed settings as typed, data, run name. Each change can be undone.

All editors read and write this model, so two editors of one setting never disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from PySide6.QtCore import QEvent, QObject, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QUndoCommand, QUndoStack

from app.core.number_input import format_number, normalize_number
from app.core.settings import RemoteMachine
from app.core.sources import BUILTIN_PREFIX
from app.knob_texts import knob_label
from app.pages.setup.texts import format_input_error
from app.texts import tr
from app.widgets import formatting
from trainer_core import presets
from trainer_core.config import Config, check_combinations, check_value, knobs
from trainer_core.messages import TraindeckError
from trainer_core.presets import Preset
from trainer_core.runs.run_dir import safe_name

VALIDATION: Final = "validation_data"
_NOT_IN_FORM: Final = ("preset", "data")  # they have widgets of their own
_TYPED_KINDS: Final = ("int", "float", "str", "list")  # consecutive key presses are one undo step
_MAX_UNDO: Final = 200

CONFLICTING_KNOBS: Final[Mapping[str, tuple[str, ...]]] = {
    "config.no_rewards": ("rewards", "objective"),
    "config.unknown_reward": ("rewards",),
    "config.heads": ("hidden_dim", "n_heads"),
    "config.kv_heads": ("n_kv_heads", "n_heads"),
    "config.bias_and_norm": ("qkv_bias", "qk_norm"),
    "config.qwen_pre_tokenizer": ("pre_tokenizer", "qk_norm", "qkv_bias"),
    "config.muon_and_lora": ("method", "optimizer"),
    "config.freeze_and_lora": ("method", "freeze"),
    "config.early_stop_without_eval": ("early_stop_patience", "eval_steps"),
    "config.parallel_unsupported": (
        "parallel",
        "method",
        "optimizer",
        "lora_variant",
        "mixed_precision",
        "objective",
    ),
    "config.rewards_unsupported": ("objective", "packing", "task", "kl_beta", "method", "lora_embeddings"),
    "config.deepspeed_file": ("parallel", "deepspeed_config"),
    "ranks.too_many": ("nproc_per_node", "batch_size", "gradient_accumulation_steps"),
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
    """Everything that undo restores."""

    preset: Preset
    data: list[str]
    run_name: str = ""
    typed: dict[str, str] = field(default_factory=dict)  # changed settings


class _Change(QUndoCommand):
    """Undo step between two contents of a form. Steps with the same `merge_id` become one; -1: none of them."""

    def __init__(self, form: SetupForm, before: _Content, after: _Content, what: str, merge_id: int) -> None:
        super().__init__(what)
        self._form, self._before, self._after, self._merge_id = form, before, after, merge_id

    def id(self) -> int:
        return self._merge_id

    def mergeWith(self, other: QUndoCommand) -> bool:  # noqa: N802 - Qt's name
        assert isinstance(other, _Change)
        self._after = other._after
        self.setObsolete(self._after == self._before)
        return True

    def undo(self) -> None:
        self._form.restore_content(self._before)

    def redo(self) -> None:
        self._form.restore_content(self._after)


class SetupForm(QObject):
    """Model of the setup form. Begins with the first preset."""

    knob_changed = Signal(str)
    preset_changed = Signal()
    data_changed = Signal()
    name_changed = Signal()
    changed = Signal()  # any change

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        preset = presets.load(presets.names()[0])
        self._content = _Content(preset, _data_of(preset))
        self.machine: RemoteMachine | None = None  # to train on; None: this one. Not undone
        self.kept: tuple[str, ...] = ()  # changed settings that kept their values when the preset was chosen
        self.invalid_knobs: list[str] = []  # in the order of the form
        self.error_finders: dict[str, Callable[[], str]] = {}
        """By setting: a function that returns an error that its text does not show, such as of a path; empty: none, or
        not known yet.
        """
        self._conflict: TraindeckError | None = None  # of valid settings, e.g. of heads that do not divide the width
        self.undo_stack = QUndoStack(self, undoLimit=_MAX_UNDO)  # texts: name of a setting, or of `_commit`
        self._typing_session = 0
        self.undo_key_filter = UndoKeyFilter(self)  # for all editors of this form

    @property
    def preset(self) -> Preset:
        return self._content.preset

    @property
    def data(self) -> list[str]:
        return self._content.data

    @property
    def base_model(self) -> str:
        """Model to fine-tune; empty: a new model."""
        return self.text("base_model").strip()

    @property
    def run_name(self) -> str:
        return self._content.run_name

    def set_machine(self, machine: RemoteMachine | None) -> None:
        self.machine = machine
        self.changed.emit()

    # --- preset, data and name -------------------------------------------------------------------

    def choose_preset(self, preset: Preset) -> None:
        """Select another preset. Changed settings and data keep their values; the settings are listed in `kept`."""
        data = _data_of(preset) if self.data in ([], _data_of(self.preset)) else self.data
        self._commit("preset", replace(self._content, preset=preset, data=data), keep=True)

    def load(self, preset: Preset, data: list[str] | None = None, values: Mapping[str, Any] | None = None) -> None:
        """Reset the form to a preset, with the data and changed settings of an earlier run or session."""
        base = {name: preset.knobs.get(name, knobs()[name].default) for name in form_knobs()}
        changes = {name: value for name, value in (values or {}).items() if name in base and value != base[name]}
        typed = {name: format_value(value) for name, value in changes.items()}
        data = _data_of(preset) if data is None else data
        self._commit("preset", replace(self._content, preset=preset, data=data, typed=typed))

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
        self._commit("data", replace(self._content, data=paths))

    def add_validation_data(self, paths: list[str]) -> None:
        self.set_validation_data(list(dict.fromkeys([*self.validation_data, *paths])))

    def set_validation_data(self, paths: list[str]) -> None:
        self.end_typing()
        self.set_text(VALIDATION, format_value(paths))

    def set_run_name(self, name: str) -> None:
        self._commit("name", replace(self._content, run_name=name.strip()), typing=True)

    # --- knobs -------------------------------------------------------------------------------------

    def base_value(self, name: str) -> Any:
        """Value of a setting in the preset, or its default."""
        return self.preset.knobs.get(name, knobs()[name].default)

    def text(self, name: str) -> str:
        """Text of the editor."""
        return self._content.typed.get(name, format_value(self.base_value(name)))

    def set_text(self, name: str, text: str) -> None:
        """Set a typed value. The value of the preset is not a change."""
        if text == self.text(name):
            return
        texts = {name: text}
        if name == "max_epochs" and "max_steps" not in self._content.typed and not self._is_base(name, text):
            texts["max_steps"] = "0"  # as in `config.resolve`: typed epochs override the steps of a preset
        self._set_texts(name, texts, typing=knobs()[name].kind in _TYPED_KINDS)

    def set_values(self, values: Mapping[str, Any]) -> None:
        """Set several settings in one undo step. Unknown ones are ignored."""
        self._set_texts("settings", {name: format_value(values[name]) for name in form_knobs() if name in values})

    def _set_texts(self, what: str, texts: Mapping[str, str], *, typing: bool = False) -> None:
        both = {**self._content.typed, **texts}
        typed = {name: text for name, text in both.items() if name not in texts or not self._is_base(name, text)}
        self._commit(what, replace(self._content, typed=typed), typing=typing)
        for name, text in texts.items():
            if self.text(name) != text:
                self.knob_changed.emit(name)  # the editor shows the text of the preset again

    def _is_base(self, name: str, text: str) -> bool:
        """Whether a text has the value of the preset."""
        try:
            return bool(_convert(name, text) == self.base_value(name))
        except TraindeckError:
            return False

    def reset(self, *names: str) -> None:
        """Reset settings, all without `names`, to the values of the preset."""
        typed = {name: text for name, text in self._content.typed.items() if names and name not in names}
        self._commit(names[0] if len(names) == 1 else "settings", replace(self._content, typed=typed))

    def is_changed(self, name: str) -> bool:
        """Whether the value is invalid or differs from the preset."""
        return name in self._content.typed and not self._is_base(name, self._content.typed[name])

    def value(self, name: str) -> Any:
        """The typed value. Raises `TraindeckError` if it is invalid."""
        text = self._content.typed.get(name)
        return self.base_value(name) if text is None else _convert(name, text)

    def is_valid(self, name: str) -> bool:
        try:
            self.value(name)
        except TraindeckError:
            return False
        return True

    def has_values(self, values: Mapping[str, Any]) -> bool:
        """Whether all these settings have these values."""
        return all(self.is_valid(name) and self.value(name) == value for name, value in values.items())

    def changes(self) -> dict[str, Any]:
        """Values that differ from the preset. Call only while `invalid_knobs` is empty."""
        return {name: self.value(name) for name in form_knobs() if self.is_changed(name)}

    def valid_changes(self) -> dict[str, Any]:
        """Like `changes`, without invalid values."""
        return {name: self.value(name) for name in form_knobs() if self.is_changed(name) and self.is_valid(name)}

    def values(self) -> dict[str, Any]:
        """Values of the preset, with the changes. Call only while `invalid_knobs` is empty."""
        return {**self.preset.knobs, **self.changes()}

    # --- errors --------------------------------------------------------------------------------------

    def error(self, name: str) -> str:
        """Why a setting is invalid, or conflicts with others; empty: it is valid."""
        if not self.is_valid(name):
            return format_input_error(knobs()[name], self.text(name))
        if name in self.error_finders and (error := self.error_finders[name]()):
            return error
        return self._conflict_text() if name in self._conflicting_knobs() else ""

    def find_blocker(self, existing_names: Container[str] = ()) -> StartBlocker | None:
        """The first reason why a run cannot start. `existing_names`: of runs on disk."""
        if self.invalid_knobs:
            name = self.invalid_knobs[0]
            setting, values = knob_label(knobs()[name]), formatting.format_allowed_values(knobs()[name])
            return StartBlocker(tr("setup.setting_range", setting=setting, range=values), name)
        if not self.data:
            return StartBlocker(tr("setup.data_required"), "data")
        if self.run_name and safe_name(self.run_name) in existing_names:
            return StartBlocker(tr("setup.name_exists"), "name")
        if self._conflict is not None:
            involved = sorted(self._conflicting_knobs(), key=lambda name: not self.is_changed(name))
            return StartBlocker(self._conflict_text(), next(iter(involved), ""))
        errors = ((find_error(), name) for name, find_error in self.error_finders.items())
        return next((StartBlocker(text, name) for text, name in errors if text), None)

    @property
    def blocked_reason(self) -> str:
        """Why a run cannot start; empty: it can."""
        blocker = self.find_blocker()
        return blocker.text if blocker else ""

    def on_error_changed(self, name: str) -> None:
        """The result of a function of `error_finders` has changed."""
        self.knob_changed.emit(name)
        self.changed.emit()

    def _conflicting_knobs(self) -> tuple[str, ...]:
        return CONFLICTING_KNOBS.get(self._conflict.code, ()) if self._conflict else ()

    def _conflict_text(self) -> str:
        return formatting.localized_message(self._conflict.code, self._conflict.params) if self._conflict else ""

    # --- changes and undo ------------------------------------------------------------------------------

    def end_typing(self) -> None:
        """End the undo step of the text that is being typed."""
        self._typing_session += 1

    def restore_content(self, content: _Content) -> None:
        """Restore a snapshot for undo or redo."""
        if content != self._content:
            before, self._content, self.kept = self._content, content, ()
            self.end_typing()
            self._emit_changes(before)

    def _commit(self, what: str, content: _Content, *, typing: bool = False, keep: bool = False) -> None:
        """Change the form and add an undo step: `what` is `preset`, `data`, `name`, `settings` or a setting."""
        before, self._content = self._content, content
        # Validation data belongs to the data, not to the changed settings.
        kept = (name for name in form_knobs() if name != VALIDATION) if keep else self.kept
        self.kept = tuple(filter(self.is_changed, kept))
        self._emit_changes(before)
        if content != before:
            merge_id = hash((what, self._typing_session)) & 0x7FFF_FFFF if typing else -1
            self.undo_stack.push(_Change(self, before, content, what, merge_id))

    def _emit_changes(self, before: _Content) -> None:
        """Validate the content and emit what has changed."""
        content, marked = self._content, {*self.invalid_knobs, *self._conflicting_knobs()}
        self.invalid_knobs = [name for name in form_knobs() if not self.is_valid(name)]
        self._conflict = None
        if not self.invalid_knobs:
            try:
                check_combinations(Config(**self.values()))
            except TraindeckError as error:
                self._conflict = error
        changed = {name for name, _ in content.typed.items() ^ before.typed.items()}
        changed |= {*marked, *self.invalid_knobs, *self._conflicting_knobs()}
        if content.preset is not before.preset:
            changed |= set(form_knobs())
            self.preset_changed.emit()
        if content.data != before.data:
            self.data_changed.emit()
        if content.run_name != before.run_name:
            self.name_changed.emit()
        for name in sorted(changed):
            self.knob_changed.emit(name)
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


def _data_of(preset: Preset) -> list[str]:
    return [str(path) for path in preset.knobs.get("data") or []]


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


def _convert(name: str, text: str) -> Any:
    """The value of a typed text. Raises `TraindeckError` if it is invalid."""
    return check_value(name, _parse(name, text), knobs()[name].flag)


def _parse(name: str, text: str) -> Any:
    """Convert typed text for `check_value`."""
    knob = knobs()[name]
    if knob.kind == "list":
        return [line for line in text.splitlines() if line.strip()]
    if knob.kind in ("int", "float"):
        return normalize_number(text)
    return text.strip() if knob.kind == "str" else text
