"""Runs whose base model transformers computes: trained, resumed, exported."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.core.test_fine_tuning import (
    SHORT,
    checkpoint_at,
    expect_exact_resume_after_kill,
    expect_exact_resume_after_pause_and_stop,
    expect_exact_resume_without_base,
    expect_trained_new_tokens,
    fine_tune,
)
from tests.core.test_model_template import conversations_file
from tests.core.test_transformers_models import ARCHITECTURES, base_folder, expect_recovery
from tests.core.trainer_process import TrainerResult, run, text_file
from trainer_core import protocol
from trainer_core.generation import generate
from trainer_core.messages import ExitCode

CASES = [("gpt2", "full"), ("gpt2", "lora"), ("phi3", "lora"), ("mixtral", "full")]  # with the method
PACKED = ("gpt2", "phi3", "gemma2", "mixtral")
LORA = ("--method", "lora", "--lora-rank", "4", "--learning-rate", "1e-2", "--max-steps", "20")


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(ids).logits  # type: ignore[no-any-return]


def losses(result: TrainerResult) -> list[float]:
    assert result.code == 0, result.stderr
    return [event.loss for event in result.events_of(protocol.Step)]


def assert_equal_to_export(home: Path, name: str) -> None:
    """The exported model has the logits and greedy tokens in transformers that the run's checkpoint has here."""
    from transformers import AutoModelForCausalLM

    exported = run(home, "export", name, str(home / f"{name} exported"))
    assert exported.code == 0, exported.stderr
    steps = sorted((home / "runs" / name / "checkpoints").glob("step-*"))
    loaded = generate.load_model(steps[-1], torch.device("cpu"))
    ids = torch.randint(0, 90, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(ids), logits_of(home / f"{name} exported", ids), rtol=1e-4, atol=1e-4)
        reference = AutoModelForCausalLM.from_pretrained(home / f"{name} exported", dtype=torch.float32).eval()
        rows, ends = [ids[0, :20].tolist(), ids[1, :9].tolist()], reference.generation_config.eos_token_id
        expected = []
        for row in rows:
            generated = reference.generate(torch.tensor([row]), max_new_tokens=24, do_sample=False)[
                0, len(row) :
            ].tolist()
            expected.append(list(takewhile(lambda token: token not in ends, generated)))
    found = generate.generate_batch(loaded.model, rows, [24, 24], frozenset(ends), lambda: None)
    assert [one.tokens for one in found] == expected


@pytest.mark.parametrize("model_type", list(ARCHITECTURES))
def test_a_model_of_transformers_is_fine_tuned_in_full_and_exported(tmp_path: Path, model_type: str) -> None:
    base = base_folder(tmp_path / "模型 base", model_type)
    packing = "--packing" if model_type in PACKED else "--no-packing"
    result = fine_tune(tmp_path, base, conversations_file(tmp_path), "run", "--max-steps", "20", packing)
    found = losses(result)
    assert sum(found[-4:]) < 0.8 * sum(found[:4])
    (warning,) = [one for one in result.events_of(protocol.Warn) if one.code == "model.through_transformers"]
    assert warning.params["model_type"] == model_type
    assert_equal_to_export(tmp_path, "run")


@pytest.mark.parametrize("model_type", list(ARCHITECTURES))
def test_a_model_of_transformers_is_fine_tuned_by_lora_and_merged(tmp_path: Path, model_type: str) -> None:
    base = base_folder(tmp_path / "base", model_type)
    found = losses(fine_tune(tmp_path, base, conversations_file(tmp_path), "run", *LORA))
    assert sum(found[-4:]) < 0.9 * sum(found[:4])
    assert_equal_to_export(tmp_path, "run")


@pytest.mark.parametrize("model_type", ["gpt2", "gemma2"])
def test_peft_loads_the_adapter_of_such_a_model(tmp_path: Path, model_type: str) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = base_folder(tmp_path / "base", model_type)
    losses(fine_tune(tmp_path, base, conversations_file(tmp_path), "run", *LORA, "--lora-embeddings"))
    checkpoint = checkpoint_at(tmp_path, "run", 20)
    ids = torch.arange(40).unsqueeze(0)
    model = generate.load_model(checkpoint, torch.device("cpu")).model
    reference = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), checkpoint).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(ids), reference(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("model_type", "method"), CASES)
