"""A resume never damages a run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.core.trainer import TINY, finish, run, start, text_file
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
    more = ("--max-steps", "8", "--save-steps", "4", "--eval-steps", "0", "--sample-steps", "0")
    ended = run(home, "train", *TINY, *more, "--run-dir", "run", "--data", data)
    assert ended.code == 0, ended.stderr
    return home


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (["--n-heads", "4"], "checkpoint.mismatch"),  # the weights have the same shapes
        (["--data", "builtin:tasks"], "data.changed"),
    ],
)
def test_a_rejected_resume_leaves_the_run_unchanged(home: Path, change: list[str], code: str) -> None:
    kept = [home / "run" / name for name in ("config.yaml", "tokenizer.json")]
    before = [path.read_bytes() for path in kept]
    ended = run(home, "train", "--resume", "run", "--max-steps", "12", *change)
    assert ended.error.code == code
    assert [path.read_bytes() for path in kept] == before
    summary = summarize(RunDir(home / "run"))
    assert (summary.state, summary.error) == ("finished", None)


def test_a_checkpoint_outside_of_a_run_is_rejected(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run" / "checkpoints" / NEWEST, tmp_path / "取出 alone")
    with pytest.raises(TraindeckError) as refused:
        planned(tmp_path / "取出 alone")
    assert refused.value.code == "checkpoint.of_no_run"


def test_a_new_run_from_an_older_checkpoint_holds_a_copy_of_it(home: Path) -> None:
    older = home / "run" / "checkpoints" / FIRST
    process = start(
        home, "train", "--resume", str(older), "--run-dir", "branch", "--control", "stdin", stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(protocol.encode(protocol.Stop()))
    process.stdin.flush()
    ended = finish(process)
    assert ended.code == 3
    assert ended.of(protocol.Done)[0].steps == 4
    found, skipped = checkpoint_dir.latest_valid(home / "branch" / "checkpoints")
    assert found is not None
    assert (found.name, skipped) == (FIRST, [])


# --- which folder a resume trains in ---------------------------------------------------------------


@pytest.fixture
def two_checkpoints(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    made.config.write_text("data: [here.txt]\n", encoding="utf-8")
    for step in (4, 8):
        folder = made.checkpoints / checkpoint_dir.folder_name(step)
        folder.mkdir()
        (folder / "state.json").write_bytes(b"{}")
        checkpoint_dir.write_manifest(folder, step, "regular", None)
    return made


def planned(resume: Path, run_dir: Path | None = None) -> run_plan.RunPlan:
    return run_plan.plan_run({"preset": None, "config_file": None, "run_dir": run_dir, "resume": str(resume)})


def test_an_older_checkpoint_is_never_resumed_into_an_existing_run(two_checkpoints: RunDir) -> None:
    with pytest.raises(TraindeckError, match="already contains a run"):
        planned(two_checkpoints.checkpoints / FIRST, two_checkpoints.path)


def test_the_newest_checkpoint_continues_its_run_for_any_form_of_its_path(two_checkpoints: RunDir) -> None:
    newest = two_checkpoints.checkpoints / FIRST / ".." / NEWEST
    assert planned(newest).run.path == two_checkpoints.path.resolve()


def test_the_newest_checkpoint_with_a_run_dir_starts_a_new_run(two_checkpoints: RunDir) -> None:
    wanted = two_checkpoints.path.with_name("new")
    assert planned(two_checkpoints.checkpoints / NEWEST, wanted).run.path == wanted


def test_changes_that_follow_from_other_settings_are_not_reported() -> None:
    kept = RecordingSink()
    before = {"batch_size": 16, "eval_sequences": 16, "threads": 2}
    run_fingerprint.warn_about_changes(
        RunContext(EventDispatcher(kept)), before, {"batch_size": 32, "eval_sequences": 32, "threads": 2}
    )
    assert [event.params["what"] for event in kept.of(protocol.Warn)] == ["batch_size"]
