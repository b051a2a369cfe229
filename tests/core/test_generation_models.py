"""Generation with models that are no checkpoints: folders of other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from tests.core.test_fine_tuning import base_folder as decoder_folder
from tests.core.test_transformers_models import base_folder as transformers_folder
from trainer_core import cli
from trainer_core.generation import decoding, generate
from trainer_core.generation.generate import SamplingParams
from trainer_core.messages import ExitCode, TraindeckError

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "chat"), [("qwen3", True), ("llama3 without a template", False), ("gpt2", True), ("gpt2 plain", False)]
)
def test_a_folder_of_save_pretrained_generates_as_in_transformers(tmp_path: Path, kind: str, chat: bool) -> None:
    import transformers

    folder = tmp_path / "模型 model"
    if kind.startswith("gpt2"):
        transformers_folder(folder, "gpt2", chat_tokens=chat)
    else:
        decoder_folder(folder, kind.split()[0], **({} if chat else {"chat_template": None}))
    model, codec, answers = generate.load_model(folder, CPU, for_generation=True)
    assert answers == chat
    prompt = "The quick 床前 fox"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) if chat else prompt
    ids = tokenizer(text, add_special_tokens=not chat)["input_ids"]
    assert generate.prompt_ids(codec, prompt, chat) == ids
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder)
    reference.generation_config.suppress_tokens = list(range(codec.vocab_size, model.config.vocab_size)) or None
    expected = reference.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    greedy, tokens = SamplingParams(temperature=0), expected[0, len(ids) :].tolist()
    assert list(generate.generate_tokens(model, ids, 16, greedy, frozenset())) == tokens
    completions = generate.generate_batch(model, [ids, ids[:3], ids], [16, 9, 4], frozenset(), lambda: None)
    assert [completions[0].tokens, completions[2].tokens] == [tokens, tokens[:4]]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = decoder_folder(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TraindeckError) as caught:
        generate.load_model(folder, CPU)
    assert (caught.value.code, caught.value.params["file"]) == ("base_model.missing_file", "tokenizer.json")


def test_a_prompt_without_memory_leaves_the_other_rows_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, _, _ = generate.load_model(transformers_folder(tmp_path / "model", "gpt2"), CPU)
    batch = decoding.new_batch(model, frozenset())
    rows = [decoding.DecodingRow([1, 2, 3], 5, SamplingParams(temperature=0)) for _ in range(2)]
    batch.add(rows[:1])
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward_hidden", raise_out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            batch.add(rows[1:])
    while batch.rows:
        assert batch.rows == rows[:1]
        batch.step()
    assert len(rows[0].completion.tokens) == 5


def raise_out_of_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_model_that_does_not_fit_ends_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = decoder_folder(tmp_path / "model")

    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(generate, "load_model", fail)
    found = CliRunner().invoke(cli.commands, ["generate", str(folder), "--prompt", "Hello", "--output", "plain"])
    assert found.exit_code == ExitCode.OUT_OF_MEMORY
    assert "not enough memory" in found.output.lower()


def test_no_pass_follows_the_last_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _ = generate.load_model(decoder_folder(tmp_path / "model", "llama3"), CPU)
    passes: list[int] = []
    forward = model.forward_hidden
    monkeypatch.setattr(model, "forward_hidden", lambda ids, **options: passes.append(1) or forward(ids, **options))
    tokens = list(generate.generate_tokens(model, [1, 2, 3], 4, SamplingParams(temperature=0), frozenset()))
    assert len(tokens) == len(passes) == 4
