"""Card above the pages that is as high as its content."""

from __future__ import annotations

from PySide6.QtWidgets import QLayout, QVBoxLayout, QWidget

from app.widgets.basic import FitContentScrollArea, TranslatableWidget, card, set_object_name


class FittingCard(TranslatableWidget):
    """A subclass calls `set_content` once, and `update_height` after each change of its texts."""

    def set_content(self, inner: QLayout, minimum_height: int) -> None:
        """`minimum_height`: in pixels; the card scrolls where the window has no room for more."""
        content = set_object_name(QWidget(), "scrolled")
        self._area = FitContentScrollArea(content, minimum_height)
        for parent, widget in ((content, card(inner)), (self, self._area)):
            layout = QVBoxLayout(parent)
            layout.setContentsMargins(0, 0, 0, 0)
            layout.addWidget(widget)

    def update_height(self) -> None:
        """Apply the new height now: a later layout event would first paint a clipped card."""
        self._area.updateGeometry()
        self.updateGeometry()
        parent = self.parentWidget()
        if parent is not None and (layout := parent.layout()) is not None:
            layout.activate()
