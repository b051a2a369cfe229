"""Renders traindeck.png, traindeck.ico and the images of the style sheet: `python -m assets.make_icons`."""

from __future__ import annotations

import struct
from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice, QPointF, Qt
from PySide6.QtGui import QColor, QGuiApplication, QImage, QPainter, QPen
from PySide6.QtSvg import QSvgRenderer

from app.theme.palette import DARK, LIGHT

_FOLDER = Path(__file__).resolve().parent
_STROKES = {
    "tick": [(3, 8.5), (6.5, 12), (13, 4.5)],
    "chevron": [(3.5, 6), (8, 10.5), (12.5, 6)],
    "up": [(3.5, 10), (8, 5.5), (12.5, 10)],
    "back": [(10, 3.5), (5.5, 8), (10, 12.5)],
    "forward": [(6, 3.5), (10.5, 8), (6, 12.5)],
}
_SIZES = (16, 24, 32, 48, 64, 256)


def png(renderer: QSvgRenderer, size: int) -> bytes:
    """Return the icon as a PNG file of `size` x `size` pixels."""
    image = QImage(size, size, QImage.Format.Format_ARGB32)
    image.fill(0)
    painter = QPainter(image)
    renderer.render(painter)
    painter.end()
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    image.save(buffer, "PNG")  # type: ignore[call-overload]  # the stubs leave out QIODevice
    return bytes(buffer.data().data())


def ico(images: dict[int, bytes]) -> bytes:
    """Return a Windows icon file with PNG images, supported since Windows Vista."""
    head = struct.pack("<HHH", 0, 1, len(images))
    offset, entries = 6 + 16 * len(images), b""
    for size, content in images.items():
        side = size % 256  # 0 means 256
        entries += struct.pack("<BBBBHHII", side, side, 0, 0, 1, 32, len(content), offset)
        offset += len(content)
    return head + entries + b"".join(images.values())


def stroke(points: list[tuple[float, float]], colour: str, scale: int) -> QImage:
    """Return an image of a line through points of a 16 x 16 square."""
    image = QImage(16 * scale, 16 * scale, QImage.Format.Format_ARGB32)
    image.fill(0)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.scale(scale, scale)
    round_ = (Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin)
    painter.setPen(QPen(QColor(colour), 2.0, *round_))
    painter.drawPolyline([QPointF(x, y) for x, y in points])
    painter.end()
    return image


def make_strokes(folder: Path) -> None:
    """Write the images of both themes, at 100 % and 200 %."""
    folder.mkdir(exist_ok=True)
    for palette in (LIGHT, DARK):
        for name, points in _STROKES.items():
            colour = palette.on_accent if name == "tick" else palette.muted
            for scale, tail in ((1, ""), (2, "@2x")):
                stroke(points, colour, scale).save(str(folder / f"{name}-{palette.name}{tail}.png"))


def main() -> None:
    application = QGuiApplication([])
    renderer = QSvgRenderer(str(_FOLDER / "traindeck.svg"))
    images = {size: png(renderer, size) for size in _SIZES}
    (_FOLDER / "traindeck.png").write_bytes(images[256])
    (_FOLDER / "traindeck.ico").write_bytes(ico(images))
    make_strokes(_FOLDER.parent / "app" / "theme" / "images")
    del application


if __name__ == "__main__":
    main()
