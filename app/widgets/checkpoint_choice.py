"""Choice of a run and one of its checkpoints, or of the base model of the next run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QSizePolicy

from app.core.evaluations import base_model_folder
from app.texts import tr
from app.widgets import formatting
from app.widgets.basic import NoScrollComboBox, plain_tooltip, set_object_name
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo


class CheckpointChoice(QObject):
    """Two combo boxes, which the owner places. `name`: prefix of their object names."""

    changed = Signal()

    def __init__(self, name: str, parent: QObject) -> None:
        super().__init__(parent)
        self._runs: list[Path] = []
        self._base_model = ""
        self._infos: list[CheckpointInfo] = []
        self.run, self.checkpoint = narrow_combo(f"{name}Run"), narrow_combo(f"{name}Checkpoint")
        self.run.activated.connect(lambda: self.select(self.selected_run, None))
        self.checkpoint.activated.connect(self.changed)

    @property
    def selected_run(self) -> Path | None:
        found: Path | None = self.run.currentData()
        return found

    @property
    def is_base_model(self) -> bool:
        """Whether the base model is selected; `selected_run` is its folder of evaluations."""
        return bool(self._base_model) and self.run.currentIndex() == 0

    @property
    def selected_checkpoint(self) -> Path | None:
        found: Path | None = self.checkpoint.currentData()
        return found

    def set_runs(self, runs: Sequence[Path], base_model: str = "") -> None:
        """`runs`: with checkpoints, newest first. `base_model`: name of one to list before them; empty: none."""
        folders = [base_model_folder(base_model), *runs] if base_model else list(runs)
        selected, default = self.selected_run, next(iter([*runs, *folders]), None)
        if self.is_base_model:
            default = next(iter(folders), None)
        paths = checkpoint_dir.list_checkpoints(selected / "checkpoints")[::-1] if selected is not None else []
        is_current = (folders, base_model) == (self._runs, self._base_model)
        is_current = is_current and paths == [info.path for info in self._infos]
        if is_current or any(combo.view().isVisible() for combo in (self.run, self.checkpoint)):
            return
        self._runs, self._base_model = folders, base_model
        self.run.clear()
        for path in folders:
            self.run.addItem(path.name, path)
            self.run.setItemData(self.run.count() - 1, plain_tooltip(str(path)), Qt.ItemDataRole.ToolTipRole)
        if base_model:
            self.run.setItemData(0, plain_tooltip(base_model), Qt.ItemDataRole.ToolTipRole)
        self._show_base_model()
        self.select(selected if selected in folders else default, self.selected_checkpoint)

    def _show_base_model(self) -> None:
        if self._base_model:
            folder = Path(self._base_model)
            name = folder.name if folder.is_absolute() else self._base_model
            self.run.setItemText(0, tr("evaluate.base_model", model=name))

    def select(self, run: Path | None, checkpoint: Path | None) -> None:
        """Select a checkpoint of a run; None: the newest one."""
        self.run.setCurrentIndex(self._runs.index(run) if run in self._runs else -1)
        self.run.setToolTip(self.run.currentData(Qt.ItemDataRole.ToolTipRole) or "")
        self._infos = checkpoint_dir.list_infos(run / "checkpoints")[::-1] if run is not None else []
        self.checkpoint.clear()
        for info in self._infos:
            self.checkpoint.addItem(formatting.format_checkpoint(info), info.path)
        paths = [info.path for info in self._infos]
        self.checkpoint.setCurrentIndex(paths.index(checkpoint) if checkpoint in paths else min(0, len(paths) - 1))
        self.changed.emit()

    def retranslate(self) -> None:
        self._show_base_model()
        for index, info in enumerate(self._infos):
            self.checkpoint.setItemText(index, formatting.format_checkpoint(info))


def narrow_combo(name: str) -> NoScrollComboBox:
    """Return a combo box that is as wide as its place in the layout."""
    combo = set_object_name(NoScrollComboBox(), name)
    combo.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
    combo.setMinimumContentsLength(6)
    return combo
