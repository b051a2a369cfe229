"""The validation sample is fixed, and its loss is weighted by tokens."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tests.core.test_loop import config, pairs_file, trainer
from tests.core.trainer import text_file
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.loader import Batch, SequenceDataset
from trainer_core.data.order import fixed_sample
from trainer_core.train.evaluate import validation_sample
from trainer_core.train.loss import batch_loss
from trainer_core.train.trainer import Trainer


def two_sources(folder: Path) -> Path:
    """A text that a small model learns in a few steps, followed by one that nobody can learn."""
    (folder / "data").mkdir()
    chance = random.Random(5)
    (folder / "data" / "a.txt").write_text("a b c d e f g h\n" * 6000, encoding="utf-8")
    digits = "".join(chance.choice("0123456789") for _ in range(60_000))
    (folder / "data" / "b.txt").write_text(digits, encoding="utf-8")
    return folder / "data"


def evaluated(made: Trainer) -> list[int]:
    """The numbers of the sequences that an evaluation reads."""
    found: list[int] = []
    held_out = made.evaluation_pass()
    measure = held_out._loss_of

    def noted(batch: Batch | None) -> torch.Tensor:
        found.extend(batch.sample_ids if batch else ())
        return measure(batch)

    held_out._loss_of = noted
    held_out.run(made.context)
    return found


def test_a_short_evaluation_covers_both_sources(tmp_path: Path) -> None:
    data = two_sources(tmp_path)
    few = config(tmp_path, data, max_steps=80, learning_rate=0.02, eval_steps=0, eval_batches=4)
    made, kept = trainer(tmp_path, few, "few")
    made.run()
    everything, kept_of_all = trainer(tmp_path, msgspec.structs.replace(few, eval_batches=0), "all")
    everything.run()
    sampled, whole = kept.of(protocol.Eval)[-1], kept_of_all.of(protocol.Eval)[-1]
    assert sampled.tokens < 0.5 * whole.tokens
    assert sampled.loss == pytest.approx(whole.loss, rel=0.25)


def test_every_evaluation_reads_the_same_sequences(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, config(tmp_path, text_file(tmp_path, 4000), validation_fraction=0.3, max_seq_len=16))
    made.set_up()
    first = evaluated(made)
    assert len(set(first)) == len(first) == 24 < made.validation_data.samples
    assert evaluated(made) == first
    assert max(first) > 0.8 * made.validation_data.samples
    assert min(first) < 0.2 * made.validation_data.samples


@pytest.mark.parametrize(
    "change",
    [{"batch_size": 5}, {"batch_size": 40}, {"seed": 7}, {"gradient_accumulation_steps": 3}, {"eval_batches": 9}],
)
def test_a_resume_keeps_the_validation_sample(tmp_path: Path, change: dict[str, int]) -> None:
    wanted = config(tmp_path, text_file(tmp_path, 4000), validation_fraction=0.3, save_steps=2, max_steps=2)
    made, _ = trainer(tmp_path, wanted)
    made.run()
    made.set_up()
    before, loss = evaluated(made), made.evaluation_pass().run(made.context)
    again, kept = trainer(tmp_path, msgspec.structs.replace(wanted, **change), "again")
    again.resume(made.run_dir.checkpoints / "step-00000002")
    again.set_up()
    assert evaluated(again) == before
    measured = again.evaluation_pass().run(again.context)
    assert (measured.tokens, measured.loss) == (loss.tokens, pytest.approx(loss.loss, rel=1e-6))
    codes = [event.code for event in kept.of(protocol.Warn)]
    assert ("resume.eval_sample_kept" in codes) == ("eval_batches" in change)
    again.save("final")
    third, _ = trainer(tmp_path, wanted, "third")
    third.resume(again.run_dir.checkpoints / "step-00000002")
    third.set_up()
    assert evaluated(third) == before


def test_zero_eval_batches_evaluates_everything(tmp_path: Path) -> None:
    wanted = config(tmp_path, text_file(tmp_path, 1000), eval_batches=0, max_steps=1, batch_size=4)
    made, _ = trainer(tmp_path, wanted)
    made.run()
    again, _ = trainer(tmp_path, msgspec.structs.replace(wanted, batch_size=7), "again")
    again.resume(made.run_dir.checkpoints / "step-00000001")
    again.set_up()
    assert evaluated(again) == list(range(again.validation_data.samples))


@pytest.mark.parametrize("batch_size", [1, 5, 12])
def test_the_loss_is_the_mean_over_tokens(tmp_path: Path, batch_size: int) -> None:
    wanted = config(tmp_path, pairs_file(tmp_path), eval_batches=0, batch_size=batch_size, validation_fraction=0.3)
    made, _ = trainer(tmp_path, wanted)
    made.set_up()
    samples = SequenceDataset(made.prepared, "validation")
    summed = tokens = 0.0
    with torch.no_grad():
        for number in range(len(samples)):
            batch = samples.collate([samples[number]])
            summed += float(batch_loss(made.model, batch))
            tokens += batch.loss_tokens
    evaluation = made.evaluation_pass().run(made.context)
    assert evaluation.tokens == tokens
    assert evaluation.loss == pytest.approx(summed / tokens, rel=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_divide_the_sample(tmp_path: Path, world: int) -> None:
    made, _ = trainer(tmp_path, config(tmp_path, text_file(tmp_path, 1000), batch_size=4))
    sample = validation_sample(made.validation_data.samples, 10)
    found = [
        number
        for rank in range(world)
        for batch in made.validation_data.iterate_samples(sample, rank, world)
        for number in batch.sample_ids
    ]
    assert sorted(found) == sample.tolist()


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
    wanted: Config = config(tmp_path, text_file(tmp_path, 4000), eval_batches=3, batch_size=7)
    made, _ = trainer(tmp_path, wanted)
    assert made.state.run_fingerprint["eval_sequences"] == 21
