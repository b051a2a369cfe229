"""Fast paths of this machine, and their trials against the reference (`doctor --fast-paths`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.models.decoder import ModelConfig, build_decoder
from trainer_core.performance_texts import NON_SPEED_REASONS
from trainer_core.progress import Reporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.train import activation_checkpointing, optimizers
from trainer_core.train.device import Precision, choose_precision, limit_to_vram
from trainer_core.train.engine import available, compilation, measuring, trials
from trainer_core.train.engine.measuring import MIN_SPEEDUP, Reason
from trainer_core.train.engine.select import build_engine
from trainer_core.train.loss import batch_loss
from trainer_core.train.oom import release_memory

_KNOBS: Final[dict[str, dict[str, Any]]] = {  # model of the trials: common shape, small enough for seconds
    "cpu": {"hidden_dim": 128, "n_layers": 4, "max_seq_len": 128, "batch_size": 8, "vocab_size": 4096},
    "cuda": {"hidden_dim": 768, "n_layers": 4, "max_seq_len": 1024, "batch_size": 8, "vocab_size": 50_304},
}
_FEW_TOKENS: Final = 4096  # vocabulary where the head does not matter
_ROOM: Final = 10 * 2**30  # free bytes for the whole batch on a GPU: the reference's logits alone take 5 GB
_NARROW: Final = 2  # sequences with less memory
_COMPARED: Final = 256  # positions of the head's results


def cached_paths(device: torch.device, precision_name: str) -> list[FastPath]:
    """All paths with the results of `measure`, if it was run here. Fast."""
    measured = available.cached_paths(device, precision_name)
    there = available.machine_paths(device, precision_name)  # a compiler may have been installed or removed since
    return [measured.get(path.name, path) if _is_tried(path) else path for path in there]


def is_measured(device: torch.device, precision_name: str) -> bool:
    """Whether `measure` has tried all paths that this machine has now. Fast."""
    there = {path.name for path in available.machine_paths(device, precision_name) if _is_tried(path)}
    return there <= available.cached_paths(device, precision_name).keys()


def measure(device: torch.device, reporter: Reporter) -> list[FastPath]:
    """Try each path on a small model: error and speedup. About a minute on a CPU, mostly compilation, which is cached.
    Results are stored for `cached_paths`. Raises `StopRequested`.
    """
    precision = choose_precision("auto", device, reporter)
    there = {path.name for path in available.machine_paths(device, precision.name) if _is_tried(path)}
    threads = torch.get_num_threads()
    try:
        limit_to_vram(device)
        paths = {path.name: path for path in _try_compile(_config(device), device, precision, reporter)}
        if device.type == "cuda":  # graphs hold the memory of a whole step
            compilation.reset_graphs()
            release_memory(device)
        for name, trial in _TRIALS.items():
            reporter.poll()
            if name in there:
                reporter.report_measuring(name)
                paths[name] = _guarded(paths[name], trial, device, precision, reporter)
    finally:
        torch.set_num_threads(threads)
    found = list(paths.values())
    available.cache_paths([path for path in found if path.name in there], device, precision.name)
    return found


def _config(device: torch.device, **knobs: Any) -> Config:
    """Settings of the model in trials, with a batch that fits on this card."""
    usual = dict(_KNOBS[device.type])
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < _ROOM:
        usual["batch_size"] = _NARROW
    return Config(**{**usual, **knobs})


def _is_tried(path: FastPath) -> bool:
    """Whether there is something to try: paths that this machine has, and bf16 on any."""
    return path.used or path.name == "precision"


def _try_compile(config: Config, device: torch.device, precision: Precision, reporter: Reporter) -> list[FastPath]:
    """All paths, with compilation and CUDA graphs tried."""
    model = build_decoder(device, ModelConfig.from_config(config, config.vocab_size))
    batch = _batch(config, device)
    engine = build_engine(
        config, model, device, precision, reporter, batch, 1, None, varying=False, eager_start=False, thorough=True
    )
    if engine.switch is not None:
        reporter.report_measuring("compile")
        engine.switch.finish(batch)
    tried = {path.name: path for path in engine.fast_paths if path.name in ("compile", "cuda_graphs")}
    return [tried.get(path.name, path) for path in available.machine_paths(device, precision.name)]


def _batch(config: Config, device: torch.device) -> Batch:
    drawn = torch.Generator().manual_seed(0)
    shape = config.batch_size, config.max_seq_len + 1
    ids = torch.randint(0, config.vocab_size, shape, generator=drawn).to(device)
    rows = config.batch_size
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), loss_tokens=rows * config.max_seq_len, samples=rows)


# --- paths that are none of the engine's ------------------------------------------------------------------------


class TrialResult(NamedTuple):
    """Result of a trial."""

    speedup: float
    error: float | None = None  # None: not comparable, e.g. another optimizer
    tolerance: float = 0.0  # largest error allowed
    choice: str = ""  # selected variant


Trial = Callable[[torch.device, Precision, Reporter], TrialResult]


def _guarded(path: FastPath, trial: Trial, device: torch.device, precision: Precision, reporter: Reporter) -> FastPath:
    try:
        tried = trial(device, precision, reporter)
    except StopRequested:
        raise
    except Exception as failure:  # noqa: BLE001 - whatever it is, the others are still tried
        return FastPath(
            name=path.name, used=False, reason="path.failed", params={"reason": compilation.error_summary(failure)}
        )
    used, (reason, params) = _apply_result(path, tried)
    return FastPath(
        name=path.name,
        used=used,
        choice=tried.choice or path.choice,
        reason=reason,
        params=params,
        error=tried.error,
        speedup=tried.speedup,
    )


def _apply_result(path: FastPath, tried: TrialResult) -> tuple[bool, Reason]:
    """Whether the path is worth using, and why. Paths that are off by default may be worth setting."""
    if tried.error is not None and tried.error > tried.tolerance:
        return False, ("path.differs", {"error": tried.error, "tolerance": tried.tolerance})
    if path.reason in NON_SPEED_REASONS:  # the benefit is not speed
        return True, (path.reason, {})
    if tried.speedup < (1 / MIN_SPEEDUP if path.used else MIN_SPEEDUP):
        return False, ("path.slower", {})
    if not path.used:
        return True, ("path.by_name", {})
    return True, ("path.on" if tried.error is not None else path.reason, {})


def _try_fused(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """One update by each from the same weights and gradients; time of many."""
    shape = ModelConfig.from_config(_config(device), _FEW_TOKENS)
    with measuring.preserved_state(torch.nn.Module(), device):
        plain = build_decoder(device, shape)
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
    error = measuring.relative_error(list(fused.parameters()), list(plain.parameters()))
    taken = measuring.time_alternatives({name: one.step for name, one in optimizers.items()}, device, reporter, 1.0)
    return TrialResult(taken["plain"] / taken["fused"], error, trials.TOLERANCE["fp32"])


def _try_muon(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """Another optimizer with other weights: only the time of an update against AdamW's."""
    taken: dict[str, Callable[[], object]] = {}
    for name in ("adamw", "muon"):
        config = _config(device, optimizer=name)
        model = build_decoder(device, ModelConfig.from_config(config, config.vocab_size))
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 1e-3)
        taken[name] = optimizers.build_optimizer(model, config).step
    seconds = measuring.time_alternatives(taken, device, reporter, 1.0)
    return TrialResult(seconds["adamw"] / seconds["muon"])


