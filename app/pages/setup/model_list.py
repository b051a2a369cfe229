"""List of base models: those of the catalogue, folders used recently, and runs. Each with what fits this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import QEvent, QModelIndex, QObject, QSize, QSortFilterProxyModel, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QAbstractItemView, QApplication, QCheckBox, QDialog, QWidget

from app.core.pool_task import PoolTask
from app.core.preset_recommendation import usable_gpus
from app.core.run_estimate import Measurement, estimate_flops
from app.pages.setup.texts import format_model_summary, format_weights
from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    horizontal_layout,
    label,
    line_edit,
    placeholder_label,
    plain_tooltip,
    push_button,
    resize_within_screen,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from app.widgets.table import Column, Index, Role, RowTable, TableModel, number_column
from trainer_core.system import hardware

if TYPE_CHECKING:
    from trainer_core.base_model.catalogue import Method
    from trainer_core.base_model.summary import ModelSummary
    from trainer_core.system.hardware import GpuInfo, MachineInfo

_METHODS: Final[tuple[Method, ...]] = ("full", "lora", "qlora")
_USABLE_SHARE: Final = 0.9  # of the memory; the check calls less "tight"
_SHOWN_LANGUAGES: Final = 3
_UNITS: Final = (("setup.list_days", 86_400), ("setup.list_hours", 3_600), ("setup.list_minutes", 60))  # seconds
_TABLE_KEYS: Final = (Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_PageUp, Qt.Key.Key_PageDown)
_SIZE: Final = QSize(1240, 680)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model of the list. `memory`: bytes by method, estimated or, for `measured_method`, measured by a check."""

    model: ModelSummary
    memory: Mapping[str, int]
    fitting: Sequence[str]  # methods that fit
    measured_method: str
    method: str  # if this model is chosen
    time_key: str  # text with `{method}` and `{time}`
    seconds: float = 0.0  # of the run; 0: not known

    @property
    def name(self) -> str:
        return self.model.entry.name if self.model.entry else Path(self.model.name).name

    @property
    def purpose(self) -> str:
        if self.model.entry is not None:
            return self.model.entry.purpose[current_language()]
        return tr("setup.list_own_folder" if Path(self.model.name).is_absolute() else "setup.list_own_run")


def load_rows(
    folders: Sequence[str], runs: Sequence[Path], method: str, tokens: float, measured: Measurement | None
) -> tuple[list[ModelRow], MachineInfo]:
    """Rows of own runs, own folders and the catalogue, for this machine. Reads the headers of all models on this disk.

    `method` and `tokens`: of the run; 0 tokens: not known.
    """
    from trainer_core.base_model import catalogue
    from trainer_core.base_model.summary import summarize, summarize_run

    own_runs = filter(None, map(summarize_run, runs))
    others = map(summarize, (*folders, *(model.id for model in catalogue.load())))
    machine = hardware.probe()
    gpu = _find_gpu(machine)
    limit = _USABLE_SHARE * ((gpu and gpu.vram_total) or machine.ram_total)
    flops_per_s = estimate_flops(machine, gpu)
    rows = []
    for model in (*own_runs, *(model for model in others if model.error is None)):
        found = measured if measured and measured.model == model.name else None
        shape, memory = model.shape, dict[str, int]()
        if shape is not None:
            size, on_gpu = model.parameters, gpu is not None
            memory |= {name: catalogue.estimate_memory(shape, size, name, on_gpu=on_gpu) for name in _METHODS}
        if found and found.peak:
            memory[found.method] = found.peak
        fitting = [name for name, size in memory.items() if size <= limit]
        chosen = method if method in fitting or not fitting else fitting[0]
        time = _find_time(model, chosen if fitting else "", tokens, flops_per_s, found)
        rows.append(ModelRow(model, memory, fitting, found.method if found and found.peak else "", chosen, *time))
    return rows, machine


def _find_time(
    model: ModelSummary, method: str, tokens: float, flops_per_s: float, measured: Measurement | None
) -> tuple[str, float]:
    """Key of a text on the training time, and the time in seconds; 0: not known. `method`: empty if none fits."""
    from trainer_core.base_model.catalogue import estimate_seconds

    if measured and measured.method == method and measured.seconds:
        return "setup.list_time_measured", measured.seconds
    if model.shape is None:
        return "setup.list_time_of_check", 0.0
    if not method:
        return "setup.list_time_no_fit", 0.0
    if not tokens:
        return "setup.list_time_no_tokens", 0.0
    if not flops_per_s:
        return "setup.list_time_of_check", 0.0
    seconds = estimate_seconds(model.shape, model.parameters, method == "full", tokens, flops_per_s)
    return "setup.list_time_estimated", seconds


def _format_languages(row: ModelRow) -> str:
    return row.model.entry.format_languages(_SHOWN_LANGUAGES) if row.model.entry else ""


