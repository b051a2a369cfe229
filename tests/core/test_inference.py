"""Models that are rearranged for generation."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from tests.core.test_model import FAMILIES, random_decoder
from trainer_core.generation.generate import SamplingParams, generate_batch, generate_tokens
from trainer_core.models.decoder import Decoder
from trainer_core.models.inference import optimize

SEEDED = SamplingParams(seed=3)
IDS = torch.randint(0, 90, (2, 30), generator=torch.Generator().manual_seed(1))


def models(family: str, dtype: torch.dtype = torch.float32) -> tuple[Decoder, Decoder]:
    """A random model, and the same for generation."""
    plain = random_decoder(replace(FAMILIES[family], max_seq_len=96)).to(dtype).eval()
    rearranged = copy.deepcopy(plain)
    optimize(rearranged)
    return plain, rearranged


def test_every_weight_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    pack = torch.ops.mkldnn._reorder_linear_weight

    def count(weight: torch.Tensor, rows: int) -> torch.Tensor:
        packed.append(weight.numel())
        return pack(weight, rows)

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", count)
    plain, _ = models("llama")
    assert sum(packed) == sum(one.weight.numel() for one in plain.modules() if isinstance(one, torch.nn.Linear))


@pytest.mark.parametrize("family", list(FAMILIES))
def test_logits_and_tokens_stay_the_same(family: str) -> None:
    plain, rearranged = models(family)
    with torch.no_grad():
        torch.testing.assert_close(rearranged(IDS), plain(IDS), rtol=1e-4, atol=1e-4)
    tokens = [list(generate_tokens(model, IDS[0].tolist(), 40, SEEDED, frozenset())) for model in (plain, rearranged)]
    assert tokens[0] == tokens[1]
    prompts = [IDS[0].tolist(), IDS[1, :11].tolist()]
    batches = [generate_batch(model, prompts, [40, 40], frozenset(), lambda: None, SEEDED) for model in models(family)]
    assert batches[0] == batches[1]
    assert batches[0][0].tokens == tokens[0]
    assert rearranged.count_parameters() == plain.count_parameters()


@pytest.mark.parametrize("family", ["qwen2", "gemma 3"])
def test_bf16_logits_differ_by_rounding_only(family: str) -> None:
    plain, rearranged = models(family, torch.bfloat16)
    with torch.no_grad():
        expected, actual = plain(IDS).float(), rearranged(IDS).float()
    assert float((actual - expected).norm() / expected.norm()) < 0.02
    assert rearranged.count_parameters() == plain.count_parameters()
