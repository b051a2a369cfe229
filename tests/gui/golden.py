"""Pictures of the window's pages, and how two of them are compared.

    python -m tests.gui.golden

makes the pictures in tests/gui/golden/ anew, as `test_gui_pictures.py` makes those that it compares with them. Look at
every one that changed before it is committed.

How Qt smooths lines and letters differs between versions and machines, so pixels are not compared. Both pictures become
grey and small (a cell is 16 x 16 pixels of the window), so that a line of text is a shade of its length and weight.
What is compared is that shade, with what stands one cell beside it allowed too: a letter's width is no difference, a
widget that has moved, gone or changed its colour is. The pictures are of one font, and elsewhere not compared.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QImage

FOLDER: Final = Path(__file__).resolve().parent / "golden"
WRITE: Final = "TRAINDECK_GOLDEN"  # set to "write": make them anew
SIZE: Final = QSize(1280, 720)
_KEPT: Final = QSize(640, 360)
_GRID: Final = QSize(80, 45)
FONT: Final = "Noto Sans CJK SC"
MEAN: Final = 0.6  # of 255: over the whole window; another font makes 0.7 to 4
CELLS: Final = 12  # that may be far off
FAR: Final = 18  # of 255
_SHADE: Final = 2.0  # of 255: what a palette of 256 colours changes

Cells = npt.NDArray[np.float64]


def kept(picture: QImage) -> QImage:
    """As it is stored: half the size, in 256 colours."""
    small = picture.scaled(
        _KEPT, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation
    ).convertToFormat(QImage.Format.Format_RGB32)
    pixels = np.frombuffer(small.constBits(), np.uint32)
    palette = [*_frequent(pixels), *_frequent((pixels & 0xF0F0F0) | 0xFF080808)]  # flat parts exactly, all else about
    return small.convertToFormat(QImage.Format.Format_Indexed8, palette)


def _frequent(pixels: npt.NDArray[np.uint32]) -> list[int]:
    colours, counts = np.unique(pixels, return_counts=True)
    return [int(colour) for colour in colours[np.argsort(counts)[::-1][:128]]]


def cells(picture: QImage) -> Cells:
    """Shades of grey, 0..255, shape (45, 80): the mean of each cell."""
    grey = picture.scaled(
        _KEPT, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation
    ).convertToFormat(QImage.Format.Format_Grayscale8)
    lines = np.frombuffer(grey.constBits(), np.uint8).reshape(grey.height(), grey.bytesPerLine())[:, : grey.width()]
    rows, columns = _GRID.height(), _GRID.width()
    shape = (rows, grey.height() // rows, columns, grey.width() // columns)
    means: Cells = lines.astype(np.float64).reshape(shape).mean(axis=(1, 3))
    return means


def difference(one: QImage, other: QImage) -> Cells:
    """How far the cells of two pictures are apart: to both sides, the nearest shade of a cell and its neighbours."""
    a, b = cells(one), cells(other)
    return np.maximum(0.0, np.maximum(_outside(a, b), _outside(b, a)) - _SHADE)


def _outside(a: Cells, b: Cells) -> Cells:
    """How far `a` is outside of what `b` has in a cell and the eight around it."""
    padded = np.pad(b, 1, mode="edge")
    around = np.stack([padded[y : y + a.shape[0], x : x + a.shape[1]] for y in range(3) for x in range(3)])
    outside: Cells = np.maximum(0.0, np.maximum(around.min(axis=0) - a, a - around.max(axis=0)))
    return outside


def alike(found: Cells) -> bool:
    return bool(found.mean() <= MEAN and np.count_nonzero(found > FAR) <= CELLS)


def words(found: Cells) -> str:
    """The difference in figures."""
    far = np.count_nonzero(found > FAR)
    return f"mean {found.mean():.2f} (at most {MEAN}), {far} cells far off (at most {CELLS})"


def shown(found: Cells) -> QImage:
    """The difference as a picture: the lighter, the farther off."""
    light = np.ascontiguousarray(np.clip(4 * found, 0, 255).astype(np.uint8))
    picture = QImage(light.data, light.shape[1], light.shape[0], light.shape[1], QImage.Format.Format_Grayscale8)
    return picture.scaled(_KEPT)


def main() -> int:
    import pytest

    os.environ[WRITE] = "write"
    FOLDER.mkdir(exist_ok=True)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", str(FOLDER.parent / "test_gui_pictures.py")]))


if __name__ == "__main__":
    sys.exit(main())
