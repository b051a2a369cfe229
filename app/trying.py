"""Models that are tried: up to two trainers that keep a checkpoint loaded and write what the page asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from PySide6.QtCore import QObject, QTimer, Signal

from app.own_run import OwnRun
from app.services import desktop
from app.services.trainer_process import Outcome, TrainerProcess
from app.state import command_line, trying
from app.state.history import History
from app.state.settings import Settings
from app.state.trying import Choice, Device, Exchange, Sampling, Talk
from app.views import words
from trainer_core import protocol
from trainer_core.protocol import AnyEvent

if TYPE_CHECKING:  # made after the first paint
    from app.views.trying.column import ColumnState
    from app.views.trying.page import TryPage
    from trainer_core.hardware import Machine

_PATIENCE_MS: Final = 2_000  # with a process that was told to end
_SIDES: Final = 2
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
        self._warned = None
        self.unused.stop()
        if self.process is None or self.key != key:
            self._start(key)
        if self.loaded is not None:
            self._send(self.loaded)
        self.changed.emit()

    def interrupt(self) -> None:
        """No more of the text that is being written; what there is stays."""
        if self.asked is None:
            return
        if self.loaded is None or self.process is None:  # it has not begun
            self._over("interrupted")
        else:
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


class Trier(QObject):
    """The page “Try it”: which checkpoints, where they run, and what is asked of them."""

    def __init__(
        self, own: OwnRun, history: History, settings: Settings, make: Callable[[], TrainerProcess] = TrainerProcess
    ) -> None:
        super().__init__(own)
        self._own, self._history, self._settings = own, history, settings
        self.voices = [Voice(make, self) for _ in range(_SIDES)]
        self.comparing = False
        self._wanted_device = "auto"
        self._gpus = 0
        self._hello: protocol.Hello | None = None  # of the run that this window trains
        self._page: TryPage | None = None
        for voice in self.voices:
            voice.changed.connect(self.refresh)
        own.told.connect(self._on_told)
        own.changed.connect(self._look)

    def connect_page(self, page: TryPage) -> None:
        """From now on, show everything there, and do what is asked for there."""
        self._page = page
        page.row.take(Sampling.of(self._settings.sampling))
        page.asked.connect(self.ask)
        page.again_asked.connect(self.ask_again)
        page.stop_asked.connect(self.interrupt)
        page.compare_toggled.connect(self.compare)
        page.new_asked.connect(self.begin_anew)
        page.device_chosen.connect(self.set_device)
        page.shown.connect(self._look)
        for column, voice in zip(page.columns, self.voices, strict=True):
            voice.questioned.connect(page.take_prompt)
            column.run_chosen.connect(lambda path, voice=voice: self._choose(voice, path, None))
            column.checkpoint_chosen.connect(lambda path, voice=voice: self._choose(voice, voice.choice.run, path))
            column.copy_asked.connect(desktop.copy_text)

    def show_machine(self, machine: Machine) -> None:
        """What the machine has is known now."""
        self._gpus = len(machine.gpus)
        self.refresh()

    # --- which model --------------------------------------------------------------------------------------

    @property
    def active(self) -> list[Voice]:
        """The voices on show."""
        return self.voices if self.comparing else self.voices[:1]

    def choose(self, checkpoint: Path) -> None:
        """Try this checkpoint."""
        self._choose(self.voices[0], checkpoint.parent.parent, checkpoint)

    def compare(self, wanted: bool) -> None:
        """Two models side by side, or one."""
        self.comparing = wanted
        first, second = self.voices
        if not wanted:
            second.end()
        elif second.choice.run is None:
            earlier = first.choice.infos[1:2]
            second.choice.choose(first.choice.run, earlier[0].path if earlier else None)
        self.refresh()

    def set_device(self, wanted: str) -> None:
        self._wanted_device = wanted
        self._end_unwanted()
        self.refresh()

    def _choose(self, voice: Voice, run: Path | None, checkpoint: Path | None) -> None:
        voice.choice.choose(run, checkpoint)
        voice.failure = None
        voice.state = "off" if voice.state == "failed" else voice.state
        self._end_unwanted()
        self.refresh()

    def _end_unwanted(self) -> None:
        """A model goes when another is chosen, or another device; not when a newer checkpoint comes."""
        device = self.device.flag
        for voice in self.voices:
            if voice.key is None:
                continue
            checkpoint, flag = voice.key
            choice = voice.choice
            other = checkpoint != choice.checkpoint if choice.checkpoint else checkpoint.parent.parent != choice.run
            if other or (flag != device and not voice.busy):
                voice.end()

    @property
    def device(self) -> Device:
        """Where models are to write now."""
        return trying.choose_device(self._wanted_device, self._gpus, self._training_on)

    @property
    def _training_on(self) -> str | None:
        if not self._own.machine.is_active:
            return None
        hello = self._hello
        if hello is None:
            return "auto"
        on_cpu = bool(hello.devices) and hello.devices[0].startswith("CPU")
        return None if on_cpu else str(hello.config.get("device", "auto"))

    def _on_told(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self._hello = event
        if isinstance(event, protocol.Hello | protocol.Checkpoint):
            self._look()

    def _look(self) -> None:
        """See which runs and checkpoints there are."""
        if self._page is None or not self._page.isVisible():
            return
        self._end_unwanted()
        first = self.voices[0].choice
        if first.run is None:
            items = self._items(None)
            first.choose(items[0].path if items else None)
        for voice in self.active:
            voice.choice.look()
        self.refresh()

    def _items(self, chosen: Path | None) -> list[trying.RunItem]:
        machine = self._own.machine
        training = Path(machine.run_dir) if machine.is_active and machine.run_dir else None
        return trying.choosable(self._history.runs, training, chosen)

    def run_moved(self, old: Path, new: Path | None) -> None:
        """A run's folder has another name, or is gone (None)."""
        for voice in self.voices:
            choice = voice.choice
            if choice.run == old:
                same = new / "checkpoints" / choice.checkpoint.name if new and choice.checkpoint else None
                self._choose(voice, new, same)

    def runs_listed(self) -> None:
        """The list of runs is new."""
        self._look()

    # --- asking -------------------------------------------------------------------------------------------

    def ask(self, prompt: str, sampling: Sampling) -> None:
        """Have every model on show write."""
        answers = any(voice.loaded is not None and voice.loaded.chat for voice in self.active)
        if any(voice.busy for voice in self.active) or (answers and not prompt.strip()):
            return
        self._settings.sampling = asdict(sampling)
        for voice in self.active:
            voice.choice.look()
            key = self._key(voice)
            if key is not None:
                voice.ask(key, prompt, sampling)
        self.refresh()

    def _key(self, voice: Voice) -> Key | None:
        """What a voice is to write with. A checkpoint that is gone from disk writes on where it is loaded."""
        wanted = voice.choice.wanted
        if voice.choice.gone:
            return voice.key if voice.key is not None and voice.key[0] == wanted else None
        return None if wanted is None else (wanted, self.device.flag)

    def ask_again(self, sampling: Sampling) -> None:
        """Have the last text again, with another seed."""
        last = next((voice.talk.exchanges[-1] for voice in self.active if voice.talk.exchanges), None)
        if last is None or any(voice.busy for voice in self.active):
            return
        for voice in self.active:
            if voice.talk.exchanges and voice.talk.exchanges[-1].prompt == last.prompt:
                voice.talk.forget_last()
        self.ask(last.prompt, sampling)

    def interrupt(self) -> None:
        for voice in self.active:
            voice.interrupt()

    def begin_anew(self) -> None:
        """A new conversation, an empty page."""
        self.interrupt()
        for voice in self.voices:
            if not voice.busy:
                voice.talk.clear()
        self.refresh()

    # --- showing ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        page = self._page
        if page is None or not page.isVisible():
            return
        from app.views.trying.page import PageState

        busy = any(voice.busy for voice in self.active)
        possible = any(self._key(voice) is not None for voice in self.active)
        page.display(
            PageState(
                comparing=self.comparing,
                busy=busy,
                possible=possible,
                talked=any(voice.talk.exchanges for voice in self.active),
                device=self.device,
                wanted_device=self._wanted_device,
                gpus=self._gpus,
            )
        )
        for voice, column in zip(self.active, page.columns, strict=False):
            column.display(self._column(voice))

    def _column(self, voice: Voice) -> ColumnState:
        from app.views.trying.column import ColumnState

        choice, loaded = voice.choice, voice.loaded
        newest = choice.infos[0].step if choice.infos and choice.checkpoint is None else 0
        return ColumnState(
            items=self._items(choice.run),
            run=choice.run,
            infos=choice.infos,
            checkpoint=choice.checkpoint,
            gone=choice.gone,
            state=voice.state,
            loaded=loaded,
            newer=newest if loaded is not None and newest > loaded.step else None,
            failure=voice.failure() if voice.failure is not None else "",
            talk=voice.talk,
        )

    def leave(self) -> None:
        """The window closes: the processes go with it."""
        self._page = None
        for voice in self.voices:
            voice.leave()
