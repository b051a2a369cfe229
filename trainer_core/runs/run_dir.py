"""Folder of a run: paths, owner, summary.

    runs/NAME/
        config.yaml     resolved configuration; `train --config` repeats the run
        events.jsonl    all events, append-only
        log.txt         output of libraries, and tracebacks
        tokenizer.json  tokenizer of this run; also tokenizer_config.json
        base_model/     with full tuning: configuration and tokenizer of the base model, which a resume reads
        checkpoints/    see checkpoint_dir.py
        run.lock        PID and start time of the trainer
        remote.json     of a run on another machine: where it is

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from trainer_core import protocol
from trainer_core.config import Config, to_dict
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir, file_locks
from trainer_core.system import files, program_files, yaml_files

RunState = Literal["running", "finished", "stopped", "failed", "interrupted"]
_STATE_BY_REASON: Final[dict[protocol.DoneReason, RunState]] = {
    "finished": "finished",
    "early_stop": "finished",
    "stopped": "stopped",
    "parent_lost": "interrupted",
}
_TAIL_BYTES: Final = 256 * 1024


def home() -> Path:
    """Folder of runs/, cache/ and logs/: `TRAINDECK_HOME`, else the clone; `~/Traindeck` if installed by pip."""
    chosen = os.environ.get("TRAINDECK_HOME")
    if chosen:
        return Path(chosen).resolve()
    return Path.home() / "Traindeck" if program_files.IS_INSTALLED else program_files.ROOT


def runs_root() -> Path:
    return home() / "runs"


class RunDir:
    """The paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.events = path / "events.jsonl"
        self.log = path / "log.txt"
        self.tokenizer = path / "tokenizer.json"
        self.base_model = path / "base_model"
        self.checkpoints = path / "checkpoints"
        self.lock = path / "run.lock"
        self.remote = path / "remote.json"

    def exists(self) -> bool:
        """Whether a run has been started here."""
        return os.path.isfile(self.config)  # noqa: PTH113 - never raises

    def create(self) -> None:
        """Create the folder. Raises `disk.not_writable` or `disk.full`."""
        with files.translate_os_errors(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    def write_config(self, config: Config) -> None:
        """Write the resolved configuration for `--config`."""
        text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
        with files.translate_os_errors(self.path):
            files.write_atomic(self.config, text.encode("utf-8"))


class RemoteRecord(msgspec.Struct):
    """Where a run on another machine is."""

    host: str  # as ssh calls it
    folder: str  # of Traindeck there
    there: str  # folder of the run there
    paths: dict[str, str] = {}  # of data: there → here


def read_remote(run: RunDir) -> RemoteRecord | None:
    """Where the run is trained; None: on this machine."""
    try:
        return msgspec.json.decode(run.remote.read_bytes(), type=RemoteRecord)
    except (OSError, msgspec.DecodeError):
        return None


def new_run_path(root: Path, preset: str, when: float | None = None) -> Path:
    """An unused folder name such as `runs/quickstart-20260131-154500`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(when))
    return root / unique_name(f"{safe_name(preset) or 'run'}-{stamp}", root=root)


def unique_name(preferred: str, taken: Container[str] = (), root: Path | None = None) -> str:
    """`preferred` as a folder name, with a number if it is in `taken` or exists in the folder `root`."""
    base = safe_name(preferred) or "run"
    name, number = base, 2
    while name in taken or (root is not None and (root / name).exists()):
        name, number = f"{base}-{number}", number + 1
    return name


_RESERVED_NAME: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\..*)?", re.IGNORECASE)
_MAX_NAME_BYTES: Final = 160  # Linux allows 255; time stamp and number are appended


def safe_name(text: str) -> str:
    """`text` as a folder name that is valid on Windows too: no reserved characters or names, no trailing dots."""
    name = re.sub(r'[<>:"/\\|?*\x00-\x1f]+', "-", text).strip(" .")[:80]
    name = name.encode("utf-8", "ignore")[:_MAX_NAME_BYTES].decode("utf-8", "ignore").rstrip(" .")
    return f"_{name}" if _RESERVED_NAME.fullmatch(name) else name


@contextlib.contextmanager
def lock(run: RunDir) -> Iterator[None]:
    """Hold the run's lock. Raises `run.in_use` while a running process holds it."""
    try:
        with file_locks.file_lock(run.lock):
            yield
    except file_locks.LockHeldError as used:
        raise TraindeckError("run.in_use", path=str(run.path), pid=str(used.pid)) from used


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Summary of a run, from its files."""

    path: Path
    state: RunState
    started: float  # seconds since the epoch
    preset: str = ""
    data: list[str] = field(default_factory=list)
    step: int = 0
    total_steps: int = 0
    last_loss: float | None = None
    best_loss: float | None = None
    tokens_per_s: float | None = None
    seconds: float = 0.0
    checkpoints: int = 0
    error: tuple[str, dict[str, Any]] | None = None  # message code and parameters
    host: str = ""  # the other machine that trains it; empty: this one

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def resumable(self) -> bool:
        """Whether `train --resume`, or `remote resume`, continues it or brings it here."""
        if self.host:
            return self.state != "running" and (self.state != "finished" or not self.checkpoints)
        return self.state not in ("running", "finished") and self.checkpoints > 0


def list_runs(root: Path) -> list[RunSummary]:
    """All runs below `root`, newest first."""
    runs: list[RunDir] = []
    with contextlib.suppress(OSError):
        runs = [run for run in map(RunDir, root.iterdir()) if run.exists()]
    return sorted(map(summarize, runs), key=lambda run: run.started, reverse=True)


def summarize(run: RunDir) -> RunSummary:
    """Summarize a run from its files. Facts in damaged files are missing; it never raises."""
    values = read_yaml(run.config)
    processes = _recent_processes(run.events)
    events = [event for process in processes for event in process]
    steps = [event for event in events if isinstance(event, protocol.Step)]
    evals = [event for event in events if isinstance(event, protocol.Eval)]
    totals = [event.total for event in events if isinstance(event, protocol.Progress) and event.unit == "steps"]
    errors = [event for event in events if isinstance(event, protocol.Error)]
    infos = checkpoint_dir.list_infos(run.checkpoints)
    losses = [event.loss for event in evals] + [info.eval_loss for info in infos]
    ending = _last(processes[-1], protocol.Done, protocol.Error) if processes else None
    started = _start_time(run)
    seconds = ending.seconds if isinstance(ending, protocol.Done) else 0.0
    if not seconds and started and events:
        seconds = max(0.0, events[-1].t - started)
    data = values.get("data")
    return RunSummary(
        path=run.path,
        state=_state(run, ending),
        started=started or _modified(run.config),
        preset=str(values.get("preset", "")),
        data=[str(path) for path in data] if isinstance(data, list) else [],
        step=_step(events) or max((info.step for info in infos), default=0),
        total_steps=int(next((total for total in reversed(totals) if total), 0)),
        last_loss=steps[-1].loss if steps else None,
        best_loss=min((loss for loss in losses if loss is not None), default=None),
        tokens_per_s=steps[-1].tokens_per_s if steps else None,
        seconds=seconds,
        checkpoints=len(infos),
        error=(errors[-1].code, dict(errors[-1].params)) if errors else None,
        host=remote.host if (remote := read_remote(run)) else "",
    )


def _last(events: list[protocol.AnyEvent], *kinds: type[protocol.AnyEvent]) -> protocol.AnyEvent | None:
    return next((event for event in reversed(events) if isinstance(event, kinds)), None)


def _step(events: list[protocol.AnyEvent]) -> int:
    """The newest step. Not every step has an event, but `done` has the last one."""
    match _last(events, protocol.Step, protocol.Done):
        case protocol.Step(step=step) | protocol.Done(steps=step):
            return step
    return 0


def _state(run: RunDir, ending: protocol.AnyEvent | None) -> RunState:
    owner = file_locks.read_owner(run.lock)
    if owner is not None and owner.alive:
        return "running"
    if isinstance(ending, protocol.Done):
        return _STATE_BY_REASON[ending.reason]
    return "interrupted" if ending is None else "failed"


def _recent_processes(path: Path) -> list[list[protocol.AnyEvent]]:
    """The newest events of a run by process, without processes that failed before training.

    If only such processes are in the tail, a longer tail is read.
    """
    size = _TAIL_BYTES
    while True:
        processes = _split_by_process(tail_events(path, size))
        trained = [process for process in processes if not _failed_before_training(process)]
        if trained or not path.is_file() or size >= path.stat().st_size:
            return trained or processes  # no process has trained
        size *= 8


def _split_by_process(events: Iterable[protocol.AnyEvent]) -> list[list[protocol.AnyEvent]]:
    """Events by the process that wrote them: each numbers its own from 0."""
    processes: list[list[protocol.AnyEvent]] = []
    for event in events:
        if not processes or isinstance(event, protocol.Hello) or event.seq < processes[-1][-1].seq:
            processes.append([])
        processes[-1].append(event)
    return processes


def _failed_before_training(events: list[protocol.AnyEvent]) -> bool:
    """Whether a process ended with an error before training began."""
    began = any(isinstance(event, protocol.Ready | protocol.Step | protocol.Done) for event in events)
    return not began and any(isinstance(event, protocol.Error) for event in events)


def _start_time(run: RunDir) -> float:
    try:
        with run.events.open("rb") as file:
            return protocol.decode_event(file.readline()).t
    except (OSError, protocol.ProtocolError):
        return 0.0


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def tail_events(path: Path, size: int = _TAIL_BYTES) -> Iterator[protocol.AnyEvent]:
    """Events in the last `size` bytes of a file; invalid lines are skipped."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            if file.tell():
                file.readline()
            lines = file.readlines()
    except OSError:
        return
    yield from decode_events(lines)


def decode_events(lines: Iterable[bytes]) -> Iterator[protocol.AnyEvent]:
    """Events in lines of an event file; invalid lines are skipped."""
    for line in lines:
        with contextlib.suppress(protocol.ProtocolError):
            yield protocol.decode_event(line)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping; empty if it cannot be read."""
    try:
        loaded = yaml_files.read(path)
    except (OSError, yaml_files.UnreadableError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def find_run(reference: str, root: Path, require_checkpoint: bool = False) -> RunDir:
    """A run by folder, by name below `root`, or `latest`. Raises `run.not_found`.

    `latest`, the run that was active last, skips failed runs without a checkpoint; with `require_checkpoint`, all runs
    without one.
    """
    if reference in ("", "latest"):
        for run in sorted(list_runs(root), key=lambda run: _modified(RunDir(run.path).events), reverse=True):
            if run.checkpoints or (run.state != "failed" and not require_checkpoint):
                return RunDir(run.path)
        raise TraindeckError("run.not_found", path=str(root))
    for candidate in (Path(reference), root / reference):
        if RunDir(candidate).exists():
            return RunDir(candidate.resolve())
    raise TraindeckError("run.not_found", path=reference)


def find_checkpoint(reference: str, runs: Path, warn: Callable[..., None]) -> Path:
    """The checkpoint of a run's folder, a run's name, a checkpoint folder, or `latest`.

    `warn(code, **params)` receives each damaged one that is skipped. Raises `run.not_found` or `run.no_checkpoint`.
    """
    folder = Path(reference)
    if reference and (folder / checkpoint_dir.MANIFEST).is_file():
        return folder.resolve()
    run = find_run(reference, runs, require_checkpoint=True)
    good, skipped = checkpoint_dir.latest_valid(run.checkpoints, checkpoint_dir.find_problem_cached)
    for path, reason in skipped:
        warn("checkpoint.skipped", path=path.name, reason=reason)
    if good is None:
        raise TraindeckError("run.no_checkpoint", path=str(run.path))
    return good
