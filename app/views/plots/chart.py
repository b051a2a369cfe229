"""A plot with its title, legend and menu; calm words while there is nothing to show."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QPixmap
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QStackedLayout, QVBoxLayout, QWidget

from app.theme.tokens import SPACE
from app.views.plots.legend import Legend
from app.views.widgets import SignButton, label, put

if TYPE_CHECKING:
    from app.views.plots.canvas import Canvas

_SHARP: Final = 2  # pixels of a picture to one on screen


class Chart(QFrame):
    """One card on the plots page. The canvas comes later (`take_canvas`); the words are there at once.

    `below`: its legend is so long that it stands below the title, not beside it."""

    asked = Signal(str)  # copy_picture, save_png, copy_data, save_csv, maximise: something of its menu

    def __init__(self, name: str, parent: QWidget | None = None, *, menu: bool = False, below: bool = False) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self.name = name
        self.canvas: Canvas | None = None
        self.maximised = False
        self._title, self.legend = label("section"), Legend()
        self._title.installEventFilter(self)
        self._menu_button = SignButton("dots", "flat")
        self._menu_button.setMaximumHeight(20)  # a line of the legend
        self._menu_button.setVisible(menu)
        self._menu_button.clicked.connect(self._open_menu_at_button)
        self._has_menu = menu
        self._empty = label("muted", wrap=True, centred=True)
        self._body = QStackedLayout()
        self._body.addWidget(self._empty)
        head = QHBoxLayout()
        head.setSpacing(SPACE)
        top = Qt.AlignmentFlag.AlignTop
        head.addWidget(self._title, 0, top)
        if not below:
            head.addWidget(self.legend, 1, top)
        head.addStretch(1 if below else 0)
        head.addWidget(self._menu_button, 0, top)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(SPACE, SPACE // 2 if menu else SPACE - 2, SPACE // 2, SPACE // 2)
        self._layout.setSpacing(2)
        self._layout.addLayout(head)
        if below:
            self._layout.addWidget(self.legend)
        self._layout.addLayout(self._body, 1)

    def take_canvas(self, canvas: Canvas) -> None:
        self.canvas = canvas
        canvas.setAccessibleName(self._title.text())
        self._body.addWidget(canvas)

    def show_data(self, there: bool) -> None:
        """The plot where there is data, the words where there is none."""
        if self.canvas is not None:
            self._body.setCurrentIndex(1 if there else 0)

    @property
    def has_data(self) -> bool:
        return self._body.currentIndex() == 1

    def set_words(self, title: str, empty: str) -> None:
        put(self._title, title)
        put(self._empty, empty)
        self.setAccessibleName(title)
        menu = QCoreApplication.translate("Chart", "Menu of “{chart}”").format(chart=title)
        self._menu_button.setAccessibleName(menu)
        self._menu_button.setToolTip(QCoreApplication.translate("Chart", "Copy, save or enlarge this plot"))
        if self.canvas is not None:
            self.canvas.setAccessibleName(title)

    def picture(self) -> QPixmap:
        """The card as it is seen, with two pixels for each on screen, without its button."""
        made = QPixmap(self.width() * _SHARP, self.height() * _SHARP)
        made.setDevicePixelRatio(_SHARP)
        made.fill(Qt.GlobalColor.transparent)
        self._menu_button.is_blank = True  # hidden, it would lose the focus
        self.render(made)
        self._menu_button.is_blank = False
        return made

    # --- menu --------------------------------------------------------------------------------------------

    def menu(self) -> QMenu:
        """What can be done with this plot."""
        made = QMenu(self)
        made.aboutToHide.connect(made.deleteLater)
        for name, text in self._choices():
            if not name:
                made.addSeparator()
                continue
            action = made.addAction(text)
            action.setObjectName(name)
            action.setEnabled(name == "maximise" or self.has_data)
            action.triggered.connect(partial(self._ask, name))
        return made

    def _choices(self) -> list[tuple[str, str]]:
        enlarge = QCoreApplication.translate("Chart", "Enlarge to the whole page")
        restore = QCoreApplication.translate("Chart", "Show all plots again")
        return [
            ("copy_picture", QCoreApplication.translate("Chart", "Copy picture")),
            ("save_png", QCoreApplication.translate("Chart", "Save as PNG…")),
            ("", ""),
            ("copy_data", QCoreApplication.translate("Chart", "Copy data")),
            ("save_csv", QCoreApplication.translate("Chart", "Save data as CSV…")),
            ("", ""),
            ("maximise", restore if self.maximised else enlarge),
        ]

    def _ask(self, name: str, _checked: bool = False) -> None:
        self.asked.emit(name)

    def _open_menu_at_button(self) -> None:
        self.menu().popup(self._menu_button.mapToGlobal(QPoint(0, self._menu_button.height())))

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:  # noqa: N802 - Qt's name
        if self._has_menu:
            self.menu().popup(event.globalPos())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        if self._has_menu and watched is self._title and event.type() == QEvent.Type.MouseButtonDblClick:
            self.asked.emit("maximise")
            return True
        return super().eventFilter(watched, event)
