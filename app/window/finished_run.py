"""Offers a chat with the model of the run that ended."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QObject, QTimer

from app.core.active_run import ActiveRun
from app.core.run_state import RunState
from app.texts import tr
from app.widgets.basic import scroll_into_view
from app.window.main_window import MainWindow


class FinishedRunOffer(QObject):
    """Shows the bar from the end of a run that has a checkpoint until it is closed or the next run starts."""

    def __init__(self, window: MainWindow, active_run: ActiveRun) -> None:
        super().__init__(window)
        self._window, self._active_run = window, active_run
        self._is_open = False
        bar = window.finished_run_bar
        bar.buttons["primary"].clicked.connect(self._open_chat)
        bar.buttons["closeFinished"].clicked.connect(self._close)
        active_run.about_to_start.connect(self._close)
        active_run.ended.connect(self._on_run_ended)

    def refresh(self) -> None:
        machine = self._active_run.machine
        is_shown = self._is_open and machine.has_checkpoint
        run = Path(machine.run_dir).name
        self._window.finished_run_bar.set_message(tr("window.model_saved", run=run) if is_shown else "")

    def _on_run_ended(self) -> None:
        self._is_open = self._active_run.machine.state in (RunState.FINISHED, RunState.STOPPED)

    def _close(self) -> None:
        self._is_open = False
        self.refresh()

    def _open_chat(self) -> None:
        """Show the chat with the newest checkpoint of the run. An empty input gets a prompt of its samples."""
        chat, samples = self._window.chat, self._active_run.record.samples
        chat.select_model(Path(self._active_run.machine.run_dir))
        if samples and not chat.prompt.toPlainText():
            chat.prompt.setPlainText(samples[-1].prompt)
        self._close()
        self._window.show_page("chat")
        chat.prompt.setFocus()
        chat.prompt.selectAll()
        QTimer.singleShot(0, chat, lambda: scroll_into_view(chat.write))  # after its layout
