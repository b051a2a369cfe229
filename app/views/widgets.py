"""Small widgets that several panels use."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from PySide6.QtCore import QEvent, QObject, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import (
    QAccessible,
    QAccessibleAnnouncementEvent,
    QDragEnterEvent,
    QDragMoveEvent,
    QDropEvent,
    QPainter,
    QPaintEvent,
    QPalette,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QSizePolicy,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.theme.icons import IconName, paint
from app.theme.tokens import SPACE

_SIGN = 16  # pixels
_FRAME = QSize(16, 40)  # pixels: of a window, title bar included
W = TypeVar("W", bound=QWidget)


class ElidedLabel(QLabel):
    """One line that is shortened with … instead of pushing its neighbours; the whole text is its tooltip."""

    def __init__(self, mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._mode = mode
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setTextFormat(Qt.TextFormat.PlainText)

    def setText(self, text: str) -> None:  # noqa: N802 - Qt's name
        if text != self.text():
            super().setText(text)
            self._tell()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._tell()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(self.contentsRect(), int(self.alignment()), self._shown())

    def _shown(self) -> str:
        return self.fontMetrics().elidedText(self.text(), self._mode, self.contentsRect().width())

    def _tell(self) -> None:
        self.setToolTip(plain_tip(self.text()) if self._shown() != self.text() else "")


class QuietCombo(QComboBox):
    """A combo box that the wheel scrolls past: only one that has the focus takes it. As wide as its longest entry."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)  # Qt's own: as it was first shown

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        """Some pixels more than Qt's, whose style sheets may leave the text one too few."""
        return super().sizeHint() + QSize(4, 0)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        """As Qt does it, but what there is no room for ends in …"""
        painter, option = QStylePainter(self), QStyleOptionComboBox()
        self.initStyleOption(option)
        control, part = QStyle.ComplexControl.CC_ComboBox, QStyle.SubControl.SC_ComboBoxEditField
        room = self.style().subControlRect(control, option, part, self).width()
        if self.fontMetrics().horizontalAdvance(self.currentText()) > room:
            middle = Qt.TextElideMode.ElideMiddle
            option.currentText = self.fontMetrics().elidedText(self.currentText(), middle, room - 2)
        painter.drawComplexControl(control, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 - Qt's name
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()


class SignButton(QToolButton):
    """A button that bears an icon in place of words, in the colour of text, whichever the theme is."""

    def __init__(self, sign: IconName, name: str) -> None:
        super().__init__()
        self._sign: IconName = sign
        self.is_blank = False  # there, but not painted
        self.setObjectName(name)
        self.setIconSize(QSize(_SIGN, _SIGN))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        if self.is_blank:
            return
        super().paintEvent(event)
        corner = QRectF(self.rect()).center() - QPointF(_SIGN / 2, _SIGN / 2)
        paint(QPainter(self), self._sign, corner, self.palette().color(QPalette.ColorRole.ButtonText))


class Retranslating(QWidget):
    """A widget that words itself in `retranslate`, again whenever the language changes."""

    def retranslate(self) -> None:
        raise NotImplementedError

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)


def card(layout: QLayout) -> QFrame:
    """A framed surface around a layout."""
    frame = QFrame()
    frame.setObjectName("card")
    frame.setLayout(layout)
    layout.setContentsMargins(SPACE + 4, SPACE, SPACE + 4, SPACE)
    return frame


def column(*, spacing: int = SPACE, margin: int = 0) -> QVBoxLayout:
    """A vertical layout with the window's spacing."""
    layout = QVBoxLayout()
    layout.setSpacing(spacing)
    layout.setContentsMargins(margin, margin, margin, margin)
    return layout


def named(widget: W, name: str) -> W:
    """Give a widget the name that the style sheet and the tests know it by."""
    widget.setObjectName(name)
    return widget


def heading(title: QLabel, facts: ElidedLabel) -> QHBoxLayout:
    """The first line of a card: its title, and at the right what there is to say in short."""
    facts.setObjectName("muted")
    facts.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
    layout = QHBoxLayout()
    layout.setSpacing(2 * SPACE)
    layout.addWidget(title)
    layout.addWidget(facts, 1)
    return layout


def clear(layout: QLayout) -> None:
    """Take away the widgets that a layout holds."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()


def fill(grid: QGridLayout, rows: Iterable[tuple[str, str]]) -> None:
    """Rows of (what, how much) in place of those that there are."""
    clear(grid)
    for place, (what, amount) in enumerate(rows):
        name, value = label("muted"), ElidedLabel()
        name.setText(what)
        value.setText(amount)
        grid.addWidget(name, place, 0)
        grid.addWidget(value, place, 1)


def restyle(widget: QWidget) -> None:
    """Apply the style sheet again after a property that it selects by has changed."""
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def describe_error(editor: QWidget, error: str, help_: str = "") -> None:
    """Mark an editor as wrong and put the error first in its accessible description; without an error, unmark it.

    Screen readers are told that the description has changed, and read the error aloud where the editor has the focus.
    """
    if bool(editor.property("wrong")) != bool(error):
        editor.setProperty("wrong", bool(error))
        restyle(editor)
    description = "\n".join(filter(None, (error, help_)))
    if description == editor.accessibleDescription():
        return
    editor.setAccessibleDescription(description)  # emits QAccessible.Event.DescriptionChanged
    if error and editor.hasFocus():
        announce(editor, error)


def announce(widget: QWidget, text: str) -> None:
    """Have screen readers read a text aloud, wherever the focus is."""
    QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(widget, text))


def focus(widget: QWidget) -> None:
    """Put the cursor there as the Tab key would, so that its frame shows it; a line's text is selected."""
    widget.setFocus(Qt.FocusReason.TabFocusReason)
    if isinstance(widget, QLineEdit):
        widget.selectAll()


