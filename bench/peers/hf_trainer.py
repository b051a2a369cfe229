"""The Hugging Face Trainer with `LlamaForCausalLM` of the decoder's shape, as in its documentation.

Fused AdamW, its data loader, scaled dot product attention, one GPU, no checkpoints, no integrations.
"""

import tempfile
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from bench import data
from bench.peers import peer_process
from trainer_core.config import Config


def build_llama(config: Config) -> LlamaForCausalLM:
    """A Llama of the decoder's shape: tied head, no biases, its own initialization, its default attention (sdpa)."""
    llama = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.hidden_dim, intermediate_size=config.mlp_dim,
        num_hidden_layers=config.n_layers, num_attention_heads=config.n_heads, num_key_value_heads=config.n_heads,
        max_position_embeddings=config.max_seq_len, rms_norm_eps=config.norm_eps, tie_word_embeddings=True,
        use_cache=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(llama)


class Windows(Dataset[dict[str, Tensor]]):
    """Consecutive windows of the training text. Transformers shifts the labels."""

    def __init__(self, config: Config) -> None:
        self._split, self._length = data.open_splits(data.home_of(config))["train"], config.max_seq_len

    def __len__(self) -> int:
        return (self._split.tokens - 1) // self._length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = index * self._length
        ids = torch.from_numpy(self._split.read(start, start + self._length))
        return {"input_ids": ids, "labels": ids}


class StepEmitter(TrainerCallback):
    """Emits every log of the Trainer."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:  # reading the loss has synchronized the GPU
            peer_process.emit("step", step=state.global_step, loss=float(logs["loss"]))


def train(config: Config) -> None:
    model = build_llama(config)
    peer_process.emit("ready", parameters=model.num_parameters())
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, save_strategy="no", eval_strategy="no", report_to=[], disable_tqdm=True,
            max_steps=config.max_steps, logging_steps=config.log_steps, seed=config.seed,
            per_device_train_batch_size=config.batch_size,
            gradient_accumulation_steps=config.gradient_accumulation_steps,
            optim="adamw_torch_fused", learning_rate=config.learning_rate, lr_scheduler_type="cosine",
            warmup_steps=config.warmup_steps, weight_decay=config.weight_decay, adam_beta2=config.beta2,
            max_grad_norm=config.grad_clip, bf16=config.mixed_precision == "bf16", torch_compile=config.compile == "on",
            use_cpu=config.device == "cpu", dataloader_pin_memory=config.device != "cpu",
        )  # fmt: skip
        trainer = Trainer(model=model, args=arguments, train_dataset=Windows(config), callbacks=[StepEmitter()])
        trainer.remove_callback(PrinterCallback)  # it prints to stdout
        trainer.train()
    peer_process.emit_done(config)


if __name__ == "__main__":
    train(peer_process.start())
