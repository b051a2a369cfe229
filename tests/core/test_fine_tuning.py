"""A run that begins with a base model: its weights, architecture, tokenizer and chat template."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.core.test_model_template import conversations_file
from tests.core.trainer_process import (
    TrainerResult,
    entered_phase,
    finish,
    reached_step,
    read_until,
    run,
    send,
    start,
    text_file,
)
from tests.unit.model_folders import model_folder
from trainer_core import protocol
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.export.command import export
from trainer_core.generation import generate, model_source
from trainer_core.messages import ExitCode, TraindeckError
from trainer_core.progress import NullReporter

# fmt: off
SHORT = (
    "--max-seq-len", "128", "--batch-size", "4", "--max-steps", "6", "--warmup-steps", "2", "--learning-rate", "3e-3",
    "--log-steps", "1", "--eval-steps", "3", "--eval-batches", "2", "--sample-steps", "0", "--save-steps", "3",
    "--cpu-threads", "1", "--device", "cpu", "--restarts", "0", "--compile", "off",
)
STEPS = 60
LONG = (
    "--max-steps", str(STEPS), "--eval-steps", "30", "--sample-steps", "30", "--sample-tokens", "16",
    "--save-steps", "5", "--lora-dropout", "0.1",
)
# fmt: on
ARCHITECTURES = {
    "llama3": ("LlamaConfig", {"rope_theta": 500_000.0}),
    "qwen2.5": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma": ("Gemma3TextConfig", {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16}),
}


def base_folder(
    folder: Path, family: str = "qwen3", spare_rows: int = 30, shape: Mapping[str, int] | None = None, **changed: Any
) -> Path:
    """A small random model as transformers saves it, with the family's tokenizer and chat template, and more rows than
    tokens. `shape`: values of its configuration; `changed`: see `model_folder`."""
    transformers = pytest.importorskip("transformers")
    model_folder(folder, family, **changed)
    name, values = ARCHITECTURES[family]
    torch.manual_seed(0)
    defaults = {
        "vocab_size": Codec.load(folder / "tokenizer.json").vocab_size + spare_rows,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    config = getattr(transformers, name)(**{**defaults, **values, **(shape or {})})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def command(home: Path, base: Path | str, data: Path, name: str, *arguments: str) -> tuple[str, ...]:
    flags = ("--base-model", str(base), "--data", str(data), "--run-dir", str(home / "runs" / name))
    return ("train", *SHORT, *flags, *arguments)


def fine_tune(home: Path, base: Path | str, data: Path, name: str, *arguments: str) -> TrainerResult:
    return run(home, *command(home, base, data, name, *arguments))


def checkpoint_at(home: Path, name: str, step: int) -> Path:
    return home / "runs" / name / "checkpoints" / f"step-{step:08}"


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("family", list(ARCHITECTURES))
def test_a_killed_run_resumes_exactly_and_transformers_computes_its_logits(
    tmp_path: Path, family: str, method: str
) -> None:
    import transformers

    base = base_folder(tmp_path / "模型 base", family)
    checkpoint = expect_exact_resume_after_kill(tmp_path, base, "--method", method)
    assert (checkpoint / "model.safetensors").exists() == (method == "full")
    exported = export(checkpoint, tmp_path / "导出 exported", NullReporter()).folder
    assert "| Base model | 模型 base |" in (exported / "README.md").read_text(encoding="utf-8")
    expect_same_model(transformers.AutoModelForCausalLM.from_pretrained(base), checkpoint, exported)
    original = transformers.AutoModelForCausalLM.from_pretrained(base)
    first, ids = model_source.find_model(str(checkpoint), NullReporter(), base=True), torch.arange(20).unsqueeze(0)
    assert first.folder == base
    with torch.no_grad():
        actual = generate.load_model(first, torch.device("cpu")).model(ids)
        torch.testing.assert_close(actual, original(ids).logits, rtol=1e-4, atol=1e-4)
    chat = [{"role": "user", "content": "Sure?"}]
    tokenizers = [transformers.AutoTokenizer.from_pretrained(folder) for folder in (base, exported)]
    prompts = [tokenizer.apply_chat_template(chat, tokenize=False) for tokenizer in tokenizers]
    assert prompts[0] == prompts[1]


def expect_exact_resume_after_kill(home: Path, base: Path, *options: str) -> Path:
    """A killed run, resumed, is bit-identical to an uninterrupted one. Returns its last checkpoint."""
    data, options = conversations_file(home), (*LONG, *options)
    process = start(home, *command(home, base, data, "killed", *options))
    read_until(process, reached_step(18))
    process.kill()
    process.communicate()
    whole = fine_tune(home, base, data, "whole", *options)
    assert whole.code == 0, whole.stderr
    resumed = run(home, "train", "--resume", "killed")
    assert resumed.code == 0, resumed.stderr
    assert 5 <= resumed.events_of(protocol.Hello)[0].resumed_from_step < STEPS
    return expect_same_run(home, "killed", resumed, whole)


def expect_same_run(home: Path, name: str, resumed: TrainerResult, whole: TrainerResult) -> Path:
    """The resumed run is bit-identical to the uninterrupted one, named "whole". Returns its last checkpoint."""
    assert resumed.losses
    assert resumed.losses.items() <= whole.losses.items()
    assert evaluations(resumed).items() <= evaluations(whole).items()
    folder, expected = (checkpoint_at(home, one, STEPS) for one in (name, "whole"))
    files = [file.name for file in expected.glob("*.safetensors")]
    assert len(files) == 2
    for file in files:
        assert (folder / file).read_bytes() == (expected / file).read_bytes(), file
    return folder


def evaluations(result: TrainerResult) -> dict[int, tuple[object, ...]]:
    """Loss, exact match and generated texts by step."""
    samples, evals = result.events_of(protocol.Sample), result.events_of(protocol.Eval)
    texts = {one.step: [sample.text for sample in samples if sample.step == one.step] for one in evals}
    return {one.step: (one.loss, one.exact_match, texts[one.step]) for one in evals}


def expect_same_model(before: Any, checkpoint: Path, exported: Path) -> None:
    """A checkpoint and its export have the same logits here and in transformers, unlike the model that the run began
    with."""
    import peft
    import transformers

    load, ids = transformers.AutoModelForCausalLM.from_pretrained, torch.arange(40).unsqueeze(0)
    with torch.no_grad():
        logits_before = before.eval()(ids).logits
        is_adapter = (checkpoint / "adapter_config.json").exists()
        reference = peft.PeftModel.from_pretrained(before, checkpoint) if is_adapter else load(checkpoint)
        expected = reference.eval()(ids).logits
        ours = generate.load_model(checkpoint, torch.device("cpu")).model
        for actual in (ours(ids), load(exported).eval()(ids).logits):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert (expected - logits_before).abs().max() > 1e-3


def test_a_lora_run_whose_base_model_was_moved_resumes_with_its_new_folder(tmp_path: Path) -> None:
    base, data = base_folder(tmp_path / "base"), conversations_file(tmp_path)
    assert fine_tune(tmp_path, base, data, "run", "--method", "lora").code == 0
    moved = base.rename(tmp_path / "移动 moved")
    resume = ("train", "--resume", "run", "--max-steps", "8")
    refused = run(tmp_path, *resume)
    assert (refused.error.code, refused.code) == ("resume.no_base", ExitCode.USAGE)
    assert refused.error.params == {"base": str(base)}
    resumed = run(tmp_path, *resume, "--base-model", str(moved))
    assert resumed.code == 0, resumed.stderr
    assert list(resumed.losses) == [7, 8]
    assert not resumed.events_of(protocol.Warn)


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_fully_tuned_run_resumes_without_its_base_model(tmp_path: Path, ranks: str) -> None:
    base = base_folder(tmp_path / "模型 base", "llama3", spare_rows=0, chat_template=None)
    expect_exact_resume_without_base(tmp_path, base, "--nproc-per-node", ranks)


def expect_exact_resume_without_base(home: Path, base: Path, *options: str) -> None:
    """A run, and a new run from its first checkpoint, resume exactly although base model and token cache are gone."""
    assert fine_tune(home, base, conversations_file(home), "run", *options).code == 0
    expected = checkpoint_at(home, "run", 6).rename(home / "expected")
    shutil.rmtree(base)
    shutil.rmtree(home / "cache")
    from_checkpoint = (str(checkpoint_at(home, "run", 3)), "--run-dir", str(home / "runs" / "branch"))
    for name, arguments in (("branch", from_checkpoint), ("run", ("run",)), ("branch", ("branch",))):
        shutil.rmtree(checkpoint_at(home, name, 6), ignore_errors=True)
        resumed = run(home, "train", "--resume", *arguments)
        assert resumed.code == 0, resumed.stderr
        for file in ("model.safetensors", "optimizer.safetensors", "tokenizer.json"):
            assert (checkpoint_at(home, name, 6) / file).read_bytes() == (expected / file).read_bytes(), file


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_run_that_was_paused_and_stopped_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("TRAINDECK_OFFLOAD", "memory")
    expect_exact_resume_after_pause_and_stop(tmp_path, base_folder(tmp_path / "base"), "--method", method)
    assert "bytes to memory" in (tmp_path / "runs" / "stopped" / "log.txt").read_text(encoding="utf-8")


def expect_exact_resume_after_pause_and_stop(home: Path, base: Path, *options: str) -> None:
    data, options = conversations_file(home), (*LONG, *options)
    controlled = (*command(home, base, data, "stopped", *options), "--control", "stdin")
    process = start(home, *controlled, stdin=subprocess.PIPE)
    read_until(process, reached_step(3))
    send(process, protocol.Pause(id=1))
    read_until(process, entered_phase("paused"))
    send(process, protocol.Resume(id=2))
    read_until(process, entered_phase("training"))
    send(process, protocol.Stop(id=3))
    stopped = finish(process)
    assert stopped.code == ExitCode.STOPPED, stopped.stderr
    (done,) = stopped.events_of(protocol.Done)
    assert 3 <= done.steps < STEPS
    resumed = run(home, "train", "--resume", "stopped")
    assert resumed.events_of(protocol.Hello)[0].resumed_from_step == done.steps
    expect_same_run(home, "stopped", resumed, fine_tune(home, base, data, "whole", *options))


def test_a_lora_run_is_the_base_model_of_another(tmp_path: Path) -> None:
    import peft
    import transformers

    base, data = base_folder(tmp_path / "模型 base"), conversations_file(tmp_path)
    assert fine_tune(tmp_path, base, data, "first", "--method", "lora").code == 0
    second = fine_tune(tmp_path, "first", data, "second", "--method", "lora", "--lora-variant", "rslora")
    assert second.code == 0, second.stderr
    first, checkpoint = (checkpoint_at(tmp_path, name, 6) for name in ("first", "second"))
    reference = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), first)
    exported = export(checkpoint, tmp_path / "exported", NullReporter()).folder
    expect_same_model(reference.merge_and_unload(), checkpoint, exported)
    with pytest.raises(TraindeckError) as stacked:  # its base model is itself an adapter
        export(checkpoint, tmp_path / "adapter", NullReporter(), form="peft")
    assert stacked.value.code == "export.stacked_adapter"
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    refused = run(tmp_path, "train", "--resume", "first", "--max-steps", "9")
    assert (refused.error.code, refused.code) == ("checkpoint.other_base", ExitCode.USAGE)
    shutil.rmtree(base)
    refused = fine_tune(tmp_path, "second", data, "third")
    assert (refused.error.code, refused.error.params["base"]) == ("checkpoint.no_base", str(base))


def test_an_adapter_made_by_peft_is_a_base_model(tmp_path: Path) -> None:
    import peft
    import transformers

    base = base_folder(tmp_path / "模型 base")
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], rank_pattern={"down_proj": 2}, alpha_pattern={"q_proj": 5},
        init_lora_weights=False, task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base), config)
    theirs.save_pretrained(tmp_path / "适配器 adapter")
    data = conversations_file(tmp_path)
    result = fine_tune(tmp_path, tmp_path / "适配器 adapter", data, "run", "--learning-rate", "1e-30")
    assert result.code == 0, result.stderr
    (ready,) = result.events_of(protocol.Ready)
    assert ready.trainable_parameters == ready.parameters
    trained, merged = (
        load_file(checkpoint_at(tmp_path, "run", 6) / "model.safetensors"),
        theirs.merge_and_unload().state_dict(),
    )
    for name, weight in trained.items():
        torch.testing.assert_close(weight, merged[name], rtol=1e-5, atol=1e-6)


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
    phases = [event.phase for event in second.events_of(protocol.Phase)]
    assert phases[:4] == ["loading", "preparing", "loading", "training"]
    assert (written["base_model"], written["hidden_dim"]) == (str(checkpoint_at(tmp_path, "first", 6)), 48)


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
    base = base_folder(tmp_path / "base", "llama3", spare_rows=0, chat_template=None)
    expect_trained_new_tokens(tmp_path, base, "lm_head.weight", *options)


def expect_trained_new_tokens(tmp_path: Path, base: Path, head: str, *options: str) -> None:
    """A base model without the tokens of ChatML gets rows for them, which train, resume and export."""
    import transformers

    result = fine_tune(tmp_path, base, conversations_file(tmp_path), "run", *options)
    assert result.code == 0, result.stderr
    before = load_file(base / "model.safetensors")[head]
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
    after = load_file(files[0])[head]
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


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_check_measures_the_base_model(tmp_path: Path, method: str) -> None:
    base = base_folder(tmp_path / "base")
    arguments = (*SHORT, "--base-model", str(base), "--data", str(conversations_file(tmp_path)), "--method", method)
    result = run(tmp_path, "check", *arguments, "--output", "json")
    assert result.code == 0, result.stderr
    (report,) = result.events_of(protocol.CheckReport)
    weights = load_file(base / "model.safetensors")
    total = sum(weight.numel() for weight in weights.values())
    assert report.parameters == total if method == "full" else report.parameters > total
    assert (report.checkpoint_bytes < 12 * total) == (method == "lora")
