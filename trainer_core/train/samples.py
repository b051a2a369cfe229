"""What the model writes while it learns: samples, answers to held-out prompts, and its tokenizer's files."""

from __future__ import annotations

import json

from trainer_core import generate, protocol
from trainer_core.config import Config
from trainer_core.data.prepare import Prepared
from trainer_core.data.tokenizer import Codec
from trainer_core.generate import Sampling
from trainer_core.model import hugging_face
from trainer_core.model.decoder import Decoder
from trainer_core.session import Session
from trainer_core.train.evaluate import Answers, answer_quality, answer_tokens

_SAMPLES = 2  # texts per occasion where the user names no prompts
_LONGEST_ANSWER = 128


class Writer:
    """Writes with the model in training, from generators of its own."""

    def __init__(self, model: Decoder, prepared: Prepared, config: Config, session: Session) -> None:
        self._model, self._prepared, self._config, self._session = model, prepared, config, session
        self._codec = Codec.load(prepared.tokenizer)
        self._chat = prepared.task == "sft"
        self._examples = prepared.held_out_examples(config.eval_examples) if self._chat else []
        self._texts = [] if self._chat else prepared.held_out_beginnings(_SAMPLES)

    def companions(self) -> dict[str, bytes]:
        """The small files that make a checkpoint a model folder which other programs load."""
        codec, limit = self._codec, self._config.max_seq_len
        end_id = codec.end_of_turn if self._chat else codec.end_of_text
        model = hugging_face.to_dict(self._model.config, end_id, codec.pad)
        return {
            "config.json": json.dumps(model, indent=1).encode("utf-8"),
            "tokenizer.json": self._prepared.tokenizer.read_bytes(),
            "tokenizer_config.json": codec.config(self._prepared.task, limit),
        }

    def write_samples(self, step: int) -> None:
        """Texts from the user's prompts, or from held-out data."""
        prompts: list[tuple[str, str | None]] = [(prompt, None) for prompt in self._config.sample_prompts]
        prompts = prompts or [(prompt, answer) for prompt, answer in self._examples[:_SAMPLES]]
        prompts = prompts or [(text, None) for text in self._texts]
        for number, (prompt, expected) in enumerate(prompts):
            self.write_one(step, prompt, self._config.sample_tokens, expected, number)

    def write_one(self, step: int, prompt: str, max_tokens: int, expected: str | None = None, number: int = 0) -> None:
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
        finally:
            self._model.train()
        self._session.emit(protocol.Sample(step=step, prompt=prompt, text="".join(pieces), expected=expected))

    def answer_held_out(self) -> Answers | None:
        """Answers to held-out prompts; None where no prompt leaves room for an answer."""
        prompts = [self._codec.encode_prompt(prompt) for prompt, _ in self._examples]
        fitting = [at for at, prompt in enumerate(prompts) if len(prompt) < self._config.max_seq_len]
        if not fitting:
            return None
        tokens = answer_tokens(
            self._model, [prompts[at] for at in fitting], _LONGEST_ANSWER, self._codec.ends, self._session
        )
        texts = [self._codec.decode(answer) for answer in tokens]
        return answer_quality(texts, [self._examples[at][1] for at in fitting])
