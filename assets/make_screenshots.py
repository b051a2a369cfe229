"""Takes the screenshots in docs/images: `python -m assets.make_screenshots [FOLDER]`.

Trains `quickstart`, `quickstart_sft` and `quickstart_finetune` (some minutes), or reads them from `--runs FOLDER`, and
replays their events.
Starts Xvfb if there is no display.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PySide6.QtWidgets import QApplication

    from app.controller import Controller

_FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
_SIZE = (1280, 800)
_DARK = ("training", "detail", "performance", "data", "settings", "runs", "chat", "export", "evaluate", "extremes")
_PROMPT = "1998 年 8 月的后一月是哪月？"
_LONG = "D:/资料/" + "很长的文件夹名/" * 24 + "训练语料_final_version.parquet"


def main() -> None:
    """Take all screenshots. Each language and theme has its own process, because fonts and palettes are global."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=str(_FOLDER))
    parser.add_argument("--one", help="LANGUAGE-THEME: only this combination, in this process")
    parser.add_argument("--size", default=f"{_SIZE[0]}x{_SIZE[1]}")
    parser.add_argument(
        "--runs",
        type=Path,
        help="folder with the runs of these three presets, beside the cache of their data; default: train them",
    )
    parser.add_argument(
        "--extremes", action="store_true", help="also take a screenshot with long names and invalid values"
    )
    options = parser.parse_args()
    if options.one:
        language, theme = options.one.split("-")
        _shoot(Path(options.folder), language, theme, options)
        return
    with _display() as environment, tempfile.TemporaryDirectory() as home:
        runs = options.runs or _train(Path(home))
        for one in ("en-light", "en-dark", "zh-light", "zh-dark"):
            arguments = [*sys.argv[1:], "--runs", str(runs), "--one", one]
            subprocess.run([sys.executable, "-m", "assets.make_screenshots", *arguments], check=True, env=environment)


def _train(home: Path) -> Path:
    """Train the presets."""
    environment = {**os.environ, "TRAINDECK_HOME": str(home)}  # `quickstart_finetune` finds its base model there
    for preset in ("quickstart", "quickstart_sft", "quickstart_finetune"):
        command = [sys.executable, "-m", "trainer_core", "train", "--preset", preset]
        subprocess.run([*command, "--run-dir", str(home / "runs" / preset)], check=True, env=environment)
    return home / "runs"


class _display:  # noqa: N801 - used like a function
    """Environment with a display: the existing one, or a new Xvfb."""

    def __enter__(self) -> dict[str, str]:
        self._server: subprocess.Popen[bytes] | None = None
        environment = dict(os.environ)
        if sys.platform == "linux" and not os.environ.get("DISPLAY") and shutil.which("Xvfb"):
            command = ["Xvfb", "-displayfd", "1", "-screen", "0", "2560x1600x24", "-nolisten", "tcp"]
            self._server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert self._server.stdout is not None
            environment["DISPLAY"] = f":{self._server.stdout.readline().decode().strip()}"
        return environment

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait()


def _shoot(folder: Path, language: str, theme: str, options: argparse.Namespace) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ["TRAINDECK_HOME"] = home
        os.environ["TRAINDECK_CONFIG_DIR"] = f"{home}/config"
        runs = Path(home) / "runs"
        application, controller = _start(language, theme)
        width, height = map(int, options.size.split("x"))
        controller.window.resize(width, height)
        _wait(application, lambda: controller.window.plots.is_built)
        _take_welcome(folder, f"{language}-{theme}", application, controller)
        shutil.copytree(options.runs, runs)
        shutil.copytree(options.runs.parent / "cache", Path(home) / "cache")
        _take_all(folder, f"{language}-{theme}", application, controller, runs, extremes=options.extremes)
        controller.shutdown()


def _start(language: str, theme: str) -> tuple[QApplication, Controller]:
    from PySide6.QtWidgets import QApplication

    from app import __main__ as start

    application = QApplication([sys.argv[0]])
    start.configure_application(application)
    controller = start.build_controller(application, start.parse_arguments(["--lang", language, "--theme", theme]))
    controller.start()
    return application, controller


