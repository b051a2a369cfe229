"""Out of memory, recovered as a transaction: the step that failed is done again in a way that needs less.

Until the optimizer runs, a step has changed nothing but gradients and generator states, so it can be undone and done
again with the same batch: in halves, then with activations computed again, then with the loss in smaller parts. The
loader goes on as before, in micro-batches of `batch_size`; each is cut only when it is computed. So the effective
batch, the order of the data and the count of steps stay, and the gradient is the same sum in another order (dropout
draws anew). After a while the last move is taken back; if that fails, it is waited twice as long.
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

from trainer_core import failures, protocol
from trainer_core.config import Config
from trainer_core.data.batches import Batch
from trainer_core.machine.ram import system_memory
from trainer_core.messages import TraindeckError
from trainer_core.model.decoder import Decoder
from trainer_core.session import Session
from trainer_core.train import memory
from trainer_core.train.device import keep_to_the_card
from trainer_core.train.engine.engine import Engine
from trainer_core.train.ranks import ALONE, Ranks

T = TypeVar("T")
Move = Literal["halved", "checkpointing", "chunked_loss"]
During = Literal["forward", "backward", "evaluation"]

_DURING: Final[tuple[During, ...]] = ("forward", "backward", "evaluation")
_PATIENCE: Final = 64  # steps before there is tried for the first time whether there is room again
_MOST_PATIENCE: Final = 4096
_CHUNK: Final = 64  # rows of logits at once, when nothing else is left
_UNITS: Final = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_REQUESTED: Final = re.compile(r"allocate (?P<amount>[\d.]+) (?P<unit>bytes|[KMGT]iB)")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, torch's allocators or the system had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    found = failures.of_exception(error) if isinstance(error, RuntimeError) else None
    return found is not None and found.code == "memory.out"


def requested(error: BaseException) -> int | None:
    """Bytes that were asked for in vain, where the error says so."""
    found = _REQUESTED.search(str(error))
    return int(float(found["amount"]) * _UNITS[found["unit"]]) if found else None


class Ladder:
    """How micro-batches are computed so that they fit, and the moves that led there."""

    engine: Engine | None = None  # from when it is there; it is made within `attempt` too

    def __init__(
        self, config: Config, model: Decoder, device: torch.device, session: Session, ranks: Ranks = ALONE
    ) -> None:
        """`config` is of this rank alone: with the micro-batches that it computes."""
        self._config, self._model, self._device, self._session = config, model, device, session
        self._ranks = ranks
        self._moves: list[Move] = []
        self._steps = 0  # since the last move
        self._patience = _PATIENCE
        self.built_for = config.batch_size  # sequences of the micro-batch that the engine was made for
        self.during: During = "forward"

    @property
    def rows(self) -> int:
        """Sequences of one forward pass, at most."""
        return -(-self._config.batch_size >> self._moves.count("halved"))

    def parts(self, window: list[Batch]) -> list[Batch]:
        """The micro-batches of a step as they are computed."""
        if not self._moves:
            return window
        return [part for batch in window for part in batch.rows(self.rows)]

    def attempt(
        self, work: Callable[[], T], undo: Callable[[], None], step: int, poll: Callable[[], None] | None = None
    ) -> T:
        """The result of `work`, done again by all ranks after `undo` and a move for as long as memory ends in it on
        any of them. `poll` is called while it takes the others longer.

        Raises `memory.exhausted` when no move is left.
        """
        while True:
            result: list[T] = []
            when, wanted, lacking = 0, 0, -sys.maxsize
            try:
                result.append(work())
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                when, wanted = 1 + _DURING.index(self.during), requested(error) or 0
                lacking = -_free(self._device)  # now: what the attempt holds is free as soon as it is undone
            # Here, not above: the error's traceback holds all tensors of the attempt.
            when, wanted, lacking = self._ranks.most(when, wanted, lacking, poll=poll)
            if not when:
                return result[0]
            result.clear()
            self.during = _DURING[when - 1]
            undo()
            self._move(step, wanted or None, -lacking)

    def suffices(self, work: Callable[[], T]) -> T:
        """The result of `work` where memory suffices for it on all ranks; where it does not on one, none goes on to
        words that others would wait for: raises `MemoryError` on all of them."""
        result: list[T] = []
        short, wanted = 0, 0
        try:
            result.append(work())
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            short, wanted = 1, requested(error) or 0
        short, wanted = self._ranks.most(short, wanted, poll=self._session.poll)
        if short:
            result.clear()
            raise MemoryError(f"Tried to allocate {wanted} bytes")
        return result[0]

    def built(self, build: Callable[[int], Engine]) -> Engine:
        """The engine, made for whole micro-batches or, where memory ends in that, for smaller ones."""

        tried = False

        def work() -> Engine:
            nonlocal tried
            self.during, self.built_for = "forward", self.rows if tried else self.built_for
            tried = True
            return build(self.built_for)

        self.engine = self.attempt(work, _nothing, 0, self._session.poll)
        self._apply()
        return self.engine

    def grow(self, step: int) -> None:
        """After each good step: take the last move back when it has lasted for long enough."""
        self._steps += 1
        if self._moves and self._steps >= self._patience:
            keep_to_the_card(self._device)
            self._moves.pop()
            self._patience, self._steps = min(2 * self._patience, _MOST_PATIENCE), 0
            self._apply()
            self._tell(step, "grown", "none", None, _free(self._device))

    @contextlib.contextmanager
    def spared(self, what: str, step: int) -> Iterator[None]:
        """For work that a run can do without, such as samples: when memory ends in it, it is left out and said."""
        try:
            yield
            return
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        give_back(self._device)
        self._session.warn("memory.left_out", what=what, step=step)

    def loss_of(self, loss: Callable[[Batch], Tensor], step: int) -> Callable[[Batch | None], Tensor]:
        """`loss` for evaluation: in parts as they fit. None: this rank has no batch where others have one."""

        def whole(batch: Batch | None) -> Tensor:
            self.during = "evaluation"
            return self.attempt(
                lambda: _sum([loss(part) for part in self.parts([batch] if batch else [])]), _nothing, step
            )

        def _sum(losses: list[Tensor]) -> Tensor:
            return torch.stack(losses).sum() if losses else torch.zeros((), device=self._device)

        return whole

    # --- the moves -----------------------------------------------------------------------------------

    def _move(self, step: int, wanted: int | None, free: int) -> None:
        """`wanted`: bytes that were asked for; `free`: those that the device had left then, the least of any rank."""
        give_back(self._device)
        move = self._next()
        if move is None:
            raise TraindeckError(
                "memory.exhausted", device=self._device.type, step=step, requested=wanted or 0, free=free
            )
        self._moves.append(move)
        self._steps = 0
        self._apply()
        give_back(self._device)
        self._tell(step, move, self.during, wanted, free)

    def _next(self) -> Move | None:
        if self.rows > 1:
            return "halved"
        if self._config.activation_checkpointing != "full" and "checkpointing" not in self._moves:
            return "checkpointing"
        return "chunked_loss" if "chunked_loss" not in self._moves else None

    def _apply(self) -> None:
        """Bring model and engine to what the moves say. Halves are computed eagerly where a graph is for the whole."""
        again = "full" if "checkpointing" in self._moves else self._config.activation_checkpointing
        memory.checkpoint_activations(self._model, again)
        if self.engine is not None:
            self.engine.eager_only = bool({"checkpointing", "chunked_loss"} & set(self._moves))
            self.engine.smaller_chunk = _CHUNK if "chunked_loss" in self._moves else 0
            if self._moves:
                self.engine.forget_graphs()  # they hold the memory of a whole step
            else:
                self.engine.record_again()

    def _tell(
        self,
        step: int,
        action: Literal["halved", "checkpointing", "chunked_loss", "grown"],
        during: Literal["forward", "backward", "evaluation", "none"],
        wanted: int | None,
        free: int,
    ) -> None:
        times = -(-self._config.batch_size // self.rows) * self._ranks.size
        self._session.emit(
            protocol.MemoryMove(
                step=step,
                action=action,
                during=during,
                batch_size=self.rows,
                gradient_accumulation_steps=self._config.gradient_accumulation_steps * times,
                requested=wanted,
                free=free,
                total=_total(self._device),
            )
        )

    # --- in checkpoints ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint, so that a resumed run computes as it did."""
        return {
            "moves": list(self._moves),
            "steps": self._steps,
            "patience": self._patience,
            "built_for": self.built_for,
            "whole": self._config.batch_size,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Bring back what `state` gave. Empty: as at the beginning."""
        self._moves = list(state.get("moves", []))
        self._steps, self._patience = state.get("steps", 0), state.get("patience", _PATIENCE)
        whole = self._config.batch_size
        self.built_for = state.get("built_for", whole) if state.get("whole", whole) == whole else whole
        self._apply()


def _nothing() -> None:
    pass


def give_back(device: torch.device) -> None:
    """Free what nothing refers to any more, and what the caching allocator keeps."""
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
