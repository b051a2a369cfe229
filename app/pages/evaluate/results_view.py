"""Result of an evaluation: scores of each model, and the rows with their answers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QTextCursor
from PySide6.QtWidgets import QSizePolicy, QTextEdit

from app.core.evaluations import FILTERS, MAX_ROWS, EvaluatedAnswer, EvaluatedRow, read_row, read_rows
from app.core.pool_task import PoolTask
from app.texts import current_language, tr
from app.theme.palette import SPACING, Palette
from app.widgets.basic import (
    TranslatableWidget,
    horizontal_layout,
    label,
    placeholder_label,
    plain_tooltip,
    restyle,
    set_object_name,
    vertical_layout,
)
from app.widgets.checkpoint_choice import narrow_combo
from app.widgets.formatting import format_loss
from app.widgets.raw_text import char_format, raw_char_format, set_raw_text_font
from app.widgets.splitter import KeyboardSplitter
from app.widgets.table import Column, Index, Role, RowTable, TableModel, number_column
from trainer_core.console.evaluation import SCORES, format_gains, format_notes, format_score, measured_scores
from trainer_core.protocol import Evaluation, ModelScores

_ROWS_HEIGHT: Final = 170  # pixels, at least
_TEXT_HEIGHT: Final = 90  # pixels, at least
_WIDTHS: Final = {"loss": 164, "perplexity": 158, "exact_match": 150, "judge": 150}  # pixels, of columns


def model_name(name: str) -> str:
    """Translated name of a model, with a capital letter."""
    return _capitalize(tr(f"console.evaluation.name.{name}"))


def _capitalize(text: str) -> str:
    return text.capitalize() if text.islower() else text  # chrF stays


class ScoresModel(TableModel[ModelScores]):
    """Scores of models with their confidence intervals."""

    def __init__(self) -> None:
        columns: dict[str, Column[ModelScores]] = {
            "name": Column("console.evaluation.column.name", lambda one: model_name(one.name), 150)
        }
        for name in SCORES:
            title, text = f"console.evaluation.column.{name}", partial(format_score, name=name)
            columns[name] = number_column(title, text, _WIDTHS.get(name, 130))
        super().__init__(columns, lambda one: one.name)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        value = super().headerData(section, orientation, role)
        return _capitalize(value) if isinstance(value, str) else value


class RowsModel(TableModel[EvaluatedRow]):
    """Rows with the answers of the first and the last model: base and tuned."""

    def __init__(self, palette: Palette) -> None:
        columns: dict[str, Column[EvaluatedRow]] = {
            "prompt": Column("evaluate.prompt", lambda row: _one_line(row.prompt)),
            "reference": Column("evaluate.reference", lambda row: _one_line(row.reference)),
            "first": Column("", lambda row: format_answer(row.first)),
            "last": Column("", lambda row: format_answer(row.last)),
        }
        super().__init__(columns, lambda row: row.offset)
        self.palette = palette
        self.models = {"first": "base", "last": "tuned"}  # names of the models in these columns
        self.has_answers = True  # the rows are prompts, not texts

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:  # noqa: N802 - Qt's name
        name = self.names[section]
        if orientation is Qt.Orientation.Horizontal and role == Role.DisplayRole:
            if name in self.models:
                return model_name(self.models[name])
            if name == "prompt" and not self.has_answers:
                return tr("evaluate.text")
        return super().headerData(section, orientation, role)

    def data(self, index: Index, role: int = 0) -> Any:
        row, name = self.rows[index.row()], self.names[index.column()]
        if role == Role.ToolTipRole:
            return plain_tooltip(self.columns[name].text(row))
        if role == Role.ForegroundRole and name in self.models:
            is_right = (row.first if name == "first" else row.last).is_right
            return None if is_right is None else QColor(self.palette.good if is_right else self.palette.bad)
        return super().data(index, role)


class ResultsView(TranslatableWidget):
    """Displays an evaluation and its file of rows; None: a hint."""

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self._event: Evaluation | None = None
        self._path = Path()
        self._rows: list[EvaluatedRow] = []
        self._read_error = ""
        self._palette = palette
        self._read_task = PoolTask(self)
        self.verdict, self.notes = label("verdict", wrap=True), label("muted", wrap=True)
        self.scores = RowTable(ScoresModel(), "evaluationScores", row_padding=SPACING // 2)
        self.scores.setSelectionMode(RowTable.SelectionMode.SingleSelection)
        self.filter, self.filter_label, self.count = narrow_combo("evaluationFilter"), label(), label("muted")
        self.filter.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.filter_label.setBuddy(self.filter)
        self.rows_model = RowsModel(palette)
        self.table = RowTable(self.rows_model, "evaluationRows", row_padding=SPACING // 2)
        self.table.setSelectionMode(RowTable.SelectionMode.SingleSelection)
        self.table.setMinimumHeight(_ROWS_HEIGHT)
        self.text = set_object_name(QTextEdit(readOnly=True, undoRedoEnabled=False), "evaluationRow")
        self.text.setMinimumHeight(_TEXT_HEIGHT)
        self.text.setTabChangesFocus(True)
        set_raw_text_font(self.text)
        self.empty, self.no_row = placeholder_label(self.table), placeholder_label(self.text)
        self._arrange()
        self.filter.activated.connect(self._filter)
        self.table.selection_changed.connect(self._show_row)
        self._read_task.finished.connect(self._on_rows)
        self.retranslate()

    def _arrange(self) -> None:
        self._splitter = KeyboardSplitter(Qt.Orientation.Vertical, SPACING)
        self._splitter.addWidget(self.table)
        self._splitter.addWidget(self.text)
        self._splitter.setStretchFactor(0, 2)
        self._splitter.setStretchFactor(1, 1)
        self._splitter.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Ignored)
        self._splitter.setMinimumHeight(_ROWS_HEIGHT + SPACING + _TEXT_HEIGHT)
        row = horizontal_layout(self.filter_label, self.filter, self.count)
        row.addStretch(1)
        layout = vertical_layout()
        for widget in (self.verdict, self.scores, self.notes):
            layout.addWidget(widget)
        layout.addLayout(row)
        layout.addWidget(self._splitter, 1)
        self.setLayout(layout)

    # --- evaluations --------------------------------------------------------------------------------------------

    def display(self, path: Path, event: Evaluation | None) -> None:
        """Show an evaluation. `path`: of its rows, which are read in the thread pool."""
        if (path, event) == (self._path, self._event):
            return
        self._path, self._event, self._rows, self._read_error = path, event, [], ""
        self._list_filters()
        self._render()
        if event is not None:
            self._read_task.start(partial(_read, path))

    def _on_rows(self, result: tuple[Path, list[EvaluatedRow], str]) -> None:
        path, rows, error = result
        if path == self._path:
            self._rows, self._read_error = rows, error
            self._filter()

    def _list_filters(self) -> None:
        """Of texts all rows are shown; of a single model no differences."""
        event = self._event
        names = list(FILTERS)
        if event is None or event.task == "pretrain":
            names = ["all"]
        elif len(event.scores) == 1:
            names = ["wrong", "all"]
        self.filter.clear()
        for name in names:
            self.filter.addItem("", name)
        self.filter.setCurrentIndex(0 if len(names) != 2 else 1)

    def _filter(self) -> None:
        shown = [row for row in self._rows if FILTERS[self.filter.currentData()](row)]
        self.rows_model.set_rows(shown)
        self.table.viewport().update()
        key = "evaluate.first_rows" if len(self._rows) == MAX_ROWS else "evaluate.row_count"
        self.count.setText(tr(key, shown=len(shown), rows=len(self._rows)) if self._rows else "")
        if self._event is None:
            self.empty.setText(tr("evaluate.empty"))
        else:
            self.empty.setText(self._read_error or tr("evaluate.no_rows"))
        self.empty.setVisible(not shown)
        self._show_row()

    def _show_row(self) -> None:
        """The whole texts of the selected row."""
        self.text.clear()
        selected = next(iter(self.table.selected_rows()), None)
        self.no_row.setVisible(selected is None)
        if selected is None:
            return
        try:
            row = read_row(self._path, selected.offset)
        except OSError:
            row = None
        cursor = QTextCursor(self.text.document())
        for title, text in _sections(row or selected):
            cursor.insertText(f"{title}\n", char_format(self._palette.muted, bold=True))
            cursor.insertText(f"{text}\n", raw_char_format(self._palette.text))
        self.text.moveCursor(QTextCursor.MoveOperation.Start)

    # --- display ------------------------------------------------------------------------------------------------

    def _render(self) -> None:
        event = self._event
        for widget in (self.verdict, self.scores, self.notes, self.filter, self.filter_label, self.count, self.text):
            widget.setVisible(event is not None)
        if event is not None:
            self._render_scores(event)
            names = [one.name for one in event.scores]
            self.rows_model.models = {"first": names[0], "last": names[-1]}
            self.rows_model.has_answers = event.task == "sft"
            self.table.setColumnHidden(self.rows_model.names.index("first"), len(names) == 1)
            self.table.setColumnHidden(self.rows_model.names.index("reference"), event.task == "pretrain")
            params = {"first": model_name(names[0]), "last": model_name(names[-1])}
            for index in range(self.filter.count()):
                self.filter.setItemText(index, tr(f"evaluate.filter.{self.filter.itemData(index)}", **params))
        self.table.retranslate()
        self._filter()

    def _render_scores(self, event: Evaluation) -> None:
        model, measured = self.scores.row_model, measured_scores(event)
        model.set_rows(event.scores)
        for section, name in enumerate(model.names):
            self.scores.setColumnHidden(section, name in SCORES and name not in measured)
        header, row = self.scores.horizontalHeader().sizeHint().height(), self.scores.rowHeight(0)
        bar = self.scores.horizontalScrollBar().sizeHint().height()
        self.scores.setFixedHeight(header + row * len(model.rows) + bar + 2)
        self.scores.retranslate()
        gains, gain = format_gains(event, current_language()), event.scores[-1].gain
        self.verdict.setVisible(bool(gains))
        self.verdict.setText(_start_upper(gains[-1]) if gains else "")
        if gain is not None:
            self.verdict.setProperty("level", "good" if gain.low > 0 else "bad" if gain.high < 0 else "warn")
            restyle(self.verdict)
        self.notes.setText(" · ".join([*gains[:-1], *format_notes(event, current_language())]))

    def retheme(self, palette: Palette) -> None:
        self._palette = self.rows_model.palette = palette
        self._render()

    def retranslate(self) -> None:
        self.scores.setAccessibleName(tr("evaluate.scores"))
        self.table.setAccessibleName(tr("evaluate.rows_title"))
        self.text.setAccessibleName(tr("evaluate.row_texts"))
        self.no_row.setText(tr("evaluate.select_row"))
        self.filter_label.setText(tr("evaluate.show"))
        self._splitter.set_handle_name(tr("evaluate.splitter"))
        if not self.filter.count():
            self._list_filters()
        self._render()


def format_answer(answer: EvaluatedAnswer) -> str:
    """`✓ 470`; of a text its loss."""
    if answer.is_right is None:
        return format_loss(answer.loss)
    return f"{'✓' if answer.is_right else '✗'} {_one_line(answer.text)}"


def _start_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _sections(row: EvaluatedRow) -> list[tuple[str, str]]:
    """Titles and texts of a row."""
    if row.last.is_right is None:
        sections = [(tr("evaluate.text"), row.prompt)]
    else:
        sections = [(tr("evaluate.prompt"), row.prompt), (tr("evaluate.reference"), row.reference)]
    for name, answer in row.answers.items():
        mark = "" if answer.is_right is None else tr("evaluate.right" if answer.is_right else "evaluate.wrong")
        text = format_loss(answer.loss) if answer.is_right is None else answer.text
        sections.append((" · ".join(filter(None, (model_name(name), mark))), text))
    return sections


def _read(path: Path) -> tuple[Path, list[EvaluatedRow], str]:
    try:
        return path, read_rows(path), ""
    except OSError as error:
        return path, [], tr("evaluate.not_readable", path=path, reason=error.strerror or error)
