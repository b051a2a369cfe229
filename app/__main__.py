"""Entry point: `python -m app [RUN_DIR]`. Imports here delay the first paint."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO

from trainer_core.system import program_files

if TYPE_CHECKING:
    from PySide6.QtWidgets import QApplication

    from app.controller import Controller

_APP_ID: Final = "Traindeck.Traindeck"
_TRAIN_COMMAND: Final = f"{program_files.PROGRAM} train --preset quickstart"
NO_DISPLAY_MESSAGE: Final = (
    f"There is no display for the window. Train in the terminal instead: {_TRAIN_COMMAND}\n"
    f"没有可用的显示器，无法打开窗口。请改在终端中训练：{_TRAIN_COMMAND}"
)


def main(arguments: list[str] | None = None) -> int:
    """Show the window and run until it is closed. Returns the exit code."""
    gc.disable()  # takes 10 % of the time to the first paint
    options = parse_arguments(arguments)
    if sys.platform == "linux" and not _has_display():
        print(NO_DISPLAY_MESSAGE, file=sys.stderr)  # noqa: T201 - Qt would abort the process
        return 1
    _prepare_environment()
    crash_log = _open_crash_log()
    _import_qt()
    from PySide6.QtWidgets import QApplication

    application = QApplication([sys.argv[0]])
    configure_application(application)
    controller = build_controller(application, options)
    install_exception_hook(controller, crash_log)
    controller.start()
    controller.window.first_painted.connect(freeze_and_enable_gc)  # last of the slots
    if options.run_dir:
        controller.window.first_painted.connect(lambda: controller.open_run(Path(options.run_dir).resolve()))
    code = application.exec()
    if controller.restart_arguments is not None:
        from app.services.desktop_shell import start_traindeck

        start_traindeck(controller.restart_arguments)
    return code


def freeze_and_enable_gc() -> None:
    """Enable garbage collection without the objects that exist now: scanning the window takes 40 ms."""
    gc.freeze()
    gc.enable()


def _has_display() -> bool:
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"))


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="traindeck", description="Train a language model on your own machine.")
    parser.add_argument("run_dir", nargs="?", default="", help="a run to open, with its plots")
    parser.add_argument("--lang", choices=("en", "zh"), help="the language of the window")
    parser.add_argument("--theme", choices=("light", "dark", "system"), help="the colours of the window")
    return parser.parse_args(arguments)


def _prepare_environment() -> None:
    # pyqtgraph would otherwise import the first Qt binding it finds.
    os.environ["PYQTGRAPH_QT_LIB"] = "PySide6"
    # Its widgets for images would load NVIDIA's runtime, which PyTorch's CUDA build brings along: 0.05 s, 11 MB.
    sys.modules["cuda"] = None  # type: ignore[assignment]
    if sys.platform == "win32":
        import ctypes

        # Without an id of its own, Windows groups the window under Python's icon in the taskbar.
        ctypes.windll.shell32.SetCurrentProcessExplicitAppUserModelID(_APP_ID)


def _import_qt() -> None:
    """Import PySide6 without its search for `__feature__`, which keeps the source of each module in memory: 16 MB."""
    import linecache

    import PySide6.QtCore  # noqa: F401 - imports the module patched below

    feature = sys.modules.get("shibokensupport.feature")
    if hasattr(feature, "_mod_uses_pyside"):
        feature._mod_uses_pyside = lambda module: False  # type: ignore[union-attr]
    linecache.clearcache()


def configure_application(application: QApplication) -> None:
    """Set name, style and icon."""
    from PySide6.QtGui import QIcon

    application.setApplicationName("Traindeck")
    application.setDesktopFileName("traindeck")
    application.setStyle("Fusion")
    application.setWindowIcon(QIcon(str(program_files.ROOT / "assets" / "traindeck.png")))


def build_controller(application: QApplication, options: argparse.Namespace) -> Controller:
    from app.controller import Controller
    from app.core.settings import SettingsStore
    from app.texts import Translator, system_language
    from app.theme import style

    store = SettingsStore()
    settings = store.load()
    settings.theme = options.theme or settings.theme
    language = options.lang or (system_language() if settings.language == "system" else settings.language)
    application.setFont(style.ui_font(language))
    translator = Translator()
    translator.set_language(language)
    controller = Controller(store, translator)
    # Last: with a style sheet, each addWidget polishes its children again.
    style.apply_theme(style.resolve_theme(settings.theme), language)
    return controller


# --- errors of the window --------------------------------------------------------------------------------


def _open_crash_log() -> TextIO | None:
    """Open the log for tracebacks: pythonw has no stderr."""
    from trainer_core.runs.run_dir import home

    path = home() / "logs" / "window.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        log = path.open("a", encoding="utf-8")
    except OSError:
        return None
    faulthandler.enable(log)
    return log


def install_exception_hook(controller: Controller, log: TextIO | None) -> None:
    """Log exceptions in slots, and show each once per source line: timers repeat them."""
    from app.texts import tr
    from app.window.banner import BannerContent

    shown: set[str] = set()

    def format_message() -> str:
        return f"{tr('common.window_error')} {tr('common.details_in_log', log=log.name if log else 'stderr')}"

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            controller.window.close()
            return
        text = "".join(traceback.format_exception(kind, error, trace))
        for stream in (log, sys.stderr):
            if stream is not None:
                stream.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
                stream.flush()
        location = text.rsplit("File", 1)[-1]
        if location not in shown:
            shown.add(location)
            controller.window.banners.add(BannerContent("error", format_message, text))

    sys.excepthook = hook


if __name__ == "__main__":
    sys.exit(main())
