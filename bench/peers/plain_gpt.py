"""A plain training loop: GPT-2 (Radford et al. 2019) and AdamW, eager or compiled, as in nanoGPT.

    python -m bench.peers.plain_gpt FOLDER [--compile] [--device cuda --precision bf16]

The model follows the paper: pre-norm blocks and a final norm, GELU, learned positions, tied embedding. The loop takes
random windows from a memory map, prepares the next batch during backward, reads the loss at intervals, and uses fused
AdamW and flash attention where nanoGPT does.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.peers import training


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a GPT-2."""

    vocab_size: int
    length: int
    layers: int
    heads: int
    width: int


class Block(nn.Module):
    """Attention and MLP with pre-norm and residual connections."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv, self.out = nn.Linear(shape.width, 3 * shape.width), nn.Linear(shape.width, shape.width)
        self.up, self.down = nn.Linear(shape.width, 4 * shape.width), nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """GPT-2; `forward` returns the summed cross-entropy in nats over labels other than -100."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.width)
        self.positions = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                ends = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if ends else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
        x = self.tokens(ids_BT) + self.positions.weight[: ids_BT.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels_BT.flatten(), ignore_index=-100, reduction="sum")

    def count_parameters(self) -> int:
        """All weights; the head shares the embedding."""
        return sum(weight.numel() for weight in self.parameters())


def batches(chosen: argparse.Namespace) -> Callable[[], tuple[Tensor, Tensor]]:
    """Random windows of the training tokens, on the device."""
    tokens = training.tokens_of(chosen.data, "train")
    random = torch.Generator().manual_seed(chosen.seed)

    def batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(tokens) - chosen.length, (chosen.batch,), generator=random).tolist()
        rows = np.stack([tokens[start : start + chosen.length + 1].astype(np.int64) for start in starts])
        inputs, labels = torch.from_numpy(rows[:, :-1]), torch.from_numpy(rows[:, 1:])
        if chosen.device == "cpu":
            return inputs.contiguous(), labels.contiguous()
        pinned = inputs.contiguous().pin_memory(), labels.contiguous().pin_memory()
        return pinned[0].to(chosen.device, non_blocking=True), pinned[1].to(chosen.device, non_blocking=True)

    return batch


def build_optimizer(model: Gpt, chosen: argparse.Namespace) -> torch.optim.AdamW:
    """AdamW as in nanoGPT: weight decay for matrices only, fused on a GPU."""
    weights = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [one for one in weights if one.dim() >= 2], "weight_decay": chosen.weight_decay},
        {"params": [one for one in weights if one.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (0.9, chosen.beta2)
    return torch.optim.AdamW(groups, lr=chosen.learning_rate, betas=betas, fused=chosen.device.startswith("cuda"))


def train(chosen: argparse.Namespace) -> None:
    training.set_up(chosen)
    model = Gpt(Shape(chosen.vocab_size, chosen.length, chosen.layers, chosen.heads, chosen.width)).to(chosen.device)
    training.emit("ready", parameters=model.count_parameters())
    optimizer, next_batch = build_optimizer(model, chosen), batches(chosen)
    scaler = torch.amp.GradScaler(chosen.device.partition(":")[0], enabled=chosen.precision == "fp16")
    forward: Callable[[Tensor, Tensor], Tensor] = torch.compile(model) if chosen.compile else model
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(chosen.precision)
    autocast = torch.autocast(chosen.device.partition(":")[0], dtype=dtype) if dtype else contextlib.nullcontext()
    count = chosen.batch * chosen.length  # of a micro-batch

    def loss_of(inputs: Tensor, labels: Tensor) -> Tensor:
        with autocast:
            return forward(inputs, labels)

    batch = next_batch()
    for step in range(1, chosen.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = training.cosine(step - 1, chosen)
        for _ in range(chosen.accumulation):
            loss = loss_of(*batch) / (count * chosen.accumulation)
            batch = next_batch()  # while the GPU computes the forward pass
            torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % chosen.log_steps == 0:
            read = float(loss.detach()) * chosen.accumulation
            training.emit("step", step=step, tokens=step * count * chosen.accumulation, loss=read)
        if chosen.eval_steps and (step % chosen.eval_steps == 0 or step == chosen.steps):
            since = time.perf_counter()
            mean = training.held_out_loss(loss_of, chosen.data, chosen)
            training.emit("eval", step=step, loss=mean, seconds=time.perf_counter() - since)
    training.emit_done(chosen.device)


if __name__ == "__main__":
    train(training.build_parser("plain_gpt", __doc__).parse_args())
