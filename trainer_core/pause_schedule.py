"""Pause schedules: `09:00-18:00`, `mon-fri 09:00-18:00, sat 22:00-06:00`.

Times are local and evaluated at each check, so clock changes and daylight saving need no handling. Imports nothing of
the project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)
_FULLWIDTH: Final = str.maketrans("：，、；－–—～~;　", ":,,,-----, ")  # as typed by input methods and word processors
_CHINESE_DAY: Final = re.compile("(?:周|星期|礼拜)([一二三四五六日天])")
_WINDOW_PATTERN: Final = re.compile(
    r"(?:(?P<first>[a-z]+)(?: *- *(?P<last>[a-z]+))? +)?"
    r"(?P<start>\d{1,2}):(?P<start_minute>\d\d) *- *(?P<end>\d{1,2}):(?P<end_minute>\d\d)"
)


@dataclass(frozen=True, slots=True)
class PauseWindow:
    """A span of time on some days of the week."""

    days: frozenset[int]  # on which it begins; Monday is 0
    start: timedelta  # since midnight
    length: timedelta  # up to a day

    def active_until(self, moment: datetime) -> datetime | None:
        """When this span ends, if `moment` is in it."""
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        for day in (midnight, midnight - _DAY):  # it may have begun yesterday
            if day.weekday() in self.days and day + self.start <= moment < day + self.start + self.length:
                return day + self.start + self.length
        return None


def parse(text: str) -> tuple[PauseWindow, ...]:
    """The windows of a schedule; none for an empty text. Raises `ValueError` with the invalid part."""
    plain = _CHINESE_DAY.sub(_translate_day, text.translate(_FULLWIDTH)).lower()
    return tuple(_parse_window(part.strip()) for part in plain.split(",") if part.strip())


def _translate_day(found: re.Match[str]) -> str:
    return f" {_DAYS[min('一二三四五六日天'.index(found[1]), 6)]} "


def _parse_window(part: str) -> PauseWindow:
    found = _WINDOW_PATTERN.fullmatch(part)
    if found is None:
        raise ValueError(part)
    start, end = (_parse_time(found[name], found[f"{name}_minute"], part) for name in ("start", "end"))
    if start in (end, _DAY):
        raise ValueError(part)
    return PauseWindow(
        _parse_days(found["first"], found["last"], part), start, end - start if end > start else end - start + _DAY
    )


def _parse_time(hour: str, minute: str, part: str) -> timedelta:
    """Since midnight; 24:00 is allowed."""
    since = timedelta(hours=int(hour), minutes=int(minute))
    if int(minute) > 59 or since > _DAY:
        raise ValueError(part)
    return since


def _parse_days(first: str | None, last: str | None, part: str) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    names = [name[:3] for name in (first, last or first)]
    if not set(names) <= set(_DAYS):
        raise ValueError(part)
    start, end = (_DAYS.index(name) for name in names)
    return frozenset((start + offset) % 7 for offset in range((end - start) % 7 + 1))


def pause_end(windows: tuple[PauseWindow, ...], now: datetime) -> datetime | None:
    """When the pause at `now` (local, naive) ends; None: no pause. Adjacent windows are merged; an endless pause is
    reported as a week.
    """
    end = now
    while end < now + _WEEK:
        later = max((found for window in windows if (found := window.active_until(end))), default=None)
        if later is None:
            break
        end = later
    return None if end == now else end
