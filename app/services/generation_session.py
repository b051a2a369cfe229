"""Text generation with one model: a trainer process that keeps one checkpoint loaded."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from PySide6.QtCore import QObject, QTimer, Signal

from app.core.conversation import GenerationStatus, Mode, Turn, generate_command
from app.services.preview_job import format_process_failure
from app.services.trainer_process import ProcessOutcome, TrainerProcess
from trainer_core import protocol
from trainer_core.messages import TraindeckError
from trainer_core.protocol import AnyEvent
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.checkpoint_dir import CheckpointInfo
from trainer_core.runs.run_dir import RunDir, read_yaml

_KILL_TIMEOUT_MS: Final = 2_000  # after the input was closed
_MAX_TURNS: Final = 50
IDLE_TIMEOUT_MS: Final = 5 * 60 * 1000
BASE: Final = "base"

SessionState = Literal["off", "loading", "writing", "ready", "failed"]
Checkpoint = Path | Literal["base"] | None
"""A checkpoint of a run, its base model, or its newest checkpoint."""
ModelKey = tuple[Path, bool, str]  # checkpoint, run or model folder; whether its base model is used; device


class GenerationSession(QObject):
    """A selected model, the conversation, and the process, which ends when it is not used for five minutes."""

    changed = Signal()
    turn_finished = Signal()
    prompt_sent = Signal(str)  # a question was sent to a chat model

    def __init__(self, create_process: Callable[[], TrainerProcess], parent: QObject) -> None:
        super().__init__(parent)
        self.create_process = create_process
        self.run: Path | None = None  # or a model folder
        self.is_folder = False  # a model folder is selected, not a run
        self.base_model = ""  # name of that of the run; empty: none
        self.checkpoint: Checkpoint = None
        self.checkpoints: list[CheckpointInfo] = []  # of the run, newest first
        self.turns: list[Turn] = []  # oldest first
        self.key: ModelKey | None = None  # of the process
        self.loaded: protocol.ModelLoaded | None = None
        self.current_turn: Turn | None = None  # is generated, or waits for the model
        self.process: TrainerProcess | None = None
        self._outcome: ProcessOutcome | None = None  # of a process that failed
        self._mode: Mode | None = None  # None: as the model was trained
        self._started_at = 0.0  # start of the generation, monotonic seconds
        self._stopping = False
        self._last_warning: tuple[str, dict[str, protocol.Param]] | None = None
        self.idle_timer = QTimer(self, singleShot=True, interval=IDLE_TIMEOUT_MS)
        self.idle_timer.timeout.connect(self.unload)

    @property
    def state(self) -> SessionState:
        if self.process is None:
            return "off" if self._outcome is None else "failed"
        if self.loaded is None:
            return "loading"
        return "ready" if self.current_turn is None else "writing"

    @property
    def is_busy(self) -> bool:
        return self.current_turn is not None

    @property
    def selected_path(self) -> Path | None:
        """What `generate` loads: a checkpoint, a model folder, or the run of a base model; None if there is none."""
        if self.checkpoint == BASE or self.is_folder:
            return self.run
        return self.checkpoint or next((info.path for info in self.checkpoints), None)

    @property
    def answers(self) -> bool:
        """Whether the selected model was trained to answer prompts."""
        path, is_base = self.selected_path, self.checkpoint == BASE
        if self.loaded is not None and self.key and self.key[:2] == (path, is_base):
            return self.loaded.chat
        if is_base:  # uses the chat template of the run
            path = next((info.path for info in self.checkpoints), None)
        try:
            return path is not None and _answers(path)
        except ModuleNotFoundError:  # set-up has not installed what reads a tokenizer yet
            return False

    @property
    def _model_name(self) -> str:
        """Name of a model without steps, see `Turn.model`."""
        if self.checkpoint == BASE:
            return self.base_model
        return self.run.name if self.run and self.is_folder else ""

    def select(self, run: Path | None, checkpoint: Checkpoint = None) -> None:
        """Select a checkpoint of a run, its base model, or a model folder. A loaded model stays loaded until the next
        text."""
        self.run, self.checkpoint = run, checkpoint
        self.is_folder = run is not None and (run / "config.json").is_file()
        self.base_model = _short_name(str(read_yaml(RunDir(run).config).get("base_model") or "")) if run else ""
        self.refresh_checkpoints()
        self._outcome = None
        self.changed.emit()

    def refresh_checkpoints(self) -> None:
        """List the checkpoints of the run on disk."""
        self.checkpoints = checkpoint_dir.list_infos(RunDir(self.run).checkpoints)[::-1] if self.run else []

    # --- generation --------------------------------------------------------------------------------------

    def generate(
        self, device: str, prompt: str, sampling: dict[str, Any], mode: Mode | None = None, system: str = ""
    ) -> None:
        """Generate text with the selected model; load it first if necessary."""
        assert self.selected_path is not None
        key = (self.selected_path, self.checkpoint == BASE, device)
        self.current_turn = Turn(prompt, sampling, system, model=self._model_name)
        self.turns = [*self.turns[1 - _MAX_TURNS :], self.current_turn]
        self._mode = mode
        self._last_warning, self._stopping = None, False
        self.idle_timer.stop()
        if self.process is None or self.key != key:
            self._start(key)
        if self.loaded is not None:
            self._send(self.loaded)
        self.changed.emit()

    def remove_turns(self, count: int, prompt: str) -> None:
        """Remove the newest turns, if the first of them has this prompt."""
        start = len(self.turns) - count
        if start >= 0 and self.turns[start].prompt == prompt:
            self.turns = self.turns[:start]

    def stop_generation(self) -> None:
        """Stop and keep the text. A second call ends the process, in case it does not respond."""
        if self.current_turn is None:
            return
        if self._stopping:
            self.unload()
        elif self.loaded is None or self.process is None:
            self._finish_turn("interrupted")
        else:
            self._stopping = True
            self.process.send(protocol.Interrupt())

    def _send(self, loaded: protocol.ModelLoaded) -> None:
        turn, process = self.current_turn, self.process
        assert turn is not None
        assert process is not None
        turn.chat = loaded.chat if self._mode is None else self._mode == "chat"
        turn.step = None if turn.model else loaded.step
        self._started_at = time.monotonic()
        if not process.send(generate_command(self.turns)):
            self._finish_turn("failed")
        elif turn.chat:
            self.prompt_sent.emit(turn.prompt)

    def _finish_turn(self, status: GenerationStatus) -> None:
        finished, self.current_turn = self.current_turn, None
        if finished is not None:
            finished.status = status
            self.turn_finished.emit()
        self.idle_timer.start()
        self.changed.emit()

    # --- the process -------------------------------------------------------------------------------------

    def _start(self, key: ModelKey) -> None:
        self._release_process()
        process = self.process = self.create_process()
        process.setParent(self)
        self.key, self._outcome = key, None
        process.event_received.connect(lambda event: self._on_event(process, event))
        process.finished.connect(lambda outcome: self._on_finished(process, outcome))
        path, is_base, device = key
        process.start(["generate", str(path), *(["--base"] if is_base else []), "--device", device])

    def unload(self) -> None:
        """End the process and keep the text that it was generating."""
        self._release_process()
        self._outcome = None
        self._finish_turn("interrupted")
        self.idle_timer.stop()

    def _release_process(self) -> None:
        """End the process without waiting for it."""
        process, self.process, self.key, self.loaded = self.process, None, None, None
        if process is not None and process.is_running:
            process.close_input()
            QTimer.singleShot(_KILL_TIMEOUT_MS, process, process.kill)

    def shutdown(self) -> None:
        """End all processes when the window closes."""
        for process in self.findChildren(TrainerProcess):
            process.blockSignals(True)
            process.close_input()
            process.kill()

    def _on_event(self, process: TrainerProcess, event: AnyEvent) -> None:
        if process is not self.process:
            return
        turn = self.current_turn
        match event:
            case protocol.ModelLoaded():
                self.loaded = event
                if turn is not None:
                    self._send(event)
            case protocol.GeneratedPiece() if turn is not None:
                turn.text += event.piece
                turn.tokens = event.tokens
                turn.tokens_per_s = event.tokens / max(time.monotonic() - self._started_at, 1e-3)
            case protocol.GenerationDone() if turn is not None:
                turn.tokens, turn.tokens_per_s = event.tokens, event.tokens_per_s
                turn.prompt_tokens, turn.error = event.prompt_tokens, self._last_warning
                self._finish_turn(event.reason)
                return
            case protocol.Warn():
                self._last_warning = event.code, dict(event.params)
            case protocol.Ack() if turn is not None and event.command == "generate" and not event.accepted:
                turn.error = "usage", {"problem": event.reason}
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
        self._outcome = outcome
        self._finish_turn("failed")

    def format_failure(self) -> str:
        """Why the process exited unexpectedly; empty if it did not."""
        return format_process_failure(self._outcome, "services.generation_exited") if self._outcome else ""


@functools.lru_cache(maxsize=64)
def _answers(folder: Path) -> bool:
    from trainer_core.data.tokenizing.tokenizer_files import is_chat  # an import that would delay the first paint

    with contextlib.suppress(TraindeckError):  # `generate` reports it
        return is_chat(folder)
    return False


def _short_name(model: str) -> str:
    """Name of a base model: of a checkpoint, the run; of a model folder, the folder."""
    path = Path(model)
    if not path.is_absolute():
        return model
    return path.parents[1].name if path.parent.name == "checkpoints" else path.name
