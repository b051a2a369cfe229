"""Advice in a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, run
from trainer_core import protocol


def conversations_file(folder: Path) -> Path:
    """Conversations, a third of which are far longer than a sequence."""
    path = folder / "talks.jsonl"
    rows = [
        {"prompt": f"What is {n}?", "response": f"It is {n}." + " And more." * (60 if n % 3 == 0 else 0)}
        for n in range(90)
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize("enabled", [True, False])
def test_advice_is_emitted_and_recorded_if_enabled(tmp_path: Path, enabled: bool) -> None:
    data = ("--data", str(conversations_file(tmp_path)), "--run-dir", "run", "--max-steps", "1", "--eval-examples", "0")
    result = run(tmp_path, "train", *TINY, *data, *([] if enabled else ["--no-advice"]))
    assert result.code == 0, result.stderr
    emitted = result.events_of(protocol.Advice)
    recorded = [
        line for line in (tmp_path / "run" / "events.jsonl").read_text("utf-8").splitlines() if "advice." in line
    ]
    assert len(emitted) == len(recorded) == int(enabled)
    if enabled:
        assert emitted[0].code == "advice.truncated"
        assert emitted[0].suggested_settings == {"max_seq_len": 64, "batch_size": 2, "gradient_accumulation_steps": 6}
        assert [event.seq for event in result.events] == list(range(1, 1 + len(result.events)))
