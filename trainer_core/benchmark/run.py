"""The `bench` command: ceilings of the hardware, fast paths, and real training steps of three recipes in turn.

- untuned: a plain PyTorch script, as in tutorials: fp32, batch 12, no workers, no compilation, plain attention
- preset: as configured
- tuned: the same model with performance settings on auto and, on a GPU, a batch that fills it

All recipes have the preset's optimizer. Progress goes to `log`; the result is a document for JSON.
"""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import psutil
import torch

from trainer_core import __version__
from trainer_core.base_model.configure import apply_base_model
from trainer_core.benchmark import ceilings, tables
from trainer_core.check.data import inspect_data
from trainer_core.check.trial_process import TrialRequest, TrialResult, run_trial_process
from trainer_core.config import Config
from trainer_core.console.performance import format_measuring
from trainer_core.messages import Language, TraindeckError
from trainer_core.models.build import build_model
from trainer_core.progress import NullReporter
from trainer_core.protocol import FastPath
from trainer_core.run_context import RunContext
from trainer_core.runs import run_dir
from trainer_core.system import files, hardware
from trainer_core.system.gpu_specs import EXPECTED_MFU
from trainer_core.train.device import choose_device, choose_precision
from trainer_core.train.engine import fast_paths
from trainer_core.train.flops import flops_per_token
from trainer_core.train.model_shape import model_config_of
from trainer_core.train.oom import release_memory
from trainer_core.wire import EventDispatcher

Name = Literal["untuned", "preset", "tuned"]

DEFAULT_SECONDS: Final = {"cpu": 120.0, "cuda": 300.0}
_FAST_PATHS_S: Final = 120.0  # fast paths are measured in a benchmark of at least this duration
_MAX_MICRO_BATCH_S: Final = 8.0
_MAX_ROUNDS: Final = 5
_TOTAL_STEPS: Final = 1_000_000  # of a run that is long enough for compilation to pay
_GPU_BATCH_TOKENS: Final = 16_384  # of a micro-batch that fills a GPU

_UNTUNED: Final[dict[str, Any]] = {
    "batch_size": 12, "mixed_precision": "no", "num_workers": 0, "pin_memory": False, "compile": "off",
    "cuda_graphs": "off", "attention": "math", "chunked_loss": "off", "activation_checkpointing": "off",
    "checkpointed_layers": 0, "tf32": False, "vocab_multiple": 1, "deterministic": False,
}  # fmt: skip
_TUNED: Final = (  # to their defaults
    "mixed_precision", "num_workers", "pin_memory", "low_memory", "compile", "cuda_graphs", "attention", "chunked_loss",
    "tf32", "cpu_threads", "deterministic", "activation_checkpointing",
    "checkpointed_layers",
)  # fmt: skip
_SHOWN_KNOBS: Final = (
    "batch_size", "gradient_accumulation_steps", "max_seq_len", "mixed_precision", "num_workers", "compile",
    "attention", "optimizer", "vocab_multiple",
)  # fmt: skip


@dataclass(slots=True)
class Recipe:
    """A configuration and its measurements, by round. `error`: code and parameters of what ended it."""

    name: Name
    config: Config
    runs: dict[int, TrialResult] = field(default_factory=dict)
    error: tuple[str, dict[str, Any]] | None = None


def run(
    config: Config,
    language: Language,
    log: Callable[[str], None],
    seconds: float | None = None,
    fixed: Collection[str] = (),
) -> dict[str, Any]:
    """Measure everything in about `seconds`. Knobs in `fixed` are not tuned.

    Raises `TraindeckError` if no recipe could be measured, `bench.too_large` if a micro-batch takes too long.
    """
    begin, notes = time.monotonic(), dict[str, dict[str, Any]]()
    context = RunContext(EventDispatcher())
    config = apply_base_model(config, context)
    device = choose_device(config.device)
    seconds = seconds or DEFAULT_SECONDS[device.type]
    machine = describe_machine(device)
    if machine["busy"] > tables.NOISY:
        notes["others"] = {"share": machine["busy"]}

    def log_ceiling(name: str) -> None:
        log(tables.text("doing_ceiling", language, name=tables.ceiling_name(name, language)))

    rates = ceilings.measure(device, min(0.4, seconds / 200), log_ceiling)
    needs = inspect_data(config, context)
    _require_trainable(config, needs.vocab_size, device, rates)
    recipes = build_recipes(config, device.type == "cuda", fixed)
    if recipes[1].config == recipes[2].config:
        notes["same"] = {}
        del recipes[1]
    paths = fast_path_results(device, seconds, lambda name: log(format_measuring(name, language)))
    if not any(path.speedup for path in paths):
        notes["not_measured"] = {}
    release_memory(device)  # for the child processes
    run_seconds = min(10.0, max(0.3, seconds / 40))

    def measure(recipe: Recipe, number: int) -> TrialResult:
        log(tables.text("doing_round", language, round=number + 1, name=tables.text(recipe.name, language)))
        request = TrialRequest(recipe.config, needs.vocab_size, needs.task, _TOTAL_STEPS, run_seconds, needs.sides)
        return run_trial_process(request, context)

    _measure_in_turn(recipes, measure, begin + seconds)
    return {
        "machine": machine,
        "preset": config.preset,
        "seconds": time.monotonic() - begin,
        "ceilings": rates,
        "recipes": [_recipe_document(recipe) for recipe in recipes],
        "times_as_fast": speedup(recipes[-1], recipes[0]),
        "fast_paths": json.loads(msgspec.json.encode(paths)),
        "notes": notes,
    }


