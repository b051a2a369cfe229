"""Recovery from out of memory: the failed step is repeated with less memory.

Until the optimizer runs, a step has changed only gradients and RNG states, so it can be undone and repeated with the
same batch: in halves, then with activation checkpointing, then with the loss in smaller chunks. The loader is not
affected; each micro-batch is cut only when it is computed. Effective batch, data order and step count stay the same,
and the gradient is the same sum in another order (dropout draws anew). After some steps the last action is reverted; if
that fails, the delay doubles.
"""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor

from trainer_core import error_codes, protocol
from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.messages import TraindeckError
from trainer_core.models.decoder import Decoder
from trainer_core.run_context import RunContext
from trainer_core.system.memory import system_memory
from trainer_core.train import activation_checkpointing
from trainer_core.train.device import limit_to_vram
from trainer_core.train.engine.engine import Engine
from trainer_core.train.ranks import ALONE, Ranks

T = TypeVar("T")
RecoveryAction = Literal["halved", "checkpointing", "chunked_loss"]
During = Literal["forward", "backward", "evaluation"]

_DURING: Final[tuple[During, ...]] = ("forward", "backward", "evaluation")
_RETRY_STEPS: Final = 64  # steps before the last action is reverted for the first time
_MAX_RETRY_STEPS: Final = 4096
_CHUNK: Final = 64  # rows of logits at once, as the last resort
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REQUESTED: Final = re.compile(r"allocate (?P<amount>[\d.]+) (?P<unit>bytes|[KMGT]iB)")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device, torch's allocators or the system ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    found = error_codes.classify_exception(error) if isinstance(error, RuntimeError) else None
    return found is not None and found.code == "memory.out"


def requested_bytes(error: BaseException) -> int | None:
    """Bytes of the failed allocation, if the error message names them."""
    found = _REQUESTED.search(str(error))
    return int(float(found["amount"]) * _UNITS[found["unit"]]) if found else None


