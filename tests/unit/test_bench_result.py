"""What a measurement tells of the machine that it ran on."""

from __future__ import annotations

import psutil
import pytest

from trainer_core.benchmark import result


def test_a_system_that_does_not_tell_its_processor_time_is_measured_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(interval: float) -> float:
        raise OSError(1, "Invalid function")

    monkeypatch.setattr(psutil, "cpu_percent", refuse)
    assert result.busy() == 0.0
