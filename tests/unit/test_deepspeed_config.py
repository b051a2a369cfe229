"""A usual DeepSpeed file works as it is; what contradicts the settings of the run is refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.train import deepspeed_config

pytest.importorskip("deepspeed", reason="needs the extra `deepspeed`")

ZERO = {"stage": 2, "overlap_comm": True, "contiguous_gradients": True, "allgather_bucket_size": 2e8}
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"}},
    "zero_optimization": {**ZERO, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
}


def read(folder: Path, document: Any, precision: str = "bf16", **values: Any) -> dict[str, Any]:
    file = folder / "设置 ds.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    settings = {"batch_size": 8, "gradient_accumulation_steps": 2, "parallel": "deepspeed", **values}
    return deepspeed_config.read(Config(deepspeed_config=str(file), **settings), precision, 2, hidden_dim=64)


def test_auto_values_come_from_the_settings_of_the_run(tmp_path: Path) -> None:
    found = read(tmp_path, AUTO, grad_clip=0.5)
    assert (found["bf16"], found["fp16"]["enabled"], found["gradient_clipping"]) == ({"enabled": True}, False, 0.5)
    assert found["zero_optimization"] == {**ZERO, "reduce_bucket_size": 64**2, "stage3_prefetch_bucket_size": 3686}
    assert "auto" not in json.dumps(found)


def test_numbers_that_agree_with_the_settings_are_accepted(tmp_path: Path) -> None:
    numbers = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
    optimizer = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "torch_adam": True}}
    read(tmp_path, {**numbers, "optimizer": optimizer, "gradient_clipping": 1.0, "zero_optimization": ZERO})


@pytest.mark.parametrize(
    ("document", "name", "given", "expected"),
    [
        ({"train_batch_size": 32}, "train_batch_size", "32", "16"),
        ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu", "4", "8"),
        ({"gradient_clipping": 0.1}, "gradient_clipping", "0.1", "1.0"),
        ({"bf16": {"enabled": False}}, "bf16.enabled", "false", "true"),
        ({"fp16": {"enabled": True}}, "fp16.enabled", "true", "false"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, "optimizer.params.lr", "0.001", "0.0003"),
        ({"scheduler": {"params": {"warmup_num_steps": 7}}}, "scheduler.params.warmup_num_steps", "7", "100"),
    ],
)
def test_a_conflict_with_the_settings_is_refused_by_name(
    tmp_path: Path, document: dict[str, Any], name: str, given: str, expected: str
) -> None:
    with pytest.raises(TraindeckError) as caught:
        read(tmp_path, {"zero_optimization": ZERO, **document})
    assert caught.value.code == "deepspeed.conflict"
    found = caught.value.params
    assert (found["name"], found["given"], found["expected"]) == (name, given, expected)


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"zero_optimization": {"stage": 0}}, "zero_optimization.stage"),
        ({}, "zero_optimization.stage"),
        ({"zero_optimization": "yes"}, "zero_optimization.stage"),
        ({"zero_optimization": {**ZERO, "sub_group_size": "auto"}}, "zero_optimization.sub_group_size"),
        (
            {"zero_optimization": {**ZERO, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}},
            "zero_optimization.offload_optimizer.device",
        ),
        ({"zero_optimization": ZERO, "optimizer": {"type": "Lamb"}}, "optimizer.type"),
        (
            {"zero_optimization": ZERO, "scheduler": {"params": {"total_num_steps": 9}}},
            "scheduler.params.total_num_steps",
        ),
        ({"zero_optimization": ZERO, "elasticity": {"enabled": True}}, "elasticity"),
        ({"zero_optimization": ZERO, "pipeline": {"stages": 2}}, "pipeline"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, document: dict[str, Any], name: str) -> None:
    with pytest.raises(TraindeckError) as caught:
        read(tmp_path, document)
    assert (caught.value.code, caught.value.params["name"]) == ("deepspeed.unsupported", name)


def test_a_section_that_is_switched_off_is_accepted(tmp_path: Path) -> None:
    read(tmp_path, {"zero_optimization": ZERO, "elasticity": {"enabled": False}, "amp": {"enabled": False}})


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "ds.json"
    file.write_text(content, encoding="utf-8")
    for path in (file, tmp_path / "missing.json"):
        with pytest.raises(TraindeckError) as caught:
            deepspeed_config.read(Config(parallel="deepspeed", deepspeed_config=str(path)), "no", 1)
        assert (caught.value.code, caught.value.params["path"]) == ("deepspeed.bad_file", str(path))


def test_fp16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        read(tmp_path, AUTO, precision="fp16")
    assert caught.value.code == "config.parallel_unsupported"
