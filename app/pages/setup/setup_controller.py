"""Onboarding steps, navigation to fields, undo and redo, dropped files, and checks of the chosen data."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QGuiApplication

from app.core.active_run import ActiveRun
from app.core.run_state import RunState
from app.core.settings import Settings
from app.core.sources import BUILTIN_PREFIX, inspect_tokenizer
from app.knob_texts import knob_label
from app.pages.setup.check_controller import CheckJob
from app.pages.setup.form import VALIDATION, SetupForm, StartBlocker
from app.pages.setup.onboarding_bar import NextStep
from app.pages.setup.path_monitor import PathMonitor
from app.pages.setup.source_lists import SourceEditor
from app.pages.setup.texts import format_run_length, format_source_summary
from app.services.preview_job import DataPreviewJob
from app.texts import tr
from app.window.drop_target import DropIndicator
from app.window.main_window import MainWindow
from trainer_core.config import knobs


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
    ) -> None:
        super().__init__(window)
        self._form, self._window, self._settings, self._active_run = form, window, settings, active_run
        self._check_job, self._preview_job = check_job, preview_job
        self._start_run, self._find_blocker = start_run, find_blocker
        self._monitors = {
            "data": self._create_source_monitor(lambda: form.data, window.setup.data),
            VALIDATION: self._create_source_monitor(lambda: form.validation_data, window.setup.validation),
        }
        self._tokenizer_monitor = PathMonitor(
            lambda: form.text("tokenizer").strip().splitlines(), self, inspect_tokenizer
        )
        self._run_finished = False  # and the form has not changed since
        self.drop_indicator = DropIndicator(window, window.setup.validation)
        self._connect()

    def _create_source_monitor(self, get_paths: Callable[[], list[str]], editor: SourceEditor) -> PathMonitor:
        """Monitor of the files in a list of sources, which displays their summary."""
        monitor = PathMonitor(lambda: [path for path in get_paths() if not path.startswith(BUILTIN_PREFIX)], self)

        def show_summary() -> None:
            editor.set_summary(monitor.result)
            self.display()

        monitor.changed.connect(show_summary)
        monitor.files_changed.connect(self._on_files_changed)
        return monitor

    def start(self) -> None:
        """Check the files that the form names. Called after the first paint."""
        self._update_monitors()
        self._form.changed.connect(self._update_monitors)
        self._form.data_changed.connect(self._on_data_changed)

    def _update_monitors(self) -> None:
        for monitor in self._monitors.values():
            monitor.update()
        self._tokenizer_monitor.update()

    def _on_data_changed(self) -> None:
        """Show the known summary in the list, which was filled anew, and inspect the same paths again."""
        monitor = self._monitors["data"]
        monitor.update()
        self._window.setup.data.set_summary(monitor.result)
        if not monitor.is_pending:
            monitor.refresh()

    def _connect(self) -> None:
        window, form, onboarding = self._window, self._form, self._window.setup.onboarding
        onboarding.step_clicked.connect(self._on_step)
        onboarding.closed.connect(lambda: self.show_onboarding_steps(False))
        onboarding.setVisible(self._settings.path)
        window.run_bar.show_reason_clicked.connect(self.reveal_blocking_field)
        window.setup.data.preview_requested.connect(self.inspect_data)
        self.drop_indicator.dropped.connect(form.add_data)
        self.drop_indicator.dropped_for_validation.connect(form.add_validation_data)
        for dropped in (self.drop_indicator.dropped, self.drop_indicator.dropped_for_validation):
            dropped.connect(window.activateWindow)
        self._tokenizer_monitor.changed.connect(self._on_tokenizer_checked)
        QGuiApplication.instance().applicationStateChanged.connect(self._on_application_state)  # type: ignore[union-attr]
        self._active_run.ended.connect(self._on_run_ended)
        for job in (self._preview_job, self._check_job):
            job.process.finished.connect(lambda *_: self.display())
        form.changed.connect(self._on_form_changed)
        form.undo_stack.indexChanged.connect(self._update_undo_actions)
        window.menus.actions["path"].setChecked(self._settings.path)
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
        blocker = self._find_blocker()
        self._window.setup.onboarding.display(self._find_next_step(blocker))
        self._window.setup.show_blocker(blocker)
        self._window.setup.length.setText(self._format_length())
        self._update_undo_actions()

    def _find_next_step(self, blocker: StartBlocker | None) -> NextStep:
        verdict = self._check_job.verdict
        if self._active_run.machine.is_active:
            return NextStep("start", tr("setup.run_active"))
        if not self._form.data:
            return NextStep("data", tr("setup.step_data"))
        if self._form.preset is None:
            return NextStep("preset", tr("setup.step_preset"))
        if blocker is not None:
            return NextStep("data" if blocker.field in self._monitors else "preset", blocker.text, is_wrong=True)
        if self._preview_job.running is not None or self._monitors["data"].is_pending:
            return NextStep("data", tr("setup.previewing_data"))
        if failure := self._preview_job.format_failure():
            return NextStep("data", failure, is_wrong=True)
        if self._check_job.running is not None:
            return NextStep("check", tr("setup.checking"))
        if self._run_finished:
            return NextStep("start", tr("setup.step_trained"))
        if verdict is None:
            return NextStep("check", tr("setup.step_check"))
        if verdict == "does_not_fit":
            return NextStep("check", tr("setup.step_does_not_fit"), is_wrong=True)
        fits = verdict == "fits"
        return NextStep("start", tr("setup.step_fits" if fits else "setup.step_tight"))

    def _format_length(self) -> str:
        if self._form.invalid_knobs or self._form.preset is None:
            return ""
        return format_run_length(self._form.values(), self._preview_job.samples_per_epoch())

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
            if blocker.field == "data" and (summary := self._monitors["data"].result) is not None:
                self._window.setup.data.list.select_paths(summary.missing)

    def _on_form_changed(self) -> None:
        self._run_finished = False

    def _on_run_ended(self) -> None:
        self._run_finished = self._active_run.machine.state is RunState.FINISHED

    # --- data ------------------------------------------------------------------------------------------

    def inspect_data(self) -> None:
        """Show a preview of the data."""
        self._window.show_page("data")
        self._preview_job.start()

    def _on_application_state(self, state: Qt.ApplicationState) -> None:
        """Check the data again when the window is activated: other programs rename and delete files."""
        if state is Qt.ApplicationState.ApplicationActive and not self._monitors["data"].is_pending:
            for monitor in self._monitors.values():
                monitor.refresh()

    def _on_files_changed(self) -> None:
        """Previews and checks are of the earlier files."""
        self._preview_job.expire_result()
        self._check_job.expire_result()

    def _on_tokenizer_checked(self) -> None:
        monitor = self._tokenizer_monitor
        self._form.set_missing_tokenizer(monitor.paths[0] if monitor.has_problem else "")

    def find_missing_data(self) -> StartBlocker | None:
        """Sources that do not exist; None if all do, or if that is not known yet."""
        for field, monitor in self._monitors.items():
            if monitor.has_problem:
                return StartBlocker(format_source_summary(monitor.result, monitor.paths)[0], field)
        return None

    # --- undo ------------------------------------------------------------------------------------------

    def _update_undo_actions(self) -> None:
        stack, actions = self._form.undo_stack, self._window.menus.actions
        for name, change, text, full_key in (
            ("undo", stack.undoText(), tr("setup.undo"), "setup.undo_what"),
            ("redo", stack.redoText(), tr("setup.redo"), "setup.redo_what"),
        ):
            actions[name].setEnabled(bool(change))
            actions[name].setIconText(text)
            actions[name].setText(tr(full_key, what=self._describe_change(change)) if change else text)

    def _describe_change(self, change: str) -> str:
        texts = {
            "preset": tr("setup.step_name_preset"),
            "data": tr("setup.step_name_data"),
            "name": tr("setup.undo_run_name"),
            "settings": tr("setup.undo_several"),
        }
        return texts.get(change) or knob_label(knobs()[change])
