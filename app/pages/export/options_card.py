"""What to export, and where to: run, checkpoint, format, quantization, folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog, QGridLayout, QLabel, QSizePolicy, QWidget

from app.core.export_options import FORMATS, ExportOptions
from app.core.pool_task import PoolTask
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    PathLineEdit,
    TranslatableWidget,
    label,
    plain_tooltip,
    push_button,
    set_object_name,
)
from trainer_core.base_model import summary
from trainer_core.base_model.weight_files import ADAPTER_FILE
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo
from trainer_core.runs.run_dir import unique_name

_LABELS: Final = {
    "run": "export.run",
    "checkpoint": "export.checkpoint",
    "format": "export.format_label",
    "quantization": "export.quantization",
    "folder": "export.folder",
}
_MAX_RUN_NAME: Final = 60  # characters in the name of a folder


class OptionsCard(TranslatableWidget):
    """Form of an export. The folder that will be created is a new one in the folder of the form."""

    changed = Signal()
    folder_edited = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._runs: Sequence[Path] = ()
        self._infos: list[CheckpointInfo] = []
        self._parameters: dict[Path, int] = {}  # by run
        self._summary_task = PoolTask(self)
        self.run, self.checkpoint = _combo("exportRun"), _combo("exportCheckpoint")
        self.format, self.quantization = _combo("exportFormat"), _combo("exportQuantization")
        self.folder, self.browse = set_object_name(PathLineEdit(), "exportFolder"), push_button("exportBrowse")
        self.size_label, self.target_label = (
            label("muted"),
            set_object_name(ElidedLabel(Qt.TextElideMode.ElideMiddle), "muted"),
        )
        self._labels: dict[str, QLabel] = {}
        self._arrange()
        self.run.activated.connect(lambda: self.select(self.run.currentData(), None))
        self.checkpoint.activated.connect(self._on_checkpoint)
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
            (("run", self.run), ("checkpoint", self.checkpoint)),
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
    def selected_checkpoint(self) -> Path | None:
        found: Path | None = self.checkpoint.currentData()
        return found

    @property
    def options(self) -> ExportOptions:
        return ExportOptions(self.format.currentData() or "gguf", self.quantization.currentData() or "")

    @property
    def target(self) -> Path | None:
        """The folder to create; None without a checkpoint or an existing folder."""
        folder, checkpoint = Path(self.folder.text().strip()), self.selected_checkpoint
        if checkpoint is None or not folder.is_absolute() or not folder.is_dir():
            return None
        suffix = self.options.quantization or self.options.format
        name = f"{checkpoint.parent.parent.name[:_MAX_RUN_NAME]}-{checkpoint.name}-{suffix}"
        return folder / unique_name(name, root=folder)

    def set_runs(self, runs: Sequence[Path]) -> None:
        """`runs`: with checkpoints, newest first."""
        selected: Path | None = self.run.currentData()
        paths = checkpoint_dir.list_checkpoints(selected / "checkpoints")[::-1] if selected is not None else []
        is_current = list(runs) == list(self._runs) and paths == [info.path for info in self._infos]
        if is_current or any(combo.view().isVisible() for combo in (self.run, self.checkpoint)):
            return
        self._runs = list(runs)
        self.run.clear()
        for path in runs:
            self.run.addItem(path.name, path)
            self.run.setItemData(self.run.count() - 1, plain_tooltip(str(path)), Qt.ItemDataRole.ToolTipRole)
        self.select(selected if selected in self._runs else next(iter(self._runs), None), self.selected_checkpoint)

    def select(self, run: Path | None, checkpoint: Path | None) -> None:
        """Select a checkpoint of a run; None: the newest one."""
        self.run.setCurrentIndex(self._runs.index(run) if run in self._runs else -1)
        self._infos = checkpoint_dir.list_infos(run / "checkpoints")[::-1] if run is not None else []
        self.checkpoint.clear()
        for info in self._infos:
            self.checkpoint.addItem(formatting.format_checkpoint(info), info.path)
        paths = [info.path for info in self._infos]
        self.checkpoint.setCurrentIndex(paths.index(checkpoint) if checkpoint in paths else min(0, len(paths) - 1))
        if run is not None and run not in self._parameters:
            self._summary_task.start(lambda: (run, summary.summarize_run(run)))
        self._on_checkpoint()

    def _on_summary(self, result: tuple[Path, summary.ModelSummary | None]) -> None:
        run, found = result
        self._parameters[run] = found.parameters if found else 0
        self._update()

    def _on_checkpoint(self) -> None:
        """List the formats of the checkpoint: only an adapter can be exported as one."""
        checkpoint = self.selected_checkpoint
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
        parameters = self._parameters.get(self.run.currentData(), 0)
        estimate = self.options.estimate_bytes(parameters)
        if estimate is None:
            weights = next((info.path for info in self._infos if info.path == self.selected_checkpoint), None)
            files = (weights / name for name in ("model.safetensors", ADAPTER_FILE)) if weights else ()
            estimate = sum(path.stat().st_size for path in files if path.is_file())
        return tr("export.size", size=formatting.format_file_size(estimate)) if estimate else ""

    def retranslate(self) -> None:
        for name, widget in self._labels.items():
            widget.setText(tr(_LABELS[name]))
        self.browse.setText(tr("export.browse"))
        self.folder.setPlaceholderText(tr("export.folder_hint"))
        for index, info in enumerate(self._infos):
            self.checkpoint.setItemText(index, formatting.format_checkpoint(info))
        self._on_checkpoint()


def _combo(name: str) -> NoScrollComboBox:
    combo = set_object_name(NoScrollComboBox(), name)
    combo.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
    combo.setMinimumContentsLength(6)
    return combo
