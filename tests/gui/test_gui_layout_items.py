"""No Python wrapper outlives its layout item.

Otherwise shiboken returns it for a later pyqtgraph object at the same address, which crashes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import shiboken6
from PySide6.QtWidgets import QLayout, QWidget, QWidgetItem
from pytestqt.qtbot import QtBot

from tests.gui.conftest import MakeWindow
from tests.gui.demo_run import write_run


def wrapped_items() -> set[int]:
    """Addresses of all layout items with a Python wrapper."""
    gc.collect()
    wrappers: list[Any] = shiboken6.getAllValidWrappers()
    return {shiboken6.getCppPointer(item)[0] for item in wrappers if type(item) is QWidgetItem}


def layout_items(window: QWidget) -> dict[int, QWidget | None]:
    """All layout items by address, with their widgets."""
    items: dict[int, QWidget | None] = {}
    for layout in window.findChildren(QLayout):
        for index in range(layout.count()):
            item = layout.itemAt(index)
            if isinstance(item, QWidgetItem):
                items[shiboken6.getCppPointer(item)[0]] = item.widget()
    return items


def test_wrappers_of_layout_items_do_not_outlive_moved_widgets(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    write_run(home / "runs" / "a", "quickstart", ["builtin:python"], steps=50, every=5, gpu=False, age_s=9000)
    earlier = wrapped_items()  # of windows of other tests
    controller = make_window()
    window = controller.window
    controller.open_run(home / "runs" / "a")
    qtbot.waitUntil(window.plots.isVisible)
    wrapped = wrapped_items() - earlier
    before = layout_items(window)
    assert wrapped <= set(before)
    for page in window.pages:
        window.show_page(page)
        for width in (1400, window.minimumWidth(), 1400):
            window.resize(width, 800)
            qtbot.wait(5)
    after = layout_items(window)
    moved = [before[item] for item in wrapped if item not in after or after[item] is not before[item]]
    assert moved == []
