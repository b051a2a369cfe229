"""A resume never damages a run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, finish, run, send, start, text_file
from tests.recording_sink import RecordingSink
from trainer_core import protocol, run_plan
from trainer_core.messages import TraindeckError
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir, summarize
from trainer_core.train import run_fingerprint
from trainer_core.wire import EventDispatcher

FIRST, NEWEST = "step-00000004", "step-00000008"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of eight steps."""
    home = tmp_path_factory.mktemp("home")
    data = str(text_file(home))
    arguments = ("--max-steps", "8", "--save-steps", "4", "--eval-steps", "0", "--sample-steps", "0")
    result = run(home, "train", *TINY, *arguments, "--run-dir", "run", "--data", data)
    assert result.code == 0, result.stderr
    return home


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (["--n-heads", "4"], "checkpoint.mismatch"),  # the weights have the same shapes
        (["--data", "builtin:tasks"], "data.changed"),
    ],
)
def test_a_rejected_resume_leaves_the_run_unchanged(home: Path, change: list[str], code: str) -> None:
    files = [home / "run" / name for name in ("config.yaml", "tokenizer.json")]
    before = [path.read_bytes() for path in files]
    result = run(home, "train", "--resume", "run", "--max-steps", "12", *change)
    assert result.error.code == code
    assert [path.read_bytes() for path in files] == before
    summary = summarize(RunDir(home / "run"))
    assert (summary.state, summary.error) == ("finished", None)


def test_a_checkpoint_outside_of_a_run_is_rejected(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run" / "checkpoints" / NEWEST, tmp_path / "取出 alone")
    with pytest.raises(TraindeckError) as error:
        plan_resume(tmp_path / "取出 alone")
    assert error.value.code == "checkpoint.of_no_run"


def test_a_new_run_from_an_older_checkpoint_contains_a_copy_of_that_checkpoint(home: Path) -> None:
    older = home / "run" / "checkpoints" / FIRST
    process = start(
        home, "train", "--resume", str(older), "--run-dir", "branch", "--control", "stdin", stdin=subprocess.PIPE
    )
    send(process, protocol.Stop())
    result = finish(process)
    assert result.code == 3
    assert result.events_of(protocol.Done)[0].steps == 4
    checkpoint, skipped = checkpoint_dir.latest_valid(home / "branch" / "checkpoints")
    assert checkpoint is not None
    assert (checkpoint.name, skipped) == (FIRST, [])


# --- run directory of a resume ---------------------------------------------------------------


@pytest.fixture
def two_checkpoints(tmp_path: Path) -> RunDir:
    created = RunDir(tmp_path / "run")
    created.create()
    created.config.write_text("data: [here.txt]\n", encoding="utf-8")
    for step in (4, 8):
        folder = created.checkpoints / checkpoint_dir.folder_name(step)
        folder.mkdir()
        (folder / "state.json").write_bytes(b"{}")
        checkpoint_dir.write_manifest(folder, step, "regular", None)
    return created


def plan_resume(resume: Path, run_dir: Path | None = None) -> run_plan.RunPlan:
    return run_plan.plan_run({"preset": None, "config_file": None, "run_dir": run_dir, "resume": str(resume)})


def test_an_older_checkpoint_is_never_resumed_into_an_existing_run(two_checkpoints: RunDir) -> None:
    with pytest.raises(TraindeckError, match="already contains a run"):
        plan_resume(two_checkpoints.checkpoints / FIRST, two_checkpoints.path)


def test_the_newest_checkpoint_continues_its_run_for_any_form_of_its_path(two_checkpoints: RunDir) -> None:
    newest = two_checkpoints.checkpoints / FIRST / ".." / NEWEST
    assert plan_resume(newest).run.path == two_checkpoints.path.resolve()


def test_the_newest_checkpoint_with_a_run_dir_starts_a_new_run(two_checkpoints: RunDir) -> None:
    run_dir = two_checkpoints.path.with_name("new")
    assert plan_resume(two_checkpoints.checkpoints / NEWEST, run_dir).run.path == run_dir


def test_changes_that_follow_from_other_settings_are_not_reported() -> None:
    sink = RecordingSink()
    before = {"batch_size": 16, "eval_sequences": 16, "threads": 2}
    run_fingerprint.warn_about_changes(
        RunContext(EventDispatcher(sink)), before, {"batch_size": 32, "eval_sequences": 32, "threads": 2}
    )
    assert [event.params["what"] for event in sink.events_of(protocol.Warn)] == ["batch_size"]
