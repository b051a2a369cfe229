"""Training on several ranks equals training in a single process and obeys the same commands."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import checkpoint as distributed_checkpoint

from tests.core.trainer_process import (
    TINY,
    TrainerResult,
    entered_phase,
    environment,
    finish,
    reached_step,
    read_until,
    run,
    send,
    start,
    text_file,
)
from trainer_core import protocol
from trainer_core.check.trial import num_micro_batches
from trainer_core.config import Config, ConfigLayer, resolve
from trainer_core.data.batch import Batch
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.runs import checkpoint_dir
from trainer_core.train.batch_division import divide, pieces, rank_config
from trainer_core.train.engine import compilation

STEPS = 12
DATA = "文本 text.txt"
ARGUMENTS = ["train", *TINY, "--max-steps", str(STEPS), "--save-steps", "6", "--keep-last", "9", "--data", DATA]
TWO = ["--nproc-per-node", "2"]
NO_DROPOUT = ["--dropout", "0"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("家 home (x)")
    text_file(folder)
    return folder


@pytest.fixture(scope="module")
def single(home: Path) -> TrainerResult:
    """A run of a single process, without dropout."""
    result = run(home, *ARGUMENTS, *NO_DROPOUT, "--run-dir", "single")
    assert result.code == 0, result.stderr
    return result


@pytest.fixture(scope="module")
def two_ranks(home: Path) -> TrainerResult:
    """A run of two ranks, with dropout."""
    result = run(home, *ARGUMENTS, *TWO, "--run-dir", "two_ranks")
    assert result.code == 0, result.stderr
    return result


def weights(home: Path, name: str, step: int = STEPS) -> dict[str, torch.Tensor]:
    return load_file(home / name / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


def assert_same_run(home: Path, name: str, result: TrainerResult, single: TrainerResult) -> None:
    """Compare two runs, within rounding errors: the order of summation differs."""
    assert result.losses == pytest.approx(single.losses, rel=1e-5)
    for actual, expected in zip(
        result.events_of(protocol.Step)[-1:], single.events_of(protocol.Step)[-1:], strict=True
    ):
        assert (actual.step, actual.tokens, actual.samples) == (expected.step, expected.tokens, expected.samples)
    evals = [
        (event.step, pytest.approx(event.loss, rel=1e-5), event.tokens) for event in single.events_of(protocol.Eval)
    ]
    assert [(event.step, event.loss, event.tokens) for event in result.events_of(protocol.Eval)] == evals
    expected = weights(home, "single")
    for key, weight in weights(home, name).items():
        torch.testing.assert_close(weight, expected[key], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_ranks_equal_a_single_process(home: Path, single: TrainerResult, parallel: str) -> None:
    result = run(home, *ARGUMENTS, *NO_DROPOUT, *TWO, "--parallel", parallel, "--run-dir", parallel)
    assert result.code == 0, result.stderr
    assert_same_run(home, parallel, result, single)
    assert len(result.events_of(protocol.Hello)[0].devices) == 2
    assert [event.seq for event in result.events] == list(range(1, len(result.events) + 1)), "only rank 0 emits events"


@pytest.mark.skipif(compilation.unavailable_reason(torch.device("cpu")) is not None, reason="needs a C++ compiler")
def test_compiled_layers_of_a_sharded_model_are_not_compiled_again_for_samples(home: Path) -> None:
    arguments = [*ARGUMENTS, *NO_DROPOUT, "--n-layers", "5", "--max-steps", "4", "--sample-steps", "2"]
    eager = run(home, *arguments, "--run-dir", "eager")
    sharded = [*TWO, "--parallel", "fsdp", "--compile", "on", "--run-dir", "compiled"]
    compiled = run(home, *arguments, *sharded)
    assert compiled.code == 0, compiled.stderr
    assert "recompile" not in compiled.stderr
    assert len(compiled.events_of(protocol.Sample)) == len(eager.events_of(protocol.Sample)) > 1
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)


def test_torchrun_ranks_equal_a_single_process(home: Path, single: TrainerResult) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "-m", "trainer_core"]
    completed = subprocess.run(
        [*command, *ARGUMENTS, *NO_DROPOUT, "--output", "json", "--run-dir", "torchrun"],
        env=environment(home), cwd=home, capture_output=True, timeout=120,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr.decode()
    result = TrainerResult(
        0, [protocol.decode_event(line) for line in completed.stdout.splitlines()], completed.stderr.decode()
    )
    assert_same_run(home, "torchrun", result, single)


def test_world_size_can_change_at_each_resume(home: Path, single: TrainerResult) -> None:
    (home / "resumed").mkdir()
    first = run(
        home, *ARGUMENTS, *NO_DROPOUT, "--max-steps", "4", "--lr-schedule", "constant", "--run-dir", "resumed/a"
    )
    constant = run(home, *ARGUMENTS, *NO_DROPOUT, "--lr-schedule", "constant", "--run-dir", "resumed/constant")
    assert first.code == constant.code == 0
    second = run(home, "train", "--resume", "resumed/a", *TWO, "--max-steps", "8")
    assert second.code == 0, second.stderr
    (warning,) = second.events_of(protocol.Warn)
    assert (warning.code, warning.params) == ("resume.not_exact", {"what": "ranks", "before": "1", "after": "2"})
    third = run(home, "train", "--resume", "resumed/a", "--nproc-per-node", "1", "--max-steps", str(STEPS))
    assert [event.params["what"] for event in third.events_of(protocol.Warn)] == ["ranks"]
    assert {**first.losses, **second.losses, **third.losses} == pytest.approx(constant.losses, rel=1e-5)


def test_sharded_checkpoints_are_plain_files_that_any_number_of_ranks_resumes(
    home: Path, single: TrainerResult
) -> None:
    fsdp = [*ARGUMENTS, *NO_DROPOUT, *TWO, "--parallel", "fsdp", "--run-dir", "sharded"]
    assert run(home, *fsdp).code == 0
    folders = [home / name / "checkpoints" / "step-00000006" for name in ("sharded", "single")]
    for file in ("model.safetensors", "optimizer.safetensors"):
        actual, expected = (load_file(folder / file) for folder in folders)
        assert actual.keys() == expected.keys()
        for name, tensor in actual.items():
            assert (tensor.shape, tensor.dtype) == (expected[name].shape, expected[name].dtype)
            if not name.startswith("generator"):
                torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=2e-5)
    for ranks in ("1", "4"):
        resume = ["train", "--resume", str(folders[0]), "--nproc-per-node", ranks, "--run-dir", f"resumed-by-{ranks}"]
        result = run(home, *resume)
        assert result.code == 0, result.stderr
        expected_losses = {step: loss for step, loss in single.losses.items() if step > 6}
        assert result.losses == pytest.approx(expected_losses, rel=1e-5)
    assert not any(checkpoint_dir.verify_files(folders[0]).values()), "it equals its manifest"
    stored = load_file(folders[0] / "model.safetensors") | load_file(folders[0] / "optimizer.safetensors")
    read = {name: torch.empty_like(tensor) for name, tensor in stored.items()}
    reader = distributed_checkpoint.HuggingFaceStorageReader(str(folders[0]))
    distributed_checkpoint.load(read, storage_reader=reader, no_dist=True)
    assert all(torch.equal(read[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_sharded_run_resumes_exactly(home: Path, optimizer: str) -> None:
    arguments = [*ARGUMENTS, *TWO, "--parallel", "fsdp", "--optimizer", optimizer, "--save-steps", "4"]
    whole = run(home, *arguments, "--run-dir", f"whole-{optimizer}")
    assert whole.code == 0, whole.stderr
    source = home / f"whole-{optimizer}" / "checkpoints" / "step-00000004"
    resumed = run(home, "train", "--resume", str(source), "--run-dir", f"again-{optimizer}")
    assert resumed.code == 0, resumed.stderr
    assert resumed.losses == {step: loss for step, loss in whole.losses.items() if step > 4}
    for file in ("model.safetensors", "optimizer.safetensors"):
        first, second = (
            home / f"{name}-{optimizer}" / "checkpoints" / f"step-{STEPS:08d}" / file for name in ("whole", "again")
        )
        assert first.read_bytes() == second.read_bytes(), file


def test_a_resume_with_the_same_world_size_is_exact(home: Path, two_ranks: TrainerResult) -> None:
    process = start(home, *ARGUMENTS, *TWO, "--run-dir", "stopped", "--control", "stdin", stdin=subprocess.PIPE)
    before = read_until(process, reached_step(3))
    send(process, protocol.Stop(id=1))
    stopped = finish(process)
    assert stopped.code == ExitCode.STOPPED, stopped.stderr
    stop_step = stopped.events_of(protocol.Done)[0].steps
    assert 3 <= stop_step < STEPS
    resumed = run(home, "train", "--resume", "stopped")
    assert resumed.code == 0, resumed.stderr
    assert resumed.events_of(protocol.Hello)[0].resumed_from_step == stop_step
    assert not resumed.events_of(protocol.Warn)
    losses = TrainerResult(0, before + stopped.events, "").losses | resumed.losses
    assert losses == two_ranks.losses
    last = f"checkpoints/step-{STEPS:08d}"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (home / "stopped" / last / file).read_bytes() == (home / "two_ranks" / last / file).read_bytes(), file


def test_ranks_obey_pause_set_save_and_the_end_of_stdin(
    home: Path, two_ranks: TrainerResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of both ranks is offloaded during the pause, as on a GPU."""
    monkeypatch.setenv("TRAINDECK_OFFLOAD", "memory")
    arguments = [*ARGUMENTS, *TWO, "--max-steps", "1000000", "--compile", "off", "--run-dir", "controlled"]
    process = start(home, *arguments, "--control", "stdin", stdin=subprocess.PIPE)
    read_until(process, reached_step(1))
    send(process, protocol.Pause(id=1))
    read_until(process, entered_phase("paused"))
    send(process, protocol.Resume(id=2))
    read_until(process, entered_phase("training"))
    send(process, protocol.Set(id=3, name="log_steps", value=2))
    send(process, protocol.Save(id=4))
    read_until(process, lambda event: isinstance(event, protocol.Checkpoint) and event.step % 6 != 0)
    read_until(process, reached_step(1))
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    result = finish(process)
    assert result.code == ExitCode.STOPPED, result.stderr
    (done,) = result.events_of(protocol.Done)
    assert done.reason == "parent_lost"
    assert (home / "controlled" / "checkpoints" / f"step-{done.steps:08d}").is_dir()


