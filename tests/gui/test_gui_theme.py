"""Themes: contrast, switching, tick labels, fonts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QFontDatabase, QFontInfo, QFontMetricsF, QGuiApplication, QStyleHints
from PySide6.QtWidgets import QLabel, QScrollArea
from pytestqt.qtbot import QtBot

from app.pages.plots.axes import Axis, format_tick
from app.pages.runs.table import NAME
from app.theme import style
from app.theme.palette import DARK, DARK_CONTRAST, LIGHT, LIGHT_CONTRAST, Palette
from app.widgets import formatting
from tests.gui.conftest import MakeWindow
from tests.gui.runs_page import add_run, focus_table, open_page


def luminance(name: str) -> float:
    """Relative luminance (WCAG 2.2) of an sRGB color."""

    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    color = QColor(name)
    red, green, blue = (linear(channel) for channel in (color.redF(), color.greenF(), color.blueF()))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(foreground: str, background: str) -> float:
    """Contrast ratio (WCAG 2.2): (L1 + 0.05) / (L2 + 0.05)."""
    darker, lighter = sorted((luminance(foreground), luminance(background)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(
    ("palette", "ratio"),
    [(LIGHT, 4.5), (DARK, 4.5), (LIGHT_CONTRAST, 7.0), (DARK_CONTRAST, 7.0)],
    ids=["light", "dark", "light, high contrast", "dark, high contrast"],
)
def test_texts_and_curves_have_enough_contrast(palette: Palette, ratio: float) -> None:
    for text in (palette.text, palette.muted, palette.good, palette.warn, palette.bad, palette.accent):
        for background in (palette.surface, palette.window, palette.field):
            assert contrast(text, background) >= ratio
    for curve in (getattr(palette, f"curve_{letter}") for letter in "abcdefghijk"):
        assert contrast(curve, palette.surface) >= 3.0
    assert contrast(palette.on_accent, palette.accent) >= ratio
    for text, background in (
        (palette.text, palette.hover),
        (palette.text, palette.note_surface),
        (palette.text, palette.warn_surface),
        (palette.bad, palette.bad_surface),
    ):
        assert contrast(text, background) >= ratio
    for mark in (palette.loss_token_b, palette.rejected_token):
        assert contrast(palette.text, mark) >= 4.5
        assert contrast(mark, palette.field) >= 1.4


def test_the_theme_is_switched_while_the_window_is_open(make_window: MakeWindow) -> None:
    controller = make_window()
    for theme, palette in (("dark", DARK), ("light", LIGHT)):
        controller.set_theme(theme)  # type: ignore[arg-type]
        picture = controller.window.grab().toImage()
        assert picture.pixelColor(3, picture.height() - 3) == QColor(palette.window)


@pytest.mark.skipif(not hasattr(QStyleHints, "accessibility"), reason="needs Qt 6.10")
def test_the_window_follows_the_contrast_of_the_desktop(make_window: MakeWindow, monkeypatch: Any) -> None:
    controller = make_window(theme="dark")
    preference = Qt.ContrastPreference
    for wanted, palette in ((preference.HighContrast, DARK_CONTRAST), (preference.NoPreference, DARK)):
        # No desktop here has this setting. Qt reads it from those of Windows, GNOME and others.
        monkeypatch.setattr(style, "prefers_high_contrast", lambda wanted=wanted: wanted == preference.HighContrast)
        QGuiApplication.styleHints().accessibility().contrastPreferenceChanged.emit(wanted)
        picture = controller.window.grab().toImage()
        assert picture.pixelColor(3, picture.height() - 3) == QColor(palette.window)


def test_tick_labels_have_few_digits() -> None:
    for value, text in (
        (2000, "2,000"),
        (92_000, "92k"),
        (1_500_000, "1.5M"),
        (2_500_000_000, "2.5B"),
        (3e-4, "0.0003"),
        (1.2e-5, "1.2e-5"),
        (0.0, "0"),
        (0.1 + 0.2, "0.3"),
        (2.0, "2"),
        (-0.5, "-0.5"),
    ):
        assert format_tick(value) == text


def test_tick_labels_of_an_axis_are_distinct_and_have_one_unit(qapp: object) -> None:
    axis = Axis("left")
    cases: list[tuple[Sequence[float], list[str]]] = [
        ((6000, 8000, 10_000), ["6k", "8k", "10k"]),
        ((6000, 8000), ["6,000", "8,000"]),
        ((9500, 10_000, 10_500), ["9.5k", "10k", "10.5k"]),
        ((1_000_000, 1_000_020, 1_000_040), ["1M", "1.00002M", "1.00004M"]),
        ((0, 400_000, 800_000, 1_200_000), ["0", "0.4M", "0.8M", "1.2M"]),
        ((-20_000, -10_000, 0), ["-20k", "-10k", "0"]),
    ]
    for values, texts in cases:
        axis.setRange(values[0], values[-1])
        assert axis.tickStrings(values, 1.0, values[1] - values[0]) == texts


@pytest.mark.parametrize("language", ["en", "zh"])
def test_settings_and_run_names_fit_the_smallest_window(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    window = make_window(language=language).window
    window.resize(window.minimumSize())
    window.show_page("settings")
    [area] = window.advanced.findChildren(QScrollArea)
    inner = area.widget()
    assert inner is not None
    qtbot.waitUntil(lambda: 0 < inner.width() <= area.viewport().width())
    window.show_page("runs")
    qtbot.waitUntil(lambda: window.runs.table.columnWidth(NAME) >= 180)  # pixels: the name of a preset and a time
    assert not window.runs.table.horizontalScrollBar().isVisible()


def test_the_hint_to_press_start_disappears_when_a_run_starts(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    plots = controller.window.plots

    def texts() -> list[str]:
        return [text.text() for text in plots.charts["loss"].findChildren(QLabel)]

    assert any("press Start" in text for text in texts())
    controller.start_run()  # before the first event
    controller.render()
    assert not any("press Start" in text for text in texts())


def test_the_name_of_the_cpu_is_translated(make_window: MakeWindow) -> None:
    make_window(language="zh")
    assert formatting.format_device("CPU (2 threads)") == "CPU（2 个线程）"
    assert formatting.format_device("2 × CPU (1 thread)") == "2 × CPU（1 个线程）"
    assert formatting.format_device("NVIDIA RTX A6000") == "NVIDIA RTX A6000"


def test_every_page_opens_by_its_menu_entry(make_window: MakeWindow) -> None:
    window = make_window().window
    for name in window.pages:
        window.menus.actions[f"page_{name}"].trigger()
        assert window.tabs.currentWidget() is window.pages[name]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_quotation_marks_are_wide_only_in_chinese(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    if not QFontDatabase.families(QFontDatabase.WritingSystem.SimplifiedChinese):
        pytest.skip("no font has Chinese characters")
    controller = make_window(language="zh" if language == "en" else "en")
    controller.set_language("zh" if language == "zh" else "en")
    bar = controller.window.run_bar
    for widget in (bar.status_label, bar.state_label, controller.window.log.search):
        metrics = QFontMetricsF(widget.font())
        is_wide = metrics.horizontalAdvance("“") > 0.8 * metrics.horizontalAdvance("中")
        chinese_font = QFontInfo(widget.font()).family().startswith("Noto Sans CJK")
        assert is_wide is (language == "zh" and chinese_font)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_text_of_the_current_cell_has_full_contrast(
    make_window: MakeWindow, qtbot: QtBot, home: Path, theme: str
) -> None:
    path = add_run(home, "WWWWMMMM")
    controller = make_window(theme=theme)
    page = open_page(qtbot, controller, 1)
    page.table.select([path])
    focus_table(qtbot, page)
    cell = page.table.visualRect(page.proxy.index(0, NAME))
    picture = page.table.viewport().grab(cell).toImage()
    colors = {picture.pixelColor(x, y).name() for x in range(picture.width()) for y in range(picture.height())}
    palette = DARK if theme == "dark" else LIGHT
    assert {palette.accent, palette.on_accent} <= colors
