"""Formats messages, numbers, times and states in the current language."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

from PySide6.QtCore import QDateTime, QLocale

from app.core.auto_restart import AutoRestart
from app.core.number_input import format_number
from app.core.run_state import RunState, RunStateMachine
from app.knob_texts import knob_label, knob_value_label
from app.texts import current_language, tr
from trainer_core import performance_texts, protocol, texts
from trainer_core.config import Knob, knobs
from trainer_core.messages import Value, amounts, format_message, format_message_parts
from trainer_core.messages.data import translate_params
from trainer_core.runs.checkpoint_dir import CheckpointInfo

_GIB: Final = 1024**3
_MIB: Final = 1024**2


def localized_message(code: str, params: Mapping[str, Value]) -> str:
    """Return the message of a code, with labels of settings in place of flags."""
    return replace_flags_with_labels(format_message(code, params, current_language()))


def format_advice(code: str, params: Mapping[str, Value]) -> tuple[str, str]:
    """Return problem and remedy."""
    problem, remedy = format_message_parts(code, params, current_language())
    return replace_flags_with_labels(problem), replace_flags_with_labels(remedy)


def format_failure(code: str, error: protocol.Error | None) -> str:
    """Return the problem of an error code, with the parameters of `error` if it has this code."""
    return format_advice(code, error.params if error and error.code == code else {})[0]


def format_restart(restarts: AutoRestart, error: protocol.Error | None) -> str:
    """Return the countdown to an automatic restart after `error`, or an empty string."""
    pending = restarts.pending
    if pending is None:
        return ""
    return tr(
        "window.restarting",
        seconds=round(restarts.remaining_s(time.monotonic())),
        reason=format_failure(pending.reason, error),
        attempt=pending.attempt,
        of=pending.limit,
        step=format_count(pending.step),
    )


def replace_flags_with_labels(text: str) -> str:
    """Replace flags and names of settings by their labels."""
    return re.sub(r" ?(--[a-z][a-z-]+|\b[a-z]+(?:_[a-z]+)+\b) ?", _label_for_flag, text)


def _label_for_flag(found: re.Match[str]) -> str:
    knob = knobs().get(found[1].removeprefix("--").replace("-", "_"))
    if knob is None:
        return found[0]
    quoted = f"“{knob_label(knob)}”"
    return quoted if current_language() == "zh" else found[0].replace(found[1], quoted)


def format_settings(values: Mapping[str, Any]) -> str:
    """Return labels and values of settings."""
    settings = (f"{knob_label(knobs()[name])} {format_setting_value(name, value)}" for name, value in values.items())
    return tr("common.list_separator").join(settings)


def format_setting_value(name: str, value: Any) -> str:
    """Return the value of a setting as its field displays it."""
    if isinstance(value, bool):
        return tr("common.on") if value else tr("common.off")
    if isinstance(value, float):
        return format_number(value)
    return knob_value_label(knobs()[name], value)


def format_device(name: str) -> str:
    """Translate the trainer's name of a device."""
    return performance_texts.format_device(name, current_language())


def format_data_source(path: str) -> str:
    """Return the title of a built-in data set, or the path of a file."""
    return _translate_name("builtin", path.removeprefix("builtin:")) if path.startswith("builtin:") else path


def append_split(name: str, split: str) -> str:
    """Return the name, with the split in parentheses if there is one."""
    return tr("common.name_and_split", name=name, split=split) if split else name


def join_items(items: Iterable[str]) -> str:
    """Items of a list in one line."""
    return tr("setup.list_separator").join(items)


def format_data_sources(paths: list[str]) -> str:
    """Return the names of sources, without folders."""
    return join_items(
        format_data_source(path) if path.startswith("builtin:") else Path(path).name or path for path in paths
    )


def format_allowed_values(knob: Knob) -> str:
    """Describe the allowed values of a setting, as errors of the trainer do."""
    if knob.kind == "choice":
        return join_items(knob_value_label(knob, choice) for choice in knob.choices)
    return str(translate_params({"allowed": knob.allowed()}, current_language())["allowed"])


