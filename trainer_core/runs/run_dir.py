"""A run on disk: where everything lies, who owns it, and what can be told about it from outside.

    runs/NAME/
        config.yaml     resolved; `train --config` on it repeats the run
        events.jsonl    all events, append-only
        log.txt         what libraries print, and tracebacks
        tokenizer.json  what this run tokenises with; beside it tokenizer_config.json
        checkpoints/    see checkpoint_dir.py
        run.lock        pid and process start time of the trainer
        plots.cache/    the window's: the events of a long run as arrays; may be deleted

No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from trainer_core import files, protocol, yaml_files
from trainer_core.config import Config, to_dict
from trainer_core.messages import TraindeckError
from trainer_core.runs import checkpoint_dir, owners
from trainer_core.runs.owners import Owner

RunState = Literal["running", "finished", "stopped", "failed", "interrupted"]
_TAIL_BYTES: Final = 256 * 1024


def home() -> Path:
    """Traindeck's folder: runs/ and cache/ are made in it. `TRAINDECK_HOME` moves it."""
    chosen = os.environ.get("TRAINDECK_HOME")
    return Path(chosen).resolve() if chosen else Path(__file__).resolve().parents[2]


def runs_root() -> Path:
    return home() / "runs"


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of one run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def lock(self) -> Path:
        return self.path / "run.lock"

    def exists(self) -> bool:
        """Whether a run has been started here."""
        return self.config.is_file()

    def create(self) -> None:
        """Make the folder; raises `disk.not_writable` or `disk.full`."""
        with files.said_plainly(self.path):
            self.checkpoints.mkdir(parents=True, exist_ok=True)

    def write_config(self, config: Config) -> None:
        """Write the resolved configuration, readable by people and by `--config`."""
        text = yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
        with files.said_plainly(self.path):
            files.write_atomic(self.config, text.encode("utf-8"))


def new_run_path(root: Path, preset: str, when: float | None = None) -> Path:
    """A free folder name such as `runs/quickstart-20260131-154500`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(when))
    base = root / f"{safe_name(preset) or 'run'}-{stamp}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


_RESERVED: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\..*)?", re.IGNORECASE)
_NAME_BYTES: Final = 160  # Linux allows 255 for a name, and time stamp and number are added to it


def safe_name(text: str) -> str:
    """`text` as a folder name that Windows takes too: no reserved characters, names or trailing dots."""
    name = re.sub(r'[<>:"/\\|?*\x00-\x1f]+', "-", text).strip(" .")[:80]
    name = name.encode("utf-8", "ignore")[:_NAME_BYTES].decode("utf-8", "ignore").rstrip(" .")
    return f"_{name}" if _RESERVED.fullmatch(name) else name


# --- who owns a run ------------------------------------------------------------------------------


def read_owner(run: RunDir) -> Owner | None:
    """Who holds the run; None if nobody does."""
    return owners.read_owner(run.lock)


@contextlib.contextmanager
def lock(run: RunDir) -> Iterator[None]:
    """Hold a run while training. Raises `run.in_use` while a living process holds it."""
    try:
        with owners.held(run.lock):
            yield
    except owners.InUse as used:
        raise TraindeckError("run.in_use", path=str(run.path), pid=str(used.pid)) from used


# --- what can be told from outside -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of a list of runs. Read from the files alone, without loading a model."""

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
    error: tuple[str, dict[str, Any]] | None = None  # code and parameters of what ended it

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def resumable(self) -> bool:
        return self.state not in ("running", "finished") and self.checkpoints > 0


def list_runs(root: Path) -> list[RunSummary]:
    """All runs below `root`, newest first."""
    if not root.is_dir():
        return []
    runs: list[RunDir] = []
    with contextlib.suppress(OSError):
        for entry in root.iterdir():
            with contextlib.suppress(OSError):  # a folder that may not be entered
                if (entry / "config.yaml").is_file():
                    runs.append(RunDir(entry))
    found = [summarize(run) for run in runs]
    return sorted(found, key=lambda run: run.started, reverse=True)


def summarize(run: RunDir) -> RunSummary:
    """What the files of one run say. Damaged files make a poorer summary, never an error."""
    values = read_yaml(run.config)
    events = _told(run.events)
    steps = [event for event in events if isinstance(event, protocol.Step)]
    evals = [event for event in events if isinstance(event, protocol.Eval) and event.loss is not None]
    totals = [event.total for event in events if isinstance(event, protocol.Progress) and event.unit == "steps"]
    infos = checkpoint_dir.infos_of(run.checkpoints)
    losses = [event.loss for event in evals] + [info.eval_loss for info in infos]
    first, last = _first_time(run), events[-1].t if events else 0.0
    started = first or _modified(run.config)
    data = values.get("data")
    errors = [event for event in events if isinstance(event, protocol.Error)]
    return RunSummary(
        path=run.path,
        state=_state(run, events),
        started=started,
        preset=str(values.get("preset", "")),
        data=[str(path) for path in data] if isinstance(data, list) else [],
        step=_step(events) or max((info.step for info in infos), default=0),
        total_steps=int(next((total for total in reversed(totals) if total), 0)),
        last_loss=steps[-1].loss if steps else None,
        best_loss=min((loss for loss in losses if loss is not None), default=None),
        tokens_per_s=steps[-1].tokens_per_s if steps else None,
        seconds=_trained(events) or (max(0.0, last - first) if first else 0.0),
        checkpoints=len(infos),
        error=(errors[-1].code, dict(errors[-1].params)) if errors else None,
    )


