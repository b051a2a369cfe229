"""Peer trainers of bench/: model sizes, learning rate schedule, evaluation windows, timing of events."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from bench import runs, time_to_loss
from bench.peers import hf_trainer, plain_gpt, training
from trainer_core.models.decoder import Decoder, ModelConfig


def gpt(shape: runs.Shape, vocab_size: int | None = None) -> plain_gpt.Gpt:
    return plain_gpt.Gpt(
        plain_gpt.Shape(vocab_size or shape.vocab_size, shape.length, shape.layers, shape.heads, shape.width)
    )


def decoder(shape: runs.Shape) -> Decoder:
    return Decoder(
        ModelConfig(
            vocab_size=shape.vocab_size,
            hidden_dim=shape.width,
            n_layers=shape.layers,
            n_heads=shape.heads,
            n_kv_heads=shape.heads,
            mlp_dim=shape.mlp,
            max_seq_len=shape.length,
        )
    )


def test_plain_gpt_has_the_published_size_of_gpt_2() -> None:
    with torch.device("meta"):
        assert gpt(runs.SHAPES["gpt2_124m"], 50257).count_parameters() == 124_439_808


@pytest.mark.parametrize("name", ["small", "quickstart", "gpt2_124m", "1b"])
def test_the_llama_of_the_hugging_face_trainer_has_as_many_parameters_as_the_decoder(name: str) -> None:
    pytest.importorskip("transformers")
    shape = runs.SHAPES[name]
    with torch.device("meta"):
        llama = hf_trainer.llama(shape.vocab_size, shape.length, shape.layers, shape.heads, shape.width, shape.mlp)
        assert llama.num_parameters() == decoder(shape).count_parameters()


def test_plain_gpt_and_the_decoder_differ_by_less_than_a_percent_in_size() -> None:
    shape = runs.SHAPES["gpt2_124m"]
    with torch.device("meta"):
        assert gpt(shape).count_parameters() == pytest.approx(decoder(shape).count_parameters(), rel=0.01)


def test_attention_of_plain_gpt_is_causal() -> None:
    torch.manual_seed(0)
    model = gpt(runs.SHAPES["tiny"])
    ids = torch.randint(0, 512, (1, 8))
    labels = torch.full_like(ids, -100)
    labels[0, 3] = 5
    changed = ids.clone()
    changed[0, 4:] = (changed[0, 4:] + 1) % 512
    assert torch.equal(model(ids, labels), model(changed, labels))


def test_held_out_windows_contain_every_token_but_the_first_once() -> None:
    tokens = np.arange(23)
    labels_in_order = [label for _, labels in training.windows(tokens, 4, 2) for label in labels.flatten().tolist()]
    assert [label for label in labels_in_order if label != -100] == list(range(1, 23))


def test_the_learning_rate_of_a_peer_warms_up_and_decays() -> None:
    options = argparse.Namespace(warmup=10, steps=100, learning_rate=1.0, min_learning_rate=0.1)
    rates = [training.cosine(step, options) for step in range(100)]
    assert max(rates) == pytest.approx(1.0) == rates[10]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert training.cosine(100, options) == pytest.approx(0.1)


def test_step_time_is_the_wall_time_between_reports_after_the_warmup(tmp_path: Path) -> None:
    steps = [{"type": "step", "step": step, "t": 0.01 * step} for step in range(20, 101, 10)]
    slow_start = [{"type": "step", "step": 10, "t": -5.0}]
    assert runs.Trained(0.0, slow_start + steps).step_ms(warm=20) == pytest.approx(10.0)


def test_a_loss_is_reached_at_the_first_evaluation_at_or_below_it() -> None:
    losses = enumerate([5.0, 4.0, None, 2.9, 2.0])
    events = [{"type": "ready", "t": 102.0}]
    events += [{"type": "eval", "t": 110.0 + n, "seconds": 0.5, "step": n, "loss": loss} for n, loss in losses]
    reached = time_to_loss.reached(runs.Trained(100.0, events), 3.0)
    assert reached == {"seconds": 13.0, "without_evaluations": 11.0, "step": 3, "loss": 2.9}
    assert time_to_loss.reached(runs.Trained(100.0, events), 1.0) is None


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
    program = "import json, os; print(json.dumps({'type': 'done', 'visible': os.environ['CUDA_VISIBLE_DEVICES']}))"
    assert runs.train([sys.executable, "-c", program]).first("done")["visible"] == expected
