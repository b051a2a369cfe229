"""A plot with title, legend and menu, or a placeholder text without data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QEvent, QObject, QPoint, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QPixmap
from PySide6.QtWidgets import QFrame, QHBoxLayout, QMenu, QStackedLayout, QVBoxLayout, QWidget

from app.pages.plots.legend import Legend
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import IconButton, label, set_text_if_changed

if TYPE_CHECKING:
    from app.pages.plots.canvas import Canvas

_SHARP: Final = 2  # device pixel ratio of pictures


class Chart(QFrame):
    """A card of the Plots page. `take_canvas` adds the canvas later.

    `below`: put a long legend below the title instead of beside it.
    """

    asked = Signal(str)  # a menu action: copy_picture, save_png, copy_data, save_csv, maximise

    def __init__(self, name: str, parent: QWidget | None = None, *, menu: bool = False, below: bool = False) -> None:
        super().__init__(parent)
        self.setObjectName("card")
        self.name = name
        self.canvas: Canvas | None = None
        self.maximised = False
        self._title, self.legend = label("section"), Legend()
        self._title.installEventFilter(self)
        self._menu_button = IconButton("dots", "flat")
        self._menu_button.setMaximumHeight(20)  # height of a line of the legend
        self._menu_button.setVisible(menu)
        self._menu_button.clicked.connect(self._open_menu_at_button)
        self._has_menu = menu
        self._empty = label("muted", wrap=True, centred=True)
        self._body = QStackedLayout()
        self._body.addWidget(self._empty)
        head = QHBoxLayout()
        head.setSpacing(SPACING)
        top = Qt.AlignmentFlag.AlignTop
        head.addWidget(self._title, 0, top)
        if not below:
            head.addWidget(self.legend, 1, top)
        head.addStretch(1 if below else 0)
        head.addWidget(self._menu_button, 0, top)
        self._layout = QVBoxLayout(self)
        self._layout.setContentsMargins(SPACING, SPACING // 2 if menu else SPACING - 2, SPACING // 2, SPACING // 2)
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
        """Show the plot if there is data, else the placeholder text."""
        if self.canvas is not None:
            self._body.setCurrentIndex(1 if there else 0)

    @property
    def has_data(self) -> bool:
        return self._body.currentIndex() == 1

    def set_words(self, title: str, empty: str) -> None:
        set_text_if_changed(self._title, title)
        set_text_if_changed(self._empty, empty)
        self.setAccessibleName(title)
        menu = tr("plots.menu_of_chart", chart=title)
        self._menu_button.setAccessibleName(menu)
        self._menu_button.setToolTip(tr("plots.copy_save_or_enlarge_this"))
        if self.canvas is not None:
            self.canvas.setAccessibleName(title)

    def picture(self) -> QPixmap:
        """A picture of the card without its button, two pixels for each on screen."""
        made = QPixmap(self.width() * _SHARP, self.height() * _SHARP)
        made.setDevicePixelRatio(_SHARP)
        made.fill(Qt.GlobalColor.transparent)
        self._menu_button.is_hidden_in_place = True  # a hidden button would lose the focus
        self.render(made)
        self._menu_button.is_hidden_in_place = False
        return made

    # --- menu --------------------------------------------------------------------------------------------

    def menu(self) -> QMenu:
        """The context menu."""
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
        enlarge = tr("plots.enlarge_whole_page")
        restore = tr("plots.show_all_plots_again")
        return [
            ("copy_picture", tr("plots.copy_picture")),
            ("save_png", tr("plots.save_as_png")),
            ("", ""),
            ("copy_data", tr("plots.copy_data")),
            ("save_csv", tr("plots.save_data_as_csv")),
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
