"""A model that is tried: a trainer that keeps one checkpoint loaded and writes what it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from PySide6.QtCore import QObject, QTimer, Signal

from app.services.trainer_process import Outcome, TrainerProcess
from app.state import command_line, trying
from app.state.trying import Choice, Exchange, Sampling, Talk
from app.views import words
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

_PATIENCE_MS: Final = 2_000  # with a process that was told to end
UNUSED_MS: Final = 5 * 60 * 1000

VoiceState = Literal["off", "loading", "writing", "ready", "failed"]
Key = tuple[Path, str]  # checkpoint, device


class Voice(QObject):
    """One model: its process, from the first question until it is unused for long, and what it was asked."""

    changed = Signal()
    questioned = Signal(str)  # a model that chats was sent this

    def __init__(self, make: Callable[[], TrainerProcess], parent: QObject) -> None:
        super().__init__(parent)
        self.make = make  # a process for the next model
        self.choice, self.talk = Choice(), Talk()
        self.state: VoiceState = "off"
        self.key: Key | None = None  # of the process
        self.loaded: protocol.Loaded | None = None
        self.failure: Callable[[], str] | None = None  # why it is not there, in the language of the moment
        self.asked: Exchange | None = None  # that is being written, or waits for the model
        self.began = 0.0  # when its writing did; monotonic seconds
        self.process: TrainerProcess | None = None
        self._stopping = False  # it was told to write no more
        self._warned: tuple[str, dict[str, protocol.Param]] | None = None
        self.unused = QTimer(self, singleShot=True, interval=UNUSED_MS)
        self.unused.timeout.connect(self.end)

    @property
    def busy(self) -> bool:
        return self.asked is not None

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, key: Key, prompt: str, sampling: Sampling) -> None:
        """Have a text written, by a model that is loaded first where it is not there."""
        self.asked = self.talk.begin(prompt, sampling)
        self._warned, self._stopping = None, False
        self.unused.stop()
        if self.process is None or self.key != key:
            self._start(key)
        if self.loaded is not None:
            self._send(self.loaded)
        self.changed.emit()

    def interrupt(self) -> None:
        """No more of the text that is being written; what there is stays. Asked again: the process does not listen."""
        if self.asked is None:
            return
        if self._stopping:
            self.end()
        elif self.loaded is None or self.process is None:  # it has not begun
            self._over("interrupted")
        else:
            self._stopping = True
            self.process.send(protocol.Interrupt())

    def _send(self, loaded: protocol.Loaded) -> None:
        asked, process = self.asked, self.process
        assert asked is not None
        assert process is not None
        asked.chat, asked.step = loaded.chat, loaded.step
        self.began = time.monotonic()
        self.state = "writing"
        if not process.send(self.talk.command(asked)):
            self._over("failed")
        elif asked.chat:
            self.questioned.emit(asked.prompt)

    def _over(self, ending: trying.Ending) -> None:
        """Nothing is written any more."""
        if self.asked is not None:
            self.asked.ending = ending
            self.talk.version += 1
        self.asked = None
        self.state = "off" if self.process is None else "ready" if self.loaded is not None else "loading"
        self.unused.start()
        self.changed.emit()

    # --- the process -------------------------------------------------------------------------------------

    def _start(self, key: Key) -> None:
        self._let_go()
        process = self.process = self.make()
        process.setParent(self)
        self.key, self.state, self.failure = key, "loading", None
        process.event.connect(lambda event: self._on_event(process, event))
        process.finished.connect(lambda outcome: self._on_finished(process, outcome))
        process.start(command_line.generate(str(key[0]), key[1]))

    def end(self) -> None:
        """The model is not needed any more. What it was writing stays as it is."""
        self._let_go()
        self.state, self.failure = "off", None
        if self.asked is not None:
            self._over("interrupted")
        self.unused.stop()
        self.changed.emit()

    def _let_go(self) -> None:
        """End the process without waiting for it."""
        process, self.process, self.key, self.loaded = self.process, None, None, None
        if process is not None and process.is_running:
            process.close_input()
            QTimer.singleShot(_PATIENCE_MS, process, process.kill)

    def leave(self) -> None:
        """The window closes: nothing of it stays."""
        for process in self.findChildren(TrainerProcess):
            process.blockSignals(True)
            process.close_input()
            process.kill()

    def _on_event(self, process: TrainerProcess, event: AnyEvent) -> None:
        if process is not self.process:
            return
        asked = self.asked
        match event:
            case protocol.Loaded():
                self.loaded, self.state = event, "ready"
                if asked is not None:
                    self._send(event)
            case protocol.Text() if asked is not None:
                asked.text += event.piece
                asked.tokens = event.tokens
                asked.tokens_per_s = event.tokens / max(time.monotonic() - self.began, 1e-3)
                self.talk.version += 1
            case protocol.Generated() if asked is not None:
                asked.tokens, asked.tokens_per_s = event.tokens, event.tokens_per_s
                asked.prompt_tokens, asked.problem = event.prompt_tokens, self._warned
                self._over(event.reason)
                return
            case protocol.Warn():
                self._warned = event.code, dict(event.params)
            case protocol.Ack() if asked is not None and event.command == "generate" and not event.accepted:
                asked.problem = "usage", {"problem": event.reason}
                self._over("failed")
                return
            case _:
                return
        self.changed.emit()

    def _on_finished(self, process: TrainerProcess, outcome: Outcome) -> None:
        process.deleteLater()
        if process is not self.process:
            return
        self._let_go()
        self.failure = lambda: self._reason(outcome)
        self._over("failed")
        self.state = "failed"
        self.changed.emit()

    def _reason(self, outcome: Outcome) -> str:
        """Why a process ended that nobody told to."""
        error = outcome.error_event
        if error is not None:
            return words.message(error.code, error.params)
        if outcome.failed_to_start:
            return self.tr("The trainer could not be started. Run the set-up again, then try once more.")
        said = self.tr("The model's process ended unexpectedly (code {code}). {words}")
        return said.format(code=outcome.exit_code, words=" ".join(outcome.last_words[-1:]))
