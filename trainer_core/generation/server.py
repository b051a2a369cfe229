"""Generation for programs: a loaded model that executes commands (`generate --control stdin`).

Commands are accepted at any time, even while torch and the model are being loaded. Requests are processed one after
another; commands are polled between tokens.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Literal

from trainer_core import error_codes, protocol
from trainer_core.data.columns import Turn
from trainer_core.generation.model_source import ModelSource
from trainer_core.messages import TraindeckError
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext
from trainer_core.runs import checkpoint_dir
from trainer_core.system.child_process import use_idle_processors

if TYPE_CHECKING:
    from trainer_core.generation.generate import LoadedModel

_FLUSH_INTERVAL_S: Final = 0.05  # interval of text events
_POLL_INTERVAL_S: Final = 0.05
_MAX_SEED: Final = 2**63 - 1


class GenerationServer:
    """Queue of generation requests. Accepts commands as soon as it is created."""

    def __init__(self, run_context: RunContext) -> None:
        self._run_context = run_context
        self._queue: SimpleQueue[tuple[protocol.Generate, int]] = SimpleQueue()  # with the interrupts before it
        self._interrupts = 0
        run_context.generate_handler = self.handle_command

    def handle_command(self, command: protocol.Generate | protocol.Interrupt) -> str:
        """Accept a command, on any thread. Returns why it is invalid, or an empty string."""
        if isinstance(command, protocol.Interrupt):
            self._interrupts += 1
            return ""
        reason = _invalid_reason(command)
        if not reason:
            self._queue.put((command, self._interrupts))
        return reason

    def serve(self, source: ModelSource, device_name: str, keep_alive: bool) -> None:
        """Load the model, emit `loaded`, and process requests; with `keep_alive`, until a stop or the end of input.

        Raises as `generate.load_model`, `device.not_available` and `generate.memory`.
        """
        from trainer_core.generation import generate
        from trainer_core.train.device import choose_device, describe_device

        device = choose_device(device_name)
        if device.type == "cpu":
            use_idle_processors()
        with contextlib.suppress(StopRequested), translate_oom(describe_device(device)):
            began = time.monotonic()
            with self._run_context.interruptible():
                loaded = generate.load_model(source, device, for_generation=True)
            info = checkpoint_dir.read_info(source.folder)
            self._run_context.emit(
                protocol.ModelLoaded(
                    checkpoint=str(source.folder),
                    step=info.step if info else 0,
                    chat=loaded.chat,
                    parameters=loaded.model.count_parameters(),
                    device=describe_device(device),
                    max_seq_len=loaded.model.config.max_seq_len,
                    seconds=time.monotonic() - began,
                )
            )
            self._process_requests(loaded, keep_alive)

    def _process_requests(self, loaded: LoadedModel, keep_alive: bool) -> None:
        """Raises `StopRequested`."""
        while keep_alive or not self._queue.empty():
            self._run_context.poll()
            with contextlib.suppress(Empty):
                self._process(*self._queue.get(timeout=_POLL_INTERVAL_S), loaded)

    def _process(self, command: protocol.Generate, earlier_interrupts: int, loaded: LoadedModel) -> None:
        from trainer_core.generation import generate

        began, prompt_tokens = time.monotonic(), 0
        text = _TextBuffer(self._run_context, command.id)
        reason: Literal["end", "length", "interrupted", "failed"]
        try:
            model, codec, chat = loaded
            chat = chat if command.chat is None else command.chat
            prompt = _conversation(command, chat) if command.turns else command.prompt
            prompt_tokens = len(generate.prompt_ids(codec, prompt, chat))
            sampling = generate.SamplingParams(command.temperature, command.top_k, command.top_p, command.seed)
            pieces = generate.generate_text(model, codec, prompt, command.max_tokens, sampling, chat)
            while self._interrupts == earlier_interrupts and (piece := next(pieces, None)) is not None:
                text.add(piece)
                self._run_context.poll()
            if self._interrupts != earlier_interrupts:
                reason = "interrupted"
            else:
                reason = "length" if text.tokens == command.max_tokens else "end"
        except TraindeckError as error:
            self._run_context.warn(error.code, **error.params)
            reason = "failed"
        text.flush()
        seconds = time.monotonic() - began
        self._run_context.emit(
            protocol.GenerationDone(
                id=command.id,
                tokens=text.tokens,
                prompt_tokens=prompt_tokens,
                seconds=seconds,
                tokens_per_s=text.tokens / seconds if seconds > 0 else 0.0,
                reason=reason,
            )
        )


class _TextBuffer:
    """Collects pieces of text and emits them at most every 50 ms."""

    def __init__(self, run_context: RunContext, command_id: int | None) -> None:
        self._run_context, self._id = run_context, command_id
        self._text, self._flushed_at = "", -math.inf
        self.tokens = 0

    def add(self, piece: str) -> None:
        self.tokens += 1
        self._text += piece
        if time.monotonic() - self._flushed_at >= _FLUSH_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        if self._text:
            self._run_context.emit(protocol.GeneratedPiece(id=self._id, piece=self._text, tokens=self.tokens))
            self._text, self._flushed_at = "", time.monotonic()


@contextlib.contextmanager
def translate_oom(device: str) -> Iterator[None]:
    """Convert out-of-memory errors to `generate.memory`: the advice for training does not apply."""
    try:
        yield
    except Exception as error:
        found = None if isinstance(error, TraindeckError) else error_codes.classify_exception(error)
        if found is None or not found.code.startswith("memory."):
            raise
        raise TraindeckError("generate.memory", f"{type(error).__name__}: {error}", device=device) from error


def _conversation(command: protocol.Generate, chat: bool) -> list[Turn]:
    if not chat:
        raise TraindeckError("data.chat_refused", reason="the model was trained on plain text")
    return [(turn.role, turn.content) for turn in command.turns]


def _invalid_reason(command: protocol.Generate) -> str:
    """Why a command is invalid; empty if it is valid."""
    allowed = {
        "max_tokens": (command.max_tokens >= 1, ">= 1"),
        "temperature": (0 <= command.temperature <= 5, "0 to 5"),
        "top_k": (command.top_k >= 0, ">= 0"),
        "top_p": (0 < command.top_p <= 1, "> 0, <= 1"),
        "seed": (0 <= command.seed <= _MAX_SEED, "0 to 2^63 - 1"),
    }
    return next((f"{name} must be {wanted}" for name, (valid, wanted) in allowed.items() if not valid), "")
