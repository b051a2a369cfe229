"""Generates for several requests at once, which threads submit. One thread computes: that of `GenerationEngine.run`."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, Literal

from trainer_core import error_codes
from trainer_core.data.columns import Turn
from trainer_core.generation.decoding import DecodingRow, new_batch
from trainer_core.generation.generate import IncrementalDetokenizer, LoadedModel, prompt_ids
from trainer_core.generation.sampling import SamplingParams
from trainer_core.train.oom import is_out_of_memory, release_memory

Failure = Literal["out_of_memory", "internal_error"]
FinishReason = Literal["stop", "length"] | Failure
_MAX_ROWS: Final = 8  # decoded at once; further jobs wait
_POLL_INTERVAL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the text of one job."""

    index: int  # of the job, as submitted
    text: str
    tokens: int  # generated so far
    finish_reason: FinishReason | None = None


@dataclass(slots=True, eq=False)
class Job:
    """A text to generate. Its pieces go to `output`, which several jobs may share."""

    prompt: Sequence[int]  # shorter than the context
    max_tokens: int
    sampling: SamplingParams
    output: SimpleQueue[Piece]
    stop: Sequence[str] = ()  # strings that end the text and are not part of it
    index: int = 0
    cancelled: bool = False  # set by the client's thread


class GenerationEngine:
    """Decodes up to 8 jobs together; a new one joins between two tokens of the others."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self._waiting: SimpleQueue[Job] = SimpleQueue()
        self._active: dict[DecodingRow, _Text] = {}
        self._batch = new_batch(loaded.model, loaded.codec.stop_token_ids)
        self._encoding = threading.Lock()

    @property
    def pending(self) -> int:
        """Number of jobs that wait."""
        return self._waiting.qsize()

    def encode(self, prompt: str | Sequence[Turn], chat: bool) -> list[int]:
        """Token ids of a prompt. On any thread. Raises as `generate.prompt_ids`."""
        with self._encoding:
            return prompt_ids(self.loaded.codec, prompt, chat) or [self.loaded.codec.end_of_text]

    def submit(self, job: Job) -> None:
        """Queue a job. On any thread."""
        self._waiting.put(job)

    def run(self, poll: Callable[[], None]) -> None:
        """Process jobs until `poll`, which is called between two tokens, raises."""
        while True:
            poll()
            self._admit()
            if self._batch.rows and (failure := _try(self._batch.step)):
                self._fail_all(failure)
            self._deliver()

    def _admit(self) -> None:
        """Add jobs to the batch; without any, wait a moment for one."""
        while len(self._batch.rows) < _MAX_ROWS:
            try:
                job = self._waiting.get(timeout=0 if self._active else _POLL_INTERVAL_S)
            except Empty:
                return
            if job.cancelled:
                continue
            row = DecodingRow(job.prompt, job.max_tokens, job.sampling)
            self._active[row] = _Text(job, self.loaded)
            if failure := _try(partial(self._batch.add, [row])):
                self._fail([row], failure)

    def _deliver(self) -> None:
        """Send new text to the clients. Remove what has finished, met a stop string, or was cancelled."""
        ended = [row for row, text in self._active.items() if text.job.cancelled or text.send(row)]
        for row in ended:
            del self._active[row]
        if failure := _try(partial(self._batch.remove, [row for row in ended if not row.finished])):
            self._fail_all(failure)  # a smaller cache is a copy

    def _fail_all(self, failure: Failure) -> None:
        self._batch = new_batch(self.loaded.model, self.loaded.codec.stop_token_ids)
        self._fail(list(self._active), failure)

    def _fail(self, rows: Sequence[DecodingRow], failure: Failure) -> None:
        for row in rows:
            job = self._active.pop(row).job
            job.output.put(Piece(job.index, "", 0, failure))
        release_memory(self.loaded.model.head.weight.device)


def _try(work: Callable[[], None]) -> Failure | None:
    """Run `work`, and return why it failed. The caller frees memory, when no traceback references tensors.

    Known errors, such as a lost GPU, are raised: no later request could succeed.
    """
    try:
        work()
    except Exception as error:
        if is_out_of_memory(error):
            return "out_of_memory"
        if error_codes.classify_exception(error) is not None:
            raise
        traceback.print_exception(error)
        return "internal_error"
    return None


@dataclass(slots=True)
class _Text:
    """Decodes the tokens of one job, and ends at a stop string."""

    job: Job
    loaded: LoadedModel
    _decoded: int = 0  # tokens
    _held_back: str = ""  # may become a stop string
    _stream: IncrementalDetokenizer = field(init=False)

    def __post_init__(self) -> None:
        self._stream = IncrementalDetokenizer(self.loaded.codec, () if self.loaded.chat else self.job.prompt)

    def send(self, row: DecodingRow) -> bool:
        """Send what is new. Returns whether the text is complete."""
        tokens = row.completion.tokens
        new = "".join(self._stream.add(token) for token in tokens[self._decoded :])
        self._decoded = len(tokens)
        text, stopped = self._find_stop(self._held_back + new)
        reason: FinishReason | None = None
        if stopped or row.finished:
            reason = "stop" if stopped or row.completion.finish_reason == "end" else "length"
            if not stopped:
                text += self._held_back
        if text or reason:
            self.job.output.put(Piece(self.job.index, text, len(tokens), reason))
        return reason is not None

    def _find_stop(self, text: str) -> tuple[str, bool]:
        """The text before the first stop string, and whether there is one. Holds back what may begin one."""
        found = [position for stop in self.job.stop if (position := text.find(stop)) >= 0]
        if found:
            return text[: min(found)], True
        longest = max(map(len, self.job.stop), default=1)
        tails = (text[-length:] for length in range(min(longest - 1, len(text)), 0, -1))
        self._held_back = next((tail for tail in tails if any(stop.startswith(tail) for stop in self.job.stop)), "")
        return text[: len(text) - len(self._held_back)], False
