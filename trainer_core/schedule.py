"""When training pauses by the clock on the wall: `09:00-18:00`, `mon-fri 09:00-18:00, sat 22:00-06:00`.

Times are local and looked at anew each time, so a changed clock and daylight saving need nothing more. Imports nothing
of the project.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)
_WIDE: Final = str.maketrans("：，、；－–—～~;　", ":,,,-----, ")  # as an input method or a word processor writes them
_CHINESE_DAY: Final = re.compile("(?:周|星期|礼拜)([一二三四五六日天])")
_PART: Final = re.compile(
    r"(?:(?P<first>[a-z]+)(?: *- *(?P<last>[a-z]+))? +)?"
    r"(?P<start>\d{1,2}):(?P<start_minute>\d\d) *- *(?P<end>\d{1,2}):(?P<end_minute>\d\d)"
)


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time on some days of the week."""

    days: frozenset[int]  # on which it begins; Monday is 0
    start: timedelta  # since midnight
    length: timedelta  # up to a day

    def end_around(self, moment: datetime) -> datetime | None:
        """When this span ends, if `moment` is in it."""
        midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        for day in (midnight, midnight - _DAY):  # it may have begun yesterday
            if day.weekday() in self.days and day + self.start <= moment < day + self.start + self.length:
                return day + self.start + self.length
        return None


def parse(text: str) -> tuple[Window, ...]:
    """The windows of a schedule; none for an empty text. Raises `ValueError` with the part that is none."""
    plain = _CHINESE_DAY.sub(_western, text.translate(_WIDE)).lower()
    return tuple(_window(part.strip()) for part in plain.split(",") if part.strip())


def _western(found: re.Match[str]) -> str:
    return f" {_DAYS[min('一二三四五六日天'.index(found[1]), 6)]} "


def _window(part: str) -> Window:
    found = _PART.fullmatch(part)
    if found is None:
        raise ValueError(part)
    start, end = (_time(found[name], found[f"{name}_minute"], part) for name in ("start", "end"))
    if start in (end, _DAY):
        raise ValueError(part)
    return Window(_days(found["first"], found["last"], part), start, end - start if end > start else end - start + _DAY)


def _time(hour: str, minute: str, part: str) -> timedelta:
    """Since midnight, which is also 24:00."""
    since = timedelta(hours=int(hour), minutes=int(minute))
    if int(minute) > 59 or since > _DAY:
        raise ValueError(part)
    return since


def _days(first: str | None, last: str | None, part: str) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    names = [name[:3] for name in (first, last or first)]
    if not set(names) <= set(_DAYS):
        raise ValueError(part)
    start, end = (_DAYS.index(name) for name in names)
    return frozenset((start + offset) % 7 for offset in range((end - start) % 7 + 1))


def pause_ends(windows: tuple[Window, ...], now: datetime) -> datetime | None:
    """When the pause that `now` (local, naive) is in is over; None: there is none. Windows that touch are one, and
    one without an end is said to last for a week."""
    end = now
    while end < now + _WEEK:
        later = max((found for window in windows if (found := window.end_around(end))), default=None)
        if later is None:
            break
        end = later
    return None if end == now else end
