"""`export`: a folder with which transformers computes the same logits, written completely or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.trainer_process import TINY, TrainerResult, environment, run, text_file
from tests.unit.model_folders import model_folder
from trainer_core import protocol
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.export import command, hugging_face, target_folder, usage
from trainer_core.export.job import Quantization
from trainer_core.export.model_card import model_card
from trainer_core.generation import generate
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import NullReporter, StopRequested
from trainer_core.runs import checkpoint_dir
from trainer_core.system import files

SHORT = (*TINY, "--max-steps", "4", "--eval-steps", "2", "--save-steps", "2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a run called 甲 run."""
    home = tmp_path_factory.mktemp("主 home")
    result = run(home, "train", *SHORT, "--data", str(text_file(home)), "--run-dir", str(home / "runs" / "甲 run"))
    assert result.code == 0, result.stderr
    return home


def newest(home: Path) -> Path:
    return checkpoint_dir.list_checkpoints(home / "runs" / "甲 run" / "checkpoints")[-1]


def export(home: Path, *arguments: str) -> TrainerResult:
    return run(home, "export", "--no-verify", *arguments)


def test_transformers_computes_the_same_logits_and_ids(trained: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    target = tmp_path / "模型 out"
    assert export(trained, "甲 run", str(target)).code == 0
    reference = transformers.AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager").eval()
    model, codec, _ = generate.load_model(newest(trained), torch.device("cpu"))
    text = "Line 7: 7 plus 8 is 15. 第7行。\n"
    ids = transformers.AutoTokenizer.from_pretrained(target)(text, add_special_tokens=False)["input_ids"]
    assert ids == codec.encode(text)
    with torch.no_grad():
        tokens = torch.tensor([ids])
        torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=1e-4, atol=1e-5)
    generated = reference.generate(tokens, max_new_tokens=8)
    assert generated.max() < model.config.n_tokens  # no padding token
    assert set(reference.generation_config.eos_token_id) == codec.stop_token_ids


