"""Output of a run: a progress display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from trainer_core import protocol
from trainer_core.console import check, data_report, events, performance
from trainer_core.messages import Language

_END_OF_PROGRESS: Final = (protocol.Error, protocol.Done, protocol.DataReport, protocol.CheckReport, protocol.Phase)
"""Events after which the progress bar is removed: it belongs to the previous phase."""
_STYLES: Final[dict[type[protocol.Event], str]] = {
    protocol.Warn: "yellow", protocol.BadStep: "yellow", protocol.Advice: "cyan", protocol.Done: "bold green",
}  # fmt: skip


class _Console(Console):
    disconnect_callback: Callable[[], object] = bool  # called once, when the reader of the pipe exits

    def on_broken_pipe(self) -> None:
        """Stop printing. Rich would exit here, without saving the run."""
        self.mute()
        self.disconnect_callback()

    def mute(self) -> None:
        """Stop printing, and discard buffered output so that the exit does not fail."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


class ConsoleSink:
    """Prints events. Errors go to stderr, all others to `stream`."""

    def __init__(self, stream: TextIO, language: Language) -> None:
        self._language = language
        self._console = _Console(file=stream, highlight=False, soft_wrap=True)
        self._stderr = _Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._is_terminal = self._console.is_terminal
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._settings: dict[str, object] = {}  # of the run, by knob

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call `callback` once when the reader of the pipe exits."""
        self._console.disconnect_callback = callback

    def write(self, event: protocol.AnyEvent) -> None:
        try:
            self._show(event)
        except OSError:  # the terminal was closed
            self._console.mute()

    def _show(self, event: protocol.AnyEvent) -> None:
        if isinstance(event, _END_OF_PROGRESS):
            self.close()
        match event:
            case protocol.Progress():
                self._show_progress(event)
            case protocol.Error():
                self._print(events.format_event(event, self._language), "bold red", self._stderr)
            case protocol.DataReport():
                self._show_report(event)
            case protocol.CheckReport():
                for line in check.format_check_report(event, self._language):
                    self._print(line)
            case protocol.Advice(resolved=True):
                self._print(events.format_event(event, self._language), "dim")
            case _:
                if line := events.format_event(event, self._language):
                    self._print(line, _STYLES.get(type(event), ""))
        if isinstance(event, protocol.Hello):
            self._settings = event.config
        elif isinstance(event, protocol.Ready):
            self._show_fast_paths(event)

    def _show_fast_paths(self, ready: protocol.Ready) -> None:
        for line in performance.format_unused_fast_paths(self._settings, ready.fast_paths, self._language):
            self._print(line, "yellow")
        if not self._is_terminal:  # a log gets all details
            for line in performance.format_fast_path_table(ready.fast_paths, self._language):
                self._print(line)

    def _print(self, line: str, style: str = "", console: Console | None = None) -> None:
        (console or self._console).print(Text(line, style=style))

    def _show_report(self, report: protocol.DataReport) -> None:
        colour = self._console.color_system is not None and not self._console.no_color
        style = data_report.TerminalStyle(self._language, colour)
        for line in data_report.format_data_report(report, style):
            self._console.print(line)

    def _show_progress(self, event: protocol.Progress) -> None:
        if not self._is_terminal:
            return
        if event.total is not None and event.done >= event.total:  # the next phase may have no bar
            self.close()
            return
        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[shown]}"))
            # Output of libraries on stderr goes to the log, not above the bar.
            self._progress = Progress(*columns, console=self._console, transient=True, redirect_stderr=False)
            self._progress.start()
            self._bar = self._progress.add_task("", total=None, shown="")
        assert self._bar is not None
        self._progress.update(
            self._bar,
            description=events.phase_name(event.phase, self._language),
            completed=event.done,
            total=event.total,
            shown=events.format_progress(event, self._language),
        )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
