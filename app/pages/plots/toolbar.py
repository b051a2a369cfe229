"""View controls above the plots: smoothing, log scale, outliers and x axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QCheckBox, QSlider, QWidget

from app.texts import tr
from app.widgets.basic import (
    NoScrollComboBox,
    TranslatableWidget,
    horizontal_layout,
    label,
    push_button,
    set_object_name,
)

if TYPE_CHECKING:
    from app.core.metrics.metric_table import XAxis
    from app.core.settings import Settings

_AXES: Final[tuple[XAxis, ...]] = ("step", "tokens", "time")
_NARROW: Final = 640  # pixels; below, self-explanatory controls have no label
_SLIDER_WIDTH: Final = 120


class Toolbar(TranslatableWidget):
    """`changed`: smoothing or scale; `axis_changed`: another x axis; `show_all_requested`: show the whole run."""

    changed = Signal()
    axis_changed = Signal()
    show_all_requested = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.smoothing = set_object_name(QSlider(Qt.Orientation.Horizontal), "smoothing")
        self.smoothing.setMaximum(99)
        self.smoothing.setMinimumWidth(_SLIDER_WIDTH // 2)
        self.smoothing.setMaximumWidth(_SLIDER_WIDTH)
        self.log_scale = set_object_name(QCheckBox(), "logScale")
        self.clip = set_object_name(QCheckBox(), "clipOutliers")
        self.axis_choice = set_object_name(NoScrollComboBox(), "xAxis")
        self.axis_choice.addItems(list(_AXES))
        self._smoothing_label, self._axis_label = label(), label()
        self.show_all_button = push_button("showAll")
        self.show_all_button.setEnabled(False)
        row = horizontal_layout(self._smoothing_label, (self.smoothing, 1), self.log_scale, self.clip)
        row.addStretch(1)
        for widget in (self._axis_label, self.axis_choice, self.show_all_button):
            row.addWidget(widget)
        self.setLayout(row)
        self.smoothing.valueChanged.connect(self._update_smoothing_tooltip)
        for signal in (self.smoothing.valueChanged, self.log_scale.toggled, self.clip.toggled):
            signal.connect(self.changed)
        self.axis_choice.currentIndexChanged.connect(self.axis_changed)
        self.show_all_button.clicked.connect(self.show_all_requested)
        self.retranslate()

    @property
    def axis(self) -> XAxis:
        return _AXES[max(0, self.axis_choice.currentIndex())]

    @property
    def smoothing_weight(self) -> float:
        """Weight of the past."""
        return self.smoothing.value() / 100

    def restore_state(self, settings: Settings) -> None:
        self.smoothing.setValue(round(100 * settings.smoothing))
        self.log_scale.setChecked(settings.log_scale)
        self.clip.setChecked(settings.clip_outliers)
        self.axis_choice.setCurrentIndex(_AXES.index(settings.x_axis))

    def save_state(self, settings: Settings) -> None:
        settings.smoothing, settings.x_axis = self.smoothing_weight, self.axis
        settings.log_scale, settings.clip_outliers = self.log_scale.isChecked(), self.clip.isChecked()

    def _update_smoothing_tooltip(self) -> None:
        self.smoothing.setToolTip(tr("plots.smoothing_weight", weight=f"{self.smoothing_weight:.2f}"))

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        for widget in (self._smoothing_label, self._axis_label):
            widget.setVisible(event.size().width() >= _NARROW)

    def retranslate(self) -> None:
        self._smoothing_label.setText(tr("plots.smoothing"))
        self.smoothing.setAccessibleName(tr("plots.smoothing"))
        self._update_smoothing_tooltip()
        self.log_scale.setText(tr("plots.log_scale"))
        self.log_scale.setToolTip(tr("plots.smoothing_tokens"))
        self.clip.setText(tr("plots.clip_outliers"))
        self.clip.setToolTip(tr("plots.clip_outliers_hint"))
        self._axis_label.setText(tr("plots.x_axis_short"))
        self.axis_choice.setAccessibleName(tr("plots.x_axis"))
        for index, text in enumerate((tr("common.unit_steps"), tr("common.unit_tokens"), tr("plots.time"))):
            self.axis_choice.setItemText(index, text)
        self.show_all_button.setText(tr("plots.reset_zoom"))
        self.show_all_button.setToolTip(tr("plots.navigation_hint"))
