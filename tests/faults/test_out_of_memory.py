"""A step that runs out of memory is repeated with less memory and the same result."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.engines import FakeBackgroundCompiler
from tests.core.trainer_process import ROOT, environment, text_file
from tests.core.training import (
    OUT_OF_MEMORY,
    build_trainer,
    copy_weights,
    limit_batch_size,
    losses,
    oom_config,
    pairs_file,
    recovery_actions,
    tiny_config,
)
from trainer_core import protocol
from trainer_core.data.batch import Batch
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.train import oom
from trainer_core.train.engine import compilation, engine
from trainer_core.train.engine.engine import Engine
from trainer_core.train.oom import is_out_of_memory


@pytest.mark.parametrize("required", ["checkpointing", "chunked_loss"])
def test_a_run_that_fits_only_after_all_recovery_actions_starts(
    required: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with `compile="on"`, whose compiled code fails in the first step."""
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(engine, "BackgroundCompiler", FakeBackgroundCompiler)
    compute = Engine.eager_loss

    def eager(self: Engine, batch: Batch, *grad_scale: Any) -> torch.Tensor:
        checkpointing = self.model.model.checkpointing[0] > 0
        fits = checkpointing if required == "checkpointing" else bool(self.smaller_chunk)
        if not fits or batch.input_ids.shape[0] > 1:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return compute(self, batch, *grad_scale)

    def too_large(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    monkeypatch.setattr(Engine, "eager_loss", eager)
    monkeypatch.setattr(compilation, "compile_whole", lambda *_: too_large)
    data = text_file(tmp_path)
    trainer, sink = build_trainer(
        tmp_path, tiny_config(tmp_path, data, compile="on", cpu_threads=2, batch_size=4, eval_steps=0)
    )
    trainer.set_up()
    trainer.step()
    trainer.train_data.close(), trainer.validation_data.close()
    expected = ["halved", "halved", "checkpointing", *([] if required == "checkpointing" else ["chunked_loss"])]
    assert [event.action for event in sink.events_of(protocol.OomRecovery)] == expected


def test_a_micro_batch_that_does_not_fit_is_halved_with_the_same_loss(tmp_path: Path) -> None:
    reference, reference_sink = build_trainer(tmp_path, oom_config(tmp_path), "reference")
    reference.run()
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path), "recovered")
    limit_batch_size(trainer, 4)
    trainer.run()
    assert recovery_actions(sink) == [("halved", "forward", 6, 2), ("halved", "forward", 3, 4)]
    assert losses(sink) == pytest.approx(losses(reference_sink), rel=1e-5)
    assert trainer.state.counters.samples == reference.state.counters.samples
    for actual, expected in zip(copy_weights(trainer), copy_weights(reference), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=2e-5)


def test_the_event_reports_the_failed_allocation(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, max_steps=1))
    limit_batch_size(trainer, 6)
    trainer.run()
    (event,) = sink.events_of(protocol.OomRecovery)
    assert event.requested == int(2.5 * 2**30)
    assert event.total is not None
    assert event.free is not None
    assert 0 < event.free <= event.total


def test_the_event_reports_free_memory_at_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, max_steps=1))
    limit_batch_size(trainer, 6)
    released: list[bool] = []
    release_memory = oom.release_memory
    monkeypatch.setattr(oom, "_free", lambda device: 2**40 if released else 2**20)
    monkeypatch.setattr(oom, "release_memory", lambda device: (released.append(True), release_memory(device))[1])
    trainer.run()
    (event,) = sink.events_of(protocol.OomRecovery)
    assert event.free == 2**20


def test_halved_micro_batches_keep_the_token_weighted_loss(tmp_path: Path) -> None:
    small = {"eval_steps": 0, "cpu_threads": 1, "perf_steps": 0, "compile": "off", "eval_examples": 0}
    config = tiny_config(tmp_path, pairs_file(tmp_path), gradient_accumulation_steps=2, **small)
    reference, reference_sink = build_trainer(tmp_path, config, "reference")
    reference.run()
    trainer, sink = build_trainer(tmp_path, config, "recovered")
    limit_batch_size(trainer, 5)
    trainer.run()
    assert recovery_actions(sink)[-1] == ("halved", "forward", 3, 8)
    assert losses(sink) == pytest.approx(losses(reference_sink), rel=1e-5)


