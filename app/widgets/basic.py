"""Widgets, layouts and helpers that several pages share."""

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
    QProgressBar,
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

from app.theme.icons import IconName, paint_icon
from app.theme.palette import SPACING
from app.widgets.disabled_reason import explain_disabled

_ICON_SIZE = 16  # pixels
_PROGRESS_STEPS = 1000
_WINDOW_FRAME = QSize(16, 40)  # pixels, with the title bar
W = TypeVar("W", bound=QWidget)


class ElidedLabel(QLabel):
    """Single-line label that elides its text; the tooltip has all of it."""

    def __init__(self, mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._mode = mode
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setTextFormat(Qt.TextFormat.PlainText)

    def setText(self, text: str) -> None:  # noqa: N802 - Qt's name
        if text != self.text():
            super().setText(text)
            self._update_tooltip()

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._update_tooltip()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(self.contentsRect(), int(self.alignment()), self._elided_text())

    def _elided_text(self) -> str:
        return self.fontMetrics().elidedText(self.text(), self._mode, self.contentsRect().width())

    def _update_tooltip(self) -> None:
        self.setToolTip(plain_tooltip(self.text()) if self._elided_text() != self.text() else "")


class NoScrollComboBox(QComboBox):
    """Combo box that ignores the mouse wheel without focus. As wide as its longest item."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return super().sizeHint() + QSize(4, 0)  # with a style sheet, Qt's hint can be a pixel too narrow

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        """Elide the text, where Qt clips it."""
        painter, option = QStylePainter(self), QStyleOptionComboBox()
        self.initStyleOption(option)
        if self.currentIndex() < 0:
            option.currentText = self.placeholderText()
            option.palette.setBrush(QPalette.ColorRole.ButtonText, option.palette.placeholderText())
        control, part = QStyle.ComplexControl.CC_ComboBox, QStyle.SubControl.SC_ComboBoxEditField
        room = self.style().subControlRect(control, option, part, self).width()
        if self.fontMetrics().horizontalAdvance(option.currentText) > room:
            middle = Qt.TextElideMode.ElideMiddle
            option.currentText = self.fontMetrics().elidedText(option.currentText, middle, room - 2)
        painter.drawComplexControl(control, option)
        painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def wheelEvent(self, event: QWheelEvent) -> None:  # noqa: N802 - Qt's name
        if self.hasFocus():
            super().wheelEvent(event)
        else:
            event.ignore()


class IconButton(QToolButton):
    """Icon-only button in the text color of the theme."""

    def __init__(self, icon_name: IconName, name: str) -> None:
        super().__init__()
        self._icon_name: IconName = icon_name
        self.is_hidden_in_place = False  # keeps its place, but is not painted
        self.setObjectName(name)
        explain_disabled(self)
        self.setIconSize(QSize(_ICON_SIZE, _ICON_SIZE))
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        if self.is_hidden_in_place:
            return
        super().paintEvent(event)
        corner = QRectF(self.rect()).center() - QPointF(_ICON_SIZE / 2, _ICON_SIZE / 2)
        paint_icon(QPainter(self), self._icon_name, corner, self.palette().color(QPalette.ColorRole.ButtonText))


class TranslatableWidget(QWidget):
    """Widget that sets its texts in `retranslate`, which is called again when the language changes."""

    def retranslate(self) -> None:
        raise NotImplementedError

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        super().changeEvent(event)


def card(layout: QLayout) -> QFrame:
    """Return a framed surface with a layout."""
    frame = QFrame()
    frame.setObjectName("card")
    frame.setLayout(layout)
    layout.setContentsMargins(SPACING + 4, SPACING, SPACING + 4, SPACING)
    return frame


def vertical_layout(*, spacing: int = SPACING, margin: int = 0) -> QVBoxLayout:
    """Return a vertical layout with the spacing of the window."""
    layout = QVBoxLayout()
    layout.setSpacing(spacing)
    layout.setContentsMargins(margin, margin, margin, margin)
    return layout


def horizontal_layout(*widgets: QWidget | tuple[QWidget, int], spacing: int = SPACING) -> QHBoxLayout:
    """Return a row of widgets without margins; a tuple adds a stretch factor."""
    layout = QHBoxLayout()
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(spacing)
    for widget in widgets:
        layout.addWidget(*(widget if isinstance(widget, tuple) else (widget,)))
    return layout


def set_object_name(widget: W, name: str) -> W:
    """Set the name by which style sheet and tests find a widget, and return the widget."""
    widget.setObjectName(name)
    return widget


def card_header(title: QLabel, facts: ElidedLabel) -> QHBoxLayout:
    """Return the first line of a card: the title on the left, a summary on the right."""
    facts.setObjectName("muted")
    facts.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
    return horizontal_layout(title, (facts, 1), spacing=2 * SPACING)


def clear_layout(layout: QLayout) -> None:
    """Delete the widgets of a layout."""
    while (item := layout.takeAt(0)) is not None:
        if (widget := item.widget()) is not None:
            widget.hide()
            widget.deleteLater()


def fill_grid(grid: QGridLayout, rows: Iterable[tuple[str, str]]) -> None:
    """Replace the rows of a grid by (name, value) rows."""
    clear_layout(grid)
    for row, (name, value) in enumerate(rows):
        name_label, value_label = label("muted"), ElidedLabel()
        name_label.setText(name)
        value_label.setText(value)
        grid.addWidget(name_label, row, 0)
        grid.addWidget(value_label, row, 1)


def restyle(widget: QWidget) -> None:
    """Apply the style sheet again after a change of a property that it selects by."""
    widget.style().unpolish(widget)
    widget.style().polish(widget)


def set_error(editor: QWidget, error: str, help_: str = "") -> None:
    """Mark an editor as invalid and prepend the error to its accessible description; without an error, unmark it."""
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
    """Let screen readers read a text aloud, independent of the focus."""
    QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(widget, text))


def focus_by_keyboard(widget: QWidget) -> None:
    """Set the focus as the Tab key does, with a focus frame; select the text of a line edit."""
    widget.setFocus(Qt.FocusReason.TabFocusReason)
    if isinstance(widget, QLineEdit):
        widget.selectAll()


def move_focus(part: QWidget, to: QWidget) -> None:
    """Before `part` is hidden or disabled, move its focus to `to`. Otherwise, Qt selects the next widget."""
    held = part.window().focusWidget()
    if held is not None and (held is part or part.isAncestorOf(held)):
        to.setFocus(Qt.FocusReason.OtherFocusReason)


def plain_tooltip(text: str) -> str:
    """Return a tooltip that shows `text` literally. Qt would interpret HTML, and load images that it refers to."""
    return f'<p style="white-space: pre-wrap">{html.escape(text)}</p>' if "<" in text else text


def wrapped_tooltip(text: str) -> str:
    """Return a literal tooltip with wrapped lines."""
    return f'<p style="white-space: pre-wrap">{html.escape(text)}</p>'


def set_text_if_changed(widget: QLabel | QPushButton, text: str) -> None:
    """Set a text only if it differs: setting it invalidates the layout."""
    if widget.text() != text:
        widget.setText(text)


def show_fraction(bar: QProgressBar, fraction: float | None) -> None:
    """Show a progress of 0..1; None: a busy indicator."""
    bar.setMaximum(0 if fraction is None else _PROGRESS_STEPS)
    bar.setValue(round(_PROGRESS_STEPS * (fraction or 0.0)))


def label(name: str = "", *, wrap: bool = False, hidden: bool = False, centred: bool = False) -> QLabel:
    """Return a plain-text label with an object name."""
    widget = set_object_name(QLabel(textFormat=Qt.TextFormat.PlainText), name)
    widget.setWordWrap(wrap)
    if hidden:
        widget.hide()
    if centred:
        widget.setAlignment(Qt.AlignmentFlag.AlignCenter)
    return widget


def push_button(name: str = "", *, checkable: bool = False) -> QPushButton:
    """Return a push button with an object name."""
    button = set_object_name(QPushButton(), name)
    button.setCheckable(checkable)
    explain_disabled(button)
    return button


def line_edit(name: str, *, clear: bool = False) -> QLineEdit:
    """Return a line edit with an object name; `clear`: with a clear button."""
    return set_object_name(QLineEdit(clearButtonEnabled=clear), name)


def local_paths(event: QDropEvent) -> list[str]:
    """Return the local files and folders of an event."""
    return [str(Path(url.toLocalFile())) for url in event.mimeData().urls() if url.isLocalFile()]


class PathLineEdit(QLineEdit):
    """Line edit for a path. A dropped file or folder replaces the text."""

    def dropEvent(self, event: QDropEvent) -> None:  # noqa: N802 - Qt's name
        paths = local_paths(event)
        if not paths:
            super().dropEvent(event)
            return
        event.acceptProposedAction()
        self.setText(paths[0])
        self.textEdited.emit(self.text())

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:  # noqa: N802 - Qt's name
        super().dragEnterEvent(event)
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dragMoveEvent(self, event: QDragMoveEvent) -> None:  # noqa: N802 - Qt's name
        super().dragMoveEvent(event)
        if event.mimeData().hasUrls():
            event.acceptProposedAction()


class FitContentScrollArea(QScrollArea):
    """Scroll area that is as high as its content, if there is room."""

    def __init__(self, content: QWidget, minimum_height: int) -> None:
        super().__init__()
        self._content, self._minimum_height = content, minimum_height
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
        return QSize(self._content.minimumSizeHint().width(), min(self._minimum_height, self.sizeHint().height()))


def scroll_area(content: QWidget) -> QScrollArea:
    """Return a frameless vertical scroll area."""
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setWidget(content)
    return area


def page_scroll_area(content: QWidget) -> QScrollArea:
    """Return a frameless scroll area for both directions, without a tab stop of its own."""
    area = scroll_area(content)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    return area


def resize_within_screen(window: QWidget, size: QSize) -> None:
    """Resize a window, but not beyond its screen."""
    window.resize(size.boundedTo(window.screen().availableSize() - _WINDOW_FRAME))


def ensure_widget_visible(area: QScrollArea, part: QWidget) -> None:
    """Scroll to a part of the content. Updates the layout first, or a part that was just added is out of range."""
    content = area.widget()
    layout = content.layout() if content is not None else None
    if layout is not None:
        layout.activate()
    QApplication.sendEvent(area, QEvent(QEvent.Type.LayoutRequest))
    area.ensureWidgetVisible(part, 0, 8 * SPACING)


def scroll_into_view(widget: QWidget) -> None:
    """Scroll all areas that contain a widget."""
    area = widget.parentWidget()
    while area is not None:
        if isinstance(area, QScrollArea):
            ensure_widget_visible(area, widget)
        area = area.parentWidget()


def placeholder_label(over: QWidget) -> QLabel:
    """Return a label in the middle of an empty view; it ignores the mouse."""
    note = label("muted", wrap=True, centred=True)
    note.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
    layout = QVBoxLayout(over)
    layout.addWidget(note)
    return note
