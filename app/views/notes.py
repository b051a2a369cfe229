"""What is advised to a run, and how it got its memory: calm lines above its plots, each to be folded out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from PySide6.QtCore import QCoreApplication, Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.theme.icons import IconName, pixmap
from app.theme.tokens import SPACE, Tokens
from app.views import log_words, words
from app.views.widgets import ElidedLabel, Retranslating, button, clear, column, label, named

if TYPE_CHECKING:
    from app.state.notes import Note, Notes
    from app.views.setup.form import SetupForm

_AT_ONCE: Final = 3  # the others are folded away: the plots want the room
_ROW: Final = 28  # pixels: the height of a button
_INDENT: Final = 16 + SPACE  # of the text, beside its icon
_MOVE: Final = "log.memory_move"


class NotesStrip(Retranslating):
    """Shows a run's `Notes`; hidden while there are none. Where a fix is known, it can be put into the form."""

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._notes: Notes | None = None
        self._form: SetupForm | None = None
        self._painted: object = None
        self._all = False
        self.rows: list[NoteRow] = []
        self._rows = column(spacing=2)
        self.more = button("flat")
        frame = named(QFrame(), "card")
        inner = column(spacing=2)
        inner.setContentsMargins(SPACE + 4, SPACE // 2, SPACE, SPACE // 2)
        inner.addLayout(self._rows)
        below = QHBoxLayout()
        below.addSpacing(_INDENT - 6)  # the button's own padding
        below.addWidget(self.more)
        below.addStretch(1)
        inner.addLayout(below)
        frame.setLayout(inner)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)
        self.more.clicked.connect(self._toggle_all)
        self.hide()

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, notes: Notes, form: SetupForm) -> None:
        """Show these; cheap where nothing has changed."""
        self._form = form
        if notes is not self._notes:
            self._notes, self._all = notes, False
        newest = notes.newest_first()
        applied = [bool(note.fix) and form.holds(note.fix) for note in newest]
        painted = (id(notes), notes.version, applied, self._all)
        if painted == self._painted:
            return
        self._painted = painted
        self.setVisible(bool(newest))
        opened = {row.code for row in self.rows if row.fold.isChecked()}
        clear(self._rows)
        self.rows = []
        for note, done in list(zip(newest, applied, strict=True))[: None if self._all else _AT_ONCE]:
            row = NoteRow(note, self._tokens, opened=note.entry.code in opened, applied=done)
            row.fix_asked.connect(form.take)
            self.rows.append(row)
            self._rows.addWidget(row)
        hidden = len(newest) - _AT_ONCE
        self.more.setVisible(hidden > 0)
        text = self.tr("Show fewer") if self._all else self.tr("{count} more").format(count=hidden)
        self.more.setText(text)

    def _toggle_all(self) -> None:
        self._all = not self._all
        self._show_again()

    def _show_again(self) -> None:
        self._painted = None
        if self._notes is not None and self._form is not None:
            self.display(self._notes, self._form)

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._show_again()

    def retranslate(self) -> None:
        self._show_again()


class NoteRow(QWidget):
    """One line with its icon; below it, folded out, what to do and the figures."""

    fix_asked = Signal(dict)

    def __init__(self, note: Note, tokens: Tokens, *, opened: bool, applied: bool) -> None:
        super().__init__()
        self.code = note.entry.code
        line, more = told(note, applied=applied)
        sign = QLabel()
        name, colour = _sign(note)
        sign.setPixmap(pixmap(name, getattr(tokens, colour), self.devicePixelRatioF()))
        self.text, self._whole, self.more = ElidedLabel(), label(wrap=True), label("muted", wrap=True)
        for beside in (sign, self.text, self._whole):
            beside.setMinimumHeight(_ROW)  # the first lines of all stand on one line with the buttons' texts
        self.text.setText(line)
        self._whole.setText(line)
        for words_ in (self._whole, self.more):
            words_.setTextFormat(Qt.TextFormat.PlainText)
            words_.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.more.setText(more)
        self.more.setContentsMargins(_INDENT, 0, 0, SPACE // 2)  # below the text, not below the icon
        self.fold, self.fix = button("flat", checkable=True), button("applyAdvice")
        self.fold.setText(self.tr("Details"))
        self.fold.setAccessibleDescription(line)
        self.fold.setChecked(opened)
        self.fold.toggled.connect(self._fold_out)
        self._fold_out(opened)
        self.fix.setText(self.tr("Applied") if applied else self.tr("Apply at next start"))
        self.fix.setEnabled(not applied)
        self.fix.setVisible(bool(note.fix))
        self.fix.setToolTip(words.settings(note.fix))
        self.fix.clicked.connect(lambda: self.fix_asked.emit(dict(note.fix)))
        row = QHBoxLayout()
        row.setSpacing(SPACE)
        row.addWidget(sign, 0, Qt.AlignmentFlag.AlignTop)
        for words_ in (self.text, self._whole):
            row.addWidget(words_, 1)
        buttons = QWidget()
        buttons.setMinimumHeight(_ROW)
        pressed = QHBoxLayout(buttons)
        pressed.setContentsMargins(0, 0, 0, 0)
        pressed.setSpacing(SPACE)
        pressed.addWidget(self.fix)
        pressed.addWidget(self.fold)
        row.addWidget(buttons, 0, Qt.AlignmentFlag.AlignTop)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addLayout(row)
        layout.addWidget(self.more)

    def _fold_out(self, opened: bool) -> None:
        self.text.setVisible(not opened)
        self._whole.setVisible(opened)
        self.more.setVisible(opened)


def told(note: Note, *, applied: bool) -> tuple[str, str]:
    """A note in one line, and what is said below it when it is folded out."""
    entry = note.entry
    if entry.code == _MOVE:
        line, _, more = log_words.sentence(entry).partition("\n")
        return line, more
    line, do = words.advice(entry.code, entry.params)
    return line, "\n".join(filter(None, (do, entry.text, _fix(note.fix, applied=applied))))


def _fix(fix: Mapping[str, Any], *, applied: bool) -> str:
    if not fix:
        return ""
    if applied:
        text = QCoreApplication.translate("Notes", "In the settings now, for the next start: {settings}")
    else:
        text = QCoreApplication.translate("Notes", "Would mend it at the next start: {settings}")
    return text.format(settings=words.settings(fix))


def _sign(note: Note) -> tuple[IconName, str]:
    """An icon and its colour token."""
    if note.entry.code != _MOVE:
        return "advice", "accent"
    return "memory", "warn" if note.entry.level == "warning" else "good"
