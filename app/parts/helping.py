"""The Help menu: guide, keyboard shortcuts, the bundle for a bug report, about. What it opens is imported then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QSysInfo, qVersion
from PySide6.QtWidgets import QDialog

import trainer_core
from app.services import desktop
from app.views import words
from app.views.main_window import MainWindow
from trainer_core.runs import run_dir

if TYPE_CHECKING:
    from app.services.bundler import Bundler
    from app.views.help.bundle import BundleView

_ROOT: Final = Path(__file__).resolve().parents[2]
_GUIDES: Final = {"en": "guide.md", "zh": "guide.zh.md"}
_PACKAGES: Final = {"PySide6": "PySide6-Essentials", "PyTorch": "torch", "pyqtgraph": "pyqtgraph", "NumPy": "numpy"}


class Helping(QObject):
    """`run`: the folder of the run on show, for a report; None: there is none."""

    def __init__(self, window: MainWindow, settings: Path, run: Callable[[], Path | None]) -> None:
        super().__init__(window)
        self._window, self._settings, self._run = window, settings, run
        self.bundler: Bundler | None = None
        window.menus.connect_all({
            "guide": self.show_guide,
            "shortcuts": self.show_shortcuts,
            "bundle": self.make_bundle,
            "about": self.show_about,
        })  # fmt: skip

    def show_guide(self) -> None:
        """In the language of the window; what is not translated is there in English."""
        docs = _ROOT / "docs"
        found = [path for name in (_GUIDES[words.language()], "guide.md") if (path := docs / name).is_file()]
        path = found[0] if found else _ROOT / ("README.zh-CN.md" if words.language() == "zh" else "README.md")
        self._show_document(path, self.tr("User guide"))

    def show_licence(self) -> None:
        self._show_document(_ROOT / "LICENSE", self.tr("Licence"))

    def _show_document(self, path: Path, title: str) -> None:
        from app.views.help.document import Document

        self._open(Document(path, title, self._window))

    def show_shortcuts(self) -> None:
        from app.views.help.shortcuts import Shortcuts

        listed = [*self._window.menus.listed(), *self._window.keys_of_tables()]
        self._open(Shortcuts(listed, self._window))

    def show_about(self) -> None:
        from app.views.help.about import About

        about = About(trainer_core.__version__, versions(self.tr("System")), self._window)
        about.guide_asked.connect(self.show_guide)
        about.licence_asked.connect(self.show_licence)
        about.copied.connect(desktop.copy_text)
        self._open(about)

    def make_bundle(self) -> None:
        """Collect, show, and save where the person says; one at a time."""
        from app.services.bundler import Bundler
        from app.views.help.bundle import BundleView

        if self.bundler is not None:
            return
        suggested = desktop.documents() / f"traindeck-report-{time.strftime('%Y%m%d-%H%M')}.zip"
        log = run_dir.home() / "logs" / "window.log"
        bundler = self.bundler = Bundler(self._run(), log, self._settings, self)
        view = BundleView(str(suggested), self._window)
        bundler.finished.connect(view.display)
        bundler.failed.connect(view.fail)
        view.save_asked.connect(lambda path: self._save(view, bundler, Path(path)))
        view.left.connect(self.leave)
        bundler.start()
        self._open(view)

    def _save(self, view: BundleView, bundler: Bundler, path: Path) -> None:
        try:
            bundler.save(path)
        except OSError as error:
            view.fail(f"{error.strerror or error}.")
            return
        view.saved(str(path))
        view.folder_asked.connect(lambda: desktop.open_folder(path))

    def leave(self) -> None:
        """No bundle is wanted any more."""
        if self.bundler is not None:
            self.bundler.leave()
            self.bundler = None

    def _open(self, dialog: QDialog) -> None:
        dialog.show()
        dialog.raise_()
        dialog.activateWindow()


def versions(system: str) -> list[tuple[str, str]]:
    """What the window runs on; the last line is headed `system`. Nothing is imported for it (torch: seconds)."""
    import importlib.metadata
    import platform

    found = [("Python", platform.python_version()), ("Qt", qVersion() or "")]
    for name, package in _PACKAGES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append((name, importlib.metadata.version(package)))
    return [*found, (system, QSysInfo.prettyProductName())]