def format_duration(seconds: float | None) -> str:
    """`0:03:12`, with days from 24 hours on, or a dash if unknown."""
    if seconds is None or seconds != seconds or seconds < 0:
        return "–"
    whole = int(seconds + 0.5)
    days, rest = divmod(whole, 86_400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return tr("common.days_and_time", days=days, clock=clock) if days else clock


def format_count(value: float | None) -> str:
    """Whole number with group separators."""
    return "–" if value is None else f"{value:,.0f}"


def format_large_number(value: float) -> str:
    """Abbreviate numbers from a million on: 949,257, but 9.499M, or 949.9 万."""
    if value < 1e6:
        return f"{value:,.0f}"
    if current_language() == "zh":
        return f"{value / 1e8:,.4g} 亿" if value >= 1e8 else f"{value / 1e4:,.4g} 万"
    return f"{value / 1e9:,.4g}B" if value >= 1e9 else f"{value / 1e6:,.4g}M"


def format_loss(value: float | None) -> str:
    """Loss with four decimals."""
    if value is None or value != value:
        return "–"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def format_significant(value: float | None) -> str:
    """Number with three significant digits."""
    return "–" if value is None or value != value else performance_texts.format_significant(value)


def format_rate(value: float | None) -> str:
    """Tokens per second."""
    return "–" if value is None or value != value else f"{value:,.0f}"


def format_bytes(value: float | None) -> str:
    """Bytes in GiB, or in MiB below 1 GiB."""
    if value is None or value != value:
        return "–"
    return f"{value / _GIB:,.1f} GiB" if value >= _GIB else f"{value / _MIB:.0f} MiB"


def format_file_size(value: float) -> str:
    """File size, in bytes below 1 KiB."""
    return f"{value:.0f} B" if value < 1024 else amounts.format_bytes(value)


def format_timestamp(seconds: float) -> str:
    """Time of a past event, with the date unless it is today."""
    if not seconds:
        return "–"
    if _is_today(seconds):
        return tr("common.today_time", time=format_clock_time(seconds))
    return format_clock_time(seconds)


def format_clock_time(seconds: float) -> str:
    """Time, with the date unless it is today."""
    then = QDateTime.fromSecsSinceEpoch(int(seconds))
    # 24 hours in both languages: English is read in many countries.
    time_of_day = QLocale().toString(then, "HH:mm")
    if _is_today(seconds):
        return time_of_day
    date = QLocale().toString(then, tr("common.date_format"))
    return f"{date} {time_of_day}"


def _is_today(seconds: float) -> bool:
    return time.localtime(seconds)[:3] == time.localtime()[:3]


def format_run_state(state: RunState) -> str:
    return _translate_name("state", state.value)


def format_position(machine: RunStateMachine) -> str:
    """Current step, and the number of steps if known; empty before the first step."""
    step = format_count(machine.step)
    if machine.total_steps:
        return tr("window.step_of_total", step=step, total=format_count(machine.total_steps))
    return tr("common.step_lower", step=step) if machine.step else ""


def format_run_name(name: str, host: str) -> str:
    """Name of a run, with the other machine that trains it."""
    return tr("common.name_on_host", name=name, host=host) if host else name


def format_stored_run_state(state: str) -> str:
    """State of a run on disk (`run_dir.RunState`)."""
    return _translate_name("state", state)


def format_checkpoint_kind(kind: str) -> str:
    """Translated `protocol.CheckpointKind`. Manifests may contain any text."""
    return tr(f"console.checkpoint_kind.{kind}") if kind in get_args(protocol.CheckpointKind) else kind


def format_checkpoint(info: CheckpointInfo) -> str:
    """`Step 400 · final · loss 3.402`."""
    kind = "" if info.kind == "regular" else format_checkpoint_kind(info.kind)
    parts = [tr("common.step", step=format_count(info.step)), kind]
    if info.eval_loss is not None:
        parts.append(tr("chat.loss", loss=format_loss(info.eval_loss)))
    return " · ".join(filter(None, parts))


def format_phase(name: str) -> str:
    return _translate_name("phase", name)


def format_verdict(name: str) -> str:
    return _translate_name("verdict", name)


def _translate_name(kind: str, name: str) -> str:
    """Text of a name; a newer trainer can have others, which stay as they are."""
    return texts.catalogue(current_language()).get(f"common.{kind}_{name}", name)


def format_pause_reason(reason: str, until: float | None) -> str:
    """Why a run is paused; empty if the user paused it."""
    if reason == "schedule" and until is not None:
        return tr("common.pause_schedule_until", time=format_clock_time(until))
    return "" if reason in ("", "requested") else _translate_name("pause", reason)


def format_progress(done: float, total: float | None, unit: str) -> str:
    """`120 / 2,000 files`."""
    if unit == "bytes":
        return f"{format_bytes(done)} / {format_bytes(total)}" if total else format_bytes(done)
    shown = f"{format_count(done)} / {format_count(total)}" if total else format_count(done)
    return f"{shown} {_translate_name('unit', unit)}"
