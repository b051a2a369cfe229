"""Training on DeepSpeed's engine equals training without it, and its checkpoints are those of every other run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.core.trainer_process import TINY, TrainerResult, environment, run, text_file
from trainer_core import protocol

pytest.importorskip("deepspeed", reason="needs the extra `deepspeed`")
pytestmark = pytest.mark.timeout(600)  # its first start compiles

DATA = "文本 text.txt"
NO_DROPOUT = ["--dropout", "0", "--sample-steps", "0"]
ARGUMENTS = ["train", *TINY, *NO_DROPOUT, "--max-steps", "8", "--save-steps", "4", "--keep-last", "9", "--data", DATA]
USUAL: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto"}},
    "zero_optimization": {
        "stage": 2,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": "auto",
        "allgather_bucket_size": 5e8,
    },
    "wall_clock_breakdown": False,
}


def zero(stage: int, **values: Any) -> dict[str, Any]:
    return {**USUAL, "zero_optimization": {**USUAL["zero_optimization"], "stage": stage, **values}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("家 home (x)")
    text_file(folder)
    return folder


@pytest.fixture(scope="module")
def single(home: Path) -> TrainerResult:
    """The run of a single process without DeepSpeed."""
    result = run(home, *ARGUMENTS, "--run-dir", "single")
    assert result.code == 0, result.stderr
    return result


def train(home: Path, name: str, document: dict[str, Any], *arguments: str, ranks: int = 2) -> TrainerResult:
    file = home / f"{name} 设置.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    deepspeed = ["--parallel", "deepspeed", "--deepspeed-config", file.name, "--nproc-per-node", str(ranks)]
    return run(home, *ARGUMENTS, *deepspeed, "--run-dir", name, *arguments)


def tensors(home: Path, name: str, file: str = "model.safetensors", step: int = 8) -> dict[str, torch.Tensor]:
    return load_file(home / name / "checkpoints" / f"step-{step:08d}" / file)


def assert_same_run(home: Path, name: str, result: TrainerResult, single: TrainerResult) -> None:
    """Compare two runs within rounding: losses, evaluations, weights and moments."""
    assert result.code == 0, result.stderr
    assert result.losses == pytest.approx(single.losses, rel=1e-5)
    evals = [(event.step, pytest.approx(event.loss, rel=1e-5)) for event in single.events_of(protocol.Eval)]
    assert [(event.step, event.loss) for event in result.events_of(protocol.Eval)] == evals
    norms = [pytest.approx(event.grad_norm, rel=1e-4) for event in single.events_of(protocol.Step)]
    assert [event.grad_norm for event in result.events_of(protocol.Step)] == norms
    for file in ("model.safetensors", "optimizer.safetensors"):
        expected, actual = tensors(home, "single", file), tensors(home, name, file)
        assert actual.keys() == expected.keys()
        for key in expected.keys() - {"generator.cpu"}:
            torch.testing.assert_close(actual[key], expected[key], rtol=1e-3, atol=2e-5, msg=key)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_each_zero_stage_equals_a_single_process(home: Path, single: TrainerResult, stage: int) -> None:
    result = train(home, f"zero{stage}", zero(stage))
    assert_same_run(home, f"zero{stage}", result, single)
    assert [event.seq for event in result.events] == list(range(1, len(result.events) + 1)), "nothing else on stdout"


def test_one_process_with_offload_equals_one_without(home: Path, single: TrainerResult) -> None:
    document = zero(2, offload_optimizer={"device": "cpu", "pin_memory": True})
    assert_same_run(home, "offload", train(home, "offload", document, ranks=1), single)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_resume_is_exact(home: Path, single: TrainerResult, stage: int) -> None:
    whole = train(home, f"whole{stage}", zero(stage))
    assert whole.code == 0, whole.stderr
    source = home / f"whole{stage}" / "checkpoints" / "step-00000004"
    resumed = run(home, "train", "--resume", str(source), "--run-dir", f"again{stage}")
    assert resumed.code == 0, resumed.stderr
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > 4}
    for file in ("model.safetensors", "optimizer.safetensors"):
        first, second = (
            home / f"{name}{stage}" / "checkpoints" / "step-00000008" / file for name in ("whole", "again")
        )
        assert first.read_bytes() == second.read_bytes(), file


def test_a_run_continues_with_and_without_deepspeed(home: Path, single: TrainerResult) -> None:
    constant = ["--lr-schedule", "constant"]
    expected = run(home, *ARGUMENTS, *constant, "--run-dir", "constant")
    first = train(home, "moving", zero(3), *constant, "--max-steps", "3")
    assert expected.code == first.code == 0, first.stderr
    plain = ["--parallel", "auto", "--deepspeed-config", "", "--nproc-per-node", "1"]
    second = run(home, "train", "--resume", "moving", *plain, "--max-steps", "5")
    assert second.code == 0, second.stderr
    back = ["--parallel", "deepspeed", "--deepspeed-config", "moving 设置.json", "--nproc-per-node", "2"]
    third = run(home, "train", "--resume", "moving", *back, "--max-steps", "8")
    assert third.code == 0, third.stderr
    assert first.losses | second.losses | third.losses == pytest.approx(expected.losses, rel=1e-5)


def test_bf16_weights_train_like_those_of_autocast(home: Path) -> None:
    bf16 = ["--mixed-precision", "bf16"]
    expected = run(home, *ARGUMENTS, *bf16, "--run-dir", "bf16")
    result = train(home, "bf16-zero", zero(2), *bf16)
    assert result.code == expected.code == 0, result.stderr
    assert result.losses == pytest.approx(expected.losses, rel=2e-2)
    assert {one.dtype for one in tensors(home, "bf16-zero").values()} == {torch.float32}, "masters are saved"


def test_lora_trains_the_same(home: Path, single: TrainerResult) -> None:
    lora = ["--base-model", "single", "--method", "lora", "--lora-rank", "4"]
    expected = run(home, *ARGUMENTS, *lora, "--run-dir", "lora")
    assert expected.code == 0, expected.stderr
    for stage in (2, 3):
        result = train(home, f"lora{stage}", zero(stage), *lora)
        assert result.code == 0, result.stderr
        assert result.losses == pytest.approx(expected.losses, rel=1e-4)


def test_activation_checkpointing_and_samples_work_on_sharded_weights(home: Path, single: TrainerResult) -> None:
    more = ["--activation-checkpointing", "full", "--sample-steps", "4"]
    result = train(home, "recomputed", zero(3, stage3_param_persistence_threshold=0), *more)
    assert_same_run(home, "recomputed", result, single)
    assert {event.step for event in result.events_of(protocol.Sample)} == {4, 8}


def test_a_skipped_update_changes_nothing(home: Path, single: TrainerResult) -> None:
    """With a spike factor this low every step after the first twenty is a spike."""
    spikes = ["--spike-factor", "0.0001", "--bad-step-limit", "1000", "--max-steps", "24", "--save-steps", "0"]
    expected = run(home, *ARGUMENTS, *spikes, "--run-dir", "spikes")
    result = train(home, "spikes2", zero(2), *spikes)
    assert expected.code == result.code == 0, result.stderr
    steps = [event.step for event in expected.events_of(protocol.BadStep)]
    assert steps
    assert [event.step for event in result.events_of(protocol.BadStep)] == steps
    finite = {step: loss for step, loss in expected.losses.items() if loss is not None}
    assert {step: loss for step, loss in result.losses.items() if loss is not None} == pytest.approx(finite, rel=1e-5)


def test_deepspeeds_launcher_starts_the_ranks(home: Path, single: TrainerResult) -> None:
    (home / "ds.json").write_text(json.dumps(USUAL), encoding="utf-8")
    runner = [sys.executable, "-m", "deepspeed.launcher.runner"]  # what the command `deepspeed` runs
    launcher = [*runner, "--num_accelerators", "2", "--module", "trainer_core"]
    options = ["--parallel", "deepspeed", "--deepspeed_config", "ds.json", "--output", "json", "--run-dir", "launched"]
    completed = subprocess.run(
        [*launcher, *ARGUMENTS, *options],
        env=environment(home),
        cwd=home,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr.decode()
    lines = [line for line in completed.stdout.splitlines() if line.startswith(b'{"type"')]
    result = TrainerResult(0, [protocol.decode_event(line) for line in lines], completed.stderr.decode())
    assert_same_run(home, "launched", result, single)
