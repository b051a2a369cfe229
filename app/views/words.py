"""Words and figures as they stand on screen, in the current language."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from PySide6.QtCore import QCoreApplication, QDateTime, QLocale

from app.i18n.knob_words import knob_words
from app.state.run_machine import ErrorInfo, RunState
from app.state.typed import as_typed
from trainer_core import engine_words
from trainer_core.config import Knob, knobs
from trainer_core.messages import Language, Value, amounts, what_and_do, word

_GIB: Final = 1024**3
_MIB: Final = 1024**2


def language() -> Language:
    """The language that the window is in now."""
    return "zh" if QLocale().language() == QLocale.Language.Chinese else "en"


def message(code: str, params: Mapping[str, Value]) -> str:
    """The sentence for a code of the catalogue. It names flags, as terminals need; here they are fields."""
    return with_fields(word(code, params, language()))


def advice(code: str, params: Mapping[str, Value]) -> tuple[str, str]:
    """What is so, and what to do about it."""
    what, do = what_and_do(code, params, language())
    return with_fields(what), with_fields(do)


def failure(code: str, error: ErrorInfo | None) -> str:
    """What went wrong, by its code alone where the trainer could not tell more."""
    return advice(code, error.params if error and error.code == code else {})[0]


def with_fields(text: str) -> str:
    """Knobs as the form names them, in place of flags and of names with underscores."""
    spoken = language()
    return re.sub(r" ?(--[a-z][a-z-]+|\b[a-z]+(?:_[a-z]+)+\b) ?", lambda found: _field(found, spoken), text)


def _field(found: re.Match[str], spoken: Language) -> str:
    """Chinese quotes are wide enough without the spaces that stand around a Latin name."""
    knob = knobs().get(found[1].removeprefix("--").replace("-", "_"))
    if knob is None:
        return found[0]
    quoted = f"“{knob_words(spoken).label(knob)}”"
    return quoted if spoken == "zh" else found[0].replace(found[1], quoted)


def settings(values: Mapping[str, Any]) -> str:
    """Knobs and their values, named as the form names them."""
    table = knob_words(language())
    comma = QCoreApplication.translate("Settings", ", ")
    return comma.join(f"{table.label(knobs()[name])} {setting(name, value)}" for name, value in values.items())


def setting(name: str, value: Any) -> str:
    """The value of a knob, as its field shows it."""
    if isinstance(value, bool):
        off, on = QCoreApplication.translate("Settings", "off"), QCoreApplication.translate("Settings", "on")
        return on if value else off
    if isinstance(value, float):
        return as_typed(value)
    return knob_words(language()).value(knobs()[name], value)


def data_name(path: str) -> str:
    """A data source in words: built-in sets by what they are, files by their path."""
    match path:
        case "builtin:python":
            return QCoreApplication.translate("Data", "Python standard library (built in)")
        case "builtin:tasks":
            return QCoreApplication.translate("Data", "Sums, dates and units, with answers (built in)")
        case _:
            return path


def of_split(name: str, split: str) -> str:
    """A data source with the split of it that is read; without one, only its name."""
    return QCoreApplication.translate("Data", "{name} ({split})").format(name=name, split=split) if split else name


def data_names(paths: list[str]) -> str:
    """Several sources in one line: names without folders."""
    return ", ".join(data_name(path) if path.startswith("builtin:") else Path(path).name or path for path in paths)


def allowed(knob: Knob) -> str:
    """The allowed values of a knob, in words."""
    if knob.kind == "choice":
        table = knob_words(language())
        return ", ".join(table.value(knob, choice) for choice in knob.choices)
    if knob.shape:
        return knob.shape
    low, high = _bound(knob.minimum), _bound(knob.maximum)
    whole = knob.kind == "int"
    if low is not None and high is not None:
        return _between(whole, low, high, knob)
    if low is not None:
        if knob.minimum_open:
            return QCoreApplication.translate("Allowed", "a number above {low}").format(low=low)
        return QCoreApplication.translate("Allowed", "a number from {low} up").format(low=low)
    if whole:
        return QCoreApplication.translate("Allowed", "a whole number")
    return QCoreApplication.translate("Allowed", "a number")


def _between(whole: bool, low: str, high: str, knob: Knob) -> str:
    if whole:
        return QCoreApplication.translate("Allowed", "a whole number from {low} to {high}").format(low=low, high=high)
    if knob.minimum_open and knob.maximum_open:
        text = QCoreApplication.translate("Allowed", "a number above {low} and below {high}")
        return text.format(low=low, high=high)
    if knob.minimum_open:
        text = QCoreApplication.translate("Allowed", "a number above {low}, at most {high}")
        return text.format(low=low, high=high)
    if knob.maximum_open:
        text = QCoreApplication.translate("Allowed", "a number from {low}, below {high}")
        return text.format(low=low, high=high)
    return QCoreApplication.translate("Allowed", "a number from {low} to {high}").format(low=low, high=high)


def _bound(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{int(value):,}" if float(value).is_integer() else f"{value:g}"


def duration(seconds: float | None) -> str:
    """`0:03:12`, with days in front where there are any; a dash where it is not known."""
    if seconds is None or seconds != seconds or seconds < 0:
        return "–"
    whole = int(seconds + 0.5)
    days, rest = divmod(whole, 86_400)
    clock = f"{rest // 3600}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    if not days:
        return clock
    return QCoreApplication.translate("Figures", "{days} d {clock}").format(days=days, clock=clock)


def count(value: float | None) -> str:
    """A whole number with group separators."""
    return "–" if value is None else f"{value:,.0f}"


def big(value: float) -> str:
    """A figure that may be huge, short enough for a tile: 949,257, but 9.499M (or 949.9 万)."""
    if value < 1e6:
        return f"{value:,.0f}"
    if language() == "zh":
        return f"{value / 1e8:,.4g} 亿" if value >= 1e8 else f"{value / 1e4:,.4g} 万"
    return f"{value / 1e9:,.4g}B" if value >= 1e9 else f"{value / 1e6:,.4g}M"


def share(part: float, whole: float) -> str:
    """A part of a whole in per cent; what is there never reads as nothing."""
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    return "< 0.01 %" if percent < 0.01 else f"{percent:.2g} %" if percent < 1 else f"{percent:.1f} %"


def loss(value: float | None) -> str:
    """A loss: four significant digits are what one compares."""
    if value is None or value != value:
        return "–"
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"


def significant(value: float | None) -> str:
    """Any figure with three significant digits."""
    return "–" if value is None or value != value else engine_words.significant(value)


def rate(value: float | None) -> str:
    """Tokens per second."""
    return "–" if value is None or value != value else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in GiB, or MiB where that is less than one."""
    if value is None or value != value:
        return "–"
    return f"{value / _GIB:,.1f} GiB" if value >= _GIB else f"{value / _MIB:.0f} MiB"


