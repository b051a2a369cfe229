"""A step that runs out of memory is repeated with less memory and the same result."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.test_engine import NoCompiler
from tests.core.test_loop import config, losses, pairs_file, trainer
from tests.core.trainer import ROOT, environment, text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.models.decoder import call_layer
from trainer_core.progress import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.train import oom
from trainer_core.train.engine import compilation, engine
from trainer_core.train.engine.engine import Engine
from trainer_core.train.trainer import Trainer

MESSAGE = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.64 GiB."


def wanted(folder: Path, **values: object) -> Config:
    small = {"eval_steps": 0, "max_steps": 8, "cpu_threads": 1, "perf_steps": 0, "compile": "off"}
    return config(folder, text_file(folder), **{**small, **values})


def limit(made: Trainer, rows: int, when: Callable[[], bool] = lambda: True) -> None:
    """No micro-batch of more than so many sequences fits."""
    made.set_up()
    loss, eager = made.engine.loss, made.engine.eager_loss

    def limited(way: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def of(batch: Any, *grad_scale: Any) -> torch.Tensor:
            if batch.input_ids.shape[0] > rows and when():
                raise torch.OutOfMemoryError(MESSAGE)
            return way(batch, *grad_scale)

        return of

    made.engine.loss, made.engine.eager_loss = limited(loss), limited(eager)  # type: ignore[method-assign]


def moves(kept: RecordingSink) -> list[tuple[str, str, int, int]]:
    return [
        (event.action, event.during, event.batch_size, event.gradient_accumulation_steps)
        for event in kept.of(protocol.OomRecovery)
    ]


def weights(made: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in made.model.parameters()]


@pytest.mark.parametrize("needs", ["checkpointing", "smaller parts of the loss"])
def test_a_run_that_fits_only_with_every_action_starts(
    needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those moves are the first step's: what is built knows nothing of them."""
    monkeypatch.setattr(compilation, "unavailable_reason", lambda device: None)
    monkeypatch.setattr(engine, "BackgroundCompiler", NoCompiler)
    compute = Engine.eager_loss

    def eager(self: Engine, batch: Batch, *grad_scale: Any) -> torch.Tensor:
        less = self.model.model.layer_call is not call_layer if needs == "checkpointing" else bool(self.smaller_chunk)
        if not less or batch.input_ids.shape[0] > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return compute(self, batch, *grad_scale)

    def too_large(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Engine, "eager_loss", eager)
    monkeypatch.setattr(compilation, "compile_whole", lambda *_: too_large)
    data = text_file(tmp_path)
    made, kept = trainer(tmp_path, config(tmp_path, data, compile="on", cpu_threads=2, batch_size=4, eval_steps=0))
    made.set_up()
    made.step()
    made.train_data.close(), made.validation_data.close()
    wanted = ["halved", "halved", "checkpointing", *([] if needs == "checkpointing" else ["chunked_loss"])]
    assert [event.action for event in kept.of(protocol.OomRecovery)] == wanted


def test_a_micro_batch_that_does_not_fit_is_halved_with_the_same_loss(tmp_path: Path) -> None:
    plain, said = trainer(tmp_path, wanted(tmp_path), "plain")
    plain.run()
    made, kept = trainer(tmp_path, wanted(tmp_path), "made")
    limit(made, 4)
    made.run()
    assert moves(kept) == [("halved", "forward", 6, 2), ("halved", "forward", 3, 4)]
    assert losses(kept) == pytest.approx(losses(said), rel=1e-5)
    assert made.state.counters.samples == plain.state.counters.samples
    for ours, theirs in zip(weights(made), weights(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


def test_the_event_reports_the_failed_allocation(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=1))
    limit(made, 6)
    made.run()
    (event,) = kept.of(protocol.OomRecovery)
    assert event.requested == int(2.5 * 2**30)
    assert event.total is not None
    assert event.free is not None
    assert 0 < event.free <= event.total


def test_the_event_reports_free_memory_at_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=1))
    limit(made, 6)
    undone: list[bool] = []
    give_back = oom.release_memory
    monkeypatch.setattr(oom, "_free", lambda device: 2**40 if undone else 2**20)
    monkeypatch.setattr(oom, "release_memory", lambda device: (undone.append(True), give_back(device))[1])
    made.run()
    (event,) = kept.of(protocol.OomRecovery)
    assert event.free == 2**20