def _format_download(row: ModelRow) -> str:
    return tr("setup.model_local") if row.model.is_local else formatting.format_bytes(row.model.download_bytes)


def _format_fit(row: ModelRow) -> str:
    if not row.memory:
        return "–"
    return ", ".join(row.fitting) or tr("setup.list_fits_not")


def _format_memory(row: ModelRow) -> str:
    """`full: about 2.9 GiB · lora: 1.2 GiB measured`."""
    keys = dict.fromkeys(row.memory, "setup.list_estimated") | {row.measured_method: "setup.list_measured"}
    return " · ".join(
        tr(keys[name], method=name, size=formatting.format_bytes(size)) for name, size in row.memory.items()
    )


def _format_time(row: ModelRow) -> str:
    """`≈ 12 min`, `3.5 h` if measured, or a dash."""
    about = "≈ " if row.time_key == "setup.list_time_estimated" else ""
    return f"{about}{_format_rough_duration(row.seconds)}" if row.seconds else "–"


def _format_rough_duration(seconds: float) -> str:
    """At least a minute, with two digits: `12 min`, `3.5 h`, `8 days`."""
    key, unit = next((unit for unit in _UNITS if seconds >= 2 * unit[1]), _UNITS[-1])
    count = max(1.0, seconds / unit)
    return tr(key, count=f"{count:.2g}" if count < 10 else f"{count:,.0f}")


def _explain(row: ModelRow) -> tuple[str, str]:
    """Memory by method, and the training time or why it is not known."""
    return _format_memory(row), tr(row.time_key, method=row.method, time=_format_rough_duration(row.seconds))


_COLUMNS: Final[dict[str, Column[ModelRow]]] = {
    "name": Column("setup.list_name", lambda row: row.name, 256),
    "parameters": number_column("setup.list_parameters", lambda row: format_weights(row.model.parameters), 116),
    "fits": Column("setup.list_fits", _format_fit, 112),
    "time": number_column("setup.list_time", _format_time, 92),
    "download": number_column("setup.list_download", _format_download, 96),
    "context": number_column("setup.list_context", lambda row: formatting.format_count(row.model.context), 76, 900),
    "languages": Column("setup.list_languages", _format_languages, 104, 760),
    "license": Column("setup.list_license", lambda row: row.model.license or "–", 92, 660),
    "purpose": Column("setup.list_purpose", lambda row: row.purpose),
}
_SORT_KEYS: Final[dict[str, Callable[[ModelRow], Any]]] = {
    "name": lambda row: row.name.casefold(),
    "parameters": lambda row: row.model.parameters,
    "fits": lambda row: (-len(row.fitting), row.model.parameters),
    "time": lambda row: row.seconds or math.inf,
    "download": lambda row: row.model.download_bytes,
    "context": lambda row: row.model.context,
    "languages": _format_languages,
    "license": lambda row: row.model.license.casefold(),
    "purpose": lambda row: row.purpose,
}


class _RowModel(TableModel[ModelRow]):
    def __init__(self) -> None:
        super().__init__(_COLUMNS, lambda row: row.model.name)

    def data(self, index: Index, role: int = 0) -> Any:
        if role == Role.ToolTipRole:
            row = self.rows[index.row()]
            return plain_tooltip("\n".join(filter(None, (row.model.name, row.purpose, *_explain(row)))))
        return super().data(index, role)


class _Proxy(QSortFilterProxyModel):
    """Sorts the models, and filters them by words and by whether a method fits this machine."""

    def __init__(self, model: _RowModel) -> None:
        super().__init__()
        self._model, self._words, self._only_fitting = model, list[str](), False
        self.setSourceModel(model)

    def set_filter(self, search: str, only_fitting: bool) -> None:
        self._words, self._only_fitting = search.casefold().split(), only_fitting
        self.invalidate()

    def filterAcceptsRow(self, source_row: int, _parent: Index) -> bool:  # noqa: N802 - Qt's name
        row = self._model.rows[source_row]
        languages = row.model.entry.languages if row.model.entry else ()
        searched = " ".join((row.model.name, row.purpose, row.model.license, *languages)).casefold()
        return (not self._only_fitting or bool(row.fitting)) and all(word in searched for word in self._words)

    def lessThan(self, left: Index, right: Index) -> bool:  # noqa: N802 - Qt's name
        key = _SORT_KEYS[self._model.names[left.column()]]
        return bool(key(self._model.rows[left.row()]) < key(self._model.rows[right.row()]))


