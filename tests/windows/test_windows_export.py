"""Export and chat on Windows, in both code pages and in a folder with Chinese characters."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.core.trainer_process import TINY, finish, read_until, run, send, start
from trainer_core import protocol

QUICK = ("--max-steps", "4", "--warmup-steps", "2", "--eval-steps", "0", "--sample-steps", "0", "--save-steps", "0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on Chinese questions."""
    folder = tmp_path_factory.mktemp("家 home (x)")
    rows = ({"prompt": f"{n} 加 1？", "response": f"{n + 1}。"} for n in range(200))
    pairs = folder / "问答.jsonl"
    pairs.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    trained = run(folder, "train", *TINY, *QUICK, "--data", str(pairs), "--run-dir", str(folder / "runs" / "运行"))
    assert trained.code == 0, trained.stderr
    return folder


def test_a_model_folder_is_verified_in_transformers(home: Path) -> None:
    require_verified_export(home, "hf")


@pytest.mark.in_chinese
def test_a_gguf_file_is_verified_in_llama_cpp(home: Path) -> None:
    require_verified_export(home, "gguf", "--quantization", "f32")  # without perplexity: Wine takes seconds per request


def require_verified_export(home: Path, form: str, *arguments: str) -> None:
    target = home / f"模型 {form}"
    exported = finish(start(home, "export", "运行", str(target), "--format", form, *arguments), 350)
    assert exported.code == 0, exported.stderr
    (verification,) = exported.events_of(protocol.Verification)
    assert verification.passed, verification
    assert verification.expected_prompt == verification.found_prompt != ""
    assert json.loads((target / "verification.json").read_text("utf-8"))["passed"]


def test_a_chat_answers_in_utf8(home: Path) -> None:
    process = start(home, "generate", "运行", "--control", "stdin", "--device", "cpu", stdin=subprocess.PIPE)
    turns = [protocol.Turn(role="user", content="3 加 1？")]
    send(process, protocol.Generate(id=1, turns=turns, max_tokens=16, temperature=0.0))
    events = read_until(process, lambda event: isinstance(event, protocol.GenerationDone))
    assert isinstance(events[-1], protocol.GenerationDone), events
    assert events[-1].reason in ("end", "length")
    text = "".join(event.piece for event in events if isinstance(event, protocol.GeneratedPiece))
    flags = ("--prompt", "3 加 1？", "--max-tokens", "16", "--temperature", "0", "--device", "cpu", "--output", "json")
    again = finish(start(home, "generate", "运行", *flags))
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    assert "".join(event.piece for event in again.events_of(protocol.GeneratedPiece)) == text
