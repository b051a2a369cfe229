"""Fast paths of this machine: known at once, or each tried against the reference and timed (`doctor --fast-paths`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.batches import Batch
from trainer_core.messages.engine import NOT_FOR_SPEED
from trainer_core.model.decoder import ModelConfig, decoder_on
from trainer_core.protocol import FastPath
from trainer_core.report import Reporter, StopRequested
from trainer_core.train import memory, optim
from trainer_core.train.device import Precision, choose_precision, keep_to_the_card
from trainer_core.train.engine import available, compiling, measuring, trials
from trainer_core.train.engine.build import build
from trainer_core.train.engine.choosing import FASTER, Words
from trainer_core.train.loss import batch_loss
from trainer_core.train.oom import give_back

_KNOBS: Final[dict[str, dict[str, Any]]] = {  # what is tried: small enough for seconds, and of the usual shape
    "cpu": {"hidden_dim": 128, "n_layers": 4, "max_seq_len": 128, "batch_size": 8, "vocab_size": 4096},
    "cuda": {"hidden_dim": 768, "n_layers": 4, "max_seq_len": 1024, "batch_size": 8, "vocab_size": 50_304},
}
_FEW_TOKENS: Final = 4096  # the vocabulary where the head is not what is tried
_ROOM: Final = 10 * 2**30  # free bytes for the whole batch on a GPU: the reference's logits alone take 5 GB
_NARROW: Final = 2  # sequences where there is less
_COMPARED: Final = 256  # positions of the head's results


_OF_ENGINE: Final = ("compile", "cuda_graphs", "attention", "chunked_loss", "threads")  # paths that it tries itself


def known(device: torch.device, precision_name: str) -> list[FastPath]:
    """Every path, whether this machine has it, and what `measure` found if it was run here. Quick."""
    measured = available.remembered(device, precision_name)
    there = available.of_machine(device, precision_name)  # a compiler may have come or gone since
    return [measured.get(path.name, path) if _is_tried(path) else path for path in there]


def is_measured(device: torch.device, precision_name: str) -> bool:
    """Whether `measure` has tried all that this machine has: a compiler may have come since. Quick."""
    there = {path.name for path in available.of_machine(device, precision_name) if _is_tried(path)}
    return there <= available.remembered(device, precision_name).keys()


def measure(device: torch.device, reporter: Reporter) -> list[FastPath]:
    """Try each path on a small model: its difference from the reference, and its gain. About a minute on a CPU, most
    of it the compiler, whose work is kept. Remembered for `known`. Raises `StopRequested`."""
    precision = choose_precision("auto", device, reporter)
    there = {path.name for path in available.of_machine(device, precision.name) if _is_tried(path)}
    threads = torch.get_num_threads()
    try:
        keep_to_the_card(device)
        paths = {path.name: path for path in _of_engine(_config(device), device, precision, reporter)}
        if device.type == "cuda":  # graphs hold the memory of a whole step
            compiling.forget_graphs()
            give_back(device)
        for name, trial in _TRIALS.items():
            reporter.poll()
            if name in there:
                reporter.trying(name)
                paths[name] = _guarded(paths[name], trial, device, precision, reporter)
    finally:
        torch.set_num_threads(threads)
    found = list(paths.values())
    available.remember([path for path in found if path.name in there], device, precision.name)
    return found


def _config(device: torch.device, **knobs: Any) -> Config:
    """Of the model that is tried, in batches that this card has room for."""
    usual = dict(_KNOBS[device.type])
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < _ROOM:
        usual["batch_size"] = _NARROW
    return Config(**{**usual, **knobs})


def _is_tried(path: FastPath) -> bool:
    """Whether there is something to try: what this machine has, and bf16 on any."""
    return path.used or path.name == "precision"


def _of_engine(config: Config, device: torch.device, precision: Precision, reporter: Reporter) -> list[FastPath]:
    """What the engine finds when it may try everything, in place of what is there."""
    model = decoder_on(device, ModelConfig.of(config, config.vocab_size))
    made = build(
        config, model, device, precision, reporter, _batch(config, device), 1, None, varying=False, thorough=True
    )
    tried = {path.name: path for path in made.fast_paths if path.name in _OF_ENGINE}
    return [tried.get(path.name, path) for path in available.of_machine(device, precision.name)]


def _batch(config: Config, device: torch.device) -> Batch:
    drawn = torch.Generator().manual_seed(0)
    shape = config.batch_size, config.max_seq_len + 1
    ids = torch.randint(0, config.vocab_size, shape, generator=drawn).to(device)
    rows = config.batch_size
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), tokens=rows * config.max_seq_len, samples=rows)


# --- paths that are none of the engine's ------------------------------------------------------------------------


class Tried(NamedTuple):
    """What a trial found."""

    gain: float
    error: float | None = None  # None where another result is meant, as by another optimizer
    tolerance: float = 0.0  # largest error that is allowed
    choice: str = ""  # which way


Trial = Callable[[torch.device, Precision, Reporter], Tried]


def _guarded(path: FastPath, trial: Trial, device: torch.device, precision: Precision, reporter: Reporter) -> FastPath:
    try:
        tried = trial(device, precision, reporter)
    except StopRequested:
        raise
    except Exception as failure:  # noqa: BLE001 - whatever it is, the others are still tried
        return FastPath(name=path.name, used=False, reason="path.failed", params={"reason": compiling.plainly(failure)})
    used, (reason, params) = _judged(path, tried)
    return FastPath(
        name=path.name,
        used=used,
        choice=tried.choice or path.choice,
        reason=reason,
        params=params,
        error=tried.error,
        gain=tried.gain,
    )


def _judged(path: FastPath, tried: Tried) -> tuple[bool, Words]:
    """Whether it is worth having, and why. A path that is not used by itself may still be worth setting."""
    if tried.error is not None and tried.error > tried.tolerance:
        return False, ("path.differs", {"error": tried.error, "tolerance": tried.tolerance})
    if path.reason in NOT_FOR_SPEED:  # what it takes is told
        return True, (path.reason, {})
    if tried.gain < (1 / FASTER if path.used else FASTER):
        return False, ("path.slower", {})
    if not path.used:
        return True, ("path.by_name", {})
    return True, ("path.on" if tried.error is not None else path.reason, {})


def _try_fused(device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """One update by each, from the same weights and gradients, and the time of many."""
    shape = ModelConfig.of(_config(device), _FEW_TOKENS)
    with measuring.undisturbed(torch.nn.Module(), device):
        plain = decoder_on(device, shape)
        fused = copy.deepcopy(plain)
        for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
    optimizers = {
        "plain": torch.optim.AdamW(plain.parameters(), lr=1e-3, foreach=False, fused=False),
        "fused": torch.optim.AdamW(fused.parameters(), lr=1e-3, fused=True),
    }
    for optimizer in optimizers.values():
        optimizer.step()
    error = measuring.difference(list(fused.parameters()), list(plain.parameters()))
    taken = measuring.seconds({name: one.step for name, one in optimizers.items()}, device, reporter, 1.0)
    return Tried(taken["plain"] / taken["fused"], error, trials.TOLERANCE["fp32"])


def _try_muon(device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """Another optimizer, with other weights: only what an update of it costs against one of AdamW."""
    taken: dict[str, Callable[[], object]] = {}
    for name in ("adamw", "muon"):
        config = _config(device, optimizer=name)
        model = decoder_on(device, ModelConfig.of(config, config.vocab_size))
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 1e-3)
        taken[name] = optim.build_optimizer(model, config).step
    seconds = measuring.seconds(taken, device, reporter, 1.0)
    return Tried(seconds["adamw"] / seconds["muon"])


def _try_tf32(device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """A large product in fp32 with and without."""
    left, right = (torch.randn(4096, 4096, device=device) for _ in range(2))

    def product(precision: str) -> Tensor:
        torch.set_float32_matmul_precision(precision)
        return left @ right

    before = torch.get_float32_matmul_precision()
    try:
        error = measuring.difference([product("high")], [product("highest")])
        ways = {"on": lambda: product("high"), "off": lambda: product("highest")}
        taken = measuring.seconds(ways, device, reporter, 0.5)
    finally:
        torch.set_float32_matmul_precision(before)
    return Tried(taken["off"] / taken["on"], error, trials.TOLERANCE["tf32"])


def _try_precision(device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """A large product in the run's precision, or in bf16 where the run computes in fp32, against fp32."""
    low = precision.dtype or torch.bfloat16
    size = 512 if device.type == "cpu" else 4096
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    narrow = left.to(low), right.to(low)
    ways = {"fp32": lambda: left @ right, "low": lambda: narrow[0] @ narrow[1]}
    error = measuring.difference([ways["low"]()], [ways["fp32"]()])
    taken = measuring.seconds(ways, device, reporter, 0.5)
    name = "bf16" if low is torch.bfloat16 else "fp16"
    return Tried(taken["fp32"] / taken["low"], error, trials.TOLERANCE[name], name)


