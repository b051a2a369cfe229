"""Loss on neutral text beside the evaluations of a run with a base model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.core.test_lora_training import lora_config, save_base
from tests.core.trainer_process import text_file
from tests.core.training import build_trainer, copy_weights, losses, tiny_config
from trainer_core import protocol
from trainer_core.base_model.configure import apply_base_model
from trainer_core.config import Config
from trainer_core.progress import NullReporter
from trainer_core.train import neutral_loss

TEXTS = Path(neutral_loss.__file__).parent / "neutral_texts"


def base_config(folder: Path) -> Config:
    """Configuration of a LoRA run with dropout, whose base model is saved in `folder`."""
    if not (folder / "基础").exists():
        trainer, _ = build_trainer(folder, lora_config(folder), "base")
        save_base(trainer, folder / "基础")
        trainer.close()
    values = {"base_model": str(folder / "基础"), "eval_steps": 2, "eval_on_start": True, "lora_dropout": 0.1}
    return apply_base_model(lora_config(folder, **values), NullReporter())


def test_the_first_loss_is_that_of_the_base_model_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = base_config(tmp_path)
    trainer, sink = build_trainer(tmp_path, config)
    trainer.set_up()
    trainer.evaluate()
    (event,) = sink.events_of(protocol.Eval)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "基础", attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "基础")
    for language in neutral_loss.LANGUAGES:
        text = (TEXTS / f"{language}.txt").read_text(encoding="utf-8")
        ids, summed = tokenizer(text, add_special_tokens=False)["input_ids"], 0.0
        for begin in range(0, len(ids) - 1, config.max_seq_len):
            window = torch.tensor([ids[begin : begin + config.max_seq_len + 1]])
            with torch.no_grad():
                summed += reference(window, labels=window).loss.item() * (window.shape[1] - 1)
        expected = summed / (len(ids) - 1)
        assert getattr(event, f"neutral_loss_{language}") == pytest.approx(expected, rel=1e-4)


def test_it_does_not_change_training(tmp_path: Path) -> None:
    config = base_config(tmp_path)
    measured, events = build_trainer(tmp_path, config, "measured")
    measured.run()
    plain, other_events = build_trainer(tmp_path, config, "plain")
    plain.neutral_text = None
    plain.run()
    assert losses(events) == losses(other_events)
    assert all(map(torch.equal, copy_weights(measured), copy_weights(plain)))
    evals = events.events_of(protocol.Eval)
    assert [event.step for event in evals] == [0, 2, 4, 6]
    for language in neutral_loss.LANGUAGES:
        found = [getattr(event, f"neutral_loss_{language}") for event in evals]
        assert all(map(math.isfinite, found))
        assert len(set(found)) == len(found)


def test_a_run_without_a_base_model_has_none(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path), max_steps=2))
    trainer.run()
    (event,) = sink.events_of(protocol.Eval)
    assert event.neutral_loss_en is None
    assert event.neutral_loss_zh is None
