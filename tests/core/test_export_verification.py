"""Verification of an export: another program computes the same as the checkpoint, or a check names the difference."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from safetensors.torch import load_file, save_file

from tests.core.model_families import HF_CONFIGS
from tests.core.random_checkpoint import write_checkpoint
from tests.core.trainer_process import TINY, run
from tests.hub_upload_server import serve_uploads
from tests.unit.model_folders import model_folder
from trainer_core import protocol
from trainer_core.export import command
from trainer_core.export.job import ExportRequest, Quantization
from trainer_core.export.verification.verify import RESULT_FILE, verify
from trainer_core.progress import NullReporter, Reporter, StopRequested
from trainer_core.runs import checkpoint_dir

CHAT = (*TINY, "--max-seq-len", "128", "--max-steps", "12", "--dropout", "0")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a trained model for conversations, whose tokenizer is that of Qwen2: run, with its export `good`."""
    pytest.importorskip("transformers")
    home = tmp_path_factory.mktemp("主 home")
    rows = [{"prompt": f"What is {n} plus 1?", "response": f"It is {n + 1}."} for n in range(120)]
    (home / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = ("--data", str(home / "chats.jsonl"), "--tokenizer", str(model_folder(home / "given", "qwen2.5")))
    result = run(home, "train", *CHAT, *data, "--run-dir", str(home / "run"))
    assert result.code == 0, result.stderr
    command.export(checkpoint_of(home), home / "good", NullReporter())
    return home


def checkpoint_of(home: Path) -> Path:
    return checkpoint_dir.list_checkpoints(home / "run" / "checkpoints")[-1]


def verify_folder(home: Path, folder: Path) -> protocol.Verification:
    return verify(job_of(home, folder), "hf")


def job_of(home: Path, folder: Path, reporter: Reporter | None = None) -> ExportRequest:
    return ExportRequest(checkpoint_of(home), folder, folder.name, None, "en", reporter or NullReporter())


def failed_checks(result: protocol.Verification) -> dict[str, protocol.VerificationCheck]:
    return {check.name: check for check in result.checks if not check.passed}


def test_an_export_is_verified_and_the_result_is_in_the_folder_and_in_the_events(home: Path) -> None:
    result = run(home, "export", "run", str(home / "模型 out"), "--language", "en")
    assert result.code == 0, result.stderr
    (event,) = result.events_of(protocol.Verification)
    assert event.passed
    assert [check.name for check in event.checks] == [
        "tokens", "vocabulary", "template", "greedy", "probabilities", "end_token",
    ]  # fmt: skip
    assert [check.compared for check in event.checks[:4]] == [51, event.checks[1].equal, 4, 20]
    assert event.expected_prompt == event.found_prompt
    assert "床前明月光" in event.expected_prompt
    stored = protocol.decode_event((home / "模型 out" / RESULT_FILE).read_bytes())
    assert isinstance(stored, protocol.Verification)
    assert stored.checks == event.checks
    card = (home / "模型 out" / "README.md").read_text(encoding="utf-8")
    assert "| equal | Chat template | Conversations: 4 of 4, byte for byte |" in card


def test_all_files_of_a_verified_export_are_pushed(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    folder = home / "pushed"
    assert run(home, "export", "run", str(folder), "--language", "zh").code == 0
    with serve_uploads() as hub:
        flags = ("--yes", "--hub-endpoint", hub.endpoint, "--hub-send-token")
        result = run(home, "push", str(folder), "team/model", *flags)
        assert result.code == 0, result.stderr
        assert hub.models == {"team/model": {path.name: path.read_bytes() for path in folder.iterdir()}}


def edit_json(path: Path, edit: Callable[[dict[str, object]], None]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    edit(document)
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def break_template(folder: Path) -> None:
    def edit(config: dict[str, object]) -> None:
        config["chat_template"] = str(config["chat_template"]).replace("<|im_end|>", "<|im_end|> ")

    edit_json(folder / "tokenizer_config.json", edit)


def swap_tokens(folder: Path) -> None:
    def edit(tokenizer: dict[str, object]) -> None:
        vocabulary = tokenizer["model"]["vocab"]  # type: ignore[index]
        first, second = [word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2][:2]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    edit_json(folder / "tokenizer.json", edit)


def change_row(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"][3] += 0.1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def lose_end_token(folder: Path) -> None:
    edit_json(folder / "generation_config.json", lambda config: config.update(eos_token_id=0))


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (break_template, "template"),
        (swap_tokens, "vocabulary"),
        (change_row, "probabilities"),
        (lose_end_token, "end_token"),
    ],
)
def test_a_broken_export_fails_and_the_check_is_named(
    home: Path, tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(home / "good", folder)
    damage(folder)
    result = verify_folder(home, folder)
    assert result.passed is False
    failed = failed_checks(result)
    assert name in failed
    assert failed[name].place
    if name != "end_token":
        assert failed[name].expected != failed[name].found
    if name == "template":
        assert result.expected_prompt != result.found_prompt


# --- GGUF ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gguf_folder(home: Path) -> Path:
    pytest.importorskip("xllamacpp")
    command.export(checkpoint_of(home), home / "gguf", NullReporter(), form="gguf", quantization="f32")
    return home / "gguf"


def verify_gguf(home: Path, folder: Path) -> protocol.Verification:
    return verify(ExportRequest(checkpoint_of(home), folder, folder.name, "f32", "en", NullReporter()), "gguf")


def as_string(text: str) -> bytes:
    """A string as in a GGUF file."""
    return len(text.encode("utf-8")).to_bytes(8, "little") + text.encode("utf-8")


def replace_bytes(path: Path, *pairs: tuple[bytes, bytes]) -> None:
    """Replace each first occurrence by as many bytes."""
    content = path.read_bytes()
    for old, new in pairs:
        assert len(old) == len(new)
        assert old in content
        content = content.replace(old, new, 1)
    path.write_bytes(content)


def break_gguf_template(path: Path) -> None:
    replace_bytes(path, (b"<|im_start|>assistant\\n' }}", b"<|im_start|>Assistant\\n' }}"))


def swap_gguf_tokens(path: Path) -> None:
    fields = gguf.GGUFReader(path).get_field("tokenizer.ggml.tokens")
    assert fields is not None
    words = [word for word in fields.contents() if word.isascii() and word.isalpha() and len(word) == 3]
    first, second = as_string(words[0]), as_string(words[1])
    placeholder = first[:8] + b"???"
    replace_bytes(path, (first, placeholder), (second, first), (placeholder, second))


def split_digits_otherwise(path: Path) -> None:
    replace_bytes(path, (as_string("qwen2"), as_string("gpt-2")))


def edit_tensor(path: Path, name: str, edit: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
    (tensor,) = (one for one in gguf.GGUFReader(path, "r+").tensors if one.name == name)
    tensor.data[:] = edit(tensor.data.copy())


def forget_the_order_of_rotated_rows(path: Path) -> None:
    """Rows of q in the order of Hugging Face, two heads of 16."""
    edit_tensor(path, "blk.0.attn_q.weight", lambda q: q.reshape(2, 8, 2, -1).swapaxes(1, 2).reshape(q.shape))


def change_gguf_row(path: Path) -> None:
    edit_tensor(path, "blk.1.ffn_down.weight", lambda weight: weight + 0.1 * (np.arange(len(weight)) == 3)[:, None])


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (break_gguf_template, "template"),
        (swap_gguf_tokens, "vocabulary"),
        (split_digits_otherwise, "tokens"),
        (forget_the_order_of_rotated_rows, "probabilities"),
        (change_gguf_row, "probabilities"),
    ],
)
def test_a_broken_gguf_file_fails_and_the_check_is_named(
    home: Path, gguf_folder: Path, tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    shutil.copytree(gguf_folder, tmp_path / "broken")
    (path,) = (tmp_path / "broken").glob("*.gguf")
    damage(path)
    result = verify_gguf(home, tmp_path / "broken")
    assert result.passed is False
    check = failed_checks(result)[name]
    assert check.place
    assert check.expected != check.found


@pytest.mark.parametrize("quantization", ["f32", "bf16", "q8_0"])
def test_a_gguf_file_of_a_trained_model_is_verified(
    home: Path, tmp_path: Path, quantization: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.setenv("TRAINDECK_HOME", str(home))  # has the prepared data of the run
    target = tmp_path / "模型 out"
    command.export(checkpoint_of(home), target, NullReporter(), "en", "gguf", quantization, verifies=True)
    result = protocol.decode_event((target / RESULT_FILE).read_bytes())
    assert isinstance(result, protocol.Verification)
    assert result.passed, result
    assert result.limitations == ["non_nfc"]
    by_name = {check.name: check for check in result.checks}
    assert ("perplexity" in by_name) == (quantization == "q8_0")
    assert ("probabilities" in by_name) == (quantization != "q8_0")


@pytest.mark.parametrize("family", ["llama with grouped queries", "mistral", "qwen2", "qwen3", "gemma 3"])
def test_a_gguf_file_of_each_family_is_verified(tmp_path: Path, family: str) -> None:
    pytest.importorskip("xllamacpp")
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    checkpoint.parent.mkdir(parents=True)
    write_checkpoint(checkpoint, HF_CONFIGS[family])
    checkpoint_dir.write_manifest(checkpoint, 1, "final", None)
    command.export(checkpoint, tmp_path / "out", NullReporter(), "en", "gguf", "f32", verifies=True)
    result = protocol.decode_event((tmp_path / "out" / RESULT_FILE).read_bytes())
    assert isinstance(result, protocol.Verification)
    assert result.passed, result


# --- failures, a missing program, and a stop ----------------------------------------------------------------------


def test_a_file_that_the_program_cannot_open_fails_with_the_reason(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "good", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"\0" * 64)
    result = verify_folder(home, tmp_path / "broken")
    assert (result.passed, result.reason) == (False, "export.program_failed")
    assert result.params["program"] == "transformers"
    assert result.params["reason"]


def test_without_the_program_the_export_is_kept_and_not_verified(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "good", tmp_path / "kept")
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = verify_folder(home, tmp_path / "kept")
    assert (result.passed, result.reason, result.params) == (
        None,
        "export.no_program",
        {"package": "transformers", "python": sys.executable},
    )
    assert "Not verified. The package transformers is not installed." in (tmp_path / "kept" / "README.md").read_text()


def test_a_stop_ends_the_verification_and_leaves_no_process(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "good", tmp_path / "out")

    class Stopping(NullReporter):
        """Stops once transformers is starting."""

        def progress(self, phase: protocol.PhaseName, done: float, total: float | None, unit: object) -> None:
            self.stopping = done >= 20

        def poll(self) -> None:
            if getattr(self, "stopping", False):
                raise StopRequested

    with pytest.raises(StopRequested):
        verify(job_of(home, tmp_path / "out", Stopping()), "hf")
    assert not (tmp_path / "out" / RESULT_FILE).exists()
