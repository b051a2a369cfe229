"""Advice and OOM recoveries of a run, as expandable rows above its plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.pages.log import entry_texts
from app.texts import tr
from app.theme.icons import IconName, pixmap
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    TranslatableWidget,
    clear_layout,
    label,
    push_button,
    set_object_name,
    vertical_layout,
)

if TYPE_CHECKING:
    from app.core.run_advice import ActiveAdvice, AdviceItem
    from app.pages.setup.form import SetupForm

_MAX_COLLAPSED_ROWS: Final = 3  # further rows are collapsed
_ROW_HEIGHT: Final = 28  # pixels: the height of a button
_INDENT: Final = 16 + SPACING  # of the text beside the icon
_OOM_RECOVERY_CODE: Final = "log.oom_recovery"


class AdvicePanel(TranslatableWidget):
    """Shows the `ActiveAdvice` of a run; hidden if empty. A known fix can be applied to the form."""

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._notes: ActiveAdvice | None = None
        self._form: SetupForm | None = None
        self._displayed: object = None
        self._expanded = False
        self.rows: list[AdviceRow] = []
        self._rows_layout = vertical_layout(spacing=2)
        self.more_button = push_button("flat")
        frame = set_object_name(QFrame(), "card")
        inner = vertical_layout(spacing=2)
        inner.setContentsMargins(SPACING + 4, SPACING // 2, SPACING, SPACING // 2)
        inner.addLayout(self._rows_layout)
        below = QHBoxLayout()
        below.addSpacing(_INDENT - 6)  # the button's own padding
        below.addWidget(self.more_button)
        below.addStretch(1)
        inner.addLayout(below)
        frame.setLayout(inner)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)
        self.more_button.clicked.connect(self._toggle_expanded)
        self.hide()

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, notes: ActiveAdvice, form: SetupForm) -> None:
        """Show these; cheap if nothing changed."""
        self._form = form
        if notes is not self._notes:
            self._notes, self._expanded = notes, False
        newest = notes.newest_first()
        applied = [bool(note.fix) and form.has_values(note.fix) for note in newest]
        painted = (id(notes), notes.version, applied, self._expanded)
        if painted == self._displayed:
            return
        self._displayed = painted
        self.setVisible(bool(newest))
        opened = {row.code for row in self.rows if row.details_button.isChecked()}
        clear_layout(self._rows_layout)
        self.rows = []
        for note, done in list(zip(newest, applied, strict=True))[: None if self._expanded else _MAX_COLLAPSED_ROWS]:
            row = AdviceRow(note, self._palette, opened=note.entry.code in opened, applied=done)
            row.apply_requested.connect(form.set_values)
            self.rows.append(row)
            self._rows_layout.addWidget(row)
        hidden = len(newest) - _MAX_COLLAPSED_ROWS
        self.more_button.setVisible(hidden > 0)
        text = tr("plots.show_fewer") if self._expanded else tr("plots.count_more", count=hidden)
        self.more_button.setText(text)

    def _toggle_expanded(self) -> None:
        self._expanded = not self._expanded
        self._redisplay()

    def _redisplay(self) -> None:
        self._displayed = None
        if self._notes is not None and self._form is not None:
            self.display(self._notes, self._form)

    def retheme(self, palette: Palette) -> None:
        self._palette = palette
        self._redisplay()

    def retranslate(self) -> None:
        self._redisplay()


class AdviceRow(QWidget):
    """One line with an icon; expanded, also the recommended action and the figures."""

    apply_requested = Signal(dict)

    def __init__(self, note: AdviceItem, palette: Palette, *, opened: bool, applied: bool) -> None:
        super().__init__()
        self.code = note.entry.code
        line, more = format_note(note, applied=applied)
        sign = QLabel()
        name, colour = _icon_and_colour(note)
        sign.setPixmap(pixmap(name, getattr(palette, colour), self.devicePixelRatioF()))
        self.summary_label, self._full_label, self.details_label = (
            ElidedLabel(),
            label(wrap=True),
            label("muted", wrap=True),
        )
        for beside in (sign, self.summary_label, self._full_label):
            beside.setMinimumHeight(_ROW_HEIGHT)  # aligns the first lines with the texts of the buttons
        self.summary_label.setText(line)
        self._full_label.setText(line)
        for words_ in (self._full_label, self.details_label):
            words_.setTextFormat(Qt.TextFormat.PlainText)
            words_.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.details_label.setText(more)
        self.details_label.setContentsMargins(_INDENT, 0, 0, SPACING // 2)  # aligned with the text, not with the icon
        self.details_button, self.apply_button = push_button("flat", checkable=True), push_button("applyAdvice")
        self.details_button.setText(tr("plots.details"))
        self.details_button.setAccessibleDescription(line)
        self.details_button.setChecked(opened)
        self.details_button.toggled.connect(self._show_details)
        self._show_details(opened)
        self.apply_button.setText(tr("plots.applied") if applied else tr("plots.apply_at_next_start"))
        self.apply_button.setEnabled(not applied)
        self.apply_button.setVisible(bool(note.fix))
        self.apply_button.setToolTip(formatting.format_settings(note.fix))
        self.apply_button.clicked.connect(lambda: self.apply_requested.emit(dict(note.fix)))
        row = QHBoxLayout()
        row.setSpacing(SPACING)
        row.addWidget(sign, 0, Qt.AlignmentFlag.AlignTop)
        for words_ in (self.summary_label, self._full_label):
            row.addWidget(words_, 1)
        buttons = QWidget()
        buttons.setMinimumHeight(_ROW_HEIGHT)
        pressed = QHBoxLayout(buttons)
        pressed.setContentsMargins(0, 0, 0, 0)
        pressed.setSpacing(SPACING)
        pressed.addWidget(self.apply_button)
        pressed.addWidget(self.details_button)
        row.addWidget(buttons, 0, Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(row)
        layout.addWidget(self.details_label)

    def _show_details(self, opened: bool) -> None:
        self.summary_label.setVisible(not opened)
        self._full_label.setVisible(opened)
        self.details_label.setVisible(opened)


def format_note(note: AdviceItem, *, applied: bool) -> tuple[str, str]:
    """The line of a note, and the details below it."""
    entry = note.entry
    if entry.code == _OOM_RECOVERY_CODE:
        line, _, more = entry_texts.format_entry(entry).partition("\n")
        return line, more
    line, do = formatting.format_advice(entry.code, entry.params)
    return line, "\n".join(filter(None, (do, entry.text, _format_fix(note.fix, applied=applied))))


def _format_fix(fix: Mapping[str, Any], *, applied: bool) -> str:
    if not fix:
        return ""
    key = "plots.fix_applied" if applied else "plots.fix_available"
    return tr(key, settings=formatting.format_settings(fix))


def _icon_and_colour(note: AdviceItem) -> tuple[IconName, str]:
    """Icon name and colour token."""
    if note.entry.code != _OOM_RECOVERY_CODE:
        return "advice", "accent"
    return "memory", "warn" if note.entry.level == "warning" else "good"