class ModelListDialog(QDialog):
    """Chooses a base model. It does not block; the models are read in a thread."""

    chosen = Signal(object)  # ModelRow

    def __init__(self, load: Callable[[], tuple[list[ModelRow], MachineInfo]], current: str, parent: QWidget) -> None:
        """`load` runs in a thread. `current`: the base model that is selected at first."""
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle(tr("setup.list_title"))
        self._current = current
        self.search, self.only_fitting = line_edit("searchModels", clear=True), set_object_name(QCheckBox(), "fitsHere")
        self.count, self.details, self.note = label("muted"), label(wrap=True), label("muted", wrap=True)
        self._rows_model = _RowModel()
        self._proxy = _Proxy(self._rows_model)
        self.table = RowTable(self._rows_model, "models", proxy=self._proxy)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self._empty_label = placeholder_label(self.table)
        self.cancel_button, self.use_button = push_button("modelListCancel"), push_button("primary")
        self._arrange()
        self._connect()
        self._task = PoolTask(self)
        self._task.finished.connect(self._on_rows)
        self._task.start(load)
        self._show_selection()

    def _arrange(self) -> None:
        self.search.setPlaceholderText(tr("setup.list_search"))
        self.search.setAccessibleName(tr("setup.list_search"))
        self.table.setAccessibleName(tr("setup.list_title"))
        self.only_fitting.setText(tr("setup.list_only_fitting"))
        self.cancel_button.setText(tr("common.cancel"))
        self.use_button.setText(tr("setup.list_use"))
        self.use_button.setDefault(True)
        self._empty_label.setText(tr("setup.loading"))
        self.table.setSortingEnabled(True)
        self.table.sortByColumn(self._rows_model.names.index("parameters"), Qt.SortOrder.AscendingOrder)
        layout = vertical_layout(spacing=SPACING + 2, margin=2 * SPACING)
        layout.addLayout(horizontal_layout((self.search, 1), self.count, self.only_fitting, spacing=2 * SPACING))
        layout.addWidget(self.table, 1)
        layout.addWidget(self.details)
        layout.addWidget(self.note)
        buttons = horizontal_layout(self.cancel_button, self.use_button)
        buttons.insertStretch(0, 1)
        layout.addLayout(buttons)
        self.setLayout(layout)
        resize_within_screen(self, _SIZE)
        self.table.viewport().installEventFilter(self)

    def _connect(self) -> None:
        self.search.textChanged.connect(self._filter)
        self.search.installEventFilter(self)
        self.only_fitting.toggled.connect(self._filter)
        self.table.selection_changed.connect(self._show_selection)
        self.table.doubleClicked.connect(self._use)
        self.cancel_button.clicked.connect(self.reject)
        self.use_button.clicked.connect(self._use)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        """Move in the table with the arrow keys while the search has the focus."""
        if watched is self.search and isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress:
            if event.key() in _TABLE_KEYS:
                QApplication.sendEvent(self.table, event)
                return True
        elif event.type() == QEvent.Type.Resize:
            self.table.hide_columns(self.table.viewport().width())
        return super().eventFilter(watched, event)

    def _on_rows(self, loaded: tuple[list[ModelRow], MachineInfo]) -> None:
        rows, machine = loaded
        self._rows_model.set_rows(rows)
        self.note.setText(_format_note(machine))
        self._empty_label.setText(tr("setup.list_no_matches"))
        self.table.select([self._current])
        self._filter()

    def _filter(self) -> None:
        """Apply search and filter; a row is always selected."""
        self._proxy.set_filter(self.search.text(), self.only_fitting.isChecked())
        shown = self._proxy.rowCount()
        if shown and not self.table.selected_rows():
            self.table.setCurrentIndex(self._proxy.index(0, 0))
        self._empty_label.setVisible(not shown)
        self.count.setText(tr("setup.shown_count", shown=shown, all=len(self._rows_model.rows)))
        self._show_selection()

    def _show_selection(self) -> None:
        row = next(iter(self.table.selected_rows()), None)
        self.use_button.setEnabled(row is not None)
        self.use_button.setToolTip("" if row else tr("setup.list_select"))
        parts = (row.model.name, format_model_summary(row.model), *_explain(row)) if row else ()
        set_text_if_changed(self.details, "\n".join(filter(None, parts)))

    def _use(self, _index: QModelIndex | bool = False) -> None:
        if rows := self.table.selected_rows():
            self.chosen.emit(rows[0])
            self.accept()


def _find_gpu(machine: MachineInfo) -> GpuInfo | None:
    """The usable GPU with the most memory."""
    return max(usable_gpus(machine), key=lambda gpu: gpu.vram_total or 0, default=None)


def _format_note(machine: MachineInfo) -> str:
    gpu = _find_gpu(machine)
    if gpu is None:
        note = tr("setup.list_memory_of_machine", size=formatting.format_bytes(machine.ram_total))
    else:
        note = tr("setup.list_memory_of_gpu", name=gpu.name, size=formatting.format_bytes(gpu.vram_total))
    return f"{note}\n{tr('setup.list_note')}"
