"""Groups of pages; the page of the example in CONTRIBUTING.md is added to the window by its registration alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from pytestqt.qtbot import QtBot

from app.core.settings import SettingsStore
from app.pages import registry
from app.pages.registry import PAGES, PageSpec
from app.theme.palette import DARK, LIGHT
from app.window import commands, main_window
from tests.gui.conftest import MakeWindow, activate
from trainer_core import protocol

CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def added_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the module of the example and register its page."""
    section = CONTRIBUTING.read_text(encoding="utf-8").partition("**a page**")[2]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    (tmp_path / "sample_count_page.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    spec = PageSpec("window.next_run", "sample_count", "samples.samples", "sample_count_page", "SampleCountPage")
    pages = (registry.PAGES[0], spec, *registry.PAGES[1:])
    for module in (registry, commands, main_window):
        monkeypatch.setattr(module, "PAGES", pages)


@pytest.mark.usefixtures("added_page")
def test_a_registered_page_has_a_tab_a_shortcut_a_language_and_the_displayed_run(
    make_window: MakeWindow, qtbot: QtBot
) -> None:
    controller = make_window()
    window = controller.window
    activate(qtbot, window)
    qtbot.keyClick(window, Qt.Key.Key_2, Qt.KeyboardModifier.ControlModifier)
    assert window.page == "sample_count"
    page = window.sample_count  # type: ignore[attr-defined]
    assert page.isVisible()
    controller.active_run.record.add(protocol.Sample(step=1, prompt="a", text="b"))
    controller.render()
    assert page.count.text() == "1"
    controller.set_language("zh")
    assert page.title.text() == window.tabs.tabText(1) == "示例文本"
    window.close()
    assert SettingsStore().load().page == "sample_count"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_only_the_group_of_the_displayed_page_is_highlighted(make_window: MakeWindow, qtbot: QtBot, theme: str) -> None:
    window, palette = make_window(theme=theme).window, DARK if theme == "dark" else LIGHT
    bar = window.tabs.tabBar()
    ends = {page.group: index for index, page in enumerate(PAGES)}  # last tab of each group
    qtbot.waitUntil(bar.isVisible)
    for page in PAGES:
        window.show_page(page.id)
        picture = bar.grab().toImage()
        for group, index in ends.items():
            column = bar.tabRect(index).right() - 8  # in the line above the tabs
            colors = {picture.pixelColor(column, row).name() for row in range(bar.height() // 2)}
            assert (palette.accent in colors) == (group == page.group), (page.id, group)


def test_screen_readers_read_the_group_of_a_tab(make_window: MakeWindow) -> None:
    controller = make_window()
    tabs = QAccessible.queryAccessibleInterface(controller.window.tabs.tabBar())
    names = [tabs.child(index).text(QAccessible.Text.Name) for index in range(len(PAGES))]
    assert names == [
        "Data, Next run", "All settings, Next run", "Queue, Next run",
        "Plots, This run", "Performance, This run", "Log, This run",
        "Runs, All runs", "Chat, All runs", "Evaluate, All runs", "Export, All runs",
    ]  # fmt: skip
    controller.set_language("zh")
    controller.window.set_queue_count(2)
    assert tabs.child(2).text(QAccessible.Text.Name) == "队列（2）, 下一次运行"
