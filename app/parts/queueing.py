"""The queue at work: starts what waits when a run has ended, and keeps the page of the queue up to date."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from PySide6.QtCore import QObject, QTimer, Signal

from app.own_run import OwnRun
from app.services.trainer_process import Outcome
from app.state import command_line, queue_outcomes
from app.state.queue import AfterFailure, Item, ItemState, Queue, free_name, new_item
from app.state.run_machine import RunState
from app.state.runs.history import History
from app.views.setup.form import SetupForm
from app.views.setup.reason import blocking_reason
from trainer_core import config, presets, protocol
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent
from trainer_core.runs import owners
from trainer_core.runs.run_dir import new_run_path

if TYPE_CHECKING:
    from app.state.sweep import Planned
    from app.views.queue.page import QueuePage

Hold = Literal["", "idle", "opened", "person", "stopped", "failed"]
"""Why nothing is started by itself; empty: the next one is, as soon as nothing trains."""
_MOST_COMPARED: Final = 10  # the plots have room for so many


class Queueing(QObject):
    """Judges every run of this window at its end, whoever started it: a person who stops one stops the queue, too."""

    changed = Signal()  # what waits, or whether it does
    said = Signal(str)  # what came of a wish to add, for whoever looks elsewhere
    started = Signal(object)  # Item
    ended = Signal(object)  # Item, with how it went
    held = Signal(object)  # Item, or None: a run failed, and nothing starts until a person says so
    emptied = Signal(object)  # list[Item]: the last one has ended, and nothing waits; all that it trained since Go on
    open_asked = Signal(Path)
    resume_asked = Signal(Path)
    compare_asked = Signal(object)  # list[Path]

    def __init__(self, form: SetupForm, own: OwnRun, history: History, say: Callable[[TraindeckError], None]) -> None:
        super().__init__(own)
        self._form, self._own, self._history, self._say = form, own, history, say
        self.queue = Queue()
        self.hold: Hold = ""
        self._owner: int | None = None  # process of the window that has the queue, where it is not this one
        self._trouble: TraindeckError | None = None  # why there is no queue
        self._opened = False
        self._unjudged = False  # a run was begun whose end was not looked at yet
        self._batch: list[Item] = []  # what was trained since the queue last was empty
        self._page: QueuePage | None = None
        own.changed.connect(self._on_changed)
        own.told.connect(self._on_told)
        own.ended.connect(self._on_ended)
        form.changed.connect(self.refresh)

    def open(self) -> None:
        """Read the queue, unless another window has it. Nothing of it starts by itself."""
        if self._opened:
            return
        self._owner = self._trouble = None
        try:
            self.queue.open()
        except owners.InUse as used:
            self._owner = used.pid
        except TraindeckError as error:
            self._trouble = error
        else:
            self._opened = True
            for item in self.queue.items:
                if item.state == "interrupted":
                    queue_outcomes.catch_up(item, self._history.get(Path(item.run_dir)) if item.run_dir else None)
            self.hold = "opened" if self.queue.waiting else ""
        self._changed()

    def leave(self) -> None:
        """The window closes: what its run came to is written down, and another window may have the queue."""
        if not self._own.machine.is_active:
            self._judge()
        self.hold = "person"
        self._opened = False
        self.queue.close()

    # --- what a person does --------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether this window has the queue."""
        return self._opened

    @property
    def blocked(self) -> str:
        """Why what the form says cannot be put in line; empty when it can."""
        return blocking_reason(self._form, ())

    def add(self) -> None:
        """Put what the form says in line."""
        preset, blocked = self._form.preset, self.blocked
        if blocked:
            self.said.emit(self.tr("Not added to the queue: {reason}").format(reason=blocked))
        if blocked or preset is None or not self._opened:
            return
        stamped = new_run_path(self._history.root, preset.name).name
        name = free_name(self._form.run_name or stamped, self._taken())
        self._line_up([new_item(name, preset.name, self._form.changes(), self._form.data)])

    def add_sweep(self, planned: list[Planned]) -> None:
        """Put all runs of a sweep in line."""
        if self._form.preset is not None and self._opened:
            preset, data = self._form.preset.name, self._form.data
            self._line_up([new_item(run.name, preset, run.changes, data) for run in planned])

    def _line_up(self, items: list[Item]) -> None:
        self._written(lambda: self.queue.add(items))
        if self._page is not None:
            self._page.select([item.id for item in items])
        if self._page is None or not self._page.isVisible():
            text = self.tr("“{name}” is in the queue. Waiting: {count}.")
            self.said.emit(text.format(name=items[-1].name, count=len(self.queue.waiting)))

    def go_on(self) -> None:
        """Start the next as soon as nothing trains."""
        self.hold = ""
        self._changed()
        self._later()

    def wait(self) -> None:
        """Start nothing by itself; a run that is on goes on."""
        self.hold = "person"
        self._changed()

    def set_after_failure(self, policy: AfterFailure) -> None:
        self.queue.after_failure = policy
        self._written(self.queue.save)

    def put_back(self, ids: list[str]) -> None:
        self._written(lambda: self.queue.put_back(ids, self._taken()))

    def duplicate(self, ids: list[str]) -> None:
        copies: list[Item] = []
        self._written(lambda: copies.extend(self.queue.duplicate(ids, self._taken())))
        if self._page is not None:
            self._page.select([item.id for item in copies])

    def to_form(self, item_id: str) -> None:
        """Fill the form in with what an item trains, to change it and line it up again."""
        item = self.queue.get(item_id)
        if item is None:
            return
        try:
            self._form.load_preset(presets.load(item.preset))
        except TraindeckError as error:
            self._say(error)
            return
        self._form.restore(list(item.data), item.changes)
        self._form.set_run_name(item.name)

    def _taken(self) -> set[str]:
        return {run.name for run in self._history.runs} | self.queue.names()

    def _written(self, change: Callable[[], object]) -> None:
        """Change the queue, and say where that could not be written down."""
        if not self._opened:
            return
        waited = bool(self.queue.waiting)
        try:
            change()
        except TraindeckError as error:
            self._say(error)
        if self.queue.waiting and not waited:
            # A run is on: whoever adds now means "after it". Otherwise Start and Go on are there to start something.
            self.hold = "" if self._busy else "idle"
        self._changed()

    # --- runs that begin and end ---------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """A run is on, or will be on again by itself."""
        return self._own.machine.is_active or self._own.restarting.pending is not None

    def _on_changed(self) -> None:
        machine = self._own.machine
        if machine.state is RunState.STARTING:
            self._begun(Path(machine.run_dir))
        elif not machine.is_active:
            self._later()  # perhaps a restart was called off
        self.refresh()

    def _begun(self, run_dir: Path) -> None:
        """A run of this window begins, or goes on. One of the queue's is found by its folder."""
        earlier = self.queue.running
        if earlier is not None and not _is_same(Path(earlier.run_dir), run_dir):  # it waited for its restart
            if self.queue.waiting and not self.hold:
                self._after("failed", earlier)
            self._conclude(earlier, "failed")
        self._unjudged = True
        item = self.queue.of_run(run_dir)
        if item is None or item.state == "running":
            return
        item.state, item.started, item.ended = "running", item.started or time.time(), 0.0
        item.exit_code, item.error, item.params = None, "", {}
        self._written(self.queue.save)
        self.started.emit(item)

    def _on_told(self, event: AnyEvent) -> None:
        item = self.queue.running
        if item is not None and isinstance(event, protocol.Eval) and event.loss is not None:
            item.best_loss = event.loss if item.best_loss is None else min(event.loss, item.best_loss)

    def _on_ended(self, _outcome: Outcome) -> None:
        self._judge()
        self._later()

    @property
    def goes_on(self) -> bool:
        """Whether another run starts by itself, now that one has ended."""
        return self._opened and not self.hold and bool(self.queue.waiting)

    def _later(self) -> None:
        """After everybody else has seen the end: then the process and all that it held are gone, too."""
        QTimer.singleShot(0, self, self._next)

    def _next(self) -> None:
        if not self._opened or self._busy:
            return
        self._judge()
        while not self.hold and self.queue.waiting and not self._busy:
            self._start(self.queue.waiting[0])
        if not self.queue.waiting and not self._busy and self._batch:
            batch, self._batch = self._batch, []
            self.emptied.emit(batch)

    def _judge(self) -> None:
        """How the run went that is over now, and whether the queue goes on after it."""
        item = self.queue.running
        if not self._unjudged:
            return
        state = queue_outcomes.of_machine(self._own.machine)
        if item is not None:
            # Also before a restart: should another run begin instead, this was its end.
            queue_outcomes.note(item, self._own.machine)
        if self._own.restarting.pending is not None:
            return
        self._unjudged = False
        if self.queue.waiting and not self.hold:
            self._after("stopped" if self._own.stop_asked else state, item)
        if item is not None:
            self._conclude(item, state)

    def _conclude(self, item: Item, state: ItemState) -> None:
        item.state, item.ended = state, time.time()
        self._batch.append(item)
        self._written(self.queue.save)
        self.ended.emit(item)

    def _after(self, state: ItemState, item: Item | None) -> None:
        if state == "stopped":
            self.hold = "stopped"
        elif state == "failed" and self.queue.after_failure == "hold":
            self.hold = "failed"
            self.held.emit(item)
        self.changed.emit()

    def _start(self, item: Item) -> None:
        """Start an item; where its configuration is none any more, it has failed."""
        try:
            preset = presets.load(item.preset)
            for name, value in item.changes.items():
                config.check_value(name, value, item.name)
            root = self._history.root
            others = {other.name for other in self.queue.waiting if other is not item}
            name = free_name(item.name, _Taken(root, others))
            path = root / name
            arguments = command_line.train(item.preset, item.changes, item.data, str(path), loaded=preset)
        except TraindeckError as error:
            item.error, item.params, item.started = error.code, dict(error.params), time.time()
            if len(self.queue.waiting) > 1:
                self._after("failed", item)
            self._conclude(item, "failed")
            return
        item.name, item.run_dir = name, str(path)
        self._own.start(arguments, path)

    # --- showing -------------------------------------------------------------------------------------------

    def connect_page(self, page: QueuePage) -> None:
        """From now on, show everything there, and do what is asked for there."""
        self._page = page
        page.shown.connect(self.open)  # perhaps the other window that had the queue is closed by now
        page.shown.connect(self.refresh)
        page.go_on_asked.connect(self.go_on)
        page.hold_asked.connect(self.wait)
        page.policy_chosen.connect(self.set_after_failure)
        page.add_asked.connect(self.add)
        page.sweep_asked.connect(self.ask_sweep)
        page.removed.connect(lambda ids: self._written(lambda: self.queue.remove(ids)))
        page.undo_asked.connect(lambda: self._written(self.queue.undo))
        page.moved.connect(lambda ids, by: self._written(lambda: self.queue.move(ids, by)))
        page.placed.connect(lambda ids, row: self._written(lambda: self.queue.place(ids, row)))
        page.duplicated.connect(self.duplicate)
        page.put_back_asked.connect(self.put_back)
        page.form_asked.connect(self.to_form)
        page.cleared.connect(lambda: self._written(self.queue.clear_finished))
        page.open_asked.connect(self.open_asked)
        page.resume_asked.connect(self.resume_asked)
        page.compare_asked.connect(self._compare)
        self._show(page)

    def _compare(self, paths: list[Path]) -> None:
        """Of many runs, the best: the plots have room for ten."""
        found = [(self.queue.of_run(path), path) for path in paths]
        losses = {path: item.best_loss for item, path in found if item is not None and item.best_loss is not None}
        best = sorted(paths, key=lambda path: losses.get(path, math.inf))[:_MOST_COMPARED]
        self.compare_asked.emit([path for path in paths if path in best])

    def moved(self, old: Path, new: Path | None) -> None:
        """The folder of a run has another name, or is gone (None)."""
        item = self.queue.of_run(old)
        if item is not None:
            item.run_dir = "" if new is None else str(new)
            item.name = item.name if new is None else new.name
            self._written(self.queue.save)

    def ask_sweep(self) -> None:
        """Ask which knobs to sweep over, with which values."""
        from app.views.queue.sweep_dialog import SweepDialog

        form, page = self._form, self._page
        if page is None or form.preset is None or self.blocked or not self._opened:
            return
        base = form.run_name or form.preset.name
        dialog = SweepDialog(base, form.preset, form.changes(), self._taken(), page.tokens, page.window())
        dialog.added.connect(self.add_sweep)
        dialog.open()

    def _changed(self) -> None:
        self.refresh()
        self.changed.emit()

    def refresh(self) -> None:
        """Show what there is; cheap where the page is not seen or nothing has changed."""
        if self._page is not None and self._page.isVisible():
            self._show(self._page)

    def _show(self, page: QueuePage) -> None:
        from app.views.queue.page import QueueState  # known by now; too much on the way to the first picture

        machine = self._own.machine
        page.display(
            QueueState(
                queue=self.queue,
                hold=self.hold,
                busy=self._busy,
                machine=machine if self.queue.running is not None else None,
                restarting=self._own.restarting.pending is not None,
                blocked=self.blocked,
                usable=self._opened,
                owner=self._owner,
                trouble=self._trouble,
            )
        )


def _is_same(one: Path, other: Path) -> bool:
    """Whether both are one folder: a trainer that goes on calls its own by the name behind all links and drives."""
    return one == other or os.path.realpath(one) == os.path.realpath(other)


class _Taken:
    """Names that the folder of runs has, or other items, as a container."""

    def __init__(self, root: Path, others: set[str]) -> None:
        self._root, self._others = root, others

    def __contains__(self, name: object) -> bool:
        return name in self._others or (self._root / str(name)).exists()
