"""Pause schedules by local time."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_core.config import Config, ConfigLayer, check_combinations, resolve
from trainer_core.messages import TraindeckError, format_message
from trainer_core.pause_schedule import parse, pause_end

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
SATURDAY = datetime(2026, 11, 21)


def at(text: str, days: int = 0) -> datetime:
    hour, minute = text.split(":")
    return SATURDAY + timedelta(days=days, hours=int(hour), minutes=int(minute))


@pytest.mark.parametrize(
    ("schedule", "now", "end"),
    [
        ("", "12:00", None),
        ("09:00-18:00", "08:59", None),
        ("09:00-18:00", "09:00", at("18:00")),
        ("9:00 - 18:00", "17:59", at("18:00")),
        ("09:00-18:00", "18:00", None),
        ("22:00-06:00", "23:30", at("06:00", 1)),
        ("22:00-06:00", "05:59", at("06:00")),
        ("fri 22:00-06:00", "05:00", at("06:00")),
        ("sat 22:00-06:00", "05:00", None),
        ("mon-fri 09:00-18:00", "12:00", None),
        ("fri-mon 09:00-18:00", "12:00", at("18:00")),
        ("Saturday 09:00-18:00", "12:00", at("18:00")),
        ("mon 09:00-18:00, sat 20:00-24:00", "21:00", at("00:00", 1)),
        ("09:00-12:00,12:00-13:00", "10:00", at("13:00")),
        ("09:00-12:00,11:00-13:00", "10:00", at("13:00")),
        ("周六 09：00—18：00，周一－周五 01:00-02:00", "12:00", at("18:00")),
        ("星期天 09:00-18:00", "12:00", None),
        ("00:00-24:00", "12:00", at("00:00", 7)),
    ],
)
def test_pause_end_follows_the_schedule(schedule: str, now: str, end: datetime | None) -> None:
    actual = pause_end(parse(schedule), at(now))
    assert actual == end or (end == at("00:00", 7) and actual is not None and actual > end - timedelta(days=1))


days, minutes = st.integers(0, 6), st.integers(0, 1439)
window = st.tuples(days, days, minutes, minutes).filter(lambda fields: fields[2] != fields[3])


@given(st.lists(window, min_size=1, max_size=3), st.integers(0, 7 * 1440 - 1))
def test_every_minute_of_the_week_matches_the_windows(schedule: list[tuple[int, int, int, int]], minute: int) -> None:
    text = ", ".join(
        f"{DAYS[first]}-{DAYS[last]} {start // 60}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
        for first, last, start, end in schedule
    )
    paused_minutes = set()
    for first, last, start, end in schedule:
        for day in range((last - first) % 7 + 1):
            begin = (first + day) % 7 * 1440 + start
            paused_minutes |= {(begin + offset) % (7 * 1440) for offset in range((end - start) % 1440)}
    monday = SATURDAY + timedelta(days=2)
    now = monday + timedelta(minutes=minute, seconds=30)
    ends = pause_end(parse(text), now)
    assert (ends is not None) == (minute in paused_minutes)
    if ends is not None and ends - now < timedelta(days=7):
        after = int((ends - monday).total_seconds() // 60)
        assert after % (7 * 1440) not in paused_minutes, "no gap between adjacent windows"
        assert {paused % (7 * 1440) for paused in range(minute, after)} <= paused_minutes


@given(st.text(alphabet="mon-frisat周一 0123456789:,-", max_size=24))
def test_any_text_is_parsed_or_rejected_with_a_message(text: str) -> None:
    try:
        windows = parse(text)
    except ValueError:
        with pytest.raises(TraindeckError) as caught:
            check_combinations(Config(pause_between=text))
        assert caught.value.code == "config.schedule"
        for language in ("en", "zh"):
            assert format_message(caught.value.code, caught.value.params, language)  # type: ignore[arg-type]
    else:
        check_combinations(Config(pause_between=text))
        pause_end(windows, SATURDAY)


@pytest.mark.parametrize(
    "text", ["nine to five", "9-17", "25:00-26:00", "09:60-10:00", "09:00-09:00", "funday 09:00-10:00", "24:00-09:00"]
)
def test_the_invalid_part_of_a_schedule_is_named(text: str) -> None:
    with pytest.raises(TraindeckError) as caught:
        resolve([ConfigLayer("the command line", {"pause_between": f"mon 10:00-11:00, {text}"})])
    assert caught.value.params["given"] == text
