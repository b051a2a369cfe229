"""Displays warnings and errors of the trainer and of the window in banners."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject

from app.core.active_run import ActiveRun
from app.core.run_state import RunState
from app.services.trainer_process import ProcessOutcome
from app.texts import tr
from app.widgets import formatting
from app.window.banner import BannerArea, BannerContent, Level
from trainer_core import error_codes, protocol
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent
from trainer_core.restart_policy import GiveUp


class BannerController(QObject):
    """Adds banners; their texts are functions, called again when the language changes."""

    def __init__(self, banners: BannerArea, active_run: ActiveRun) -> None:
        super().__init__(banners)
        self._banners, self._active_run, self._machine = banners, active_run, active_run.machine
        active_run.event_received.connect(self._on_event)
        active_run.ended.connect(self._on_run_ended)
        active_run.process.protocol_incompatible.connect(self._show_incompatible)

    def show_error(self, error: TraindeckError | protocol.MessageEvent, level: Level = "error") -> None:
        """Display an error of the window, or an error or a warning of the trainer."""
        text = partial(formatting.localized_message, error.code, error.params)
        self._banners.add(BannerContent(level, text, error.detail, error.code))

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Warn):
            self.show_error(event, "warning")
        elif isinstance(event, protocol.Error):
            self.show_error(event)

    def _on_run_ended(self, outcome: ProcessOutcome) -> None:
        if self._active_run.auto_restart.gave_up is not None:
            self._show_gave_up(self._active_run.auto_restart.gave_up)
        if self._machine.state is RunState.CRASHED or outcome.failed_to_start:
            self._show_crash(outcome)

    def _show_crash(self, outcome: ProcessOutcome) -> None:
        """Display the end of a trainer that sent no error."""
        output = "\n".join(outcome.output_tail)
        known = error_codes.classify_exit_code(outcome.exit_code, crashed=outcome.crashed)
        cause = error_codes.classify_termination(outcome.exit_code, output, crashed=outcome.crashed)
        code = known.detail if known is not None else outcome.exit_code

        def text() -> str:
            if outcome.failed_to_start:
                return tr("window.trainer_not_started")
            if self._machine.can_resume_from_disk:
                ended = tr("window.trainer_exited_resumable", code=code)
            else:
                ended = tr("window.trainer_exited_unsaved", code=code)
            if cause is None:
                return ended
            return f"{ended} {formatting.localized_message(cause.code, {'step': self._machine.step, **cause.params})}"

        self._banners.add(BannerContent("error", text, output, "crash"))

    def _show_gave_up(self, given_up: GiveUp) -> None:
        def text() -> str:
            reason = formatting.format_failure(given_up.reason, self._machine.last_error)
            return tr("window.restarts_failed", count=given_up.attempts, reason=reason)

        self._banners.add(BannerContent("warning", text, key="gave_up"))

    def _show_incompatible(self, version: tuple[int, int]) -> None:
        text = partial(tr, "window.newer_protocol", version=".".join(map(str, version)))
        self._banners.add(BannerContent("warning", text, key="incompatible"))
