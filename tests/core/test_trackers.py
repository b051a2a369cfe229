"""What trackers store of a real run, read back with each tool's own reader, equals `events.jsonl`.

The tools are imported where they are used: MLflow takes three seconds.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.core.trainer_process import TINY, environment, text_file
from tests.core.training import pairs_file

Points = dict[tuple[str, int], float]  # (name, step) → value
PREFIXES: Final = {"step": "train", "eval": "eval", "performance": "performance", "done": "done"}
BLOCK: Final = 32 * 1024
TRACKERS: Final = ("--use-tensorboard", "--use-wandb", "--use-mlflow")


def train(home: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "trainer_core", "train", *arguments]
    variables = environment(home) | {"WANDB_MODE": "offline"}
    completed = subprocess.run(command, env=variables, cwd=home, capture_output=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stderr[-2000:]
    assert b'"tracker.' not in completed.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps, continued from step 3 up to step 10, so that steps 4 to 8 are repeated."""
    home = tmp_path_factory.mktemp("跟踪 trackers")
    data = str(text_file(home))
    saves = ("--save-steps", "3", "--keep-last", "9", "--perf-steps", "2", "--hardware-interval-s", "0.3")
    train(home, *TINY, *saves, *TRACKERS, "--max-steps", "8", "--data", data, "--run-dir", "runs/运行 1")
    path = home / "runs" / "运行 1"
    for checkpoint in sorted((path / "checkpoints").glob("step-*"))[1:]:
        shutil.rmtree(checkpoint)
    train(home, "--resume", str(path), "--max-steps", "10")
    return path


def read_events(run: Path, *kinds: str) -> list[dict[str, Any]]:
    lines = (run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["type"] in kinds]


def flatten(prefix: str, values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flatten(f"{prefix}/{name}", value)
        elif isinstance(value, int | float) and name not in ("t", "seq", "step"):
            yield f"{prefix}/{name}", float(value)


def expected_points(run: Path, *, first: bool) -> Points:
    """Of repeated steps, the first values, or those of the process that came last."""
    points: Points = {}
    for event in read_events(run, "hello", *PREFIXES):
        if event["type"] == "hello":
            resumed = event["resumed_from_step"]
            points = points if first or resumed is None else {key: v for key, v in points.items() if key[1] <= resumed}
            continue
        step = event.get("step", event.get("steps"))
        for name, value in flatten(PREFIXES[event["type"]], event):
            points.setdefault((name, step), value)
    return points


def expected_memory(run: Path) -> list[float]:
    return sorted(float(event["host"]["ram_used"]) for event in read_events(run, "hardware"))


def split(points: list[tuple[str, int, float]]) -> tuple[Points, list[float]]:
    """Points, each of which exists only once, and the values of the hardware's `ram_used`."""
    unique = {(name, step): value for name, step, value in points if name.split("/")[0] in PREFIXES.values()}
    assert len(unique) == sum(name.split("/")[0] in PREFIXES.values() for name, _, _ in points)
    return unique, sorted(value for name, _, value in points if name == "host/ram_used")


def test_the_run_repeated_steps(run: Path) -> None:
    steps = [event["step"] for event in read_events(run, "step")]
    assert steps == [*range(1, 9), *range(4, 11)]
    assert {event["type"] for event in read_events(run, *PREFIXES, "sample")} == {*PREFIXES, "sample"}


def test_tensorboard_displays_the_last_values_of_each_step(run: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    reader = EventAccumulator(str(run), tensor_size_guidance={"scalars": 0, "text": 0})
    reader.Reload()
    found = [
        (tag, tensor.step, make_ndarray(tensor.tensor_proto).item())
        for tag in reader.Tags()["tensors"]
        for tensor in reader.Tensors(tag)
    ]
    points, memory = split([(tag, step, value) for tag, step, value in found if not tag.startswith("sample/")])
    assert points == {key: float(np.float32(value)) for key, value in expected_points(run, first=False).items()}
    assert set(memory) <= {float(np.float32(value)) for value in expected_memory(run)}  # less what was repeated
    texts = {(tag, step): text.decode("utf-8") for tag, step, text in found if tag.startswith("sample/")}
    for number, sample in enumerate(read_events(run, "sample")[-4:]):  # two prompts at step 7, two at step 10
        text = texts.pop((f"sample/{1 + number % 2}", sample["step"]))
        assert sample["prompt"] in text
        assert sample["text"] in text
    assert texts == {}


def test_weights_and_biases_stores_each_step_once(run: Path) -> None:
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1  # the same run
    points: list[tuple[str, int, float]] = []
    configs: list[dict[str, Any]] = []
    for record in (record for file in files for record in read_wandb(file)):
        if record.HasField("run"):
            configs.append({item.key: json.loads(item.value_json) for item in record.run.config.update})
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        points += [(name, row.get("step", -1), v) for name, v in row.items() if isinstance(v, int | float)]
    stored, memory = split([point for point in points if "/" in point[0]])
    assert stored == expected_points(run, first=True)
    assert memory == expected_memory(run)
    assert configs[0]["hidden_dim"] == 32


def read_wandb(path: Path) -> Iterator[Any]:
    """Records of a log in LevelDB's format: https://github.com/google/leveldb/blob/main/doc/log_format.md."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, message = path.read_bytes(), 7, b""  # after the file's header
    while position < len(content):
        if (left := BLOCK - position % BLOCK) < 7:  # a record's header does not fit
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        message += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(message)
            message = b""


def test_mlflow_stores_each_step_once(run: Path) -> None:
    from mlflow import MlflowClient

    home = run.parents[1]
    client = MlflowClient(f"sqlite:///{(home / 'mlflow.db').as_posix()}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "traindeck"]
    (stored,) = client.search_runs([experiment.experiment_id])
    assert (stored.info.run_name, stored.info.status) == ("运行 1", "FINISHED")
    assert stored.data.params["hidden_dim"] == "32"
    history = [m for name in stored.data.metrics for m in client.get_metric_history(stored.info.run_id, name)]
    points, memory = split([(metric.key, metric.step, metric.value) for metric in history])
    assert points == expected_points(run, first=True)
    assert memory == expected_memory(run)
    sample = next(iter(read_events(run, "sample")))
    (file,) = home.glob(f"mlflow/*/artifacts/sample/1/{sample['step']:08d}.txt")
    assert sample["text"] in file.read_text(encoding="utf-8")


def test_rewards_and_their_parts_are_stored(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    rewards = ("--rewards", r"regex:^\d+$", "--rewards", "0.5*length:-4", "--rollout-max-new-tokens", "4")
    objective = ("--objective", "grpo", "--group-size", "2", *rewards, "--use-mlflow")
    data = str(pairs_file(tmp_path))
    train(tmp_path, *TINY, *objective, "--max-steps", "2", "--data", data, "--run-dir", "runs/rewards")
    client = MlflowClient(f"sqlite:///{(tmp_path / 'mlflow.db').as_posix()}")
    (experiment,) = [one for one in client.search_experiments() if one.name == "traindeck"]
    (stored,) = client.search_runs([experiment.experiment_id])
    last = read_events(tmp_path / "runs" / "rewards", "rollouts")[-1]
    scores = last["scores"]
    assert stored.data.metrics["rollouts/reward"] == last["reward"]
    assert stored.data.metrics["rollouts/scores/length:-4"] == scores["length:-4"]
    assert stored.data.metrics["rollouts/scores/regex:__d__"] == scores[r"regex:^\d+$"]
