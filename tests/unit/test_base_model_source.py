"""A base model is found as a folder, a run or a checkpoint; what cannot be used is refused with one sentence."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from trainer_core.base_model.source import resolve
from trainer_core.messages import ExitCode, TraindeckError, format_message
from trainer_core.progress import NullReporter
from trainer_core.runs import checkpoint_dir
from trainer_core.system import files


def write_model(folder: Path, config: dict[str, Any] | None = None, shards: int = 1) -> Path:
    """A model folder with one or several safetensors files."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}), encoding="utf-8")
    tensors = {f"w{number}": np.full(64, number, dtype=np.float32) for number in range(shards)}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {name: f"model-{name}.safetensors" for name in tensors}
    for name, file in weight_map.items():
        save_file({name: tensors[name]}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return folder


def refusal(text: Path | str) -> TraindeckError:
    with pytest.raises(TraindeckError) as caught:
        resolve(str(text), NullReporter())
    for language in ("en", "zh"):
        sentence = format_message(caught.value.code, caught.value.params, language)  # type: ignore[arg-type]
        assert "?" not in sentence.replace("“?”", "")
    return caught.value


def test_a_folder_is_a_base_model(tmp_path: Path) -> None:
    base = resolve(str(write_model(tmp_path / "我的 模型")), NullReporter())
    assert (base.folder, base.weights) == (tmp_path / "我的 模型", ("model.safetensors",))
    assert base.config == {"model_type": "llama"}
    assert resolve(base.origin, NullReporter()) == base


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    assert resolve(str(write_model(tmp_path / "m", shards=3)), NullReporter()).weights == (
        "model-w0.safetensors",
        "model-w1.safetensors",
        "model-w2.safetensors",
    )


def write_checkpoint(run: Path, step: int) -> Path:
    folder = write_model(run / "checkpoints" / checkpoint_dir.folder_name(step))
    checkpoint_dir.write_manifest(folder, step, "regular", None)
    (run / "config.yaml").write_text("preset: quickstart\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("by_name", [True, False])
def test_a_run_gives_its_newest_valid_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    run = tmp_path / "runs" / "one"
    valid, damaged = write_checkpoint(run, 5), write_checkpoint(run, 10)
    (damaged / "model.safetensors").write_bytes(b"damaged")
    warnings = []

    class Recorder(NullReporter):
        def warn(self, code: str, **params: object) -> None:
            warnings.append(code)

    base = resolve("one" if by_name else str(run), Recorder())
    assert base.folder == valid
    assert warnings == ["checkpoint.skipped"]


def test_a_checkpoint_is_hashed_once_although_a_run_resolves_its_base_model_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path / "one", 5)
    hashed = list[str]()
    monkeypatch.setattr(files, "sha256", lambda path, sha256=files.sha256: hashed.append(path.name) or sha256(path))
    base = resolve(str(tmp_path / "one"), NullReporter())
    assert resolve(base.origin, NullReporter()) == base
    assert sorted(hashed) == ["config.json", "model.safetensors"]
    (checkpoint / "model.safetensors").write_bytes(b"damaged")
    assert refusal(base.origin).code == "checkpoint.damaged"


def test_the_checkpoint_that_is_named_is_used_even_if_it_is_not_the_newest(tmp_path: Path) -> None:
    older = write_checkpoint(tmp_path / "one", 5)
    write_checkpoint(tmp_path / "one", 10)
    assert resolve(str(older), NullReporter()).folder == older
    (older / "config.json").write_text('{"model_type": "qwen2"}', encoding="utf-8")
    assert refusal(older).code == "checkpoint.damaged"


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("preset: quickstart\n", encoding="utf-8")
    assert refusal(tmp_path).code == "run.no_checkpoint"


def _truncate(folder: Path) -> None:
    path = folder / "model-w1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _lengthen_header(folder: Path) -> None:
    (folder / "model-w1.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


def _use_only_pickles(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")


def _index_outside(folder: Path) -> None:
    index = {"weight_map": {"w0": "../model-w0.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "code", "exit_code", "parameter"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no_config", ExitCode.DATA, "config.json"),
        (lambda folder: (folder / "config.json").write_text("["), "damaged", ExitCode.DATA, "config.json"),
        (lambda folder: (folder / "config.json").write_text("[]"), "damaged", ExitCode.DATA, "not a JSON object"),
        (lambda folder: [file.unlink() for file in folder.glob("model*")], "no_weights", ExitCode.DATA, ""),
        (lambda folder: (folder / "model-w1.safetensors").unlink(), "missing_file", ExitCode.DATA, "model-w1"),
        (_truncate, "damaged", ExitCode.DATA, "it ends too early"),
        (_lengthen_header, "damaged", ExitCode.DATA, "a header is damaged"),
        (_index_outside, "damaged", ExitCode.DATA, "“weight_map” is missing"),
        (_use_only_pickles, "pickled", ExitCode.USAGE, "pytorch_model.bin"),
    ],
)
def test_an_unusable_folder_is_refused_with_one_sentence(
    tmp_path: Path, damage: Callable[[Path], object], code: str, exit_code: ExitCode, parameter: str
) -> None:
    folder = write_model(tmp_path / "m", shards=3)
    damage(folder)
    error = refusal(folder)
    assert (error.code, error.exit_code) == (f"base_model.{code}", exit_code)
    assert parameter in str(error)


def write_adapter(folder: Path, base: Path | str) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}), encoding="utf-8")
    save_file({"a": np.zeros(4, dtype=np.float32)}, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_is_a_base_model_with_the_weights_of_its_own(tmp_path: Path) -> None:
    model = write_model(tmp_path / "模型")
    first = write_adapter(tmp_path / "first", model)
    second = write_adapter(tmp_path / "second", first)
    base = resolve(str(second), NullReporter())
    assert (base.folder, base.origin, base.adapters) == (model, str(second), (first, second))
    before = base.identity()
    save_file({"a": np.ones(4, dtype=np.float32)}, first / "adapter_model.safetensors")
    assert before.keys() == base.identity().keys()
    assert before != base.identity()


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (
            lambda folder: (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin"),
            "base_model.pickled",
        ),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "base_model.no_weights"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "checkpoint.no_base"),
    ],
    ids=["pickled", "no weights", "no base"],
)
def test_an_unusable_adapter_is_refused(tmp_path: Path, damage: Callable[[Path], object], code: str) -> None:
    folder = write_adapter(tmp_path / "adapter", write_model(tmp_path / "model"))
    damage(folder)
    assert refusal(folder).code == code