@pytest.mark.parametrize(("quantization", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_weights_are_rounded_to_the_requested_dtype(
    trained: Path, tmp_path: Path, quantization: Quantization, dtype: torch.dtype
) -> None:
    exported = command.export(newest(trained), tmp_path / "out", NullReporter(), quantization=quantization)
    exact, rounded = (load_file(folder / "model.safetensors") for folder in (newest(trained), exported.folder))
    assert all(torch.equal(rounded[name], weight.to(dtype)) for name, weight in exact.items())
    config = json.loads((exported.folder / "config.json").read_bytes())
    assert f"torch.{config['torch_dtype']}" == str(dtype)


def test_a_value_that_f16_cannot_hold_is_refused(trained: Path, tmp_path: Path) -> None:
    checkpoint = copy_checkpoint(newest(trained), tmp_path / "run")
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.norm.weight"][3] = 70_000.0
    save_file(weights, checkpoint / "model.safetensors")
    checkpoint_dir.write_manifest(checkpoint, 4, "final", None)
    with pytest.raises(TraindeckError) as error:
        command.export(checkpoint, tmp_path / "out", NullReporter(), quantization="f16")
    assert (error.value.code, error.value.params) == ("export.too_large", {"name": "model.norm.weight"})
    assert not (tmp_path / "out").exists()


def test_a_quantization_without_the_format_gguf_is_refused(trained: Path, tmp_path: Path) -> None:
    result = export(trained, "latest", str(tmp_path / "out"), "--quantization", "q8_0")
    assert (result.code, result.error.code) == (2, "export.quantization")


def test_an_adapter_of_a_run_that_trained_all_weights_is_refused(trained: Path, tmp_path: Path) -> None:
    for form in ("peft", "gguf-adapter"):
        result = export(trained, "latest", str(tmp_path / "out"), "--format", form)
        assert (result.code, result.error.code) == (2, "export.not_adapter")


def test_the_terminal_shows_how_to_use_a_gguf_file(trained: Path, tmp_path: Path) -> None:
    result = export(trained, "latest", str(tmp_path / "my model"), "--format", "gguf", "--quantization", "f32")
    assert result.code == 0, result.stderr
    shown = result.stderr.replace("'", "").replace('"', "")
    assert f"llama-cli -m {tmp_path / 'my model' / 'my-model-F32.gguf'}" in shown
    assert f"ollama create my-model -f {tmp_path / 'my model' / 'Modelfile'}" in shown
    assert "--user-repo traindeck/my-model" in shown


def test_the_folder_has_all_files_and_a_model_card(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    assert export(trained, str(newest(trained)), str(target), "--language", "en").code == 0
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    card = (target / "README.md").read_text(encoding="utf-8")
    info = checkpoint_dir.read_info(newest(trained))
    assert info is not None
    assert "| Data | 文本 text.txt |" in card
    assert "| Steps | 4 |" in card
    assert "| Learning rate |" in card
    assert "| Tokens per epoch |" in card
    assert f"| Eval loss of this checkpoint | {info.eval_loss:.4f} |" in card
    assert str(trained) not in card  # no private paths
    chinese = tmp_path / "中文"
    assert export(trained, "latest", str(chinese), "--language", "zh").code == 0
    assert "| 步数 | 4 |" in (chinese / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("objective", "shown"),
    [
        ("grpo", ["Perplexity of this checkpoint | 3.44", "Mean reward on held-out prompts | 1.8500"]),
        ("dpo", ["Reward accuracy on held-out pairs | 85.0%"]),
        ("likelihood", ["Perplexity of this checkpoint | 3.44"]),
    ],
)
def test_the_model_card_shows_what_the_run_was_judged_by(tmp_path: Path, objective: str, shown: list[str]) -> None:
    checkpoint = tmp_path / "checkpoints" / "step-00000100"
    checkpoint.mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(f"objective: {objective}\n", encoding="utf-8")
    (checkpoint / "config.json").write_text("{}", encoding="utf-8")
    reward = {"grpo": 1.85, "dpo": 0.85}.get(objective)
    checkpoint_dir.write_manifest(checkpoint, 100, "final", 1.2345, eval_reward=reward)
    lines = model_card(checkpoint, "model", "en", 1000, "transformers").splitlines()
    assert [line.strip("| ") for line in lines if "erplex" in line or "eward" in line] == shown


def test_other_files_of_a_checkpoint_are_not_exported(trained: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(newest(trained), checkpoint)
    (checkpoint / "modeling.py").write_text("raise SystemExit", encoding="utf-8")
    checkpoint_dir.write_manifest(checkpoint, 4, "final", None)
    assert checkpoint_dir.find_problem(checkpoint) is None
    command.export(checkpoint, tmp_path / "model", NullReporter())
    exported = {path.name for path in (tmp_path / "model").iterdir()}
    assert exported == {*hugging_face.EXPORTED_FILES, "generation_config.json", "README.md"}


def test_the_chat_template_is_exported(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    data = tmp_path / "chats.jsonl"
    rows = [{"prompt": f"What is {n} plus 1?", "response": f"It is {n + 1}."} for n in range(60)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = (*SHORT, "--max-seq-len", "128", "--tokenizer", str(model_folder(tmp_path / "given", "llama3")))
    result = run(tmp_path, "train", *flags, "--data", str(data), "--run-dir", str(tmp_path / "run"))
    assert result.code == 0, result.stderr
    assert export(tmp_path, str(tmp_path / "run"), str(tmp_path / "out")).code == 0
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    chat = [{"role": "user", "content": "Sure?"}]
    prompt = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert prompt == Codec.load(tmp_path / "run" / "tokenizer.json").encode_prompt("Sure?")


def test_a_folder_with_files_is_rejected_and_unchanged(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    result = export(trained, "latest", str(tmp_path))
    assert (result.code, result.error.code) == (2, "export.not_empty")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_root_of_a_drive_is_rejected(trained: Path, tmp_path: Path) -> None:
    for root in (tmp_path.anchor, f"{tmp_path.anchor}."):
        result = export(trained, "latest", root)
        assert (result.code, result.error.code) == (2, "export.drive")
        assert result.error.params == {"path": tmp_path.anchor, "example": str(Path(tmp_path.anchor, "model"))}


def test_the_current_folder_is_rejected_and_not_replaced(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path):
        with pytest.raises(TraindeckError) as error:
            command.export(newest(trained), folder, NullReporter())
        assert error.value.code == "export.current_folder"
        assert error.value.params == {"path": str(tmp_path), "example": str(tmp_path / "model")}
    command.export(newest(trained), Path("model"), NullReporter())
    assert [path.name for path in Path().iterdir()] == ["model"]


@pytest.mark.parametrize("name", ["con", "NUL.txt", "a:b", "what?", "com1", "a<b>"])
def test_a_name_invalid_on_windows_is_rejected(name: str) -> None:
    with pytest.raises(TraindeckError) as error:
        target_folder.resolve_target(Path("out", name), windows=True)
    assert error.value.code == "export.bad_name"
    suggested = str(error.value.params["other"])
    assert target_folder.resolve_target(Path("out", suggested), windows=True).name == suggested


def test_long_and_non_latin_names_are_accepted() -> None:
    for name in ("模型 v1.2", "x" * 200, "model", "my.model"):
        assert target_folder.resolve_target(Path("out", name), windows=True) == Path.cwd() / "out" / name


def test_a_file_or_a_path_below_a_file_is_rejected(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert export(trained, "latest", str(tmp_path / "file")).error.code == "export.not_empty"
    result = export(trained, "latest", str(tmp_path / "file" / "out"))
    assert (result.code, result.error.code) == (1, "disk.not_writable")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need privileges on Windows")
def test_a_link_to_an_empty_folder_is_followed(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    result = export(trained, "latest", str(tmp_path / "link"))
    assert result.code == 0
    assert f"Exported to {tmp_path / 'real'}" in result.stderr.splitlines()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "model.safetensors").is_file()


def copy_checkpoint(checkpoint: Path, folder: Path) -> Path:
    target = folder / "checkpoints" / checkpoint.name
    target.mkdir(parents=True)
    for file in checkpoint.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def test_damaged_weights_are_rejected_and_no_files_remain(trained: Path, tmp_path: Path) -> None:
    damaged = copy_checkpoint(newest(trained), tmp_path / "run")
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (damaged / "model.safetensors").write_bytes(weights)
    result = export(trained, str(damaged), str(tmp_path / "out"))
    assert result.error.code == "checkpoint.damaged"
    assert result.error.params["reason"] == "the content of “model.safetensors” has changed"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(trained: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(trained, home)
    damaged = newest(home)
    (damaged / "model.safetensors").write_bytes(b"short")
    result = export(home, "latest", str(tmp_path / "out"))
    assert result.code == 0
    (warning,) = result.events_of(protocol.Warn)
    assert (warning.code, warning.params["path"]) == ("checkpoint.skipped", damaged.name)
    older = damaged.parent / "step-00000002" / "model.safetensors"
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == older.read_bytes()
    command = ["generate", "latest", "--prompt", "x", "--max-tokens", "1"]
    generated = subprocess.run(
        [sys.executable, "-X", "utf8", "-m", "trainer_core", *command],
        capture_output=True, env=environment(home), cwd=home, timeout=60, check=True,
    )  # fmt: skip
    assert f"The checkpoint {damaged.name} is damaged" in generated.stderr.decode("utf-8")


def test_a_stop_leaves_no_files(trained: Path, tmp_path: Path) -> None:
    class StopAtFirstPoll(NullReporter):
        def poll(self) -> None:
            raise StopRequested("stopped")

    with pytest.raises(StopRequested):
        command.export(newest(trained), tmp_path / "out", StopAtFirstPoll())
    assert list(tmp_path.iterdir()) == []


def test_a_second_export_to_the_same_folder_is_rejected_and_the_first_one_finishes(
    trained: Path, tmp_path: Path
) -> None:
    target = tmp_path / "new" / "out"
    with target_folder.temporary_folder(target) as working:
        (working / "model.safetensors").write_bytes(b"first")
        result = export(trained, "latest", str(target))
        assert (result.code, result.error.code) == (2, "export.in_progress")
        assert result.error.params == {"path": str(target), "pid": str(os.getpid())}
        assert export(trained, "latest", str(tmp_path / "other")).code == 0
    assert (target / "model.safetensors").read_bytes() == b"first"
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_a_full_disk_is_reported_with_the_folder_of_the_export(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 2**20)
    for form in ("hf", "gguf"):
        with pytest.raises(TraindeckError) as error:
            command.export(newest(trained), tmp_path / "out", NullReporter(), form=form)
        assert (error.value.code, error.value.exit_code) == ("export.disk_full", ExitCode.DISK_FULL)
        assert error.value.params["path"] == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows limits the length of paths")
@pytest.mark.parametrize("name", ["名" * 83, "🙂" * 63, "x" * 255])
def test_the_longest_names_are_accepted(trained: Path, tmp_path: Path, name: str) -> None:
    exported = command.export(newest(trained), tmp_path / name, NullReporter(), form="gguf")
    assert exported.gguf_file.name.startswith(name[:40])
    assert exported.gguf_file.name.endswith("-Q8_0.gguf")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("我的 R&D 'x'", "我的-R-D-x-Q8_0.gguf"),
        ("v1.2+b_c (2)", "v1.2+b_c-2-Q8_0.gguf"),
        ("-m $HOME", "m-HOME-Q8_0.gguf"),
        ("模型“甲”", "模型-甲-Q8_0.gguf"),
        ("''", "model-Q8_0.gguf"),
    ],
)
def test_the_command_of_a_model_card_needs_no_quotes(trained: Path, tmp_path: Path, name: str, file: str) -> None:
    exported = command.export(newest(trained), tmp_path / name, NullReporter(), form="gguf")
    assert exported.gguf_file.name == file
    assert f"\nllama-cli -m {file}\n" in (tmp_path / name / "README.md").read_text(encoding="utf-8")
    assert (tmp_path / name / "Modelfile").read_text(encoding="utf-8").startswith(f"FROM ./{file}\n")


def test_names_that_ollama_does_not_accept_stay_different() -> None:
    names = ["我的模型", "另一个模型", "model", "R&D", "R D", "我的-step-00000120-q8_0", "你的-step-00000120-q8_0"]
    found = [usage.ollama_name(name) for name in names]
    assert len(set(found)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name) for name in found)
    assert [usage.ollama_name(name) for name in ("My model_v1.2", "a-b")] == ["my-model_v1.2", "a-b"]


def test_files_of_a_killed_export_are_replaced(trained: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.exporting").mkdir()
    (tmp_path / ".out.exporting" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".out.lock").write_text(json.dumps({"pid": os.getpid(), "started": 0.0}), encoding="utf-8")
    command.export(newest(trained), tmp_path / "out", NullReporter())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.name == "nt" or (hasattr(os, "geteuid") and os.geteuid() == 0), reason="root writes anywhere")
def test_a_folder_without_write_permission_is_reported(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(TraindeckError) as error:
        command.export(newest(trained), tmp_path / "locked" / "out", NullReporter())
    assert error.value.code == "disk.not_writable"
