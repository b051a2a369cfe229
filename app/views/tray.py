"""The tray icon that stands for the window while it is hidden and a run goes on."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, QObject, Signal
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QMenu, QSystemTrayIcon


def has_tray() -> bool:
    """Whether this desktop has a tray at all."""
    return QSystemTrayIcon.isSystemTrayAvailable()


class Tray(QObject):
    """Made when it is first needed."""

    show_asked = Signal()
    stop_asked = Signal()

    def __init__(self, icon: QIcon, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._icon = QSystemTrayIcon(icon, self)
        self._menu = QMenu()
        self._show = self._menu.addAction("")
        self._stop = self._menu.addAction("")
        self._show.triggered.connect(self.show_asked)
        self._stop.triggered.connect(self.stop_asked)
        self._icon.setContextMenu(self._menu)
        self._icon.activated.connect(self._on_activated)

    def appear(self) -> None:
        self._show.setText(QCoreApplication.translate("Tray", "Show the window"))
        self._stop.setText(QCoreApplication.translate("Tray", "Stop, save and quit"))
        self._icon.setToolTip(QCoreApplication.translate("Tray", "Traindeck is training"))
        self._icon.show()
        text = QCoreApplication.translate("Tray", "Training goes on. Click here to see it.")
        self._icon.showMessage("Traindeck", text)

    def vanish(self) -> None:
        self._icon.hide()

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is not QSystemTrayIcon.ActivationReason.Context:
            self.show_asked.emit()
