"""A base model that cannot be used ends `train` with one error event, its exit code and no traceback."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.test_fine_tuning import base_folder, command, fine_tune
from tests.core.test_transformers_models import base_folder as transformers_folder
from tests.core.trainer_process import finish, start, text_file
from tests.faults.test_bad_input import expect_error
from tests.hub_server import Hub, serve

MODEL = "Qwen/Qwen3-0.6B"
SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A usable model in two files."""
    folder = base_folder(tmp_path_factory.mktemp("models") / "模型 base")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {name: SHARD if number % 2 else SHARD.replace("2-of", "1-of") for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: weights[name] for name in names if files[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")
    return folder


def change_weight(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Change one weight of the last file. Returns its name."""
    file = max(folder.glob("model*.safetensors"))
    weights = load_file(file)
    name = sorted(weights)[0]
    weights[name] = change(weights[name])
    save_file(weights, file, {"format": "pt"})
    return name


def remove_weights(folder: Path) -> str:
    for file in folder.glob("model*"):
        file.unlink()
    return "model.safetensors"


def keep_pickles_only(folder: Path) -> str:
    remove_weights(folder)
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    return "pytorch_model.bin"


def remove_shard(folder: Path) -> str:
    (folder / SHARD).unlink()
    return SHARD


def change_config(folder: Path, **values: object) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **values}), encoding="utf-8")
    return str(next(iter(values.values())))


def remove_tokenizer(folder: Path) -> str:
    (folder / "tokenizer.json").unlink()
    return "tokenizer.json"


def add_adapter_of_another_model(folder: Path) -> str:
    """Turn the folder into an adapter of a wider model, whose base model is a copy of the folder."""
    shutil.copytree(folder, folder / "base")
    config = {
        "peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"],
        "base_model_name_or_path": str(folder / "base"),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    layer = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    weights = {layer.format(n, side): torch.ones(2, 96) for n in range(2) for side in "AB"}
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    return "q_proj"


NEEDS_CODE = {"model_type": "chatglm", "auto_map": {"AutoModel": "modeling_chatglm.Model"}}


@pytest.mark.parametrize(
    ("damage", "code", "exit_code"),
    [
        (remove_weights, "base_model.no_weights", 4),
        (keep_pickles_only, "base_model.pickled", 2),
        (remove_shard, "base_model.missing_file", 4),
        (lambda folder: change_weight(folder, lambda weight: weight[:-1].clone()), "base_model.mismatch", 4),
        (lambda folder: change_weight(folder, lambda weight: weight * torch.nan), "base_model.not_finite", 4),
        (lambda folder: change_config(folder, model_type="mamba99"), "model.unsupported", 2),
        (lambda folder: change_config(folder, **NEEDS_CODE), "base_model.remote_code", 2),
        (add_adapter_of_another_model, "checkpoint.bad_adapter", 2),
    ],
    ids=["no weights", "pickled", "shard", "shape", "nan", "architecture", "code", "adapter"],
)
def test_an_unusable_folder_is_refused(
    tmp_path: Path, sharded: Path, damage: Callable[[Path], str], code: str, exit_code: int
) -> None:
    params = expect_refusal(tmp_path, sharded, damage, code, exit_code)
    assert params["path"] == str(tmp_path / "模型 damaged")


def expect_refusal(
    tmp_path: Path, model: Path, damage: Callable[[Path], str], code: str, exit_code: int
) -> Mapping[str, Any]:
    """Parameters of the error for a damaged copy of a model, which name the cause."""
    folder = shutil.copytree(model, tmp_path / "模型 damaged")
    cause = damage(folder)
    error = expect_error(fine_tune(tmp_path, folder, text_file(tmp_path), "run"), code, exit_code)
    assert cause in json.dumps(error.params)
    return error.params


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A usable model that transformers computes, with weights under other names than in its code."""
    return transformers_folder(tmp_path_factory.mktemp("models") / "base", "mixtral")


@pytest.mark.parametrize(
    ("damage", "code", "exit_code"),
    [
        (remove_weights, "base_model.no_weights", 4),
        (remove_tokenizer, "base_model.missing_file", 4),
        (lambda folder: change_weight(folder, lambda weight: weight[:-1].clone()), "base_model.mismatch", 4),
        (lambda folder: change_weight(folder, lambda weight: weight * torch.nan), "base_model.not_finite", 4),
        (lambda folder: change_weight(folder, lambda weight: weight.to(torch.int8)), "base_model.mismatch", 4),
        (lambda folder: change_config(folder, hidden_size="wide"), "model.bad_config", 2),
        (lambda folder: change_config(folder, hidden_act="no_such_activation"), "model.bad_config", 2),
    ],
    ids=["no weights", "tokenizer", "shape", "nan", "dtype", "size", "activation"],
)
def test_an_unusable_folder_of_a_model_of_transformers_is_refused(
    tmp_path: Path, mixtral: Path, damage: Callable[[Path], str], code: str, exit_code: int
) -> None:
    expect_refusal(tmp_path, mixtral, damage, code, exit_code)


def hub_of(folder: Path) -> Hub:
    return Hub({MODEL: {file.name: file.read_bytes() for file in folder.iterdir()}})


@pytest.mark.parametrize(("fault", "code"), [("gated", "hub.gated"), ("tampered", "hub.file_changed")])
def test_a_download_that_is_refused_or_tampered_with_is_an_error(
    tmp_path: Path, sharded: Path, monkeypatch: pytest.MonkeyPatch, fault: str, code: str
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    hub = hub_of(sharded)
    hub.gated = fault == "gated"
    if fault == "tampered":
        hub.tampered[SHARD] = hub.models[MODEL][SHARD][:-1] + b"!"
    with serve(hub):
        result = fine_tune(tmp_path, MODEL, text_file(tmp_path), "run", "--hub-endpoint", hub.endpoint)
    assert expect_error(result, code, 4).params["name"] == MODEL


def test_a_disk_that_fills_up_during_a_download_is_an_error(
    tmp_path: Path, sharded: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["mount", "-o", "remount,size=24m", str(small_disk)], check=True)
    monkeypatch.setenv("HF_HOME", str(small_disk / "hf"))
    hub = hub_of(sharded)
    hub.stalls_after = 10_000
    with serve(hub):
        arguments = command(tmp_path, MODEL, text_file(tmp_path), "run", "--hub-endpoint", hub.endpoint)
        process = start(tmp_path, *arguments)
        deadline = time.monotonic() + 60
        while not any(file.stat().st_size for file in small_disk.rglob("*.incomplete")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        hub.stalls_after = None
        hub.released.set()
        expect_error(finish(process), "disk.full", 7)
