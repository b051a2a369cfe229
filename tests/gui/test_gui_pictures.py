"""Every page matches its golden picture in both themes and languages; see `golden.py`."""

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
from tests.gui import demo_run, golden, pair_samples
from tests.gui.conftest import RTX_3060, MakeWindow, has_golden_font, replace_machine, wait_until_loaded
from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS
from trainer_core.system.hardware import MachineInfo

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the golden pictures need the fonts of Linux")
WRITE_MODE = os.environ.get(golden.WRITE_VARIABLE) == "write"
PAGES = ("plots", "performance", "data", "chat", "samples", "log", "runs", "evaluate", "export", "queue", "settings")
GIB = 2**30
MACHINE = MachineInfo(
    (RTX_3060,), None, "", "580.65", (13, 0), 16 * GIB, 9 * GIB, "AMD Ryzen 7", 8, 16, "Windows"
)  # fmt: skip


@pytest.fixture(autouse=True)
def fixed_machine(qapp: QApplication, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the probed hardware. Skip without the font of the golden pictures."""
    if not has_golden_font():
        pytest.skip(f"the golden pictures need {golden.FONT}")
    replace_machine(monkeypatch, MACHINE, card_present=True)


@pytest.fixture
def make_demo_window(make_window: MakeWindow, home: Path, qtbot: QtBot) -> Callable[[str, str], Controller]:
    """Open a window with three runs on disk, one of which is displayed, and two queued runs."""

    def make(language: str, theme: str) -> Controller:
        for name, gpu in (("python 24M", True), ("诗词 8M", False), ("stories", True)):
            demo_run.write_run(home / "runs" / name, "quickstart", ["builtin:python"], gpu=gpu)
        store = SettingsStore()
        store.load().welcome = False
        store.save()
        controller = make_window(language=language, theme=theme)
        controller.window.resize(golden.SIZE)
        controller.queue_controller.hold_reason = "paused"
        items = [new_item(name, "quickstart", {"max_steps": 200}, ["builtin:python"]) for name in ("first", "第二")]
        controller.queue_controller.queue.add(items)
        controller.preview_job.result = PreviewResult(
            controller.preview_job.compute_key(), protocol.DataReport, EVENTS[protocol.DataReport]
        )
        controller.open_run(home / "runs" / "python 24M")
        wait_until_loaded(qtbot, controller)
        return controller

    return make


def grab_page(controller: Controller, page: str, qtbot: QtBot) -> QImage:
    """Show a page and grab the window once it no longer changes: some parts are painted in idle time."""
    controller.window.show_page("chat" if page == "samples" else page)
    controller.window.chat.show_samples(page == "samples")
    qtbot.wait(300)
    controller.render()
    previous, picture = QImage(), controller.window.grab().toImage()
    for _ in range(40):
        if picture == previous:
            break
        qtbot.wait(200)
        previous, picture = picture, controller.window.grab().toImage()
    return picture


def compare(picture: QImage, name: str, folder: Path) -> str:
    """Compare a picture with its golden picture, or write the golden picture in write mode.

    Returns a description of the difference, "" if there is none."""
    path = golden.FOLDER / f"{name}.png"
    if WRITE_MODE:
        assert golden.to_stored(picture).save(str(path), "PNG", 0)  # type: ignore[call-overload]
        return ""
    if not path.is_file():
        return f"{name} has no golden picture; python -m tests.gui.golden writes it"
    distances = golden.difference(picture, QImage(str(path)))
    if golden.is_match(distances):
        return ""
    picture.save(str(folder / f"{name}.png"))
    golden.difference_image(distances).save(str(folder / f"{name}-difference.png"))
    return f"{name}: {golden.summary(distances)}; see {folder}"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_matches_its_golden_picture(
    make_demo_window: Callable[[str, str], Controller], qtbot: QtBot, tmp_path: Path, language: str, theme: str
) -> None:
    controller = make_demo_window(language, theme)
    controller.window.export.options.folder.setText("/")  # else the documents folder of this user
    suffix = f"{language}-{theme}"
    differences = [compare(grab_page(controller, page, qtbot), f"{page}-{suffix}", tmp_path) for page in PAGES]
    controller.window.plots.detail.click()
    differences.append(compare(grab_page(controller, "plots", qtbot), f"detail-{suffix}", tmp_path))
    assert [difference for difference in differences if difference] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_welcome_page_matches_its_golden_picture(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, language: str, theme: str
) -> None:
    controller = make_window(language=language, theme=theme)
    controller.window.resize(golden.SIZE)
    page = controller.welcome_page
    qtbot.waitUntil(page.use_preset_button.isEnabled, timeout=10_000)
    assert compare(grab_page(controller, "plots", qtbot), f"welcome-{language}-{theme}", tmp_path) == ""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_answers_of_a_pair_match_their_golden_picture(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, language: str, theme: str
) -> None:
    controller = make_window(language=language, theme=theme)
    controller.window.resize(golden.SIZE)
    key = controller.preview_job.compute_key()
    controller.preview_job.result = PreviewResult(key, protocol.DataReport, report=pair_samples.REPORT)
    grab_page(controller, "data", qtbot)
    scroll = controller.window.data._area.verticalScrollBar()
    scroll.setValue(scroll.maximum())
    assert compare(grab_page(controller, "data", qtbot), f"pairs-{language}-{theme}", tmp_path) == ""


@pytest.mark.skipif(WRITE_MODE, reason="golden pictures are being written")
@pytest.mark.parametrize("change", ["moved", "hidden", "recolored"])
def test_a_moved_hidden_or_recolored_widget_is_detected(
    make_demo_window: Callable[[str, str], Controller], qtbot: QtBot, change: str
) -> None:
    controller = make_demo_window("en", "light")
    before = grab_page(controller, "plots", qtbot)
    assert golden.is_match(golden.difference(grab_page(controller, "plots", qtbot), before))
    tiles: QWidget = controller.window.plots.tiles
    if change == "moved":
        tiles.move(tiles.x(), tiles.y() + 40)
    elif change == "hidden":
        controller.window.run_bar.hide()
    else:
        tiles.setStyleSheet("* { background: #ffb0b0; }")
    qtbot.wait(100)
    assert not golden.is_match(golden.difference(controller.window.grab().toImage(), before))
