"""The welcome before the first run: shown in place of the empty plots, put away for good when a person wants that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.state.proposing import driver_trouble, propose
from app.state.settings import Settings
from app.views.main_window import MainWindow
from app.views.setup.form import SetupForm
from trainer_core.presets import Preset

if TYPE_CHECKING:
    from app.services.gpu_probe import GpuProbe
    from app.views.welcome import Welcome
    from trainer_core.machine.hardware import Machine

TRIED = "quickstart"  # the preset of "Try it now"


class Welcoming(QObject):
    """Makes its page when it is first shown."""

    def __init__(
        self,
        window: MainWindow,
        form: SetupForm,
        settings: Settings,
        *,
        load: Callable[[str], Preset],
        start: Callable[[], None],
        has_runs: Callable[[], bool],
    ) -> None:
        super().__init__(window)
        self._window, self._form, self._settings = window, form, settings
        self._load, self._start, self._has_runs = load, start, has_runs
        self.page: Welcome | None = None
        self._shown = False
        self._machine: Machine | None = None
        self._probe: GpuProbe | None = None
        self._can_start = True
        window.page_shown.connect(self._on_page)
        window.menus.connect_all({"welcome": self.show})

    def begin(self, runs: Path) -> None:
        """At the start: show it where nothing was trained and no data chosen yet. `runs`: their folder."""
        with contextlib.suppress(OSError):
            if any(runs.iterdir()):
                return
        if self._settings.welcome and not self._form.has_own_data():
            self.show()

    def watch(self, probe: GpuProbe) -> None:
        """Take what it finds."""
        self._probe = probe
        probe.found.connect(self._on_machine)

    @property
    def is_shown(self) -> bool:
        return self._shown

    def show(self) -> None:
        """In place of the plots, until a run is shown there."""
        if self.page is None:
            from app.views.welcome import Welcome  # not needed for the first picture

            self.page = Welcome()
            self.page.use_asked.connect(self._use)
            self.page.try_asked.connect(self._try)
            self.page.closed.connect(self._close)
            layout = self._window.pages["plots"].layout()
            assert layout is not None
            layout.addWidget(self.page)
        self._shown = True
        self._window.plots_area.hide()
        self.page.show()
        self._window.show_page("plots")
        self.display(can_start=self._can_start)

    def hide(self) -> None:
        """The plots come back."""
        if self._shown and self.page is not None:
            self._shown = False
            self.page.hide()
            self._window.plots_area.show()

    def display(self, *, can_start: bool) -> None:
        """Show what is known now."""
        self._can_start = can_start
        if self.page is None or not self._shown:
            return
        from app.views.welcome import WelcomeState

        machine, probe = self._machine, self._probe
        if machine is None or probe is None:
            self.page.display(WelcomeState(can_start=can_start, first=not self._has_runs()))
            return
        proposal = propose(machine)
        state = WelcomeState(
            machine,
            proposal,
            self._load(proposal.preset),
            driver_trouble(machine, card_seen=probe.card_seen, torch=probe.torch),
            chosen=self._form.preset is not None and self._form.preset.name == proposal.preset,
            has_data=bool(self._form.data),
            can_start=can_start,
            first=not self._has_runs(),
        )
        self.page.display(state)

    # --- what is asked for -------------------------------------------------------------------------------

    def _on_page(self, name: str) -> None:
        """Asked for from the menu, it stays only as long as it is looked at."""
        if name != "plots" and self._has_runs():
            self.hide()

    def _on_machine(self, machine: Machine) -> None:
        self._machine = machine
        self.display(can_start=self._can_start)

    def _use(self) -> None:
        if self._machine is not None:
            self._form.choose_preset(self._load(propose(self._machine).preset))
            self._window.setup.data.list.setFocus()

    def _try(self) -> None:
        preset = self._load(TRIED)
        self._form.load_preset(preset)
        self._start()

    def _close(self) -> None:
        if not self._has_runs():
            self._settings.welcome = False
        self.hide()
