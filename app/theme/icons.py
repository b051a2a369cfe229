"""Icons, drawn from paths in the theme's colours: sharp at any scale, no files."""

from __future__ import annotations

from typing import Final, Literal

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPixmap, QPolygonF

IconName = Literal[
    "start", "pause", "resume", "stop", "close", "reset", "fits", "tight", "does_not_fit", "advice", "memory", "again"
]
_FILLED: Final = ("start", "pause", "resume", "stop")
_SIZE: Final = 16


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


def _draw(name: IconName, colour: str, scale: int) -> QPixmap:
    pixmap = QPixmap(_SIZE * scale, _SIZE * scale)
    pixmap.setDevicePixelRatio(scale)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    if name not in _FILLED:
        pen = painter.pen()
        pen.setColor(QColor(colour))
        pen.setWidthF(1.6)
        pen.setCapStyle(Qt.PenCapStyle.RoundCap)
        pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
        painter.setPen(pen)
        painter.drawPath(_outline(name))
    else:
        painter.fillPath(_outline(name), QColor(colour))
    painter.end()
    return pixmap


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
        case "again":
            path.arcMoveTo(QRectF(2.5, 2.5, 11, 11), 60)
            path.arcTo(QRectF(2.5, 2.5, 11, 11), 60, 300)
            _line(path, (13.2, 1.4), (13.5, 5.2), (9.9, 5.5))
    return path


def _line(path: QPainterPath, *points: tuple[float, float]) -> None:
    path.moveTo(*points[0])
    for point in points[1:]:
        path.lineTo(*point)