def test_halves_keep_the_weight_of_tokens(tmp_path: Path) -> None:
    small = {"eval_steps": 0, "cpu_threads": 1, "perf_steps": 0, "compile": "off", "eval_examples": 0}
    same = config(tmp_path, pairs_file(tmp_path), gradient_accumulation_steps=2, **small)
    plain, said = trainer(tmp_path, same, "plain")
    plain.run()
    made, kept = trainer(tmp_path, same, "made")
    limit(made, 5)
    made.run()
    assert moves(kept)[-1] == ("halved", "forward", 3, 8)
    assert losses(kept) == pytest.approx(losses(said), rel=1e-5)


class FailsAt(TorchDispatchMode):
    """Memory ends at the operation of that number, counted from when the mode is entered; once."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left, self.failed = number, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            self.failed = True
            raise torch.OutOfMemoryError(MESSAGE)
        return func(*args, **(kwargs or {}))


def test_out_of_memory_at_random_operations_skips_and_repeats_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of 50 steps fails once, at any operation of its forward or backward pass."""
    monkeypatch.setattr(oom, "_REVERT_AFTER_STEPS", 1)
    monkeypatch.setattr(oom, "_MAX_REVERT_AFTER_STEPS", 1)
    steps = {"max_steps": 52, "batch_size": 4, "max_seq_len": 16, "gradient_accumulation_steps": 2}
    plain, said = trainer(tmp_path, wanted(tmp_path, **steps), "plain")
    plain.run()
    made, kept = trainer(tmp_path, wanted(tmp_path, **steps), "made")
    made.oom._revert_after_steps = 1
    made.set_up()
    gradients, chance, tried = made._gradients, random.Random(5), set()
    phases: list[str] = []

    def failing(window: Any, tokens: int, noisy: bool) -> torch.Tensor:
        step = made.state.counters.step
        if step >= 50 or step in tried:
            return gradients(window, tokens, noisy)
        tried.add(step)
        with FailsAt(chance.randint(1, 300)) as mode:
            try:
                return gradients(window, tokens, noisy)
            finally:
                assert mode.failed
                phases.append(made.oom.during)

    made._gradients = failing  # type: ignore[method-assign]
    made.run()
    assert phases.count("forward") > 5
    assert phases.count("backward") > 5
    assert made.state.counters.position == plain.state.counters.position
    assert losses(kept) == pytest.approx(losses(said), rel=1e-4)


def test_actions_are_halves_then_checkpointing_then_loss_chunks(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, batch_size=2, max_steps=2))
    made.set_up()
    loss = made.engine.loss
    plain, said = trainer(tmp_path, wanted(tmp_path, batch_size=2, max_steps=2), "plain")
    plain.run()

    def limited(batch: Any, *grad_scale: Any) -> torch.Tensor:
        if not made.engine.smaller_chunk:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 96 bytes"
            )
        return loss(batch, *grad_scale)

    made.engine.loss = limited  # type: ignore[method-assign]
    made.run()
    assert [move[0] for move in moves(kept)] == ["halved", "checkpointing", "chunked_loss"]
    assert losses(kept) == pytest.approx(losses(said), rel=1e-5)


def test_exhausted_memory_saves_the_last_step(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, wanted(tmp_path, max_steps=9))
    limit(made, 0, when=lambda: made.state.counters.step >= 3)
    with pytest.raises(TraindeckError) as failure:
        made.run()
    assert failure.value.code == "memory.exhausted"
    assert failure.value.exit_code == ExitCode.OUT_OF_MEMORY
    newest, _ = checkpoint_dir.latest_valid(made.run_dir.checkpoints)
    assert newest is not None
    info = checkpoint_dir.read_info(newest)
    assert info is not None
    assert (info.step, info.kind) == (3, "emergency")


def test_a_run_resumes_after_exhausted_memory(tmp_path: Path) -> None:
    plain, said = trainer(tmp_path, wanted(tmp_path), "plain")
    plain.run()
    made, kept = trainer(tmp_path, wanted(tmp_path))
    limit(made, 0, when=lambda: made.state.counters.step >= 3)
    with pytest.raises(TraindeckError):
        made.run()
    newest, _ = checkpoint_dir.latest_valid(made.run_dir.checkpoints)
    assert newest is not None
    again, later = trainer(tmp_path, wanted(tmp_path))
    again.resume(newest)
    again.run()
    assert losses(kept) + losses(later) == pytest.approx(losses(said), rel=1e-5)


def test_the_last_action_is_reverted_after_good_steps(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=12))
    made.oom._revert_after_steps = 4
    limit(made, 6, when=lambda: made.state.counters.step < 3)
    made.run()
    assert [(event.step, event.action) for event in kept.of(protocol.OomRecovery)] == [(1, "halved"), (4, "grown")]
    assert made.oom.max_sequences == 12