def _step(events: list[protocol.AnyEvent]) -> int:
    """The newest step that was told: not every step is, but the end tells at which one it was."""
    for event in reversed(events):
        if isinstance(event, protocol.Step):
            return event.step
        if isinstance(event, protocol.Done):
            return event.steps
    return 0


def _trained(events: list[protocol.AnyEvent]) -> float:
    """Seconds spent in steps, over all processes, where the newest of them told so at its end."""
    for event in reversed(events):
        if isinstance(event, protocol.Done):
            return event.seconds
        if isinstance(event, protocol.Hello):
            break
    return 0.0


def _state(run: RunDir, events: list[protocol.AnyEvent]) -> RunState:
    owner = read_owner(run)
    if owner is not None and owner.alive:
        return "running"
    for event in reversed(events):
        if isinstance(event, protocol.Done):
            return "interrupted" if event.reason == "parent_lost" else event.reason  # that nobody has asked for
        if isinstance(event, protocol.Error):
            return "failed"
        if isinstance(event, protocol.Hello):
            break
    return "interrupted"


def _told(path: Path) -> list[protocol.AnyEvent]:
    """The newest events of a run, without those of starts that were refused: they leave a run as it was.

    A start that prepared data for long before it was refused fills the tail; then more of the file is read.
    """
    size = _TAIL_BYTES
    while True:
        events = list(tail_events(path, size))
        starts = _starts(events)
        counting = [event for start in starts if not _refused(start) for event in start]
        if counting or not path.is_file() or size >= path.stat().st_size:
            return counting or events  # all were refused: the run never began
        size *= 8


def _starts(events: list[protocol.AnyEvent]) -> list[list[protocol.AnyEvent]]:
    """Events by the process that wrote them: each numbers its own."""
    starts: list[list[protocol.AnyEvent]] = []
    for event in events:
        if not starts or isinstance(event, protocol.Hello) or event.seq < starts[-1][-1].seq:
            starts.append([])
        starts[-1].append(event)
    return starts


def _refused(start: list[protocol.AnyEvent]) -> bool:
    """Whether a process ended in an error before there was anything to train."""
    began = any(isinstance(event, protocol.Ready | protocol.Step | protocol.Done) for event in start)
    return not began and any(isinstance(event, protocol.Error) for event in start)


def _first_time(run: RunDir) -> float:
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
    """The events in the last `size` bytes of a file; lines that are no events are passed over."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            if file.tell():
                file.readline()
            lines = file.readlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(protocol.ProtocolError):
            yield protocol.decode_event(line)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping, or nothing where it cannot be read."""
    try:
        loaded = yaml_files.read(path)
    except (OSError, yaml_files.UnreadableError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def find_run(text: str, root: Path, trained: bool = False) -> RunDir:
    """A run by folder, by name below `root`, or `latest`. Raises `run.not_found`.

    `latest` passes over starts that failed before anything was trained; with `trained`, over every run
    without a checkpoint.
    """
    if text in ("", "latest"):
        for run in list_runs(root):
            if run.checkpoints or (run.state != "failed" and not trained):
                return RunDir(run.path)
        raise TraindeckError("run.not_found", path=str(root))
    for candidate in (Path(text), root / text):
        if (candidate / "config.yaml").is_file():
            return RunDir(candidate.resolve())
    raise TraindeckError("run.not_found", path=text)


def find_checkpoint(text: str, runs: Path, warn: Callable[..., None]) -> Path:
    """The checkpoint meant by a run, a run's name, a checkpoint folder, or `latest`.

    `warn(code, **params)` hears of each damaged one that is passed over. Raises `run.not_found` or `run.no_checkpoint`.
    """
    folder = Path(text)
    if text and (folder / checkpoint_dir.MANIFEST).is_file():
        return folder.resolve()
    run = find_run(text, runs, trained=True)
    good, skipped = checkpoint_dir.latest_good(run.checkpoints)
    for path, reason in skipped:
        warn("checkpoint.skipped", path=path.name, reason=reason)
    if good is None:
        raise TraindeckError("run.no_checkpoint", path=str(run.path))
    return good
