"""List of the window's pages."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from app.pages.page import Page


@dataclass(frozen=True, slots=True)
class PageSpec:
    """A page that is imported when it is built: only the first one delays the first paint."""

    id: str  # in the settings, in `MainWindow.show_page` and in the action `page_ID`
    title_key: str  # of the title in `trainer_core/texts`
    module: str
    class_name: str
    attribute: str = ""  # of `MainWindow`, for code that addresses this page; the id where empty

    def load(self) -> type[Page]:
        """Import the class of the page."""
        return cast("type[Page]", getattr(importlib.import_module(self.module), self.class_name))


PAGES: Final = (
    PageSpec("plots", "window.plots", "app.pages.plots.page", "PlotsPage"),
    PageSpec("performance", "window.performance", "app.pages.performance.page", "PerformancePage"),
    PageSpec("data", "common.data", "app.pages.data.page", "DataPage"),
    PageSpec("chat", "window.chat", "app.pages.chat.page", "ChatPage"),
    PageSpec("log", "window.log", "app.pages.log.page", "LogPage"),
    PageSpec("runs", "window.runs", "app.pages.runs.page", "RunsPage"),
    PageSpec("evaluate", "window.evaluate", "app.pages.evaluate.page", "EvaluatePage"),
    PageSpec("export", "window.export", "app.pages.export.page", "ExportPage"),
    PageSpec("queue", "window.queue", "app.pages.queue.page", "QueuePage"),
    PageSpec("settings", "window.all_settings", "app.pages.setup.all_settings", "AllSettingsPage", "advanced"),
)
"""In the order of the tabs."""
