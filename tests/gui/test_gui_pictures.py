"""Every page looks as its picture in tests/gui/golden/ does, in both themes and languages: see `golden.py`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.preview_keys import PreviewResult
from app.core.queue import new_item
from app.core.settings import SettingsStore
from app.services import gpu_probe
from tests.gui import demo_run, golden
from tests.gui.conftest import MakeWindow, has_own_font
from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS
from trainer_core.system.hardware import GpuInfo, MachineInfo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the pictures are made with fonts of Linux")
PAGES = ("plots", "performance", "data", "samples", "try", "log", "runs", "queue", "settings")


GIB = 2**30
CARD = GpuInfo(0, "NVIDIA GeForce RTX 3060", "GPU-0", 12 * GIB, (8, 6))
MACHINE = MachineInfo(
    (CARD,), None, "", "580.65", (13, 0), 16 * GIB, 9 * GIB, "AMD Ryzen 7", 8, 16, "Windows"
)  # fmt: skip


@pytest.fixture(autouse=True)
def same_machine(qapp: QApplication, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window finds the same machine wherever it looks, and its font."""
    if not has_own_font():
        pytest.skip(f"the pictures are of {golden.FONT}")
    monkeypatch.setattr(gpu_probe, "probe", lambda: MACHINE)
    monkeypatch.setattr(gpu_probe, "nvidia_card_present", lambda: True)
    monkeypatch.setattr(gpu_probe, "torch_version", lambda: "2.13.0+cu130")


@pytest.fixture
def stage(make_window: MakeWindow, own_folders: Path, qtbot: QtBot) -> Callable[[str, str], Controller]:
    """A window with three runs on disk, one of them on show; two more wait in the queue."""

    def make(language: str, theme: str) -> Controller:
        for name, gpu in (("python 24M", True), ("诗词 8M", False), ("stories", True)):
            demo_run.write_run(own_folders / "runs" / name, "quickstart", ["builtin:python"], gpu=gpu)
        store = SettingsStore()
        store.load().welcome = False
        store.save()
        controller = make_window(language=language, theme=theme)
        controller.window.resize(golden.SIZE)
        controller.queue_controller.hold_reason = "paused"
        items = [new_item(name, "quickstart", {"max_steps": 200}, ["builtin:python"]) for name in ("first", "第二")]
        controller.queue_controller.queue.add(items)
        report = protocol.DataReport, EVENTS[protocol.DataReport]
        controller.preview_job.result = PreviewResult(controller.preview_job.compute_key(), *report)
        controller.open_run(own_folders / "runs" / "python 24M")
        qtbot.waitUntil(
            lambda: controller.viewed_run is not None and controller.viewed_run.loaded_fraction == 1.0, timeout=20_000
        )
        return controller

    return make


def picture(controller: Controller, page: str, qtbot: QtBot) -> QImage:
    """The window with this page, once it stays as it is: some parts are painted one after another."""
    controller.window.show_page(page)
    qtbot.wait(300)
    controller.render()
    before, found = QImage(), controller.window.grab().toImage()
    for _ in range(40):
        if found == before:
            break
        qtbot.wait(200)
        before, found = found, controller.window.grab().toImage()
    return found


def wrong_of(found: QImage, name: str, folder: Path) -> str:
    """What is wrong with it; empty: nothing. Writes it where pictures are made anew."""
    path = golden.FOLDER / f"{name}.png"
    if os.environ.get(golden.WRITE) == "write":
        assert golden.kept(found).save(str(path), "PNG", 0)  # type: ignore[call-overload]
        return ""
    if not path.is_file():
        return f"{name}: there is no picture of it; python -m tests.gui.golden makes one"
    difference = golden.difference(found, QImage(str(path)))
    if golden.alike(difference):
        return ""
    found.save(str(folder / f"{name}.png"))
    golden.shown(difference).save(str(folder / f"{name}-difference.png"))
    return f"{name}: {golden.words(difference)}; see {folder}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_looks_as_it_did(
    stage: Callable[[str, str], Controller], qtbot: QtBot, tmp_path: Path, language: str, theme: str
) -> None:
    controller = stage(language, theme)
    tail = f"{language}-{theme}"
    wrong = [wrong_of(picture(controller, page, qtbot), f"{page}-{tail}", tmp_path) for page in PAGES]
    controller.window.plots.detail.click()
    wrong.append(wrong_of(picture(controller, "plots", qtbot), f"detail-{tail}", tmp_path))
    assert [one for one in wrong if one] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_welcome_looks_as_it_did(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, language: str, theme: str
) -> None:
    controller = make_window(language=language, theme=theme)
    controller.window.resize(golden.SIZE)
    page = controller.welcome_page
    qtbot.waitUntil(page.use_preset_button.isEnabled, timeout=10_000)
    assert wrong_of(picture(controller, "plots", qtbot), f"welcome-{language}-{theme}", tmp_path) == ""


@pytest.mark.skipif(os.environ.get(golden.WRITE) == "write", reason="pictures are being made anew")
@pytest.mark.parametrize("change", ["moved", "gone", "colour"])
def test_a_widget_that_moved_is_gone_or_has_another_colour_is_noticed(
    stage: Callable[[str, str], Controller], qtbot: QtBot, change: str
) -> None:
    controller = stage("en", "light")
    before = picture(controller, "plots", qtbot)
    assert golden.alike(golden.difference(picture(controller, "plots", qtbot), before))
    tiles: QWidget = controller.window.plots.tiles
    if change == "moved":
        tiles.move(tiles.x(), tiles.y() + 40)
    elif change == "gone":
        controller.window.run_bar.hide()
    else:
        tiles.setStyleSheet("* { background: #ffb0b0; }")
    qtbot.wait(100)
    assert not golden.alike(golden.difference(controller.window.grab().toImage(), before))
