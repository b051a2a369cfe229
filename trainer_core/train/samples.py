"""What the model writes while it learns: samples, answers to held-out prompts, and its tokenizer's files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from trainer_core import generate, protocol
from trainer_core.config import Config
from trainer_core.data.columns import Turn, up_to_last_answer
from trainer_core.data.prepare import Prepared
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.generate import Sampling
from trainer_core.messages import TraindeckError
from trainer_core.model import hugging_face
from trainer_core.model.decoder import Decoder
from trainer_core.session import Session
from trainer_core.train.evaluate import Answers, answer_quality, answer_tokens

_SAMPLES = 2  # texts per occasion where the user names no prompts
_REFERENCE_LENGTHS = 2  # default limit of an answer: enough to see that a model does not stop


class Example(NamedTuple):
    """A held-out conversation: all before its last answer, as turns and as ids, and that answer as the model
    would have to write it."""

    before: Sequence[Turn]
    prompt: list[int]
    answer: str
    answer_tokens: int  # the end token included


class Writer:
    """Writes with the model in training, from generators of its own."""

    def __init__(self, model: Decoder, prepared: Prepared, config: Config, session: Session) -> None:
        self._model, self._prepared, self._config, self._session = model, prepared, config, session
        self._codec = Codec.load(prepared.tokenizer)
        self._chat = prepared.task == "sft"
        self._examples = self._held_out(config.eval_examples)
        self._texts = [] if self._chat else prepared.held_out_beginnings(_SAMPLES)

    def _held_out(self, n: int) -> list[Example]:
        """Held-out conversations that can be asked: with something before the answer that the template takes."""
        found: list[Example] = []
        for turns in self._prepared.held_out_chats(n):
            try:
                *before, last = up_to_last_answer(self._codec.supported(turns))
                prompt, whole = self._codec.encode_prompt(before), self._codec.encode_chats([[*before, last]])[0]
                answer = whole.ids[slice(*whole.spans[-1])].tolist()
                found.append(Example(before, prompt, self._codec.decode(answer), len(answer)))
            except TraindeckError as error:
                if error.code != "data.chat_refused":
                    raise
        return found

    def companions(self) -> dict[str, bytes]:
        """The small files that make a checkpoint a model folder which other programs load."""
        codec, limit = self._codec, self._config.max_seq_len
        end_id = codec.end_of_turn if self._chat else codec.end_of_text
        model = hugging_face.to_dict(self._model.config, end_id, codec.pad, codec.prefix[0] if codec.prefix else None)
        return {
            "config.json": json.dumps(model, indent=1).encode("utf-8"),
            "tokenizer.json": self._prepared.tokenizer.read_bytes(),
            "tokenizer_config.json": codec.config(self._prepared.task, limit),
        }

    def write_samples(self, step: int) -> None:
        """Texts from the user's prompts, or from held-out data."""
        prompts: list[tuple[str | Sequence[Turn], str | None]] = [(text, None) for text in self._config.sample_prompts]
        prompts = prompts or [(example.before, example.answer) for example in self._examples[:_SAMPLES]]
        prompts = prompts or [(text, None) for text in self._texts]
        for number, (prompt, expected) in enumerate(prompts):
            self.write_one(step, prompt, self._config.sample_tokens, expected, number)

    def write_one(
        self,
        step: int,
        prompt: str | Sequence[Turn],
        max_tokens: int,
        expected: str | None = None,
        number: int = 0,
    ) -> None:
        """One text, as a sample event. `number` tells the draws of several prompts at one step apart."""
        greedy = expected is not None
        sampling = Sampling(
            0.0 if greedy else self._config.sample_temperature, seed=self._config.seed + step * 1000 + number
        )
        self._model.eval()
        try:
            pieces = []
            for piece in generate.write_text(self._model, self._codec, prompt, max_tokens, sampling, self._chat):
                pieces.append(piece)
                self._session.poll()
        except TraindeckError as error:
            if error.code != "data.chat_refused":
                raise
            self._session.warn(error.code, **error.params)  # no reason to end a run
            return
        finally:
            self._model.train()
        asked = prompt if isinstance(prompt, str) else prompt[-1][1]
        self._session.emit(protocol.Sample(step=step, prompt=asked, text="".join(pieces), expected=expected))

    def answer_held_out(self, max_positions: int) -> Answers | None:
        """Answers to held-out prompts compared with the references; None without prompts.

        `max_positions` bounds a batch, see `answer_tokens`.
        """
        if not self._examples:
            return None
        limit = self._config.eval_max_new_tokens
        limits = [limit or _REFERENCE_LENGTHS * example.answer_tokens for example in self._examples]
        prompts = [example.prompt for example in self._examples]
        answers = answer_tokens(self._model, prompts, limits, self._codec.ends, max_positions, self._session)
        texts = [self._codec.decode(answer.tokens) for answer in answers]
        return answer_quality(answers, texts, [example.answer for example in self._examples])
