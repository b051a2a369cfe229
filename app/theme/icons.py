"""Icons, drawn from paths in the theme's colours: sharp at any scale, no files."""

from __future__ import annotations

from typing import Final, Literal

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPen, QPixmap, QPolygonF

from app.state.glance import Mood
from app.theme.tokens import LIGHT

IconName = Literal[
    "start",
    "pause",
    "resume",
    "stop",
    "close",
    "reset",
    "fits",
    "tight",
    "does_not_fit",
    "advice",
    "memory",
    "again",
    "up",
    "down",
    "queue",
    "eye",
    "dice",
    "ring",
    "here",
    "dots",
    "unfold",
    "back",
    "forward",
]
_FILLED: Final = ("start", "pause", "resume", "stop", "dots")
_SIZE: Final = 16
_BADGES: Final[dict[Mood, str]] = {
    "working": LIGHT.accent, "paused": LIGHT.warn, "bad": LIGHT.bad, "done": LIGHT.good,
}  # fmt: skip


def icon(name: IconName, colour: str, disabled: str) -> QIcon:
    """An icon in `colour`, and in `disabled` where its button is."""
    made = QIcon()
    for scale in (1, 2, 3):
        made.addPixmap(_draw(name, colour, scale), QIcon.Mode.Normal)
        made.addPixmap(_draw(name, disabled, scale), QIcon.Mode.Disabled)
    return made


def pixmap(name: IconName, colour: str, ratio: float) -> QPixmap:
    """An icon for a label, for a screen with `ratio` pixels to one of ours."""
    return icon(name, colour, colour).pixmap(QSize(_SIZE, _SIZE), ratio)


