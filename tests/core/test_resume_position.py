"""A resume with another batch size or accumulation continues after the last sample."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, run, text_file
from tests.core.training import build_trainer, first_epoch, record_samples, tiny_config
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.train.schedule import Schedule
from trainer_core.train.trainer import Trainer


def settings(folder: Path, batch_size: int, accumulation: int = 1, **values: object) -> Config:
    small = {"max_seq_len": 16, "eval_steps": 0, "cpu_threads": 1, "max_steps": 0, "max_epochs": 1, "save_steps": 0}
    sizes = {"batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    return tiny_config(folder, text_file(folder), **{**small, **sizes, "log_steps": 1, **values})


def flatten(steps: list[tuple[int, ...]]) -> list[int]:
    return list(itertools.chain.from_iterable(steps))


def train_until(trainer: Trainer, last: int) -> None:
    """Train and stop after step `last`; 0: train to the end."""

    def poll() -> None:
        if trainer.state.counters.step == last > 0:
            raise StopRequested

    trainer.context.poll = poll  # type: ignore[method-assign]
    if last:
        with pytest.raises(StopRequested):
            trainer.run()
    else:
        trainer.run()


def resume_and_train(folder: Path, config: Config, stop_at: int = 0) -> tuple[Trainer, list[int], RecordingSink]:
    """The run of `folder` resumed from its newest checkpoint, with the samples it used."""
    trainer, sink = build_trainer(folder, config)
    checkpoint, _ = checkpoint_dir.latest_valid(trainer.run_dir.checkpoints)
    assert checkpoint is not None
    trainer.resume(checkpoint)
    samples_used = record_samples(trainer)
    train_until(trainer, stop_at)
    return trainer, flatten(samples_used), sink


@pytest.mark.parametrize(
    ("sizes", "epochs"),
    [
        ([(16, 1), (64, 1)], 1),
        ([(64, 1), (16, 1)], 1),
        ([(16, 1), (16, 4)], 1),
        ([(16, 4), (16, 1)], 1),
        ([(16, 1), (24, 2), (7, 1)], 1),
        ([(48, 1), (20, 3), (64, 1)], 2),
    ],
)
def test_every_sample_is_used_once_across_batch_size_changes(
    tmp_path: Path, sizes: list[tuple[int, int]], epochs: int
) -> None:
    trainer, _ = build_trainer(tmp_path, settings(tmp_path, *sizes[0], max_epochs=epochs))
    samples = trainer.train_data.samples
    expected = [
        i for epoch in range(epochs) for batch in trainer.train_data.iterate_epoch(epoch) for i in batch.sample_ids
    ]
    first_samples = record_samples(trainer)
    stops = [3, 5, 0] if len(sizes) == 3 else [3, 0]
    train_until(trainer, stops[0])
    samples_used = flatten(first_samples)
    for size, stop in zip(sizes[1:], stops[1:], strict=True):
        trainer, resumed_samples, _ = resume_and_train(tmp_path, settings(tmp_path, *size, max_epochs=epochs), stop)
        samples_used += resumed_samples
    assert len(expected) == epochs * samples
    assert sorted(expected[:samples]) == list(range(samples))
    assert samples_used == expected
    assert trainer.state.counters.position == epochs * samples
    assert trainer.state.counters.step == trainer.total_steps


def test_remaining_steps_follow_from_the_new_batch_size(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, settings(tmp_path, 16))
    samples = trainer.train_data.samples
    assert trainer.total_steps == -(-samples // 16)
    train_until(trainer, 3)
    trainer, _, sink = resume_and_train(tmp_path, settings(tmp_path, 64))
    left = -(-(samples - 3 * 16) // 64)
    assert trainer.total_steps == trainer.state.counters.step == 3 + left
    assert [event.step for event in sink.events_of(protocol.Step)] == list(range(4, 4 + left))
    assert sink.events_of(protocol.Step)[-1].epoch == 1


def test_max_steps_is_kept_when_the_batch_size_changes(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, settings(tmp_path, 4, max_steps=10, max_epochs=1))
    epoch_samples = flatten(first_epoch(trainer))
    samples_used = record_samples(trainer)
    train_until(trainer, 4)
    trainer, resumed_samples, _ = resume_and_train(tmp_path, settings(tmp_path, 8, max_steps=10))
    assert trainer.state.counters.step == 10
    assert flatten(samples_used) + resumed_samples == epoch_samples[: 4 * 4 + 6 * 8]


@pytest.mark.parametrize("stop_at", [1, 5])  # during and after the warmup
def test_the_learning_rate_continues_without_a_jump(tmp_path: Path, stop_at: int) -> None:
    schedule = {"warmup_steps": 3, "learning_rate": 1e-3, "lr_schedule": "linear", "min_learning_rate_ratio": 0.0}
    trainer, sink = build_trainer(tmp_path, settings(tmp_path, 8, **schedule))
    train_until(trainer, stop_at)
    resumed, _, resumed_sink = resume_and_train(tmp_path, settings(tmp_path, 16, **schedule))
    total = resumed.train_data.samples
    steps = sink.events_of(protocol.Step) + resumed_sink.events_of(protocol.Step)
    ends = itertools.accumulate([8] * stop_at + [16] * len(resumed_sink.events_of(protocol.Step)))
    for event, end in zip(steps, ends, strict=True):
        position = min(end, total)
        expected = 1e-3 * position / 24 if position <= 24 else 1e-3 * (total - position) / (total - 24)
        assert event.learning_rate == pytest.approx(expected, rel=1e-5), event.step


def test_a_warmup_may_be_longer_than_an_epoch() -> None:
    config = resolve([ConfigLayer("test", {"batch_size": 8, "warmup_steps": 5, "max_epochs": 9, "learning_rate": 1.0})])
    schedule = Schedule(config, samples_per_epoch=10)  # two steps per epoch: 8 and 2 samples
    positions = [8, 10, 18, 20, 28, 30, 38]
    rates = [schedule.learning_rate(step, position) for step, position in enumerate(positions, 1)]
    assert rates.index(1.0) + 1 == 5
    assert rates[:5] == sorted(rates[:5])


# --- as processes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of eight steps, two thirds of an epoch."""
    home = tmp_path_factory.mktemp("home")
    ended = run(home, "train", *TINY, "--max-steps", "8", "--run-dir", "run", "--data", str(text_file(home, 40)))
    assert ended.code == 0, ended.stderr
    return home


def file_contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("source", ["run", "run/checkpoints/step-00000008"])
@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--max-steps", "5"], "resume.past_max_steps"),
        (["--max-steps", "0", "--max-epochs", "1"], "resume.past_max_epochs"),
    ],
)
def test_a_resume_past_the_requested_length_is_rejected_without_changes(
    home: Path, flags: list[str], code: str, source: str
) -> None:
    before = file_contents(home)
    result = run(home, "train", "--resume", str(home / source), *flags)
    assert (result.code, result.error.code) == (2, code)
    assert file_contents(home) == before


def test_a_resume_with_another_sequence_length_is_rejected(home: Path) -> None:
    before = file_contents(home / "run" / "checkpoints")
    result = run(home, "train", "--resume", "run", "--max-steps", "12", "--max-seq-len", "16")
    assert (result.code, result.error.code) == (2, "resume.order_changed")
    assert result.error.params == {"setting": "max_seq_len", "before": "32", "after": "16"}
    assert file_contents(home / "run" / "checkpoints") == before