def _wait(application: QApplication, until: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not until():  # type: ignore[operator]
        application.processEvents()
        time.sleep(0.01)
    for _ in range(40):
        application.processEvents()
        time.sleep(0.01)


def _take_all(
    folder: Path, tail: str, application: QApplication, controller: Controller, runs: Path, *, extremes: bool
) -> None:
    window = controller.window

    def take(name: str) -> None:
        if "dark" not in tail or name in _DARK:
            _take(folder / f"{name}-{tail}.png", application, controller)

    window.show_page("data")
    controller.preview_job.start()
    _wait(application, lambda: controller.preview_job.running is None, 60.0)
    take("data")
    window.show_page("plots")
    _replay(controller, runs / "quickstart")
    take("training")
    window.plots.detail.click()
    take("detail")
    window.plots.overview.click()
    for page in ("performance", "log"):
        window.show_page(page)
        take(page)
    window.show_page("chat")
    window.chat.show_samples(True)
    take("samples")
    _fill_queue(controller)
    window.show_page("queue")
    take("queue")
    _compare(controller, application, runs)
    window.show_page("runs")
    take("runs")
    controller.window.runs.set_overlay_shown([runs / "quickstart_sft"], False)
    _end_run(controller)
    _chat(controller, application, runs / "quickstart_finetune")
    take("chat")
    _export(controller, application, runs / "quickstart_finetune")
    take("export")
    _evaluate(controller, application, runs / "quickstart_finetune")
    take("evaluate")
    window.show_page("settings")
    controller.form.set_text("batch_size", "0")
    controller.form.set_text("learning_rate", "3e-4")
    take("settings")
    if extremes:
        _enter_extreme_values(controller)
        window.show_page("plots")
        take("extremes")
    controller.form.reset()
    controller.open_run(runs / "quickstart_sft")
    _wait(application, lambda: bool(controller.viewed_run and controller.viewed_run.loaded_fraction == 1.0))
    take("earlier-run")


def _take(path: Path, application: QApplication, controller: Controller) -> None:
    from PySide6.QtGui import QImage

    _wait(application, lambda: True)
    picture = controller.window.grab().toImage().convertToFormat(QImage.Format.Format_RGB888)
    picture.save(str(path), quality=0)  # 0: highest compression


def _take_welcome(folder: Path, tail: str, application: QApplication, controller: Controller) -> None:
    """Screenshot of the first start, after the hardware was probed."""
    welcome = controller.welcome_page
    _wait(application, lambda: welcome.isVisible() and welcome.machine is not None)
    _take(folder / f"welcome-{tail}.png", application, controller)


def _fill_queue(controller: Controller) -> None:
    """Add two runs to the queue."""
    from app.core.queue import new_item

    names = {"narrow": {"hidden_dim": 96}, "deep": {"n_layers": 6}}
    data = ["builtin:python"]
    controller.queue_controller.queue.add([new_item(name, "quickstart", knobs, data) for name, knobs in names.items()])
    controller.queue_controller.changed.emit()


def _compare(controller: Controller, application: QApplication, runs: Path) -> None:
    """Overlay the other run on the plots, and show its details."""
    other = runs / "quickstart_sft"
    controller.window.show_page("runs")
    _wait(application, lambda: len(controller.window.runs.model.rows) >= 2)
    controller.window.runs.set_overlay_shown([other], True)
    controller.window.runs.table.select([other])
    _wait(application, lambda: bool(controller.window.runs.overlays.visible_overlays(None)))


def _chat(controller: Controller, application: QApplication, run: Path) -> None:
    """Ask a tuned model and its base model."""
    page = controller.window.chat
    controller.window.show_page("chat")
    page.select_model(run)
    page.compare.click()
    page.row.fields["temperature"].setValue(0)
    page.prompt.setPlainText(_PROMPT)
    page.write.click()
    _wait(application, lambda: not page.models.are_busy, 120.0)


def _export(controller: Controller, application: QApplication, run: Path) -> None:
    """Export a tuned model as GGUF."""
    page, folder = controller.window.export, Path(tempfile.gettempdir()) / "models"  # its path is in the picture
    folder.mkdir(exist_ok=True)
    controller.window.show_page("export")
    [*_, newest] = sorted(path for path in (run / "checkpoints").iterdir() if path.name.startswith("step-"))
    page.select_checkpoint(newest)
    page.options.format.setCurrentIndex(page.options.format.findData("gguf"))
    page.options.format.activated.emit(page.options.format.currentIndex())
    page.options.folder.setText(str(folder))
    page.start.click()
    _wait(application, lambda: not page.job.is_running, 300.0)
    shutil.rmtree(folder)


def _evaluate(controller: Controller, application: QApplication, run: Path) -> None:
    """Score a tuned model and its base model."""
    page = controller.window.evaluate
    controller.window.show_page("evaluate")
    _wait(application, lambda: page.options.choice.selected_checkpoint is not None)
    page.options.choice.select(run, None)
    page.options.rows.setValue(60)
    page.start.click()
    _wait(application, lambda: not page.job.is_running, 300.0)


def _replay(controller: Controller, run: Path) -> None:
    """Process the first three quarters of the events of a run."""
    from app.core.history.run_list import read_events
    from app.core.run_state import ProcessStarted
    from trainer_core import protocol

    controller.active_run.machine.feed(ProcessStarted(str(run)), time.monotonic())
    first = None
    for event in (event for events, _ in read_events(run) for event in events):
        first = first or event.t
        controller.active_run.machine.elapsed_s = event.t - first
        controller.active_run.handle_event(event)
        if isinstance(event, protocol.Progress) and event.unit == "steps" and event.done >= 300:
            break
    controller.render()


def _end_run(controller: Controller) -> None:
    from app.core.run_state import ProcessExited
    from trainer_core import protocol

    controller.active_run.machine.feed(protocol.Done(reason="stopped", steps=300, total_steps=400), time.monotonic())
    controller.active_run.machine.feed(ProcessExited(3), time.monotonic())
    controller.render()


def _enter_extreme_values(controller: Controller) -> None:
    controller.form.add_data([_LONG])
    controller.window.setup.run_name.setText("一个特别特别长的运行名称" * 5)
    controller.form.set_run_name("一个特别特别长的运行名称" * 5)
    controller.form.set_text("max_steps", "-3")
    controller.form.set_text("hidden_dim", "abc")


if __name__ == "__main__":
    main()
