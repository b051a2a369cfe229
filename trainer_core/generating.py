"""A model that stays loaded and writes on command: what `generate` does where a program reads its answers.

Commands are taken as they come in, also while the model is loaded (and torch before it: it is imported late); the texts
that they ask for are written one after the other, with a look for commands between two tokens.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from trainer_core import failures, protocol
from trainer_core.data.columns import Turn
from trainer_core.messages import TraindeckError
from trainer_core.report import StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.session import Session

if TYPE_CHECKING:
    from trainer_core.data.tokenizing.tokenizer import Codec
    from trainer_core.model.decoder import Decoder

_SEND_EVERY_S: Final = 0.05  # pieces of a text: more than a reader could follow would only cost it time
_LOOK_EVERY_S: Final = 0.05
_LARGEST_SEED: Final = 2**63 - 1


@dataclass(slots=True)
class Loaded:
    """A model ready to write."""

    model: Decoder
    codec: Codec
    chat: bool


@dataclass(slots=True)
class _Asked:
    """A text to write."""

    command: protocol.Generate
    interrupted: bool = False


def serve(writer: Writer, checkpoint: Path, wanted_device: str, stay: bool) -> None:
    """Load, say `loaded`, and write what was asked for; if `stay`, until a stop or the end of input.

    Raises what `generate.load` does, `device.not_available` and `generate.memory`.
    """
    from trainer_core import generate
    from trainer_core.train.device import choose_device, describe

    session, device = writer.session, choose_device(wanted_device)
    with contextlib.suppress(StopRequested), _naming_memory(describe(device)):
        began = time.monotonic()
        with session.breakable():
            loaded = Loaded(*generate.load(checkpoint, device), generate.is_chat(checkpoint))
        info = checkpoint_dir.read_info(checkpoint)
        session.emit(
            protocol.Loaded(
                checkpoint=str(checkpoint),
                step=info.step if info else 0,
                chat=loaded.chat,
                parameters=loaded.model.count_parameters(),
                device=describe(device),
                max_seq_len=loaded.model.config.max_seq_len,
                seconds=time.monotonic() - began,
            )
        )
        writer.work(loaded, stay)


@contextlib.contextmanager
def _naming_memory(device: str) -> Iterator[None]:
    """Say lack of memory as what it is here: training's advice (a smaller batch) would not help."""
    try:
        yield
    except Exception as error:
        found = None if isinstance(error, TraindeckError) else failures.of_exception(error)
        if found is None or not found.code.startswith("memory."):
            raise
        detail = f"{type(error).__name__}: {error}"
        raise TraindeckError("generate.memory", detail, device=device) from error


class Writer:
    """Texts asked for, in their order, by commands from now on."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._asked: deque[_Asked] = deque()
        self._now: _Asked | None = None
        self._lock = threading.Lock()  # around both
        self._news = threading.Event()
        session.writer = self.obey

    def obey(self, command: protocol.Generate | protocol.Interrupt) -> str:
        """Take a command, on any thread. Why not, if not."""
        if isinstance(command, protocol.Interrupt):
            with self._lock:
                for asked in (self._now, *self._asked):
                    if asked is not None:
                        asked.interrupted = True
            return ""
        reason = problem(command)
        if not reason:
            with self._lock:
                self._asked.append(_Asked(command))
            self._news.set()
        return reason

    def work(self, loaded: Loaded, stay: bool) -> None:
        """Write, one after the other. Raises `StopRequested`."""
        while stay or self._asked:
            self.session.poll()
            with self._lock:
                self._now = self._asked.popleft() if self._asked else None
            if self._now is not None:
                self._write(self._now, loaded)
            else:
                self._news.wait(_LOOK_EVERY_S)
                self._news.clear()

    def _write(self, asked: _Asked, loaded: Loaded) -> None:
        command, prompt_tokens, began = asked.command, 0, time.monotonic()
        sending = _Sending(self.session, command.id)
        reason: Literal["end", "length", "interrupted", "failed"]
        from trainer_core import generate

        try:
            prompt = _turns(command, loaded.chat) if command.turns else command.prompt
            prompt_tokens = len(generate.prompt_ids(loaded.codec, prompt, loaded.chat))
            self._stream(asked, loaded, prompt, sending)
            reason = "length" if sending.tokens == command.max_tokens else "end"
            reason = "interrupted" if asked.interrupted else reason
        except TraindeckError as error:
            self.session.warn(error.code, **error.params)
            reason = "failed"
        sending.flush()
        seconds = time.monotonic() - began
        self.session.emit(
            protocol.Generated(
                id=command.id,
                tokens=sending.tokens,
                prompt_tokens=prompt_tokens,
                seconds=seconds,
                tokens_per_s=sending.tokens / seconds if seconds > 0 else 0.0,
                reason=reason,
            )
        )

    def _stream(self, asked: _Asked, loaded: Loaded, prompt: str | list[Turn], sending: _Sending) -> None:
        from trainer_core import generate

        command = asked.command
        how = generate.Sampling(command.temperature, command.top_k, command.top_p, command.seed)
        pieces = generate.write_text(loaded.model, loaded.codec, prompt, command.max_tokens, how, loaded.chat)
        while not asked.interrupted and (piece := next(pieces, None)) is not None:
            sending.add(piece)
            self.session.poll()


class _Sending:
    """Pieces of one text, gathered so that a reader keeps up."""

    def __init__(self, session: Session, number: int | None) -> None:
        self._session, self._number = session, number
        self._waiting, self._sent = "", -math.inf
        self.tokens = 0

    def add(self, piece: str) -> None:
        self.tokens += 1
        self._waiting += piece
        if time.monotonic() - self._sent >= _SEND_EVERY_S:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._session.emit(protocol.Text(id=self._number, piece=self._waiting, tokens=self.tokens))
            self._waiting, self._sent = "", time.monotonic()


def _turns(command: protocol.Generate, chat: bool) -> list[Turn]:
    if not chat:
        raise TraindeckError("data.chat_refused", reason="the model was trained on plain text")
    return [(turn.role, turn.content) for turn in command.turns]


def problem(command: protocol.Generate) -> str:
    """Why a command cannot be obeyed; empty where it can."""
    allowed = {
        "max_tokens": (command.max_tokens >= 1, ">= 1"),
        "temperature": (0 <= command.temperature <= 5, "0 to 5"),
        "top_k": (command.top_k >= 0, ">= 0"),
        "top_p": (0 < command.top_p <= 1, "> 0, <= 1"),
        "seed": (0 <= command.seed <= _LARGEST_SEED, "0 to 2^63 - 1"),
    }
    return next((f"{name} must be {wanted}" for name, (fits, wanted) in allowed.items() if not fits), "")
