"""Corrected answers of the chat page: the dialog that edits an answer, and the bar of the data set."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QDialog, QPlainTextEdit, QWidget

from app.core.conversation import Turn
from app.core.correction_store import FILE_NAME, CorrectionStore
from app.pages.chat.models import ChatModels
from app.pages.setup.form import SetupForm
from app.services import desktop_shell
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import (
    horizontal_layout,
    label,
    push_button,
    resize_within_screen,
    set_object_name,
    vertical_layout,
)
from app.widgets.info_bar import InfoBar
from app.widgets.raw_text import set_raw_text_font
from trainer_core import protocol
from trainer_core.runs import run_dir

_SIZE = QSize(640, 420)
_QUESTION_HEIGHT = 84


class CorrectionDialog(QDialog):
    """Edits an answer."""

    saved = Signal(str)

    def __init__(self, turn: Turn, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("correction")
        self.setWindowTitle(tr("chat.correction_title"))
        question, self.answer = (set_object_name(QPlainTextEdit(), name) for name in ("chatQuestion", "chatAnswer"))
        question.setReadOnly(True)
        question.setFixedHeight(_QUESTION_HEIGHT)
        self.save, self.cancel = push_button("primary"), push_button("cancelCorrection")
        self.reason = label("muted")
        buttons = horizontal_layout((self.reason, 1), self.cancel, self.save)
        layout = vertical_layout(margin=2 * SPACING)
        for key, edit, text in (
            ("chat.question", question, turn.prompt), ("chat.answer", self.answer, turn.text),
        ):  # fmt: skip
            title = label("section")
            title.setText(tr(key))
            edit.setAccessibleName(title.text())
            edit.setPlainText(text)
            edit.setTabChangesFocus(True)
            set_raw_text_font(edit)
            layout.addWidget(title)
            layout.addWidget(edit)
        self._unchanged = self._text
        layout.addLayout(buttons)
        self.setLayout(layout)
        self.save.setText(tr("chat.save_correction"))
        self.save.setToolTip(tr("chat.ctrl_enter"))
        self.cancel.setText(tr("common.cancel"))
        self.answer.textChanged.connect(self._show_state)
        self.save.clicked.connect(self._save)
        self.cancel.clicked.connect(self.reject)
        for keys in ("Ctrl+Return", "Ctrl+Enter"):
            QShortcut(QKeySequence(keys), self, self.save.click)
        self._show_state()
        self.answer.setFocus()
        resize_within_screen(self, _SIZE)

    @property
    def _text(self) -> str:
        """The answer. Unlike `toPlainText`, keeps no-break spaces."""
        return self.answer.document().toRawText().replace("\u2029", "\n").replace("\u2028", "\n")

    def _show_state(self) -> None:
        text = self._text
        reason = "chat.correction_empty" if not text.strip() else "chat.correction_unchanged"
        self.save.setEnabled(bool(text.strip()) and text != self._unchanged)
        self.reason.setText("" if self.save.isEnabled() else tr(reason))

    def _save(self) -> None:
        self.saved.emit(self._text)
        self.accept()


class CorrectionBar(InfoBar):
    """Number of corrected answers, and what can be done with them. Hidden while there are none."""

    failed = Signal(str)  # a text
    corrected = Signal()  # turns have changed

    def __init__(self, form: SetupForm, models: ChatModels) -> None:
        self._form, self._models = form, models
        self._store = CorrectionStore(run_dir.home() / "corrections" / FILE_NAME)
        super().__init__(
            {
                "undoCorrection": "chat.undo_correction",
                "addCorrections": "chat.add_corrections",
                "openCorrections": "runs.open_folder",
            }
        )
        for name, slot in (
            ("undoCorrection", self._undo),
            ("addCorrections", lambda: form.add_data([str(self.path)])),
            ("openCorrections", lambda: desktop_shell.open_folder(self.path)),
        ):
            self.buttons[name].clicked.connect(slot)
        form.changed.connect(self._enable)
        self.refresh()

    @property
    def path(self) -> Path:
        return self._store.path

    def open_dialog(self, turn: Turn, question: Sequence[protocol.Turn]) -> None:
        """Let the user edit the answer of a turn. `question`: the messages before the answer."""
        dialog = CorrectionDialog(turn, self.window())
        dialog.saved.connect(lambda answer: self._save(turn, question, answer))
        dialog.open()

    def _save(self, turn: Turn, question: Sequence[protocol.Turn], answer: str) -> None:
        generated = turn.text if turn.generated is None else turn.generated
        try:
            row_id = self._store.add(question, answer, generated, replaced=turn.correction_id)
        except OSError as error:
            self.failed.emit(tr("chat.correction_not_saved", reason=error.strerror or str(error)))
            return
        turn.text, turn.generated, turn.correction_id = answer, generated, row_id
        self._on_changed()

    def _undo(self) -> None:
        """Remove the last row, and restore its answer if the conversation is open."""
        try:
            row_id = self._store.undo()
        except OSError as error:
            self.failed.emit(tr("chat.correction_not_saved", reason=error.strerror or str(error)))
            return
        for turn in itertools.chain.from_iterable(session.turns for session in self._models.all_sessions):
            if turn.generated is not None and turn.correction_id == row_id:
                turn.text, turn.generated, turn.correction_id = turn.generated, None, ""
        path = str(self.path)
        if path in self._form.data and not self._store.count():
            self._form.set_data([source for source in self._form.data if source != path])
        self._on_changed()

    def _on_changed(self) -> None:
        self.refresh()
        self.corrected.emit()

    def refresh(self) -> None:
        """Read the number of rows."""
        count = self._store.count()
        self.set_message(tr("chat.corrections", count=count, path=self.path) if count else "")
        self.buttons["undoCorrection"].setEnabled(self._store.can_undo)
        self._enable()

    def _enable(self) -> None:
        self.buttons["addCorrections"].setEnabled(str(self.path) not in self._form.data)

    def retranslate(self) -> None:
        super().retranslate()
        self.refresh()
