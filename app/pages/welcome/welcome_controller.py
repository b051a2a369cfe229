"""Shows the welcome page in place of the plots, before the first run or on request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject

from app.core.history.run_list import RunHistory
from app.core.preset_recommendation import driver_problem, recommend_preset
from app.core.settings import Settings
from app.pages.setup.form import SetupForm
from app.window.main_window import MainWindow
from trainer_core.presets import Preset

if TYPE_CHECKING:
    from app.pages.welcome.page import WelcomePage
    from app.services.gpu_probe import GpuProbe
    from trainer_core.system.hardware import MachineInfo

_QUICKSTART_PRESET: Final = "quickstart"


class WelcomeController(QObject):
    """The page is built when it is first shown."""

    def __init__(
        self,
        window: MainWindow,
        form: SetupForm,
        settings: Settings,
        history: RunHistory,
        *,
        load_preset: Callable[[str], Preset],
        start_run: Callable[[], None],
    ) -> None:
        super().__init__(window)
        self._window, self._form, self._settings, self._history = window, form, settings, history
        self._load_preset, self._start_run = load_preset, start_run
        self.page: WelcomePage | None = None
        self.is_shown = False
        self._machine: MachineInfo | None = None
        self._probe: GpuProbe | None = None
        self._can_start = True
        window.page_shown.connect(self._on_page_shown)
        window.menus.connect_actions({"welcome": self.show})

    def show_if_first_run(self) -> None:
        """Show the page at the start if there are neither runs nor data of the user."""
        with contextlib.suppress(OSError):
            if any(self._history.root.iterdir()):  # not listed yet
                return
        if self._settings.welcome and not self._form.has_own_data():
            self.show()

    def set_gpu_probe(self, probe: GpuProbe) -> None:
        self._probe = probe
        probe.completed.connect(self._on_machine)

    def show(self) -> None:
        """Show the page until a run is displayed."""
        if self.page is None:
            from app.pages.welcome.page import WelcomePage

            self.page = WelcomePage()
            self.page.use_preset_requested.connect(self._use_preset)
            self.page.quickstart_requested.connect(self._start_quickstart)
            self.page.closed.connect(self._close)
            layout = self._window.pages["plots"].layout()
            assert layout is not None
            layout.addWidget(self.page)
        self.is_shown = True
        self._window.plots_scroll_area.hide()
        self.page.show()
        self._window.show_page("plots")
        self.display(can_start=self._can_start)

    def hide(self) -> None:
        if self.is_shown and self.page is not None:
            self.is_shown = False
            self.page.hide()
            self._window.plots_scroll_area.show()

    def display(self, *, can_start: bool) -> None:
        self._can_start = can_start
        if self.page is None or not self.is_shown:
            return
        from app.pages.welcome.page import WelcomeState

        state = WelcomeState(has_data=bool(self._form.data), can_start=can_start, is_first_run=not self._history.runs)
        machine, probe = self._machine, self._probe
        if machine is not None and probe is not None:
            recommended = recommend_preset(machine)
            state = replace(
                state,
                machine=machine,
                preset=self._load_preset(recommended),
                driver_problem=driver_problem(
                    machine, gpu_present=probe.nvidia_card_found, torch_version=probe.torch_version
                ),
                preset_selected=self._form.preset is not None and self._form.preset.name == recommended,
            )
        self.page.display(state)

    def _on_page_shown(self, name: str) -> None:
        """Hide the page when it was opened from the menu and another page is shown."""
        if name != "plots" and self._history.runs:
            self.hide()

    def _on_machine(self, machine: MachineInfo) -> None:
        self._machine = machine
        self.display(can_start=self._can_start)

    def _use_preset(self) -> None:
        if self._machine is not None:
            self._form.choose_preset(self._load_preset(recommend_preset(self._machine)))
            self._window.setup.data.list.setFocus()

    def _start_quickstart(self) -> None:
        self._form.load_preset(self._load_preset(_QUICKSTART_PRESET))
        self._start_run()

    def _close(self) -> None:
        if not self._history.runs:
            self._settings.welcome = False
        self.hide()
