"""The decoder computes what Hugging Face's own code computes, family by family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainer_core.generate import Sampling, answer_all, write_tokens
from trainer_core.model import hugging_face
from trainer_core.model.decoder import Decoder, KvCache, ModelConfig, decoder_on, document_mask

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


def drawn(config: ModelConfig) -> Decoder:
    """A decoder whose every weight is random, norms and biases too, so that a mix-up shows."""
    torch.manual_seed(0)
    model = Decoder(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, SMALL.vocab_size, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_logits_equal_those_of_transformers(config: ModelConfig, tmp_path: Path) -> None:
    import json

    from transformers import AutoModelForCausalLM

    model = drawn(config)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config.tie_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(hugging_face.to_dict(config, 0, 1)), encoding="utf-8")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids(2, 20)), theirs(ids(2, 20)).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_config_json_describes_the_same_decoder_again(config: ModelConfig) -> None:
    assert hugging_face.from_dict(hugging_face.to_dict(config, 0, 1), "x") == config


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_token_by_token_with_a_cache_equals_all_at_once(config: ModelConfig) -> None:
    model, tokens = drawn(config), ids(2, 12)
    cache = KvCache(config, 2, 12, model.lm_head.weight)
    with torch.no_grad():
        parts = [model(tokens[:, :5], cache=cache)]
        parts += [model(tokens[:, at : at + 1], cache=cache) for at in range(5, 12)]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), rtol=1e-4, atol=1e-5)


def test_a_token_never_sees_later_ones() -> None:
    model, tokens = drawn(SMALL), ids(1, 16)
    changed = tokens.clone()
    changed[0, 10:] = (changed[0, 10:] + 1) % SMALL.vocab_size
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_a_document_mask_lets_tokens_see_what_came_before_them_in_their_own_document() -> None:
    mask = document_mask(torch.tensor([[0, 0, 1, 1, 1, -1]]))
    assert mask.shape == (1, 1, 6, 6)
    assert [[at for at, seen in enumerate(row) if seen] for row in mask[0, 0].tolist()] == [
        [0], [0, 1], [2], [2, 3], [2, 3, 4], [5]
    ]  # fmt: skip


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_documents_in_one_sequence_have_the_logits_that_they_have_alone(config: ModelConfig) -> None:
    model, tokens = drawn(config), ids(2, 20)
    segments = torch.tensor([[0] * 7 + [1] * 13, [0] * 12 + [1] * 3 + [2] * 5])
    positions = torch.tensor([[*range(7), *range(13)], [*range(12), *range(3), *range(5)]])
    with torch.no_grad():
        together = model(tokens, positions_BT=positions, mask_B1TS=document_mask(segments))
        for row, begin, end in ((0, 0, 7), (0, 7, 20), (1, 0, 12), (1, 12, 15), (1, 15, 20)):
            alone = model(tokens[row : row + 1, begin:end])
            torch.testing.assert_close(together[row : row + 1, begin:end], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_every_weight_is_drawn_once_with_its_spread(config: ModelConfig) -> None:
    torch.manual_seed(5)
    model = Decoder(config)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            assert weight.unique().tolist() == [0.0 if name.endswith("bias") else 1.0], name
            continue
        last = name.endswith(("o_proj.weight", "down_proj.weight"))
        wanted = 0.02 / (2 * config.n_layers) ** 0.5 if last else 0.02
        assert float(weight.detach().std()) == pytest.approx(wanted, rel=0.2), name
        assert float(weight.detach().mean()) == pytest.approx(0, abs=0.2 * wanted), name
    torch.manual_seed(5)
    again = decoder_on(torch.device("cpu"), config)
    for name, weight in again.named_parameters():
        assert torch.equal(weight, model.get_parameter(name)), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_a_seed_gives_the_same_model_on_a_gpu(config: ModelConfig) -> None:
    torch.manual_seed(5)
    here = decoder_on(torch.device("cpu"), config).state_dict()
    torch.manual_seed(5)
    there = decoder_on(torch.device("cuda"), config)
    assert {tensor.device.type for tensor in [*there.parameters(), *there.buffers()]} == {"cuda"}
    for name, weight in there.state_dict().items():
        assert torch.equal(weight.cpu(), here[name]), name


def test_text_is_written_from_logits_of_the_last_position_alone() -> None:
    """Logits of 64 whole prompts can take more memory than training does."""
    model, seen = drawn(SMALL), []
    model.lm_head.register_forward_hook(lambda module, given, logits: seen.append(logits.numel()))
    prompts = [[1, 2, 3, 4, 5], [6, 7]]
    answers = answer_all(model, prompts, [3, 3], frozenset(), lambda: None)
    assert [len(answer.tokens) for answer in answers] == [3, 3]
    assert set(seen) == {len(prompts) * SMALL.vocab_size}
    seen.clear()
    assert len(list(write_tokens(model, [1, 2, 3], 4, Sampling(temperature=0), frozenset()))) == 4
    assert set(seen) == {SMALL.vocab_size}
