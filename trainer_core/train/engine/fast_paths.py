"""Fast paths of this machine, and their trials against the reference (`doctor --fast-paths`)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer_core.config import Config
from trainer_core.data.loader import Batch
from trainer_core.models.decoder import Decoder, ModelConfig, build_decoder
from trainer_core.performance_texts import NON_SPEED_REASONS
from trainer_core.progress import Reporter, StopRequested
from trainer_core.protocol import FastPath
from trainer_core.train import activation_checkpointing, optimizers
from trainer_core.train.device import Precision, choose_precision, limit_to_vram
from trainer_core.train.engine import available, compilation, measuring, trials
from trainer_core.train.engine.measuring import MIN_SPEEDUP
from trainer_core.train.engine.select import build_engine
from trainer_core.train.loss import batch_loss
from trainer_core.train.oom import release_memory

_KNOBS: Final[dict[str, dict[str, Any]]] = {  # model of the trials: common shape, small enough for seconds
    "cpu": {"hidden_dim": 128, "n_layers": 4, "max_seq_len": 128, "batch_size": 8, "vocab_size": 4096},
    "cuda": {"hidden_dim": 768, "n_layers": 4, "max_seq_len": 1024, "batch_size": 8, "vocab_size": 50_304},
}
_SMALL_VOCABULARY: Final = 4096  # where the head does not matter
_FREE_BYTES: Final = 10 * 2**30  # on a GPU, for the whole batch: the reference's logits alone take 5 GB
_SMALL_BATCH: Final = 2  # sequences with less memory
_COMPARED_ROWS: Final = 256  # of the head's results
_BUDGET_S: Final = 1.0  # for the timing of a path


def cached_paths(device: torch.device, precision_name: str) -> list[FastPath]:
    """All paths with the results of `measure`, if it was run here. Fast."""
    measured = available.load_measured(device, precision_name)
    current = available.machine_paths(device, precision_name)  # a compiler may have been installed or removed since
    return [measured.get(path.name, path) if _is_measurable(path) else path for path in current]


def is_measured(device: torch.device, precision_name: str) -> bool:
    """Whether `measure` has tried all paths that this machine has now. Fast."""
    names = {path.name for path in available.machine_paths(device, precision_name) if _is_measurable(path)}
    return names <= available.load_measured(device, precision_name).keys()


def measure(device: torch.device, reporter: Reporter) -> list[FastPath]:
    """Try each path on a small model: error and speedup. About a minute on a CPU, mostly compilation, which is cached.
    Results are stored for `cached_paths`. Raises `StopRequested`.
    """
    precision = choose_precision("auto", device, reporter)
    paths = {path.name: path for path in available.machine_paths(device, precision.name)}
    names = {path.name for path in paths.values() if _is_measurable(path)}
    threads = torch.get_num_threads()
    try:
        limit_to_vram(device)
        paths |= _try_compile(device, precision, reporter)
        for name, trial in _TRIALS.items():
            reporter.poll()
            if name in names:
                reporter.report_measuring(name)
                paths[name] = _measure_path(paths[name], trial, device, precision, reporter)
    finally:
        torch.set_num_threads(threads)
    results = list(paths.values())
    available.store_measured([path for path in results if path.name in names], device, precision.name)
    return results


def _is_measurable(path: FastPath) -> bool:
    """Paths that this machine has, and bf16 on any. Rates of TF32 and of copies are measured by `bench`."""
    return path.name == "precision" or (path.used and path.name in (*_TRIALS, "compile", "cuda_graphs"))


def _config(device: torch.device, **knobs: Any) -> Config:
    """Settings of the model in trials, with a batch that fits on this card."""
    defaults = dict(_KNOBS[device.type])
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < _FREE_BYTES:
        defaults["batch_size"] = _SMALL_BATCH
    return Config(**{**defaults, **knobs})


def _model(config: Config, device: torch.device) -> Decoder:
    return build_decoder(device, ModelConfig.from_config(config, config.vocab_size))


def _batch(config: Config, device: torch.device) -> Batch:
    """Random tokens."""
    generator = torch.Generator().manual_seed(0)
    rows, length = config.batch_size, config.max_seq_len
    ids = torch.randint(0, config.vocab_size, (rows, length + 1), generator=generator).to(device)
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), loss_tokens=rows * length, samples=rows)


def _try_compile(device: torch.device, precision: Precision, reporter: Reporter) -> dict[str, FastPath]:
    """Compilation and, on a GPU, CUDA graphs, whose speedup is that over compiled code without them."""
    compiled = _compiled_paths(_config(device, cuda_graphs="off"), device, precision, reporter)["compile"]
    if device.type != "cuda":
        return {"compile": compiled}
    graphs = _compiled_paths(_config(device, cuda_graphs="on"), device, precision, reporter)["cuda_graphs"]
    compilation.reset_graphs()  # they hold the memory of a whole step
    release_memory(device)
    if graphs.used and graphs.speedup and compiled.speedup:
        graphs = judge(graphs, graphs.speedup / compiled.speedup, graphs.error, graphs.error or 0.0)
    return {"compile": compiled, "cuda_graphs": graphs}


def _compiled_paths(
    config: Config, device: torch.device, precision: Precision, reporter: Reporter
) -> dict[str, FastPath]:
    batch = _batch(config, device)
    engine = build_engine(
        config, _model(config, device), device, precision, reporter, batch, 1, None,
        varying=False, eager_start=False, thorough=True,
    )  # fmt: skip
    if engine.switch is not None:
        reporter.report_measuring("compile")
        engine.switch.finish(batch)
    return {path.name: path for path in engine.fast_paths}


# --- trials -----------------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """The reference and the fast path as functions that return their results."""

    reference: Callable[[], list[Tensor]]
    fast: Callable[[], list[Tensor]]
    tolerance: float | None  # largest error allowed; None: not comparable, e.g. another optimizer
    choice: str = ""  # selected variant


def _measure_path(
    path: FastPath,
    build_trial: Callable[[torch.device, Precision], Trial],
    device: torch.device,
    precision: Precision,
    reporter: Reporter,
) -> FastPath:
    try:
        trial, error = build_trial(device, precision), None
        if trial.tolerance is not None:
            error = measuring.relative_error(trial.fast(), trial.reference())
        alternatives = {"reference": trial.reference, "fast": trial.fast}
        seconds = measuring.time_alternatives(alternatives, device, reporter, _BUDGET_S)
    except StopRequested:
        raise
    except Exception as failure:  # noqa: BLE001 - the other paths are still measured
        params: dict[str, Any] = {"reason": compilation.error_summary(failure)}
        return FastPath(name=path.name, used=False, reason="path.failed", params=params)
    path = msgspec.structs.replace(path, choice=trial.choice or path.choice)
    return judge(path, seconds["reference"] / seconds["fast"], error, trial.tolerance or 0.0)


def judge(path: FastPath, speedup: float, error: float | None, tolerance: float) -> FastPath:
    """Decide whether a measured path is worth using. Paths that are off by default may be worth setting."""
    params: dict[str, Any] = {}
    if error is not None and error > tolerance:
        used, reason, params = False, "path.differs", {"error": error, "tolerance": tolerance}
    elif path.reason in NON_SPEED_REASONS:
        used, reason = True, path.reason
    elif speedup < (1 / MIN_SPEEDUP if path.used else MIN_SPEEDUP):
        used, reason = False, "path.slower"
    elif path.used:
        used, reason = True, path.reason if error is None else "path.on"
    else:
        used, reason = True, "path.by_name"
    return msgspec.structs.replace(path, used=used, reason=reason, params=params, error=error, speedup=speedup)


def _fused_adamw(device: torch.device, precision: Precision) -> Trial:
    """One update by each from the same weights and gradients; time of many."""
    plain = _model(_config(device, vocab_size=_SMALL_VOCABULARY), device)
    fused = copy.deepcopy(plain)
    for one, other in zip(plain.parameters(), fused.parameters(), strict=True):
        one.grad = torch.randn_like(one)
        other.grad = one.grad.clone()
    reference = torch.optim.AdamW(plain.parameters(), lr=1e-3, foreach=False, fused=False)
    fast = torch.optim.AdamW(fused.parameters(), lr=1e-3, fused=True)
    return Trial(partial(_update, reference, plain), partial(_update, fast, fused), trials.TOLERANCE["fp32"])


def _update(optimizer: torch.optim.Optimizer, model: Decoder) -> list[Tensor]:
    optimizer.step()
    return list(model.parameters())


def _muon(device: torch.device, precision: Precision) -> Trial:
    """Another optimizer with other weights: only the time of an update against AdamW's."""
    updates = []
    for name in ("adamw", "muon"):
        config = _config(device, optimizer=name)
        model = _model(config, device)
        for weight in model.parameters():
            weight.grad = torch.full_like(weight, 1e-3)
        updates.append(partial(_update, optimizers.build_optimizer(model, config), model))
    return Trial(updates[0], updates[1], None)


