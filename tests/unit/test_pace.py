"""Frames become rarer where they take much of a processor, and come back."""

from __future__ import annotations

from app.pace import OFTEN_MS, SELDOM_MS, Pace


def settled(pace: Pace, frame_s: float, other: float = 0.0) -> int:
    """The interval after a while in which each frame takes `frame_s`, and other work a share of the core."""
    for _ in range(40):
        pace.follow(min(1.0, other + frame_s / (pace.interval_ms / 1000)))
    return pace.interval_ms


def test_cheap_frames_come_often_and_dear_ones_take_a_tenth_of_the_core() -> None:
    pace = Pace()
    assert settled(pace, 0.002) == OFTEN_MS
    assert abs(settled(pace, 0.04) - 400) < 20
    assert settled(pace, 0.5) == SELDOM_MS
    assert settled(pace, 0.002) == OFTEN_MS


def test_a_flood_of_events_leaves_one_frame_a_second() -> None:
    pace = Pace()
    assert settled(pace, 0.002, other=0.9) == SELDOM_MS
    assert settled(pace, 0.002) == OFTEN_MS


def test_one_calm_moment_does_not_bring_all_frames_back() -> None:
    pace = Pace()
    settled(pace, 0.5)
    pace.follow(0.0)
    assert pace.interval_ms > SELDOM_MS / 2