def test_an_adapter_that_names_itself_as_its_base_model_is_refused(tmp_path: Path) -> None:
    error = refusal(write_adapter(tmp_path / "adapter", tmp_path / "adapter"))
    assert error.code in ("checkpoint.bad_adapter", "base_model.damaged")


@pytest.mark.parametrize("model_type", ["chatglm", None])
def test_a_model_that_needs_remote_code_is_refused(tmp_path: Path, model_type: str | None) -> None:
    config = {"model_type": model_type, "auto_map": {"AutoModelForCausalLM": "modeling_chatglm.Model"}}
    error = refusal(write_model(tmp_path / "m", config))
    assert (error.code, error.exit_code) == ("base_model.remote_code", ExitCode.USAGE)


def test_a_known_model_with_an_entry_for_remote_code_is_accepted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "phi3", "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}
    assert resolve(str(write_model(tmp_path / "m", config)), NullReporter()).config == config


def test_a_config_without_a_model_type_is_refused(tmp_path: Path) -> None:
    assert refusal(write_model(tmp_path / "m", {"hidden_size": 8})).code == "model.unsupported"


def test_a_name_that_is_no_folder_and_no_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path))
    error = refusal("no such model")
    assert (error.code, error.exit_code) == ("base_model.not_found", ExitCode.USAGE)
    assert refusal("~nobody-of-this-name/model").code == "base_model.not_found"
    file = write_model(tmp_path / "m") / "model.safetensors"
    assert refusal(file).code == "base_model.no_config"
