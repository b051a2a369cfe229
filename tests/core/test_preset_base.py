"""A run whose base model is a preset: the base is trained first, as a run of its own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
import yaml
from peft import PeftModel

from tests.core.llama_cpp import LlamaCpp
from tests.core.trainer_process import TrainerResult, entered_phase, finish, read_until, run, send, start
from trainer_core import protocol
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir

PRESET = ("--preset", "quickstart_finetune", "--device", "cpu")


def start_controlled(home: Path, *command: str) -> subprocess.Popen[bytes]:
    return start(home, *command, *PRESET, "--control", "stdin", stdin=subprocess.PIPE)


def reached_base_step(step: int) -> Callable[[protocol.AnyEvent], bool]:
    return lambda event: isinstance(event, protocol.Progress) and event.phase == "training_base" and event.done >= step


def runs_of(home: Path, preset: str) -> list[run_dir.RunSummary]:
    return [run for run in run_dir.list_runs(home / "runs") if run.preset == preset]


def phases_of(run: Path) -> list[str]:
    return [event.phase for event in events_of(run) if isinstance(event, protocol.Phase)]


def events_of(run: Path) -> list[protocol.AnyEvent]:
    return [*run_dir.decode_events(RunDir(run).events.read_bytes().splitlines())]


@pytest.mark.timeout(300)
def test_pause_and_stop_reach_the_training_of_the_base_which_the_next_start_resumes(tmp_path: Path) -> None:
    process = start_controlled(tmp_path, "train")
    read_until(process, entered_phase("training_base"))
    read_until(process, reached_base_step(3))
    send(process, protocol.Pause())
    read_until(process, entered_phase("paused"))
    [base] = runs_of(tmp_path, "quickstart_sft")
    assert base.state == "running"
    while "paused" not in phases_of(base.path):  # after its step; the timeout of the test ends the loop
        time.sleep(0.1)
    send(process, protocol.Resume())
    read_until(process, entered_phase("training_base"))
    read_until(process, reached_base_step(5))
    send(process, protocol.Stop())
    stopped = finish(process)
    assert stopped.code == 3, stopped.stderr
    assert isinstance(stopped.events[-1], protocol.Done)
    [base] = runs_of(tmp_path, "quickstart_sft")
    assert (base.state, base.resumable) == ("stopped", True)
    assert base.step >= 5

    process = start_controlled(tmp_path, "train")
    read_until(process, reached_base_step(base.step + 1))
    process.kill()
    process.communicate()
    while (now := runs_of(tmp_path, "quickstart_sft"))[0].state == "running":  # it saves when its input closes
        time.sleep(0.1)
    assert [run.path for run in now] == [base.path]
    assert now[0].resumable
    resumed = [event.resumed_from_step for event in events_of(base.path) if isinstance(event, protocol.Hello)]
    assert resumed == [None, base.step]


@pytest.mark.timeout(300)
def test_check_and_preparation_train_the_base_first_and_generation_names_the_command(tmp_path: Path) -> None:
    step = 0
    for command in (("check",), ("prepare",), ("prepare", "--preview")):
        process = start_controlled(tmp_path, *command)
        read_until(process, reached_base_step(step + 1))
        send(process, protocol.Stop())
        stopped = finish(process)
        assert stopped.code == 3, stopped.stderr
        [base] = runs_of(tmp_path, "quickstart_sft")
        assert base.resumable
        assert base.step > step
        step = base.step
    result = run(tmp_path, "generate", "preset:quickstart_sft", "--prompt", "Sure?")
    assert result.code == 2
    assert "`train --preset NAME` trains the model of a preset." in result.stderr


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainerResult]:
    """The quick start of fine-tuning, trained with its base. The folder of its home, and its events."""
    home = tmp_path_factory.mktemp("家 home")
    return home, finish(start(home, "train", *PRESET, "--output", "json"), timeout=1400)


@pytest.mark.timeout(1500)
def test_the_quick_start_of_fine_tuning_teaches_what_the_base_did_not_know(
    fine_tuned: tuple[Path, TrainerResult],
) -> None:
    home, result = fine_tuned
    assert result.code == 0, result.stderr
    evals = result.events_of(protocol.Eval)
    assert evals[0].step == 0
    assert evals[0].exact_match < 0.2
    assert evals[-1].exact_match > 0.9
    [base], [run] = runs_of(home, "quickstart_sft"), runs_of(home, "quickstart_finetune")
    assert (base.state, run.state) == ("finished", "finished")
    written = yaml.safe_load((run.path / "config.yaml").read_text(encoding="utf-8"))
    assert Path(written["base_model"]).parent == base.path / "checkpoints"


@pytest.mark.timeout(1500)
def test_each_export_answers_the_held_out_questions_with_the_score_of_the_run(
    fine_tuned: tuple[Path, TrainerResult],
) -> None:
    home, _ = fine_tuned
    [run_] = runs_of(home, "quickstart_finetune")
    results = home / "results.jsonl"
    evaluated = run(home, "evaluate", str(run_.path), "--rows", "100", "--results", str(results), "--device", "cpu")
    assert evaluated.code == 0, evaluated.stderr
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    questions = [row["prompt"] for row in rows]
    score = sum(row["models"]["model"]["exact_match"] for row in rows)
    assert len(rows) == 100
    assert score > 90
    folders = {form: home / form for form in ("hf", "peft", "gguf")}
    for form, folder in folders.items():  # q8_0 is the default of gguf
        exported = run(home, "export", str(run_.path), str(folder), "--format", form)
        assert exported.code == 0, exported.stderr
        [verification] = exported.events_of(protocol.Verification)
        assert verification.passed
        assert "built_in_texts" not in verification.limitations  # perplexity is that of the run's own data
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["hf"])
    tuned = transformers.AutoModelForCausalLM.from_pretrained(folders["hf"])
    base = yaml.safe_load((run_.path / "config.yaml").read_text(encoding="utf-8"))["base_model"]
    adapted = PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(base), folders["peft"])
    llama = LlamaCpp(next(folders["gguf"].glob("*.gguf")))
    answers = {
        "hf": [answer_with_transformers(tuned, tokenizer, question) for question in questions],
        "peft": [answer_with_transformers(adapted, tokenizer, question) for question in questions],
        "gguf": [answer_with_llama_cpp(llama, tokenizer, question) for question in questions],
    }
    scores = {
        form: sum(text.strip() == row["reference"].strip() for text, row in zip(texts, rows, strict=True))
        for form, texts in answers.items()
    }
    assert (scores["hf"], scores["peft"]) == (score, score)
    assert abs(scores["gguf"] - score) <= 1  # q8_0 rounds the weights


def answer_with_transformers(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> str:
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**ids, max_new_tokens=32, do_sample=False)[0, ids["input_ids"].shape[1] :]
    return str(tokenizer.decode(written, skip_special_tokens=True))


def answer_with_llama_cpp(llama: LlamaCpp, tokenizer: Any, messages: list[dict[str, str]]) -> str:
    prompt = llama.render(*((message["role"], message["content"]) for message in messages))
    written = llama.generate(llama.encode(prompt, special=True), 32)
    return str(tokenizer.decode(written, skip_special_tokens=True))
