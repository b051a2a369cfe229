"""The card below Start: whether what is set fits this machine, in a word and four figures, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QProgressBar, QToolButton, QVBoxLayout, QWidget

from app.state import checks
from app.state.looks import Look
from app.theme.icons import icon, pixmap
from app.theme.tokens import SPACE, Tokens
from app.views import check_words, words
from app.views.widgets import ElidedLabel, FittingArea, Retranslating, button, clear, column, label, named, put, restyle
from trainer_core.protocol import CheckReport

FIGURES: Final = ("memory", "speed", "time", "disk")
_COLOURS: Final = {"fits": "good", "tight": "warn", "does_not_fit": "bad"}
_FINE: Final = 1000  # steps of a bar
_MOST_OFFERS: Final = 4
_NARROW: Final = 620  # pixels
_LEAST: Final = 120  # pixels: of its height in a low window


@dataclass(frozen=True, slots=True)
class CheckState:
    """Everything the card shows."""

    look: Look[CheckReport] | None = None  # the check to show
    current: bool = False  # it is of what the form says
    running: Look[CheckReport] | None = None  # the check that is under way
    cancelling: bool = False
    failure: str = ""  # why the last one ended without a report
    applied: int | None = None  # place of the offer that the form has now


class CheckCard(Retranslating):
    """Shows a `CheckState`; hidden by its owner while there is none."""

    cancel_asked = Signal()
    closed = Signal()
    applied = Signal(dict)  # knobs and values of an offer

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._tokens = tokens
        self._state = CheckState()
        self._painted: object = None
        self._narrow: bool | None = None
        self._icon, self.verdict, self.facts = QLabel(), label("verdict"), ElidedLabel()
        self.facts.setObjectName("muted")
        self.cancel, self._close = button("cancelCheck"), named(QToolButton(), "flat")
        self.progress = QProgressBar(textVisible=False, maximum=_FINE)
        self.titles = {name: label("muted") for name in FIGURES}
        self.values = {name: label("section") for name in FIGURES}
        self.bar = QProgressBar(textVisible=False, maximum=_FINE)
        self.failure, self.notes = label("error", wrap=True), label("warnText", wrap=True)
        self.hint, self._offers_title = label("warnText", wrap=True), label("muted", wrap=True)
        self.offers: list[QWidget] = []  # the buttons that apply them
        self._figures, self._offers = QGridLayout(), QGridLayout()
        self._figures_box = QWidget()
        self._arrange()
        self.cancel.clicked.connect(self.cancel_asked)
        self._close.clicked.connect(self.closed)
        self.hide()
        self.retheme(tokens)
        self.retranslate()

    # --- layout ----------------------------------------------------------------------------------------

    def _arrange(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(SPACE)
        for part in (self._icon, self.verdict):
            top.addWidget(part)
        top.addWidget(self.facts, 1)
        for asked in (self.cancel, self._close):
            top.addWidget(asked)
        self._figures_box.setLayout(self._figures)
        self._figures.setContentsMargins(0, 0, 0, 0)
        self._figures.setHorizontalSpacing(3 * SPACE)
        self._figures.setVerticalSpacing(2)
        self._offers.setHorizontalSpacing(2 * SPACE)
        self._offers.setVerticalSpacing(SPACE // 2)
        self._offers.setColumnStretch(0, 1)
        content, frame = named(QWidget(), "scrolled"), named(QFrame(), "card")
        inner = column(spacing=SPACE - 2)
        inner.setContentsMargins(SPACE + 4, SPACE, SPACE + 4, SPACE)
        frame.setLayout(inner)
        inner.addLayout(top)
        for widget in (self.progress, self.failure, self._figures_box, self.notes, self.hint, self._offers_title):
            inner.addWidget(widget)
        inner.addLayout(self._offers)
        around, outer = QVBoxLayout(content), QVBoxLayout(self)
        for layout in (around, outer):
            layout.setContentsMargins(0, 0, 0, 0)
        around.addWidget(frame)
        self._area = FittingArea(content, _LEAST)
        outer.addWidget(self._area)
        self._fit(_NARROW)

    def _fit(self, width: int) -> None:
        """Four figures side by side, or two by two in a narrow window."""
        narrow = width < _NARROW
        if narrow is self._narrow:
            return
        self._narrow = narrow
        across = 2 if narrow else len(FIGURES)
        for place, name in enumerate(FIGURES):
            row, at = divmod(place, across)
            self._figures.addWidget(self.titles[name], 3 * row, at)
            self._figures.addWidget(self.values[name], 3 * row + 1, at)
        self._figures.addWidget(self.bar, 2, 0)
        for at in range(len(FIGURES)):
            self._figures.setColumnStretch(at, 1 if at < across else 0)

    # --- showing ---------------------------------------------------------------------------------------

    def display(self, state: CheckState) -> None:
        """Show this; cheap where nothing has changed."""
        self._state = state
        report = state.look.report if state.look and not state.running and not state.failure else None
        self._show_progress(state)
        painted = (id(report), state.current, state.applied, state.failure, state.running is None)
        if painted == self._painted:
            return
        self._painted = painted
        put(self.failure, state.failure)
        self.failure.setVisible(bool(state.failure))
        self._close.setVisible(state.running is None)
        for part in (self._figures_box, self._icon):
            part.setVisible(report is not None)
        self.hint.setVisible(report is not None and not state.current)
        warnings = state.look.warnings if state.look and report else []
        self.notes.setVisible(bool(warnings))
        self.notes.setText("\n".join(words.message(note.code, note.params) for note in warnings))
        self._show_offers(report, state.applied)
        if report is not None:
            self._show_report(report)
        elif state.failure:
            self._head(self.tr("The check did not succeed"), "bad", "")
        self._settle()

    def _settle(self) -> None:
        """Take the height of what is shown now: left to the events to come, a frame shows it cut."""
        self._area.updateGeometry()
        self.updateGeometry()
        around = self.parentWidget()
        if around is not None and (layout := around.layout()) is not None:
            layout.activate()

    def _show_progress(self, state: CheckState) -> None:
        running = state.running
        self.progress.setVisible(running is not None)
        self.cancel.setVisible(running is not None)
        self.cancel.setEnabled(not state.cancelling)
        if running is None:
            return
        told = running.progress if running.progress and running.progress.phase == running.phase else None
        share = told.done / told.total if told and told.total else None
        self.progress.setMaximum(0 if share is None else _FINE)  # 0: Qt shows that something goes on
        self.progress.setValue(round((share or 0.0) * _FINE))
        phase = running.phase or "checking"  # which is what the heading says
        doing = self.tr("ending") if state.cancelling else words.phase(phase) if phase != "checking" else ""
        amount = words.amount(told.done, told.total, told.unit) if told and told.total else ""
        self._head(self.tr("Check"), "text", "  ·  ".join(filter(None, (doing, amount))))

    def _head(self, verdict: str, colour: str, facts: str) -> None:
        put(self.verdict, verdict)
        self.facts.setText(facts)
        if self.verdict.property("level") != colour:
            self.verdict.setProperty("level", colour)
            restyle(self.verdict)

    def _show_report(self, report: CheckReport) -> None:
        level = _COLOURS[report.verdict]
        self._head(words.verdict(report.verdict), level, check_words.facts(report))
        self._icon.setPixmap(pixmap(report.verdict, getattr(self._tokens, level), self.devicePixelRatioF()))
        for name in FIGURES:
            self.titles[name].setText(check_words.title(name, report))
            self.values[name].setText(check_words.figure(name, report))
            for widget in (self.titles[name], self.values[name]):
                widget.setToolTip(check_words.tooltip(name, report))
        short = report.disk_needed > report.disk_free
        self.values["disk"].setProperty("level", "bad" if short else "")
        taken = check_words.memory_share(report)
        self.bar.setVisible(taken is not None)
        self.bar.setValue(round(_FINE * (taken or 0.0)))
        self.bar.setAccessibleName(self.titles["memory"].text())
        self.bar.setProperty("level", level)
        restyle(self.values["disk"])
        restyle(self.bar)

    def _show_offers(self, report: CheckReport | None, applied: int | None) -> None:
        clear(self._offers)
        self.offers = []
        offers = report.offers[:_MOST_OFFERS] if report and report.verdict != "fits" else []
        self._offers_title.setVisible(bool(offers))
        for row, trial in enumerate(offers):
            assert report is not None
            changes = checks.differing(trial, report.chosen)
            what = label(wrap=True)
            what.setText(words.settings(changes))
            self._offers.addWidget(what, row, 0)
            for place, text in enumerate(check_words.offer_figures(trial), 1):
                figure = label("muted")
                figure.setText(text)
                self._offers.addWidget(figure, row, place, Qt.AlignmentFlag.AlignRight)
            self._offers.addWidget(self._apply_button(checks.settings(trial), done=row == applied), row, 3)

    def _apply_button(self, settings: Mapping[str, Any], *, done: bool) -> QWidget:
        made = button("apply")
        made.setText(self.tr("Applied") if done else self.tr("Apply"))
        made.setEnabled(not done)
        made.clicked.connect(lambda: self.applied.emit(dict(settings)))
        self.offers.append(made)
        return made

    # --- looks and words -----------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._close.setIcon(icon("close", tokens.text, tokens.muted))
        self._show_again()

    def retranslate(self) -> None:
        self.cancel.setText(self.tr("Cancel"))
        self._close.setToolTip(self.tr("Dismiss"))
        self._close.setAccessibleName(self.tr("Dismiss"))
        self.progress.setAccessibleName(self.tr("Progress"))
        self.hint.setText(self.tr("Settings have changed since this was measured. Check again to see their effect."))
        self._offers_title.setText(self.tr("These fit with the same effective batch, measured on this machine:"))
        self._show_again()

    def _show_again(self) -> None:
        self._painted = None
        self.display(self._state)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._fit(event.size().width())
