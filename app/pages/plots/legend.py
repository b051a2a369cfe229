"""The legend of a plot: the symbol, name and value of each curve, as rich text. A click shows or hides a curve."""

from __future__ import annotations

from html import escape
from itertools import count, repeat
from typing import Final, NamedTuple

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import plain_tooltip

_SYMBOLS: Final = {
    "line": "━",
    "dots": "●",
    "dashed": "╍",
    "dotted": "┅",
    "area": "■",
    "best": "★",
    "checkpoint": "▲",
    "bad_step": "✕",
    "oom_recovery": "◆",
    "thermal_throttling": "■",
    "resume": "┃",
}
_WORD_JOINER: Final = "\u2060"  # prevents the line breaks that Chinese text allows after each character
_PADDING: Final = "\u00a0"  # narrower than a digit; Qt would break lines at U+2007, which is as wide as one
_VALUE_CHARS: Final = 5
_MAX_NAME_WIDTH: Final = 280  # pixels


class LegendEntry(NamedTuple):
    """One item of a plot. `value`: None for an item without values; `key`: identifies it; empty: cannot be hidden."""

    symbol: str
    color: str
    label: str
    value: str | None = None
    key: str = ""
    is_hidden: bool = False


class Legend(QLabel):
    """Shows names and values or, if they do not fit in `max_rows`, values only. The tooltip has the names."""

    toggled = Signal(str, bool)  # key of a clicked entry; whether to show it alone

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        self.setAlignment(Qt.AlignmentFlag.AlignTop)  # rows that do not fit are cut off
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.NoContextMenu)  # the plot's menu instead of that of links
        self.linkActivated.connect(self._on_clicked)
        self.entries: list[LegendEntry] = []
        self._palette: Palette | None = None
        self._layout: tuple[object, ...] = ()  # what the height and the names that fit depend on
        self._names: list[str] = []
        self._max_rows, self._at_crosshair, self._show_names = 1, False, True

    def display(
        self,
        entries: list[LegendEntry],
        palette: Palette,
        *,
        max_rows: int = 1,
        at_crosshair: bool = False,
        show_names: bool = True,
    ) -> None:
        """Replace the entries. `at_crosshair`: values are those at the crosshair, else the newest; `show_names`: False
        if the names of curves are above all plots."""
        self.entries, self._palette = entries, palette
        self._max_rows, self._at_crosshair, self._show_names = max_rows, at_crosshair, show_names
        self._update_text()
        if at_crosshair:
            self.setAccessibleName(self.summary())

    def summary(self) -> str:
        """Return all entries as plain text."""
        return "; ".join(f"{entry.label} {entry.value or ''}".strip() for entry in self.entries)

    def values(self) -> list[str]:
        return [entry.value for entry in self.entries if entry.value is not None]

    def _on_clicked(self, place: str) -> None:
        keys = QGuiApplication.keyboardModifiers()
        alone = bool(keys & (Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier))
        self.toggled.emit(self.entries[int(place)].key, alone)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._update_text()

    def _update_text(self) -> None:
        if self._palette is None:
            return
        hint = tr("plots.legend_hint") if any(entry.key for entry in self.entries) else ""
        shapes = [(entry.symbol, entry.label, len(entry.value or "")) for entry in self.entries]
        layout = (self.width(), self.fontMetrics().height(), self._max_rows, self._show_names, hint, *shapes)
        if layout != self._layout:  # not for new values: measuring the rows takes half of the time
            self._layout = layout
            self._lay_out(self._palette, hint)
        self.setText(self._format_text(self._names, self._palette))

    def _lay_out(self, palette: Palette, hint: str) -> None:
        """Choose the names that fit, and set the height and the tooltip."""
        row_height = self.fontMetrics().height() + 1
        room = self._max_rows * self.width() // max(1, len(self.entries)) - 4 * SPACING  # for each name
        for show_names in (True, False) if self._show_names else (False,):
            width = _MAX_NAME_WIDTH if show_names else min(room, _MAX_NAME_WIDTH)
            names = [entry.label if show_names or entry.value is None else "" for entry in self.entries]
            self._names = [self.fontMetrics().elidedText(name, Qt.TextElideMode.ElideMiddle, width) for name in names]
            self.setText(self._format_text(self._names, palette))
            rows = max(1, round(self.heightForWidth(self.width()) / row_height))
            if rows <= self._max_rows:
                break
        self.setFixedHeight(min(self._max_rows, rows) * row_height)
        lines = [f"{_SYMBOLS[entry.symbol]} {entry.label}" for entry in self.entries if entry.label]
        self.setToolTip(plain_tooltip("\n".join([*([] if show_names else lines), hint]).strip()))

    def _format_text(self, names: list[str], palette: Palette) -> str:
        return ("&nbsp;" * 2 + " ").join(map(self._html, count(), self.entries, names, repeat(palette)))

    def _html(self, place: int, entry: LegendEntry, name: str, palette: Palette) -> str:
        """Return one entry, without line breaks."""
        value = entry.value or ""
        value = _PADDING * (_VALUE_CHARS - len(value)) + value if value else ""
        symbol = _SYMBOLS[entry.symbol] if entry.label else ""
        texts = (symbol, name if name.isascii() else _WORD_JOINER.join(name), value)
        colors = [getattr(palette, entry.color), palette.text, palette.text if self._at_crosshair else palette.muted]
        if entry.is_hidden:
            colors = [palette.muted] * len(texts)
        html = "&nbsp;".join(
            f'<span style="color: {color}">{escape(text).replace(" ", "&nbsp;")}</span>'
            for text, color in zip(texts, colors, strict=True)
            if text
        )
        if entry.is_hidden:
            html = f"<s>{html}</s>"
        return f'<a href="{place}" style="text-decoration: none">{html}</a>' if entry.key else html
