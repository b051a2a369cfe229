"""TensorBoard: event files in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from trainer_core.runs.run_dir import RunDir
from trainer_core.trackers.tracker import Report

_FLUSH_S: Final = 5


def start(run: RunDir, config: Mapping[str, Any], report: Report) -> TensorBoard:
    return TensorBoard(EventFileWriter(str(run.path), flush_secs=_FLUSH_S))


class TensorBoard:
    """A resumed run adds another file to the folder, which TensorBoard reads as one run."""

    def __init__(self, writer: EventFileWriter) -> None:
        self._writer = writer

    def rewind(self, step: int) -> bool:
        log = SessionLog(status=SessionLog.START)  # readers discard earlier values from this step on
        self._writer.add_event(Event(wall_time=time.time(), step=step, session_log=log))
        return True

    def log_metrics(self, step: int, values: Mapping[str, float], time: float) -> None:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._writer.add_event(Event(wall_time=time, step=step, summary=summary))

    def log_text(self, step: int, name: str, columns: Mapping[str, str]) -> None:
        text = "\n\n".join(f"**{title}**\n\n{content}" for title, content in columns.items())
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=text_pb(name, text)))

    def finish(self, succeeded: bool) -> None:
        self._writer.close()
