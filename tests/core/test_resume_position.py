"""A resume with another batch size or accumulation continues after the last sample."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.core.test_loop import config, trainer
from tests.core.trainer import TINY, run, text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.train.device_transfer import AccumulationWindow
from trainer_core.train.schedule import Schedule
from trainer_core.train.trainer import Trainer


def settings(folder: Path, batch_size: int, accumulation: int = 1, **values: object) -> Config:
    few = {"max_seq_len": 16, "eval_steps": 0, "cpu_threads": 1, "max_steps": 0, "max_epochs": 1, "save_steps": 0}
    sizes = {"batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    return config(folder, text_file(folder), **{**few, **sizes, "log_steps": 1, **values})


def recorded(made: Trainer) -> list[int]:
    """The numbers of the samples that each later step uses."""
    numbers: list[int] = []
    step = made._step

    def recording(window: AccumulationWindow) -> None:
        numbers.extend(number for batch in window.whole for number in batch.sample_ids)
        step(window)

    made._step = recording  # type: ignore[method-assign]
    return numbers


def train_until(made: Trainer, last: int) -> None:
    """Train, and stop after step `last` as a Stop does; 0: to the end."""

    def poll() -> None:
        if made.state.counters.step == last > 0:
            raise StopRequested

    made.context.poll = poll  # type: ignore[method-assign]
    if last:
        with pytest.raises(StopRequested):
            made.run()
    else:
        made.run()


def continued(folder: Path, wanted: Config, stop_at: int = 0) -> tuple[Trainer, list[int], RecordingSink]:
    """The run of `folder` resumed from its newest checkpoint, with the samples it used."""
    made, kept = trainer(folder, wanted)
    found, _ = checkpoint_dir.latest_valid(made.run_dir.checkpoints)
    assert found is not None
    made.resume(found)
    numbers = recorded(made)
    train_until(made, stop_at)
    return made, numbers, kept


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
    made, _ = trainer(tmp_path, settings(tmp_path, *sizes[0], max_epochs=epochs))
    samples = made.train_data.samples
    expected = [
        i for epoch in range(epochs) for batch in made.train_data.iterate_epoch(epoch) for i in batch.sample_ids
    ]
    numbers = recorded(made)
    stops = [3, 5, 0] if len(sizes) == 3 else [3, 0]
    train_until(made, stops[0])
    for size, stop in zip(sizes[1:], stops[1:], strict=True):
        made, more, _ = continued(tmp_path, settings(tmp_path, *size, max_epochs=epochs), stop)
        numbers += more
    assert len(expected) == epochs * samples
    assert sorted(expected[:samples]) == list(range(samples))
    assert numbers == expected
    assert made.state.counters.position == epochs * samples
    assert made.state.counters.step == made.total_steps


def test_remaining_steps_follow_from_the_new_batch_size(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, settings(tmp_path, 16))
    samples = made.train_data.samples
    assert made.total_steps == -(-samples // 16)
    train_until(made, 3)
    made, _, kept = continued(tmp_path, settings(tmp_path, 64))
    left = -(-(samples - 3 * 16) // 64)
    assert made.total_steps == made.state.counters.step == 3 + left
    assert [event.step for event in kept.of(protocol.Step)] == list(range(4, 4 + left))
    assert kept.of(protocol.Step)[-1].epoch == 1


def test_max_steps_is_kept_when_the_batch_size_changes(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, settings(tmp_path, 4, max_steps=10, max_epochs=1))
    order = [number for batch in made.train_data.iterate_epoch(0) for number in batch.sample_ids]
    numbers = recorded(made)
    train_until(made, 4)
    made, more, _ = continued(tmp_path, settings(tmp_path, 8, max_steps=10))
    assert made.state.counters.step == 10
    assert numbers + more == order[: 4 * 4 + 6 * 8]


@pytest.mark.parametrize("stop_at", [1, 5])  # in the warmup, and behind it
def test_the_learning_rate_continues_without_a_jump(tmp_path: Path, stop_at: int) -> None:
    more = {"warmup_steps": 3, "learning_rate": 1e-3, "lr_schedule": "linear", "min_learning_rate_ratio": 0.0}
    made, kept = trainer(tmp_path, settings(tmp_path, 8, **more))
    train_until(made, stop_at)
    resumed, _, kept_again = continued(tmp_path, settings(tmp_path, 16, **more))
    total = resumed.train_data.samples
    steps = kept.of(protocol.Step) + kept_again.of(protocol.Step)
    used = [*itertools.accumulate([8] * stop_at + [16] * len(kept_again.of(protocol.Step)))]
    for event, done in zip(steps, used, strict=True):
        done = min(done, total)
        expected = 1e-3 * done / 24 if done <= 24 else 1e-3 * (total - done) / (total - 24)
        assert event.learning_rate == pytest.approx(expected, rel=1e-5), event.step


def test_a_warmup_may_be_longer_than_an_epoch() -> None:
    wanted = resolve([ConfigLayer("here", {"batch_size": 8, "warmup_steps": 5, "max_epochs": 9, "learning_rate": 1.0})])
    schedule = Schedule(wanted, samples_per_epoch=10)  # two steps an epoch, of 8 and of 2
    positions = [8, 10, 18, 20, 28, 30, 38]
    rates = [schedule.learning_rate(step, position) for step, position in enumerate(positions, 1)]
    assert rates.index(1.0) + 1 == 5
    assert rates[:5] == sorted(rates[:5])


# --- as commands ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of eight steps, two thirds of an epoch."""
    home = tmp_path_factory.mktemp("home")
    ended = run(home, "train", *TINY, "--max-steps", "8", "--run-dir", "run", "--data", str(text_file(home, 40)))
    assert ended.code == 0, ended.stderr
    return home


def contents(folder: Path) -> dict[str, bytes]:
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
    before = contents(home)
    refused = run(home, "train", "--resume", str(home / source), *flags)
    assert (refused.code, refused.error.code) == (2, code)
    assert contents(home) == before


def test_a_resume_with_another_sequence_length_is_rejected(home: Path) -> None:
    kept = contents(home / "run" / "checkpoints")
    refused = run(home, "train", "--resume", "run", "--max-steps", "12", "--max-seq-len", "16")
    assert (refused.code, refused.error.code) == (2, "resume.order_changed")
    assert refused.error.params == {"setting": "max_seq_len", "before": "32", "after": "16"}
    assert contents(home / "run" / "checkpoints") == kept
