"""Start, Stop, progress and status of a job in another process."""

from __future__ import annotations

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QProgressBar, QWidget

from app.widgets import formatting
from app.widgets.basic import announce, label, move_focus, push_button, restyle, set_object_name, show_fraction


class JobControls(QObject):
    """Widgets, which the owner places and gives texts. `name`: prefix of their object names."""

    def __init__(self, name: str, progress_width: int, owner: QWidget) -> None:
        super().__init__(owner)
        self._owner, self._was_running = owner, False
        self.start, self.stop = push_button("primary"), push_button(f"{name}Stop")
        self.progress = set_object_name(QProgressBar(textVisible=False), f"{name}Progress")
        self.progress.setFixedWidth(progress_width)
        self.status = label(f"{name}Status", wrap=True)

    def display(self, running: bool, phase: str, fraction: float | None, blocked_reason: str) -> bool:
        """Show the state of the job. Returns whether it has just ended. `blocked_reason`: why it cannot be started."""
        has_ended, self._was_running = self._was_running and not running, running
        self.start.setEnabled(not blocked_reason)
        self.start.setToolTip(blocked_reason)
        if has_ended:
            move_focus(self.stop, self.start)
        self.stop.setVisible(running)
        self.progress.setVisible(running)
        if running:
            show_fraction(self.progress, fraction)
            self.show_status(formatting.format_phase(phase))
        return has_ended

    def show_end(self, text: str, level: str = "") -> None:
        """Show how the job ended, also to screen readers."""
        self.show_status(text, level)
        announce(self._owner, text)

    def show_status(self, text: str, level: str = "") -> None:
        self.status.setText(text)
        self.status.setVisible(bool(text))
        if self.status.property("level") != level:
            self.status.setProperty("level", level)
            restyle(self.status)
