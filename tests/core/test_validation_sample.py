"""The validation sample is fixed, and its loss is weighted by tokens."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tests.core.trainer_process import text_file
from tests.core.training import build_trainer, pairs_file, tiny_config
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.data.loader import SequenceDataset
from trainer_core.data.order import fixed_sample
from trainer_core.train.evaluate import validation_sample
from trainer_core.train.loss import batch_loss
from trainer_core.train.trainer import Trainer


def two_sources(folder: Path) -> Path:
    """A text that a small model learns in a few steps, and one of random digits."""
    (folder / "data").mkdir()
    generator = random.Random(5)
    (folder / "data" / "a.txt").write_text("a b c d e f g h\n" * 6000, encoding="utf-8")
    digits = "".join(generator.choice("0123456789") for _ in range(60_000))
    (folder / "data" / "b.txt").write_text(digits, encoding="utf-8")
    return folder / "data"


def evaluated_sequences(trainer: Trainer) -> list[int]:
    """The numbers of the sequences that an evaluation reads."""
    numbers: list[int] = []
    evaluation = trainer.evaluation_pass()
    loss_of = evaluation._loss_of

    def record(batch: Batch | None) -> torch.Tensor:
        numbers.extend(batch.sample_ids if batch else ())
        return loss_of(batch)

    evaluation._loss_of = record
    evaluation.run(trainer.context, trainer.context.poll)
    return numbers


def test_a_short_evaluation_covers_both_sources(tmp_path: Path) -> None:
    data = two_sources(tmp_path)
    config = tiny_config(tmp_path, data, max_steps=80, learning_rate=0.02, eval_steps=0, eval_batches=4)
    trainer, sink = build_trainer(tmp_path, config, "few")
    trainer.run()
    full, full_sink = build_trainer(tmp_path, msgspec.structs.replace(config, eval_batches=0), "all")
    full.run()
    sampled, complete = sink.events_of(protocol.Eval)[-1], full_sink.events_of(protocol.Eval)[-1]
    assert sampled.tokens < 0.5 * complete.tokens
    assert sampled.loss == pytest.approx(complete.loss, rel=0.25)


def test_every_evaluation_reads_the_same_sequences(tmp_path: Path) -> None:
    trainer, _ = build_trainer(
        tmp_path, tiny_config(tmp_path, text_file(tmp_path, 4000), validation_fraction=0.3, max_seq_len=16)
    )
    trainer.set_up()
    first = evaluated_sequences(trainer)
    assert len(set(first)) == len(first) == 24 < trainer.validation_data.samples
    assert evaluated_sequences(trainer) == first
    assert max(first) > 0.8 * trainer.validation_data.samples
    assert min(first) < 0.2 * trainer.validation_data.samples


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 5}, {"batch_size": 40}, {"seed": 7}, {"gradient_accumulation_steps": 3}, {"eval_batches": 9}],
)
def test_a_resume_keeps_the_validation_sample(tmp_path: Path, change: dict[str, int]) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path, 4000), validation_fraction=0.3, save_steps=2, max_steps=2)
    trainer, _ = build_trainer(tmp_path, config)
    trainer.run()
    trainer.set_up()
    before, expected = (
        evaluated_sequences(trainer),
        trainer.evaluation_pass().run(trainer.context, trainer.context.poll),
    )
    resumed, sink = build_trainer(tmp_path, msgspec.structs.replace(config, **change), "resumed")
    resumed.resume(trainer.run_dir.checkpoints / "step-00000002")
    resumed.set_up()
    assert evaluated_sequences(resumed) == before
    actual = resumed.evaluation_pass().run(resumed.context, resumed.context.poll)
    assert (actual.tokens, actual.loss) == (expected.tokens, pytest.approx(expected.loss, rel=1e-6))
    codes = [event.code for event in sink.events_of(protocol.Warn)]
    assert ("resume.eval_sample_kept" in codes) == ("eval_batches" in change)
    resumed.save("final")
    third, _ = build_trainer(tmp_path, config, "third")
    third.resume(resumed.run_dir.checkpoints / "step-00000002")
    third.set_up()
    assert evaluated_sequences(third) == before


def test_with_zero_eval_batches_all_validation_data_is_evaluated(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path, 1000), eval_batches=0, max_steps=1, batch_size=4)
    trainer, _ = build_trainer(tmp_path, config)
    trainer.run()
    resumed, _ = build_trainer(tmp_path, msgspec.structs.replace(config, batch_size=7), "resumed")
    resumed.resume(trainer.run_dir.checkpoints / "step-00000001")
    resumed.set_up()
    assert evaluated_sequences(resumed) == list(range(resumed.validation_data.samples))


@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_the_loss_is_the_mean_over_tokens(tmp_path: Path, batch_size: int) -> None:
    config = tiny_config(tmp_path, pairs_file(tmp_path), eval_batches=0, batch_size=batch_size, validation_fraction=0.3)
    trainer, _ = build_trainer(tmp_path, config)
    trainer.set_up()
    samples = SequenceDataset(trainer.prepared, "validation")
    summed = tokens = 0.0
    with torch.no_grad():
        for number in range(len(samples)):
            batch = samples.collate([samples[number]])
            summed += float(batch_loss(trainer.model, batch))
            tokens += batch.loss_tokens
    evaluation = trainer.evaluation_pass().run(trainer.context, trainer.context.poll)
    assert evaluation.tokens == tokens
    assert evaluation.loss == pytest.approx(summed / tokens, rel=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_divide_the_sample(tmp_path: Path, world: int) -> None:
    trainer, _ = build_trainer(tmp_path, tiny_config(tmp_path, text_file(tmp_path, 1000), batch_size=4))
    sample = validation_sample(trainer.validation_data.samples, 10)
    numbers = [
        number
        for rank in range(world)
        for batch in trainer.validation_data.iterate_samples(sample, rank, world)
        for number in batch.sample_ids
    ]
    assert sorted(numbers) == sample.tolist()


def test_a_larger_sample_contains_the_smaller_one() -> None:
    small, large = fixed_sample(1000, 20, 1), fixed_sample(1000, 200, 1)
    assert len(small) == 20
    assert set(small.tolist()) < set(large.tolist())
    assert fixed_sample(7, 20, 1).tolist() == list(range(7))
    assert fixed_sample(0, 20, 1).tolist() == []


def test_a_sample_is_spread_evenly() -> None:
    counts, _ = np.histogram(validation_sample(1_000_000, 10_000), bins=10, range=(0, 1_000_000))
    assert counts.min() > 850
    assert counts.max() < 1150


def test_the_sample_has_eval_batches_times_batch_size_sequences(tmp_path: Path) -> None:
    config: Config = tiny_config(tmp_path, text_file(tmp_path, 4000), eval_batches=3, batch_size=7)
    trainer, _ = build_trainer(tmp_path, config)
    assert trainer.state.run_fingerprint["eval_sequences"] == 21
