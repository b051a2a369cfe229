"""`prepare --preview` and `prepare` as processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.core.trainer_process import TrainerResult, environment, run, text_file
from trainer_core import protocol

FLAGS = ("--vocab-size", "320", "--max-seq-len", "32", "--batch-size", "4")


def report_of(result: TrainerResult) -> protocol.DataReport:
    (report,) = result.events_of(protocol.DataReport)
    assert isinstance(report, protocol.DataReport)
    return report


def test_preview_and_prepare_emit_reports_and_preview_writes_no_cache(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    preview = run(tmp_path, "prepare", "--preview", *FLAGS, "--data", str(data))
    assert preview.code == 0
    assert not (tmp_path / "cache").exists()
    prepared = run(tmp_path, "prepare", *FLAGS, "--data", str(data))
    assert prepared.code == 0
    assert (tmp_path / "cache").is_dir()
    for report in (report_of(preview), report_of(prepared)):
        assert report.complete
        assert report.read.characters == len(data.read_text(encoding="utf-8"))
        assert len(report.samples) == 5
        assert report.steps_per_epoch == -(-report.samples_per_epoch // 4)


def test_a_plain_preview_has_no_colors(tmp_path: Path) -> None:
    data = text_file(tmp_path)
    command = [sys.executable, "-X", "utf8", "-m", "trainer_core", "prepare", "--preview", "--output", "plain"]
    chinese_environment = {**environment(tmp_path), "TRAINDECK_LANG": "zh"}
    process = subprocess.run(
        [*command, *FLAGS, "--data", str(data)],
        capture_output=True,
        env=chinese_environment,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    output = process.stdout.decode("utf-8")
    for text in ("已读取全部", "文档长度（词元）", "输入模型的前几个样本", "序列长度 32", "[["):
        assert text in output
    assert "\x1b" not in output


def test_missing_data_ends_with_its_exit_code(tmp_path: Path) -> None:
    result = run(tmp_path, "prepare", "--preview", "--data", str(tmp_path / "no.txt"))
    assert (result.error.code, result.code) == ("data.not_found", 4)
