"""Message boxes. None blocks the event loop."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QMessageBox, QWidget

from app.texts import tr


def show_close_dialog(
    parent: QWidget, *, tray: bool, keep_training: Callable[[], None], stop_and_save: Callable[[], None]
) -> QMessageBox:
    """Ask what to do with the active run when the window is closed."""
    box = QMessageBox(parent)
    box.setIcon(QMessageBox.Icon.Question)
    box.setWindowModality(Qt.WindowModality.WindowModal)
    box.setWindowTitle(tr("common.close_dialog_title"))
    box.setText(tr("common.close_dialog_question"))
    if tray:
        keep_button = box.addButton(tr("common.keep_training_in_tray"), QMessageBox.ButtonRole.AcceptRole)
        keep_button.clicked.connect(keep_training)
    stop_button = box.addButton(tr("common.stop_and_save"), QMessageBox.ButtonRole.DestructiveRole)
    stop_button.setObjectName("stopAndSave")
    stop_button.clicked.connect(stop_and_save)
    cancel = box.addButton(tr("common.cancel"), QMessageBox.ButtonRole.RejectRole)
    box.setDefaultButton(cancel)
    box.setEscapeButton(cancel)
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.open()
    return box


def show_error_dialog(parent: QWidget | None, message: str, log_path: str) -> QMessageBox:
    """Report an error of the window, and the path of the log."""
    box = QMessageBox(parent)
    box.setIcon(QMessageBox.Icon.Warning)
    box.setTextFormat(Qt.TextFormat.PlainText)  # exceptions can contain markup
    box.setWindowTitle("Traindeck")
    box.setText(tr("common.window_error"))
    box.setInformativeText(f"{message}\n\n{tr('common.details_in_log', log=log_path)}")
    box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    box.open()
    return box