def _low_precision(device: torch.device, precision: Precision) -> Trial:
    """A large product in the run's precision, or in bf16 if the run computes in fp32, against fp32."""
    dtype = precision.dtype or torch.bfloat16
    size = 512 if device.type == "cpu" else 4096
    left, right = (torch.randn(size, size, device=device) for _ in range(2))
    low_left, low_right = left.to(dtype), right.to(dtype)
    name = "bf16" if dtype is torch.bfloat16 else "fp16"
    return Trial(lambda: [left @ right], lambda: [low_left @ low_right], trials.TOLERANCE[name], name)


def _attention(device: torch.device, precision: Precision) -> Trial:
    """Torch's own attention against the formula, step by step."""
    return _attention_trial("math", "sdpa", _batch(_config(device), device), precision, "sdpa")


def _varlen(path: str, device: torch.device, precision: Precision) -> Trial:
    """Eight documents per sequence, against torch's attention with a mask."""
    length = 512 if device.type == "cpu" else 4096
    ids = torch.zeros(4, length, dtype=torch.int64, device=device)
    segments = (torch.arange(length, dtype=torch.int32, device=device) // (length // 8)).repeat(4, 1)
    batch = Batch(ids, ids, loss_tokens=ids.numel(), samples=4, segments=segments)
    return _attention_trial("sdpa", available.backend_of(path, device), batch, precision)


def _attention_trial(reference: str, fast: str, batch: Batch, precision: Precision, choice: str = "") -> Trial:
    shape = ModelConfig.from_config(_config(batch.input_ids.device), _SMALL_VOCABULARY)

    def passes(name: str) -> Callable[[], list[Tensor]]:
        torch.manual_seed(0)  # the same queries, keys and values
        return trials.attention_pass(name, shape, batch, precision.dtype)

    return Trial(passes(reference), passes(fast), trials.TOLERANCE[precision.name], choice)


def _chunked_loss(device: torch.device, precision: Precision) -> Trial:
    """The loss in four chunks against all logits at once."""
    config = _config(device)
    model, batch = _model(config, device), _batch(config, device)
    whole, chunked = (
        partial(_gradients, model, batch, precision, chunk) for chunk in (0, batch.input_ids.numel() // 4)
    )
    return Trial(whole, chunked, trials.TOLERANCE[precision.name])


def _checkpointing(device: torch.device, precision: Precision) -> Trial:
    """A micro-batch with full activation recomputation against one without."""
    config = _config(device, vocab_size=_SMALL_VOCABULARY)  # the head keeps its activations anyway
    model, batch = _model(config, device), _batch(config, device)
    recomputing = copy.deepcopy(model)
    activation_checkpointing.checkpoint_activations(recomputing, "full")
    reference, fast = (partial(_gradients, one, batch, precision) for one in (model, recomputing))
    return Trial(reference, fast, trials.TOLERANCE[precision.name])


def _gradients(model: Decoder, batch: Batch, precision: Precision, chunk: int = 0) -> list[Tensor]:
    """Loss and gradients, scaled in fp16 as in training, because gradients that underflow cannot be compared."""
    scale = torch.tensor(8.0 if precision.needs_scaler else 1.0, device=batch.input_ids.device)
    with precision.autocast():
        loss = batch_loss(model, batch, chunk=chunk, grad_scale=scale)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()), scale)]


