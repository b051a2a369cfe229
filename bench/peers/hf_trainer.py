"""The Hugging Face Trainer with `LlamaForCausalLM` of the decoder's shape, as in its documentation.

    python -m bench.peers.hf_trainer FOLDER [--compile] [--device cuda --precision bf16]

Fused AdamW, its data loader, scaled dot product attention, one GPU, no checkpoints, no integrations.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from bench import runs
from bench.peers import training


def llama(vocab_size: int, length: int, layers: int, heads: int, width: int, mlp: int) -> Any:
    """A Llama of the decoder's shape: tied head, no biases, its own initialization."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=length,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    config._attn_implementation = "sdpa"  # its default
    return LlamaForCausalLM(config)


class Windows(Dataset[dict[str, Tensor]]):
    """Consecutive windows of the training text. Transformers shifts the labels."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._tokens, self._length = training.tokens_of(chosen.data, "train"), chosen.length

    def __len__(self) -> int:
        return int((len(self._tokens) - 1) // self._length)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * self._length
        ids = torch.from_numpy(self._tokens[start : start + self._length].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


def arguments(chosen: argparse.Namespace, folder: str) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=chosen.batch,
        gradient_accumulation_steps=chosen.accumulation,
        max_steps=chosen.steps,
        learning_rate=chosen.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=chosen.warmup,
        weight_decay=chosen.weight_decay,
        adam_beta2=chosen.beta2,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        bf16=chosen.precision == "bf16",
        fp16=chosen.precision == "fp16",
        torch_compile=chosen.compile,
        use_cpu=chosen.device == "cpu",
        dataloader_pin_memory=chosen.device != "cpu",
        logging_steps=chosen.log_steps,
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=chosen.seed,
    )


def train(chosen: argparse.Namespace) -> None:
    """Train; every log of the Trainer becomes an event."""
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    training.set_up(chosen)
    model = llama(chosen.vocab_size, chosen.length, chosen.layers, chosen.heads, chosen.width, chosen.mlp)
    training.emit("ready", parameters=model.num_parameters())
    tokens = chosen.batch * chosen.length * chosen.accumulation

    class Reporter(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            if logs and "loss" in logs:  # reading the loss has synchronized the GPU
                loss = float(logs["loss"])
                training.emit("step", step=state.global_step, tokens=state.global_step * tokens, loss=loss)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model, args=arguments(chosen, folder), train_dataset=Windows(chosen), callbacks=[Reporter()]
        )
        trainer.remove_callback(PrinterCallback)  # it prints to stdout
        trainer.train()
    training.emit_done(chosen.device)


def main() -> None:
    parser = training.build_parser("hf_trainer", __doc__)
    parser.add_argument("--mlp", type=int, default=384, help="inner width of the SwiGLU block")
    chosen = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if chosen.device == "cpu" else runs.first_gpu()
    train(chosen)


if __name__ == "__main__":
    main()
