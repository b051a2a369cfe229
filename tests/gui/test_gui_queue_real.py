"""Queue with real runs, one of which fails."""

from __future__ import annotations

from pathlib import Path

from pytestqt.qtbot import QtBot

from tests.gui.conftest import MakeWindow, click
from tests.gui.test_gui_real import TINY
from trainer_core.runs.run_dir import RunDir, read_yaml, summarize


def test_real_runs_are_trained_one_after_another_despite_a_failure(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, home: Path
) -> None:
    texts = [tmp_path / name for name in ("我的 文本.txt", "missing.txt")]
    for text in texts:
        text.write_text("The quick brown fox jumps over the lazy dog. 春眠不觉晓。\n" * 500, encoding="utf-8")
    controller = make_window(None)
    window, form = controller.window, controller.form
    window.show_page("queue")
    qtbot.waitUntil(window.queue.isVisible)
    for name, value in {**TINY, "max_steps": "20", "compile": "off"}.items():
        form.set_text(name, value)
    for name, text, rate in (("第一个", texts[0], "1e-3"), ("missing", texts[1], "1e-3"), ("last", texts[0], "3e-3")):
        form.set_data([str(text)])
        form.set_run_name(name)
        form.set_text("learning_rate", rate)
        click(qtbot, window.run_bar.queue)
    texts[1].unlink()
    click(qtbot, window.queue.start_button)
    items = controller.queue_controller.queue.items
    qtbot.waitUntil(lambda: items[2].state == "done", timeout=150_000)
    assert [item.state for item in items] == ["done", "failed", "done"]
    assert items[1].error == "data.not_found"
    runs = [RunDir(home / "runs" / name) for name in ("第一个", "last")]
    assert [summarize(run).state for run in runs] == ["finished", "finished"]
    assert [read_yaml(run.config)["learning_rate"] for run in runs] == [1e-3, 3e-3]
    for item, run in zip((items[0], items[2]), runs, strict=True):
        assert item.best_loss == summarize(run).best_loss
        assert item.steps == 20
    assert controller.active_run.record.metrics.series("train_loss")[0][-1] == 20  # the plots show the newest run
    table = window.queue.table
    assert "missing.txt" in table.row_model.data(table.row_model.index(1, 4))
