"""Export of a checkpoint for other programs, by a process of its own: it reads and hashes gigabytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.services.trainer_process import Outcome, TrainerProcess
from app.views import words
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs.run_dir import safe_name


class Exporter(QObject):
    """At most one at a time."""

    said = Signal(object, object)  # what there is to say: a function that words it; the folder to open, or None
    changed = Signal()  # it began or ended

    def __init__(self, process: TrainerProcess | None = None, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.process = process or TrainerProcess(self)
        self._target = Path()
        self._error: protocol.Error | None = None
        self.process.event.connect(self._on_event)
        self.process.finished.connect(self._on_finished)

    @property
    def is_busy(self) -> bool:
        return self.process.is_running

    def start(self, checkpoint: Path, folder: Path) -> None:
        """Export into `folder` if it is empty and can be replaced, else into a new folder in it."""
        self._target, self._error = target_in(folder, checkpoint), None
        arguments = ["export", str(checkpoint), str(self._target), "--language", words.language()]
        if self.process.start(arguments):
            self._say(self._under_way(0.0))
            self.changed.emit()

    def leave(self) -> None:
        """The window closes: the process goes with it, after some seconds at most to take away what is half done."""
        self.process.blockSignals(True)
        self.process.shutdown()

    def _say(self, text: Callable[[], str], folder: Path | None = None) -> None:
        self.said.emit(text, folder)

    def _under_way(self, share: float) -> Callable[[], str]:
        name = self._target.name
        return lambda: self.tr("Exporting {name}: {share}").format(name=name, share=f"{share:.0%}")

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Error):
            self._error = event
        elif isinstance(event, protocol.Progress) and event.total:
            self._say(self._under_way(event.done / event.total))

    def _on_finished(self, outcome: Outcome) -> None:
        target, error = self._target, self._error
        if outcome.exit_code == 0 and not outcome.crashed:
            self._say(lambda: self.tr("Exported to {folder}").format(folder=target), target)
        elif error is not None:
            self._say(lambda: words.message(error.code, error.params))
        else:
            last = " ".join(outcome.last_words[-1:])
            text = self.tr("The export ended unexpectedly (code {code}). Nothing was written. {words}")
            self._say(lambda: text.format(code=outcome.exit_code, words=last))
        self.changed.emit()


def target_in(folder: Path, checkpoint: Path) -> Path:
    """`folder` itself where it is not there, or empty and replaceable, else a free name in it."""
    try:
        if not _is_fixed(folder) and not any(folder.iterdir()):
            return folder
    except OSError:
        return folder
    base = folder / safe_name(f"{checkpoint.parent.parent.name[:60]}-{checkpoint.name}")
    target, number = base, 2
    while target.exists():
        target, number = base.with_name(f"{base.name}-{number}"), number + 1
    return target


def _is_fixed(folder: Path) -> bool:
    """Whether no other folder can take its place: a drive, a mount point, a link, or one beside which none can be."""
    # Not `Path.is_mount`: on Windows only from Python 3.12 on.
    if os.path.ismount(folder) or folder.is_symlink():
        return True
    return folder.exists() and not os.access(folder.parent, os.W_OK)
