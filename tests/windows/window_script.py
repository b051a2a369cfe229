"""Controls the window on the Qt platform `windows`: `python window_script.py SCRIPT DATA PICTURES LANGUAGE`.

A script is a generator that yields conditions to wait for. Results are printed to stdout. A timeout or an exception
in the window kills the process. It is a separate process because tests kill it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import psutil
from PySide6.QtCore import QMimeData, QPoint, Qt, QTimer, QUrl
from PySide6.QtGui import QColor, QDrag
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMessageBox, QPushButton, QWidget

from app import __main__ as start
from app.controller import Controller
from app.core.run_state import RunState
from app.theme.palette import DARK, LIGHT, Palette

TIMEOUT_S = 150.0
Script = Iterator[Callable[[], bool]]
TINY = {"hidden_dim": "32", "n_layers": "1", "n_heads": "2", "max_seq_len": "32", "vocab_size": "300"} | {
    "batch_size": "4",
    "max_steps": "100000",
    "save_steps": "1000",
    "eval_steps": "1000",
    "log_steps": "1",
    "sample_steps": "0",
    "device": "cpu",
    "cpu_threads": "1",
    "restarts": "0",
}


def report(*values: object) -> None:
    print(*values, flush=True)  # noqa: T201


def click(button: QPushButton) -> None:
    assert button.isEnabled(), button.text()
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


def process_tree(pid: int | None) -> list[psutil.Process]:
    """A process and all its descendants."""
    assert pid is not None
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants; some may exit meanwhile."""
    for process in reversed(process_tree(pid)):
        with contextlib.suppress(psutil.Error):
            process.kill()


def wait_for_exit(processes: list[psutil.Process]) -> Script:
    """Wait until all processes have exited."""
    yield lambda: not any(process.is_running() for process in processes)


# Constants of user32.
MOVED, PRESSED, RELEASED = 1, 2, 4
TOPMOST, KEEP_GEOMETRY = -1, 3


def send_mouse_event(event: int, position: QPoint | None = None) -> None:
    """Send an event of the mouse of this desktop."""
    user32 = ctypes.windll.user32  # type: ignore[attr-defined]
    if position is not None:
        user32.SetCursorPos(position.x(), position.y())
    user32.mouse_event(event, 0, 0, 0, 0)


def drag_over(window: QWidget, mime: QMimeData, on_hover: Callable[[], None]) -> None:
    """Drag `mime` from another window to the center of ours and drop it, with the drag and drop of Windows.

    Our window is topmost meanwhile. Coordinates assume a scale of 100 %.
    """
    source = QWidget(None, Qt.WindowType.Tool | Qt.WindowType.WindowStaysOnTopHint)
    source.setGeometry(0, 0, 60, 60)
    source.show()
    QApplication.processEvents()
    user32 = ctypes.windll.user32  # type: ignore[attr-defined]
    user32.SetWindowPos(ctypes.c_void_p(window.winId()), ctypes.c_void_p(TOPMOST), 0, 0, 0, 0, KEEP_GEOMETRY)
    source.raise_()
    center = window.mapToGlobal(window.rect().center())

    def move_mouse() -> None:
        for part in range(1, 6):
            send_mouse_event(MOVED, center * part / 5)
            time.sleep(0.3)
        time.sleep(1)
        send_mouse_event(RELEASED)

    QTimer.singleShot(2000, on_hover)
    send_mouse_event(PRESSED, QPoint(30, 30))
    QTest.qWait(200)
    drag = QDrag(source)
    drag.setMimeData(mime)
    threading.Thread(target=move_mouse, daemon=True).start()
    drag.exec(Qt.DropAction.CopyAction | Qt.DropAction.MoveAction)
    source.deleteLater()


def drop(controller: Controller, data: Path, pictures: Path) -> Script:
    """Drop a file, then close the window without a run."""
    window, indicator_texts = controller.window, []
    yield lambda: window.plots.is_built
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(data))])

    def record_indicator() -> None:
        indicator_texts.append(controller.setup_controller.drop_indicator.text())
        window.grab().save(str(pictures / "dropping.png"))

    drag_over(window, mime, record_indicator)
    report("drop indicator", data.name in indicator_texts[0])
    yield lambda: bool(controller.form.data)
    assert not controller.setup_controller.drop_indicator.text()
    report("dropped", controller.form.data == [str(data)])
    window.close()
    yield lambda: False  # the process exits


THEMES = r"Software\Microsoft\Windows\CurrentVersion\Themes\Personalize"
WM_SETTINGCHANGE, HWND_BROADCAST, SMTO_ABORTIFHUNG = 0x1A, 0xFFFF, 2


