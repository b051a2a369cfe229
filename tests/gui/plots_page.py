"""Helpers for tests of the plots: a run's measurements, and the page that shows them."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.__main__ import configure_application
from app.core.metrics.metric_store import MetricStore
from app.pages.plots.canvas import Canvas
from app.pages.plots.page import PlotsPage
from app.theme import style
from app.theme.palette import LIGHT
from tests.gui.conftest import click
from trainer_core import protocol

GIB = 1024**3


def events(steps: int = 100, *, gpus: int = 2, loss: float = 4.0, spike: int = 0) -> Iterator[protocol.AnyEvent]:
    """A run with a spike of the loss, a checkpoint every 25 steps, and throttling of GPU 1 in its second half."""
    yield protocol.Hello(t=0.0, pid=1, run_dir="r", traindeck="0", python="3", torch="2")
    time_ms = protocol.StepTime(data=1, transfer=2, forward=3, backward=4, optimizer=5, other=6)
    for step in range(1, steps + 1):
        now = float(step)
        yield protocol.Step(
            t=now, step=step, epoch=0.1, tokens=1000 * step, samples=step, learning_rate=1e-3, grad_norm=1.0,
            loss=500.0 if step == spike else loss - step / steps, tokens_per_s=5000.0 + step, samples_per_s=5.0,
            time_ms=time_ms,
        )  # fmt: skip
        cards = [
            protocol.Gpu(
                index=index, name="NVIDIA RTX A6000", utilization=0.9, vram_used=(20 + index) * GIB, power_w=250.0,
                vram_total=48 * GIB, torch_allocated=14 * GIB, torch_reserved=17 * GIB, temperature_c=70.0,
                clock_mhz=1800, power_limit_w=300.0, throttle=["thermal"] if index and step > steps // 2 else [],
            )
            for index in range(gpus)
        ]  # fmt: skip
        host = protocol.Host(ram_used=8 * GIB, ram_total=64 * GIB, rss=2 * GIB, cpu=0.5, disk_free=9)
        yield protocol.Hardware(t=now, gpus=cards, host=host)
        if step % 25 == 0:
            yield protocol.Eval(t=now, step=step, loss=loss - step / steps, perplexity=None, tokens=1, seconds=1.0)
            yield protocol.Checkpoint(t=now, step=step, path=f"s{step}", bytes=1, seconds=1.0, kind="regular")


def build_store(steps: int = 100, *, gpus: int = 2, loss: float = 4.0, spike: int = 0) -> MetricStore:
    store = MetricStore()
    for event in events(steps, gpus=gpus, loss=loss, spike=spike):
        store.add(event)
    return store


def open_page(qtbot: QtBot, application: QApplication) -> PlotsPage:
    configure_application(application)
    style.apply_theme(LIGHT, "en")
    page = PlotsPage(LIGHT)
    qtbot.addWidget(page)
    page.resize(1100, 900)
    page.build()
    page.show()
    qtbot.waitExposed(page)
    return page


def show(qtbot: QtBot, page: PlotsPage, store: MetricStore, *, detail: bool = False) -> None:
    if detail:
        click(qtbot, page.detail)
    page.display(store, name="mine")
    qtbot.wait(20)
    settle(qtbot, page)


def settle(qtbot: QtBot, page: PlotsPage) -> None:
    """Wait until all charts are painted."""
    qtbot.waitUntil(lambda: not page._repaint_timer.isActive() and not page.painter.is_busy)


def canvas(page: PlotsPage, name: str) -> Canvas:
    canvas = page.charts[name].canvas
    assert canvas is not None
    return canvas
