"""`preset:NAME` is the newest finished run of a preset with its own settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.events import hello
from trainer_core import presets, protocol
from trainer_core.base_model import preset_run
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir

PRESET = "quickstart_sft"


def write_run(home: Path, name: str, t: float, reason: protocol.DoneReason = "finished", **changes: Any) -> Path:
    run = RunDir(home / "runs" / name)
    checkpoint = run.checkpoints / checkpoint_dir.folder_name(400)
    checkpoint.mkdir(parents=True)
    checkpoint_dir.write_manifest(checkpoint, 400, "final", None)
    run.write_config(msgspec.structs.replace(presets.load(PRESET).config(), **changes))
    done = protocol.Done(t=t, seq=2, reason=reason, steps=400, total_steps=400)
    run.events.write_bytes(protocol.encode(hello(t=t, seq=1)) + protocol.encode(done))
    return run.path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    return tmp_path


def test_it_is_the_newest_finished_run_that_has_the_settings_of_the_preset(home: Path) -> None:
    write_run(home, "older", 1.0)
    wanted = write_run(home, "newer", 2.0, log_steps=1, device="cpu")  # the weights do not depend on these
    write_run(home, "longer", 3.0, max_steps=800)
    write_run(home, "other data", 4.0, data=["mine.jsonl"])
    write_run(home, "stopped", 5.0, reason="stopped")
    damaged = write_run(home, "damaged", 6.0)
    (damaged / "config.yaml").write_text(f"preset: {PRESET}\nno_such_setting: 1\n", encoding="utf-8")
    write_run(home, "other preset", 7.0, preset="quickstart")
    assert preset_run.find_or_train(PRESET, "cpu", NullReporter()) == preset_run.find_finished(PRESET) == wanted


def test_an_unknown_preset_is_refused(home: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        preset_run.find_or_train("quickstart_sfd", "cpu", NullReporter())
    assert caught.value.code == "config.unknown_preset"


def test_an_error_of_the_training_is_that_of_the_run(home: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        preset_run.find_or_train("cpu", "cpu", NullReporter())  # has no data
    assert caught.value.code == "data.none_given"
