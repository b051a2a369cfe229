"""Whether the tokenizer of the form is there: looked at in a thread as its path is typed, for a share may be slow."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.state.tokenizer_path import holds_tokenizer
from app.views.setup.form import SetupForm

_TYPING_MS: Final = 200
_AGAIN_MS: Final = 3_000  # what is missing may come back: a stick, a share


class TokenizerWatch(QObject):
    """Tells the form of a path that leads nowhere."""

    _looked = Signal(str, bool)

    def __init__(self, form: SetupForm, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._form = form
        self._path = ""  # the newest
        self._timer = QTimer(self, singleShot=True)
        self._timer.timeout.connect(self._start)
        self._looked.connect(self._on_looked)
        form.changed.connect(self.look)

    def look(self) -> None:
        """Look, where the form has another path by now."""
        path = self._form.text("tokenizer").strip()
        if path != self._path:
            self._path = path
            self._timer.start(_TYPING_MS)

    def _start(self) -> None:
        if not self._path:
            self._form.mark_gone("")
            return
        threading.Thread(target=self._look, args=(self._path,), daemon=True).start()

    def _look(self, path: str) -> None:
        there = holds_tokenizer(path)
        with contextlib.suppress(RuntimeError):  # the window was closed meanwhile
            self._looked.emit(path, there)

    def _on_looked(self, path: str, there: bool) -> None:
        if path != self._path:
            return
        self._form.mark_gone("" if there else path)
        if not there:
            self._timer.start(_AGAIN_MS)
