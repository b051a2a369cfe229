"""LoRA adapters: PEFT reads ours, we read PEFT's, and both compute the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from trainer_core.base_model import source, summary, weights
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.data.batch import Batch
from trainer_core.messages import TraindeckError
from trainer_core.models import adapters, hf_config
from trainer_core.models.decoder import Decoder
from trainer_core.models.lora_linear import LoraLinear
from trainer_core.progress import NullReporter
from trainer_core.train import optimizers
from trainer_core.train.checkpoint_writer import write_tensors
from trainer_core.train.loss import batch_loss
from trainer_core.train.model_shape import tuning_of

VARIANTS = ("lora", "rslora", "dora")
IDS = torch.arange(24).view(2, 12) * 7 % 96


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Qwen3 model as transformers saves it, with tied embeddings."""
    import transformers

    folder = tmp_path_factory.mktemp("基础 base")
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=48, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def load_base(folder: Path) -> Decoder:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = Decoder(hf_config.from_hf_config(config, str(folder)))
    weights.load_weights(source.resolve(str(folder), NullReporter()), model, NullReporter())
    return model


def lora(**values: object) -> Config:
    return resolve([ConfigLayer("test", {"method": "lora", "lora_rank": 4, "lora_alpha": 8, **values})])


def with_adapter(folder: Path, **values: object) -> Decoder:
    """The base model with an adapter whose output is not zero."""
    model = load_base(folder)
    adapters.set_up_tuning(model, tuning_of(lora(**values)))
    torch.manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn_like(weight)
    return model


def save(model: Decoder, folder: Path) -> Path:
    folder.mkdir()
    write_tensors(folder / adapters.ADAPTER_FILE, adapters.adapter_weights(model))
    (folder / adapters.ADAPTER_CONFIG_FILE).write_bytes(adapters.adapter_config(model, "base"))
    return folder


def peft_model(base: Path, adapter: Path) -> Any:
    import peft
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    return peft.PeftModel.from_pretrained(reference, adapter, is_trainable=True).eval()


@torch.no_grad()
def logits(model: Callable[[Tensor], Any]) -> Tensor:
    result = model(IDS)
    return result if isinstance(result, Tensor) else result.logits  # type: ignore[no-any-return]


