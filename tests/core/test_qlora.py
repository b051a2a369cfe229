"""Runs that train an adapter beside a base model in NF4: memory, exact resume, recovery, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.core.model_families import HF_CONFIGS
from tests.core.test_fine_tuning import SHORT, base_folder, checkpoint_at, fine_tune
from tests.core.test_model_template import conversations_file
from tests.core.trainer_process import reached_step, read_until, run, start, text_file
from tests.core.training import (
    build_trainer,
    copy_weights,
    limit_batch_size,
    losses,
    oom_config,
    recovery_actions,
    tiny_config,
)
from trainer_core import protocol
from trainer_core.base_model import source
from trainer_core.generation import generate
from trainer_core.messages import TraindeckError
from trainer_core.models import adapters, hf_config, quantization
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter
from trainer_core.train.adapter_checkpoint import load_base
from trainer_core.train.device import Precision
from trainer_core.train.model_memory import estimate_memory
from trainer_core.train.state_offload import StateOffloader

CPU, META = torch.device("cpu"), torch.device("meta")
QLORA = ("--method", "qlora", "--lora-dropout", "0.1", "--max-steps", "12", "--learning-rate", "3e-2")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contains the folder `模型 base` and the run `whole`."""
    home = tmp_path_factory.mktemp("家 home")
    base_folder(home / "模型 base", "qwen2.5", shape={"hidden_size": 64, "intermediate_size": 96})
    result = fine_tune(home, home / "模型 base", conversations_file(home), "whole", *QLORA)
    assert result.code == 0, result.stderr
    assert list(result.losses.values())[-1] < result.losses[1] - 0.2
    return home


def load_both(folder: Path) -> tuple[Decoder, Decoder]:
    """A base model in full precision and in NF4."""
    base = source.resolve(str(folder), NullReporter())
    config = hf_config.from_hf_config(base.config, "base")
    full, quantized = Decoder(config), quantization.build_quantized(CPU, config, torch.float32)
    load_base(base, full, NullReporter())
    load_base(base, quantized, NullReporter())
    return full, quantized


def test_linear_layers_take_about_half_a_byte_per_weight_and_others_are_equal(home: Path) -> None:
    from bitsandbytes.functional import dequantize_4bit

    full, quantized = load_both(home / "模型 base")
    assert quantized.count_parameters() == full.count_parameters()
    for name, layer in full.model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            other = quantized.model.get_submodule(name)
            assert layer.bias is None or torch.equal(other.bias, layer.bias)
            if layer.in_features == 96:  # 64 does not divide it
                assert torch.equal(other.weight, layer.weight)
                continue
            stored = other.weight.nbytes + sum(buffer.nbytes for buffer in other.buffers())
            assert stored / layer.weight.numel() < 0.54
            restored = dequantize_4bit(other.weight, other.weight.quant_state)
            assert 0.05 < (restored - layer.weight).norm() / layer.weight.norm() < 0.12
    assert torch.equal(quantized.model.embed_tokens.weight, full.model.embed_tokens.weight)
    assert quantized.lm_head.weight is quantized.model.embed_tokens.weight


def test_the_adapter_of_a_base_model_is_merged_before_quantization(home: Path) -> None:
    """The base model is a run here."""
    from bitsandbytes.functional import dequantize_4bit

    full, quantized = load_both(checkpoint_at(home, "whole", 12))
    layer = quantized.model.layers[0].self_attn.q_proj
    merged = full.model.layers[0].self_attn.q_proj.weight
    restored = dequantize_4bit(layer.weight, layer.weight.quant_state)
    assert (restored - merged).norm() < 0.12 * merged.norm()
    plain, _ = load_both(home / "模型 base")
    assert (plain.model.layers[0].self_attn.q_proj.weight - merged).norm() > 0.2 * merged.norm()


def test_a_run_resumes_exactly_after_a_kill(home: Path) -> None:
    flags = ("--base-model", str(home / "模型 base"), "--data", str(conversations_file(home)))
    process = start(home, "train", *SHORT, *flags, *QLORA, "--run-dir", str(home / "runs" / "killed"))
    read_until(process, reached_step(7))
    process.kill()
    process.communicate()
    resumed = run(home, "train", "--resume", str(home / "runs" / "killed"))
    assert resumed.code == 0, resumed.stderr
    assert (resumed.events_of(protocol.Hello)[0].resumed_from_step or 0) >= 3
    for name in (adapters.ADAPTER_FILE, "optimizer.safetensors"):
        one, other = (checkpoint_at(home, run, 12) / name for run in ("whole", "killed"))
        assert one.read_bytes() == other.read_bytes()