def set_light_theme(value: int) -> None:
    """Set the theme of programs to light (1) or dark (0), like the settings of Windows."""
    import winreg

    with winreg.CreateKey(winreg.HKEY_CURRENT_USER, THEMES) as key:  # type: ignore[attr-defined]
        winreg.SetValueEx(key, "AppsUseLightTheme", 0, winreg.REG_DWORD, value)  # type: ignore[attr-defined]
    send, area = ctypes.windll.user32.SendMessageTimeoutW, ctypes.c_wchar_p("ImmersiveColorSet")  # type: ignore[attr-defined]
    send(HWND_BROADCAST, WM_SETTINGCHANGE, None, area, SMTO_ABORTIFHUNG, 2000, None)


def theme(controller: Controller, data: Path, pictures: Path) -> Script:
    """Switch Windows to dark, then to light; the window follows."""
    window = controller.window

    def has_palette(palette: Palette) -> bool:
        image = window.grab().toImage()
        return image.pixelColor(3, image.height() - 3) == QColor(palette.window)

    yield lambda: window.plots.is_built
    for name, value, palette in (("dark", 0, DARK), ("light", 1, LIGHT)):
        set_light_theme(value)
        yield lambda palette=palette: has_palette(palette)  # type: ignore[misc]
        report(name)
    window.close()
    yield lambda: False  # the process exits


def start_run(controller: Controller, data: Path) -> Script:
    """Start a tiny run in the window and wait for step 5."""
    yield lambda: controller.window.plots.is_built
    controller.form.add_data([str(data)])
    for name, value in TINY.items():
        controller.form.set_text(name, value)
    controller.form.set_run_name("窗口 run")
    click(controller.window.run_bar.start)
    yield lambda: controller.active_run.machine.step >= 5


def run(controller: Controller, data: Path, pictures: Path) -> Script:
    """Start, Stop, Resume, kill the trainer, Resume, and close the window while training."""
    window, machine, bar = controller.window, controller.active_run.machine, controller.window.run_bar
    yield from start_run(controller, data)
    report("platform", QApplication.platformName())
    before, step = window.plots.grab().toImage(), machine.step
    yield lambda: machine.step >= step + 10
    due = time.monotonic() + 1  # plots are repainted several times a second
    yield lambda: time.monotonic() > due
    report("plots repainted", window.plots.grab().toImage() != before)
    for name in window.pages:
        window.show_page(name)
        QApplication.processEvents()
        window.grab().save(str(pictures / f"{name}.png"))
    window.show_page("plots")
    trainer = process_tree(controller.active_run.process.pid)
    click(bar.stop)
    yield lambda: machine.state is RunState.STOPPED
    yield from wait_for_exit(trainer)
    stopped = machine.step
    click(bar.resume)
    yield lambda: machine.step >= stopped + 5
    trainer = process_tree(controller.active_run.process.pid)
    kill_tree(trainer[0].pid)
    yield lambda: machine.state in (RunState.CRASHED, RunState.FAILED)
    yield from wait_for_exit(trainer)
    steps = list(controller.active_run.record.metrics.series("train_loss")[0])
    report("steps in order", steps == list(range(1, len(steps) + 1)))
    window.grab().save(str(pictures / "killed.png"))
    report("killed", bar.resume.isEnabled())
    click(bar.resume)
    yield lambda: machine.state is RunState.TRAINING and controller.active_run.process.is_running
    step = machine.step
    yield lambda: machine.step > step
    window.close()
    yield lambda: window.findChild(QMessageBox) is not None
    question = window.findChild(QMessageBox)
    question.grab().save(str(pictures / "closing.png"))
    stop = question.findChild(QPushButton, "stopAndSave")
    report("closing")
    click(stop)
    yield lambda: False  # the process exits


def train(controller: Controller, data: Path, pictures: Path) -> Script:
    """Train until the process is killed."""
    yield from start_run(controller, data)
    report("training", controller.active_run.machine.run_dir)
    yield lambda: False


class ScriptPlayer:
    """Runs a script on a timer of the event loop."""

    def __init__(self, script: Script) -> None:
        self._script, self._condition = script, lambda: True
        self._deadline = time.monotonic() + TIMEOUT_S
        self._timer = QTimer(interval=50)
        self._timer.timeout.connect(self._poll)
        self._timer.start()

    def _poll(self) -> None:
        if self._condition():
            self._condition = next(self._script)
            self._deadline = time.monotonic() + TIMEOUT_S
        elif time.monotonic() > self._deadline:
            raise TimeoutError(f"timeout in line {self._script.gi_frame.f_lineno}")  # type: ignore[attr-defined]


def kill_on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    kill_tree(os.getpid())


def main() -> int:
    name, data, pictures, language = sys.argv[1:5]
    script = {"run": run, "train": train, "drop": drop, "theme": theme}[name]
    build_controller, players = start.build_controller, []

    def build_and_play(*arguments: object) -> Controller:
        controller = build_controller(*arguments)  # type: ignore[arg-type]
        players.append(ScriptPlayer(script(controller, Path(data), Path(pictures))))
        return controller

    def install_hook(*_: object) -> None:
        sys.excepthook = kill_on_exception

    start.build_controller, start.install_exception_hook = build_and_play, install_hook
    return start.main(["--lang", language])


if __name__ == "__main__":
    sys.exit(main())
