"""Fine-tuning on Windows: peft and transformers run there, and a LoRA run that was killed resumes exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.test_fine_tuning import LONG, STEPS, base_folder, checkpoint_at, command
from tests.core.test_model_template import conversations_file
from tests.core.trainer_process import finish, reached_step, read_until, start
from trainer_core import protocol


@pytest.mark.in_chinese
def test_a_lora_run_that_was_killed_resumes_exactly(tmp_path: Path) -> None:
    home = tmp_path / "家 home (x)"
    home.mkdir()
    base, data = base_folder(home / "模型 base"), conversations_file(home)
    process = start(home, *command(home, base, data, "运行", *LONG, "--method", "lora"))
    events = read_until(process, reached_step(18))
    process.kill()
    process.communicate()
    resumed = finish(start(home, "train", "--resume", "运行"), 170)
    assert resumed.code == 0, resumed.stderr
    assert 5 <= resumed.events_of(protocol.Hello)[0].resumed_from_step < 18
    assert max(resumed.losses) == STEPS
    before = {event.step: event.loss for event in events if isinstance(event, protocol.Step)}
    again = before.keys() & resumed.losses.keys()
    assert again
    assert all(resumed.losses[step] == before[step] for step in again)
    assert (checkpoint_at(home, "运行", STEPS) / "adapter_model.safetensors").is_file()
