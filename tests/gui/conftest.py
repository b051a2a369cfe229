"""Fixtures of the window's tests: a whole window with a fake trainer behind it, in folders of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["PYQTGRAPH_QT_LIB"] = "PySide6"

import pytest
import shiboken6
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QFontInfo, QTextCursor
from PySide6.QtWidgets import QApplication, QMenu, QPlainTextEdit, QTextEdit
from pytestqt.qtbot import QtBot

from app.__main__ import configure_application
from app.controller import Controller
from app.core.settings import SettingsStore
from app.services.trainer_process import TrainerProcess
from app.texts import Translator
from app.theme import style
from tests.gui import golden
from trainer_core.messages import Language

FAKE = Path(__file__).resolve().parent.parent / "process" / "fake_trainer.py"
MakeWindow = Callable[..., Controller]


def span(edit: QTextEdit | QPlainTextEdit, text: str) -> tuple[int, int]:
    """Where a part of a text begins and ends in its line, in pixels."""
    found = edit.document().find(text)
    assert not found.isNull(), edit.toPlainText()
    begin = QTextCursor(found)
    begin.setPosition(found.selectionStart())
    return edit.cursorRect(begin).left(), edit.cursorRect(found).left()


def has_own_font() -> bool:
    """Whether the window has the font that its pictures are of; another may be wider."""
    return QFontInfo(style.ui_font("en")).family() == golden.FONT


def stop_refreshing(controller: Controller) -> None:
    """Stop the refresh timer, which replaces a state that a test displays itself within 200 ms."""
    controller._timer.stop()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs and settings go below `tmp_path`."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINDECK_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "home"


@pytest.fixture
def make_window(qtbot: QtBot, qapp: QApplication) -> Iterator[MakeWindow]:
    """Open the window; `mode`, `look`, `check`: which fake trainers it starts to train, look at data and check, None:
    the real one."""
    made: list[Controller] = []
    translator = Translator()

    def process(mode: str | None) -> TrainerProcess:
        return TrainerProcess(command=[sys.executable, "-u", "-X", "utf8", str(FAKE), mode] if mode else None)

    def make(
        mode: str | None = "ok",
        language: str = "en",
        theme: str = "light",
        *,
        look: str | None = None,
        check: str | None = None,
    ) -> Controller:
        if qapp.applicationName() != "Traindeck":  # setting the style again takes a sixth of a window's time
            configure_application(qapp)
        spoken: Language = "zh" if language == "zh" else "en"
        translator.set_language(spoken)
        store = SettingsStore()
        store.load().theme = "dark" if theme == "dark" else "light"
        # Before the window, unlike in the program: it has the same layout whichever style sheet was set last.
        style.apply_theme(style.resolve_theme(store.settings.theme), spoken)
        controller = Controller(store, translator, process(mode), process(look), process(check))
        made.append(controller)
        controller.window.resize(1280, 800)  # the screen of the offscreen platform, 800 x 800, makes it smaller
        controller.start()
        qtbot.waitUntil(lambda: controller.window.plots.is_built, timeout=10_000)
        qtbot.keyRelease(controller.window, Qt.Key.Key_Control)  # Qt keeps the modifiers of the last test's key
        return controller

    yield make
    for controller in made:
        for process_ in (controller.active_run.process, controller.preview_job.process, controller.check_job.process):
            process_.blockSignals(True)
            process_.shutdown(grace_s=0.1)
        controller.shutdown()
        shiboken6.delete(controller.window)  # or every later style sheet polishes it again
    for widget in qapp.topLevelWidgets():  # the same for menus that pyqtgraph does not delete
        if isinstance(widget, QMenu):
            widget.deleteLater()
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    translator.set_language("en")