def test_the_delay_doubles_with_each_revert(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=14))
    made.oom._revert_after_steps = 3
    limit(made, 6)
    made.run()
    told = [(event.step, event.action) for event in kept.of(protocol.OomRecovery)]
    assert told == [(1, "halved"), (3, "grown"), (4, "halved"), (9, "grown"), (10, "halved")]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_actions_are_restored_by_a_resume_bit_for_bit(tmp_path: Path, dropout: float) -> None:
    same = wanted(tmp_path, max_steps=8, dropout=dropout)
    whole, said = trainer(tmp_path, same, "whole")
    limit(whole, 6, when=lambda: whole.state.counters.step >= 2)
    whole.run()
    first, before = trainer(tmp_path, same, "made")
    limit(first, 6, when=lambda: first.state.counters.step >= 2)
    step = first._step

    def stopping(window: Any) -> None:
        step(window)
        if first.state.counters.step == 4:
            first.context.request_stop()

    first._step = stopping  # type: ignore[method-assign]
    with pytest.raises(StopRequested):
        first.run()
    newest, _ = checkpoint_dir.latest_valid(first.run_dir.checkpoints)
    assert newest is not None
    second, after = trainer(tmp_path, same, "made")
    second.resume(newest)
    limit(second, 6)
    second.run()
    assert moves(after) == []
    assert losses(before) + losses(after) == losses(said)
    assert all(map(torch.equal, weights(second), weights(whole)))


def test_an_evaluation_that_does_not_fit_is_split_with_the_same_result(tmp_path: Path) -> None:
    same = wanted(tmp_path, max_steps=3, eval_steps=3)
    plain, said = trainer(tmp_path, same, "plain")
    plain.run()
    made, kept = trainer(tmp_path, same, "made")
    limit(made, 6, when=lambda: made.context._phase == "evaluating")
    made.run()
    assert moves(kept) == [("halved", "evaluation", 6, 2)]
    (ours,), (theirs,) = kept.of(protocol.Eval), said.of(protocol.Eval)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
    assert ours.tokens == theirs.tokens


def test_samples_that_do_not_fit_are_skipped_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path, max_steps=2, sample_steps=1))

    def failing(*_: object) -> None:
        raise torch.OutOfMemoryError(MESSAGE)

    monkeypatch.setattr(made.sample_writer, "write_samples", failing)
    made.run()
    assert [(event.code, event.params["what"]) for event in kept.of(protocol.Warn)] == [
        ("memory.left_out", "sample-steps")
    ] * 2
    assert made.state.counters.step == 2


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_optimizer_memory_is_allocated_before_the_first_step(tmp_path: Path, optimizer: str) -> None:
    made, _ = trainer(tmp_path, wanted(tmp_path, optimizer=optimizer))
    made.set_up()
    before = {id(value): value.numel() for state in made.state.optimizer.state.values() for value in state.values()}
    assert sum(before.values()) > made.model.count_parameters()
    made._step(made._next_window())
    after = {id(value) for state in made.state.optimizer.state.values() for value in state.values()}
    assert after == set(before)


def test_other_failures_are_not_out_of_memory(tmp_path: Path) -> None:
    made, kept = trainer(tmp_path, wanted(tmp_path))
    made.set_up()

    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    made.engine.loss = failing  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="mat1"):
        made.run()
    assert moves(kept) == []


LIMITED = """
import json, sys, resource
from pathlib import Path
from tests.core.test_loop import config, losses, trainer
from tests.core.trainer import text_file
from tests.core.test_engine import NoCompiler
from trainer_core import protocol

folder = Path(sys.argv[1])
wide = {"hidden_dim": 64, "max_seq_len": 512, "batch_size": 32, "max_steps": 3, "eval_steps": 0, "perf_steps": 0,
        "cpu_threads": 1, "compile": "off", "chunked_loss": "off", "eval_batches": 1}
made, kept = trainer(folder, config(folder, text_file(folder, 6000), **wide), "limited")
made.set_up()
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + int(sys.argv[2]) * 2**20,) * 2)
made.run()
print(json.dumps([event.action for event in kept.of(protocol.OomRecovery)]))
print(json.dumps(losses(kept)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system's own limit of memory")
def test_a_refused_allocation_on_a_cpu_is_recovered(tmp_path: Path) -> None:
    found = []
    for room in (8000, 150):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, str(tmp_path), str(room)],
            capture_output=True, env=environment(tmp_path), cwd=ROOT, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append([json.loads(line) for line in done.stdout.splitlines()])
    (plenty, said), (short, told) = found
    assert plenty == []
    assert short
    assert set(short) == {"halved"}
    assert told == pytest.approx(said, rel=1e-5)
