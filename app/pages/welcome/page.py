"""Welcome page in place of the plots: an example to train, the recommended preset, and the hardware."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QGridLayout, QLayout, QVBoxLayout, QWidget

from app.core.active_run import ActiveRun
from app.core.history.run_list import RunList
from app.core.preset_recommendation import driver_problem, recommend_preset, usable_gpus
from app.core.settings import Settings
from app.pages.setup.form import SetupForm
from app.texts import current_language, tr
from app.theme.palette import SPACING
from app.widgets import formatting
from app.widgets.basic import (
    TranslatableWidget,
    card,
    fill_grid,
    horizontal_layout,
    label,
    push_button,
    scroll_area,
    set_object_name,
    set_text_if_changed,
    vertical_layout,
)
from app.window.main_window import MainWindow
from trainer_core import presets
from trainer_core.presets import Preset
from trainer_core.system.doctor.finding import SETUP_COMMAND

if TYPE_CHECKING:
    from app.services.gpu_probe import GpuProbe
    from trainer_core.system.hardware import MachineInfo

_MAX_WIDTH: Final = 720  # pixels
_EXAMPLE_PRESET: Final = "quickstart_sft"  # its model answers questions


class WelcomePage(TranslatableWidget):
    """Shown before the first run or on request, until a run is displayed."""

    def __init__(
        self,
        window: MainWindow,
        form: SetupForm,
        settings: Settings,
        history: RunList,
        active_run: ActiveRun,
        probe: GpuProbe,
        start_run: Callable[[], None],
    ) -> None:
        super().__init__()
        self._window, self._form, self._settings, self._history = window, form, settings, history
        self._active_run, self._probe, self._start_run = active_run, probe, start_run
        self.machine: MachineInfo | None = None  # None until the hardware is probed, like the recommended preset
        self._recommended: Preset | None = None
        self._title, self._subtitle = label("welcomeTitle", wrap=True), label("muted", wrap=True)
        self._machine_title, self._hardware_grid = label("section"), QGridLayout()
        self.driver_problem_label = label("warnText", wrap=True, hidden=True)
        self.preset_title, self.reason_label = label("section", wrap=True), label(wrap=True)
        self._summary = label("muted", wrap=True)
        self.use_preset_button, self.next_step_label = push_button("usePreset"), label("good", wrap=True)
        self._example_title, self._example_text = label("section", wrap=True), label(wrap=True)
        self.example_button, self.close_button = push_button("primary"), push_button("link")
        self.driver_problem_label.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._build_layout()
        self.hide()
        layout = window.pages["plots"].layout()
        assert layout is not None
        layout.addWidget(self)
        self.use_preset_button.clicked.connect(self._use_preset)
        self.example_button.clicked.connect(self._start_example)
        self.close_button.clicked.connect(self._close)
        probe.completed.connect(self._on_machine)
        window.page_shown.connect(self._on_page_shown)
        window.menus.connect_actions({"welcome": self.open})
        self.retranslate()

    def _build_layout(self) -> None:
        self._hardware_grid.setHorizontalSpacing(2 * SPACING)
        self._hardware_grid.setVerticalSpacing(SPACING // 2)
        self._hardware_grid.setColumnStretch(1, 1)
        content = vertical_layout(spacing=SPACING + 4)
        content.setContentsMargins(SPACING, 2 * SPACING, SPACING, 2 * SPACING)
        content.addWidget(self._title)
        content.addWidget(self._subtitle)
        example, closing = horizontal_layout(self.example_button), horizontal_layout(self.close_button)
        example.addStretch(1)
        closing.addStretch(1)
        use_preset = horizontal_layout(self.use_preset_button, (self.next_step_label, 1))
        for parts in (
            (self._example_title, self._example_text, example),
            (self.preset_title, self.reason_label, self._summary, use_preset),
            (self._machine_title, self._hardware_grid, self.driver_problem_label),
        ):
            content.addWidget(_padded_card(*parts))
        content.addLayout(closing)
        content.addStretch(1)
        column, inner = QWidget(), set_object_name(QWidget(), "scrolled")
        column.setLayout(content)
        column.setMaximumWidth(_MAX_WIDTH)
        centred = horizontal_layout()
        centred.addStretch(1)
        centred.addWidget(column, 100)
        centred.addStretch(1)
        inner.setLayout(centred)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll_area(inner))

    # --- opening and closing -----------------------------------------------------------------------------

    def open_if_first_run(self) -> None:
        """Show the page at the start if there are neither runs nor data of the user."""
        with contextlib.suppress(OSError):
            if any(self._history.root.iterdir()):  # not listed yet
                return
        if self._settings.welcome and not self._form.has_own_data():
            self.open()

    def open(self) -> None:
        self._window.plots_scroll_area.hide()
        self.show()
        self._window.show_page("plots")
        self.refresh()

    def show_plots(self) -> None:
        """Show the plots again."""
        if not self.isHidden():
            self.hide()
            self._window.plots_scroll_area.show()

    def _on_page_shown(self, name: str) -> None:
        """Close the page when it was opened from the menu and another page is shown."""
        if name != "plots" and self._history.runs:
            self.show_plots()

    def _close(self) -> None:
        if not self._history.runs:
            self._settings.welcome = False
        self.show_plots()

    # --- content -----------------------------------------------------------------------------------------

    def _on_machine(self, machine: MachineInfo) -> None:
        self.machine, self._recommended = machine, presets.load(recommend_preset(machine))
        fill_grid(self._hardware_grid, _format_hardware(machine))
        self.refresh()

    def _use_preset(self) -> None:
        if self._recommended is not None:
            self._form.choose_preset(self._recommended)
            self._window.setup.reveal("data")

    def _start_example(self) -> None:
        self._form.load(presets.load(_EXAMPLE_PRESET))
        self._start_run()

    def refresh(self) -> None:
        """Show the state of form and runs; cheap if it has not changed."""
        if self.isHidden():
            return
        machine, preset, language = self.machine, self._recommended, current_language()
        is_selected = preset is not None and self._form.preset.name == preset.name
        can_start = self._active_run.machine.can_start
        problem = self._format_driver_problem(machine) if machine else ""
        fits = tr("setup.hardware", hardware=preset.localized(preset.fits, language)) if preset else ""
        others = tr("welcome.one_gpu_note") if machine and len(usable_gpus(machine)) > 1 else ""
        title = preset.localized(preset.title, language) if preset else "…"
        next_step = tr("welcome.preset_chosen" if self._form.data else "welcome.preset_chosen_add_data")
        self.driver_problem_label.setVisible(bool(problem))
        self.use_preset_button.setEnabled(preset is not None and not is_selected and can_start)
        self.example_button.setEnabled(can_start)
        for widget, text in (
            (self.driver_problem_label, problem),
            (self.reason_label, "\n".join(filter(None, (fits, others)))),
            (self.preset_title, tr("welcome.recommended_preset", preset=title)),
            (self._summary, preset.localized(preset.summary, language) if preset else ""),
            (self.next_step_label, next_step if is_selected else ""),
            (self.close_button, tr("common.close" if self._history.runs else "welcome.hide_permanently")),
        ):
            set_text_if_changed(widget, text)

    def _format_driver_problem(self, machine: MachineInfo) -> str:
        """A driver problem and its remedy; empty if there is none."""
        gpu_present, torch_version = self._probe.nvidia_card_found, self._probe.torch_version
        problem = driver_problem(machine, gpu_present=gpu_present, torch_version=torch_version)
        if problem is None:
            return ""
        return tr(
            problem,
            command=SETUP_COMMAND,
            driver=machine.driver_version or "",
            gpu=machine.gpus[0].name if machine.gpus else "",
        )

    def retranslate(self) -> None:
        self._title.setText(tr("welcome.title"))
        self._subtitle.setText(tr("welcome.subtitle"))
        self._machine_title.setText(tr("welcome.this_machine"))
        self.use_preset_button.setText(tr("welcome.use_this_preset"))
        self._example_title.setText(tr("welcome.example_title"))
        self._example_text.setText(tr("welcome.example_note"))
        self.example_button.setText(tr("welcome.try_example"))
        fill_grid(self._hardware_grid, _format_hardware(self.machine))
        self.refresh()


def _padded_card(*parts: QWidget | QLayout) -> QFrame:
    layout = vertical_layout()
    for part in parts:
        if isinstance(part, QWidget):
            layout.addWidget(part)
        else:
            layout.addLayout(part)
    frame = card(layout)
    layout.setContentsMargins(2 * SPACING, SPACING + 4, 2 * SPACING, SPACING + 4)
    return frame


def _format_hardware(machine: MachineInfo | None) -> list[tuple[str, str]]:
    """Return (component, description) rows."""
    titles = (tr("welcome.gpu"), tr("welcome.memory"), tr("welcome.cpu"))
    if machine is None:
        return [(title, tr("welcome.loading")) for title in titles]
    total, free = formatting.format_bytes(machine.ram_total), formatting.format_bytes(machine.ram_available)
    cpu = " ".join(machine.cpu_name.split())
    return [
        *((titles[0] if not place else "", text) for place, text in enumerate(_format_gpus(machine))),
        (titles[1], tr("welcome.ram", size=total, free=free)),
        (titles[2], tr("welcome.cpu_name", name=cpu, count=machine.cpu_cores)),
    ]


def _format_gpus(machine: MachineInfo) -> list[str]:
    """Return one line per kind of GPU, with their number."""
    kinds = Counter((gpu.name, formatting.format_bytes(gpu.vram_total)) for gpu in machine.gpus)
    return [
        tr("welcome.one_gpu" if count == 1 else "welcome.gpus", count=count, name=name, vram=vram)
        for (name, vram), count in kinds.items()
    ] or [tr("welcome.no_gpu")]
