"""Questions to the person. None blocks: the run and its plots go on behind them."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QCoreApplication, Qt
from PySide6.QtWidgets import QMessageBox, QWidget


def ask_closing(parent: QWidget, *, tray: bool, keep: Callable[[], None], stop: Callable[[], None]) -> QMessageBox:
    """What to do with a run that is on when the window is closed. Cancel does nothing."""
    box = QMessageBox(parent)
    box.setIcon(QMessageBox.Icon.Question)
    box.setWindowModality(Qt.WindowModality.WindowModal)
    box.setWindowTitle(QCoreApplication.translate("Closing", "Training is going on"))
    box.setText(QCoreApplication.translate("Closing", "A run is being trained. What should happen to it?"))
    if tray:
        keeping = QCoreApplication.translate("Closing", "Keep training in the tray")
        box.addButton(keeping, QMessageBox.ButtonRole.AcceptRole).clicked.connect(keep)
    stopping = QCoreApplication.translate("Closing", "Stop and save")
    stop_button = box.addButton(stopping, QMessageBox.ButtonRole.DestructiveRole)
    stop_button.setObjectName("stopAndSave")
    stop_button.clicked.connect(stop)
    cancel = box.addButton(QCoreApplication.translate("Closing", "Cancel"), QMessageBox.ButtonRole.RejectRole)
    box.setDefaultButton(cancel)
    box.setEscapeButton(cancel)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.open()
    return box


def show_crash(parent: QWidget | None, what: str, log: str) -> QMessageBox:
    """The window itself went wrong: say so, and where the details are."""
    box = QMessageBox(parent)
    box.setIcon(QMessageBox.Icon.Warning)
    box.setTextFormat(Qt.TextFormat.PlainText)  # an exception's words may hold anything
    box.setWindowTitle("Traindeck")
    text = QCoreApplication.translate("Crash", "Something in the window went wrong. A run that is on goes on.")
    box.setText(text)
    where = QCoreApplication.translate("Crash", "The details are in {log}").format(log=log)
    box.setInformativeText(f"{what}\n\n{where}")
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.open()
    return box
