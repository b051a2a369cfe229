"""Training on conversations with a model's own tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.trainer import TINY, run
from tests.unit.model_folders import model_folder
from trainer_core import protocol
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.data.tokenizing.tokenizer_files import read_task

LONGER = (*TINY, "--max-seq-len", "128", "--max-steps", "6", "--eval-steps", "6", "--validation-fraction", "0.1")


def chats_file(folder: Path) -> Path:
    """Conversations of two questions; the last one does not fit templates with alternating roles."""
    path = folder / "chats.jsonl"
    rows = [
        [("user", f"What is {n} plus 1?"), ("assistant", f"It is {n + 1}."), ("user", "Sure?"), ("assistant", "Yes.")]
        for n in range(120)
    ]
    rows.append([("user", "One"), ("user", "Two"), ("assistant", "Three")])
    chats = [{"messages": [{"role": role, "content": content} for role, content in row]} for row in rows]
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    return path


@pytest.mark.parametrize("family", ["mistral", "llama3"])
def test_transformers_renders_the_same_prompt_from_a_checkpoint(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    given = model_folder(tmp_path / "given", family)
    data = ("--data", str(chats_file(tmp_path)), "--tokenizer", str(given))
    ended = run(tmp_path, "train", *LONGER, *data, "--run-dir", str(tmp_path / "run"))
    assert ended.code == 0, ended.stderr
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000006"
    assert read_task(checkpoint) == "sft"
    codec = Codec.load(checkpoint / "tokenizer.json")
    theirs = transformers.AutoTokenizer.from_pretrained(checkpoint)
    prompt = theirs.apply_chat_template(
        [{"role": "user", "content": "Sure?"}], add_generation_prompt=True, return_dict=False
    )
    assert (
        prompt == codec.encode_prompt("Sure?") == Codec.load(tmp_path / "run" / "tokenizer.json").encode_prompt("Sure?")
    )
    ends = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    assert ends == codec.end_of_turn
    (evaluated,) = ended.of(protocol.Eval)
    assert evaluated.exact_match is not None


def test_a_conversation_that_the_template_refuses_is_a_bad_row(tmp_path: Path) -> None:
    given = model_folder(tmp_path / "given", "mistral")
    data = ("--data", str(chats_file(tmp_path)), "--tokenizer", str(given), "--on-bad-row", "stop")
    ended = run(tmp_path, "prepare", *LONGER, *data)
    assert ended.code == 4
    assert "must alternate" in json.dumps(ended.error.params)
