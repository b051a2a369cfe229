"""A pause frees device memory; training continues bit for bit."""

from __future__ import annotations

import subprocess
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from tests.core.trainer import TINY, Ended, finish, run, start, text_file
from trainer_core import protocol
from trainer_core.train import state_offload
from trainer_core.train.ranks import Ranks
from trainer_core.train.state_offload import StateOffloader

CPU = torch.device("cpu")
GIB = 2**30


def trained() -> tuple[nn.Linear, torch.optim.Optimizer, list[Tensor]]:
    """A layer after a step, and all its tensors: one in bf16, one without elements, one twice."""
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


@pytest.mark.parametrize("room", [GIB, 0], ids=["memory", "disk"])
def test_offloaded_tensors_are_readable_and_return_bit_for_bit(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, optimizer, tensors = trained()
    before = [tensor.detach().clone() for tensor in tensors]
    places = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: room)
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    assert offloader.offload() == ("memory" if room else "disk")
    assert [tensor.data_ptr() for tensor in tensors if tensor.numel()] != places
    for tensor, was in zip(tensors, before, strict=True):
        assert torch.equal(tensor, was), "offloaded tensors are readable, so a Stop can save them"
    assert any(tmp_path.iterdir()) == (room == 0)
    assert offloader.restore()
    for tensor, was in zip(tensors, before, strict=True):
        assert torch.equal(tensor, was)
        assert (tensor.dtype, tensor.stride()) == (was.dtype, was.stride())
    assert not any(tmp_path.iterdir())
    layer(torch.randn(5, 64)).sum().backward()
    optimizer.step()
    assert not torch.equal(layer.weight, before[0]), "and training writes to them"


def test_offloading_frees_the_memory(tmp_path: Path) -> None:
    layer, _, tensors = trained()
    storage = weakref.ref(layer.weight.untyped_storage())
    where = layer.weight.untyped_storage()._cdata
    StateOffloader(lambda: tensors, CPU, tmp_path).offload()
    assert storage() is None
    assert layer.weight.untyped_storage()._cdata != where


def test_tensors_stay_offloaded_until_the_device_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _, tensors = trained()
    was, free = layer.weight.detach().clone(), [GIB]
    monkeypatch.setattr(state_offload, "free_device_bytes", lambda device: free[0])
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    offloader.offload()
    free[0] = 0
    place = layer.weight.data_ptr()
    assert not offloader.restore()
    assert layer.weight.data_ptr() == place
    assert torch.equal(layer.weight, was)
    free[0] = GIB
    assert offloader.restore()
    assert torch.equal(layer.weight, was)


