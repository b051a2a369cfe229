"""Whether the chosen validation data exists, and what it seems to be."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QObject, QTimer, Signal

from app.parts.glancing import Glancer
from app.state.data_glance import Glance
from app.views import data_words
from app.views.setup.form import VALIDATION, SetupForm
from app.views.setup.validation_list import ValidationList

_AGAIN_MS: Final = 3_000


class ValidationWatch(QObject):
    """Looks at the names of the validation data when it changes, and again while something is missing."""

    changed = Signal()

    def __init__(self, form: SetupForm, shown: ValidationList, parent: QObject) -> None:
        super().__init__(parent)
        self._form, self._shown = form, shown
        self._glance: Glance | None = None  # None: not known yet
        self._paths: list[str] = []
        self._glancer = Glancer(self)
        self._again = QTimer(self, interval=_AGAIN_MS, singleShot=True)
        self._glancer.found.connect(self._on_glance)
        self._again.timeout.connect(self.look)
        form.knob_changed.connect(self._on_knob)

    def look(self) -> None:
        """Look at the names of the files."""
        if self._form.validation_data:
            self._glancer.look(self._form.validation_data)

    @property
    def missing(self) -> str:
        """What of the validation data does not exist; empty: nothing, or it is not known yet."""
        paths = self._form.validation_data
        if not paths or self._glance is None or not self._glance.useless:
            return ""
        return data_words.seen(self._glance, paths, paths)[0]

    def _on_knob(self, name: str) -> None:
        if name == VALIDATION and self._form.validation_data != self._paths:
            self._paths, self._glance = self._form.validation_data, None
            self.look()

    def _on_glance(self, paths: list[str], seen: Glance) -> None:
        if paths != self._form.validation_data:
            return
        self._glance = seen
        self._shown.show_glance(seen)
        self.changed.emit()
        if seen.useless:
            self._again.start()  # a removable drive or a network share may come back
