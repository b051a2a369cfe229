"""The window: setup at the left, the run at the right."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, QTimer, Signal, SignalInstance
from PySide6.QtGui import QAction, QActionGroup, QCloseEvent, QKeySequence, QPaintEvent
from PySide6.QtWidgets import QMainWindow, QMenu, QSizePolicy, QSplitter, QTabWidget, QVBoxLayout, QWidget

from app.theme.tokens import SPACE, Tokens
from app.views.banner import BannerArea
from app.views.going_on import InterruptedStrip, RestartStrip
from app.views.plots.page import PlotsPage
from app.views.run_bar import RunBar
from app.views.setup.check_card import CheckCard
from app.views.setup.form import SetupForm
from app.views.setup.panel import SetupPanel
from app.views.viewing import ViewingStrip
from app.views.widgets import named

_SETUP_WIDTH = 340
_PAGE_HEIGHT = 260  # at least
PAGES = ("plots", "performance", "data", "samples", "log", "runs", "settings")


class MainWindow(QMainWindow):
    """Puts the views together. It decides nothing: closing, too, is asked for by a signal."""

    painted = Signal()  # for the first time
    close_asked = Signal()
    language_chosen = Signal(str)  # en, zh
    theme_chosen = Signal(str)  # light, dark, system
    folder_asked = Signal()
    command_asked = Signal()
    about_asked = Signal()
    page_shown = Signal(str)

    def __init__(self, form: SetupForm, tokens: Tokens) -> None:
        super().__init__()
        self.close_allowed = False
        self.setup = SetupPanel(form)
        self.run_bar = RunBar(tokens)
        self.check = CheckCard(tokens)
        self.banners = BannerArea(tokens)
        self.viewing, self.restart, self.interrupted = ViewingStrip(), RestartStrip(), InterruptedStrip()
        self.plots = PlotsPage(tokens)
        self._form, self._tokens = form, tokens
        self.pages: dict[str, QWidget] = {name: QWidget() for name in PAGES}
        self._painted = False
        self.tabs = QTabWidget(documentMode=True)
        self.tabs.tabBar().setDrawBase(False)
        self.splitter = QSplitter(Qt.Orientation.Horizontal, childrenCollapsible=False, handleWidth=SPACE // 2)
        self._arrange()
        self._make_menus()
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
        self._fill("plots", self.plots)
        right = named(QWidget(), "page")
        layout = QVBoxLayout(right)
        layout.setContentsMargins(SPACE // 2, SPACE, SPACE + 4, SPACE + 4)
        layout.setSpacing(SPACE)
        above = (self.run_bar, self.check, self.restart, self.banners, self.interrupted, self.viewing)
        for widget in above:
            layout.addWidget(widget)
        # What stands above takes the room that it needs; the pages have the rest.
        self.tabs.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Ignored)
        self.tabs.setMinimumHeight(_PAGE_HEIGHT)
        layout.addWidget(self.tabs, 1)
        self.splitter.addWidget(self.setup)
        self.splitter.addWidget(right)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.setSizes([_SETUP_WIDTH, 940])
        self.setCentralWidget(self.splitter)
        self.setMinimumSize(860, 560)
        self.resize(1280, 800)

    def _fill(self, name: str, content: QWidget) -> None:
        layout = QVBoxLayout(self.pages[name])
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(content)

    def build_rest(self) -> None:
        """Make the pages behind the first one. They cost 0.1 s, which the first paint need not wait for."""
        from app.views.data.page import DataPage
        from app.views.log import LogPage
        from app.views.performance.page import PerformancePage
        from app.views.runs import RunsPage
        from app.views.samples import SamplesPage
        from app.views.setup.advanced import AdvancedForm

        self.samples, self.log, self.runs = SamplesPage(self._tokens), LogPage(self._tokens), RunsPage()
        self.data, self.advanced = DataPage(self._tokens), AdvancedForm(self._form)
        self.performance = PerformancePage(self._tokens)
        self._fill("performance", self.performance)
        self._fill("data", self.data)
        self._fill("samples", self.samples)
        self._fill("log", self.log)
        self._fill("runs", self.runs)
        self._fill("settings", self.advanced)
        self.plots.build()

    # --- menus -----------------------------------------------------------------------------------------

    def _make_menus(self) -> None:
        self._run_menu, self._view_menu, self._help_menu = (QMenu(self) for _ in range(3))
        for menu in (self._run_menu, self._view_menu, self._help_menu):
            self.menuBar().addMenu(menu)
        self.copy_action = self._action(self._run_menu, self.command_asked.emit, "Ctrl+Shift+C")
        self._folder = self._action(self._run_menu, self.folder_asked.emit)
        self._run_menu.addSeparator()
        self._quit = self._action(self._run_menu, self.close, "Ctrl+Q")
        self._languages = self._choices({"en": "English", "zh": "中文"}, self.language_chosen)
        self._themes = self._choices({"light": "", "dark": "", "system": ""}, self.theme_chosen)
        self._language_menu, self._theme_menu = QMenu(self), QMenu(self)
        for menu, actions in ((self._language_menu, self._languages), (self._theme_menu, self._themes)):
            menu.addActions(list(actions.values()))
            self._view_menu.addMenu(menu)
        self._view_menu.addSeparator()
        self._page_actions = {
            name: self._action(self._view_menu, lambda _=False, name=name: self.show_page(name), f"Ctrl+{place}")
            for place, name in enumerate(self.pages, 1)
        }
        self._about = self._action(self._help_menu, self.about_asked.emit)

    def _action(self, menu: QMenu, slot: object, keys: str = "") -> QAction:
        action = QAction(self)
        action.triggered.connect(slot)
        if keys:
            action.setShortcut(QKeySequence(keys))
        menu.addAction(action)
        return action

    def _choices(self, texts: dict[str, str], signal: SignalInstance) -> dict[str, QAction]:
        group = QActionGroup(self)
        made = {name: QAction(text, group, checkable=True) for name, text in texts.items()}
        for name, action in made.items():
            action.triggered.connect(lambda _=False, name=name: signal.emit(name))
        return made

    def render_choices(self, language: str, theme: str) -> None:
        """Mark the language and theme in use."""
        self._languages[language].setChecked(True)
        self._themes[theme].setChecked(True)

    # --- pages -----------------------------------------------------------------------------------------

    def show_page(self, name: str) -> None:
        self.tabs.setCurrentWidget(self.pages[name])

    def _on_page(self) -> None:
        name = list(self.pages)[self.tabs.currentIndex()]
        if name == "settings":
            self.advanced.build()
        self.page_shown.emit(name)

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        pages = (self.plots, self.performance, self.data, self.samples, self.log)
        for view in (self.run_bar, self.check, self.restart, self.banners, self.interrupted, *pages):
            view.retheme(tokens)

    # --- words and closing -----------------------------------------------------------------------------

    def retranslate(self) -> None:
        self.setWindowTitle("Traindeck")
        titles = {
            "plots": self.tr("Plots"),
            "performance": self.tr("Performance"),
            "data": self.tr("Data"),
            "samples": self.tr("Samples"),
            "log": self.tr("Log"),
            "runs": self.tr("Runs"),
            "settings": self.tr("All settings"),
        }
        for place, name in enumerate(self.pages):
            self.tabs.setTabText(place, titles[name])
            self._page_actions[name].setText(titles[name])
        self._run_menu.setTitle(self.tr("&Run"))
        self._view_menu.setTitle(self.tr("&View"))
        self._help_menu.setTitle(self.tr("&Help"))
        self._language_menu.setTitle(self.tr("Language"))
        self._theme_menu.setTitle(self.tr("Theme"))
        self._themes["light"].setText(self.tr("Light"))
        self._themes["dark"].setText(self.tr("Dark"))
        self._themes["system"].setText(self.tr("As the system"))
        self.copy_action.setText(self.tr("Copy command line"))
        self._folder.setText(self.tr("Open the runs folder"))
        self._quit.setText(self.tr("Quit"))
        self._about.setText(self.tr("About Traindeck"))

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        if event.type() == QEvent.Type.LanguageChange:
            self.retranslate()
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
