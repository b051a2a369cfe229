"""List of the window's pages."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, cast

if TYPE_CHECKING:
    from app.pages.page import Page

PageGroup = Literal["window.next_run", "window.this_run", "window.all_runs"]
"""Which runs a page is about: the text key of the caption above its tab."""
FIRST_PAGE: Final = "plots"


@dataclass(frozen=True, slots=True)
class PageSpec:
    """A page that is imported when it is built: only `FIRST_PAGE` delays the first paint."""

    group: PageGroup
    id: str  # in the settings, in `MainWindow.show_page` and in the action `page_ID`
    title_key: str  # of the title in `trainer_core/texts`
    module: str
    class_name: str
    attribute: str = ""  # of `MainWindow`, for code that addresses this page; the id where empty

    def load(self) -> type[Page]:
        """Import the class of the page."""
        return cast("type[Page]", getattr(importlib.import_module(self.module), self.class_name))


PAGES: Final = (
    PageSpec("window.next_run", "data", "common.data", "app.pages.data.page", "DataPage"),
    PageSpec(
        "window.next_run",
        "settings",
        "window.all_settings",
        "app.pages.setup.all_settings",
        "AllSettingsPage",
        "advanced",
    ),
    PageSpec("window.next_run", "queue", "window.queue", "app.pages.queue.page", "QueuePage"),
    PageSpec("window.this_run", "plots", "window.plots", "app.pages.plots.page", "PlotsPage"),
    PageSpec("window.this_run", "performance", "window.performance", "app.pages.performance.page", "PerformancePage"),
    PageSpec("window.this_run", "log", "window.log", "app.pages.log.page", "LogPage"),
    PageSpec("window.all_runs", "runs", "window.runs", "app.pages.runs.page", "RunsPage"),
    PageSpec("window.all_runs", "chat", "window.chat", "app.pages.chat.page", "ChatPage"),
    PageSpec("window.all_runs", "evaluate", "window.evaluate", "app.pages.evaluate.page", "EvaluatePage"),
    PageSpec("window.all_runs", "export", "window.export", "app.pages.export.page", "ExportPage"),
)
"""In the order of the tabs; the pages of a group are adjacent."""
