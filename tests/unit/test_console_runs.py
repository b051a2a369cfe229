"""The list of runs on a terminal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trainer_core.console import runs
from trainer_core.runs.run_dir import RunState, RunSummary

RUNS = Path("home") / "runs"


def summary(name: str, state: RunState, step: int, loss: float | None) -> RunSummary:
    return RunSummary(RUNS / name, state, 0.0, step=step, best_loss=loss, checkpoints=1)


def test_runs_are_listed_as_a_translated_table() -> None:
    summaries = [summary("我的 运行", "stopped", 104, 4.20945), summary("quick", "finished", 4, None)]
    assert runs.format_runs(summaries, RUNS, "zh").splitlines() == [
        "运行       状态     步  最佳损失",
        "---------- ------- ---- --------",
        "我的 运行  已停止  104    4.2095",
        "quick      已完成    4         -",
    ]
    assert "stopped" in runs.format_runs(summaries, RUNS, "en")


def test_the_name_of_an_interrupted_run_is_quoted_for_the_shell() -> None:
    for name, argument in (("plain-1.5", "plain-1.5"), ("50% & 快", '"50% & 快"')):
        assert runs.format_runs([summary(name, "interrupted", 7, None)], RUNS, "en").endswith(
            f"train --resume {argument}"
        )


def test_the_three_newest_failed_runs_are_listed_with_the_reason() -> None:
    failed = [
        replace(summary(f"try-{n}", "failed", 0, None), error=("data.empty", {"path": "a.txt"})) for n in range(5)
    ]
    *_, failures = runs.format_runs([summary("good", "finished", 9, None), *failed], RUNS, "en").split("\n\n")
    assert failures.splitlines() == [f"try-{n}: a.txt contains no text." for n in range(3)]
    assert runs.format_runs(failed[:1], RUNS, "zh").endswith("try-0：a.txt 中没有任何文本。")


def test_an_empty_list_names_the_folder() -> None:
    assert str(RUNS) in runs.format_runs([], RUNS, "en")
    assert str(RUNS) in runs.format_runs([], RUNS, "zh")
