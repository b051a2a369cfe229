"""Frames become rarer where they take much of a processor, and come back."""

from __future__ import annotations

from app.core.refresh_throttle import MAX_INTERVAL_MS, MIN_INTERVAL_MS, RefreshThrottle


def settled(pace: RefreshThrottle, frame_s: float, other: float = 0.0) -> int:
    """The interval after a while in which each frame takes `frame_s`, and other work a share of the core."""
    for _ in range(40):
        pace.set_cpu_share(min(1.0, other + frame_s / (pace.interval_ms / 1000)))
    return pace.interval_ms


def test_cheap_frames_come_often_and_dear_ones_take_a_tenth_of_the_core() -> None:
    pace = RefreshThrottle()
    assert settled(pace, 0.002) == MIN_INTERVAL_MS
    assert abs(settled(pace, 0.04) - 400) < 20
    assert settled(pace, 0.5) == MAX_INTERVAL_MS
    assert settled(pace, 0.002) == MIN_INTERVAL_MS


def test_a_flood_of_events_leaves_one_frame_a_second() -> None:
    pace = RefreshThrottle()
    assert settled(pace, 0.002, other=0.9) == MAX_INTERVAL_MS
    assert settled(pace, 0.002) == MIN_INTERVAL_MS


def test_one_calm_moment_does_not_bring_all_frames_back() -> None:
    pace = RefreshThrottle()
    settled(pace, 0.5)
    pace.set_cpu_share(0.0)
    assert pace.interval_ms > MAX_INTERVAL_MS / 2
