"""Welcome page: hardware, recommended preset, and a quick start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.core.preset_recommendation import DriverProblem, PresetRecommendation
from app.pages.welcome import texts
from app.texts import current_language, tr
from app.theme.palette import SPACING
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
    recommendation: PresetRecommendation | None = None
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
        for text in (self._title, self._subtitle):
            content.addWidget(text)
        facts, uses, tries = (
            vertical_layout(spacing=SPACING),
            vertical_layout(spacing=SPACING),
            vertical_layout(spacing=SPACING),
        )
        facts.addWidget(self._machine_title)
        facts.addLayout(self._hardware_grid)
        facts.addWidget(self.driver_problem_label)
        for text in (self.preset_title, self.reason_label, self._summary):
            uses.addWidget(text)
        uses.addLayout(_left_aligned_row(self.use_preset_button, rest=self.next_step_label))
        for text in (self._try_title, self._try_text):
            tries.addWidget(text)
        tries.addLayout(_left_aligned_row(self.quickstart_button))
        for part in (facts, uses, tries):
            content.addWidget(_padded_card(part))
        content.addLayout(_left_aligned_row(self.close_button))
        content.addStretch(1)
        inner, around = set_object_name(QWidget(), "scrolled"), QHBoxLayout()
        held = QWidget()
        held.setLayout(content)
        held.setMaximumWidth(_MAX_WIDTH)
        around.setContentsMargins(0, 0, 0, 0)
        around.addStretch(1)
        around.addWidget(held, 100)
        around.addStretch(1)
        inner.setLayout(around)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll_area(inner))

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, state: WelcomeState) -> None:
        if state != self._state:
            looked = state.machine is not self._state.machine
            self._state = state
            self._show(facts=looked)

    def _show(self, *, facts: bool) -> None:
        state = self._state
        if facts:
            self._show_hardware()
        machine, proposal = state.machine, state.recommendation
        set_text_if_changed(
            self.driver_problem_label,
            texts.format_driver_problem(state.driver_problem, machine) if state.driver_problem and machine else "",
        )
        self.driver_problem_label.setVisible(bool(self.driver_problem_label.text()))
        set_text_if_changed(
            self.reason_label, texts.format_recommendation_reason(machine, proposal) if machine and proposal else ""
        )
        preset = state.preset
        title = preset.localized(preset.title, current_language()) if preset else "…"
        set_text_if_changed(self.preset_title, tr("welcome.preset_that_fits_preset", preset=title))
        set_text_if_changed(self._summary, preset.localized(preset.summary, current_language()) if preset else "")
        self.use_preset_button.setEnabled(preset is not None and not state.preset_selected and state.can_start)
        next_step = tr("welcome.chosen_next_check_or_start")
        if not state.has_data:
            next_step = tr("welcome.chosen_now_add_your_data")
        set_text_if_changed(self.next_step_label, next_step if state.preset_selected else "")
        self.quickstart_button.setEnabled(state.can_start)
        set_text_if_changed(
            self.close_button, tr("welcome.dont_show_this_again") if state.is_first_run else tr("common.close")
        )

    def _show_hardware(self) -> None:
        fill_grid(self._hardware_grid, texts.format_hardware(self._state.machine))

    def retranslate(self) -> None:
        set_text_if_changed(self._title, tr("welcome.welcome_to_traindeck"))
        set_text_if_changed(self._subtitle, tr("welcome.train_language_model_your_own"))
        set_text_if_changed(self._machine_title, tr("welcome.this_machine"))
        set_text_if_changed(self.use_preset_button, tr("welcome.use_this_preset"))
        set_text_if_changed(self._try_title, tr("welcome.or_see_model_learn_first"))
        set_text_if_changed(self._try_text, tr("welcome.small_model_learns_write_python"))
        set_text_if_changed(self.quickstart_button, tr("welcome.try_now_with_built_in"))
        self._show(facts=True)


def _left_aligned_row(*widgets: QWidget, rest: QWidget | None = None) -> QHBoxLayout:
    """Return a left-aligned row; `rest` gets the remaining width."""
    row = horizontal_layout(*widgets)
    if rest is None:
        row.addStretch(1)
    else:
        row.addWidget(rest, 1)
    return row


def _padded_card(layout: QVBoxLayout) -> QFrame:
    frame = card(layout)
    layout.setContentsMargins(2 * SPACING, SPACING + 4, 2 * SPACING, SPACING + 4)
    return frame
