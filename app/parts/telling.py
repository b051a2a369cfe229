"""What the window says in its message area: warnings and errors of the trainer, and how it ended."""

from __future__ import annotations

from PySide6.QtCore import QObject

from app.services.trainer_process import Outcome
from app.state.run_machine import RunMachine
from app.views import words
from app.views.banner import BannerArea, BannerText, Level
from trainer_core import failures, protocol
from trainer_core.messages import TraindeckError
from trainer_core.restarts import GiveUp


class Telling(QObject):
    """Puts banners up, each worded anew in the language of the moment."""

    def __init__(self, banners: BannerArea, machine: RunMachine, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._banners, self._machine = banners, machine

    def notice(self, level: Level, event: protocol.Notice) -> None:
        """A warning or an error that the trainer sent."""
        text = BannerText(
            level,
            lambda: words.message(event.code, event.params),
            detail=event.detail,
            key=event.code,
            offers_resume=isinstance(event, protocol.Error) and self._machine.has_checkpoint,
        )
        self._banners.add(text)

    def error(self, error: TraindeckError) -> None:
        """Something that the window itself could not do."""
        self._banners.add(
            BannerText("error", lambda: words.message(error.code, error.params), error.detail, error.code)
        )

    def crash(self, outcome: Outcome) -> None:
        """The trainer ended without a word of its own."""
        last_words = "\n".join(outcome.last_words)
        known = failures.of_exit_code(outcome.exit_code, crashed=outcome.crashed)
        cause = failures.of_ending(outcome.exit_code, last_words, crashed=outcome.crashed)
        code = known.detail if known is not None else outcome.exit_code

        def crash() -> str:
            if outcome.failed_to_start:
                return self.tr("The trainer could not be started. Run the set-up again, then try once more.")
            if self._machine.resumes_from_disk:
                text = self.tr("The trainer ended unexpectedly (code {code}). Resume goes on from its last checkpoint.")
            else:
                text = self.tr("The trainer ended unexpectedly (code {code}) before its first checkpoint.")
            text = text.format(code=code)
            if cause is None:
                return text
            return f"{text} {words.message(cause.code, {'step': self._machine.step, **cause.params})}"

        resumable = self._machine.resumes_from_disk
        self._banners.add(BannerText("error", crash, last_words, "crash", offers_resume=resumable))

    def gave_up(self, given_up: GiveUp) -> None:
        """The run failed in the same place again and again."""

        def text() -> str:
            said = self.tr("Started again {count} times, and failed each time without getting further: {reason}")
            return said.format(count=given_up.attempts, reason=words.failure(given_up.reason, self._machine.last_error))

        self._banners.add(BannerText("warning", text, key="gave_up"))

    def incompatible(self, version: tuple[int, int]) -> None:
        """The trainer is newer than this window."""

        def text() -> str:
            said = self.tr("The trainer speaks a newer protocol ({version}). Update the window, too.")
            return said.format(version=".".join(map(str, version)))

        self._banners.add(BannerText("warning", text, key="incompatible"))
