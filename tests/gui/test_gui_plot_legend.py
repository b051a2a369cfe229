"""The legends of plots: hiding curves, smoothing and overlaid runs in all plots."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QMenu
from pytestqt.qtbot import QtBot

from app import texts
from app.core.metrics.metric_store import MetricStore
from app.pages.plots.legend import Legend
from app.pages.plots.page import PlotsPage
from app.pages.plots.plot_specs import Overlay, overlay_color, run_key
from app.theme.palette import DARK
from tests.events import rollouts
from tests.gui.plots_page import build_store, canvas, events, open_page, settle, show


@pytest.fixture
def page(qtbot: QtBot, qapp: QApplication) -> PlotsPage:
    return open_page(qtbot, qapp)


def place(qtbot: QtBot, legend: Legend, label: str) -> QPoint:
    """Move the mouse to an entry of a legend, and return its position."""
    index = [entry.label for entry in legend.entries].index(label)
    hovered: list[str] = []
    legend.linkHovered.connect(hovered.append)
    qtbot.mouseMove(legend, legend.rect().bottomRight())  # outside all entries
    for y in range(6, legend.height(), 12):
        for x in range(1, legend.width(), 3):
            qtbot.mouseMove(legend, QPoint(x, y))
            if hovered and hovered[-1] == str(index):
                return QPoint(x + 3, y)
    raise AssertionError(label)


def click_entry(
    qtbot: QtBot, page: PlotsPage, legend: Legend, label: str, modifiers: Qt.KeyboardModifier | None = None
) -> None:
    position = place(qtbot, legend, label)
    qtbot.mouseClick(legend, Qt.MouseButton.LeftButton, modifiers or Qt.KeyboardModifier.NoModifier, position)
    settle(qtbot, page)


def curves(page: PlotsPage, name: str) -> set[str]:
    """The series and styles of the drawn curves."""
    return {f"{key.series} {key.style}" for key in canvas(page, name)._curves}


def continue_run(store: MetricStore) -> None:
    """Add 40 steps after the first 100."""
    for event in events(200):
        if 100 < event.t <= 140:
            store.add(event)


def hidden(legend: Legend) -> list[str]:
    return [entry.label for entry in legend.entries if entry.is_hidden]


def overlay(page: PlotsPage, qtbot: QtBot, *stores: MetricStore) -> None:
    page.set_overlays([Overlay(f"run {place}", store, overlay_color(place)) for place, store in enumerate(stores)])
    settle(qtbot, page)


# --- hidden curves ------------------------------------------------------------------------------------------


def test_a_click_in_the_legend_hides_a_curve_and_the_y_range_fits_the_others(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store(spike=50))
    legend = page.charts["loss"].legend
    assert canvas(page, "loss").y_range[1] > 100.0
    click_entry(qtbot, page, legend, "train")
    assert curves(page, "loss") == {"eval_loss line"}
    assert canvas(page, "loss").y_range[1] < 4.0
    assert hidden(legend) == ["train"]
    assert legend.text().count("<s>") == 1
    assert not canvas(page, "loss")._markers["checkpoint"].getData()[0].size  # they are on the curve
    click_entry(qtbot, page, legend, "train")
    assert curves(page, "loss") == {"eval_loss line", "train_loss line"}
    assert hidden(legend) == []


def test_hidden_curves_stay_hidden_with_new_points_another_theme_and_language(
    qtbot: QtBot, page: PlotsPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = build_store()
    page.toolbar.smoothing.setValue(60)
    show(qtbot, page, store)
    click_entry(qtbot, page, page.charts["loss"].legend, "eval")
    continue_run(store)
    page.display(store)
    settle(qtbot, page)
    assert curves(page, "loss") == {"train_loss line", "train_loss faint"}
    page.retheme(DARK)
    monkeypatch.setattr(texts, "_language", "zh")
    page.retranslate()
    settle(qtbot, page)
    [line] = [item for key, item in canvas(page, "loss")._curves.items() if key.style == "line"]
    assert line.opts["pen"].color().name() == DARK.curve_a
    assert curves(page, "loss") == {"train_loss line", "train_loss faint"}
    assert hidden(page.charts["loss"].legend) == ["评估"]
    show(qtbot, page, build_store())  # another run
    assert hidden(page.charts["loss"].legend) == ["评估"]


def test_ctrl_and_a_click_show_one_curve_alone_and_then_all(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store(), detail=True)
    legend = page.charts["time"].legend
    click_entry(qtbot, page, legend, "Backward", Qt.KeyboardModifier.ControlModifier)
    assert curves(page, "time") == {"time_backward area"}
    assert canvas(page, "time").y_range[1] == pytest.approx(4.0, rel=0.05)
    click_entry(qtbot, page, legend, "Backward", Qt.KeyboardModifier.ControlModifier)
    assert hidden(legend) == []


def test_a_click_counts_while_new_values_arrive(qtbot: QtBot, page: PlotsPage) -> None:
    store = build_store()
    show(qtbot, page, store)
    legend = page.charts["loss"].legend
    position = place(qtbot, legend, "train")
    qtbot.mousePress(legend, Qt.MouseButton.LeftButton, pos=position)
    continue_run(store)
    before = legend.text()
    page.display(store)
    settle(qtbot, page)
    assert legend.text() != before
    qtbot.mouseRelease(legend, Qt.MouseButton.LeftButton, pos=position)
    settle(qtbot, page)
    assert hidden(legend) == ["train"]


def test_the_menu_of_a_plot_hides_and_shows_curves_by_keyboard(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())

    def entries() -> dict[str, QAction]:
        qtbot.keyClick(page.charts["loss"]._menu_button, Qt.Key.Key_Space)
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        qtbot.keyClick(menu, Qt.Key.Key_Up)  # the last entry: the submenu
        qtbot.keyClick(menu, Qt.Key.Key_Right)
        submenu = QApplication.activePopupWidget()
        assert isinstance(submenu, QMenu)
        return {action.text(): action for action in submenu.actions()}

    assert [text for text, action in entries().items() if action.isChecked()] == [
        "train", "eval", "best eval", "checkpoint",
    ]  # fmt: skip
    qtbot.keyClick(QApplication.activePopupWidget(), Qt.Key.Key_Return)
    settle(qtbot, page)
    assert curves(page, "loss") == {"eval_loss line"}
    assert not entries()["train"].isChecked()
    qtbot.keyClick(QApplication.activePopupWidget(), Qt.Key.Key_Return)
    settle(qtbot, page)
    assert hidden(page.charts["loss"].legend) == []


def test_a_plot_with_one_curve_has_nothing_to_hide(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    assert "href" not in page.charts["speed"].legend.text()
    assert not page.charts["speed"].menu().actions()[-1].isEnabled()


# --- smoothing ------------------------------------------------------------------------------------------


def test_noisy_curves_are_smoothed_with_the_raw_values_behind(qtbot: QtBot, page: PlotsPage) -> None:
    page.resize(1100, 3000)
    store = build_store()
    show(qtbot, page, store, detail=True)
    page.toolbar.smoothing.setValue(90)
    settle(qtbot, page)
    drawn = {name: curves(page, name) for name in page.grid.displayed}
    assert drawn["speed"] == {"tokens_per_s line", "tokens_per_s faint"}
    assert drawn["temperature"] == {f"temperature.{gpu} {style}" for gpu in (0, 1) for style in ("line", "faint")}
    assert {"power.0 faint", "power_limit.0 dashed"} <= drawn["power"]
    smoothed = {name for name, found in drawn.items() if any("faint" in curve for curve in found)}
    assert smoothed == {"loss", "speed", "grad_norm", "gpu_util", "power", "temperature", "clock", "cpu"}
    for style, last in (("line", store.last_value("tokens_per_s", 0.9)), ("faint", 5100.0)):
        [item] = [item for key, item in canvas(page, "speed")._curves.items() if key.style == style]
        assert item.getData()[1][-1] == pytest.approx(last)
    assert canvas(page, "time")._curves  # stacked areas have no raw values behind
    page.toolbar.smoothing.setValue(0)
    settle(qtbot, page)
    assert curves(page, "speed") == {"tokens_per_s line"}


def test_curves_of_rewards_are_smoothed_but_evaluations_are_not(qtbot: QtBot, page: PlotsPage) -> None:
    store = build_store()
    for step in (50, 100):
        store.add(rollouts(step, scores={"exact": step / 100, "length": 1.0}))
    page.toolbar.smoothing.setValue(90)
    show(qtbot, page, store, detail=True)
    for name in ("reward", "reward_parts", "answer_tokens", "no_signal_ratio"):
        drawn = page.painter.curves(name)
        assert {curve.style for curve in drawn if not curve.series.startswith("eval_")} == {"line", "faint"}, name
        assert {curve.style for curve in drawn if curve.series.startswith("eval_")} <= {"line"}, name


@pytest.mark.parametrize(("count", "styles"), [(3, {"line", "faint"}), (4, {"line"})])
def test_raw_values_of_up_to_four_runs_are_behind(qtbot: QtBot, page: PlotsPage, count: int, styles: set[str]) -> None:
    page.toolbar.smoothing.setValue(60)
    show(qtbot, page, build_store())
    overlay(page, qtbot, *(build_store(50) for _ in range(count)))
    assert {key.style for key in canvas(page, "speed")._curves} == styles


# --- overlaid runs ------------------------------------------------------------------------------------------


def test_overlaid_runs_are_in_all_plots_that_they_have_values_for(qtbot: QtBot, page: PlotsPage) -> None:
    page.resize(1100, 3600)
    show(qtbot, page, build_store(), detail=True)
    without_gpu = build_store(60, gpus=0, loss=5.0)
    overlay(page, qtbot, build_store(50, gpus=1), without_gpu)
    found = {
        name: {key.color for key in canvas(page, name)._curves if key.style != "faint"} for name in page.grid.displayed
    }
    own, first, second = "curve_a", overlay_color(0), overlay_color(1)
    for name in ("loss", "speed", "time", "learning_rate", "grad_norm", "cpu", "ram"):
        assert found[name] == {own, first, second}, name
    for name in ("gpu_util", "power", "temperature", "clock", "vram.0"):
        assert found[name] == {own, first}, name
    assert found["vram.1"] == {own}
    assert page.charts["time"].legend.values() == ["21", "21", "21"]  # whole steps
    assert page.charts["temperature"].legend.summary() == "mine 70; run 0 70; GPU 1"
    assert {key.style for key in canvas(page, "temperature")._curves if key.series == "temperature.1"} == {"dotted"}


def test_detail_has_the_plots_of_overlaid_runs_that_the_displayed_run_lacks(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store(gpus=0), detail=True)
    assert "temperature" not in page.grid.displayed
    overlay(page, qtbot, build_store(50, gpus=1))
    assert {"temperature", "vram.0"} < set(page.grid.displayed)


def test_a_click_on_the_name_of_a_run_hides_it_in_all_plots(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    overlay(page, qtbot, build_store(60, loss=500.0), build_store(50))
    shown = overlay_color(1)
    assert canvas(page, "loss").y_range[1] > 400.0
    click_entry(qtbot, page, page.run_names, "run 0")
    for name in page.grid.displayed:
        assert {key.color for key in canvas(page, name)._curves} == {"curve_a", shown}
    assert canvas(page, "loss").y_range[1] < 6.0
    assert hidden(page.run_names) == hidden(page.charts["loss"].legend) == ["run 0"]
    page.charts["loss"].legend.toggled.emit(run_key("run 0"), False)
    assert hidden(page.run_names) == []


def test_a_hidden_run_with_the_name_of_a_series_hides_no_series(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    page.set_overlays([Overlay("eval_loss", build_store(60), overlay_color(0))])
    settle(qtbot, page)
    click_entry(qtbot, page, page.run_names, "eval_loss")
    assert curves(page, "loss") == {"train_loss line", "eval_loss dotted"}
    page.set_overlays([])
    settle(qtbot, page)
    assert curves(page, "loss") == {"train_loss line", "eval_loss line"}


def test_a_click_on_a_dotted_entry_hides_these_curves_of_all_runs(qtbot: QtBot, page: PlotsPage) -> None:
    show(qtbot, page, build_store())
    overlay(page, qtbot, build_store(60))
    click_entry(qtbot, page, page.charts["loss"].legend, "eval")
    assert {key.series for key in canvas(page, "loss")._curves} == {"train_loss"}
