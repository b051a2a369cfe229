"""Buttons that give an exported model to LM Studio, Ollama or the Hugging Face Hub, and open its folder."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QProcess, Signal

from app.core import export_options
from app.core.pool_task import PoolTask
from app.pages.export.push_dialog import PushDialog
from app.services import desktop_shell
from app.texts import tr
from app.widgets.basic import TranslatableWidget, horizontal_layout, label, push_button
from trainer_core.export.job import MODELFILE
from trainer_core.export.usage import ollama_name


class ModelPrograms(TranslatableWidget):
    """Each button is disabled, and its tooltip says why, if the program is not installed or cannot use the format."""

    message_ready = Signal(str, str)  # message; level: empty or "bad"

    def __init__(self) -> None:
        super().__init__()
        self._folder: Path | None = None
        self._copying = PoolTask(self)
        self._ollama = QProcess(self)
        self._ollama_name = ""  # of the model that it adds
        self.title = label("muted")
        self.lm_studio, self.ollama = push_button("useInLmStudio"), push_button("useInOllama")
        self.open_folder = push_button("openExport")
        self.push = push_button("pushToHub")
        self.setLayout(horizontal_layout(self.title, self.lm_studio, self.ollama, self.open_folder, self.push))
        self.lm_studio.clicked.connect(self._add_to_lm_studio)
        self.ollama.clicked.connect(self._add_to_ollama)
        self.open_folder.clicked.connect(lambda: desktop_shell.open_folder(self._folder or Path.home()))
        self.push.clicked.connect(self._open_push_dialog)
        self._copying.finished.connect(self._on_copied)
        self._ollama.finished.connect(self._on_ollama_finished)
        self._ollama.errorOccurred.connect(self._on_ollama_error)
        self._ollama.setProcessChannelMode(QProcess.ProcessChannelMode.MergedChannels)
        self.retranslate()

    def display(self, folder: Path | None) -> None:
        """`folder`: of the last export; None: there is none."""
        if folder != self._folder:
            self._folder = folder
            self._update()

    def shutdown(self) -> None:
        self._ollama.blockSignals(True)
        self._ollama.kill()
        for dialog in self.findChildren(PushDialog):
            dialog.job.shutdown()

    def _update(self) -> None:
        file = export_options.find_gguf(self._folder) if self._folder else None
        reason = "" if file else tr("export.needs_gguf" if self._folder else "export.nothing_exported")
        models, ollama = export_options.find_lm_studio(Path.home()), export_options.ollama_program()
        busy = self._ollama.state() != QProcess.ProcessState.NotRunning
        reasons = {
            self.lm_studio: reason or ("" if models else tr("export.no_lm_studio")),
            self.ollama: reason or ("" if ollama else tr("export.no_ollama")) or (tr("export.adding") if busy else ""),
            **dict.fromkeys((self.open_folder, self.push), "" if self._folder else tr("export.nothing_exported")),
        }
        for button, text in reasons.items():
            button.setEnabled(not text)
            button.setToolTip(text)

    def _add_to_lm_studio(self) -> None:
        models = export_options.find_lm_studio(Path.home())
        file = export_options.find_gguf(self._folder) if self._folder else None
        if models is None or file is None:
            self._update()  # removed in the meantime
            return
        self.message_ready.emit(tr("export.adding"), "")

        def add() -> Path | OSError:
            try:
                return export_options.add_to_lm_studio(file, models)
            except OSError as error:
                return error

        self._copying.start(add)

    def _on_copied(self, result: Path | OSError) -> None:
        if isinstance(result, OSError):
            self.message_ready.emit(tr("export.not_added", program="LM Studio", reason=result.strerror or "?"), "bad")
        else:
            self.message_ready.emit(tr("export.added_to_lm_studio", file=result), "")

    def _add_to_ollama(self) -> None:
        program, folder = export_options.ollama_program(), self._folder
        file = export_options.find_gguf(folder) if folder else None
        if program is None or folder is None or file is None:
            self._update()
            return
        self._ollama.setWorkingDirectory(str(folder))
        self._ollama_name = ollama_name(folder.name)
        self._ollama.start(program, ["create", self._ollama_name, "-f", MODELFILE])
        self.message_ready.emit(tr("export.adding"), "")
        self._update()

    def _on_ollama_error(self, error: QProcess.ProcessError) -> None:
        """After an exit, `finished` follows; not after a failed start."""
        if error is QProcess.ProcessError.FailedToStart:
            reason = self._ollama.errorString()
            self.message_ready.emit(tr("export.not_added", program="Ollama", reason=reason), "bad")
            self._update()

    def _on_ollama_finished(self, code: int) -> None:
        self._update()
        if code == 0:
            self.message_ready.emit(tr("export.added_to_ollama", command=f"ollama run {self._ollama_name}"), "")
            return
        lines = bytes(self._ollama.readAll().data()).decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else str(code)
        self.message_ready.emit(tr("export.not_added", program="Ollama", reason=reason), "bad")

    def _open_push_dialog(self) -> None:
        if self._folder is not None:
            PushDialog(self._folder, self).open()

    def retranslate(self) -> None:
        self.title.setText(tr("export.use_in"))
        self.lm_studio.setText("LM Studio")
        self.ollama.setText("Ollama")
        self.open_folder.setText(tr("export.open_folder"))
        self.push.setText(tr("export.push"))
        self._update()
