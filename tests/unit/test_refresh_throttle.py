"""The refresh interval adapts to the CPU time of a frame."""

from __future__ import annotations

from app.core.refresh_throttle import MAX_INTERVAL_MS, MIN_INTERVAL_MS, RefreshThrottle


def settled_interval(throttle: RefreshThrottle, frame_s: float, other: float = 0.0) -> int:
    """Return the interval after 40 frames of `frame_s` seconds; `other`: share of the core used by other work."""
    for _ in range(40):
        throttle.set_cpu_share(min(1.0, other + frame_s / (throttle.interval_ms / 1000)))
    return throttle.interval_ms


def test_frames_use_at_most_a_tenth_of_a_core() -> None:
    throttle = RefreshThrottle()
    assert settled_interval(throttle, 0.002) == MIN_INTERVAL_MS
    assert abs(settled_interval(throttle, 0.04) - 400) < 20
    assert settled_interval(throttle, 0.5) == MAX_INTERVAL_MS
    assert settled_interval(throttle, 0.002) == MIN_INTERVAL_MS


def test_a_flood_of_events_reduces_the_rate_to_one_frame_per_second() -> None:
    throttle = RefreshThrottle()
    assert settled_interval(throttle, 0.002, other=0.9) == MAX_INTERVAL_MS
    assert settled_interval(throttle, 0.002) == MIN_INTERVAL_MS


def test_the_interval_decreases_gradually() -> None:
    throttle = RefreshThrottle()
    settled_interval(throttle, 0.5)
    throttle.set_cpu_share(0.0)
    assert throttle.interval_ms > MAX_INTERVAL_MS / 2
