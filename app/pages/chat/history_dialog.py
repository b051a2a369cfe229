"""Dialog of earlier conversations: opens and deletes them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QCheckBox, QDialog, QListWidget, QListWidgetItem, QWidget

from app.core.conversation_store import MAX_CONVERSATIONS, ConversationStore
from app.core.settings import Settings
from app.texts import tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    horizontal_layout,
    label,
    placeholder_label,
    push_button,
    resize_within_screen,
    set_object_name,
    vertical_layout,
)

_SIZE: Final = QSize(560, 480)
_MAX_TITLE_LENGTH: Final = 80  # characters
_CONVERSATION: Final = Qt.ItemDataRole.UserRole


class HistoryDialog(QDialog):
    """Lists the stored conversations, the newest first."""

    opened = Signal(Path, object)  # file; `Conversation`
    deleted = Signal(Path)

    def __init__(self, store: ConversationStore, settings: Settings, parent: QWidget) -> None:
        super().__init__(parent)
        self._store, self._settings = store, settings
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setObjectName("chatHistory")
        self.setWindowTitle(tr("chat.history_title"))
        self.list = set_object_name(QListWidget(), "conversations")
        self.list.setAccessibleName(self.windowTitle())
        self.list.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.list.setUniformItemSizes(True)
        self._empty = placeholder_label(self.list)
        self._empty.setText(tr("chat.history_empty"))
        self.keep = QCheckBox(tr("chat.keep_history"))
        self.keep.setChecked(settings.keep_conversations)
        self.open_button, self.delete_button = push_button("openConversation"), push_button("deleteConversations")
        close = push_button("closeHistory")
        self.note = label("muted", wrap=True)
        self.note.setText(tr("chat.history_note", count=MAX_CONVERSATIONS, folder=store.folder))
        for button, key in (
            (self.open_button, "chat.open_conversation"), (self.delete_button, "chat.delete_conversation"),
            (close, "common.close"),
        ):  # fmt: skip
            button.setText(tr(key))
        buttons = horizontal_layout(self.open_button, self.delete_button)
        buttons.addStretch(1)
        buttons.addWidget(close)
        layout = vertical_layout(margin=2 * SPACING)
        layout.addWidget(self.list, 1)
        layout.addWidget(self.note)
        layout.addWidget(self.keep)
        layout.addLayout(buttons)
        self.setLayout(layout)
        self.open_button.setDefault(True)
        self.open_button.clicked.connect(self._open)
        self.delete_button.clicked.connect(self._delete)
        close.clicked.connect(self.reject)
        self.keep.toggled.connect(lambda on: setattr(settings, "keep_conversations", on))
        self.list.itemDoubleClicked.connect(self._open)
        self.list.itemSelectionChanged.connect(self._enable)
        QShortcut(QKeySequence("Del"), self.list, self._delete, context=Qt.ShortcutContext.WidgetShortcut)
        self._fill()
        resize_within_screen(self, _SIZE)

    def _fill(self) -> None:
        self.list.clear()
        for path, conversation in self._store.list_all():
            title = " ".join(conversation.title.split())
            title = title if len(title) <= _MAX_TITLE_LENGTH else f"{title[:_MAX_TITLE_LENGTH]}…"
            item = QListWidgetItem(f"{formatting.format_clock_time(path.stat().st_mtime)}   {title}")
            item.setData(_CONVERSATION, (path, conversation))
            self.list.addItem(item)
        self.list.setCurrentRow(0)
        self._empty.setVisible(not self.list.count())
        self._enable()

    def _enable(self) -> None:
        selected = self.list.selectedItems()
        self.open_button.setEnabled(len(selected) == 1)
        self.delete_button.setEnabled(bool(selected))

    def _open(self) -> None:
        if self.open_button.isEnabled():
            self.opened.emit(*self.list.selectedItems()[0].data(_CONVERSATION))
            self.accept()

    def _delete(self) -> None:
        for item in self.list.selectedItems():
            path, _ = item.data(_CONVERSATION)
            try:
                self._store.delete(path)
            except OSError as error:
                self.note.setText(tr("chat.history_not_deleted", reason=error.strerror or str(error)))
                break
            self.deleted.emit(path)
        self._fill()
