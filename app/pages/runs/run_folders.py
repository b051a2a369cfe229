"""Changes of run folders: notes, names, deletion."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
from PySide6.QtCore import QFile, QObject, Signal
from PySide6.QtWidgets import QWidget

from app.core.active_run import ActiveRun
from app.core.history import run_files
from app.core.history.run_list import RunList
from app.core.pool_task import PoolTask
from app.pages.runs.dialogs import DeleteDialog
from app.texts import tr
from trainer_core.system import files


class RunFolders(QObject):
    """Leaves runs alone that are being trained."""

    closing = Signal(Path)  # a run folder that is about to be renamed or deleted: close its files
    moved = Signal(Path, object)  # old path of a run; new path, or None if it was deleted
    changed = Signal()  # other changes
    message_ready = Signal(str)  # why something failed

    def __init__(self, history: RunList, active_run: ActiveRun, page: QWidget) -> None:
        super().__init__(page)
        self._history, self._active_run, self._page = history, active_run, page
        self._delete_task = PoolTask(self)
        self._delete_task.finished.connect(self._on_deleted)

    def update_notes(self, path: Path, **changes: Any) -> None:
        """Change fields of `RunNotes`."""
        try:
            self._history.set_notes(path, msgspec.structs.replace(self._history.notes(path), **changes))
        except OSError as error:
            self.message_ready.emit(tr("runs.notes_not_saved", name=path.name, reason=_reason(error)))
        self.changed.emit()

    def rename(self, path: Path, name: str) -> None:
        """Rename a run folder, or emit why that is not possible."""
        problem = "runs.rename_active" if self._is_training(path) else run_files.name_problem(path, name)
        if problem:
            self.message_ready.emit(tr(problem, name=name))
            return
        target = path.with_name(name)
        self.closing.emit(path)
        try:
            files.replace(path, target, seconds=0.0)
        except OSError as error:
            self.message_ready.emit(tr("runs.rename_failed", name=path.name, reason=_reason(error)))
            self.changed.emit()
        else:
            self._on_moved(path, target)

    def _on_moved(self, old: Path, new: Path | None) -> None:
        self._history.forget(old)
        if new is not None:
            self._history.get(new)
        self._active_run.handle_run_moved(old, new)
        self.moved.emit(old, new)

    # --- deletion -----------------------------------------------------------------------------------------

    def confirm_delete(self, paths: list[Path]) -> None:
        """Ask whether to move runs to the recycle bin, except those that are being trained."""
        if deletable := self._exclude_running(paths):
            self._ask(deletable, permanently=False)

    def _ask(self, paths: list[Path], *, permanently: bool) -> None:
        dialog = DeleteDialog(paths, self._page.window(), permanently=permanently)
        dialog.delete_button.clicked.connect(lambda: self.delete(paths, permanently=permanently))
        dialog.open()

    def delete(self, paths: list[Path], *, permanently: bool = False) -> None:
        """Move runs to the recycle bin, and ask again where there is none; or delete them permanently."""
        deletable = self._exclude_running(paths)
        if self._active_run.auto_restart.pending and any(map(self._is_active_run, deletable)):
            self._active_run.cancel_restart()
        if permanently:
            for path in deletable:
                self.closing.emit(path)
            self._delete_task.start(lambda: [(path, _delete_tree(path)) for path in deletable])
        elif failed := [path for path in deletable if not self._move_to_trash(path)]:
            self._ask(failed, permanently=True)
        self.changed.emit()

    def _move_to_trash(self, path: Path) -> bool:
        self.closing.emit(path)
        if not QFile.moveToTrash(str(path)) or os.path.lexists(path):
            return False
        self._on_moved(path, None)
        return True

    def _on_deleted(self, results: list[tuple[Path, str]]) -> None:
        """`results`: runs, and why each could not be deleted."""
        for path, problem in results:
            if problem:
                self.message_ready.emit(tr("runs.delete_failed", name=path.name, reason=problem))
            else:
                self._on_moved(path, None)
        self.changed.emit()

    def _exclude_running(self, paths: list[Path]) -> list[Path]:
        running = [path for path in paths if self._is_training(path) or run_files.is_running(path)]
        if running:
            self.message_ready.emit(tr("runs.delete_active", name=running[0].name))
        return [path for path in paths if path not in running]

    def _is_active_run(self, path: Path) -> bool:
        """Whether this window trains that run, or trained it last."""
        return bool(self._active_run.machine.run_dir) and Path(self._active_run.machine.run_dir) == path

    def _is_training(self, path: Path) -> bool:
        """Whether this window trains that run. While the trainer starts or exits, there is no lock on the run."""
        return self._active_run.machine.is_active and self._is_active_run(path)


def _delete_tree(path: Path) -> str:
    """Delete a folder. Returns why that failed, or an empty string."""
    try:
        files.remove_tree(path, 2.0)
    except OSError as error:
        return _reason(error)
    return ""


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
