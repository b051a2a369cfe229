"""A run that begins with a base model: its weights, architecture, tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.core.test_model_template import conversations_file
from tests.core.trainer_process import TrainerResult, reached_step, read_until, run, start, text_file
from tests.unit.model_folders import model_folder
from trainer_core import protocol
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.generation import generate
from trainer_core.messages import ExitCode

# fmt: off
SHORT = (
    "--max-seq-len", "128", "--batch-size", "4", "--max-steps", "6", "--warmup-steps", "2", "--learning-rate", "3e-3",
    "--log-steps", "1", "--eval-steps", "3", "--eval-batches", "2", "--sample-steps", "0", "--save-steps", "3",
    "--cpu-threads", "1", "--device", "cpu", "--restarts", "0", "--compile", "off",
)
# fmt: on
ARCHITECTURES = {
    "llama3": ("LlamaConfig", {"rope_theta": 500_000.0}),
    "qwen2.5": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma": ("Gemma3TextConfig", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16}),
}


def base_folder(folder: Path, family: str = "qwen3", spare_rows: int = 30, **changed: Any) -> Path:
    """A small random model as transformers saves it, with the family's tokenizer and chat template, and more rows than
    tokens. `changed`: see `model_folder`."""
    transformers = pytest.importorskip("transformers")
    model_folder(folder, family, **changed)
    name, values = ARCHITECTURES[family]
    torch.manual_seed(0)
    config = getattr(transformers, name)(
        vocab_size=Codec.load(folder / "tokenizer.json").vocab_size + spare_rows,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        **values,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def fine_tune(home: Path, base: Path | str, data: Path, name: str, *arguments: str) -> TrainerResult:
    flags = ("--base-model", str(base), "--data", str(data), "--run-dir", str(home / "runs" / name))
    return run(home, "train", *SHORT, *flags, *arguments)


def checkpoint_at(home: Path, name: str, step: int) -> Path:
    return home / "runs" / name / "checkpoints" / f"step-{step:08}"


@pytest.mark.parametrize("family", list(ARCHITECTURES))
def test_transformers_loads_a_fine_tuned_model_of_each_family(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    base, name = base_folder(tmp_path / "模型 base", family), "run"
    result = fine_tune(tmp_path, base, conversations_file(tmp_path), name, "--learning-rate", "1e-30")
    assert result.code == 0, result.stderr
    checkpoint = checkpoint_at(tmp_path, name, 6)
    before, after = load_file(base / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    assert before.keys() == after.keys()
    for key, weight in before.items():  # with such a learning rate
        torch.testing.assert_close(after[key], weight, rtol=0, atol=1e-20)
    exported = run(tmp_path, "export", name, str(tmp_path / "exported"))
    assert exported.code == 0, exported.stderr
    ids = torch.arange(40).unsqueeze(0)
    models = [transformers.AutoModelForCausalLM.from_pretrained(one) for one in (base, tmp_path / "exported")]
    with torch.no_grad():
        expected, actual = (model.eval()(ids).logits for model in models)
    torch.testing.assert_close(actual, expected)
    chat = [{"role": "user", "content": "Sure?"}]
    prompts = [
        transformers.AutoTokenizer.from_pretrained(one).apply_chat_template(chat, tokenize=False)
        for one in (base, tmp_path / "exported")
    ]
    assert prompts[0] == prompts[1]


def test_a_run_continues_from_another_run_with_other_data(tmp_path: Path) -> None:
    first = fine_tune(tmp_path, base_folder(tmp_path / "base"), conversations_file(tmp_path), "first")
    assert first.code == 0, first.stderr
    (tmp_path / "other").mkdir()
    second = fine_tune(tmp_path, "first", text_file(tmp_path / "other"), "second", "--learning-rate", "1e-30")
    assert second.code == 0, second.stderr
    first_weights, second_weights = (
        load_file(checkpoint_at(tmp_path, name, 6) / "model.safetensors") for name in ("first", "second")
    )
    assert all(torch.equal(second_weights[key], weight) for key, weight in first_weights.items())
    written = yaml.safe_load((tmp_path / "runs" / "second" / "config.yaml").read_text(encoding="utf-8"))
    assert (written["base_model"], written["hidden_dim"]) == (str(checkpoint_at(tmp_path, "first", 6)), 48)


def test_a_fine_tuned_run_resumes_exactly(tmp_path: Path) -> None:
    base, data = base_folder(tmp_path / "base"), conversations_file(tmp_path)
    assert fine_tune(tmp_path, base, data, "whole").code == 0
    assert fine_tune(tmp_path, base, data, "parts").code == 0
    shutil.rmtree(checkpoint_at(tmp_path, "parts", 6))
    resumed = run(tmp_path, "train", "--resume", str(tmp_path / "runs" / "parts"))
    assert resumed.code == 0, resumed.stderr
    assert list(resumed.losses) == [4, 5, 6]
    whole, parts = (load_file(checkpoint_at(tmp_path, name, 6) / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(parts[key], weight) for key, weight in whole.items())


def test_peft_and_transformers_compute_the_logits_of_a_lora_run(tmp_path: Path) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    base = base_folder(tmp_path / "模型 base")
    result = fine_tune(tmp_path, base, conversations_file(tmp_path), "run", "--method", "lora")
    assert result.code == 0, result.stderr
    (ready,) = result.events_of(protocol.Ready)
    assert 0 < ready.trainable_parameters < ready.parameters / 2
    checkpoint = checkpoint_at(tmp_path, "run", 6)
    assert not (checkpoint / "model.safetensors").exists()
    assert run(tmp_path, "export", "run", str(tmp_path / "exported")).code == 0
    load = transformers.AutoModelForCausalLM.from_pretrained
    with_adapter = peft.PeftModel.from_pretrained(load(base), checkpoint)
    ids = torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        before, expected, exported = (
            model.eval()(ids).logits for model in (load(base), with_adapter, load(tmp_path / "exported"))
        )
    ours, _, _ = generate.load_model(checkpoint, torch.device("cpu"))
    with torch.no_grad():
        actual = ours(ids)
    assert (expected - before).abs().max() > 1e-3
    torch.testing.assert_close(exported, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_lora_run_resumes_exactly_after_a_kill_and_only_with_its_base(tmp_path: Path) -> None:
    base, data = base_folder(tmp_path / "base"), conversations_file(tmp_path)
    options = ("--method", "lora", "--lora-dropout", "0.1", "--max-steps", "12")
    assert fine_tune(tmp_path, base, data, "whole", *options).code == 0
    flags = ("--base-model", str(base), "--data", str(data), "--run-dir", str(tmp_path / "runs" / "killed"))
    process = start(tmp_path, "train", *SHORT, *flags, *options)
    read_until(process, reached_step(7))
    process.kill()
    process.communicate()
    shutil.copytree(tmp_path / "runs" / "killed", tmp_path / "runs" / "moved")
    resumed = run(tmp_path, "train", "--resume", str(tmp_path / "runs" / "killed"))
    assert resumed.code == 0, resumed.stderr
    assert (resumed.events_of(protocol.Hello)[0].resumed_from_step or 0) >= 3
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        files = [checkpoint_at(tmp_path, one, 12) / name for one in ("whole", "killed")]
        assert files[0].read_bytes() == files[1].read_bytes()
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    refused = run(tmp_path, "train", "--resume", str(tmp_path / "runs" / "moved"))
    assert (refused.error.code, refused.code) == ("checkpoint.other_base", ExitCode.USAGE)


def test_lora_without_a_base_model_is_refused(tmp_path: Path) -> None:
    result = run(tmp_path, "train", *SHORT, "--method", "lora", "--data", str(text_file(tmp_path)))
    assert (result.error.code, result.code) == ("config.lora_without_base", ExitCode.USAGE)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"--max-seq-len": "1024"}, "model.too_few_positions"),
        ({"--tokenizer": "other"}, "model.tokenizer_given"),
        ({"--base-model": "nowhere"}, "base_model.not_found"),
    ],
)
def test_a_base_model_that_cannot_be_used_is_refused(tmp_path: Path, changes: dict[str, str], code: str) -> None:
    base = base_folder(tmp_path / "base")
    shutil.copytree(base, tmp_path / "other")
    arguments = [part for name, value in changes.items() for part in (name, value)]
    result = fine_tune(tmp_path, base, text_file(tmp_path), "run", *arguments)
    assert (result.error.code, result.code) == (code, ExitCode.USAGE)


# --- a base model without a chat template -----------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--method", "lora", "--lora-embeddings")], ids=["full", "lora"])
def test_new_tokens_get_rows_that_are_trained_resumed_and_exported(tmp_path: Path, options: tuple[str, ...]) -> None:
    transformers = pytest.importorskip("transformers")
    base = base_folder(tmp_path / "base", "llama3", spare_rows=0, chat_template=None)
    result = fine_tune(tmp_path, base, conversations_file(tmp_path), "run", *options)
    assert result.code == 0, result.stderr
    before = load_file(base / "model.safetensors")["lm_head.weight"]
    assert run(tmp_path, "export", "run", str(tmp_path / "first")).code == 0
    tokens = len(before) + 2  # those of ChatML
    config = json.loads((tmp_path / "first" / "config.json").read_text(encoding="utf-8"))
    assert (config["vocab_size"], config["used_vocab_size"]) == (-(-tokens // 64) * 64, tokens)
    shutil.rmtree(checkpoint_at(tmp_path, "run", 6))
    resumed = run(tmp_path, "train", "--resume", str(tmp_path / "runs" / "run"))
    assert resumed.code == 0, resumed.stderr
    assert run(tmp_path, "export", "run", str(tmp_path / "second")).code == 0
    files = [tmp_path / name / "model.safetensors" for name in ("first", "second")]
    assert files[0].read_bytes() == files[1].read_bytes()
    after = load_file(files[0])["lm_head.weight"]
    assert ((after[len(before) : tokens] - before.mean(0)).abs().amax(1) > 1e-4).all()
    ids = torch.arange(tokens - 40, tokens).unsqueeze(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    ours, codec, _ = generate.load_model(checkpoint_at(tmp_path, "run", 6), torch.device("cpu"))
    with torch.no_grad():
        expected = ours(ids)
        torch.testing.assert_close(model.eval()(ids).logits, expected, rtol=1e-4, atol=1e-5)
    if options:
        resized = transformers.AutoModelForCausalLM.from_pretrained(base)
        resized.resize_token_embeddings(config["vocab_size"])
        with_adapter = pytest.importorskip("peft").PeftModel.from_pretrained(resized, checkpoint_at(tmp_path, "run", 6))
        with torch.no_grad():
            torch.testing.assert_close(with_adapter.eval()(ids).logits, expected, rtol=1e-4, atol=1e-5)
    chat = [{"role": "user", "content": "Sure?"}]
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "first")
    prompt = reference.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert prompt == codec.encode_prompt("Sure?")
    assert set(range(len(before), tokens)) <= set(prompt)


def test_new_tokens_use_spare_rows_first(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", "llama3", chat_template=None)
    result = fine_tune(tmp_path, base, conversations_file(tmp_path), "run", "--learning-rate", "1e-30")
    assert result.code == 0, result.stderr
    files = (base, checkpoint_at(tmp_path, "run", 6))
    before, after = (load_file(one / "model.safetensors")["lm_head.weight"] for one in files)
    new = len(before) - 30
    torch.testing.assert_close(after[:new], before[:new], rtol=0, atol=1e-20)
    torch.testing.assert_close(after[new : new + 2], before.mean(0).expand(2, -1))
    torch.testing.assert_close(after[new + 2 :], before[new + 2 :], rtol=0, atol=1e-20)


def test_lora_without_embeddings_is_refused_for_new_tokens_in_chats_alone(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", "llama3", spare_rows=0, chat_template=None)
    result = fine_tune(tmp_path, base, conversations_file(tmp_path), "chats", "--method", "lora")
    assert (result.error.code, result.code) == ("model.new_tokens", ExitCode.USAGE)
    assert result.error.params["tokens"] == "<|im_start|>, <|im_end|>"
    result = fine_tune(tmp_path, base, text_file(tmp_path), "text", "--method", "lora")
    assert result.code == 0, result.stderr
    adapted = run(tmp_path, "export", "text", str(tmp_path / "exported"))
    assert adapted.code == 0, adapted.stderr


def test_the_check_measures_the_base_model(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    arguments = (*SHORT, "--base-model", str(base), "--data", str(conversations_file(tmp_path)))
    result = run(tmp_path, "check", *arguments, "--output", "json")
    assert result.code == 0, result.stderr
    (report,) = result.events_of(protocol.CheckReport)
    weights = load_file(base / "model.safetensors")
    assert report.parameters == sum(weight.numel() for weight in weights.values())
