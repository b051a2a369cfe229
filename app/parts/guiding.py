"""What leads through the form: the four steps, the way to a field, undo and redo, files that are dropped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtGui import QGuiApplication

from app.i18n.knob_words import knob_words
from app.own_run import OwnRun
from app.parts.checking import Checker
from app.parts.glancing import Glancer
from app.parts.looking import DataLooker
from app.parts.tokenizer_watch import TokenizerWatch
from app.parts.validation_watch import ValidationWatch
from app.state import data_looks
from app.state.data_glance import Glance
from app.state.length import Length, length_of
from app.state.looks import Key
from app.state.path import Facts
from app.state.run_machine import RunState
from app.state.settings import Settings
from app.views import data_words, words
from app.views.dropping import DropVeil
from app.views.main_window import MainWindow
from app.views.setup.form import VALIDATION, SetupForm
from app.views.setup.reason import Blocked
from app.views.widgets import focus
from trainer_core.config import knobs
from trainer_core.messages import Value
from trainer_core.protocol import AnyEvent, Error, Hello, Ready

_AGAIN_MS: Final = 3_000


class Guide(QObject):
    """Wires the form's helpers to the window; `display` shows where things stand."""

    def __init__(
        self,
        form: SetupForm,
        window: MainWindow,
        settings: Settings,
        own: OwnRun,
        checker: Checker,
        looker: DataLooker,
        *,
        start: Callable[[], None],
        blocked: Callable[[], Blocked | None],
    ) -> None:
        super().__init__(window)
        self._form, self._window, self._settings, self._own = form, window, settings, own
        self._checker, self._looker = checker, looker
        self._start, self._blocked = start, blocked
        self._glancer = Glancer(self)
        self._tokenizers = TokenizerWatch(form, self)
        self.validation = ValidationWatch(form, window.setup.validation, self)
        self._glance: Glance | None = None  # at the names of the chosen files; None: under way, or none are chosen
        self._glance_again = QTimer(self, interval=_AGAIN_MS, singleShot=True)
        self._refusal = data_looks.Refusal()
        self._trained = False  # a run has finished, and nothing was changed since
        self._run_config: dict[str, Any] = {}  # of the run of this window
        self._undo_shown: object = None
        self.veil = DropVeil(window, window.setup.validation)
        self._connect()

    def begin(self) -> None:
        """The first paint is done."""
        self._on_data()
        self._tokenizers.look()
        self.validation.look()
        self._form.data_changed.connect(self._on_data)

    def _connect(self) -> None:
        window, form, path = self._window, self._form, self._window.setup.path
        path.step_pressed.connect(self._on_step)
        path.hint_pressed.connect(self.go_to_next)
        path.closed.connect(lambda: self.show_path(False))
        path.setVisible(self._settings.path)
        window.run_bar.reason_pressed.connect(self.go_to_blame)
        window.setup.data.look_asked.connect(self.look)
        self.veil.dropped.connect(self._on_dropped)
        self.veil.dropped_for_validation.connect(self._on_dropped_for_validation)
        self.validation.changed.connect(self.display)
        self._glancer.found.connect(self._on_glance)
        self._glance_again.timeout.connect(self._look_at_names)
        QGuiApplication.instance().applicationStateChanged.connect(self._on_application)  # type: ignore[union-attr]
        for looker in (self._looker, self._checker):
            looker.tried.connect(self._on_tried)
        self._own.told.connect(self._on_told)
        form.changed.connect(lambda: self._mark_trained(False))
        self._own.ended.connect(lambda: self._mark_trained(self._own.machine.state is RunState.FINISHED))
        form.changed.connect(self._show_undo)
        window.menus.actions["path"].setChecked(self._settings.path)
        window.menus.connect_all({
            "undo": form.undo,
            "redo": form.redo,
            "reset_all": form.reset,
            "add_files": window.setup.data.ask_files,
            "add_folder": window.setup.data.ask_folder,
            "look": self.look,
            "path": lambda: self.show_path(not self._settings.path),
        })  # fmt: skip

    # --- the four steps --------------------------------------------------------------------------------

    def display(self) -> None:
        """Show where things stand; cheap where nothing changed."""
        blocked = self._blocked()
        facts = Facts(
            has_data=bool(self._form.data),
            has_preset=self._form.preset is not None,
            blocked=blocked.text if blocked else "",
            place=blocked.place if blocked else "",
            checking=self._checker.running is not None,
            refused=self._refused(),
            looking=self._looker.running is not None or (self._glance is None and bool(self._own_paths())),
            verdict=self._checker.verdict,
            active=self._own.machine.is_active,
            trained=self._trained,
        )
        self._window.setup.path.display(facts)
        self._window.setup.show_blocked(facts.place, facts.blocked)
        self._window.setup.show_length(self._length())
        self._show_undo()

    def _length(self) -> Length | None:
        if self._form.wrong() or self._form.preset is None:
            return None
        samples, exact = self._looker.samples_per_epoch() or (None, True)
        return length_of(self._form.values(), samples, exact=exact)

    def show_path(self, shown: bool) -> None:
        self._settings.path = shown
        self._window.setup.path.setVisible(shown)
        self._window.menus.actions["path"].setChecked(shown)

    def _on_step(self, step: str) -> None:
        blocked = self._blocked()
        if step in ("data", "preset"):
            self.go(blocked.place if blocked and step == "preset" and blocked.place in knobs() else step)
        elif blocked is not None:
            self.go(blocked.place)
        elif step == "check":
            self._checker.start()
        else:
            self._start()

    def go(self, place: str) -> None:
        """Put the cursor where something is to be set: `preset`, `data`, `name` or a knob."""
        if place and not self._window.setup.reveal(place):
            self._window.show_page("settings")
            self._window.advanced.reveal(place)

    def go_to_blame(self) -> None:
        """To what keeps Start from being possible."""
        blocked = self._blocked()
        if blocked is not None:
            self.go(blocked.place)
            if blocked.place == "data" and self._glance is not None:
                self._window.setup.data.select(self._glance.missing)
        elif self._refused():
            self.go("data")

    def go_to_next(self) -> None:
        """To what the hint of the four steps names."""
        bar = self._window.run_bar
        if self._own.machine.is_active:
            self._window.show_page("plots")
        elif self._blocked() is not None or self._refused():
            self.go_to_blame()
        elif self._trained:
            self._window.show_page("try")
        elif self._checker.verdict == "does_not_fit" and self._window.check.offers:
            focus(self._window.check.offers[0])
        else:
            focus(bar.start if self._checker.verdict in ("fits", "tight") else bar.check)

    def _mark_trained(self, trained: bool) -> None:
        self._trained = trained  # what changes it has everything shown anew

    # --- data ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Show what the data holds."""
        self._window.show_page("data")
        self._looker.start()

    def _on_dropped(self, paths: list[str]) -> None:
        self._form.add_data(paths)
        self._window.activateWindow()

    def _on_dropped_for_validation(self, paths: list[str]) -> None:
        self._form.add_validation_data(paths)
        self._window.activateWindow()

    def _own_paths(self) -> list[str]:
        return [path for path in self._form.data if not path.startswith("builtin:")]

    def _on_data(self) -> None:
        self._glance = None
        self._look_at_names()

    def _on_application(self, state: Qt.ApplicationState) -> None:
        """Files are renamed and deleted in other programs: look again when the person comes back."""
        if state is Qt.ApplicationState.ApplicationActive and self._glance is not None:
            self._look_at_names()
            self.validation.look()

    def _look_at_names(self) -> None:
        if own := self._own_paths():
            self._glancer.look(own)

    def _on_glance(self, paths: list[str], seen: Glance) -> None:
        if paths != self._own_paths():
            return
        self._glance = seen
        self._window.setup.data.show_glance(seen)
        self.display()
        if seen.useless:
            self._glance_again.start()  # what is missing may come back: a stick, a share

    @property
    def missing(self) -> str:
        """What of the chosen data is not there; empty where all of it is, or is still looked for."""
        own = self._own_paths()
        if self._glance is None or not self._glance.useless or not own:
            return ""
        return data_words.seen(self._glance, own, self._form.data)[0]

    def _refused(self) -> str:
        """Why the chosen data cannot be trained on, as far as that is known."""
        if missing := self.missing:
            return missing
        if not self._refusal.known or self._looker.blocked:
            return ""
        error = self._refusal.of(self._looker.key_of_form())
        return words.advice(error.code, _by_name(error.params))[0] if error else ""

    def _on_tried(self, key: Key, error: Error | None) -> None:
        self._refusal.take(key, error)
        self.display()

    def _on_told(self, event: AnyEvent) -> None:
        """What a run says of the data that it began with."""
        match event:
            case Hello():
                self._run_config = event.config
            case Error() if event.code.startswith("data."):
                self._refusal.take(self._data_of_run(), event)
            case Ready() if self._refusal.known:
                self._refusal.take(self._data_of_run(), None)
            case _:
                pass

    def _data_of_run(self) -> Key:
        data, validation = (list(map(str, self._run_config.get(name) or [])) for name in ("data", VALIDATION))
        return data_looks.key_of(self._run_config, data, tuple(map(data_looks.stamp_of, [*data, *validation])))

    # --- undo ------------------------------------------------------------------------------------------

    def _show_undo(self) -> None:
        form, actions = self._form, self._window.menus.actions
        shown = (form.undoes, form.redoes, words.language())
        if shown == self._undo_shown:
            return
        self._undo_shown = shown
        said = self.tr("Undo: {what}"), self.tr("Redo: {what}")
        plain = self.tr("Undo"), self.tr("Redo")
        for name, what, full, bare in zip(("undo", "redo"), shown, said, plain, strict=False):
            actions[name].setEnabled(what is not None)
            actions[name].setIconText(bare)  # what it is called wherever it does not matter what it would undo
            actions[name].setText(bare if what is None else full.format(what=self._what(what)))

    def _what(self, changed: str) -> str:
        named = {
            "preset": self.tr("preset"),
            "data": self.tr("data"),
            "name": self.tr("run name"),
            "settings": self.tr("several settings"),
        }
        return named.get(changed) or knob_words(words.language()).label(knobs()[changed])


def _by_name(params: Mapping[str, Value]) -> dict[str, Value]:
    """Without the folders of files: the line is short."""
    return {
        name: Path(value).name or value if isinstance(value, str) and Path(value).is_absolute() else value
        for name, value in params.items()
    }
