"""Python keeps no object of what Qt has deleted: pyqtgraph would take it for its own at the same address, and crash."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import shiboken6
from demo_run import write_run
from PySide6.QtWidgets import QLayout, QWidget, QWidgetItem
from pytestqt.qtbot import QtBot

from tests.gui.conftest import MakeWindow


def held() -> set[int]:
    """Addresses of all layout items that Python has an object for."""
    gc.collect()
    made: list[Any] = shiboken6.getAllValidWrappers()
    return {shiboken6.getCppPointer(item)[0] for item in made if type(item) is QWidgetItem}


def there(window: QWidget) -> dict[int, QWidget | None]:
    """The items that there are, and whose they are."""
    found: dict[int, QWidget | None] = {}
    for layout in window.findChildren(QLayout):
        for place in range(layout.count()):
            item = layout.itemAt(place)
            if isinstance(item, QWidgetItem):
                found[shiboken6.getCppPointer(item)[0]] = item.widget()
    return found


def test_items_of_layouts_are_gone_from_python_when_their_widgets_move(
    make_window: MakeWindow, qtbot: QtBot, own_folders: Path
) -> None:
    write_run(own_folders / "runs" / "a", "quickstart", ["builtin:python"], steps=50, every=5, gpu=False, age_s=9000)
    earlier = held()  # of windows that tests before this one have left behind
    controller = make_window()
    window = controller.window
    controller.open_run(own_folders / "runs" / "a")
    qtbot.waitUntil(window.plots.isVisible)
    known = held() - earlier
    before = there(window)
    assert known <= set(before)
    for page in window.pages:
        window.show_page(page)
        for width in (1400, window.minimumWidth(), 1400):
            window.resize(width, 800)
            qtbot.wait(5)
    after = there(window)
    moved = [before[item] for item in known if item not in after or after[item] is not before[item]]
    assert moved == []
