"""Puts the parts of the window together; with app/parts the only place that knows services, state and views.

Signals come up from the views and the trainer's process; `render` goes down, from one timer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, QTimer

from app import i18n
from app.opening import RunLister, RunRecord
from app.own_run import OwnRun
from app.pace import Pace
from app.parts import remembering
from app.parts.checking import Checker
from app.parts.closing import Closing
from app.parts.dressing import Dressing
from app.parts.earlier import EarlierRun
from app.parts.guiding import Guide
from app.parts.helping import Helping
from app.parts.interrupted import Interrupted
from app.parts.looking import DataLooker
from app.parts.notifying import Notifier
from app.parts.queueing import Queueing
from app.parts.telling import Telling
from app.parts.trying import Trier
from app.parts.welcoming import Welcoming
from app.services import desktop
from app.services.trainer_process import Outcome, TrainerProcess, console_python
from app.state import command_line
from app.state.attention import Notice
from app.state.command_line import Shell
from app.state.run_machine import RunState
from app.state.runs.history import History
from app.state.settings import SettingsStore
from app.theme import style
from app.theme.tokens import ThemeChoice
from app.views.main_window import MainWindow
from app.views.setup import reason
from app.views.setup.form import VALIDATION, SetupForm
from app.views.setup.reason import Blocked
from app.views.viewing import Viewing
from trainer_core import presets, protocol
from trainer_core.messages import Language, TraindeckError
from trainer_core.presets import Preset
from trainer_core.protocol import AnyEvent
from trainer_core.runs.run_dir import home, new_run_path, runs_root, safe_name

_HIDDEN_MS: Final = 1000
_RUNS_MS: Final = 5000  # between two looks at the runs folder while its page is shown


class Controller(QObject):
    """One window and at most one run that it trains."""

    def __init__(
        self,
        settings: SettingsStore,
        translator: i18n.Translator,
        process: TrainerProcess | None = None,
        looking: TrainerProcess | None = None,
        checking: TrainerProcess | None = None,
    ) -> None:
        super().__init__()
        self._store = settings
        self._settings = settings.settings
        self.form = SetupForm(self)
        self._presets: dict[str, Preset] = {}
        self.own = OwnRun(process, self)
        self._ready = False  # the first paint is done
        self._history = History(runs_root())
        self.queueing = Queueing(self.form, self.own, self._history, lambda error: self._tell.error(error))
        self._earlier = EarlierRun(self._history, self)
        self._lister = RunLister(self._history, self)
        self.window = MainWindow(self.form, style.resolve(self._settings.theme))
        self.dressing = Dressing(self.window, self._settings, translator)
        self._tell = Telling(self.window.banners, self.own.machine, self)
        self.looker = DataLooker(self.form, self._tell.error, looking)
        self.checker = Checker(self.form, self._tell.error, checking, self.window.check, self.render_bar)
        self.trier = Trier(self.own, self._history, self._settings)
        self._interrupted = Interrupted(self.window.interrupted, self._history, self._settings)
        self._leaving = Closing(self.window, self.own, close=self._close, more=lambda: self.queueing.goes_on)
        self.helping = Helping(self.window, self._store.path, self._path_on_show)
        self.notifier = Notifier(self.window, self.own, self._leaving.presence, self._settings)
        self.guide = Guide(
            self.form, self.window, self._settings, self.own, self.checker, self.looker,
            start=self.start_run, blocked=self._blocking,
        )  # fmt: skip
        self.welcoming = Welcoming(
            self.window, self.form, self._settings,
            load=self.load_preset, start=self.start_run, has_runs=lambda: bool(self._history.runs),
        )  # fmt: skip
        self._connect()
        self._pace = Pace()
        self._timer = QTimer(self, interval=self._pace.interval_ms)
        self._timer.timeout.connect(self._on_tick)
        self._runs_timer = QTimer(self, interval=_RUNS_MS)
        self._runs_timer.timeout.connect(self._refresh_runs)

    def start(self) -> None:
        """Fill the window in and show it; what is not needed for the first paint comes after it."""
        self._restore()
        self.render()
        self.window.painted.connect(self._after_first_paint)
        self.window.show()

    def _after_first_paint(self) -> None:
        self.welcoming.begin(self._history.root)
        self.window.build_rest()
        self._connect_pages()
        self._ready = True
        self.window.setup.presets.offer([self.load_preset(name) for name in presets.names()])
        self.window.setup.presets.display(self.form.preset)
        self.queueing.open()
        self._refresh_runs()
        self.guide.begin()
        self.render()
        self._probe_machine()
        self._timer.start()
        self._runs_timer.start()

    def _probe_machine(self) -> None:
        from app.services.gpu_probe import GpuProbe

        probe = GpuProbe(self)
        probe.found.connect(self.window.setup.presets.show_machine)
        probe.found.connect(self.trier.show_machine)
        self.welcoming.watch(probe)
        probe.start()

    # --- wires -------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        window, bar = self.window, self.window.run_bar
        bar.check_pressed.connect(self.checker.start)
        bar.start_pressed.connect(self.start_run)
        bar.pause_pressed.connect(self.own.pause)
        bar.resume_pressed.connect(self.own.resume)
        bar.stop_pressed.connect(self.own.stop)
        bar.queue_pressed.connect(self.queueing.add)
        self.queueing.said.connect(bar.say_of_queue)
        window.queue_built.connect(self.queueing.connect_page)
        self.queueing.changed.connect(lambda: window.show_waiting(len(self.queueing.queue.waiting)))
        self.queueing.open_asked.connect(self.open_run)
        self.queueing.held.connect(lambda: self.notifier.tell(Notice("queue_held")))
        self.queueing.emptied.connect(lambda: self.notifier.tell(Notice("queue_done")))
        self.queueing.resume_asked.connect(lambda path: self.open_run(path, resume=True))
        window.banners.resume_pressed.connect(self.own.resume)
        window.restart.now_pressed.connect(self.own.restart_now)
        window.restart.cancel_pressed.connect(self.own.cancel_restart)
        self._interrupted.resume_asked.connect(lambda path: self.open_run(path, resume=True))
        window.viewing.resume_pressed.connect(self._resume_viewed)
        window.viewing.back_pressed.connect(self._show_own_run)
        self._connect_menus()
        self.form.changed.connect(self.render)
        self.own.beginning.connect(self._on_beginning)
        self.own.told.connect(self._on_told)
        self.own.changed.connect(self.render)
        self.own.ticked.connect(self.render_bar)
        self.own.ended.connect(self._on_ended)
        self.own.process.incompatible.connect(self._tell.incompatible)
        for begun in (self.own.beginning, self.own.told):
            begun.connect(self.welcoming.hide)
        self._earlier.opened.connect(self.welcoming.hide)
        self._earlier.opened.connect(self._on_opened)
        self._earlier.resume_asked.connect(self._resume_viewed)
        self._lister.listed.connect(self.trier.runs_listed)
        self._lister.listed.connect(self._interrupted.look)
        self.dressing.changed.connect(self._on_dressed)

    def _connect_menus(self) -> None:
        menus, own = self.window.menus, self.own
        menus.command_asked.connect(self.copy_command)
        menus.connect_all({
            "start": self.start_run,
            "add_to_queue": self.queueing.add,
            "sweep": self._ask_sweep,
            "check": self.checker.start,
            "pause": own.pause,
            "resume": own.resume,
            "stop": own.stop,
            "save": own.process.save,
            "sample": self.window.write_sample,
            "run_folder": self._open_run_folder,
            "runs_folder": lambda: desktop.open_folder(self._history.root),
            "notifications": self.notifier.switch,
        })  # fmt: skip

    def _connect_pages(self) -> None:
        window = self.window
        window.samples.sample_asked.connect(self.own.process.sample)
        self.looker.connect_page(window.data)
        self.trier.connect_page(window.trying)
        self._keep_runs()
        self._save_plots()
        window.runs.open_asked.connect(self.open_run)
        window.runs.resume_asked.connect(lambda path: self.open_run(path, resume=True))
        window.runs.folder_asked.connect(desktop.open_folder)
        window.runs.refresh_asked.connect(self._refresh_runs)
        window.page_shown.connect(lambda name: self._refresh_runs() if name == "runs" else self.render())

    def _save_plots(self) -> None:
        from app.parts.saving_plots import PlotSaver  # not before the first paint

        self.plot_saver = PlotSaver(self.window.plots, self.window.banners, self)

    def _keep_runs(self) -> None:
        from app.parts.runs import RunsKeeper  # with its views, which the first picture lacks

        self.runs = RunsKeeper(self._history, self.own, self._settings, self)
        self.runs.connect_page(self.window.runs, self.window.plots)
        self.runs.resume_asked.connect(lambda path: self.open_run(path, resume=True))
        self.runs.generate_asked.connect(self._generate_from)
        self.runs.leaving.connect(self._leave_run)
        self.runs.moved.connect(self.queueing.moved)
        self.queueing.compare_asked.connect(self._compare)
        self.runs.moved.connect(self.trier.run_moved)
        self._lister.listed.connect(self.runs.on_listed)

    def _generate_from(self, checkpoint: Path) -> None:
        self.trier.choose(checkpoint)
        self.window.show_page("try")

    def _ask_sweep(self) -> None:
        self.window.show_page("queue")
        self.queueing.ask_sweep()

    def _compare(self, paths: list[Path]) -> None:
        """Lay these runs over the plots, in place of others."""
        self.runs.overlays.show(list(self.runs.overlays.chosen), on=False)
        self.runs.show_in_plots(paths, on=True)
        self.window.show_page("plots")

    def _leave_run(self, path: Path) -> None:
        """A run's folder is about to be renamed or deleted: close what is open of it."""
        if self.viewing is not None and self.viewing.summary.path == path:
            self._show_own_run()

    # --- the run -----------------------------------------------------------------------------------------

    def start_run(self) -> None:
        """Start what the form says."""
        if not self._ready or not self.own.machine.can_start or self._blocked() or self.form.preset is None:
            return
        preset, root = self.form.preset, self._history.root
        name = safe_name(self.form.run_name)
        path = root / name if name else new_run_path(root, preset.name)
        try:
            arguments = command_line.train(preset.name, self.form.changes(), self.form.data, str(path), loaded=preset)
        except TraindeckError as error:
            self._tell.error(error)
            return
        for source in self.form.data:
            if not source.startswith("builtin:"):
                self._settings.remember_data(source)
        self.window.setup.data.recent = self._settings.recent_data
        self.own.start(arguments, path)
        if self.window.tabs.currentWidget() is self.window.pages["data"] and self.looker.running is None:
            self.window.show_page("plots")
        self.form.forget_run_name()

    def _on_beginning(self) -> None:
        """A run begins in this window: what was said of others goes away."""
        self._earlier.forget()
        self.checker.put_away()
        self._interrupted.put_away()
        self.window.banners.clear()
        if self.window.tabs.currentWidget() in (self.window.pages["runs"], self.window.pages["settings"]):
            self.window.show_page("plots")
        self.window.plots.show_all()
        self._save_settings()

    def _on_told(self, event: AnyEvent) -> None:
        match event:
            case protocol.Warn():
                self._tell.notice("warning", event)
            case protocol.Error():
                self._tell.notice("error", event)
            case protocol.Hello():
                self._refresh_runs()
            case _:
                pass

    def _on_ended(self, outcome: Outcome) -> None:
        if self.own.restarting.gave_up is not None:
            self._tell.gave_up(self.own.restarting.gave_up)
        if self.own.machine.state is RunState.CRASHED or outcome.failed_to_start:
            self._tell.crash(outcome)
        if not self._leaving.on_run_ended():
            self._refresh_runs()
            self.render()

    # --- earlier runs ------------------------------------------------------------------------------------

    def _refresh_runs(self) -> None:
        if self._ready and not self.window.isHidden():
            self._lister.start()

    def open_run(self, path: Path, *, resume: bool = False) -> None:
        """Show an earlier run with its plots; `resume`: go on with it as soon as they are there."""
        summary = self._history.get(path)
        if summary is None:
            self._tell.error(TraindeckError("run.not_found", path=str(path)))
            return
        if self.own.machine.is_active and Path(self.own.machine.run_dir) == summary.path:
            self._show_own_run()
            self.window.show_page("plots")
            return
        self._earlier.open(summary, resume=resume and self.own.machine.can_start)
        self.window.show_page("plots")
        self.render()

    def _on_opened(self) -> None:
        self.window.plots.show_all()
        self.render()

    def _resume_viewed(self) -> None:
        viewing, record = self._earlier.viewing, self._earlier.record
        if viewing is None or record is None or not self.own.machine.can_start:
            return
        summary = viewing.summary
        self.own.go_on(summary.path, record, has_checkpoint=summary.checkpoints > 0)

    def _show_own_run(self) -> None:
        self._earlier.forget()
        self.window.plots.show_all()
        self.render()

    # --- showing -----------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self._timer.setInterval(_HIDDEN_MS if self.window.isHidden() else self._pace.look())
        self.own.tick()
        self.render()

    @property
    def shown(self) -> RunRecord:
        """The run on show: an earlier one, or this window's own."""
        return self._earlier.record or self.own.record

    @property
    def viewing(self) -> Viewing | None:
        """The earlier run on show; None: this window's own is."""
        return self._earlier.viewing

    def render(self) -> None:
        """Show everything as it is now."""
        record, window, training = self.shown, self.window, not self.own.machine.can_start
        self.render_bar()
        window.name_run(Path(self.own.machine.run_dir).name)
        window.setup.display(training=training)
        if not self._ready:
            return
        window.advanced.display(training=training)
        run = self._path_on_show()
        window.plots.display(record.metrics, record.computing, run.name if run else "")
        self.runs.show_on_plots(run)
        window.plots.notes.display(record.notes, self.form)
        window.performance.display(record.metrics, record.computing)
        window.log.display(record.log)
        self.looker.display(self.shown.ready)
        self.checker.refresh()
        self.queueing.refresh()
        self.welcoming.display(can_start=not training)
        window.restart.display(self.own.restarting.pending, self.own.machine.last_error, time.monotonic())
        asking = self.own.machine.state is RunState.TRAINING and self.viewing is None
        window.samples.display(record.samples, can_ask=asking)
        self._earlier.allow_resume(not training)
        window.viewing.display(self.viewing)

    def _path_on_show(self) -> Path | None:
        if self.viewing is not None:
            return self.viewing.summary.path
        return Path(self.own.machine.run_dir) if self.own.machine.run_dir else None

    def render_bar(self) -> None:
        blocked = self._blocked()
        machine, checking = self.own.machine, self.checker.running is not None
        self.window.run_bar.display(machine, blocked, checking=checking)
        self.window.run_bar.offer_queue(self.queueing.blocked, possible=self.queueing.is_open)
        own_shown = self.viewing is None
        self.guide.display()
        self.window.menus.display(machine, blocked=bool(blocked), checking=checking, own_shown=own_shown)

    def _blocked(self) -> str:
        found = self._blocking()
        return found.text if found else ""

    def _blocking(self) -> Blocked | None:
        found = reason.blocked(self.form, {run.name for run in self._history.runs})
        for missing, place in ((self.guide.missing, "data"), (self.guide.validation.missing, VALIDATION)):
            found = found or (Blocked(missing, place) if missing else None)
        return found

    # --- language, theme, small things ---------------------------------------------------------------------

    def set_language(self, language: Language) -> None:
        """Switch the whole window's language."""
        self.dressing.set_language(language)

    def set_theme(self, theme: ThemeChoice) -> None:
        """Switch the whole window's colours."""
        self.dressing.set_theme(theme)

    def _on_dressed(self) -> None:
        self.render()
        self._save_settings()

    def _open_run_folder(self) -> None:
        desktop.open_folder(self._path_on_show() or self._history.root)

    def copy_command(self, shell: Shell) -> None:
        """Put the exact headless command of the form on the clipboard, quoted for a shell."""
        if self.form.preset is None or self._blocked():
            return
        changes = self.form.changes()
        name = safe_name(self.form.run_name)
        run_dir = str(self._history.root / name) if name else ""
        arguments = command_line.train(self.form.preset.name, changes, self.form.data, run_dir)
        desktop.copy_text(command_line.for_terminal(arguments, shell, python=console_python(), home=home()))

    # --- settings ------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        settings = self._settings
        known = presets.names()
        if known:
            wanted = self.load_preset(settings.preset if settings.preset in known else known[0])
            self.window.setup.presets.offer([wanted])  # the others follow after the first paint
            self.form.choose_preset(wanted)
        remembering.restore(settings, self.form, self.window)
        self.dressing.mark_choices()

    def load_preset(self, name: str) -> Preset:
        """A preset by name, read once."""
        if name not in self._presets:
            self._presets[name] = presets.load(name)
        return self._presets[name]

    def _save_settings(self) -> None:
        remembering.take(self._settings, self.form, self.window)
        self._store.save()

    # --- closing -------------------------------------------------------------------------------------------

    def _close(self) -> None:
        self._save_settings()
        self.leave()

    def leave(self) -> None:
        """Close the window, whatever is going on."""
        self._timer.stop()
        self._runs_timer.stop()
        self._earlier.forget()
        self._lister.stop()
        self.queueing.leave()
        self.looker.leave()
        self.checker.leave()
        self.trier.leave()
        if self._ready:
            self.runs.leave()
        self.helping.leave()
        self._leaving.vanish()
        self.window.close_allowed = True
        self.window.close()
