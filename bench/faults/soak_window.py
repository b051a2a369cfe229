"""The real window, on no screen, with the real trainer behind it: started by `soak`, which watches both.

    python -m bench.faults.soak_window MINUTES FILE

Trains the quick start over and over, asks for a stop after so many minutes, closes, and writes to FILE which events
came.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["PYQTGRAPH_QT_LIB"] = "PySide6"

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from app.__main__ import build_controller, configure_application
from app.controller import Controller
from app.core.run_state import RunState
from trainer_core import protocol

KNOBS: Final = {"max_steps": "100000000", "max_epochs": "1000000", "log_steps": "1", "cpu_threads": "1",
                "compile": "off"}  # fmt: skip
_ENDED: Final = (RunState.STOPPED, RunState.FINISHED, RunState.FAILED, RunState.CRASHED)
_LOOK_MS: Final = 500


class Received:
    """Which events came, by their numbers."""

    def __init__(self) -> None:
        self.pid, self.run, self.events, self.dropped = 0, "", 0, 0
        self.missing: list[int] = []
        self._last = 0

    def take(self, event: protocol.AnyEvent) -> None:
        if isinstance(event, protocol.Hello):
            self.pid, self.run = event.pid, event.run_dir
            print(event.pid, flush=True)
        if isinstance(event, protocol.Warn) and event.code == "events.dropped":
            self.dropped += int(event.params["count"] or 0)
            return  # it has no number: it is about the others
        self.events += 1
        self.missing += range(self._last + 1, event.seq)
        self._last = event.seq

    def document(self) -> dict[str, Any]:
        return {"run": self.run, "events": self.events, "last": self._last, "missing": len(self.missing),
                "dropped": self.dropped}  # fmt: skip


def main() -> int:
    minutes, file = float(sys.argv[1]), Path(sys.argv[2])
    application = QApplication(sys.argv[:1])
    configure_application(application)
    controller = build_controller(application, argparse.Namespace(theme="light", lang="en"))
    received = Received()
    controller.active_run.process.event_received.connect(received.take)
    controller.start()
    controller.window.show()
    QTimer.singleShot(3_000, lambda: _begin(controller))
    QTimer.singleShot(int(minutes * 60_000), controller.active_run.stop)
    looking = QTimer(interval=_LOOK_MS)
    looking.timeout.connect(lambda: _end(controller, received, file))
    looking.start()
    return application.exec()


def _begin(controller: Controller) -> None:
    controller.form.load_preset(controller.load_preset("quickstart"))
    for name, value in KNOBS.items():
        controller.form.set_text(name, value)
    controller.start_run()


def _end(controller: Controller, received: Received, file: Path) -> None:
    if controller.active_run.machine.state in _ENDED:
        ending = {"state": controller.active_run.machine.state.name, "step": controller.active_run.machine.step}
        file.write_text(json.dumps({**received.document(), **ending}), encoding="utf-8")
        controller.shutdown()
        QApplication.quit()


if __name__ == "__main__":
    sys.exit(main())
