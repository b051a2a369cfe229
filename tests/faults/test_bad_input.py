"""Bad input ends in one error event with a known code, its exit code and no traceback."""

from __future__ import annotations

import gzip
import io
import json
import os
import string
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from tests.core.trainer_process import TINY, TrainerResult, environment, read_until, run, send, start, text_file
from tests.reading import columnar_file, random_bytes, tar_archive
from trainer_core import protocol
from trainer_core.messages import is_known, template
from trainer_core.runs import checkpoint_dir


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "家 & home"
    folder.mkdir()
    return folder


def expect_error(result: TrainerResult, code: str, exit_code: int) -> protocol.Error:
    """Return the only error event, which must be the last event and have all parameters of its message."""
    error = result.error
    assert (error.code, result.code) == (code, exit_code), (error, result.stderr)
    assert error.exit_code == exit_code
    assert is_known(code)
    required = {name for _, name, _, _ in string.Formatter().parse("".join(template(code, "en"))) if name}
    assert required <= error.params.keys(), "the message has a parameter without a value"
    assert "Traceback" not in result.stderr
    assert isinstance(result.events[-1], protocol.Error)
    return error


def train(home: Path, data: Path | str, *arguments: str) -> TrainerResult:
    return run(home, "train", *TINY, "--max-steps", "2", "--run-dir", "run", "--data", str(data), *arguments)


def test_a_missing_file_is_rejected(home: Path) -> None:
    error = expect_error(train(home, home / "missing.txt"), "data.not_found", 4)
    assert str(error.params["path"]).endswith("missing.txt")


def damaged_content(name: str) -> bytes:
    """Content of a damaged file of the format in its name."""
    if name == "zip.parquet":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("rows.csv", "text\none\n")
        return file.getvalue()
    if name == "cut.parquet":
        return columnar_file(pa.table({"text": ["some words"] * 5000}), "parquet")[:-100]
    if name == "cut.jsonl.gz":
        return gzip.compress(json.dumps({"text": random_bytes(300_000).hex()}).encode() + b"\n")[:-50]
    if name == "cut.json":
        return b'[{"text": "some words"}, {"text": "some w'
    return tar_archive({"1.txt": b"some words" * 100, "2.txt": b"some words" * 100})[:2000]  # cut.tar


@pytest.mark.parametrize("name", ["zip.parquet", "cut.parquet", "cut.jsonl.gz", "cut.json", "cut.tar"])
def test_a_damaged_file_is_rejected_with_path_and_position(home: Path, name: str) -> None:
    (home / name).write_bytes(damaged_content(name))
    error = expect_error(train(home, home / name), "data.bad_format", 4)
    assert str(error.params["path"]).endswith(name)
    assert error.params["position"]


def test_a_text_shorter_than_one_sequence_is_rejected(home: Path) -> None:
    (home / "short.txt").write_text("Hello.", encoding="utf-8")
    expect_error(train(home, home / "short.txt"), "data.too_short", 4)


def test_data_that_needs_a_cache_is_rejected_before_the_run_directory_exists(home: Path) -> None:
    error = expect_error(train(home, text_file(home), "--no-token-cache"), "data.needs_cache", 4)
    assert str(error.params["path"]).endswith(".txt")
    assert not (home / "run").exists()


def test_training_without_data_is_rejected(home: Path) -> None:
    expect_error(run(home, "train", *TINY, "--max-steps", "2", "--run-dir", "run"), "data.none_given", 4)


