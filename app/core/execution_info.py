"""How a run computes: fast paths, compile time, latest performance figures."""

from __future__ import annotations

from trainer_core import protocol
from trainer_core.protocol import AnyEvent, FastPath


class ExecutionInfo:
    """Collects events of a run. `version` increases with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._clear()

    def _clear(self) -> None:
        self.machine_fast_paths: list[FastPath] = []  # of the machine, known before the run selects
        self.run_fast_paths: list[FastPath] = []  # of the run
        self.compile_s: float | None = None
        self.devices: list[str] = []
        self.precision = ""
        self.uses_tensorboard = False
        self.samples_per_step = 0  # effective batch; 0: unknown
        self.performance: protocol.Performance | None = None
        self.profile: protocol.FlopsProfile | None = None
        self.bad_steps: list[protocol.BadStep] = []

    @property
    def fast_paths(self) -> list[FastPath]:
        """Fast paths of the run or, before it is known, of the machine. Empty: an older trainer."""
        return self.run_fast_paths or self.machine_fast_paths

    def add(self, event: AnyEvent) -> None:
        match event:
            case protocol.Hello():
                self._reset_for_process(event)
            case protocol.Ready():
                self.run_fast_paths = event.fast_paths
            case protocol.Compiled():
                self.run_fast_paths, self.compile_s = event.fast_paths, event.compile_s
            case protocol.Performance():
                self.performance = event
            case protocol.FlopsProfile():
                self.profile = event
            case protocol.BadStep():
                self.bad_steps.append(event)
            case _:
                return
        self.version += 1

    def _reset_for_process(self, event: protocol.Hello) -> None:
        """A new process starts. Bad steps and profile before its first step are kept."""
        before, profile = self.bad_steps, self.profile
        self._clear()
        self.machine_fast_paths, self.devices, self.precision = event.fast_paths, event.devices, event.precision
        self.uses_tensorboard = event.config.get("use_tensorboard") is True
        batch, accumulation = (event.config.get(name) for name in ("batch_size", "gradient_accumulation_steps"))
        if isinstance(batch, int) and isinstance(accumulation, int):
            self.samples_per_step = batch * accumulation
        if event.resumed_from_step is not None:
            self.bad_steps = [bad for bad in before if bad.step <= event.resumed_from_step]
            self.profile = profile