def test_layers_compute_outputs_and_gradients_of_peft(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peft.tuners import lora as peft_lora

    def outcome() -> list[Tensor]:
        torch.manual_seed(0)
        model = with_adapter(base)
        loss = model(IDS).square().mean()
        return [loss, *torch.autograd.grad(loss, list(adapters.adapter_weights(model).values()))]

    ours = outcome()
    monkeypatch.setattr(LoraLinear, "forward", peft_lora.Linear.forward)
    for one, other in zip(ours, outcome(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("embeddings", [False, True], ids=["layers", "embeddings"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_peft_loads_an_adapter_with_the_same_logits(base: Path, tmp_path: Path, variant: str, embeddings: bool) -> None:
    ours = with_adapter(base, lora_variant=variant, lora_embeddings=embeddings)
    theirs = peft_model(base, save(ours, tmp_path / "适配器"))
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits(ours), logits(load_base(base)), atol=1e-3)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_adapter_made_by_peft_is_loaded_and_trained_on(base: Path, tmp_path: Path, variant: str) -> None:
    import peft
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(base, attn_implementation="eager")
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], rank_pattern={"down_proj": 2},
        use_rslora=variant == "rslora", use_dora=variant == "dora", init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = peft.get_peft_model(reference, config)
    theirs.save_pretrained(tmp_path / "made")
    ours = load_base(base)
    adapters.load_adapter(tmp_path / "made", ours)
    torch.testing.assert_close(logits(ours), logits(theirs.eval()), rtol=1e-5, atol=1e-5)
    before, optimizer = logits(ours), optimizers.build_optimizer(ours, lora(learning_rate=1e-2))
    labels = IDS.roll(-1, 1)
    for _ in range(3):
        batch_loss(ours, Batch(IDS, labels, labels.numel(), 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.allclose(logits(ours), before, atol=1e-3)
    torch.testing.assert_close(
        logits(ours), logits(peft_model(base, save(ours, tmp_path / "on"))), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("embeddings", [False, True], ids=["layers", "embeddings"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_merged_model_computes_the_same_with_the_names_of_the_base(
    base: Path, tmp_path: Path, variant: str, embeddings: bool
) -> None:
    model = with_adapter(base, lora_variant=variant, lora_embeddings=embeddings)
    folder, expected = save(model, tmp_path / "adapter"), logits(model)
    adapters.merge(model)
    torch.testing.assert_close(logits(model), expected, rtol=1e-5, atol=1e-5)
    plain = load_base(base).state_dict()
    assert list(model.state_dict()) == list(plain)
    adapter, config = load_file(folder / adapters.ADAPTER_FILE), adapters.read_adapter_config(folder)
    for name, weight in plain.items():
        merged = adapters.merged_weight(name, weight, adapter, config)
        torch.testing.assert_close(merged, model.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_only_the_adapter_is_trained_and_saved(base: Path) -> None:
    model = with_adapter(base)
    trained = adapters.adapter_weights(model)
    layers = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert adapters.linear_layers(load_base(base)) == list(layers)
    assert len(trained) == 2 * 2 * len(layers)
    assert "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight" in trained
    assert adapters.count_trainable(model) == sum(weight.numel() for weight in trained.values())
    groups = optimizers.build_optimizer(model, lora()).param_groups
    assert {id(weight) for group in groups for weight in group["params"]} == {id(one) for one in trained.values()}


def test_an_adapter_of_half_precision_weights_is_trained_in_single_precision(base: Path) -> None:
    model = load_base(base).bfloat16()
    adapters.set_up_tuning(model, tuning_of(lora(lora_embeddings=True)))
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    assert model.model.layers[0].mlp.up_proj.base_layer.weight.dtype == torch.bfloat16  # type: ignore[union-attr]


@pytest.mark.parametrize("chunk", [0, 5])
def test_a_frozen_head_has_no_gradient_and_the_adapter_the_same_one(base: Path, chunk: int) -> None:
    model, labels = with_adapter(base), IDS.roll(-1, 1)
    batch = Batch(IDS, labels, labels.numel(), 2)
    batch_loss(model, batch, chunk=chunk).backward()
    assert model.lm_head.weight.grad is None
    found = [weight.grad for weight in adapters.adapter_weights(model).values()]
    model.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(IDS).flatten(0, 1), labels.flatten(), reduction="sum").backward()
    for one, weight in zip(found, adapters.adapter_weights(model).values(), strict=True):
        torch.testing.assert_close(one, weight.grad, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_of_a_model_with_600_million_weights_is_small() -> None:
    values = {
        "model_type": "qwen3", "vocab_size": 151_936, "hidden_size": 1024, "num_hidden_layers": 28, "head_dim": 128,
        "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3072, "tie_word_embeddings": True,
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    }  # fmt: skip
    with torch.device("meta"):
        model = Decoder(hf_config.from_hf_config(values, "Qwen3-0.6B"))
        adapters.set_up_tuning(model, tuning_of(lora(lora_rank=16)))
    size = sum(weight.nbytes for weight in adapters.adapter_weights(model).values())
    assert model.model.layers[0].mlp.up_proj.lora_A.default.weight.shape == (16, 1024)  # type: ignore[union-attr]
    assert size == 40_370_176
    assert 3 * size + 12e6 < 150e6  # with two moments and the tokenizer


@pytest.mark.parametrize(
    "values",
    [
        {"method": "full"},
        {"method": "full", "freeze": ["model.layers.0.*", "*embed_tokens*"]},
        {"lora_rank": 3},
        {"lora_variant": "dora", "lora_targets": ["q_proj", "down_proj"]},
        {"lora_embeddings": True},
    ],
)
def test_the_summary_of_a_model_counts_the_weights_that_are_trained(base: Path, values: dict[str, object]) -> None:
    model, config = load_base(base), lora(**values)
    found = summary.summarize(str(base))
    assert found.error is None
    assert found.parameters == sum(weight.numel() for weight in model.parameters())
    adapters.set_up_tuning(model, tuning_of(config))
    assert summary.count_trained(found, config) == adapters.count_trainable(model)


def test_frozen_weights_are_chosen_by_name(base: Path) -> None:
    model = load_base(base)
    full = resolve([ConfigLayer("test", {"freeze": ["model.layers.0.*", "*embed_tokens*"]})])
    adapters.set_up_tuning(model, tuning_of(full))
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen
    assert all(name.startswith(("model.layers.0.", "model.embed_tokens")) for name in frozen)
    for patterns, code in ((["layer.0.*"], "config.freeze_unmatched"), (["*"], "config.all_frozen")):
        with pytest.raises(TraindeckError) as caught:
            adapters.set_up_tuning(load_base(base), {"method": "full", "freeze": patterns})
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"optimizer": "muon"}, "config.muon_and_lora"),
        ({"freeze": ["model.*"]}, "config.freeze_and_lora"),
        ({"lora_rank": 0}, "config.bad_value"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, object], code: str) -> None:
    with pytest.raises(TraindeckError) as caught:
        lora(**values)
    assert caught.value.code == code


def test_an_unknown_layer_is_refused_with_the_known_ones(base: Path) -> None:
    with pytest.raises(TraindeckError) as caught:
        with_adapter(base, lora_targets=["q_proj", "query"])
    assert caught.value.code == "config.lora_targets"
    assert caught.value.params["name"] == "query"
    assert "gate_proj" in caught.value.params["known"]


@pytest.mark.parametrize(
    "change",
    [
        {"peft_type": "IA3"},
        {"bias": "all"},
        {"r": 0},
        {"r": 8},
        {"r": 10**9},
        {"rank_pattern": {"q_proj": 10**9}},
        {"r": "many"},
        {"target_modules": ["q_proj"]},
        {"target_modules": ["nothing"]},
        {"modules_to_save": ["norm"]},
    ],
    ids=str,
)
def test_an_adapter_that_does_not_fit_is_refused(base: Path, tmp_path: Path, change: dict[str, object]) -> None:
    folder = save(with_adapter(base), tmp_path / "adapter")
    config = json.loads((folder / adapters.ADAPTER_CONFIG_FILE).read_text(encoding="utf-8"))
    (folder / adapters.ADAPTER_CONFIG_FILE).write_text(json.dumps({**config, **change}), encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        adapters.load_adapter(folder, load_base(base))
    assert caught.value.code == "checkpoint.bad_adapter"
