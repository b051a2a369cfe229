"""The Plots page: plots, markers, crosshair, overlays, and export as pictures and tables."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QContextMenuEvent, QGuiApplication, QImage, QTextDocument
from PySide6.QtWidgets import QApplication, QFileDialog, QMenu
from pytestqt.qtbot import QtBot

from app.core.metrics.metric_store import MetricStore
from app.pages.plots.axes import Axis
from app.pages.plots.legend import Legend, LegendEntry
from app.pages.plots.page import PlotsPage
from app.pages.plots.plot_export_controller import PlotExportController
from app.pages.plots.plot_specs import MAX_OVERLAYS, Overlay, overlay_color
from app.theme.palette import DARK, LIGHT
from app.window.banner import BannerArea
from tests.events import rollouts
from tests.gui.conftest import MakeWindow, click
from tests.gui.plots_page import GIB, build_store, canvas, events, open_page, settle, show
from trainer_core import protocol

_COMMON_PLOTS = ["loss", "speed", "time", "learning_rate", "grad_norm"]
_GPU_PLOTS = ["gpu_util", "power", "temperature", "clock", "vram.0", "vram.1"]


@pytest.fixture
def page(qtbot: QtBot, qapp: QApplication) -> PlotsPage:
    return open_page(qtbot, qapp)


def hover(qtbot: QtBot, page: PlotsPage, name: str, x: float) -> None:
    """Move the mouse to a position of the x axis."""
    box = canvas(page, name)._box
    area: QRectF = box.sceneBoundingRect()
    low, high = canvas(page, name).x_range
    position = QPoint(round(area.left() + (x - low) / (high - low) * area.width()), round(area.center().y()))
    qtbot.mouseMove(canvas(page, name).viewport(), position + QPoint(2, 0))
    qtbot.mouseMove(canvas(page, name).viewport(), position)
    settle(qtbot, page)


def values(page: PlotsPage, name: str) -> list[str]:
    return page.charts[name].legend.values()


# --- plots -------------------------------------------------------------------------------------------


def test_the_overview_has_five_plots_and_detail_has_every_measured_gpu_value(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    assert page.grid.displayed == ["loss", "speed", "memory", "learning_rate", "grad_norm"]
    show(qtbot, page, page.painter.store or build_store(), detail=True)
    assert page.grid.displayed == [*_COMMON_PLOTS, *_GPU_PLOTS, "cpu", "ram"]
    assert not page.charts["memory"].isVisible()


def test_detail_shows_cpu_and_memory_without_a_gpu(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store(gpus=0), detail=True)
    assert page.grid.displayed == [*_COMMON_PLOTS, "cpu", "ram"]


def test_unchanged_and_invisible_plots_are_not_repainted(
    qtbot: QtBot, page: PlotsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted: list[str] = []
    paint = page.painter._paint_canvas
    monkeypatch.setattr(page.painter, "_paint_canvas", lambda *args: (painted.append(args[1]), paint(*args)))
    store = build_store()
    show(qtbot, page, store)
    assert set(painted) == set(page.grid.displayed)
    painted.clear()
    for _ in range(3):
        page.display(store)
    assert painted == []  # nothing changed
    page.resize(1100, 500)
    show(qtbot, page, store, detail=True)
    assert page.charts["ram"].canvas is None  # below the visible area
    bar = page._area.verticalScrollBar()
    bar.setValue(bar.maximum())
    qtbot.waitUntil(lambda: page.charts["ram"].canvas is not None)
    painted.clear()
    page.hide()
    for event in events(101):
        store.add(event)
    page.display(store)
    assert painted == []


def test_sub_page_axis_and_clipping_are_restored_at_the_next_start(make_window: MakeWindow) -> None:
    first = make_window()
    plots = first.window.plots
    plots.detail.click()
    plots.toolbar.clip.setChecked(True)
    plots.toolbar.axis_choice.setCurrentIndex(2)
    first.window.close()
    restored = make_window().window.plots
    assert (restored.toolbar.clip.isChecked(), restored.toolbar.axis) == (True, "time")
    assert restored.detail.isChecked()


# --- curves and axes ----------------------------------------------------------------------------------------


def store_with_gpus(*cards: protocol.Gpu) -> MetricStore:
    """A run whose driver reports these values."""
    store = MetricStore()
    for event in events(20, gpus=0):
        store.add(event)
        if isinstance(event, protocol.Hardware):
            store.add(protocol.Hardware(t=event.t, gpus=list(cards), host=event.host))
    return store


def test_values_that_the_driver_does_not_report_have_no_plot(qtbot: QtBot, page: PlotsPage) -> None:
    laptop = protocol.Gpu(index=0, name="NVIDIA GeForce RTX 4060 Laptop GPU", utilization=0.9, vram_used=5 * GIB)
    show(qtbot, page, store_with_gpus(laptop), detail=True)
    assert page.grid.displayed == [*_COMMON_PLOTS, "gpu_util", "vram.0", "cpu", "ram"]
    show(qtbot, page, store_with_gpus(protocol.Gpu(index=0, name="Tesla T4")))
    assert page.grid.displayed == [*_COMMON_PLOTS, "cpu", "ram"]
    assert page.tiles.tiles["memory"].value.text() == "–"


def test_distinct_vram_totals_have_a_curve_each_and_one_legend_entry(qtbot: QtBot, page: PlotsPage) -> None:
    sizes = [96 * GIB, 12 * GIB, 96 * GIB]
    cards = [protocol.Gpu(index=index, name="A", vram_used=GIB, vram_total=size) for index, size in enumerate(sizes)]
    show(qtbot, page, store_with_gpus(*cards))
    bounds = [line for line in page.painter.curves("memory") if line.style == "dashed"]
    assert [line.series for line in bounds] == ["vram_total.0", "vram_total.1"]
    assert page.charts["memory"].legend.summary().count("total") == 1


def test_each_gpu_has_a_plot_of_used_reserved_and_allocated_memory(qtbot: QtBot, page: PlotsPage) -> None:
    page.resize(1100, 3000)
    show(qtbot, page, build_store(), detail=True)
    assert values(page, "vram.1") == ["21.00", "17.00", "14.00", "48.00"]  # spilled memory is not reported
    assert canvas(page, "vram.1").y_range[0] == 0.0
    assert sorted(canvas(page, "temperature")._markers["thermal_throttling"].getData()[0])[0] == 51.0
    assert "thermal throttling" in page.charts["temperature"].legend.summary()
    assert "limit" in page.charts["power"].legend.summary()


def test_a_run_on_questions_shows_the_share_of_exact_answers(qtbot: QtBot, page: PlotsPage) -> None:
    store = build_store()
    show(qtbot, page, store, detail=True)
    assert "exact_match" not in page.grid.displayed
    for step, share in ((50, 0.0), (100, 0.97)):
        store.add(protocol.Eval(step=step, loss=1.0, perplexity=2.7, tokens=9, seconds=1, exact_match=share))
    show(qtbot, page, store)
    assert values(page, "exact_match") == ["97"]
    assert page.tiles.tiles["eval"].caption.text().startswith("exact match 97% · best 1.0000")


def test_each_part_of_a_reward_is_a_curve_if_there_are_several(qtbot: QtBot, page: PlotsPage) -> None:
    store = build_store()
    store.add(rollouts(50, scores={"exact": 0.25}))
    show(qtbot, page, store, detail=True)
    assert values(page, "reward") == ["0.50"]
    assert "reward_parts" not in page.grid.displayed
    store.add(rollouts(100, scores={"exact": 0.75, "number:0.01": 1.0}))
    show(qtbot, page, store)
    assert values(page, "reward_parts") == ["0.75", "1.00"]
    assert [curve.label for curve in page.painter.curves("reward_parts")] == ["exact", "number:0.01"]


def test_the_loss_on_neutral_text_is_a_plot_beside_the_eval_loss(qtbot: QtBot, page: PlotsPage) -> None:
    store = build_store()
    show(qtbot, page, store, detail=True)
    assert "neutral_loss" not in page.grid.displayed
    for step, loss in ((50, 3.0), (100, 3.5)):
        languages = {"neutral_loss_en": loss, "neutral_loss_zh": loss + 1}
        store.add(protocol.Eval(step=step, loss=1.0, perplexity=2.7, tokens=9, seconds=1, **languages))
    show(qtbot, page, store)
    assert values(page, "neutral_loss") == ["3.5000", "4.5000", "1.0000"]
    assert [curve.series for curve in page.painter.curves("neutral_loss")][-1] == "eval_loss"


def test_oom_recoveries_and_resumes_are_marked_and_have_legend_entries(qtbot: QtBot, page: PlotsPage) -> None:
    store = build_store()
    show(qtbot, page, store)
    legend = page.charts["loss"].legend
    assert "memory" not in legend.summary()
    store.add(
        protocol.OomRecovery(
            t=101.0, step=60, action="halved", during="forward", batch_size=4, gradient_accumulation_steps=2
        )
    )
    store.add(protocol.Hello(t=200.0, pid=1, run_dir="r", traindeck="0", python="3", torch="2", resumed_from_step=75))
    page.display(store)
    settle(qtbot, page)
    assert "OOM recovery; resumed" in legend.summary()
    positions = {kind: markers.getData()[0].tolist() for kind, markers in canvas(page, "loss")._markers.items()}
    assert (positions["oom_recovery"], positions["resume"]) == ([60.0], [75.0])
    assert "bad_step" not in positions


def test_the_x_axis_of_a_branched_run_starts_at_its_first_step(page: PlotsPage) -> None:
    store = MetricStore()
    for event in events(1000):
        if event.t > 900:
            store.add(event)
    page.display(store)
    assert page.painter.view().full_range == (900.0, 1050.0)
    page.toolbar.axis_choice.setCurrentIndex(1)
    assert page.painter.view().low == 900_000.0
    page.set_overlays([Overlay("from 0", build_store(10), overlay_color(0))])
    assert page.painter.view().low == 0.0


def test_clipping_outliers_keeps_a_spike_out_of_the_y_range(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store(spike=50))
    assert canvas(page, "loss").y_range[1] > 500.0
    qtbot.mouseClick(page.toolbar.clip, Qt.MouseButton.LeftButton, pos=QPoint(8, 8))
    settle(qtbot, page)
    assert canvas(page, "loss").y_range[1] < 6.0
    assert canvas(page, "loss").y_range[0] < 3.0
    page.toolbar.log_scale.setChecked(True)
    settle(qtbot, page)
    assert canvas(page, "loss").y_range[1] < 1.0  # powers of ten


def test_log_ticks_are_distinct_for_wide_and_narrow_ranges(qapp: object) -> None:
    axis = Axis("left")
    axis.setLogMode(x=False, y=True)
    for low, high, labels in (
        (1.59, 1.95, ["1.6", "1.7", "1.8", "1.9"]),
        (1.5, 40.0, ["2", "5", "10", "20"]),
        (1.5, 900.0, ["2", "5", "10", "20", "50", "100", "200", "500"]),
        (0.9e-6, 2000.0, ["1e-6", "1e-5", "0.0001", "0.001", "0.01", "0.1", "1", "10", "100", "1,000"]),
    ):
        ((spacing, values),) = axis.tickValues(math.log10(low), math.log10(high), 200.0)
        assert axis.tickStrings(values, 1.0, spacing or 0.0) == labels


def test_vertical_ticks_do_not_overlap(qapp: object) -> None:
    for low, high in ((955.0, 1045.0), (0.0, 0.0123), (2.31, 7.9), (0.0, 48.0), (1e-5, 3e-4)):
        for height in (24, 45, 60, 110, 300, 900):
            spacing, _ = Axis("left").tickSpacing(low, high, height)[0]
            assert spacing * height / (high - low) >= 11.9
            assert (high - low) / spacing <= 6.01
            assert height < 110 or (high - low) / spacing >= 2


def test_step_ticks_are_integers() -> None:
    ticks = Axis("bottom").tickValues(0.0, 2.02, 800)
    assert {value for _, values in ticks for value in values} == {0.0, 1.0, 2.0}


def test_time_ticks_are_whole_minutes_or_hours(qapp: object) -> None:
    axis = Axis("bottom")
    axis.set_is_duration(True)
    for high, labels in ((40.0, ["0:00:00", "0:00:10"]), (7200.0, ["0:00:00", "0:30:00"])):
        spacing, values = axis.tickValues(0.0, high, 500.0)[0]
        assert axis.tickStrings(values[:2], 1.0, spacing) == labels


# --- crosshair and range ------------------------------------------------------------------------------------------


def test_the_crosshair_shows_the_values_of_all_plots_at_its_position(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    newest = values(page, "speed")
    assert newest == ["5,100"]
    before = page.charts["loss"].legend.geometry()
    hover(qtbot, page, "grad_norm", 40.0)
    assert values(page, "speed") == ["5,040"]
    assert values(page, "loss") == ["3.6000", "3.5000"]  # of the nearest evaluation, step 50
    lines = {name: canvas(page, name)._crosshair_line for name in page.grid.displayed}
    assert {round(line.value()) for line in lines.values() if line.isVisible()} == {40}
    assert [name for name, line in lines.items() if line.label.isVisible()] == ["grad_norm"]
    assert page.charts["loss"].legend.geometry() == before  # the plot stays in place
    page._set_crosshair("grad_norm", None)
    settle(qtbot, page)
    assert values(page, "speed") == newest
    assert canvas(page, "loss")._crosshair is None


def test_keys_move_the_crosshair_zoom_pan_and_show_all(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    loss = canvas(page, "loss")
    loss.setFocus()
    full_range = loss.x_range
    qtbot.keyClick(loss, Qt.Key.Key_Right)
    assert page.painter.crosshair is not None
    first = page.painter.crosshair[0]
    qtbot.keyClick(loss, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert page.painter.crosshair[0] < first
    qtbot.keyClick(loss, Qt.Key.Key_Plus)
    settle(qtbot, page)
    low, high = loss.x_range
    assert high - low == pytest.approx((full_range[1] - full_range[0]) / 1.5)
    assert canvas(page, "speed").x_range == (low, high)
    qtbot.keyClick(loss, Qt.Key.Key_Right, Qt.KeyboardModifier.ControlModifier)
    settle(qtbot, page)
    assert loss.x_range[0] > low
    assert page.toolbar.show_all_button.isEnabled()
    qtbot.keyClick(loss, Qt.Key.Key_0)
    settle(qtbot, page)
    assert loss.x_range == full_range
    assert not page.toolbar.show_all_button.isEnabled()
    qtbot.keyClick(loss, Qt.Key.Key_Plus)
    qtbot.keyClick(loss, Qt.Key.Key_Minus)
    settle(qtbot, page)
    assert loss.x_range == pytest.approx(full_range)
    qtbot.keyClick(loss, Qt.Key.Key_Escape)
    assert page.painter.crosshair is None


def test_the_x_range_changes_only_when_the_run_exceeds_it(qtbot: QtBot, page: PlotsPage) -> None:
    store = build_store(397)
    show(qtbot, page, store)
    before = canvas(page, "loss").x_range
    assert 400 < before[1] < 420
    for event in list(events(399))[-4:]:
        store.add(event)
    page.display(store)
    settle(qtbot, page)
    assert canvas(page, "loss").x_range == before


# --- maximized plot and menu ------------------------------------------------------------------------------------------


def test_enter_maximizes_a_plot_and_escape_restores_all(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    qtbot.keyClick(canvas(page, "speed"), Qt.Key.Key_Return)
    assert [chart.name for chart in page.charts.values() if chart.isVisible()] == ["speed"]
    qtbot.waitUntil(lambda: page.charts["speed"].width() > 1000)
    texts = [action.text() for action in page.charts["speed"].menu().actions()]
    assert "Show all plots" in texts
    qtbot.keyClick(canvas(page, "speed"), Qt.Key.Key_Escape)
    assert page.charts["loss"].isVisible()


def test_the_menu_of_a_plot_opens_by_key_button_and_right_click(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    loss, chart = canvas(page, "loss"), page.charts["loss"]
    requested: list[str] = []
    chart.action_requested.connect(requested.append)

    def open_by(reason: QContextMenuEvent.Reason) -> None:
        position = QPoint(200, 60)
        QGuiApplication.sendEvent(loss.viewport(), QContextMenuEvent(reason, position, loss.mapToGlobal(position)))

    for open_menu in (
        lambda: open_by(QContextMenuEvent.Reason.Keyboard),
        lambda: open_by(QContextMenuEvent.Reason.Mouse),
        lambda: qtbot.keyClick(chart._menu_button, Qt.Key.Key_Space),
    ):
        open_menu()
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        qtbot.keyClick(menu, Qt.Key.Key_Down)
        qtbot.keyClick(menu, Qt.Key.Key_Return)
    assert requested == ["copy_picture"] * 3


def test_exports_are_disabled_without_data(page: PlotsPage) -> None:
    enabled = {action.objectName(): action.isEnabled() for action in page.charts["speed"].menu().actions()}
    assert not enabled["save_csv"]
    assert not enabled["copy_picture"]


# --- overlays ----------------------------------------------------------------------------------------------


def test_overlays_have_names_values_and_distinct_colors(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    removed: list[bool] = []
    page.overlay_removal_requested.connect(lambda: removed.append(True))
    assert not page.remove_overlays_button.isVisible()
    page.set_overlays(
        [Overlay(f"run {index}", build_store(60, loss=5.0 + index), overlay_color(index)) for index in range(10)]
    )
    settle(qtbot, page)
    legend = page.charts["loss"].legend
    assert legend.summary().startswith("mine ")
    assert all(f"run {index} " in legend.summary() for index in range(10))
    hover(qtbot, page, "loss", 50.0)
    assert values(page, "loss")[1:3] == ["4.1667", "5.1667"]
    assert len({(key.color, key.style) for key in canvas(page, "speed")._curves}) == 11
    assert len(canvas(page, "memory")._curves) == 11
    assert "checkpoint" not in legend.summary()
    click(qtbot, page.remove_overlays_button)
    assert removed == [True]
    assert not page.remove_overlays_button.isVisible()
    settle(qtbot, page)
    assert [key.series for key in canvas(page, "speed")._curves] == ["tokens_per_s"]


def test_overlays_are_displayed_without_a_current_run(qtbot: QtBot, page: PlotsPage) -> None:
    page.display(MetricStore())
    page.set_overlays([Overlay("yesterday", build_store(60, gpus=0), overlay_color(0))])
    settle(qtbot, page)
    assert page.run_names.summary() == "yesterday"
    assert page.charts["loss"].legend.summary().startswith("yesterday ")
    assert len(canvas(page, "speed")._curves) == 1
    show(qtbot, page, build_store())
    assert page.run_names.summary() == "mine; yesterday"


def test_run_names_are_above_the_plots_and_legends_have_only_values(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    names = [f"a long name of a run, 学习率 halved {index}" for index in range(6)]
    page.set_overlays(
        [Overlay(name, build_store(60, loss=5.0 + index), overlay_color(index)) for index, name in enumerate(names)]
    )
    for width in (560, 1100, 2400):
        page.resize(width, 800)
        qtbot.wait(20)
        settle(qtbot, page)
        strip = page.run_names
        assert strip.text().count("<span") == 14  # symbols and names of seven runs
        assert strip.heightForWidth(strip.width()) <= strip.height()
        for name in ("loss", "speed", "grad_norm"):
            legend = page.charts[name].legend
            assert "a long name" not in legend.text()
            assert width < 1100 or legend.heightForWidth(legend.width()) <= legend.height()  # not clipped
            assert all(name in legend.toolTip() for name in names)


def test_eval_curves_are_dotted_with_overlays(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    page.set_overlays([Overlay("other", build_store(60), overlay_color(0))])
    settle(qtbot, page)
    styles = {line.series: set[str]() for line in page.painter.curves("loss")}
    for line in page.painter.curves("loss"):
        styles[line.series].add(line.style)
    assert styles == {"train_loss": {"line"}, "eval_loss": {"dotted"}}
    *_, last = page.charts["loss"].legend.entries
    assert (last.symbol, last.label) == ("dotted", "eval")


def test_a_picture_with_overlays_has_the_names_of_the_runs(
    qtbot: QtBot, page: PlotsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(qtbot, page, build_store())
    page.set_overlays([Overlay("the other one", build_store(60), overlay_color(0))])
    settle(qtbot, page)
    chart, texts = page.charts["speed"], []
    picture = chart.picture
    monkeypatch.setattr(chart, "picture", lambda: (texts.append(chart.legend.text()), picture())[1])
    assert page.picture("speed").width() == 2 * chart.width()
    assert "the&nbsp;other&nbsp;one" in texts[0]
    assert "the&nbsp;other&nbsp;one" not in chart.legend.text()


def test_ten_overlays_have_distinct_colors_and_are_dashed_from_the_sixth() -> None:
    runs = [Overlay(str(index), MetricStore(), overlay_color(index)) for index in range(MAX_OVERLAYS)]
    assert [run.style for run in runs] == ["line"] * 5 + ["dashed"] * 5
    assert len({run.color for run in runs} | {"curve_a"}) == MAX_OVERLAYS + 1  # and the displayed run
    assert (
        len({getattr(DARK, run.color) for run in runs})
        == len({getattr(LIGHT, run.color) for run in runs})
        == MAX_OVERLAYS
    )


def test_short_curves_are_thicker_on_a_high_dpi_screen(
    qtbot: QtBot, page: PlotsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canvas(page, "loss"), "devicePixelRatioF", lambda: 2.0)
    show(qtbot, page, build_store(2000))

    def width(series: str) -> float:
        items = {key.series: item for key, item in canvas(page, "loss")._curves.items()}
        return float(items[series].opts["pen"].widthF())

    assert (width("train_loss"), width("eval_loss")) == (1.0, 2.0)  # thick lines of many points are slow
    page.retheme(DARK)
    settle(qtbot, page)
    assert width("eval_loss") == 2.0


# --- export ---------------------------------------------------------------------------------------


@pytest.fixture
def exporter(page: PlotsPage) -> PlotExportController:
    return PlotExportController(page, BannerArea(), page)


def finish(exporter: PlotExportController) -> None:
    """Wait until the files are written."""
    exporter.executor.submit(lambda: None).result()
    QApplication.processEvents()


def table(text: str, separator: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), delimiter=separator))


def test_a_csv_file_has_all_curves_and_axes_and_a_byte_order_mark(
    qtbot: QtBot, page: PlotsPage, exporter: PlotExportController, tmp_path: Path
) -> None:
    show(qtbot, page, build_store())
    page.toolbar.smoothing.setValue(60)
    path = tmp_path / "损失 1" / "loss.csv"
    path.parent.mkdir()
    exporter.save("loss", path)
    finish(exporter)
    content = path.read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    rows = table(content.decode("utf-8-sig"))
    assert list(rows[0]) == ["step", "tokens", "seconds", "Loss: train, smoothed 0.60", "Loss: eval", "Loss: train"]
    assert len(rows) == 104  # 100 steps and 4 evaluations
    assert rows[0]["step"] == "1"
    assert rows[0]["tokens"] == "1000"
    assert [row["Loss: eval"] for row in rows if row["Loss: eval"]] == ["3.75", "3.5", "3.25", "3"]
    assert list(path.parent.iterdir()) == [path]  # no temporary file is left


def test_copied_data_of_several_runs_has_a_run_column(
    qtbot: QtBot, page: PlotsPage, exporter: PlotExportController
) -> None:
    show(qtbot, page, build_store())
    page.set_overlays([Overlay("other, 二", build_store(10), overlay_color(0))])
    page.charts["speed"].action_requested.emit("copy_data")
    finish(exporter)
    rows = table(QGuiApplication.clipboard().text(), "\t")
    assert {row["run"] for row in rows} == {"mine", "other, 二"}
    assert len(rows) == 110
    assert rows[-1]["Tokens per second"] == "5010"


def test_a_picture_has_twice_the_resolution_of_the_screen_and_no_button(
    qtbot: QtBot, page: PlotsPage, exporter: PlotExportController, tmp_path: Path
) -> None:
    show(qtbot, page, build_store())
    exporter.save("loss", tmp_path / "loss.png")
    finish(exporter)
    picture = QImage(str(tmp_path / "loss.png"))
    assert picture.width() == 2 * page.charts["loss"].width()
    assert picture.pixelColor(picture.width() // 2, 8).name() == LIGHT.surface
    assert page.charts["loss"]._menu_button.isVisible()  # hidden only in the picture
    page.resize(1100, 500)
    show(qtbot, page, build_store(), detail=True)
    assert page.charts["vram.1"].canvas is None  # outside the visible area
    picture = page.picture("vram.1").toImage()
    colors = {picture.pixelColor(x, y).name() for x in (400, 401) for y in range(60, picture.height() - 60)}
    assert LIGHT.curve_a in colors


def test_the_suggested_file_is_named_after_the_run_in_the_last_used_folder(
    qtbot: QtBot, page: PlotsPage, exporter: PlotExportController, tmp_path: Path
) -> None:
    show(qtbot, page, build_store())
    page.charts["loss"].action_requested.emit("save_png")
    [first] = page.findChildren(QFileDialog)
    assert Path(first.selectedFiles()[0]).name == "mine-loss.png"
    first.fileSelected.emit(str(tmp_path / "损失.png"))
    first.reject()
    finish(exporter)
    assert (tmp_path / "损失.png").is_file()
    page.charts["speed"].action_requested.emit("save_csv")
    second = next(dialog for dialog in page.findChildren(QFileDialog) if dialog is not first)
    assert Path(second.selectedFiles()[0]) == tmp_path / "mine-speed.csv"
    second.reject()


@pytest.mark.parametrize(
    ("kind", "typed", "written"),
    [("png", "lr0.001-loss", "lr0.001-loss.png"), ("csv", "loss.txt", "loss.txt.csv"), ("png", "a.PNG", "a.PNG")],
)
def test_a_missing_suffix_of_the_format_is_appended(
    qtbot: QtBot, page: PlotsPage, exporter: PlotExportController, tmp_path: Path, kind: str, typed: str, written: str
) -> None:
    show(qtbot, page, build_store())
    page.charts["loss"].action_requested.emit(f"save_{kind}")
    [dialog] = page.findChildren(QFileDialog)
    dialog.fileSelected.emit(str(tmp_path / typed))
    dialog.reject()
    finish(exporter)
    [path] = tmp_path.iterdir()
    assert path.name == written
    assert path.read_bytes().startswith(b"\x89PNG" if kind == "png" else b"\xef\xbb\xbf")


def test_a_file_is_not_replaced_without_a_question_after_its_suffix_was_appended(
    qtbot: QtBot, page: PlotsPage, exporter: PlotExportController, tmp_path: Path
) -> None:
    show(qtbot, page, build_store())
    earlier = tmp_path / "lr0.001-loss.png"
    earlier.write_bytes(b"earlier")
    page.charts["loss"].action_requested.emit("save_png")
    [first] = page.findChildren(QFileDialog)
    first.fileSelected.emit(str(tmp_path / "lr0.001-loss"))
    first.reject()
    finish(exporter)
    assert earlier.read_bytes() == b"earlier"
    second = next(dialog for dialog in page.findChildren(QFileDialog) if dialog is not first)
    assert second.isVisible()
    assert Path(second.selectedFiles()[0]) == earlier
    second.reject()


def test_a_failed_export_shows_a_banner(
    qtbot: QtBot, page: PlotsPage, exporter: PlotExportController, tmp_path: Path
) -> None:
    show(qtbot, page, build_store())
    (tmp_path / "file").write_text("x", encoding="utf-8")
    for name in ("loss.csv", "loss.png"):
        exporter.save("loss", tmp_path / "file" / name)
        finish(exporter)
        (content,) = exporter._banners.contents
        text = content.format_text()
        assert name in text
        assert "could not be saved" in text


@pytest.mark.parametrize("names", [("Forward", "Data wait", "Optimizer"), ("前向", "等待数据", "优化器")])
def test_a_legend_breaks_lines_only_between_entries(qapp: QApplication, names: tuple[str, ...]) -> None:
    legend = Legend()
    values = ("60.5", "0.477", "13.6")
    entries = [LegendEntry("area", "curve_a", *named) for named in zip(names, values, strict=True)]
    legend.display(entries, LIGHT, max_rows=9)
    document = QTextDocument()
    document.setHtml(legend.text())
    document.setDefaultFont(legend.font())
    for width in range(200, 700):
        document.setTextWidth(width)
        document.size()  # lays out the text
        layout = document.firstBlock().layout()
        starts = [layout.lineAt(row).textStart() for row in range(layout.lineCount())]
        assert {document.firstBlock().text()[start] for start in starts} == {"■"}
