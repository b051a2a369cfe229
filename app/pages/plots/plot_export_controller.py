"""Exports plots as PNG and CSV to the clipboard, a file or a folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from PySide6.QtCore import QBuffer, QIODevice, QObject, Signal
from PySide6.QtGui import QGuiApplication, QImage, QImageWriter
from PySide6.QtWidgets import QFileDialog

from app.core.metrics.csv_export import CsvColumn, encode_csv
from app.pages.plots.page import PlotsPage
from app.services import desktop_shell
from app.texts import tr
from app.window.banner import BannerArea, BannerContent
from trainer_core.system import files

_UTF8_BOM: Final = b"\xef\xbb\xbf"  # without it, Excel reads the file in the system's code page


class PlotExportController(QObject):
    """Handles the export requests of the page. Files are encoded in a thread, because a long run takes seconds."""

    _copied = Signal(str)
    _saved = Signal(list)  # paths
    _failed = Signal(object, object)  # path, OSError

    def __init__(self, page: PlotsPage, banners: BannerArea, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._page, self._banners = page, banners
        self.executor = ThreadPoolExecutor(max_workers=1)  # completes what it has begun before the program exits
        self._folder = desktop_shell.documents_folder()  # initial folder of the next dialog
        self._copied.connect(self._copy)
        self._saved.connect(self._show_saved)
        self._failed.connect(self._show_error)
        page.export_requested.connect(self._on_export_requested)

    def _on_export_requested(self, action: str, names: list[str]) -> None:
        kind = "png" if action == "save_png" else "csv"
        if action == "copy_picture":
            QGuiApplication.clipboard().setPixmap(self._page.picture(names[0]))
        elif action == "copy_data":
            columns = self._page.csv_columns(names[0])
            self.executor.submit(lambda: self._copied.emit(encode_csv(columns, "\t").decode()))
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

    def save_to_new_folder(self, folder: Path, names: Iterable[str], kind: str) -> None:
        """Save into a new subfolder, so that nothing is overwritten."""
        subfolder = folder / time.strftime("plots-%Y%m%d-%H%M%S")
        self._save_to(folder, {name: subfolder / f"{_file_name(name)}.{kind}" for name in names})

    def _save_to(self, folder: Path, paths: dict[str, Path]) -> None:
        self._folder = folder
        self.save(paths)

    # --- writing -------------------------------------------------------------------------------------------

    def save(self, paths: dict[str, Path]) -> None:
        """Save each plot to its file; the suffix selects the format."""
        encoders: dict[Path, Callable[[], bytes]] = {}
        for name, path in paths.items():
            if path.suffix.lower() == ".png":
                encoders[path] = partial(_encode_png, self._page.picture(name).toImage())
            else:
                encoders[path] = partial(_encode_csv_file, self._page.csv_columns(name))
        self.executor.submit(partial(self._write, encoders))

    def _write(self, encoders: dict[Path, Callable[[], bytes]]) -> None:
        """Runs in a thread."""
        for path, encode in encoders.items():
            try:
                files.write_atomic(path, encode())
            except OSError as error:
                self._failed.emit(path, error)
                return
        self._saved.emit(list(encoders))

    def _copy(self, text: str) -> None:
        QGuiApplication.clipboard().setText(text)

    def _show_saved(self, paths: list[Path]) -> None:
        self._page.show_message(tr("plots.saved_path", path=paths[0] if len(paths) == 1 else paths[0].parent))

    def _show_error(self, path: Path, error: OSError) -> None:
        reason = error.strerror or type(error).__name__
        content = BannerContent("error", lambda: tr("plots.save_failed", path=path, reason=reason), str(error), "plots")
        self._banners.add(content)


def _encode_csv_file(columns: list[CsvColumn]) -> bytes:
    return _UTF8_BOM + encode_csv(columns)


def _encode_png(picture: QImage) -> bytes:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    QImageWriter(buffer, b"png").write(picture)
    return bytes(buffer.data().data())


def _file_name(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")