class OutOfMemoryAt(TorchDispatchMode):
    """Raises one out-of-memory error, at operation `number` after entering the mode."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.remaining, self.failed = number, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.remaining -= 1
        if self.remaining == 0:
            self.failed = True
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return func(*args, **(kwargs or {}))


def test_out_of_memory_at_random_operations_skips_and_repeats_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 50 steps fails once, at any operation of its forward or backward pass."""
    monkeypatch.setattr(oom, "_REVERT_AFTER_STEPS", 1)
    monkeypatch.setattr(oom, "_MAX_REVERT_AFTER_STEPS", 1)
    steps = {"max_steps": 52, "batch_size": 4, "max_seq_len": 16, "gradient_accumulation_steps": 2}
    reference, reference_sink = build_trainer(tmp_path, oom_config(tmp_path, **steps), "reference")
    reference.run()
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, **steps), "recovered")
    trainer.oom._revert_after_steps = 1
    trainer.set_up()
    passes, generator, failed_steps = trainer._passes, random.Random(5), set()
    phases: list[str] = []

    def failing(batches: Any, tokens: int, noisy: bool) -> torch.Tensor:
        step = trainer.state.counters.step
        if step >= 50 or step in failed_steps:
            return passes(batches, tokens, noisy)
        failed_steps.add(step)
        with OutOfMemoryAt(generator.randint(1, 300)) as mode:
            try:
                return passes(batches, tokens, noisy)
            finally:
                assert mode.failed
                phases.append(trainer.oom.during)

    trainer._passes = failing  # type: ignore[method-assign]
    trainer.run()
    assert phases.count("forward") > 5
    assert phases.count("backward") > 5
    assert trainer.state.counters.position == reference.state.counters.position
    assert losses(sink) == pytest.approx(losses(reference_sink), rel=1e-4)


def test_recovery_halves_then_checkpoints_then_chunks_the_loss(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, batch_size=2, max_steps=2))
    trainer.set_up()
    loss = trainer.engine.loss
    reference, reference_sink = build_trainer(tmp_path, oom_config(tmp_path, batch_size=2, max_steps=2), "reference")
    reference.run()

    def limited(batch: Any, *grad_scale: Any) -> torch.Tensor:
        if not trainer.engine.smaller_chunk:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 96 bytes"
            )
        return loss(batch, *grad_scale)

    trainer.engine.loss = limited  # type: ignore[method-assign]
    trainer.run()
    assert [action for action, *_ in recovery_actions(sink)] == ["halved", "checkpointing", "chunked_loss"]
    assert losses(sink) == pytest.approx(losses(reference_sink), rel=1e-5)


def test_exhausted_memory_saves_the_last_step(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, oom_config(tmp_path, max_steps=9))
    limit_batch_size(trainer, 0, when=lambda: trainer.state.counters.step >= 3)
    with pytest.raises(TraindeckError) as error:
        trainer.run()
    assert error.value.code == "memory.exhausted"
    assert error.value.exit_code == ExitCode.OUT_OF_MEMORY
    checkpoint, _ = checkpoint_dir.latest_valid(trainer.run_dir.checkpoints)
    assert checkpoint is not None
    info = checkpoint_dir.read_info(checkpoint)
    assert info is not None
    assert (info.step, info.kind) == (3, "emergency")


def test_a_run_resumes_after_exhausted_memory(tmp_path: Path) -> None:
    reference, reference_sink = build_trainer(tmp_path, oom_config(tmp_path), "reference")
    reference.run()
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path))
    limit_batch_size(trainer, 0, when=lambda: trainer.state.counters.step >= 3)
    with pytest.raises(TraindeckError):
        trainer.run()
    checkpoint, _ = checkpoint_dir.latest_valid(trainer.run_dir.checkpoints)
    assert checkpoint is not None
    resumed, resumed_sink = build_trainer(tmp_path, oom_config(tmp_path))
    resumed.resume(checkpoint)
    resumed.run()
    assert losses(sink) + losses(resumed_sink) == pytest.approx(losses(reference_sink), rel=1e-5)


def test_the_last_action_is_reverted_after_good_steps(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, max_steps=12))
    trainer.oom._revert_after_steps = 4
    limit_batch_size(trainer, 6, when=lambda: trainer.state.counters.step < 3)
    trainer.run()
    assert [(event.step, event.action) for event in sink.events_of(protocol.OomRecovery)] == [
        (1, "halved"),
        (4, "grown"),
    ]
    assert trainer.oom.max_sequences == 12


def test_the_delay_doubles_with_each_revert(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, max_steps=14))
    trainer.oom._revert_after_steps = 3
    limit_batch_size(trainer, 6)
    trainer.run()
    actions = [(event.step, event.action) for event in sink.events_of(protocol.OomRecovery)]
    assert actions == [(1, "halved"), (3, "grown"), (4, "halved"), (9, "grown"), (10, "halved")]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recovery_actions_are_restored_by_a_resume_bit_for_bit(tmp_path: Path, dropout: float) -> None:
    config = oom_config(tmp_path, max_steps=8, dropout=dropout)
    uninterrupted, uninterrupted_sink = build_trainer(tmp_path, config, "uninterrupted")
    limit_batch_size(uninterrupted, 6, when=lambda: uninterrupted.state.counters.step >= 2)
    uninterrupted.run()
    stopped, stopped_sink = build_trainer(tmp_path, config, "recovered")
    limit_batch_size(stopped, 6, when=lambda: stopped.state.counters.step >= 2)
    step = stopped._step

    def stopping(window: Any) -> None:
        step(window)
        if stopped.state.counters.step == 4:
            stopped.context.request_stop()

    stopped._step = stopping  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        stopped.run()
    checkpoint, _ = checkpoint_dir.latest_valid(stopped.run_dir.checkpoints)
    assert checkpoint is not None
    resumed, resumed_sink = build_trainer(tmp_path, config, "recovered")
    resumed.resume(checkpoint)
    limit_batch_size(resumed, 6)
    resumed.run()
    assert recovery_actions(resumed_sink) == []
    assert losses(stopped_sink) + losses(resumed_sink) == losses(uninterrupted_sink)
    assert all(map(torch.equal, copy_weights(resumed), copy_weights(uninterrupted)))


