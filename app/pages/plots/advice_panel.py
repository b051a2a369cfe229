"""Advice and OOM recoveries of a run, as expandable rows above its plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QPixmap
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from app.core.run_advice import OOM_RECOVERY
from app.pages.log import entry_texts
from app.texts import tr
from app.theme.icons import pixmap
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    TranslatableWidget,
    card,
    clear_layout,
    horizontal_layout,
    label,
    push_button,
    vertical_layout,
)
from trainer_core import protocol

if TYPE_CHECKING:
    from app.core.run_advice import ActiveAdvice, AdviceItem
    from app.pages.setup.form import SetupForm

_MAX_COLLAPSED_ROWS: Final = 3  # further rows are collapsed
_ROW_HEIGHT: Final = 28  # pixels: the height of a button
_INDENT: Final = 16 + SPACING  # of the text beside the icon


class AdvicePanel(TranslatableWidget):
    """Shows the `ActiveAdvice` of a run; hidden if empty. A known fix can be applied to the form."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._advice: ActiveAdvice | None = None
        self._form: SetupForm | None = None
        self._displayed: object = None
        self.rows: list[AdviceRow] = []
        self._rows_layout = vertical_layout(spacing=2)
        self.more_button = push_button("flat", checkable=True)
        self.more_button.toggled.connect(self.retranslate)
        content = vertical_layout(spacing=2)
        content.addLayout(self._rows_layout)
        content.addWidget(self.more_button, 0, Qt.AlignmentFlag.AlignLeft)
        frame = card(content)
        content.setContentsMargins(SPACING + 4, SPACING // 2, SPACING, SPACING // 2)
        layout = vertical_layout()
        layout.addWidget(frame)
        self.setLayout(layout)
        self.hide()

    def display(self, advice: ActiveAdvice, form: SetupForm) -> None:
        """Show advice; cheap if nothing changed."""
        self._form, self._advice = form, advice
        items = advice.newest_first()
        applied = [bool(item.fix) and form.has_values(item.fix) for item in items]
        state = (id(advice), advice.version, applied)
        if state == self._displayed:
            return
        self._displayed = state
        self.setVisible(bool(items))
        opened = {row.code for row in self.rows if row.details_button.isChecked()}
        clear_layout(self._rows_layout)
        count = len(items) if self.more_button.isChecked() else _MAX_COLLAPSED_ROWS
        self.rows = [
            AdviceRow(item, self._palette, opened=item.code in opened, applied=is_applied)
            for item, is_applied in list(zip(items, applied, strict=True))[:count]
        ]
        for row in self.rows:
            row.apply_requested.connect(form.set_values)
            self._rows_layout.addWidget(row)
        more = tr("plots.count_more", count=len(items) - _MAX_COLLAPSED_ROWS)
        self.more_button.setVisible(len(items) > _MAX_COLLAPSED_ROWS)
        self.more_button.setText(tr("plots.show_fewer") if self.more_button.isChecked() else more)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self.retranslate()

    def retranslate(self) -> None:
        self._displayed = None
        if self._advice is not None and self._form is not None:
            self.display(self._advice, self._form)


class AdviceRow(QWidget):
    """A summary with an icon; expanded, also the recommended action and the figures."""

    apply_requested = Signal(dict)

    def __init__(self, item: AdviceItem, palette: Palette, *, opened: bool, applied: bool) -> None:
        super().__init__()
        self.code = item.code
        summary, details = format_advice_item(item, applied=applied)
        self.summary_label, self.details_label = label(wrap=True), label("muted", wrap=True)
        self.summary_label.setText(summary)
        self.summary_label.setMinimumHeight(_ROW_HEIGHT)  # aligns the first line with the texts of the buttons
        self.details_label.setText(details)
        self.details_label.setContentsMargins(_INDENT, 0, 0, SPACING // 2)  # aligned with the text, not with the icon
        for text in (self.summary_label, self.details_label):
            text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.details_button, self.apply_button = push_button("flat", checkable=True), push_button("applyAdvice")
        self.details_button.setText(tr("plots.details"))
        self.details_button.setAccessibleDescription(summary)
        self.details_button.setChecked(opened)
        self.details_button.setVisible(bool(details))
        self.details_button.toggled.connect(self.details_label.setVisible)
        self.apply_button.setText(tr("plots.applied") if applied else tr("plots.apply"))
        self.apply_button.setEnabled(not applied)
        self.apply_button.setVisible(bool(item.fix))
        self.apply_button.setToolTip(formatting.format_settings(item.fix))
        self.apply_button.clicked.connect(lambda: self.apply_requested.emit(dict(item.fix)))
        icon = QLabel()
        icon.setMinimumHeight(_ROW_HEIGHT)
        icon.setPixmap(self._icon(item, palette))
        row = horizontal_layout(icon, (self.summary_label, 1), self.apply_button, self.details_button)
        for widget in (icon, self.apply_button, self.details_button):
            row.setAlignment(widget, Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(row)
        layout.addWidget(self.details_label)
        self.details_label.setVisible(opened)

    def _icon(self, item: AdviceItem, palette: Palette) -> QPixmap:
        if item.code != OOM_RECOVERY:
            return pixmap("advice", palette.accent, self.devicePixelRatioF())
        color = palette.warn if item.entry.level == "warning" else palette.good
        return pixmap("memory", color, self.devicePixelRatioF())


def format_advice_item(item: AdviceItem, *, applied: bool) -> tuple[str, str]:
    """Return the line of an item, and the details below it."""
    event = item.entry.event
    if isinstance(event, protocol.Advice):
        problem, remedy = formatting.format_advice(event.code, event.params)
        return problem, "\n".join(filter(None, (remedy, event.detail, _format_fix(item.fix, applied=applied))))
    summary, _, details = entry_texts.format_entry(item.entry).partition("\n")
    return summary, details


def _format_fix(fix: Mapping[str, Any], *, applied: bool) -> str:
    if not fix:
        return ""
    key = "plots.fix_applied" if applied else "plots.fix_available"
    return tr(key, settings=formatting.format_settings(fix))
