"""Interface between the window and its pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from app.widgets.basic import TranslatableWidget

if TYPE_CHECKING:
    from app.core.run_loader import RunRecord
    from app.core.settings import Settings
    from app.pages.setup.form import SetupForm
    from app.theme.palette import Palette


@dataclass(frozen=True, slots=True)
class ShownRun:
    """The run that the pages display: the one that this window trains, or an earlier one."""

    record: RunRecord
    name: str  # empty before the first run
    window_is_training: bool  # this window trains a run, not necessarily this one
    can_request_sample: bool  # the run accepts a request for a sample


class Page(TranslatableWidget):
    """A tab of the window. `app/pages/registry.py` lists the pages; all methods but `retranslate` are optional."""

    @classmethod
    def construct(cls, palette: Palette, form: SetupForm) -> Self:
        """Build the page for `MainWindow`. Override it if the constructor takes more, such as `form` (Setup)."""
        return cls(palette)  # type: ignore[arg-type]  # QWidget's own constructor takes a parent

    def show_run(self, run: ShownRun) -> None:
        """Display the run. Called several times per second, also while the page is hidden."""

    def retheme(self, palette: Palette) -> None:
        """Apply the colors of another theme."""

    def restore_state(self, settings: Settings) -> None:
        """Apply what `save_state` stored in the window's settings. Called once, after the page is built."""

    def save_state(self, settings: Settings) -> None:
        """Store what the page remembers until the next start, in the window's settings."""
