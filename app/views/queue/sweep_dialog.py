"""The dialog of a sweep: one or two settings, their values, and the runs that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from PySide6.QtCore import QCoreApplication, QSize, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.i18n.knob_words import knob_words
from app.state import sweep
from app.state.sweep import Axis, Planned
from app.state.typed import plain
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.queue import sweep_words
from app.views.setup.form import as_text
from app.views.widgets import (
    FittingArea,
    QuietCombo,
    button,
    describe_error,
    label,
    line,
    named,
    plain_tip,
    put,
    resize_within_screen,
)
from trainer_core.config import Knob, knobs
from trainer_core.messages import TraindeckError
from trainer_core.presets import Preset
from trainer_core.runs.run_dir import safe_name

_FIRST: Final = "learning_rate"
_MODES: Final = ("values", "linear", "log")
_STEPS: Final = "5"  # between two ends, to begin with
_LONGEST_NAME: Final = 50
_LEAST: Final = 120  # pixels: of the height of what is chosen, in a low window


class AxisEditor(QWidget):
    """One setting and its values: ticked where there are few, typed or spread between two ends where it is a number."""

    changed = Signal()

    def __init__(self, place: int, values: Mapping[str, Any], *, optional: bool) -> None:
        super().__init__()
        self._values, self._optional = values, optional
        self.names = ["", *sweep.sweepable()] if optional else sweep.sweepable()
        self.knob, self.mode = named(QuietCombo(), f"sweepKnob{place}"), named(QuietCombo(), f"sweepMode{place}")
        self.typed = line(f"sweepValues{place}")
        self.low, self.high, self.steps = (line(f"sweep{end}{place}") for end in ("From", "To", "Steps"))
        self.ticks: list[QCheckBox] = []
        self._ticks_box = QWidget()
        self._ticks_row = QHBoxLayout(self._ticks_box)
        self.error = label("fieldError", wrap=True)
        self._stack = QStackedWidget()
        self._arrange()
        self._word()
        self.knob.setCurrentIndex(0 if optional else self.names.index(_FIRST))
        self._choose()
        self.knob.activated.connect(self._choose)
        self.mode.activated.connect(self._change_mode)
        for edited in (self.typed, self.low, self.high, self.steps):
            edited.textEdited.connect(self.changed)

    def _arrange(self) -> None:
        ends = QHBoxLayout()
        ends.setSpacing(SPACE)
        self._from, self._to, self._in = label("muted"), label("muted"), label("muted")
        parts = ((self._from, self.low), (self._to, self.high), (self._in, self.steps))
        for said, edited in parts:
            said.setBuddy(edited)
            ends.addWidget(said)
            ends.addWidget(edited, 1)
        for layout in (ends, self._ticks_row):
            layout.setContentsMargins(0, 0, 0, 0)
        for part in (_inside(self.typed), _box(ends), self._ticks_box):
            self._stack.addWidget(part)
        head = QHBoxLayout()
        head.setSpacing(SPACE)
        head.addWidget(self.knob, 1)
        head.addWidget(self.mode)
        inner = QVBoxLayout(self)
        inner.setContentsMargins(0, 0, 0, 0)
        inner.setSpacing(SPACE // 2)
        inner.addLayout(head)
        inner.addWidget(self._stack)
        inner.addWidget(self.error)
        self.knob.setMaxVisibleItems(20)

    def _word(self) -> None:
        table = knob_words(words.language())
        nothing = QCoreApplication.translate("Sweep", "no second setting")
        self.knob.addItems([table.label(knobs()[name]) if name else nothing for name in self.names])
        self.knob.setAccessibleName(QCoreApplication.translate("Sweep", "Setting"))
        self.mode.addItems([
            QCoreApplication.translate("Sweep", "these values"),
            QCoreApplication.translate("Sweep", "even steps"),
            QCoreApplication.translate("Sweep", "even factors"),
        ])  # fmt: skip
        self.mode.setAccessibleName(QCoreApplication.translate("Sweep", "How the values are given"))
        self.typed.setAccessibleName(QCoreApplication.translate("Sweep", "Values, with commas between them"))
        self.typed.setPlaceholderText(self.typed.accessibleName())
        self._from.setText(QCoreApplication.translate("Sweep", "from"))
        self._to.setText(QCoreApplication.translate("Sweep", "to"))
        self._in.setText(QCoreApplication.translate("Sweep", "number of values"))
        for said, edited in ((self._from, self.low), (self._to, self.high), (self._in, self.steps)):
            edited.setAccessibleName(said.text())

    # --- choosing ----------------------------------------------------------------------------------------

    def chosen(self) -> Knob | None:
        name = self.names[self.knob.currentIndex()]
        return knobs()[name] if name else None

    def _choose(self) -> None:
        """Another setting: propose values around the one that the form has."""
        knob = self.chosen()
        self._clear_ticks()
        number = knob is not None and knob.kind in ("int", "float")
        self.mode.setVisible(number)
        self._stack.setVisible(knob is not None)
        if knob is not None and number:
            around = _around(knob, self._values.get(knob.name, knob.default))
            self.typed.setText(", ".join(map(as_text, around)))
            self.low.setText(as_text(around[0]))
            self.high.setText(as_text(around[-1]))
            self.steps.setText(_STEPS)
            self.typed.setToolTip(words.allowed(knob))
        elif knob is not None:
            self._offer_ticks(knob)
        self._change_mode()

    def _offer_ticks(self, knob: Knob) -> None:
        switch = {
            "true": QCoreApplication.translate("Settings", "on"),
            "false": QCoreApplication.translate("Settings", "off"),
        }
        table = knob_words(words.language())
        for value in knob.choices or switch:
            tick = QCheckBox(table.value(knob, value) if knob.choices else switch[value])
            tick.setProperty("value", value)
            tick.setChecked(True)
            tick.toggled.connect(self.changed)
            self.ticks.append(tick)
            self._ticks_row.addWidget(tick)
        self._ticks_row.addStretch(1)

    def _clear_ticks(self) -> None:
        self.ticks = []
        while (item := self._ticks_row.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.hide()
                widget.deleteLater()

    def _change_mode(self) -> None:
        mode = _MODES[self.mode.currentIndex()]
        self._stack.setCurrentIndex(2 if self.ticks else 0 if mode == "values" else 1)
        self.changed.emit()

    # --- what is given -----------------------------------------------------------------------------------

    def axis(self) -> Axis | None:
        """The setting and its values; None: no setting, or none that can be used. Says what is wrong, and where."""
        knob = self.chosen()
        field, wrong = self._wrong(knob) if knob is not None else (None, "")
        put(self.error, wrong)
        self.error.setVisible(bool(wrong))
        for edited in (self.typed, self.low, self.high, self.steps):
            describe_error(edited, wrong if edited is field else "")
        for tick in self.ticks:
            describe_error(tick, wrong)
        return Axis(knob.name, tuple(self._given(knob))) if knob is not None and not wrong else None

    def _wrong(self, knob: Knob) -> tuple[QLineEdit | None, str]:
        """The first field that is wrong, and why; without words none is."""
        if self.ticks:
            return None, "" if self._given(knob) else sweep_words.at_least_one()
        if self.mode.currentIndex() == 0:
            return self.typed, sweep_words.of_values(knob, self.typed.text())
        for end in (self.low, self.high):
            if wrong := sweep_words.of_end(knob, end.text(), factors=self.mode.currentIndex() == 2):
                return end, wrong
        return self.steps, sweep_words.of_count(self.steps.text())

    def _given(self, knob: Knob) -> list[Any]:
        if self.ticks:
            return sweep.typed(knob, ",".join(tick.property("value") for tick in self.ticks if tick.isChecked()))
        mode = _MODES[self.mode.currentIndex()]
        if mode == "values":
            return sweep.typed(knob, self.typed.text())
        scale: sweep.Scale = "log" if mode == "log" else "linear"
        return sweep.spread(knob, self.low.text(), self.high.text(), int(plain(self.steps.text())), scale)


class SweepDialog(QDialog):
    """`added` carries the runs to line up. It does not block: a run and its plots go on behind it."""

    added = Signal(object)  # list[Planned]

    def __init__(
        self,
        base: str,
        preset: Preset,
        changes: Mapping[str, Any],
        taken: set[str],
        tokens: Tokens,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowModality(Qt.WindowModality.WindowModal)
        self._known, self._changes, self._taken, self._tokens = preset.knobs, changes, taken, tokens
        values = {**preset.knobs, **changes}
        self.axes = [AxisEditor(1, values, optional=False), AxisEditor(2, values, optional=True)]
        self.base = line("sweepBase")
        self.base.setMaxLength(_LONGEST_NAME)
        self.base.setText(safe_name(base)[:_LONGEST_NAME])
        self.count, self.list = label("section"), named(QListWidget(), "sweepRuns")
        self.list.setSelectionMode(QListWidget.SelectionMode.NoSelection)
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.setTextElideMode(Qt.TextElideMode.ElideMiddle)  # what differs stands at the end
        self.cancel, self.accept_ = button("sweepCancel"), button("primary")
        self._planned: list[Planned] = []
        self._good: list[Planned] = []  # those that can be trained
        self._word()
        self._arrange()
        for axis in self.axes:
            axis.changed.connect(self._plan)
        self.base.textEdited.connect(self._plan)
        self.cancel.clicked.connect(self.reject)
        self.accept_.clicked.connect(self._add)
        self.accept_.setDefault(True)
        self._plan()

    def _word(self) -> None:
        self.setWindowTitle(QCoreApplication.translate("Sweep", "Sweep"))
        self._intro = label("muted", wrap=True)
        self._intro.setText(
            QCoreApplication.translate(
                "Sweep",
                "One run for every value, or for every pair of values. All else stays as it is set at the left, the "
                "seed too, so that the runs can be compared.",
            )
        )
        self._base_label = QLabel(QCoreApplication.translate("Sweep", "Names begin with"))
        self._base_label.setBuddy(self.base)
        self.base.setAccessibleName(self._base_label.text())
        self.list.setAccessibleName(QCoreApplication.translate("Sweep", "Runs to be added"))
        self.cancel.setText(QCoreApplication.translate("Sweep", "Cancel"))

    def _arrange(self) -> None:
        naming = QHBoxLayout()
        naming.setSpacing(SPACE)
        naming.addWidget(self._base_label)
        naming.addWidget(self.base, 1)
        buttons = QHBoxLayout()
        buttons.setSpacing(SPACE)
        buttons.addStretch(1)
        buttons.addWidget(self.cancel)
        buttons.addWidget(self.accept_)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(2 * SPACE, 2 * SPACE, 2 * SPACE, 2 * SPACE)
        layout.setSpacing(SPACE + 4)
        layout.addWidget(FittingArea(self._chosen(naming), _LEAST))
        layout.addWidget(self.count)
        layout.addWidget(self.list, 1)
        layout.addLayout(buttons)
        resize_within_screen(self, QSize(520, 560))

    def _chosen(self, naming: QHBoxLayout) -> QWidget:
        """What is chosen here, above the list of the runs. It scrolls where the screen is too low for it."""
        content = named(QWidget(), "scrolled")
        layout = QVBoxLayout(content)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE + 4)
        layout.addWidget(self._intro)
        for axis in self.axes:
            layout.addWidget(axis)
        layout.addLayout(naming)
        return content

    # --- the runs ----------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Show what would be added, and what cannot be trained."""
        axes = [axis.axis() for axis in self.axes]
        wanted = [axis for axis in axes if axis is not None]
        twice = len(wanted) == 2 and wanted[0].knob == wanted[1].knob
        whole = all(axis is not None or editor.chosen() is None for axis, editor in zip(axes, self.axes, strict=True))
        total = 1
        for axis in wanted:
            total *= len(axis.values)
        base = safe_name(self.base.text())
        ready = whole and bool(base) and not twice and total <= sweep.MOST_RUNS
        self._planned = sweep.plan(base, self._known, self._changes, wanted, self._taken) if ready else []
        self._good = [planned for planned in self._planned if planned.error is None]
        put(self.count, self._head(twice=twice, total=total, named=bool(base)))
        describe_error(self.axes[1].knob, self.count.text() if twice else "")
        describe_error(self.base, "" if base or twice else self.count.text())
        add = QCoreApplication.translate("Sweep", "Add {count} to the queue").format(count=len(self._good))
        put(self.accept_, add)
        self.accept_.setEnabled(bool(self._good))
        self._list()

    def _head(self, *, twice: bool, total: int, named: bool) -> str:
        if twice:
            return QCoreApplication.translate("Sweep", "Choose two different settings.")
        if not named:
            return QCoreApplication.translate("Sweep", "Give the runs a name.")
        if total > sweep.MOST_RUNS:
            text = QCoreApplication.translate("Sweep", "{count} runs: at most {limit} are added at once.")
            return text.format(count=words.count(total), limit=sweep.MOST_RUNS)
        if len(self._good) < len(self._planned):
            text = QCoreApplication.translate(
                "Sweep", "Runs: {count}. {wrong} more cannot be trained and are left out."
            )
            return text.format(count=len(self._good), wrong=len(self._planned) - len(self._good))
        return QCoreApplication.translate("Sweep", "Runs: {count}").format(count=len(self._good))

    def _list(self) -> None:
        self.list.clear()
        for planned in self._planned:
            said = words.settings(planned.values)
            if planned.error is not None:
                said = words.message(planned.error.code, planned.error.params)
            item = QListWidgetItem(f"{planned.name}  ·  {said}")
            item.setToolTip(plain_tip(item.text()))
            if planned.error is not None:
                item.setForeground(QColor(self._tokens.bad))
            self.list.addItem(item)

    def _add(self) -> None:
        self.added.emit(self._good)
        self.accept()


def _around(knob: Knob, value: Any) -> list[Any]:
    """Values to begin with: half, the same, and twice as much, as far as the knob takes them."""
    found = []
    for factor in (0.5, 1, 2):
        near = value * factor
        near = round(near) if knob.kind == "int" else float(f"{near:.6g}")
        try:
            found += sweep.typed(knob, as_text(near))
        except TraindeckError:
            continue
    return list(dict.fromkeys(found)) or [value]


def _inside(widget: QWidget) -> QWidget:
    """At the top of its page: of a stack's pages the highest makes the height of all."""
    layout = QVBoxLayout()
    layout.setContentsMargins(0, 0, 0, 0)
    layout.addWidget(widget)
    return _box(layout)


def _box(layout: QLayout) -> QWidget:
    box = QWidget()
    box.setLayout(layout)
    return box
