"""A pause frees device memory; training continues bit for bit."""

from __future__ import annotations

import subprocess
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.core.trainer_process import (
    TINY,
    TrainerResult,
    entered_phase,
    finish,
    reached_step,
    read_until,
    run,
    send,
    start,
    text_file,
)
from trainer_core import protocol
from trainer_core.train import state_offload
from trainer_core.train.process_group import ProcessGroup
from trainer_core.train.state_offload import StateOffloader

CPU = torch.device("cpu")
GIB = 2**30


def trained_layer() -> tuple[nn.Linear, torch.optim.Optimizer, list[Tensor]]:
    """A layer after one step, its optimizer and all tensors: one in bf16, one empty, one listed twice."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 48)
    layer.register_buffer("short", torch.randn(7, dtype=torch.bfloat16))
    layer.register_buffer("empty", torch.empty(0, 3))
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)
    layer(torch.randn(5, 64)).square().mean().backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values()]
    gradients = [weight.grad for weight in layer.parameters() if weight.grad is not None]
    return layer, optimizer, [*layer.parameters(), *layer.buffers(), *moments, *gradients, layer.weight]


@pytest.mark.parametrize("free_memory", [GIB, 0], ids=["memory", "disk"])
def test_offloaded_tensors_are_readable_and_return_bit_for_bit(
    free_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, optimizer, tensors = trained_layer()
    originals = [tensor.detach().clone() for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: free_memory)
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    assert offloader.offload() == ("memory" if free_memory else "disk")
    assert [tensor.data_ptr() for tensor in tensors if tensor.numel()] != addresses
    for tensor, expected in zip(tensors, originals, strict=True):
        assert torch.equal(tensor, expected), "a Stop could not save the offloaded tensors"
    assert any(tmp_path.iterdir()) == (free_memory == 0)
    assert offloader.restore()
    for tensor, expected in zip(tensors, originals, strict=True):
        assert torch.equal(tensor, expected)
        assert (tensor.dtype, tensor.stride()) == (expected.dtype, expected.stride())
    assert not any(tmp_path.iterdir())
    layer(torch.randn(5, 64)).sum().backward()
    optimizer.step()
    assert not torch.equal(layer.weight, originals[0]), "training updates the restored tensors"


def test_offloading_frees_the_memory(tmp_path: Path) -> None:
    layer, _, tensors = trained_layer()
    storage = weakref.ref(layer.weight.untyped_storage())
    storage_id = layer.weight.untyped_storage()._cdata
    StateOffloader(lambda: tensors, CPU, tmp_path).offload()
    assert storage() is None
    assert layer.weight.untyped_storage()._cdata != storage_id


def test_tensors_stay_offloaded_until_the_device_has_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, _, tensors = trained_layer()
    expected, free = layer.weight.detach().clone(), [GIB]
    monkeypatch.setattr(state_offload, "free_device_bytes", lambda device: free[0])
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    offloader.offload()
    free[0] = 0
    address = layer.weight.data_ptr()
    assert not offloader.restore()
    assert layer.weight.data_ptr() == address
    assert torch.equal(layer.weight, expected)
    free[0] = GIB
    assert offloader.restore()
    assert torch.equal(layer.weight, expected)


def total_bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


@pytest.mark.parametrize("free_memory", [GIB, 0], ids=["memory", "disk"])
def test_a_resume_waits_for_no_more_memory_than_can_be_free(
    free_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak can include failed allocations, and system memory that Windows shares with the GPU."""
    layer, _, tensors = trained_layer()
    storage, free = weakref.ref(layer.weight.untyped_storage()), [10 * GIB]
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: free_memory)
    monkeypatch.setattr(state_offload, "free_device_bytes", lambda device: free[0] if storage() is None else GIB)
    monkeypatch.setattr(state_offload, "peak_bytes", lambda device: 24 * GIB)
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    assert offloader.offload()
    assert offloader.needed == int(9.5 * GIB), "95 % of the memory that is free after offloading"
    free[0] = 9 * GIB
    assert not offloader.restore()
    free[0] = int(9.6 * GIB)  # the desktop uses a little more than before
    assert offloader.restore()


