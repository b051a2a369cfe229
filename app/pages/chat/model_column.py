"""One model of the chat page: choice of the model, generated texts, status, and actions on a turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFileDialog

from app.core.conversation import Turn
from app.pages.chat.transcript import Transcript
from app.services import desktop_shell
from app.services.generation_session import BASE, Checkpoint, GenerationSession
from app.texts import tr
from app.theme.palette import Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    TranslatableWidget,
    horizontal_layout,
    plain_tooltip,
    push_button,
    restyle,
    set_object_name,
    vertical_layout,
)
from app.widgets.checkpoint_choice import narrow_combo
from trainer_core import protocol

_CHOOSE_FOLDER = "folder"  # choice that opens a dialog


class ModelColumn(TranslatableWidget):
    """Displays a `GenerationSession`."""

    chosen = Signal(object, object)  # run or model folder; `Checkpoint`
    edit_requested = Signal(object)  # the selected `Turn`
    correction_requested = Signal(object)
    save_requested = Signal()

    def __init__(self, session: GenerationSession, palette: Palette) -> None:
        super().__init__()
        self._session = session
        self._runs: Sequence[Path] = ()
        self._training_run: Path | None = None
        self._is_busy = False
        self._listed: object = None  # content of the choices
        self.run, self.checkpoint = narrow_combo("chatRun"), narrow_combo("chatCheckpoint")
        self.save = push_button("saveNow")
        self.transcript, self.status = Transcript(palette), set_object_name(ElidedLabel(), "chatStatus")
        self.copy, self.edit, self.correct = map(push_button, ("copyTurn", "editTurn", "correctTurn"))
        layout = vertical_layout()
        layout.addLayout(horizontal_layout((self.run, 2), (self.checkpoint, 3), self.save))
        layout.addWidget(self.transcript, 1)
        layout.addLayout(horizontal_layout(self.copy, self.edit, self.correct, (self.status, 1)))
        self.status.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.setLayout(layout)
        self._connect()
        self.retranslate()

    def _connect(self) -> None:
        self.run.activated.connect(self._choose_run)
        self.checkpoint.activated.connect(lambda: self.chosen.emit(self._session.run, self.checkpoint.currentData()))
        self.save.clicked.connect(self.save_requested)
        self.copy.clicked.connect(self._copy)
        self.edit.clicked.connect(lambda: self.edit_requested.emit(self.transcript.selected))
        self.correct.clicked.connect(lambda: self.correction_requested.emit(self.transcript.selected))
        self.transcript.cursorPositionChanged.connect(self._enable_actions)

    def _choose_run(self) -> None:
        path = self.run.currentData()
        if path == _CHOOSE_FOLDER:
            start = str(self._session.run.parent if self._session.is_folder and self._session.run else Path.home())
            folder = QFileDialog.getExistingDirectory(self, tr("setup.model_choose_folder"), start)
            if not folder:
                self._listed = None
                self._list_choices(self._session)  # selects the current model again
                return
            path = Path(folder)
        self.chosen.emit(path, None)

    def _copy(self) -> None:
        """Copy the selected answer, or the selected continuation with its prompt."""
        if (turn := self.transcript.selected) is not None:
            desktop_shell.copy_text(turn.text if turn.chat else turn.prompt + turn.text)

    def display(
        self,
        runs: Sequence[Path],
        training_run: Path | None,
        *,
        others: Sequence[Turn] = (),
        busy: bool = False,
        can_save: bool = False,
    ) -> None:
        """Show the session.

        Args:
            runs: Runs and model folders that can be selected.
            others: Turns of the other model.
            busy: Whether a model generates.
            can_save: Whether the run in training saves a checkpoint on request.
        """
        session, self._runs, self._training_run, self._is_busy = self._session, runs, training_run, busy
        self._list_choices(session)
        self.save.setVisible(training_run is not None and session.run == training_run)
        self.save.setEnabled(can_save)
        self.transcript.display(session.turns, others)
        self._enable_actions()
        self._show_status()

    def _show_status(self) -> None:
        failure = self._session.format_failure()
        self.status.setText(failure or _format_status(self._session))
        if self.status.property("level") != (level := "bad" if failure else ""):
            self.status.setProperty("level", level)
            restyle(self.status)

    def _enable_actions(self) -> None:
        turn = self.transcript.selected
        self.copy.setEnabled(turn is not None and bool(turn.text))
        self.edit.setEnabled(turn is not None and not self._is_busy)
        self.correct.setEnabled(turn is not None and turn.is_answer and not self._is_busy)

    def _list_choices(self, session: GenerationSession) -> None:
        """Fill the combo boxes, unless they are up to date or open."""
        listed = (self._runs, self._training_run, session.run, session.checkpoints, session.checkpoint)
        if listed == self._listed or self.run.view().isVisible() or self.checkpoint.view().isVisible():
            return
        self._listed = listed
        self.run.clear()
        for path in self._runs:
            is_training = path == self._training_run
            self.run.addItem(tr("chat.run_training", name=path.name) if is_training else path.name, path)
            self.run.setItemData(self.run.count() - 1, plain_tooltip(str(path)), Qt.ItemDataRole.ToolTipRole)
        self.run.setCurrentIndex(self._runs.index(session.run) if session.run in self._runs else -1)
        self.run.addItem(tr("chat.choose_folder"), _CHOOSE_FOLDER)
        choices = _checkpoint_choices(session)
        self.checkpoint.clear()
        for checkpoint, text in choices.items():
            self.checkpoint.addItem(text, checkpoint)
        self.checkpoint.setCurrentIndex(list(choices).index(session.checkpoint))
        self.checkpoint.setEnabled(session.run is not None and not session.is_folder)
        for combo in (self.run, self.checkpoint):
            combo.setToolTip(plain_tooltip(combo.currentText()))

    def retranslate(self) -> None:
        self.run.setAccessibleName(tr("chat.run"))
        self.checkpoint.setAccessibleName(tr("chat.checkpoint"))
        self.transcript.setAccessibleName(tr("chat.transcript"))
        for button, text, hint in (
            (self.save, tr("chat.save"), tr("chat.save_hint")),
            (self.copy, tr("chat.copy"), tr("chat.copy_hint")),
            (self.edit, tr("chat.edit"), tr("chat.edit_hint")),
            (self.correct, tr("chat.correct"), tr("chat.correct_hint")),
        ):
            button.setText(text)
            button.setToolTip(hint)
        self.transcript.render_all()
        self._listed = None
        self._list_choices(self._session)
        self._show_status()


def _checkpoint_choices(session: GenerationSession) -> dict[Checkpoint, str]:
    """Texts of the newest checkpoint (None), of each checkpoint, and of the base model."""
    if session.is_folder:
        return {None: tr("chat.model_folder")}
    newest = tr("chat.newest_none")
    if session.checkpoints:
        newest = tr("chat.newest_checkpoint", checkpoint=formatting.format_checkpoint(session.checkpoints[0]))
    choices: dict[Checkpoint, str] = {None: newest}
    choices |= {info.path: formatting.format_checkpoint(info) for info in session.checkpoints}
    if session.base_model:
        choices[BASE] = tr("chat.base_model", name=session.base_model)
    if isinstance(session.checkpoint, Path):
        choices.setdefault(session.checkpoint, session.checkpoint.name)  # deleted in the meantime
    return choices


def _format_status(session: GenerationSession) -> str:
    """Tokens, speed, device, and whether the context was truncated."""
    loaded: protocol.ModelLoaded | None = session.loaded
    turn = session.turns[-1] if session.turns else None
    if session.state == "loading":
        return tr("chat.loading_the_model")
    if turn is None or not turn.tokens:
        return ""
    count, rate = formatting.format_count, formatting.format_rate(turn.tokens_per_s)
    parts = [tr("chat.speed", tokens=count(turn.tokens), rate=rate)]
    if loaded is not None:
        parts.append(formatting.format_device(loaded.device))
        if turn.prompt_tokens >= loaded.max_seq_len:
            seen, given = count(loaded.max_seq_len - 1), count(turn.prompt_tokens)
            parts.append(tr("chat.context_truncated", seen=seen, given=given))
    return " · ".join(parts)