def test_accelerate_launch_and_slurm_start_ranks(home: Path, single: TrainerResult) -> None:
    """`srun` is simulated by its environment."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--main_process_port", "0", "-m", "trainer_core"]
    completed = subprocess.run(
        [*command, *ARGUMENTS, *NO_DROPOUT, "--output", "json", "--run-dir", "accelerate"],
        env=environment(home), cwd=home, capture_output=True, timeout=120,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr.decode()
    result = TrainerResult(0, [protocol.decode_event(line) for line in completed.stdout.splitlines()], "")
    assert_same_run(home, "accelerate", result, single)
    slurm = {"SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "127.0.0.1"}
    arguments = [*ARGUMENTS, *NO_DROPOUT, "--output", "json", "--run-dir", "slurm"]
    tasks = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "trainer_core", *arguments],
            env=environment(home) | slurm | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            cwd=home,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    outputs = [task.communicate(timeout=120)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0]
    result = TrainerResult(0, [protocol.decode_event(line) for line in outputs[0].splitlines()], "")
    assert_same_run(home, "slurm", result, single)


def test_a_check_measures_all_ranks(home: Path) -> None:
    (alone,) = run(home, "check", *ARGUMENTS[1:]).events_of(protocol.CheckReport)
    result = run(home, "check", *ARGUMENTS[1:], *TWO)
    assert result.code == 0, result.stderr
    (report,) = result.events_of(protocol.CheckReport)
    assert (report.verdict, report.from_cache) == ("fits", False)
    assert report.device.startswith("2 × CPU")
    assert report.chosen.tokens_per_s
    assert 1.6 * alone.chosen.ram_peak < report.chosen.ram_peak == report.chosen.peak, (
        "each rank loads Python and torch"
    )
    (cached,) = run(home, "check", *ARGUMENTS[1:], *TWO).events_of(protocol.CheckReport)
    assert (cached.from_cache, cached.chosen) == (True, report.chosen)


def automatic_batch(home: Path, name: str) -> list[str]:
    """Arguments of a run with an automatic batch size and few candidates: 2 x 3 sequences."""
    file = home / "small.yaml"
    file.write_text("batch_size: 2\n", encoding="utf-8")
    return [*ARGUMENTS, "--config", str(file), "--batch-size", "auto", "--run-dir", name]


def test_the_automatic_batch_size_is_measured_with_all_ranks(home: Path) -> None:
    result = run(home, *automatic_batch(home, "automatic"), *TWO)
    assert result.code == 0, result.stderr
    (report,) = result.events_of(protocol.CheckReport)
    assert report.device.startswith("2 × CPU")
    assert report.chosen.batch_size * report.chosen.gradient_accumulation_steps == 6
    assert all(event.time_ms.sync > 0 for event in result.events_of(protocol.Step)), "training synchronizes both ranks"


def test_torchrun_ranks_do_not_measure_the_batch_size(home: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "trainer_core"]
    arguments = [*command, *automatic_batch(home, "torchrun_automatic")]
    completed = subprocess.run(arguments, env=environment(home), cwd=home, capture_output=True, timeout=150)
    assert completed.returncode == 0, completed.stderr.decode("utf-8", "replace")
    event_types = [type(protocol.decode_event(line)) for line in completed.stdout.splitlines()]
    assert event_types.count(protocol.CheckReport) == event_types.count(protocol.Done) == 1


def test_only_several_ranks_report_synchronization_time(single: TrainerResult, two_ranks: TrainerResult) -> None:
    assert {event.time_ms.sync for event in single.events_of(protocol.Step)} == {0.0}
    for event in two_ranks.events_of(protocol.Step):
        assert event.time_ms.sync > 0


def test_more_ranks_than_sequences_per_step_are_rejected() -> None:
    with pytest.raises(TraindeckError) as error:
        resolve([ConfigLayer("test", {"nproc_per_node": 4, "batch_size": 3})])
    assert error.value.code == "ranks.too_many"


@pytest.mark.parametrize("sizes", [[4, 4, 4], [16], [8, 8], [4, 4, 3], [1], [2, 1]])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_rows_are_divided_evenly_among_ranks(sizes: list[int], size: int) -> None:
    shares = [[part for piece in pieces(sizes, rank, size, alike=False) for part in piece] for rank in range(size)]
    rows = [(batch, row) for share in shares for batch, part in share for row in range(part.start, part.stop)]
    assert rows == [(batch, row) for batch, count in enumerate(sizes) for row in range(count)]
    counts = [sum(part.stop - part.start for _, part in share) for share in shares]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "sizes", [[4, 4, 4], [16], [16, 16], [8] * 4, [16] * 4, [2, 2, 2], [4, 4, 3], [1], [2, 1]], ids=str
)
def test_rows_of_one_width_are_divided_into_the_fewest_equal_pieces(sizes: list[int], size: int) -> None:
    shares = [pieces(sizes, rank, size, alike=True) for rank in range(size)]
    parts = [part for share in shares for piece in share for part in piece]
    rows = [(batch, row) for batch, part in parts for row in range(part.start, part.stop)]
    assert rows == [(batch, row) for batch, count in enumerate(sizes) for row in range(count)]
    counts = [[sum(part.stop - part.start for _, part in piece) for piece in share] for share in shares]
    rows_per_rank = -(-sum(sizes) // size)  # rows of a rank
    assert max(map(len, counts)) == -(-rows_per_rank // max(sizes)), "the fewest possible pieces"
    assert max(map(max, filter(None, counts))) <= max(sizes), "no piece is larger than a micro-batch"
    assert max(map(sum, counts)) <= max(rows_per_rank, 1.15 * sum(sizes) / size)


def test_each_rank_computes_pieces_of_one_size() -> None:
    """Compiled code is specialized for one number of rows, and CUDA graphs require a single piece."""
    for sizes, expected in {(16, 16): [[10], [11], [11]], (8,) * 4: [[5, 5], [5, 5], [6, 6]]}.items():
        window = [distinct_rows(rows) for rows in sizes]
        piece_sizes = [[piece.input_ids.shape[0] for piece in divide(window, rank, 3, 16).batches] for rank in range(3)]
        assert piece_sizes == expected


def test_pieces_contain_all_rows_in_order() -> None:
    window = [distinct_rows(4, first=0), distinct_rows(4, first=4), distinct_rows(4, first=8)]
    all_pieces = [piece for rank in range(2) for piece in divide(window, rank, 2, 4).batches]
    assert torch.equal(torch.cat([piece.input_ids for piece in all_pieces]), torch.cat([b.input_ids for b in window]))
    assert torch.equal(torch.cat([piece.labels for piece in all_pieces]), torch.cat([b.labels for b in window]))
    assert [piece.loss_tokens for piece in all_pieces] == [3 * 8] * 4
    assert all(piece.segments is not None and piece.segments.shape == (3, 8) for piece in all_pieces)


def test_micro_batches_of_different_widths_are_not_merged() -> None:
    window = [distinct_rows(4, width=8), distinct_rows(4, width=16)]
    assert [[tuple(piece.input_ids.shape) for piece in divide(window, rank, 3, 4).batches] for rank in range(3)] == [
        [(2, 8)],
        [(2, 8), (1, 16)],
        [(3, 16)],
    ]


def test_pieces_at_the_end_of_an_epoch_are_not_larger() -> None:
    """The check measures the memory of a full-size piece only."""
    usual_size = rank_config(Config(batch_size=16, gradient_accumulation_steps=4), 3).batch_size
    window = [distinct_rows(16)] * 3
    piece_sizes = [
        [piece.input_ids.shape[0] for piece in divide(window, rank, 3, usual_size).batches] for rank in range(3)
    ]
    assert (usual_size, piece_sizes) == (11, [[8, 8]] * 3)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_check_uses_the_piece_size_of_the_run(ranks: int) -> None:
    for batch_size in (1, 2, 4, 6, 8, 12, 16):
        for accumulation in range(1, 13):
            if batch_size * accumulation >= ranks:
                run = Config(batch_size=batch_size, gradient_accumulation_steps=accumulation, nproc_per_node=ranks)
                trial = msgspec.structs.replace(run, gradient_accumulation_steps=num_micro_batches(run))
                assert rank_config(trial, ranks).batch_size == rank_config(run, ranks).batch_size


def test_sequences_with_and_without_segments_are_merged() -> None:
    packed, unpacked = distinct_rows(4), distinct_rows(4, first=4)
    unpacked = dataclasses.replace(unpacked, segments=None, positions=None)
    (piece,) = divide([packed, unpacked], 1, 3, 4).batches
    assert piece.input_ids[:, 0].tolist() == [200, 300, 400]
    assert piece.segments is not None
    assert piece.positions is not None
    assert packed.segments is not None
    assert torch.equal(piece.segments[:2], packed.segments[2:])
    assert piece.segments[2].unique().tolist() == [0]
    assert piece.positions[2].tolist() == list(range(8))


def distinct_rows(rows: int, first: int = 0, width: int = 8) -> Batch:
    """A batch of distinct rows with two documents each."""
    ids = torch.arange(first, first + rows).unsqueeze(1) * 100 + torch.arange(width)
    segments = (torch.arange(width) >= width // 2).int().expand(rows, width)
    return Batch(ids, ids + 1, loss_tokens=rows * width, samples=rows, segments=segments, positions=ids % 100)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_sharded_base_model_trains_like_a_whole_one(home: Path, single: TrainerResult, method: str) -> None:
    tuning = [*NO_DROPOUT, "--base-model", "single", "--method", method, "--lora-rank", "4"]
    expected = run(home, *ARGUMENTS, *tuning, "--run-dir", f"one-{method}")
    result = run(home, *ARGUMENTS, *tuning, *TWO, "--parallel", "fsdp", "--run-dir", f"sharded-{method}")
    assert expected.code == result.code == 0, result.stderr
    assert result.losses == pytest.approx(expected.losses, rel=1e-5)
