"""Plots as pictures and tables: to the clipboard, to files that the person names, to a folder of all of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from PySide6.QtCore import QBuffer, QIODevice, QObject, QTimer
from PySide6.QtGui import QGuiApplication, QPixmap
from PySide6.QtWidgets import QFileDialog

from app.services import desktop
from app.views.banner import BannerArea, BannerText
from app.views.plots.page import PlotsPage
from trainer_core import files

_SLICE_S: Final = 0.012
_BREATH_MS: Final = 1  # between two slices: painting and input come first
_BOM: Final = b"\xef\xbb\xbf"  # or Excel takes UTF-8 for the system's code page


class PlotSaver(QObject):
    """Does what the page asks for. Tables are written in slices: one of a million rows takes seconds."""

    def __init__(self, page: PlotsPage, banners: BannerArea, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._page, self._banners = page, banners
        self._work: list[Iterator[None]] = []
        self._folder = desktop.documents()  # that the next question begins in
        self._timer = QTimer(self, interval=_BREATH_MS)
        self._timer.timeout.connect(self._slice)
        page.saving_asked.connect(self._on_asked)

    @property
    def busy(self) -> bool:
        """Whether something is still being written."""
        return bool(self._work)

    def _on_asked(self, what: str, names: list[str]) -> None:
        match what:
            case "copy_picture":
                QGuiApplication.clipboard().setPixmap(self._page.picture(names[0]))
            case "copy_data":
                self._begin(self._copy(names[0]))
            case _ if len(names) == 1:
                self._ask_file(names[0], "png" if what == "save_png" else "csv")
            case _:
                self._ask_folder(names, "png" if what == "save_png" else "csv")

    # --- where to ------------------------------------------------------------------------------------------

    def _ask_file(self, name: str, kind: str) -> None:
        """Not blocking: the run and its plots go on behind the question."""
        kinds = {"png": self.tr("Picture (*.png)"), "csv": self.tr("Table (*.csv)")}
        suggested = self._folder / f"{'-'.join(filter(None, (self._page.run_name, _file_name(name))))}.{kind}"
        dialog = QFileDialog(self._page, self.tr("Save plot"), str(suggested), kinds[kind])
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(kind)
        dialog.fileSelected.connect(lambda path: self._save_to(Path(path).parent, {name: Path(path)}))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _ask_folder(self, names: list[str], kind: str) -> None:
        dialog = QFileDialog(self._page, self.tr("Folder for the plots"), str(self._folder))
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(lambda path: self.save_all(Path(path), names, kind))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save_all(self, folder: Path, names: list[str], kind: str) -> None:
        """In a new folder of its own: nothing that is there is written over."""
        own = folder / time.strftime("plots-%Y%m%d-%H%M%S")
        try:
            own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._fail(own, error)
            return
        self._folder = folder
        self.save({name: own / f"{_file_name(name)}.{kind}" for name in names})

    # --- writing -------------------------------------------------------------------------------------------

    def save(self, paths: dict[str, Path]) -> None:
        """Each plot to its file; the ending of its name says as what."""
        for name, path in paths.items():
            if path.suffix.lower() == ".png":
                self._write_picture(name, path)
            else:
                self._begin(self._write_table(name, path))
        self._begin(self._tell(list(paths.values())))

    def _save_to(self, folder: Path, paths: dict[str, Path]) -> None:
        self._folder = folder
        self.save(paths)

    def _tell(self, paths: list[Path]) -> Iterator[None]:
        """Where they are, once they are there."""
        yield
        if all(path.is_file() for path in paths):
            shown = paths[0] if len(paths) == 1 else paths[0].parent
            self._page.say(self.tr("Saved: {path}").format(path=shown))

    def _write_picture(self, name: str, path: Path) -> None:
        try:
            files.write_atomic(path, _png(self._page.picture(name)))
        except OSError as error:
            self._fail(path, error)

    def _write_table(self, name: str, path: Path) -> Iterator[None]:
        """Written beside, then renamed: a table that is there is whole."""
        from app.state.measurements.curve_files import text

        aside = path.with_name(f"{path.name}.part")
        try:
            with aside.open("wb") as file:
                yield from _write(file, text(self._page.series(name)))
            files.replace(aside, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            self._fail(path, error)

    def _copy(self, name: str) -> Iterator[None]:
        from app.state.measurements.curve_files import text

        pieces = []
        for piece in text(self._page.series(name), "\t"):
            pieces.append(piece)
            yield
        QGuiApplication.clipboard().setText("".join(pieces))

    def _fail(self, path: Path, error: OSError) -> None:
        reason = error.strerror or type(error).__name__

        def said() -> str:
            text = self.tr("{path} could not be saved: {reason}. Choose another name or folder.")
            return text.format(path=path, reason=reason)

        self._banners.add(BannerText("error", said, str(error), "plots"))

    # --- in slices -----------------------------------------------------------------------------------------

    def _begin(self, work: Iterator[None]) -> None:
        self._work.append(work)
        self._timer.start()

    def _slice(self) -> None:
        deadline = time.perf_counter() + _SLICE_S
        while self._work and time.perf_counter() < deadline:
            if next(self._work[0], self) is self:
                self._work.pop(0)
        if not self._work:
            self._timer.stop()


def _write(file: BinaryIO, pieces: Iterator[str]) -> Iterator[None]:
    file.write(_BOM)
    for piece in pieces:
        file.write(piece.encode("utf-8"))
        yield


def _png(picture: QPixmap) -> bytes:
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    picture.save(buffer, "PNG")
    return bytes(buffer.data().data())


def _file_name(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")
