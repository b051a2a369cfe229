"""Page of all runs on disk: a table to search and sort, actions on the selected runs, and details of one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from PySide6.QtCore import QModelIndex, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFileDialog, QToolButton, QWidget

from app.core.history import run_rows
from app.core.history.run_list import RunRow
from app.core.history.run_rows import ARCHIVE_FILTERS
from app.core.settings import Settings
from app.pages.page import Page
from app.pages.runs.details import RunDetails
from app.pages.runs.table import SHOWN, RunsModel, RunsTable, SortMenu
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    horizontal_layout,
    line_edit,
    placeholder_label,
    push_button,
    set_object_name,
    vertical_layout,
)
from app.widgets.info_bar import InfoBar
from app.widgets.splitter import KeyboardSplitter
from app.widgets.table import bind_button
from app.window.window_state import restore_layout, save_layout

_SEARCH_DELAY_MS: Final = 60  # after the last key press
_TABLE_HEIGHT: Final = 320  # pixels, initially
_DETAILS_HEIGHT: Final = 230
_MIN_HEIGHT_WITH_DETAILS: Final = 340  # pixels of the page
_SHORTCUTS: Final = {"rename": "F2", "delete": "Del", "show": "Space", "compare": "Ctrl+D", "archive": "Ctrl+E"}
_MENU: Final = ("open", "resume", "", "show", "compare", "", "rename", "archive", "folder", "", "delete", "")


class RunsPage(Page):
    """Displays runs. `RunsController` connects `run_actions`, which apply to the selected runs."""

    open_requested = Signal(Path)
    overlay_requested = Signal(list, bool)  # runs; show in the plots, or hide
    folder_requested = Signal(Path)
    selection_changed = Signal()  # after the page displays it

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._can_resume = True
        self._runs: list[RunRow] = []  # all, also those that are filtered out
        self._loading: tuple[str, float] | None = None  # name of a run, fraction read
        self._message: tuple[Callable[[], str], Path | None] | None = None
        self.model = RunsModel(palette)
        self.table, self.details = RunsTable(self.model), RunDetails()
        self.search = line_edit("searchRuns", clear=True)
        self.archive_filter = set_object_name(NoScrollComboBox(), "shelf")
        self.open, self.resume = push_button("openRun"), push_button("resumeRun")
        self.show_runs, self.compare = push_button("showRuns"), push_button("compareRuns")
        self.more = set_object_name(QToolButton(), "moreForRuns")
        self.refresh, self.toggle_details = push_button("refreshRuns"), push_button("runDetails", checkable=True)
        self.status = set_object_name(ElidedLabel(), "muted")
        self.message_bar = InfoBar({"openMessageFolder": "runs.open_folder", "closeMessage": "common.close"})
        self.message_folder = self.message_bar.buttons["openMessageFolder"]
        self.empty = placeholder_label(self.table)
        self.splitter = KeyboardSplitter(Qt.Orientation.Vertical, SPACING)
        self._search_timer = QTimer(self, singleShot=True, interval=_SEARCH_DELAY_MS)
        self.run_actions = self.table.create_actions(_MENU, _SHORTCUTS)
        self.sort_menu = SortMenu(self.table)
        self._bind_actions()
        self._arrange()
        self._connect()
        self.retranslate()

    def _bind_actions(self) -> None:
        self._buttons = {"open": self.open, "resume": self.resume, "show": self.show_runs, "compare": self.compare}
        for name, button in self._buttons.items():
            bind_button(button, self.run_actions[name], self.table)
        for menu in (self.table, self.table.menu):
            menu.addAction(self.sort_menu.menuAction())
        self.more.setMenu(self.table.menu)
        self.more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)

    def _arrange(self) -> None:
        buttons = horizontal_layout(*self._buttons.values(), self.more, self.toggle_details)
        buttons.insertStretch(buttons.count() - 1, 1)
        upper, table = QWidget(), vertical_layout(spacing=SPACING // 2)
        table.addWidget(self.table, 1)
        table.addWidget(self.status)
        upper.setLayout(table)
        self.splitter.addWidget(upper)
        self.splitter.addWidget(self.details)
        self.splitter.setStretchFactor(0, 1)
        self.splitter.setSizes([_TABLE_HEIGHT, _DETAILS_HEIGHT])
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addLayout(horizontal_layout((self.search, 1), self.archive_filter, self.refresh))
        layout.addLayout(buttons)
        layout.addWidget(self.message_bar)
        layout.addWidget(self.splitter, 1)
        self.setLayout(layout)

    def _connect(self) -> None:
        self.run_actions["open"].triggered.connect(self._open_selected)
        self.run_actions["folder"].triggered.connect(lambda: self.folder_requested.emit(self.paths()[0]))
        self.run_actions["rename"].triggered.connect(self.table.edit_name)
        self.run_actions["show"].triggered.connect(
            lambda: self.overlay_requested.emit(self.paths(), not self._all_overlaid())
        )
        self.table.activated.connect(lambda: None if self.table.is_editing else self._open_selected())
        self.table.clicked.connect(self._on_clicked)
        self.table.selection_changed.connect(self._on_selection_changed)
        self.table.horizontalHeader().sortIndicatorChanged.connect(self._show_runs)
        self.toggle_details.toggled.connect(self._update_details_visibility)
        self.search.textChanged.connect(self._search_timer.start)
        self.search.returnPressed.connect(self.table.setFocus)
        self._search_timer.timeout.connect(self._show_runs)
        self.archive_filter.addItems([""] * len(ARCHIVE_FILTERS))
        self.archive_filter.currentIndexChanged.connect(self._show_runs)
        self.message_bar.buttons["closeMessage"].clicked.connect(lambda: self.show_message(None))
        self.message_folder.clicked.connect(self._open_message_folder)
        self.toggle_details.setChecked(True)

    # --- state --------------------------------------------------------------------------------------------

    def display(self, runs: list[RunRow], *, can_resume: bool) -> None:
        """Show these runs. `can_resume`: this window trains no run."""
        self._can_resume = can_resume
        if not self.table.is_editing:
            self._runs = runs
            self._show_runs()
            self._show_details()

    def _show_runs(self) -> None:
        """Show the runs that match the filters, sorted."""
        archive_filter = ARCHIVE_FILTERS[max(0, self.archive_filter.currentIndex())]
        rows = [
            row
            for row in self._runs
            if run_rows.matches_archive_filter(row, archive_filter)
            and run_rows.matches_search(row, self.search.text(), formatting.format_stored_run_state(row.run.state))
        ]
        self.table.set_rows(run_rows.sort_rows(rows, self.table.sort_key(), descending=self.table.is_descending))
        self._update()

    def set_overlays(self, overlays: dict[Path, str]) -> None:
        """Set which runs are shown in the plots, and their palette colors."""
        if overlays != self.model.overlays:
            self.model.overlays = dict(overlays)
            self._show_runs()
            self.table.viewport().update()

    def set_loading(self, name: str, fraction: float | None) -> None:
        """Show how much of a run is read for the plots, 0..1; None: no run is being read."""
        self._loading = None if fraction is None else (name, fraction)
        self._update_status()

    def show_message(self, text: Callable[[], str] | None, folder: Path | None = None) -> None:
        """Show a message, translated on demand, and a button that opens `folder`; None: hide it."""
        self._message = (text, folder) if text is not None else None
        self.message_folder.setVisible(folder is not None)
        self.message_bar.set_message(text() if text is not None else "")

    def paths(self) -> list[Path]:
        """The selected runs, top to bottom."""
        return self.table.selected_keys()

    def select(self, paths: list[Path]) -> None:
        self.table.select(paths)

    def restore_state(self, settings: Settings) -> None:
        restore_layout(settings, "runs", self.splitter)
        restore_layout(settings, "runs_columns", self.table.horizontalHeader())
        self.table.hide_columns(self.width())
        self.toggle_details.setChecked(settings.runs_details)

    def save_state(self, settings: Settings) -> None:
        save_layout(settings, "runs", self.splitter)
        save_layout(settings, "runs_columns", self.table.horizontalHeader())
        settings.runs_details = self.toggle_details.isChecked()

    def ask_export_folder(self, start: str) -> Path | None:
        folder = QFileDialog.getExistingDirectory(self, tr("runs.export_folder"), start)
        return Path(folder) if folder else None

    def all_archived(self) -> bool:
        """Whether all selected runs are archived."""
        return all(row.notes.archived for row in self.table.selected_rows())

    def _all_overlaid(self) -> bool:
        return all(path in self.model.overlays for path in self.paths())

    # --- user actions -------------------------------------------------------------------------------------

    def _open_selected(self) -> None:
        if len(paths := self.paths()) == 1:
            self.open_requested.emit(paths[0])

    def _on_clicked(self, index: QModelIndex) -> None:
        if index.column() == SHOWN:
            path = self.model.rows[index.row()].path
            self.overlay_requested.emit([path], path not in self.model.overlays)

    def _on_selection_changed(self) -> None:
        self._show_details()
        self._update()
        self.selection_changed.emit()

    def _open_message_folder(self) -> None:
        if self._message is not None and self._message[1] is not None:
            self.folder_requested.emit(self._message[1])

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.table.hide_columns(event.size().width())
        self._update_details_visibility()

    def _update_details_visibility(self) -> None:
        self.toggle_details.setEnabled(self.height() >= _MIN_HEIGHT_WITH_DETAILS)
        self.details.setVisible(self.toggle_details.isChecked() and self.toggle_details.isEnabled())

    # --- display --------------------------------------------------------------------------------------------

    def _show_details(self) -> None:
        rows = self.table.selected_rows()
        self.details.display(rows[0] if len(rows) == 1 else None, len(rows))

    def _update(self) -> None:
        """Enable and label what depends on the selected runs."""
        rows = self.table.selected_rows()
        run = rows[0].run if len(rows) == 1 else None
        enabled = {
            "open": run is not None,
            "folder": run is not None,
            "resume": run is not None and run.resumable and self._can_resume,
            "rename": run is not None and run.state != "running",
            "compare": len(rows) >= 2,
        }
        for name, action in self.run_actions.items():
            action.setEnabled(enabled.get(name, bool(rows)))
        overlaid, archived = bool(rows) and self._all_overlaid(), bool(rows) and self.all_archived()
        self.run_actions["show"].setText(tr("runs.hide_in_plots") if overlaid else tr("runs.show_in_plots"))
        self.run_actions["archive"].setText(tr("runs.unarchive") if archived else tr("runs.archive"))
        self.show_runs.setText(self.run_actions["show"].text())
        self.more.setEnabled(bool(self._runs))
        self.details.checkpoints.set_can_resume(self._can_resume)
        self._update_placeholder()
        self._update_status()

    def _update_placeholder(self) -> None:
        self.empty.setVisible(not self.model.rows)
        if self._runs and (self.search.text() or self.archive_filter.currentIndex() > 0):
            self.empty.setText(tr("runs.no_matches"))
        else:
            self.empty.setText(tr("runs.all_archived") if self._runs else tr("runs.empty_page"))

    def _update_status(self) -> None:
        shown, total, selected = len(self.model.rows), len(self._runs), len(self.paths())
        count = formatting.format_count(total)
        if shown != total:
            parts = [tr("runs.found_count", found=formatting.format_count(shown), all=count)]
        else:
            parts = [tr("runs.one_run") if total == 1 else tr("runs.run_count", count=count)]
        if selected > 1:
            parts.append(tr("runs.selected_count", count=selected))
        if self._loading is not None:
            name, fraction = self._loading
            parts.append(tr("runs.loading", name=name, share=f"{fraction:.0%}"))
        self.status.setText("  ·  ".join(parts) if total else "")

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.model.retheme(palette)
        self.refresh.setIcon(icon("again", palette.text, palette.muted))
        self.table.viewport().update()

    def retranslate(self) -> None:
        texts = {
            "open": tr("runs.open"),
            "resume": tr("runs.resume"),
            "compare": tr("runs.compare"),
            "rename": tr("runs.rename"),
            "folder": tr("runs.open_folder"),
            "delete": tr("runs.delete"),
        }
        for name, text in texts.items():
            self.run_actions[name].setText(text)
            if name in self._buttons:
                self._buttons[name].setText(text)
        self.show_runs.setToolTip(tr("runs.show_in_plots_hint"))
        self.compare.setToolTip(tr("runs.compare_hint"))
        self.more.setText(tr("runs.more"))
        self.more.setAccessibleName(tr("runs.more"))
        self.refresh.setToolTip(tr("runs.refresh"))
        self.refresh.setAccessibleName(tr("runs.refresh"))
        self.toggle_details.setText(tr("runs.details"))
        self.search.setPlaceholderText(tr("runs.search_hint"))
        self.search.setAccessibleName(tr("runs.search"))
        self.archive_filter.setAccessibleName(tr("runs.filter"))
        for place, text in enumerate((tr("runs.not_archived"), tr("runs.archived"), tr("runs.all"))):
            self.archive_filter.setItemText(place, text)
        if self._message is not None:
            self.message_bar.set_message(self._message[0]())
        self.table.setAccessibleName(tr("runs.runs"))
        self.splitter.set_handle_name(tr("runs.table_height"))
        self.table.retranslate()
        self.sort_menu.retranslate()
        self._show_runs()  # the search finds translated states
        self.retheme(self._palette)
