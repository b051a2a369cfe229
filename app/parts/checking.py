"""The check before Start: a trainer that takes real steps of what the form says, and the card of what they told."""

from __future__ import annotations

from collections.abc import Callable

from app.parts.looking import Looker
from app.services.trainer_process import Outcome, TrainerProcess
from app.state import checks, command_line
from app.state.looks import Key
from app.state.path import Verdict
from app.views.setup.check_card import CheckCard, CheckState
from app.views.setup.form import SetupForm
from trainer_core.messages import TraindeckError
from trainer_core.protocol import CheckReport


class Checker(Looker[CheckReport]):
    """Shows its card from a check that was asked for until it is put away."""

    kind = CheckReport

    def __init__(
        self,
        form: SetupForm,
        say: Callable[[TraindeckError], None],
        process: TrainerProcess | None,
        card: CheckCard,
        changed: Callable[[], None],
    ) -> None:
        super().__init__(form, say, process)
        self._card, self._changed = card, changed
        self._wanted = False  # the card has not been put away since the last check
        self.verdict: Verdict | None = None  # of what the form says, while the card shows it
        card.cancel_asked.connect(self.cancel)
        card.closed.connect(self.put_away)
        card.applied.connect(form.take)

    def start(self) -> None:
        self._wanted = True
        super().start()
        self._changed()

    def put_away(self) -> None:
        """No card any more, and no check."""
        self._wanted = False
        self.cancel()
        self.refresh()

    def arguments(self) -> list[str]:
        form = self._form
        name = form.preset.name if form.preset else ""
        return command_line.check(name, form.changes(), form.data, loaded=form.preset)

    def key_of_form(self, *, fresh: bool = False) -> Key:
        stamps = self._stamps.of(self._form.all_data, fresh=fresh)
        return checks.key_of(self._form.values(), self._form.data, stamps)

    def refresh(self) -> None:
        self.verdict = None
        if not self._wanted:
            self._card.hide()
            return
        look, current = self.found()
        if current and look is not None and look.report is not None:
            self.verdict = look.report.verdict
        failure = "" if current else self.failure()
        shown = self.running is not None or bool(failure) or look is not None
        if shown:
            report = look.report if look else None
            applied = None if report is None else self._applied(report)
            self._card.display(CheckState(look, current, self.running, self.cancelling, failure, applied))
        self._card.setVisible(shown)

    def _applied(self, report: CheckReport) -> int | None:
        wanted = map(checks.settings, report.offers)
        return next((place for place, settings in enumerate(wanted) if self._form.holds(settings)), None)

    def _on_finished(self, outcome: Outcome) -> None:
        super()._on_finished(outcome)
        self._changed()

    def unexpected(self) -> str:
        return self.tr("The check ended unexpectedly (code {code}). {words}")
