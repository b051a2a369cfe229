"""Weights of a base model are loaded shard by shard in bounded memory, and refused if they do not fit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.core.engines import build_decoder, tiny_model_config
from tests.core.trainer_process import ROOT
from trainer_core.base_model.source import BaseModel, resolve
from trainer_core.base_model.weights import is_finite, load_weights, require_weights
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.build import build_model
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter, StopRequested, Unit
from trainer_core.protocol import PhaseName


def write_shards(folder: Path, tensors: dict[str, Tensor], shards: int = 2) -> BaseModel:
    """A model folder with these tensors in several files."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    names = list(tensors)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        save_file({name: tensors[name].clone() for name in names[number::shards]}, folder / file)
        weight_map.update(dict.fromkeys(names[number::shards], file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return resolve(str(folder), NullReporter())


def stored_tensors(model: Decoder) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def refusal(base: BaseModel, model: nn.Module) -> TraindeckError:
    with pytest.raises(TraindeckError) as caught:
        load_weights(base, model, NullReporter())
    return caught.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shards_give_the_model_the_same_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    source = build_decoder(tiny_model_config())
    tensors = {name: tensor.to(dtype) for name, tensor in stored_tensors(source).items()}
    target = Decoder(source.config)
    load_weights(write_shards(tmp_path / "模型 1", tensors), target, NullReporter())
    for name, weight in target.named_parameters():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, tensors[name].float()), name


def test_weights_are_converted_to_the_dtype_of_the_model(tmp_path: Path) -> None:
    source = build_decoder(tiny_model_config())
    target = Decoder(source.config).to(torch.bfloat16)
    load_weights(write_shards(tmp_path, stored_tensors(source)), target, NullReporter())
    assert torch.equal(target.lm_head.weight, source.lm_head.weight.bfloat16())


@pytest.mark.parametrize("stored", ["model.embed_tokens.weight", "lm_head.weight", "both"])
def test_a_tied_head_is_loaded_from_whichever_name_is_stored(tmp_path: Path, stored: str) -> None:
    source = build_decoder(tiny_model_config(tie_embeddings=True))
    tensors = stored_tensors(source)
    embedding = tensors.pop("model.embed_tokens.weight")
    kept = ["model.embed_tokens.weight", "lm_head.weight"] if stored == "both" else [stored]
    target = Decoder(source.config)
    load_weights(write_shards(tmp_path, {**tensors, **dict.fromkeys(kept, embedding)}), target, NullReporter())
    assert torch.equal(target.lm_head.weight, embedding)
    assert target.lm_head.weight is target.model.embed_tokens.weight


@pytest.mark.parametrize("tied", [False, True])
def test_rows_that_a_larger_model_adds_are_the_mean_of_the_others(tmp_path: Path, tied: bool) -> None:
    source = build_decoder(tiny_model_config(tie_embeddings=tied))
    rows = source.config.vocab_size
    base = write_shards(tmp_path, stored_tensors(source))
    target = Decoder(replace(source.config, vocab_size=rows + 64))
    assert refusal(base, target).code == "base_model.mismatch"  # the number of rows is not what config.json says
    base.config["vocab_size"] = rows
    load_weights(base, target, NullReporter())
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        old, new = source.get_parameter(name), target.get_parameter(name)
        assert torch.equal(new[:rows], old)
        torch.testing.assert_close(new[rows:], old.mean(0).expand(64, -1))


def test_rotary_buffers_of_older_models_are_ignored(tmp_path: Path) -> None:
    source = build_decoder(tiny_model_config())
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    load_weights(write_shards(tmp_path, {**stored_tensors(source), **buffer}), Decoder(source.config), NullReporter())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop("lm_head.weight"), "“lm_head.weight” is missing"),
        (lambda tensors: tensors.update(bias=torch.zeros(2)), "“bias” is unexpected"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(33)}),
            "“model.norm.weight” [33] → [32]",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}),
            "the dtype of “model.norm.weight” is not supported: I8",
        ),
    ],
    ids=["missing", "unexpected", "shape", "dtype"],
)
def test_weights_of_another_model_are_refused_before_memory_is_allocated(
    tmp_path: Path, change: object, reason: str
) -> None:
    source = build_decoder(tiny_model_config(tie_embeddings=False))
    tensors = stored_tensors(source)
    change(tensors)  # type: ignore[operator]
    base = write_shards(tmp_path, tensors)
    with torch.device("meta"):
        model = Decoder(source.config)
    with pytest.raises(TraindeckError) as caught:
        require_weights(base, model)
    assert (caught.value.code, caught.value.params["reason"]) == ("base_model.mismatch", reason)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, value: float) -> None:
    source = build_decoder(tiny_model_config())
    tensors = stored_tensors(source)
    tensors["model.norm.weight"][7] = value
    error = refusal(write_shards(tmp_path, tensors), Decoder(source.config))
    assert error.code == "base_model.not_finite"
    assert error.params["name"] == "model.norm.weight"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_value_that_is_not_finite_is_found(dtype: torch.dtype) -> None:
    assert is_finite(torch.zeros(0, dtype=dtype))
    assert is_finite(torch.full((3, 5), torch.finfo(dtype).max, dtype=dtype))
    for position in (0, 1, 17, 999_982, 999_998):
        for value in (float("nan"), float("inf"), float("-inf")):
            tensor = torch.randn(999_999).to(dtype)
            tensor[position] = value
            assert not is_finite(tensor), (position, value)


