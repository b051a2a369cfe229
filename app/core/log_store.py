"""The log of a run: the newest entries, as codes and parameters that the view formats.

An entry's `code` is one of `LOG_CODES`, a message code, or empty: then
`text` is what the trainer printed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import msgspec

from trainer_core import performance_texts, protocol
from trainer_core.protocol import AnyEvent, Param

Level = Literal["info", "warning", "error", "advice", "output"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
DEFAULT_CAPACITY: Final = 5_000
_MAX_TEXT_CHARS: Final = 4_000

_TRIAL_FIELDS: Final = (
    "batch_size",
    "gradient_accumulation_steps",
    "peak",
    "tokens_per_s",
)  # of what a check was asked for
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
        "fill_unpacked",
        "loader_workers",
        "loader_prefetch",
        "loader_pinned",
        "loader_reason",
        "fast_paths",  # those in use, as JSON
    ),
    "log.compiled": ("step", "compile_s", "fast_paths"),
    "log.data_report": ("complete", "read_bytes", "bytes", "train_documents", "train_tokens", "steps_per_epoch"),
    "log.phase": ("phase", "step", "reason", "until"),
    "log.check": ("verdict", "from_cache", "memory_total", *_TRIAL_FIELDS),
    "log.eval": (
        "step",
        "loss",
        "tokens",
        "perplexity",
        "best",
        "bleu4",
        "exact_match",
        "examples",
        "truncated_by_limit",
        "truncated_by_context",
    ),
    "log.bad_step": ("step", "kind", "grad_norm", "mean_grad_norm", "action", "epoch", "samples"),
    "log.oom_recovery": (
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
    "log.advice_cleared": ("code", "params"),  # of advice that holds no more; its parameters as JSON
    "log.flops_profile": ("step", "tokens", "total", "formula"),  # the parts of the model are in `text`
    "log.sample": ("step", "prompt", "expected"),  # the sample itself is in `text`
    "log.checkpoint": ("step", "path", "bytes", "seconds", "kind"),
    "log.refused": ("command", "reason"),
    "log.done": ("reason", "steps", "total_steps", "final_loss", "best_loss", "seconds", "tokens_per_s", "model"),
}
"""The codes of entries made here, and their parameters."""

_PLAIN_ENTRIES: Final[dict[type[protocol.Event], tuple[Level, str]]] = {
    protocol.Ready: ("info", "log.ready"),
    protocol.Compiled: ("info", "log.compiled"),
    protocol.DataReport: ("info", "log.data_report"),
    protocol.Phase: ("info", "log.phase"),
    protocol.Eval: ("info", "log.eval"),
    protocol.BadStep: ("warning", "log.bad_step"),
    protocol.Checkpoint: ("info", "log.checkpoint"),
    protocol.Done: ("info", "log.done"),
}
"""Events whose entry consists of a level, a code and some of their fields."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log. `number` counts all entries of the run; `time` is in seconds since the epoch."""

    number: int
    time: float
    level: Level
    code: str = ""
    params: dict[str, Param] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Selects entries by level and text, ignoring case. An empty `text` matches all."""

    levels: frozenset[Level] = frozenset(LEVELS)
    text: str = ""

    def matches(self, entry: LogEntry, message: str) -> bool:
        return entry.level in self.levels and self.text.casefold() in message.casefold()


class LogStore:
    """The newest `capacity` entries. `version` grows with every change."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self._entries: deque[LogEntry] = deque(maxlen=capacity)
        self._total = 0
        self._batch_settings: tuple[Param, Param] = (None, None)  # current batch_size, gradient_accumulation_steps
        self.version = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self._entries)

    @property
    def first_number(self) -> int:
        """Number of the oldest entry kept; a view drops its lines before it."""
        return self._total - len(self._entries)

    def clear(self) -> None:
        self._entries.clear()
        self.version += 1

    def add(self, event: AnyEvent) -> LogEntry | None:
        """Append and return the entry for an event; None for measurements."""
        match event:
            case protocol.Error():
                return self._add_notice("error", event)
            case protocol.Warn():
                return self._add_notice("warning", event)
            case protocol.Advice() if event.resolved:
                params = msgspec.json.encode(event.params).decode()
                return self._append(event.t, "info", "log.advice_cleared", {"code": event.code, "params": params})
            case protocol.Advice():
                return self._add_notice("advice", event)
            case protocol.Hello():
                batch, times = (event.config.get(name) for name in ("batch_size", "gradient_accumulation_steps"))
                self._batch_settings = (_to_param(batch), _to_param(times))
                return self._append(event.t, "info", "log.hello", _event_params(event, "log.hello"))
            case protocol.CheckReport():
                return self._add_check_report(event)
            case protocol.OomRecovery():
                return self._add_oom_recovery(event)
            case protocol.FlopsProfile():
                told = "\n".join(performance_texts.format_flops_table(event.rows))
                return self._append(
                    event.t, "info", "log.flops_profile", _event_params(event, "log.flops_profile"), told
                )
            case protocol.Sample():
                return self._append(event.t, "info", "log.sample", _event_params(event, "log.sample"), event.text)
            case protocol.Ack() if not event.accepted:
                return self._append(event.t, "warning", "log.refused", _event_params(event, "log.refused"))
        if type(event) in _PLAIN_ENTRIES:
            level, code = _PLAIN_ENTRIES[type(event)]
            return self._append(event.t, level, code, _event_params(event, code))
        return None

    def add_output(self, text: str, time: float) -> LogEntry:
        """A line that the trainer printed."""
        return self._append(time, "output", text=text)

    def since(self, number: int) -> list[LogEntry]:
        """Entries from `number` on, which a view has not appended yet."""
        skip = max(0, number - self.first_number)
        wanted = len(self._entries) - skip
        newest = [entry for _, entry in zip(range(wanted), reversed(self._entries), strict=False)]
        return newest[::-1]

    def _add_check_report(self, event: protocol.CheckReport) -> LogEntry:
        trial = event.chosen
        self._batch_settings = (trial.batch_size, trial.gradient_accumulation_steps)
        params: dict[str, Param] = {name: getattr(event, name) for name in ("verdict", "from_cache", "memory_total")}
        params.update({name: getattr(trial, name) for name in _TRIAL_FIELDS})
        return self._append(event.t, "info" if event.verdict == "fits" else "warning", "log.check", params)

    def _add_oom_recovery(self, event: protocol.OomRecovery) -> LogEntry:
        before = dict(zip(("batch_before", "accumulation_before"), self._batch_settings, strict=True))
        self._batch_settings = (event.batch_size, event.gradient_accumulation_steps)
        own = {name: _to_param(getattr(event, name)) for name in LOG_CODES["log.oom_recovery"] if name not in before}
        level: Level = "info" if event.action == "grown" else "warning"
        return self._append(event.t, level, "log.oom_recovery", {**own, **before})

    def _add_notice(self, level: Level, event: protocol.CodedEvent) -> LogEntry:
        return self._append(event.t, level, event.code, dict(event.params), event.detail)

    def _append(
        self, time: float, level: Level, code: str = "", params: dict[str, Param] | None = None, text: str = ""
    ) -> LogEntry:
        entry = LogEntry(self._total, time, level, code, params or {}, text[:_MAX_TEXT_CHARS])
        self._entries.append(entry)
        self._total += 1
        self.version += 1
        return entry


def _event_params(event: AnyEvent, code: str) -> dict[str, Param]:
    found = {name: _to_param(getattr(event, name)) for name in LOG_CODES[code]}
    if isinstance(event, protocol.Ready):
        validation = [(source.path, source.split) for source in event.validation_sources]
        found["validation_sources"] = msgspec.json.encode(validation).decode()
    if isinstance(event, protocol.Ready | protocol.Compiled):
        found["fast_paths"] = msgspec.json.encode([path for path in event.fast_paths if path.used]).decode()
    return found


def _to_param(value: object) -> Param:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return ", ".join(str(item) for item in value) if isinstance(value, Iterable) else str(value)
