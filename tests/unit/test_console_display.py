"""Output of a run on a terminal and in a log."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from trainer_core import protocol
from trainer_core.console.display import ConsoleSink
from trainer_core.docgen.examples import EVENTS
from trainer_core.messages import Language
from trainer_core.protocol import FastPath, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Console:
    """A ConsoleSink and its output. `bar` is the text of the progress bar."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None = None, language: Language = "en"):
        monkeypatch.setenv("TERM", "xterm")
        self._stream = stream if stream is not None else Terminal()
        self.sink = ConsoleSink(self._stream, language)

    def show(self, *events: protocol.AnyEvent) -> str:
        """Write events. Returns all output so far."""
        for event in events:
            self.sink.write(event)
        return self._stream.getvalue()

    @property
    def bar(self) -> str:
        progress = self.sink._progress
        return "" if progress is None else " ".join(f"{task.description} {task.fields}" for task in progress.tasks)


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    console = Console(monkeypatch)
    yield console
    console.sink.close()


def evaluating(done: int) -> Progress:
    return Progress(phase="evaluating", done=done, total=4, unit="batches", eta_s=1.0)


def test_a_progress_bar_disappears_when_its_work_is_done(console: Console) -> None:
    console.show(evaluating(3))
    assert "3/4 batches" in console.bar
    console.show(evaluating(4), EVENTS[protocol.Sample])
    assert console.bar == ""


def test_a_progress_bar_disappears_when_another_phase_begins(console: Console) -> None:
    console.show(evaluating(1), protocol.Phase(phase="paused", reason="requested"))
    assert console.bar == ""
    console.show(Progress(phase="training", done=5, total=9, unit="steps"))
    assert console.bar.startswith("training")


# --- requested fast paths that are not used ------------------------------------------------------------


def output_with_settings(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, language: Language, **settings: object
) -> str:
    """Return the output of a run with these settings on a machine where only chunked loss can be used."""
    hello = msgspec.structs.replace(EVENTS[protocol.Hello], config=settings)
    paths = [
        FastPath(name="compile", used=False, reason="path.no_compiler"),
        FastPath(name="cuda_graphs", used=False, reason="path.no_gpu"),
        FastPath(name="attention", used=False, choice="flash2", reason="path.no_gpu"),
        FastPath(name="chunked_loss", used=True, reason="path.set"),
    ]
    ready = msgspec.structs.replace(EVENTS[protocol.Ready], fast_paths=paths)
    return Console(monkeypatch, stream, language).show(hello, ready)


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
@pytest.mark.parametrize(
    ("language", "setting", "line"),
    [
        ("en", {"compile": "on"}, "--compile on is not used: No C++ compiler was found."),
        ("zh", {"compile": "on"}, "未采用 --compile on：未找到 C++ 编译器。"),
        ("en", {"cuda_graphs": "on"}, "--cuda-graphs on is not used: NVIDIA GPUs only."),
        ("en", {"attention": "flash2"}, "--attention flash2 is not used: NVIDIA GPUs only."),
        (
            "en",
            {"activation_memory_budget": 0.5},
            "--activation-memory-budget 0.5 is not used: No C++ compiler was found.",
        ),
    ],
)
def test_a_requested_fast_path_that_is_not_used_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO], language: Language, setting: dict[str, Any], line: str
) -> None:
    assert line in output_with_settings(monkeypatch, stream(), language, **setting)


def test_settings_in_effect_or_automatic_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    not_requested = {"compile": "auto", "cuda_graphs": "off", "attention": "auto", "activation_memory_budget": 1.0}
    assert "is not used" not in output_with_settings(monkeypatch, Terminal(), "en", chunked_loss="on", **not_requested)
