"""Notice below the preset: which changed settings kept their values when another preset was chosen."""

from __future__ import annotations

from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.i18n.knob_words import knob_words
from app.theme.tokens import SPACE
from app.views import words
from app.views.setup.form import SetupForm
from app.views.widgets import Retranslating, announce, button, hand_over, label, named
from trainer_core.config import knobs


class KeptNotice(Retranslating):
    """Visible while `form.kept` names settings. `next_focus` gets the focus of a button that hides the notice."""

    def __init__(self, form: SetupForm, next_focus: QWidget) -> None:
        super().__init__()
        self._form, self._next_focus = form, next_focus
        self._names: tuple[str, ...] = ()
        self.text = label(wrap=True)
        self.reset, self.dismiss = button("link"), button("link")
        self.reset.clicked.connect(self._on_reset)
        self.dismiss.clicked.connect(form.forget_kept)
        self._arrange()
        self.hide()
        form.changed.connect(self._on_changed)
        self.retranslate()

    def _arrange(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(SPACE)
        row.addWidget(self.reset)
        row.addStretch(1)
        row.addWidget(self.dismiss)
        frame = named(QFrame(), "banner")
        inner = QVBoxLayout(frame)
        inner.setContentsMargins(SPACE, SPACE // 2, SPACE, SPACE // 2)
        inner.setSpacing(SPACE // 2)
        inner.addWidget(self.text)
        inner.addLayout(row)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addWidget(frame)

    def _on_changed(self) -> None:
        if self._form.kept == self._names:
            return
        self._names = self._form.kept
        self.retranslate()
        if not self._names:
            hand_over(self, self._next_focus)
        self.setVisible(bool(self._names))
        if self._names:
            announce(self, self.text.text())

    def _on_reset(self) -> None:
        self._form.reset(*self._names)
        self._form.forget_kept()

    def retranslate(self) -> None:
        table = knob_words(words.language())
        settings = self.tr(", ").join(table.label(knobs()[name]) for name in self._names)
        self.text.setText(self.tr("Kept your changes: {settings}").format(settings=settings))
        self.reset.setText(self.tr("Reset to the preset"))
        self.reset.setAccessibleDescription(self.text.text())
        self.dismiss.setText(self.tr("Dismiss"))
