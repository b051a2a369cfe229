"""Section Model of the setup panel: the base model, what is known of it, and what is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QFileDialog, QWidget

from app.core.pool_task import PoolTask
from app.pages.setup.form import SetupForm
from app.pages.setup.knob_field import KnobField
from app.pages.setup.path_monitor import PathMonitor
from app.pages.setup.texts import format_model_summary, format_trained_weights
from app.services.desktop_shell import first_existing
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    NoScrollComboBox,
    PathLineEdit,
    TranslatableWidget,
    horizontal_layout,
    label,
    line_edit,
    move_focus,
    push_button,
    set_error,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from trainer_core.base_model import preset_run
from trainer_core.config import Config, knobs
from trainer_core.runs.run_dir import RunSummary

if TYPE_CHECKING:
    from trainer_core.base_model.summary import ModelSummary

Choice = Literal["new", "folder", "hub", "run"]
_CHOICES: Final[dict[Choice, str]] = {
    "new": "setup.model_new",
    "folder": "setup.model_folder",
    "hub": "setup.model_hub",
    "run": "setup.model_run",
}
_MISSING: Final[dict[Choice, str]] = {  # why a run cannot start
    "folder": "setup.model_folder_required",
    "hub": "setup.model_name_required",
    "run": "setup.model_run_required",
}
_FIELDS: Final = ("method", "lora_rank", "max_seq_len")


class ModelSection(TranslatableWidget):
    """Edits `base_model` (a choice of its kind, an editor for each kind, a list of models) and how it is trained.

    An editor keeps its text while another kind is chosen.
    """

    list_requested = Signal()  # the list of models

    def __init__(self, form: SetupForm) -> None:
        super().__init__()
        self._form = form
        self._choice: Choice = "new"
        self._text = ""  # base model of the form that is shown
        self._listed_runs: list[tuple[Path, int]] = []
        self.choice = set_object_name(NoScrollComboBox(), "modelChoice")
        self.folder, self.browse = set_object_name(PathLineEdit(), "modelFolder"), push_button("browseModel")
        self.hub, self.list_button = line_edit("modelName"), push_button("modelList")
        self.run = set_object_name(NoScrollComboBox(), "modelRun")
        self.summary, self.trained = label("muted", wrap=True), label("muted", wrap=True)
        self.error = label("fieldError", wrap=True, hidden=True)
        self.fields = [KnobField(knobs()[name], form, full=False) for name in _FIELDS]
        self.monitor: PathMonitor[ModelSummary] = PathMonitor(
            self, form, "base_model", lambda: form.base_model.splitlines(), _summarize, format_model_summary
        )
        self._find_summary_error = form.error_finders["base_model"]  # of the monitor
        form.error_finders |= {
            "base_model": self._find_error,
            "method": self._find_method_error,
            "max_seq_len": self._find_length_error,
        }
        self._runs_task = PoolTask(self)
        self._arrange()
        self._connect()
        self.retranslate()

    def _arrange(self) -> None:
        for key in _CHOICES:
            self.choice.addItem("", key)
        for combo in (self.choice, self.run):
            combo.setSizeAdjustPolicy(NoScrollComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._rows: dict[Choice, QWidget] = {"folder": QWidget(), "hub": self.hub, "run": self.run}
        self._rows["folder"].setLayout(horizontal_layout((self.folder, 1), self.browse, spacing=SPACING // 2))
        layout = vertical_layout(spacing=SPACING - 2)
        layout.addLayout(horizontal_layout((self.choice, 1), self.list_button, spacing=SPACING // 2))
        for widget in (*self._rows.values(), self.error, self.summary, self.trained, *self.fields):
            layout.addWidget(widget)
        self.setLayout(layout)

    def _connect(self) -> None:
        form = self._form
        self.choice.activated.connect(lambda: self._choose(self.choice.currentData()))
        for edit in (self.folder, self.hub):
            edit.textEdited.connect(self._set_text)
            edit.editingFinished.connect(form.end_typing)
            edit.installEventFilter(form.undo_key_filter)
        self.hub.setAcceptDrops(False)  # the window adds dropped files to the data
        self.run.activated.connect(lambda: self._set_text(self.run.currentText()))
        self.browse.clicked.connect(self._ask_folder)
        self.list_button.clicked.connect(self.list_requested)
        self.monitor.changed.connect(self._on_summary)
        self._runs_task.finished.connect(self._on_runs)
        form.preset_changed.connect(self._show_form)
        form.changed.connect(self._on_form_changed)

    @property
    def editor(self) -> QWidget:
        """The editor of the base model."""
        return {"new": self.choice, "folder": self.folder, "hub": self.hub, "run": self.run}[self._choice]

    # --- choice ----------------------------------------------------------------------------------------

    def _choose(self, choice: Choice) -> None:
        """Edit another kind of base model, beginning with what its editor shows."""
        run = self.run.currentText() or self.run.itemText(0)
        texts = {"new": "", "folder": self.folder.text(), "hub": self.hub.text(), "run": run}
        self._choice, self._text = choice, texts[choice].strip()
        self._form.end_typing()
        if choice == "new" and self._form.text("method") != "full":  # other methods need a base model
            self._form.set_values({"base_model": "", "method": "full"})
        else:
            self._form.set_text("base_model", self._text)
        self._form.end_typing()
        self._form.on_error_changed("base_model")  # an empty text of another kind is an error

    def _set_text(self, text: str) -> None:
        self._text = text.strip()
        self._form.set_text("base_model", text)

    def _show_form(self) -> None:
        """Show the base model of the form, which another editor, a preset or undo has changed."""
        self._text = self._form.base_model
        self._choice = self._find_choice(self._text)
        for choice, edit in (("folder", self.folder), ("hub", self.hub)):
            if choice == self._choice and edit.text().strip() != self._text:
                edit.setText(self._text)
        self._show()

    def _find_choice(self, text: str) -> Choice:
        """Kind of a base model, without access to the disk. Names that are not known are edited as those of a hub."""
        if not text:
            return "new"
        if self.run.findText(text) >= 0 or text.startswith(preset_run.PREFIX):
            return "run"
        is_path = Path(text).is_absolute() or text.startswith(("~", ".")) or "\\" in text or text.endswith("/")
        return "folder" if is_path else "hub"

    def _ask_folder(self) -> None:
        folders = (Path(text).expanduser() for text in (self.folder.text().strip(),) if text)
        start = str(first_existing(folders) or Path.home())
        if path := QFileDialog.getExistingDirectory(self, tr("setup.model_choose_folder"), start):
            self.folder.setText(str(Path(path)))
            self._form.end_typing()
            self._set_text(self.folder.text())
            self._form.end_typing()

    # --- runs ------------------------------------------------------------------------------------------

    def set_runs(self, runs: Sequence[RunSummary]) -> None:
        """Offer the runs that are a base model. `runs`: newest first."""
        listed = [(run.path, run.checkpoints) for run in runs if run.state != "running" and run.checkpoints]
        if listed != self._listed_runs:
            self._listed_runs = listed
            self._runs_task.start(lambda: _list_base_models([path for path, _ in listed]))

    def _on_runs(self, names: list[str]) -> None:
        self.run.clear()
        self.run.addItems(names)
        self._show_run_choice()
        if self._text and self._choice in ("hub", "run"):  # a name may be that of a run, or of a deleted one
            self._show_form()

    # --- showing -----------------------------------------------------------------------------------------

    def _on_form_changed(self) -> None:
        if self._form.base_model != self._text:
            self._show_form()
        else:
            self._show()

    def _on_summary(self) -> None:
        self._form.on_error_changed("max_seq_len")
        self._show()

    def _show(self) -> None:
        form, has_base = self._form, bool(self._form.base_model)
        self.choice.setCurrentIndex(list(_CHOICES).index(self._choice))
        if self._choice == "run":
            if self._text.startswith(preset_run.PREFIX) and self.run.findText(self._text) < 0:
                self.run.addItem(self._text)
                self._show_run_choice()
            self.run.setCurrentIndex(self.run.findText(self._text))
        for choice, row in self._rows.items():
            if choice != self._choice:
                move_focus(row, self.choice)
            row.setVisible(choice == self._choice)
        error = form.error("base_model")
        set_error(self.editor, error)
        texts = {self.error: error, self.summary: self._format_summary(), self.trained: self._format_trained()}
        for text_label, text in texts.items():
            set_text_if_changed(text_label, text)
            text_label.setVisible(bool(text))
        is_full = form.text("method") == "full"
        for field in self.fields:
            field.setVisible({"method": has_base or not is_full, "lora_rank": not is_full}.get(field.knob.name, True))

    def _format_summary(self) -> str:
        if not self._form.base_model or self._form.error("base_model"):
            return ""
        return format_model_summary(self.monitor.result)

    def _format_trained(self) -> str:
        """Number and share of the weights that are trained; empty: not known."""
        model, form = self.monitor.result, self._form
        if model is None or model.has_problem or form.invalid_knobs:
            return ""
        from trainer_core.base_model.summary import count_trained

        trained = count_trained(model, Config(**form.values()))
        if trained is None:
            return ""
        return format_trained_weights(trained, model.parameters - (trained if form.text("method") == "full" else 0))

    def _find_error(self) -> str:
        if self._choice != "new" and not self._form.base_model:
            return tr(_MISSING[self._choice])
        return self._find_summary_error()

    def _find_method_error(self) -> str:
        if self._choice != "new" or self._form.text("method") == "full":
            return ""
        return formatting.localized_message("config.lora_without_base", {})

    def _find_length_error(self) -> str:
        model, length = self.monitor.result, self._form.value("max_seq_len")
        if model is None or not model.context or length <= model.context:
            return ""
        return tr("setup.model_too_few_positions", limit=model.context)

    def _show_run_choice(self) -> None:
        """Disable the choice of a run, with the reason, while there is none."""
        model, index = self.choice.model(), list(_CHOICES).index("run")
        assert isinstance(model, QStandardItemModel)
        model.item(index).setEnabled(bool(self.run.count()))
        reason = "" if self.run.count() else tr("setup.model_no_runs")
        self.choice.setItemText(index, f"{tr(_CHOICES['run'])}{reason and f' ({reason})'}")
        self.choice.setItemData(index, reason, Qt.ItemDataRole.ToolTipRole)

    def retranslate(self) -> None:
        for index, key in enumerate(_CHOICES.values()):
            self.choice.setItemText(index, tr(key))
        self._show_run_choice()
        for widget, key in (
            (self.choice, "setup.model"),
            (self.folder, "setup.model_folder"),
            (self.hub, "setup.model_name"),
            (self.run, "setup.model_run"),
        ):
            widget.setAccessibleName(tr(key))
        self.folder.setPlaceholderText(tr("setup.model_folder_hint"))
        self.hub.setPlaceholderText("org/name")
        self.browse.setText(tr("setup.browse"))
        self.list_button.setText(tr("setup.model_list_button"))
        self._show()


def _summarize(names: list[str]) -> ModelSummary:
    from trainer_core.base_model.summary import summarize  # imports that would delay the start of the window

    return summarize(names[0])


def _list_base_models(runs: Sequence[Path]) -> list[str]:
    from trainer_core.base_model.summary import summarize_run

    return [run.name for run in runs if summarize_run(run)]
