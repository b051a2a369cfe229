"""The real window under the platform `windows`, led by a script: `python window_script.py SCRIPT DATA PICTURES`.

A script is a generator that yields what it waits for. What it wants to tell goes to stdout; a step that does not come
in time, or an exception in the window, ends the process with exit code 9. A process of its own, because a test of how a
window is killed cannot be in it.
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

PATIENCE_S = 150.0
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


def tell(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201


def click(button: QPushButton) -> None:
    assert button.isEnabled(), button.text()
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)


def family(pid: int | None) -> list[psutil.Process]:
    """A process and all below it."""
    assert pid is not None
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def kill_tree(pid: int) -> None:
    """A process and all below it; those whose launcher went first may be gone by then."""
    for process in reversed(family(pid)):
        with contextlib.suppress(psutil.Error):
            process.kill()


def gone(processes: list[psutil.Process]) -> Script:
    """None of these runs any more."""
    yield lambda: not any(process.is_running() for process in processes)


# As user32 counts them.
MOVED, PRESSED, RELEASED = 1, 2, 4
TOPMOST, KEEP_PLACE_AND_SIZE = -1, 3


def mouse(what: int, place: QPoint | None = None) -> None:
    """Do with the mouse of this desktop what a hand does."""
    user32 = ctypes.windll.user32  # type: ignore[attr-defined]
    if place is not None:
        user32.SetCursorPos(place.x(), place.y())
    user32.mouse_event(what, 0, 0, 0, 0)


def drag_over(window: QWidget, mime: QMimeData, on_way: Callable[[], None]) -> None:
    """Drag this from another window over the middle of ours and let it go: through Windows' own drag and drop.

    Ours lies above all other windows meanwhile; pixels are those of Windows at a scale of 100 %."""
    source = QWidget(None, Qt.WindowType.Tool | Qt.WindowType.WindowStaysOnTopHint)
    source.setGeometry(0, 0, 60, 60)
    source.show()
    QApplication.processEvents()
    user32 = ctypes.windll.user32  # type: ignore[attr-defined]
    user32.SetWindowPos(ctypes.c_void_p(window.winId()), ctypes.c_void_p(TOPMOST), 0, 0, 0, 0, KEEP_PLACE_AND_SIZE)
    source.raise_()
    middle = window.mapToGlobal(window.rect().center())

    def hand() -> None:
        for part in range(1, 6):
            mouse(MOVED, middle * part / 5)
            time.sleep(0.3)
        time.sleep(1)
        mouse(RELEASED)

    QTimer.singleShot(2000, on_way)
    mouse(PRESSED, QPoint(30, 30))
    QTest.qWait(200)
    drag = QDrag(source)
    drag.setMimeData(mime)
    threading.Thread(target=hand, daemon=True).start()
    drag.exec(Qt.DropAction.CopyAction | Qt.DropAction.MoveAction)
    source.deleteLater()


def dropping(controller: Controller, data: Path, pictures: Path) -> Script:
    """A file is dropped, and the window is closed without a run."""
    window, said = controller.window, []
    yield lambda: window.plots.is_built
    mime = QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(data))])

    def look() -> None:
        said.append(controller.setup_controller.drop_indicator.text)
        window.grab().save(str(pictures / "dropping.png"))

    drag_over(window, mime, look)
    tell("hovering", data.name in said[0])
    yield lambda: bool(controller.form.data)
    assert not controller.setup_controller.drop_indicator.text
    tell("dropped", controller.form.data == [str(data)])
    window.close()
    yield lambda: False  # the process ends by itself


THEMES = r"Software\Microsoft\Windows\CurrentVersion\Themes\Personalize"
SETTING_CHANGED, TO_ALL, UNLESS_HUNG = 0x1A, 0xFFFF, 2


def choose_light(value: int) -> None:
    """What Windows' own settings do when programs are to be light (1) or dark (0)."""
    import winreg

    with winreg.CreateKey(winreg.HKEY_CURRENT_USER, THEMES) as key:  # type: ignore[attr-defined]
        winreg.SetValueEx(key, "AppsUseLightTheme", 0, winreg.REG_DWORD, value)  # type: ignore[attr-defined]
    send, what = ctypes.windll.user32.SendMessageTimeoutW, ctypes.c_wchar_p("ImmersiveColorSet")  # type: ignore[attr-defined]
    send(TO_ALL, SETTING_CHANGED, None, what, UNLESS_HUNG, 2000, None)


