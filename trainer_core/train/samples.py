"""Text from the model in training: samples and answers to validation prompts; companion files of checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trainer_core import protocol
from trainer_core.config import Config
from trainer_core.data.columns import Turn, trim_after_last_answer
from trainer_core.data.prepare import PreparedData
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.generation import generate
from trainer_core.generation.generate import SamplingParams
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.language_model import LanguageModel
from trainer_core.rewards.rewards import load_rewards
from trainer_core.run_context import RunContext
from trainer_core.train.evaluate import REFERENCE_LENGTHS, AnswerQuality, answer_quality, answer_tokens

_SAMPLES = 2  # samples per occasion without prompts of the user


class HeldOutExample(NamedTuple):
    """A validation conversation: the turns and ids before its last answer, and that answer."""

    before: Sequence[Turn]
    prompt: list[int]
    answer: str
    answer_tokens: int  # including the end token


class SampleWriter:
    """Generates with the model in training, using its own random generators."""

    def __init__(
        self,
        model: LanguageModel,
        prepared: PreparedData,
        config: Config,
        context: RunContext,
        poll: Callable[[], None],
    ) -> None:
        self._model, self._prepared, self._config, self._context = model, prepared, config, context
        self._poll = poll
        self.codec = Codec.load(prepared.tokenizer)
        self._chat = prepared.task != "pretrain"
        self._examples = self._held_out(config.eval_examples)
        self._rewards = load_rewards(config.rewards) if config.uses_rewards else None
        self._texts = [] if self._chat else prepared.held_out_prompts(_SAMPLES)

    def _held_out(self, n: int) -> list[HeldOutExample]:
        """Validation conversations that can be used as prompts: the template accepts what precedes the answer."""
        found: list[HeldOutExample] = []
        for turns in self._prepared.held_out_chats(n):
            try:
                *before, last = trim_after_last_answer(self.codec.drop_unsupported_calls(turns))
                prompt, whole = self.codec.encode_prompt(before), self.codec.encode_chats([[*before, last]])[0]
                answer = whole.ids[slice(*whole.spans[-1])].tolist()
                found.append(HeldOutExample(before, prompt, self.codec.decode(answer), len(answer)))
            except TraindeckError as error:
                if error.code != "data.chat_refused":
                    raise
        return found

    def companions(self) -> dict[str, bytes]:
        """Small files that make a checkpoint a complete model folder."""
        codec, limit = self.codec, self._config.max_seq_len
        end_id = codec.end_of_turn if self._chat else codec.end_of_text
        model = hf_config.to_hf_config(
            self._model.config, end_id, codec.pad_token_id, codec.prefix_ids[0] if codec.prefix_ids else None
        )
        return {
            "config.json": json.dumps(model, indent=1).encode("utf-8"),
            "tokenizer.json": self._prepared.tokenizer.read_bytes(),
            "tokenizer_config.json": codec.config_json(self._prepared.task, limit),
        }

    def write_samples(self, step: int) -> None:
        """Write samples from the user's prompts, or from validation data."""
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
        """Write one sample event. `number` distinguishes the random draws of several prompts at one step."""
        greedy = expected is not None
        sampling = SamplingParams(
            0.0 if greedy else self._config.sample_temperature, seed=self._config.seed + step * 1000 + number
        )
        self._model.eval()
        try:
            pieces = []
            for piece in generate.generate_text(self._model, self.codec, prompt, max_tokens, sampling, self._chat):
                pieces.append(piece)
                self._poll()
        except TraindeckError as error:
            if error.code != "data.chat_refused":
                raise
            self._context.warn(error.code, **error.params)  # not fatal
            return
        finally:
            self._model.train()
        asked = prompt if isinstance(prompt, str) else prompt[-1][1]
        self._context.emit(protocol.Sample(step=step, prompt=asked, text="".join(pieces), expected=expected))

    def answer_held_out(self, max_positions: int) -> AnswerQuality | None:
        """Generate answers to validation prompts and compare them with the references; None without prompts.

        `max_positions` bounds a batch, see `answer_tokens`.
        """
        if not self._examples:
            return None
        limit = self._config.eval_max_new_tokens
        limits = [limit or REFERENCE_LENGTHS * example.answer_tokens for example in self._examples]
        prompts = [example.prompt for example in self._examples]
        answers = answer_tokens(self._model, prompts, limits, self.codec.stop_token_ids, max_positions, self._poll)
        texts = [self.codec.decode(answer.tokens) for answer in answers]
        references = [example.answer for example in self._examples]
        return answer_quality(answers, texts, references, self._rewards)