def test_an_unknown_key_in_a_configuration_file_is_rejected_with_a_suggestion(home: Path) -> None:
    (home / "mine.yaml").write_text("batch_sise: 4\n", encoding="utf-8")
    error = expect_error(run(home, "train", "--config", "mine.yaml"), "config.unknown_key", 2)
    assert error.params["nearest"] == "batch_size"


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (["--batch-size", "0"], "config.bad_value"),
        (["--learning-rate", "fast"], "config.bad_value"),
        (["--lr-schedule", "zigzag"], "config.bad_value"),
        (["--batch-sise", "4"], "config.unknown_key"),
        (["--preset", "quickstat"], "config.unknown_preset"),
        (["--hidden-dim", "30", "--n-heads", "4"], "config.heads"),
        (["--resume", "nothing"], "run.not_found"),
        (["--batch-size"], "usage"),
        (["trian"], "usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_invalid_flags_are_rejected(home: Path, flags: list[str], code: str) -> None:
    expect_error(run(home, *flags), code, 2)


def test_in_a_terminal_an_error_is_one_sentence_on_stderr(home: Path) -> None:
    command = [sys.executable, "-m", "trainer_core", "train", "--batch-size", "0", "--output", "plain"]
    process = subprocess.run(command, capture_output=True, env=environment(home), cwd=home, timeout=60, check=False)
    assert process.returncode == 2
    lines = process.stderr.decode("utf-8").strip().splitlines()
    assert lines == ["The command line: “batch_size” was given “0”. Allowed: a whole number >= 1 and <= 65536."]


def test_a_missing_device_is_rejected(home: Path) -> None:
    expect_error(train(home, text_file(home), "--device", "cuda:7"), "device.not_available", 6)


def test_a_folder_that_contains_a_run_is_not_overwritten(home: Path) -> None:
    (home / "run").mkdir()
    (home / "run" / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    expect_error(train(home, text_file(home)), "run.exists", 2)
    assert (home / "run" / "config.yaml").read_text(encoding="utf-8") == "seed: 1\n"


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root can write anywhere")
def test_a_run_directory_without_write_permission_is_an_error(home: Path) -> None:
    data = text_file(home)
    home.chmod(0o500)
    try:
        expect_error(train(home, data), "disk.not_writable", 1)
    finally:
        home.chmod(0o700)


def test_a_run_directory_below_a_file_is_an_error(home: Path) -> None:
    (home / "run").write_text("a file", encoding="utf-8")
    expect_error(train(home, text_file(home)), "disk.not_writable", 1)


def waits_for_disk_space(event: protocol.AnyEvent) -> bool:
    return isinstance(event, protocol.Phase) and event.reason == "disk_full"


def test_a_run_waits_while_the_disk_is_full_and_a_stop_reports_unsaved_steps(home: Path, small_disk: Path) -> None:
    data, folder = text_file(home), small_disk / "run"
    arguments = ["train", *TINY, "--max-steps", "60", "--save-steps", "2", "--keep-last", "99", "--keep-best", "0"]
    paths = ["--data", str(data), "--run-dir", str(folder), "--cache-dir", str(home / "cache")]
    filler = small_disk / "filler"
    filler.write_bytes(bytes(1_500_000))
    process = start(home, *arguments, *paths, "--control", "stdin", stdin=subprocess.PIPE)
    events = read_until(process, waits_for_disk_space)
    assert checkpoint_dir.list_checkpoints(folder / "checkpoints")
    filler.unlink()
    events += read_until(process, lambda event: isinstance(event, protocol.Checkpoint))
    events += read_until(process, waits_for_disk_space)
    send(process, protocol.Stop(id=1))
    events += read_until(process)
    result = TrainerResult(process.wait(), events, "")
    error = expect_error(result, "disk.unsaved", 7)
    saved = checkpoint_dir.list_checkpoints(folder / "checkpoints")
    assert [path.name for path in saved] == [event.path for event in result.events_of(protocol.Checkpoint)]
    assert all(checkpoint_dir.find_problem(path) is None for path in saved)
    assert error.params["saved"] == result.events_of(protocol.Checkpoint)[-1].step
    leftovers = [path for path in (folder / "checkpoints").iterdir() if path not in saved]
    assert not leftovers, "incomplete checkpoints remain"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_failure_is_reported_on_a_full_disk(home: Path) -> None:
    (home / "run").mkdir()
    for name in ("log.txt", "events.jsonl"):
        (home / "run" / name).symlink_to("/dev/full")
    (home / "empty.txt").write_bytes(b"")
    result = train(home, home / "empty.txt")
    assert result.code == 4
    assert [event.code for event in result.events_of(protocol.Error)] == ["data.empty"]
    assert [event.code for event in result.events_of(protocol.Warn)] == ["events.not_written"]
    assert "Traceback" not in result.stderr
