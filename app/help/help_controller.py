"""Help menu: guide, keyboard shortcuts, bug report, about. Dialogs are imported when they are opened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from PySide6.QtCore import QObject, QProcess, Qt, Signal
from PySide6.QtWidgets import QDialog, QFileDialog, QMessageBox, QPushButton

from app.services import desktop_shell
from app.services.trainer_process import console_interpreter, process_environment
from app.texts import current_language, tr
from app.window.main_window import MainWindow
from trainer_core import __version__
from trainer_core.runs import run_dir
from trainer_core.system import child_process, program_files

_GUIDES: Final = {"en": "guide.md", "zh": "guide.zh.md"}


class HelpController(QObject):
    """`shown_run_path` returns the folder of the displayed run, for a bug report."""

    restart_requested = Signal(list)  # with arguments of the launcher

    def __init__(self, window: MainWindow, settings_path: Path, shown_run_path: Callable[[], Path | None]) -> None:
        super().__init__(window)
        self._window, self._settings_path, self._shown_run_path = window, settings_path, shown_run_path
        self._report_process: QProcess | None = None
        window.menus.connect_actions({
            "guide": self.show_guide,
            "shortcuts": self.show_shortcuts,
            "whats_new": self.show_whats_new,
            "undo_update": self.ask_to_undo_update,
            "bug_report": self.choose_bug_report_path,
            "about": self.show_about,
        })  # fmt: skip

    def show_guide(self) -> None:
        self._show_document(program_files.ROOT / "docs" / _GUIDES[current_language()], tr("help.user_guide"))

    def show_whats_new(self) -> None:
        self._show_document(program_files.ROOT / "CHANGELOG.md", tr("help.whats_new"))

    def _show_document(self, path: Path, title: str) -> None:
        from app.help.text_dialog import DocumentDialog

        _show_dialog(DocumentDialog(path, title, self._window))

    def show_shortcuts(self) -> None:
        from app.help.text_dialog import Shortcuts

        listed = [*self._window.menus.actions_with_titles(), *self._window.table_shortcuts()]
        _show_dialog(Shortcuts(listed, self._window))

    def show_about(self) -> None:
        from app.core import bug_report

        versions = bug_report.versions()
        box = self._message_box(tr("help.about_traindeck"), f"Traindeck {__version__}\n{tr('help.subtitle')}")
        box.setObjectName("about")
        box.setIconPixmap(self._window.windowIcon().pixmap(64, 64))
        box.setInformativeText(f"{versions}\n{tr('help.licence_note')}")
        copy = box.addButton(tr("help.copy_versions"), QMessageBox.ButtonRole.ActionRole)
        copy.clicked.connect(lambda: desktop_shell.copy_text(versions))
        licence = box.addButton(tr("help.licence"), QMessageBox.ButtonRole.ActionRole)
        licence.clicked.connect(lambda: self._show_document(program_files.ROOT / "LICENSE", tr("help.licence")))
        _show_dialog(box)

    def ask_to_undo_update(self) -> None:
        """Offer the packages of before the last update."""
        box = self._message_box(tr("help.undo_update"), tr("help.undo_question"))
        box.setObjectName("undoUpdate")
        undo = box.addButton(tr("help.undo_and_restart"), QMessageBox.ButtonRole.AcceptRole)
        undo.clicked.connect(lambda: self.restart_requested.emit(["setup", "--back", "--open"]))
        _show_dialog(box)

    def _message_box(self, title: str, text: str) -> QMessageBox:
        """Return a modeless box with a Close button; its text can be selected."""
        box = QMessageBox(self._window)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.setModal(False)
        box.setTextFormat(Qt.TextFormat.PlainText)
        box.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        box.setWindowTitle(title)
        box.setText(text)
        close = QPushButton(tr("common.close"))
        box.addButton(close, QMessageBox.ButtonRole.RejectRole)
        box.setDefaultButton(close)
        return box

    # --- bug report ------------------------------------------------------------------------------------------

    def choose_bug_report_path(self) -> None:
        """Ask where to save a bug report, then create it."""
        if self._report_process is not None:
            return
        suggested = desktop_shell.documents_folder() / f"traindeck-report-{time.strftime('%Y%m%d-%H%M')}.zip"
        dialog = QFileDialog(self._window, tr("help.save_bug_report"), str(suggested), tr("help.zip_filter"))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix("zip")
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.fileSelected.connect(self._create_bug_report)
        dialog.open()

    def _create_bug_report(self, path: str) -> None:
        """Write the report in a child process: `doctor` and masking take seconds."""
        run, log = self._shown_run_path(), run_dir.home() / "logs" / "window.log"
        arguments = [path, "--window-log", str(log), "--settings", str(self._settings_path)]
        arguments += ["--run", str(run)] if run is not None else []
        process = self._report_process = QProcess(self)
        process.setProcessEnvironment(process_environment())
        process.finished.connect(lambda code, _: self._on_bug_report_ended(process, Path(path), code))
        process.errorOccurred.connect(lambda error: self._on_bug_report_error(process, Path(path), error))
        process.start(console_interpreter(), ["-P", "-X", "utf8", "-m", "app.core.bug_report", *arguments])

    def _on_bug_report_error(self, process: QProcess, path: Path, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:  # the signal `finished` is not emitted
            self._on_bug_report_ended(process, path, -1)

    def _on_bug_report_ended(self, process: QProcess, path: Path, code: int) -> None:
        self._report_process = None
        process.deleteLater()
        lines = bytes(process.readAllStandardError().data()).decode("utf-8", "replace").splitlines()
        reason = process.errorString() if code == -1 else f"code {code}."
        failed = tr("help.bug_report_failed", reason=lines[-1] if lines else reason)
        box = self._message_box(tr("help.bug_report"), failed if code else tr("help.saved_as_path", path=path))
        box.setObjectName("bugReport")
        if not code:
            box.setInformativeText(tr("help.bug_report_note"))
            folder = box.addButton(tr("help.open_folder"), QMessageBox.ButtonRole.ActionRole)
            folder.clicked.connect(lambda: desktop_shell.open_folder(path))
        _show_dialog(box)

    def shutdown(self) -> None:
        """Stop a report that is being written."""
        if self._report_process is not None:
            self._report_process.blockSignals(True)
            if pid := int(self._report_process.processId()):
                child_process.kill_tree(pid)  # including its doctor process
            self._report_process.waitForFinished(1000)


def _show_dialog(dialog: QDialog) -> None:
    dialog.show()
    dialog.raise_()
    dialog.activateWindow()
