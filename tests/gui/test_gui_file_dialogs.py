"""File dialog for data: lists every file that the trainer reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QFileDialog, QFileSystemModel, QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from tests.gui.conftest import MakeWindow
from trainer_core.data.formats import FORMATS

SUFFIXES = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
COMPRESSED = ["text.txt.gz", "lines.jsonl.zst", "table.csv.zstd", "shard.tar.gz", "shard.tgz", "CODE.PY"]


def in_dialog(qtbot: QtBot, controller: Controller, act: Callable[[QFileDialog], object]) -> None:
    """Click "Add file…" and call `act` with the dialog, then close it."""
    done: list[QFileDialog] = []

    def find() -> None:
        dialog = QApplication.activeModalWidget()
        if not isinstance(dialog, QFileDialog):
            QTimer.singleShot(20, find)
            return
        try:
            act(dialog)
        finally:
            done.append(dialog)
            dialog.reject()

    QTimer.singleShot(20, find)
    button = controller.window.findChild(QPushButton, "addFile")
    assert button is not None
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: bool(done))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_dialog_lists_every_readable_file(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, language: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    names = {f"file{suffix}" for suffix in SUFFIXES} | {*COMPRESSED}
    for name in (*names, "picture.png"):
        (folder / name).write_bytes(b"x")
    listed: set[str] = set()
    filters: list[str] = []

    def inspect(dialog: QFileDialog) -> None:
        filters.extend(dialog.nameFilters())
        dialog.setDirectory(str(folder))
        model = dialog.findChild(QFileSystemModel)
        assert model is not None
        root = model.index(str(folder))
        qtbot.waitUntil(lambda: model.rowCount(root) >= 6)
        qtbot.wait(200)
        listed.update(model.index(row, 0, root).data() for row in range(model.rowCount(root)))

    in_dialog(qtbot, make_window(language=language), inspect)
    assert listed == names
    assert filters[-1].endswith("(*)")  # all files


def test_the_list_of_formats_contains_no_patterns(make_window: MakeWindow, qtbot: QtBot) -> None:
    """Sixty patterns would make it wider than the screen."""

    def inspect(dialog: QFileDialog) -> None:
        assert dialog.testOption(QFileDialog.Option.HideNameFilterDetails)
        assert dialog.sizeHint().width() < 800

    in_dialog(qtbot, make_window(), inspect)
