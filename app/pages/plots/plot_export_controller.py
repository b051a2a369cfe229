"""Exports plots as PNG and CSV to the clipboard, a file or a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from PySide6.QtCore import QBuffer, QIODevice, QObject
from PySide6.QtGui import QGuiApplication, QPixmap
from PySide6.QtWidgets import QFileDialog

from app.core.idle_task import IdleTask
from app.pages.plots.page import PlotsPage
from app.services import desktop_shell
from app.texts import tr
from app.window.banner import BannerArea, BannerContent
from trainer_core.system import files

_UTF8_BOM: Final = b"\xef\xbb\xbf"  # without it, Excel reads the file in the system's code page


class PlotExportController(QObject):
    """Handles the export requests of the page. CSV is written in slices, because a long run takes seconds."""

    def __init__(self, page: PlotsPage, banners: BannerArea, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._page, self._banners = page, banners
        self._pending: list[Iterator[None]] = []
        self._task = IdleTask(self)
        self._task.finished.connect(self._start_next)
        self._folder = desktop_shell.documents_folder()  # initial folder of the next dialog
        page.export_requested.connect(self._on_export_requested)

    @property
    def is_busy(self) -> bool:
        """Whether an export is in progress."""
        return bool(self._pending)

    def _on_export_requested(self, action: str, names: list[str]) -> None:
        kind = "png" if action == "save_png" else "csv"
        if action == "copy_picture":
            QGuiApplication.clipboard().setPixmap(self._page.picture(names[0]))
        elif action == "copy_data":
            self._enqueue(self._copy(names[0]))
        elif len(names) == 1:
            self._ask_file(names[0], kind)
        else:
            self._ask_folder(names, kind)

    # --- destination ------------------------------------------------------------------------------------------

    def _ask_file(self, name: str, kind: str) -> None:
        filters = {"png": tr("plots.png_filter"), "csv": tr("plots.csv_filter")}
        suggested = self._folder / f"{'-'.join(filter(None, (self._page.run_name, _file_name(name))))}.{kind}"
        dialog = QFileDialog(self._page, tr("plots.save_plot"), str(suggested), filters[kind])
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(kind)
        self._open(dialog, lambda path: self._save_to(path.parent, {name: path}))

    def _ask_folder(self, names: list[str], kind: str) -> None:
        dialog = QFileDialog(self._page, tr("plots.plots_folder"), str(self._folder))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        self._open(dialog, lambda path: self.save_to_new_folder(path, names, kind))

    def _open(self, dialog: QFileDialog, save: Callable[[Path], None]) -> None:
        """Open a dialog without blocking."""
        dialog.fileSelected.connect(lambda path: save(Path(path)))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save_to_new_folder(self, folder: Path, names: list[str], kind: str) -> None:
        """Save into a new subfolder, so that nothing is overwritten."""
        subfolder = folder / time.strftime("plots-%Y%m%d-%H%M%S")
        try:
            subfolder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._show_error(subfolder, error)
            return
        self._save_to(folder, {name: subfolder / f"{_file_name(name)}.{kind}" for name in names})

    def _save_to(self, folder: Path, paths: dict[str, Path]) -> None:
        self._folder = folder
        self.save(paths)

    # --- writing -------------------------------------------------------------------------------------------

    def save(self, paths: dict[str, Path]) -> None:
        """Save each plot to its file; the suffix selects the format."""
        for name, path in paths.items():
            if path.suffix.lower() == ".png":
                self._write_picture(name, path)
            else:
                self._enqueue(self._write_csv(name, path))
        self._enqueue(self._report_saved(list(paths.values())))

    def _report_saved(self, paths: list[Path]) -> Iterator[None]:
        """Show where the files are once they exist."""
        yield
        if all(path.is_file() for path in paths):
            self._page.show_message(tr("plots.saved_path", path=paths[0] if len(paths) == 1 else paths[0].parent))

    def _write_picture(self, name: str, path: Path) -> None:
        try:
            files.write_atomic(path, _encode_png(self._page.picture(name)))
        except OSError as error:
            self._show_error(path, error)

    def _write_csv(self, name: str, path: Path) -> Iterator[None]:
        """Write to a temporary file, then rename it, so that the file is always complete."""
        from app.core.metrics.csv_export import iter_csv

        temporary = path.with_name(f"{path.name}.part")
        try:
            with temporary.open("wb") as file:
                file.write(_UTF8_BOM)
                for chunk in iter_csv(self._page.csv_columns(name)):
                    file.write(chunk.encode("utf-8"))
                    yield
            files.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            self._show_error(path, error)

    def _copy(self, name: str) -> Iterator[None]:
        from app.core.metrics.csv_export import iter_csv

        chunks = []
        for chunk in iter_csv(self._page.csv_columns(name), "\t"):
            chunks.append(chunk)
            yield
        QGuiApplication.clipboard().setText("".join(chunks))

    def _show_error(self, path: Path, error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        content = BannerContent("error", lambda: tr("plots.save_failed", path=path, reason=reason), str(error), "plots")
        self._banners.add(content)

    def _enqueue(self, steps: Iterator[None]) -> None:
        self._pending.append(steps)
        if len(self._pending) == 1:
            self._task.start(steps)

    def _start_next(self) -> None:
        self._pending.pop(0)
        if self._pending:
            self._task.start(self._pending[0])


def _encode_png(picture: QPixmap) -> bytes:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    picture.save(buffer, "PNG")
    return bytes(buffer.data().data())


def _file_name(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")
