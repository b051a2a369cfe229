"""Icons from assets/icons, in the colors of the theme."""

from __future__ import annotations

from functools import cache
from typing import Final, Literal

from PySide6.QtCore import QPointF, QRectF, QSize, QSizeF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.theme.palette import LIGHT
from trainer_core.system import program_files

IconName = Literal[
    "start", "pause", "resume", "stop", "close", "fits", "tight", "does_not_fit", "advice", "memory", "again", "up",
    "down", "queue", "eye", "ring", "here", "dots", "unfold", "back", "forward",
]  # fmt: skip
RunIndicator = Literal["working", "paused", "bad", "done"]  # badges of the tray icon
_FOLDER: Final = program_files.ROOT / "assets" / "icons"
_ICON_SIZE: Final = 16
_BADGE_COLOURS: Final[dict[RunIndicator, str]] = {
    "working": LIGHT.accent, "paused": LIGHT.warn, "bad": LIGHT.bad, "done": LIGHT.good,
}  # fmt: skip


def icon(name: IconName, colour: str, disabled: str) -> QIcon:
    """Return an icon in `colour`, and in `disabled` for a disabled button."""
    result = QIcon()
    for scale in (1, 2, 3):
        result.addPixmap(_draw(name, colour, scale), QIcon.Mode.Normal)
        result.addPixmap(_draw(name, disabled, scale), QIcon.Mode.Disabled)
    return result


def pixmap(name: IconName, colour: str, ratio: float) -> QPixmap:
    """Return an icon for a label on a screen with the device pixel ratio `ratio`."""
    return icon(name, colour, colour).pixmap(QSize(_ICON_SIZE, _ICON_SIZE), ratio)


def paint_icon(painter: QPainter, name: IconName, corner: QPointF, colour: QColor) -> None:
    """Paint an icon with its upper left corner at `corner`."""
    _renderer(name, colour.name()).render(painter, QRectF(corner, QSizeF(_ICON_SIZE, _ICON_SIZE)))


def add_status_badge(base: QIcon, indicator: RunIndicator) -> QIcon:
    """Return the program's icon with the state of the run in the lower right corner."""
    result = QIcon()
    for size in (16, 20, 24, 32, 48, 64):
        pixmap = base.pixmap(QSize(size, size), 1.0)
        painter = QPainter(pixmap)
        area = QRectF(0.42 * size, 0.42 * size, 0.58 * size, 0.58 * size)
        _renderer(f"badge_{indicator}", _BADGE_COLOURS[indicator]).render(painter, area)
        painter.end()
        result.addPixmap(pixmap)
    return result


def _draw(name: IconName, colour: str, scale: int) -> QPixmap:
    pixmap = QPixmap(_ICON_SIZE * scale, _ICON_SIZE * scale)
    pixmap.setDevicePixelRatio(scale)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    paint_icon(painter, name, QPointF(0, 0), QColor(colour))
    painter.end()
    return pixmap


@cache
def _renderer(name: str, colour: str) -> QSvgRenderer:
    svg = (_FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    return QSvgRenderer(svg.replace("currentColor", colour).encode())
