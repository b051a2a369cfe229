"""Training on conversations with a model's own tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, run
from tests.unit.model_folders import model_folder
from trainer_core import protocol
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.data.tokenizing.tokenizer_files import read_task

ARGUMENTS = (*TINY, "--max-seq-len", "128", "--max-steps", "6", "--eval-steps", "6", "--validation-fraction", "0.1")


def conversations_file(folder: Path) -> Path:
    """Conversations of two questions; the last one does not fit templates with alternating roles."""
    path = folder / "chats.jsonl"
    rows = [
        [("user", f"What is {n} plus 1?"), ("assistant", f"It is {n + 1}."), ("user", "Sure?"), ("assistant", "Yes.")]
        for n in range(120)
    ]
    rows.append([("user", "One"), ("user", "Two"), ("assistant", "Three")])
    conversations = [{"messages": [{"role": role, "content": content} for role, content in row]} for row in rows]
    path.write_text("".join(json.dumps(chat) + "\n" for chat in conversations), encoding="utf-8")
    return path


@pytest.mark.parametrize("family", ["mistral", "llama3"])
def test_transformers_renders_the_same_prompt_from_a_checkpoint(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    model = model_folder(tmp_path / "given", family)
    data = ("--data", str(conversations_file(tmp_path)), "--tokenizer", str(model))
    result = run(tmp_path, "train", *ARGUMENTS, *data, "--run-dir", str(tmp_path / "run"))
    assert result.code == 0, result.stderr
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000006"
    assert read_task(checkpoint) == "sft"
    codec = Codec.load(checkpoint / "tokenizer.json")
    reference = transformers.AutoTokenizer.from_pretrained(checkpoint)
    prompt = reference.apply_chat_template(
        [{"role": "user", "content": "Sure?"}], add_generation_prompt=True, return_dict=False
    )
    assert (
        prompt == codec.encode_prompt("Sure?") == Codec.load(tmp_path / "run" / "tokenizer.json").encode_prompt("Sure?")
    )
    eos_token_ids = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    assert eos_token_ids == codec.end_of_turn
    (evaluated,) = result.events_of(protocol.Eval)
    assert evaluated.exact_match is not None


def test_a_conversation_that_the_template_rejects_is_a_bad_row(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "given", "mistral")
    data = ("--data", str(conversations_file(tmp_path)), "--tokenizer", str(model), "--on-bad-row", "stop")
    result = run(tmp_path, "prepare", *ARGUMENTS, *data)
    assert result.code == 4
    assert "must alternate" in json.dumps(result.error.params)
