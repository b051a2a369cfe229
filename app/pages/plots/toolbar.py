"""View controls above the plots: smoothing, log scale, outliers and x axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QCheckBox, QHBoxLayout, QSlider, QWidget

from app.texts import tr
from app.theme.palette import SPACING
from app.widgets.basic import NoScrollComboBox, TranslatableWidget, label, push_button, set_object_name

if TYPE_CHECKING:
    from app.core.metrics.metric_store import Axis

_AXES: Final[tuple[Axis, ...]] = ("step", "tokens", "time")
_NARROW: Final = 640  # pixels; below, self-explanatory controls have no label
_SLIDER: Final = 120


class Controls(TranslatableWidget):
    """`changed`: smoothing or scale; `axis_changed`: another x axis; `all_asked`: show the whole run."""

    changed = Signal()
    axis_changed = Signal()
    all_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.smoothing = set_object_name(QSlider(Qt.Orientation.Horizontal), "smoothing")
        self.smoothing.setMaximum(99)
        self.smoothing.setMinimumWidth(_SLIDER // 2)
        self.smoothing.setMaximumWidth(_SLIDER)
        self.log_scale, self.clip = (
            set_object_name(QCheckBox(), "logScale"),
            set_object_name(QCheckBox(), "clipOutliers"),
        )
        self.axis_choice = NoScrollComboBox()
        self.axis_choice.setObjectName("xAxis")
        self.axis_choice.addItems(list(_AXES))
        self._smoothing_label, self._axis_label = label(), label()
        self.fit = push_button("showAll")
        self.fit.setEnabled(False)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(SPACING)
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
        """Smoothing weight of the past."""
        return self.smoothing.value() / 100

    def restore(self, smoothing: float, *, log_scale: bool, clip: bool, axis: Axis) -> None:
        """Restore the saved settings."""
        self.smoothing.setValue(round(100 * smoothing))
        self.log_scale.setChecked(log_scale)
        self.clip.setChecked(clip)
        self.axis_choice.setCurrentIndex(_AXES.index(axis))

    def _on_smoothing(self) -> None:
        self._update_smoothing_tooltip()
        self.changed.emit()

    def _update_smoothing_tooltip(self) -> None:
        self.smoothing.setToolTip(tr("plots.smoothing_training_loss_weight", weight=f"{self.weight:.2f}"))

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        for text in (self._smoothing_label, self._axis_label):
            text.setVisible(event.size().width() >= _NARROW)

    def retranslate(self) -> None:
        self._smoothing_label.setText(tr("plots.smoothing"))
        self.smoothing.setAccessibleName(tr("plots.smoothing"))
        self._update_smoothing_tooltip()
        self.log_scale.setText(tr("plots.log_scale"))
        self.log_scale.setToolTip(tr("plots.of_the_loss"))
        self.clip.setText(tr("plots.clip_outliers"))
        self.clip.setToolTip(tr("plots.single_spikes_may_leave_plot"))
        self._axis_label.setText(tr("plots.against"))
        self.axis_choice.setAccessibleName(tr("plots.horizontal_axis"))
        self.axis_choice.setToolTip(tr("plots.horizontal_axis"))
        for row, text in enumerate((tr("common.steps"), tr("common.tokens"), tr("plots.time"))):
            self.axis_choice.setItemText(row, text)
        self.fit.setText(tr("plots.show_all"))
        self.fit.setToolTip(tr("plots.drag_move_ctrl_wheel_zoom"))
