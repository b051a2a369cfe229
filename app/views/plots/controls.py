"""How one looks at the plots: smoothing, log scale, outliers, against what; in one line above them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QSlider, QWidget

from app.theme.tokens import SPACE
from app.views.widgets import QuietCombo, Retranslating, button, label, named

if TYPE_CHECKING:
    from app.state.measurements.metrics import Axis

_AXES: Final[tuple[Axis, ...]] = ("step", "tokens", "time")
_NARROW: Final = 640  # pixels: below, what a control says by itself has no label
_SLIDER: Final = 120


class Controls(Retranslating):
    """`changed`: one looks in another way now; `axis_changed`: and at another axis; `all_asked`: at the whole run."""

    changed = Signal()
    axis_changed = Signal()
    all_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.smoothing = named(QSlider(Qt.Orientation.Horizontal), "smoothing")
        self.smoothing.setMaximum(99)
        self.smoothing.setMinimumWidth(_SLIDER // 2)
        self.smoothing.setMaximumWidth(_SLIDER)
        self.log_scale, self.clip = named(QCheckBox(), "logScale"), named(QCheckBox(), "clipOutliers")
        self.axis_choice = QuietCombo()
        self.axis_choice.setObjectName("xAxis")
        self.axis_choice.addItems(list(_AXES))
        self._smoothing_label, self._axis_label = label(), label()
        self.fit = button("showAll")
        self.fit.setEnabled(False)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACE)
        row.addWidget(self._smoothing_label)
        row.addWidget(self.smoothing, 1)
        row.addWidget(self.log_scale)
        row.addWidget(self.clip)
        row.addStretch(1)
        for widget in (self._axis_label, self.axis_choice, self.fit):
            row.addWidget(widget)
        self.smoothing.valueChanged.connect(self._on_smoothing)
        self.log_scale.toggled.connect(self.changed)
        self.clip.toggled.connect(self.changed)
        self.axis_choice.currentIndexChanged.connect(self.axis_changed)
        self.fit.clicked.connect(self.all_asked)
        self.retranslate()

    @property
    def axis(self) -> Axis:
        return _AXES[max(0, self.axis_choice.currentIndex())]

    @property
    def weight(self) -> float:
        """The share of the past in smoothed curves."""
        return self.smoothing.value() / 100

    def restore(self, smoothing: float, *, log_scale: bool, clip: bool, axis: Axis) -> None:
        """Take what was chosen the last time."""
        self.smoothing.setValue(round(100 * smoothing))
        self.log_scale.setChecked(log_scale)
        self.clip.setChecked(clip)
        self.axis_choice.setCurrentIndex(_AXES.index(axis))

    def _on_smoothing(self) -> None:
        self._tell_smoothing()
        self.changed.emit()

    def _tell_smoothing(self) -> None:
        self.smoothing.setToolTip(
            self.tr("Smoothing of the training loss: {weight}").format(weight=f"{self.weight:.2f}")
        )

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        for text in (self._smoothing_label, self._axis_label):
            text.setVisible(event.size().width() >= _NARROW)

    def retranslate(self) -> None:
        self._smoothing_label.setText(self.tr("Smoothing"))
        self.smoothing.setAccessibleName(self.tr("Smoothing"))
        self._tell_smoothing()
        self.log_scale.setText(self.tr("Log scale"))
        self.log_scale.setToolTip(self.tr("Of the loss"))
        self.clip.setText(self.tr("Clip outliers"))
        self.clip.setToolTip(self.tr("Single spikes may leave the plot, so that they do not flatten the curve"))
        self._axis_label.setText(self.tr("Against"))
        self.axis_choice.setAccessibleName(self.tr("Horizontal axis"))
        self.axis_choice.setToolTip(self.tr("Horizontal axis"))
        for row, text in enumerate((self.tr("steps"), self.tr("tokens"), self.tr("time"))):
            self.axis_choice.setItemText(row, text)
        self.fit.setText(self.tr("Show all"))
        self.fit.setToolTip(
            self.tr(
                "Drag to move, Ctrl and the wheel to zoom, double-click to show all again. In a plot with the focus: "
                "arrows read values, + and - zoom, Ctrl and arrows move, 0 shows all."
            )
        )
