"""The wire: what the trainer says (events) and what it is told (commands), one JSON object per line.

Events go to stdout and to `events.jsonl`; commands come on stdin. UTF-8 with non-ASCII escaped, so a
line survives any code page. `docs/protocol.md` and its JSON Schema are generated from this file.

Imports nothing else of the project; no torch, no Qt.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, get_args

import msgspec

VERSION: Final = (1, 0)
"""(major, minor). A reader that meets a newer major version says so; a newer minor only adds."""

Param = str | int | float | bool | None
PhaseName = Literal[
    "preparing",
    "checking",
    "compiling",
    "training",
    "evaluating",
    "saving",
    "paused",
    "stopping",
    "done",
    "failed",
]
CheckpointKind = Literal["regular", "best", "final", "emergency"]
DoneReason = Literal["finished", "stopped", "parent_lost"]


class Event(msgspec.Struct, kw_only=True, omit_defaults=False, tag_field="type"):
    """What every event has. `t` is seconds since the epoch; `seq` counts from 1 within a process."""

    t: float = 0.0
    seq: int = 0


class Hello(Event, tag="hello", kw_only=True):
    """The first event of a process: who speaks, and with which resolved configuration."""

    version: tuple[int, int] = VERSION
    command: str = "train"
    pid: int
    run_dir: str
    traindeck: str
    python: str
    torch: str
    devices: list[str] = []
    precision: str = ""
    resumed_from_step: int | None = None  # None: a new run. Steps after it in events.jsonl are done again
    config: dict[str, Any] = {}


class Source(msgspec.Struct, kw_only=True):
    """One data source as it was found."""

    path: str
    format: str
    encoding: str = ""
    columns: list[str] = []
    files: int = 1
    bytes: int = 0


class Ready(Event, tag="ready", kw_only=True):
    """Data and model are there; training begins."""

    task: Literal["pretrain", "sft"]
    sources: list[Source] = []
    train_documents: int
    train_tokens: int
    validation_documents: int
    validation_tokens: int
    truncated: int = 0  # pairs that were longer than the sequence and were cut
    dropped: int = 0  # pairs whose prompt left no room for a response
    vocab_size: int
    parameters: int  # trainable weights
    steps_per_epoch: int
    total_steps: int
    loader_workers: int = 0
    loader_reason: Literal["set", "low_memory", "cpu", "gpu"] = "set"  # why so many


class Phase(Event, tag="phase", kw_only=True):
    """What the trainer is doing now."""

    phase: PhaseName
    step: int | None = None


class Progress(Event, tag="progress", kw_only=True):
    """How far any work of over a second is. `total` is None while it cannot be known."""

    phase: PhaseName
    done: float
    total: float | None = None
    unit: Literal["steps", "bytes", "documents", "tokens", "batches", "files"] = "steps"
    eta_s: float | None = None


class StepTime(msgspec.Struct, kw_only=True):
    """Milliseconds of one step, averaged over the steps since the last event. They add up to the step."""

    data: float
    transfer: float
    forward: float
    backward: float
    optimizer: float
    other: float


class Step(Event, tag="step", kw_only=True):
    """One optimizer update (the newest of those since the last event)."""

    step: int
    epoch: float
    tokens: int  # trained on since the run began
    samples: int
    loss: float | None  # mean over the tokens since the last event; None: not a finite number
    learning_rate: float
    grad_norm: float | None = None
    tokens_per_s: float
    samples_per_s: float
    mfu: float | None = None  # model FLOPs utilisation, 0..1; None where the peak is unknown
    time_ms: StepTime


class Gpu(msgspec.Struct, kw_only=True):
    """One GPU at one moment. None: this driver or platform does not tell. Bytes, watts, °C, MHz."""

    index: int
    name: str
    utilization: float | None = None  # 0..1
    vram_used: int | None = None
    vram_total: int | None = None
    torch_allocated: int | None = None
    torch_reserved: int | None = None
    shared_used: int | None = None  # spill into system memory (Windows)
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    clock_mhz: int | None = None
    throttle: list[str] = []


class Host(msgspec.Struct, kw_only=True):
    """The machine beside its GPUs. Bytes; shares are 0..1."""

    ram_used: int
    ram_total: int
    rss: int  # resident memory of the trainer and its loader workers
    cpu: float
    disk_free: int


class Hardware(Event, tag="hardware", kw_only=True):
    """A sample of the machine at its own interval."""

    gpus: list[Gpu] = []
    host: Host


class Eval(Event, tag="eval", kw_only=True):
    """A pass over the held-out split."""

    step: int
    loss: float | None
    perplexity: float | None
    tokens: int
    seconds: float
    best: bool = False
    bleu4: float | None = None  # 0..100, prompt/response data only
    exact_match: float | None = None  # 0..1
    examples: int = 0  # prompts that were generated for


class Sample(Event, tag="sample", kw_only=True):
    """Text that the model wrote during training."""

    step: int
    prompt: str
    text: str  # without the prompt
    expected: str | None = None  # the held-out answer, where there is one


class Checkpoint(Event, tag="checkpoint", kw_only=True):
    """A checkpoint that is on disk and verified. Paths are names inside the run's checkpoints folder."""

    step: int
    path: str
    bytes: int
    seconds: float
    kind: CheckpointKind
    kept: list[str] = []
    removed: list[str] = []


