"""Run folders: names, and differences between configurations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil

from app.core.history import run_files


def test_only_settings_that_differ_are_listed_and_missing_ones_have_their_default() -> None:
    configs = [{"learning_rate": 3e-4, "seed": 1}, {"learning_rate": 1e-3, "seed": 1}, {"seed": 1}]
    [(knob, values)] = run_files.config_differences(configs)
    assert knob.name == "learning_rate"
    assert values == [3e-4, 1e-3, knob.default]
    assert run_files.config_differences([{"dropout": 0}, {"dropout": 0.0}]) == []


# --- folders -------------------------------------------------------------------------------------------


def create_run(root: Path, name: str) -> Path:
    path = root / name
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").write_text("preset: cpu\n", encoding="utf-8")
    return path


def test_existing_names_and_names_that_are_invalid_on_windows_are_rejected(tmp_path: Path) -> None:
    run = create_run(tmp_path, "run")
    create_run(tmp_path, "other")
    problems = {"ok 名字": "", "run": "", "": "runs.name_required", "other": "runs.name_exists"}
    problems |= dict.fromkeys(("a/b", "a:b", "CON", "com1.txt", "dot.", " blank", "x" * 81, ".."), "runs.name_invalid")
    for name, problem in problems.items():
        assert run_files.name_problem(run, name) == problem, name


def test_a_running_or_missing_run_cannot_be_renamed(tmp_path: Path) -> None:
    run = create_run(tmp_path, "run")
    owner = {"pid": os.getpid(), "started": psutil.Process().create_time()}
    (run / "run.lock").write_text(json.dumps(owner), encoding="utf-8")
    assert run_files.name_problem(run, "new") == "runs.rename_active"
    assert run_files.name_problem(tmp_path / "gone", "new") == "runs.not_found"


def test_a_run_from_a_checkpoint_gets_an_unused_name_in_the_folder_of_the_original(tmp_path: Path) -> None:
    run = create_run(tmp_path, "晚间 run")
    first = run_files.new_branch_path(run, 500)
    assert first == tmp_path / "晚间 run-from-500"
    first.mkdir()
    assert run_files.new_branch_path(run, 500).name == "晚间 run-from-500-2"
