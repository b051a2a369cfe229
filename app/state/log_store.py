"""The log of a run: the newest entries, as codes and parameters that the view words.

An entry's `code` is one of `LOG_CODES`, a code of `trainer_core.messages.CATALOGUE`, or empty: then
`text` is what the trainer printed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import msgspec

from trainer_core import engine_words, protocol
from trainer_core.protocol import AnyEvent, Param

Level = Literal["info", "warning", "error", "advice", "output"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
CAPACITY: Final = 5_000
_MAX_TEXT: Final = 4_000

_CHOSEN: Final = ("batch_size", "gradient_accumulation_steps", "peak", "tokens_per_s")  # of what a check was asked for
LOG_CODES: Final[dict[str, tuple[str, ...]]] = {
    "log.hello": ("run_dir", "pid", "torch", "devices", "precision", "resumed_from_step"),
    "log.ready": (
        "task",
        "train_documents",
        "train_tokens",
        "validation_documents",
        "validation_tokens",
        "validation_sources",  # path and split of each, as JSON
        "validation_sequences",
        "eval_sequences",
        "vocab_size",
        "parameters",
        "total_steps",
        "samples_per_epoch",
        "fill",
        "fill_alone",
        "loader_workers",
        "loader_ahead",
        "loader_pinned",
        "loader_reason",
        "fast_paths",  # those in use, as JSON
        "compile_s",
    ),
    "log.data_report": ("complete", "read_bytes", "bytes", "train_documents", "train_tokens", "steps_per_epoch"),
    "log.phase": ("phase", "step", "reason", "until"),
    "log.check": ("verdict", "from_cache", "memory_total", *_CHOSEN),
    "log.eval": (
        "step",
        "loss",
        "tokens",
        "perplexity",
        "best",
        "bleu4",
        "exact_match",
        "examples",
        "cut_by_limit",
        "cut_by_context",
    ),
    "log.bad_step": ("step", "kind", "grad_norm", "usual", "action", "epoch", "samples"),
    "log.memory_move": (
        "step",
        "action",
        "during",
        "batch_size",
        "gradient_accumulation_steps",
        "requested",
        "free",
        "total",
        "batch_before",
        "accumulation_before",  # None: not known
    ),
    "log.over": ("code", "params"),  # of advice that holds no more; its parameters as JSON
    "log.flops_profile": ("step", "tokens", "total", "formula"),  # the parts of the model are in `text`
    "log.sample": ("step", "prompt", "expected"),  # the sample itself is in `text`
    "log.checkpoint": ("step", "path", "bytes", "seconds", "kind"),
    "log.refused": ("command", "reason"),
    "log.done": ("reason", "steps", "total_steps", "final_loss", "best_loss", "seconds", "tokens_per_s", "model"),
}
"""The codes of entries made here, and their parameters."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the log. `number` counts all entries ever made; `time` is seconds since the epoch."""

    number: int
    time: float
    level: Level
    code: str = ""
    params: dict[str, Param] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """What to show. An empty `text` shows all; it is looked for without regard to case."""

    levels: frozenset[Level] = frozenset(LEVELS)
    text: str = ""

    def keeps(self, entry: LogEntry, worded: str) -> bool:
        return entry.level in self.levels and self.text.casefold() in worded.casefold()


