"""Dialog that adds, checks and removes machines to train on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QDialog, QFormLayout, QListWidget, QWidget

from app.core.settings import RemoteMachine, Settings
from app.services.remote_job import RemoteJob
from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    announce,
    horizontal_layout,
    label,
    line_edit,
    push_button,
    resize_within_screen,
    restyle,
    set_object_name,
    vertical_layout,
)
from trainer_core.console.events import format_event

if TYPE_CHECKING:
    from app.pages.setup.machine_controller import MachineController

_SIZE: Final = QSize(560, 380)
DEFAULT_FOLDER: Final = "~/traindeck"


class MachinesDialog(QDialog):
    """A machine is added when its check has succeeded. The dialog does not block."""

    def __init__(self, controller: MachineController, settings: Settings, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self.setWindowTitle(tr("setup.machines_title"))
        self._controller, self._settings = controller, settings
        self._checked: RemoteMachine | None = None  # what the job checks
        self.job = RemoteJob(parent=self)
        self.list = set_object_name(QListWidget(), "machineList")
        self.host, self.folder = line_edit("machineHost"), line_edit("machineFolder")
        self.folder.setText(DEFAULT_FOLDER)
        self.status = label("machineStatus", wrap=True)
        self.add, self.remove, self.close_button = (
            push_button("primary"), push_button("machineRemove"), push_button("machineClose"),
        )  # fmt: skip
        self._arrange()
        self.host.textChanged.connect(self._refresh)
        self.list.currentRowChanged.connect(self._show_selected)
        self.add.clicked.connect(self._check)
        self.remove.clicked.connect(self._remove)
        self.close_button.clicked.connect(self.reject)
        self.job.changed.connect(self._refresh)
        self._list_machines()
        self.host.setFocus()

    def _arrange(self) -> None:
        note = label("muted", wrap=True)
        note.setText(tr("setup.machines_note"))
        fields = QFormLayout()
        for key, field in (("setup.machine_host", self.host), ("setup.machine_folder", self.folder)):
            name = label()
            name.setText(tr(key))
            name.setBuddy(field)
            field.setAccessibleName(tr(key))
            fields.addRow(name, field)
        self.host.setPlaceholderText(tr("setup.machine_host_hint"))
        self.list.setAccessibleName(tr("setup.machines_title"))
        self.add.setText(tr("setup.machine_add"))
        self.remove.setText(tr("setup.machine_remove"))
        self.close_button.setText(tr("common.close"))
        layout = vertical_layout(margin=2 * SPACING)
        for widget in (note, self.list):
            layout.addWidget(widget)
        layout.addLayout(fields)
        layout.addWidget(self.status)
        buttons = horizontal_layout(self.remove, self.close_button, self.add)
        buttons.insertStretch(1, 1)
        layout.addLayout(buttons)
        self.setLayout(layout)
        resize_within_screen(self, _SIZE)

    def _list_machines(self) -> None:
        self.list.clear()
        self.list.addItems([f"{machine.host}    {machine.folder}" for machine in self._settings.machines])
        self._refresh()

    def _selected(self) -> RemoteMachine | None:
        row = self.list.currentRow()
        return self._settings.machines[row] if 0 <= row < len(self._settings.machines) else None

    def _show_selected(self) -> None:
        if (machine := self._selected()) is not None:
            self.host.setText(machine.host)
            self.folder.setText(machine.folder)
        self._refresh()

    def _check(self) -> None:
        self._checked = RemoteMachine(self.host.text().strip(), self.folder.text().strip() or DEFAULT_FOLDER)
        self.job.check(self._checked)

    def _remove(self) -> None:
        if (machine := self._selected()) is not None:
            self._controller.remove(machine)
            self._list_machines()

    def _refresh(self) -> None:
        job, checked = self.job, self._checked
        if job.is_complete and checked is not None and not job.is_running:
            self._checked = None
            self._controller.add(checked)
            self._list_machines()
        self.add.setEnabled(bool(self.host.text().strip()) and not job.is_running)
        self.remove.setEnabled(self._selected() is not None)
        if job.is_running:
            text = formatting.format_phase(job.shown_phase)
        else:
            text = job.failure or (format_event(job.result, current_language()) if job.result is not None else "")
        if text != self.status.text():
            self.status.setProperty("level", "bad" if job.failure and not job.is_running else "")
            restyle(self.status)
            self.status.setText(text)
            announce(self, text)

    def reject(self) -> None:
        self.job.shutdown()
        super().reject()
