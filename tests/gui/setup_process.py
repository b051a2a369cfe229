"""A process in place of `train_gpu.py setup`. It emits the events that a test appends to a file."""

from __future__ import annotations

import json
from pathlib import Path

import psutil

_PROGRAM = """
import json, os, subprocess, sys, time
from pathlib import Path
folder = Path(__file__).parent
child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(60)"])  # in place of uv
with (folder / "calls.jsonl").open("a", encoding="utf-8") as calls:
    calls.write(json.dumps([sys.argv[1:], os.getpid(), child.pid, os.environ["TRAINDECK_LANG"]]) + "\\n")
number = len((folder / "calls.jsonl").read_text(encoding="utf-8").splitlines())
events = folder / ("mirrors.jsonl" if "--mirrors" in sys.argv else f"events{number}.jsonl")
emitted = 0
while True:
    lines = events.read_bytes().decode("utf-8").split("\\n") if events.exists() else [""]
    for line in lines[emitted:-1]:  # the last one is incomplete
        emitted += 1
        if line.startswith("crash"):
            child.kill()
            sys.exit("Traceback: it broke")
        print(line.strip(), flush=True)
        if '"type": "end"' in line:
            child.kill()
            sys.exit(json.loads(line)["code"])
    time.sleep(0.01)
"""


class SetupProcess:
    """The program `path`, and what became of its processes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "train_gpu.py"
        self.path.write_text(_PROGRAM, encoding="utf-8")

    @property
    def calls(self) -> list[tuple[list[str], int, int, str]]:
        """Arguments, PID, PID of the child and language of each process."""
        try:
            lines = (self.path.parent / "calls.jsonl").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines]

    def emit(self, type_: str, **fields: object) -> None:
        """Let the last process emit an event."""
        self._write(f"events{len(self.calls)}.jsonl", json.dumps({"type": type_, **fields}))

    def crash(self) -> None:
        """Let the last process exit without an event."""
        self._write(f"events{len(self.calls)}.jsonl", "crash")

    def emit_mirror(self, type_: str, **fields: object) -> None:
        """Let the process that measures mirrors emit an event."""
        self._write("mirrors.jsonl", json.dumps({"type": type_, **fields}))

    def is_running(self, call: int) -> bool:
        """Whether the process or its child exists."""
        return any(_is_running(pid) for pid in self.calls[call][1:3])

    def _write(self, name: str, line: str) -> None:
        with (self.path.parent / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