def small_size(value: float) -> str:
    """Bytes of a file, which may be few."""
    return f"{value:.0f} B" if value < 1024 else amounts.size(value)


def when(seconds: float) -> str:
    """A moment: the time today, otherwise the date and the time."""
    if not seconds:
        return "–"
    if _is_today(seconds):
        return QCoreApplication.translate("Figures", "today {time}").format(time=clock(seconds))
    return clock(seconds)


def clock(seconds: float) -> str:
    """A moment to come: the time of today, otherwise with the date."""
    then = QDateTime.fromSecsSinceEpoch(int(seconds))
    # As the language writes them; hours to 24 in both, for English is read in more countries than one.
    time_of_day = QLocale().toString(then, "HH:mm")
    if _is_today(seconds):
        return time_of_day
    date = QLocale().toString(then, QCoreApplication.translate("Figures", "d MMM yyyy"))
    return f"{date} {time_of_day}"


def _is_today(seconds: float) -> bool:
    return time.localtime(seconds)[:3] == time.localtime()[:3]


def state(state: RunState) -> str:
    """A run's state in one or two words."""
    table = {
        RunState.IDLE: QCoreApplication.translate("State", "Ready"),
        RunState.STARTING: QCoreApplication.translate("State", "Starting"),
        RunState.PREPARING: QCoreApplication.translate("State", "Preparing"),
        RunState.COMPILING: QCoreApplication.translate("State", "Compiling"),
        RunState.TRAINING: QCoreApplication.translate("State", "Training"),
        RunState.EVALUATING: QCoreApplication.translate("State", "Evaluating"),
        RunState.SAVING: QCoreApplication.translate("State", "Saving"),
        RunState.PAUSED: QCoreApplication.translate("State", "Paused"),
        RunState.STOPPING: QCoreApplication.translate("State", "Stopping"),
        RunState.KILLING: QCoreApplication.translate("State", "Ending"),
        RunState.FINISHED: QCoreApplication.translate("State", "Finished"),
        RunState.STOPPED: QCoreApplication.translate("State", "Stopped"),
        RunState.FAILED: QCoreApplication.translate("State", "Failed"),
        RunState.CRASHED: QCoreApplication.translate("State", "Crashed"),
    }
    return table[state]


