"""What is done with runs on disk from their page: renamed, noted, archived, deleted, compared, laid over the plots."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QFile, QObject, QTimer, Signal

from app.own_run import OwnRun
from app.parts import remembering
from app.parts.exporting import Exporter
from app.parts.overlaying import Overlays
from app.services import desktop
from app.services.trainer_process import TrainerProcess
from app.slices import Slices
from app.state import command_line
from app.state.runs import run_files
from app.state.runs.history import History
from app.state.runs.run_difference import differences
from app.state.runs.run_notes import RunNotes
from app.state.settings import Settings
from app.views.plots.overlays import OWN
from trainer_core import files
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir

if TYPE_CHECKING:
    from app.views.plots.page import PlotsPage
    from app.views.runs.page import RunsPage
    from app.views.runs.questions import DeleteQuestion


class RunsKeeper(QObject):
    """Between the page of the runs and their folders. Nothing is done to a run that is being trained."""

    resume_asked = Signal(Path)  # a run, from its newest checkpoint
    generate_asked = Signal(Path)  # a checkpoint
    leaving = Signal(Path)  # a run's folder, before it is renamed or deleted: Windows needs its files closed
    moved = Signal(Path, object)  # a run's folder; where it is now, or None: gone

    def __init__(
        self,
        history: History,
        own: OwnRun,
        settings: Settings,
        parent: QObject | None = None,
        exporting: TrainerProcess | None = None,
    ) -> None:
        super().__init__(parent)
        self._history, self._own, self._settings = history, own, settings
        self.overlays, self.exporter = Overlays(history, self), Exporter(exporting, self)
        self._page: RunsPage | None = None
        self._plots: PlotsPage | None = None
        self._on_plots: Path | None = None  # the run that the plots show anyway
        self._seen: list[tuple[object, ...]] = []  # of the selected runs, when their folders were looked at
        self._looking, self._measuring, self._comparing = Slices(self), Slices(self), Slices(self)
        self._question: DeleteQuestion | None = None
        self._deleting = _Deleting(self)
        self._deleting.leaving.connect(self.leaving)
        self._deleting.ended.connect(self._on_deleted)
        self._shown_soon = QTimer(self, singleShot=True, interval=0)
        self._shown_soon.timeout.connect(self.display)
        self.leaving.connect(self._let_go)
        self.moved.connect(self.overlays.moved)
        own.changed.connect(self._shown_soon.start)

    def connect_page(self, page: RunsPage, plots: PlotsPage) -> None:
        """From now on, show everything there, and do what is asked for there."""
        self._page, self._plots = page, plots
        settings = self._settings
        page.restore(
            settings.runs_sort,
            descending=settings.runs_descending,
            details=settings.runs_details,
            widths=settings.runs_columns,
        )
        remembering.restore_splitter(settings, "runs", page.splitter)
        page.arranged.connect(self._remember)
        page.chosen.connect(self._look_at_chosen)
        page.rename_asked.connect(self.rename)
        page.archive_asked.connect(self.archive)
        page.delete_asked.connect(self.ask_deleting)
        page.compare_asked.connect(self.compare)
        page.show_asked.connect(self.show_in_plots)
        page.details.note_changed.connect(lambda path, note: self._note(path, note=note))
        page.details.tags_changed.connect(lambda path, tags: self._note(path, tags=tags))
        page.details.checkpoints.resume_asked.connect(self.resume_from)
        page.details.checkpoints.generate_asked.connect(self.generate_asked)
        page.details.checkpoints.export_asked.connect(self.export)
        plots.overlays_removed.connect(lambda: self.overlays.show(list(self.overlays.chosen), on=False))
        self.overlays.changed.connect(self._show_overlays)
        self.overlays.progressed.connect(page.show_reading)
        self.exporter.said.connect(page.say)
        self.exporter.changed.connect(lambda: page.details.allow(exporting=self.exporter.is_busy))

    def display(self) -> None:
        """Show the runs as the last look at the folder found them."""
        if self._page is not None:
            runs = [(run, self._history.notes(run.path)) for run in self._history.runs]
            self._page.display(runs, can_resume=self._own.machine.can_start)
            if self._state_of_chosen() != self._seen:  # a checkpoint came, or went
                self._look_at_chosen()

    def on_listed(self) -> None:
        """The runs folder was looked at."""
        self.overlays.look()
        self.display()

    def show_on_plots(self, run: Path | None) -> None:
        """This run is on show: it needs no laying over."""
        if run != self._on_plots:
            self._on_plots = run
            self._show_overlays()

    def leave(self) -> None:
        """The window closes."""
        if self._page is not None:
            self._page.details.keep()
        for work in (self._looking, self._measuring, self._comparing):
            work.stop()
        self.overlays.leave()
        self.exporter.leave()

    def _remember(self) -> None:
        if self._page is not None:
            settings, page = self._settings, self._page
            settings.runs_sort, settings.runs_descending = page.model.column, page.model.descending
            settings.runs_details = page.unfold.isChecked()
            settings.runs_columns = page.table.columns
            remembering.take_splitter(settings, "runs", page.splitter)

    def _say(self, text: Callable[[], str]) -> None:
        if self._page is not None:
            self._page.say(text)

    # --- notes, names, the archive ------------------------------------------------------------------------

    def _note(
        self, path: Path, *, note: str | None = None, tags: tuple[str, ...] | None = None, archived: bool | None = None
    ) -> None:
        known = self._history.notes(path)
        wanted = RunNotes(
            note=known.note if note is None else note,
            tags=known.tags if tags is None else tags,
            archived=known.archived if archived is None else archived,
        )
        try:
            self._history.note(path, wanted)
        except OSError as error:
            reason, name = error.strerror or type(error).__name__, path.name
            self._say(lambda: self.tr("The notes of {name} were not kept: {reason}.").format(name=name, reason=reason))
        self._shown_soon.start()

    def archive(self, paths: list[Path], into: bool) -> None:
        for path in paths:
            self._note(path, archived=into)
        if into:  # it is out of the way, on the plots too
            self.overlays.show(paths, on=False)

    def rename(self, path: Path, name: str) -> None:
        """Give a run's folder another name, or say why not."""
        problem = "running" if self._is_active(path) else run_files.problem_of_name(path, name)
        if problem:
            from app.views.runs.questions import name_problem

            self._say(lambda: name_problem(problem, name))
            return
        target = path.with_name(name)
        self.leaving.emit(path)
        try:
            files.replace(path, target, seconds=0.0)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            text = self.tr("{name} could not be renamed: {reason}. Close programs that show its files, then try again.")
            self._say(lambda: text.format(name=path.name, reason=reason))
            self.overlays.look()
            return
        self._after_move(path, target)

    def _let_go(self, run: Path) -> None:
        """Close what this window has open in the folder of a run."""
        for work in (self._looking, self._measuring, self._comparing):
            work.stop()
        self.overlays.let_go(run)

    def _after_move(self, old: Path, new: Path | None) -> None:
        self._history.forget(old)
        if new is not None:
            self._history.get(new)
        self._own.moved(old, new)
        self.moved.emit(old, new)
        self.display()
        if new is not None and self._page is not None:
            self._page.select([new])

    # --- deleting -----------------------------------------------------------------------------------------

    def ask_deleting(self, paths: list[Path]) -> None:
        """Ask, with the size on disk, whether runs are to go to the recycle bin. Not those that are being trained."""
        free = self._not_running(paths)
        if free and self._page is not None:
            self._ask(free, lambda: self._delete(free, self._deleting.to_bin), for_good=False)

    def _delete(self, paths: list[Path], delete: Callable[[list[Path]], None]) -> None:
        free = self._not_running(paths)
        if self._own.restarting.pending and any(self._is_own(path) for path in free):
            self._own.cancel_restart()
        delete(free)

    def _ask(self, paths: list[Path], delete: Callable[[], None], *, for_good: bool) -> None:
        from app.views.runs.questions import DeleteQuestion

        assert self._page is not None
        self._question = question = DeleteQuestion(paths, delete, self._page.window(), for_good=for_good)
        question.finished.connect(self._on_answered)
        self._measuring.start(self._measure(paths, question.show_size))

    def _on_answered(self) -> None:
        self._question = None
        self._measuring.stop()
        self._look_at_chosen()  # its size may have been on the way

    def _not_running(self, paths: list[Path]) -> list[Path]:
        running = [path for path in paths if self._is_active(path) or run_files.is_running(path)]
        if running:
            name = running[0].name
            text = self.tr("{name} is being trained and stays. Stop it, then delete it.")
            self._say(lambda: text.format(name=name))
        return [path for path in paths if path not in running]

    def _is_own(self, path: Path) -> bool:
        """Whether this window trains that run, or did so last."""
        return bool(self._own.machine.run_dir) and Path(self._own.machine.run_dir) == path

    def _is_active(self, path: Path) -> bool:
        """Whether this window trains that run; while the trainer starts or ends, the run's lock does not tell."""
        return self._own.machine.is_active and self._is_own(path)

    def _on_deleted(self, gone: list[Path], left: dict[Path, str], for_good: bool) -> None:
        for path in gone:
            self._after_move(path, None)
        self.overlays.look()  # on with those that stay
        if left and not for_good and self._page is not None:
            paths = list(left)
            self._ask(paths, lambda: self._delete(paths, self._deleting.for_good), for_good=True)
        elif left:
            path, reason = next(iter(left.items()))
            text = self.tr("{name} could not be deleted: {reason}. Close programs that show its files, then try again.")
            self._say(lambda: text.format(name=path.name, reason=reason))

    # --- what the selected runs hold ------------------------------------------------------------------------

    def _look_at_chosen(self) -> None:
        if self._page is None:
            return
        paths, details = self._page.paths(), self._page.details
        self._seen = self._state_of_chosen()
        self._looking.start(self._look(paths[0]) if len(paths) == 1 else iter(()))
        if self._question is None:
            self._measuring.start(self._measure(paths, details.show_size))

    def _state_of_chosen(self) -> list[tuple[object, ...]]:
        runs = [row.run for row in self._page.rows()] if self._page is not None else []
        return [(run.path, run.state, run.checkpoints) for run in runs]

    def _look(self, run: Path) -> Iterator[None]:
        found = []
        for saved in run_files.checkpoints(run):
            found.append(saved)
            yield
        if self._page is not None and self._page.paths() == [run]:
            self._page.details.checkpoints.show_found(found)

    @staticmethod
    def _measure(paths: list[Path], show: Callable[..., None]) -> Iterator[None]:
        counted: dict[Path, int] = {}
        for path in paths:
            for size in run_files.sizes(path):
                yield
                counted[path] = size
        show(sum(counted.values()), complete=True)

    # --- comparing, plots -----------------------------------------------------------------------------------

    def compare(self, paths: list[Path]) -> None:
        """Show where runs differ, as soon as their configurations are read."""
        if len(paths) >= 2:
            self._comparing.start(self._compare(paths))

    def _compare(self, paths: list[Path]) -> Iterator[None]:
        configs, runs = [], []
        for path in paths:
            summary = self._history.get(path)
            if summary is not None:
                runs.append(summary)
                configs.append(run_dir.read_yaml(RunDir(path).config))
            yield
        if len(runs) >= 2 and self._page is not None:
            from app.views.runs.comparing import Comparison

            shown = Comparison(runs, differences(configs), self._page.window())
            shown.copied.connect(desktop.copy_text)
            shown.show()

    def show_in_plots(self, paths: list[Path], on: bool) -> None:
        if not self.overlays.show(paths, on=on):
            self._say(lambda: self.tr("The plots have room for ten more runs. Hide some to show others."))

    def _show_overlays(self) -> None:
        if self._page is not None and self._plots is not None:
            colours = self.overlays.chosen
            if self._on_plots in colours:
                colours[self._on_plots] = OWN
            self._page.show_in_plots(colours)
            self._plots.overlay(self.overlays.of_plots(self._on_plots))

    # --- from a checkpoint ------------------------------------------------------------------------------------

    def resume_from(self, checkpoint: Path) -> None:
        """Go on from a checkpoint: in its own run from the newest one, else in a new run."""
        if not self._own.machine.can_start:
            return
        run, info = checkpoint.parent.parent, checkpoint_dir.read_info(checkpoint)
        summary = self._history.get(run)
        newest = checkpoint_dir.list_checkpoints(checkpoint.parent)[-1:] == [checkpoint]
        if newest and summary is not None and summary.resumable:
            self.resume_asked.emit(run)
        elif info is not None:
            target = run_files.branch_path(run, info.step)
            self._own.start(command_line.branch(str(checkpoint), str(target)), target)

    def export(self, checkpoint: Path) -> None:
        """Ask for a folder, and write the model there for other programs."""
        if self._page is None or self.exporter.is_busy:
            return
        folder = self._page.ask_folder(self._settings.export_folder)
        if folder is not None:
            self._settings.export_folder = str(folder)
            self.exporter.start(checkpoint, folder)


