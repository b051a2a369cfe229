"""`--batch-size auto`: real steps select the micro-batch before a run begins."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.core.test_check_command import TINY, report_of
from tests.core.trainer import run, text_file
from trainer_core import protocol
from trainer_core.system import files


def test_an_automatic_batch_size_is_stored_and_a_resume_is_exact(tmp_path: Path) -> None:
    data, file = text_file(tmp_path), tmp_path / "mine.yaml"
    file.write_text("batch_size: 2\n", encoding="utf-8")
    small = ("--max-steps", "6", "--save-steps", "3", "--eval-steps", "0", "--sample-tokens", "2", "--keep-last", "9")
    flags = (*TINY, "--batch-size", "auto", *small, "--data", str(data))
    begun = run(tmp_path, "--config", str(file), *flags, "--run-dir", str(tmp_path / "a"))
    assert begun.code == 0
    picked = report_of(begun).chosen
    tried = [(event.phase, event.done) for event in begun.of(protocol.Progress) if event.unit == "trials"]
    assert tried[:2] == [("checking", 0), ("checking", 1)], "progress is reported"
    kept = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text(encoding="utf-8"))
    assert kept["auto_batch"] is False
    assert (kept["batch_size"], kept["gradient_accumulation_steps"]) == (
        picked.batch_size,
        picked.gradient_accumulation_steps,
    )
    assert picked.batch_size * picked.gradient_accumulation_steps == 2  # of the file
    middle = tmp_path / "a" / "checkpoints" / "step-00000003"
    resumed = run(tmp_path, "--resume", str(middle), "--batch-size", "auto", "--run-dir", str(tmp_path / "b"))
    assert resumed.code == 0
    assert not resumed.of(protocol.CheckReport)
    last = Path("checkpoints", "step-00000006", "model.safetensors")
    assert files.sha256(tmp_path / "a" / last) == files.sha256(tmp_path / "b" / last)
