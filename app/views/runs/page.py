"""All runs on disk: a table to search and sort, what can be done with those chosen, and the details of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from PySide6.QtCore import QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QFileDialog,
    QHBoxLayout,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.state.runs import run_rows
from app.state.runs.run_notes import RunNotes
from app.state.runs.run_rows import COLUMNS, SHELVES, Column, Row
from app.theme.icons import icon
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.divider import Splitter
from app.views.runs.actions import RunsActions
from app.views.runs.details import Details
from app.views.runs.model import NAME, SHOWN, RunsModel
from app.views.runs.sorting import SortMenu
from app.views.runs.table import RunsTable
from app.views.strip import Strip
from app.views.widgets import ElidedLabel, QuietCombo, Retranslating, button, empty_note, line, named
from trainer_core.runs.run_dir import RunSummary

_TYPING_MS: Final = 60  # between two letters of a search
_TABLE_HEIGHT: Final = 320  # at first
_DETAILS_HEIGHT: Final = 230
_LOW: Final = 340  # pixels of the page: below, there is room for the table only


class RunsPage(Retranslating):
    """It decides nothing: what is asked for goes up as signals, and comes back in `display`."""

    open_asked = Signal(Path)
    resume_asked = Signal(Path)
    folder_asked = Signal(Path)
    refresh_asked = Signal()
    rename_asked = Signal(Path, str)
    archive_asked = Signal(list, bool)  # runs; into the archive, or out of it
    delete_asked = Signal(list)
    compare_asked = Signal(list)
    show_asked = Signal(list, bool)  # runs; over the plots, or no longer
    chosen = Signal()  # other runs are selected
    arranged = Signal()  # order, shelf or details were changed by the person

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._can_resume = True
        self._reading: tuple[str, float] | None = None
        self._told: tuple[Callable[[], str], Path | None] | None = None
        self.model = RunsModel(tokens)
        self.table = RunsTable(self.model)
        self.details = Details(tokens)
        self.search, self.shelf = line("searchRuns", clear=True), named(QuietCombo(), "shelf")
        self.open, self.resume, self.compare = button("openRun"), button("resumeRun"), button("compareRuns")
        self.show_runs, self.more = button("showRuns"), named(QToolButton(), "moreForRuns")
        self.refresh, self.unfold = button("refreshRuns"), button("runDetails", checkable=True)
        self.status = named(ElidedLabel(), "muted")
        self.told_folder, self.told_close = button("openTold"), button("closeTold")
        self.told = Strip(self.told_folder, self.told_close)
        self.empty = empty_note(self.table)
        self.splitter = Splitter(Qt.Orientation.Vertical, SPACE)
        self._typing = QTimer(self, singleShot=True, interval=_TYPING_MS)
        self.does = self._make_actions()
        self.sorting = SortMenu(self.table)
        self.does.menu.addSeparator()
        self.does.menu.addMenu(self.sorting)
        self.more.setMenu(self.does.menu)
        self.more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._arrange()
        self._connect()
        self.retranslate()
        self._enable()

    # --- making -----------------------------------------------------------------------------------------

    def _make_actions(self) -> RunsActions:
        does: dict[str, Callable[[], None]] = {
            "open": lambda: self._emit_one(self.open_asked.emit),
            "resume": lambda: self._emit_one(self.resume_asked.emit),
            "folder": lambda: self._emit_one(self.folder_asked.emit),
            "rename": self._edit_name,
            "delete": lambda: self.delete_asked.emit(self.paths()),
            "compare": lambda: self.compare_asked.emit(self.paths()),
            "archive": lambda: self.archive_asked.emit(self.paths(), not self._all_archived()),
            "show": lambda: self.show_asked.emit(self.paths(), not self._all_shown()),
        }
        buttons = {"open": self.open, "resume": self.resume, "show": self.show_runs, "compare": self.compare}
        return RunsActions(self.table, does, buttons)

    def _arrange(self) -> None:
        finding, doing = QHBoxLayout(), QHBoxLayout()
        finding.addWidget(self.search, 1)
        finding.addWidget(self.shelf)
        finding.addWidget(self.refresh)
        for widget in (self.open, self.resume, self.show_runs, self.compare, self.more):
            doing.addWidget(widget)
        doing.addStretch(1)
        doing.addWidget(self.unfold)
        upper, above = QWidget(), QVBoxLayout()
        upper.setLayout(above)
        above.setContentsMargins(0, 0, 0, 0)
        above.setSpacing(SPACE // 2)
        above.addWidget(self.table, 1)
        above.addWidget(self.status)
        self.splitter.addWidget(upper)
        self.splitter.addWidget(self.details)
        self.splitter.setStretchFactor(0, 1)
        self.splitter.setSizes([_TABLE_HEIGHT, _DETAILS_HEIGHT])
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        for row in (finding, doing):
            row.setSpacing(SPACE)
            layout.addLayout(row)
        layout.addWidget(self.told)
        layout.addWidget(self.splitter, 1)

    def _connect(self) -> None:
        # Afterwards: while the name is still being typed, the table stays as it is.
        self.model.renamed.connect(self.rename_asked, Qt.ConnectionType.QueuedConnection)
        self.table.activated.connect(self._on_activated)
        self.table.clicked.connect(self._on_clicked)
        self.table.selectionModel().selectionChanged.connect(self._on_selected)
        self.table.customContextMenuRequested.connect(self._show_menu)
        self.table.horizontalHeader().sortIndicatorChanged.connect(self.arranged)
        self.table.arranged.connect(self.arranged)
        self.model.modelReset.connect(self._say_how_many)
        self.refresh.clicked.connect(self.refresh_asked)
        self.unfold.toggled.connect(self._on_unfolded)
        self.search.textChanged.connect(self._typing.start)
        self.search.returnPressed.connect(self.table.setFocus)
        self._typing.timeout.connect(self._on_searched)
        self.shelf.addItems([""] * len(SHELVES))
        self.shelf.currentIndexChanged.connect(self._on_shelf)
        self.told_close.clicked.connect(lambda: self.say(None))
        self.told_folder.clicked.connect(self._open_told)
        self.splitter.splitterMoved.connect(self.arranged)
        self.unfold.setChecked(True)

    # --- showing ----------------------------------------------------------------------------------------

    def display(self, runs: list[tuple[RunSummary, RunNotes]], *, can_resume: bool) -> None:
        """Show these runs; `can_resume`: whether none is being trained by this window."""
        self._can_resume = can_resume
        if self.table.is_editing:  # a name is being typed: the next look brings what is new
            return
        before = self.paths()
        with self.table.staying():
            changed = self.model.take(runs)
        if changed:
            self._say_how_many()
            self._show_details()
        if self.paths() != before:
            self.chosen.emit()
        self.empty.setVisible(not self.model.rows)
        self._word_empty()
        self._enable()

    def show_in_plots(self, shown: dict[Path, str]) -> None:
        """Which runs are laid over the plots, with their colour tokens."""
        self.model.show_in_plots(shown)
        self._enable()

    def show_reading(self, name: str, share: float | None) -> None:
        """How much of a run has been read for the plots, 0..1; None: nothing is being read."""
        self._reading = None if share is None else (name, share)
        self._say_how_many()

    def say(self, text: Callable[[], str] | None, folder: Path | None = None) -> None:
        """A sentence above the table, in the language of the moment; `folder`: offers to open it."""
        self._told = (text, folder) if text is not None else None
        self.told_folder.setVisible(folder is not None)
        self.told.say(text() if text is not None else "")

    def paths(self) -> list[Path]:
        """The selected runs, from top to bottom."""
        return [row.path for row in self.rows()]

    def rows(self) -> list[Row]:
        return [self.model.rows[place] for place in self.table.selected_places()]

    def select(self, paths: list[Path]) -> None:
        self.table.select(paths)

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.model.retheme(tokens)
        self.details.retheme(tokens)
        self.refresh.setIcon(icon("again", tokens.text, tokens.muted))
        self.table.viewport().update()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.table.leave_out(event.size().width())
        self._show_or_hide_details()

    def ask_folder(self, start: str) -> Path | None:
        """Where a model is to be exported to; None: nowhere."""
        title = self.tr("Export into an empty folder, or into a new one inside the folder that you choose")
        chosen = QFileDialog.getExistingDirectory(self, title, start)
        return Path(chosen) if chosen else None

    # --- what is remembered -------------------------------------------------------------------------------

    def restore(self, column: str, *, descending: bool, details: bool, widths: Mapping[str, int]) -> None:
        """Take what was chosen the last time; `widths`: of the columns in their order."""
        self.table.arrange(widths)
        known: Column = next((name for name in COLUMNS if name == column), "started")
        order = Qt.SortOrder.DescendingOrder if descending else Qt.SortOrder.AscendingOrder
        self.table.horizontalHeader().setSortIndicator(COLUMNS.index(known), order)
        self.unfold.setChecked(details)

    # --- what the person does -----------------------------------------------------------------------------

    def _emit_one(self, emit: Callable[[Path], None]) -> None:
        paths = self.paths()
        if len(paths) == 1:
            emit(paths[0])

    def _on_activated(self, index: object) -> None:
        if not self.table.is_editing:
            self._emit_one(self.open_asked.emit)

    def _on_clicked(self, index: object) -> None:
        place, column = index.row(), index.column()  # type: ignore[attr-defined]
        if column == SHOWN:
            path = self.model.rows[place].path
            self.show_asked.emit([path], path not in self.model.shown)

    def _on_selected(self) -> None:
        if not self.table.restoring:
            self._show_details()
            self._say_how_many()
            self._enable()
            self.chosen.emit()

    def _on_searched(self) -> None:
        with self.table.staying():
            self.model.search = self.search.text()
            self.model.arrange()
        self._after_filter()

    def _on_shelf(self, place: int) -> None:
        with self.table.staying():
            self.model.shelf = SHELVES[max(0, place)]
            self.model.arrange()
        self._after_filter()

    def _after_filter(self) -> None:
        self._on_selected()
        self.empty.setVisible(not self.model.rows)
        self._word_empty()

    def _on_unfolded(self, on: bool) -> None:
        self._show_or_hide_details()
        self.arranged.emit()

    def _show_or_hide_details(self) -> None:
        """A low page has room for the table alone."""
        self.unfold.setEnabled(self.height() >= _LOW)
        self.details.setVisible(self.unfold.isChecked() and self.unfold.isEnabled())

    def _show_menu(self, at: QPoint) -> None:
        self.does.menu.popup(self.table.viewport().mapToGlobal(at))

    def _edit_name(self) -> None:
        paths = self.paths()
        if len(paths) == 1:
            place = self.model.place(paths[0])
            index = self.model.index(place or 0, NAME)
            self.table.scrollTo(index)
            self.table.edit(index)

    def _open_told(self) -> None:
        if self._told is not None and self._told[1] is not None:
            self.folder_asked.emit(self._told[1])

    # --- what is possible -----------------------------------------------------------------------------------

    def _all_shown(self) -> bool:
        return all(path in self.model.shown for path in self.paths())

    def _all_archived(self) -> bool:
        return all(row.notes.archived for row in self.rows())

    def _show_details(self) -> None:
        rows = self.rows()
        self.details.display(rows[0] if len(rows) == 1 else None, len(rows))
        self.details.allow(can_resume=self._can_resume)
        self.details.know_tags(run_rows.known_tags(self.model.all_rows))

    def _enable(self) -> None:
        rows = self.rows()
        self.does.allow(rows, can_resume=self._can_resume)
        self.more.setEnabled(bool(self.model.all_rows))
        self.details.allow(can_resume=self._can_resume)
        self._word_toggles()

    # --- words ----------------------------------------------------------------------------------------------

    def _say_how_many(self) -> None:
        found, every, chosen = len(self.model.rows), len(self.model.all_rows), len(self.paths())
        if found != every:
            parts = [self.tr("{found} of {all} runs").format(found=words.count(found), all=words.count(every))]
        else:
            parts = [self.tr("1 run") if every == 1 else self.tr("{count} runs").format(count=words.count(every))]
        if chosen > 1:
            parts.append(self.tr("{count} selected").format(count=chosen))
        if self._reading is not None:
            name, share = self._reading
            parts.append(self.tr("Reading {name}: {share}").format(name=name, share=f"{share:.0%}"))
        self.status.setText("  ·  ".join(parts) if every else "")

    def _word_toggles(self) -> None:
        shown, archived = (bool(self.rows()) and so for so in (self._all_shown(), self._all_archived()))
        self.does.word({
            "show": self.tr("Hide in plots") if shown else self.tr("Show in plots"),
            "archive": self.tr("Take out of the archive") if archived else self.tr("Archive"),
        })  # fmt: skip

    def _word_empty(self) -> None:
        if self.model.all_rows and (self.model.search or self.model.shelf != "current"):
            self.empty.setText(self.tr("No run is found. Change the search, or choose “All”."))
        elif self.model.all_rows:
            self.empty.setText(self.tr("All runs are in the archive."))
        else:
            self.empty.setText(self.tr("No runs yet. What you train appears here."))

    def retranslate(self) -> None:
        self.does.word({
            "open": self.tr("Open"),
            "resume": self.tr("Resume"),
            "compare": self.tr("Compare"),
            "rename": self.tr("Rename"),
            "folder": self.tr("Open folder"),
            "delete": self.tr("Delete…"),
        })  # fmt: skip
        self.show_runs.setToolTip(self.tr("Lays the chosen runs over the plots, ten at most."))
        self.compare.setToolTip(self.tr("Choose two or more runs to see where their settings differ."))
        self.more.setText(self.tr("More"))
        self.more.setAccessibleName(self.tr("More"))
        self.refresh.setToolTip(self.tr("Refresh"))
        self.refresh.setAccessibleName(self.tr("Refresh"))
        self.unfold.setText(self.tr("Details"))
        self.search.setPlaceholderText(self.tr("Search name, preset, data, tags, note"))
        self.search.setAccessibleName(self.tr("Search the runs"))
        self.shelf.setAccessibleName(self.tr("Which runs"))
        for place, text in enumerate((self.tr("Not archived"), self.tr("Archived"), self.tr("All"))):
            self.shelf.setItemText(place, text)
        self.told_folder.setText(self.tr("Open folder"))
        self.told_close.setText(self.tr("Close"))
        if self._told is not None:
            self.told.say(self._told[0]())
        self.table.setAccessibleName(self.tr("Runs"))
        self.splitter.name(self.tr("Height of the table"))
        self.model.retranslate(self._titles())
        self.sorting.word(self.tr("Sort by"), self._titles())
        self._word_toggles()
        self._word_empty()
        self._say_how_many()
        self.retheme(self._tokens)

    def _titles(self) -> dict[Column, str]:
        return {
            "shown": self.tr("Shown in plots"),
            "name": self.tr("Name"),
            "state": self.tr("State"),
            "step": self.tr("Step"),
            "loss": self.tr("Best loss"),
            "speed": self.tr("Tokens/s"),
            "time": self.tr("Trained for"),
            "preset": self.tr("Preset"),
            "data": self.tr("Data"),
            "started": self.tr("Started"),
            "tags": self.tr("Tags"),
        }
