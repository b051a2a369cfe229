"""Checkpoints with arbitrary content and a valid manifest load or are rejected."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_core.config import Config
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.decoder import Decoder
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir
from trainer_core.train import checkpoint, checkpoint_writer, optimizers, run_fingerprint
from trainer_core.train.checkpoint import TrainState
from trainer_core.train.checkpoint_writer import RetentionPolicy
from trainer_core.train.model_shape import model_config_of
from trainer_core.wire import EventDispatcher

CONFIG = Config(hidden_dim=8, n_layers=1, n_heads=1, max_seq_len=8, vocab_size=300, cpu_threads=1)
SHAPE = model_config_of(CONFIG, 16)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**7) | st.floats() | st.sampled_from(["", "MT19937", "F32", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["step", "tokens", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)

RUN_FINGERPRINT: dict[str, Any] = {
    "data": "x", "max_seq_len": 8, "packing": False, "warmup_steps": 2, "samples_per_epoch": 10, "eval_batches": 5,
    "eval_sequences": 4,
}  # fmt: skip


def build_state() -> TrainState:
    model = Decoder(SHAPE)
    return TrainState(model, optimizers.build_optimizer(model, CONFIG), torch.amp.GradScaler("cpu", enabled=False))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after one step."""
    run, state = RunDir(tmp_path_factory.mktemp("run")), build_state()
    run.create()
    sum(weight.sum() for weight in state.model.parameters()).backward()  # type: ignore[union-attr]
    state.optimizer.step()
    state.counters.step, state.run_fingerprint = 1, dict(RUN_FINGERPRINT)
    companions = {"config.json": json.dumps(hf_config.to_hf_config(SHAPE, 0, 0)).encode()}
    saved = checkpoint_writer.write(run, checkpoint.build_content(state, companions), RetentionPolicy(last=1, best=0))
    return run.checkpoints / saved.path


@contextlib.contextmanager
def copy_checkpoint(original: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(original, Path(folder, original.name)))
        yield copy


def rewrite_manifest(folder: Path) -> None:
    (folder / checkpoint_dir.MANIFEST).unlink()
    checkpoint_dir.write_manifest(folder, 1, "regular", None)


def load_all(folder: Path) -> None:
    """Read everything that a resume or the use of a model reads."""
    for load in (
        lambda: checkpoint.read_shape(folder),
        lambda: checkpoint.read_run_fingerprint(folder),
        lambda: run_fingerprint.require_the_same_run(folder, Decoder(SHAPE), RUN_FINGERPRINT),
        lambda: run_fingerprint.require_steps_left(folder, CONFIG),
        lambda: run_fingerprint.preserve_eval_sample(
            RunContext(EventDispatcher()), checkpoint.read_run_fingerprint(folder), dict(RUN_FINGERPRINT)
        ),
        lambda: checkpoint.load(folder, build_state()),
    ):
        with contextlib.suppress(TraindeckError):
            load()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_detected_or_harmless(original: Path, data: st.DataObject) -> None:
    with copy_checkpoint(original) as folder:
        name = data.draw(st.sampled_from(sorted(file.name for file in folder.iterdir())))
        content = bytearray((folder / name).read_bytes())
        start = data.draw(st.one_of(st.integers(0, min(300, len(content))), st.integers(0, len(content))))
        content[start : start + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
        changed = bytes(content) != (original / name).read_bytes()
        (folder / name).write_bytes(content)
        if name != checkpoint_dir.MANIFEST and changed:
            assert checkpoint_dir.find_problem(folder), "undetected by the manifest"
        checkpoint_dir.read_info(folder)
        rewrite_manifest(folder)
        load_all(folder)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_state_json_loads_or_is_rejected(original: Path, data: st.DataObject) -> None:
    with copy_checkpoint(original) as folder:
        document: dict[str, Any] = json.loads((folder / "state.json").read_bytes())
        parent = document
        name = data.draw(st.sampled_from(sorted(parent)))
        if isinstance(parent[name], dict) and parent[name] and data.draw(st.booleans()):
            parent, name = parent[name], data.draw(st.sampled_from(sorted(parent[name])))
        if data.draw(st.booleans()):
            parent[name] = data.draw(json_values)
        else:
            del parent[name]
        (folder / "state.json").write_text(json.dumps(document), encoding="utf-8")
        rewrite_manifest(folder)
        load_all(folder)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_config_json_is_read_or_rejected(original: Path, data: st.DataObject) -> None:
    with copy_checkpoint(original) as folder:
        document = json.loads((folder / "config.json").read_bytes())
        for name in data.draw(st.lists(st.sampled_from(sorted(document)), max_size=3)):
            document[name] = data.draw(json_values)
        (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
        rewrite_manifest(folder)
        load_all(folder)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_safetensors_header_loads_or_is_rejected(original: Path, data: st.DataObject) -> None:
    with copy_checkpoint(original) as folder:
        file = folder / data.draw(st.sampled_from(["model.safetensors", "optimizer.safetensors"]))
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        for name in data.draw(st.lists(st.sampled_from(sorted(header)), min_size=1, max_size=3, unique=True)):
            entry = header.pop(name)
            if data.draw(st.booleans()):
                header[data.draw(st.sampled_from([name, "generator.cpu", "x"]))] = data.draw(
                    json_values
                    | st.sampled_from(["dtype", "shape", "data_offsets"]).map(lambda key: entry | {key: "x"})  # noqa: B023
                )
        header_bytes = json.dumps(header).encode()
        declared_length = data.draw(st.sampled_from([len(header_bytes), len(header_bytes) + 1, 0, 2**40, 2**63]))
        file.write_bytes(declared_length.to_bytes(8, "little") + header_bytes + content[8 + length :])
        rewrite_manifest(folder)
        load_all(folder)


@settings(max_examples=100, deadline=None)
@given(manifest=json_values | st.fixed_dictionaries({}, optional={
    "step": json_values, "kind": json_values, "eval_loss": json_values,
    "files": json_values
    | st.dictionaries(st.sampled_from(["state.json", "../x", "/", "nul\0", ""]), json_values, max_size=2),
}))  # fmt: skip
def test_an_invalid_manifest_is_reported_as_a_problem(manifest: Any) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "step-00000001")
        folder.mkdir()
        (folder / "state.json").write_bytes(b"{}")
        (folder / checkpoint_dir.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        assert checkpoint_dir.find_problem(folder)
        assert checkpoint_dir.latest_valid(Path(root))[0] is None
        infos = checkpoint_dir.list_infos(Path(root))
        checkpoint_dir.select_expired(infos, 1, 1)
