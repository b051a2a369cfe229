"""`--batch-size auto` and `--activation-checkpointing auto`: trial steps determine the values before a run starts."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.core.test_check_command import TINY, report_of
from tests.core.trainer_process import run, text_file
from trainer_core import protocol
from trainer_core.system import files


def test_automatic_settings_are_stored_and_a_resume_is_exact(tmp_path: Path) -> None:
    data, file = text_file(tmp_path), tmp_path / "mine.yaml"
    file.write_text("batch_size: 2\n", encoding="utf-8")
    small = ("--max-steps", "6", "--save-steps", "3", "--eval-steps", "0", "--sample-tokens", "2", "--keep-last", "9")
    automatic = ("--batch-size", "auto", "--activation-checkpointing", "auto")
    flags = (*TINY, *automatic, *small, "--data", str(data))
    first = run(tmp_path, "--config", str(file), *flags, "--run-dir", str(tmp_path / "a"))
    assert first.code == 0
    chosen = report_of(first).chosen
    progress = [(event.phase, event.done) for event in first.events_of(protocol.Progress) if event.unit == "trials"]
    assert progress[:2] == [("checking", 0), ("checking", 1)], "progress is reported"
    stored = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text(encoding="utf-8"))
    assert stored["auto_batch"] is False
    assert stored["activation_checkpointing"] == "off"  # memory suffices
    assert (stored["batch_size"], stored["gradient_accumulation_steps"]) == (
        chosen.batch_size,
        chosen.gradient_accumulation_steps,
    )
    assert chosen.batch_size * chosen.gradient_accumulation_steps == 2  # the batch size of the file
    middle = tmp_path / "a" / "checkpoints" / "step-00000003"
    resumed = run(tmp_path, "--resume", str(middle), "--batch-size", "auto", "--run-dir", str(tmp_path / "b"))
    assert resumed.code == 0
    assert not resumed.events_of(protocol.CheckReport)
    last = Path("checkpoints", "step-00000006", "model.safetensors")
    assert files.sha256(tmp_path / "a" / last) == files.sha256(tmp_path / "b" / last)