def save(document: dict[str, Any]) -> Path:
    """Write the document to `bench/results` in Traindeck's folder. Returns its path. Raises `disk.…`."""
    root = run_dir.home() / "bench" / "results"
    name = run_dir.safe_name(document["preset"]) or "bench"
    path = root / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    with files.translate_os_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8"))
    return path


# --- the machine -----------------------------------------------------------------------------------


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Hardware, software and load."""
    probed = hardware.probe()
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else probed.cpu_name,
        "kind": device.type,
        "threads": probed.cpu_threads,
        "ram": probed.ram_total,
        "system": probed.platform,
        "driver": probed.driver_version,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "traindeck": __version__,
        "busy": cpu_load(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def cpu_load() -> float:
    """Share of the processors that other programs use, over half a second; 0 if the system does not report it."""
    with contextlib.suppress(OSError):
        return psutil.cpu_percent(interval=0.5) / 100
    return 0.0


def _require_trainable(config: Config, vocab_size: int, device: torch.device, rates: dict[str, float]) -> None:
    """Raise `bench.too_large` if a micro-batch of the preset takes too long, by estimate."""
    model = build_model(torch.device("meta"), model_config_of(config, vocab_size))
    products = {name: rate for name, rate in rates.items() if name.startswith("matmul")}
    rate = products["matmul fp32"] if device.type == "cpu" else max(products.values())
    tokens = config.batch_size * config.max_seq_len
    seconds = flops_per_token(model, config.max_seq_len) * tokens / (rate * EXPECTED_MFU)
    if seconds > _MAX_MICRO_BATCH_S:
        preset = config.preset or "–"
        raise TraindeckError("bench.too_large", preset=preset, seconds=round(seconds), device=str(device))


def fast_path_results(device: torch.device, seconds: float, log: Callable[[str], None]) -> list[FastPath]:
    """Results of the fast paths, measured if they are not and if there is time."""
    precision = choose_precision("auto", device, NullReporter()).name
    cached = fast_paths.cached_paths(device, precision)
    if seconds < _FAST_PATHS_S or any(path.speedup for path in cached):
        return cached
    return fast_paths.measure(device, NullReporter(), log)


# --- the recipes -----------------------------------------------------------------------------------


def build_recipes(config: Config, on_gpu: bool, fixed: Collection[str] = ()) -> list[Recipe]:
    """The recipes to compare. Knobs in `fixed` are not tuned."""
    config = msgspec.structs.replace(config, auto_batch=False)
    tuned = {name: getattr(Config(), name) for name in _TUNED if name not in fixed}
    if on_gpu and "batch_size" not in fixed:
        tuned["batch_size"] = max(config.batch_size, -(-_GPU_BATCH_TOKENS // config.max_seq_len // 8) * 8)
    untuned = {**_UNTUNED, "cpu_threads": torch.get_num_threads()}
    return [
        Recipe("untuned", msgspec.structs.replace(config, **untuned)),
        Recipe("preset", config),
        Recipe("tuned", msgspec.structs.replace(config, **tuned)),
    ]


def _measure_in_turn(recipes: list[Recipe], measure: Callable[[Recipe, int], TrialResult], end: float) -> None:
    """Measure every recipe once per round, until `end`. A recipe that fails is left out from then on."""
    for number in range(_MAX_ROUNDS):
        begin = time.monotonic()
        for recipe in recipes:
            if recipe.error is None:
                _measure(recipe, number, measure)
        duration = time.monotonic() - begin
        if time.monotonic() + (duration if number else duration / 2) > end:  # the first round compiles
            break
    if not any(recipe.runs for recipe in recipes):
        code, params = next(recipe.error for recipe in recipes if recipe.error)
        raise TraindeckError(code, **params)


def _measure(recipe: Recipe, number: int, measure: Callable[[Recipe, int], TrialResult]) -> None:
    """Add a measurement. Out of memory halves the tuned batch and discards earlier measurements."""
    try:
        while (result := measure(recipe, number)).verdict == "does_not_fit":
            if recipe.name != "tuned" or recipe.config.batch_size == 1:
                raise TraindeckError("memory.out", device=result.device, step=0)
            recipe.config = msgspec.structs.replace(recipe.config, batch_size=recipe.config.batch_size // 2)
            recipe.runs.clear()
        recipe.runs[number] = result
    except TraindeckError as error:
        recipe.error = error.code, error.params


# --- the document ----------------------------------------------------------------------------------


def speedup(one: Recipe, other: Recipe) -> dict[str, Any] | None:
    """Speed of `one` relative to `other` within each round, so that changes of the machine's speed affect both."""
    rounds = sorted(one.runs.keys() & other.runs.keys())
    speeds = [(one.runs[number].tokens_per_s, other.runs[number].tokens_per_s) for number in rounds]
    return _spread([first / second for first, second in speeds if first and second])


def _recipe_document(recipe: Recipe) -> dict[str, Any]:
    runs = list(recipe.runs.values())
    document: dict[str, Any] = {
        "name": recipe.name,
        "knobs": {name: getattr(recipe.config, name) for name in _SHOWN_KNOBS},
        "error": {"code": recipe.error[0], "params": recipe.error[1]} if recipe.error else None,
        "tokens_per_s": _spread([run.tokens_per_s for run in runs if run.tokens_per_s]),
    }
    if runs:
        last = runs[-1]
        document |= {
            "precision": last.precision,
            "parameters": last.parameters,
            "step_ms": _spread([1000 * run.step_s for run in runs if run.step_s]),
            "compile_s": max((run.compile_s for run in runs if run.compile_s is not None), default=None),
            "peak_vram": max(run.peak or 0 for run in runs) if last.uuids else None,
            "utilization": last.utilization,
        }
    return document


def _spread(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "each": list(values)}
