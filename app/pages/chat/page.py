"""Chat page: chats with one model or two side by side, continued texts, and samples of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Self

from PySide6.QtCore import QEvent, QKeyCombination, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QKeySequence, QShowEvent
from PySide6.QtWidgets import QPlainTextEdit, QPushButton, QWidget

from app.core.active_run import ActiveRun
from app.core.conversation import Mode, Turn, question_messages
from app.core.conversation_store import Conversation, ConversationStore
from app.core.history.run_list import RunList
from app.core.installation import installation
from app.core.settings import Settings
from app.pages.chat.corrections import CorrectionBar
from app.pages.chat.history_dialog import HistoryDialog
from app.pages.chat.model_column import ModelColumn
from app.pages.chat.models import ChatModels
from app.pages.chat.samples_view import SamplesView
from app.pages.chat.sampling_row import SamplingRow
from app.pages.page import Page, ShownRun
from app.pages.setup.form import SetupForm
from app.texts import tr
from app.theme.icons import icon
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    ElidedLabel,
    horizontal_layout,
    push_button,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from app.widgets.info_bar import InfoBar
from app.widgets.raw_text import set_raw_text_font

_PROMPT_HEIGHT: Final = 66
_SYSTEM_HEIGHT: Final = 44
_SHORTCUTS: Final = {
    "write": ("Ctrl+Return", "Ctrl+Enter"),
    "stop": ("Esc",),
    "again": ("Ctrl+R",),
    "edit": ("F2",),
    "correct": ("F3",),
    "compare": ("F4",),
    "new": ("Ctrl+N",),
    "history": ("Ctrl+H",),
}


class ChatPage(Page):
    """Its shortcuts take precedence over the window's while it has the focus."""

    save_requested = Signal()  # of a checkpoint of the run in training

    _active_run: ActiveRun  # these are set by `connect_services`
    _settings: Settings
    _store: ConversationStore

    def __init__(self, palette: Palette, form: SetupForm) -> None:
        super().__init__()
        self.models, self.samples = ChatModels(self), SamplesView(palette)
        self._mode: Mode | None = None  # None: as the models were trained
        self._edited: tuple[int, str] | None = None  # number of newest turns to replace, and the prompt of their first
        self._conversation: Path | None = None  # file of the current conversation
        self.modes = {name: push_button(f"mode_{name}", checkable=True) for name in ("chat", "continue", "samples")}
        self.compare = push_button("compare", checkable=True)
        self.new, self.history = push_button("newChat"), push_button("chatHistory")
        self.device_label = set_object_name(ElidedLabel(), "muted")
        self.columns = [ModelColumn(session, palette) for session in self.models.all_sessions]
        self.row, self.corrections = SamplingRow(), CorrectionBar(form, self.models)
        self.edit_bar = InfoBar({"cancelEdit": "common.cancel"})
        self.notice = InfoBar({"closeNotice": "common.close"})
        self.system, self.prompt = QPlainTextEdit(), QPlainTextEdit()
        for edit, name, height in (
            (self.system, "chatSystem", _SYSTEM_HEIGHT),
            (self.prompt, "chatPrompt", _PROMPT_HEIGHT),
        ):
            set_object_name(edit, name).setFixedHeight(height)
            edit.setTabChangesFocus(True)
            set_raw_text_font(edit)
        self.write, self.stop, self.again = push_button("primary"), push_button("chatStop"), push_button("chatAgain")
        self._buttons = {
            "write": self.write, "stop": self.stop, "again": self.again, "new": self.new, "history": self.history,
            "compare": self.compare, "edit": self.columns[0].edit, "correct": self.columns[0].correct,
        }  # fmt: skip
        self.keys = {name: QAction(self) for name in _SHORTCUTS}
        self._conversation_view = QWidget()  # everything but the samples
        self._build_layout()
        self._connect()
        self.show_samples(False)
        self.retheme(palette)
        self.retranslate()

    @classmethod
    def construct(cls, palette: Palette, form: SetupForm) -> Self:
        return cls(palette, form)

    def _build_layout(self) -> None:
        self.device_label.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        top = horizontal_layout(self.compare, self.new, self.history, (self.device_label, 1))
        top.insertLayout(0, horizontal_layout(*self.modes.values(), spacing=0))
        buttons = vertical_layout(spacing=SPACING // 2)
        for button in (self.write, self.stop, self.again):
            buttons.addWidget(button)
        bottom = horizontal_layout((self.prompt, 1))
        bottom.addLayout(buttons)
        view = vertical_layout()
        view.addWidget(self.system)
        view.addLayout(horizontal_layout(*((column, 1) for column in self.columns), spacing=2 * SPACING), 1)
        for widget in (self.corrections, self.notice, self.row, self.edit_bar):
            view.addWidget(widget)
        view.addLayout(bottom)
        self._conversation_view.setLayout(view)
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addLayout(top)
        layout.addWidget(self._conversation_view, 1)
        layout.addWidget(self.samples, 1)
        self.setLayout(layout)

    def _connect(self) -> None:
        for name, button in self.modes.items():
            button.clicked.connect(lambda _=False, name=name: self._choose_mode(name))
        self.compare.toggled.connect(self.models.set_comparing)
        self.new.clicked.connect(self._start_new)
        self.history.clicked.connect(self._open_history)
        self.write.clicked.connect(lambda: self.generate(self.prompt.toPlainText(), self._edited))
        self.again.clicked.connect(self._regenerate)
        self.stop.clicked.connect(self._stop_generation)
        self.models.changed.connect(self.refresh)
        installation.changed.connect(self.refresh)
        self.corrections.failed.connect(self.notice.set_message)
        self.corrections.corrected.connect(self._save_conversation)
        self.edit_bar.buttons["cancelEdit"].clicked.connect(self._end_edit)
        self.notice.buttons["closeNotice"].clicked.connect(self.notice.hide)
        for session, column in zip(self.models.all_sessions, self.columns, strict=True):
            session.prompt_sent.connect(self._clear_prompt)
            session.turn_finished.connect(self._save_conversation)
            column.chosen.connect(session.select)
            column.edit_requested.connect(lambda turn, session=session: self._edit(session.turns, turn))
            column.correction_requested.connect(lambda turn, session=session: self._correct(session.turns, turn))
            column.save_requested.connect(self.save_requested)
        self.columns[0].chosen.connect(self._follow_model)
        for name, action in self.keys.items():
            action.setShortcuts([QKeySequence(keys) for keys in _SHORTCUTS[name]])
            # For the list of shortcuts. `event` and `keyPressEvent` handle the keys before the window does.
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
            action.triggered.connect(lambda _=False, name=name: self._button(name).click())
            self.addAction(action)

    def connect_services(
        self, active_run: ActiveRun, history: RunList, settings: Settings, store: ConversationStore
    ) -> None:
        self._active_run, self._settings, self._store = active_run, settings, store
        self.row.set_sampling(settings.sampling)
        self.models.connect_services(active_run, history)

    # --- shortcuts ------------------------------------------------------------------------------------------

    def _button(self, name: str) -> QPushButton:
        """The button of a shortcut, in the column with the focus if both have it."""
        if name in ("edit", "correct") and self.columns[1].isAncestorOf(self.focusWidget() or self):
            return getattr(self.columns[1], name)  # type: ignore[no-any-return]
        return self._buttons[name]

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ShortcutOverride and isinstance(event, QKeyEvent):
            event.setAccepted(self._action_for(event) is not None)  # Ctrl+Enter is Start elsewhere in the window
            return event.isAccepted()
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:  # noqa: N802 - Qt's name
        action = self._action_for(event)
        if action is None:
            super().keyPressEvent(event)
        else:
            action.trigger()

    def _action_for(self, event: QKeyEvent) -> QAction | None:
        modifiers = event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier
        keys = QKeySequence(QKeyCombination(modifiers, Qt.Key(event.key())))
        found = next((action for action in self.keys.values() if keys in action.shortcuts()), None)
        return None if self.samples.isVisible() or (found is self.keys["stop"] and not self.models.are_busy) else found

    # --- mode and model -------------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        """The chosen mode, or that of the first model."""
        return self._mode or ("chat" if self.models.all_sessions[0].answers else "continue")

    def _choose_mode(self, name: str) -> None:
        if name != "samples":
            self._mode = None
            if name != self.mode:
                self._mode = "chat" if name == "chat" else "continue"
        self.show_samples(name == "samples")

    def show_samples(self, shown: bool) -> None:
        """Show the samples of training, or the conversation."""
        self.samples.setVisible(shown)
        for widget in (self._conversation_view, self.compare, self.new, self.history):
            widget.setVisible(not shown)
        self.refresh()

    def _follow_model(self) -> None:
        self._mode = None
        self.refresh()

    def select_model(self, run: Path, checkpoint: Path | None = None) -> None:
        """Select a checkpoint of a run, or its newest one, for the first session."""
        self._mode = None
        self.models.all_sessions[0].select(run, checkpoint)
        self.show_samples(False)

    # --- generating ---------------------------------------------------------------------------------------

    def generate(self, prompt: str, replaced: tuple[int, str] | None = None) -> None:
        """Generate text with every model in use. `replaced`: as `_edited`."""
        if self.models.are_busy or (self.mode == "chat" and not prompt.strip()):
            return
        self._settings.sampling = self.row.sampling
        self._end_edit()
        device, system = self.models.choose_device().flag, self.system.toPlainText()
        for session in self.models.sessions:
            session.refresh_checkpoints()
            if replaced is not None:
                session.remove_turns(*replaced)
            if session.selected_path is not None:
                session.generate(device, prompt, self.row.sampling, self._mode, system)
        self.refresh()

    def _regenerate(self) -> None:
        """Replace the last text by one with another seed."""
        turns = next((session.turns for session in self.models.sessions if session.turns), None)
        if turns is not None and not self.models.are_busy:
            self.row.randomize_seed()  # the same seed would generate the same text
            self.generate(turns[-1].prompt, (1, turns[-1].prompt))

    def _stop_generation(self) -> None:
        for session in self.models.sessions:
            session.stop_generation()

    def _clear_prompt(self, prompt: str) -> None:
        """Clear the input after `prompt` was sent as a question."""
        if self.prompt.toPlainText() == prompt:
            self.prompt.clear()

    # --- editing and correcting ---------------------------------------------------------------------------

    def _edit(self, turns: list[Turn], turn: Turn) -> None:
        """Put the prompt of a turn into the input. Sending it replaces the turn and those after it."""
        self._edited = len(turns) - turns.index(turn), turn.prompt
        self.prompt.setPlainText(turn.prompt)
        self.prompt.selectAll()
        self.prompt.setFocus()
        self.edit_bar.set_message(tr("chat.editing"))

    def _end_edit(self) -> None:
        self._edited = None
        self.edit_bar.set_message("")

    def _correct(self, turns: list[Turn], turn: Turn) -> None:
        self.corrections.open_dialog(turn, question_messages(turns[: turns.index(turn) + 1]))

    # --- conversations ------------------------------------------------------------------------------------

    def _start_new(self) -> None:
        for session in self.models.all_sessions:
            session.turns = []
        self._conversation = None
        self._end_edit()
        self.prompt.clear()
        self.prompt.setFocus()
        self.refresh()

    def _save_conversation(self) -> None:
        self.refresh()
        has_turns = any(session.turns for session in self.models.sessions)
        if has_turns and self._settings.keep_conversations and not self.models.are_busy:
            conversation = Conversation(self.system.toPlainText(), self.models.snapshot())
            try:
                self._conversation = self._store.save(conversation, self._conversation)
            except OSError as error:
                self.notice.set_message(tr("chat.history_not_saved", reason=error.strerror or str(error)))

    def _open_history(self) -> None:
        dialog = HistoryDialog(self._store, self._settings, self.window())
        dialog.opened.connect(self._open_conversation)
        dialog.deleted.connect(self._on_conversation_deleted)
        dialog.open()

    def _open_conversation(self, path: Path, conversation: Conversation) -> None:
        self._start_new()
        self._conversation = path
        self.system.setPlainText(conversation.system)
        self.compare.setChecked(len(conversation.models) > 1)
        self.models.restore(conversation.models)
        self._follow_model()

    def _on_conversation_deleted(self, path: Path) -> None:
        if path == self._conversation:
            self._start_new()

    # --- display ------------------------------------------------------------------------------------------

    def show_run(self, run: ShownRun) -> None:
        self.samples.display(run.record.samples, run.record.rollouts, can_request=run.can_request_sample)

    def refresh(self) -> None:
        if not self.isVisible():
            return
        busy, sessions, missing = self.models.are_busy, self.models.sessions, installation.missing_reason("all")
        can_generate = not missing and any(session.selected_path is not None for session in sessions)
        has_turns = any(session.turns for session in sessions)
        shown = "samples" if self.samples.isVisible() else self.mode
        for name, button in self.modes.items():
            button.setChecked(name == shown)
        self.system.setVisible(self.mode == "chat")
        self._show_stop(busy)
        self.new.setEnabled(has_turns and not busy)
        self.history.setEnabled(not busy)
        self.write.setEnabled(can_generate)
        hint = missing or tr("chat.empty_page")
        self.write.setToolTip(tr("chat.ctrl_enter") if can_generate else hint)
        self.again.setEnabled(can_generate and has_turns and not busy)
        reason = self.models.choose_device().reason
        self.device_label.setText(tr(reason) if reason and shown != "samples" else "")
        self._show_columns(busy, tr("chat.transcript_hint") if can_generate else hint)

    def _show_columns(self, busy: bool, hint: str) -> None:
        sessions = self.models.sessions
        self.columns[1].setVisible(len(sessions) > 1)
        for place, (session, column) in enumerate(zip(sessions, self.columns, strict=False)):
            set_text_if_changed(column.transcript.placeholder, hint)
            others = sessions[1 - place].turns if len(sessions) > 1 else ()
            column.display(
                self.models.selectable_runs(session),
                self.models.training_run,
                others=others,
                busy=busy,
                can_save=self._active_run.machine.can_save,
            )

    def _show_stop(self, busy: bool) -> None:
        """Show Stop in place of Generate, or vice versa, and keep the focus."""
        shown, hidden = (self.stop, self.write) if busy else (self.write, self.stop)
        focused = hidden.hasFocus()
        hidden.hide()
        shown.show()
        if focused:
            shown.setFocus()

    def restore_state(self, settings: Settings) -> None:
        self.show_samples(settings.chat_shows_samples)

    def save_state(self, settings: Settings) -> None:
        settings.chat_shows_samples = self._conversation_view.isHidden()

    def retheme(self, palette: Palette) -> None:
        self.write.setIcon(icon("start", palette.on_accent, palette.muted))
        self.stop.setIcon(icon("stop", palette.text, palette.muted))
        self.samples.retheme(palette)
        for column in self.columns:
            column.transcript.colors = palette
            column.transcript.render_all()

    def retranslate(self) -> None:
        texts: dict[Any, tuple[str, str]] = {
            self.modes["chat"]: (tr("chat.mode_chat"), tr("chat.mode_chat_hint")),
            self.modes["continue"]: (tr("chat.mode_continue"), tr("chat.mode_continue_hint")),
            self.modes["samples"]: (tr("samples.samples"), tr("chat.mode_samples_hint")),
            self.compare: (tr("chat.compare"), tr("chat.compare_hint")),
            self.new: (tr("chat.new_conversation"), tr("chat.new_conversation_hint")),
            self.history: (tr("chat.history"), tr("chat.history_hint")),
            self.write: (tr("chat.generate"), tr("chat.ctrl_enter")),
            self.stop: (tr("chat.stop"), tr("chat.stop_hint")),
            self.again: (tr("chat.regenerate"), tr("chat.regenerate_hint")),
        }
        for button, (text, tooltip) in texts.items():
            button.setText(text)
            button.setToolTip(tooltip)
        for edit, text, hint in (
            (self.system, tr("chat.system"), tr("chat.system_hint")),
            (self.prompt, tr("chat.prompt"), tr("chat.prompt_hint")),
        ):
            edit.setAccessibleName(text)
            edit.setPlaceholderText(hint)
        for name, action in self.keys.items():
            action.setText(self._buttons[name].text())
        self.refresh()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self.models.refresh_checkpoints()
