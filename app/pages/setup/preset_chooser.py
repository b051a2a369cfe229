"""Preset chooser, and the notice about changed settings that another preset has kept."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from app.knob_texts import knob_label
from app.pages.setup.form import SetupForm
from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    NoScrollComboBox,
    TranslatableWidget,
    announce,
    horizontal_layout,
    label,
    move_focus,
    push_button,
    set_object_name,
    vertical_layout,
)
from trainer_core.config import knobs
from trainer_core.presets import Preset, group

if TYPE_CHECKING:
    from trainer_core.system.hardware import MachineInfo

_MAX_VISIBLE: Final = 20  # all presets without scrolling


class PresetChooser(TranslatableWidget):
    """Combo box of presets, with the summary of the selected one below."""

    def __init__(self, form: SetupForm) -> None:
        super().__init__()
        self._form = form
        self._presets: dict[str, Preset] = {}
        self._machine: MachineInfo | None = None
        self.combo_box = set_object_name(NoScrollComboBox(), "preset")
        self.combo_box.setSizeAdjustPolicy(NoScrollComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.combo_box.setMinimumContentsLength(16)
        self.combo_box.setMaxVisibleItems(_MAX_VISIBLE)
        self._summary, self._fits = label(wrap=True), label("muted", wrap=True)
        self._machine_label = label("muted", wrap=True)
        layout = vertical_layout(spacing=SPACING // 2)
        for widget in (self.combo_box, self._summary, self._fits, self._machine_label):
            layout.addWidget(widget)
        self.setLayout(layout)
        self.combo_box.activated.connect(lambda row: form.choose_preset(self._presets[self.combo_box.itemData(row)]))
        form.preset_changed.connect(self.retranslate)
        self.retranslate()

    def set_presets(self, presets: list[Preset]) -> None:
        self._presets = {preset.name: preset for preset in presets}
        self.combo_box.clear()
        for before, preset in zip([None, *presets], presets, strict=False):
            if before is not None and group(before.name) != group(preset.name):
                self.combo_box.insertSeparator(self.combo_box.count())
            self.combo_box.addItem(preset.name, preset.name)
        self.retranslate()

    def show_machine(self, machine: MachineInfo) -> None:
        """Show the hardware of this machine, to compare with the requirements of a preset."""
        self._machine = machine
        self.retranslate()

    def retranslate(self) -> None:
        selected, language = self._form.preset, current_language()
        self.combo_box.setAccessibleName(tr("setup.preset"))
        for name, preset in self._presets.items():
            self.combo_box.setItemText(self.combo_box.findData(name), preset.localized(preset.title, language))
        self.combo_box.setCurrentIndex(self.combo_box.findData(selected.name))
        fits = selected.localized(selected.fits, language)
        self._summary.setText(selected.localized(selected.summary, language))
        self._fits.setText(tr("setup.hardware", hardware=fits))
        self._fits.setVisible(bool(fits))
        self._machine_label.setText(_format_machine(self._machine) if self._machine else "")
        self._machine_label.setVisible(self._machine is not None)


def _format_machine(machine: MachineInfo) -> str:
    kinds = Counter((gpu.name, formatting.format_bytes(gpu.vram_total)) for gpu in machine.gpus)
    gpus = [f"{f'{count} × ' if count > 1 else ''}{name} ({vram})" for (name, vram), count in kinds.items()]
    parts = [
        *(gpus or [tr("setup.no_nvidia_gpu")]),
        tr("setup.one_cpu_core" if machine.cpu_cores == 1 else "setup.cpu_cores", count=machine.cpu_cores),
        tr("setup.ram", size=formatting.format_bytes(machine.ram_total)),
    ]
    return tr("setup.this_machine", parts=tr("common.list_separator").join(parts))


class KeptChangesNotice(TranslatableWidget):
    """Lists the changed settings that kept their values when another preset was selected.

    `next_focus` takes the focus from a button that hides the notice.
    """

    def __init__(self, form: SetupForm, next_focus: QWidget) -> None:
        super().__init__()
        self._form, self._next_focus = form, next_focus
        self.text = label(wrap=True)
        self.reset, self.dismiss = push_button("link"), push_button("link")
        self.reset.clicked.connect(lambda: form.reset(*form.kept))
        self.dismiss.clicked.connect(form.dismiss_kept)
        buttons = horizontal_layout(self.reset)
        buttons.addStretch(1)
        buttons.addWidget(self.dismiss)
        frame = set_object_name(QFrame(), "banner")
        inner = vertical_layout(spacing=SPACING // 2)
        inner.setContentsMargins(SPACING, SPACING // 2, SPACING, SPACING // 2)
        inner.addWidget(self.text)
        inner.addLayout(buttons)
        frame.setLayout(inner)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)
        self.hide()
        form.changed.connect(self._on_changed)
        self.retranslate()

    def _on_changed(self) -> None:
        before = self.text.text()
        self.retranslate()
        if not self._form.kept:
            move_focus(self, self._next_focus)
            self.hide()
        elif self.isHidden() or self.text.text() != before:
            self.show()
            announce(self, self.text.text())

    def retranslate(self) -> None:
        settings = tr("setup.list_separator").join(knob_label(knobs()[name]) for name in self._form.kept)
        self.text.setText(tr("setup.kept_changes", settings=settings))
        self.reset.setText(tr("setup.reset_to_preset"))
        self.reset.setAccessibleDescription(self.text.text())
        self.dismiss.setText(tr("setup.dismiss"))
