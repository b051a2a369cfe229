"""Exports plots as PNG and CSV to the clipboard or a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from PySide6.QtCore import QBuffer, QIODevice, QObject, Signal
from PySide6.QtGui import QGuiApplication, QImage, QImageWriter
from PySide6.QtWidgets import QFileDialog

from app.core.installation import installation
from app.core.metrics.csv_export import CsvColumn, encode_csv
from app.pages.plots.page import PlotsPage
from app.services import desktop_shell
from app.texts import tr
from app.window.banner import BannerArea, BannerContent
from trainer_core.system import files

_UTF8_BOM: Final = b"\xef\xbb\xbf"  # without it, Excel reads the file in the system's code page


class PlotExportController(QObject):
    """Handles the export requests of the page. Data is encoded in a thread, because a long run takes seconds."""

    _copied = Signal(str)
    _failed = Signal(object, object)  # path, OSError

    def __init__(self, page: PlotsPage, banners: BannerArea, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._page, self._banners = page, banners
        self.executor = ThreadPoolExecutor(max_workers=1)  # completes what it has begun before the program exits
        self._folder = desktop_shell.documents_folder()  # initial folder of the next dialog
        self._copied.connect(self._copy)
        self._failed.connect(self._show_error)
        page.export_requested.connect(self._on_export_requested)

    def _on_export_requested(self, name: str, action: str) -> None:
        if action in ("copy_data", "save_csv") and installation.missing_reason("data"):  # pyarrow
            self._banners.add(BannerContent("warning", lambda: tr("installation.needs_data"), "", "plots"))
        elif action == "copy_picture":
            QGuiApplication.clipboard().setPixmap(self._page.picture(name))
        elif action == "copy_data":
            columns = self._page.csv_columns(name)
            self.executor.submit(lambda: self._copied.emit(encode_csv(columns, "\t").decode()))
        else:
            self._ask_file(name, "png" if action == "save_png" else "csv")

    def _ask_file(self, name: str, kind: str, suggested: Path | None = None) -> None:
        """Open a dialog without blocking."""
        filters = {"png": tr("plots.png_filter"), "csv": tr("plots.csv_filter")}
        if suggested is None:
            file_name = name.replace(".", "-").replace("_", "-")
            suggested = self._folder / f"{'-'.join(filter(None, (self._page.run_name, file_name)))}.{kind}"
        dialog = QFileDialog(self._page, tr("plots.save_plot"), str(suggested), filters[kind])
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(kind)
        dialog.fileSelected.connect(lambda path: self._on_file_selected(name, kind, Path(path)))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _on_file_selected(self, name: str, kind: str, path: Path) -> None:
        """Save a plot. The dialog appends the suffix only to names without a dot."""
        if path.suffix.lower() == f".{kind}":
            self.save(name, path)
        elif os.path.exists(path := path.with_name(f"{path.name}.{kind}")):  # noqa: PTH110 - never raises
            self._ask_file(name, kind, path)  # the dialog has not asked whether to replace this file
        else:
            self.save(name, path)

    def save(self, name: str, path: Path) -> None:
        """Save a plot; the suffix selects the format."""
        self._folder = path.parent
        if path.suffix.lower() == ".png":
            self.executor.submit(self._write, path, partial(_encode_png, self._page.picture(name).toImage()))
        else:
            self.executor.submit(self._write, path, partial(_encode_csv_file, self._page.csv_columns(name)))

    def _write(self, path: Path, encode: Callable[[], bytes]) -> None:
        """Runs in the thread."""
        try:
            files.write_atomic(path, encode())
        except OSError as error:
            self._failed.emit(path, error)

    def _copy(self, text: str) -> None:
        QGuiApplication.clipboard().setText(text)

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