class _Deleting(QObject):
    """Takes runs away: to the bin one at each turn of the event loop, for good in a thread."""

    leaving = Signal(Path)  # a run, when its turn has come
    ended = Signal(list, object, bool)  # runs that are gone; those left with reasons; whether it was for good

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._slices = Slices(self)
        self._waiting: deque[list[Path]] = deque()  # for the bin; the first ones are on their way

    def to_bin(self, paths: list[Path]) -> None:
        """After those that were given before."""
        known = {path for waiting in self._waiting for path in waiting}
        self._waiting.append([path for path in paths if path not in known])
        if len(self._waiting) == 1:
            self._slices.start(self._to_bin())

    def _to_bin(self) -> Iterator[None]:
        while self._waiting:
            gone: list[Path] = []
            left: dict[Path, str] = {}
            for path in self._waiting[0]:
                self.leaving.emit(path)
                if QFile.moveToTrash(str(path)) and not os.path.lexists(path):
                    gone.append(path)
                else:
                    left[path] = ""
                yield
            self.ended.emit(gone, left, False)
            self._waiting.popleft()

    def for_good(self, paths: list[Path]) -> None:
        for path in paths:
            self.leaving.emit(path)
        threading.Thread(target=self._remove, args=(paths,), daemon=True).start()

    def _remove(self, paths: list[Path]) -> None:
        gone: list[Path] = []
        left: dict[Path, str] = {}
        for path in paths:
            try:
                files.remove_tree(path, 2.0)
                gone.append(path)
            except OSError as error:
                left[path] = error.strerror or type(error).__name__
        self.ended.emit(gone, left, True)
