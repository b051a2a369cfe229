"""What stands in place of empty plots before the first run: the machine in words, a preset that fits, a way to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QVBoxLayout, QWidget

from app.state.proposing import DriverTrouble, Proposal
from app.theme.tokens import SPACE
from app.views import welcome_words, words
from app.views.widgets import ElidedLabel, Retranslating, button, card, clear, column, label, named, put, scroll_area
from trainer_core.presets import Preset

if TYPE_CHECKING:
    from trainer_core.machine.hardware import Machine

_WIDTH = 720  # of the column at most: longer lines read badly


@dataclass(frozen=True, slots=True)
class WelcomeState:
    """Everything the page shows. `machine` is None until it was looked at."""

    machine: Machine | None = None
    proposal: Proposal | None = None
    preset: Preset | None = None  # that is proposed
    trouble: DriverTrouble | None = None
    chosen: bool = False  # the form has this preset
    has_data: bool = False  # and something to train on
    can_start: bool = True
    first: bool = True  # there are no runs yet


class Welcome(Retranslating):
    """Shows a `WelcomeState`."""

    use_asked = Signal()
    try_asked = Signal()
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state = WelcomeState()
        self._title, self._subtitle = label("welcomeTitle", wrap=True), label("muted", wrap=True)
        self._machine_title, self._facts = label("section"), QGridLayout()
        self.trouble = label("warnText", wrap=True, hidden=True)
        self.preset_title, self.reason = label("section", wrap=True), label(wrap=True)
        self._summary = label("muted", wrap=True)
        self.use, self.chosen = button("usePreset"), label("good", wrap=True)
        self._try_title, self._try_text = label("section", wrap=True), label(wrap=True)
        self.try_now, self.close_button = button("primary"), button("link")
        self.trouble.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.use.clicked.connect(self.use_asked)
        self.try_now.clicked.connect(self.try_asked)
        self.close_button.clicked.connect(self.closed)
        self._arrange()
        self.retranslate()

    def _arrange(self) -> None:
        self._facts.setHorizontalSpacing(2 * SPACE)
        self._facts.setVerticalSpacing(SPACE // 2)
        self._facts.setColumnStretch(1, 1)
        content = column(spacing=SPACE + 4)
        content.setContentsMargins(SPACE, 2 * SPACE, SPACE, 2 * SPACE)
        for text in (self._title, self._subtitle):
            content.addWidget(text)
        facts, uses, tries = column(spacing=SPACE), column(spacing=SPACE), column(spacing=SPACE)
        facts.addWidget(self._machine_title)
        facts.addLayout(self._facts)
        facts.addWidget(self.trouble)
        for text in (self.preset_title, self.reason, self._summary):
            uses.addWidget(text)
        uses.addLayout(_row(self.use, rest=self.chosen))
        for text in (self._try_title, self._try_text):
            tries.addWidget(text)
        tries.addLayout(_row(self.try_now))
        for part in (facts, uses, tries):
            content.addWidget(_roomy(part))
        content.addLayout(_row(self.close_button))
        content.addStretch(1)
        inner, around = named(QWidget(), "scrolled"), QHBoxLayout()
        held = QWidget()
        held.setLayout(content)
        held.setMaximumWidth(_WIDTH)
        around.setContentsMargins(0, 0, 0, 0)
        around.addStretch(1)
        around.addWidget(held, 100)
        around.addStretch(1)
        inner.setLayout(around)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll_area(inner))

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, state: WelcomeState) -> None:
        """Show this; cheap where it is what is shown already."""
        if state != self._state:
            looked = state.machine is not self._state.machine
            self._state = state
            self._show(facts=looked)

    def _show(self, *, facts: bool) -> None:
        state = self._state
        if facts:
            self._show_facts()
        machine, proposal = state.machine, state.proposal
        put(self.trouble, welcome_words.trouble(state.trouble, machine) if state.trouble and machine else "")
        self.trouble.setVisible(bool(self.trouble.text()))
        put(self.reason, welcome_words.reason(machine, proposal) if machine and proposal else "")
        preset = state.preset
        title = preset.text(preset.title, words.language()) if preset else "…"
        put(self.preset_title, self.tr("The preset that fits: {preset}").format(preset=title))
        put(self._summary, preset.text(preset.summary, words.language()) if preset else "")
        self.use.setEnabled(preset is not None and not state.chosen and state.can_start)
        put(self.chosen, self._next() if state.chosen else "")
        self.try_now.setEnabled(state.can_start)
        put(self.close_button, self.tr("Don't show this again") if state.first else self.tr("Close"))

    def _next(self) -> str:
        if self._state.has_data:
            return self.tr("Chosen. Next: Check or Start, above.")
        return self.tr("Chosen. Now add your data: drop it anywhere on this window.")

    def _show_facts(self) -> None:
        clear(self._facts)
        for place, (what, amount) in enumerate(welcome_words.facts(self._state.machine)):
            name, value = label("muted"), ElidedLabel()
            name.setText(what)
            value.setText(amount)
            self._facts.addWidget(name, place, 0)
            self._facts.addWidget(value, place, 1)

    def retranslate(self) -> None:
        put(self._title, self.tr("Welcome to Traindeck"))
        put(self._subtitle, self.tr("Train a language model of your own, on this machine. Nothing leaves it."))
        put(self._machine_title, self.tr("This machine"))
        put(self.use, self.tr("Use this preset"))
        put(self._try_title, self.tr("Or see a model learn first"))
        put(self._try_text, self.tr("A small model learns to write Python, in some minutes. Nothing to download."))
        put(self.try_now, self.tr("Try it now with built-in data"))
        self._show(facts=True)


def _row(*widgets: QWidget, rest: QWidget | None = None) -> QHBoxLayout:
    """From the left, as wide as they are; `rest` takes what is left."""
    row = QHBoxLayout()
    row.setSpacing(SPACE)
    for widget in widgets:
        row.addWidget(widget)
    if rest is None:
        row.addStretch(1)
    else:
        row.addWidget(rest, 1)
    return row


def _roomy(layout: QVBoxLayout) -> QFrame:
    frame = card(layout)
    layout.setContentsMargins(2 * SPACE, SPACE + 4, 2 * SPACE, SPACE + 4)
    return frame
