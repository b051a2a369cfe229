"""The page “Try it”: which checkpoints write, where, and what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject

from app.own_run import OwnRun
from app.parts.voice import Key, Voice
from app.services import desktop
from app.services.trainer_process import TrainerProcess
from app.state import trying
from app.state.runs.history import History
from app.state.settings import Settings
from app.state.trying import Device, Sampling
from trainer_core import protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs.run_dir import RunSummary

if TYPE_CHECKING:  # made after the first paint
    from app.views.trying.column import ColumnState
    from app.views.trying.page import TryPage
    from trainer_core.machine.hardware import Machine

_SIDES: Final = 2


class Trier(QObject):
    """Up to two voices, and the page that shows them."""

    def __init__(
        self, own: OwnRun, history: History, settings: Settings, make: Callable[[], TrainerProcess] = TrainerProcess
    ) -> None:
        super().__init__(own)
        self._own, self._history, self._settings = own, history, settings
        self.voices = [Voice(make, self) for _ in range(_SIDES)]
        self.comparing = False
        self._runs: tuple[RunSummary, ...] = ()  # those with checkpoints, newest first
        self._choosable: dict[tuple[Path | None, Path | None], list[trying.RunItem]] = {}
        self._wanted_device = "auto"
        self.machine: Machine | None = None  # None: not known yet
        self._hello: protocol.Hello | None = None  # of the run that this window trains
        self._page: TryPage | None = None
        for voice in self.voices:
            voice.changed.connect(self.refresh)
        own.beginning.connect(self._on_beginning)
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
        self.machine = machine
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
        gpus = len(self.machine.gpus) if self.machine else None
        return trying.choose_device(self._wanted_device, gpus, self._training_on)

    @property
    def _training_on(self) -> str | None:
        if not self._own.machine.is_active:
            return None
        hello = self._hello
        if hello is None:
            return "auto"
        on_cpu = bool(hello.devices) and hello.devices[0].startswith("CPU")
        return None if on_cpu else str(hello.config.get("device", "auto"))

    def _on_beginning(self) -> None:
        self._hello = None

    def _on_told(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self._hello = event
        if isinstance(event, protocol.Hello | protocol.Checkpoint):
            self._look()

    def _look(self) -> None:
        """See which runs and checkpoints there are."""
        self._end_unwanted()  # a run that begins is to have the GPU, whichever page is on show
        if self._page is None or not self._page.isVisible():
            return
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
        known = self._choosable.get((training, chosen))  # there may be a thousand, and pieces of text come often
        if known is None:
            known = self._choosable[training, chosen] = trying.choosable(self._runs, training, chosen)
        return known

    def run_moved(self, old: Path, new: Path | None) -> None:
        """A run's folder has another name, or is gone (None)."""
        for voice in self.voices:
            choice = voice.choice
            if choice.run == old:
                same = new / "checkpoints" / choice.checkpoint.name if new and choice.checkpoint else None
                self._choose(voice, new, same)

    def runs_listed(self) -> None:
        """The list of runs is new."""
        self._runs = tuple(run for run in self._history.runs if run.checkpoints)
        self._choosable.clear()
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
                gpus=len(self.machine.gpus) if self.machine else 0,
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
