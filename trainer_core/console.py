"""A run in a terminal: a progress display where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from trainer_core import protocol
from trainer_core.messages import Language, word

_GIB = 1024**3


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the program here, which may be hours into a run."""
        self.silence()

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
        self._phase = ""

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
                self._say(self._console, "cyan", word(event.code, event.params, self._language))
            case protocol.Done():
                self.close()
                self._say(self._console, "bold green", self._done(event))
            case _:
                line = self._line(event)
                if line:
                    self._say(self._console, "", line)

    def _say(self, console: Console, style: str, line: str) -> None:
        console.print(Text(line, style=style))

    def _line(self, event: protocol.AnyEvent) -> str:
        zh = self._language == "zh"
        match event:
            case protocol.Hello():
                devices = ", ".join(event.devices)
                versions = f"Traindeck {event.traindeck} · torch {event.torch}"
                return f"{versions} · {devices} · {event.precision}\n{event.run_dir}"
            case protocol.Ready():
                data = f"{event.train_tokens:,} training tokens, {event.validation_tokens:,} held out"
                return f"{event.parameters:,} parameters · {data} · {event.total_steps:,} steps"
            case protocol.Phase():
                return "" if event.phase in ("training", "done") else f"[{_PHASES[event.phase][zh]}]"
            case protocol.Step():
                norm = f"  grad norm {event.grad_norm:.2f}" if event.grad_norm is not None else ""
                return (
                    f"step {event.step:>6}  epoch {event.epoch:.2f}  loss {_number(event.loss)}"
                    f"  lr {event.learning_rate:.2e}{norm}  {event.tokens_per_s:,.0f} tokens/s"
                )
            case protocol.Eval():
                exact = "" if event.exact_match is None else f"  exact match {event.exact_match:.1%}"
                bleu = "" if event.bleu4 is None else f"  BLEU-4 {event.bleu4:.1f}"
                best = "  (best so far)" if event.best else ""
                loss = f"loss {_number(event.loss)}  perplexity {_number(event.perplexity)}"
                return f"eval  {event.step:>6}  {loss}{exact}{bleu}{best}"
            case protocol.Sample():
                expected = f"  (expected {json.dumps(event.expected, ensure_ascii=False)})" if event.expected else ""
                return f"--- step {event.step}: {event.prompt}▸{event.text}{expected}\n---"
            case protocol.Checkpoint():
                return f"saved {event.path} ({event.kind}, {event.bytes / 1024**2:.1f} MiB, {event.seconds:.1f} s)"
        return ""

    def _done(self, event: protocol.Done) -> str:
        zh = self._language == "zh"
        words = {
            "finished": ("Finished", "已完成"),
            "stopped": ("Stopped and saved; --resume goes on", "已停止并保存；用 --resume 继续"),
            "parent_lost": ("The starting program is gone; saved", "启动程序已退出；已保存"),
        }
        peak = f", {event.peak_vram / _GIB:.1f} GiB VRAM" if event.peak_vram else ""
        best = f", best eval loss {event.best_loss:.4f}" if event.best_loss is not None else ""
        steps = f"{event.steps:,}/{event.total_steps:,} steps"
        line = f"{words[event.reason][zh]}: {steps}{best}, {event.tokens_per_s:,.0f} tokens/s{peak}"
        return f"{line}\n{'模型' if zh else 'Model'}: {event.model}" if event.model else line

    def _show_progress(self, event: protocol.Progress) -> None:
        if not self._live:
            return
        if self._progress is None:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[shown]}"),
                TimeElapsedColumn(),
            )
            # What libraries print on stderr stays on its way to the log, instead of going above the bar.
            self._progress = Progress(*columns, console=self._console, transient=True, redirect_stderr=False)
            self._progress.start()
            self._bar = self._progress.add_task("", total=None, shown="")
        zh = self._language == "zh"
        left = f"  ETA {_duration(event.eta_s)}" if event.eta_s is not None else ""
        total = f"/{event.total:,.0f}" if event.total is not None else ""
        assert self._bar is not None
        self._progress.update(
            self._bar,
            description=_PHASES[event.phase][zh],
            completed=event.done,
            total=event.total,
            shown=f"{event.done:,.0f}{total} {event.unit}{left}",
        )

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


_PHASES: dict[str, tuple[str, str]] = {
    "preparing": ("preparing data", "准备数据"),
    "checking": ("checking", "检查"),
    "compiling": ("compiling", "编译"),
    "training": ("training", "训练"),
    "evaluating": ("evaluating", "评估"),
    "saving": ("saving", "保存"),
    "paused": ("paused", "已暂停"),
    "stopping": ("stopping", "正在停止"),
    "done": ("done", "完成"),
    "failed": ("failed", "失败"),
}


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
