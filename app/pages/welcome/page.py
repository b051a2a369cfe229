"""Welcome page: hardware, recommended preset, and a quick start."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QLayout, QVBoxLayout, QWidget

from app.core.preset_recommendation import DriverProblem, usable_gpus
from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    TranslatableWidget,
    card,
    fill_grid,
    horizontal_layout,
    label,
    push_button,
    scroll_area,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from trainer_core.presets import Preset

if TYPE_CHECKING:
    from trainer_core.system.hardware import MachineInfo

_MAX_WIDTH = 720  # pixels


@dataclass(frozen=True, slots=True)
class WelcomeState:
    """State of the page. `machine` is None until the hardware is probed."""

    machine: MachineInfo | None = None
    preset: Preset | None = None  # recommended
    driver_problem: DriverProblem | None = None
    preset_selected: bool = False  # in the form
    has_data: bool = False
    can_start: bool = True
    is_first_run: bool = True


class WelcomePage(TranslatableWidget):
    """Displays a `WelcomeState`."""

    use_preset_requested = Signal()
    quickstart_requested = Signal()
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = WelcomeState()
        self._hardware_rows: list[tuple[str, str]] = []
        self._title, self._subtitle = label("welcomeTitle", wrap=True), label("muted", wrap=True)
        self._machine_title, self._hardware_grid = label("section"), QGridLayout()
        self.driver_problem_label = label("warnText", wrap=True, hidden=True)
        self.preset_title, self.reason_label = label("section", wrap=True), label(wrap=True)
        self._summary = label("muted", wrap=True)
        self.use_preset_button, self.next_step_label = push_button("usePreset"), label("good", wrap=True)
        self._try_title, self._try_text = label("section", wrap=True), label(wrap=True)
        self.quickstart_button, self.close_button = push_button("primary"), push_button("link")
        self.driver_problem_label.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.use_preset_button.clicked.connect(self.use_preset_requested)
        self.quickstart_button.clicked.connect(self.quickstart_requested)
        self.close_button.clicked.connect(self.closed)
        self._build_layout()
        self.retranslate()

    def _build_layout(self) -> None:
        self._hardware_grid.setHorizontalSpacing(2 * SPACING)
        self._hardware_grid.setVerticalSpacing(SPACING // 2)
        self._hardware_grid.setColumnStretch(1, 1)
        content = vertical_layout(spacing=SPACING + 4)
        content.setContentsMargins(SPACING, 2 * SPACING, SPACING, 2 * SPACING)
        content.addWidget(self._title)
        content.addWidget(self._subtitle)
        quickstart, closing = horizontal_layout(self.quickstart_button), horizontal_layout(self.close_button)
        quickstart.addStretch(1)
        closing.addStretch(1)
        for parts in (
            (self._machine_title, self._hardware_grid, self.driver_problem_label),
            (
                self.preset_title,
                self.reason_label,
                self._summary,
                horizontal_layout(self.use_preset_button, (self.next_step_label, 1)),
            ),
            (self._try_title, self._try_text, quickstart),
        ):
            content.addWidget(_padded_card(*parts))
        content.addLayout(closing)
        content.addStretch(1)
        column, inner = QWidget(), set_object_name(QWidget(), "scrolled")
        column.setLayout(content)
        column.setMaximumWidth(_MAX_WIDTH)
        centred = horizontal_layout()
        centred.addStretch(1)
        centred.addWidget(column, 100)
        centred.addStretch(1)
        inner.setLayout(centred)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll_area(inner))

    def display(self, state: WelcomeState) -> None:
        if state != self._state:
            self._state = state
            self._update()

    def _update(self) -> None:
        state, language = self._state, current_language()
        machine, preset = state.machine, state.preset
        problem = _format_driver_problem(state.driver_problem, machine) if state.driver_problem and machine else ""
        fits = tr("setup.hardware", hardware=preset.localized(preset.fits, language)) if preset else ""
        others = tr("welcome.one_gpu_note") if machine and len(usable_gpus(machine)) > 1 else ""
        title = preset.localized(preset.title, language) if preset else "…"
        next_step = tr("welcome.preset_chosen" if state.has_data else "welcome.preset_chosen_add_data")
        rows = _format_hardware(machine)
        if rows != self._hardware_rows:
            self._hardware_rows = rows
            fill_grid(self._hardware_grid, rows)
        self.driver_problem_label.setVisible(bool(problem))
        self.use_preset_button.setEnabled(preset is not None and not state.preset_selected and state.can_start)
        self.quickstart_button.setEnabled(state.can_start)
        for widget, text in (
            (self.driver_problem_label, problem),
            (self.reason_label, "\n".join(filter(None, (fits, others)))),
            (self.preset_title, tr("welcome.recommended_preset", preset=title)),
            (self._summary, preset.localized(preset.summary, language) if preset else ""),
            (self.next_step_label, next_step if state.preset_selected else ""),
            (self.close_button, tr("welcome.hide_permanently" if state.is_first_run else "common.close")),
        ):
            set_text_if_changed(widget, text)

    def retranslate(self) -> None:
        self._title.setText(tr("welcome.title"))
        self._subtitle.setText(tr("welcome.subtitle"))
        self._machine_title.setText(tr("welcome.this_machine"))
        self.use_preset_button.setText(tr("welcome.use_this_preset"))
        self._try_title.setText(tr("welcome.example_title"))
        self._try_text.setText(tr("welcome.example_note"))
        self.quickstart_button.setText(tr("welcome.try_example"))
        self._update()


def _padded_card(*parts: QWidget | QLayout) -> QFrame:
    layout = vertical_layout()
    for part in parts:
        if isinstance(part, QWidget):
            layout.addWidget(part)
        else:
            layout.addLayout(part)
    frame = card(layout)
    layout.setContentsMargins(2 * SPACING, SPACING + 4, 2 * SPACING, SPACING + 4)
    return frame


def _format_hardware(machine: MachineInfo | None) -> list[tuple[str, str]]:
    """Return (component, description) rows."""
    titles = (tr("welcome.gpu"), tr("welcome.memory"), tr("welcome.cpu"))
    if machine is None:
        return [(title, tr("welcome.loading")) for title in titles]
    total, free = formatting.format_bytes(machine.ram_total), formatting.format_bytes(machine.ram_available)
    cpu = " ".join(machine.cpu_name.split())
    return [
        *((titles[0] if not place else "", text) for place, text in enumerate(_format_gpus(machine))),
        (titles[1], tr("welcome.ram", size=total, free=free)),
        (titles[2], tr("welcome.cpu_name", name=cpu, count=machine.cpu_cores)),
    ]


def _format_gpus(machine: MachineInfo) -> list[str]:
    """Return one line per kind of GPU, with their number."""
    if not machine.gpus:
        return [tr("welcome.no_gpu")]
    kinds = Counter((gpu.name, formatting.format_bytes(gpu.vram_total)) for gpu in machine.gpus)
    return [
        tr("welcome.one_gpu" if count == 1 else "welcome.gpus",
           count=count, name=name, vram=vram)
        for (name, vram), count in kinds.items()
    ]  # fmt: skip


def _format_driver_problem(problem: DriverProblem, machine: MachineInfo) -> str:
    """Return a driver problem and its remedy."""
    key = {
        "none_installed": "welcome.driver_none_installed",
        "silent": "welcome.driver_silent",
        "restart": "welcome.driver_restart",
        "no_card": "welcome.driver_no_card",
        "old": "welcome.driver_too_old",
        "too_old_card": "welcome.driver_unsupported_gpu",
        "no_package": "welcome.driver_no_package",
        "cpu_build": "welcome.driver_cpu_build",
    }[problem]
    return tr(
        key,
        command="train_gpu.bat setup" if os.name == "nt" else "./train_gpu.sh setup",
        driver=machine.driver_version or "",
        gpu=machine.gpus[0].name if machine.gpus else "",
    )