def test_a_stop_during_loading_is_obeyed_and_progress_ends_at_the_total(tmp_path: Path) -> None:
    source = build_decoder(tiny_model_config())
    base = write_shards(tmp_path, stored_tensors(source))

    class Recorder(NullReporter):
        reported: list[tuple[float, float | None]] = []  # noqa: RUF012

        def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
            self.reported.append((done, total))

    class Stopper(NullReporter):
        def poll(self) -> None:
            raise StopRequested

    with pytest.raises(StopRequested):
        load_weights(base, Decoder(source.config), Stopper())
    load_weights(base, Decoder(source.config), Recorder())
    size = sum(weight.numel() * 4 for weight in stored_tensors(source).values())
    assert Recorder.reported[-1] == (size, size)


def test_the_identity_differs_after_one_optimizer_step_and_not_after_a_copy(tmp_path: Path) -> None:
    model = build_decoder(tiny_model_config())
    before = write_shards(tmp_path / "a", stored_tensors(model)).identity()
    assert write_shards(tmp_path / "b", stored_tensors(model)).identity() == before
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight *= 1.001
    after = write_shards(tmp_path / "c", stored_tensors(model)).identity()
    assert after.keys() == before.keys()
    assert after != before


MEASURE_PEAK = """
import re, sys, threading, time
from pathlib import Path
import torch
from torch import nn
from trainer_core.base_model.source import resolve
from trainer_core.base_model.weights import load_weights
from trainer_core.progress import NullReporter

class Weights(nn.ParameterDict):
    def vocabulary_weights(self):
        return set()

def used():  # MiB. Not the peak of the whole process: code that the system has dropped and reads again counts there.
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

def sample():
    while True:
        samples.append(used())
        time.sleep(0.001)

base = resolve(sys.argv[1], NullReporter())
warm_up = Weights({f"w{n}": torch.empty(8) for n in range(2)})
load_weights(resolve(sys.argv[2], NullReporter()), warm_up, NullReporter())
before, samples = used(), []
threading.Thread(target=sample, daemon=True).start()
model = Weights({f"w{n:02}": torch.empty(5242880, dtype=torch.bfloat16) for n in range(20)})
load_weights(base, model, NullReporter())
assert len(samples) > 20
print(round(max(samples) - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_needs_the_memory_of_the_model_and_of_the_largest_tensor(tmp_path: Path) -> None:
    tensors = {f"w{number:02}": torch.ones(5242880, dtype=torch.bfloat16) for number in range(20)}  # 10 MiB each
    large = write_shards(tmp_path / "large", tensors, shards=4)
    small = write_shards(tmp_path / "small", {"w0": torch.ones(8), "w1": torch.ones(8)})
    command = [sys.executable, "-c", MEASURE_PEAK, large.origin, small.origin]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 200 <= int(ended.stdout) <= 200 + 10 + 5  # MiB; 5: the rest of the program


def test_transformers_reads_the_same_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(3)
    written = transformers.LlamaForCausalLM(config)
    written.save_pretrained(tmp_path, max_shard_size="20KB")
    base = resolve(str(tmp_path), NullReporter())
    assert len(base.weights) > 1
    model = build_model(torch.device("cpu"), hf_config.from_hf_config(base.config, str(tmp_path)))
    load_weights(base, model, NullReporter())
    assert all(torch.equal(tensor, written.state_dict()[name]) for name, tensor in model.state_dict().items())
    stored = [load_file(tmp_path / name) for name in base.weights]
    assert sum(map(len, stored)) == len(model.state_dict())
    assert all(re.fullmatch(r"model-\d{5}-of-\d{5}\.safetensors", name) for name in base.weights)
