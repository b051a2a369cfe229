"""Actions of the runs page: open, resume, rename, annotate, archive, delete, compare, export, show in the plots."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from PySide6.QtCore import QFile, QObject, Qt, QTimer, Signal

from app.core.active_run import ActiveRun
from app.core.history import run_files
from app.core.history.run_list import RunHistory
from app.core.idle_task import IdleTask
from app.core.settings import Settings
from app.pages.plots.overlay_controller import OverlayController
from app.pages.plots.plot_specs import OWN_COLOR
from app.pages.runs.dialogs import ComparisonDialog, DeleteDialog
from app.pages.runs.export_controller import Exporter
from app.services import desktop_shell
from app.texts import tr
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.system import files

if TYPE_CHECKING:
    from app.pages.plots.page import PlotsPage
    from app.pages.runs.page import RunsPage


class RunsController(QObject):
    """Applies the actions of the runs page to run folders. Runs that are being trained are left alone."""

    open_requested = Signal(Path)  # a run
    resume_requested = Signal(Path)  # a run, from its newest checkpoint
    generate_requested = Signal(Path)  # a checkpoint
    folder_closing = Signal(Path)  # a run folder that is about to be renamed or deleted: close its files
    run_moved = Signal(Path, object)  # old path of a run; new path, or None if it was deleted

    def __init__(
        self, history: RunHistory, active_run: ActiveRun, settings: Settings, page: RunsPage, plots: PlotsPage
    ) -> None:
        super().__init__(page)  # deleted with it, as are its timers and connections
        self._history, self._active_run, self._settings = history, active_run, settings
        self._page, self._plots = page, plots
        self.overlays, self.exporter = OverlayController(history, self), Exporter(parent=self)
        self._plotted_run: Path | None = None  # the run whose own curves the plots show
        self._inspected_state: list[tuple[object, ...]] = []  # of the selected runs when they were inspected
        self._checkpoints_task, self._size_task, self._compare_task = IdleTask(self), IdleTask(self), IdleTask(self)
        self._delete_dialog: DeleteDialog | None = None
        self._run_deleter = _RunDeleter(self)
        self._run_deleter.folder_closing.connect(self.folder_closing)
        self._run_deleter.finished.connect(self._on_deleted)
        self._display_timer = QTimer(self, singleShot=True, interval=0)
        self._display_timer.timeout.connect(self.display)
        self.folder_closing.connect(self._close_run_files)
        self.run_moved.connect(self.overlays.on_run_moved)
        active_run.state_changed.connect(self._display_timer.start)
        self.overlays.changed.connect(self._update_overlays)
        self.overlays.progressed.connect(page.set_loading)
        plots.overlay_removal_requested.connect(
            lambda: self.overlays.set_shown(list(self.overlays.selected_colors), on=False)
        )
        self._connect_page(page)

    def _connect_page(self, page: RunsPage) -> None:
        actions, checkpoints = page.run_actions, page.details.checkpoints
        page.selection_changed.connect(self._inspect_selected)
        page.open_requested.connect(self.open_requested)
        page.folder_requested.connect(desktop_shell.open_folder)
        page.overlay_requested.connect(self.set_overlay_shown)
        # Queued: the editor of the name closes first.
        page.model.rename_requested.connect(self.rename, Qt.ConnectionType.QueuedConnection)
        actions["resume"].triggered.connect(lambda: self.resume_requested.emit(page.paths()[0]))
        actions["archive"].triggered.connect(lambda: self.archive(page.paths(), not page.all_archived()))
        actions["delete"].triggered.connect(lambda: self.confirm_delete(page.paths()))
        actions["compare"].triggered.connect(lambda: self._compare_task.start(self._compare(page.paths())))
        page.details.note_changed.connect(lambda path, note: self._update_notes(path, note=note))
        page.details.tags_changed.connect(lambda path, tags: self._update_notes(path, tags=tags))
        checkpoints.resume_requested.connect(self.resume_from_checkpoint)
        checkpoints.generate_requested.connect(self.generate_requested)
        checkpoints.export_requested.connect(self.export)
        self.exporter.message_ready.connect(page.show_message)
        self.exporter.changed.connect(lambda: checkpoints.set_exporting(self.exporter.is_busy))

    def display(self) -> None:
        """Show the runs that the last refresh found."""
        self._page.display(self._history.rows, can_resume=self._active_run.machine.can_start)
        if self._selected_state() != self._inspected_state:  # e.g. a checkpoint was added
            self._inspect_selected()

    def on_runs_listed(self) -> None:
        """Called after each refresh of the run list."""
        self.overlays.refresh()
        self.display()

    def set_plotted_run(self, run: Path | None) -> None:
        """Set the run whose own curves the plots show; it needs no overlay."""
        if run != self._plotted_run:
            self._plotted_run = run
            self._update_overlays()

    def shutdown(self) -> None:
        """Save edits and stop all work."""
        self._page.details.save()
        self._active_run.state_changed.disconnect(self._display_timer.start)
        self._display_timer.stop()
        self._stop_tasks()
        self.overlays.shutdown()
        self.exporter.shutdown()

    def _stop_tasks(self) -> None:
        for task in (self._checkpoints_task, self._size_task, self._compare_task):
            task.stop()

    # --- notes, names, the archive ------------------------------------------------------------------------

    def _update_notes(self, path: Path, **changes: Any) -> None:
        """Change fields of `RunNotes`."""
        try:
            self._history.set_notes(path, msgspec.structs.replace(self._history.notes(path), **changes))
        except OSError as error:
            reason, name = error.strerror or type(error).__name__, path.name
            self._page.show_message(lambda: tr("runs.notes_not_saved", name=name, reason=reason))
        self._display_timer.start()

    def archive(self, paths: list[Path], archived: bool) -> None:
        """Archive runs, which also hides them in the plots, or restore them."""
        for path in paths:
            self._update_notes(path, archived=archived)
        if archived:
            self.overlays.set_shown(paths, on=False)

    def rename(self, path: Path, name: str) -> None:
        """Rename a run folder, or show why that is not possible."""
        problem = "running" if self._is_training(path) else run_files.name_problem(path, name)
        if problem:
            self._page.show_message(lambda: _format_name_problem(problem, name))
            return
        target = path.with_name(name)
        self.folder_closing.emit(path)
        try:
            files.replace(path, target, seconds=0.0)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            text = tr("runs.rename_failed")
            self._page.show_message(lambda: text.format(name=path.name, reason=reason))
            self.overlays.refresh()
            return
        self._on_run_folder_moved(path, target)

    def _close_run_files(self, run: Path) -> None:
        """Close the open files in a run folder."""
        self._stop_tasks()
        self.overlays.close_run(run)

    def _on_run_folder_moved(self, old: Path, new: Path | None) -> None:
        self._history.forget(old)
        if new is not None:
            self._history.get(new)
        self._active_run.handle_run_moved(old, new)
        self.run_moved.emit(old, new)
        self.display()
        if new is not None:
            self._page.select([new])

    # --- deleting -----------------------------------------------------------------------------------------

    def confirm_delete(self, paths: list[Path]) -> None:
        """Ask whether to move runs to the recycle bin, except those that are being trained."""
        deletable = self._exclude_running(paths)
        if deletable:
            self._show_delete_dialog(deletable, self._run_deleter.move_to_trash, permanently=False)

    def _delete(self, paths: list[Path], delete: Callable[[list[Path]], None]) -> None:
        deletable = self._exclude_running(paths)
        if self._active_run.auto_restart.pending and any(map(self._is_active_run, deletable)):
            self._active_run.cancel_restart()
        delete(deletable)

    def _show_delete_dialog(
        self, paths: list[Path], delete: Callable[[list[Path]], None], *, permanently: bool
    ) -> None:
        dialog = DeleteDialog(paths, lambda: self._delete(paths, delete), self._page.window(), permanently=permanently)
        dialog.finished.connect(self._on_delete_dialog_closed)
        self._delete_dialog = dialog
        self._size_task.start(self._measure_size(paths, dialog.show_size))

    def _on_delete_dialog_closed(self) -> None:
        self._delete_dialog = None
        self._size_task.stop()
        self._inspect_selected()  # the dialog has replaced its size task

    def _exclude_running(self, paths: list[Path]) -> list[Path]:
        running = [path for path in paths if self._is_training(path) or run_files.is_running(path)]
        if running:
            name = running[0].name
            text = tr("runs.delete_active")
            self._page.show_message(lambda: text.format(name=name))
        return [path for path in paths if path not in running]

    def _is_active_run(self, path: Path) -> bool:
        """Whether this window trains that run, or trained it last."""
        return bool(self._active_run.machine.run_dir) and Path(self._active_run.machine.run_dir) == path

    def _is_training(self, path: Path) -> bool:
        """Whether this window trains that run. While the trainer starts or exits, there is no lock on the run."""
        return self._active_run.machine.is_active and self._is_active_run(path)

    def _on_deleted(self, deleted: list[Path], failed: dict[Path, str], permanently: bool) -> None:
        for path in deleted:
            self._on_run_folder_moved(path, None)
        self.overlays.refresh()
        if failed and not permanently:
            self._show_delete_dialog(list(failed), self._run_deleter.delete_permanently, permanently=True)
        elif failed:
            path, reason = next(iter(failed.items()))
            self._page.show_message(lambda: tr("runs.delete_failed", name=path.name, reason=reason))

    # --- selected runs --------------------------------------------------------------------------------------

    def _inspect_selected(self) -> None:
        paths, details = self._page.paths(), self._page.details
        self._inspected_state = self._selected_state()
        self._checkpoints_task.start(self._read_checkpoints(paths[0]) if len(paths) == 1 else iter(()))
        if self._delete_dialog is None:
            self._size_task.start(self._measure_size(paths, details.show_size))

    def _selected_state(self) -> list[tuple[object, ...]]:
        runs = [row.run for row in self._page.table.selected_rows()]
        return [(run.path, run.state, run.checkpoints) for run in runs]

    def _read_checkpoints(self, run: Path) -> Iterator[None]:
        checkpoints = []
        for checkpoint in run_files.iter_checkpoints(run):
            checkpoints.append(checkpoint)
            yield
        if self._page.paths() == [run]:
            self._page.details.checkpoints.set_checkpoints(checkpoints)

    @staticmethod
    def _measure_size(paths: list[Path], show: Callable[[int], None]) -> Iterator[None]:
        sizes: dict[Path, int] = {}
        for path in paths:
            for size in run_files.iter_folder_size(path):
                yield
                sizes[path] = size
        show(sum(sizes.values()))

    # --- comparison, plots -----------------------------------------------------------------------------------

    def _compare(self, paths: list[Path]) -> Iterator[None]:
        """Show where runs differ, once their configurations are read."""
        configs, runs = [], []
        for path in paths:
            summary = self._history.get(path)
            if summary is not None:
                runs.append(summary)
                configs.append(run_dir.read_yaml(RunDir(path).config))
            yield
        if len(runs) >= 2:
            dialog = ComparisonDialog(runs, run_files.config_differences(configs), self._page.window())
            dialog.copy_requested.connect(desktop_shell.copy_text)
            dialog.show()

    def set_overlay_shown(self, paths: list[Path], on: bool) -> None:
        if not self.overlays.set_shown(paths, on=on):
            self._page.show_message(lambda: tr("runs.max_overlays"))

    def _update_overlays(self) -> None:
        colors = self.overlays.selected_colors
        if self._plotted_run in colors:
            colors[self._plotted_run] = OWN_COLOR
        self._page.set_overlays(colors)
        self._plots.set_overlays(self.overlays.visible_overlays(self._plotted_run))

    # --- from a checkpoint ------------------------------------------------------------------------------------

    def resume_from_checkpoint(self, checkpoint: Path) -> None:
        """Resume the run from its newest checkpoint, or start a new run from an older one."""
        if not self._active_run.machine.can_start:
            return
        run, info = checkpoint.parent.parent, checkpoint_dir.read_info(checkpoint)
        summary = self._history.get(run)
        newest = checkpoint_dir.list_checkpoints(checkpoint.parent)[-1:] == [checkpoint]
        if newest and summary is not None and summary.resumable:
            self.resume_requested.emit(run)
        elif info is not None:
            target = run_files.new_branch_path(run, info.step)
            self._active_run.start(["train", "--resume", str(checkpoint), "--run-dir", str(target)], target)

    def export(self, checkpoint: Path) -> None:
        """Ask for a folder and export a checkpoint to it."""
        if self.exporter.is_busy:
            return
        folder = self._page.ask_export_folder(self._settings.export_folder)
        if folder is not None:
            self._settings.export_folder = str(folder)
            self.exporter.start(checkpoint, folder)


class _RunDeleter(QObject):
    """Moves runs to the recycle bin, one per event loop iteration, or deletes them permanently in a thread."""

    folder_closing = Signal(Path)  # a run, immediately before it is deleted
    finished = Signal(list, object, bool)  # deleted runs; the others with reasons; whether permanently

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._idle_task = IdleTask(self)
        self._pending: list[Path] = []  # to be moved to the recycle bin
        self._is_trashing = False

    def move_to_trash(self, paths: list[Path]) -> None:
        """Move runs to the recycle bin after those of earlier calls."""
        self._pending += [path for path in paths if path not in self._pending]
        if not self._is_trashing:
            self._is_trashing = True
            self._idle_task.start(self._trash_pending())

    def _trash_pending(self) -> Iterator[None]:
        deleted: list[Path] = []
        failed: dict[Path, str] = {}
        while self._pending:
            path = self._pending.pop(0)
            self.folder_closing.emit(path)
            if QFile.moveToTrash(str(path)) and not os.path.lexists(path):
                deleted.append(path)
            elif path not in deleted:
                failed[path] = ""
            yield
        self._is_trashing = False
        self.finished.emit(deleted, failed, False)

    def delete_permanently(self, paths: list[Path]) -> None:
        for path in paths:
            self.folder_closing.emit(path)
        threading.Thread(target=self._delete_trees, args=(paths,), daemon=True).start()

    def _delete_trees(self, paths: list[Path]) -> None:
        deleted: list[Path] = []
        failed: dict[Path, str] = {}
        for path in paths:
            try:
                files.remove_tree(path, 2.0)
                deleted.append(path)
            except OSError as error:
                failed[path] = error.strerror or type(error).__name__
        self.finished.emit(deleted, failed, True)


def _format_name_problem(problem: str, name: str) -> str:
    """Translated `run_files.NameProblem`."""
    texts = {
        "empty": tr("runs.name_required"),
        "impossible": tr("runs.name_invalid"),
        "taken": tr("runs.name_exists", name=name),
        "running": tr("runs.rename_active"),
        "gone": tr("runs.not_found"),
    }
    return texts[problem]
