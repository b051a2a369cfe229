"""LoRA by the Hugging Face Trainer with PEFT, or by TRL's SFTTrainer, as in their documentation.

    python -m bench.peers.hf_fine_tuning trainer|trl|trl-packed JOB

JOB is a JSON object, see `bench.fine_tuning`. Emits `ready` and each `step`, and saves the adapter.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from bench.peers import peer_process
from bench.peers.hf_trainer import StepEmitter

IGNORED = -100


def encode(row: dict[str, str], tokenizer: Any, limit: int) -> dict[str, list[int]]:
    """Ids of a conversation, with labels in the response."""
    messages = [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["response"]}]
    prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=True, return_dict=False)
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
    labels = [IGNORED] * len(prompt) + ids[len(prompt) :]
    return {"input_ids": ids[:limit], "labels": labels[:limit], "attention_mask": [1] * len(ids[:limit])}


def options(job: dict[str, Any], folder: str, batch_size: int) -> dict[str, Any]:
    return {
        "output_dir": folder, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "logging_steps": 1,
        "max_steps": job["steps"], "per_device_train_batch_size": batch_size, "optim": "adamw_torch_fused",
        "learning_rate": job["learning_rate"], "lr_scheduler_type": "constant", "warmup_steps": 0, "weight_decay": 0.0,
        "max_grad_norm": 1.0, "bf16": job["precision"] == "bf16", "use_cpu": True,
        "dataloader_pin_memory": False, "seed": job["seed"], "gradient_checkpointing": False,
    }  # fmt: skip


def build_trainer(kind: str, job: dict[str, Any], folder: str) -> Any:
    dtype = torch.bfloat16 if job["precision"] == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    rows = load_dataset("parquet", data_files=job["data"], split="train")
    if kind == "trainer":
        limit = job["max_seq_len"]
        encoded = rows.map(lambda row: encode(row, tokenizer, limit), remove_columns=rows.column_names)
        collator = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8)
        arguments = TrainingArguments(**options(job, folder, job["batch_size"]), remove_unused_columns=False)
        wrapped = get_peft_model(model, lora)
        return Trainer(model=wrapped, args=arguments, train_dataset=encoded, data_collator=collator)
    from trl import SFTConfig, SFTTrainer

    packed = kind == "trl-packed"
    pairs = rows.map(
        lambda row: {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["response"]}],
        },
        remove_columns=rows.column_names,
    )
    batch_size = job["packed_batch_size"] if packed else job["batch_size"]
    config = SFTConfig(**options(job, folder, batch_size), max_length=job["max_seq_len"], packing=packed)
    return SFTTrainer(model=model, args=config, train_dataset=pairs, processing_class=tokenizer, peft_config=lora)


if __name__ == "__main__":
    kind, job = sys.argv[1], json.loads(sys.argv[2])
    trainer = build_trainer(kind, job, str(Path(job["output"]).parent / "trainer"))
    trainer.add_callback(StepEmitter())
    trainer.remove_callback(PrinterCallback)  # it prints to stdout
    trainable = sum(weight.numel() for weight in trainer.model.parameters() if weight.requires_grad)
    peer_process.emit("ready", trainable_parameters=trainable, sequences=len(trainer.train_dataset))
    trainer.train()
    trainer.model.save_pretrained(job["output"])