def following(controller: Controller, data: Path, pictures: Path) -> Script:
    """Windows becomes dark, then light, and the window with it."""
    window = controller.window

    def looks(tokens: Palette) -> bool:
        found = window.grab().toImage()
        return found.pixelColor(3, found.height() - 3) == QColor(tokens.window)

    yield lambda: window.plots.is_built
    for name, value, tokens in (("dark", 0, DARK), ("light", 1, LIGHT)):
        choose_light(value)
        yield lambda tokens=tokens: looks(tokens)  # type: ignore[misc]
        tell(name)
    window.close()
    yield lambda: False  # the process ends by itself


def begin(controller: Controller, data: Path) -> Script:
    """The window is there with its plots; a tiny run is started in it and trains."""
    yield lambda: controller.window.plots.is_built
    controller.form.add_data([str(data)])
    for name, value in TINY.items():
        controller.form.set_text(name, value)
    controller.form.set_run_name("窗口 run")
    click(controller.window.run_bar.start)
    yield lambda: controller.active_run.machine.step >= 5


def everything(controller: Controller, data: Path, pictures: Path) -> Script:
    """Start, plots move, Stop, Resume, the trainer is killed, Resume, closing while training."""
    window, machine, bar = controller.window, controller.active_run.machine, controller.window.run_bar
    yield from begin(controller, data)
    tell("platform", QApplication.platformName())
    before, step = window.plots.grab().toImage(), machine.step
    yield lambda: machine.step >= step + 10
    due = time.monotonic() + 1  # plots are painted some times a second
    yield lambda: time.monotonic() > due
    tell("plots moved", window.plots.grab().toImage() != before)
    for name in window.pages:
        window.show_page(name)
        QApplication.processEvents()
        window.grab().save(str(pictures / f"{name}.png"))
    window.show_page("plots")
    trainer = family(controller.active_run.process.pid)
    click(bar.stop)
    yield lambda: machine.state is RunState.STOPPED
    yield from gone(trainer)
    stopped = machine.step
    click(bar.resume)
    yield lambda: machine.step >= stopped + 5
    trainer = family(controller.active_run.process.pid)
    kill_tree(trainer[0].pid)
    yield lambda: machine.state in (RunState.CRASHED, RunState.FAILED)
    yield from gone(trainer)
    steps = list(controller.active_run.record.metrics.series("train_loss")[0])
    tell("steps in order", steps == list(range(1, len(steps) + 1)))
    window.grab().save(str(pictures / "killed.png"))
    tell("killed", bar.resume.isEnabled())
    click(bar.resume)
    yield lambda: machine.state is RunState.TRAINING and controller.active_run.process.is_running
    step = machine.step
    yield lambda: machine.step > step
    window.close()
    yield lambda: window.findChild(QMessageBox) is not None
    question = window.findChild(QMessageBox)
    question.grab().save(str(pictures / "closing.png"))
    stop = question.findChild(QPushButton, "stopAndSave")
    tell("closing")
    click(stop)
    yield lambda: False  # the process ends by itself


def training(controller: Controller, data: Path, pictures: Path) -> Script:
    """A run trains, until somebody ends this process."""
    yield from begin(controller, data)
    tell("training", controller.active_run.machine.run_dir)
    yield lambda: False


class Player:
    def __init__(self, script: Script) -> None:
        self._script, self._waits_for = script, lambda: True
        self._until = time.monotonic() + PATIENCE_S
        self._timer = QTimer(interval=50)
        self._timer.timeout.connect(self._look)
        self._timer.start()

    def _look(self) -> None:
        if self._waits_for():
            self._waits_for = next(self._script)
            self._until = time.monotonic() + PATIENCE_S
        elif time.monotonic() > self._until:
            raise TimeoutError(f"waited in line {self._script.gi_frame.f_lineno}")  # type: ignore[attr-defined]


def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    kill_tree(os.getpid())


def main() -> int:
    name, data, pictures, language = sys.argv[1:5]
    script = {"everything": everything, "training": training, "dropping": dropping, "following": following}[name]
    make, players = start.build_controller, []

    def watched(*arguments: object) -> Controller:
        controller = make(*arguments)  # type: ignore[arg-type]
        players.append(Player(script(controller, Path(data), Path(pictures))))
        return controller

    def hooked(*_: object) -> None:
        sys.excepthook = end

    start.build_controller, start.install_exception_hook = watched, hooked
    return start.main(["--lang", language])


if __name__ == "__main__":
    sys.exit(main())