def _try_tf32(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """A large fp32 product with and without TF32."""
    left, right = (torch.randn(4096, 4096, device=device) for _ in range(2))

    def product(precision: str) -> Tensor:
        torch.set_float32_matmul_precision(precision)
        return left @ right

    before = torch.get_float32_matmul_precision()
    try:
        error = measuring.relative_error([product("high")], [product("highest")])
        ways = {"on": lambda: product("high"), "off": lambda: product("highest")}
        taken = measuring.time_alternatives(ways, device, reporter, 0.5)
    finally:
        torch.set_float32_matmul_precision(before)
    return TrialResult(taken["off"] / taken["on"], error, trials.TOLERANCE["tf32"])


def _try_precision(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """A large product in the run's precision, or in bf16 if the run computes in fp32, against fp32."""
    low = precision.dtype or torch.bfloat16
    size = 512 if device.type == "cpu" else 4096
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    narrow = left.to(low), right.to(low)
    ways = {"fp32": lambda: left @ right, "low": lambda: narrow[0] @ narrow[1]}
    error = measuring.relative_error([ways["low"]()], [ways["fp32"]()])
    taken = measuring.time_alternatives(ways, device, reporter, 0.5)
    name = "bf16" if low is torch.bfloat16 else "fp16"
    return TrialResult(taken["fp32"] / taken["low"], error, trials.TOLERANCE[name], name)


def _try_varlen(path: str, device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """Eight documents per sequence, against torch's attention with a mask."""
    name, length = available.backend_of(path, device), 512 if device.type == "cpu" else 4096
    shape = ModelConfig.from_config(_config(device), _FEW_TOKENS)
    ids = torch.zeros(4, length, dtype=torch.int64, device=device)
    segments = (torch.arange(length, dtype=torch.int32, device=device) // (length // 8)).repeat(4, 1)
    batch = Batch(ids, ids, loss_tokens=ids.numel(), samples=4, segments=segments)
    found = trials.compare_attention(["sdpa", name], shape, batch, precision, reporter)
    if found[name].failed:
        raise RuntimeError(found[name].failed)
    gain = found["sdpa"].seconds / found[name].seconds
    return TrialResult(gain, found[name].error, trials.TOLERANCE[precision.name])


def _try_attention(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """Torch's own attention against the formula, step by step."""
    batch, shape = _batch(_config(device), device), ModelConfig.from_config(_config(device), _FEW_TOKENS)
    found = trials.compare_attention(["math", "sdpa"], shape, batch, precision, reporter)
    gain = found["math"].seconds / found["sdpa"].seconds
    return TrialResult(gain, found["sdpa"].error, trials.TOLERANCE[precision.name], "sdpa")


def _try_chunks(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """The loss in four chunks against all logits at once."""
    config = _config(device)
    model, batch = build_decoder(device, ModelConfig.from_config(config, config.vocab_size)), _batch(config, device)

    def loss(chunk: int, batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        with precision.autocast():
            return batch_loss(model, batch, chunk=chunk, grad_scale=grad_scale)

    whole, chunks = partial(loss, 0), partial(loss, batch.input_ids.numel() // 4)
    with measuring.preserved_state(model, device):
        error = trials.loss_difference(model, chunks, whole, batch, precision)
        speedup = trials.speedup(model, whole, chunks, batch, device, reporter)
    return TrialResult(speedup or 1.0, error, trials.TOLERANCE[precision.name])


def _try_padding(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """The head, forward and backward, with a vocabulary that 64 does not divide and with the padded one."""
    rows, used = {"cpu": (1024, 4_097), "cuda": (4096, 50_257)}[device.type]
    width, dtype = _KNOBS[device.type]["hidden_dim"], precision.dtype or torch.float32
    hidden = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
    filled = torch.randn(-(-used // 64) * 64, width, device=device).to(dtype).requires_grad_()
    plain = filled.detach()[:used].clone().requires_grad_()

    def head(weight: Tensor) -> Tensor:
        logits = F.linear(hidden, weight)
        torch.autograd.grad(logits, (hidden, weight), logits.detach())
        return logits

    error = measuring.relative_error([head(filled)[:_COMPARED, :used]], [head(plain)[:_COMPARED]])
    taken = measuring.time_alternatives(
        {"plain": lambda: head(plain), "filled": lambda: head(filled)}, device, reporter, 1.0
    )
    return TrialResult(taken["plain"] / taken["filled"], error, trials.TOLERANCE[precision.name])


def _try_checkpointing(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """A micro-batch with full activation recomputation against one without."""
    config = _config(device, vocab_size=_FEW_TOKENS)  # the head keeps its activations anyway
    model, batch = build_decoder(device, ModelConfig.from_config(config, config.vocab_size)), _batch(config, device)

    def loss(mode: Literal["off", "full"], batch: Batch, grad_scale: Tensor | None = None) -> Tensor:
        activation_checkpointing.checkpoint_activations(model, mode)
        with precision.autocast():
            return batch_loss(model, batch, grad_scale=grad_scale)

    kept, again = partial(loss, "off"), partial(loss, "full")
    with measuring.preserved_state(model, device):
        error = trials.loss_difference(model, again, kept, batch, precision)
        ways = {"kept": trials.forward_backward(kept, batch), "again": trials.forward_backward(again, batch)}
        taken = measuring.time_alternatives(ways, device, reporter, 1.0)
    return TrialResult(taken["kept"] / taken["again"], error, trials.TOLERANCE[precision.name])


def _try_transfer(device: torch.device, precision: Precision, reporter: Reporter) -> TrialResult:
    """Copies from pinned memory against pageable memory."""
    plain = torch.zeros(16 * 2**20, dtype=torch.uint8)
    pinned = plain.pin_memory()
    ways = {"plain": lambda: plain.to(device), "pinned": lambda: pinned.to(device, non_blocking=True)}
    taken = measuring.time_alternatives(ways, device, reporter, 0.5)
    return TrialResult(taken["plain"] / taken["pinned"])


_TRIALS: Final[dict[str, Trial]] = {
    "attention": _try_attention,
    "chunked_loss": _try_chunks,
    "fused_adamw": _try_fused,
    "muon": _try_muon,
    "tf32": _try_tf32,
    "precision": _try_precision,
    "transfer": _try_transfer,
    "padded_vocabulary": _try_padding,
    "activation_checkpointing": _try_checkpointing,
    **{path: partial(_try_varlen, path) for path in available.VARLEN_BACKENDS},
}
