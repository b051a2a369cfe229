"""Makes traindeck.png and traindeck.ico from traindeck.svg: `python -m assets.make_icons`."""

from __future__ import annotations

import struct
from pathlib import Path

from PySide6.QtCore import QBuffer, QIODevice
from PySide6.QtGui import QGuiApplication, QImage, QPainter
from PySide6.QtSvg import QSvgRenderer

_FOLDER = Path(__file__).resolve().parent
_SIZES = (16, 24, 32, 48, 64, 256)


def png(renderer: QSvgRenderer, size: int) -> bytes:
    """The icon as a PNG file of `size` x `size` pixels."""
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
    """A Windows icon file that holds PNG images (all since Windows Vista read that)."""
    head = struct.pack("<HHH", 0, 1, len(images))
    place, entries = 6 + 16 * len(images), b""
    for size, content in images.items():
        side = size % 256  # 0 means 256
        entries += struct.pack("<BBBBHHII", side, side, 0, 0, 1, 32, len(content), place)
        place += len(content)
    return head + entries + b"".join(images.values())


def main() -> None:
    application = QGuiApplication([])
    renderer = QSvgRenderer(str(_FOLDER / "traindeck.svg"))
    images = {size: png(renderer, size) for size in _SIZES}
    (_FOLDER / "traindeck.png").write_bytes(images[256])
    (_FOLDER / "traindeck.ico").write_bytes(ico(images))
    del application


if __name__ == "__main__":
    main()