class OomRecovery:
    """Actions that make micro-batches fit into memory."""

    engine: Engine | None = None  # None while it is being built
    recovers = True  # False in a check, where a step that does not fit is the result

    def __init__(
        self, config: Config, model: Decoder, device: torch.device, session: RunContext, ranks: Ranks = ALONE
    ) -> None:
        """`config` is this rank's, with its own micro-batches."""
        self._config, self._model, self._device, self._session = config, model, device, session
        self._ranks = ranks
        self._actions: list[RecoveryAction] = []
        self._steps = 0  # since the last action
        self._retry_steps = _RETRY_STEPS
        self.during: During = "forward"

    @property
    def max_rows(self) -> int:
        """Maximum sequences per forward pass."""
        return -(-self._config.batch_size >> self._actions.count("halved"))

    def split(self, window: list[Batch]) -> list[Batch]:
        """Cut the micro-batches of a step to `max_rows`."""
        if not self._actions:
            return window
        return [part for batch in window for part in batch.split_rows(self.max_rows)]

    def run_step(
        self, work: Callable[[], T], undo: Callable[[], None], step: int, poll: Callable[[], None] | None = None
    ) -> T:
        """Return the result of `work`. If any rank runs out of memory, all ranks call `undo`, apply the next action and
        repeat. `poll` is called while waiting for other ranks.

        Raises `memory.exhausted` when no action is left.
        """
        while True:
            result: list[T] = []
            when, requested, lacking = 0, 0, -sys.maxsize
            try:
                result.append(work())
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                when, requested = 1 + _DURING.index(self.during), requested_bytes(error) or 0
                lacking = -_free(self._device)  # read now: `undo` frees what the attempt holds
            # Outside of the handler: the traceback references all tensors of the attempt.
            when, requested, lacking = self._ranks.most(when, requested, lacking, poll=poll)
            if not when:
                return result[0]
            result.clear()
            self.during = _DURING[when - 1]
            undo()
            self._apply_next(step, requested or None, -lacking)

    def attach(self, engine: Engine) -> None:
        """Configure the engine of the run for the current actions."""
        self.engine = engine
        self._apply()

    def relax(self, step: int) -> None:
        """Revert the last action after enough good steps."""
        self._steps += 1
        if self._actions and self._steps >= self._retry_steps:
            limit_to_vram(self._device)
            self._actions.pop()
            self._retry_steps, self._steps = min(2 * self._retry_steps, _MAX_RETRY_STEPS), 0
            self._apply()
            self._emit(step, "grown", "none", None, _free(self._device))

    @contextlib.contextmanager
    def skip_on_oom(self, what: str, step: int) -> Iterator[None]:
        """Skip optional work, such as samples, with a warning if it runs out of memory."""
        try:
            yield
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        release_memory(self._device)
        self._session.warn("memory.left_out", what=what, step=step)

    def loss_of(self, loss: Callable[[Batch], Tensor], step: int) -> Callable[[Batch | None], Tensor]:
        """Wrap `loss` for evaluation: cut batches as memory requires. None: this rank has no batch, but others have."""

        def whole(batch: Batch | None) -> Tensor:
            self.during = "evaluation"
            return self.run_step(
                lambda: _sum([loss(part) for part in self.split([batch] if batch else [])]), _nothing, step
            )

        def _sum(losses: list[Tensor]) -> Tensor:
            return torch.stack(losses).sum() if losses else torch.zeros((), device=self._device)

        return whole

    # --- actions -----------------------------------------------------------------------------------

    def _apply_next(self, step: int, requested: int | None, free: int) -> None:
        """`requested`: bytes of the failed allocation; `free`: least free bytes of any rank at that time."""
        release_memory(self._device)
        action = self._next_action()
        if action is None:
            raise TraindeckError(
                "memory.exhausted", device=self._device.type, step=step, requested=requested or 0, free=free
            )
        self._actions.append(action)
        self._steps = 0
        self._apply()
        release_memory(self._device)
        self._emit(step, action, self.during, requested, free)

    def _next_action(self) -> RecoveryAction | None:
        if not self.recovers:
            return None
        if self.max_rows > 1:
            return "halved"
        if self._config.activation_checkpointing != "full" and "checkpointing" not in self._actions:
            return "checkpointing"
        return "chunked_loss" if "chunked_loss" not in self._actions else None

    def _apply(self) -> None:
        """Configure model and engine for the current actions. Halves run eagerly where the graph is for whole
        micro-batches.
        """
        mode = "full" if "checkpointing" in self._actions else self._config.activation_checkpointing
        activation_checkpointing.checkpoint_activations(self._model, mode)
        if self.engine is not None:
            self.engine.eager_only = bool({"checkpointing", "chunked_loss"} & set(self._actions))
            self.engine.smaller_chunk = _CHUNK if "chunked_loss" in self._actions else 0
            if self._actions:
                self.engine.reset_graphs()  # they hold the memory of a whole step
            else:
                self.engine.rerecord_graphs()

    def _emit(
        self,
        step: int,
        action: Literal["halved", "checkpointing", "chunked_loss", "grown"],
        during: Literal["forward", "backward", "evaluation", "none"],
        requested: int | None,
        free: int,
    ) -> None:
        passes = -(-self._config.batch_size // self.max_rows) * self._ranks.size
        self._session.emit(
            protocol.OomRecovery(
                step=step,
                action=action,
                during=during,
                batch_size=self.max_rows,
                gradient_accumulation_steps=self._config.gradient_accumulation_steps * passes,
                requested=requested,
                free=free,
                total=_total(self._device),
            )
        )

    # --- in checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"actions": list(self._actions), "steps": self._steps, "retry_steps": self._retry_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Empty: initial state."""
        self._actions = list(state.get("actions", []))
        self._steps, self._retry_steps = state.get("steps", 0), state.get("retry_steps", _RETRY_STEPS)
        self._apply()


def _nothing() -> None:
    pass


def release_memory(device: torch.device) -> None:
    """Free unreferenced objects and the caching allocator's blocks."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _free(device: torch.device) -> int:
    if device.type != "cuda":
        return system_memory().available
    free: int = torch.cuda.mem_get_info(device)[0]
    return free


def _total(device: torch.device) -> int:
    if device.type != "cuda":
        return system_memory().total
    total: int = torch.cuda.get_device_properties(device).total_memory
    return total