class Notice(Event, kw_only=True):
    """Base of what is said in words: a code of `messages.CATALOGUE`, its parameters, technical detail."""

    code: str
    params: dict[str, Param] = {}
    detail: str = ""


class Advice(Notice, tag="advice", kw_only=True):
    """Something that would make the run better."""


class Warn(Notice, tag="warning", kw_only=True):
    """Something went less than well; the run goes on."""


class Error(Notice, tag="error", kw_only=True):
    """The run ends because of this. The last event before the process exits with `exit_code`."""

    exit_code: int = 1


class Ack(Event, tag="ack", kw_only=True):
    """The answer to a command, sent when it was taken (not when it is carried out)."""

    command: str
    id: int | None = None
    accepted: bool = True
    reason: str = ""


class Done(Event, tag="done", kw_only=True):
    """The run is over, finished or stopped on request; everything is saved."""

    reason: DoneReason
    steps: int
    total_steps: int
    best_loss: float | None = None
    final_loss: float | None = None
    tokens: int = 0
    seconds: float = 0.0
    tokens_per_s: float = 0.0
    peak_vram: int | None = None
    model: str | None = None  # path of the checkpoint that holds the result


AnyEvent = (
    Hello | Ready | Phase | Progress | Step | Hardware | Eval | Sample | Checkpoint | Advice | Warn | Error | Ack | Done
)
DROPPABLE: Final = (Step, Hardware, Progress)
"""Events that may be left out when the reader is slow; all others always arrive."""


class Command(msgspec.Struct, kw_only=True, tag_field="command"):
    """What every command has. An `id` comes back in the acknowledgement."""

    id: int | None = None


class Stop(Command, tag="stop", kw_only=True):
    """Finish the step, save a checkpoint, exit 3."""


class Pause(Command, tag="pause", kw_only=True):
    """Finish the step and wait."""


class Resume(Command, tag="resume", kw_only=True):
    """Go on after a pause."""


class Save(Command, tag="save", kw_only=True):
    """Save a checkpoint at the end of this step."""


class SampleNow(Command, tag="sample", kw_only=True):
    """Write a text from `prompt` at the end of this step."""

    prompt: str = ""
    max_tokens: int = 64


class Set(Command, tag="set", kw_only=True):
    """Change an interval while running. Only what does not change the result may be set."""

    name: Literal["log_steps", "sample_steps", "hardware_interval_s"]
    value: float


AnyCommand = Stop | Pause | Resume | Save | SampleNow | Set

_event_decoder: Final[msgspec.json.Decoder[AnyEvent]] = msgspec.json.Decoder(AnyEvent)
_command_decoder: Final[msgspec.json.Decoder[AnyCommand]] = msgspec.json.Decoder(AnyCommand)


_NOT_OURS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # the last: `[[[[[…`


class ProtocolError(ValueError):
    """A line that is not an event (or command) of this protocol."""


def encode(message: AnyEvent | AnyCommand) -> bytes:
    """One line with its newline. ASCII only; NaN and infinity become null, which JSON knows."""
    built = msgspec.to_builtins(message)
    return json.dumps(_sendable(built), ensure_ascii=True, separators=(",", ":")).encode("ascii") + b"\n"


def _sendable(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0.0 else None
    if isinstance(value, str):
        # Lone surrogates (undecodable file names on Linux) are no text: strict readers refuse the whole line.
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {key: _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value


def decode_event(line: bytes) -> AnyEvent:
    """The event of one line. Unknown fields are ignored (a newer minor version); raises `ProtocolError`."""
    try:
        return _event_decoder.decode(line)
    except _NOT_OURS as error:
        raise ProtocolError(str(error)) from error


def decode_command(line: bytes) -> AnyCommand:
    """The command of one line; raises `ProtocolError`."""
    try:
        return _command_decoder.decode(line)
    except _NOT_OURS as error:
        raise ProtocolError(str(error)) from error


def event_types() -> tuple[type[Event], ...]:
    """All events, in the order of this file: for the generated reference."""
    return get_args(AnyEvent)


def command_types() -> tuple[type[Command], ...]:
    """All commands, in the order of this file."""
    return get_args(AnyCommand)
