"""The decoder equals transformers for every family: logits, gradients, greedy tokens, and what is exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from tests.core.model_families import HF_CONFIGS
from trainer_core.generation.generate import SamplingParams, generate_batch, generate_tokens
from trainer_core.models import hf_config
from trainer_core.models.decoder import Decoder
from trainer_core.train.checkpoint import load_weights, read_shape

IDS = torch.randint(1, 97, (2, 60), generator=torch.Generator().manual_seed(1))  # longer than windows and pretraining
GREEDY = SamplingParams(temperature=0)


class Family(NamedTuple):
    """A model of transformers, and ours from its folder."""

    reference: Any
    model: Decoder
    values: dict[str, Any]  # its configuration


@pytest.fixture(scope="module", params=HF_CONFIGS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    from transformers import AutoConfig, AutoModelForCausalLM

    values, folder = HF_CONFIGS[request.param], tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = AutoConfig.for_model(**values)
    reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for weight in reference.parameters():  # also norms and biases, so that swapped weights are detected
            weight.add_(torch.randn_like(weight) * 0.1)
    reference.save_pretrained(folder)
    model = Decoder(read_shape(folder)).eval()
    load_weights(folder, model)
    return Family(reference, model, values)


def test_the_config_of_transformers_5_is_that_of_transformers_4(family: Family) -> None:
    assert family.model.config == hf_config.from_hf_config(family.values, "x")


def test_logits_are_equal(family: Family) -> None:
    with torch.no_grad():
        torch.testing.assert_close(family.model(IDS), family.reference(IDS).logits, rtol=1e-4, atol=1e-4)


def test_gradients_are_equal(family: Family) -> None:
    gradients: list[dict[str, torch.Tensor]] = []
    for model in (family.model, family.reference):
        model.zero_grad()
        logits = model(IDS) if model is family.model else model(IDS).logits
        F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).backward()
        gradients.append({name: weight.grad for name, weight in model.named_parameters()})
        model.zero_grad()
    actual, expected = gradients
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (actual[name] - gradient).norm() <= 1e-3 * gradient.norm() + 1e-7, name


def test_64_greedy_tokens_are_equal(family: Family) -> None:
    prompt = IDS[0, :20].tolist()
    options = {"max_new_tokens": 64, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad():
        expected = family.reference.generate(torch.tensor([prompt]), **options)[0, 20:].tolist()
    assert len(expected) == 64
    assert list(generate_tokens(family.model, prompt, 64, GREEDY, frozenset())) == expected
    [batched, _] = generate_batch(family.model, [prompt, prompt[:11]], [64, 64], frozenset(), lambda: None)
    assert batched.tokens == expected


def test_the_export_has_equal_tensors_and_logits_in_transformers(family: Family, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    weights = {name: tensor.contiguous() for name, tensor in family.model.state_dict().items()}
    if family.model.config.tie_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    written = hf_config.to_hf_config(family.model.config, 0, 1)
    (tmp_path / "config.json").write_text(json.dumps(written), encoding="utf-8")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    tensors, expected = exported.state_dict(), family.reference.state_dict()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    with torch.no_grad():
        torch.testing.assert_close(exported(IDS).logits, family.reference(IDS).logits, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "mistral with a sliding window", "gemma 3"], indirect=True)
def test_a_traced_model_of_dynamic_width_is_equal(family: Family) -> None:
    """Traced as a run compiles it, without code generation."""
    torch.compiler.reset()
    traced = torch.compile(family.model, backend="aot_eager", fullgraph=True)
    try:
        with torch.no_grad():
            for width in (60, 13, 6):
                ids = IDS[:, :width].clone()
                torch._dynamo.mark_dynamic(ids, 1, min=2, max=96)
                torch.testing.assert_close(traced(ids), family.model(ids), rtol=1e-4, atol=1e-4)
    finally:
        torch.compiler.reset()


@pytest.mark.parametrize("name", ["llama", "gemma 3"])
def test_embeddings_in_bf16_are_those_of_transformers(name: str) -> None:
    """Gemma rounds the scale of embeddings."""
    from transformers import AutoConfig, AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**HF_CONFIGS[name])).to(torch.bfloat16)
    model = Decoder(hf_config.from_hf_config(HF_CONFIGS[name], "x")).to(torch.bfloat16)
    model.load_state_dict(reference.state_dict())
    inputs: list[torch.Tensor] = []
    model.model.layers[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model(IDS)
    assert torch.equal(inputs[0], reference.model.embed_tokens(IDS))
