"""Fixtures and helpers of the window's tests: a complete window with a fake trainer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["PYQTGRAPH_QT_LIB"] = "PySide6"

import pytest
import shiboken6
from huggingface_hub import constants
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QFontInfo, QTextCursor
from PySide6.QtWidgets import QApplication, QMenu, QPlainTextEdit, QTextEdit, QWidget
from pytestqt.qtbot import QtBot

from app.__main__ import configure_application
from app.controller import Controller
from app.core.run_state import RunState
from app.core.settings import SettingsStore
from app.services import gpu_probe
from app.services.trainer_process import TrainerProcess
from app.texts import Translator
from app.theme import style
from tests.gui import golden
from trainer_core.messages import Language
from trainer_core.system.hardware import GpuInfo, MachineInfo

ROOT: Final = Path(__file__).resolve().parents[2]
FAKE_TRAINER: Final = ROOT / "tests" / "process" / "fake_trainer.py"
LEFT: Final = Qt.MouseButton.LeftButton
RTX_3060: Final = GpuInfo(0, "NVIDIA GeForce RTX 3060", "GPU-0", 12 * 2**30, (8, 6))
MakeWindow = Callable[..., Controller]


def click(qtbot: QtBot, button: QWidget) -> None:
    """Click as soon as the button is visible: a new one appears with the next events."""
    qtbot.waitUntil(button.isVisible)
    assert button.isEnabled()
    qtbot.mouseClick(button, LEFT)


def activate(qtbot: QtBot, window: QWidget) -> None:
    """Activate a window. Inactive windows receive no keys."""
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)


def wait_for_state(qtbot: QtBot, controller: Controller, state: RunState, timeout_s: float = 20.0) -> None:
    """Wait until the active run has a state."""
    qtbot.waitUntil(lambda: controller.active_run.machine.state is state, timeout=int(1000 * timeout_s))


def wait_until_loaded(qtbot: QtBot, controller: Controller, timeout_s: float = 20.0) -> None:
    """Wait until all events of the viewed run are loaded."""
    qtbot.waitUntil(
        lambda: controller.viewed_run is not None and controller.viewed_run.loaded_fraction == 1.0,
        timeout=int(1000 * timeout_s),
    )


def replace_trainer(controller: Controller, program: Path, code: str) -> None:
    """Run `code` instead of the fake trainer. Its first argument is the root of the repository."""
    program.write_text(code, encoding="utf-8")
    controller.active_run.process._command = [sys.executable, "-u", "-X", "utf8", str(program), str(ROOT)]


def replace_machine(monkeypatch: pytest.MonkeyPatch, machine: MachineInfo, *, card_present: bool) -> None:
    """Replace the results of the hardware probe."""
    monkeypatch.setattr(gpu_probe, "probe", lambda: machine)
    monkeypatch.setattr(gpu_probe, "nvidia_card_present", lambda: card_present)
    monkeypatch.setattr(gpu_probe, "torch_version", lambda: "2.13.0+cu130")


def horizontal_extent(edit: QTextEdit | QPlainTextEdit, text: str) -> tuple[int, int]:
    """Left and right edge of the first occurrence of `text`, in pixels."""
    match = edit.document().find(text)
    assert not match.isNull(), edit.toPlainText()
    start = QTextCursor(match)
    start.setPosition(match.selectionStart())
    return edit.cursorRect(start).left(), edit.cursorRect(match).left()


def has_golden_font() -> bool:
    """Return whether the window uses the font of the golden pictures. Other fonts can be wider."""
    return QFontInfo(style.ui_font("en")).family() == golden.FONT


def stop_refresh_timer(controller: Controller) -> None:
    """Stop the timer that would replace, within 200 ms, a state that a test displays itself."""
    controller._timer.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set TRAINDECK_HOME (returned), TRAINDECK_CONFIG_DIR and the cache of the Hub to folders below `tmp_path`."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAINDECK_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "home"


@pytest.fixture
def make_window(qtbot: QtBot, qapp: QApplication) -> Iterator[MakeWindow]:
    """Open a window.

    `mode`, `preview`, `check`: modes of the fake trainers for training, data previews and checks. None: the real
    trainer."""
    controllers: list[Controller] = []
    translator = Translator()

    def create_process(mode: str | None) -> TrainerProcess:
        command = [sys.executable, "-u", "-X", "utf8", str(FAKE_TRAINER), mode] if mode else None
        return TrainerProcess(command=command)

    def make(
        mode: str | None = "ok",
        language: str = "en",
        theme: str = "light",
        *,
        preview: str | None = None,
        check: str | None = None,
    ) -> Controller:
        if qapp.applicationName() != "Traindeck":  # a repeated configuration takes a sixth of a window's time
            configure_application(qapp)
        window_language: Language = "zh" if language == "zh" else "en"
        translator.set_language(window_language)
        store = SettingsStore()
        store.load().theme = "dark" if theme == "dark" else "light"
        # Before the window, unlike in the program: the layout does not depend on the style sheet of the last test.
        style.apply_theme(style.resolve_theme(store.settings.theme), window_language)
        controller = Controller(store, translator, create_process(mode), create_process(preview), create_process(check))
        controllers.append(controller)
        controller.window.resize(1280, 800)  # larger than the screen of the offscreen platform, 800 x 800
        controller.start()
        qtbot.waitUntil(lambda: controller.window.plots.is_built, timeout=10_000)
        qtbot.keyRelease(controller.window, Qt.Key.Key_Control)  # Qt keeps the modifiers of the last test's key
        return controller

    yield make
    for controller in controllers:
        for process in (controller.active_run.process, controller.preview_job.process, controller.check_job.process):
            process.blockSignals(True)
            process.shutdown(grace_s=0.1)
        controller.shutdown()
        shiboken6.delete(controller.window)  # or every later style sheet polishes it again
        shiboken6.delete(controller)  # or it receives what later tests install
    for widget in qapp.topLevelWidgets():  # the same for menus that pyqtgraph does not delete
        if isinstance(widget, QMenu):
            widget.deleteLater()
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete)
    translator.set_language("en")
