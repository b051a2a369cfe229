"""The plots: which there are, what they mark, values read at one place, other runs laid over, pictures and tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QRectF, Qt
from PySide6.QtGui import QContextMenuEvent, QFontMetrics, QGuiApplication, QImage
from PySide6.QtWidgets import QApplication, QFileDialog, QMenu, QToolTip
from pytestqt.qtbot import QtBot

from app.__main__ import configure_application
from app.core.metrics.metric_store import MetricStore
from app.pages.plots import plot_data, plot_specs, view_range
from app.pages.plots.axes import Axis, time_text
from app.pages.plots.canvas import Canvas
from app.pages.plots.overlays import MOST, Overlay, look, token
from app.pages.plots.page import PlotsPage
from app.pages.plots.plot_export_controller import PlotSaver
from app.theme import style
from app.theme.palette import DARK, LIGHT
from app.window.banner import BannerArea
from tests.gui.conftest import MakeWindow
from trainer_core import protocol

_GIB = 1024**3
_COMMON = ["loss", "speed", "time", "learning_rate", "grad_norm"]
_OF_GPUS = ["gpu_util", "power", "temperature", "clock", "vram.0", "vram.1"]


def events(steps: int = 100, *, gpus: int = 2, loss: float = 4.0, spike: int = 0) -> Iterator[protocol.AnyEvent]:
    """A run with a spike of the loss, checkpoints at every 25th step, and heat in its second half on GPU 1."""
    yield protocol.Hello(t=0.0, pid=1, run_dir="r", traindeck="0", python="3", torch="2")
    spent = protocol.StepTime(data=1, transfer=2, forward=3, backward=4, optimizer=5, other=6)
    for step in range(1, steps + 1):
        now = float(step)
        yield protocol.Step(
            t=now, step=step, epoch=0.1, tokens=1000 * step, samples=step, learning_rate=1e-3, grad_norm=1.0,
            loss=500.0 if step == spike else loss - step / steps, tokens_per_s=5000.0 + step, samples_per_s=5.0,
            time_ms=spent,
        )  # fmt: skip
        cards = [
            protocol.Gpu(
                index=index, name="NVIDIA RTX A6000", utilization=0.9, vram_used=(20 + index) * _GIB, power_w=250.0,
                vram_total=48 * _GIB, torch_allocated=14 * _GIB, torch_reserved=17 * _GIB, temperature_c=70.0,
                clock_mhz=1800, power_limit_w=300.0, throttle=["thermal"] if index and step > steps // 2 else [],
            )
            for index in range(gpus)
        ]  # fmt: skip
        host = protocol.Host(ram_used=8 * _GIB, ram_total=64 * _GIB, rss=2 * _GIB, cpu=0.5, disk_free=9)
        yield protocol.Hardware(t=now, gpus=cards, host=host)
        if step % 25 == 0:
            yield protocol.Eval(t=now, step=step, loss=loss - step / steps, perplexity=None, tokens=1, seconds=1.0)
            yield protocol.Checkpoint(t=now, step=step, path=f"s{step}", bytes=1, seconds=1.0, kind="regular")


def filled(steps: int = 100, *, gpus: int = 2, loss: float = 4.0, spike: int = 0) -> MetricStore:
    store = MetricStore()
    for event in events(steps, gpus=gpus, loss=loss, spike=spike):
        store.add(event)
    return store


@pytest.fixture
def page(qtbot: QtBot, qapp: object) -> PlotsPage:
    configure_application(qapp)  # type: ignore[arg-type]
    style.apply_theme(qapp, LIGHT, "en")  # type: ignore[arg-type]
    made = PlotsPage(LIGHT)
    qtbot.addWidget(made)
    made.resize(1100, 900)
    made.build()
    made.show()
    qtbot.waitExposed(made)
    return made


def show(qtbot: QtBot, page: PlotsPage, store: MetricStore, *, detail: bool = False) -> None:
    if detail:
        qtbot.mouseClick(page.detail, Qt.MouseButton.LeftButton)
    page.display(store, name="mine")
    qtbot.wait(20)
    settle(qtbot, page)


def settle(qtbot: QtBot, page: PlotsPage) -> None:
    """What takes too long at once is painted a little later."""
    qtbot.waitUntil(lambda: not page._later.isActive() and not page.painter.is_busy)


def canvas(page: PlotsPage, name: str) -> Canvas:
    return page._canvas(name)


def hover(qtbot: QtBot, page: PlotsPage, name: str, x: float) -> None:
    """The mouse, over a place of the x axis."""
    box = canvas(page, name)._box
    area: QRectF = box.sceneBoundingRect()
    low, high = canvas(page, name).x_range
    at = QPoint(round(area.left() + (x - low) / (high - low) * area.width()), round(area.center().y()))
    qtbot.mouseMove(canvas(page, name).viewport(), at + QPoint(2, 0))
    qtbot.mouseMove(canvas(page, name).viewport(), at)
    settle(qtbot, page)


def values(page: PlotsPage, name: str) -> list[str]:
    return page.charts[name].legend.values()


# --- which plots -------------------------------------------------------------------------------------------


def test_the_overview_is_calm_and_detail_has_a_plot_for_all_that_gpus_tell(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    assert page.board.shown == ["loss", "speed", "memory", "learning_rate", "grad_norm"]
    show(qtbot, page, page._shown.store or filled(), detail=True)
    assert page.board.shown == [*_COMMON, *_OF_GPUS, "cpu", "ram"]
    assert "GPU 1 RTX A6000" in page.charts["power"].legend.summary() or page.charts["power"].canvas is None
    assert not page.charts["memory"].isVisible()


def test_without_a_gpu_detail_shows_cpu_and_memory_instead(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled(gpus=0), detail=True)
    assert page.board.shown == [*_COMMON, "cpu", "ram"]


def test_plots_that_cannot_be_seen_cost_nothing(qtbot: QtBot, page: PlotsPage, monkeypatch: pytest.MonkeyPatch) -> None:
    painted: list[str] = []
    paint = plot_data.paint
    monkeypatch.setattr(plot_data, "paint", lambda *args: (painted.append(args[1]), paint(*args)))
    store = filled()
    show(qtbot, page, store)
    assert set(painted) == set(page.board.shown)
    painted.clear()
    for _ in range(3):
        page.display(store)
    assert painted == []  # nothing changed
    page.resize(1100, 500)
    show(qtbot, page, store, detail=True)
    assert page.charts["ram"].canvas is None  # further down than one sees
    bar = page._area.verticalScrollBar()
    bar.setValue(bar.maximum())
    qtbot.waitUntil(lambda: page.charts["ram"].canvas is not None)
    painted.clear()
    page.hide()
    for event in events(101):
        store.add(event)
    page.display(store)
    assert painted == []


def test_sub_page_axis_and_clipping_are_remembered(make_window: MakeWindow) -> None:
    first = make_window()
    plots = first.window.plots
    plots.detail.click()
    plots.controls.clip.setChecked(True)
    plots.controls.axis_choice.setCurrentIndex(2)
    first.window.close()
    again = make_window().window.plots
    assert (again.controls.clip.isChecked(), again.controls.axis) == (True, "time")
    assert again.detail.isChecked()


# --- what they show ----------------------------------------------------------------------------------------


def of_cards(*cards: protocol.Gpu) -> MetricStore:
    """Of a run whose driver tells this much of these cards."""
    store = MetricStore()
    for event in events(20, gpus=0):
        store.add(event)
        if isinstance(event, protocol.Hardware):
            store.add(protocol.Hardware(t=event.t, gpus=list(cards), host=event.host))
    return store


def test_what_a_driver_never_tells_has_no_plot_and_no_figure(qtbot: QtBot, page: PlotsPage) -> None:
    laptop = protocol.Gpu(index=0, name="NVIDIA GeForce RTX 4060 Laptop GPU", utilization=0.9, vram_used=5 * _GIB)
    show(qtbot, page, of_cards(laptop), detail=True)
    assert page.board.shown == [*_COMMON, "gpu_util", "vram.0", "cpu", "ram"]
    show(qtbot, page, of_cards(protocol.Gpu(index=0, name="Tesla T4")))
    assert page.board.shown == [*_COMMON, "cpu", "ram"]
    assert page.tiles.value("memory") == "–"


def test_each_different_size_of_cards_has_a_line_and_all_of_them_one_word(qtbot: QtBot, page: PlotsPage) -> None:
    sizes = [96 * _GIB, 12 * _GIB, 96 * _GIB]
    cards = [protocol.Gpu(index=place, name="A", vram_used=_GIB, vram_total=size) for place, size in enumerate(sizes)]
    show(qtbot, page, of_cards(*cards))
    bounds = [line for line in page.painter.lines("memory") if line.look == "dashed"]
    assert [line.series for line in bounds] == ["vram_total.0", "vram_total.1"]
    assert page.charts["memory"].legend.summary().count("total") == 1


def test_of_each_gpu_there_is_what_is_used_reserved_and_allocated(qtbot: QtBot, page: PlotsPage) -> None:
    page.resize(1100, 3000)
    show(qtbot, page, filled(), detail=True)
    assert values(page, "vram.1") == ["21.00", "17.00", "14.00", "48.00"]  # no spill: nobody told of it
    assert canvas(page, "vram.1").y_range[0] == 0.0
    heat = canvas(page, "temperature")._marks["hot"][0]
    assert sorted(heat.getData()[0])[0] == 51.0
    assert "slowed by heat" in page.charts["temperature"].legend.summary()
    assert "limit" in page.charts["power"].legend.summary()


def test_moves_of_memory_and_restarts_are_marked_and_named_only_where_there_are_any(
    qtbot: QtBot, page: PlotsPage
) -> None:
    store = filled()
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
    assert "memory made to fit; resumed" in legend.summary()
    assert canvas(page, "loss")._marks["memory"][0].getData()[0].tolist() == [60.0]
    assert [line.value() for line in canvas(page, "loss")._lines] == [75.0]


def test_a_run_that_branched_off_another_one_begins_at_the_left_edge(page: PlotsPage) -> None:
    store = MetricStore()
    for event in events(1000):
        if event.t > 900:
            store.add(event)
    page.display(store)
    view = page.painter.view()
    assert (view.low, view.high) == (900.0, 1050.0)
    assert view_range.moved(view_range.Looking(950.0, 1000.0, None), "all", (900.0, 1050.0)).low == 900.0
    assert view_range.whole([store], "tokens")[0] == 900_000.0
    assert view_range.whole([store, filled(10)], "step")[0] == 0.0, "beside one that began at 0"


def test_one_spike_does_not_flatten_the_curve_when_outliers_are_clipped(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled(spike=50))
    assert canvas(page, "loss").y_range[1] > 500.0
    qtbot.mouseClick(page.controls.clip, Qt.MouseButton.LeftButton, pos=QPoint(8, 8))
    settle(qtbot, page)
    assert canvas(page, "loss").y_range[1] < 6.0
    assert canvas(page, "loss").y_range[0] < 3.0
    page.controls.log_scale.setChecked(True)
    settle(qtbot, page)
    assert canvas(page, "loss").y_range[1] < 1.0  # powers of ten


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.59, 1.95, ["1.6", "1.7", "1.8", "1.9"]),
        (1.5, 40.0, ["2", "5", "10", "20"]),
        (1.5, 900.0, ["2", "5", "10", "20", "50", "100", "200", "500"]),
        (0.9e-6, 2000.0, ["1e-6", "1e-5", "1e-4", "0.001", "0.01", "0.1", "1", "10", "100", "1,000"]),
    ],
)
def test_a_log_scale_has_ticks_that_are_told_apart_however_far_it_reaches(
    qapp: object, low: float, high: float, said: list[str]
) -> None:
    axis = Axis("left")
    axis.setLogMode(x=False, y=True)
    ((spacing, values),) = axis.tickValues(math.log10(low), math.log10(high), 200.0)
    assert axis.tickStrings(values, 1.0, spacing) == said  # type: ignore[arg-type]


@pytest.mark.parametrize("height", [24, 45, 60, 110, 300, 900])
@pytest.mark.parametrize(("low", "high"), [(955.0, 1045.0), (0.0, 0.0123), (2.31, 7.9), (0.0, 48.0), (1e-5, 3e-4)])
def test_ticks_of_a_height_are_few_and_never_lie_on_one_another(height: int, low: float, high: float) -> None:
    spacing, _ = Axis("left").tickSpacing(low, high, height)[0]
    assert spacing * height / (high - low) >= 11.9
    assert (high - low) / spacing <= 6.01
    if height >= 110:
        assert (high - low) / spacing >= 2


def test_between_two_steps_is_no_tick() -> None:
    ticks = Axis("bottom").tickValues(0.0, 2.02, 800)
    assert {value for _, values in ticks for value in values} == {0.0, 1.0, 2.0}


def test_time_is_written_as_a_clock_with_ticks_at_whole_minutes_and_hours(qapp: object) -> None:
    axis = Axis("bottom")
    axis.show_time(True)
    for high, said in ((40.0, ["0:00:00", "0:00:10"]), (7200.0, ["0:00:00", "0:30:00"])):
        spacing, values = axis.tickValues(0.0, high, 500.0)[0]
        assert axis.tickStrings(values[:2], 1.0, spacing) == said
    assert time_text(90_000) == "1 d 1:00"


# --- reading values ------------------------------------------------------------------------------------------


def test_the_mouse_over_one_plot_reads_the_values_of_all_at_the_same_place(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    newest = values(page, "speed")
    assert newest == ["5,100"]
    before = page.charts["loss"].legend.geometry()
    hover(qtbot, page, "grad_norm", 40.0)
    assert values(page, "speed") == ["5,040"]
    assert values(page, "loss") == ["3.6000", "3.5000"]  # of the nearest evaluation, that of step 50
    crosses = {name: canvas(page, name)._cross for name in page.board.shown}
    assert {round(cross[0]) for cross in crosses.values() if cross} == {40}
    assert [name for name, cross in crosses.items() if cross and cross[1]] == ["grad_norm"]
    assert page.charts["loss"].legend.geometry() == before  # the plot stays in place
    page._read_at("grad_norm", None)
    settle(qtbot, page)
    assert values(page, "speed") == newest
    assert canvas(page, "loss")._cross is None


@pytest.mark.parametrize("norm", [0.000167, 1.31e-5, 0.0123, 12.3, 98_700.0])
def test_a_gradient_norm_however_small_is_shown_whole(qapp: QApplication, norm: float) -> None:
    measure = QFontMetrics(qapp.font()).horizontalAdvance
    assert measure(plot_specs.text("grad_norm", norm)) <= measure(plot_specs.widest("grad_norm"))


def test_arrows_read_values_and_keys_zoom_move_and_show_all(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    loss = canvas(page, "loss")
    loss.setFocus()
    whole = loss.x_range
    qtbot.keyClick(loss, Qt.Key.Key_Right)
    assert page._shown.cross is not None
    first = page._shown.cross[0]
    qtbot.keyClick(loss, Qt.Key.Key_Left, Qt.KeyboardModifier.ShiftModifier)
    assert page._shown.cross[0] < first
    qtbot.keyClick(loss, Qt.Key.Key_Plus)
    settle(qtbot, page)
    low, high = loss.x_range
    assert high - low == pytest.approx((whole[1] - whole[0]) / 1.5)
    assert canvas(page, "speed").x_range == (low, high)
    qtbot.keyClick(loss, Qt.Key.Key_Right, Qt.KeyboardModifier.ControlModifier)
    settle(qtbot, page)
    assert loss.x_range[0] > low
    assert page.controls.fit.isEnabled()
    qtbot.keyClick(loss, Qt.Key.Key_0)
    settle(qtbot, page)
    assert loss.x_range == whole
    assert not page.controls.fit.isEnabled()
    qtbot.keyClick(loss, Qt.Key.Key_Plus)
    qtbot.keyClick(loss, Qt.Key.Key_Minus)
    settle(qtbot, page)
    assert loss.x_range == pytest.approx(whole)
    qtbot.keyClick(loss, Qt.Key.Key_Escape)
    assert page._shown.cross is None


def test_a_run_that_grows_leaves_the_axis_where_it_is_for_a_while(qtbot: QtBot, page: PlotsPage) -> None:
    store = filled(397)
    show(qtbot, page, store)
    before = canvas(page, "loss").x_range
    assert 400 < before[1] < 420
    for event in list(events(399))[-4:]:
        store.add(event)
    page.display(store)
    settle(qtbot, page)
    assert canvas(page, "loss").x_range == before


# --- one plot alone ------------------------------------------------------------------------------------------


def test_a_double_click_on_its_title_enlarges_a_plot_and_escape_brings_all_back(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    qtbot.mouseDClick(page.charts["speed"]._title, Qt.MouseButton.LeftButton)
    qtbot.mouseRelease(page.charts["speed"]._title, Qt.MouseButton.LeftButton)  # the double click left it pressed
    assert [chart.name for chart in page.charts.values() if chart.isVisible()] == ["speed"]
    qtbot.waitUntil(lambda: page.charts["speed"].width() > 1000)
    texts = [action.text() for action in page.charts["speed"].menu().actions()]
    assert "Show all plots again" in texts
    qtbot.keyClick(canvas(page, "speed"), Qt.Key.Key_Escape)
    assert page.charts["loss"].isVisible()


def test_the_menu_of_a_plot_opens_by_key_button_and_right_click(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    loss, chart = canvas(page, "loss"), page.charts["loss"]
    asked: list[str] = []
    chart.asked.connect(asked.append)

    def open_by(reason: QContextMenuEvent.Reason) -> None:
        at = QPoint(200, 60)
        QGuiApplication.sendEvent(loss.viewport(), QContextMenuEvent(reason, at, loss.mapToGlobal(at)))

    for opened in (
        lambda: open_by(QContextMenuEvent.Reason.Keyboard),
        lambda: open_by(QContextMenuEvent.Reason.Mouse),
        lambda: qtbot.keyClick(chart._menu_button, Qt.Key.Key_Space),
    ):
        opened()
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        qtbot.keyClick(menu, Qt.Key.Key_Down)
        qtbot.keyClick(menu, Qt.Key.Key_Return)
    assert asked == ["copy_picture"] * 3


def test_the_menu_of_a_plot_without_data_offers_nothing_to_save(page: PlotsPage) -> None:
    enabled = {action.objectName(): action.isEnabled() for action in page.charts["speed"].menu().actions()}
    assert not enabled["save_csv"]
    assert not enabled["copy_picture"]
    assert not any(action.isEnabled() for action in page.menu().actions())


# --- other runs ----------------------------------------------------------------------------------------------


def test_runs_laid_over_have_their_names_values_and_colours(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    removed: list[bool] = []
    page.overlays_removed.connect(lambda: removed.append(True))
    assert not page.compared.remove.isVisible()
    page.overlay([Overlay(f"run {place}", filled(60, loss=5.0 + place), token(place)) for place in range(10)])
    settle(qtbot, page)
    legend = page.charts["loss"].legend
    assert legend.summary().startswith("mine ")
    assert all(f"run {place} " in legend.summary() for place in range(10))
    hover(qtbot, page, "loss", 50.0)
    assert values(page, "loss")[1:3] == ["4.1667", "5.1667"]
    drawn = {name: curve[1:] for name, curve in canvas(page, "speed")._curves.items()}
    assert len(drawn) == 11
    assert len(set(drawn.values())) == 11  # none looks like another
    assert len(canvas(page, "memory")._curves) == 11
    assert "checkpoint" not in legend.summary()
    qtbot.mouseClick(page.compared.remove, Qt.MouseButton.LeftButton)
    assert removed == [True]
    assert not page.compared.remove.isVisible()
    settle(qtbot, page)
    assert set(canvas(page, "speed")._curves) == {"tokens_per_s"}


def test_runs_that_are_looked_at_before_any_is_trained_stand_alone(qtbot: QtBot, page: PlotsPage) -> None:
    page.display(MetricStore())
    page.overlay([Overlay("yesterday", filled(60, gpus=0), token(0))])
    settle(qtbot, page)
    assert page.compared.names.summary() == "yesterday"
    assert page.charts["loss"].legend.summary().startswith("yesterday ")
    assert len(canvas(page, "speed")._curves) == 1
    show(qtbot, page, filled())
    assert page.compared.names.summary() == "mine; yesterday"


@pytest.mark.parametrize("width", [560, 1100, 2400])
def test_names_of_runs_stand_once_above_the_plots_and_only_values_in_them(
    qtbot: QtBot, page: PlotsPage, width: int
) -> None:
    page.resize(width, 800)
    show(qtbot, page, filled())
    names = [f"a long name of a run, 学习率 halved {place}" for place in range(6)]
    page.overlay([Overlay(name, filled(60, loss=5.0 + place), token(place)) for place, name in enumerate(names)])
    settle(qtbot, page)
    strip = page.compared.names
    assert strip.visible_count == 7
    assert strip.heightForWidth(strip.width()) <= strip.height()
    for name in ("loss", "speed", "grad_norm"):
        legend = page.charts[name].legend
        assert "a long name" not in legend.text()
        assert legend.heightForWidth(legend.width()) <= legend.height()  # nothing is cut
        assert legend.visible_count >= 7 or name != "loss"  # there is room for the values of all runs
        assert all(name in legend.toolTip() for name in names)


def test_beside_other_runs_the_eval_curves_are_dotted_and_the_legend_says_so(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    page.overlay([Overlay("other", filled(60), token(0))])
    settle(qtbot, page)
    looks = {line.series: set[str]() for line in page.painter.lines("loss")}
    for line in page.painter.lines("loss"):
        looks[line.series].add(line.look)
    assert looks == {"train_loss": {"line"}, "eval_loss": {"dotted"}}
    *_, last = page.charts["loss"].legend.entries
    assert (last.sign, last.words) == ("dotted", "eval")


def test_a_picture_of_several_runs_says_which_is_which(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, filled())
    alone = page.picture("speed")
    page.overlay([Overlay("the other one", filled(60), token(0))])
    settle(qtbot, page)
    several = page.picture("speed")
    assert several.width() == alone.width()
    strip = several.copy(0, 0, several.width(), several.height() - alone.height()).toImage()  # above the plot
    colours = {strip.pixelColor(x, y).name() for x in range(strip.width()) for y in range(strip.height())}
    assert {LIGHT.curve_a, LIGHT.curve_b, LIGHT.text} <= colours


def test_every_part_of_a_step_is_named_in_full_in_its_legend(qtbot: QtBot, page: PlotsPage) -> None:
    page.resize(908, 700)  # as in a window of 1280 pixels
    show(qtbot, page, filled(), detail=True)
    legend = page.charts["time"].legend
    assert legend.visible_count == 7
    assert legend.toolTip() == ""  # all names are whole
    assert legend.heightForWidth(legend.width()) <= legend.height()


def test_each_of_ten_runs_has_a_colour_and_from_the_sixth_on_dashes() -> None:
    runs = [Overlay(str(place), MetricStore(), token(place)) for place in range(MOST)]
    assert [look(run) for run in runs] == ["line"] * 5 + ["dashed"] * 5
    assert len({run.token for run in runs} | {"curve_a"}) == MOST + 1  # and the run on show
    assert len({getattr(DARK, run.token) for run in runs}) == len({getattr(LIGHT, run.token) for run in runs}) == MOST


def test_on_a_fine_screen_a_curve_of_few_points_is_as_thick_as_on_others(
    qtbot: QtBot, page: PlotsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canvas(page, "loss"), "devicePixelRatioF", lambda: 2.0)
    show(qtbot, page, filled(2000))

    def width(name: str) -> float:
        return float(canvas(page, "loss")._curves[name][0].opts["pen"].widthF())

    assert (width("train"), width("eval")) == (1.0, 2.0)  # of many points it would take several times as long
    page.retheme(DARK)
    settle(qtbot, page)
    assert width("eval") == 2.0


# --- pictures and tables ---------------------------------------------------------------------------------------


@pytest.fixture
def saver(page: PlotsPage) -> PlotSaver:
    return PlotSaver(page, BannerArea(LIGHT), page)


def table(text: str, separator: str = ",") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), delimiter=separator))


def test_a_table_has_all_curves_and_axes_and_excel_reads_it(
    qtbot: QtBot, page: PlotsPage, saver: PlotSaver, tmp_path: Path
) -> None:
    show(qtbot, page, filled())
    page.controls.smoothing.setValue(60)
    path = tmp_path / "损失 1" / "loss.csv"
    path.parent.mkdir()
    saver.save({"loss": path})
    qtbot.waitUntil(lambda: not saver.is_busy)
    content = path.read_bytes()
    assert content.startswith(b"\xef\xbb\xbf")
    rows = table(content.decode("utf-8-sig"))
    assert list(rows[0]) == ["step", "tokens", "seconds", "Loss: train, smoothed 0.60", "Loss: eval", "Loss: train"]
    assert len(rows) == 104  # 100 steps and 4 evaluations
    assert rows[0]["step"] == "1"
    assert rows[0]["tokens"] == "1000"
    assert [row["Loss: eval"] for row in rows if row["Loss: eval"]] == ["3.75", "3.5", "3.25", "3"]
    assert list(path.parent.iterdir()) == [path]  # nothing half-written beside it


def test_data_of_several_runs_is_copied_with_their_names(qtbot: QtBot, page: PlotsPage, saver: PlotSaver) -> None:
    show(qtbot, page, filled())
    page.overlay([Overlay("other, 二", filled(10), token(0))])
    page.charts["speed"].asked.emit("copy_data")
    qtbot.waitUntil(lambda: not saver.is_busy)
    rows = table(QGuiApplication.clipboard().text(), "\t")
    assert {row["run"] for row in rows} == {"mine", "other, 二"}
    assert len(rows) == 110
    assert rows[-1]["Tokens per second"] == "5010"


def test_all_plots_are_saved_into_a_folder_of_their_own_as_sharp_pictures(
    qtbot: QtBot, page: PlotsPage, saver: PlotSaver, tmp_path: Path
) -> None:
    show(qtbot, page, filled())
    saver.save_to_new_folder(tmp_path, page.board.shown, "png")
    (folder,) = tmp_path.iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "loss.png", "speed.png", "memory.png", "learning-rate.png", "grad-norm.png",
    }  # fmt: skip
    picture = QImage(str(folder / "loss.png"))
    assert picture.width() == 2 * page.charts["loss"].width()
    assert picture.pixelColor(picture.width() // 2, 8).name() == LIGHT.surface
    assert page.charts["loss"]._menu_button.isVisible()  # it is not on the picture, but still on the page


def test_a_plot_is_saved_under_the_runs_name_where_the_last_one_went_and_that_is_told(
    qtbot: QtBot, page: PlotsPage, saver: PlotSaver, tmp_path: Path
) -> None:
    show(qtbot, page, filled())
    page.charts["loss"].asked.emit("save_png")
    [first] = page.findChildren(QFileDialog)
    assert Path(first.selectedFiles()[0]).name == "mine-loss.png"
    first.fileSelected.emit(str(tmp_path / "损失.png"))
    first.reject()
    qtbot.waitUntil(lambda: QToolTip.text() == f"Saved: {tmp_path / '损失.png'}")
    page.charts["speed"].asked.emit("save_csv")
    second = next(each for each in page.findChildren(QFileDialog) if each is not first)
    assert Path(second.selectedFiles()[0]) == tmp_path / "mine-speed.csv"
    second.reject()


def test_plots_further_down_the_page_are_saved_too(
    qtbot: QtBot, page: PlotsPage, saver: PlotSaver, tmp_path: Path
) -> None:
    page.resize(1100, 500)
    show(qtbot, page, filled(), detail=True)
    asked: list[tuple[str, list[str]]] = []
    page.saving_asked.connect(lambda what, names: asked.append((what, names)))
    page.saving_asked.disconnect(saver._on_save_requested)  # which would ask for a folder
    page.menu().actions()[0].trigger()
    assert asked == [("save_png", page.board.shown)]
    saver.save_to_new_folder(tmp_path, asked[0][1], "png")
    picture = QImage(str(next(tmp_path.glob("*/vram-1.png"))))
    drawn = {picture.pixelColor(x, y).name() for x in (400, 401) for y in range(60, picture.height() - 60)}
    assert LIGHT.curve_a in drawn


def test_a_file_that_cannot_be_written_is_told_in_one_sentence(
    qtbot: QtBot, page: PlotsPage, saver: PlotSaver, tmp_path: Path
) -> None:
    show(qtbot, page, filled())
    (tmp_path / "taken").write_text("x", encoding="utf-8")
    for name in ("loss.csv", "loss.png"):
        saver.save({"loss": tmp_path / "taken" / name})
        qtbot.waitUntil(lambda: not saver.is_busy)
        (said,) = saver._banners.texts
        assert name in said
        assert "could not be saved" in said
