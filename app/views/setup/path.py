"""The way to a run, at the head of the setup: data, preset, check, start, and what comes next."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QIcon, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
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

from app.state.path import STEPS, Facts, Mark, Step, marks
from app.theme.icons import IconName, icon
from app.theme.tokens import SPACE, Tokens
from app.views.widgets import Retranslating, label, named, plain_tip, restyle

_ICONS: dict[Mark, tuple[IconName, str]] = {  # and the colour's name
    "done": ("fits", "good"),
    "next": ("here", "accent"),
    "open": ("ring", "muted"),
    "wrong": ("tight", "warn"),
    "working": ("here", "good"),
}
_BY_KEYBOARD = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)


class PathStrip(Retranslating):
    """Shows `Facts` as four steps; a click asks to be led there."""

    step_pressed = Signal(str)
    hint_pressed = Signal()
    closed = Signal()

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens, self._facts = tokens, Facts(has_data=False, has_preset=False)
        self._icons: dict[Mark, QIcon] = {}  # of this theme, each made when it is first shown
        self.steps = {step: self._make_step(step) for step in STEPS}
        self.hint = _Hint()
        self.hint.clicked.connect(self.hint_pressed)
        self.close_button = named(QToolButton(), "flat")
        self.close_button.setIcon(icon("close", tokens.muted, tokens.muted))
        self.close_button.clicked.connect(self.closed)
        for made in (*self.steps.values(), self.hint):
            made.installEventFilter(self)
        self._arrange()
        self.retranslate()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        """Show the tooltip of what gets the focus by keyboard, as the mouse would."""
        focused = isinstance(event, QFocusEvent) and event.gotFocus() and event.reason() in _BY_KEYBOARD
        if focused and isinstance(watched, QWidget) and watched.toolTip():
            QToolTip.showText(watched.mapToGlobal(watched.rect().bottomLeft()), watched.toolTip(), watched)
        return super().eventFilter(watched, event)

    def _make_step(self, step: Step) -> QToolButton:
        made = named(QToolButton(), f"step_{step}")
        made.setProperty("step", "true")
        made.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        made.setIconSize(QSize(14, 14))
        made.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        made.clicked.connect(lambda: self.step_pressed.emit(step))
        return made

    def _arrange(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(0)
        for place, made in enumerate(self.steps.values()):
            if place:
                row.addWidget(_line(), 1)
            row.addWidget(made)
        below = QHBoxLayout()
        below.setSpacing(0)
        below.setContentsMargins(SPACE // 2, 0, 0, 0)
        below.addWidget(self.hint, 1)
        below.addWidget(self.close_button)
        inner = QVBoxLayout()
        inner.setSpacing(0)
        inner.setContentsMargins(SPACE // 2, SPACE // 2, SPACE // 2, SPACE // 4)
        inner.addLayout(row)
        inner.addLayout(below)
        frame = named(QFrame(), "card")
        frame.setLayout(inner)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(SPACE + 4, SPACE, SPACE, 0)
        outer.addWidget(frame)

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, facts: Facts) -> None:
        """Show this; cheap where it is what is shown already."""
        if facts != self._facts:
            self._facts = facts
            self._show()

    def _show(self) -> None:
        found, names = marks(self._facts), self._names()
        for step, made in self.steps.items():
            mark = found[step]
            made.setIcon(self._icon(mark))
            if made.property("mark") != mark:
                made.setProperty("mark", mark)
                restyle(made)
            said = self._mark_words()[mark]
            made.setAccessibleName(self.tr("{step}: {state}").format(step=names[step], state=said))
            made.setToolTip(said)
        self.hint.show_text(self._next(found))

    def _icon(self, mark: Mark) -> QIcon:
        if mark not in self._icons:
            name, colour = _ICONS[mark]
            self._icons[mark] = icon(name, getattr(self._tokens, colour), self._tokens.muted)
        return self._icons[mark]

    def _next(self, found: dict[Step, Mark]) -> str:
        facts = self._facts
        if facts.active:
            return self.tr("A run is under way")
        if found["data"] == "next":
            return self.tr("Next: add a file or a folder, or drop it here")
        if not facts.has_preset:
            return self.tr("Next: choose a preset")
        if facts.blocked:
            return facts.blocked
        if facts.looking:
            return self.tr("Looking at the data…")
        if facts.refused:
            return facts.refused
        if facts.checking:
            return self.tr("Checking…")
        if facts.trained:
            return self.tr("Trained. Next: Try it")
        return {
            None: self.tr("Next: check that it fits, or start at once"),
            "fits": self.tr("It fits. Next: Start"),
            "tight": self.tr("It fits, but tightly. Next: Start"),
            "does_not_fit": self.tr("It does not fit: take an offer of the check"),
        }[facts.verdict]

    # --- looks and words -------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._icons.clear()
        self.close_button.setIcon(icon("close", tokens.muted, tokens.muted))
        self._show()

    def retranslate(self) -> None:
        names = self._names()
        for step, made in self.steps.items():
            made.setText(names[step])
        self.hint.setAccessibleDescription(self.tr("Goes to the next step"))
        self.close_button.setToolTip(self.tr("Hide these steps"))
        self.close_button.setAccessibleName(self.tr("Hide these steps"))
        self._show()

    def _names(self) -> dict[Step, str]:
        return {
            "data": self.tr("Data"),
            "preset": self.tr("Preset"),
            "check": self.tr("Check"),
            "start": self.tr("Start"),
        }

    def _mark_words(self) -> dict[Mark, str]:
        return {
            "done": self.tr("done"),
            "next": self.tr("next"),
            "open": self.tr("not yet"),
            "wrong": self.tr("to be put right"),
            "working": self.tr("under way"),
        }


class _Hint(QPushButton):
    """What comes next, in one line that is shortened with …; pressing it leads there."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("hint")
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_text(self, text: str) -> None:
        if text != self.accessibleName():
            self.setText(text.replace("&", "&&"))  # a file name may contain one
            self.setAccessibleName(text)
            self._shorten()

    def _shown(self) -> str:
        return self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, self.width() - 2 * SPACE)

    def _shorten(self) -> None:
        self.setToolTip(plain_tip(self.accessibleName()) if self._shown() != self.text() else "")

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._shorten()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(0, super().minimumSizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter, option = QStylePainter(self), QStyleOptionButton()
        self.initStyleOption(option)
        option.text = self._shown()
        painter.drawControl(QStyle.ControlElement.CE_PushButton, option)


def _line() -> QLabel:
    """What joins two steps."""
    made = label("pathLine")
    made.setFixedHeight(1)
    return made
