"""The window: setup at the left, the run at the right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QCloseEvent, QPaintEvent
from PySide6.QtWidgets import QLineEdit, QMainWindow, QScrollArea, QSizePolicy, QTabWidget, QVBoxLayout, QWidget

from app.state.command_line import SHELLS
from app.theme.tokens import SPACE, Tokens
from app.views.banner import BannerArea
from app.views.divider import Splitter
from app.views.going_on import InterruptedStrip, RestartStrip
from app.views.menus import Menus
from app.views.plots.page import PlotsPage
from app.views.run_bar import RunBar
from app.views.setup.check_card import CheckCard
from app.views.setup.form import SetupForm
from app.views.setup.panel import SetupPanel
from app.views.viewing import ViewingStrip
from app.views.widgets import hand_over, named, page_area, resize_within_screen

if TYPE_CHECKING:
    from app.views.queue.page import QueuePage

_SETUP_WIDTH = 340
_PAGE_HEIGHT = 200  # at least
_MINIMUM = QSize(860, 400)  # fits a screen of 1366 x 768 at 150 % with a title bar and a task bar
_USUAL = QSize(1280, 800)
PAGES = ("plots", "performance", "data", "samples", "try", "log", "runs", "queue", "settings")


class MainWindow(QMainWindow):
    """Puts the views together. It decides nothing: closing, too, is asked for by a signal."""

    painted = Signal()  # for the first time
    close_asked = Signal()
    page_shown = Signal(str)
    queue_built = Signal(object)  # QueuePage

    def __init__(self, form: SetupForm, tokens: Tokens) -> None:
        super().__init__()
        self.close_allowed = False
        self.setup = SetupPanel(form, tokens)
        self.run_bar = RunBar(tokens)
        self.check = CheckCard(tokens)
        self.banners = BannerArea(tokens)
        self.viewing, self.restart, self.interrupted = ViewingStrip(), RestartStrip(), InterruptedStrip()
        self.plots = PlotsPage(tokens)
        self._form, self._tokens = form, tokens
        self.pages: dict[str, QWidget] = {name: QWidget() for name in PAGES}
        self._painted = self._built = False
        self.queue: QueuePage | None = None  # until it is shown
        self._waiting = 0  # runs in it
        self._run = ""  # in the title
        self.tabs = QTabWidget(documentMode=True)
        bar = self.tabs.tabBar()
        bar.setDrawBase(False)
        bar.setUsesScrollButtons(False)
        bar.setElideMode(Qt.TextElideMode.ElideRight)  # where a wide font needs more than the window has
        self.splitter = Splitter(Qt.Orientation.Horizontal, SPACE // 2)
        self._arrange()
        self.menus = Menus(self, PAGES, SHELLS)
        self.menus.page_chosen.connect(self.show_page)
        own = {"quit": self.close, "search": self.search, "full_screen": self.toggle_full_screen}
        self.menus.connect_all(own)
        self.tabs.currentChanged.connect(self._on_page)
        self.plots.computing_asked.connect(lambda: self.show_page("performance"))
        self.setup.all_settings_asked.connect(lambda: self.show_page("settings"))
        self.retranslate()

    def _arrange(self) -> None:
        for strip in (self.restart, self.interrupted):
            strip.retheme(self._tokens)
        for name, page in self.pages.items():
            page.setObjectName(f"page_{name}")
            self.tabs.addTab(page, name)
        self.plots_area = self._fill("plots", self.plots)
        right = named(QWidget(), "page")
        layout = QVBoxLayout(right)
        layout.setContentsMargins(SPACE // 2, SPACE, SPACE + 4, SPACE + 4)
        layout.setSpacing(SPACE)
        layout.addWidget(self.run_bar)
        layout.addWidget(self._scrolled())
        self.splitter.addWidget(self.setup)
        self.splitter.addWidget(right)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.setSizes([_SETUP_WIDTH, 940])
        self.setCentralWidget(self.splitter)
        self.setMinimumSize(_MINIMUM)
        resize_within_screen(self, _USUAL)

    def _scrolled(self) -> QScrollArea:
        """Everything below the run bar. In a low window it scrolls, so that Start is always visible."""
        content = named(QWidget(), "scrolled")
        layout = QVBoxLayout(content)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE)
        for widget in (self.check, self.restart, self.banners, self.interrupted, self.viewing):
            layout.addWidget(widget)
        # What stands above takes the room that it needs; the pages have the rest.
        self.tabs.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Ignored)
        self.tabs.setMinimumHeight(_PAGE_HEIGHT)
        layout.addWidget(self.tabs, 1)
        return page_area(content)

    def _fill(self, name: str, content: QWidget) -> QScrollArea:
        """A page scrolls as a whole where it does not fit."""
        area = page_area(content)
        layout = QVBoxLayout(self.pages[name])
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(area)
        return area

    def build_rest(self) -> None:
        """Make the pages behind the first one. They cost 0.1 s, which the first paint need not wait for."""
        from app.views.data.page import DataPage
        from app.views.log import LogPage
        from app.views.performance.page import PerformancePage
        from app.views.runs.page import RunsPage
        from app.views.samples import SamplesPage
        from app.views.setup.advanced import AdvancedForm
        from app.views.trying.page import TryPage

        self.samples, self.log, self.runs = SamplesPage(self._tokens), LogPage(self._tokens), RunsPage(self._tokens)
        self.data, self.advanced = DataPage(self._tokens), AdvancedForm(self._form)
        self.performance, self.trying = PerformancePage(self._tokens), TryPage(self._tokens)
        self._fill("performance", self.performance)
        self._fill("data", self.data)
        self._fill("samples", self.samples)
        self._fill("try", self.trying)
        self._fill("log", self.log)
        self._fill("runs", self.runs)
        self._fill("settings", self.advanced)
        self.samples.prompts_asked.connect(lambda: self.show_setting("sample_prompts"))
        self.plots.build()
        self._built = True
        self._on_page()  # it may be another one than the first

    # --- what the menus ask of the window itself ---------------------------------------------------------

    def toggle_full_screen(self) -> None:
        """Fill the screen, or go back to how the window was."""
        self.setWindowState(self.windowState() ^ Qt.WindowState.WindowFullScreen)

    def write_sample(self) -> None:
        """Ask for a sample, with the prompt that stands on their page."""
        self.show_page("samples")
        self.samples.ask.click()

    def search(self) -> None:
        """To the search of the page on show; of a page that has none, to that of all settings."""
        found = self._search_line()
        if found is None:
            self.show_page("settings")
            found = self._search_line()
        if found is not None:
            found.setFocus(Qt.FocusReason.ShortcutFocusReason)
            found.selectAll()

    def keys_of_tables(self) -> Iterator[tuple[str, QAction]]:
        """What keys do while a table of a page has the focus, with the title of the page."""
        if self._built and self.queue is None:
            self._build_queue()
        for place, page in enumerate(self.pages.values()):
            for action in page.findChildren(QAction):
                if action.shortcuts() and action.shortcutContext() is Qt.ShortcutContext.WidgetShortcut:
                    yield self.tabs.tabText(place), action

    def _search_line(self) -> QLineEdit | None:
        lines = self.tabs.currentWidget().findChildren(QLineEdit)
        return next((line for line in lines if line.objectName().startswith("search") and line.isVisible()), None)

    # --- pages -----------------------------------------------------------------------------------------

    def show_page(self, name: str) -> None:
        self.tabs.setCurrentWidget(self.pages[name])

    def show_setting(self, name: str) -> None:
        """To a knob among all settings."""
        self.show_page("settings")
        QTimer.singleShot(0, self, lambda: self.advanced.reveal(name))  # once it is laid out

    def name_run(self, name: str) -> None:
        """The run that this window trains, or trained last, in its title."""
        self._run = name
        self.setWindowTitle(f"{name} – Traindeck" if name else "Traindeck")

    def show_waiting(self, count: int) -> None:
        """How many runs wait in the queue, in the text of its tab."""
        self._waiting = count
        text = self.tr("Queue ({count})").format(count=count) if count else self.tr("Queue")
        self.tabs.setTabText(PAGES.index("queue"), text)

    @property
    def page(self) -> str:
        """Name of the one on show."""
        return list(self.pages)[self.tabs.currentIndex()]

    def _on_page(self) -> None:
        if self.page == "settings" and self._built:
            self.advanced.build()
        if self.page == "queue" and self._built and self.queue is None:
            self._build_queue()
        self.page_shown.emit(self.page)

    def _build_queue(self) -> None:
        """Many never line up a run: its page costs 2 MB, so it is made when it is first shown."""
        from app.views.queue.page import QueuePage

        self.queue = QueuePage(self._tokens)
        self._fill("queue", self.queue)
        hand_over(self.pages["queue"], self.queue.table)  # there was nothing in it that could have had it
        self.queue_built.emit(self.queue)

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        if self.queue is not None:
            self.queue.retheme(tokens)
        pages = (self.plots, self.performance, self.data, self.samples, self.trying, self.log, self.runs)
        for view in (self.setup, self.run_bar, self.check, self.restart, self.banners, self.interrupted, *pages):
            view.retheme(tokens)

    # --- words and closing -----------------------------------------------------------------------------

    def retranslate(self) -> None:
        self.name_run(self._run)
        titles = {
            "plots": self.tr("Plots"),
            "performance": self.tr("Performance"),
            "data": self.tr("Data"),
            "samples": self.tr("Samples"),
            "try": self.tr("Try it"),
            "log": self.tr("Log"),
            "runs": self.tr("Runs"),
            "queue": self.tr("Queue"),
            "settings": self.tr("All settings"),
        }
        for place, name in enumerate(self.pages):
            self.tabs.setTabText(place, titles[name])
        self.menus.retranslate(titles)
        self.splitter.name(self.tr("Width of the setup"))
        self.show_waiting(self._waiting)

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
        elif event.type() == QEvent.Type.WindowStateChange:
            self.menus.actions["full_screen"].setChecked(self.isFullScreen())
        super().changeEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        super().paintEvent(event)
        if not self._painted:
            self._painted = True
            QTimer.singleShot(0, self.painted.emit)

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 - Qt's name
        if not self.close_allowed:
            self.close_asked.emit()
        event.setAccepted(self.close_allowed)