def test_a_killed_run_of_such_a_model_resumes_exactly(tmp_path: Path, model_type: str, method: str) -> None:
    base = base_folder(tmp_path / "模型 base", model_type)
    options = ("--dropout", "0.1" if model_type == "gpt2" else "0", "--activation-checkpointing", "full")
    expect_exact_resume_after_kill(tmp_path, base, "--method", method, *options)


@pytest.mark.parametrize(("model_type", "method"), [("gpt2", "full"), ("gemma2", "lora")])
def test_a_paused_run_of_such_a_model_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, method: str
) -> None:
    monkeypatch.setenv("TRAINDECK_OFFLOAD", "memory")
    base = base_folder(tmp_path / "base", model_type)
    expect_exact_resume_after_pause_and_stop(tmp_path, base, "--method", method)
    assert "bytes to memory" in (tmp_path / "runs" / "stopped" / "log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(("model_type", "method"), CASES)
def test_two_ranks_train_such_a_model_as_one_does(tmp_path: Path, model_type: str, method: str) -> None:
    base, data = base_folder(tmp_path / "base", model_type), conversations_file(tmp_path)
    one = fine_tune(tmp_path, base, data, "one", "--method", method)
    two = fine_tune(tmp_path, base, data, "two", "--method", method, "--nproc-per-node", "2")
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    evals = [[event.loss for event in result.events_of(protocol.Eval)] for result in (one, two)]
    assert evals[1] == pytest.approx(evals[0], rel=1e-4)


@pytest.mark.parametrize(("model_type", "method"), CASES)
def test_such_a_model_recovers_from_memory_errors_and_bad_steps(tmp_path: Path, model_type: str, method: str) -> None:
    expect_recovery(tmp_path, base_folder(tmp_path / "base", model_type), method)


@pytest.mark.parametrize(
    ("model_type", "head", "options"),
    [
        ("gpt2", "transformer.wte.weight", ("--method", "lora", "--lora-embeddings")),  # tied
        ("phi", "lm_head.weight", ()),  # the head has a bias
        ("mixtral", "lm_head.weight", ()),  # the files have other names than the model
    ],
)
def test_new_tokens_get_rows_in_such_a_model(
    tmp_path: Path, model_type: str, head: str, options: tuple[str, ...]
) -> None:
    base = base_folder(tmp_path / "base", model_type, chat_tokens=False)
    expect_trained_new_tokens(tmp_path, base, head, *options)


def test_a_fully_tuned_run_of_such_a_model_resumes_without_its_base_model(tmp_path: Path) -> None:
    expect_exact_resume_without_base(tmp_path, base_folder(tmp_path / "base", "mixtral", chat_tokens=False))


@pytest.mark.parametrize(
    ("model_type", "flags", "code"),
    [
        ("falcon", ("--no-attend-across-documents",), "model.no_documents"),
        ("phi3", ("--dropout", "0.1", "--max-seq-len", "1024"), "model.too_few_positions"),
    ],
)
def test_a_run_that_such_a_model_cannot_do_is_refused(
    tmp_path: Path, model_type: str, flags: tuple[str, ...], code: str
) -> None:
    base = base_folder(tmp_path / "base", model_type)
    result = fine_tune(tmp_path, base, text_file(tmp_path), "run", *flags)
    assert (result.error.code, result.code) == (code, ExitCode.USAGE)


def test_the_check_measures_such_a_model(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", "gpt2")
    arguments = (*SHORT, "--base-model", str(base), "--data", str(conversations_file(tmp_path)))
    result = run(tmp_path, "check", *arguments, "--output", "json")
    assert result.code == 0, result.stderr
    (report,) = result.events_of(protocol.CheckReport)
    assert report.parameters == sum(weight.numel() for weight in load_file(base / "model.safetensors").values())
