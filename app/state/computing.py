"""How a run computes: its fast paths, what compiling took, and the newest measurements of its performance."""

from __future__ import annotations

from trainer_core import protocol
from trainer_core.protocol import AnyEvent, FastPath


class Computing:
    """Takes every event of a run. Its versions grow with each that changes something here."""

    def __init__(self) -> None:
        self.version = 0
        self.setup_version = 0  # of what a run computes with: it stays as it is while figures come
        self._clear()

    def _clear(self) -> None:
        self.of_machine: list[FastPath] = []  # what it can do; told before a run is there to choose for
        self.of_run: list[FastPath] = []  # as it computes
        self.compile_s: float | None = None
        self.devices: list[str] = []
        self.precision = ""
        self.samples_per_step = 0  # the effective batch; 0: not told
        self.performance: protocol.Performance | None = None
        self.profile: protocol.FlopsProfile | None = None
        self.bad_steps: list[protocol.BadStep] = []

    @property
    def paths(self) -> list[FastPath]:
        """As the run computes; before that is known, what the machine can do. Empty: an older trainer."""
        return self.of_run or self.of_machine

    def add(self, event: AnyEvent) -> None:
        match event:
            case protocol.Hello():
                self._begin(event)
            case protocol.Ready():
                self.of_run, self.compile_s = event.fast_paths, event.compile_s
                self.setup_version += 1
            case protocol.Performance():
                self.performance = event
            case protocol.FlopsProfile():
                self.profile = event
                self.setup_version += 1
            case protocol.BadStep():
                self.bad_steps.append(event)
            case _:
                return
        self.version += 1

    def _begin(self, event: protocol.Hello) -> None:
        """A process begins. What an earlier one counted of the same run stays, up to where this one goes on."""
        before, profile = self.bad_steps, self.profile
        self._clear()
        self.setup_version += 1
        self.of_machine, self.devices, self.precision = event.fast_paths, event.devices, event.precision
        batch, accumulation = (event.config.get(name) for name in ("batch_size", "gradient_accumulation_steps"))
        if isinstance(batch, int) and isinstance(accumulation, int):
            self.samples_per_step = batch * accumulation
        if event.resumed_from_step is not None:
            self.bad_steps = [bad for bad in before if bad.step <= event.resumed_from_step]
            self.profile = profile
