"""Icons of the run bar, drawn from paths in the theme's colours: sharp at any scale, no files."""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPainterPath, QPixmap, QPolygonF

IconName = Literal["start", "pause", "resume", "stop", "close", "reset"]
_SIZE = 16


def icon(name: IconName, colour: str, disabled: str) -> QIcon:
    """An icon in `colour`, and in `disabled` where its button is."""
    made = QIcon()
    for scale in (1, 2, 3):
        made.addPixmap(_draw(name, colour, scale), QIcon.Mode.Normal)
        made.addPixmap(_draw(name, disabled, scale), QIcon.Mode.Disabled)
    return made


def _draw(name: IconName, colour: str, scale: int) -> QPixmap:
    pixmap = QPixmap(_SIZE * scale, _SIZE * scale)
    pixmap.setDevicePixelRatio(scale)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    if name in ("close", "reset"):
        pen = painter.pen()
        pen.setColor(QColor(colour))
        pen.setWidthF(1.6)
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
    return path
