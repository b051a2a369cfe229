"""The preset chooser: title, what it is for, what hardware it fits."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views import words
from app.views.widgets import QuietCombo, Retranslating, label
from trainer_core.presets import Preset

if TYPE_CHECKING:
    from trainer_core.machine.hardware import Machine


class PresetChooser(Retranslating):
    """A list of presets with the chosen one explained below it."""

    chosen = Signal(object)  # Preset

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._presets: list[Preset] = []
        self._combo = QuietCombo()
        self._combo.setObjectName("preset")
        self._combo.setSizeAdjustPolicy(QuietCombo.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._combo.setMinimumContentsLength(16)
        self._combo.activated.connect(lambda row: self.chosen.emit(self._presets[row]))
        self._summary = label(wrap=True)
        self._fits = label("muted", wrap=True)
        self._machine = label("muted", wrap=True, hidden=True)
        self._facts: Machine | None = None
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE // 2)
        for widget in (self._combo, self._summary, self._fits, self._machine):
            layout.addWidget(widget)
        self.retranslate()

    @property
    def choice(self) -> QuietCombo:
        """Where it is chosen."""
        return self._combo

    def offer(self, presets: list[Preset]) -> None:
        """The presets to choose from."""
        self._presets = presets
        self._combo.clear()
        self._combo.addItems([preset.name for preset in presets])
        self._combo.setCurrentIndex(-1)
        self.retranslate()

    def display(self, preset: Preset | None) -> None:
        """Show which preset is chosen."""
        row = next((i for i, known in enumerate(self._presets) if preset and known.name == preset.name), -1)
        self._combo.setCurrentIndex(row)
        if preset is None:
            return
        language = words.language()
        self._summary.setText(preset.text(preset.summary, language))
        fits = preset.text(preset.fits, language)
        self._fits.setText(self.tr("Fits: {hardware}").format(hardware=fits) if fits else "")
        self._fits.setVisible(bool(fits))

    def show_machine(self, facts: Machine) -> None:
        """Say what this machine has, to hold against what a preset fits."""
        self._facts = facts
        memory = self.tr("{size} of memory").format(size=words.size(facts.ram_total))
        counts = Counter((gpu.name, words.size(gpu.vram_total)) for gpu in facts.gpus)
        cards = [f"{f'{count} × ' if count > 1 else ''}{name} ({vram})" for (name, vram), count in counts.items()]
        gpus = cards or [self.tr("no NVIDIA GPU")]
        count = facts.cpu_cores
        cores = self.tr("1 CPU core") if count == 1 else self.tr("{count} CPU cores").format(count=count)
        text = self.tr("This machine: {parts}").format(parts=self.tr(", ").join([*gpus, cores, memory]))
        self._machine.setText(text)
        self._machine.show()

    def retranslate(self) -> None:
        if self._facts is not None:
            self.show_machine(self._facts)
        self._combo.setAccessibleName(self.tr("Preset"))
        for row, preset in enumerate(self._presets):
            self._combo.setItemText(row, preset.text(preset.title, words.language()))
        row = self._combo.currentIndex()
        self.display(self._presets[row] if 0 <= row < len(self._presets) else None)
