"""Which machine trains: this one, or another one that was added in a dialog."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from app.core.settings import RemoteMachine, Settings
from app.pages.setup.form import SetupForm
from app.texts import tr
from app.window.main_window import MainWindow


class MachineController(QObject):
    """Fills the choice of the setup, which is visible when there is one."""

    def __init__(self, form: SetupForm, window: MainWindow, settings: Settings, save: Callable[[], None]) -> None:
        super().__init__(window)
        self._form, self._window, self._settings, self._save = form, window, settings, save
        self._choice, self._title = window.setup.machine, window.setup.machine_title
        form.machine = settings.machine
        self._choice.activated.connect(self._on_chosen)
        form.changed.connect(self.refresh)
        window.menus.connect_actions({"machines": self.open_dialog})
        self.refresh()

    @property
    def machines(self) -> list[RemoteMachine]:
        """Added machines, and that of a queued run whose machine was removed."""
        chosen, added = self._form.machine, self._settings.machines
        return [*added, chosen] if chosen is not None and chosen not in added else list(added)

    def refresh(self) -> None:
        """Display the choice."""
        names = [tr("setup.this_computer"), *(machine.host for machine in self.machines)]
        if [self._choice.itemText(row) for row in range(self._choice.count())] != names:
            self._choice.clear()
            self._choice.addItems(names)
        chosen = self._form.machine
        self._choice.setCurrentIndex(0 if chosen is None else 1 + self.machines.index(chosen))
        for widget in (self._choice, self._title):
            widget.setVisible(len(names) > 1)

    def add(self, machine: RemoteMachine) -> None:
        """Add a machine, replacing one of the same name, and choose it."""
        others = [other for other in self._settings.machines if other.host != machine.host]
        self._change([*others, machine], machine)

    def remove(self, machine: RemoteMachine) -> None:
        others = [other for other in self._settings.machines if other != machine]
        self._change(others, None if self._form.machine == machine else self._form.machine)

    def open_dialog(self) -> None:
        """Show the added machines."""
        from app.pages.setup.machines_dialog import MachinesDialog

        MachinesDialog(self, self._settings, self._window).open()

    def _on_chosen(self, row: int) -> None:
        self._change(self._settings.machines, self.machines[row - 1] if row else None)

    def _change(self, machines: list[RemoteMachine], chosen: RemoteMachine | None) -> None:
        self._settings.machines, self._settings.machine = machines, chosen
        self._save()
        self._form.set_machine(chosen)
