"""Golden pictures of the window's pages, and their comparison.

    python -m tests.gui.golden

writes the pictures in tests/gui/golden/. Look at each changed picture before you commit it.

Antialiasing differs between Qt versions and machines, so pixels are not compared. Both pictures are reduced to the mean
gray level of cells of 16 x 16 pixels. The distance of a cell is that to the range of gray levels in the 3 x 3 cells
around it in the other picture. This tolerates shifts of a few pixels, but not a widget that moved, disappeared or
changed its color. The pictures need one font and are not compared without it.
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
WRITE_VARIABLE: Final = "TRAINDECK_GOLDEN"  # "write": write the golden pictures instead of comparing
SIZE: Final = QSize(1280, 720)
_STORED_SIZE: Final = QSize(640, 360)
_GRID_SIZE: Final = QSize(80, 45)
FONT: Final = "Noto Sans CJK SC"
MAX_MEAN: Final = 0.6  # of 255, over the whole window; another font results in 0.7 to 4
MAX_FAR_CELLS: Final = 12  # cells that exceed CELL_THRESHOLD
CELL_THRESHOLD: Final = 18  # of 255
_PALETTE_ERROR: Final = 2.0  # of 255: error of a palette of 256 colors

GrayCells = npt.NDArray[np.float64]


def to_stored(picture: QImage) -> QImage:
    """Convert a picture to the stored form: half the size, 256 colors."""
    small = picture.scaled(
        _STORED_SIZE, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation
    ).convertToFormat(QImage.Format.Format_RGB32)
    pixels = np.frombuffer(small.constBits(), np.uint32)
    # Exact colors of flat areas, and 4 bits per channel for all others.
    palette = [*_most_frequent_colors(pixels), *_most_frequent_colors((pixels & 0xF0F0F0) | 0xFF080808)]
    return small.convertToFormat(QImage.Format.Format_Indexed8, palette)


def _most_frequent_colors(pixels: npt.NDArray[np.uint32]) -> list[int]:
    """The 128 most frequent colors."""
    colors, counts = np.unique(pixels, return_counts=True)
    return [int(color) for color in colors[np.argsort(counts)[::-1][:128]]]


def gray_cells(picture: QImage) -> GrayCells:
    """Mean gray level of each cell, 0..255, shape (45, 80)."""
    gray = picture.scaled(
        _STORED_SIZE, Qt.AspectRatioMode.IgnoreAspectRatio, Qt.TransformationMode.SmoothTransformation
    ).convertToFormat(QImage.Format.Format_Grayscale8)
    pixels = np.frombuffer(gray.constBits(), np.uint8).reshape(gray.height(), gray.bytesPerLine())[:, : gray.width()]
    rows, columns = _GRID_SIZE.height(), _GRID_SIZE.width()
    shape = (rows, gray.height() // rows, columns, gray.width() // columns)
    means: GrayCells = pixels.astype(np.float64).reshape(shape).mean(axis=(1, 3))
    return means


def difference(picture: QImage, expected: QImage) -> GrayCells:
    """Symmetric distance of each cell, shape (45, 80)."""
    a, b = gray_cells(picture), gray_cells(expected)
    return np.maximum(0.0, np.maximum(_neighborhood_distance(a, b), _neighborhood_distance(b, a)) - _PALETTE_ERROR)


def _neighborhood_distance(a: GrayCells, b: GrayCells) -> GrayCells:
    """Distance of each cell of `a` to the range of gray levels in the 3 x 3 cells of `b` around it."""
    padded = np.pad(b, 1, mode="edge")
    neighbors = np.stack([padded[y : y + a.shape[0], x : x + a.shape[1]] for y in range(3) for x in range(3)])
    distance: GrayCells = np.maximum(0.0, np.maximum(neighbors.min(axis=0) - a, a - neighbors.max(axis=0)))
    return distance


def is_match(distances: GrayCells) -> bool:
    return bool(distances.mean() <= MAX_MEAN and np.count_nonzero(distances > CELL_THRESHOLD) <= MAX_FAR_CELLS)


def summary(distances: GrayCells) -> str:
    far = np.count_nonzero(distances > CELL_THRESHOLD)
    return f"mean {distances.mean():.2f} (limit {MAX_MEAN}), {far} cells above {CELL_THRESHOLD} (limit {MAX_FAR_CELLS})"


def difference_image(distances: GrayCells) -> QImage:
    """Picture of the distances; lighter cells differ more."""
    light = np.ascontiguousarray(np.clip(4 * distances, 0, 255).astype(np.uint8))
    picture = QImage(light.data, light.shape[1], light.shape[0], light.shape[1], QImage.Format.Format_Grayscale8)
    return picture.scaled(_STORED_SIZE)


def main() -> int:
    import pytest

    os.environ[WRITE_VARIABLE] = "write"
    FOLDER.mkdir(exist_ok=True)
    return int(pytest.main(["-q", "-p", "no:cacheprovider", str(FOLDER.parent / "test_gui_pictures.py")]))


if __name__ == "__main__":
    sys.exit(main())
