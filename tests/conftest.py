"""Fixtures of all tests: independent of how this process was started."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests import slow

# Durations on a busy machine are not failures.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Child processes inherit signals that a background shell or `nohup` ignores.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of tests/slow.py `slow`, and the short case of each group `smoke`."""
    everything = tuple(entry for entries in slow.SLOW.values() for entry in entries)
    for item in items:
        test = item.nodeid.removeprefix("tests/")
        if slow.matches(test, everything):
            item.add_marker("slow")
        if slow.matches(test, slow.SMOKE):
            item.add_marker("smoke")
