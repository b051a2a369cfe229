"""Main window: setup on the left, run bar and pages on the right."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QCloseEvent, QPaintEvent
from PySide6.QtWidgets import QLineEdit, QMainWindow, QScrollArea, QSizePolicy, QTabWidget, QVBoxLayout, QWidget

from app.pages.page import Page, ShownRun
from app.pages.registry import FIRST_PAGE, PAGES, PageSpec
from app.pages.setup.check_card import CheckCard
from app.pages.setup.form import SetupForm
from app.pages.setup.panel import SetupPanel
from app.services.preview_job import CheckJob
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import move_focus, page_scroll_area, resize_within_screen, set_object_name
from app.widgets.grouped_tab_bar import GroupedTabBar
from app.widgets.info_bar import InfoBar
from app.widgets.splitter import KeyboardSplitter
from app.window.banner import BannerArea
from app.window.commands import Menus
from app.window.run_bar import RunBar

if TYPE_CHECKING:
    from app.core.settings import Settings
    from app.pages.chat.page import ChatPage
    from app.pages.data.page import DataPage
    from app.pages.evaluate.page import EvaluatePage
    from app.pages.export.page import ExportPage
    from app.pages.log.page import LogPage
    from app.pages.performance.page import PerformancePage
    from app.pages.plots.page import PlotsPage
    from app.pages.queue.page import QueuePage
    from app.pages.runs.page import RunsPage
    from app.pages.setup.all_settings import AllSettingsPage

_SETUP_WIDTH = 340
_MIN_PAGE_HEIGHT = 216
_MINIMUM_SIZE = QSize(895, 400)  # fits a screen of 1366 x 768 at 150 % (911 x 512) with a frame and a task bar
_DEFAULT_SIZE = QSize(1280, 800)


class MainWindow(QMainWindow):
    """Lays out the views. Controllers decide; closing is requested by a signal."""

    first_painted = Signal()
    close_requested = Signal()
    page_shown = Signal(str)

    # Pages that other code addresses, by `PageSpec.attribute`. Only `FIRST_PAGE` exists before the first paint.
    plots: PlotsPage
    performance: PerformancePage
    data: DataPage
    chat: ChatPage
    log: LogPage
    runs: RunsPage
    evaluate: EvaluatePage
    export: ExportPage
    queue: QueuePage
    advanced: AllSettingsPage

    def __init__(self, form: SetupForm, check_job: CheckJob, palette: Palette) -> None:
        super().__init__()
        self.close_allowed = False
        self._form, self._palette = form, palette
        self._painted = False
        self._queue_count = 0
        self._run_name = ""  # in the title
        self.menus = Menus(self)
        self.setup = SetupPanel(form, palette)
        self.run_bar = RunBar(palette, self.menus)
        self.check_card = CheckCard(check_job)
        self.banners = BannerArea()
        self.restart_bar = InfoBar({"restartNow": "window.restart_now", "cancelRestart": "common.cancel"})
        self.interrupted_run_bar = InfoBar(
            {"resumeInterrupted": "window.resume", "dismissInterrupted": "window.dismiss_run"}
        )
        self.finished_run_bar = InfoBar({"primary": "window.chat_with_model", "closeFinished": "common.close"})
        self.viewed_run_bar = InfoBar({"resumeViewed": "window.resume_this_run", "backToCurrent": "common.close"})
        self.pages: dict[str, QWidget] = {page.id: QWidget() for page in PAGES}  # tabs, which contain the built pages
        self._built: list[Page] = []
        self.tabs, self._tab_bar = QTabWidget(), GroupedTabBar()
        self.tabs.setTabBar(self._tab_bar)
        self.tabs.setDocumentMode(True)
        self._tab_bar.setDrawBase(False)
        self._tab_bar.setUsesScrollButtons(False)
        self._tab_bar.setElideMode(Qt.TextElideMode.ElideRight)  # for a wide font in a narrow window
        self.splitter = KeyboardSplitter(Qt.Orientation.Horizontal, SPACING // 2)
        self._build_layout()
        self.menus.connect_actions({f"page_{page.id}": partial(self.show_page, page.id) for page in PAGES})
        self.menus.connect_actions({
            "quit": self.close, "search": self.focus_search, "full_screen": self.toggle_full_screen,
        })  # fmt: skip
        self.tabs.currentChanged.connect(lambda: self.page_shown.emit(self.page))
        self.plots.performance_requested.connect(lambda: self.show_page("performance"))
        self.setup.all_settings.clicked.connect(lambda: self.show_page("settings"))
        self.retranslate()

    def _build_layout(self) -> None:
        for name, tab in self.pages.items():
            tab.setObjectName(f"page_{name}")
            self.tabs.addTab(tab, name)
        self.show_page(FIRST_PAGE)
        self.plots_scroll_area = self._build_page(next(page for page in PAGES if page.id == FIRST_PAGE))
        right = set_object_name(QWidget(), "page")
        layout = QVBoxLayout(right)
        layout.setContentsMargins(SPACING // 2, SPACING, SPACING + 4, SPACING + 4)
        layout.setSpacing(SPACING)
        layout.addWidget(self.run_bar)
        layout.addWidget(self._build_scroll_area())
        self.splitter.addWidget(self.setup)
        self.splitter.addWidget(right)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.setSizes([_SETUP_WIDTH, 940])
        self.setCentralWidget(self.splitter)
        self.setMinimumSize(_MINIMUM_SIZE)
        resize_within_screen(self, _DEFAULT_SIZE)

    def _build_scroll_area(self) -> QScrollArea:
        """Everything below the run bar. It scrolls in a low window, so that Start is always visible."""
        content = set_object_name(QWidget(), "scrolled")
        layout = QVBoxLayout(content)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACING)
        self._bars = layout
        for widget in (
            self.check_card, self.restart_bar, self.banners, self.interrupted_run_bar, self.finished_run_bar,
            self.viewed_run_bar,
        ):  # fmt: skip
            layout.addWidget(widget)
        # The bars above get their size hint, the pages the rest.
        self.tabs.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Ignored)
        self.tabs.setMinimumHeight(_MIN_PAGE_HEIGHT)
        layout.addWidget(self.tabs, 1)
        return page_scroll_area(content)

    def add_card(self, card: QWidget) -> None:
        """Show a card above the others."""
        self._bars.insertWidget(0, card)

    def _build_page(self, spec: PageSpec) -> QScrollArea:
        """Build a page in its tab, inside a scroll area."""
        page = spec.load().construct(self._palette, self._form)
        setattr(self, spec.attribute or spec.id, page)
        self._built.append(page)
        area = page_scroll_area(page)
        layout = QVBoxLayout(self.pages[spec.id])
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(area)
        return area

    def build_remaining_pages(self, settings: Settings) -> None:
        """Build the other pages. They take 0.1 s, after the first paint."""
        for spec in PAGES:
            if spec.id != FIRST_PAGE:
                self._build_page(spec)
                self._built[-1].restore_state(settings)
        self.chat.samples.prompt_settings_requested.connect(lambda: self.show_setting("sample_prompts"))
        self.page_shown.connect(self._focus_queue)
        self.plots.build()
        self.page_shown.emit(self.page)

    def _focus_queue(self, page: str) -> None:
        if page == "queue":  # Qt moves the focus to the first button
            move_focus(self.pages["queue"], self.queue.table)

    def show_run(self, run: ShownRun) -> None:
        for page in self._built:
            page.show_run(run)

    def restore_state(self, settings: Settings) -> None:
        """Restore the first page and select the one that was shown last."""
        self.plots.restore_state(settings)
        if settings.page in self.pages:
            self.show_page(settings.page)

    def save_state(self, settings: Settings) -> None:
        settings.page = self.page
        for page in self._built:
            page.save_state(settings)

    # --- commands ------------------------------------------------------------------------------------------

    def toggle_full_screen(self) -> None:
        self.setWindowState(self.windowState() ^ Qt.WindowState.WindowFullScreen)

    def generate_sample(self) -> None:
        """Request a sample for the prompt of the samples."""
        self.show_page("chat")
        self.chat.show_samples(True)
        self.chat.samples.generate_button.click()

    def focus_search(self) -> None:
        """Focus the search field of the current page, or that of all settings where the page has none."""
        if self._find_search_field() is None:
            self.show_page("settings")
        if (field := self._find_search_field()) is not None:
            field.setFocus(Qt.FocusReason.ShortcutFocusReason)
            field.selectAll()

    def table_shortcuts(self) -> Iterator[tuple[str, QAction]]:
        """Actions whose shortcuts work while a widget of a page has the focus, with the title of the page."""
        for place, page in enumerate(self.pages.values()):
            for action in page.findChildren(QAction):
                if action.shortcuts() and action.shortcutContext() is Qt.ShortcutContext.WidgetShortcut:
                    yield self.tabs.tabText(place), action

    def _find_search_field(self) -> QLineEdit | None:
        lines = self.tabs.currentWidget().findChildren(QLineEdit)
        return next((line for line in lines if line.objectName().startswith("search") and line.isVisible()), None)

    # --- pages -----------------------------------------------------------------------------------------

    def show_page(self, name: str) -> None:
        self.tabs.setCurrentWidget(self.pages[name])

    def show_setting(self, name: str) -> None:
        """Focus the field of a setting on the page of all settings."""
        self.show_page("settings")
        QTimer.singleShot(0, self, lambda: self.advanced.reveal(name))  # after its layout

    def set_run_name(self, name: str) -> None:
        """Show the name of this window's run in the title."""
        self._run_name = name
        self.setWindowTitle(f"{name} – Traindeck" if name else "Traindeck")

    def set_queue_count(self, count: int) -> None:
        """Show the number of waiting runs in the title of the queue's tab."""
        self._queue_count = count
        self._show_titles()

    def _show_titles(self) -> None:
        count, titles = self._queue_count, {page.id: tr(page.title_key) for page in PAGES}
        if count:
            titles["queue"] = tr("window.queue_count", count=count)
        self._tab_bar.set_titles([*titles.values()], [tr(page.group) for page in PAGES])

    @property
    def page(self) -> str:
        """Id of the current page."""
        return list(self.pages)[self.tabs.currentIndex()]

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        for view in (self.setup, self.run_bar):
            view.retheme(palette)
        for page in self._built:
            page.retheme(palette)

    # --- texts and closing -----------------------------------------------------------------------------

    def retranslate(self) -> None:
        self.set_run_name(self._run_name)
        self._show_titles()
        self.menus.retranslate()
        self.splitter.set_handle_name(tr("window.setup_width"))

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
            QTimer.singleShot(0, self.first_painted.emit)

    def closeEvent(self, event: QCloseEvent) -> None:  # noqa: N802 - Qt's name
        if not self.close_allowed:
            self.close_requested.emit()
        event.setAccepted(self.close_allowed)