def paint(painter: QPainter, name: IconName, corner: QPointF, colour: QColor) -> None:
    """Draw an icon with its upper left corner there."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.translate(corner)
    if name not in _FILLED:
        painter.strokePath(_outline(name), _pen(colour.name(), 1.6))
    else:
        painter.fillPath(_outline(name), colour)
    painter.restore()


def _draw(name: IconName, colour: str, scale: int) -> QPixmap:
    pixmap = QPixmap(_SIZE * scale, _SIZE * scale)
    pixmap.setDevicePixelRatio(scale)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    paint(painter, name, QPointF(0, 0), QColor(colour))
    painter.end()
    return pixmap


def _pen(colour: str, width: float) -> QPen:
    round_ = (Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin)
    return QPen(QColor(colour), width, *round_)


def _outline(name: IconName) -> QPainterPath:
    path = QPainterPath()
    match name:
        case "start":
            path.addPolygon(QPolygonF([QPointF(4, 2), QPointF(14, 8), QPointF(4, 14), QPointF(4, 2)]))
        case "resume":
            path.addRect(QRectF(2, 2, 2.5, 12))
            path.addPolygon(QPolygonF([QPointF(6, 2), QPointF(15, 8), QPointF(6, 14), QPointF(6, 2)]))
        case "pause":
            path.addRect(QRectF(3, 2, 3.5, 12))
            path.addRect(QRectF(9.5, 2, 3.5, 12))
        case "stop":
            path.addRoundedRect(QRectF(3, 3, 10, 10), 1.5, 1.5)
        case "close":
            path.moveTo(4, 4)
            path.lineTo(12, 12)
            path.moveTo(12, 4)
            path.lineTo(4, 12)
        case "reset":
            path.arcMoveTo(QRectF(3, 3, 10, 10), 150)
            path.arcTo(QRectF(3, 3, 10, 10), 150, -300)
            path.moveTo(3.2, 1.5)
            path.lineTo(3.4, 5.6)
            path.lineTo(7.3, 4.9)
        case "fits":
            path.addEllipse(QRectF(1.5, 1.5, 13, 13))
            _line(path, (4.8, 8.3), (7.1, 10.6), (11.2, 5.6))
        case "ring":
            path.addEllipse(QRectF(2.5, 2.5, 11, 11))
        case "here":
            path.addEllipse(QRectF(1.5, 1.5, 13, 13))
            path.addEllipse(QRectF(6.2, 6.2, 3.6, 3.6))
        case "tight":
            _line(path, (8, 1.8), (15, 14), (1, 14), (8, 1.8))
            _line(path, (8, 6.2), (8, 9.6))
            _line(path, (8, 11.9), (8, 12.0))
        case "does_not_fit":
            path.addEllipse(QRectF(1.5, 1.5, 13, 13))
            _line(path, (5.4, 5.4), (10.6, 10.6))
            _line(path, (10.6, 5.4), (5.4, 10.6))
        case "advice":
            path.arcMoveTo(QRectF(3.5, 1.5, 9, 9), -50)
            path.arcTo(QRectF(3.5, 1.5, 9, 9), -50, 280)
            _line(path, (5.1, 9.5), (6.2, 11.3), (9.8, 11.3), (10.9, 9.5))
            _line(path, (6.6, 14.2), (9.4, 14.2))
        case "memory":
            path.addRect(QRectF(1.5, 4.5, 13, 7))
            for x in (4.5, 8.0, 11.5):
                _line(path, (x, 7), (x, 9))
                _line(path, (x, 11.5), (x, 13.5))
        case "dice":
            path.addRoundedRect(QRectF(2, 2, 12, 12), 2.5, 2.5)
            for x, y in ((5.2, 5.2), (10.8, 5.2), (8, 8), (5.2, 10.8), (10.8, 10.8)):
                path.addEllipse(QPointF(x, y), 0.5, 0.5)
        case "again":
            path.arcMoveTo(QRectF(2.5, 2.5, 11, 11), 60)
            path.arcTo(QRectF(2.5, 2.5, 11, 11), 60, 300)
            _line(path, (13.2, 1.4), (13.5, 5.2), (9.9, 5.5))
        case "up":
            _line(path, (8, 13.5), (8, 2.5))
            _line(path, (3.5, 7), (8, 2.5), (12.5, 7))
        case "down":
            _line(path, (8, 2.5), (8, 13.5))
            _line(path, (3.5, 9), (8, 13.5), (12.5, 9))
        case "queue":
            for y in (3.5, 8.0):
                _line(path, (2, y), (14, y))
            _line(path, (2, 12.5), (7, 12.5))
            _line(path, (12, 10), (12, 15))
            _line(path, (9.5, 12.5), (14.5, 12.5))
        case "dots":
            for x in (3.0, 8.0, 13.0):
                path.addEllipse(QPointF(x, 8), 1.25, 1.25)
        case "unfold":
            _line(path, (4, 6.2), (8, 10.2), (12, 6.2))
        case "back":
            _line(path, (9.8, 4), (5.8, 8), (9.8, 12))
        case "forward":
            _line(path, (6.2, 4), (10.2, 8), (6.2, 12))
        case "eye":
            path.moveTo(1.2, 8)
            path.quadTo(8, 1.4, 14.8, 8)
            path.quadTo(8, 14.6, 1.2, 8)
            path.addEllipse(QRectF(5.8, 5.8, 4.4, 4.4))
    return path


def _line(path: QPainterPath, *points: tuple[float, float]) -> None:
    path.moveTo(*points[0])
    for point in points[1:]:
        path.lineTo(*point)


def badged(base: QIcon, mood: Mood) -> QIcon:
    """The program's icon with a sign of how the run does, in the lower right corner: for the tray."""
    made = QIcon()
    for size in (16, 20, 24, 32, 48, 64):
        pixmap = base.pixmap(QSize(size, size), 1.0)
        painter = QPainter(pixmap)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(size * 0.42, size * 0.42)
        painter.scale(size * 0.58 / _SIZE, size * 0.58 / _SIZE)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor("white"))  # a ring, to stand out on a taskbar of any colour
        painter.drawEllipse(QRectF(0, 0, 16, 16))
        painter.setBrush(QColor(_BADGES[mood]))
        painter.drawEllipse(QRectF(1.3, 1.3, 13.4, 13.4))
        painter.strokePath(_sign(mood), _pen("white", 2.4))
        painter.end()
        made.addPixmap(pixmap)
    return made


def _sign(mood: Mood) -> QPainterPath:
    path = QPainterPath()
    match mood:
        case "working":
            _line(path, (6.6, 5.2), (11, 8), (6.6, 10.8), (6.6, 5.2))
        case "paused":
            _line(path, (6.2, 5.4), (6.2, 10.6))
            _line(path, (9.8, 5.4), (9.8, 10.6))
        case "bad":
            _line(path, (8, 4.6), (8, 8.6))
            _line(path, (8, 11.3), (8, 11.4))
        case "done":
            _line(path, (5, 8.3), (7.2, 10.4), (11, 5.9))
    return path