def test_a_paused_model_moves_with_its_scales_and_computes_the_same(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINDECK_OFFLOAD", "disk")
    _, model = load_both(home / "模型 base")
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        expected = model(ids)
        layer = model.model.layers[0].self_attn.q_proj
        state = layer.weight.quant_state
        tensors = [layer.weight, state.absmax, state.offset, state.state2.absmax]
        before = [tensor.data_ptr() for tensor in tensors]
        offloader = StateOffloader(lambda: [*model.parameters(), *model.buffers()], CPU, home)
        assert offloader.offload() == "disk"
        assert all(old != tensor.data_ptr() for old, tensor in zip(before, tensors, strict=True))
        assert torch.equal(model(ids), expected)
        assert offloader.restore()
        assert torch.equal(model(ids), expected)


def test_export_and_generation_merge_into_the_full_precision_base(home: Path) -> None:
    import peft
    import transformers

    checkpoint = checkpoint_at(home, "whole", 12)
    assert "model.safetensors" not in {file.name for file in checkpoint.iterdir()}
    assert run(home, "export", "whole", str(home / "exported")).code == 0
    load = transformers.AutoModelForCausalLM.from_pretrained
    with_adapter = peft.PeftModel.from_pretrained(load(home / "模型 base"), checkpoint)
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        expected = with_adapter.eval()(ids).logits
        exported = load(home / "exported").eval()(ids).logits
        actual = generate.load_model(checkpoint, CPU).model(ids)
    torch.testing.assert_close(exported, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_check_measures_it(home: Path) -> None:
    flags = ("--base-model", str(home / "模型 base"), "--data", str(conversations_file(home)))
    result = run(home, "check", *SHORT, *flags, *QLORA)
    assert result.code == 0, result.stderr
    (report,) = result.events_of(protocol.CheckReport)
    assert report.verdict == "fits"
    assert report.chosen.tokens_per_s


def qlora_config(folder: Path, **values: Any) -> Any:
    return tiny_config(folder, text_file(folder), **{"method": "qlora", "hidden_dim": 64, "cpu_threads": 1, **values})


@pytest.mark.parametrize("variant", ["lora", "dora"])
def test_training_in_bf16_lowers_the_loss_with_any_activation_checkpointing(tmp_path: Path, variant: str) -> None:
    found = []
    for mode in ("off", "selective", "full"):
        values = {"lora_variant": variant, "activation_checkpointing": mode, "learning_rate": 3e-2}
        trainer, sink = build_trainer(tmp_path, qlora_config(tmp_path, mixed_precision="bf16", **values), mode)
        trainer.run()
        found.append(losses(sink))
    assert found[0] == found[1] == found[2]
    assert found[0][-1] < found[0][0]


def test_oom_recovery_trains_the_same_adapter(tmp_path: Path) -> None:
    config = oom_config(tmp_path, method="qlora", hidden_dim=64, max_steps=4)
    expected, _ = build_trainer(tmp_path, config, "whole")
    expected.run()
    trainer, sink = build_trainer(tmp_path, config, "halved")
    limit_batch_size(trainer, 3)
    trainer.run()
    assert [action for action, *_ in recovery_actions(sink)] == ["halved", "halved"]
    for one, other in zip(copy_weights(trainer), copy_weights(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_frozen_untied_embedding_stays_in_system_memory() -> None:
    """Without a GPU: `meta` is the device that the model is built on, and fake tensors follow devices."""
    config = hf_config.from_hf_config(HF_CONFIGS["qwen3"], "base")
    model = quantization.build_quantized(META, config, torch.bfloat16, offload_embedding=True)
    places = {name: weight.device for name, weight in model.named_parameters()}
    assert places.pop("model.embed_tokens.weight") == CPU
    assert set(places.values()) == {META}
    with FakeTensorMode(), torch.no_grad():
        embedding = quantization.OffloadedEmbedding(100, 64, device=CPU)
        rows = embedding(torch.zeros(2, 5, dtype=torch.int64, device="cuda:0"))
    assert (rows.shape, rows.device) == ((2, 5, 64), torch.device("cuda:0"))


@pytest.mark.parametrize(
    ("values", "expected"), [({}, True), ({"lora_embeddings": True}, False), ({"tie_embeddings": True}, False)]
)
def test_only_a_frozen_untied_embedding_is_offloaded(tmp_path: Path, values: dict[str, Any], expected: bool) -> None:
    config = qlora_config(tmp_path, **{"tie_embeddings": False, **values})
    trainer, _ = build_trainer(tmp_path, config)
    assert isinstance(trainer.model.embedding, quantization.OffloadedEmbedding) == expected
    trainer.close()
    devices = torch.device("cpu"), torch.device("cuda")
    on_cpu, on_gpu = (estimate_memory(config, 512, Precision.from_name("bf16", device)) for device in devices)
    assert on_cpu.weights - on_gpu.weights == (2 * 512 * 64 if expected else 0)


def test_it_is_not_compiled_and_the_reason_is_reported(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, qlora_config(tmp_path, compile="on"))
    trainer.set_up()
    path = trainer.engine.fast_paths["compile"]
    assert (path.used, path.reason, path.params) == (False, "path.unsupported", {"what": "QLoRA"})
    trainer.close()


@pytest.mark.parametrize("values", [{"method": "qlora"}, {"optimizer": "adamw_8bit"}], ids=str)
def test_a_missing_bitsandbytes_is_one_sentence(
    tmp_path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(TraindeckError) as caught:
        build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path), **values))
    assert (caught.value.code, caught.value.exit_code) == ("config.bitsandbytes", 2)
    assert "ModuleNotFoundError" in str(caught.value)
