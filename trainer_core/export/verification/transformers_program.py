"""Opens an exported folder in transformers, with PEFT for an adapter. A child process of `verify`.

`python -m trainer_core.export.verification.transformers_program FOLDER`: FOLDER has `request.json`.
`verify` keeps the process offline.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import TemplateError

from trainer_core.export.verification.answers import Continuation, HeldOutRow, answer, exit_with_stdin, read_request
from trainer_core.runs.checkpoint_dir import ADAPTER_FILE

_FORCED: float = 1e9  # added to the logit of a token


class TransformersProgram:
    """The model of a folder in float32, in which weights of every type are exact."""

    def __init__(self, folder: str, n_tokens: int) -> None:
        loader: Any = transformers.AutoModelForCausalLM
        self.name = f"transformers {transformers.__version__}"
        if (Path(folder) / ADAPTER_FILE).is_file():
            import peft

            loader = peft.AutoPeftModelForCausalLM
            self.name += f" · peft {peft.__version__}"
        self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self._model: Any = loader.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
        self._n_tokens = n_tokens
        self._padding = [*range(n_tokens, self._model.config.vocab_size)]

    def encode(self, text: str, special: bool) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def render(self, turns: Sequence[tuple[str, str]]) -> tuple[str, list[int]] | None:
        messages = [{"role": role, "content": content} for role, content in turns]
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError:
            return None
        return text, self.encode(text, special=False)

    def continue_greedily(self, prompt: Sequence[int], max_tokens: int) -> Continuation:
        result = self._generate(prompt, max_tokens)
        tokens = result.sequences[0, len(prompt) :].tolist()
        logprobs: list[float | None] = [
            float(logits_1V[0, : self._n_tokens].log_softmax(-1)[token])
            for logits_1V, token in zip(result.logits, tokens, strict=True)
        ]
        return Continuation(tokens, logprobs)

    def stops_at(self, token: int, prompt: Sequence[int]) -> bool:
        result = self._generate(prompt, 3, sequence_bias=[[[token], _FORCED]])
        return bool(result.sequences[0, len(prompt) :].tolist() == [token])

    def losses(self, row: HeldOutRow) -> list[float | None]:
        with torch.no_grad():
            logprobs_TV = self._model(torch.tensor([row.ids])).logits[0, :, : self._n_tokens].log_softmax(-1)
        return [-float(logprobs_TV[place - 1, row.ids[place]]) for place in row.places]

    def _generate(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> Any:
        ids_1T = torch.tensor([list(prompt)])
        return self._model.generate(
            input_ids=ids_1T,
            attention_mask=torch.ones_like(ids_1T),
            max_new_tokens=max_tokens,
            do_sample=False,
            suppress_tokens=self._padding or None,
            return_dict_in_generate=True,
            output_logits=True,
            **options,
        )


def main(folder: Path) -> None:
    exit_with_stdin()
    request = read_request(folder)
    answer(request, TransformersProgram(request.model, request.n_tokens), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
