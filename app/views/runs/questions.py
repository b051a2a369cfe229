"""Questions before runs are deleted. None blocks: the window goes on behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QMessageBox, QWidget

from app.views import words

_NAMED: Final = 8  # runs that a question names


class DeleteQuestion(QMessageBox):
    """Whether runs are to be moved to the recycle bin, or (`for_good`) deleted where there is none."""

    def __init__(
        self, runs: Sequence[Path], delete: Callable[[], None], parent: QWidget, *, for_good: bool = False
    ) -> None:
        super().__init__(parent)
        self._runs = list(runs)
        self.setIcon(QMessageBox.Icon.Warning if for_good else QMessageBox.Icon.Question)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Delete runs"))
        self.setText(self._for_good() if for_good else self._to_bin())
        action = self.tr("Delete for good") if for_good else self.tr("Move to the recycle bin")
        self.delete = self.addButton(action, QMessageBox.ButtonRole.DestructiveRole)
        self.delete.setObjectName("deleteRuns")
        self.delete.clicked.connect(delete)
        cancel = self.addButton(self.tr("Cancel"), QMessageBox.ButtonRole.RejectRole)
        self.setDefaultButton(cancel if for_good else self.delete)
        self.setEscapeButton(cancel)
        self.show_size(0, complete=False)
        self.open()

    def show_size(self, size: int, *, complete: bool) -> None:
        """Bytes on disk of all these runs, as far as they are counted."""
        names = "\n".join(run.name for run in self._runs[:_NAMED])
        if len(self._runs) > _NAMED:
            names += "\n…"
        on_disk = self.tr("On disk: {size}").format(size=words.small_size(size) + ("" if complete else " …"))
        self.setInformativeText(f"{names}\n\n{on_disk}")

    def _to_bin(self) -> str:
        if len(self._runs) == 1:
            return self.tr("Move this run with its checkpoints to the recycle bin?")
        return self.tr("Move {count} runs with their checkpoints to the recycle bin?").format(count=len(self._runs))

    def _for_good(self) -> str:
        if len(self._runs) == 1:
            return self.tr("The system could not move this run to its recycle bin. Delete it for good?")
        text = self.tr("The system could not move {count} runs to its recycle bin. Delete them for good?")
        return text.format(count=len(self._runs))


def name_problem(problem: str, name: str) -> str:
    """Why a run cannot be called so (`run_files.NameProblem`)."""
    said = {
        "empty": QCoreApplication.translate("RunName", "A run needs a name."),
        "impossible": QCoreApplication.translate(
            "RunName",
            "“{name}” cannot be a folder's name on Windows: leave out < > : \" / \\ | ? * and names such as CON.",
        ),
        "taken": QCoreApplication.translate("RunName", "There is a run or a folder called “{name}” already."),
        "running": QCoreApplication.translate("RunName", "This run is being trained. Stop it, then rename it."),
        "gone": QCoreApplication.translate("RunName", "This run is not there any more."),
    }
    return said[problem].format(name=name)
