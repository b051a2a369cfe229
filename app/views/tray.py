"""The tray icon: how the run is doing, and the few things one does to it, without the window."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QCoreApplication, QObject, Signal
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QMenu, QSystemTrayIcon

from app.state.glance import Glance
from app.state.run_machine import RunMachine, RunState
from app.theme.icons import badged
from app.views import words

_LONGEST: Final = 127  # characters of a tooltip that Windows keeps


def has_tray() -> bool:
    """Whether this desktop has a tray at all."""
    return QSystemTrayIcon.isSystemTrayAvailable()


class Tray(QObject):
    """Made when it is first needed. It words itself whenever it is shown something."""

    show_asked = Signal()
    pause_asked = Signal()
    resume_asked = Signal()
    stop_asked = Signal()
    quit_asked = Signal()

    def __init__(self, icon: QIcon, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._base = icon
        self._mood = ""
        self.icon = QSystemTrayIcon(icon, self)
        self.menu = QMenu()
        self.show, self.pause, self.resume, self.stop, self.quit = (self.menu.addAction("") for _ in range(5))
        self.menu.insertSeparator(self.pause)
        self.menu.insertSeparator(self.quit)
        self.menu.setDefaultAction(self.show)
        self.show.triggered.connect(self.show_asked)
        self.pause.triggered.connect(self.pause_asked)
        self.resume.triggered.connect(self.resume_asked)
        self.stop.triggered.connect(self.stop_asked)
        self.quit.triggered.connect(self.quit_asked)
        self.icon.setContextMenu(self.menu)
        self.icon.activated.connect(self._on_activated)
        self.icon.messageClicked.connect(self.show_asked)

    def display(self, name: str, glance: Glance, machine: RunMachine) -> None:
        """Show the run `name`; the icon appears with the first one."""
        if glance.mood != self._mood:
            self._mood = glance.mood
            self.icon.setIcon(badged(self._base, glance.mood))
        self.icon.setToolTip(tooltip(name, glance)[:_LONGEST])
        self.resume.setVisible(machine.state is RunState.PAUSED)
        self.pause.setVisible(not self.resume.isVisible())
        self.pause.setEnabled(machine.can_pause)
        self.resume.setEnabled(machine.can_resume)
        self.stop.setEnabled(machine.can_stop and machine.state is not RunState.STOPPING)
        self.quit.setEnabled(machine.is_active)
        self._word()
        self.icon.show()

    def say(self, title: str, text: str, *, bad: bool = False) -> None:
        """A message of the desktop; a click on it shows the window."""
        kind = QSystemTrayIcon.MessageIcon.Warning if bad else QSystemTrayIcon.MessageIcon.Information
        self.icon.showMessage(title, text, kind)

    def say_going_on(self) -> None:
        """Where the window has gone."""
        self.say("Traindeck", QCoreApplication.translate("Tray", "Training goes on. Click here to see it."))

    def vanish(self) -> None:
        self.icon.hide()

    def _word(self) -> None:
        self.show.setText(QCoreApplication.translate("Tray", "Show the window"))
        self.pause.setText(QCoreApplication.translate("Tray", "Pause"))
        self.resume.setText(QCoreApplication.translate("Tray", "Resume"))
        self.stop.setText(QCoreApplication.translate("Tray", "Stop and save"))
        self.quit.setText(QCoreApplication.translate("Tray", "Stop, save and quit"))

    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is not QSystemTrayIcon.ActivationReason.Context:
            self.show_asked.emit()


def tooltip(name: str, glance: Glance) -> str:
    """`NAME`, then what it does: step, loss, time left, as far as they are known."""
    parts = [words.state(glance.state)]
    if glance.step and glance.total_steps:
        text = QCoreApplication.translate("Tray", "step {step} of {total}")
        parts.append(text.format(step=words.count(glance.step), total=words.count(glance.total_steps)))
    elif glance.step:
        parts.append(QCoreApplication.translate("Tray", "step {step}").format(step=words.count(glance.step)))
    if glance.loss is not None:
        parts.append(QCoreApplication.translate("Tray", "loss {loss}").format(loss=words.loss(glance.loss)))
    if glance.minutes_left is not None and not glance.is_over:
        hours, minutes = divmod(glance.minutes_left, 60)
        text = QCoreApplication.translate("Tray", "about {hours} h {minutes} min left")
        short = QCoreApplication.translate("Tray", "about {minutes} min left")
        parts.append(text.format(hours=hours, minutes=minutes) if hours else short.format(minutes=minutes))
    return "\n".join([name[:60], " · ".join(parts)])
