"""The decoder equals the Hugging Face implementation of each family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trainer_core.generation.generate import SamplingParams, generate_batch, generate_tokens
from trainer_core.messages import Language, TraindeckError, format_message
from trainer_core.models import hf_config
from trainer_core.models.attention import document_mask
from trainer_core.models.decoder import Decoder, KvCache, ModelConfig, build_decoder
from trainer_core.train.checkpoint import load_weights, read_shape

SMALL = ModelConfig(
    vocab_size=97, hidden_dim=48, n_layers=3, n_heads=6, n_kv_heads=6, mlp_dim=64, max_seq_len=32, tie_embeddings=False
)


def variant(**changes: object) -> ModelConfig:
    values = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__}
    return ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


FAMILIES = {
    "llama": variant(),
    "llama with grouped queries": variant(n_kv_heads=2),
    "llama with a tied head": variant(tie_embeddings=True),
    "llama with another rope base": variant(rope_theta=500_000.0),
    "qwen2": variant(qkv_bias=True, n_kv_heads=3),
    "qwen3": variant(qk_norm=True, n_kv_heads=2),
}


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
def test_logits_equal_those_of_transformers(config: ModelConfig, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = random_decoder(config)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(hf_config.to_hf_config(config, 0, 1)), encoding="utf-8")
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(random_ids(2, 20)), reference(random_ids(2, 20)).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_config_json_round_trips(config: ModelConfig) -> None:
    assert hf_config.from_hf_config(hf_config.to_hf_config(config, 0, 1), "x") == config


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
    assert hf_config.from_hf_config(small_config(family, version), "x").rope_theta == 250_000.0


def test_a_model_saved_by_transformers_has_the_same_logits(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    (tmp_path / "config.json").write_text(json.dumps(small_config("llama", 5)), encoding="utf-8")
    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).eval()
    reference.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    assert shape.rope_theta == 250_000.0
    model = Decoder(shape).eval()
    load_weights(tmp_path, model)
    with torch.no_grad():
        torch.testing.assert_close(model(random_ids(2, 60)), reference(random_ids(2, 60)).logits, rtol=1e-4, atol=1e-5)


def test_config_json_has_rope_theta_for_both_versions_of_transformers() -> None:
    written = hf_config.to_hf_config(variant(rope_theta=250_000.0), 0, 1)
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 250_000.0
    assert written["rope_parameters"]["rope_type"] == "default"


LANGUAGES: tuple[Language, Language] = ("en", "zh")
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
UNSUPPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "another family": ("model_type", {"model_type": "gpt2"}),
    "no family": ("model_type", {"model_type": None}),
    "another head": ("architectures", {"architectures": ["LlamaForSequenceClassification"]}),
    "own code": ("architectures", {"architectures": ["MyLlamaForCausalLM"]}),
    "scaled positions, 4": ("rope_scaling.rope_type", {"rope_scaling": LLAMA_3}),
    "scaled positions, before 4.43": ("rope_scaling.type", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "scaled positions, 5": ("rope_parameters.rope_type", {"rope_parameters": {"rope_theta": 1e4, **LLAMA_3}}),
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
    "bias in attention": ("attention_bias", {"attention_bias": True}),
    "bias in the mlp": ("mlp_bias", {"mlp_bias": True}),
    "another activation": ("hidden_act", {"hidden_act": "gelu"}),
    "wide heads": ("head_dim", {"head_dim": 16}),
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


@pytest.mark.parametrize(("rejected", "changes"), [
    (True, {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}),
    (True, {"use_sliding_window": True, "sliding_window": 32, "layer_types": None, "max_window_layers": 1}),
    (False, {"use_sliding_window": True, "sliding_window": 64, "layer_types": None, "max_window_layers": 0}),
    (False, {"use_sliding_window": True, "sliding_window": 32, "layer_types": None, "max_window_layers": 3}),
    (False, {"use_sliding_window": False, "sliding_window": 32, "layer_types": None, "max_window_layers": 0}),
])  # fmt: skip
def test_a_sliding_window_narrower_than_the_context_is_rejected(rejected: bool, changes: dict[str, Any]) -> None:
    values = small_config("qwen2", 4, **changes)
    if not rejected:
        assert hf_config.from_hf_config(values, "x").max_seq_len == 64
        return
    with pytest.raises(TraindeckError) as error:
        hf_config.from_hf_config(values, "x")
    assert error.value.params["name"] == "sliding_window"


def test_missing_keys_have_the_defaults_of_transformers() -> None:
    names = ("rope_theta", "rope_scaling", "head_dim", "hidden_act", "tie_word_embeddings", "num_key_value_heads")
    values = {name: value for name, value in small_config("llama", 4).items() if name not in names}
    shape = hf_config.from_hf_config(values, "x")
    assert (shape.rope_theta, shape.head_dim, shape.tie_embeddings, shape.n_kv_heads) == (10_000.0, 8, False, 6)


@pytest.mark.parametrize("name", ["rope_theta", "num_key_value_heads", "rms_norm_eps"])
def test_zero_is_not_a_missing_value(name: str) -> None:
    with pytest.raises(TraindeckError) as error:
        hf_config.from_hf_config(small_config("llama", 4, **{name: 0}), "x")
    assert name in error.value.params["what"]


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_decoding_with_a_cache_equals_a_full_forward_pass(config: ModelConfig) -> None:
    model, tokens = random_decoder(config), random_ids(2, 12)
    cache = KvCache(config, 2, 12, model.lm_head.weight)
    with torch.no_grad():
        parts = [model(tokens[:, :5], cache=cache)]
        parts += [model(tokens[:, position : position + 1], cache=cache) for position in range(5, 12)]
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
    with torch.no_grad():
        together = model(tokens, positions_BT=positions, mask_B1TS=document_mask(segments))
        for row, begin, end in ((0, 0, 7), (0, 7, 20), (1, 0, 12), (1, 12, 15), (1, 15, 20)):
            alone = model(tokens[row : row + 1, begin:end])
            torch.testing.assert_close(together[row : row + 1, begin:end], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_weights_are_initialized_once_with_their_standard_deviation(config: ModelConfig) -> None:
    torch.manual_seed(5)
    model = Decoder(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert weight.unique().tolist() == [0.0 if name.endswith("bias") else 1.0], name
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
