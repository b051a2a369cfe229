"""Onboarding steps at the top of the setup panel: data, preset, check, start, and a hint at what to do next."""

from __future__ import annotations

from typing import Final, Literal

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtWidgets import QToolButton, QVBoxLayout

from app.texts import tr
from app.theme.icons import IconName, icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    IconButton,
    TranslatableWidget,
    card,
    horizontal_layout,
    label,
    set_object_name,
    vertical_layout,
)

OnboardingStep = Literal["data", "preset", "check", "start"]
_STEP_TITLES: Final[dict[OnboardingStep, str]] = {
    "data": "common.data",
    "preset": "setup.preset",
    "check": "setup.check",
    "start": "setup.start",
}
_STATES: Final[dict[str, tuple[IconName, str, str]]] = {  # icon, palette colour, text
    "done": ("fits", "good", "common.phase_done"),
    "next": ("here", "accent", "setup.state_next"),
    "wrong": ("tight", "warn", "setup.state_invalid"),
    "open": ("ring", "muted", "setup.state_open"),
}
_ICON_SIZE: Final = QSize(14, 14)


class OnboardingBar(TranslatableWidget):
    """The steps before the next one are done. Each can be clicked."""

    step_clicked = Signal(str)

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._palette = palette
        self.states: dict[OnboardingStep, str] = {}
        """State of each step: done, next, wrong or open."""
        self.steps = {step: self._create_step(step) for step in _STEP_TITLES}
        self.hint, self.close_button = set_object_name(ElidedLabel(), "hint"), IconButton("close", "flat")
        steps, content = horizontal_layout(spacing=0), vertical_layout(spacing=0)
        for button in self.steps.values():
            if steps.count():
                line = label("pathLine")
                line.setFixedHeight(1)
                steps.addWidget(line, 1)
            steps.addWidget(button)
        content.addLayout(steps)
        content.addLayout(horizontal_layout((self.hint, 1), self.close_button, spacing=0))
        frame = card(content)
        content.setContentsMargins(SPACING // 2, SPACING // 2, SPACING // 2, SPACING // 4)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING + 4, SPACING, SPACING, 0)
        layout.addWidget(frame)
        self.display("data", "")
        self.retranslate()

    def _create_step(self, step: OnboardingStep) -> QToolButton:
        button = set_object_name(QToolButton(), f"step_{step}")
        button.setProperty("step", "true")
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        button.setIconSize(_ICON_SIZE)
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        button.clicked.connect(lambda: self.step_clicked.emit(step))
        return button

    def display(self, next_step: OnboardingStep, hint: str, *, is_wrong: bool = False) -> None:
        """Show the step to do next; cheap if it has not changed. `is_wrong`: an error must be corrected."""
        self.hint.setText(hint)
        states, state = dict.fromkeys(_STEP_TITLES, "open"), "done"
        for step in _STEP_TITLES:
            states[step] = state
            if step == next_step:
                states[step], state = "wrong" if is_wrong else "next", "open"
        if states != self.states:
            self.states = states
            self._show_states()

    def _show_states(self) -> None:
        for step, state in self.states.items():
            icon_name, colour, text_key = _STATES[state]
            button = self.steps[step]
            button.setIcon(icon(icon_name, getattr(self._palette, colour), self._palette.muted))
            button.setText(tr(_STEP_TITLES[step]))
            button.setToolTip(tr(text_key))
            button.setAccessibleName(tr("setup.step_state", step=button.text(), state=tr(text_key)))

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self._show_states()

    def retranslate(self) -> None:
        self.close_button.setToolTip(tr("setup.hide_steps"))
        self.close_button.setAccessibleName(tr("setup.hide_steps"))
        self._show_states()
