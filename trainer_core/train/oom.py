"""Recovery from out of memory: the failed step is repeated with less memory.

Until the optimizer runs, a step has changed only gradients and RNG states, so it can be undone and repeated with the
same batch: in halves, then with activation checkpointing, then with the loss in smaller chunks. The loader is not
affected; each micro-batch is cut only when it is computed. Effective batch, data order and step count stay the same,
and the gradient is the same sum in another order. Dropout masks differ, because they have other shapes. After 64 steps
the last action is reverted. With each revert the delay doubles, up to 4096 steps.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import torch
from torch import Tensor

from trainer_core import error_codes, protocol
from trainer_core.config import Config
from trainer_core.data.batch import Batch
from trainer_core.messages import TraindeckError
from trainer_core.models.language_model import LanguageModel
from trainer_core.run_context import RunContext
from trainer_core.system import files
from trainer_core.system.memory import system_memory
from trainer_core.train.activation_checkpointing import Mode, checkpoint_activations
from trainer_core.train.device import limit_to_vram
from trainer_core.train.engine.engine import Engine
from trainer_core.train.process_group import SINGLE_PROCESS, ProcessGroup

T = TypeVar("T")
RecoveryAction = Literal["halved", "checkpointing", "chunked_loss"]
During = Literal["forward", "backward", "evaluation"]

RESTART_FILE: Final = "oom-recovery.json"
_DURING: Final[tuple[During, ...]] = ("forward", "backward", "evaluation")
_REVERT_AFTER_STEPS: Final = 64  # steps before the last action is reverted for the first time
_MAX_REVERT_AFTER_STEPS: Final = 4096
_ALL_LAYERS: Final[tuple[Mode, int]] = ("full", 0)
_LOGIT_CHUNK_ROWS: Final = 64  # positions whose logits exist at once, as the last resort
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REQUESTED: Final = re.compile(r"allocate (?P<amount>[\d.]+) (?P<unit>bytes|[KMGT]iB)")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the device, torch's allocators or the system ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    found = error_codes.classify_exception(error) if isinstance(error, RuntimeError | OSError) else None
    return found is not None and found.code == "memory.out"


def requested_bytes(error: BaseException) -> int | None:
    """Bytes of the failed allocation, if the error message names them."""
    found = _REQUESTED.search(str(error))
    return int(float(found["amount"]) * _UNITS[found["unit"]]) if found else None


class OomHandler:
    """Actions that make micro-batches fit into memory.

    A check sets `enabled` to False: there, a step that does not fit is the result. The work sets `during` whenever it
    enters another stage.
    """

    engine: Engine | None = None  # set by `attach`; None while it is being built
    enabled = True

    def __init__(
        self,
        config: Config,
        model: LanguageModel,
        device: torch.device,
        context: RunContext,
        group: ProcessGroup = SINGLE_PROCESS,
        restart_file: Path | None = None,
    ) -> None:
        """`config` has the micro-batches of one rank. `restart_file`: see `restart_on_oom`."""
        self._config, self._model, self._device, self._context = config, model, device, context
        self._group, self._restart_file = group, restart_file
        self._actions: list[RecoveryAction] = []
        self._steps = 0  # since the last action
        self._revert_after_steps = _REVERT_AFTER_STEPS
        self.during: During = "forward"

    @property
    def max_sequences(self) -> int:
        """Maximum sequences per forward pass: ceil(batch_size / 2**halvings)."""
        return -(-self._config.batch_size >> self._actions.count("halved"))

    def split(self, micro_batches: list[Batch]) -> list[Batch]:
        """Cut the micro-batches of a step to `max_sequences`."""
        if not self._actions:
            return micro_batches
        return [part for batch in micro_batches for part in batch.split_rows(self.max_sequences)]

    def run_step(self, work: Callable[[], T], undo: Callable[[], None], step: int) -> T:
        """Return the result of `work`, in which no rank waits for another. If any rank runs out of memory, all ranks
        call `undo`, apply the next action and repeat.

        `undo` restores gradients and RNG states. `step` is a field of the event and of the error.
        Raises `memory.exhausted` when no action is left.
        """
        while True:
            result: list[T] = []
            # Maximum over ranks: 1 + index of the stage (0: success), bytes requested, and the least free bytes of
            # those that ran out, as a negative number; the others report the lowest number.
            stage, requested, negative_free = 0, 0, -sys.maxsize
            try:
                result.append(work())
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                stage, requested = 1 + _DURING.index(self.during), requested_bytes(error) or 0
                negative_free = -_free(self._device)  # before `undo` frees the memory of the attempt
            # Outside of the handler, where the traceback no longer references the tensors of the attempt.
            stage, requested, negative_free = self._group.max(stage, requested, negative_free)
            if not stage:
                return result[0]
            result.clear()
            self.during = _DURING[stage - 1]
            undo()
            self._apply_next(step, requested or None, -negative_free)

    @contextlib.contextmanager
    def restart_on_oom(self, step: int) -> Iterator[None]:
        """Around work in which ranks wait for each other, so that they cannot recover together.

        Stores the next action in `restart_file` and raises `memory.restart`: the run continues from its newest
        checkpoint, with that action. Raises `memory.exhausted` when none is left.
        """
        try:
            yield
        except Exception as error:
            if isinstance(error, TraindeckError) or not is_out_of_memory(error):
                raise
            action, requested = self._next_action(), requested_bytes(error)
            if action is None or self._restart_file is None:
                raise self._exhausted(step, requested, _free(self._device)) from error
            files.write_atomic(self._restart_file, json.dumps([*self._actions, action]).encode("utf-8"))
            raise TraindeckError("memory.restart", detail=str(error), step=step, number=self._group.rank + 1) from error

    def _exhausted(self, step: int, requested: int | None, free: int) -> TraindeckError:
        return TraindeckError(
            "memory.exhausted", device=self._device.type, step=step, requested=requested or 0, free=free
        )

    def attach(self, engine: Engine) -> None:
        """Configure the engine of the run for the current actions."""
        self.engine = engine
        self._apply()

    def count_good_step(self, step: int) -> None:
        """Count a completed step. Revert the last action after enough of them."""
        self._steps += 1
        if self._actions and self._steps >= self._revert_after_steps and not self._actions_before_restart():
            limit_to_vram(self._device)  # other programs may use more or less of the card than before
            self._actions.pop()
            self._revert_after_steps, self._steps = min(2 * self._revert_after_steps, _MAX_REVERT_AFTER_STEPS), 0
            self._apply()
            self._emit(step, "grown", "none", None, _free(self._device))

    @contextlib.contextmanager
    def skip_on_oom(self, flag: str, step: int) -> Iterator[None]:
        """Skip optional work with a warning if it runs out of memory. `flag`: disables the work, without `--`."""
        try:
            yield
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the handler, where the traceback no longer references the tensors of the work.
        release_memory(self._device)
        self._context.warn("memory.left_out", what=flag, step=step)

    def with_recovery(self, loss: Callable[[Batch], Tensor], step: int) -> Callable[[Batch | None], Tensor]:
        """Wrap `loss` for evaluation, with recovery. None: this rank has no batch left, but others have."""

        def sum_parts(batch: Batch | None) -> Tensor:
            losses = [loss(part) for part in self.split([batch] if batch else [])]
            return torch.stack(losses).sum(0) if losses else torch.zeros((), device=self._device)

        def recovering_loss(batch: Batch | None) -> Tensor:
            self.during = "evaluation"
            return self.run_step(lambda: sum_parts(batch), lambda: None, step)

        return recovering_loss

    # --- actions -----------------------------------------------------------------------------------

    def _apply_next(self, step: int, requested: int | None, free: int) -> None:
        """`requested`: bytes of the failed allocation; `free`: least free bytes of a rank that ran out."""
        release_memory(self._device)
        action = self._next_action()
        if action is None:
            raise self._exhausted(step, requested, free)
        self._actions.append(action)
        self._steps = 0
        self._apply()
        release_memory(self._device)
        self._emit(step, action, self.during, requested, free)

    def _next_action(self) -> RecoveryAction | None:
        if not self.enabled:
            return None
        if self.max_sequences > 1:
            return "halved"
        if self._config.checkpointing != _ALL_LAYERS and "checkpointing" not in self._actions:
            return "checkpointing"
        return "chunked_loss" if "chunked_loss" not in self._actions else None

    def _apply(self) -> None:
        """Configure model and engine for the current actions. `Engine.loss` computes halves eagerly by their shape."""
        checkpointing = _ALL_LAYERS if "checkpointing" in self._actions else self._config.checkpointing
        checkpoint_activations(self._model, *checkpointing)
        if self.engine is not None:
            self.engine.eager_only = bool({"checkpointing", "chunked_loss"} & set(self._actions))
            self.engine.smaller_chunk = _LOGIT_CHUNK_ROWS if "chunked_loss" in self._actions else 0
            if self._actions:
                self.engine.reset_graphs()  # CUDA graphs hold the memory of a whole step
            else:
                self.engine.rerecord_graphs()

    def _emit(
        self,
        step: int,
        action: RecoveryAction | Literal["grown"],
        during: During | Literal["none"],
        requested: int | None,
        free: int,
    ) -> None:
        passes = -(-self._config.batch_size // self.max_sequences) * self._group.world_size
        self._context.emit(
            protocol.OomRecovery(
                step=step,
                action=action,
                during=during,
                batch_size=self.max_sequences,
                gradient_accumulation_steps=self._config.gradient_accumulation_steps * passes,
                requested=requested,
                free=free,
                total=_total(self._device),
            )
        )

    # --- in checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"actions": list(self._actions), "steps": self._steps, "retry_steps": self._revert_after_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned. Empty: initial state."""
        self._actions = max(list(state.get("actions", [])), self._actions_before_restart(), key=len)
        self._steps, self._revert_after_steps = state.get("steps", 0), state.get("retry_steps", _REVERT_AFTER_STEPS)
        self._apply()

    def _actions_before_restart(self) -> list[RecoveryAction]:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return list(json.loads(self._restart_file.read_bytes()))  # type: ignore[union-attr]
        return []


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
