"""Composition root: builds the window, its services and controllers, and connects them.

Signals go up from views and processes; `render` passes state down, from one timer.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QObject, QTimer
from PySide6.QtGui import QGuiApplication

from app.core import command_line
from app.core.active_run import ActiveRun
from app.core.command_line import SHELLS, Shell
from app.core.history.run_list import RunList
from app.core.idle_task import IdleTask
from app.core.installation import installation
from app.core.refresh_throttle import RefreshThrottle
from app.core.run_loader import RunRecord
from app.core.run_state import RunState
from app.core.settings import SettingsStore
from app.help.help_controller import HelpController
from app.pages.page import ShownRun
from app.pages.queue.queue_controller import QueueController
from app.pages.setup.form import SetupForm, StartBlocker
from app.pages.setup.machine_controller import MachineController
from app.pages.setup.setup_controller import SetupController
from app.services import desktop_shell
from app.services.preview_job import CheckJob, DataPreviewJob
from app.services.trainer_process import TrainerProcess, console_interpreter
from app.texts import Translator, tr
from app.theme import style
from app.widgets import formatting
from app.window import window_state
from app.window.appearance_controller import AppearanceController
from app.window.banner_controller import BannerController
from app.window.close_controller import CloseController
from app.window.desktop_controller import DesktopStatusController
from app.window.finished_run import FinishedRunOffer
from app.window.main_window import MainWindow
from app.window.notification_controller import Notifier
from app.window.run_viewer import RunViewer, ViewedRun
from trainer_core import presets, protocol
from trainer_core.protocol import AnyEvent
from trainer_core.runs.run_dir import home, new_run_path, runs_root, safe_name

if TYPE_CHECKING:
    from app.window.installation_controller import InstallationController

_HIDDEN_REFRESH_MS: Final = 1000
_RUNS_REFRESH_MS: Final = 5000  # interval of listing the runs folder


class Controller(QObject):
    """One window, which trains at most one run."""

    def __init__(
        self,
        settings_store: SettingsStore,
        translator: Translator,
        process: TrainerProcess | None = None,
        preview_process: TrainerProcess | None = None,
        check_process: TrainerProcess | None = None,
    ) -> None:
        super().__init__()
        self._settings_store = settings_store
        self._settings = settings_store.settings
        self.installer: InstallationController | None = None  # of an environment that is not complete or current
        self.restart_arguments: list[str] | None = None  # to start the launcher with after the window has closed
        installation.read()
        self._first_paint_done = False
        self.form = SetupForm(self)
        self.preview_job = DataPreviewJob(self.form, preview_process)
        self.check_job = CheckJob(self.form, check_process)
        self.active_run = ActiveRun(process, self)
        self._history = RunList(runs_root())
        self._list_task = IdleTask(self)  # reads the list of runs: a thousand take seconds the first time
        self.window = window = MainWindow(self.form, self.check_job, style.resolve_theme(self._settings.theme))
        self._banner_controller = BannerController(window.banners, self.active_run)
        show_error = self._banner_controller.show_error
        self.queue_controller = QueueController(self.form, self.active_run, self._history, show_error)
        self._run_viewer = RunViewer(window, self._history, self.active_run, self._settings, show_error)
        self._finished_run = FinishedRunOffer(window, self.active_run)
        self.open_run, self.resume_run = self._run_viewer.open, self._run_viewer.resume
        self.appearance_controller = AppearanceController(window, self._settings, translator)
        self.set_language = self.appearance_controller.set_language
        self.set_theme = self.appearance_controller.set_theme
        self.desktop_status = DesktopStatusController(window, self.active_run)
        self._close_controller = CloseController(
            window, self.active_run, self.queue_controller, self.desktop_status, self._close
        )
        self._close_controller.cancelled.connect(self._cancel_restart)
        self.help_controller = HelpController(window, self._settings_store.path, self._shown_run_path)
        self.help_controller.restart_requested.connect(self._restart)
        self.notifier = Notifier(window, self.active_run, self.desktop_status, self._settings)
        self.setup_controller = SetupController(
            self.form, window, self._settings, self.active_run, self.check_job, self.preview_job,
            start_run=self.start_run, find_blocker=self._find_blocker, history=self._history,
        )  # fmt: skip
        self.machine_controller = MachineController(self.form, window, self._settings, self._settings_store.save)
        self._refresh_throttle = RefreshThrottle()
        self._timer = QTimer(self, interval=self._refresh_throttle.interval_ms)
        self._timer.timeout.connect(self._on_tick)
        self._runs_timer = QTimer(self, interval=_RUNS_REFRESH_MS)
        self._runs_timer.timeout.connect(self._refresh_runs)
        self._connect_run()
        self._connect_window()

    def start(self) -> None:
        """Restore the settings and show the window. The rest follows after the first paint."""
        self._restore()
        self.render()
        self.window.first_painted.connect(self._after_first_paint)
        self.window.show()

    def _after_first_paint(self) -> None:
        self.window.build_remaining_pages(self._settings)
        self._connect_pages()
        self._build_welcome_page()
        self._first_paint_done = True
        self.window.setup.presets.set_presets([presets.load(name) for name in presets.names()])
        self.queue_controller.open()
        update_reason = os.environ.get("TRAINDECK_UPDATE", "")  # set by the launcher
        if update_reason or not installation.is_complete:
            self._complete_installation(update_reason)
        self._refresh_runs()
        self.setup_controller.start()
        self.render()
        self._timer.start()
        self._runs_timer.start()

    def _complete_installation(self, update_reason: str) -> None:
        from app.window.installation_controller import InstallationController

        installer = InstallationController(self.window, self.active_run, self.queue_controller, self._probe)
        installer.changed.connect(self.render)
        installer.restart_requested.connect(partial(self._restart, []))
        self._list_task.finished.connect(lambda: installer.on_runs_listed(self._history.runs))
        self.installer = installer
        installer.start(update_reason)

    def _restart(self, arguments: list[str]) -> None:
        self.restart_arguments = arguments
        self.window.close()

    def _cancel_restart(self) -> None:
        self.restart_arguments = None

    def _build_welcome_page(self) -> None:
        from app.pages.welcome.page import WelcomePage
        from app.services.gpu_probe import GpuProbe

        run, probe = self.active_run, GpuProbe(self)
        self._probe = probe
        self.welcome_page = WelcomePage(
            self.window, self.form, self._settings, self._history, run, probe, self.start_run
        )
        for shown in (run.about_to_start, run.event_received, self._run_viewer.opened):
            shown.connect(self.welcome_page.show_plots)
        self.welcome_page.open_if_first_run()
        probe.completed.connect(self.window.setup.presets.show_machine)
        probe.completed.connect(self.window.chat.models.set_machine)
        probe.start()

    # --- connections ---------------------------------------------------------------------------------------

    def _connect_run(self) -> None:
        run, queue = self.active_run, self.queue_controller
        self.form.changed.connect(self.render)
        for job in (self.preview_job, self.check_job):
            job.changed.connect(self.render_run_bar)
        run.about_to_start.connect(self._on_run_starting)
        run.event_received.connect(self._on_event)
        run.state_changed.connect(self.render)
        run.ended.connect(self._on_run_ended)
        self._run_viewer.changed.connect(self.render)
        self._list_task.finished.connect(self._run_viewer.offer_interrupted)
        self._list_task.finished.connect(self.setup_controller.list_runs)
        queue.message_ready.connect(self.window.run_bar.show_queue_message)
        queue.changed.connect(lambda: self.window.set_queue_count(len(queue.queue.waiting)))
        queue.held_after_failure.connect(lambda: self.notifier.notify(tr("window.queue_paused")))
        queue.emptied.connect(lambda: self.notifier.notify(tr("window.queue_finished"), warning=False))

    def _connect_window(self) -> None:
        window, run = self.window, self.active_run
        window.restart_bar.buttons["restartNow"].clicked.connect(run.restart_now)
        window.restart_bar.buttons["cancelRestart"].clicked.connect(run.cancel_restart)
        window.menus.connect_actions({f"copy_{shell}": partial(self.copy_command, shell) for shell in SHELLS})
        window.menus.connect_actions({
            "start": self.start_run,
            "add_to_queue": self.queue_controller.add,
            "sweep": self._open_sweep_dialog,
            "check": self.check_job.start,
            "pause": run.pause,
            "resume": run.resume,
            "stop": run.stop,
            "save": lambda: run.process.send(protocol.Save()),
            "sample": window.generate_sample,
            "run_folder": lambda: desktop_shell.open_folder(self._shown_run_path() or self._history.root),
            "runs_folder": lambda: desktop_shell.open_folder(self._history.root),
            "notifications": self.notifier.toggle,
        })  # fmt: skip
        self.appearance_controller.changed.connect(self.render)
        self.appearance_controller.changed.connect(self._save_settings)

    def _connect_pages(self) -> None:
        # Imported after the first paint.
        from app.core.conversation_store import ConversationStore
        from app.pages.plots.plot_export_controller import PlotExportController
        from app.services.tensorboard import TensorBoard

        window, run = self.window, self.active_run
        self.plot_export_controller = PlotExportController(window.plots, window.banners, self)
        window.runs.connect_services(self._history, self.active_run, window.plots)
        window.runs.open_requested.connect(self.open_run)
        window.runs.resume_requested.connect(self.resume_run)
        window.runs.generate_requested.connect(self._open_in_chat)
        window.runs.export_requested.connect(self._open_in_export)
        self.tensorboard = TensorBoard(self._history.root, self)
        self.tensorboard.failed.connect(self._banner_controller.show_error)
        window.runs.tensorboard_requested.connect(self.tensorboard.show)
        window.menus.connect_actions(
            {"tensorboard": lambda: self.tensorboard.show([self._shown_run_path() or self._history.root])}
        )
        window.plots.tensorboard_button.clicked.connect(window.menus.actions["tensorboard"].trigger)
        window.runs.folders.closing.connect(self._run_viewer.on_folder_closing)
        window.runs.folders.closing.connect(self.tensorboard.shutdown)  # it keeps files of all runs open
        window.runs.folders.moved.connect(self.queue_controller.on_run_moved)
        window.runs.folders.moved.connect(window.chat.models.on_run_moved)
        self._list_task.finished.connect(window.runs.on_runs_listed)
        window.queue.connect_queue(self.queue_controller)
        window.queue.open_requested.connect(self.open_run)
        window.queue.resume_requested.connect(self.resume_run)
        window.queue.compare_requested.connect(self._compare_on_plots)
        window.data.connect_job(self.preview_job)
        store = ConversationStore(self._settings_store.path.parent / "conversations")
        window.chat.connect_services(run, self._history, self._settings, store)
        window.chat.save_requested.connect(lambda: run.process.send(protocol.Save()))
        window.chat.samples.sample_requested.connect(
            lambda prompt: run.process.send(protocol.SampleCommand(prompt=prompt))
        )
        self._list_task.finished.connect(window.chat.models.refresh_checkpoints)
        window.evaluate.connect_services(self._history, self.form)
        self._list_task.finished.connect(window.evaluate.refresh_checkpoints)
        window.export.connect_services(self._history, self._settings)
        self._list_task.finished.connect(window.export.refresh_checkpoints)
        window.page_shown.connect(lambda page: self._refresh_runs() if page == "runs" else self.render())

    def _open_in_chat(self, checkpoint: Path) -> None:
        self.window.chat.select_model(checkpoint.parent.parent, checkpoint)
        self.window.show_page("chat")

    def _open_in_export(self, checkpoint: Path) -> None:
        self.window.export.select_checkpoint(checkpoint)
        self.window.show_page("export")

    def _open_sweep_dialog(self) -> None:
        self.window.show_page("queue")
        self.window.queue.open_sweep_dialog()

    def _compare_on_plots(self, paths: list[Path]) -> None:
        """Overlay these runs on the plots, in place of others."""
        self.window.runs.clear_overlays()
        self.window.runs.set_overlay_shown(paths, on=True)
        self.window.show_page("plots")

    # --- the active run --------------------------------------------------------------------------------------

    def start_run(self) -> None:
        """Start a run with the configuration of the form."""
        if not self._first_paint_done or not self.active_run.machine.can_start or self._blocked_text():
            return
        if self.installer is not None and self.installer.queue_start():
            return
        name = safe_name(self.form.run_name)
        path = self._history.root / name if name else new_run_path(self._history.root, self.form.preset.name)
        for source in self.form.data:
            if not source.startswith("builtin:"):
                self._settings.add_recent_data(source)
        self.window.setup.data.recent = self._settings.recent_data
        if Path(self.form.base_model).is_absolute():
            self._settings.add_recent_model(self.form.base_model)
        self.active_run.start(self._train_arguments(str(path)), path)
        if self.window.page == "data" and self.preview_job.running is None:
            self.window.show_page("plots")
        self.form.end_typing()
        self.form.set_run_name("")

    def copy_command(self, shell: Shell) -> None:
        """Copy the command line that starts this configuration without a window, quoted for a shell."""
        if not self._blocked_text():
            name = safe_name(self.form.run_name)
            arguments = self._train_arguments(str(self._history.root / name) if name else "")
            python = console_interpreter()
            desktop_shell.copy_text(command_line.terminal_command(arguments, shell, python=python, base_folder=home()))

    def _train_arguments(self, run_dir: str) -> list[str]:
        arguments = command_line.train_arguments(self.form.preset, self.form.changes(), self.form.data, run_dir)
        return command_line.remote_arguments(arguments, self.form.machine)

    def _on_run_starting(self) -> None:
        self._run_viewer.close()
        self.check_job.discard()
        self._run_viewer.hide_offer()
        self.window.banners.clear()
        if self.window.page in ("runs", "settings"):
            self.window.show_page("plots")
        self.window.plots.show_all()
        self._save_settings()

    def _on_event(self, event: AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self._refresh_runs()

    def _on_run_ended(self) -> None:
        if not self._close_controller.on_run_ended():
            self._refresh_runs()
            self.render()

    # --- earlier runs ------------------------------------------------------------------------------------

    def _refresh_runs(self) -> None:
        if self._first_paint_done and not self.window.isHidden() and not self._list_task.is_running:
            self._list_task.start(self._history.iter_refresh())

    # --- rendering -----------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self._timer.setInterval(_HIDDEN_REFRESH_MS if self.window.isHidden() else self._refresh_throttle.update())
        self.active_run.tick()
        self.render()

    @property
    def shown_record(self) -> RunRecord:
        """The run that the pages display: an earlier one, or this window's own."""
        return self._run_viewer.record or self.active_run.record

    @property
    def viewed_run(self) -> ViewedRun | None:
        """The earlier run on display; None: the pages display this window's own."""
        return self._run_viewer.viewed_run

    def _shown_run_path(self) -> Path | None:
        if self.viewed_run is not None:
            return self.viewed_run.summary.path
        return Path(self.active_run.machine.run_dir) if self.active_run.machine.run_dir else None

    def render(self) -> None:
        """Display the current state everywhere."""
        window, machine = self.window, self.active_run.machine
        self.render_run_bar()
        window.set_run_name(formatting.format_run_name(Path(machine.run_dir).name, self.active_run.host))
        window.setup.display(training=not machine.can_start)
        if not self._first_paint_done:
            return
        record, path = self.shown_record, self._shown_run_path()
        sampling = machine.state is RunState.TRAINING and self.viewed_run is None
        window.show_run(ShownRun(record, path.name if path else "", not machine.can_start, sampling))
        window.plots.advice.display(record.advice, self.form)
        window.restart_bar.set_message(formatting.format_restart(self.active_run.auto_restart, machine.last_error))
        window.runs.set_plotted_run(path)
        self.welcome_page.refresh()
        self._run_viewer.refresh()
        self._finished_run.refresh()

    def render_run_bar(self) -> None:
        """Display the state of the run and of the setup."""
        machine, blocked, check = self.active_run.machine, self._blocked_text(), self.check_job
        delay = self.installer.start_delay if self.installer is not None else ""
        self.window.menus.display(
            machine, blocked=bool(blocked or delay), can_check=not check.blocked_reason and check.running is None,
            active_run_shown=self.viewed_run is None,
        )  # fmt: skip
        self.window.run_bar.display(machine, blocked, delay, check.blocked_reason)
        self.window.run_bar.set_queue_enabled(self.form.blocked_reason, possible=self.queue_controller.is_open)
        self.setup_controller.display()

    def _blocked_text(self) -> str:
        found = self._find_blocker()
        return found.text if found else ""

    def _find_blocker(self) -> StartBlocker | None:
        existing = {run.name for run in self._history.runs}
        return self.form.find_blocker(existing)

    # --- settings ------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        settings = self._settings
        if settings.preset:
            name = settings.preset if settings.preset in presets.names() else self.form.preset.name
            self.form.load(presets.load(name), settings.data, settings.values)
        self.window.setup.presets.set_presets([self.form.preset])  # the others follow after the first paint
        window_state.restore_window_state(settings, self.form, self.window)
        self.appearance_controller.update_menu_checks()

    def _save_settings(self) -> None:
        window_state.save_window_state(self._settings, self.form, self.window)
        self._settings_store.save()

    # --- closing -------------------------------------------------------------------------------------------

    def _close(self) -> None:
        self._save_settings()
        self.shutdown()

    def shutdown(self) -> None:
        """Close the window without asking."""
        self.form.undo_stack.blockSignals(True)  # its destructor emits indexChanged
        self._timer.stop()
        self._runs_timer.stop()
        self._run_viewer.close()
        self._list_task.stop()
        for controller in (self.queue_controller, self.preview_job, self.check_job):
            controller.shutdown()
        if self._first_paint_done:
            self.window.runs.shutdown()
            self.tensorboard.shutdown()
            self.window.chat.models.shutdown()
            self.window.evaluate.shutdown()
            self.window.export.shutdown()
        if self.installer is not None:
            self.installer.shutdown()
        self.help_controller.shutdown()
        self.desktop_status.hide()
        QGuiApplication.setQuitOnLastWindowClosed(True)
        self.window.close_allowed = True
        self.window.close()
