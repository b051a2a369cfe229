"""The page of the queue: what waits to be trained, in which order, and what became of what was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QAction, QKeySequence, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QMenu, QPushButton, QToolButton, QVBoxLayout, QWidget

from app.state.queue import AfterFailure, Item, Queue
from app.state.run_machine import RunMachine
from app.theme.icons import icon
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.queue import queue_words
from app.views.queue.table import QueueTable
from app.views.widgets import QuietCombo, Retranslating, SignButton, button, card, column, hand_over, label, named, put
from trainer_core.messages import TraindeckError

_POLICIES: Final[tuple[AfterFailure, ...]] = ("go_on", "hold")
_KEYS: Final = {
    "up": "Alt+Up",
    "down": "Alt+Down",
    "remove": "Del",
    "duplicate": "Ctrl+D",
    "undo": "Ctrl+Z",  # the table sees to it that its own comes before the form's
    "open": "Alt+Return",
}
_MENU: Final = ("open", "resume", "put_back", "", "up", "down", "duplicate", "to_form", "remove", "", "undo", "clear")


@dataclass(frozen=True, slots=True)
class QueueState:
    """Everything the page shows."""

    queue: Queue
    hold: str = ""  # why nothing is started by itself (`queueing.Hold`); empty: it is
    busy: bool = False  # a run is on in this window
    machine: RunMachine | None = None  # of the item that is being trained
    restarting: bool = False  # which is started again in a moment
    blocked: str = ""  # why what the form says cannot be put in line
    usable: bool = True
    owner: int | None = None  # process of another window, which has the queue
    trouble: TraindeckError | None = None  # why the queue cannot be kept


class QueuePage(Retranslating):
    """Signals carry the ids of items, in their order."""

    shown = Signal()
    go_on_asked = Signal()
    hold_asked = Signal()
    policy_chosen = Signal(str)
    add_asked = Signal()
    sweep_asked = Signal()
    removed = Signal(list)
    undo_asked = Signal()
    moved = Signal(list, int)
    placed = Signal(list, int)
    duplicated = Signal(list)
    put_back_asked = Signal(list)
    form_asked = Signal(str)
    cleared = Signal()
    open_asked = Signal(Path)
    resume_asked = Signal(Path)
    compare_asked = Signal(object)  # list[Path]

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.tokens = tokens
        self._state: QueueState | None = None
        self._shown: object = None  # what the rows were made of
        self._going = False
        self.sentence = label("section", wrap=True)
        self.go = button("queueGo")
        self._policy_label, self.policy = label("muted"), named(QuietCombo(), "afterFailure")
        self.add, self.sweep, self.compare = button("queueAdd"), button("queueSweep"), button("queueCompare")
        self.open, self.remove = button("queueOpen"), button("queueRemove")
        self.up, self.down = named(QToolButton(), "queueUp"), named(QToolButton(), "queueDown")
        self.more = SignButton("unfold", "queueMore")
        self.table = QueueTable(tokens)
        self.details = label(wrap=True)
        self.details.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.actions_: dict[str, QAction] = {}
        self._make_actions()
        self._arrange()
        self._connect()
        self.retheme(tokens)
        self.retranslate()

    # --- building ----------------------------------------------------------------------------------------

    def _make_actions(self) -> None:
        slots: dict[str, Callable[[], None]] = {
            "open": self._open,
            "resume": self._resume,
            "put_back": lambda: self.put_back_asked.emit(self._ids()),
            "up": lambda: self.moved.emit(self._ids(), -1),
            "down": lambda: self.moved.emit(self._ids(), 1),
            "duplicate": lambda: self.duplicated.emit(self._ids()),
            "to_form": lambda: self.form_asked.emit(self._ids()[0]),
            "remove": lambda: self.removed.emit(self._ids()),
            "undo": self.undo_asked.emit,
            "clear": self.cleared.emit,
        }
        menu = QMenu(self)
        for name in _MENU:
            if not name:
                menu.addSeparator()
                self.table.addAction(_separator(self))
                continue
            action = QAction(self)
            action.setObjectName(f"queue_{name}")
            if name in _KEYS:
                action.setShortcut(QKeySequence(_KEYS[name]))
                action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            action.triggered.connect(lambda _=False, slot=slots[name]: slot())
            self.actions_[name] = action
            menu.addAction(action)
            self.table.addAction(action)
        self.more.setMenu(menu)
        self.more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)

    def _arrange(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(SPACE)
        top.addWidget(self.sentence, 1)
        top.addWidget(self.go)
        after = QHBoxLayout()
        after.setSpacing(SPACE)
        after.addWidget(self._policy_label)
        after.addWidget(self.policy)
        after.addStretch(1)
        after.addWidget(self.add)
        after.addWidget(self.sweep)
        above = column(spacing=SPACE - 2)
        above.addLayout(top)
        above.addLayout(after)
        bar = QHBoxLayout()
        bar.setSpacing(SPACE // 2)
        for widget in (self.open, self.up, self.down, self.remove, self.more):
            bar.addWidget(widget)
        bar.addStretch(1)
        bar.addWidget(self.compare)
        below = column()
        below.addWidget(self.details)
        self._below = card(below)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE, 0, 0)
        layout.setSpacing(SPACE)
        layout.addWidget(card(above))
        layout.addLayout(bar)
        layout.addWidget(self.table, 1)
        layout.addWidget(self._below)

    def _connect(self) -> None:
        self.go.clicked.connect(lambda: (self.hold_asked if self._going else self.go_on_asked).emit())
        self.policy.activated.connect(lambda place: self.policy_chosen.emit(_POLICIES[place]))
        self.add.clicked.connect(self.add_asked)
        self.sweep.clicked.connect(self.sweep_asked)
        self.compare.clicked.connect(lambda: self.compare_asked.emit(self._finished()))
        pressed: dict[QPushButton | QToolButton, str] = {
            self.open: "open",
            self.up: "up",
            self.down: "down",
            self.remove: "remove",
        }
        for pushed, name in pressed.items():
            pushed.clicked.connect(self.actions_[name].trigger)
        self.table.activated.connect(self._open)
        self.table.placed.connect(self.placed)
        self.table.undo_asked.connect(self.undo_asked)
        self.table.selectionModel().selectionChanged.connect(self._show_chosen)

    # --- showing -----------------------------------------------------------------------------------------

    def display(self, state: QueueState) -> None:
        """Show this; cheap where nothing has changed."""
        self._state = state
        queue, machine = state.queue, state.machine
        if machine is not None:
            text, share = queue_words.progress(machine), machine.progress
            self.table.rows.show_progress(text, share, restarting=state.restarting)
        if self._shown != (queue.revision, state.busy):
            self._shown = (queue.revision, state.busy)
            self.table.display(queue.items)
            self.policy.setCurrentIndex(_POLICIES.index(queue.after_failure))
            self._show_chosen()
        self._show_head(state)

    def _show_head(self, state: QueueState) -> None:
        waiting = state.queue.waiting
        self._going = not state.hold
        put(self.sentence, self._sentence(state))
        put(self.go, self.tr("Wait") if self._going else self.tr("Go on"))
        self.go.setVisible(bool(waiting) and state.usable)
        for widget in (self.add, self.sweep):
            widget.setEnabled(state.usable and not state.blocked)
            if widget.toolTip() != state.blocked:
                widget.setToolTip(state.blocked)
        self.policy.setEnabled(state.usable)
        self.compare.setEnabled(len(self._finished()) > 1)

    def _sentence(self, state: QueueState) -> str:
        waiting = state.queue.waiting
        if state.owner is not None:
            text = self.tr("Another window of Traindeck has the queue (process {pid}). Close it to use the queue here.")
            return text.format(pid=state.owner)
        if state.trouble is not None:
            return words.message(state.trouble.code, state.trouble.params)
        if state.queue.put_aside is not None and state.hold in ("", "opened"):
            text = self.tr("Some of the queue's file could not be read; the whole file was kept: {path}")
            return text.format(path=state.queue.put_aside)
        if not waiting:
            return self.tr("Nothing waits.")
        name = waiting[0].name
        match state.hold:
            case "":
                text = self.tr("“{name}” starts when this run ends.") if state.busy else self.tr("“{name}” starts now.")
            case "opened":
                text = self.tr("The queue waits: nothing starts by itself when the program opens.")
            case "stopped":
                text = self.tr("The queue waits, for a run was stopped.")
            case "failed":
                text = self.tr("The queue waits, for a run failed.")
            case _:
                text = self.tr("The queue waits. Go on starts “{name}”.")
        return text.format(name=name)

    def select(self, ids: list[str]) -> None:
        """Show what is new, and have these chosen."""
        if self._state is not None:
            self.display(self._state)
        self.table.select(ids)

    def _show_chosen(self) -> None:
        chosen = self.table.chosen()
        queue = self._state.queue if self._state else None
        one = chosen[0] if len(chosen) == 1 else None
        busy = self._state is not None and self._state.busy
        ended = [item for item in chosen if item.state not in ("waiting", "running")]
        possible = {
            "open": one is not None and bool(one.run_dir),
            "resume": one is not None and one.resumable and not busy,
            "put_back": bool(ended),
            "up": bool(chosen) and chosen[0] is not self.table.rows.items[0],
            "down": bool(chosen) and chosen[-1] is not self.table.rows.items[-1],
            "duplicate": bool(chosen),
            "to_form": one is not None,
            "remove": any(item.state != "running" for item in chosen),
            "undo": queue is not None and queue.can_undo,
            "clear": queue is not None and any(item.state == "done" for item in queue.items),
        }
        for name, allowed in possible.items():
            self.actions_[name].setEnabled(allowed)
        for pushed, name in ((self.open, "open"), (self.up, "up"), (self.down, "down"), (self.remove, "remove")):
            if not possible[name]:
                hand_over(pushed, self.table)
            pushed.setEnabled(possible[name])
        self._below.setVisible(one is not None)
        put(self.details, queue_words.details(one) if one is not None else "")

    def _ids(self) -> list[str]:
        return [item.id for item in self.table.chosen()]

    def _finished(self) -> list[Path]:
        """Folders of what was trained: of the chosen ones where there are several, else of all."""
        chosen = self.table.chosen()
        among: list[Item] = chosen if len(chosen) > 1 else self.table.rows.items
        return [Path(item.run_dir) for item in among if item.run_dir and item.state != "running"]

    def _open(self) -> None:
        for item in self.table.chosen()[:1]:
            if item.run_dir:
                self.open_asked.emit(Path(item.run_dir))

    def _resume(self) -> None:
        for item in self.table.chosen()[:1]:
            if item.resumable:
                self.resume_asked.emit(Path(item.run_dir))

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.shown.emit()

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self.table.fit(event.size().width())

    # --- looks and words ---------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self.tokens = self.table.rows.tokens = tokens
        self.table.viewport().update()
        self.up.setIcon(icon("up", tokens.text, tokens.muted))
        self.down.setIcon(icon("down", tokens.text, tokens.muted))

    def retranslate(self) -> None:
        texts = {
            "open": self.tr("Open"),
            "resume": self.tr("Resume from its last checkpoint"),
            "put_back": self.tr("Put back in line"),
            "up": self.tr("Move up"),
            "down": self.tr("Move down"),
            "duplicate": self.tr("Duplicate"),
            "to_form": self.tr("Take its settings into the form"),
            "remove": self.tr("Remove"),
            "undo": self.tr("Undo removing"),
            "clear": self.tr("Clear finished"),
        }
        for name, text in texts.items():
            self.actions_[name].setText(text)
        self.open.setText(texts["open"])
        self.remove.setText(texts["remove"])
        for pushed, name in ((self.up, "up"), (self.down, "down"), (self.remove, "remove"), (self.open, "open")):
            pushed.setToolTip(f"{texts[name]} ({QKeySequence(_KEYS[name]).toString(_NATIVE)})")
            pushed.setAccessibleName(texts[name])
        self.more.setToolTip(self.tr("More"))
        self.more.setAccessibleName(self.tr("More"))
        self.add.setText(self.tr("Add to queue"))
        self.sweep.setText(self.tr("Sweep…"))
        self.compare.setText(self.tr("Compare all"))
        self.compare.setToolTip(
            self.tr("Lay the runs of the queue over the plots, the ten best at most; of several chosen ones, these")
        )
        self._retranslate_policy()
        self.table.empty.setText(
            self.tr(
                "Runs in line, trained one after the other, overnight for example.\n\n"
                "Set up a run at the left and press “Add to queue”, also while another one trains; "
                "or let “Sweep…” line up the same run with several values of a setting. "
                "The next starts when the one before it has ended."
            )
        )
        self.table.retranslate()
        self._shown = None
        if self._state is not None:
            self.display(self._state)
        else:
            self._show_chosen()

    def _retranslate_policy(self) -> None:
        self._policy_label.setText(self.tr("After a failure:"))
        self.policy.setAccessibleName(self.tr("After a failure:"))
        place = max(0, self.policy.currentIndex())
        self.policy.clear()
        self.policy.addItems([self.tr("go on with the next"), self.tr("wait")])
        self.policy.setCurrentIndex(place)


_NATIVE: Final = QKeySequence.SequenceFormat.NativeText


def _separator(parent: QWidget) -> QAction:
    action = QAction(parent)
    action.setSeparator(True)
    return action
