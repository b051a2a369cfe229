"""Commands of rank 0 for all ranks, broadcast at every poll: stop, pause, save, sample, changed settings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import msgspec

from trainer_core import protocol
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.train.process_group import ProcessGroup

_KEEP_ALIVE_S: Final = 1.0  # interval of messages while rank 0 waits, for a Resume or for disk space
_WAITING: Final = "waiting"
_RESTORED, _NOT_YET, _STOPPED = range(3)

Request = protocol.Save | protocol.SampleCommand


class Control:
    """`poll` is collective: all ranks call it at the same places, and it has the same effect on all.

    Args:
        change_setting: Applies a changed setting, by name and value.
        on_poll: More that rank 0 does at a poll; it may wait with `context.wait`.
    """

    def __init__(
        self,
        context: RunContext,
        group: ProcessGroup,
        live_settings: tuple[str, ...] = (),
        change_setting: Callable[[str, float], None] = lambda name, value: None,
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        self._context, self._group, self._change_setting, self._on_poll = context, group, change_setting, on_poll
        self._settings: dict[str, float] = {}  # changed on rank 0 since the last poll
        self._offloading: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self._polling = False
        self._last_message = 0.0
        for name in live_settings:
            context.live_settings[name] = partial(self._settings.__setitem__, name)
        if group.world_size > 1 and group.rank == 0:
            context.on_wait.append(self._keep_alive)

    def poll(self) -> None:
        """Apply commands on all ranks; waits while rank 0 is paused. Raises `StopRequested`."""
        message = self._poll_rank_zero() if self._group.rank == 0 else self._receive()
        if message is None:
            return
        if "stop" in message:
            raise StopRequested(message["stop"])
        for name, value in message["settings"].items():
            self._change_setting(name, value)
        self._context.requests = msgspec.convert(message["requests"], list[Request])

    def _poll_rank_zero(self) -> Any:
        message: dict[str, Any] | None = None
        self._polling = True
        try:
            self._context.poll()
            self._on_poll()
            if self._settings or self._context.requests:
                message = {"settings": dict(self._settings), "requests": msgspec.to_builtins(self._context.requests)}
        except StopRequested as stop:
            message = {"stop": stop.reason}
        finally:
            self._polling = False
        self._group.broadcast(message)
        self._settings.clear()
        return message

    def _receive(self) -> Any:
        while (message := self._group.broadcast(None)) is not None:
            if message == "pause":
                with contextlib.suppress(StopRequested), self._offloading():  # its reason comes with a later message
                    self._wait_for_resume()
            elif message != _WAITING:
                return message
        return None

    def _wait_for_resume(self) -> None:
        while (message := self._group.broadcast(None)) != "resume":
            if message == "stop":
                raise StopRequested

    def _keep_alive(self) -> None:
        """Other ranks wait in `poll`, whose operations have a time limit."""
        if self._polling and time.monotonic() - self._last_message > _KEEP_ALIVE_S:
            self._group.broadcast(_WAITING)
            self._last_message = time.monotonic()

    # --- pauses --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def offload_on_pause(self, offload: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Context in which every rank enters `offload()` during a pause."""
        self._offloading = offload
        with self._context.on_pause(self._pause_all if self._group.rank == 0 else contextlib.nullcontext):
            yield

    @contextlib.contextmanager
    def _pause_all(self) -> Iterator[None]:
        if self._group.world_size > 1 and not self._polling:  # rank 0 works alone
            yield
            return
        self._group.broadcast("pause")
        with self._offloading():
            try:
                yield
            except BaseException:
                self._group.broadcast("stop")
                raise
            self._group.broadcast("resume")

    def wait_for_restore(self, restore: Callable[[], bool]) -> None:
        """Wait until `restore` has succeeded on all ranks. Raises `StopRequested`."""

        def all_restored() -> bool:
            state = self._group.max(_RESTORED if restore() else _NOT_YET)[0]
            if state == _STOPPED:
                raise StopRequested
            return state == _RESTORED

        if self._group.rank:
            while not all_restored():
                pass
            return
        try:
            self._context.wait("other_program", all_restored)
        except StopRequested:
            self._group.max(_STOPPED)
            raise
