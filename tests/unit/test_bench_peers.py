"""Peer trainers of bench/: model sizes, learning rate schedule, evaluation windows, timing of events."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from bench import time_to_loss, training
from bench.peers import plain_gpt
from bench.processes import Events
from bench.training import CONFIGS
from trainer_core.config import Config
from trainer_core.models.decoder import Decoder
from trainer_core.train.model_shape import model_config_of


def decoder(config: Config) -> Decoder:
    return Decoder(model_config_of(config, config.vocab_size))


def count_parameters(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_plain_gpt_has_the_published_size_of_gpt_2() -> None:
    with torch.device("meta"):
        model = plain_gpt.Gpt(replace(CONFIGS["gpt2_124m"], vocab_size=50257))
    assert count_parameters(model) == 124_439_808


@pytest.mark.parametrize("name", ["small", "quickstart", "gpt2_124m", "1b"])
def test_the_llama_of_the_hugging_face_trainer_has_as_many_parameters_as_the_decoder(name: str) -> None:
    pytest.importorskip("transformers")
    from bench.peers import hf_trainer

    with torch.device("meta"):
        llama = hf_trainer.build_llama(CONFIGS[name])
        assert llama.num_parameters() == decoder(CONFIGS[name]).count_parameters()


def test_plain_gpt_and_the_decoder_differ_by_less_than_a_percent_in_size() -> None:
    config = CONFIGS["gpt2_124m"]
    with torch.device("meta"):
        expected = decoder(config).count_parameters()
        assert count_parameters(plain_gpt.Gpt(config)) == pytest.approx(expected, rel=0.01)


def test_attention_of_plain_gpt_is_causal() -> None:
    torch.manual_seed(0)
    model = plain_gpt.Gpt(CONFIGS["tiny"])
    ids = torch.randint(0, 512, (1, 8))
    labels = torch.full_like(ids, -100)
    labels[0, 3] = 5
    changed = ids.clone()
    changed[0, 4:] = (changed[0, 4:] + 1) % 512
    assert torch.equal(model(ids, labels), model(changed, labels))


def test_evaluation_windows_contain_every_token_but_the_first_once() -> None:
    config = replace(CONFIGS["tiny"], max_seq_len=8, batch_size=2)
    batches = list(plain_gpt.eval_batches(torch.arange(23), config))
    labels = [label for _, labels in batches for label in labels.flatten().tolist()]
    assert [label for label in labels if label != -100] == list(range(1, 23))
    inputs = [token for inputs, _ in batches for token in inputs.flatten().tolist()]
    assert inputs[:22] == list(range(22))


def test_the_learning_rate_of_a_peer_warms_up_and_decays() -> None:
    config = Config(warmup_steps=10, max_steps=100, learning_rate=1.0, min_learning_rate_ratio=0.1)
    rates = [plain_gpt.learning_rate(step, config) for step in range(100)]
    assert max(rates) == pytest.approx(1.0) == rates[10]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert plain_gpt.learning_rate(100, config) == pytest.approx(0.1)


def test_step_time_is_the_wall_time_between_events_after_the_warmup() -> None:
    steps = [{"type": "step", "step": step, "t": 0.01 * step} for step in range(20, 101, 10)]
    slow_start = [{"type": "step", "step": 10, "t": -5.0}]
    assert training.step_ms(Events(slow_start + steps), warmup_steps=20) == pytest.approx(10.0)


def test_a_loss_is_reached_at_the_first_evaluation_at_or_below_it() -> None:
    losses = enumerate([5.0, 4.0, None, 2.9, 2.0])
    events = Events({"type": "eval", "t": 110.0 + n, "seconds": 0.5, "step": n, "loss": loss} for n, loss in losses)
    found = time_to_loss.find_goal(events, 100.0, 3.0)
    assert found == {"seconds": 13.0, "without_evaluations": 11.0, "step": 3, "loss": 2.9}
    assert time_to_loss.find_goal(events, 100.0, 1.0) is None


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, "0"), ("2", "2"), ("3,1", "3"), ("GPU-1a0b, GPU-2a0b", "GPU-1a0b"), ("-1", "-1")]
)
def test_training_processes_use_the_first_visible_gpu_only(
    visible: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Hugging Face Trainer uses all visible GPUs."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert training.environment(CONFIGS["tiny"])["CUDA_VISIBLE_DEVICES"] == expected