def _try_by_spans(path: str, device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """Eight documents in each sequence, against torch's choice with a mask."""
    name, length = available.backend_of(path, device), 512 if device.type == "cpu" else 4096
    shape = ModelConfig.of(_config(device), _FEW_TOKENS)
    ids = torch.zeros(4, length, dtype=torch.int64, device=device)
    segments = (torch.arange(length, dtype=torch.int32, device=device) // (length // 8)).repeat(4, 1)
    batch = Batch(ids, ids, tokens=ids.numel(), samples=4, segments=segments)
    found = trials.attention(["sdpa", name], shape, batch, precision, reporter)
    if found[name].failed:
        raise RuntimeError(found[name].failed)
    gain = found["sdpa"].seconds / found[name].seconds
    return Tried(gain, found[name].error, trials.TOLERANCE[precision.name])


def _try_padding(device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """The head, forward and backward, over a vocabulary that 64 does not divide, and over one that is filled up."""
    rows, used = {"cpu": (1024, 4_097), "cuda": (4096, 50_257)}[device.type]
    width, dtype = _KNOBS[device.type]["hidden_dim"], precision.dtype or torch.float32
    hidden = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
    filled = torch.randn(-(-used // 64) * 64, width, device=device).to(dtype).requires_grad_()
    plain = filled.detach()[:used].clone().requires_grad_()

    def head(weight: Tensor) -> Tensor:
        logits = F.linear(hidden, weight)
        torch.autograd.grad(logits, (hidden, weight), logits.detach())
        return logits

    error = measuring.difference([head(filled)[:_COMPARED, :used]], [head(plain)[:_COMPARED]])
    taken = measuring.seconds({"plain": lambda: head(plain), "filled": lambda: head(filled)}, device, reporter, 1.0)
    return Tried(taken["plain"] / taken["filled"], error, trials.TOLERANCE[precision.name])


def _try_checkpointing(device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """A micro-batch whose activations are all computed again, against one that keeps them."""
    config = _config(device, vocab_size=_FEW_TOKENS)  # the head keeps its activations in any case
    model, batch = decoder_on(device, ModelConfig.of(config, config.vocab_size)), _batch(config, device)

    def loss(mode: Literal["off", "full"], batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        memory.checkpoint_activations(model, mode)
        with precision.autocast():
            return batch_loss(model, batch, grad_scale=grad_scale)

    kept, again = partial(loss, "off"), partial(loss, "full")
    with measuring.undisturbed(model, device):
        error = trials.loss_difference(model, again, kept, batch, precision)
        ways = {"kept": trials.forward_backward(kept, batch), "again": trials.forward_backward(again, batch)}
        taken = measuring.seconds(ways, device, reporter, 1.0)
    return Tried(taken["kept"] / taken["again"], error, trials.TOLERANCE[precision.name])


def _try_transfer(device: torch.device, precision: Precision, reporter: Reporter) -> Tried:
    """Copies from page-locked memory against those from any memory, beside nothing."""
    plain = torch.zeros(16 * 2**20, dtype=torch.uint8)
    pinned = plain.pin_memory()
    ways = {"plain": lambda: plain.to(device), "pinned": lambda: pinned.to(device, non_blocking=True)}
    taken = measuring.seconds(ways, device, reporter, 0.5)
    return Tried(taken["plain"] / taken["pinned"])


_TRIALS: Final[dict[str, Trial]] = {
    "fused_adamw": _try_fused,
    "muon": _try_muon,
    "tf32": _try_tf32,
    "precision": _try_precision,
    "transfer": _try_transfer,
    "padded_vocabulary": _try_padding,
    "activation_checkpointing": _try_checkpointing,
    **{path: partial(_try_by_spans, path) for path in available.BY_SPANS},
}