def _padded_vocabulary(device: torch.device, precision: Precision) -> Trial:
    """The head, forward and backward, with a vocabulary that 64 does not divide and with the padded one."""
    rows, vocabulary = {"cpu": (1024, 4_097), "cuda": (4096, 50_257)}[device.type]
    width, dtype = _KNOBS[device.type]["hidden_dim"], precision.dtype or torch.float32
    hidden = torch.randn(rows, width, device=device).to(dtype).requires_grad_()
    padded = torch.randn(-(-vocabulary // 64) * 64, width, device=device).to(dtype).requires_grad_()
    plain = padded.detach()[:vocabulary].clone().requires_grad_()

    def head(weight: Tensor) -> list[Tensor]:
        logits = F.linear(hidden, weight)
        torch.autograd.grad(logits, (hidden, weight), logits.detach())
        return [logits[:_COMPARED_ROWS, :vocabulary]]

    return Trial(partial(head, plain), partial(head, padded), trials.TOLERANCE[precision.name])


_TRIALS: Final[dict[str, Callable[[torch.device, Precision], Trial]]] = {
    "attention": _attention,
    "chunked_loss": _chunked_loss,
    "fused_adamw": _fused_adamw,
    "muon": _muon,
    "precision": _low_precision,
    "padded_vocabulary": _padded_vocabulary,
    "activation_checkpointing": _checkpointing,
    **{path: partial(_varlen, path) for path in available.VARLEN_BACKENDS},
}
