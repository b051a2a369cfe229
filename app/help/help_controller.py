"""Help menu: guide, keyboard shortcuts, bug report, about. Dialogs are imported when they are opened."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QSysInfo, qVersion
from PySide6.QtWidgets import QDialog

import trainer_core
from app.services import desktop_shell
from app.texts import current_language, tr
from app.window.main_window import MainWindow
from trainer_core.runs import run_dir

if TYPE_CHECKING:
    from app.help.bug_report_dialog import BugReportDialog
    from app.services.bug_report_writer import BugReportBuilder

_ROOT: Final = Path(__file__).resolve().parents[2]
_GUIDES: Final = {"en": "guide.md", "zh": "guide.zh.md"}
_PACKAGES: Final = {"PySide6": "PySide6-Essentials", "PyTorch": "torch", "pyqtgraph": "pyqtgraph", "NumPy": "numpy"}


class HelpController(QObject):
    """`shown_run_path` returns the folder of the displayed run, for a bug report."""

    def __init__(self, window: MainWindow, settings_path: Path, shown_run_path: Callable[[], Path | None]) -> None:
        super().__init__(window)
        self._window, self._settings_path, self._shown_run_path = window, settings_path, shown_run_path
        self.bundler: BugReportBuilder | None = None
        window.menus.connect_actions({
            "guide": self.show_guide,
            "shortcuts": self.show_shortcuts,
            "bundle": self.create_bundle,
            "about": self.show_about,
        })  # fmt: skip

    def show_guide(self) -> None:
        self._show_document(_ROOT / "docs" / _GUIDES[current_language()], tr("help.user_guide"))

    def show_licence(self) -> None:
        self._show_document(_ROOT / "LICENSE", tr("help.licence"))

    def _show_document(self, path: Path, title: str) -> None:
        from app.help.text_dialog import Document

        self._show_dialog(Document(path, title, self._window))

    def show_shortcuts(self) -> None:
        from app.help.text_dialog import Shortcuts

        listed = [*self._window.menus.actions_with_titles(), *self._window.table_shortcuts()]
        self._show_dialog(Shortcuts(listed, self._window))

    def show_about(self) -> None:
        from app.help.about import About

        about = About(trainer_core.__version__, collect_versions(tr("help.system")), self._window)
        about.guide_requested.connect(self.show_guide)
        about.licence_requested.connect(self.show_licence)
        about.copy_requested.connect(desktop_shell.copy_text)
        self._show_dialog(about)

    def create_bundle(self) -> None:
        """Create a bug report, display it, and save it on request. Only one at a time."""
        from app.help.bug_report_dialog import BugReportDialog
        from app.services.bug_report_writer import BugReportBuilder

        if self.bundler is not None:
            return
        suggested = desktop_shell.documents_folder() / f"traindeck-report-{time.strftime('%Y%m%d-%H%M')}.zip"
        log = run_dir.home() / "logs" / "window.log"
        bundler = self.bundler = BugReportBuilder(self._shown_run_path(), log, self._settings_path, self)
        dialog = BugReportDialog(str(suggested), self._window)
        bundler.finished.connect(dialog.display)
        bundler.failed.connect(dialog.fail)
        dialog.save_requested.connect(lambda path: self._save(dialog, bundler, Path(path)))
        dialog.closed.connect(self.discard_bundle)
        bundler.start()
        self._show_dialog(dialog)

    def _save(self, dialog: BugReportDialog, bundler: BugReportBuilder, path: Path) -> None:
        try:
            bundler.save(path)
        except OSError as error:
            dialog.fail(f"{error.strerror or error}.")
            return
        dialog.show_saved(str(path))
        dialog.folder_requested.connect(lambda: desktop_shell.open_folder(path))

    def discard_bundle(self) -> None:
        """Delete the temporary files of the bug report."""
        if self.bundler is not None:
            self.bundler.discard()
            self.bundler = None

    def _show_dialog(self, dialog: QDialog) -> None:
        dialog.show()
        dialog.raise_()
        dialog.activateWindow()


def collect_versions(system: str) -> list[tuple[str, str]]:
    """Return (component, version); `system` names the operating system. Imports no package: torch takes seconds."""
    import importlib.metadata
    import platform

    found = [("Python", platform.python_version()), ("Qt", qVersion() or "")]
    for name, package in _PACKAGES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(package)))
    return [*found, (system, QSysInfo.prettyProductName())]
