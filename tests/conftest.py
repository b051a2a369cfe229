"""Settings of all tests, independent of how the process was started."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests import slow

# No time limits: they would fail on a busy machine.
settings.register_profile("no_deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no_deadline")

# A background shell or `nohup` ignores these signals, and child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the markers `slow` and `smoke` according to tests/slow.py."""
    slow_tests = tuple(entry for entries in slow.SLOW.values() for entry in entries)
    for item in items:
        test_id = item.nodeid.removeprefix("tests/")
        if slow.matches(test_id, slow_tests):
            item.add_marker("slow")
        if slow.matches(test_id, slow.SMOKE):
            item.add_marker("smoke")
