"""File dialog for data: lists every file that the trainer reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication, QFileDialog, QFileSystemModel, QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from tests.gui.conftest import MakeWindow, click
from trainer_core.data.formats import FORMATS

SUFFIXES = [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
COMPRESSED = ["text.txt.gz", "lines.jsonl.zst", "table.csv.zstd", "shard.tar.gz", "shard.tgz", "CODE.PY"]


def inspect_dialog(qtbot: QtBot, controller: Controller, inspect: Callable[[QFileDialog], object]) -> None:
    """Click "Add file…", call `inspect` with the dialog, and close it."""
    closed: list[QFileDialog] = []

    def find_dialog() -> None:
        dialog = QApplication.activeModalWidget()
        if not isinstance(dialog, QFileDialog):
            QTimer.singleShot(20, find_dialog)
            return
        try:
            inspect(dialog)
        finally:
            closed.append(dialog)
            dialog.reject()

    QTimer.singleShot(20, find_dialog)
    button = controller.window.findChild(QPushButton, "addFile")
    assert button is not None
    click(qtbot, button)
    qtbot.waitUntil(lambda: bool(closed))


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

    inspect_dialog(qtbot, make_window(language=language), inspect)
    assert listed == names
    assert filters[-1].endswith("(*)")  # all files


def test_the_file_type_list_contains_no_patterns(make_window: MakeWindow, qtbot: QtBot) -> None:
    """The dialog would be wider than the screen with the 60 patterns."""

    def inspect(dialog: QFileDialog) -> None:
        assert dialog.testOption(QFileDialog.Option.HideNameFilterDetails)
        assert dialog.sizeHint().width() < 800

    inspect_dialog(qtbot, make_window(), inspect)