def test_an_evaluation_that_does_not_fit_is_split_with_the_same_result(tmp_path: Path) -> None:
    config = oom_config(tmp_path, max_steps=3, eval_steps=3)
    reference, reference_sink = build_trainer(tmp_path, config, "reference")
    reference.run()
    trainer, sink = build_trainer(tmp_path, config, "recovered")
    limit_batch_size(trainer, 6, when=lambda: trainer.context._phase == "evaluating")
    trainer.run()
    assert recovery_actions(sink) == [("halved", "evaluation", 6, 2)]
    (actual,), (expected,) = sink.events_of(protocol.Eval), reference_sink.events_of(protocol.Eval)
    assert actual.loss == pytest.approx(expected.loss, rel=1e-6)
    assert actual.tokens == expected.tokens


def test_an_evaluation_maps_no_file_after_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A full address space has no room for a mapping; the batch of an evaluation cannot be made smaller for it.
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, max_steps=3, eval_steps=3))
    step = trainer._step

    def step_that_fills_memory(window: Any) -> None:
        step(window)
        monkeypatch.setattr("trainer_core.data.token_files.map_file", failing)

    def failing(*_: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    trainer._step = step_that_fills_memory  # type: ignore[method-assign]
    trainer.run()
    assert [event.step for event in sink.events_of(protocol.Eval)] == [3]


def test_a_failed_mapping_is_out_of_memory() -> None:
    assert is_out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not is_out_of_memory(OSError(errno.EIO, "Input/output error"))


def test_samples_that_do_not_fit_are_skipped_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, max_steps=2, sample_steps=1))

    def failing(*_: object) -> None:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    monkeypatch.setattr(trainer.sample_writer, "write_samples", failing)
    trainer.run()
    assert [(event.code, event.params["what"]) for event in sink.events_of(protocol.Warn)] == [
        ("memory.left_out", "sample-steps")
    ] * 2
    assert trainer.state.counters.step == 2


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_optimizer_memory_is_allocated_before_the_first_step(tmp_path: Path, optimizer: str) -> None:
    trainer, _ = build_trainer(tmp_path, oom_config(tmp_path, optimizer=optimizer))
    trainer.set_up()
    before = {id(value): value.numel() for state in trainer.state.optimizer.state.values() for value in state.values()}
    assert sum(before.values()) > trainer.model.count_parameters()
    trainer._step(trainer._next_window())
    after = {id(value) for state in trainer.state.optimizer.state.values() for value in state.values()}
    assert after == set(before)


def test_other_failures_are_not_out_of_memory(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path))
    trainer.set_up()

    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    trainer.engine.loss = failing  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="mat1"):
        trainer.run()
    assert recovery_actions(sink) == []


LIMITED_MEMORY = """
import json, sys, resource
from pathlib import Path
from tests.core.training import build_trainer, losses, tiny_config
from tests.core.trainer_process import text_file
from trainer_core import protocol

folder = Path(sys.argv[1])
wide = {"hidden_dim": 64, "max_seq_len": 512, "batch_size": 32, "max_steps": 3, "eval_steps": 0, "perf_steps": 0,
        "cpu_threads": 1, "compile": "off", "chunked_loss": "off", "eval_batches": 1}
trainer, sink = build_trainer(folder, tiny_config(folder, text_file(folder, 6000), **wide), "limited")
trainer.set_up()
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[2]) * 2**20,) * 2)
trainer.run()
print(json.dumps([event.action for event in sink.events_of(protocol.OomRecovery)]))
print(json.dumps(losses(sink)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS")
def test_a_failed_allocation_on_a_cpu_is_recovered(tmp_path: Path) -> None:
    outputs = []
    for free_mib in (8000, 150):
        process = subprocess.run(
            [sys.executable, "-c", LIMITED_MEMORY, str(tmp_path), str(free_mib)],
            capture_output=True, env=environment(tmp_path), cwd=ROOT, text=True, timeout=120,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr
        outputs.append([json.loads(line) for line in process.stdout.splitlines()])
    (unlimited_actions, expected), (limited_actions, actual) = outputs
    assert unlimited_actions == []
    assert limited_actions
    assert set(limited_actions) == {"halved"}
    assert actual == pytest.approx(expected, rel=1e-5)
