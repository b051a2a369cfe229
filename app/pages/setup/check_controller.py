"""Check before the start: runs a few real training steps in a separate process and shows the results in a card."""

from __future__ import annotations

from collections.abc import Callable

from app.core.preview_keys import check_key, offered_settings
from app.pages.setup.check_card import CheckCard, CheckState
from app.pages.setup.form import SetupForm
from app.services.preview_job import PreviewJob
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from trainer_core.messages import TraindeckError
from trainer_core.protocol import CheckReport


class CheckJob(PreviewJob[CheckReport]):
    """Runs a check of the form and shows its card until it is closed."""

    report_type = CheckReport
    command = ("check",)
    build_key = staticmethod(check_key)
    unexpected_exit_key = "setup.check_exited"

    def __init__(
        self,
        form: SetupForm,
        show_error: Callable[[TraindeckError], None],
        process: TrainerProcess | None,
        card: CheckCard,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(form, show_error, process)
        self._card, self._on_change = card, on_change
        self._card_requested = False  # a check was started and its card not closed
        self.verdict: str | None = None  # of the current settings, while the card shows them
        card.cancel_requested.connect(self.cancel)
        card.closed.connect(self.close_card)
        card.apply_requested.connect(form.set_values)

    def start(self) -> None:
        self._card_requested = True
        super().start()
        self._on_change()

    def close_card(self) -> None:
        """Cancel the check and hide the card."""
        self._card_requested = False
        self.cancel()
        self.refresh()

    def refresh(self) -> None:
        self.verdict = None
        if not self._card_requested:
            self._card.hide()
            return
        result, is_current = self.find_result()
        report = result.report if result else None
        if is_current and report is not None:
            self.verdict = report.verdict
        failure = "" if is_current else self.format_failure()
        is_shown = self.running is not None or bool(failure) or result is not None
        if is_shown:
            applied = None if report is None else self._find_applied_offer(report)
            self._card.display(CheckState(result, is_current, self.running, self.is_cancelling, failure, applied))
        self._card.setVisible(is_shown)

    def _find_applied_offer(self, report: CheckReport) -> int | None:
        offers = map(offered_settings, report.alternatives)
        return next((index for index, settings in enumerate(offers) if self._form.has_values(settings)), None)

    def _on_finished(self, outcome: ProcessOutcome) -> None:
        super()._on_finished(outcome)
        self._on_change()
