"""Models of other architectures than our decoder's, which transformers computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.training import (
    OUT_OF_MEMORY,
    build_trainer,
    copy_weights,
    corrupt_gradients,
    first_epoch,
    oom_config,
    recovery_actions,
)
from tests.unit.model_folders import model_folder
from trainer_core import protocol
from trainer_core.base_model.configure import apply_base_model
from trainer_core.base_model.source import resolve
from trainer_core.base_model.weights import load_weights
from trainer_core.data.batch import Batch
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.generation.generate import SamplingParams, generate_batch, generate_tokens
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.build import build_model
from trainer_core.models.transformers_model import TransformersModel, require_compatible
from trainer_core.progress import NullReporter

CPU = torch.device("cpu")
IDS = torch.randint(0, 90, (2, 40), generator=torch.Generator().manual_seed(1))
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {},
    "phi3": {"num_key_value_heads": 2, "sliding_window": 16},
    "phi": {},
    "olmo2": {},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 12, "sliding_window": 16},
    "stablelm": {"num_key_value_heads": 4, "partial_rotary_factor": 0.5},
    "mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
}


def base_folder(
    folder: Path, model_type: str, architecture: str | None = None, chat_tokens: bool = True, **values: Any
) -> Path:
    """A small random model as transformers saves it, with a tokenizer and chat template and spare rows, or without
    tokens of ChatML and rows for them."""
    transformers = pytest.importorskip("transformers")
    model_folder(folder, "qwen3") if chat_tokens else model_folder(folder, "llama3", chat_template=None)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=Codec.load(folder / "tokenizer.json").vocab_size + (30 if chat_tokens else 0),
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        pad_token_id=None,
        **ARCHITECTURES.get(model_type, {}),
        **values,
    )
    cls = getattr(transformers, architecture) if architecture else transformers.AutoModelForCausalLM
    model = cls(config) if architecture else cls.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():  # also biases
            weight.add_(torch.randn_like(weight) * 0.05)
    model.save_pretrained(folder)
    return folder


def load(folder: Path) -> TransformersModel:
    """The model as a run loads it."""
    base = resolve(str(folder), NullReporter())
    model = build_model(CPU, hf_config.from_hf_config(base.config, str(folder)), initialize=False)
    load_weights(base, model, NullReporter())
    assert isinstance(model, TransformersModel)
    return model.eval()


def check_equality(folder: Path) -> None:
    """Logits, documents and greedy tokens equal those of transformers."""
    from transformers import AutoModelForCausalLM

    model, reference = load(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), reference(IDS).logits, rtol=1e-4, atol=1e-4)
        options = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": None}
        rows = [IDS[0, :20].tolist(), IDS[1, :9].tolist()]
        expected = [reference.generate(torch.tensor([row]), **options)[0, len(row) :].tolist() for row in rows]
    greedy = SamplingParams(temperature=0)
    assert [list(generate_tokens(model, row, 64, greedy, frozenset())) for row in rows] == expected
    assert [one.tokens for one in generate_batch(model, rows, [64, 64], frozenset(), lambda: None)] == expected
    if model.model_type == "falcon":
        with pytest.raises(TraindeckError) as error:
            require_compatible(model, str(folder), documents=True)
        assert error.value.code == "model.no_documents"
        return
    require_compatible(model, str(folder), documents=True)
    lengths = (13, 27)  # the second is longer than sliding windows
    positions_BT = torch.cat([torch.arange(length) for length in lengths]).repeat(2, 1)
    with torch.no_grad():
        packed = model.eval()(IDS, positions_BT=positions_BT)
        alone = torch.cat([reference(part).logits for part in IDS.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-4)


def test_a_gpt2_model_equals_that_of_transformers(tmp_path: Path) -> None:
    check_equality(base_folder(tmp_path / "模型 base", "gpt2"))


@pytest.mark.parametrize("model_type", list(ARCHITECTURES))
def test_a_model_of_each_architecture_equals_that_of_transformers(tmp_path: Path, model_type: str) -> None:
    check_equality(base_folder(tmp_path / "base", model_type))


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "model.not_causal"),
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "model.not_causal"),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, "model.not_causal"),
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, "model.not_causal"),
        ({"model_type": "gpt2", "n_embd": 10**9}, "model.bad_config"),
        ({"model_type": "gpt2", "quantization_config": {"bits": 4}}, "model.unsupported"),
        ({"model_type": "no_such_model"}, "model.unsupported"),
    ],
)
def test_a_model_that_is_not_a_causal_language_model_is_refused(values: dict[str, Any], code: str) -> None:
    with pytest.raises(TraindeckError) as error:
        hf_config.from_hf_config(values, "x")
    assert error.value.code == code


def test_a_model_that_attends_to_later_tokens_is_refused(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base", "bert", "BertLMHeadModel")
    with pytest.raises(TraindeckError) as error:
        require_compatible(load(folder), str(folder), documents=False)
    assert (error.value.code, error.value.params["reason"]) == ("model.incompatible", "a token attends to later ones")


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = base_folder(tmp_path / "base", "gpt2")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, value in {"n_layer": 3, "n_embd": 64}.items():
        (folder / "config.json").write_text(json.dumps({**config, name: value}), encoding="utf-8")
        with pytest.raises(TraindeckError) as error:
            load(folder)
        assert error.value.code == "base_model.mismatch"


def test_a_gpt2_model_recovers_from_memory_errors_and_bad_steps(tmp_path: Path) -> None:
    expect_recovery(tmp_path, base_folder(tmp_path / "base", "gpt2"), "lora")


def expect_recovery(home: Path, base: Path, method: str) -> None:
    """Memory errors change no trained weight, and neither does a bad step."""
    values: dict[str, Any] = {"base_model": str(base), "method": method, "batch_size": 4, "max_steps": 3}
    config = apply_base_model(oom_config(home, **values), NullReporter())
    (whole, _), (trainer, sink) = (build_trainer(home, config, name) for name in ("whole", "recovered"))
    bad = first_epoch(whole)[1]
    for one in (whole, trainer):
        corrupt_gradients(one, bad)
    compute = trainer.engine.loss

    def limited(batch: Batch, *grad_scale: Any) -> torch.Tensor:
        checkpointing = any(getattr(module, "gradient_checkpointing", False) for module in trainer.model.modules())
        if len(batch.input_ids) > 1 or not checkpointing:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return compute(batch, *grad_scale)

    trainer.engine.loss = limited  # type: ignore[method-assign]
    whole.run()
    trainer.run()
    assert [action for action, *_ in recovery_actions(sink)] == ["halved", "halved", "checkpointing"]
    assert [(event.step, event.action) for event in sink.events_of(protocol.BadStep)] == [(2, "skipped")]
    for weight, expected in zip(copy_weights(trainer), copy_weights(whole), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-3, atol=2e-5)