@pytest.mark.parametrize(
    ("peak", "free", "needed"),
    [
        (2.0, 10.0, 2.0),
        (0.0, 10.0, 1.0),
        (3.0, 1.02, 1.0),  # the tensors nearly fill the GPU
        (3.0, 0.5, 0.475),  # part of the tensors was in shared system memory
    ],
)
def test_needed_memory_is_the_peak_limited_by_what_was_free(
    peak: float, free: float, needed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, tensors = trained_layer()
    size = total_bytes(tensors)
    monkeypatch.setattr(state_offload, "free_device_bytes", lambda device: int(free * size))
    monkeypatch.setattr(state_offload, "peak_bytes", lambda device: int(peak * size))
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    offloader.offload()
    assert offloader.needed == int(needed * size)
    assert offloader.restore()


def test_each_rank_uses_its_share_of_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = ProcessGroup()
    group.rank, group.local_world_size = 1, 3
    _, _, tensors = trained_layer()
    size = total_bytes(tensors)
    memory, disk = [3 * size], [3 * (size + GIB)]
    monkeypatch.setattr("trainer_core.system.files.free_bytes", lambda path: disk[0])
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: memory[0])
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path, group)
    assert offloader.offload() == "memory"
    assert offloader.restore()
    memory[0] -= 1
    assert offloader.offload() == "disk"
    assert offloader.restore()
    disk[0] -= 1
    assert offloader.offload() == ""
    assert offloader.restore()


def test_nothing_moves_without_memory_or_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _, tensors = trained_layer()
    address = layer.weight.data_ptr()
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: 0)
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path / "no such folder")
    assert offloader.offload() == ""
    assert layer.weight.data_ptr() == address
    assert offloader.restore()


def test_the_file_of_a_killed_pause_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, tensors = trained_layer()
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: 0)
    StateOffloader(lambda: tensors, CPU, tmp_path).offload()
    assert any(tmp_path.iterdir())
    StateOffloader(lambda: tensors, CPU, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_compiled_model_is_not_compiled_again(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, _, tensors = trained_layer()
    compiled, input_ = torch.compile(layer, fullgraph=True, dynamic=False), torch.randn(5, 64)
    expected, num_graphs = compiled(input_), counters["stats"]["unique_graphs"]
    for free_memory in (GIB, 0):
        monkeypatch.setattr(state_offload, "free_system_bytes", lambda free_memory=free_memory: free_memory)
        offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
        offloader.offload()
        assert offloader.restore()
        assert torch.equal(compiled(input_), expected)
    assert num_graphs > 0
    assert counters["stats"]["unique_graphs"] == num_graphs, "compiled again"


# --- processes ------------------------------------------------------------------------------------

STEPS = 16
ARGUMENTS = ["train", *TINY, "--max-steps", str(STEPS), "--save-steps", "6", "--keep-last", "9"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home (x)")


@pytest.fixture(scope="module")
def unpaused(home: Path) -> TrainerResult:
    result = run(home, *ARGUMENTS, "--run-dir", "unpaused", "--data", str(text_file(home)))
    assert result.code == 0, result.stderr
    return result


def start_and_pause(
    home: Path, name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a run and pause it. Returns the process and the step of the pause."""
    monkeypatch.setenv("TRAINDECK_OFFLOAD", target)
    data = str(home / "文本 text.txt")
    arguments = [*ARGUMENTS, "--run-dir", name, "--data", data, "--control", "stdin"]
    process = start(home, *arguments, stdin=subprocess.PIPE)
    read_until(process, reached_step(4))
    send(process, protocol.Pause(id=1))
    paused = read_until(process, entered_phase("paused"))[-1]
    assert isinstance(paused, protocol.Phase)
    assert paused.reason == "requested"
    return process, paused.step or 0


def assert_same_run(home: Path, name: str, uninterrupted: TrainerResult, *results: TrainerResult) -> None:
    last = f"checkpoints/step-{STEPS:08d}"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (home / name / last / file).read_bytes() == (home / "unpaused" / last / file).read_bytes(), file
    for result in results:
        assert result.losses.items() <= uninterrupted.losses.items()


@pytest.mark.parametrize("target", ["memory", "disk"])
def test_a_paused_run_equals_an_unpaused_one(
    home: Path, unpaused: TrainerResult, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = start_and_pause(home, target, target, monkeypatch)
    send(process, protocol.Resume(id=2))
    assert process.stdout is not None
    events = [protocol.decode_event(line) for line in process.stdout]  # stdin stays open: closing it would stop the run
    result = TrainerResult(process.wait(90), events, "")
    assert result.code == 0
    assert f"bytes to {target}" in (home / target / "log.txt").read_text(encoding="utf-8")
    assert_same_run(home, target, unpaused, result)


def test_a_stop_during_a_pause_saves_the_offloaded_state(
    home: Path, unpaused: TrainerResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, step = start_and_pause(home, "stopped", "disk", monkeypatch)
    send(process, protocol.Stop(id=2))
    stopped = finish(process)
    assert stopped.code == 3, stopped.stderr
    assert stopped.events_of(protocol.Done)[0].steps == step
    monkeypatch.delenv("TRAINDECK_OFFLOAD")
    resumed = run(home, "train", "--resume", "stopped")
    assert resumed.events_of(protocol.Hello)[0].resumed_from_step == step
    assert not list((home / "stopped").glob("paused*")), "the pause leaves no files"
    assert_same_run(home, "stopped", unpaused, stopped, resumed)