def hand_over(part: QWidget, to: QWidget) -> None:
    """Before `part` is hidden or disabled: where it has the focus, `to` gets it, and not what Qt finds next."""
    held = part.window().focusWidget()
    if held is not None and (held is part or part.isAncestorOf(held)):
        to.setFocus(Qt.FocusReason.OtherFocusReason)


def plain_tip(text: str) -> str:
    """A tooltip that shows `text` as it stands: what looks like HTML could make Qt load pictures from anywhere."""
    return f'<p style="white-space: pre-wrap">{html.escape(text)}</p>' if "<" in text else text


def wrapped_tip(text: str) -> str:
    """A tooltip of several lines that is broken at a width one can read, where Qt would make it as wide as it is."""
    return f'<p style="white-space: pre-wrap">{html.escape(text)}</p>'


def put(widget: QLabel | QPushButton, text: str) -> None:
    """Set a text that may be the same: to set it anyway would lay everything out again."""
    if widget.text() != text:
        widget.setText(text)


def label(name: str = "", *, wrap: bool = False, hidden: bool = False, centred: bool = False) -> QLabel:
    """A label; its `name` is what the style sheet knows it by. Its text is text: a file's name could be HTML."""
    made = named(QLabel(textFormat=Qt.TextFormat.PlainText), name)
    made.setWordWrap(wrap)
    if hidden:
        made.hide()
    if centred:
        made.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return made


def button(name: str = "", *, checkable: bool = False) -> QPushButton:
    """A push button by name."""
    made = named(QPushButton(), name)
    made.setCheckable(checkable)
    return made


def line(name: str, *, clear: bool = False) -> QLineEdit:
    """A line to type in, by name; `clear`: with a button that empties it."""
    made = named(QLineEdit(), name)
    made.setClearButtonEnabled(clear)
    return made


class PathLine(QLineEdit):
    """A line for a path: a file or folder that is dropped on it takes the place of the text."""

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802 - Qt's name
        paths = [url.toLocalFile() for url in event.mimeData().urls() if url.isLocalFile()]
        if not paths:
            super().dropEvent(event)
            return
        event.acceptProposedAction()
        self.setText(str(Path(paths[0])))
        self.textEdited.emit(self.text())

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:  # noqa: N802 - Qt's name
        if event.mimeData().hasUrls():
            event.acceptProposedAction()
        else:
            super().dragEnterEvent(event)

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:  # noqa: N802 - Qt's name
        if event.mimeData().hasUrls():
            event.acceptProposedAction()
        else:
            super().dragMoveEvent(event)


class FittingArea(QScrollArea):
    """As high as its content, where there is room; where there is not, it scrolls instead of squeezing it."""

    def __init__(self, content: QWidget, least: int) -> None:
        super().__init__()
        self._content, self._least = content, least
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.setWidget(content)
        content.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LayoutRequest:
            self.updateGeometry()
        return super().eventFilter(watched, event)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width():
            self.updateGeometry()

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        content, hint = self._content, self._content.sizeHint()
        width = self.viewport().width()
        return QSize(hint.width(), content.heightForWidth(width) if content.hasHeightForWidth() else hint.height())

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(self._content.minimumSizeHint().width(), min(self._least, self.sizeHint().height()))


def scroll_area(content: QWidget) -> QScrollArea:
    """A frameless vertical scroll area around `content`."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(content)
    return area


def page_area(content: QWidget) -> QScrollArea:
    """A scroll area for both directions. The Tab key passes over it: what it contains takes the focus, and scrolls."""
    area = scroll_area(content)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    return area


def resize_within_screen(window: QWidget, size: QSize) -> None:
    """Resize a window, but not beyond its screen, its frame and title bar included."""
    window.resize(size.boundedTo(window.screen().availableSize() - _FRAME))


def scroll_to(area: QScrollArea, part: QWidget) -> None:
    """Bring a part of what is scrolled into sight. What was added a moment ago counts: an area learns of it by an event
    that may still be on its way, and does not scroll beyond what it knows."""
    content = area.widget()
    layout = content.layout() if content is not None else None
    if layout is not None:
        layout.activate()
    QApplication.sendEvent(area, QEvent(QEvent.Type.LayoutRequest))
    area.ensureWidgetVisible(part, 0, 8 * SPACE)


def empty_note(over: QWidget) -> QLabel:
    """Calm words in the middle of a view that has nothing to show; clicks go through them."""
    note = label("muted", wrap=True, centred=True)
    note.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
    layout = QVBoxLayout(over)
    layout.addWidget(note)
    return note
