"""A plot with title, legend and menu, or a placeholder text without data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QPoint, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QPixmap
from PySide6.QtWidgets import QFrame, QMenu, QStackedLayout, QVBoxLayout, QWidget

from app.pages.plots.legend import Legend
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import IconButton, horizontal_layout, label, set_text_if_changed

if TYPE_CHECKING:
    from app.pages.plots.canvas import Canvas

_PIXEL_RATIO: Final = 2  # of pictures


class Chart(QFrame):
    """A card with a plot, whose canvas is set later."""

    action_requested = Signal(str)  # copy_picture, save_png, copy_data, save_csv or maximize

    def __init__(self, name: str, parent: QWidget | None = None, *, has_menu: bool = False) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self.name = name
        self.canvas: Canvas | None = None
        self.is_maximized = False
        self._has_menu = has_menu
        self._title, self.legend = label("section"), Legend()
        self._menu_button = IconButton("dots", "flat")
        self._menu_button.setMaximumHeight(20)  # height of a line of the legend
        self._menu_button.setVisible(has_menu)
        self._menu_button.clicked.connect(
            lambda: self.menu().popup(self._menu_button.mapToGlobal(QPoint(0, self._menu_button.height())))
        )
        self._placeholder = label("muted", wrap=True, centred=True)
        self._body = QStackedLayout()
        self._body.addWidget(self._placeholder)
        head = horizontal_layout(self._title, (self.legend, 1), self._menu_button)
        for widget in (self._title, self.legend, self._menu_button):
            head.setAlignment(widget, Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACING, SPACING // 2 if has_menu else SPACING - 2, SPACING // 2, SPACING // 2)
        layout.setSpacing(2)
        layout.addLayout(head)
        layout.addLayout(self._body, 1)

    def set_canvas(self, canvas: Canvas) -> None:
        self.canvas = canvas
        canvas.setAccessibleName(self._title.text())
        self._body.addWidget(canvas)

    def show_canvas(self, visible: bool) -> None:
        """Show the canvas if there is data, else the placeholder text."""
        if self.canvas is not None:
            self._body.setCurrentIndex(1 if visible else 0)

    @property
    def has_data(self) -> bool:
        return self._body.currentIndex() == 1

    def set_texts(self, title: str, placeholder: str) -> None:
        set_text_if_changed(self._title, title)
        set_text_if_changed(self._placeholder, placeholder)
        self.setAccessibleName(title)
        self._menu_button.setAccessibleName(tr("plots.chart_menu", chart=title))
        self._menu_button.setToolTip(tr("plots.chart_menu_hint"))
        if self.canvas is not None:
            self.canvas.setAccessibleName(title)

    def picture(self) -> QPixmap:
        """Return a picture of the card without its button, with two pixels for each on screen."""
        picture = QPixmap(self.size() * _PIXEL_RATIO)
        picture.setDevicePixelRatio(_PIXEL_RATIO)
        picture.fill(Qt.GlobalColor.transparent)
        self._menu_button.is_hidden_in_place = True  # a hidden button would lose the focus
        self.render(picture)
        self._menu_button.is_hidden_in_place = False
        return picture

    def menu(self) -> QMenu:
        """Build the context menu."""
        menu = QMenu(self)
        menu.aboutToHide.connect(menu.deleteLater)
        for name, text in (
            ("copy_picture", tr("plots.copy_image")),
            ("save_png", tr("plots.save_as_png")),
            ("copy_data", tr("plots.copy_data")),
            ("save_csv", tr("plots.save_data_as_csv")),
            ("maximize", tr("plots.restore_all_plots") if self.is_maximized else tr("plots.enlarge")),
        ):
            action = menu.addAction(text, partial(self.action_requested.emit, name))
            action.setObjectName(name)
            action.setEnabled(name == "maximize" or self.has_data)
            if name in ("save_png", "save_csv"):
                menu.addSeparator()
        entries = [entry for entry in self.legend.entries if entry.key]
        curves = menu.addMenu(tr("plots.curves"))
        curves.setEnabled(bool(entries))
        for entry in entries:
            action = curves.addAction(entry.label.replace("&", "&&"))
            action.setCheckable(True)
            action.setChecked(not entry.is_hidden)
            action.triggered.connect(partial(self.legend.toggled.emit, entry.key, False))
        return menu

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:  # noqa: N802 - Qt's name
        if self._has_menu:
            self.menu().popup(event.globalPos())
