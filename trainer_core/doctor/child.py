"""What is imported in a process of its own, because it may crash or hang: child_main.py at work."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from trainer_core import children, failures
from trainer_core.doctor.finding import Answers

SECONDS: Final = 60.0  # the first import after an installation can be scanned for long
TOO_SLOW: Final = "timeout"


class Child:
    """child_main.py at work on one subject."""

    def __init__(self, subject: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer_core.doctor.child_main", subject],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=children.environment(PYTHONIOENCODING="utf-8", QT_QPA_PLATFORM="offscreen"),
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def answers(self) -> tuple[Answers, str]:
        """All that it said, and how it ended (technical)."""
        try:
            out, err = self._process.communicate(timeout=SECONDS)
            last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
            died = failures.of_exit_code(self._process.returncode)
            status = died.detail if died is not None else self._process.returncode
            ending = f"exit code {status} {''.join(last)}".strip()
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, _ = self._process.communicate()
            ending = TOO_SLOW
        lines = out.decode("utf-8", "replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")], ending