class LogStore:
    """The newest `capacity` entries. `version` grows with every change."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self._made = 0
        self._batch: tuple[Param, Param] = (None, None)  # sequences of a micro-batch, micro-batches, as they are now
        self.version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries)

    @property
    def first_number(self) -> int:
        """Number of the oldest entry kept; a view drops its lines before it."""
        return self._made - len(self._entries)

    def clear(self) -> None:
        self._entries.clear()
        self.version += 1

    def add(self, event: AnyEvent) -> LogEntry | None:
        """The entry for an event; None for measurements, which are no news."""
        match event:
            case protocol.Error():
                return self._notice("error", event)
            case protocol.Warn():
                return self._notice("warning", event)
            case protocol.Advice() if event.over:
                params = msgspec.json.encode(event.params).decode()
                return self._append(event.t, "info", "log.over", {"code": event.code, "params": params})
            case protocol.Advice():
                return self._notice("advice", event)
            case protocol.Hello():
                batch, times = (event.config.get(name) for name in ("batch_size", "gradient_accumulation_steps"))
                self._batch = (_plain(batch), _plain(times))
                return self._append(event.t, "info", "log.hello", _fields(event, "log.hello"))
            case protocol.CheckReport():
                return self._check(event)
            case protocol.MemoryMove():
                return self._memory_move(event)
            case protocol.Ready():
                return self._append(event.t, "info", "log.ready", _fields(event, "log.ready"))
            case protocol.DataReport():
                return self._append(event.t, "info", "log.data_report", _fields(event, "log.data_report"))
            case protocol.Phase():
                return self._append(event.t, "info", "log.phase", _fields(event, "log.phase"))
            case protocol.Eval():
                return self._append(event.t, "info", "log.eval", _fields(event, "log.eval"))
            case protocol.BadStep():
                return self._append(event.t, "warning", "log.bad_step", _fields(event, "log.bad_step"))
            case protocol.FlopsProfile():
                told = "\n".join(engine_words.table(event.rows))
                return self._append(event.t, "info", "log.flops_profile", _fields(event, "log.flops_profile"), told)
            case protocol.Sample():
                return self._append(event.t, "info", "log.sample", _fields(event, "log.sample"), event.text)
            case protocol.Checkpoint():
                return self._append(event.t, "info", "log.checkpoint", _fields(event, "log.checkpoint"))
            case protocol.Done():
                return self._append(event.t, "info", "log.done", _fields(event, "log.done"))
            case protocol.Ack() if not event.accepted:
                return self._append(event.t, "warning", "log.refused", _fields(event, "log.refused"))
            case _:
                return None

    def add_output(self, text: str, time: float) -> LogEntry:
        """A line that the trainer printed."""
        return self._append(time, "output", text=text)

    def since(self, number: int) -> list[LogEntry]:
        """Entries from `number` on: what a view has to append."""
        skip = max(0, number - self.first_number)
        wanted = len(self._entries) - skip
        newest = [entry for _, entry in zip(range(wanted), reversed(self._entries), strict=False)]
        return newest[::-1]

    def filtered(self, wanted: LogFilter, worded: Callable[[LogEntry], str]) -> list[LogEntry]:
        """The entries that a filter keeps; `worded` gives the sentence that is shown, and searched."""
        levels = (entry for entry in self._entries if entry.level in wanted.levels)
        if not wanted.text:
            return list(levels)
        return [entry for entry in levels if wanted.keeps(entry, worded(entry))]

    def counts(self) -> dict[Level, int]:
        """How many entries there are of each level."""
        found: dict[Level, int] = dict.fromkeys(LEVELS, 0)
        for entry in self._entries:
            found[entry.level] += 1
        return found

    def _check(self, event: protocol.CheckReport) -> LogEntry:
        trial = event.chosen
        self._batch = (trial.batch_size, trial.gradient_accumulation_steps)
        params: dict[str, Param] = {name: getattr(event, name) for name in ("verdict", "from_cache", "memory_total")}
        params.update({name: getattr(trial, name) for name in _CHOSEN})
        return self._append(event.t, "info" if event.verdict == "fits" else "warning", "log.check", params)

    def _memory_move(self, event: protocol.MemoryMove) -> LogEntry:
        before = dict(zip(("batch_before", "accumulation_before"), self._batch, strict=True))
        self._batch = (event.batch_size, event.gradient_accumulation_steps)
        own = {name: _plain(getattr(event, name)) for name in LOG_CODES["log.memory_move"] if name not in before}
        level: Level = "info" if event.action == "grown" else "warning"
        return self._append(event.t, level, "log.memory_move", {**own, **before})

    def _notice(self, level: Level, event: protocol.Notice) -> LogEntry:
        return self._append(event.t, level, event.code, dict(event.params), event.detail)

    def _append(
        self, time: float, level: Level, code: str = "", params: dict[str, Param] | None = None, text: str = ""
    ) -> LogEntry:
        entry = LogEntry(self._made, time, level, code, params or {}, text[:_MAX_TEXT])
        self._entries.append(entry)
        self._made += 1
        self.version += 1
        return entry


def _fields(event: AnyEvent, code: str) -> dict[str, Param]:
    found = {name: _plain(getattr(event, name)) for name in LOG_CODES[code]}
    if isinstance(event, protocol.Ready):
        validation = [(source.path, source.split) for source in event.validation_sources]
        found["validation_sources"] = msgspec.json.encode(validation).decode()
        found["fast_paths"] = msgspec.json.encode([path for path in event.fast_paths if path.used]).decode()
    return found


def _plain(value: object) -> Param:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return ", ".join(str(item) for item in value) if isinstance(value, Iterable) else str(value)
