"""One model of the playground: choice of the checkpoint, generated texts, status."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QTextCursor
from PySide6.QtWidgets import QSizePolicy

from app.core.conversation import Turn
from app.services import desktop_shell
from app.services.generation_session import GenerationSession
from app.texts import tr
from app.theme.palette import Palette
from app.widgets import formatting
from app.widgets.basic import (
    ElidedLabel,
    NoScrollComboBox,
    TranslatableWidget,
    horizontal_layout,
    plain_tooltip,
    push_button,
    restyle,
    set_object_name,
    vertical_layout,
)
from app.widgets.generated_text import GeneratedTextView
from app.widgets.raw_text import raw_char_format
from trainer_core import protocol
from trainer_core.runs.checkpoint_dir import CheckpointInfo


class ModelColumn(TranslatableWidget):
    """Displays a `GenerationSession`."""

    chosen = Signal(object, object)  # run; checkpoint, or None for the newest

    def __init__(self, session: GenerationSession, palette: Palette) -> None:
        super().__init__()
        self._session = session
        self._runs: Sequence[Path] = ()
        self._training_run: Path | None = None
        self._listed: object = None  # content of the choices
        self.run = set_object_name(NoScrollComboBox(), "tryRun")
        self.checkpoint = set_object_name(NoScrollComboBox(), "tryCheckpoint")
        for combo in (self.run, self.checkpoint):
            combo.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
            combo.setMinimumContentsLength(6)
        self.transcript = Transcript(palette)
        self.status, self.copy = set_object_name(ElidedLabel(), "tryStatus"), push_button("tryCopy")
        layout = vertical_layout()
        layout.addLayout(horizontal_layout((self.run, 2), (self.checkpoint, 3)))
        layout.addWidget(self.transcript, 1)
        layout.addLayout(horizontal_layout((self.status, 1), self.copy))
        self.setLayout(layout)
        self.run.activated.connect(lambda: self.chosen.emit(self.run.currentData(), None))
        self.checkpoint.activated.connect(lambda: self.chosen.emit(session.run, self.checkpoint.currentData()))
        self.copy.clicked.connect(self._copy_newest)
        self.retranslate()

    def _copy_newest(self) -> None:
        """Copy the newest answer, or the newest continuation with its prompt."""
        turn = self._session.turns[-1]
        desktop_shell.copy_text(turn.text if turn.chat else turn.prompt + turn.text)

    def display(self, runs: Sequence[Path], training_run: Path | None) -> None:
        """Show the session. `runs`: that can be selected."""
        session, self._runs, self._training_run = self._session, runs, training_run
        self._list_choices(session)
        self.transcript.display(session.turns)
        turn = session.turns[-1] if session.turns else None
        self.copy.setEnabled(turn is not None and bool(turn.text))
        failure = session.format_failure()
        self.status.setText(failure or _format_status(session, turn))
        if self.status.property("level") != (level := "bad" if failure else ""):
            self.status.setProperty("level", level)
            restyle(self.status)

    def _list_choices(self, session: GenerationSession) -> None:
        """Fill the combo boxes, unless they are up to date or open."""
        listed = (self._runs, self._training_run, session.run, session.checkpoints, session.checkpoint)
        if listed == self._listed or self.run.view().isVisible() or self.checkpoint.view().isVisible():
            return
        self._listed = listed
        self.run.clear()
        for path in self._runs:
            is_training = path == self._training_run
            self.run.addItem(tr("playground.run_training", name=path.name) if is_training else path.name, path)
            self.run.setItemData(self.run.count() - 1, plain_tooltip(str(path)), Qt.ItemDataRole.ToolTipRole)
        self.run.setCurrentIndex(self._runs.index(session.run) if session.run in self._runs else -1)
        newest = tr("playground.newest_none")
        if session.checkpoints:
            newest = tr("playground.newest_checkpoint", checkpoint=_format_checkpoint(session.checkpoints[0]))
        choices: dict[Path | None, str] = {
            None: newest,
            **{info.path: _format_checkpoint(info) for info in session.checkpoints},
        }
        if session.checkpoint is not None:
            choices.setdefault(session.checkpoint, session.checkpoint.name)  # deleted in the meantime
        self.checkpoint.clear()
        for checkpoint, text in choices.items():
            self.checkpoint.addItem(text, checkpoint)
        self.checkpoint.setCurrentIndex(list(choices).index(session.checkpoint))
        for combo in (self.run, self.checkpoint):
            combo.setEnabled(combo.count() > 0 and session.run is not None)
            combo.setToolTip(plain_tooltip(combo.currentText()))

    def retranslate(self) -> None:
        self.run.setAccessibleName(tr("playground.run"))
        self.checkpoint.setAccessibleName(tr("playground.checkpoint"))
        self.transcript.setAccessibleName(tr("playground.transcript"))
        self.copy.setText(tr("playground.copy"))
        self.copy.setToolTip(tr("playground.copy_hint"))
        self.transcript.render_all()
        self._listed = None
        self.display(self._runs, self._training_run)


class Transcript(GeneratedTextView):
    """Prompts and generated texts, oldest first. New tokens are appended; other changes render everything anew."""

    def __init__(self, palette: Palette) -> None:
        super().__init__(palette, "transcript")
        self._turns: Sequence[Turn] = ()
        self._rendered: list[tuple[object, ...]] = []
        self._rendered_length = 0  # characters of the newest text

    def display(self, turns: Sequence[Turn]) -> None:
        """Update the text. Follow its end if the view is there, or if a turn was added."""
        self._turns = turns
        self.placeholder.setVisible(not turns)
        state: list[tuple[object, ...]] = [(turn, turn.step, turn.chat, turn.status) for turn in turns]
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4 or len(state) > len(self._rendered)
        if state != self._rendered:
            self._render()
            self._rendered = state
        elif turns and len(turns[-1].text) > self._rendered_length:
            cursor = QTextCursor(self.document())
            cursor.movePosition(QTextCursor.MoveOperation.End)
            cursor.insertText(turns[-1].text[self._rendered_length :], raw_char_format(self.colors.text))
        else:
            return
        self._rendered_length = len(turns[-1].text) if turns else 0
        if at_end:
            bar.setValue(bar.maximum())

    def render_all(self) -> None:
        """Render everything anew, after a change of colors or language."""
        self._rendered = []
        self.display(self._turns)

    def _render(self) -> None:
        cursor = self.begin()
        for turn in self._turns:
            self.append_text(cursor, _format_heading(turn), turn.prompt, turn.text, is_answer=turn.chat)
            if note := _format_ending(turn):
                self.append_note(cursor, note, self.colors.bad if turn.status == "failed" else self.colors.muted)
        cursor.endEditBlock()


def _format_heading(turn: Turn) -> str:
    """Step of the model and seed of a text."""
    seed = turn.sampling["seed"]
    if turn.step is None:
        return tr("playground.seed_seed", seed=seed)
    return tr("playground.step_and_seed", step=formatting.format_count(turn.step), seed=seed)


def _format_ending(turn: Turn) -> str:
    """Why a text could not be generated or ended before the model ended it, or empty."""
    match turn.status:
        case "length":
            return tr("playground.max_tokens_reached")
        case "interrupted":
            return tr("playground.stopped")
        case "failed" if turn.error:
            return formatting.localized_message(*turn.error)
    return ""


def _format_status(session: GenerationSession, turn: Turn | None) -> str:
    """Tokens, speed, device, and whether the context was truncated."""
    loaded: protocol.ModelLoaded | None = session.loaded
    if session.state == "loading":
        return tr("playground.loading_the_model")
    if turn is None or not turn.tokens:
        return ""
    count, rate = formatting.format_count, formatting.format_rate(turn.tokens_per_s)
    parts = [tr("playground.speed", tokens=count(turn.tokens), rate=rate)]
    if loaded is not None:
        parts.append(formatting.format_device(loaded.device))
        if turn.prompt_tokens >= loaded.max_seq_len:
            seen, given = count(loaded.max_seq_len - 1), count(turn.prompt_tokens)
            parts.append(tr("playground.context_truncated", seen=seen, given=given))
    return " · ".join(parts)


def _format_checkpoint(info: CheckpointInfo) -> str:
    """`Step 400 · final · loss 3.402`."""
    kind = "" if info.kind == "regular" else formatting.format_checkpoint_kind(info.kind)
    parts = [tr("common.step", step=formatting.format_count(info.step)), kind]
    if info.eval_loss is not None:
        parts.append(tr("playground.loss", loss=formatting.format_loss(info.eval_loss)))
    return " · ".join(filter(None, parts))
