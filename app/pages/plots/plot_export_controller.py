"""Exports plots as PNG and CSV to the clipboard, a file or a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from PySide6.QtCore import QBuffer, QIODevice, QObject, QTimer
from PySide6.QtGui import QGuiApplication, QPixmap
from PySide6.QtWidgets import QFileDialog

from app.pages.plots.page import PlotsPage
from app.services import desktop_shell
from app.texts import tr
from app.window.banner import BannerArea, BannerContent
from trainer_core.system import files

_TIME_SLICE_S: Final = 0.012
_SLICE_INTERVAL_MS: Final = 1  # between two slices, for painting and input
_UTF8_BOM: Final = b"\xef\xbb\xbf"  # without it, Excel reads the file in the system's code page


class PlotSaver(QObject):
    """Handles the export requests of the page. CSV is written in slices, because a long run takes seconds."""

    def __init__(self, page: PlotsPage, banners: BannerArea, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._page, self._banners = page, banners
        self._tasks: list[Iterator[None]] = []
        self._folder = desktop_shell.documents_folder()  # initial folder of the next dialog
        self._timer = QTimer(self, interval=_SLICE_INTERVAL_MS)
        self._timer.timeout.connect(self._run_slice)
        page.saving_asked.connect(self._on_save_requested)

    @property
    def is_busy(self) -> bool:
        """Whether an export is in progress."""
        return bool(self._tasks)

    def _on_save_requested(self, what: str, names: list[str]) -> None:
        match what:
            case "copy_picture":
                QGuiApplication.clipboard().setPixmap(self._page.picture(names[0]))
            case "copy_data":
                self._enqueue(self._copy(names[0]))
            case _ if len(names) == 1:
                self._ask_file(names[0], "png" if what == "save_png" else "csv")
            case _:
                self._ask_folder(names, "png" if what == "save_png" else "csv")

    # --- destination ------------------------------------------------------------------------------------------

    def _ask_file(self, name: str, kind: str) -> None:
        """Open a non-blocking file dialog."""
        kinds = {"png": tr("plots.picture_png"), "csv": tr("plots.table_csv")}
        suggested = self._folder / f"{'-'.join(filter(None, (self._page.run_name, _file_name(name))))}.{kind}"
        dialog = QFileDialog(self._page, tr("plots.save_plot"), str(suggested), kinds[kind])
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(kind)
        dialog.fileSelected.connect(lambda path: self._save_to(Path(path).parent, {name: Path(path)}))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _ask_folder(self, names: list[str], kind: str) -> None:
        dialog = QFileDialog(self._page, tr("plots.folder_for_the_plots"), str(self._folder))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(lambda path: self.save_to_new_folder(Path(path), names, kind))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save_to_new_folder(self, folder: Path, names: list[str], kind: str) -> None:
        """Save into a new subfolder, so that nothing is overwritten."""
        own = folder / time.strftime("plots-%Y%m%d-%H%M%S")
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._show_error(own, error)
            return
        self._folder = folder
        self.save({name: own / f"{_file_name(name)}.{kind}" for name in names})

    # --- writing -------------------------------------------------------------------------------------------

    def save(self, paths: dict[str, Path]) -> None:
        """Save each plot to its file; the suffix selects the format."""
        for name, path in paths.items():
            if path.suffix.lower() == ".png":
                self._write_picture(name, path)
            else:
                self._enqueue(self._write_table(name, path))
        self._enqueue(self._report_saved(list(paths.values())))

    def _save_to(self, folder: Path, paths: dict[str, Path]) -> None:
        self._folder = folder
        self.save(paths)

    def _report_saved(self, paths: list[Path]) -> Iterator[None]:
        """Show where the files are once they exist."""
        yield
        if all(path.is_file() for path in paths):
            shown = paths[0] if len(paths) == 1 else paths[0].parent
            self._page.say(tr("plots.saved_path", path=shown))

    def _write_picture(self, name: str, path: Path) -> None:
        try:
            files.write_atomic(path, _encode_png(self._page.picture(name)))
        except OSError as error:
            self._show_error(path, error)

    def _write_table(self, name: str, path: Path) -> Iterator[None]:
        """Write to a temporary file, then rename it, so that the file is always complete."""
        from app.core.metrics.csv_export import iter_csv

        aside = path.with_name(f"{path.name}.part")
        try:
            with aside.open("wb") as file:
                yield from _write_table_text(file, iter_csv(self._page.series(name)))
            files.replace(aside, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            self._show_error(path, error)

    def _copy(self, name: str) -> Iterator[None]:
        from app.core.metrics.csv_export import iter_csv

        pieces = []
        for piece in iter_csv(self._page.series(name), "\t"):
            pieces.append(piece)
            yield
        QGuiApplication.clipboard().setText("".join(pieces))

    def _show_error(self, path: Path, error: OSError) -> None:
        reason = error.strerror or type(error).__name__

        def said() -> str:
            text = tr("plots.path_could_not_be_saved")
            return text.format(path=path, reason=reason)

        self._banners.add(BannerContent("error", said, str(error), "plots"))

    # --- slices -----------------------------------------------------------------------------------------

    def _enqueue(self, work: Iterator[None]) -> None:
        self._tasks.append(work)
        self._timer.start()

    def _run_slice(self) -> None:
        deadline = time.perf_counter() + _TIME_SLICE_S
        while self._tasks and time.perf_counter() < deadline:
            if next(self._tasks[0], self) is self:
                self._tasks.pop(0)
        if not self._tasks:
            self._timer.stop()


def _write_table_text(file: BinaryIO, pieces: Iterator[str]) -> Iterator[None]:
    file.write(_UTF8_BOM)
    for piece in pieces:
        file.write(piece.encode("utf-8"))
        yield


def _encode_png(picture: QPixmap) -> bytes:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    picture.save(buffer, "PNG")
    return bytes(buffer.data().data())


def _file_name(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")
