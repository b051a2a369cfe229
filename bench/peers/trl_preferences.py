"""Learning from preferences and rewards by TRL's trainers, as in their documentation.

    python -m bench.peers.trl_preferences OBJECTIVE JOB

JOB is a JSON object, see `bench.preferences`. Trains with LoRA; emits `ready` and each `step`, and saves the adapter.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_callback import PrinterCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from bench.peers import hf_fine_tuning, peer_process
from bench.peers.hf_trainer import StepEmitter


def messages(rows: list[dict[str, Any]]) -> Dataset:
    """Rows in TRL's conversational form: pairs, labelled answers, or prompts."""

    def message(role: str, text: str) -> list[dict[str, str]]:
        return [{"role": role, "content": text}]

    answers = [name for name in ("chosen", "rejected", "completion") if name in rows[0]]
    return Dataset.from_list(
        [
            {
                **row,
                "prompt": message("user", row["prompt"]),
                **{name: message("assistant", row[name]) for name in answers},
            }
            for row in rows
        ]
    )


def build_trainer(objective: str, job: dict[str, Any], rows: list[dict[str, Any]], lora: bool) -> Any:
    """A trainer on `rows`: pairs, labelled answers for `kto`, prompts for `grpo`."""
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM") if lora else None
    shared = hf_fine_tuning.options(job, str(Path(job["output"]).parent / "trainer"), job["batch_size"])
    given = {"model": model, "train_dataset": messages(rows), "processing_class": tokenizer, "peft_config": adapter}
    if objective == "grpo":
        return GRPOTrainer(reward_funcs=_short_answers(job["short_chars"]), args=_grpo_config(job, shared), **given)
    options = {**shared, "beta": job["beta"], "max_length": job["max_seq_len"], "disable_dropout": True}
    if objective == "orpo":
        return ORPOTrainer(args=ORPOConfig(**options), **given)
    if objective == "kto":
        return KTOTrainer(args=KTOConfig(**options), **given)
    loss = "ipo" if objective == "ipo" else "sigmoid"
    return DPOTrainer(args=DPOConfig(**options, loss_type=[loss]), **given)


def _grpo_config(job: dict[str, Any], shared: dict[str, Any]) -> GRPOConfig:
    """All answers of a step in one generation, and micro-batches of `batch_size` answers."""
    return GRPOConfig(
        **shared,
        num_generations=job["group_size"],
        max_completion_length=job["max_new_tokens"],
        gradient_accumulation_steps=job["per_step"] // job["batch_size"],
    )


def _short_answers(limit: int) -> Callable[..., list[float]]:
    """Traindeck's reward `length:-LIMIT`."""

    def score(completions: list[list[dict[str, str]]], **_: Any) -> list[float]:
        return [min(1.0, limit / max(1, len(messages[0]["content"].strip()))) for messages in completions]

    return score


if __name__ == "__main__":
    objective, job = sys.argv[1], json.loads(sys.argv[2])
    rows = [json.loads(line) for line in Path(job["data"]).read_text(encoding="utf-8").splitlines()]
    trainer = build_trainer(objective, job, rows, lora=True)
    trainer.add_callback(StepEmitter())
    trainer.remove_callback(PrinterCallback)  # it prints to stdout
    peer_process.emit("ready", sequences=len(trainer.train_dataset))
    trainer.train()
    trainer.model.save_pretrained(job["output"])
