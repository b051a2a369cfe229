"""Processes that make arrays of a long run's events, so that the window does not stand still meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

from app.services.trainer_process import console_python
from trainer_core import children

# Memory that is freed is kept for what comes next, where glibc would hand it back each time: 5 % of the work.
_ENVIRONMENT: Final = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}


class Digesting(QObject):
    """Some side by side, each of which makes several parts."""

    progressed = Signal(float)  # the share that is done, 0..1
    finished = Signal(bool)  # whether all of them did their work

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._shares: dict[QProcess, float] = {}
        self._running = 0
        self._well = True

    def start(self, commands: Sequence[Sequence[str]]) -> None:
        """Begin; what was going on is given up. `commands`: the arguments of each process, see `digest.wanted`."""
        self.cancel()
        self._running, self._well = len(commands), True
        environment = QProcessEnvironment()
        for name, value in children.environment(**_ENVIRONMENT).items():
            environment.insert(name, value)
        for arguments in commands:
            process = QProcess(self)
            self._shares[process] = 0.0
            process.setProcessEnvironment(environment)
            process.setProgram(console_python())
            process.setArguments(["-P", "-X", "utf8", "-m", "app.state.measurements.digest", *arguments])
            process.setStandardErrorFile(QProcess.nullDevice())
            process.readyReadStandardOutput.connect(lambda of=process: self._on_told(of))
            process.errorOccurred.connect(lambda error, of=process: self._on_error(of, error))
            process.finished.connect(lambda code, status, of=process: self._on_ended(of, code == 0))
        for process in list(self._shares):
            process.start()

    def cancel(self) -> None:
        """End them; nothing is said of it."""
        processes, self._shares, self._running = list(self._shares), {}, 0
        for process in processes:
            if process.state() is QProcess.ProcessState.NotRunning:
                process.deleteLater()
            else:
                process.kill()  # `_on_ended` removes it

    def _on_told(self, process: QProcess) -> None:
        told = bytes(process.readAllStandardOutput().data()).split()
        if told and process in self._shares:
            with contextlib.suppress(ValueError):
                self._shares[process] = float(told[-1])
            self.progressed.emit(sum(self._shares.values()) / len(self._shares))

    def _on_error(self, process: QProcess, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:  # of all others `finished` tells
            self._on_ended(process, False)

    def _on_ended(self, process: QProcess, well: bool) -> None:
        if process not in self._shares:
            process.deleteLater()
            return
        self._running -= 1
        self._well = self._well and well
        if not self._running:
            well = self._well
            for ended in self._shares:
                ended.deleteLater()
            self._shares = {}
            self.finished.emit(well)