def held_by(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


@pytest.mark.parametrize("room", [GIB, 0], ids=["memory", "disk"])
def test_resume_does_not_wait_for_more_than_can_be_free(
    room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peak may include failed attempts and system memory that Windows lends to a card."""
    layer, _, tensors = trained()
    storage, free = weakref.ref(layer.weight.untyped_storage()), [10 * GIB]
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: room)
    monkeypatch.setattr(state_offload, "free_device_bytes", lambda device: free[0] if storage() is None else GIB)
    monkeypatch.setattr(state_offload, "peak_bytes", lambda device: 24 * GIB)
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    assert offloader.offload()
    assert offloader.needed == int(9.5 * GIB), "of what is free when all is away"
    free[0] = 9 * GIB
    assert not offloader.restore()
    free[0] = int(9.6 * GIB)  # a desktop holds a little more than before
    assert offloader.restore()


@pytest.mark.parametrize(
    ("peak", "free", "needed"),
    [
        (2.0, 10.0, 2.0),
        (0.0, 10.0, 1.0),
        (3.0, 1.02, 1.0),  # a card that is nearly full of it
        (3.0, 0.5, 0.475),  # part of it was in system memory before, lent by the driver
    ],
)
def test_needed_memory_is_the_peak_limited_by_what_was_free(
    peak: float, free: float, needed: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, tensors = trained()
    held = held_by(tensors)
    monkeypatch.setattr(state_offload, "free_device_bytes", lambda device: int(free * held))
    monkeypatch.setattr(state_offload, "peak_bytes", lambda device: int(peak * held))
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
    offloader.offload()
    assert offloader.needed == int(needed * held)
    assert offloader.restore()


def test_each_rank_uses_its_share_of_free_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    ranks.rank, ranks.size = 1, 3
    _, _, tensors = trained()
    held = held_by(tensors)
    memory, disk = [3 * held], [3 * (held + GIB)]
    monkeypatch.setattr("trainer_core.system.files.free_bytes", lambda path: disk[0])
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: memory[0])
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path, ranks)
    assert offloader.offload() == "memory"
    assert offloader.restore()
    memory[0] -= 1
    assert offloader.offload() == "disk"
    assert offloader.restore()
    disk[0] -= 1
    assert offloader.offload() == ""
    assert offloader.restore()


def test_nothing_moves_without_memory_or_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, _, tensors = trained()
    place = layer.weight.data_ptr()
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: 0)
    offloader = StateOffloader(lambda: tensors, CPU, tmp_path / "no such folder")
    assert offloader.offload() == ""
    assert layer.weight.data_ptr() == place
    assert offloader.restore()


def test_the_file_of_a_killed_pause_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, tensors = trained()
    monkeypatch.setattr(state_offload, "free_system_bytes", lambda: 0)
    StateOffloader(lambda: tensors, CPU, tmp_path).offload()
    assert any(tmp_path.iterdir())
    StateOffloader(lambda: tensors, CPU, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_compiled_model_is_not_compiled_again(
    compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, _, tensors = trained()
    compiled, given = torch.compile(layer, fullgraph=True, dynamic=False), torch.randn(5, 64)
    before, graphs = compiled(given), counters["stats"]["unique_graphs"]
    for room in (GIB, 0):
        monkeypatch.setattr(state_offload, "free_system_bytes", lambda room=room: room)
        offloader = StateOffloader(lambda: tensors, CPU, tmp_path)
        offloader.offload()
        assert offloader.restore()
        assert torch.equal(compiled(given), before)
    assert graphs > 0
    assert counters["stats"]["unique_graphs"] == graphs, "nothing is compiled again"


# --- whole runs ------------------------------------------------------------------------------------

STEPS = 16
ARGUMENTS = ["train", *TINY, "--max-steps", str(STEPS), "--save-steps", "6", "--keep-last", "9"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("家 home (x)")


@pytest.fixture(scope="module")
def unpaused(home: Path) -> Ended:
    ended = run(home, *ARGUMENTS, "--run-dir", "whole", "--data", str(text_file(home)))
    assert ended.code == 0, ended.stderr
    return ended


def paused_at(
    home: Path, name: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[subprocess.Popen[bytes], int]:
    """A paused run and its step."""
    monkeypatch.setenv("TRAINDECK_OFFLOAD", where)
    data = str(home / "文本 text.txt")
    arguments = [*ARGUMENTS, "--run-dir", name, "--data", data, "--control", "stdin"]
    process = start(home, *arguments, stdin=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        event = protocol.decode_event(line)
        if isinstance(event, protocol.Step) and event.step == 4:
            tell(process, protocol.Pause(id=1))
        if isinstance(event, protocol.Phase) and event.phase == "paused":
            assert event.reason == "requested"
            return process, event.step or 0
    raise AssertionError("it never paused")


def tell(process: subprocess.Popen[bytes], *commands: protocol.AnyCommand) -> None:
    assert process.stdin is not None
    process.stdin.write(b"".join(map(protocol.encode, commands)))
    process.stdin.flush()


def assert_same(home: Path, name: str, whole: Ended, *parts: Ended) -> None:
    last = f"checkpoints/step-{STEPS:08d}"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (home / name / last / file).read_bytes() == (home / "whole" / last / file).read_bytes(), file
    for part in parts:
        assert part.losses.items() <= whole.losses.items()


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_paused_run_equals_an_unpaused_one(
    home: Path, unpaused: Ended, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, _ = paused_at(home, where, where, monkeypatch)
    tell(process, protocol.Resume(id=2))
    assert process.stdout is not None
    rest = [protocol.decode_event(line) for line in process.stdout]  # with its input open to the end
    ended = Ended(process.wait(90), rest, "")
    assert ended.code == 0
    assert f"bytes to {where}" in (home / where / "log.txt").read_text(encoding="utf-8")
    assert_same(home, where, unpaused, ended)


def test_a_stop_during_a_pause_saves_the_offloaded_state(
    home: Path, unpaused: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, step = paused_at(home, "stopped", "disk", monkeypatch)
    tell(process, protocol.Stop(id=2))
    stopped = finish(process)
    assert stopped.code == 3, stopped.stderr
    assert stopped.of(protocol.Done)[0].steps == step
    monkeypatch.delenv("TRAINDECK_OFFLOAD")
    resumed = run(home, "train", "--resume", "stopped")
    assert resumed.of(protocol.Hello)[0].resumed_from_step == step
    assert not list((home / "stopped").glob("paused*")), "nothing is left of the pause"
    assert_same(home, "stopped", unpaused, stopped, resumed)
