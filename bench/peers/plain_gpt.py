"""A plain training loop: GPT-2 (Radford et al. 2019) and AdamW, eager or compiled, as in nanoGPT.

The model follows the paper: pre-norm blocks and a final norm, GELU, learned positions, tied embedding. The loop takes
random windows from a memory map, prepares the next batch during backward, reads the loss at intervals, and uses fused
AdamW and flash attention where nanoGPT does.
"""

import math
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import data
from bench.peers import peer_process
from trainer_core.config import Config
from trainer_core.data.token_files import Split


class Block(nn.Module):
    """Attention and MLP with pre-norm and residual connections."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, self.heads = config.hidden_dim, config.n_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """GPT-2; `forward` returns the summed cross-entropy in nats over labels other than -100."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.hidden_dim)
        self.positions = nn.Embedding(config.max_seq_len, config.hidden_dim)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(config.hidden_dim)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                is_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * config.n_layers) ** 0.5 if is_residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
        x = self.tokens(ids_BT) + self.positions.weight[: ids_BT.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels_BT.flatten(), ignore_index=-100, reduction="sum")


def random_batches(split: Split, config: Config) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of random windows, on the device."""
    random, length = torch.Generator().manual_seed(config.seed), config.max_seq_len
    while True:
        starts = torch.randint(split.tokens - length, (config.batch_size,), generator=random).tolist()
        rows = torch.stack([torch.from_numpy(split.read(start, start + length + 1)) for start in starts])
        inputs, labels = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if config.device != "cpu":
            inputs, labels = (part.pin_memory().to(config.device, non_blocking=True) for part in (inputs, labels))
        yield inputs, labels


def eval_batches(ids: Tensor, config: Config) -> Iterator[tuple[Tensor, Tensor]]:
    """Consecutive windows, as in Traindeck's evaluation. A short last window is padded with labels of -100."""
    padding = -(len(ids) - 1) % config.max_seq_len
    inputs = F.pad(ids[:-1], (0, padding)).view(-1, config.max_seq_len)
    labels = F.pad(ids[1:], (0, padding), value=-100).view(-1, config.max_seq_len)
    return zip(torch.split(inputs, config.batch_size), torch.split(labels, config.batch_size), strict=True)


def learning_rate(step: int, config: Config) -> float:
    """Linear warmup, then cosine decay to the minimum, as in nanoGPT. Steps count from 0."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    progress = min(1.0, (step - config.warmup_steps) / max(1, config.max_steps - config.warmup_steps))
    low = config.min_learning_rate_ratio
    return config.learning_rate * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


def train(config: Config) -> None:
    model = Gpt(config).to(config.device)
    peer_process.emit("ready", parameters=sum(weight.numel() for weight in model.parameters()))
    splits = data.open_splits(data.home_of(config))
    batches, betas = random_batches(splits["train"], config), (config.beta1, config.beta2)
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=betas, fused=config.device != "cpu")
    forward: Callable[[Tensor, Tensor], Tensor] = torch.compile(model) if config.compile == "on" else model
    autocast = torch.autocast(config.device, dtype=torch.bfloat16, enabled=config.mixed_precision == "bf16")
    step_tokens = config.effective_batch * config.max_seq_len

    def summed_loss(inputs: Tensor, labels: Tensor) -> Tensor:
        with autocast:
            return forward(inputs, labels)

    @torch.no_grad()
    def held_out_loss() -> float:
        ids = torch.from_numpy(splits["validation"].read(0, splits["validation"].tokens)).to(config.device)
        return sum(float(summed_loss(*batch)) for batch in eval_batches(ids, config)) / (len(ids) - 1)

    batch = next(batches)
    for step in range(1, config.max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step - 1, config)
        for _ in range(config.gradient_accumulation_steps):
            loss = summed_loss(*batch) / step_tokens
            batch = next(batches)  # while the GPU computes the forward pass
            torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % config.log_steps == 0:
            mean = float(loss.detach()) * config.gradient_accumulation_steps
            peer_process.emit("step", step=step, tokens=step * step_tokens, loss=mean)
        if config.eval_steps and (step % config.eval_steps == 0 or step == config.max_steps):
            started_at, mean = time.perf_counter(), held_out_loss()
            peer_process.emit("eval", step=step, loss=mean, seconds=time.perf_counter() - started_at)
    peer_process.emit_done(config)


if __name__ == "__main__":
    train(peer_process.start())
