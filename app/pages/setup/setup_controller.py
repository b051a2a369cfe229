"""Onboarding steps, navigation to fields, undo and redo, dropped files, and checks of the chosen data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication

from app.core.active_run import ActiveRun
from app.core.history.run_list import RunList
from app.core.installation import installation
from app.core.run_state import RunState
from app.core.settings import Settings
from app.core.sources import BUILTIN_PREFIX, inspect_tokenizer
from app.knob_texts import knob_label
from app.pages.setup.form import VALIDATION, SetupForm, StartBlocker
from app.pages.setup.onboarding_bar import OnboardingStep
from app.pages.setup.path_monitor import PathMonitor
from app.pages.setup.texts import format_run_length
from app.services.preview_job import CheckJob, DataPreviewJob
from app.texts import tr
from app.window.drop_target import DropIndicator
from app.window.main_window import MainWindow
from trainer_core.config import knobs

if TYPE_CHECKING:
    from app.pages.setup.model_list import ModelRow


class SetupController(QObject):
    """Connects the form to the window. `display` updates what depends on the state of the run and its data."""

    def __init__(
        self,
        form: SetupForm,
        window: MainWindow,
        settings: Settings,
        active_run: ActiveRun,
        check_job: CheckJob,
        preview_job: DataPreviewJob,
        *,
        start_run: Callable[[], None],
        find_blocker: Callable[[], StartBlocker | None],
        history: RunList,
    ) -> None:
        super().__init__(window)
        self._form, self._window, self._settings, self._active_run = form, window, settings, active_run
        self._check_job, self._preview_job = check_job, preview_job
        self._start_run, self._find_blocker, self._history = start_run, find_blocker, history
        self._data_monitors = [window.setup.data.monitor, window.setup.validation.monitor]
        self._tokenizer_monitor = PathMonitor(
            self,
            form,
            "tokenizer",
            lambda: form.text("tokenizer").strip().splitlines(),
            inspect_tokenizer,
            lambda _: tr("setup.tokenizer_not_found"),
        )
        self._run_finished = False  # and the form has not changed since
        self.drop_indicator = DropIndicator(window, window.setup.validation)
        self._connect()

    def start(self) -> None:
        """Check the files that the form names. Called after the first paint."""
        for monitor in (*self._data_monitors, self._tokenizer_monitor):
            monitor.start()
        self._window.setup.model.monitor.start()

    def _connect(self) -> None:
        window, form, onboarding = self._window, self._form, self._window.setup.onboarding
        onboarding.step_clicked.connect(self._on_step)
        onboarding.close_button.clicked.connect(lambda: self.show_onboarding_steps(False))
        self.show_onboarding_steps(self._settings.path)
        window.run_bar.show_reason_clicked.connect(self.reveal_blocking_field)
        window.setup.model.list_requested.connect(self.open_model_list)
        window.setup.data.preview_button.clicked.connect(self.inspect_data)
        self.drop_indicator.dropped.connect(form.add_data)
        self.drop_indicator.dropped_for_validation.connect(form.add_validation_data)
        for dropped in (self.drop_indicator.dropped, self.drop_indicator.dropped_for_validation):
            dropped.connect(window.activateWindow)
        for monitor in self._data_monitors:
            monitor.changed.connect(self.display)
            # Previews and checks are of the earlier files.
            monitor.files_changed.connect(self._preview_job.expire_result)
            monitor.files_changed.connect(self._check_job.expire_result)
        QGuiApplication.instance().applicationStateChanged.connect(self._on_application_state)  # type: ignore[union-attr]
        self._active_run.ended.connect(self._on_run_ended)
        form.changed.connect(self._on_form_changed)
        form.undo_stack.indexChanged.connect(self._update_undo_actions)
        window.menus.connect_actions({
            "undo": form.undo_stack.undo,
            "redo": form.undo_stack.redo,
            "reset_all": form.reset,
            "add_files": window.setup.data.ask_files,
            "add_folder": window.setup.data.ask_folder,
            "look": self.inspect_data,
            "path": lambda: self.show_onboarding_steps(not self._settings.path),
        })  # fmt: skip

    # --- onboarding steps --------------------------------------------------------------------------------

    def display(self) -> None:
        """Update the onboarding steps, the field that prevents the start, the run length, and the undo actions."""
        blocker, setup = self._find_blocker(), self._window.setup
        step, hint, is_wrong = self._find_next_step(blocker)
        setup.onboarding.display(step, hint, is_wrong=is_wrong)
        setup.show_blocker(blocker)
        per_epoch = self._preview_job.samples_per_epoch()
        setup.length.setText("" if self._form.invalid_knobs else format_run_length(self._form.values(), per_epoch))
        self._update_undo_actions()

    def _find_next_step(self, blocker: StartBlocker | None) -> tuple[OnboardingStep, str, bool]:
        """Step to do next, a hint, and whether an error must be corrected."""
        verdict, monitors = self._check_job.verdict, self._data_monitors
        if self._active_run.machine.is_active:
            return "start", tr("setup.run_active"), False
        if not self._form.data:
            return "data", tr("setup.step_data"), False
        if blocker is not None:
            return "data" if blocker.field in ("data", VALIDATION) else "preset", blocker.text, True
        if self._preview_job.running is not None or monitors[0].is_pending:
            return "data", tr("setup.previewing_data"), False
        if failure := self._preview_job.failure:
            return "data", failure, True
        if self._check_job.running is not None:
            return "check", tr("setup.checking"), False
        if not installation.is_complete:
            return "check", tr("installation.step_start"), False
        if self._run_finished:
            return "start", tr("setup.step_trained"), False
        if not verdict:
            return "check", tr("setup.step_check"), False
        if verdict == "does_not_fit":
            return "check", tr("setup.step_does_not_fit"), True
        return "start", tr("setup.step_fits" if verdict == "fits" else "setup.step_tight"), False

    def show_onboarding_steps(self, shown: bool) -> None:
        self._settings.path = shown
        self._window.setup.onboarding.setVisible(shown)
        self._window.menus.actions["path"].setChecked(shown)

    def _on_step(self, step: str) -> None:
        blocker = self._find_blocker()
        if step in ("data", "preset"):
            self.reveal_field(blocker.field if blocker and step == "preset" and blocker.field in knobs() else step)
        elif blocker is not None:
            self.reveal_field(blocker.field)
        elif step == "check":
            self._check_job.start()
        else:
            self._start_run()

    def reveal_field(self, name: str) -> None:
        """Focus a field: `preset`, `data`, `name` or a setting."""
        if name and not self._window.setup.reveal(name):
            self._window.show_page("settings")
            self._window.advanced.reveal(name)

    def reveal_blocking_field(self) -> None:
        """Focus the field that prevents the start."""
        blocker = self._find_blocker()
        if blocker is not None:
            self.reveal_field(blocker.field)
            data = self._window.setup.data
            if blocker.field == "data" and data.monitor.result is not None:
                data.list.select_paths(data.monitor.result.missing)

    def _on_form_changed(self) -> None:
        self._run_finished = False

    def _on_run_ended(self) -> None:
        self._run_finished = self._active_run.machine.state is RunState.FINISHED
        self._window.setup.model.monitor.refresh()  # it may be the base model that the form names

    # --- model -----------------------------------------------------------------------------------------

    def list_runs(self) -> None:
        """Offer the runs that were found as base models."""
        self._window.setup.model.set_runs(self._history.runs)

    def open_model_list(self) -> None:
        """Choose the base model from a list."""
        from app.core.run_estimate import find_measurement  # imports that would delay the first paint
        from app.pages.setup.model_list import ModelListDialog, load_rows

        form, check, history = self._form, self._check_job, self._history
        measured = None if form.invalid_knobs else find_measurement(check.result, check.compute_key())
        folders, runs = self._settings.recent_models, [run.path for run in history.runs if run.checkpoints]
        load = partial(load_rows, folders, runs, form.text("method"), self._estimate_tokens(), measured)
        dialog = ModelListDialog(load, form.base_model, self._window)
        dialog.chosen.connect(self._use_model)
        dialog.open()

    def _estimate_tokens(self) -> float:
        """Tokens of the run; 0: not known."""
        from app.core.run_estimate import estimate_tokens

        form, preview, files = self._form, self._preview_job.result, self._data_monitors[0].result
        if form.invalid_knobs:
            return 0.0
        report = preview.report if preview is not None and preview.key.get("data") == form.data else None
        has_builtin = any(path.startswith(BUILTIN_PREFIX) for path in form.data)
        return estimate_tokens(form.values(), report, 0 if has_builtin or files is None else files.bytes)

    def _use_model(self, row: ModelRow) -> None:
        """Set the base model, and another method if this one does not fit."""
        values = {"base_model": row.model.name, "method": row.method}
        if values["method"] != "full" and self._form.text("optimizer") == "muon":
            values["optimizer"] = "adamw"  # muon does not train adapters
        self._form.set_values(values)

    # --- data ------------------------------------------------------------------------------------------

    def inspect_data(self) -> None:
        """Show a preview of the data."""
        self._window.show_page("data")
        self._preview_job.start()

    def _on_application_state(self, state: Qt.ApplicationState) -> None:
        """Check the data again when the window is activated: other programs rename and delete files."""
        if state is Qt.ApplicationState.ApplicationActive:
            for monitor in self._data_monitors:
                monitor.refresh()

    # --- undo ------------------------------------------------------------------------------------------

    def _update_undo_actions(self) -> None:
        stack, actions = self._form.undo_stack, self._window.menus.actions
        for name, change, text, full_key in (
            ("undo", stack.undoText(), tr("setup.undo"), "setup.undo_what"),
            ("redo", stack.redoText(), tr("setup.redo"), "setup.redo_what"),
        ):
            actions[name].setEnabled(bool(change))
            actions[name].setIconText(text)
            actions[name].setText(tr(full_key, what=_describe_change(change)) if change else text)


def _describe_change(change: str) -> str:
    keys = {
        "preset": "setup.step_name_preset",
        "data": "setup.step_name_data",
        "name": "setup.undo_run_name",
        "settings": "setup.undo_several",
    }
    return tr(keys[change]) if change in keys else knob_label(knobs()[change])
