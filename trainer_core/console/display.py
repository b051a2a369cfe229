"""A run in a terminal: a progress display where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from trainer_core import protocol
from trainer_core.console import (
    check as console_check,
)
from trainer_core.console import (
    engine as console_engine,
)
from trainer_core.console import (
    report as console_report,
)
from trainer_core.console import (
    words as console_words,
)
from trainer_core.messages import Language, word


class _Console(Console):
    when_gone: Callable[[], object] = bool  # called once, when nobody reads any more

    def on_broken_pipe(self) -> None:
        """Rich would end the program here, with nothing saved. (A terminal that is gone is no pipe: who let a run go on
        without one wants it to go on.)"""
        self.silence()
        self.when_gone()

    def silence(self) -> None:
        """Say nothing more, and let what is still buffered not fail at exit."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


class ConsoleSink:
    """Words events for people. Errors go to stderr, the rest to the given stream."""

    def __init__(self, stream: TextIO, language: Language) -> None:
        self._language = language
        self._console = _Console(file=stream, highlight=False, soft_wrap=True)
        self._errors = _Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._explained = False  # what the figures of performance mean is said once
        self._settings: dict[str, object] = {}  # of the run, by knob

    def on_reader_gone(self, call: Callable[[], object]) -> None:
        """`call`, once, when the pipe that all is written to is read by nobody any more."""
        self._console.when_gone = call

    def write(self, event: protocol.AnyEvent) -> None:
        try:
            self._show(event)
        except OSError:  # the terminal is gone: nobody to tell
            self._console.silence()

    def _show(self, event: protocol.AnyEvent) -> None:
        match event:
            case protocol.Progress():
                self._show_progress(event)
            case protocol.Error():
                self.close()
                self._say(self._errors, "bold red", word(event.code, event.params, self._language))
            case protocol.Warn():
                self._say(self._console, "yellow", word(event.code, event.params, self._language))
            case protocol.Advice():
                style = "dim" if event.over else "cyan"
                self._say(self._console, style, console_words.advice(event, self._language))
            case protocol.Done():
                self.close()
                self._say(self._console, "bold green", console_words.line(event, self._language))
            case protocol.DataReport():
                self.close()
                self._show_report(event)
            case protocol.CheckReport():
                self.close()
                for told in console_check.lines(event, self._language):
                    self._say(self._console, "", told)
            case protocol.Performance():
                told = console_engine.performance(event, self._language, explain=not self._explained)
                self._explained = True
                self._say(self._console, "", told)
            case protocol.BadStep():
                self._say(self._console, "yellow", console_words.line(event, self._language))
            case protocol.Ready():
                self._show_ready(event)
            case protocol.Hello():
                self._settings = event.config
                self._show_line(event)
            case protocol.Phase():
                self.close()  # a bar is about what is done now
                self._show_line(event)
            case _:
                self._show_line(event)

    def _show_line(self, event: protocol.AnyEvent) -> None:
        line = console_words.line(event, self._language)
        if line:
            self._say(self._console, "", line)

    def _show_ready(self, ready: protocol.Ready) -> None:
        self._show_line(ready)
        for told in console_engine.refused(self._settings, ready.fast_paths, self._language):
            self._say(self._console, "yellow", told)
        if not self._live:  # where nobody watches, everything that one may want to look up later
            for told in console_engine.paths(ready.fast_paths, self._language):
                self._say(self._console, "", told)

    def _say(self, console: Console, style: str, line: str) -> None:
        console.print(Text(line, style=style))

    def _show_report(self, report: protocol.DataReport) -> None:
        encoding = (getattr(self._console.file, "encoding", "") or "utf-8").lower()
        colour = self._console.color_system is not None and not self._console.no_color
        look = console_report.Look(self._language, colour, blocks=encoding.startswith("utf"))
        for line in console_report.lines(report, look):
            self._console.print(line)

    def _show_progress(self, event: protocol.Progress) -> None:
        if not self._live:
            return
        if event.total is not None and event.done >= event.total:  # what comes next may have no bar of its own
            self.close()
            return
        if self._progress is None:
            columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[shown]}"))
            # What libraries print on stderr stays on its way to the log, instead of going above the bar.
            self._progress = Progress(*columns, console=self._console, transient=True, redirect_stderr=False)
            self._progress.start()
            self._bar = self._progress.add_task("", total=None, shown="")
        assert self._bar is not None
        self._progress.update(
            self._bar,
            description=console_words.PHASES[event.phase][self._language],
            completed=event.done,
            total=event.total,
            shown=console_words.progress(event, self._language),
        )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
