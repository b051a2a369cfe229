"""Evaluate page: scores of a checkpoint beside those of its base model, and the rows where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtGui import QShowEvent

from app.core.evaluations import list_evaluations, prepare_base_model
from app.core.history.run_list import RunList
from app.core.installation import installation
from app.pages.evaluate.options_card import EvaluationOptionsCard
from app.pages.evaluate.results_view import ResultsView
from app.pages.page import Page, ShownRun
from app.pages.setup.form import SetupForm
from app.services import desktop_shell
from app.services.evaluation_job import EvaluationJob
from app.texts import tr
from app.theme.palette import SPACING, Palette
from app.widgets import formatting
from app.widgets.basic import (
    card,
    horizontal_layout,
    label,
    push_button,
    vertical_layout,
)
from app.widgets.checkpoint_choice import narrow_combo
from app.widgets.job_controls import JobControls
from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.protocol import Evaluation

_PROGRESS_WIDTH: Final = 160  # pixels


class EvaluatePage(Page):
    """Runs one evaluation at a time, and shows the evaluations of the selected run or of the form's base model."""

    _history: RunList  # set by `connect_services`
    _form: SetupForm

    def __init__(self, palette: Palette) -> None:
        super().__init__()
        self.job = EvaluationJob(parent=self)
        self.options, self.results = EvaluationOptionsCard(), ResultsView(palette)
        self.controls = JobControls("evaluate", _PROGRESS_WIDTH, self)
        self.start, self.stop, self.status = self.controls.start, self.controls.stop, self.controls.status
        self.evaluation, self.evaluation_label = narrow_combo("evaluation"), label()
        self.evaluation_label.setBuddy(self.evaluation)
        self.open_folder = push_button("evaluateOpenFolder")
        self._found: list[tuple[Path, Evaluation]] = []  # evaluations of the selected run
        self._run: Path | None = None  # whose evaluations are listed
        self._shown_run = self._applied_run = ""  # name of the run on display, now and at the last selection here
        self._follows_shown_run = True  # until the user selects or evaluates a checkpoint
        self._arrange()
        self.options.changed.connect(self._on_options)
        choice = self.options.choice
        for selected in (choice.run.activated, choice.checkpoint.activated, self.start.clicked):
            selected.connect(self._keep_selection)
        self.start.clicked.connect(self._start)
        self.stop.clicked.connect(self.job.stop)
        self.job.changed.connect(self._refresh)
        installation.changed.connect(self._refresh)
        self.evaluation.activated.connect(self._show_evaluation)
        self.open_folder.clicked.connect(self._open_folder)
        self.retranslate()

    def _arrange(self) -> None:
        form = vertical_layout()
        form.addWidget(self.options)
        row = horizontal_layout(self.start, self.stop, self.controls.progress, (self.status, 1))
        row.addStretch()  # while there is no status
        form.addLayout(row)
        layout = vertical_layout()
        layout.setContentsMargins(0, SPACING, 0, 0)
        layout.addWidget(card(form))
        layout.addLayout(horizontal_layout(self.evaluation_label, (self.evaluation, 1), self.open_folder))
        layout.addWidget(self.results, 1)
        self.setLayout(layout)

    def connect_services(self, history: RunList, form: SetupForm) -> None:
        self._history, self._form = history, form
        form.changed.connect(self.refresh_checkpoints)

    def shutdown(self) -> None:
        """End the process."""
        self.job.shutdown()

    # --- runs and evaluations ---------------------------------------------------------------------------------

    def show_run(self, run: ShownRun) -> None:
        self._shown_run = run.name

    def refresh_checkpoints(self) -> None:
        """List the form's base model, and the runs that have checkpoints. Called after each refresh of the run list."""
        if not self.isVisible() or self.job.is_running:
            return
        runs = [run.path for run in self._history.runs if run.checkpoints]
        self.options.choice.set_runs(runs, self._form.base_model if self._form.data else "")
        shown = next((path for path in runs if path.name == self._shown_run), None)
        if shown is not None and self._follows_shown_run and self._applied_run != self._shown_run:
            self._applied_run = self._shown_run
            self.options.choice.select(shown, None)
        self._refresh()  # what blocks a run of the form may have changed

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(event)
        self._follows_shown_run |= self._applied_run != self._shown_run
        self.refresh_checkpoints()

    def _keep_selection(self) -> None:
        """Keep what the user selected until the page is shown again with another run on display."""
        self._applied_run, self._follows_shown_run = self._shown_run, False

    def _on_options(self) -> None:
        if self.options.choice.selected_run != self._run:
            self._run = self.options.choice.selected_run
            self._list_evaluations()
        self._refresh()

    def _list_evaluations(self) -> None:
        """List the evaluations of the run and show the newest one."""
        self._found = list_evaluations(self._run) if self._run is not None else []
        self.evaluation.clear()
        for _, event in self._found:
            self.evaluation.addItem(_format_evaluation(event))
        self.evaluation.setCurrentIndex(0 if self._found else -1)
        self.evaluation.setEnabled(bool(self._found))
        self.evaluation.setToolTip("" if self._found else tr("disabled.no_evaluations"))
        self.open_folder.setEnabled(bool(self._found))
        self._show_evaluation()

    def _show_evaluation(self) -> None:
        index = self.evaluation.currentIndex()
        self.results.display(*self._found[index] if self._found else (Path(), None))

    def _open_folder(self) -> None:
        desktop_shell.open_folder(self._found[self.evaluation.currentIndex()][0].parent)

    # --- evaluating -------------------------------------------------------------------------------------------

    def _start(self) -> None:
        choice = self.options.choice
        if choice.is_base_model:
            self._start_base_model()
        elif choice.selected_checkpoint is not None:
            self.job.start(choice.selected_checkpoint, self.options.options)
        if self.job.is_running:
            self.stop.setFocus()

    def _start_base_model(self) -> None:
        form = self._form
        values = {**form.values(), "base_model": form.base_model, "data": form.data, "preset": form.preset.name}
        try:
            settings, results = prepare_base_model(Config(**values))
        except TraindeckError as error:
            self.controls.show_end(formatting.localized_message(error.code, error.params), "bad")
        else:
            self.job.start(settings, self.options.options, results)

    def _refresh(self) -> None:
        job, invalid = self.job, self._form.blocked_reason if self.options.choice.is_base_model else ""
        invalid = invalid or installation.missing_reason("all")
        blocked = tr("disabled.evaluating") if job.is_running else invalid or self.options.blocked_reason
        self.options.setEnabled(not job.is_running)
        if self.controls.display(job.is_running, job.shown_phase, job.fraction, blocked):
            self._show_end()

    def _show_end(self) -> None:
        if self.job.is_complete:
            self._list_evaluations()
            self.controls.show_end(tr("evaluate.done"))
        else:
            failure = self.job.failure
            self.controls.show_end(failure or tr("evaluate.stopped"), "bad" if failure else "")

    # --- theme and texts --------------------------------------------------------------------------------------

    def retheme(self, palette: Palette) -> None:
        self.results.retheme(palette)

    def retranslate(self) -> None:
        self.start.setText(tr("evaluate.start"))
        self.stop.setText(tr("export.stop"))
        self.controls.progress.setAccessibleName(tr("evaluate.progress"))
        self.evaluation_label.setText(tr("evaluate.evaluation"))
        self.evaluation.setPlaceholderText(tr("disabled.no_evaluations"))
        self.open_folder.setText(tr("export.open_folder"))
        for index, (_, event) in enumerate(self._found):
            self.evaluation.setItemText(index, _format_evaluation(event))
        self.controls.show_status("")
        self._refresh()


def _format_evaluation(event: Evaluation) -> str:
    """`21:56 · Step 300 · base, tuned · 200 rows`."""
    names = [tr(f"console.evaluation.name.{one.name}") for one in event.scores]
    step = Path(event.scores[-1].model).name.removeprefix("step-").lstrip("0")
    parts = [formatting.format_timestamp(event.t)]
    parts += [tr("common.step", step=formatting.format_count(int(step)))] if step.isdecimal() else []
    parts += [tr("common.list_separator").join(names) if len(names) > 1 else ""]
    parts += [tr("evaluate.count", rows=formatting.format_count(event.rows))]
    return " · ".join(filter(None, parts))
