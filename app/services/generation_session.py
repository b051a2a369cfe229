"""A model that is tried: a trainer that keeps one checkpoint loaded and writes what it is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from PySide6.QtCore import QObject, QTimer, Signal

from app.core import command_line, conversation
from app.core.conversation import CheckpointSelection, Conversation, SamplingOptions, Turn
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from app.texts import tr
from app.widgets import formatting
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

_KILL_TIMEOUT_MS: Final = 2_000  # with a process that was told to end
IDLE_TIMEOUT_MS: Final = 5 * 60 * 1000

SessionState = Literal["off", "loading", "writing", "ready", "failed"]
ModelKey = tuple[Path, str]  # checkpoint, device


class GenerationSession(QObject):
    """One model: its process, from the first question until it is unused for long, and what it was asked."""

    changed = Signal()
    prompt_sent = Signal(str)  # a model that chats was sent this

    def __init__(self, create_process: Callable[[], TrainerProcess], parent: QObject) -> None:
        super().__init__(parent)
        self.create_process = create_process  # a process for the next model
        self.selection, self.conversation = CheckpointSelection(), Conversation()
        self.state: SessionState = "off"
        self.key: ModelKey | None = None  # of the process
        self.loaded: protocol.ModelLoaded | None = None
        self.failure: Callable[[], str] | None = None  # why it is not there, in the language of the moment
        self.current_turn: Turn | None = None  # that is being written, or waits for the model
        self.started_at = 0.0  # when its writing did; monotonic seconds
        self.process: TrainerProcess | None = None
        self._stopping = False  # it was told to write no more
        self._last_warning: tuple[str, dict[str, protocol.Param]] | None = None
        self.idle_timer = QTimer(self, singleShot=True, interval=IDLE_TIMEOUT_MS)
        self.idle_timer.timeout.connect(self.unload)

    @property
    def is_busy(self) -> bool:
        return self.current_turn is not None

    # --- asking ------------------------------------------------------------------------------------------

    def generate(self, key: ModelKey, prompt: str, sampling: SamplingOptions) -> None:
        """Have a text written, by a model that is loaded first where it is not there."""
        self.current_turn = self.conversation.add_turn(prompt, sampling)
        self._last_warning, self._stopping = None, False
        self.idle_timer.stop()
        if self.process is None or self.key != key:
            self._start(key)
        if self.loaded is not None:
            self._send(self.loaded)
        self.changed.emit()

    def stop_generation(self) -> None:
        """No more of the text that is being written; what there is stays. Asked again: the process does not listen."""
        if self.current_turn is None:
            return
        if self._stopping:
            self.unload()
        elif self.loaded is None or self.process is None:  # it has not begun
            self._finish_turn("interrupted")
        else:
            self._stopping = True
            self.process.send(protocol.Interrupt())

    def _send(self, loaded: protocol.ModelLoaded) -> None:
        asked, process = self.current_turn, self.process
        assert asked is not None
        assert process is not None
        asked.chat, asked.step = loaded.chat, loaded.step
        self.started_at = time.monotonic()
        self.state = "writing"
        if not process.send(self.conversation.generate_command(asked)):
            self._finish_turn("failed")
        elif asked.chat:
            self.prompt_sent.emit(asked.prompt)

    def _finish_turn(self, ending: conversation.GenerationStatus) -> None:
        """Nothing is written any more."""
        if self.current_turn is not None:
            self.current_turn.status = ending
            self.conversation.version += 1
        self.current_turn = None
        self.state = "off" if self.process is None else "ready" if self.loaded is not None else "loading"
        self.idle_timer.start()
        self.changed.emit()

    # --- the process -------------------------------------------------------------------------------------

    def _start(self, key: ModelKey) -> None:
        self._release_process()
        process = self.process = self.create_process()
        process.setParent(self)
        self.key, self.state, self.failure = key, "loading", None
        process.event_received.connect(lambda event: self._on_event(process, event))
        process.finished.connect(lambda outcome: self._on_finished(process, outcome))
        process.start(command_line.generate_arguments(str(key[0]), key[1]))

    def unload(self) -> None:
        """The model is not needed any more. What it was writing stays as it is."""
        self._release_process()
        self.state, self.failure = "off", None
        if self.current_turn is not None:
            self._finish_turn("interrupted")
        self.idle_timer.stop()
        self.changed.emit()

    def _release_process(self) -> None:
        """End the process without waiting for it."""
        process, self.process, self.key, self.loaded = self.process, None, None, None
        if process is not None and process.is_running:
            process.close_input()
            QTimer.singleShot(_KILL_TIMEOUT_MS, process, process.kill)

    def shutdown(self) -> None:
        """The window closes: nothing of it stays."""
        for process in self.findChildren(TrainerProcess):
            process.blockSignals(True)
            process.close_input()
            process.kill()

    def _on_event(self, process: TrainerProcess, event: AnyEvent) -> None:
        if process is not self.process:
            return
        asked = self.current_turn
        match event:
            case protocol.ModelLoaded():
                self.loaded, self.state = event, "ready"
                if asked is not None:
                    self._send(event)
            case protocol.GeneratedPiece() if asked is not None:
                asked.text += event.piece
                asked.tokens = event.tokens
                asked.tokens_per_s = event.tokens / max(time.monotonic() - self.started_at, 1e-3)
                self.conversation.version += 1
            case protocol.GenerationDone() if asked is not None:
                asked.tokens, asked.tokens_per_s = event.tokens, event.tokens_per_s
                asked.prompt_tokens, asked.error = event.prompt_tokens, self._last_warning
                self._finish_turn(event.reason)
                return
            case protocol.Warn():
                self._last_warning = event.code, dict(event.params)
            case protocol.Ack() if asked is not None and event.command == "generate" and not event.accepted:
                asked.error = "usage", {"problem": event.reason}
                self._finish_turn("failed")
                return
            case _:
                return
        self.changed.emit()

    def _on_finished(self, process: TrainerProcess, outcome: ProcessOutcome) -> None:
        process.deleteLater()
        if process is not self.process:
            return
        self._release_process()
        self.failure = lambda: self._format_failure(outcome)
        self._finish_turn("failed")
        self.state = "failed"
        self.changed.emit()

    def _format_failure(self, outcome: ProcessOutcome) -> str:
        """Why a process ended that nobody told to."""
        error = outcome.error_event
        if error is not None:
            return formatting.localized_message(error.code, error.params)
        if outcome.failed_to_start:
            return tr("services.trainer_could_not_be_started")
        said = tr("services.models_process_ended_unexpectedly_code")
        return said.format(code=outcome.exit_code, words=" ".join(outcome.output_tail[-1:]))
