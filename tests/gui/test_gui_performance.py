"""The Performance page: fast paths, step time, figures, bad steps."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.execution_info import ExecutionInfo
from app.core.metrics.metric_store import MetricStore
from app.core.run_state import ProcessStarted, RunState
from app.pages.performance import figures
from app.pages.performance.table_cards import show_step_time
from app.theme.palette import LIGHT
from tests.gui.conftest import MakeWindow, wait_until_loaded
from tests.gui.demo_run import write_run
from trainer_core import protocol


def open_run(
    make_window: MakeWindow, qtbot: QtBot, home: Path, language: str = "en", *, gpu: bool = True
) -> Controller:
    """Open an earlier run on the Performance page."""
    run = write_run(home / "runs" / "demo", "quickstart", ["builtin:python"], steps=500, gpu=gpu)
    controller = make_window("ok", language)
    controller.open_run(run.path)
    wait_until_loaded(qtbot, controller)
    controller.window.show_page("performance")
    controller.render()
    return controller


def fast_path_rows(controller: Controller) -> list[list[str]]:
    """Cell texts of the table of fast paths, without the header."""
    table = controller.window.performance.fast_paths.table.text()
    lines = [re.findall("<td.*?>(.*?)</td>", line) for line in table.split("</tr>")]
    return [[unescape(cell).replace("\u200b", "") for cell in line] for line in lines[1:] if line]


def visible_tiles(controller: Controller) -> dict[str, str]:
    tiles = controller.window.performance.tiles
    return {name: tile.value.text() for name, tile in tiles.items() if not tile.isHidden()}


def test_fast_paths_in_use_come_first_with_choice_gain_error_and_reason(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    controller = open_run(make_window, qtbot, home)
    rows = fast_path_rows(controller)
    assert rows[0] == ["✓", "Compiled model", "inductor", "×1.83", "8e-5", "Matches the reference."]
    assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)  # ✓ before –
    reasons = {row[1]: row[-1] for row in rows}
    assert reasons["CUDA graphs"] == "The run is too short: setup takes 12.4 s and saves about 3.07 s."
    assert reasons["Chunked loss"] == "Its error relative to the reference, 0.0123, exceeds 0.005."
    assert "compiled in 34.2 s" in controller.window.performance.fast_paths.facts.text()


def test_the_page_is_translated_to_chinese(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    controller = open_run(make_window, qtbot, home)
    controller.set_language("zh")
    assert fast_path_rows(controller)[0] == ["✓", "编译模型", "inductor", "×1.83", "8e-5", "与参考实现一致。"]
    page = controller.window.performance
    assert page.tiles["noise"].title.text() == "梯度噪声"
    assert "异常步: 1 个，最近为第 297 步：已跳过" in page.step_time.note.text()
    controller.window.show_page("log")
    controller.window.log.search.setText("第 297 步异常")
    qtbot.waitUntil(lambda: "样本 1204, 88, 19533" in controller.window.log.text.toPlainText())


def test_a_reason_without_spaces_does_not_make_the_page_wider_than_the_window(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    controller = open_run(make_window, qtbot, home)
    page = controller.window.performance
    for size in ((1280, 800), (895, 560)):
        controller.window.resize(*size)
        qtbot.wait(50)
        content, viewport = page._area.widget(), page._area.viewport()
        assert content is not None
        assert content.minimumSizeHint().width() <= content.width() <= viewport.width(), size
        assert any("_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112" in row[-1] for row in fast_path_rows(controller))


def test_tooltips_explain_mfu_and_gradient_noise(make_window: MakeWindow, qtbot: QtBot, home: Path) -> None:
    controller = open_run(make_window, qtbot, home)
    assert set(visible_tiles(controller)) == set(figures.TILES)
    tiles = controller.window.performance.tiles
    assert visible_tiles(controller)["energy"] == "0.894 Wh"
    assert "NVIDIA RTX A6000, bf16, 155 TFLOP/s" in tiles["mfu"].toolTip()
    assert "(6 per parameter, plus causal attention)" in tiles["mfu"].toolTip()
    assert tiles["noise"].toolTip() == "Little gain from batches above about 95 sequences"


def test_the_mfu_tile_explains_an_unknown_peak() -> None:
    execution = ExecutionInfo()
    execution.add(protocol.Performance(
        step=1, data_ratio=0.1, compute_ratio=0.8, flops_per_token=1e9, peak_name="NVIDIA A10G, bf16"
    ))  # fmt: skip
    tile = figures.tiles(MetricStore(), execution)["mfu"]
    assert (tile.value, tile.caption) == ("–", "the peak of this GPU is unknown")
    assert tile.tooltip.endswith("no peak is listed for NVIDIA A10G, bf16")


def test_the_parts_of_the_last_step_are_listed_with_their_shares(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    page = open_run(make_window, qtbot, home).window.performance
    assert set(figures.part_times(page._metrics)) == set(figures.PARTS) - {"sync", "generation"}  # type: ignore[arg-type]
    store, times = MetricStore(), protocol.StepTime(data=1, transfer=0, forward=5, backward=9, optimizer=2, other=1)
    for step in (1, 2):
        times.sync = 2.0 * step  # gradient all-reduce of several GPUs
        values = {"epoch": 0.1, "tokens": 1, "samples": 1, "loss": 1.0, "learning_rate": 1.0}
        rates = {"tokens_per_s": 1.0, "samples_per_s": 1.0}
        store.add(protocol.Step(t=float(step), step=step, time_ms=times, **values, **rates))  # type: ignore[arg-type]
    show_step_time(page.step_time, store, ExecutionInfo(), LIGHT)
    first, *_, last = (re.findall("<td.*?>(.*?)</td>", row) for row in page.step_time.table.text().split("</tr>")[:-1])
    assert first[:3] == ["Backward", "9.00 ms", "40.9 %"]
    assert last[1:] == ["0.00 ms", "0 %", ""]
    assert "Gradient all-reduce" in page.step_time.table.text()


def test_a_run_of_an_older_trainer_shows_its_step_times_and_a_note(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    """Events of protocol 1.1: no fast paths, no performance, no time for checkpoints."""
    run = write_run(home / "runs" / "old", "quickstart", ["builtin:python"], steps=100, gpu=False)
    text = run.events.read_text(encoding="utf-8")
    for field in ('"fast_paths":[],', ',"fast_paths":[]', ',"bad_steps":0'):
        assert field in text or field == '"fast_paths":[],'
        text = text.replace(field, "")
    run.events.write_text(text.replace('"checkpoint":0.0,', ""), encoding="utf-8")
    controller = make_window("ok")
    controller.open_run(run.path)
    wait_until_loaded(qtbot, controller)
    controller.window.show_page("performance")
    controller.render()
    assert set(visible_tiles(controller)) == {"step"}
    assert controller.window.performance.fast_paths.note.text() == "This run did not report its fast paths."
    assert controller.window.performance.flops.isHidden()
    assert controller.window.plots.details_button.isHidden()


def test_the_page_has_a_placeholder_before_any_run(make_window: MakeWindow) -> None:
    controller = make_window("ok")
    controller.window.show_page("performance")
    controller.render()
    page = controller.window.performance
    assert page._placeholder.isVisible()
    assert not page._area.isVisible()


def test_the_plots_page_lists_the_fast_paths_and_opens_the_details(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    controller = open_run(make_window, qtbot, home)
    window = controller.window
    window.show_page("plots")
    qtbot.waitUntil(lambda: "Attention (flash) ×1.31" in window.plots.execution_label.text())
    assert "FlashAttention" not in window.plots.execution_label.text()  # not in use
    window.plots.details_button.click()
    assert window.performance.isVisible()


def test_bad_steps_are_marked_on_the_loss_plot_and_named_in_its_legend(
    make_window: MakeWindow, qtbot: QtBot, home: Path
) -> None:
    controller = open_run(make_window, qtbot, home)
    window = controller.window
    window.show_page("plots")
    markers = window.plots.charts["loss"].canvas._markers
    qtbot.waitUntil(lambda: "bad_step" in markers and list(markers["bad_step"].getData()[0]) == [297.0])
    assert "bad step" in window.plots.charts["loss"].legend.summary()


def test_a_compiling_run_is_displayed_and_can_be_stopped(make_window: MakeWindow) -> None:
    controller = make_window("ok")
    machine, bar = controller.active_run.machine, controller.window.run_bar
    machine.feed(ProcessStarted("x"), 0.0)
    machine.feed(protocol.Phase(phase="compiling"), 1.0)
    controller.render_run_bar()
    compiling_state = machine.state
    assert bar.state_label.text() == "Compiling"
    assert bar.status_label.text() == "compiling"
    assert bar.stop.isEnabled()
    assert bar.progress_bar.maximum() == 0  # unknown duration: a busy indicator
    machine.feed(protocol.Phase(phase="training"), 2.0)
    assert (compiling_state, machine.state) == (RunState.COMPILING, RunState.TRAINING)