def disk_state(state: str) -> str:
    """The state of a run on disk (`run_dir.RunState`)."""
    table = {
        "running": QCoreApplication.translate("State", "Running"),
        "finished": QCoreApplication.translate("State", "Finished"),
        "stopped": QCoreApplication.translate("State", "Stopped"),
        "failed": QCoreApplication.translate("State", "Failed"),
        "interrupted": QCoreApplication.translate("State", "Interrupted"),
    }
    return table.get(state, state)


def phase(name: str) -> str:
    """What the trainer is doing."""
    table = {
        "preparing": QCoreApplication.translate("Phase", "preparing the data"),
        "checking": QCoreApplication.translate("Phase", "checking"),
        "compiling": QCoreApplication.translate("Phase", "finding the fastest way to compute"),
        "training": QCoreApplication.translate("Phase", "training"),
        "evaluating": QCoreApplication.translate("Phase", "evaluating"),
        "saving": QCoreApplication.translate("Phase", "saving a checkpoint"),
        "paused": QCoreApplication.translate("Phase", "paused"),
        "stopping": QCoreApplication.translate("Phase", "stopping"),
        "done": QCoreApplication.translate("Phase", "done"),
        "failed": QCoreApplication.translate("Phase", "failed"),
    }
    return table.get(name, name)


def pause(reason: str, until: float | None) -> str:
    """Why a run waits; empty where that needs no words."""
    if reason == "schedule" and until is not None:
        return QCoreApplication.translate("Pause", "by schedule, until {time}").format(time=clock(until))
    return {
        "schedule": QCoreApplication.translate("Pause", "by schedule"),
        "other_program": QCoreApplication.translate(
            "Pause", "another program uses the GPU; training goes on when it is done"
        ),
        "disk_full": QCoreApplication.translate("Pause", "the disk is full; training goes on when there is room"),
    }.get(reason, "")


def verdict(name: str) -> str:
    """Whether a configuration fits, in a word or two."""
    return {
        "fits": QCoreApplication.translate("Check", "Fits"),
        "tight": QCoreApplication.translate("Check", "Tight"),
        "does_not_fit": QCoreApplication.translate("Check", "Does not fit"),
    }.get(name, name)


def amount(done: float, total: float | None, unit: str) -> str:
    """How far some work is: `120 of 2,000 files`."""
    if unit == "bytes":
        return f"{size(done)} / {size(total)}" if total else size(done)
    table = {
        "steps": QCoreApplication.translate("Unit", "steps"),
        "documents": QCoreApplication.translate("Unit", "documents"),
        "tokens": QCoreApplication.translate("Unit", "tokens"),
        "batches": QCoreApplication.translate("Unit", "batches"),
        "files": QCoreApplication.translate("Unit", "files"),
        "trials": QCoreApplication.translate("Unit", "trials"),
    }
    shown = f"{count(done)} / {count(total)}" if total else count(done)
    return f"{shown} {table.get(unit, unit)}"
