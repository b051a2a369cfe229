"""Page of all runs on disk: a table to search and sort, actions on the selected runs, and details of one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QModelIndex, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QToolButton, QWidget

from app.core.active_run import ActiveRun
from app.core.history import run_files
from app.core.history.run_list import RunList
from app.core.pool_task import PoolTask
from app.core.settings import Settings
from app.pages.page import Page
from app.pages.plots.overlay_controller import OverlayController
from app.pages.plots.plot_specs import OWN_COLOR
from app.pages.runs.details import RunDetails
from app.pages.runs.dialogs import ComparisonDialog
from app.pages.runs.run_folders import RunFolders
from app.pages.runs.table import SHOWN, RunsModel, RunsProxy, RunsTable
from app.services import desktop_shell
from app.services.remote_job import RemoteJob
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    NoScrollComboBox,
    horizontal_layout,
    line_edit,
    placeholder_label,
    push_button,
    set_object_name,
    vertical_layout,
)
from app.widgets.disabled_reason import explain_disabled
from app.widgets.info_bar import InfoBar
from app.widgets.saved_state import restore_layout, save_layout
from app.widgets.splitter import KeyboardSplitter
from app.widgets.table import ROW_ROLE, bind_button
from trainer_core.runs import checkpoint_dir
from trainer_core.system import files

if TYPE_CHECKING:
    from app.pages.plots.page import PlotsPage

_TABLE_HEIGHT: Final = 320  # pixels, initially
_DETAILS_HEIGHT: Final = 230
_MIN_HEIGHT_WITH_DETAILS: Final = 340  # pixels of the page
_SHORTCUTS: Final = {"rename": "F2", "delete": "Del", "show": "Space", "compare": "Ctrl+D", "archive": "Ctrl+E"}
_MENU: Final = (
    "open",
    "resume",
    "",
    "show",
    "compare",
    "",
    "rename",
    "archive",
    "folder",
    "fetch",
    "tensorboard",
    "",
    "delete",
    "",
)
_ARCHIVE_FILTERS: Final = (False, True, None)  # see `RunsProxy.set_filter`


class RunsPage(Page):
    """Lists the runs on disk and applies actions to the selected ones. Runs that are being trained are left alone."""

    open_requested = Signal(Path)  # a run
    resume_requested = Signal(Path)  # a run, from its newest checkpoint
    generate_requested = Signal(Path)  # a checkpoint
    export_requested = Signal(Path)  # a checkpoint
    tensorboard_requested = Signal(list)  # runs

    _history: RunList  # these are set by `connect_services`
    _active_run: ActiveRun
    _plots: PlotsPage
    overlays: OverlayController
    folders: RunFolders

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._message_folder = Path()
        self._plotted_run: Path | None = None  # the run whose own curves the plots show
        self._size_task = PoolTask(self)
        self.remote_job = RemoteJob(parent=self)
        self._can_resume = False  # this window trains no run
        self.model = RunsModel(palette)
        self.proxy = RunsProxy(self.model)
        self.table, self.details = RunsTable(self.model, self.proxy), RunDetails()
        self.search = line_edit("searchRuns", clear=True)
        self.archive_filter = set_object_name(NoScrollComboBox(), "shelf")
        self.archive_filter.addItems([""] * len(_ARCHIVE_FILTERS))
        self.open, self.resume = push_button("openRun"), push_button("resumeRun")
        self.show_runs, self.compare = push_button("showRuns"), push_button("compareRuns")
        self.more = set_object_name(QToolButton(), "moreForRuns")
        explain_disabled(self.more)
        self.message_bar = InfoBar({"openMessageFolder": "runs.open_folder", "closeMessage": "common.close"})
        self.message_folder = self.message_bar.buttons["openMessageFolder"]
        self.empty = placeholder_label(self.table)
        self.splitter = KeyboardSplitter(Qt.Orientation.Vertical, SPACING)
        self.run_actions = self.table.create_actions(_MENU, _SHORTCUTS)
        self._buttons = {"open": self.open, "resume": self.resume, "show": self.show_runs, "compare": self.compare}
        for name, button in self._buttons.items():
            bind_button(button, self.run_actions[name], self.table)
        for menu in (self.table, self.table.menu):
            menu.addAction(self.table.sort_menu.menuAction())
        self.more.setMenu(self.table.menu)
        self.more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._arrange()
        self._connect()
        self.retranslate()

    def _arrange(self) -> None:
        buttons = horizontal_layout(*self._buttons.values(), self.more)
        buttons.addStretch(1)
        self.splitter.addWidget(self.table)
        self.splitter.addWidget(self.details)
        self.splitter.setStretchFactor(0, 1)
        self.splitter.setSizes([_TABLE_HEIGHT, _DETAILS_HEIGHT])
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addLayout(horizontal_layout((self.search, 1), self.archive_filter))
        layout.addLayout(buttons)
        layout.addWidget(self.message_bar)
        layout.addWidget(self.splitter, 1)
        self.setLayout(layout)

    def _connect(self) -> None:
        checkpoints = self.details.checkpoints
        for name, slot in {
            "open": self._open_selected,
            "resume": lambda: self.resume_requested.emit(self.paths()[0]),
            "show": lambda: self.set_overlay_shown(self.paths(), not self._all_overlaid),
            "compare": lambda: ComparisonDialog(self.table.selected_rows(), self.window()).show(),
            "rename": self.table.edit_name,
            "archive": lambda: self.archive(self.paths(), not self._all_archived),
            "folder": lambda: desktop_shell.open_folder(self.paths()[0]),
            "fetch": lambda: self.remote_job.fetch(self.paths()[0]),
            "tensorboard": lambda: self.tensorboard_requested.emit(self.paths()),
            "delete": lambda: self.folders.confirm_delete(self.paths()),
        }.items():
            self.run_actions[name].triggered.connect(slot)
        self.table.activated.connect(lambda: None if self.table.is_editing else self._open_selected())
        self.table.clicked.connect(self._on_clicked)
        self.table.selection_changed.connect(self._on_selection_changed)
        self.search.textChanged.connect(self._update_filter)
        self.search.returnPressed.connect(self._focus_table)
        self.archive_filter.currentIndexChanged.connect(self._update_filter)
        self.message_bar.buttons["closeMessage"].clicked.connect(lambda: self.show_message(""))
        self.message_folder.clicked.connect(lambda: desktop_shell.open_folder(self._message_folder))
        checkpoints.resume_requested.connect(self.resume_from_checkpoint)
        checkpoints.generate_requested.connect(self.generate_requested)
        checkpoints.export_requested.connect(self.export_requested)
        self._size_task.finished.connect(self._on_size_measured)
        self.remote_job.changed.connect(self._on_remote_changed)

    def connect_services(self, history: RunList, active_run: ActiveRun, plots: PlotsPage) -> None:
        self._history, self._active_run, self._plots = history, active_run, plots
        self.overlays = OverlayController(history, self)
        self.overlays.changed.connect(self._update_overlays)
        self.folders = folders = RunFolders(history, active_run, self)
        folders.closing.connect(self._close_files)
        folders.moved.connect(self._on_run_moved)
        # Queued: the details save edits while they display another run.
        folders.changed.connect(self.on_runs_listed, Qt.ConnectionType.QueuedConnection)
        folders.message_ready.connect(self.show_message)
        self.details.notes_edited.connect(lambda path, note, tags: folders.update_notes(path, note=note, tags=tags))
        # Queued: the editor of the name closes first.
        self.model.rename_requested.connect(folders.rename, Qt.ConnectionType.QueuedConnection)
        active_run.state_changed.connect(self.display)
        plots.overlay_removal_requested.connect(self.clear_overlays)

    def shutdown(self) -> None:
        """Save edits and stop all work."""
        self.folders.blockSignals(True)
        self.details.save()
        self.overlays.shutdown()
        self.remote_job.shutdown()

    # --- display ------------------------------------------------------------------------------------------

    def on_runs_listed(self) -> None:
        """Called after each refresh of the run list."""
        self.overlays.refresh()
        self.display()

    def display(self) -> None:
        """Show the runs that the last refresh found."""
        rows, self._can_resume = self._history.rows, self._active_run.can_start
        if self.table.is_editing or rows == self.model.rows:
            self._show_selected()
        else:
            self.model.set_rows(rows)
            self._on_selection_changed()

    def _update_filter(self) -> None:
        self.proxy.set_filter(self.search.text(), _ARCHIVE_FILTERS[max(0, self.archive_filter.currentIndex())])
        self._show_selected()

    def _on_selection_changed(self) -> None:
        self._show_selected()
        paths = self.paths()
        self._size_task.start(lambda: (paths, sum(map(files.folder_size, paths))))

    def _on_size_measured(self, measured: tuple[list[Path], int]) -> None:
        if measured[0] == self.paths():
            self.details.show_size(measured[1])

    def _on_remote_changed(self) -> None:
        """Show the state of a download."""
        job = self.remote_job
        done = tr("runs.fetched") if job.is_complete else job.failure
        self.show_message(formatting.format_phase(job.shown_phase) if job.is_running else done)
        self._show_selected()

    def _show_selected(self) -> None:
        """Show the details of the selected runs. Enable and label what depends on them."""
        rows = self.table.selected_rows()
        run = rows[0].run if len(rows) == 1 else None
        self.details.display(rows, can_resume=self._can_resume)
        enabled = {
            "open": run is not None,
            "folder": run is not None,
            "resume": run is not None and run.resumable and self._can_resume,
            "fetch": run is not None and bool(run.host) and not self.remote_job.is_running,
            "rename": run is not None and run.state != "running",
            "compare": len(rows) >= 2,
        }
        for name, action in self.run_actions.items():
            action.setEnabled(enabled.get(name, bool(rows)))
        self._all_overlaid = bool(rows) and all(row.path in self.model.overlays for row in rows)
        self._all_archived = bool(rows) and all(row.notes.archived for row in rows)
        self.run_actions["show"].setText(tr("runs.hide_in_plots") if self._all_overlaid else tr("runs.show_in_plots"))
        self.run_actions["archive"].setText(tr("runs.unarchive") if self._all_archived else tr("runs.archive"))
        self.show_runs.setText(self.run_actions["show"].text())
        self.more.setEnabled(bool(self.model.rows))
        self._show_placeholder()

    def _show_placeholder(self) -> None:
        self.empty.setVisible(not self.proxy.rowCount())
        if not self.model.rows:
            self.empty.setText(tr("runs.empty_page"))
        elif self.search.text() or self.archive_filter.currentIndex() > 0:
            self.empty.setText(tr("runs.no_matches"))
        else:
            self.empty.setText(tr("runs.all_archived"))

    def paths(self) -> list[Path]:
        """The selected runs, top to bottom."""
        return self.table.selected_keys()

    # --- opening, overlays ----------------------------------------------------------------------------------

    def _focus_table(self) -> None:
        if not self.paths():
            self.table.selectRow(0)
        self.table.setFocus()

    def _open_selected(self) -> None:
        if len(paths := self.paths()) == 1:
            self.open_requested.emit(paths[0])

    def _on_clicked(self, index: QModelIndex) -> None:
        if index.column() == SHOWN:
            path = index.data(ROW_ROLE).path
            self.set_overlay_shown([path], path not in self.model.overlays)

    def set_overlay_shown(self, paths: list[Path], on: bool) -> None:
        """Show runs in the plots, or hide them."""
        if not self.overlays.set_shown(paths, on=on):
            self.show_message(tr("runs.max_overlays"))

    def clear_overlays(self) -> None:
        self.overlays.set_shown(list(self.overlays.selected_colors), on=False)

    def set_plotted_run(self, run: Path | None) -> None:
        """Set the run whose own curves the plots show; it needs no overlay."""
        if run != self._plotted_run:
            self._plotted_run = run
            self._update_overlays()

    def _update_overlays(self) -> None:
        colors = self.overlays.selected_colors
        if self._plotted_run in colors:
            colors[self._plotted_run] = OWN_COLOR
        if colors != self.model.overlays:
            self.model.overlays = colors
            self.model.emit_data_changed()
            self._show_selected()
        self._plots.set_overlays(self.overlays.visible_overlays(self._plotted_run))

    def archive(self, paths: list[Path], archived: bool) -> None:
        """Archive runs, which also hides them in the plots, or restore them."""
        for path in paths:
            self.folders.update_notes(path, archived=archived)
        if archived:
            self.overlays.set_shown(paths, on=False)

    def _close_files(self, path: Path) -> None:
        self.details.save()
        self.overlays.close_run(path)

    def _on_run_moved(self, old: Path, new: Path | None) -> None:
        self.overlays.on_run_moved(old, new)
        self.display()
        if new is not None:
            self.table.select([new])

    # --- from a checkpoint ------------------------------------------------------------------------------------

    def resume_from_checkpoint(self, checkpoint: Path) -> None:
        """Resume the run from its newest checkpoint, or start a new run from an older one."""
        if not self._active_run.can_start:
            return
        run, info = checkpoint.parent.parent, checkpoint_dir.read_info(checkpoint)
        summary = self._history.get(run)
        newest = checkpoint_dir.list_checkpoints(checkpoint.parent)[-1:] == [checkpoint]
        if newest and summary is not None and summary.resumable:
            self.resume_requested.emit(run)
        elif info is not None:
            target = run_files.new_branch_path(run, info.step)
            self._active_run.start(["train", "--resume", str(checkpoint), "--run-dir", str(target)], target)

    # --- layout, theme and texts ----------------------------------------------------------------------------

    def restore_state(self, settings: Settings) -> None:
        restore_layout(settings, "runs", self.splitter)
        restore_layout(settings, "runs_columns", self.table.horizontalHeader())
        self.table.hide_columns(self.width())

    def save_state(self, settings: Settings) -> None:
        save_layout(settings, "runs", self.splitter)
        save_layout(settings, "runs_columns", self.table.horizontalHeader())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.table.hide_columns(event.size().width())
        self.details.setVisible(event.size().height() >= _MIN_HEIGHT_WITH_DETAILS)

    def show_message(self, text: str, folder: Path | None = None) -> None:
        """Show a message, and a button that opens `folder`; an empty text hides it."""
        self._message_folder = folder or Path()
        self.message_folder.setVisible(folder is not None)
        self.message_bar.set_message(text)

    def retheme(self, palette: Palette) -> None:
        self.model.retheme(palette)
        self.table.viewport().update()

    def retranslate(self) -> None:
        texts = {
            "open": tr("runs.open"),
            "resume": tr("runs.resume"),
            "compare": tr("runs.compare"),
            "rename": tr("runs.rename"),
            "folder": tr("runs.open_folder"),
            "fetch": tr("runs.fetch"),
            "tensorboard": tr("window.open_in_tensorboard"),
            "delete": tr("runs.delete"),
        }
        for name, text in texts.items():
            self.run_actions[name].setText(text)
            if name in self._buttons:
                self._buttons[name].setText(text)
        self.show_runs.setToolTip(tr("runs.show_in_plots_hint"))
        self.compare.setToolTip(tr("runs.compare_hint"))
        self.more.setText(tr("runs.more"))
        self.search.setPlaceholderText(tr("runs.search_hint"))
        self.search.setAccessibleName(tr("runs.search"))
        self.archive_filter.setAccessibleName(tr("runs.filter"))
        for place, text in enumerate((tr("runs.not_archived"), tr("runs.archived"), tr("runs.all"))):
            self.archive_filter.setItemText(place, text)
        self.splitter.set_handle_name(tr("runs.table_height"))
        self.table.retranslate()
        self.show_message("")
        self._update_filter()  # the search finds translated states
