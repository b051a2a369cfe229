"""The bar that starts, pauses and stops a run, and says how it is getting on."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QToolTip, QVBoxLayout, QWidget

from app.state.run_machine import RunMachine, RunState
from app.theme.icons import IconName, icon
from app.theme.tokens import SPACE, Tokens
from app.views import words
from app.views.widgets import ElidedLabel, Retranslating, card, hand_over, label, named, plain_tip, put

_FINE = 1000  # steps of the progress bar


class RunBar(Retranslating):
    """Buttons and state of one run. What may be pressed is decided by the `RunMachine` it is shown."""

    check_pressed = Signal()
    start_pressed = Signal()
    pause_pressed = Signal()
    resume_pressed = Signal()
    stop_pressed = Signal()
    queue_pressed = Signal()
    reason_pressed = Signal()  # to be led to what keeps Start from being possible

    def __init__(self, tokens: Tokens, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._machine = RunMachine()
        self._blocked = ""
        self._checking = False
        self.check = named(QPushButton(), "check")
        self.start, self.pause = named(QPushButton(), "primary"), named(QPushButton(), "pause")
        self.resume, self.stop = named(QPushButton(), "resume"), named(QPushButton(), "stop")
        self.queue = named(QPushButton(), "addToQueue")
        self.state = label("stateWord")
        self.note = ElidedLabel()
        self.note.setObjectName("muted")
        self.clock = label("muted")
        self.reason, self.lead = label("warnText", wrap=True), named(QPushButton(), "link")
        self._lower = QWidget()
        self.bar = QProgressBar(textVisible=False, maximum=_FINE)
        self._arrange()
        self.check.clicked.connect(self.check_pressed)
        self.start.clicked.connect(self.start_pressed)
        self.pause.clicked.connect(self.pause_pressed)
        self.resume.clicked.connect(self.resume_pressed)
        self.stop.clicked.connect(self.stop_pressed)
        self.queue.clicked.connect(self.queue_pressed)
        self.lead.clicked.connect(self.reason_pressed)
        self.retheme(tokens)
        self.retranslate()

    def _arrange(self) -> None:
        top = QHBoxLayout()
        top.setSpacing(SPACE - 2)
        top.addWidget(self.state)
        top.addWidget(self.note, 1)
        for button in (self.start, self.queue, self.check, self.pause, self.resume, self.stop):
            top.addWidget(button)
        # One place for both as well: the pages below stay where they are while a wrong value is typed.
        bottom = QHBoxLayout(self._lower)
        bottom.setContentsMargins(0, 0, 0, 0)
        bottom.setSpacing(2 * SPACE)
        bottom.addWidget(self.bar, 1)
        bottom.addWidget(self.clock)
        bottom.addWidget(self.reason, 1)
        bottom.addWidget(self.lead)
        inner = QVBoxLayout()
        inner.setSpacing(SPACE - 2)
        inner.addLayout(top)
        inner.addWidget(self._lower)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(card(inner))

    # --- showing -------------------------------------------------------------------------------------

    def display(self, machine: RunMachine, blocked: str, *, checking: bool = False) -> None:
        """Show the run; `blocked` says why Start cannot be pressed, or is empty. `checking`: a check is under way."""
        self._machine, self._blocked, self._checking = machine, blocked, checking
        self.start.setEnabled(machine.can_start and not blocked)
        if checking:
            hand_over(self.check, self.start)
        self.check.setEnabled(machine.can_start and not blocked and not checking)
        self.start.setToolTip(blocked)
        # One place for both: before a run there is nothing to pause, and during it nothing to check.
        self.check.setVisible(machine.can_start)
        self.pause.setVisible(not machine.can_start)
        self.pause.setEnabled(machine.can_pause)
        self.resume.setEnabled(machine.can_resume)
        self.stop.setEnabled(machine.can_stop)
        put(self.state, words.state(machine.state))
        put(self.stop, self.tr("End now") if machine.stop_kills else self.tr("Stop"))
        self.note.setText(self._note())
        put(self.reason, self.tr("Start is not possible yet: {reason}").format(reason=blocked))
        put(self.clock, self._clock())
        waiting = bool(blocked) and machine.can_start
        for widget in (self.reason, self.lead):
            widget.setVisible(waiting)
        self.bar.setVisible(not waiting)
        self.clock.setVisible(bool(self.clock.text()) and not waiting)
        self._show_progress()
        self._fit_reason()

    def _fit_reason(self) -> None:
        """The lower row is as high as its link, whatever stands there, or as a reason that has no room in one line."""
        self.lead.ensurePolished()  # it may never have been seen
        link = self.lead.sizeHint()
        room = self._lower.width() - link.width() - 2 * SPACE
        one_line = self.reason.fontMetrics().horizontalAdvance(self.reason.text()) <= room
        # Left to itself, Qt would first guess a height, and the pages would jump.
        self.reason.setFixedHeight(link.height() if one_line else self.reason.heightForWidth(room))
        self._lower.setMinimumHeight(link.height())

    def offer_queue(self, blocked: str, *, possible: bool) -> None:
        """Whether what is set can be put in line; `blocked`: why not, for another reason than a name that is taken."""
        self.queue.setEnabled(possible and not blocked)
        self.queue.setToolTip(blocked or self.tr("Add to queue: train this when the runs before it have ended"))

    def say_of_queue(self, text: str) -> None:
        """A word at the button of the queue, gone by itself."""
        QToolTip.showText(self.queue.mapToGlobal(QPoint(0, self.queue.height() // 2)), plain_tip(text), self.queue)

    def _show_progress(self) -> None:
        progress = self._machine.progress
        unknown = progress is None and self._machine.is_active
        self.bar.setMaximum(0 if unknown else _FINE)  # 0 makes Qt show that something is going on
        if not unknown:
            self.bar.setValue(round((progress or 0.0) * _FINE))

    def _note(self) -> str:
        machine = self._machine
        match machine.state:
            case RunState.STOPPING:
                return self._countdown()
            case RunState.KILLING:
                return self.tr("ending the trainer")
            case RunState.STARTING:
                return self.tr("waiting for the trainer")
            case RunState.PREPARING | RunState.COMPILING:
                return self._preparing()
        return self._where()

    def _countdown(self) -> str:
        left = self._machine.stop_deadline_s
        phase = self._machine.phase or "stopping"
        doing = self.tr("finishing this step") if phase == "training" else words.phase(phase)
        if left is None:
            return doing
        text = self.tr("{doing}, at most {seconds} s, then it is ended")
        return text.format(doing=doing, seconds=round(left))

    def _preparing(self) -> str:
        progress = self._machine.phase_progress
        doing = words.phase(self._machine.phase or "preparing")
        if progress is None:
            return doing
        return f"{doing}  ·  {words.amount(progress.done, progress.total, progress.unit)}"

    def _where(self) -> str:
        machine = self._machine
        parts = []
        if machine.total_steps:
            text = self.tr("step {step} of {total}")
            parts.append(text.format(step=words.count(machine.step), total=words.count(machine.total_steps)))
        elif machine.step:
            parts.append(self.tr("step {step}").format(step=words.count(machine.step)))
        if machine.pause_pending:
            parts.append(self.tr("pausing after this step"))
        elif machine.state is RunState.PAUSED:
            parts.insert(0, words.pause(machine.pause_reason or "", machine.pause_until))
        return "  ·  ".join(filter(None, parts))

    def _clock(self) -> str:
        machine = self._machine
        if machine.state is RunState.IDLE:
            return ""
        parts = [self.tr("epoch {epoch}").format(epoch=f"{machine.epoch:.2f}")] if machine.epoch else []
        parts.append(self.tr("elapsed {time}").format(time=words.duration(machine.elapsed_s)))
        if machine.eta_s is not None:
            parts.append(self.tr("about {time} left").format(time=words.duration(machine.eta_s)))
        return "  ·  ".join(parts)

    # --- looks and words -------------------------------------------------------------------------------

    def retheme(self, tokens: Tokens) -> None:
        icons: list[tuple[QPushButton, IconName, str]] = [
            (self.start, "start", tokens.on_accent),
            (self.pause, "pause", tokens.text),
            (self.resume, "resume", tokens.text),
            (self.stop, "stop", tokens.bad),
            (self.queue, "queue", tokens.text),
        ]
        for button, name, colour in icons:
            button.setIcon(icon(name, colour, tokens.muted))

    def retranslate(self) -> None:
        self.check.setText(self.tr("Check"))
        self.check.setToolTip(self.tr("Take real steps of these settings: do they fit, how fast, how long, what disk?"))
        self.start.setText(self.tr("Start"))
        self.queue.setAccessibleName(self.tr("Add to queue"))
        self.pause.setText(self.tr("Pause"))
        self.resume.setText(self.tr("Resume"))
        self.stop.setText(self.tr("Stop"))
        self._hold_width(self.stop, self.tr("Stop"), self.tr("End now"))
        for button in (self.check, self.pause):
            button.setMinimumWidth(max(self.check.sizeHint().width(), self.pause.sizeHint().width()))
        self.lead.setText(self.tr("Show me where"))
        self.bar.setAccessibleName(self.tr("Progress"))
        self.display(self._machine, self._blocked, checking=self._checking)

    def resizeEvent(self, event: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(event)
        self._fit_reason()

    def changeEvent(self, event: QEvent) -> None:  # noqa: N802 - Qt's name
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange:  # padding and font have changed
            self.retranslate()

    def _hold_width(self, button: QPushButton, *texts: str) -> None:
        """Wide enough for every word the button will bear, so that nothing jumps under the mouse."""
        widths = []
        for text in texts:
            button.setText(text)
            widths.append(button.sizeHint().width())
        button.setMinimumWidth(max(widths))
