"""Zoom of the plots with the mouse and keys: both axes, one axis, and back to all."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.pages.plots.page import PlotsPage
from tests.gui.conftest import click
from tests.gui.plots_page import build_store, canvas, events, open_page, settle, show

Ranges = tuple[tuple[float, float], tuple[float, float]]
_NONE, _SHIFT, _CTRL = (
    Qt.KeyboardModifier.NoModifier,
    Qt.KeyboardModifier.ShiftModifier,
    Qt.KeyboardModifier.ControlModifier,
)


@pytest.fixture
def page(qtbot: QtBot, qapp: QApplication) -> PlotsPage:
    return open_page(qtbot, qapp)


def ranges(page: PlotsPage, name: str) -> Ranges:
    return canvas(page, name).x_range, canvas(page, name).y_range


def place(page: PlotsPage, name: str, x: float, y: float) -> QPoint:
    """The pixel at these fractions of the width and height of the curves; y from the bottom, a negative x: the axis."""
    area = canvas(page, name)._box.sceneBoundingRect()
    return QPointF(area.left() + x * area.width(), area.bottom() - y * area.height()).toPoint()


def drag(
    qtbot: QtBot, page: PlotsPage, name: str, start: tuple[float, float], end: tuple[float, float], *,
    modifiers: Qt.KeyboardModifier = _NONE, button: Qt.MouseButton = Qt.MouseButton.LeftButton,
) -> None:  # fmt: skip
    """Drag from one place of a plot to another, in fractions of its size."""
    first, last = place(page, name, *start), place(page, name, *end)
    qtbot.mouseMove(canvas(page, name).viewport(), first)
    press(qtbot, page, name, QEvent.Type.MouseButtonPress, first, modifiers, button)
    press(qtbot, page, name, QEvent.Type.MouseMove, last, modifiers, button)
    press(qtbot, page, name, QEvent.Type.MouseButtonRelease, last, modifiers, button)
    settle(qtbot, page)


def press(
    qtbot: QtBot, page: PlotsPage, name: str, kind: QEvent.Type, position: QPoint,
    modifiers: Qt.KeyboardModifier = _NONE, button: Qt.MouseButton = Qt.MouseButton.LeftButton,
) -> None:  # fmt: skip
    """Press, move or release a button. qtbot moves the mouse without modifiers."""
    viewport = canvas(page, name).viewport()
    changed = Qt.MouseButton.NoButton if kind is QEvent.Type.MouseMove else button
    held = Qt.MouseButton.NoButton if kind is QEvent.Type.MouseButtonRelease else button
    place, on_screen = QPointF(position), QPointF(viewport.mapToGlobal(position))
    QApplication.sendEvent(viewport, QMouseEvent(kind, place, on_screen, changed, held, modifiers))
    qtbot.wait(11)  # pyqtgraph drops mouse moves less than 10 ms apart


def turn_wheel(
    qtbot: QtBot, page: PlotsPage, name: str, at: tuple[float, float], steps: int, modifiers: Qt.KeyboardModifier
) -> bool:
    """Turn the wheel; returns whether the plot used it."""
    viewport = canvas(page, name).viewport()
    position = place(page, name, *at)
    event = QWheelEvent(
        QPointF(position), QPointF(viewport.mapToGlobal(position)), QPoint(), QPoint(0, 120 * steps),
        Qt.MouseButton.NoButton, modifiers, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(viewport, event)
    settle(qtbot, page)
    return event.isAccepted()


def part(whole: tuple[float, float], low: float, high: float) -> tuple[float, float]:
    start, end = whole
    return pytest.approx((start + low * (end - start), start + high * (end - start)), abs=0.02 * (end - start))  # type: ignore[return-value]


def test_dragging_zooms_to_the_rectangle_and_all_plots_share_its_x_range(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    (x, y), speed = ranges(page, "loss"), ranges(page, "speed")
    drag(qtbot, page, "loss", (0.2, 0.3), (0.5, 0.9))
    assert ranges(page, "loss") == (part(x, 0.2, 0.5), part(y, 0.3, 0.9))
    assert ranges(page, "speed")[0] == ranges(page, "loss")[0]
    low, high = ranges(page, "speed")[1]
    assert high - low < 0.4 * (speed[1][1] - speed[1][0])  # fits the visible points
    first = ranges(page, "loss")
    drag(qtbot, page, "loss", (0.9, 0.9), (0.1, 0.1))  # backwards, inside the first
    assert ranges(page, "loss") == (part(first[0], 0.1, 0.9), part(first[1], 0.1, 0.9))


@pytest.mark.parametrize(
    ("start", "end", "zoomed"),
    [
        ((0.2, 0.5), (0.6, 0.51), (True, False)),
        ((0.5, 0.2), (0.505, 0.6), (False, True)),
        ((-0.02, 0.2), (-0.02, 0.6), (False, True)),  # over the y axis
        ((0.5, 0.5), (0.51, 0.52), (False, False)),
    ],
)
def test_a_flat_rectangle_zooms_one_axis(
    qtbot: QtBot, page: PlotsPage, start: tuple[float, float], end: tuple[float, float], zoomed: tuple[bool, bool]
) -> None:
    show(qtbot, page, build_store())
    x, y = ranges(page, "loss")
    drag(qtbot, page, "loss", start, end)
    assert page.painter.zoom == (canvas(page, "loss").x_range if zoomed[0] else None)
    assert page.painter.y_zooms == ({"loss": canvas(page, "loss").y_range} if zoomed[1] else {})
    if zoomed[0]:
        assert canvas(page, "loss").x_range == part(x, 0.2, 0.6)
    if zoomed[1]:
        assert ranges(page, "loss") == (x, part(y, 0.2, 0.6))
    assert page.toolbar.show_all_button.isEnabled() is any(zoomed)


def test_the_selected_rectangle_is_visible_while_dragging(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    box = canvas(page, "loss")._box
    start, end = place(page, "loss", 0.2, 0.5), place(page, "loss", 0.6, 0.51)
    press(qtbot, page, "loss", QEvent.Type.MouseButtonPress, start)
    press(qtbot, page, "loss", QEvent.Type.MouseMove, end)
    assert box.rbScaleBox.isVisible()
    selected = box.rbScaleBox.mapRectToScene(box.rbScaleBox.rect())
    assert selected.height() == pytest.approx(box.sceneBoundingRect().height(), abs=1)  # flat: the whole height
    assert selected.width() == pytest.approx((end - start).x(), abs=1)
    press(qtbot, page, "loss", QEvent.Type.MouseButtonRelease, end)
    assert not box.rbScaleBox.isVisible()


@pytest.mark.parametrize("way", ["double click", "button", "key"])
def test_everything_is_shown_again_and_the_newest_point_is_followed(qtbot: QtBot, page: PlotsPage, way: str) -> None:
    store = build_store()
    show(qtbot, page, store)
    full = ranges(page, "loss")
    drag(qtbot, page, "loss", (0.2, 0.3), (0.5, 0.9))
    drag(qtbot, page, "speed", (-0.05, 0.3), (-0.05, 0.9))
    zoomed = ranges(page, "loss")
    all_events = list(events(200))
    for event in all_events[len(all_events) // 2 :]:
        store.add(event)
    page.display(store)
    settle(qtbot, page)
    assert ranges(page, "loss") == zoomed
    if way == "double click":
        qtbot.mouseDClick(canvas(page, "loss").viewport(), Qt.MouseButton.LeftButton, pos=place(page, "loss", 0.5, 0.5))
    elif way == "button":
        click(qtbot, page.toolbar.show_all_button)
    else:
        qtbot.keyClick(canvas(page, "loss"), Qt.Key.Key_0)
    settle(qtbot, page)
    assert canvas(page, "loss").x_range[1] > 200 > full[0][1]
    assert page.painter.y_zooms == {}
    assert not page.toolbar.show_all_button.isEnabled()


def test_shift_or_the_middle_button_pans_within_the_run(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    full = ranges(page, "loss")
    drag(qtbot, page, "loss", (0.5, 0.2), (0.5, 0.8), modifiers=_SHIFT)
    assert ranges(page, "loss") == full  # nothing to pan to
    drag(qtbot, page, "loss", (0.4, 0.4), (0.6, 0.6))
    zoomed = ranges(page, "loss")
    drag(qtbot, page, "loss", (0.5, 0.5), (0.25, 0.5), modifiers=_SHIFT)
    assert ranges(page, "loss")[0] == part(zoomed[0], 0.25, 1.25)
    drag(qtbot, page, "loss", (0.5, 0.5), (0.5, 0.75), button=Qt.MouseButton.MiddleButton)
    assert ranges(page, "loss")[1] == part(zoomed[1], -0.25, 0.75)
    for _ in range(9):
        drag(qtbot, page, "loss", (0.1, 0.5), (0.9, 0.5), modifiers=_SHIFT)
    x = ranges(page, "loss")[0]
    assert x == pytest.approx((full[0][0], full[0][0] + zoomed[0][1] - zoomed[0][0]))  # stops at the start of the run


def test_the_wheel_zooms_with_ctrl_pans_with_shift_and_else_scrolls_the_page(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    full = ranges(page, "loss")
    assert not turn_wheel(qtbot, page, "loss", (0.5, 0.5), 1, _NONE)
    assert ranges(page, "loss") == full
    assert turn_wheel(qtbot, page, "loss", (0.5, 0.5), 1, _CTRL)
    assert page.painter.y_zooms == {}
    zoomed = ranges(page, "loss")[0]
    assert sum(zoomed) == pytest.approx(sum(full[0]), rel=0.02)  # around the mouse
    assert zoomed[1] - zoomed[0] < 0.8 * (full[0][1] - full[0][0])
    assert turn_wheel(qtbot, page, "loss", (0.5, 0.5), -1, _SHIFT)
    assert ranges(page, "loss")[0] == part(zoomed, 0.1, 1.1)
    turn_wheel(qtbot, page, "loss", (0.9, 0.5), -9, _CTRL)
    assert page.painter.zoom is None  # all of it: the newest point is followed


@pytest.mark.parametrize(("x", "modifiers"), [(-0.02, _CTRL), (0.5, _CTRL | _SHIFT)])
def test_ctrl_and_the_wheel_over_the_y_axis_or_with_shift_zoom_the_y_axis(
    qtbot: QtBot, page: PlotsPage, x: float, modifiers: Qt.KeyboardModifier
) -> None:
    show(qtbot, page, build_store())
    full, speed = ranges(page, "loss"), ranges(page, "speed")
    turn_wheel(qtbot, page, "loss", (x, 0.1), 2, modifiers)
    assert ranges(page, "loss")[1] == part(full[1], 0.045, 0.6)  # around the mouse
    assert ranges(page, "loss")[0] == full[0]
    assert ranges(page, "speed") == speed
    turn_wheel(qtbot, page, "loss", (x, 0.5), -9, modifiers)
    assert page.painter.y_zooms == {}
    assert ranges(page, "loss") == full


def test_shift_and_arrows_zoom_the_y_axis(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    low, high = ranges(page, "loss")[1]
    qtbot.keyClick(canvas(page, "loss"), Qt.Key.Key_Up, _SHIFT)
    settle(qtbot, page)
    zoomed = ranges(page, "loss")[1]
    assert zoomed[1] - zoomed[0] == pytest.approx((high - low) / 1.5)
    qtbot.keyClick(canvas(page, "loss"), Qt.Key.Key_Down, _SHIFT)
    settle(qtbot, page)
    assert page.painter.y_zooms == {}


def test_zooming_ends_at_the_precision_of_the_values(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store(spike=50))
    full = ranges(page, "loss")
    for modifiers in (_CTRL | _SHIFT, _CTRL):
        turn_wheel(qtbot, page, "loss", (0.5, 0.5), 60, modifiers)
    for (low, high), (start, end) in zip(ranges(page, "loss"), full, strict=True):
        assert high - low == pytest.approx(1e-6 * (end - start), rel=1e-3)
    assert not page.charts["loss"].grab().isNull()


def test_another_y_scale_shows_all_of_the_loss(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    drag(qtbot, page, "loss", (0.2, 0.3), (0.5, 0.9))
    zoomed = canvas(page, "loss").x_range
    click(qtbot, page.toolbar.log_scale)
    settle(qtbot, page)
    assert page.painter.y_zooms == {}
    assert canvas(page, "loss").y_range[1] < 1.0  # powers of ten
    assert canvas(page, "loss").x_range == zoomed


def test_dragging_with_the_right_button_leaves_the_plot_as_it_is(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    full = ranges(page, "loss")
    drag(qtbot, page, "loss", (0.2, 0.3), (0.5, 0.9), button=Qt.MouseButton.RightButton)
    assert ranges(page, "loss") == full
