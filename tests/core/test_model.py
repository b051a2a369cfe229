"""The decoder and its `config.json`. test_model_families.py compares both with transformers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import msgspec
import pytest
import torch

from tests.core.model_families import HF_CONFIGS
from trainer_core.generation.generate import SamplingParams, generate_batch, generate_tokens
from trainer_core.messages import Language, TraindeckError, format_message
from trainer_core.models import hf_config
from trainer_core.models.attention import CuSeqlens, document_mask, per_document_attention, sdpa
from trainer_core.models.decoder import Decoder, build_decoder
from trainer_core.models.kv_cache import KvCache
from trainer_core.models.model_config import ModelConfig, RopeConfig

FAMILIES = {name: hf_config.from_hf_config(values, name) for name, values in HF_CONFIGS.items()}
SMALL = FAMILIES["llama"]


def random_decoder(config: ModelConfig) -> Decoder:
    """A decoder with random weights, also of norms and biases, so that swapped weights are detected."""
    torch.manual_seed(0)
    model = Decoder(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, SMALL.vocab_size, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_config_json_round_trips(config: ModelConfig) -> None:
    written = json.loads(json.dumps(hf_config.to_hf_config(config, 0, 1)))
    assert hf_config.from_hf_config(written, "x") == config


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_a_model_config_round_trips_as_json(config: ModelConfig) -> None:
    assert msgspec.convert(json.loads(json.dumps(asdict(config))), ModelConfig) == config


def test_a_model_is_exported_with_all_positions_and_continued_with_its_own() -> None:
    trained = replace(SMALL, max_seq_len=16, max_positions=131_072)
    written = hf_config.to_hf_config(trained, 0, 1)
    assert written["max_position_embeddings"] == 131_072
    assert hf_config.from_hf_config(written, "x") == trained
    assert {len(table) for table in Decoder(trained).model.buffers()} == {16}


def small_config(family: str, version: int, **changes: Any) -> dict[str, Any]:
    """The `config.json` that transformers 4.57 or 5.23 writes for a small model."""
    written: dict[str, Any] = {
        "architectures": [f"{family.capitalize()}ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "head_dim": 8, "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02,
        "intermediate_size": 64, "max_position_embeddings": 64, "model_type": family, "num_attention_heads": 6,
        "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": False,
        "use_cache": True, "vocab_size": 97,
    }  # fmt: skip
    if family == "llama":
        written |= {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
    else:
        layers = ["full_attention"] * 3
        written |= {"layer_types": layers, "max_window_layers": 28, "sliding_window": None, "use_sliding_window": False}
    if version == 4:
        written |= {"rope_theta": 250_000.0, "rope_scaling": None, "dtype": "float32"}
    else:
        written |= {"rope_parameters": {"rope_theta": 250_000.0, "rope_type": "default"}, "pad_token_id": None}
    return {**written, **changes}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("version", [4, 5])
def test_rope_theta_is_read_from_either_version_of_transformers(family: str, version: int) -> None:
    assert hf_config.from_hf_config(small_config(family, version), "x").rope.theta == 250_000.0


def test_config_json_has_rope_theta_for_both_versions_of_transformers() -> None:
    written = hf_config.to_hf_config(replace(SMALL, rope=RopeConfig(theta=250_000.0)), 0, 1)
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 250_000.0
    assert written["rope_parameters"]["rope_type"] == "default"


LANGUAGES: tuple[Language, Language] = ("en", "zh")
DYNAMIC, LINEAR = {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "attention_bias": None, "mlp_bias": None}
QWEN_3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
GEMMA_3 = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_act": None, "rope_parameters": None,
}  # fmt: skip
UNSUPPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown family": ("model_type", {"model_type": "no_such_model"}),
    "no family": ("model_type", {"model_type": None}),
    "another head": ("architectures", {"architectures": ["LlamaForSequenceClassification"]}),
    "own code": ("architectures", {"architectures": ["MyLlamaForCausalLM"]}),
    "scaled positions, 4": ("rope_scaling.rope_type", {"rope_scaling": DYNAMIC}),
    "scaled positions, before 4.43": ("rope_scaling.type", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "scaled positions, 5": ("rope_parameters.rope_type", {"rope_parameters": {"rope_theta": 1e4, **DYNAMIC}}),
    "two scalings": (
        "rope_scaling",
        {"rope_scaling": LINEAR, "rope_parameters": {"rope_theta": 1e4, **LINEAR, "factor": 4.0}},
    ),
    "an unknown part of a scaling": ("rope_scaling.short_factor", {"rope_scaling": {**LINEAR, "short_factor": [1.0]}}),
    "a factor of no known kind": ("rope_scaling.factor", {"rope_scaling": {"factor": 2.0}}),
    "positions by layer": (
        "rope_parameters.full_attention",
        {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
    ),
    "no dictionary": ("rope_parameters", {"rope_parameters": [1e4]}),
    "two bases": ("rope_theta", {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
    "part of a head, 4": ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    "part of a head, 5": ("rope_parameters.partial_rotary_factor", {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    "interleaved positions": ("rope_interleaved", {"rope_interleaved": True}),
    "bias in the attention of Mistral": ("attention_bias", {**MISTRAL, "attention_bias": True}),
    "bias in the mlp of Mistral": ("mlp_bias", {**MISTRAL, "mlp_bias": True}),
    "windows by layer in Mistral": ("layer_types", {**MISTRAL, "layer_types": ["full_attention"] * 3}),
    "a layer of another type": ("layer_types", {**QWEN_3, "layer_types": ["full_attention", "x", "full_attention"]}),
    "types of too few layers": ("layer_types", {**QWEN_3, "layer_types": ["full_attention"] * 2}),
    "limited logits of Gemma": ("final_logit_softcapping", {**GEMMA_3, "final_logit_softcapping": 30.0}),
    "attention of Gemma to later tokens": (
        "use_bidirectional_attention",
        {**GEMMA_3, "use_bidirectional_attention": True},
    ),
    "one base for both kinds of layers": (
        "rope_parameters.rope_theta",
        {**GEMMA_3, "rope_parameters": {"rope_theta": 1e4}},
    ),
    "another activation": ("hidden_act", {"hidden_act": "gelu"}),
    "heads that cannot rotate": ("head_dim", {"head_dim": 7}),
    "quantized": ("quantization_config", {"quantization_config": {"quant_method": "gptq"}}),
    "a tie that is no bool": ("tie_word_embeddings", {"tie_word_embeddings": "false"}),
}


@pytest.mark.parametrize(("name", "changes"), UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_an_unsupported_architecture_is_rejected_by_name(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(TraindeckError) as error:
        hf_config.from_hf_config(small_config("llama", 5, **changes), "folder")
    assert (error.value.code, error.value.params["name"]) == ("model.unsupported", name)
    english, chinese = (format_message(error.value.code, error.value.params, language) for language in LANGUAGES)
    assert f"sets {name} = " in english
    assert f" {name} = " in chinese


@pytest.mark.parametrize(("sliding", "changes"), [
    ((2,), {"use_sliding_window": True, "layer_types": ["full_attention", "full_attention", "sliding_attention"]}),
    ((1, 2), {"use_sliding_window": True, "layer_types": None, "max_window_layers": 1}),
    ((0, 1, 2), {"use_sliding_window": True, "layer_types": None, "max_window_layers": 0}),
    ((), {"use_sliding_window": True, "layer_types": None, "max_window_layers": 3}),
    ((), {"use_sliding_window": True, "layer_types": None, "max_window_layers": 0, "sliding_window": None}),
    ((), {"use_sliding_window": False, "layer_types": None, "max_window_layers": 0}),
])  # fmt: skip
def test_the_layers_with_a_sliding_window_are_read(sliding: tuple[int, ...], changes: dict[str, Any]) -> None:
    heads = hf_config.from_hf_config(small_config("qwen2", 4, **{"sliding_window": 32, **changes}), "x").attention
    assert (heads.sliding_layers, heads.sliding_window) == (sliding, 32 if sliding else None)


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    names = ("rope_theta", "rope_scaling", "head_dim", "hidden_act", "tie_word_embeddings", "num_key_value_heads")
    values = {name: value for name, value in small_config("llama", 4).items() if name not in names}
    shape = hf_config.from_hf_config(values, "x")
    heads = shape.attention
    assert (shape.rope.theta, heads.head_dim, shape.tie_embeddings, heads.n_kv_heads) == (10_000.0, 8, False, 6)


@pytest.mark.parametrize("name", ["rope_theta", "num_key_value_heads", "rms_norm_eps"])
def test_zero_is_not_a_missing_value(name: str) -> None:
    with pytest.raises(TraindeckError) as error:
        hf_config.from_hf_config(small_config("llama", 4, **{name: 0}), "x")
    assert name in error.value.params["reason"]


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("prompt", [5, 14])
def test_decoding_with_a_cache_equals_a_full_forward_pass(config: ModelConfig, prompt: int) -> None:
    model, tokens = random_decoder(config), random_ids(2, 20)
    cache = KvCache(config, 2, 20, model.lm_head.weight)
    with torch.no_grad():
        parts = [model(tokens[:, :prompt], cache=cache)]
        parts += [model(tokens[:, position : position + 1], cache=cache) for position in range(prompt, 20)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=1e-4, atol=1e-5)


def test_attention_is_causal() -> None:
    model, tokens = random_decoder(SMALL), random_ids(1, 16)
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % SMALL.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_a_document_mask_is_causal_within_each_document() -> None:
    mask = document_mask(torch.tensor([[0, 0, 1, 1, 1, -1]]))
    assert mask.shape == (1, 1, 6, 6)
    assert [[position for position, visible in enumerate(row) if visible] for row in mask[0, 0].tolist()] == [
        [0], [0, 1], [2], [2, 3], [2, 3, 4], [5]
    ]  # fmt: skip


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_packed_documents_have_the_logits_of_separate_ones(config: ModelConfig) -> None:
    model, tokens = random_decoder(config), random_ids(2, 20)
    segments = torch.tensor([[0] * 7 + [1] * 13, [0] * 12 + [1] * 3 + [2] * 5])
    positions = torch.tensor([[*range(7), *range(13)], [*range(12), *range(3), *range(5)]])
    cu_seqlens = CuSeqlens(torch.tensor([0, 7, 20, 32, 35, 40], dtype=torch.int32), 13)
    with torch.no_grad():
        together = model(tokens, positions_BT=positions, mask_B1TS=document_mask(segments))
        for backend in (sdpa, per_document_attention):
            model.set_attention(backend)
            spans = model(tokens, positions_BT=positions, cu_seqlens=cu_seqlens)
            torch.testing.assert_close(spans, together, rtol=1e-4, atol=1e-5)
        for row, begin, end in ((0, 0, 7), (0, 7, 20), (1, 0, 12), (1, 12, 15), (1, 15, 20)):
            alone = model(tokens[row : row + 1, begin:end])
            torch.testing.assert_close(together[row : row + 1, begin:end], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_weights_are_initialized_once_with_their_standard_deviation(config: ModelConfig) -> None:
    torch.manual_seed(5)
    model = Decoder(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            zero = name.endswith("bias") or config.norm.offset
            assert weight.unique().tolist() == [0.0 if zero else 1.0], name
            continue
        last = name.endswith(("o_proj.weight", "down_proj.weight"))
        expected = 0.02 / (2 * config.n_layers) ** 0.5 if last else 0.02
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.2), name
        assert float(weight.detach().mean()) == pytest.approx(0, abs=0.2 * expected), name
    torch.manual_seed(5)
    rebuilt = build_decoder(torch.device("cpu"), config)
    for name, weight in rebuilt.named_parameters():
        assert torch.equal(weight, model.get_parameter(name)), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_a_seed_initializes_the_same_model_on_a_gpu(config: ModelConfig) -> None:
    torch.manual_seed(5)
    on_cpu = build_decoder(torch.device("cpu"), config).state_dict()
    torch.manual_seed(5)
    on_gpu = build_decoder(torch.device("cuda"), config)
    assert {tensor.device.type for tensor in [*on_gpu.parameters(), *on_gpu.buffers()]} == {"cuda"}
    for name, weight in on_gpu.state_dict().items():
        assert torch.equal(weight.cpu(), on_cpu[name]), name


def test_generation_computes_logits_of_the_last_position_only() -> None:
    """Logits of all positions of 64 prompts can take more memory than training."""
    model, logit_counts = random_decoder(SMALL), []
    model.lm_head.register_forward_hook(lambda module, args, logits: logit_counts.append(logits.numel()))
    prompts = [[1, 2, 3, 4, 5], [6, 7]]
    answers = generate_batch(model, prompts, [3, 3], frozenset(), lambda: None)
    assert [len(answer.tokens) for answer in answers] == [3, 3]
    assert set(logit_counts) == {len(prompts) * SMALL.vocab_size}
    logit_counts.clear()
    assert len(list(generate_tokens(model, [1, 2, 3], 4, SamplingParams(temperature=0), frozenset()))) == 4
    assert set(logit_counts) == {SMALL.vocab_size}
