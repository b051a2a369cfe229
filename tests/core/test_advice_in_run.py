"""Advice in a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.trainer import TINY, run
from trainer_core import protocol


def conversations(folder: Path) -> Path:
    """A third of them is far longer than a sequence."""
    path = folder / "talks.jsonl"
    talks = [
        {"prompt": f"What is {n}?", "response": f"It is {n}." + " And so on." * (60 if n % 3 == 0 else 0)}
        for n in range(90)
    ]
    path.write_text("\n".join(map(json.dumps, talks)), encoding="utf-8")
    return path


@pytest.mark.parametrize("wanted", [True, False])
def test_advice_is_emitted_and_recorded_if_enabled(tmp_path: Path, wanted: bool) -> None:
    data = ("--data", str(conversations(tmp_path)), "--run-dir", "run", "--max-steps", "1", "--eval-examples", "0")
    ended = run(tmp_path, "train", *TINY, *data, *([] if wanted else ["--no-advice"]))
    assert ended.code == 0, ended.stderr
    said = ended.of(protocol.Advice)
    recorded = [
        line for line in (tmp_path / "run" / "events.jsonl").read_text("utf-8").splitlines() if "advice." in line
    ]
    assert len(said) == len(recorded) == int(wanted)
    if wanted:
        assert said[0].code == "advice.truncated"
        assert said[0].suggested_settings == {"max_seq_len": 64, "batch_size": 2, "gradient_accumulation_steps": 6}
        assert [event.seq for event in ended.events] == list(range(1, 1 + len(ended.events)))
