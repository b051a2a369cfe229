"""What to export, and where to: run, checkpoint, format, quantization, folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QGridLayout, QLabel, QWidget

from app.core.export_options import FORMATS, ExportOptions
from app.core.pool_task import PoolTask
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    PathLineEdit,
    TranslatableWidget,
    label,
    push_button,
    set_object_name,
)
from app.widgets.checkpoint_choice import CheckpointChoice, narrow_combo
from trainer_core.runs.checkpoint_dir import ADAPTER_FILE
from trainer_core.runs.run_dir import unique_name

if TYPE_CHECKING:
    from trainer_core.base_model.summary import ModelSummary

_LABELS: Final = {
    "run": "export.run",
    "checkpoint": "export.checkpoint",
    "format": "export.format_label",
    "quantization": "export.quantization",
    "folder": "export.folder",
}
_MAX_RUN_NAME: Final = 60  # characters in the name of a folder


class ExportOptionsCard(TranslatableWidget):
    """Form of an export. The folder that will be created is a new one in the folder of the form."""

    changed = Signal()
    folder_edited = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._parameters: dict[Path, int] = {}  # by run
        self._summary_task = PoolTask(self)
        self.choice = CheckpointChoice("export", self)
        self.format, self.quantization = narrow_combo("exportFormat"), narrow_combo("exportQuantization")
        self.folder, self.browse = set_object_name(PathLineEdit(), "exportFolder"), push_button("exportBrowse")
        self.size_label, self.target_label = (
            label("muted"),
            set_object_name(ElidedLabel(Qt.TextElideMode.ElideMiddle), "muted"),
        )
        self._labels: dict[str, QLabel] = {}
        self._arrange()
        self.choice.changed.connect(self._on_choice)
        self.format.activated.connect(self._list_quantizations)
        self.quantization.activated.connect(self._update)
        self.folder.textChanged.connect(self._update)
        self.folder.textEdited.connect(self.folder_edited)
        self.browse.clicked.connect(self._browse)
        self._summary_task.finished.connect(self._on_summary)
        self.retranslate()

    def _arrange(self) -> None:
        grid = QGridLayout()
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(SPACING)
        grid.setColumnStretch(1, 3)
        grid.setColumnStretch(3, 4)
        rows: tuple[tuple[tuple[str, QWidget], ...], ...] = (
            (("run", self.choice.run), ("checkpoint", self.choice.checkpoint)),
            (("format", self.format), ("quantization", self.quantization)),
        )
        for row, fields in enumerate(rows):
            for column, (name, widget) in enumerate(fields):
                self._add_label(grid, name, widget, row, 2 * column)
                grid.addWidget(widget, row, 2 * column + 1)
        grid.addWidget(self.size_label, 1, 4)
        self._add_label(grid, "folder", self.folder, 2, 0)
        grid.addWidget(self.folder, 2, 1, 1, 3)
        grid.addWidget(self.browse, 2, 4)
        grid.addWidget(self.target_label, 3, 1, 1, 4)
        self.setLayout(grid)

    def _add_label(self, grid: QGridLayout, name: str, widget: QWidget, row: int, column: int) -> None:
        self._labels[name] = label()
        self._labels[name].setBuddy(widget)
        grid.addWidget(self._labels[name], row, column)

    # --- values ---------------------------------------------------------------------------------------------

    @property
    def options(self) -> ExportOptions:
        return ExportOptions(self.format.currentData() or "gguf", self.quantization.currentData() or "")

    @property
    def target(self) -> Path | None:
        """The folder to create; None without a checkpoint or an existing folder."""
        folder, checkpoint = Path(self.folder.text().strip()), self.choice.selected_checkpoint
        if checkpoint is None or not folder.is_absolute() or not folder.is_dir():
            return None
        suffix = self.options.quantization or self.options.format
        name = f"{checkpoint.parent.parent.name[:_MAX_RUN_NAME]}-{checkpoint.name}-{suffix}"
        return folder / unique_name(name, root=folder)

    @property
    def blocked_reason(self) -> str:
        """Why no export can be started; empty if one can."""
        if self.choice.selected_checkpoint is None:
            return tr("disabled.no_checkpoints")
        return "" if self.target is not None else tr("disabled.no_export_folder")

    def _on_choice(self) -> None:
        """Summarize the run once, and list the formats of the checkpoint."""
        run = self.choice.selected_run
        if run is not None and run not in self._parameters:
            self._summary_task.start(lambda: (run, _summarize(run)))
        self._list_formats()

    def _on_summary(self, result: tuple[Path, ModelSummary | None]) -> None:
        run, found = result
        self._parameters[run] = found.parameters if found else 0
        self._update()

    def _list_formats(self) -> None:
        """Only an adapter can be exported as one."""
        checkpoint = self.choice.selected_checkpoint
        is_adapter = checkpoint is not None and (checkpoint / ADAPTER_FILE).is_file()
        selected = self.format.currentData()
        names = [name for name in FORMATS if name != "peft" or is_adapter]
        self.format.clear()
        for name in names:
            self.format.addItem(tr(f"export.format.{name}"), name)
        self.format.setCurrentIndex(names.index(selected) if selected in names else 0)
        self._list_quantizations()

    def _list_quantizations(self) -> None:
        selected, names = self.quantization.currentData(), FORMATS[self.format.currentData()]
        self.quantization.clear()
        for name in names:
            self.quantization.addItem(name.upper() or tr("export.as_in_checkpoint"), name)
        self.quantization.setCurrentIndex(names.index(selected) if selected in names else 0)
        self._update()

    def _browse(self) -> None:
        folder = QFileDialog.getExistingDirectory(self, tr("export.choose_folder"), self.folder.text())
        if folder:
            self.folder.setText(str(Path(folder)))
            self.folder_edited.emit(self.folder.text())

    # --- display --------------------------------------------------------------------------------------------

    def _update(self) -> None:
        self.size_label.setText(self._format_size())
        target = self.target
        self.target_label.setText(tr("export.creates", name=target.name) if target else "")
        self.quantization.setEnabled(self.quantization.count() > 1)
        self.changed.emit()

    def _format_size(self) -> str:
        parameters = self._parameters.get(self.choice.selected_run or Path(), 0)
        estimate = self.options.estimate_bytes(parameters)
        if estimate is None:
            weights = self.choice.selected_checkpoint
            files = (weights / name for name in ("model.safetensors", ADAPTER_FILE)) if weights else ()
            estimate = sum(path.stat().st_size for path in files if path.is_file())
        return tr("export.size", size=formatting.format_file_size(estimate)) if estimate else ""

    def retranslate(self) -> None:
        for name, widget in self._labels.items():
            widget.setText(tr(_LABELS[name]))
        self.browse.setText(tr("export.browse"))
        self.folder.setPlaceholderText(tr("export.folder_hint"))
        self.choice.retranslate()
        self._list_formats()


def _summarize(run: Path) -> ModelSummary | None:
    from trainer_core.base_model.summary import summarize_run  # imports that would take memory at the start

    return summarize_run(run)
