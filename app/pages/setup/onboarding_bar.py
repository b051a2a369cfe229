"""Onboarding steps at the top of the setup panel: data, preset, check, start, and a hint at what to do next."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QPushButton,
    QSizePolicy,
    QStyle,
    QStyleOptionButton,
    QStylePainter,
    QToolButton,
    QToolTip,
    QVBoxLayout,
    QWidget,
)

from app.core.onboarding_steps import ONBOARDING_STEPS, OnboardingInputs, OnboardingStep, StepState, step_states
from app.texts import tr
from app.theme.icons import IconName, icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    TranslatableWidget,
    card,
    horizontal_layout,
    label,
    plain_tooltip,
    restyle,
    set_object_name,
    vertical_layout,
)

_STATES: Final[dict[StepState, tuple[IconName, str, str]]] = {  # icon, palette colour, text
    "done": ("fits", "good", "common.done"),
    "next": ("here", "accent", "setup.next"),
    "open": ("ring", "muted", "setup.not_yet"),
    "wrong": ("tight", "warn", "setup.to_be_put_right"),
    "working": ("here", "good", "setup.under_way"),
}
_ICON_SIZE: Final = QSize(14, 14)
_KEYBOARD_REASONS: Final = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)


class OnboardingBar(TranslatableWidget):
    """Shows `OnboardingInputs` as four steps. Steps and hint can be clicked."""

    step_pressed = Signal(str)
    hint_pressed = Signal()
    closed = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette, self._inputs = palette, OnboardingInputs(has_data=False, has_preset=False)
        self.steps = {step: self._create_step(step) for step in ONBOARDING_STEPS}
        self.hint = _HintButton()
        self.hint.clicked.connect(self.hint_pressed)
        self.close_button = set_object_name(QToolButton(), "flat")
        self.close_button.clicked.connect(self.closed)
        for button in (*self.steps.values(), self.hint):
            button.installEventFilter(self)
        steps, content = horizontal_layout(spacing=0), vertical_layout(spacing=0)
        for button in self.steps.values():
            if steps.count():
                line = label("pathLine")
                line.setFixedHeight(1)
                steps.addWidget(line, 1)
            steps.addWidget(button)
        hint = horizontal_layout((self.hint, 1), self.close_button, spacing=0)
        hint.setContentsMargins(SPACING // 2, 0, 0, 0)
        content.addLayout(steps)
        content.addLayout(hint)
        frame = card(content)
        content.setContentsMargins(SPACING // 2, SPACING // 2, SPACING // 2, SPACING // 4)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING + 4, SPACING, SPACING, 0)
        layout.addWidget(frame)
        self.retheme(palette)
        self.retranslate()

    def _create_step(self, step: OnboardingStep) -> QToolButton:
        button = set_object_name(QToolButton(), f"step_{step}")
        button.setProperty("step", "true")
        button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        button.setIconSize(_ICON_SIZE)
        button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        button.clicked.connect(lambda: self.step_pressed.emit(step))
        return button

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        """Show the tooltip of a button that gets the focus by keyboard."""
        focused = isinstance(event, QFocusEvent) and event.gotFocus() and event.reason() in _KEYBOARD_REASONS
        if focused and isinstance(watched, QWidget) and watched.toolTip():
            QToolTip.showText(watched.mapToGlobal(watched.rect().bottomLeft()), watched.toolTip(), watched)
        return super().eventFilter(watched, event)

    def display(self, inputs: OnboardingInputs) -> None:
        """Show `inputs`; cheap if they have not changed."""
        if inputs != self._inputs:
            self._inputs = inputs
            self._update()

    def _update(self) -> None:
        states = step_states(self._inputs)
        for step, button in self.steps.items():
            state = states[step]
            icon_name, colour, text_key = _STATES[state]
            button.setIcon(icon(icon_name, getattr(self._palette, colour), self._palette.muted))
            if button.property("mark") != state:
                button.setProperty("mark", state)
                restyle(button)
            button.setAccessibleName(tr("setup.step_state", step=button.text(), state=tr(text_key)))
            button.setToolTip(tr(text_key))
        self.hint.set_hint(self._format_hint(states))

    def _format_hint(self, states: dict[OnboardingStep, StepState]) -> str:
        inputs = self._inputs
        by_verdict = {
            None: tr("setup.next_check_that_fits_or"),
            "fits": tr("setup.it_fits_next_start"),
            "tight": tr("setup.fits_but_tightly_next_start"),
            "does_not_fit": tr("setup.does_not_fit_take_offer"),
        }
        candidates = (
            (inputs.run_active, tr("setup.run_under_way")),
            (states["data"] == "next", tr("setup.next_add_file_or_folder")),
            (not inputs.has_preset, tr("setup.next_choose_a_preset")),
            (bool(inputs.blocked), inputs.blocked),
            (inputs.inspecting_data, tr("setup.looking_at_the_data")),
            (bool(inputs.data_error), inputs.data_error),
            (inputs.checking, tr("setup.checking")),
            (inputs.run_finished, tr("setup.trained_next_try_it")),
        )
        return next((text for applies, text in candidates if applies), by_verdict[inputs.verdict])

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.close_button.setIcon(icon("close", palette.muted, palette.muted))
        self._update()

    def retranslate(self) -> None:
        self.steps["data"].setText(tr("common.data"))
        self.steps["preset"].setText(tr("setup.preset"))
        self.steps["check"].setText(tr("setup.check"))
        self.steps["start"].setText(tr("setup.start"))
        self.hint.setAccessibleDescription(tr("setup.goes_next_step"))
        self.close_button.setToolTip(tr("setup.hide_these_steps"))
        self.close_button.setAccessibleName(tr("setup.hide_these_steps"))
        self._update()


class _HintButton(QPushButton):
    """Button whose text is elided."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("hint")
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_hint(self, text: str) -> None:
        if text != self.accessibleName():
            self.setText(text.replace("&", "&&"))  # `&` in a file name is no mnemonic
            self.setAccessibleName(text)
            self._update_tooltip()

    def _elided_text(self) -> str:
        return self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, self.width() - 2 * SPACING)

    def _update_tooltip(self) -> None:
        self.setToolTip(plain_tooltip(self.accessibleName()) if self._elided_text() != self.text() else "")

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._update_tooltip()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(0, super().minimumSizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter, option = QStylePainter(self), QStyleOptionButton()
        self.initStyleOption(option)
        option.text = self._elided_text()
        painter.drawControl(QStyle.ControlElement.CE_PushButton, option)
